/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_options: what the caller of pawl_open asks for: copied, completed by the defaults, refused where it makes no
 * sense. Called by run.c. Nothing is opened or written here.
 */
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "policy/name.h"
#include "policy/retain.h"
#include "run/run.h"
#include "state/manifest.h"
#include "state/pack_name.h"
#include "store/layers/layer_nodes.h"

#define RUN_MAX_WORLD 100000
#define LONGEST_MS 1000000000000 /* also in nanoseconds it can be added to any time there is */

int
run_copy_text(struct pawl *run, const char **field, struct pawl_error *err)
{
	if (!*field)
		return 0;
	*field = bump_strndup(&run->strings, *field, strlen(*field));
	return *field ? 0 : err_set(err, PAWL_ENOMEM, "run: out of memory");
}

static int
copy_scores(struct pawl *run, struct pawl_retention *r, struct pawl_error *err)
{
	const char **names = bump_array(&run->strings, (uint64_t)r->n_scores + 1, sizeof(*names));
	int *orders = bump_array(&run->strings, (uint64_t)r->n_scores + 1, sizeof(*orders));

	if (!names || !orders)
		return err_set(err, PAWL_ENOMEM, "run: out of memory");
	for (size_t i = 0; i < r->n_scores; i++) {
		names[i] = r->score_attributes[i];
		TRY(run_copy_text(run, &names[i], err));
		orders[i] = r->score_orders ? r->score_orders[i] : 1;
	}
	r->score_attributes = names;
	r->score_orders = orders;
	return 0;
}

static int
check_range(const char *what, uint64_t value, uint64_t low, uint64_t high, struct pawl_error *err)
{
	if (value >= low && value <= high)
		return 0;
	return err_set(err, PAWL_EUSAGE, "%s: expected %llu to %llu, found %llu", what, (unsigned long long)low,
	               (unsigned long long)high, (unsigned long long)value);
}

static int
check_ms(const char *what, int64_t value_ms, int64_t low_ms, struct pawl_error *err)
{
	if (value_ms >= low_ms && value_ms <= LONGEST_MS)
		return 0;
	return err_set(err, PAWL_EUSAGE, "%s: expected %lld to %lld (31 years) or 0 for the default, found %lld", what,
	               (long long)low_ms, (long long)LONGEST_MS, (long long)value_ms);
}

/* A template that cannot make a folder name is refused at open, not at the first save. */
static int
check_template(const char *text, struct pawl_error *err)
{
	struct name_values sample = {
		.run_name = "run", .world_size = 1, .local_world_size = 1, .id = 1, .progress = PAWL_PROGRESS_INIT};
	PAWL_CLEAN(buf_clear) struct buf name = {0};

	TRY(name_format(text, &sample, false, &name, err));
	TRY(buf_check(&name, "name_template", err));
	if (!text_is_component(buf_str(&name)))
		return err_set(err, PAWL_EUSAGE,
		               "name_template: expected a folder name of letters, digits and '._=-', found '%s'", text);
	if (!name_uses(text, "id"))
		return err_set(err, PAWL_EUSAGE,
		               "name_template: '%s' has no {id}, so two checkpoints could have one name", text);
	return 0;
}

/* What many ranks cannot do, because they would not all do the same, is refused when the run is opened. */
static int
check_ranks(const struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;
	const char *what = NULL;

	TRY(check_ms("commit_timeout_ms", o->commit_timeout_ms, 100, err));
	if (run->world == 1 || o->read_only)
		return 0;
	if (o->single)
		what = "single: a single checkpoint is written by one process";
	else if (o->upkeep)
		what = "upkeep: a run is looked after by one process";
	else if (run->retention.num_to_keep == PAWL_KEEP_MEMORY)
		what = "num_to_keep: ranks cannot meet in memory";
	else if (o->on_busy != PAWL_BUSY_WAIT)
		what = "on_busy: expected wait, since all ranks must take part in the same saves";
	else if (run->retention.strict_score)
		what = "strict_score: one rank cannot refuse a save that the others have begun";
	else if (triggers_use_clock(&run->triggers) && !o->broadcast)
		what = "save_interval: clocks differ between ranks, so an interval in seconds, 'dur' or 'auto' needs a "
		       "broadcast function";
	return what ? err_set(err, PAWL_EUSAGE, "with %u ranks, %s", run->world, what) : 0;
}

/* Which node this is: as the launcher says, or by the ranks that a node has. -1 = not known. */
static int64_t
own_node(const struct pawl *run)
{
	const struct pawl_rank *r = &run->who;

	if (r->node_rank >= 0 && run->world > 1)
		return r->node_rank;
	if (run->world == 1)
		return 0;
	return r->local_world_size > 0 ? r->rank / r->local_world_size : -1;
}

static int
check_nodes(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	int32_t local = run->who.local_world_size;
	int64_t node = own_node(run);

	if (!o->node_folder)
		return o->partner ? err_set(err, PAWL_EUSAGE, "partner: expected a node_folder as well") : 0;
	if (o->single || run->retention.num_to_keep == PAWL_KEEP_MEMORY)
		return err_set(err, PAWL_EUSAGE, "node_folder: expected a run with a folder of its own");
	if (o->recycle)
		return err_set(err, PAWL_EUSAGE, "recycle: files in node folders are not kept aside");
	TRY(check_range("partner", o->partner, 0, NODES_MAX_COPIES - 1, err));
	if (o->read_only || o->upkeep) { /* looks wherever the packs are said to be */
		o->n_nodes = o->n_nodes ? o->n_nodes : NODES_MAX_NODES;
		node = 0;
	}
	if (node < 0)
		return err_set(err, PAWL_EUSAGE,
		               "node_folder: the launcher does not say on which node rank %u is; give node_rank or "
		               "local_world_size",
		               run->rank);
	if (!o->n_nodes && run->world > 1 && local < 1)
		return err_set(err, PAWL_EUSAGE, "node_folder: expected n_nodes, since the launcher does not tell it");
	if (!o->n_nodes)
		o->n_nodes = run->world == 1 ? 1 : (run->world + (uint32_t)local - 1) / (uint32_t)local;
	if (node >= o->n_nodes)
		return err_set(err, PAWL_EUSAGE, "n_nodes: rank %u is on node %lld, expected more than %u nodes",
		               run->rank, (long long)node, o->n_nodes);
	run->node = (uint32_t)node;
	return 0;
}

static int
check_mirrors(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;

	TRY(check_range("n_mirrors", o->n_mirrors, 0, MIRROR_MAX, err));
	TRY(check_range("num_concurrent_uploads", o->num_concurrent_uploads, 0, COPY_MAX_STREAMS, err));
	TRY(check_ms("upload_timeout_ms", o->upload_timeout_ms, 0, err));
	o->upload_timeout_ms = o->upload_timeout_ms ? o->upload_timeout_ms : 3600000;
	if (!o->n_mirrors)
		return o->drop_mirrored || o->mirror_retention
		               ? err_set(err, PAWL_EUSAGE, "%s: expected mirrors as well",
		                         o->drop_mirrored ? "drop_mirrored" : "mirror_retention")
		               : 0;
	if (o->single)
		return err_set(err, PAWL_EUSAGE, "mirrors: expected a run, a single checkpoint has none");
	if (run->retention.num_to_keep == PAWL_KEEP_MEMORY)
		return err_set(
			err, PAWL_EUSAGE,
			"mirrors: nothing is written when num_to_keep is memory only, so there is nothing to copy; "
			"to keep nothing here after an upload set drop_mirrored");
	for (size_t i = 0; i < o->n_mirrors; i++)
		if (!o->mirrors || !o->mirrors[i] || !*o->mirrors[i] || strncmp(o->mirrors[i], "mem:", 4) == 0)
			return err_set(err, PAWL_EUSAGE, "mirrors: expected a path or URL as number %zu, found %s",
			               i + 1, o->mirrors && o->mirrors[i] && *o->mirrors[i] ? o->mirrors[i] : "none");
	return o->mirror_retention ? retain_check(o->mirror_retention, err) : 0;
}

/* They live as long as the run. */
static int
copy_mirrors(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	const char **urls = bump_array(&run->strings, (uint64_t)o->n_mirrors + 1, sizeof(*urls));
	struct pawl_retention *policy = bump_alloc(&run->strings, sizeof(*policy));

	if (!urls || !policy)
		return err_set(err, PAWL_ENOMEM, "run: out of memory");
	for (size_t i = 0; i < o->n_mirrors; i++) {
		urls[i] = o->mirrors[i];
		TRY(run_copy_text(run, &urls[i], err));
	}
	o->mirrors = urls;
	if (!o->mirror_retention)
		return 0;
	*policy = *o->mirror_retention;
	o->mirror_retention = policy;
	return copy_scores(run, policy, err);
}

static int
take_compression(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;

	run->compress_by_rule = o->compression && strcmp(o->compression, "auto") == 0;
	return pack_check_compression(run->compress_by_rule ? COMPRESS_CODEC : o->compression, o->compression_level,
	                              &run->codec, err);
}

static int
fill_defaults(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	o->pack_bytes = o->pack_bytes ? o->pack_bytes : (uint64_t)256 << 20;
	o->block_bytes = o->block_bytes ? o->block_bytes : (uint64_t)1 << 20;
	o->ring_bytes = o->ring_bytes ? o->ring_bytes : (uint64_t)64 << 20;
	o->io_threads = o->io_threads ? o->io_threads : 4;
	o->lease_timeout_ms = o->lease_timeout_ms ? o->lease_timeout_ms : 120000;
	o->commit_timeout_ms = o->commit_timeout_ms ? o->commit_timeout_ms : 1800000;
	if (!(o->mtbf_seconds >= 0))
		return err_set(err, PAWL_EUSAGE, "mtbf_seconds: expected 0 (a day) or more seconds, found %g",
		               o->mtbf_seconds);
	o->mtbf_seconds = o->mtbf_seconds > 0 ? o->mtbf_seconds : 86400;
	if (!o->copy_threads)
		o->copy_threads = processors < 1 ? 1 : processors > 4 ? 4 : (uint32_t)processors;
	if (!o->name_template)
		o->name_template = "checkpoint_{id:06d}";
	TRY(check_range("block_bytes", o->block_bytes, 65536, SAVE_UNIT_BYTES, err));
	TRY(check_range("pack_bytes", o->pack_bytes, 4096, (uint64_t)1 << 40, err));
	TRY(check_range("ring_bytes", o->ring_bytes, SAVE_UNIT_BYTES, (uint64_t)1 << 40, err));
	TRY(check_range("io_threads", o->io_threads, 1, 256, err));
	TRY(check_range("copy_threads", o->copy_threads, 1, 256, err));
	TRY(check_range("mode", (uint64_t)o->mode, 0, PAWL_MODE_DIRECT, err));
	TRY(check_range("on_busy", (uint64_t)o->on_busy, 0, PAWL_BUSY_REPLACE, err));
	TRY(check_range("nonfinite", (uint64_t)o->nonfinite, 0, 2, err));
	TRY(check_range("recycle", o->recycle, 0, 1000, err));
	if (o->block_bytes & (o->block_bytes - 1))
		return err_set(err, PAWL_EUSAGE, "block_bytes: expected a power of two, found %llu",
		               (unsigned long long)o->block_bytes);
	TRY(check_ms("lease_timeout_ms", o->lease_timeout_ms, 1000, err));
	if (o->lease_wait_ms < -1 || o->lease_wait_ms > LONGEST_MS)
		return err_set(err, PAWL_EUSAGE,
		               "lease_wait_ms: expected -1 (do not wait), 0 (the default) or at most %lld, found %lld",
		               (long long)LONGEST_MS, (long long)o->lease_wait_ms);
	TRY(check_template(o->name_template, err));
	if (o->save_interval)
		TRY(triggers_parse(o->save_interval, &run->triggers, err));
	TRY(check_nodes(run, err));
	TRY(take_compression(run, err));
	return check_ranks(run, err);
}

/* Who we are among how many. */
static int
take_rank(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_rank *given = run->opts.rank;
	struct pawl_rank *r = &run->who;

	*r = (struct pawl_rank){.size = sizeof(*r), .rank = 0, .world_size = 1};
	run->opts.rank = r;
	if (given && !given->size)
		return err_set(err, PAWL_EUSAGE, "open: the rank has no size; start from PAWL_RANK_INIT");
	if (given)
		memcpy(r, given, given->size < sizeof(*r) ? given->size : sizeof(*r));
	r->attempt[sizeof(r->attempt) - 1] = 0;
	if (r->world_size < 1 || r->world_size > RUN_MAX_WORLD || r->rank < 0 || r->rank >= r->world_size)
		return err_set(err, PAWL_EUSAGE,
		               "open: expected a rank below the world's size (1 to %d), found %d of %d", RUN_MAX_WORLD,
		               r->rank, r->world_size);
	run->rank = (uint32_t)r->rank;
	run->world = (uint32_t)r->world_size;
	return 0;
}

static int
take_stores(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_stores *given = run->opts.stores;

	if (!given)
		return 0;
	if (given->size < sizeof(*given))
		return err_set(err, PAWL_EUSAGE, "open: the stores have no size; start from PAWL_STORES_INIT");
	run->stores = *given;
	run->opts.stores = &run->stores;
	return 0;
}

int
run_take_options(struct pawl *run, const struct pawl_open_opts *opts, struct pawl_error *err)
{
	size_t n = opts->size < sizeof(run->opts) ? opts->size : sizeof(run->opts);

	if (!opts->size)
		return err_set(err, PAWL_EUSAGE, "open: the options have no size; start from PAWL_OPEN_OPTS_INIT");
	memcpy(&run->opts, opts, n); /* fields that an older caller does not know stay zero */
	run->opts.size = sizeof(run->opts);
	if (!run->opts.root || !*run->opts.root)
		return err_set(err, PAWL_EUSAGE, "open: expected a root folder, found %s",
		               run->opts.root ? "an empty text" : "NULL");
	TRY(store_check_slashes(run->opts.root, err));
	TRY(take_rank(run, err));
	TRY(take_stores(run, err));
	TRY(run_copy_text(run, &run->opts.root, err));
	TRY(run_copy_text(run, &run->opts.run_id, err));
	TRY(run_copy_text(run, &run->opts.name_template, err));
	TRY(run_copy_text(run, &run->opts.save_interval, err));
	TRY(run_copy_text(run, &run->opts.node_folder, err));
	TRY(run_copy_text(run, &run->opts.compression, err));
	run->retention = run->opts.retention;
	TRY(retain_check(&run->retention, err));
	if (run->retention.num_to_keep == PAWL_KEEP_MEMORY) /* R3: no scores, the newest only, in memory */
		run->retention =
			(struct pawl_retention){.size = sizeof(run->retention), .num_to_keep = PAWL_KEEP_MEMORY};
	TRY(copy_scores(run, &run->retention, err));
	TRY(check_mirrors(run, err));
	TRY(copy_mirrors(run, err));
	return fill_defaults(run, err);
}
