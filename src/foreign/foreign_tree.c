/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_tree: see foreign_tree.h.
 *
 * While the state is built, each tensor's row holds its pieces in place of a source. So the state's
 * own rules find tied tensors and make names. At the end the pieces become the manifest's rows.
 * Promises P1, P16 (a value that occurs in a thousand places by reference counts a thousand times),
 * P17.
 */
#include "foreign/foreign_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "state/state_build.h"

/* The names of files in memory. */
#define LONG_VALUES "long values"
#define ARRAY "an array"

int
foreign_tree_begin(struct foreign_tree *tree, struct manifest *m, struct pawl_error *err)
{
	*tree = (struct foreign_tree){.m = m};
	return pawl_state_new(&m->state, err);
}

void
foreign_tree_clear(struct foreign_tree *tree)
{
	table_clear(&tree->views);
}

/* Room for n more elements of an array in the manifest's memory. */
static void *
reserve_rows(struct manifest *m, void *array, size_t *cap, size_t n, size_t more, size_t size)
{
	if (more <= *cap - n)
		return array;
	size_t bigger = n + more > 2 * *cap ? n + more : 2 * *cap;
	void *grown = bump_array(&m->memory, bigger, size);
	if (grown && n > 0)
		memcpy(grown, array, n * size);
	if (grown)
		*cap = bigger;
	return grown;
}

int
foreign_add_file(struct foreign_tree *tree, const char *name, uint64_t nbytes, uint32_t *ret, struct pawl_error *err)
{
	struct manifest *m = tree->m;
	void *files = reserve_rows(m, m->files, &tree->cap_files, (size_t)m->n_files, 1, sizeof(*m->files));
	char *copy = bump_strndup(&m->memory, name, strlen(name));

	if (!files || !copy)
		return err_nomem(err, NULL);
	m->files = files;
	m->files[m->n_files] = (struct manifest_file){
		.name = copy,
		.nbytes = nbytes,
		.block_bytes = FOREIGN_BLOCK_BYTES,
		.n_blocks = (size_t)(nbytes / FOREIGN_BLOCK_BYTES + (nbytes % FOREIGN_BLOCK_BYTES != 0))};
	*ret = (uint32_t)m->n_files++;
	m->bytes = m->new_bytes = m->bytes + nbytes;
	return 0;
}

int
foreign_add_members(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct zip *zip,
                    struct pawl_error *err)
{
	struct manifest *m = tree->m;
	if (zip->n == 0)
		return 0;
	void *members = reserve_rows(m, m->members, &tree->cap_members, m->n_members, zip->n, sizeof(*m->members));

	if (!members)
		return err_nomem(err, NULL);
	m->members = members;
	for (size_t i = 0; i < zip->n; i++) {
		const struct zip_member *from = &zip->members[i];

		if (from->nbytes > 0 && from->crc != 0)
			m->members[m->n_members++] = (struct manifest_member){
				.file = file, .crc = from->crc, .begin = at + from->begin, .nbytes = from->nbytes};
	}
	return 0;
}

/* -------------------------------------------------------------------- pieces */

/* Finds the dimensions of a view that form one piece: from the widest stride to the narrowest, each
 * step is wider than everything inside it. The other dimensions (steps of 0, overlapping windows)
 * are cut into elements. *ret_n: how many pieces. */
static bool
split_view(const struct pt_tensor *t, bool cut[PAWL_MAX_DIMS], uint64_t *ret_n, uint64_t *ret_reach)
{
	uint32_t order[PAWL_MAX_DIMS]; /* narrowest stride first */
	uint64_t reach = 1;            /* elements from the first to the last of a piece */

	*ret_n = 1;
	for (uint32_t d = 0; d < t->ndim; d++) {
		uint32_t at = d;
		for (; at > 0 && t->strides[order[at - 1]] > t->strides[d]; at--)
			order[at] = order[at - 1];
		order[at] = d;
	}
	for (uint32_t i = 0; i < t->ndim; i++) {
		const uint32_t d = order[i];
		cut[d] = t->shape[d] > 1 && t->strides[d] < reach;
		if (!cut[d])
			reach += (t->shape[d] - 1) * t->strides[d]; /* within the storage */
		else if (!mem_mul_ok(*ret_n, t->shape[d], ret_n))
			return false;
	}
	*ret_reach = reach;
	return true;
}

static int
add_piece(struct foreign_tree *tree, struct foreign_pieces *pieces, struct manifest_piece piece, struct pawl_error *err)
{
	void *rows = reserve_rows(tree->m, pieces->rows, &pieces->cap, pieces->n, 1, sizeof(*pieces->rows));

	if (!rows)
		return err_nomem(err, NULL);
	pieces->rows = rows;
	pieces->rows[pieces->n++] = piece;
	return 0;
}

/* One piece for every element of the dimensions that are cut. */
static int
add_cut_pieces(struct foreign_tree *tree, const struct manifest_piece *first, const struct pt_tensor *view,
               const bool cut[PAWL_MAX_DIMS], uint64_t n, struct pawl_error *err, struct foreign_pieces *pieces)
{
	const uint64_t item = pawl_dtype_bits(view->dtype) / 8;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t *offsets = bump_array(&tree->m->memory, 2 * (uint64_t)view->ndim, sizeof(*offsets));
		uint64_t *lengths = offsets ? offsets + view->ndim : NULL, rest = i;
		struct manifest_piece piece = *first;
		if (!offsets)
			return err_nomem(err, NULL);
		for (uint32_t d = view->ndim; d-- > 0;) {
			uint64_t index = cut[d] ? rest % view->shape[d] : 0;
			rest = cut[d] ? rest / view->shape[d] : rest;
			offsets[d] = first->offsets[d] + index;
			lengths[d] = cut[d] ? 1 : view->shape[d];
			piece.begin += index * view->strides[d] * item;
		}
		piece.offsets = offsets;
		piece.lengths = lengths;
		TRY(add_piece(tree, pieces, piece, err));
	}
	return 0;
}

int
foreign_add_pieces(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct pt_tensor *view,
                   const uint64_t *offsets, struct foreign_pieces *pieces, struct pawl_error *err)
{
	bool cut[PAWL_MAX_DIMS] = {false};
	uint64_t n = 1, reach = 0;
	struct manifest_piece piece = {.file = file,
	                               .begin = at + view->begin,
	                               .nbytes = view->nbytes,
	                               .offsets = bump_copy(&tree->m->memory, offsets, view->ndim, sizeof(uint64_t)),
	                               .lengths =
	                                       bump_copy(&tree->m->memory, view->shape, view->ndim, sizeof(uint64_t))};

	if (!piece.offsets || !piece.lengths)
		return err_nomem(err, NULL);
	if (!view->strides || view->nbytes == 0)
		return add_piece(tree, pieces, piece, err);
	if (!split_view(view, cut, &n, &reach) || n > FOREIGN_MAX_PIECES - tree->n_pieces)
		return err_set(
			err, PAWL_EUNSUPPORTED,
			"a tensor whose elements share memory (it was expanded, or is made of windows); at most %u pieces "
			"of such tensors are read; save its contiguous copy",
			FOREIGN_MAX_PIECES);
	piece.nbytes = reach * (pawl_dtype_bits(view->dtype) / 8);
	piece.strides = bump_copy(&tree->m->memory, view->strides, view->ndim, sizeof(uint64_t));
	if (!piece.strides)
		return err_nomem(err, NULL);
	if (n == 1)
		return add_piece(tree, pieces, piece, err);
	tree->n_pieces += (size_t)n;
	return add_cut_pieces(tree, &piece, view, cut, n, err, pieces);
}

/* ------------------------------------------------------------------- tensors */

/* Placeholder in a row while the state is built; never called. */
static int
never_filled(void *arg, void *dst, size_t nbytes, struct pawl_error *err)
{
	(void)arg;
	(void)dst;
	return err_set(err, PAWL_EUSAGE, "%zu bytes that are stored in a file", nbytes);
}

int
foreign_add_tensor(struct foreign_tree *tree, int dtype, uint32_t ndim, const uint64_t *shape, const char *kind,
                   const struct foreign_pieces *pieces, struct pawl_error *err)
{
	union { /* only compared, like the address of memory */
		const struct foreign_pieces *in;
		void *out;
	} identity = {.in = pieces};
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.kind = kind;
	t.fill = never_filled;
	t.fill_arg = identity.out;
	return pawl_state_add_tensor(tree->m->state, &t, err);
}

/* A view that occurred before. */
struct seen {
	uint32_t file;
	uint64_t at;
	const struct pt_tensor *view;
	struct foreign_pieces pieces;
};

static bool
same_view(const struct seen *s, uint32_t file, uint64_t begin, const struct pt_tensor *t)
{
	if (s->view->memory || t->memory)
		return s->view == t;
	return s->file == file && s->at + s->view->begin == begin && s->view->dtype == t->dtype &&
	       s->view->ndim == t->ndim && tensor_same_extents(s->view->shape, t->shape, t->ndim) &&
	       tensor_same_extents(s->view->strides, t->strides, t->ndim);
}

/* Adds a file in memory; the caller fills in its bytes. */
static int
add_memory(struct foreign_tree *tree, const char *name, uint64_t nbytes, uint32_t *ret, char **ret_memory,
           struct pawl_error *err)
{
	struct manifest *m = tree->m;
	uint64_t before = m->bytes; /* not a file of the checkpoint */
	char *memory = bump_alloc(&m->memory, (size_t)nbytes + 1);

	if (!memory)
		return err_nomem(err, NULL);
	TRY(foreign_add_file(tree, name, nbytes, ret, err));
	m->files[*ret].memory = *ret_memory = memory;
	m->bytes = m->new_bytes = before;
	return 0;
}

/* Leaves that show the same bytes in the same way are tied. */
static int
add_view(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct pt_tensor *t, struct pawl_error *err)
{
	uint64_t hash = table_mix(table_mix((uintptr_t)tree, file), t->memory ? (uintptr_t)t : at + t->begin);
	struct seen *seen;
	uintptr_t value;

	hash = t->ndim ? table_hash(hash, t->shape, t->ndim * sizeof(*t->shape)) : hash;
	for (size_t cursor = 0; t->nbytes > 0 && table_next(&tree->views, hash, &cursor, &value);) {
		seen = (struct seen *)value;
		if (same_view(seen, file, at + t->begin, t))
			return foreign_add_tensor(tree, t->dtype, t->ndim, t->shape, t->kind, &seen->pieces, err);
	}
	seen = bump_alloc(&tree->m->memory, sizeof(*seen));
	if (!seen || table_reserve(&tree->views, 1) < 0)
		return err_nomem(err, NULL);
	*seen = (struct seen){.file = file, .at = at, .view = t};
	int rc = 0;
	if (t->memory) {
		char *memory;
		at = 0;
		rc = add_memory(tree, ARRAY, t->nbytes, &file, &memory, err);
		if (rc == 0)
			memcpy(memory, t->memory, (size_t)t->nbytes);
	}
	if (rc == 0)
		rc = foreign_add_pieces(tree, file, at, t, NULL, &seen->pieces, err);
	if (rc < 0)
		return state_at_path(tree->m->state, rc, err);
	table_add(&tree->views, hash, (uintptr_t)seen);
	return foreign_add_tensor(tree, t->dtype, t->ndim, t->shape, t->kind, &seen->pieces, err);
}

/* -------------------------------------------------------------------- values */

/* What a state calls the types of pt.h, in their order. */
static const int types[] = {
	[PT_NONE] = PAWL_NONE, [PT_BOOL] = PAWL_BOOLEAN, [PT_INT] = PAWL_INT,       [PT_FLOAT] = PAWL_FLOAT,
	[PT_STR] = PAWL_STR,   [PT_BYTES] = PAWL_BYTES,  [PT_LIST] = PAWL_LIST,     [PT_TUPLE] = PAWL_TUPLE,
	[PT_DICT] = PAWL_DICT, [PT_ODICT] = PAWL_ODICT,  [PT_TENSOR] = PAWL_TENSOR,
};

static struct pawl_scalar
as_scalar(const struct pt_value *v)
{
	return (struct pawl_scalar){.type = types[v->type], .i = v->i, .f = v->f, .ptr = v->text, .len = v->len};
}

struct value_frame {
	struct pickle_node *const *items;
	size_t n, at;
	bool pairs;
};

struct value_walk {
	struct foreign_tree *tree;
	const struct pt *pt;
	struct value_frame stack[STATE_MAX_DEPTH + 1];
	unsigned depth;
	uint32_t file;
	uint64_t at;
};

static int
check_size(const struct foreign_tree *tree, struct pawl_error *err)
{
	if (tree->m->state->memory.used_bytes <= FOREIGN_MAX_STATE)
		return 0;
	err_set(err, PAWL_ELIMIT, "more than %zu MiB of values", FOREIGN_MAX_STATE >> 20);
	return state_at_path(tree->m->state, PAWL_ELIMIT, err);
}

/* Adds one value, and opens it if it contains others. */
static int
enter_value(struct value_walk *w, struct pickle_node *node, struct pawl_error *err)
{
	struct pawl_state *state = w->tree->m->state;
	struct pt_value v;

	TRY(check_size(w->tree, err));
	int rc = pt_value(w->pt, node, &v, err);
	if (rc < 0)
		return state_at_path(state, rc, err);
	if (v.type == PT_TENSOR)
		return add_view(w->tree, w->file, w->at, v.tensor, err);
	if (v.type < PT_LIST) {
		struct pawl_scalar scalar = as_scalar(&v);
		return pawl_state_add(state, &scalar, err);
	}
	TRY(pawl_state_begin(state, types[v.type], err));
	w->stack[w->depth++] = (struct value_frame){v.items, v.n, 0, v.type == PT_DICT || v.type == PT_ODICT};
	return 0;
}

/* Adds the key of a value of a dict. */
static int
add_key(struct value_walk *w, struct pickle_node *node, struct pawl_error *err)
{
	struct pawl_state *state = w->tree->m->state;
	struct pt_value v;

	TRY(pt_value(w->pt, node, &v, err));
	if (v.type >= PT_LIST)
		return err_set(err, PAWL_EUNSUPPORTED, "a dict with a key that is a %s; expected text or a number",
		               v.type == PT_TUPLE ? "tuple" : "container or tensor");
	struct pawl_scalar key = as_scalar(&v);
	int rc = pawl_state_key(state, &key, err);
	if (rc == PAWL_EEXISTS && err)
		err->code = PAWL_ECORRUPT;
	return rc == PAWL_EEXISTS ? PAWL_ECORRUPT : rc;
}

static int
walk_value(struct value_walk *w, struct pickle_node *node, struct pawl_error *err)
{
	TRY(enter_value(w, node, err));
	while (w->depth > 0) {
		struct value_frame *f = &w->stack[w->depth - 1];

		if (f->at == f->n) {
			TRY(pawl_state_end(w->tree->m->state, err));
			w->depth--;
			continue;
		}
		if (f->pairs)
			TRY(add_key(w, f->items[f->at++], err));
		TRY(enter_value(w, f->items[f->at++], err));
	}
	return 0;
}

int
foreign_add_value(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct pt *pt, struct pickle_node *node,
                  struct pawl_error *err)
{
	PAWL_FREE struct value_walk *w = mem_zalloc(1, sizeof(*w));

	if (!w)
		return err_nomem(err, NULL);
	w->tree = tree;
	w->pt = pt;
	w->file = file;
	w->at = at;
	int rc = walk_value(w, node, err);
	if (rc == PAWL_EUSAGE || rc == PAWL_EEXISTS) { /* an error of the file, not of the caller */
		rc = PAWL_EUNSUPPORTED;
		if (err)
			err->code = rc;
	}
	return rc;
}

/* ----------------------------------------------------------------- finishing */

/* Puts the texts that are tensors one after another into a file in memory. */
static int
add_long_values(struct foreign_tree *tree, struct foreign_pieces *rows, struct pawl_error *err)
{
	struct manifest *m = tree->m;
	const struct pawl_state *state = m->state;
	uint64_t total = 0, at = 0;
	uint32_t file;

	for (size_t i = 0; i < state->n_tensors; i++)
		total += state->tensors[i].is_blob ? state->tensors[i].local_nbytes : 0;
	if (total == 0)
		return 0;
	char *memory = NULL;
	TRY(add_memory(tree, LONG_VALUES, total, &file, &memory, err));
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		const uint64_t origin = 0;

		if (!t->is_blob)
			continue;
		memcpy(memory + at, t->src.data, (size_t)t->local_nbytes);
		struct manifest_piece piece = {.file = file,
		                               .begin = at,
		                               .nbytes = t->local_nbytes,
		                               .offsets = bump_copy(&m->memory, &origin, 1, sizeof(uint64_t)),
		                               .lengths = t->info.shape};
		if (!piece.offsets)
			return err_nomem(err, NULL);
		TRY(add_piece(tree, &rows[i], piece, err));
		at += t->local_nbytes;
	}
	return 0;
}

static int
compare_members(const void *pa, const void *pb)
{
	const struct manifest_member *a = pa, *b = pb;

	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	return (a->begin > b->begin) - (a->begin < b->begin);
}

int
foreign_tree_finish(struct foreign_tree *tree, struct pawl_error *err)
{
	struct manifest *m = tree->m;
	struct pawl_state *state = m->state;
	struct foreign_pieces *blobs = bump_array(&m->memory, state->n_tensors, sizeof(*blobs));

	TRY(state_check_complete(state, err));
	m->tensors = bump_array(&m->memory, state->n_tensors, sizeof(*m->tensors));
	if (!blobs || !m->tensors)
		return err_nomem(err, NULL);
	TRY(add_long_values(tree, blobs, err));
	if (m->n_members > 0)
		qsort(m->members, m->n_members, sizeof(*m->members), compare_members);
	m->n_tensors = state->n_tensors;
	for (size_t i = 0; i < state->n_tensors; i++) {
		struct state_tensor *t = &state->tensors[i];
		const struct foreign_pieces *pieces = t->is_blob ? &blobs[i] : t->src.fill_arg;

		m->tensors[i] = (struct manifest_tensor){.name = t->info.name,
		                                         .dtype = t->info.dtype,
		                                         .ndim = t->info.ndim,
		                                         .shape = t->info.shape,
		                                         .nbytes = t->info.nbytes,
		                                         .n_pieces = pieces->n,
		                                         .pieces = pieces->rows};
		if (!t->is_blob) /* as in a state that was read */
			*t = (struct state_tensor){.info = t->info};
	}
	return 0;
}

/* --------------------------------------------------------------------- files */

static int
read_file(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct foreign_file *f = arg;

	return store_read(f->store, f->reader, f->base + offset, dst, n, err);
}

int
foreign_file_open(struct foreign_file *f, struct store *store, const char *key, struct pawl_error *err)
{
	*f = (struct foreign_file){.store = store};
	f->source = (struct source){.what = key, .read = read_file, .arg = f};
	return store_open_reader(store, key, &f->reader, &f->source.nbytes, err);
}

void
foreign_file_close(struct foreign_file *f)
{
	if (f->reader)
		store_close_reader(f->store, f->reader);
	f->reader = NULL;
}
