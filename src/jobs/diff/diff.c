/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff: compares two checkpoints leaf by leaf.
 *
 * Both trees are walked and matched by path. Types and kinds of containers and values count only
 * between checkpoints of one format, since each format has its own. Tensors of equal dtype and
 * shape are then read in parallel, in slabs. Tensors whose blocks have equal checksums are equal
 * and are not read. Memory: two slabs and the read buffers, for checkpoints of any size (P16).
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "base/vec.h"
#include "jobs/diff/numbers.h"
#include "pawl_jobs.h"
#include "restore/restore.h"
#include "restore/restore_gone.h"
#include "state/state_build.h"
#include "state/walk.h"

#define SLAB_BYTES ((uint64_t)(16u << 20) / 48 * 48) /* of each side; a multiple of every dtype's element size */
#define RING_BYTES (16u << 20)
#define MAX_TEXT 200 /* of a value that is shown */

struct pawl_diff {
	struct bump memory;
	struct pawl_diff_row *rows;
	size_t n, cap;
};

/* A leaf or container of a, which b's walk looks up. */
struct was_leaf {
	const char *path, *exact;
	const struct pawl_node *node;
	bool met;
};

/* Two tensors to compare, and the row for the result. */
struct pair {
	size_t a, b; /* in the tables of tensors */
	const char *path;
	bool is_tensor; /* else a long text */
	const char *was, *is;
	struct numbers_difference found;
};

/* The range of a pair in the slabs. */
struct stretch {
	struct pair *pair;
	uint64_t at, nbytes; /* in the slabs */
};

struct side {
	struct pawl_restore *r;
	struct fetch *fetch;
	char *slab;
	struct reshard_binding *bindings;
};

struct differ {
	struct pawl_diff *diff;
	struct side a, b;
	bool has_kinds; /* of both sides, which are of one format */
	struct pawl_meter *meter;
	struct was_leaf *leaves;
	size_t n_leaves, cap_leaves;
	struct table by_path;
	struct pair *pairs;
	size_t n_pairs, cap_pairs;
	struct stretch *stretches;
	size_t n_stretches, cap_stretches;
	uint64_t used; /* of the slabs */
};

static void
side_clear(struct side *s)
{
	fetch_free(s->fetch);
	mem_free(s->slab);
	mem_free(s->bindings);
	pawl_restore_close(s->r);
}

static void
differ_clear(struct differ *d)
{
	side_clear(&d->a);
	side_clear(&d->b);
	mem_free(d->leaves);
	table_clear(&d->by_path);
	mem_free(d->pairs);
	mem_free(d->stretches);
	pawl_diff_free(d->diff);
}

static const char *
keep_text(struct differ *d, const char *text)
{
	return bump_strndup(&d->diff->memory, text, strlen(text));
}

/* The diff already owns the texts. */
static int
add_row(struct differ *d, const struct pawl_diff_row *row, struct pawl_error *err)
{
	if (!row->path || !row->was || !row->is)
		return err_nomem(err, "diff");
	if (!array_reserve(d->diff->rows, d->diff->cap, d->diff->n + 1))
		return err_nomem(err, "diff");
	d->diff->rows[d->diff->n++] = *row;
	return 0;
}

/* ---- values as text ---- */

/* The first bytes of a text, not cut inside a character. */
static size_t
shown_len(const char *text, size_t len)
{
	size_t n = len < MAX_TEXT ? len : MAX_TEXT;
	while (n > 0 && n < len && ((unsigned char)text[n] & 0xc0) == 0x80)
		n--;
	return n;
}

static void
put_scalar(struct buf *out, const struct pawl_scalar *s)
{
	switch (s->type) {
	case PAWL_BOOLEAN:
		buf_puts(out, s->i ? "true" : "false");
		break;
	case PAWL_INT:
		if (s->ptr)
			buf_put(out, s->ptr, shown_len(s->ptr, s->len));
		else
			json_put_i64(out, s->i);
		break;
	case PAWL_FLOAT:
		if (isfinite(s->f))
			json_put_double(out, s->f);
		else
			buf_puts(out, isnan(s->f) ? "nan" : s->f < 0 ? "-inf" : "inf");
		break;
	case PAWL_STR:
		json_put_string(out, s->ptr, shown_len(s->ptr, s->len));
		if (shown_len(s->ptr, s->len) < s->len)
			buf_puts(out, "...");
		break;
	case PAWL_BYTES:
		buf_printf(out, "%zu bytes", s->len);
		break;
	default:
		buf_puts(out, "none");
	}
}

static const char *
describe_node(struct differ *d, const struct side *side, const struct pawl_node *node)
{
	static const char *const empty[] = {"{}", "{} ordered", "[]", "()"};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	if (node->first) {
		buf_puts(&text, state_type_name(node->type));
	} else if (node->type >= PAWL_DICT) {
		buf_puts(&text, empty[node->type - PAWL_DICT]);
	} else if (node->tensor != SIZE_MAX) {
		const struct manifest_tensor *t = &side->r->manifest->tensors[node->tensor];
		if (node->type != PAWL_TENSOR) {
			buf_printf(&text, "%s of %" PRIu64 " bytes", node->type == PAWL_STR ? "str" : "bytes",
			           t->nbytes);
		} else {
			buf_printf(&text, "%s [", pawl_dtype_name(t->dtype));
			for (uint32_t i = 0; i < t->ndim; i++)
				buf_printf(&text, "%s%" PRIu64, i ? ", " : "", t->shape[i]);
			buf_putc(&text, ']');
		}
	} else {
		put_scalar(&text, &node->scalar);
	}
	if (d->has_kinds && node->type != PAWL_TENSOR && *node->kind)
		buf_printf(&text, " (%s)", node->kind);
	return text.failed ? NULL : keep_text(d, buf_str(&text));
}

static bool
same_scalar(const struct pawl_scalar *a, const struct pawl_scalar *b)
{
	if (a->type != b->type || !a->ptr != !b->ptr || a->len != b->len)
		return false;
	if (a->type == PAWL_FLOAT)
		return memcmp(&a->f, &b->f, sizeof a->f) == 0 || (isnan(a->f) && isnan(b->f));
	return a->i == b->i && (!a->ptr || memcmp(a->ptr, b->ptr, a->len) == 0);
}

/* ---- matching ---- */

static uint64_t
path_hash(const struct differ *d, const char *exact)
{
	return table_hash((uint64_t)(uintptr_t)d->diff, exact, strlen(exact));
}

static int
visit_was(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct differ *d = arg;
	if (!array_reserve(d->leaves, d->cap_leaves, d->n_leaves + 1))
		return err_nomem(err, "diff");
	struct was_leaf *was = &d->leaves[d->n_leaves];
	*was = (struct was_leaf){
		.path = keep_text(d, leaf->path), .exact = keep_text(d, leaf->exact), .node = leaf->node};
	if (!was->path || !was->exact)
		return err_nomem(err, "diff");
	if (table_reserve(&d->by_path, 1) < 0)
		return err_nomem(err, "diff");
	table_add(&d->by_path, path_hash(d, leaf->exact), d->n_leaves++);
	return 0;
}

/* The leaf of a, or the container with children, at the path of a node of b. */
static struct was_leaf *
find_was(const struct differ *d, const struct walk_leaf *is)
{
	uintptr_t i;
	for (size_t cursor = 0; table_next(&d->by_path, path_hash(d, is->exact), &cursor, &i);) {
		struct was_leaf *was = &d->leaves[i];
		if (!was->node->first == !is->node->first && strcmp(was->exact, is->exact) == 0)
			return was;
	}
	return NULL;
}

static bool
same_type(const struct differ *d, const struct pawl_node *a, const struct pawl_node *b)
{
	if (!d->has_kinds && a->first)
		return true;
	return a->type == b->type && (!d->has_kinds || a->type == PAWL_TENSOR || strcmp(a->kind, b->kind) == 0);
}

/* True if the blocks under both pieces have the same places and checksums, so their bytes are
 * equal. */
static bool
same_sums(const struct differ *d, const struct manifest_piece *p, const struct manifest_piece *q, uint32_t ndim)
{
	const struct manifest_file *f = &d->a.r->manifest->files[p->file], *g = &d->b.r->manifest->files[q->file];
	const uint64_t block = f->block_bytes;
	const struct sum128 *a = manifest_plain_sums(f), *b = manifest_plain_sums(g);
	if (!a || !b)
		return false;
	if (p->begin != q->begin || p->nbytes != q->nbytes || block != g->block_bytes ||
	    manifest_plain_blocks(f) > manifest_plain_blocks(g) || !tensor_same_extents(p->offsets, q->offsets, ndim) ||
	    !tensor_same_extents(p->lengths, q->lengths, ndim))
		return false;
	if (p->nbytes == 0)
		return true;
	const uint64_t first = p->begin / block, last = (p->begin + p->nbytes - 1) / block;
	return memcmp(a + first, b + first, (size_t)(last - first + 1) * sizeof *a) == 0;
}

static bool
has_same_sums(const struct differ *d, const struct manifest_tensor *a, const struct manifest_tensor *b)
{
	bool same = a->n_pieces == b->n_pieces;
	for (size_t i = 0; i < a->n_pieces && same; i++)
		same = same_sums(d, &a->pieces[i], &b->pieces[i], a->ndim);
	return same;
}

/* Two leaves that are both tensors, or both long texts. */
static int
match_tensors(struct differ *d, const struct was_leaf *was, const struct pawl_node *is, struct pawl_error *err)
{
	const struct manifest_tensor *a = &d->a.r->manifest->tensors[was->node->tensor];
	const struct manifest_tensor *b = &d->b.r->manifest->tensors[is->tensor];
	bool comparable =
		a->dtype == b->dtype && a->ndim == b->ndim && tensor_same_extents(a->shape, b->shape, a->ndim);
	if (comparable && has_same_sums(d, a, b))
		return 0;
	struct pair pair = {.a = was->node->tensor,
	                    .b = is->tensor,
	                    .path = was->path,
	                    .is_tensor = is->type == PAWL_TENSOR,
	                    .was = describe_node(d, &d->a, was->node),
	                    .is = describe_node(d, &d->b, is)};
	if (!pair.was || !pair.is)
		return err_nomem(err, "diff");
	if (!comparable)
		return add_row(d,
		               &(struct pawl_diff_row){.path = pair.path,
		                                       .change = PAWL_CHANGED,
		                                       .is_tensor = pair.is_tensor,
		                                       .was = pair.was,
		                                       .is = pair.is,
		                                       .max_abs = (double)NAN,
		                                       .max_rel = (double)NAN},
		               err);
	if (!array_reserve(d->pairs, d->cap_pairs, d->n_pairs + 1))
		return err_nomem(err, "diff");
	d->pairs[d->n_pairs++] = pair;
	return 0;
}

static int
visit_is(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct differ *d = arg;
	struct was_leaf *was = find_was(d, leaf);
	const struct pawl_node *is = leaf->node;
	struct pawl_diff_row row = {.path = was ? was->path : keep_text(d, leaf->path),
	                            .change = PAWL_ADDED,
	                            .was = "",
	                            .is_tensor = is->type == PAWL_TENSOR,
	                            .max_abs = (double)NAN,
	                            .max_rel = (double)NAN};
	if (!was && is->first)
		return 0; /* its leaves are added */
	if (was) {
		const struct pawl_node *old = was->node;
		const bool is_alike = same_type(d, old, is);
		was->met = true;
		if (is_alike && old->tensor != SIZE_MAX && is->tensor != SIZE_MAX)
			return match_tensors(d, was, is, err);
		if (is_alike && (is->type >= PAWL_DICT || same_scalar(&old->scalar, &is->scalar)))
			return 0;
		row.change = PAWL_CHANGED;
		row.is_tensor = row.is_tensor || old->type == PAWL_TENSOR;
		row.was = describe_node(d, &d->a, old);
	}
	row.is = describe_node(d, &d->b, is);
	return add_row(d, &row, err);
}

static int
add_removed(struct differ *d, struct pawl_error *err)
{
	for (size_t i = 0; i < d->n_leaves; i++) {
		const struct was_leaf *was = &d->leaves[i];
		if (was->met || was->node->first)
			continue;
		TRY(add_row(d,
		            &(struct pawl_diff_row){.path = was->path,
		                                    .change = PAWL_REMOVED,
		                                    .is_tensor = was->node->type == PAWL_TENSOR,
		                                    .was = describe_node(d, &d->a, was->node),
		                                    .is = "",
		                                    .max_abs = (double)NAN,
		                                    .max_rel = (double)NAN},
		            err));
	}
	return 0;
}

/* ---- contents ---- */

static int
fill_slab(struct differ *d, struct side *side, struct pawl_error *err)
{
	PAWL_CLEAN(reshard_free_clean) struct reshard_plan *plan = NULL;
	const struct pawl_restore *r = side->r;
	TRY(reshard_plan(r->manifest, side->bindings, d->n_stretches, fetch_unit_bytes(side->fetch, d->used), &plan,
	                 err));
	struct fetch_job job = {.name = r->info.name,
	                        .folder = r->folder,
	                        .manifest = r->manifest,
	                        .plan = plan,
	                        .bindings = side->bindings};
	return restore_fetch_run(side->r, side->fetch, &job, err);
}

/* Reads the gathered ranges of both sides and compares them. */
static int
compare_slabs(struct differ *d, struct pawl_error *err)
{
	if (d->n_stretches == 0)
		return 0;
	if (d->meter && __atomic_load_n(&d->meter->cancel, __ATOMIC_RELAXED))
		return err_set(err, PAWL_ECANCELLED, "diff: cancelled");
	TRY(fill_slab(d, &d->a, err));
	TRY(fill_slab(d, &d->b, err));
	for (size_t i = 0; i < d->n_stretches; i++) {
		const struct stretch *s = &d->stretches[i];
		const int dtype = d->a.r->manifest->tensors[s->pair->a].dtype;
		numbers_compare(dtype, d->a.slab + s->at, d->b.slab + s->at, s->nbytes * 8 / pawl_dtype_bits(dtype),
		                &s->pair->found);
	}
	if (d->meter)
		__atomic_fetch_add(&d->meter->done_bytes, 2 * d->used, __ATOMIC_RELAXED);
	d->n_stretches = 0;
	d->used = 0;
	return 0;
}

static struct reshard_binding
bind_range(const struct side *side, size_t tensor, uint64_t begin, uint64_t end, uint64_t at)
{
	const struct manifest_tensor *t = &side->r->manifest->tensors[tensor];
	struct pawl_tensor dst = {
		.size = sizeof dst, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape, .data = side->slab + at};
	return (struct reshard_binding){.tensor = tensor, .dst = dst, .contiguous = true, .begin = begin, .end = end};
}

static int
add_stretch(struct differ *d, struct pair *pair, uint64_t begin, uint64_t nbytes, struct pawl_error *err)
{
	size_t cap_a = d->cap_stretches, cap_b = cap_a;
	const size_t n = d->n_stretches + 1;
	if (!array_reserve(d->a.bindings, cap_a, n) || !array_reserve(d->b.bindings, cap_b, n) ||
	    !array_reserve(d->stretches, d->cap_stretches, n))
		return err_nomem(err, "diff");
	d->a.bindings[d->n_stretches] = bind_range(&d->a, pair->a, begin, begin + nbytes, d->used);
	d->b.bindings[d->n_stretches] = bind_range(&d->b, pair->b, begin, begin + nbytes, d->used);
	d->stretches[d->n_stretches++] = (struct stretch){.pair = pair, .at = d->used, .nbytes = nbytes};
	d->used += nbytes;
	return 0;
}

static int
compare_pairs(struct differ *d, struct pawl_error *err)
{
	const struct manifest_tensor *tensors = d->a.r->manifest->tensors;
	uint64_t total = 0;
	for (size_t i = 0; i < d->n_pairs; i++)
		total += 2 * tensors[d->pairs[i].a].nbytes;
	if (d->meter)
		__atomic_store_n(&d->meter->total_bytes, total, __ATOMIC_RELAXED);
	for (size_t i = 0; i < d->n_pairs; i++) {
		const uint64_t nbytes = tensors[d->pairs[i].a].nbytes;
		for (uint64_t at = 0, n; at < nbytes; at += n) {
			/* Cut between elements: ranges start at multiples of 48 bytes of the
			 * tensor. */
			n = nbytes - at < SLAB_BYTES - d->used ? nbytes - at : (SLAB_BYTES - d->used) / 48 * 48;
			if (n > 0)
				TRY(add_stretch(d, &d->pairs[i], at, n, err));
			if (at + n < nbytes)
				TRY(compare_slabs(d, err));
		}
	}
	TRY(compare_slabs(d, err));
	for (size_t i = 0; i < d->n_pairs; i++) {
		const struct pair *p = &d->pairs[i];
		if (p->found.differs)
			TRY(add_row(d,
			            &(struct pawl_diff_row){.path = p->path,
			                                    .change = PAWL_CHANGED,
			                                    .is_tensor = p->is_tensor,
			                                    .was = p->was,
			                                    .is = p->is,
			                                    .max_abs = p->is_tensor ? p->found.max_abs : (double)NAN,
			                                    .max_rel = p->is_tensor ? p->found.max_rel : (double)NAN},
			            err));
	}
	return 0;
}

/* ---- the complete diff ---- */

static int
compare_rows(const void *a, const void *b)
{
	return text_compare_path(((const struct pawl_diff_row *)a)->path, ((const struct pawl_diff_row *)b)->path);
}

static int
open_side(struct side *s, struct pawl *run, uint64_t id, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	PAWL_FREE char *selector = id ? mem_printf("id:%" PRIu64, id) : NULL;
	if (id && !selector)
		return err_nomem(err, "diff");
	opts.selector = selector;
	opts.no_fallback = 1;
	TRY(pawl_restore_open(run, &opts, &s->r, err));
	TRY(fetch_new(run->home.reads, run->opts.io.threads, RING_BYTES, &s->fetch, err));
	s->slab = mem_alloc(SLAB_BYTES);
	return s->slab ? 0 : err_nomem(err, "diff");
}

static int
diff_open(struct pawl *a, uint64_t id_a, struct pawl *b, uint64_t id_b, struct pawl_meter *meter,
          struct pawl_diff **ret, struct pawl_error *err)
{
	PAWL_CLEAN(differ_clear) struct differ d = {.meter = meter};
	if (!a || !b || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "diff: expected two runs and a pointer that receives the result, found NULL");
	d.diff = mem_zalloc(1, sizeof *d.diff);
	if (!d.diff)
		return err_nomem(err, "diff");
	TRY(open_side(&d.a, a, id_a, err));
	TRY(open_side(&d.b, b, id_b, err));
	const char *format = d.a.r->manifest->format, *other = d.b.r->manifest->format;
	d.has_kinds = format && other ? strcmp(format, other) == 0 : format == other;
	TRY(walk_nodes(d.a.r->manifest->state->root, visit_was, &d, err));
	TRY(walk_nodes(d.b.r->manifest->state->root, visit_is, &d, err));
	TRY(add_removed(&d, err));
	TRY(compare_pairs(&d, err));
	if (d.diff->n > 0)
		qsort(d.diff->rows, d.diff->n, sizeof *d.diff->rows, compare_rows);
	*ret = steal(&d.diff);
	return 0;
}

int
pawl_diff_open(struct pawl *a, uint64_t id_a, struct pawl *b, uint64_t id_b, struct pawl_meter *meter,
               struct pawl_diff **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, diff_open(a, id_a, b, id_b, meter, ret, &own), &own);
}

size_t
pawl_diff_count(const struct pawl_diff *d)
{
	return d->n;
}

const struct pawl_diff_row *
pawl_diff_get(const struct pawl_diff *d, size_t i)
{
	return i < d->n ? &d->rows[i] : NULL;
}

void
pawl_diff_free(struct pawl_diff *d)
{
	if (!d)
		return;
	bump_clear(&d->memory);
	mem_free(d->rows);
	mem_free(d);
}
