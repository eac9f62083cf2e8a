/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_dcp: a folder of torch.distributed.checkpoint as a checkpoint.
 *
 *   .metadata -> pieces by file and offset -> each was written by torch.save: find its bytes
 *             -> the nested state
 *
 * A piece of a tensor is opened only to find its bytes; a value is decoded. Names become the tree
 * that they were made from, as torch does it: keys are text, integers are places in lists. Promises
 * P1 (the pieces fill their tensor exactly), P16, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "foreign/foreign_formats.h"
#include "foreign/foreign_tree.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/dcp.h"
#include "state/manifest_check.h"
#include "state/state_build.h"

#define METADATA ".metadata"
#define MAX_MEMORY ((size_t)4 << 30) /* used while a folder is opened */
#define MAX_GAPS 1000000u            /* places in lists for which nothing was saved */

/* A value, or an inner node of the tree. */
struct place {
	const struct pickle_node *key;
	struct dcp_item *item; /* NULL = an inner node */
	struct place *parent, *first, *last, *next;
	size_t n;
	bool is_list;
	/* what was read from the item */
	struct foreign_pieces pieces;
	struct pt *pt;
};

/* One range to open. */
struct job {
	const struct dcp_range *range;
	struct place *place;
	struct dcp_chunk *chunk; /* NULL = a value */
};

struct folder {
	struct store *store;
	const char *key;
	struct bump memory, piece_memory; /* the latter of one piece */
	struct dcp dcp;
	struct foreign_tree tree;
	struct foreign_file file; /* the current one */
	struct buf file_key;
	uint32_t *numbers; /* of dcp.files in the manifest */
	struct place *root;
	struct table places; /* (parent, key) */
	struct job *jobs;
	size_t n_jobs, n_gaps;
	struct pawl_error *err;
};

static void
clean_folder(struct folder *f)
{
	foreign_file_close(&f->file);
	foreign_tree_clear(&f->tree);
	table_clear(&f->places);
	buf_clear(&f->file_key);
	mem_free(f->jobs);
	bump_clear(&f->piece_memory);
	bump_clear(&f->memory);
}

/* Prefixes the message with the name of the item. */
static int
at_item(const struct folder *f, const struct dcp_item *item, int rc)
{
	return err_prefix(f->err, rc, "'%.*s'", (int)(item->name_len < 200 ? item->name_len : 200), item->name);
}

static int
wrong_item(const struct folder *f, const struct dcp_item *item, const char *why)
{
	return at_item(f, item, err_set(f->err, PAWL_ECORRUPT, "%s", why));
}

/* ------------------------------------------------------------------- the tree */

static bool
keys_equal(const struct pickle_node *a, const struct pickle_node *b)
{
	if (a->type != b->type)
		return false;
	return a->type == PICKLE_INT ? a->i == b->i : a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

static uint64_t
key_hash(const struct place *parent, const struct pickle_node *key)
{
	uint64_t hash = table_mix((uintptr_t)parent, key->type);

	return key->type == PICKLE_INT ? table_mix(hash, (uint64_t)key->i) : table_hash(hash, key->text, key->len);
}

/* Finds the child of a place at a key, or makes it. */
static int
find_place(struct folder *f, struct place *parent, const struct pickle_node *key, struct place **ret)
{
	const uint64_t hash = key_hash(parent, key);
	uintptr_t value;

	for (size_t cursor = 0; table_next(&f->places, hash, &cursor, &value);) {
		*ret = (struct place *)value;
		if ((*ret)->parent == parent && keys_equal((*ret)->key, key))
			return 0;
	}
	struct place *place = bump_alloc(&f->memory, sizeof(*place));
	if (!place || table_reserve(&f->places, 1) < 0)
		return err_nomem(f->err, f->key);
	place->key = key;
	place->parent = parent;
	if (parent->last)
		parent->last->next = place;
	else
		parent->first = place;
	parent->last = place;
	parent->n++;
	table_add(&f->places, hash, (uintptr_t)place);
	*ret = place;
	return 0;
}

static int
place_item(struct folder *f, struct dcp_item *item, struct place **ret)
{
	struct place *place = f->root;

	if (item->n_path > STATE_MAX_DEPTH)
		return at_item(f, item, err_set(f->err, PAWL_ELIMIT, "nested deeper than %d", STATE_MAX_DEPTH));
	for (size_t i = 0; i < (item->path ? item->n_path : 1); i++) {
		const struct pickle_node *key = item->path ? item->path[i] : NULL;
		if (!key) {
			struct pickle_node *own = bump_alloc(&f->memory, sizeof(*own));
			if (!own)
				return err_nomem(f->err, f->key);
			*own = (struct pickle_node){.type = PICKLE_STR, .text = item->name, .len = item->name_len};
			key = own;
		}
		bool is_list = key->type == PICKLE_INT;
		if (place->item || (place->n > 0 && place->is_list != is_list))
			return wrong_item(f, item, "its path leads through a value that is not a container");
		place->is_list = is_list;
		TRY(find_place(f, place, key, &place));
	}
	if (place->item || place->n > 0)
		return wrong_item(f, item, "its path belongs to another value");
	place->item = item;
	*ret = place;
	return 0;
}

/* -------------------------------------------------------------------- pieces */

static int
compare_jobs(const void *pa, const void *pb)
{
	const struct dcp_range *a = ((const struct job *)pa)->range, *b = ((const struct job *)pb)->range;

	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	return (a->begin > b->begin) - (a->begin < b->begin);
}

static int
list_jobs(struct folder *f)
{
	size_t n = 0;

	for (size_t i = 0; i < f->dcp.n; i++)
		n += f->dcp.items[i].is_tensor ? f->dcp.items[i].n_chunks : 1;
	f->jobs = mem_zalloc(n, sizeof(*f->jobs));
	f->root = bump_alloc(&f->memory, sizeof(*f->root));
	if (!f->jobs || !f->root)
		return err_nomem(f->err, f->key);
	for (size_t i = 0; i < f->dcp.n; i++) {
		struct dcp_item *item = &f->dcp.items[i];
		struct place *place = NULL;

		TRY(place_item(f, item, &place));
		if (!item->is_tensor)
			f->jobs[f->n_jobs++] = (struct job){&item->range, place, NULL};
		for (size_t k = 0; k < item->n_chunks; k++)
			f->jobs[f->n_jobs++] = (struct job){&item->chunks[k].range, place, &item->chunks[k]};
	}
	if (f->n_jobs > 0)
		qsort(f->jobs, f->n_jobs, sizeof(*f->jobs), compare_jobs);
	return 0;
}

static int
open_files(struct folder *f)
{
	f->numbers = bump_array(&f->memory, f->dcp.n_files, sizeof(*f->numbers));
	if (!f->numbers)
		return err_nomem(f->err, f->key);
	for (size_t i = 0; i < f->dcp.n_files; i++) {
		struct store_entry entry;

		f->file_key.len = 0;
		buf_printf(&f->file_key, "%s/%s", f->key, f->dcp.files[i]);
		TRY(buf_check(&f->file_key, f->key, f->err));
		int rc = store_stat(f->store, buf_str(&f->file_key), &entry, f->err);
		if (rc == PAWL_ENOTFOUND || (rc == 0 && (entry.is_folder || entry.is_link)))
			return err_set(f->err, PAWL_ECORRUPT, "%s is missing, or not a file", buf_str(&f->file_key));
		TRY(rc);
		TRY(foreign_add_file(&f->tree, f->dcp.files[i], entry.nbytes, &f->numbers[i], f->err));
	}
	return 0;
}

/* The shape of all pieces together. pawl counts four-bit numbers; torch counts pairs of them. */
static int
split_pairs(struct folder *f, struct dcp_item *item)
{
	const uint32_t last = item->ndim - 1;

	if (item->dtype != PAWL_F4)
		return 0;
	if (item->ndim == 0)
		return wrong_item(f, item, "a scalar of four-bit numbers");
	for (size_t k = 0; k <= item->n_chunks; k++) {
		const uint64_t *all[2] = {k < item->n_chunks ? item->chunks[k].offsets : item->shape,
		                          k < item->n_chunks ? item->chunks[k].sizes : item->shape};
		for (unsigned i = 0; i < 2; i++) {
			uint64_t *own = bump_copy(&f->memory, all[i], item->ndim, sizeof(*own));
			if (!own)
				return err_nomem(f->err, f->key);
			if (!mem_mul_ok(own[last], 2, &own[last]))
				return wrong_item(f, item, "too large");
			if (k == item->n_chunks)
				item->shape = own;
			else if (i == 0)
				item->chunks[k].offsets = own;
			else
				item->chunks[k].sizes = own;
		}
	}
	return 0;
}

/* Checks that the pieces fill the tensor exactly. */
static int
check_item(struct folder *f, struct dcp_item *item, uint64_t *corners_left)
{
	struct manifest_tensor t = {.name = "it", .dtype = item->dtype, .ndim = item->ndim, .shape = item->shape};
	uint64_t total = 0;

	TRY(split_pairs(f, item));
	t.shape = item->shape;
	int rc = safetensors_nbytes(t.dtype, t.ndim, t.shape, &t.nbytes, f->err);
	if (rc < 0)
		return at_item(f, item, rc);
	t.pieces = bump_array(&f->piece_memory, item->n_chunks, sizeof(*t.pieces));
	if (!t.pieces)
		return err_nomem(f->err, f->key);
	for (size_t k = 0; k < item->n_chunks; k++) {
		const struct dcp_chunk *c = &item->chunks[k];
		struct manifest_piece piece = {.offsets = c->offsets, .lengths = c->sizes};

		rc = safetensors_nbytes(t.dtype, t.ndim, c->sizes, &piece.nbytes, f->err);
		if (rc < 0)
			return at_item(f, item, rc);
		if (piece.nbytes > 0)
			t.pieces[t.n_pieces++] = piece;
		if (!mem_add_ok(total, piece.nbytes, &total))
			total = UINT64_MAX;
	}
	if (total != t.nbytes)
		return wrong_item(f, item, "its pieces do not fill it");
	rc = t.n_pieces > 1 ? manifest_check_tiling(&t, corners_left, f->err) : 0;
	bump_clear(&f->piece_memory);
	return rc < 0 ? at_item(f, item, rc) : 0;
}

/* Opens the range of a job. */
static int
open_range(struct folder *f, const struct job *job, struct bump *memory, struct pt *ret)
{
	const struct dcp_range *range = job->range;
	const char *name = f->dcp.files[range->file];
	const uint64_t file_nbytes = f->tree.m->files[f->numbers[range->file]].nbytes;

	if (!f->file.reader || strcmp(f->file.source.what, name) != 0) {
		foreign_file_close(&f->file);
		f->file_key.len = 0;
		buf_printf(&f->file_key, "%s/%s", f->key, name);
		TRY(buf_check(&f->file_key, f->key, f->err));
		TRY(foreign_file_open(&f->file, f->store, buf_str(&f->file_key), f->err));
		f->file.source.what = name;
	}
	if (range->begin > file_nbytes || range->nbytes > file_nbytes - range->begin)
		return err_set(f->err, PAWL_ECORRUPT,
		               "%s: a piece at byte %llu of %llu bytes reaches beyond its end "
		               "at %llu",
		               name, (unsigned long long)range->begin, (unsigned long long)range->nbytes,
		               (unsigned long long)file_nbytes);
	f->file.base = range->begin;
	f->file.source.nbytes = range->nbytes;
	TRY(pt_open(&f->file.source, memory, ret, f->err));
	return foreign_add_members(&f->tree, f->numbers[range->file], range->begin, &ret->zip, f->err);
}

static int
read_chunk(struct folder *f, const struct job *job)
{
	const struct dcp_item *item = job->place->item;
	const struct dcp_chunk *chunk = job->chunk;
	struct pt_value v;
	struct pt pt;

	bump_clear(&f->piece_memory);
	TRY(open_range(f, job, &f->piece_memory, &pt));
	TRY(pt_value(&pt, pt.root, &v, f->err));
	if (v.type != PT_TENSOR || v.tensor->dtype != item->dtype || v.tensor->ndim != item->ndim ||
	    !tensor_same_extents(v.tensor->shape, chunk->sizes, item->ndim))
		return err_set(f->err, PAWL_ECORRUPT, "%s: a piece differs from what .metadata says about it",
		               f->dcp.files[job->range->file]);
	if (v.tensor->nbytes == 0)
		return 0;
	return foreign_add_pieces(&f->tree, f->numbers[job->range->file], job->range->begin, v.tensor, chunk->offsets,
	                          &job->place->pieces, f->err);
}

static int
read_value(struct folder *f, const struct job *job)
{
	struct pt *pt = bump_alloc(&f->memory, sizeof(*pt));

	if (!pt)
		return err_nomem(f->err, f->key);
	job->place->pt = pt;
	return open_range(f, job, &f->memory, pt);
}

static int
read_pieces(struct folder *f)
{
	uint64_t corners_left = MANIFEST_MAX_CORNERS;

	for (size_t i = 0; i < f->dcp.n; i++) {
		if (f->dcp.items[i].is_tensor)
			TRY(check_item(f, &f->dcp.items[i], &corners_left));
	}
	for (size_t i = 0; i < f->n_jobs; i++) {
		const struct job *job = &f->jobs[i];
		int rc = job->chunk ? read_chunk(f, job) : read_value(f, job);

		if (rc < 0)
			return at_item(f, job->place->item, rc);
	}
	return 0;
}

/* ------------------------------------------------------------------- the state */

static int
compare_places(const void *pa, const void *pb)
{
	const struct place *a, *b;

	memcpy(&a, pa, sizeof(a));
	memcpy(&b, pb, sizeof(b));
	return (a->key->i > b->key->i) - (a->key->i < b->key->i);
}

/* Sorts the children of a list. They are unsorted only if ranks saved different places of it. */
static int
sort_list(struct folder *f, struct place *list)
{
	PAWL_FREE struct place **places = mem_zalloc(list->n, sizeof(*places));
	size_t n = 0;

	if (!places)
		return err_nomem(f->err, f->key);
	for (struct place *p = list->first; p; p = p->next)
		places[n++] = p;
	qsort(places, n, sizeof(*places), compare_places);
	list->first = places[0];
	for (size_t i = 0; i < n; i++)
		places[i]->next = i + 1 < n ? places[i + 1] : NULL;
	return 0;
}

/* Fills the places of a list up to an index with None. */
static int
fill_gaps(struct folder *f, size_t *at, int64_t index)
{
	for (; *at < (uint64_t)index; (*at)++) {
		if (++f->n_gaps > MAX_GAPS)
			return err_set(f->err, PAWL_ELIMIT, "%s: its lists have more than %u items that were not saved",
			               f->key, MAX_GAPS);
		TRY(pawl_state_add(f->tree.m->state, &(struct pawl_scalar){.type = PAWL_NONE}, f->err));
	}
	(*at)++;
	return 0;
}

static int
add_item(struct folder *f, struct place *p)
{
	const struct dcp_item *item = p->item;

	if (!item->is_tensor)
		return foreign_add_value(&f->tree, f->numbers[item->range.file], item->range.begin, p->pt, p->pt->root,
		                         f->err);
	struct foreign_pieces *pieces = bump_alloc(&f->tree.m->memory, sizeof(*pieces));
	if (!pieces)
		return err_nomem(f->err, f->key);
	*pieces = p->pieces;
	return foreign_add_tensor(&f->tree, item->dtype, item->ndim, item->shape, "torch", pieces, f->err);
}

struct place_frame {
	struct place *next;
	size_t at; /* in a list */
	bool is_list;
};

static int
open_place(struct folder *f, struct place *p, struct place_frame *frame)
{
	if (p->is_list)
		TRY(sort_list(f, p));
	*frame = (struct place_frame){.next = p->first, .is_list = p->is_list};
	return pawl_state_begin(f->tree.m->state, p->is_list ? PAWL_LIST : PAWL_DICT, f->err);
}

static int
build_state(struct folder *f)
{
	struct pawl_state *state = f->tree.m->state;
	struct place_frame stack[STATE_MAX_DEPTH + 2];
	unsigned depth = 1;

	TRY(open_place(f, f->root, &stack[0]));
	while (depth > 0) {
		struct place_frame *frame = &stack[depth - 1];
		struct place *p = frame->next;

		if (!p) {
			TRY(pawl_state_end(state, f->err));
			depth--;
			continue;
		}
		frame->next = p->next;
		if (frame->is_list) {
			TRY(fill_gaps(f, &frame->at, p->key->i));
		} else {
			const struct pawl_scalar key = {.type = PAWL_STR, .ptr = p->key->text, .len = p->key->len};
			TRY(pawl_state_key(state, &key, f->err));
		}
		if (p->item)
			TRY(add_item(f, p));
		else
			TRY(open_place(f, p, &stack[depth++]));
	}
	return foreign_tree_finish(&f->tree, f->err);
}

static int
read_folder(struct folder *f, struct buf *metadata)
{
	TRY(dcp_decode(buf_str(&f->file_key), metadata->ptr, metadata->len, &f->memory, &f->dcp, f->err));
	TRY(list_jobs(f));
	TRY(open_files(f));
	int rc = read_pieces(f);
	if (rc == 0)
		rc = build_state(f);
	return rc < 0 ? err_prefix(f->err, rc, "%s", f->key) : 0;
}

static int
read_dcp(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf metadata = {0};
	PAWL_CLEAN(clean_folder)
	struct folder f = {.store = store, .key = key, .err = err, .memory = {.limit_bytes = MAX_MEMORY}};

	buf_printf(&f.file_key, "%s/" METADATA, key);
	TRY(buf_check(&f.file_key, key, err));
	TRY(store_get(store, buf_str(&f.file_key), PICKLE_MAX_BYTES, &metadata, err));
	TRY(foreign_tree_begin(&f.tree, m, err));
	return read_folder(&f, &metadata);
}

const struct foreign_format foreign_dcp = {"torch.distributed.checkpoint", {NULL}, METADATA, NULL, read_dcp};
