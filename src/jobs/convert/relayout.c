/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relayout: a checkpoint written anew as another number of ranks would have written it. Called by users (pawl_reshard);
 * calls what a save and a restore are made of: share and plan for the layout, reshard and fetch for the bytes.
 *
 *   manifest ──> whose is each tensor ──> for each rank: its share ──> its packs ──┬─ read a slab, checked
 *                                                                                  └─ sum it, write it
 *            ──> the new manifest ──> the hidden folder gets its name
 *
 * Whole tensors are shared as by a save (share.h), so sharded ones come out cut between rows. Every rank's first pack
 * carries the tree as that rank would have given it, for repair. Memory: one slab, the reading buffers, and what the
 * tables of tensors take (P16). Every byte is checked before it is written (P1); the folder is there whole or not at
 * all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "catalog/catalog.h"
#include "catalog/place.h"
#include "jobs/convert/relayout_file.h"
#include "jobs/convert/relayout_tree.h"
#include "layout/plan.h"
#include "layout/share.h"
#include "ranks/meet_text.h"
#include "restore/restore.h"
#include "state/pack_name.h"

#define SLAB_BYTES ((uint64_t)32 << 20)
#define RING_BYTES (32u << 20)
#define BLOCK_BYTES ((uint64_t)1 << 20) /* the slab is a multiple */

/* A piece as it is written; those of a tensor are linked, then listed. */
struct piece {
	struct manifest_piece piece;
	struct piece *next;
};

struct relayout {
	struct pawl *run;
	struct pawl_reshard_opts opts;
	struct pawl_meter *meter;
	struct bump memory;
	uint32_t world;
	bool same_world; /* values per rank stay */

	/* what is read */
	char *name, *folder;
	struct pawl_hold *hold;
	struct manifest *from;
	struct fetch *fetch;
	char *slab;
	struct reshard_binding *bindings;

	/* what is written */
	struct store *store; /* of the folder that DST lies in */
	struct relayout_file_opts file;
	char *dest, *partial;
	struct manifest to;      /* borrows from `from` and from memory */
	struct buf state;        /* JSON of the whole tree */
	struct pawl_state table; /* whole tensors, rows as those of `from`; elsewhere: not written */
	uint32_t *owner;         /* per tensor */
	struct piece **pieces, **last;
	struct manifest_file *files;
	size_t n_files, cap_files;
};

static void
relayout_clear(struct relayout *x)
{
	if (x->store && x->partial)
		store_remove_folder(x->store, x->partial, NULL);
	store_close(x->store);
	fetch_free(x->fetch);
	manifest_free(x->from);
	pawl_hold_close(x->hold);
	buf_clear(&x->state);
	mem_free(x->name);
	mem_free(x->folder);
	mem_free(x->slab);
	mem_free(x->files);
	bump_clear(&x->memory);
}

static int
no_memory(struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "reshard: out of memory");
}

/* ---- the tree ---- */

static int
look_at_tree(struct relayout *x, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf lost = {0};
	const struct manifest *m = x->from;
	size_t n = (size_t)m->n_tensors + 1;

	x->owner = bump_array(&x->memory, n, sizeof(*x->owner));
	x->pieces = bump_array(&x->memory, n, sizeof(struct piece *));
	x->last = bump_array(&x->memory, n, sizeof(struct piece *));
	x->bindings = bump_array(&x->memory, n, sizeof(*x->bindings));
	if (!x->owner || !x->pieces || !x->last || !x->bindings)
		return no_memory(err);
	TRY(relayout_owners(m->state, x->same_world, x->owner, &lost, err));
	if (lost.len && !x->opts.drop_rank_values)
		return err_set(err, PAWL_EMISMATCH,
		               "%s: kept per rank by %u ranks, and there is no such value for %u: %s", x->name,
		               m->world_size, x->world, buf_str(&lost));
	return x->same_world ? state_encode(m->state, &x->state, err)
	                     : relayout_view(m->state, SIZE_MAX, x->world, &x->state, err);
}

/* The tensors as a state that holds them whole, of which share_of_rank makes what a rank writes. */
static int
make_table(struct relayout *x, struct pawl_error *err)
{
	const struct manifest *m = x->from;
	uint64_t total = 0;

	x->table.n_tensors = (size_t)m->n_tensors;
	x->table.tensors = bump_array(&x->memory, m->n_tensors + 1, sizeof(*x->table.tensors));
	if (!x->table.tensors)
		return no_memory(err);
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		struct state_tensor *s = &x->table.tensors[i];

		s->info = (struct pawl_tensor_info){
			.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape, .nbytes = t->nbytes};
		s->src = (struct pawl_tensor){
			.size = sizeof(s->src), .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape};
		s->local_nbytes = t->nbytes;
		s->contiguous = true;
		s->is_blob = m->state->tensors[i].is_blob;
		total += x->owner[i] == RELAYOUT_OF_NOBODY ? 0 : t->nbytes;
	}
	if (x->meter)
		__atomic_store_n(&x->meter->total_bytes, total, __ATOMIC_RELAXED);
	return 0;
}

/* ---- one pack ---- */

static void
clean_plan(struct reshard_plan **plan)
{
	reshard_free(*plan);
}

/* Where a slot's bytes begin in its tensor: what is written of it are whole rows. */
static uint64_t
begin_in_tensor(const struct state_tensor *t)
{
	if (!t->src.offsets || t->info.ndim == 0 || t->info.shape[0] == 0)
		return 0;
	return t->src.offsets[0] * (t->info.nbytes / t->info.shape[0]);
}

/* Reads bytes [begin, end) of the pack's file into the slab. first: the first slot that ends after begin. */
static int
fill_slab(struct relayout *x, const struct plan_pack *pack, const struct state_tensor *share, size_t first,
          uint64_t begin, uint64_t end, struct pawl_error *err)
{
	PAWL_CLEAN(clean_plan) struct reshard_plan *plan = NULL;
	const struct manifest *m = x->from;
	uint64_t header = pack->header.len;
	size_t n = 0;

	if (begin < header) {
		uint64_t most = end < header ? end : header;

		memcpy(x->slab, pack->header.ptr + begin, (size_t)(most - begin));
	}
	for (size_t i = first; i < pack->n_slots && header + pack->slots[i].begin < end; i++) {
		const struct plan_slot *slot = &pack->slots[i];
		const struct manifest_tensor *t = &m->tensors[slot->tensor];
		uint64_t at = header + slot->begin, from = at > begin ? at : begin;
		uint64_t to = at + slot->nbytes < end ? at + slot->nbytes : end;
		uint64_t base = begin_in_tensor(&share[slot->tensor]);

		if (from >= to)
			continue;
		struct pawl_tensor dst = {.size = sizeof(dst),
		                          .dtype = t->dtype,
		                          .ndim = t->ndim,
		                          .shape = t->shape,
		                          .data = x->slab + (from - begin)};
		x->bindings[n++] = (struct reshard_binding){.tensor = slot->tensor,
		                                            .dst = dst,
		                                            .contiguous = true,
		                                            .begin = base + (from - at),
		                                            .end = base + (to - at)};
	}
	if (n == 0)
		return 0;
	TRY(reshard_plan(m, x->bindings, n, fetch_unit_bytes(x->fetch, end - begin), &plan, err));
	struct fetch_job job = {.name = x->name,
	                        .folder = x->folder,
	                        .manifest = m,
	                        .plan = plan,
	                        .bindings = x->bindings,
	                        .held = x->hold || run_place_is_safe(x->run)};

	return fetch_run(x->fetch, &job, err);
}

static int
write_slabs(struct relayout *x, const struct plan_pack *pack, const struct state_tensor *share,
            struct relayout_file *file, struct pawl_error *err)
{
	size_t first = 0;

	for (uint64_t at = 0; at < pack->nbytes;) {
		uint64_t end = pack->nbytes - at < SLAB_BYTES ? pack->nbytes : at + SLAB_BYTES;
		uint64_t data = end > pack->header.len ? end - pack->header.len : 0;

		if (x->meter && __atomic_load_n(&x->meter->cancel, __ATOMIC_RELAXED))
			return err_set(err, PAWL_ECANCELLED, "reshard: cancelled");
		while (first < pack->n_slots &&
		       pack->header.len + pack->slots[first].begin + pack->slots[first].nbytes <= at)
			first++;
		TRY(fill_slab(x, pack, share, first, at, end, err));
		TRY(relayout_file_put(file, x->slab, (size_t)(end - at), err));
		if (x->meter)
			__atomic_fetch_add(&x->meter->done_bytes, data < end - at ? data : end - at, __ATOMIC_RELAXED);
		at = end;
	}
	return 0;
}

/* Room for one more row. */
static int
grow_files(struct relayout *x, struct pawl_error *err)
{
	size_t cap = x->cap_files ? 2 * x->cap_files : 64;
	struct manifest_file *bigger;

	if (x->n_files < x->cap_files)
		return 0;
	bigger = mem_resize(x->files, cap, sizeof(*bigger));
	if (!bigger)
		return no_memory(err);
	x->files = bigger;
	x->cap_files = cap;
	return 0;
}

static const uint64_t *
copy_extents(struct relayout *x, const uint64_t *from, uint32_t ndim)
{
	uint64_t *copy = bump_array(&x->memory, (uint64_t)ndim + 1, sizeof(*copy));

	if (copy && ndim > 0)
		memcpy(copy, from, ndim * sizeof(*copy));
	return copy;
}

static int
add_piece(struct relayout *x, const struct plan_pack *pack, const struct plan_slot *slot, const struct state_tensor *t,
          struct pawl_error *err)
{
	struct piece *p = bump_alloc(&x->memory, sizeof(*p));

	if (!p)
		return no_memory(err);
	*p = (struct piece){.piece = {.file = (uint32_t)x->n_files,
	                              .begin = pack->header.len + slot->begin,
	                              .nbytes = slot->nbytes}};
	if (t->src.offsets) {
		p->piece.offsets = copy_extents(x, t->src.offsets, t->info.ndim);
		p->piece.lengths = copy_extents(x, t->src.shape, t->info.ndim);
		if (!p->piece.offsets || !p->piece.lengths)
			return no_memory(err);
	}
	if (x->last[slot->tensor])
		x->last[slot->tensor]->next = p;
	else
		x->pieces[slot->tensor] = p;
	x->last[slot->tensor] = p;
	return 0;
}

static void
clean_file(struct relayout_file **f)
{
	relayout_file_free(*f);
}

static int
write_pack(struct relayout *x, const struct plan_pack *pack, const struct state_tensor *share, struct pawl_error *err)
{
	PAWL_CLEAN(clean_file) struct relayout_file *file = NULL;

	TRY(grow_files(x, err));
	for (size_t i = 0; i < pack->n_slots; i++)
		TRY(add_piece(x, pack, &pack->slots[i], &share[pack->slots[i].tensor], err));
	TRY(relayout_file_new(&x->file, pack->name, pack->nbytes, &x->memory, &file, err));
	TRY(write_slabs(x, pack, share, file, err));
	TRY(relayout_file_finish(file, &x->files[x->n_files], err));
	x->n_files++;
	return 0;
}

/* ---- one rank ---- */

static void
clean_layout(struct plan **plan)
{
	plan_free(*plan);
}

static int
write_rank(struct relayout *x, uint32_t rank, struct pawl_slice summary, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf view = {0};
	PAWL_CLEAN(clean_layout) struct plan *plan = NULL;
	struct plan_opts opts = {
		.pack_bytes = x->run->opts.pack_bytes, .block_bytes = BLOCK_BYTES, .rank = rank, .run_id = ""};
	struct pawl_slice state = {x->state.ptr, x->state.len};
	struct pawl_state share = {0};

	for (size_t i = 0; i < x->table.n_tensors; i++)
		x->table.tensors[i].src.writer = x->owner[i] == RELAYOUT_OF_ALL ? PAWL_WRITER_AUTO
		                                 : x->owner[i] == rank          ? PAWL_WRITER_HERE
		                                                                : PAWL_WRITER_ELSEWHERE;
	TRY(share_of_rank(&x->table, rank, x->world, &memory, &share, err));
	TRY(plan_make(&share, &opts, &plan, err));
	if (x->same_world && x->from->state->has_ranks) {
		TRY(relayout_view(x->from->state, rank, x->world, &view, err));
		state = (struct pawl_slice){view.ptr, view.len};
	}
	TRY(plan_refresh(plan, &opts, summary, state, err));
	for (size_t k = 0; k < plan->n_packs; k++)
		TRY(write_pack(x, &plan->packs[k], share.tensors, err));
	return 0;
}

/* ---- the manifest ---- */

static int
describe(struct relayout *x, struct pawl_error *err)
{
	struct manifest *m = &x->to;
	const struct manifest *from = x->from;

	m->files = x->files;
	m->n_files = x->n_files;
	for (size_t i = 0; i < x->n_files; i++) {
		m->bytes += x->files[i].nbytes;
		m->plain_bytes += x->file.codec ? manifest_plain_bytes(&x->files[i]) : 0;
	}
	m->new_bytes = m->bytes;
	m->tensors = bump_array(&x->memory, from->n_tensors + 1, sizeof(*m->tensors));
	if (!m->tensors)
		return no_memory(err);
	for (size_t i = 0; i < from->n_tensors; i++) {
		struct manifest_tensor *t = &m->tensors[m->n_tensors];
		size_t n = 0;

		if (x->owner[i] == RELAYOUT_OF_NOBODY)
			continue;
		*t = from->tensors[i];
		for (const struct piece *p = x->pieces[i]; p; p = p->next)
			n++;
		t->pieces = bump_array(&x->memory, (uint64_t)n + 1, sizeof(*t->pieces));
		if (!t->pieces)
			return no_memory(err);
		t->n_pieces = 0;
		for (const struct piece *p = x->pieces[i]; p; p = p->next)
			t->pieces[t->n_pieces++] = p->piece;
		m->n_tensors++;
	}
	return 0;
}

static int
publish(struct relayout *x, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};

	TRY(describe(x, err));
	TRY(manifest_encode_with(&x->to, (struct pawl_slice){x->state.ptr, x->state.len}, &text, err));
	buf_printf(&key, "%s/" MANIFEST_NAME, x->partial);
	TRY(buf_check(&key, "reshard", err));
	TRY(store_put_bytes(x->store, buf_str(&key), text.ptr, text.len, STORE_DURABLE, err));
	if (x->meter && __atomic_load_n(&x->meter->cancel, __ATOMIC_RELAXED))
		return err_set(err, PAWL_ECANCELLED, "reshard: cancelled");
	TRY(store_publish(x->store, x->partial, x->dest, err));
	x->partial = NULL; /* it has its name */
	return 0;
}

/* ---- the whole ---- */

static int
take_options(struct relayout *x, const struct pawl_reshard_opts *opts, struct pawl_error *err)
{
	if (!opts || !opts->size)
		return err_set(err, PAWL_EUSAGE,
		               "reshard: the options have no size; start from PAWL_RESHARD_OPTS_INIT");
	memcpy(&x->opts, opts, opts->size < sizeof(x->opts) ? opts->size : sizeof(x->opts));
	x->world = x->opts.world_size;
	if (x->world == 0 || x->world > MEET_MAX_WORLD)
		return err_set(err, PAWL_EUSAGE, "reshard: world_size: expected 1 to %u, found %u", MEET_MAX_WORLD,
		               x->world);
	x->file.block_bytes = BLOCK_BYTES;
	x->file.level = x->opts.compression_level;
	x->file.threads = x->run->opts.io_threads;
	return pack_check_compression(x->opts.compression, x->opts.compression_level, &x->file.codec, err);
}

static int
open_source(struct relayout *x, uint64_t id, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct pawl *run = x->run;

	if (!id)
		TRY(pawl_find(run, "latest", &id, err));
	if (!run->single_name && pawl_hold_open(run, id, &x->hold, NULL) < 0)
		x->hold = NULL; /* where the run cannot be written to; what vanishes is noticed */
	run_edit(run);          /* it stays while its manifest is read */
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	int rc = e ? catalog_manifest(run->catalog, e, &x->from, err)
	           : err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %" PRIu64, run->root, id);

	if (rc == 0) {
		catalog_key(run->catalog, e->name, &key);
		x->name = mem_strdup(e->name);
		x->folder = mem_strdup(buf_str(&key));
	}
	run_edited(run);
	TRY(rc);
	x->slab = mem_alloc(SLAB_BYTES);
	if (key.failed || !x->name || !x->folder || !x->slab)
		return no_memory(err);
	x->same_world = x->from->world_size == x->world;
	return fetch_new(run->reads, run->opts.io_threads, RING_BYTES, &x->fetch, err);
}

/* The folder that the new one is put into must be there. */
static int
open_target(struct relayout *x, const char *target, struct pawl_error *err)
{
	char *path = bump_strndup(&x->memory, target, strlen(target)), *parent = ".", *slash, token[33];
	struct store_entry entry;

	if (!path)
		return no_memory(err);
	for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = '\0';
	slash = strrchr(path, '/');
	x->dest = slash ? slash + 1 : path;
	if (!x->dest[0] || strcmp(x->dest, ".") == 0 || strcmp(x->dest, "..") == 0)
		return err_set(err, PAWL_EUSAGE, "reshard: %s: expected a path that ends in a name", target);
	if (slash) {
		parent = slash == path ? "/" : path;
		*slash = '\0';
	}
	TRY(store_open(parent, false, true, &x->store, err));
	if (x->run->opts.fault) {
		struct store *wrapped;

		TRY(store_fault_wrap(x->store, x->run->opts.fault, &wrapped, err));
		x->store = wrapped;
	}
	int rc = store_stat(x->store, x->dest, &entry, err);

	if (rc != PAWL_ENOTFOUND)
		return rc < 0 ? rc : err_set(err, PAWL_EEXISTS, "reshard: %s exists already", target);
	TRY(clock_token(token, err));
	memcpy(x->to.token, token, sizeof(x->to.token));
	x->partial = bump_printf(&x->memory, ".%s.%s.partial", x->dest, token);
	x->file.store = x->store;
	x->file.folder = x->partial;
	return x->partial ? 0 : no_memory(err);
}

/* Everything that the source says of itself but who wrote it: a single checkpoint belongs to no run. */
static void
summarize(struct relayout *x)
{
	const struct manifest *from = x->from;
	struct manifest *m = &x->to;

	m->id = 1;
	m->attempt = from->attempt;
	m->step = from->step;
	m->unix_ns = from->unix_ns;
	m->progress = from->progress;
	m->metrics = from->metrics;
	m->n_metrics = from->n_metrics;
	m->world_size = x->world;
	m->blocked_seconds = from->blocked_seconds;
	m->nonfinite = from->nonfinite;
	m->metadata = from->metadata;
}

static int
relayout(struct relayout *x, uint64_t id, const char *target, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf summary = {0};

	TRY(open_source(x, id, err));
	TRY(look_at_tree(x, err));
	TRY(make_table(x, err));
	TRY(open_target(x, target, err));
	summarize(x);
	TRY(manifest_encode_summary(&x->to, &summary, err));
	for (uint32_t rank = 0; rank < x->world; rank++)
		TRY(write_rank(x, rank, (struct pawl_slice){summary.ptr, summary.len}, err));
	return publish(x, err);
}

int
pawl_reshard(struct pawl *run, uint64_t id, const char *target, const struct pawl_reshard_opts *opts,
             struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(relayout_clear) struct relayout x = {.run = run, .meter = meter};

	if (!run || !target || !target[0])
		return err_set(err, PAWL_EUSAGE, "reshard: expected a run and a target, found NULL or an empty text");
	TRY(take_options(&x, opts, err));
	return relayout(&x, id, target, err);
}
