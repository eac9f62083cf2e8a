/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_job: rewrites a checkpoint as another number of ranks would have written it.
 *
 *   manifest ──> owner of each tensor ──> for each rank: its share ──> its packs
 *            for each pack: read a slab, checked ──> checksum it, write it
 *   ──> the new manifest ──> the hidden folder gets its name
 *
 * Complete tensors are shared as in a save (rank_share.h), so sharded ones come out cut between
 * rows. Every rank's first pack holds the tree as that rank would have given it, for repair.
 * Memory: one slab, the read buffers, and the tables of tensors (P16). Every byte is checked before
 * it is written (P1). The folder appears complete or not at all. Rules may give tensors other names
 * and dtypes (reshard_rules.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/text.h"
#include "base/vec.h"
#include "catalog/catalog.h"
#include "catalog/hold_root.h"
#include "jobs/convert/reshard_rules.h"
#include "jobs/convert/reshard_tree.h"
#include "layout/plan.h"
#include "layout/rank_share.h"
#include "pawl_jobs.h"
#include "ranks/rendezvous_text.h"
#include "restore/restore.h"
#include "state/pack_name.h"
#include "store/outfile.h"

#define SLAB_BYTES ((uint64_t)32 << 20)
#define CAST_SLAB_BYTES (SLAB_BYTES / 4) /* the saved elements of a slab may take four times as much */
#define RING_BYTES (32u << 20)
#define BLOCK_BYTES ((uint64_t)1 << 20) /* the slab is a multiple */

/* A piece as it is written; those of a tensor are linked, then listed. */
struct piece {
	struct manifest_piece piece;
	struct piece *next;
};

struct reshard_job {
	struct pawl *run;
	struct pawl_reshard_opts opts;
	struct pawl_meter *meter;
	struct bump memory;
	uint32_t world;
	bool same_world; /* values per rank stay */

	/* input */
	char *name, *folder;
	struct store *at; /* NULL, or the only mirror that has it; borrowed */
	struct pawl_hold *hold;
	struct manifest *from;
	struct fetch *fetch;
	struct reshard_binding *bindings;

	/* output */
	struct store *store;      /* of the folder that contains DST */
	struct outfile_opts file; /* of all packs */
	char *dest, *partial;
	struct manifest to;          /* borrows from `from` and from memory */
	struct pawl_state *metadata; /* with long texts in parts; NULL = there are none */
	struct buf state;            /* JSON of the complete tree */
	struct pawl_state table;     /* complete tensors, rows as those of `from`; elsewhere: not written */
	uint32_t *owner;             /* per tensor */
	struct piece **pieces, **last;
	VEC(struct manifest_file) files;
};

static void
reshard_clear(struct reshard_job *x)
{
	if (x->store && x->partial)
		store_remove_folder(x->store, x->partial, NULL);
	store_close(x->store);
	fetch_free(x->fetch);
	manifest_free(x->from);
	pawl_hold_close(x->hold);
	buf_clear(&x->state);
	pawl_state_free(x->metadata);
	mem_free(x->name);
	mem_free(x->folder);
	vec_free(&x->files);
	bump_clear(&x->memory);
}

/* ---- the tree ---- */

static int
check_tree(struct reshard_job *x, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf lost = {0};
	const struct manifest *m = x->from;
	size_t n = (size_t)m->n_tensors + 1;

	x->owner = bump_array(&x->memory, n, sizeof(*x->owner));
	x->pieces = bump_array(&x->memory, n, sizeof(struct piece *));
	x->last = bump_array(&x->memory, n, sizeof(struct piece *));
	x->bindings = bump_array(&x->memory, n, sizeof(*x->bindings));
	if (!x->owner || !x->pieces || !x->last || !x->bindings)
		return err_nomem(err, "reshard");
	TRY(reshard_tree_owners(m->state, x->same_world, x->owner, &lost, err));
	if (lost.len && !x->opts.drop_rank_values)
		return err_set(err, PAWL_EMISMATCH, "%s: values kept per rank by %u ranks do not fit %u ranks: %s",
		               x->name, m->world_size, x->world, buf_str(&lost));
	return x->same_world ? state_encode(m->state, &x->state, err)
	                     : reshard_tree_view(m->state, SIZE_MAX, x->world, &x->state, err);
}

/* The tensors as a state that has all of them complete; rank_share_of cuts it to what a rank
 * writes. */
static int
make_table(struct reshard_job *x, struct pawl_error *err)
{
	const struct manifest *m = x->from;
	uint64_t total = 0;

	x->table.n_tensors = (size_t)m->n_tensors;
	x->table.tensors = bump_array(&x->memory, m->n_tensors + 1, sizeof(*x->table.tensors));
	if (!x->table.tensors)
		return err_nomem(err, "reshard");
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct pawl_tensor_info *t = &m->state->tensors[i].info;
		struct state_tensor *s = &x->table.tensors[i];

		s->info = (struct pawl_tensor_info){
			.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape, .nbytes = t->nbytes};
		s->src = (struct pawl_tensor){
			.size = sizeof(s->src), .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape};
		s->local_nbytes = t->nbytes;
		s->contiguous = true;
		s->is_blob = m->state->tensors[i].is_blob;
		total += x->owner[i] == RESHARD_TREE_OF_NOBODY ? 0 : t->nbytes;
	}
	if (x->meter)
		__atomic_store_n(&x->meter->total_bytes, total, __ATOMIC_RELAXED);
	return 0;
}

/* ---- one pack ---- */

/* Where a slot's bytes begin in its tensor: it holds complete rows. */
static uint64_t
begin_in_tensor(const struct state_tensor *t)
{
	if (!t->src.offsets || t->info.ndim == 0 || t->info.shape[0] == 0)
		return 0;
	return t->src.offsets[0] * (t->info.nbytes / t->info.shape[0]);
}

/* Reads bytes [begin, end) of the pack's file into the slab. first: the first slot that ends after
 * begin. */
static int
fill_slab(struct reshard_job *x, const struct plan_pack *pack, const struct state_tensor *share, size_t first,
          uint64_t begin, uint64_t end, char *slab, struct pawl_error *err)
{
	PAWL_CLEAN(reshard_rules_clear) struct reshard_rules_casts casts = {0};
	PAWL_CLEAN(reshard_free_clean) struct reshard_plan *plan = NULL;
	const struct manifest *m = x->from;
	uint64_t header = pack->header.len;
	size_t n = 0;

	if (begin < header) {
		uint64_t most = end < header ? end : header;

		memcpy(slab, pack->header.ptr + begin, (size_t)(most - begin));
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
		                          .data = slab + (from - begin)};
		x->bindings[n++] = (struct reshard_binding){.tensor = slot->tensor,
		                                            .dst = dst,
		                                            .contiguous = true,
		                                            .begin = base + (from - at),
		                                            .end = base + (to - at)};
		if (x->table.tensors[slot->tensor].info.dtype != t->dtype)
			TRY(reshard_rules_add(&casts, x->table.tensors[slot->tensor].info.dtype, &x->bindings[n - 1],
			                      err));
	}
	if (n == 0)
		return 0;
	TRY(reshard_plan(m, x->bindings, n, fetch_unit_bytes(x->fetch, end - begin), &plan, err));
	struct fetch_job job = {
		.name = x->name, .folder = x->folder, .manifest = m, .plan = plan, .bindings = x->bindings};

	const struct catalog_reading reading = {.catalog = x->run->catalog,
	                                        .at = x->at,
	                                        .name = x->name,
	                                        .id = m->id,
	                                        .token = m->token,
	                                        .is_held = x->hold != NULL};

	TRY(catalog_fetch(&reading, x->fetch, &job, err));
	TRY(reshard_rules_run(&casts, err));
	x->to.nonfinite = x->to.nonfinite || casts.not_finite;
	return 0;
}

static int
write_slabs(struct reshard_job *x, const struct plan_pack *pack, const struct state_tensor *share, struct outfile *file,
            struct pawl_error *err)
{
	size_t first = 0;

	for (uint64_t at = 0; at < pack->nbytes;) {
		char *slab;
		uint64_t room;

		outfile_room(file, &slab, &room);
		uint64_t end = pack->nbytes - at < room ? pack->nbytes : at + room;
		uint64_t data = end > pack->header.len ? end - pack->header.len : 0;

		if (x->meter && __atomic_load_n(&x->meter->cancel, __ATOMIC_RELAXED))
			return err_set(err, PAWL_ECANCELLED, "reshard: cancelled");
		while (first < pack->n_slots &&
		       pack->header.len + pack->slots[first].begin + pack->slots[first].nbytes <= at)
			first++;
		TRY(fill_slab(x, pack, share, first, at, end, slab, err));
		TRY(outfile_put(file, end - at, err));
		if (x->meter)
			__atomic_fetch_add(&x->meter->done_bytes, data < end - at ? data : end - at, __ATOMIC_RELAXED);
		at = end;
	}
	return 0;
}

static int
add_piece(struct reshard_job *x, const struct plan_pack *pack, const struct plan_slot *slot,
          const struct state_tensor *t, struct pawl_error *err)
{
	struct piece *p = bump_alloc(&x->memory, sizeof(*p));

	if (!p)
		return err_nomem(err, "reshard");
	*p = (struct piece){.piece = {.file = (uint32_t)x->files.n,
	                              .begin = pack->header.len + slot->begin,
	                              .nbytes = slot->nbytes}};
	if (t->src.offsets) {
		p->piece.offsets = bump_copy(&x->memory, t->src.offsets, t->info.ndim, sizeof(uint64_t));
		p->piece.lengths = bump_copy(&x->memory, t->src.shape, t->info.ndim, sizeof(uint64_t));
		if (!p->piece.offsets || !p->piece.lengths)
			return err_nomem(err, "reshard");
	}
	if (x->last[slot->tensor])
		x->last[slot->tensor]->next = p;
	else
		x->pieces[slot->tensor] = p;
	x->last[slot->tensor] = p;
	return 0;
}

/* Stores the checksums in a row of the manifest. */
static int
keep_sums(struct reshard_job *x, const struct outfile_sums *sums, struct manifest_file *row, struct pawl_error *err)
{
	const struct outfile_blocks *plain = x->file.codec ? &sums->plain : &sums->file;
	struct sum128 *file = bump_alloc(&x->memory, (sums->file.n + sums->plain.n + 1) * sizeof *file);

	if (!file)
		return err_nomem(err, "reshard");
	if (sums->file.n > 0)
		memcpy(file, sums->file.sums, sums->file.n * sizeof *file);
	if (sums->plain.n > 0)
		memcpy(file + sums->file.n, sums->plain.sums, sums->plain.n * sizeof *file);
	row->nbytes = sums->file.nbytes;
	row->block_bytes = BLOCK_BYTES;
	row->n_blocks = sums->file.n;
	row->sums = file;
	if (x->file.codec) {
		row->codec = codec_name(x->file.codec);
		row->plain_bytes = plain->nbytes;
		row->n_plain_blocks = plain->n;
		row->plain_sums = file + sums->file.n;
	}
	return 0;
}

static int
write_pack(struct reshard_job *x, const struct plan_pack *pack, const struct state_tensor *share,
           struct pawl_error *err)
{
	PAWL_CLEAN(outfile_abort_clean) struct outfile *file = NULL;
	PAWL_CLEAN(outfile_sums_clear) struct outfile_sums sums = {0};
	const char *codec = x->file.codec ? codec_name(x->file.codec) : NULL;
	struct outfile_opts opts = x->file;
	struct manifest_file row = {0};

	for (size_t i = 0; i < pack->n_slots; i++)
		TRY(add_piece(x, pack, &pack->slots[i], &share[pack->slots[i].tensor], err));
	row.name = bump_printf(&x->memory, "%s%s%s", pack->name, codec ? "." : "", codec ? codec : "");
	PAWL_FREE char *key = row.name ? mem_printf("%s/%s", x->partial, row.name) : NULL;
	if (!key)
		return err_nomem(err, "reshard");
	opts.key = key;
	opts.nbytes = pack->nbytes;
	TRY(outfile_open(&opts, &file, err));
	TRY(write_slabs(x, pack, share, file, err));
	TRY(outfile_finish(&file, &sums, err));
	TRY(keep_sums(x, &sums, &row, err));
	struct manifest_file *last = vec_add(&x->files);
	if (!last)
		return err_nomem(err, "reshard");
	*last = row;
	return 0;
}

/* ---- one rank ---- */

static int
write_rank(struct reshard_job *x, uint32_t rank, struct pawl_slice summary, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf view = {0};
	PAWL_CLEAN(plan_free_clean) struct plan *plan = NULL;
	struct plan_opts opts = {
		.pack_bytes = x->run->opts.packs.pack_bytes, .block_bytes = BLOCK_BYTES, .rank = rank, .run_id = ""};
	struct pawl_slice state = {x->state.ptr, x->state.len};
	struct pawl_state share = {0};

	for (size_t i = 0; i < x->table.n_tensors; i++)
		x->table.tensors[i].src.writer = x->owner[i] == RESHARD_TREE_OF_ALL ? PAWL_WRITER_AUTO
		                                 : x->owner[i] == rank              ? PAWL_WRITER_HERE
		                                                                    : PAWL_WRITER_ELSEWHERE;
	TRY(rank_share_of(&x->table, rank, x->world, &memory, &share, err));
	TRY(plan_make(&share, &opts, &plan, err));
	if (x->same_world && x->from->state->has_ranks) {
		TRY(reshard_tree_view(x->from->state, rank, x->world, &view, err));
		state = (struct pawl_slice){view.ptr, view.len};
	}
	TRY(plan_refresh(plan, &opts, summary, state, err));
	for (size_t k = 0; k < plan->n_packs; k++)
		TRY(write_pack(x, &plan->packs[k], share.tensors, err));
	return 0;
}

/* ---- the manifest ---- */

static int
describe_result(struct reshard_job *x, struct pawl_error *err)
{
	struct manifest *m = &x->to;
	const struct manifest *from = x->from;

	m->files = x->files.items;
	m->n_files = x->files.n;
	for (size_t i = 0; i < x->files.n; i++) {
		m->bytes += x->files.items[i].nbytes;
		m->plain_bytes += x->file.codec ? manifest_plain_bytes(&x->files.items[i]) : 0;
	}
	m->new_bytes = m->bytes;
	m->tensors = bump_array(&x->memory, from->n_tensors + 1, sizeof(*m->tensors));
	if (!m->tensors)
		return err_nomem(err, "reshard");
	for (size_t i = 0; i < from->n_tensors; i++) {
		struct manifest_tensor *t = &m->tensors[m->n_tensors];
		size_t n = 0;

		if (x->owner[i] == RESHARD_TREE_OF_NOBODY)
			continue;
		*t = from->tensors[i];
		t->dtype = x->table.tensors[i].info.dtype;
		t->nbytes = x->table.tensors[i].info.nbytes;
		for (const struct piece *p = x->pieces[i]; p; p = p->next)
			n++;
		t->pieces = bump_array(&x->memory, (uint64_t)n + 1, sizeof(*t->pieces));
		if (!t->pieces)
			return err_nomem(err, "reshard");
		t->n_pieces = 0;
		for (const struct piece *p = x->pieces[i]; p; p = p->next)
			t->pieces[t->n_pieces++] = p->piece;
		m->n_tensors++;
	}
	return 0;
}

static int
publish_result(struct reshard_job *x, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};

	TRY(describe_result(x, err));
	TRY(manifest_encode_with(&x->to, (struct pawl_slice){x->state.ptr, x->state.len}, &text, err));
	buf_printf(&key, "%s/" MANIFEST_NAME, x->partial);
	TRY(buf_check(&key, "reshard", err));
	TRY(store_put_bytes(x->store, buf_str(&key), text.ptr, text.len, STORE_DURABLE, err));
	if (x->meter && __atomic_load_n(&x->meter->cancel, __ATOMIC_RELAXED))
		return err_set(err, PAWL_ECANCELLED, "reshard: cancelled");
	TRY(store_publish(x->store, x->partial, x->dest, err));
	x->partial = NULL; /* the folder has its final name */
	return 0;
}

/* ---- the complete job ---- */

static int
take_options(struct reshard_job *x, const struct pawl_reshard_opts *opts, struct pawl_error *err)
{
	if (!opts || !opts->size)
		return err_set(err, PAWL_EUSAGE,
		               "reshard: the options have no size; start from PAWL_RESHARD_OPTS_INIT");
	memcpy(&x->opts, opts, opts->size < sizeof(x->opts) ? opts->size : sizeof(x->opts));
	x->world = x->opts.world_size;
	if (x->world == 0 || x->world > RENDEZVOUS_MAX_WORLD)
		return err_set(err, PAWL_EUSAGE, "reshard: world_size: expected 1 to %u, found %u",
		               RENDEZVOUS_MAX_WORLD, x->world);
	TRY(text_check_list("reshard: rename", x->opts.rename, x->opts.n_rename, err));
	TRY(text_check_list("reshard: cast", x->opts.cast, x->opts.n_cast, err));
	x->file.block_bytes = BLOCK_BYTES;
	x->file.slab_bytes = x->opts.n_cast > 0 ? CAST_SLAB_BYTES : SLAB_BYTES;
	x->file.buffered = true;
	x->file.level = x->opts.compression_level;
	x->file.threads = x->run->opts.io.threads;
	return pack_check_compression(x->opts.compression, x->opts.compression_level, &x->file.codec, err);
}

static int
open_source(struct reshard_job *x, uint64_t id, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct pawl *run = x->run;

	if (!id)
		TRY(pawl_find(run, "latest", &id, err));
	hold_for_reading(run, id, &x->hold, NULL); /* if the run is not writable, a deletion is noticed */
	run_edit(run);                             /* the entry stays while its manifest is read */
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	int rc = e ? catalog_manifest(run->catalog, e, &x->from, err)
	           : err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %" PRIu64, run->home.root, id);

	if (rc == 0) {
		catalog_key(run->catalog, e->name, &key);
		x->at = e->at;
		x->name = mem_strdup(e->name);
		x->folder = mem_strdup(buf_str(&key));
	}
	run_edited(run);
	TRY(rc);
	if (key.failed || !x->name || !x->folder)
		return err_nomem(err, "reshard");
	x->same_world = x->from->world_size == x->world;
	return fetch_new(run->home.reads, run->opts.io.threads, RING_BYTES, &x->fetch, err);
}

/* The parent of the new folder must exist. */
static int
open_target(struct reshard_job *x, const char *target, struct pawl_error *err)
{
	char *path = bump_strndup(&x->memory, target, strlen(target)), *parent = ".", *slash, token[33];
	char hidden[HIDDEN_NAME_BYTES];
	struct store_entry entry;

	TRY(store_check_target(target, err));
	if (!path)
		return err_nomem(err, "reshard");
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
	if (x->run->opts.io.fault) {
		struct store *wrapped;

		TRY(store_fault_wrap(x->store, x->run->opts.io.fault, &wrapped, err));
		x->store = wrapped;
	}
	int rc = store_stat(x->store, x->dest, &entry, err);

	if (rc != PAWL_ENOTFOUND)
		return rc < 0 ? rc : err_set(err, PAWL_EEXISTS, "reshard: %s already exists", target);
	TRY(clock_token(token, err));
	memcpy(x->to.token, token, sizeof(x->to.token));
	hidden_name_of(x->dest, token, HIDDEN_PARTIAL, hidden);
	x->partial = bump_strndup(&x->memory, hidden, strlen(hidden));
	x->file.store = x->store;
	return x->partial ? 0 : err_nomem(err, "reshard");
}

/* Copies all metadata of the source except its writer: a single checkpoint does not belong to a
 * run. */
static int
copy_summary(struct reshard_job *x, struct pawl_error *err)
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
	m->nonfinite = from->nonfinite; /* or if a cast makes a value infinite: fill_slab */
	m->metadata = from->metadata;
	if (!m->metadata || m->metadata->n_tensors == 0)
		return 0;
	TRY(reshard_tree_metadata(m->metadata, &x->metadata, err));
	m->metadata = x->metadata;
	return 0;
}

static int
write_anew(struct reshard_job *x, uint64_t id, const char *target, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf summary = {0};

	const struct restore_rules rules = {x->opts.rename, x->opts.cast, x->opts.n_rename, x->opts.n_cast};

	TRY(open_source(x, id, err));
	TRY(reshard_rules_apply(&rules, x->from, err));
	TRY(check_tree(x, err));
	TRY(make_table(x, err));
	TRY(open_target(x, target, err));
	TRY(copy_summary(x, err));
	TRY(manifest_encode_summary(&x->to, &summary, err));
	for (uint32_t rank = 0; rank < x->world; rank++)
		TRY(write_rank(x, rank, (struct pawl_slice){summary.ptr, summary.len}, err));
	return publish_result(x, err);
}

static int
reshard_to(struct pawl *run, uint64_t id, const char *target, const struct pawl_reshard_opts *opts,
           struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(reshard_clear) struct reshard_job x = {.run = run, .meter = meter};

	if (!run || !target || !target[0])
		return err_set(err, PAWL_EUSAGE, "reshard: expected a run and a target, found NULL or an empty text");
	TRY(take_options(&x, opts, err));
	return write_anew(&x, id, target, err);
}

int
pawl_reshard(struct pawl *run, uint64_t id, const char *target, const struct pawl_reshard_opts *opts,
             struct pawl_meter *meter, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, reshard_to(run, id, target, opts, meter, &own), &own);
}
