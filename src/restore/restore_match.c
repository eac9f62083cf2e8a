/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore_match: names the memory that tensors are read into, one by one or by matching a live
 * state to the saved one. It reads no data.
 *
 * Leaves are matched by path. A live leaf that the saved state lacks is "missing"; a saved leaf
 * that the live state lacks is "unexpected". Values that are not tensors are not compared: they
 * come from the saved state. All differences are found before any is reported.
 */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/table.h"
#include "base/vec.h"
#include "restore/restore.h"
#include "state/walk.h"

#define NO_TENSOR SIZE_MAX
#define SHOWN_ROWS 10 /* in an error; the report has all */

void
restore_cut_bindings(struct pawl_restore *r, size_t n)
{
	restore_cut_casts(r, n);
	r->n_bindings = n < r->n_bindings ? n : r->n_bindings;
	if (n == 0)
		bump_clear(&r->binding_memory);
}

/* ---- one destination ---- */

static int
copy_array(struct pawl_restore *r, const void **field, uint32_t n, struct pawl_error *err)
{
	if (!*field)
		return 0;
	const void *copy = bump_copy(&r->binding_memory, *field, n, sizeof(uint64_t));
	if (!copy)
		return err_nomem(err, "restore");
	*field = copy;
	return 0;
}

static uint64_t
absolute_stride(const struct pawl_tensor *t, uint32_t d)
{
	return t->strides[d] < 0 ? 0 - (uint64_t)t->strides[d] : (uint64_t)t->strides[d];
}

/* Elements of the destination that share a place would be written in any order. From the smallest
 * stride to the largest, each dimension must step over all that those before it span. Rare layouts
 * that interleave without overlapping are refused, too. */
static bool
overlaps_itself(const struct pawl_tensor *dst)
{
	bool seen[PAWL_MAX_DIMS] = {false};
	uint64_t span = 1, more;

	for (uint32_t d = 0; d < dst->ndim; d++)
		if (dst->shape[d] == 0)
			return false;
	for (uint32_t k = 0; dst->strides && k < dst->ndim; k++) {
		uint32_t next = dst->ndim;

		for (uint32_t d = 0; d < dst->ndim; d++)
			if (!seen[d] && dst->shape[d] > 1 &&
			    (next == dst->ndim || absolute_stride(dst, d) < absolute_stride(dst, next)))
				next = d;
		if (next == dst->ndim)
			break;
		seen[next] = true;
		if (absolute_stride(dst, next) < span ||
		    __builtin_mul_overflow(dst->shape[next] - 1, absolute_stride(dst, next), &more) ||
		    !mem_add_ok(span, more, &span))
			return true;
	}
	return false;
}

static int
check_destination(const char *name, const struct pawl_tensor *dst, const struct manifest_tensor *saved, int dtype,
                  struct pawl_error *err)
{
	uint64_t nbytes;
	int rc = tensor_nbytes(dst, &nbytes, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", name);
	if (dst->dtype != dtype)
		return err_set(err, PAWL_EMISMATCH, "%s is saved as %s, the destination is %s", name,
		               pawl_dtype_name(dtype), pawl_dtype_name(dst->dtype));
	const uint64_t *shape = dst->global_shape ? dst->global_shape : dst->shape;
	if (dst->ndim != saved->ndim || !tensor_same_extents(shape, saved->shape, dst->ndim))
		return err_set(err, PAWL_EMISMATCH, "%s: the destination has another shape than the saved tensor",
		               name);
	for (uint32_t d = 0; d < dst->ndim; d++) {
		uint64_t from = dst->offsets ? dst->offsets[d] : 0, end;
		if (!mem_add_ok(from, dst->shape[d], &end) || end > saved->shape[d])
			return err_set(err, PAWL_EMISMATCH, "%s: the destination is outside the saved tensor", name);
	}
	if (dst->device < PAWL_DEVICE_HOST || dst->device > PAWL_DEVICE_HIP)
		return err_set(err, PAWL_EUSAGE, "%s: device: expected 0 to %d, found %d", name, PAWL_DEVICE_HIP,
		               dst->device);
	if (dst->fill || (!dst->data && nbytes > 0))
		return err_set(err, PAWL_EUSAGE, "%s: the destination has no memory that can be written to", name);
	if (overlaps_itself(dst))
		return err_set(err, PAWL_EUSAGE, "%s: elements of the destination share their memory", name);
	return 0;
}

int
pawl_restore_bind(struct pawl_restore *r, size_t index, const struct pawl_tensor *given, struct pawl_error *err)
{
	const struct manifest *m = r ? r->manifest : NULL;
	struct pawl_tensor dst = {0};
	TRY(restore_check_handle(r, err));
	if (!given || !given->size)
		return err_set(err, PAWL_EUSAGE, "restore: expected a tensor made by PAWL_TENSOR_INIT");
	if (index >= m->n_tensors)
		return err_set(err, PAWL_EUSAGE, "%s has %" PRIu64 " tensors, there is no number %zu", r->info.name,
		               m->n_tensors, index);
	memcpy(&dst, given, given->size < sizeof dst ? given->size : sizeof dst);
	if (given->size < sizeof dst)
		dst.device = PAWL_DEVICE_HOST;
	TRY(check_destination(m->tensors[index].name, &dst, &m->tensors[index], m->state->tensors[index].info.dtype,
	                      err));
	TRY(copy_array(r, (const void **)&dst.shape, dst.ndim, err));
	TRY(copy_array(r, (const void **)&dst.strides, dst.ndim, err));
	TRY(copy_array(r, (const void **)&dst.offsets, dst.ndim, err));
	dst.global_shape = NULL;
	if (!array_reserve(r->bindings, r->cap_bindings, r->n_bindings + 1))
		return err_nomem(err, "restore");
	if (dst.dtype != m->tensors[index].dtype)
		TRY(restore_add_cast(r, m->tensors[index].dtype, &dst, err));
	r->bindings[r->n_bindings++] =
		(struct reshard_binding){.tensor = index, .dst = dst, .contiguous = tensor_is_contiguous(&dst)};
	return 0;
}

size_t
pawl_restore_piece_count(const struct pawl_restore *r, size_t index)
{
	return index < r->manifest->n_tensors ? r->manifest->tensors[index].n_pieces : 0;
}

int
pawl_restore_piece(const struct pawl_restore *r, size_t index, size_t i, const uint64_t **offsets,
                   const uint64_t **lengths, struct pawl_error *err)
{
	const struct manifest_piece *piece;

	TRY(restore_check_handle(r, err));
	if (i >= pawl_restore_piece_count(r, index))
		return err_set(err, PAWL_ENOTFOUND, "%s: tensor %zu has no piece %zu", r->info.name, index, i);
	piece = &r->manifest->tensors[index].pieces[i];
	if (offsets)
		*offsets = piece->offsets;
	if (lengths)
		*lengths = piece->lengths;
	return 0;
}

/* ---- a complete state ---- */

struct saved_leaf {
	const char *path, *exact;
	const struct pawl_node *node;
	bool matched;
};

struct matcher {
	struct pawl_restore *r;
	const struct pawl_state *live;
	struct bump memory;
	struct saved_leaf *leaves;
	size_t n, cap;
	struct table by_path;
	size_t n_notices;            /* lines of the report that are not differences */
	struct restore_rows dropped; /* exact paths of values per rank in which this rank has no part */
	size_t *bound_to;            /* per live tensor: the saved one that fills it, or NO_TENSOR */
	bool *glob_used;
};

static void
matcher_clear(struct matcher *m)
{
	bump_clear(&m->memory);
	mem_free(m->leaves);
	restore_cut_rows(&m->dropped, 0);
	mem_free(m->dropped.rows);
	table_clear(&m->by_path);
	mem_free(m->bound_to);
	mem_free(m->glob_used);
}

static bool
is_container(const struct pawl_node *node)
{
	return node->type >= PAWL_DICT;
}

static uint64_t
path_hash(const struct matcher *m, const char *exact)
{
	return table_hash((uint64_t)(uintptr_t)m->r, exact, strlen(exact));
}

/* Notes values per rank that no rank here can claim, once for each. */
static int
note_dropped(struct matcher *m, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct pawl_restore *r = m->r;
	char *exact = mem_strndup(leaf->exact, leaf->ranks_exact_len);
	bool is_known = exact && m->dropped.n > 0 && strcmp(m->dropped.rows[m->dropped.n - 1], exact) == 0;
	bool is_refused = !r->non_strict && r->rank_values == PAWL_RANK_VALUES_STRICT;
	if (is_known) {
		mem_free(exact);
		return 0;
	}
	TRY(restore_add_row(&m->dropped, exact, err));
	m->n_notices += !is_refused;
	return restore_add_row(&r->report,
	                       mem_printf("%s: %.*s: kept per rank by %u ranks, this job has %u%s",
	                                  is_refused ? "per rank" : "dropped", (int)leaf->ranks_len, leaf->path,
	                                  r->manifest->world_size, r->run->group.world,
	                                  is_refused ? "; rank_values decides: drop or wrap" : ""),
	                       err);
}

static int
visit_saved(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct matcher *m = arg;
	const struct pawl_restore *r = m->r;
	if (leaf->in_ranks)
		return walk_included(r->include, r->n_include, leaf->path) ? note_dropped(m, leaf, err) : 0;
	if (is_container(leaf->node))
		return 0;
	bool included = r->n_include == 0;
	for (size_t i = 0; i < r->n_include; i++) {
		bool hit = walk_included(&r->include[i], 1, leaf->path);
		m->glob_used[i] = m->glob_used[i] || hit;
		included = included || hit;
	}
	if (!included)
		return 0;
	if (!array_reserve(m->leaves, m->cap, m->n + 1))
		return err_nomem(err, m->r->info.name);
	struct saved_leaf *saved = &m->leaves[m->n];
	*saved = (struct saved_leaf){.path = bump_strndup(&m->memory, leaf->path, strlen(leaf->path)),
	                             .exact = bump_strndup(&m->memory, leaf->exact, strlen(leaf->exact)),
	                             .node = leaf->node};
	if (!saved->path || !saved->exact)
		return err_nomem(err, m->r->info.name);
	if (table_reserve(&m->by_path, 1) < 0)
		return err_nomem(err, m->r->info.name);
	table_add(&m->by_path, path_hash(m, leaf->exact), m->n++);
	return 0;
}

static struct saved_leaf *
find_saved(const struct matcher *m, const char *exact)
{
	uintptr_t i;
	for (size_t cursor = 0; table_next(&m->by_path, path_hash(m, exact), &cursor, &i);) {
		if (strcmp(m->leaves[i].exact, exact) == 0)
			return &m->leaves[i];
	}
	return NULL;
}

static void
put_shape(struct buf *out, uint32_t ndim, const uint64_t *shape)
{
	buf_putc(out, '[');
	for (uint32_t d = 0; d < ndim; d++)
		buf_printf(out, "%s%" PRIu64, d ? ", " : "", shape[d]);
	buf_putc(out, ']');
}

static int
add_shape_row(struct matcher *m, const char *path, const struct manifest_tensor *saved,
              const struct pawl_tensor_info *live, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf was = {0}, is = {0};
	put_shape(&was, saved->ndim, saved->shape);
	put_shape(&is, live->ndim, live->shape);
	return restore_add_row(&m->r->report,
	                       mem_printf("shape: %s: saved %s, live %s", path, buf_str(&was), buf_str(&is)), err);
}

static int
bind_leaf(struct matcher *m, const char *path, const struct pawl_node *saved_node, const struct pawl_node *live_node,
          struct pawl_error *err)
{
	struct restore_rows *rows = &m->r->report;
	const struct manifest_tensor *saved = &m->r->manifest->tensors[saved_node->tensor];
	const struct state_tensor *live = &m->live->tensors[live_node->tensor];
	size_t *bound_to = &m->bound_to[live_node->tensor];
	bool same_shape =
		live->info.ndim == saved->ndim && tensor_same_extents(live->info.shape, saved->shape, saved->ndim);
	const int dtype = m->r->manifest->state->tensors[saved_node->tensor].info.dtype; /* after a cast */
	if (live->info.dtype != dtype)
		TRY(restore_add_row(rows,
		                    mem_printf("dtype: %s: saved %s, live %s", path, pawl_dtype_name(dtype),
		                               pawl_dtype_name(live->info.dtype)),
		                    err));
	if (!same_shape)
		TRY(add_shape_row(m, path, saved, &live->info, err));
	if (live->info.dtype != dtype || !same_shape || live->src.fill || *bound_to == saved_node->tensor)
		return 0;
	if (*bound_to != NO_TENSOR && live->local_nbytes > 0)
		return restore_add_row(rows,
		                       mem_printf("tied: %s: shares its memory with %s, but was saved apart", path,
		                                  m->r->manifest->tensors[*bound_to].name),
		                       err);
	*bound_to = saved_node->tensor;
	return pawl_restore_bind(m->r, saved_node->tensor, &live->src, err);
}

static bool
is_dropped(const struct matcher *m, const char *exact)
{
	for (size_t i = 0; i < m->dropped.n; i++) {
		size_t len = strlen(m->dropped.rows[i]);
		if (strncmp(exact, m->dropped.rows[i], len) == 0 && (exact[len] == '/' || !exact[len]))
			return true;
	}
	return false;
}

static int
visit_live(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct matcher *m = arg;
	struct restore_rows *rows = &m->r->report;
	if (is_container(leaf->node) || !walk_included(m->r->include, m->r->n_include, leaf->path))
		return 0;
	struct saved_leaf *saved = find_saved(m, leaf->exact);
	if (!saved && is_dropped(m, leaf->exact))
		return 0;
	if (!saved)
		return restore_add_row(rows, mem_printf("missing: %s", leaf->path), err);
	saved->matched = true;
	bool was_tensor = saved->node->type == PAWL_TENSOR, is_tensor = leaf->node->type == PAWL_TENSOR;
	if (was_tensor != is_tensor)
		return restore_add_row(rows,
		                       mem_printf("type: %s: saved a %s, live a %s", leaf->path,
		                                  was_tensor ? "tensor" : "value", is_tensor ? "tensor" : "value"),
		                       err);
	return is_tensor ? bind_leaf(m, leaf->path, saved->node, leaf->node, err) : 0;
}

/* One error for all rows: the first, and the number of the others. */
static int
report_mismatch(const struct pawl_restore *r, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const size_t room = sizeof err->message - 160; /* for the words around */
	size_t shown = 0;
	while (shown < r->report.n && shown < SHOWN_ROWS) {
		const char *row = r->report.rows[shown];
		if (text.len + strlen(row) + 2 > room)
			break;
		buf_printf(&text, "%s%s", shown ? "; " : "", row);
		shown++;
	}
	size_t left = r->report.n - shown;
	if (left > 0)
		return err_set(err, PAWL_EMISMATCH, "%s does not fit the state, %zu differences: %s%s... and %zu more",
		               r->info.name, r->report.n, buf_str(&text), shown ? "; " : "", left);
	return err_set(err, PAWL_EMISMATCH, "%s does not fit the state, %zu difference%s: %s", r->info.name,
	               r->report.n, r->report.n == 1 ? "" : "s", buf_str(&text));
}

static int
match_tree(struct matcher *m, struct pawl_error *err)
{
	struct pawl_restore *r = m->r;
	m->bound_to = mem_zalloc(m->live->n_tensors, sizeof *m->bound_to);
	m->glob_used = mem_zalloc(r->n_include, sizeof *m->glob_used);
	if (!m->bound_to || !m->glob_used)
		return err_nomem(err, m->r->info.name);
	for (size_t i = 0; i < m->live->n_tensors; i++)
		m->bound_to[i] = NO_TENSOR;
	TRY(walk_leaves(r->manifest->state->root, visit_saved, m, err));
	for (size_t i = 0; i < r->n_include; i++) {
		if (!m->glob_used[i])
			TRY(restore_add_row(&r->report,
			                    mem_printf("missing: no saved path matches '%s'", r->include[i]), err));
	}
	TRY(walk_leaves(m->live->root, visit_live, m, err));
	/* One of many ranks need not hold everything that all of them saved. */
	for (size_t i = 0; r->run->group.world == 1 && i < m->n; i++) {
		if (!m->leaves[i].matched)
			TRY(restore_add_row(&r->report, mem_printf("unexpected: %s", m->leaves[i].path), err));
	}
	return r->report.n > m->n_notices && !r->non_strict ? report_mismatch(r, err) : 0;
}

static int
match_live(struct pawl_restore *r, const struct pawl_state *live, struct pawl_error *err)
{
	PAWL_CLEAN(matcher_clear) struct matcher m = {.r = r, .live = live};
	TRY(restore_check_handle(r, err));
	const size_t before = r->n_bindings;
	if (!live)
		return err_set(err, PAWL_EUSAGE, "restore: expected a state, found NULL");
	restore_cut_rows(&r->report, r->n_unused_rules);
	int rc = match_tree(&m, err);
	if (rc < 0)
		restore_cut_bindings(r, before);
	return restore_note_reason(r, rc, err);
}

int
pawl_restore_match(struct pawl_restore *r, const struct pawl_state *live, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, match_live(r, live, &own), &own);
}
