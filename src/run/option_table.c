/* SPDX-License-Identifier: Apache-2.0 */
/*
 * option_table: the one list of the options of a run, with unit, range and default. Defaults are
 * filled in and ranges checked from it; the Python binding reads its keywords from it; the
 * reference of options is made from it. Pure.
 */
#include "run/option_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

#define LONGEST_MS INT64_C(1000000000000) /* can be added to any time, also in nanoseconds */
#define FIELD(path) offsetof(struct pawl_open_opts, path), sizeof(((struct pawl_open_opts *)0)->path)
#define FLAG(path, what) {#path, PAWL_OPTION_FLAG, FIELD(path), 0, 1, 0, NULL, what}
#define CHOICE(path, n, choices, what) {#path, PAWL_OPTION_CHOICE, FIELD(path), 0, (n) - 1, 0, choices, what}
#define NUMBER(path, type, low, high, zero_is, what) \
	{#path, PAWL_OPTION_##type, FIELD(path), low, high, zero_is, NULL, what}
#define ANY(path, type, what) NUMBER(path, type, 0, 0, 0, what)
#define TEXT(path, what) ANY(path, TEXT, what)
#define CALLER(path, what) ANY(path, CALLER, what)
#define MIB(n) (INT64_C(n) << 20)

/* clang-format off */
static const struct pawl_option options[] = {
	TEXT(root, "folder of the run: a path, file://path, a URL, or mem: for memory"),
	FLAG(read_only, "take no lease; write only holds, pins and scores"),
	FLAG(single, "root is one checkpoint, not a run"),
	FLAG(overwrite, "use a folder that holds another run"),
	FLAG(maintenance, "open to maintain the run, not to train"),
	TEXT(save_interval, "when a save is due, as a time string; default: at every call"),
	CHOICE(on_busy, 3, "wait skip replace", "what a save does while another one is written"),
	CHOICE(nonfinite, 3, "accept flag refuse", "what a save does with NaN and Inf"),

	ANY(retention.num_to_keep, INT, "keep the newest N, or with score attributes the best N"),
	ANY(retention.keep_last, COUNT, "keep the newest N"),
	ANY(retention.keep_best, COUNT, "keep the best N by score"),
	CALLER(retention.score_attributes, "names of metrics, compared in this order"),
	CALLER(retention.score_orders, "max or min, for each score attribute"),
	NUMBER(retention.n_scores, COUNT, 0, 16, 0, "number of score attributes"),
	ANY(retention.keep_every, COUNT, "keep the first checkpoint of every N steps"),
	ANY(retention.keep_seconds, SECONDS, "keep checkpoints younger than this"),
	ANY(retention.keep_hourly, SECONDS, "keep one per hour of those younger than this"),
	ANY(retention.keep_daily, SECONDS, "keep one per day of those younger than this"),
	ANY(retention.keep_weekly, SECONDS, "keep one per week of those younger than this"),
	ANY(retention.max_bytes, BYTES, "delete the oldest checkpoints above this size of all together"),
	FLAG(retention.drop_latest, "let num_to_keep and keep_best delete the latest"),
	CALLER(retention.keep, "a rule of the caller"),
	CALLER(retention.keep_arg, "first argument of retention.keep"),
	FLAG(retention.strict_score, "refuse a save that is not better than the worst of a full list"),

	CALLER(staging.arena, "staging memory that several runs share; default: own"),
	CHOICE(staging.mode, 3, "snapshot ring direct", "how tensors get from the caller to the writers"),
	NUMBER(staging.copy_threads, COUNT, 1, 256, 0, "threads that copy; default: one per processor, at most 4"),
	NUMBER(staging.arena_bytes, BYTES, MIB(8), INT64_C(1) << 62, 0, "most staging memory of one save; larger states use a ring"),
	NUMBER(staging.ring_bytes, BYTES, MIB(8), INT64_C(1) << 40, MIB(64), "memory of a ring"),
	CHOICE(staging.device, 2, "off auto", "copy a snapshot within its device first, where memory allows"),

	NUMBER(packs.pack_bytes, BYTES, 4096, INT64_C(1) << 40, MIB(256), "target size of a file"),
	NUMBER(packs.block_bytes, BYTES, 65536, MIB(8), MIB(1), "bytes per checksum, a power of two"),
	TEXT(packs.compression, "codec of the files: zst, planes or auto; default: none"),
	ANY(packs.compression_level, INT, "level of the codec; default: its own"),
	NUMBER(packs.recycle, COUNT, 0, 1000, 0, "deleted checkpoints whose files are kept for reuse"),
	FLAG(packs.no_reuse, "write unchanged tensors again instead of linking their files"),

	NUMBER(io.threads, COUNT, 1, 256, 4, "threads that write and read"),
	FLAG(io.no_direct, "use the page cache for writes and reads"),
	ANY(io.write_bytes_per_second, BYTES, "limit of writing, all threads together; default: none"),
	ANY(io.read_bytes_per_second, BYTES, "limit of reading, all threads together; default: none"),
	CALLER(io.stores, "stores for URLs that pawl does not know"),
	CALLER(io.fault, "failures for tests"),
	CALLER(io.meter, "its cancel ends waits for the limits of bytes"),

	CALLER(ranks.self, "which process of how many this one is; default: alone"),
	CALLER(ranks.broadcast, "fills bytes with those of rank 0"),
	CALLER(ranks.broadcast_arg, "first argument of ranks.broadcast"),
	TEXT(ranks.node_folder, "folder of each node for its packs, with {node_rank} in it; default: in root"),
	NUMBER(ranks.n_partners, COUNT, 0, 7, 0, "other nodes that keep a copy of each pack"),
	ANY(ranks.n_nodes, COUNT, "number of nodes; default: computed from the ranks per node"),

	CALLER(mirrors, "other stores to which checkpoints are copied: url, every, retention"),
	NUMBER(n_mirrors, COUNT, 0, 8, 0, "number of mirrors"),

	NUMBER(uploads.n_streams, COUNT, 1, 64, 4, "pieces of an upload in flight"),
	ANY(uploads.error_budget, COUNT, "failed tries in a row that are not reported"),
	NUMBER(uploads.memory_bytes, BYTES, 0, 0, MIB(256), "buffers of one upload"),
	ANY(uploads.bytes_per_second, BYTES, "limit of writing into each mirror; default: none"),
	FLAG(uploads.delete_local, "delete a checkpoint here once every mirror has it"),
	FLAG(uploads.fail_saves, "a failed upload fails the next save"),
	FLAG(uploads.leave_uploads, "do not wait for uploads at close; the next open resumes them"),

	NUMBER(timeouts.lease_ms, MS, 1000, LONGEST_MS, 120000, "a lease that is not renewed for so long is taken over"),
	NUMBER(timeouts.lease_wait_ms, MS, -1, LONGEST_MS, 0, "wait for another process's lease; -1 = do not wait; default: until it "
	       "is known to be alive or dead"),
	NUMBER(timeouts.commit_ms, MS, 100, LONGEST_MS, 1800000, "longest wait for the other ranks"),
	NUMBER(timeouts.upload_ms, MS, 1, LONGEST_MS, 3600000, "time of one checkpoint to one mirror before it is tried again"),
	NUMBER(timeouts.mtbf_seconds, SECONDS, 0, 0, 86400, "mean time between failures, for the interval \"auto\""),
	CALLER(on_lease_wait, "called while the open waits for a lease"),
	CALLER(on_lease_wait_arg, "first argument of on_lease_wait"),

	TEXT(naming.run_id, "expected id of the run; default: any"),
	TEXT(naming.name_template, "name of a checkpoint's folder; default: checkpoint_{id:06d}"),
	NUMBER(naming.after_id, COUNT, 0, INT64_C(1) << 62, 0, "new checkpoints get ids above this one"),
};
/* clang-format on */
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

const struct pawl_option *
pawl_option_get(size_t i)
{
	return i < N_OPTIONS ? &options[i] : NULL;
}

static bool
is_number(const struct pawl_option *o)
{
	return o->type != PAWL_OPTION_TEXT && o->type != PAWL_OPTION_CALLER && o->type != PAWL_OPTION_SECONDS;
}

/* A count above INT64_MAX reads as INT64_MAX, which is out of every range. */
static int64_t
read_number(const struct pawl_option *o, const void *field)
{
	const bool is_signed = o->type == PAWL_OPTION_INT || o->type == PAWL_OPTION_MS || o->type == PAWL_OPTION_FLAG ||
	                       o->type == PAWL_OPTION_CHOICE;

	if (o->width == 4 && is_signed)
		return *(const int32_t *)field;
	if (o->width == 4)
		return *(const uint32_t *)field;
	if (is_signed)
		return *(const int64_t *)field;
	const uint64_t found = *(const uint64_t *)field;
	return found > INT64_MAX ? INT64_MAX : (int64_t)found;
}

static void
write_number(const struct pawl_option *o, void *field, int64_t value)
{
	if (o->width == 4)
		*(int32_t *)field = (int32_t)value;
	else
		*(int64_t *)field = value;
}

/* The message gives the unit of a number, and the meaning of zero. */
static int
refuse_option(const struct pawl_option *o, int64_t found, struct pawl_error *err)
{
	char zero[64] = "";

	if (o->zero_is)
		snprintf(zero, sizeof zero, " (0 = %" PRId64 ", the default)", o->zero_is);
	return err_set(err, PAWL_EUSAGE, "%s: expected %" PRId64 " to %" PRId64 "%s%s, found %" PRId64, o->name, o->low,
	               o->high, o->type == PAWL_OPTION_MS ? " milliseconds" : "", zero, found);
}

int
option_table_complete(struct pawl_open_opts *opts, struct pawl_error *err)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct pawl_option *o = &options[i];
		void *field = (char *)opts + o->offset;

		if (o->type == PAWL_OPTION_SECONDS) {
			double *seconds = field;
			if (!(*seconds >= 0))
				return err_set(err, PAWL_EUSAGE, "%s: expected 0 or more seconds, found %g", o->name,
				               *seconds);
			if (*seconds == 0)
				*seconds = (double)o->zero_is;
		}
		if (!is_number(o))
			continue;
		int64_t found = read_number(o, field);
		if (found == 0)
			write_number(o, field, o->zero_is);
		else if ((o->low || o->high) && (found < o->low || found > o->high))
			return refuse_option(o, found, err);
	}
	return 0;
}
