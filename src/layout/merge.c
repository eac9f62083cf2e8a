/* SPDX-License-Identifier: Apache-2.0 */
/* merge: see merge.h. Promises P1, P11. */
#include "layout/merge.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/table.h"
#include "base/vec.h"
#include "layout/merge_pieces.h"
#include "layout/merge_trees.h"

struct piece {
	struct manifest_piece piece;
	uint32_t rank;
	struct piece *next;
};

struct row {
	struct manifest_tensor tensor; /* without pieces, until the end */
	struct piece *first, *last;
	uint64_t nbytes; /* of the pieces */
	uint32_t rank;   /* the first rank that had it */
	uint64_t *has;   /* the ranks that have it, and those that have all of it (merge_ranks_have) */
	uint64_t *whole;
	uint32_t n_whole;
};

struct merge {
	uint32_t world;
	struct bump memory;
	struct manifest *model; /* rank 0's */
	struct buf model_text;
	struct pawl_slice model_state; /* its JSON, in model_text */
	struct manifest **parts;       /* per rank: those whose tree differs from rank 0's; else NULL */
	bool is_uniform;               /* all trees are equal to rank 0's, byte by byte */
	struct row *rows;
	size_t n_rows, cap_rows;
	struct table by_name;
	struct manifest_file *files;
	size_t n_files, cap_files;
	double blocked_seconds;
	bool nonfinite;
};

/* ---- rows */

static struct row *
find_row(const struct merge *g, const char *name)
{
	uintptr_t i;

	for (size_t cursor = 0; table_next(&g->by_name, table_hash((uintptr_t)g, name, strlen(name)), &cursor, &i);)
		if (strcmp(g->rows[i].tensor.name, name) == 0)
			return &g->rows[i];
	return NULL;
}

static int
add_row(struct merge *g, uint32_t rank, const struct manifest_tensor *t, struct row **ret, struct pawl_error *err)
{
	if (!array_reserve(g->rows, g->cap_rows, g->n_rows + 1))
		return err_nomem(err, "save");
	struct row *row = &g->rows[g->n_rows];

	*row = (struct row){.tensor = *t, .rank = rank};
	row->tensor.name = bump_strndup(&g->memory, t->name, strlen(t->name));
	row->tensor.shape = bump_copy(&g->memory, t->shape, t->ndim, sizeof(uint64_t));
	row->tensor.pieces = NULL;
	row->tensor.n_pieces = 0;
	row->tensor.sum = t->sum ? bump_copy(&g->memory, t->sum, 1, sizeof(struct sum128)) : NULL;
	row->has = bump_array(&g->memory, 2 * RANKS_WORDS(g->world), sizeof(*row->has));
	if (!row->tensor.name || !row->tensor.shape || !row->has || (t->sum && !row->tensor.sum) ||
	    table_reserve(&g->by_name, 1) < 0)
		return err_nomem(err, "save");
	row->whole = row->has + RANKS_WORDS(g->world);
	table_add(&g->by_name, table_hash((uintptr_t)g, t->name, strlen(t->name)), g->n_rows++);
	*ret = row;
	return 0;
}

static int
check_row(const struct row *row, uint32_t rank, const struct manifest_tensor *t, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf was = {0}, is = {0};

	if (t->sum && row->tensor.sum && !sum_equal(*t->sum, *row->tensor.sum))
		return err_set(err, PAWL_EMISMATCH,
		               "'%.200s' is not equal on ranks %u and %u; a text or bytes of more than %d bytes that "
		               "differs must be a value per rank (PerRank)",
		               t->name, row->rank, rank, STATE_LONG_BYTES);
	if (t->dtype == row->tensor.dtype && t->ndim == row->tensor.ndim &&
	    tensor_same_extents(t->shape, row->tensor.shape, t->ndim))
		return 0;
	merge_put_shape(&was, row->tensor.dtype, row->tensor.ndim, row->tensor.shape);
	merge_put_shape(&is, t->dtype, t->ndim, t->shape);
	return err_set(err, PAWL_EMISMATCH, "tensor '%.200s' is %s on rank %u, but %s on rank %u", t->name,
	               buf_str(&was), row->rank, buf_str(&is), rank);
}

static int
add_piece(struct merge *g, struct row *row, uint32_t rank, const struct manifest_piece *p, uint32_t first_file,
          struct pawl_error *err)
{
	struct piece *piece = bump_alloc(&g->memory, sizeof(*piece));
	uint32_t ndim = row->tensor.ndim;

	if (!piece)
		return err_nomem(err, "save");
	piece->rank = rank;
	piece->piece = *p;
	piece->piece.file += first_file;
	piece->piece.lengths = tensor_same_extents(p->lengths, row->tensor.shape, ndim)
	                               ? row->tensor.shape
	                               : bump_copy(&g->memory, p->lengths, ndim, sizeof(uint64_t));
	piece->piece.offsets = bump_copy(&g->memory, p->offsets, ndim, sizeof(uint64_t));
	if (!piece->piece.lengths || !piece->piece.offsets)
		return err_nomem(err, "save");
	if (row->last)
		row->last->next = piece;
	else
		row->first = piece;
	row->last = piece;
	row->nbytes += p->nbytes;
	row->tensor.n_pieces++;
	return 0;
}

static int
add_files(struct merge *g, const struct manifest *m, struct pawl_error *err)
{
	if (!array_reserve(g->files, g->cap_files, g->n_files + (size_t)m->n_files))
		return err_nomem(err, "save");
	for (size_t i = 0; i < m->n_files; i++) {
		struct manifest_file *f = &g->files[g->n_files];

		*f = m->files[i];
		f->name = bump_strndup(&g->memory, f->name, strlen(f->name));
		f->sums = bump_copy(&g->memory, f->sums, f->n_blocks, sizeof(struct sum128));
		if (f->codec) {
			f->codec = bump_strndup(&g->memory, f->codec, strlen(f->codec));
			f->plain_sums = bump_copy(&g->memory, f->plain_sums, f->n_plain_blocks, sizeof(struct sum128));
		}
		if (!f->name || !f->sums || (m->files[i].codec && (!f->codec || !f->plain_sums)))
			return err_nomem(err, "save");
		g->n_files++;
	}
	return 0;
}

static int
add_rows(struct merge *g, uint32_t rank, const struct manifest *m, struct pawl_error *err)
{
	uint32_t first_file = (uint32_t)g->n_files;

	TRY(add_files(g, m, err));
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		struct row *row = find_row(g, t->name);

		if (!row)
			TRY(add_row(g, rank, t, &row, err));
		TRY(check_row(row, rank, t, err));
		merge_ranks_add(row->has, rank);
		if (t->whole)
			merge_ranks_add(row->whole, rank);
		row->n_whole += t->whole;
		for (size_t k = 0; k < t->n_pieces; k++)
			TRY(add_piece(g, row, rank, &t->pieces[k], first_file, err));
	}
	if (m->blocked_seconds > g->blocked_seconds)
		g->blocked_seconds = m->blocked_seconds;
	g->nonfinite = g->nonfinite || m->nonfinite;
	return 0;
}

/* ---- parts */

/* The bytes of the state in the text of a part. Members start on lines of their own, and no string
 * contains a line feed. */
static struct pawl_slice
state_of(const struct buf *text)
{
	static const char before[] = "\n\"state\":", after[] = ",\n\"tensors\":[";
	const char *begin = memmem(text->ptr, text->len, before, sizeof(before) - 1);

	if (!begin)
		return (struct pawl_slice){0};
	begin += sizeof(before) - 1;
	const char *end = memmem(begin, (size_t)(text->ptr + text->len - begin), after, sizeof(after) - 1);

	return end ? (struct pawl_slice){begin, (size_t)(end - begin)} : (struct pawl_slice){0};
}

static int
check_summary(const struct merge *g, uint32_t rank, const struct manifest *m, struct pawl_error *err)
{
	const struct manifest *model = g->model;

	if (m->world_size != g->world)
		return err_set(err, PAWL_EMISMATCH, "rank %u saves for a world of %u ranks, rank 0 for one of %u", rank,
		               m->world_size, g->world);
	if (m->step != model->step)
		return err_set(err, PAWL_EMISMATCH,
		               "rank %u saves step %lld, rank 0 step %lld; all ranks must save the "
		               "same steps in the same order",
		               rank, (long long)m->step, (long long)model->step);
	if (m->id != model->id || strcmp(m->token, model->token) != 0 || strcmp(m->run_id, model->run_id) != 0)
		return err_set(err, PAWL_EMISMATCH, "the part of rank %u belongs to another save", rank);
	return 0;
}

int
merge_new(uint32_t world, const struct buf *own, struct merge **ret, struct pawl_error *err)
{
	PAWL_CLEAN(merge_free_clean) struct merge *g = mem_zalloc(1, sizeof(*g));

	if (!g)
		return err_nomem(err, "save");
	g->world = world;
	g->is_uniform = true;
	buf_put(&g->model_text, own->ptr, own->len);
	TRY(buf_check(&g->model_text, "save", err));
	g->model_state = state_of(&g->model_text);
	g->parts = mem_zalloc(world, sizeof(struct manifest *));
	if (!g->parts)
		return err_nomem(err, "save");
	TRY(manifest_decode_part("rank 0's part", own->ptr, own->len, &g->model, err));
	TRY(check_summary(g, 0, g->model, err));
	TRY(add_rows(g, 0, g->model, err));
	*ret = steal(&g);
	return 0;
}

int
merge_add(void *merge, uint32_t rank, const struct buf *text, struct pawl_error *err)
{
	struct merge *g = merge;
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = NULL;
	struct pawl_slice state = state_of(text);
	char what[32] = "rank";

	snprintf(what, sizeof(what), "the part of rank %u", rank);
	TRY(manifest_decode_part(what, text->ptr, text->len, &m, err));
	TRY(check_summary(g, rank, m, err));
	TRY(add_rows(g, rank, m, err));
	if (state.len == g->model_state.len && state.len && memcmp(state.ptr, g->model_state.ptr, state.len) == 0)
		return 0;
	g->is_uniform = false;
	g->parts[rank] = steal(&m);
	return 0;
}

/* ---- the end */

/* All ranks write a complete tensor together, each its share. So every rank must have it. */
static int
check_whole(const struct merge *g, const struct row *row, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf whole = {0}, shards = {0}, none = {0};
	uint64_t words = RANKS_WORDS(g->world);

	if (row->n_whole == 0 || row->n_whole == g->world)
		return 0;
	PAWL_FREE uint64_t *others = mem_zalloc(2 * words, sizeof(*others));
	bool any_other = false, any_missing = false;

	if (!others)
		return err_nomem(err, "save");
	uint64_t *missing = others + words;

	for (uint32_t r = 0; r < g->world; r++) {
		if (merge_ranks_have(row->whole, r))
			continue;
		bool has = merge_ranks_have(row->has, r);

		merge_ranks_add(has ? others : missing, r);
		any_other = any_other || has;
		any_missing = any_missing || !has;
	}
	merge_ranks_put(&whole, row->whole, g->world);
	if (any_other) {
		buf_puts(&shards, ", but as a Shard or with a writer by ");
		merge_ranks_put(&shards, others, g->world);
	}
	if (any_missing) {
		buf_puts(&none, any_other ? ", and not at all by " : ", but not by ");
		merge_ranks_put(&none, missing, g->world);
	}
	return err_set(
		err, PAWL_EMISMATCH,
		"tensor '%.200s' is held completely by %s%s%s; give it as a Shard, or with a writer (which a Shard of "
		"all of it needs)",
		row->tensor.name, buf_str(&whole), buf_str(&shards), buf_str(&none));
}

/* Refuses a tensor's pieces, naming ranks and boxes. */
static int
refuse_pieces(const struct merge *g, const struct row *row, struct pawl_error *err)
{
	const struct manifest_tensor *t = &row->tensor;
	PAWL_FREE struct given_box *boxes = mem_zalloc(t->n_pieces + 1, sizeof(*boxes));
	PAWL_CLEAN(buf_clear) struct buf what = {0}, ranks = {0};
	size_t n = 0;

	if (!boxes)
		return err_nomem(err, "save");
	for (const struct piece *p = row->first; p; p = p->next)
		if (p->piece.nbytes > 0)
			boxes[n++] = (struct given_box){p->rank, p->piece.offsets, p->piece.lengths};
	TRY(merge_put_fault(&what, t->ndim, t->shape, boxes, n, err));
	merge_ranks_put(&ranks, row->has, g->world);
	TRY(buf_check(&what, "save", err));
	TRY(buf_check(&ranks, "save", err));
	return err_set(err, PAWL_EMISMATCH,
	               "tensor '%.200s': %s (it is held by %s; its pieces must fill it exactly, and once)", t->name,
	               buf_str(&what), buf_str(&ranks));
}

static int
finish_row(struct merge *g, const struct row *row, struct manifest_tensor *ret, struct pawl_error *err)
{
	size_t n = 0;

	*ret = row->tensor;
	ret->pieces = bump_array(&g->memory, (uint64_t)row->tensor.n_pieces + 1, sizeof(*ret->pieces));
	if (!ret->pieces)
		return err_nomem(err, "save");
	for (const struct piece *p = row->first; p; p = p->next)
		ret->pieces[n++] = p->piece;
	TRY(check_whole(g, row, err));
	return row->nbytes == row->tensor.nbytes ? 0 : refuse_pieces(g, row, err);
}

/* Even if the number of bytes is right, two pieces may clash and leave a hole elsewhere. */
static int
name_the_tensor(const struct merge *g, struct manifest *m, struct pawl_error *err)
{
	for (size_t i = 0; i < g->n_rows; i++) {
		struct manifest one = *m;
		PAWL_CLEAN(buf_clear) struct buf unused = {0};

		one.tensors = &m->tensors[i];
		one.n_tensors = 1;
		one.state = NULL;
		if (manifest_encode_with(&one, (struct pawl_slice){"null", 4}, &unused, NULL) == PAWL_EUSAGE)
			return refuse_pieces(g, &g->rows[i], err);
	}
	return 0;
}

/* Merges the ranks' trees; NULL if all equal rank 0's as it is. */
static int
unite_trees(struct merge *g, struct pawl_state **ret, struct pawl_error *err)
{
	*ret = NULL;
	if (g->is_uniform && !g->model->state->has_ranks)
		return 0;
	g->parts[0] = g->model;
	int rc = merge_trees(g->parts, g->world, ret, err);

	g->parts[0] = NULL;
	return rc;
}

int
merge_finish(struct merge *g, struct buf *out, struct pawl_error *err)
{
	struct manifest m = *g->model;
	PAWL_CLEAN(pawl_state_free_clean) struct pawl_state *tree = NULL;
	size_t before = out->len;
	bool is_compressed = false;

	m.part = false;
	m.blocked_seconds = g->blocked_seconds;
	m.nonfinite = g->nonfinite;
	m.files = g->files;
	m.n_files = g->n_files;
	m.bytes = m.new_bytes = m.plain_bytes = 0;
	for (size_t i = 0; i < g->n_files; i++) {
		m.bytes += g->files[i].nbytes;
		m.new_bytes += g->files[i].reused ? 0 : g->files[i].nbytes;
		m.plain_bytes += manifest_plain_bytes(&g->files[i]);
		is_compressed = is_compressed || g->files[i].codec;
	}
	m.plain_bytes = is_compressed ? m.plain_bytes : 0;
	m.tensors = bump_array(&g->memory, (uint64_t)g->n_rows + 1, sizeof(*m.tensors));
	m.n_tensors = g->n_rows;
	if (!m.tensors)
		return err_nomem(err, "save");
	TRY(unite_trees(g, &tree, err)); /* first: a value of another kind is not a missing tensor */
	m.state = tree;
	for (size_t i = 0; i < g->n_rows; i++)
		TRY(finish_row(g, &g->rows[i], &m.tensors[i], err));
	int rc = tree ? manifest_encode(&m, out, err) : manifest_encode_with(&m, g->model_state, out, err);

	if (rc == PAWL_EUSAGE || rc == PAWL_ECORRUPT) {
		out->len = before;
		TRY(name_the_tensor(g, &m, err));
	}
	return rc;
}

const struct manifest_file *
merge_files(const struct merge *g, size_t *ret_n)
{
	*ret_n = g->n_files;
	return g->files;
}

void
merge_free(struct merge *g)
{
	if (!g)
		return;
	for (uint32_t r = 0; g->parts && r < g->world; r++)
		manifest_free(g->parts[r]);
	mem_free(g->parts);
	manifest_free(g->model);
	buf_clear(&g->model_text);
	table_clear(&g->by_name);
	mem_free(g->rows);
	mem_free(g->files);
	bump_clear(&g->memory);
	mem_free(g);
}
