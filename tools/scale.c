/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale: what a commit of very many ranks costs, on one machine: every rank's part is made and put
 * through the store as in a real save, and rank 0 gathers, merges and commits them. No tensor bytes
 * are written.
 *
 *     scale [--pieces N] [--latency MS] [--rate MB] [--own] [--folder FOLDER] [WORLD...]
 *
 * Each rank holds a piece of each of N tensors. Two stores: a folder (by default in /dev/shm),
 * and memory with so many milliseconds for each request and so many megabytes a second for its
 * bytes (0 = no limit), as an object store takes; a listing takes a request for every 1,000
 * names. --own: every rank also has a value of its own, so that no two parts have the same tree.
 * Each world is a process of its own, for the peak of its memory (less the store's). Prints a
 * table; a commit that fails has its error there.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ranks/gather.h"
#include "layout/merge.h"
#include "layout/plan.h"
#include "layout/rank_share.h"
#include "store/layers/layer.h"

#define PIECE_ROWS 128u
#define PIECE_COLS 1024u /* of 2 bytes: 256 KiB */
#define BLOCK_BYTES ((uint64_t)1 << 20)
#define PACK_BYTES ((uint64_t)256 << 20)
#define NAMES_PER_LIST 1000

struct options {
	uint32_t pieces;
	int64_t latency_ms;
	uint64_t rate; /* of one request, in bytes per millisecond; 0 = no limit */
	bool own;
	const char *folder;
};

/* ---- a store that counts requests and takes its time */

struct slow_store {
	struct store base; /* a layer */
	int64_t latency_ms; /* 0 while the stage is set */
	uint64_t rate;
	_Atomic uint64_t requests;
	uint64_t names; /* of the listing that runs */
	store_list_fn *fn;
	void *arg;
};

static struct slow_store *
transfer(struct store *base, uint64_t nbytes)
{
	struct slow_store *s = (struct slow_store *)base;

	atomic_fetch_add(&s->requests, 1);
	if (s->latency_ms)
		clock_sleep_ms(s->latency_ms + (s->rate ? (int64_t)(nbytes / s->rate) : 0));
	return s;
}

static struct slow_store *
request(struct store *base)
{
	return transfer(base, 0);
}

static int
slow_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n, int flags,
         struct pawl_error *err)
{
	uint64_t nbytes = 0;

	for (size_t i = 0; i < n; i++)
		nbytes += parts[i].len;
	return store_put(transfer(base, nbytes)->base.inner, key, parts, n, flags, err);
}

static int
slow_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	return store_open_reader(request(base)->base.inner, key, ret, ret_nbytes, err);
}

static int
slow_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	return store_read(transfer(base, n)->base.inner, r, offset, dst, n, err);
}

static int
see_name(void *arg, const struct store_entry *entry)
{
	struct slow_store *s = arg;

	if (++s->names % NAMES_PER_LIST == 0)
		request(&s->base);
	return s->fn(s->arg, entry);
}

static int
slow_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct slow_store *s = request(base);

	s->names = 0;
	s->fn = fn;
	s->arg = arg;
	return store_list(s->base.inner, folder, see_name, s, err);
}

static int
slow_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	return store_stat(request(base)->base.inner, key, ret, err);
}

static int
slow_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	return store_remove_folder(request(base)->base.inner, folder, err);
}

static int
slow_wrap(struct store *inner, struct slow_store **ret, struct pawl_error *err)
{
	static const struct store_ops ops = {
		.put = slow_put,
		.open = slow_open,
		.read = slow_read,
		.list = slow_list,
		.stat = slow_stat,
		.remove_folder = slow_remove_folder,
	};
	PAWL_FREE struct slow_store *s = mem_zalloc(1, sizeof(*s));

	if (!s)
		return err_nomem(err, NULL);
	TRY(layer_init(&s->base, &ops, inner, err));
	*ret = steal(&s);
	return 0;
}

/* ---- the ranks */

/* Hands rank 0's text to all. */
struct word {
	char bytes[1024];
	bool is_host;
};

static int
pass_on(void *arg, void *bytes, size_t nbytes, struct pawl_error *err)
{
	struct word *w = arg;

	(void)err;
	memcpy(w->is_host ? w->bytes : bytes, w->is_host ? bytes : w->bytes, nbytes);
	return 0;
}

/* The state of a rank: `pieces` tensors cut by rows over all ranks, as in sharded training. */
static int
build(const struct options *o, uint32_t rank, uint32_t world, int64_t step, struct pawl_state **ret,
      struct pawl_error *err)
{
	static char nothing[64];
	uint64_t shape[] = {PIECE_ROWS, PIECE_COLS}, whole[] = {(uint64_t)PIECE_ROWS * world, PIECE_COLS};
	uint64_t offsets[] = {(uint64_t)PIECE_ROWS * rank, 0};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_state *s;
	char name[80];

	t.dtype = PAWL_BF16;
	t.ndim = 2;
	t.shape = shape;
	t.global_shape = whole;
	t.offsets = offsets;
	TRY(pawl_state_new(&s, err));
	TRY(pawl_state_set_rank(s, rank, world, err));
	TRY(pawl_state_begin(s, PAWL_DICT, err));
	for (uint32_t i = 0; i < o->pieces; i++) {
		snprintf(name, sizeof(name), "model.layers.%u.block.%u.weight", i / 12, i % 12);
		t.data = nothing + i % 64; /* never read */
		TRY(pawl_state_key(s, &(struct pawl_scalar){.type = PAWL_STR, .ptr = name, .len = strlen(name)}, err));
		t.kind = i % 64 ? "torch" : "numpy";
		t.writer = PAWL_WRITER_HERE;
		shape[1] = PIECE_COLS + i; /* no two are tied */
		whole[1] = shape[1];
		TRY(pawl_state_add_tensor(s, &t, err));
	}
	TRY(pawl_state_key(s, &(struct pawl_scalar){.type = PAWL_STR, .ptr = "step", .len = 4}, err));
	TRY(pawl_state_add(s, &(struct pawl_scalar){.type = PAWL_INT, .i = step}, err));
	if (o->own) {
		TRY(pawl_state_key(s, &(struct pawl_scalar){.type = PAWL_STR, .ptr = "place", .len = 5}, err));
		TRY(pawl_state_begin(s, PAWL_PER_RANK, err));
		TRY(pawl_state_add(s, &(struct pawl_scalar){.type = PAWL_INT, .i = rank}, err));
		TRY(pawl_state_end(s, err));
	}
	TRY(pawl_state_end(s, err));
	*ret = s;
	return 0;
}

struct timing {
	double make, head;               /* of the first save's plan, and of its first pack's header; seconds */
	double fingerprint, second_head; /* of a later save of the same structure, at another step; medians */
};

static double
since(int64_t begin_ns)
{
	return (double)(clock_mono_ns() - begin_ns) / 1e9;
}

#define LATER_SAVES 31

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* What a commit writes of a checkpoint into the first pack's header, or nearly so. */
static struct pawl_slice
summary_of(int64_t step, char text[400])
{
	int n = snprintf(text, 400,
	                 "{\"pawl_manifest\":1,\"run\":\"0123456789abcdef0123456789abcdef\",\"id\":%lld,\"attempt\":1,"
	                 "\"token\":\"0123456789abcdef0123456789abcdef\",\"step\":%lld,\"progress\":{\"batch\":%lld},"
	                 "\"unix_ns\":%lld,\"metrics\":[[\"loss\",%.15g]],\"world_size\":4096}",
	                 (long long)step, (long long)step, (long long)step, (long long)clock_unix_ns(),
	                 1.0 / (double)step);

	return (struct pawl_slice){text, (size_t)n};
}

/* Plans saves of the same structure at other steps. */
static int
plan_again(const struct options *o, uint32_t rank, uint32_t world, struct plan *plan, const struct plan_opts *opts,
           struct timing *timing, struct pawl_error *err)
{
	double fingerprint[LATER_SAVES], head[LATER_SAVES];

	for (int i = 0; i < LATER_SAVES; i++) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		PAWL_CLEAN(buf_clear) struct buf json = {0};
		struct pawl_state *state, share = {0};
		int64_t step = 2 + i * 7, begin;
		char text[400];
		struct pawl_slice summary = summary_of(step, text);

		TRY(build(o, rank, world, step, &state, err));
		TRY(rank_share_of(state, rank, world, &memory, &share, err));
		TRY(state_encode(state, &json, err));
		begin = clock_mono_ns();
		if (!sum_equal(plan_fingerprint(&share, opts), plan->fingerprint))
			return err_set(err, PAWL_EINTERNAL, "the same structure has another fingerprint");
		fingerprint[i] = since(begin);
		begin = clock_mono_ns();
		TRY(plan_refresh(plan, opts, summary, (struct pawl_slice){json.ptr, json.len}, err));
		head[i] = since(begin);
		pawl_state_free(state);
	}
	qsort(fingerprint, LATER_SAVES, sizeof(double), compare_doubles);
	qsort(head, LATER_SAVES, sizeof(double), compare_doubles);
	timing->fingerprint = fingerprint[LATER_SAVES / 2];
	timing->second_head = head[LATER_SAVES / 2];
	return 0;
}

/* Plans the rank's packs, as the writer does, and encodes its part, as the commit does. */
static int
describe(const struct options *o, uint32_t rank, uint32_t world, const char *token, struct buf *out,
         struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf json = {0};
	struct manifest m = {.part = true, .id = 1, .attempt = 1, .step = 1, .unix_ns = 1, .world_size = world};
	struct plan_opts opts = {.pack_bytes = PACK_BYTES, .block_bytes = BLOCK_BYTES, .rank = rank};
	struct pawl_state *state, share = {0};
	struct plan *plan;
	char text[400];

	TRY(build(o, rank, world, 1, &state, err));
	TRY(rank_share_of(state, rank, world, &memory, &share, err));
	TRY(state_encode(state, &json, err));
	opts.run_id = "0123456789abcdef0123456789abcdef";
	TRY(plan_make(&share, &opts, &plan, err));
	TRY(plan_refresh(plan, &opts, summary_of(1, text), (struct pawl_slice){json.ptr, json.len}, err));

	memcpy(m.run_id, opts.run_id, 33);
	memcpy(m.token, token, 33);
	m.n_files = plan->n_packs;
	m.files = bump_array(&memory, plan->n_packs, sizeof(*m.files));
	m.n_tensors = state->n_tensors;
	m.tensors = bump_array(&memory, state->n_tensors, sizeof(*m.tensors));
	for (size_t k = 0; k < plan->n_packs; k++) {
		const struct plan_pack *pack = &plan->packs[k];
		struct sum128 *sums = bump_array(&memory, pack->n_blocks, sizeof(*sums));

		for (size_t i = 0; i < pack->n_blocks; i++)
			sums[i] = sum_bytes(&i, sizeof(i));
		m.files[k] = (struct manifest_file){.name = pack->name, .nbytes = pack->nbytes, .sums = sums};
		m.files[k].block_bytes = BLOCK_BYTES;
		m.files[k].n_blocks = pack->n_blocks;
		m.bytes += pack->nbytes;
		for (size_t i = 0; i < pack->n_slots; i++) {
			const struct plan_slot *slot = &pack->slots[i];
			const struct state_tensor *s = &state->tensors[slot->tensor];
			struct manifest_piece *p = bump_alloc(&memory, sizeof(*p));

			*p = (struct manifest_piece){.file = (uint32_t)k, .begin = pack->header.len + slot->begin};
			p->nbytes = slot->nbytes;
			p->offsets = s->src.offsets;
			p->lengths = s->src.shape;
			m.tensors[slot->tensor] =
				(struct manifest_tensor){.name = s->info.name, .pieces = p, .n_pieces = 1};
			m.tensors[slot->tensor].dtype = s->info.dtype;
			m.tensors[slot->tensor].ndim = s->info.ndim;
			m.tensors[slot->tensor].shape = s->info.shape;
			m.tensors[slot->tensor].nbytes = s->info.nbytes;
		}
	}
	m.new_bytes = m.bytes;
	int rc = manifest_encode_with(&m, (struct pawl_slice){json.ptr, json.len}, out, err);

	plan_free(plan);
	pawl_state_free(state);
	return rc;
}

/* What planning costs rank 1, at its first save and at later ones. */
static int
plan_saves(const struct options *o, uint32_t world, struct timing *timing, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf json = {0};
	struct plan_opts opts = {.pack_bytes = PACK_BYTES, .block_bytes = BLOCK_BYTES, .rank = 1};
	struct pawl_state *state, share = {0};
	struct plan *plan;
	char text[400];

	opts.run_id = "0123456789abcdef0123456789abcdef";
	TRY(build(o, 1, world, 1, &state, err));
	TRY(rank_share_of(state, 1, world, &memory, &share, err));
	TRY(state_encode(state, &json, err));
	int64_t begin = clock_mono_ns();

	TRY(plan_make(&share, &opts, &plan, err));
	timing->make = since(begin);
	begin = clock_mono_ns();
	TRY(plan_refresh(plan, &opts, summary_of(1, text), (struct pawl_slice){json.ptr, json.len}, err));
	timing->head = since(begin);
	TRY(plan_again(o, 1, world, plan, &opts, timing, err));
	plan_free(plan);
	pawl_state_free(state);
	return 0;
}

/* ---- one commit */

struct result {
	double part, part_put, gather, merge, encode, publish, decode; /* seconds */
	uint64_t requests_0, requests_r;
	size_t part_bytes, manifest_bytes;
	struct timing timing;
};

struct merging {
	struct merge *merge;
	double seconds;
};

static int
take_part(void *arg, uint32_t rank, const struct buf *text, struct pawl_error *err)
{
	struct merging *m = arg;
	int64_t begin = clock_mono_ns();
	int rc = merge_add(m->merge, rank, text, err);

	m->seconds += since(begin);
	return rc;
}

/* Rank r puts its part; what it costs is taken of rank 1. */
static int
put_part(const struct options *o, struct slow_store *store, struct word *word, uint32_t rank, uint32_t world,
         const char *token, struct result *ret, struct pawl_error *err)
{
	struct pawl_rank who = PAWL_RANK_INIT;
	struct rendezvous_opts opts = {.rank = &who, .timeout_ms = 1000, .broadcast = pass_on, .broadcast_arg = word};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct rendezvous_pass pass;
	struct rendezvous *meet;

	who.rank = (int32_t)rank;
	who.world_size = (int32_t)world;
	TRY(rendezvous_join(&store->base, &opts, &pass, &meet, err));
	int64_t begin = clock_mono_ns();

	TRY(describe(o, rank, world, token, &text, err));
	ret->part = rank == 1 ? since(begin) : ret->part;
	if (rank == 1)
		TRY(plan_saves(o, world, &ret->timing, err));
	store->latency_ms = rank == 1 ? o->latency_ms : 0;
	store->rate = o->rate;
	store->requests = 0;
	begin = clock_mono_ns();
	TRY(gather_put_part(&store->base, meet, token, &text, err));
	if (rank == 1) {
		ret->part_put = since(begin);
		ret->part_bytes = text.len;
		ret->requests_r = store->requests + 2; /* and the verdict, once it is there */
	}
	store->latency_ms = 0;
	rendezvous_leave(meet);
	return 0;
}

static int
gather_all(struct slow_store *store, struct rendezvous *meet, const char *token, const struct buf *own,
           struct buf *text, struct result *ret, struct pawl_error *err)
{
	struct merging m = {0};
	int64_t begin = clock_mono_ns();

	TRY(merge_new(rendezvous_world(meet), own, &m.merge, err));
	const struct gather_round round = {
		.store = &store->base, .m = meet, .token = token, .kind = GATHER_SAVE, .timeout_ms = 3600000};

	TRY(gather_parts(&round, take_part, &m, err));
	ret->merge = m.seconds;
	ret->gather = since(begin) - m.seconds;
	begin = clock_mono_ns();
	int rc = merge_finish(m.merge, text, err);

	ret->encode = since(begin);
	merge_free(m.merge);
	return rc;
}

static int
commit(const struct options *o, const char *url, uint32_t world, struct result *ret, struct pawl_error *err)
{
	struct pawl_rank who = PAWL_RANK_INIT;
	struct word word = {.is_host = true};
	struct rendezvous_opts opts = {.rank = &who, .broadcast = pass_on, .broadcast_arg = &word};
	PAWL_CLEAN(buf_clear) struct buf own = {0}, text = {0};
	struct rendezvous_pass pass = {.run_id = "0123456789abcdef0123456789abcdef"};
	struct manifest *m = NULL;
	struct slow_store *store;
	struct store *inner;
	struct rendezvous *meet;
	char token[33];

	who.rank = 0;
	who.world_size = (int32_t)world;
	TRY(store_open(url, true, true, &inner, err));
	TRY(slow_wrap(inner, &store, err));
	TRY(rendezvous_host(&store->base, &opts, &pass, &meet, err));
	rendezvous_save_token(meet, 1, token);
	word.is_host = false;
	for (uint32_t r = 1; r < world; r++)
		TRY(put_part(o, store, &word, r, world, token, ret, err));

	store->latency_ms = o->latency_ms;
	store->rate = o->rate;
	store->requests = 0;
	TRY(describe(o, 0, world, token, &own, err));
	TRY(gather_all(store, meet, token, &own, &text, ret, err));
	int64_t begin = clock_mono_ns();

	TRY(store_put_bytes(&store->base, "manifest.json", text.ptr, text.len, 0, err));
	gather_put_verdict(&store->base, token, 0, "checkpoint_000001", NULL);
	gather_clear(&store->base, token);
	ret->publish = since(begin);
	ret->requests_0 = store->requests;
	ret->manifest_bytes = text.len;
	begin = clock_mono_ns();
	TRY(manifest_decode("the manifest", text.ptr, text.len, false, &m, err));
	ret->decode = since(begin);
	manifest_free(m);
	rendezvous_leave(meet);
	store_close(&store->base);
	return 0;
}

static void
report(const struct options *o, const char *what, uint32_t world, const struct result *r)
{
	struct rusage usage;
	char memory[24] = "-";

	getrusage(RUSAGE_SELF, &usage);
	if (strcmp(what, "memory") != 0)
		snprintf(memory, sizeof(memory), "%.0f", (double)usage.ru_maxrss / 1024);
	printf("| %s | %u | %.0f | %.1f | %.1f | %llu | %llu | %.2f | %.2f | %.2f | %.2f | %.2f | %.1f | %.2f | %s |\n",
	       what, world, (double)r->part_bytes / 1024, r->part * 1e3, r->part_put * 1e3,
	       (unsigned long long)r->requests_r, (unsigned long long)r->requests_0, r->gather, r->merge, r->encode,
	       r->publish, r->gather + r->merge + r->encode + r->publish, (double)r->manifest_bytes / 1048576,
	       r->decode, memory);
	if (world == 16 && strcmp(what, "memory") != 0)
		fprintf(stderr,
		        "%u pieces: the first save's plan and header %.3f + %.3f ms; a later one's %.3f + %.3f ms (%.1f%%)\n",
		        o->pieces, r->timing.make * 1e3, r->timing.head * 1e3, r->timing.fingerprint * 1e3,
		        r->timing.second_head * 1e3,
		        100 * (r->timing.fingerprint + r->timing.second_head) / (r->timing.make + r->timing.head));
}

/* In a process of its own, for the peak of its memory. */
static void
measure(const struct options *o, const char *what, const char *url, uint32_t world)
{
	fflush(NULL);
	pid_t pid = fork();

	if (pid == 0) {
		struct pawl_error err = {0};
		struct result r = {0};
		int rc = commit(o, url, world, &r, &err);

		if (rc < 0)
			printf("| %s | %u | %s: %s |\n", what, world, pawl_code_name(rc), err.message);
		else
			report(o, what, world, &r);
		fflush(NULL);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

int
main(int argc, char **argv)
{
	static const uint32_t usual[] = {16, 64, 256, 1024, 4096};
	struct options o = {.pieces = 1000, .latency_ms = 5, .rate = 0, .folder = "/dev/shm"}, fast;
	uint32_t worlds[32];
	size_t n = 0;
	char folder[512];

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--own") == 0)
			o.own = true;
		else if (strcmp(argv[i], "--pieces") == 0 && i + 1 < argc)
			o.pieces = (uint32_t)strtoul(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--latency") == 0 && i + 1 < argc)
			o.latency_ms = strtoll(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--rate") == 0 && i + 1 < argc)
			o.rate = 1000 * strtoull(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--folder") == 0 && i + 1 < argc)
			o.folder = argv[++i];
		else if (n < 32 && strtoul(argv[i], NULL, 10) > 1)
			worlds[n++] = (uint32_t)strtoul(argv[i], NULL, 10);
		else
			return fprintf(stderr,
			               "usage: %s [--pieces N] [--latency MS] [--rate MB] [--own] [--folder FOLDER] [WORLD...]\n",
			               argv[0]),
			       2;
	}
	if (n == 0) {
		memcpy(worlds, usual, sizeof(usual));
		n = sizeof(usual) / sizeof(usual[0]);
	}
	fast = o;
	fast.latency_ms = 0;
	printf("| store | ranks | part KiB | part ms | put ms | requests of a rank | of rank 0 | gather s | merge s | encode s | "
	       "publish s | rank 0 s | manifest MiB | decode s | peak MiB |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
	for (size_t i = 0; i < 2 * n; i++) {
		snprintf(folder, sizeof(folder), "%s/pawl-scale-%d", o.folder, (int)getpid());
		measure(i < n ? &fast : &o, i < n ? "folder" : "memory", i < n ? folder : "mem:", worlds[i % n]);
		if (i < n) {
			char command[600];

			snprintf(command, sizeof(command), "rm -rf '%s'", folder);
			if (system(command) != 0)
				return 1;
		}
	}
	return 0;
}
