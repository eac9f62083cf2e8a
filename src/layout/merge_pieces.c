/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge_pieces: see merge_pieces.h. Promises P11, P16.
 *
 * Sweeps along one dimension after the other. In dimension d the tensor is cut into slabs, each
 * crossed by the same boxes from end to end. Their boxes are swept along dimension d + 1. A slab
 * without boxes is a hole. If two boxes are left after the last dimension, they clash.
 */
#include "layout/merge_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define NAMED_RANGES 8
#define MAX_WORK ((uint64_t)20000000) /* boxes visited: well below a second */

/* ---- words */

static void
put_count(struct buf *out, uint32_t n)
{
	if (n >= 1000)
		buf_printf(out, "%u,%03u", n / 1000, n % 1000);
	else
		buf_printf(out, "%u", n);
}

void
merge_ranks_put(struct buf *out, const uint64_t *ranks, uint32_t world)
{
	uint32_t total = 0, named = 0, n = 0;

	for (uint32_t r = 0; r < world; r++)
		total += merge_ranks_have(ranks, r);
	buf_puts(out, total == 1 ? "rank " : "ranks ");
	for (uint32_t r = 0; r < world && n < NAMED_RANGES; r++) {
		uint32_t last = r;

		if (!merge_ranks_have(ranks, r))
			continue;
		while (last + 1 < world && merge_ranks_have(ranks, last + 1))
			last++;
		if (last < r + 2) /* two are a list, not a range */
			last = r;
		buf_printf(out, "%s%u", n++ ? ", " : "", r);
		if (last > r)
			buf_printf(out, " to %u", last);
		named += last - r + 1;
		r = last;
	}
	if (total > named) {
		buf_puts(out, " and ");
		put_count(out, total - named);
		buf_puts(out, " more");
	}
}

void
merge_put_shape(struct buf *out, int dtype, uint32_t ndim, const uint64_t *shape)
{
	buf_printf(out, "%s [", pawl_dtype_name(dtype));
	for (uint32_t d = 0; d < ndim; d++)
		buf_printf(out, "%s%llu", d ? ", " : "", (unsigned long long)shape[d]);
	buf_putc(out, ']');
}

/* ---- the sweep */

struct sweep {
	uint32_t ndim;
	const uint64_t *shape;
	const struct given_box *boxes;
	uint64_t work;
	uint64_t from[PAWL_MAX_DIMS],
		to[PAWL_MAX_DIMS]; /* the slab that is swept now; complete in the dimensions to come */
	bool has_clash, has_hole;
	uint32_t clash_ranks[2];
	uint64_t clash_from[PAWL_MAX_DIMS], clash_to[PAWL_MAX_DIMS];
	uint64_t hole_from[PAWL_MAX_DIMS], hole_to[PAWL_MAX_DIMS];
};

struct stretch {
	uint64_t begin, end; /* of a box in one dimension */
	size_t box;
};

static int
compare_stretches(const void *pa, const void *pb)
{
	const struct stretch *a = pa, *b = pb;

	if (a->begin != b->begin)
		return a->begin < b->begin ? -1 : 1;
	return a->box < b->box ? -1 : a->box > b->box;
}

static int
compare_boxes(const void *pa, const void *pb)
{
	const struct given_box *a = pa, *b = pb;

	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static void
note_hole(struct sweep *s, uint32_t d)
{
	for (uint32_t k = d; k < s->ndim; k++) {
		s->from[k] = 0;
		s->to[k] = s->shape[k];
	}
	memcpy(s->hole_from, s->from, sizeof(s->from));
	memcpy(s->hole_to, s->to, sizeof(s->to));
	s->has_hole = true;
}

/* All boxes of the set contain the slab. Two that clash also clash outside it. */
static void
note_clash(struct sweep *s, const size_t *set, size_t n)
{
	size_t first = set[0] < set[1] ? set[0] : set[1], second = set[0] + set[1] - first;

	for (size_t i = 2; i < n; i++) { /* keep the two lowest */
		if (set[i] < first) {
			second = first;
			first = set[i];
		} else if (set[i] < second) {
			second = set[i];
		}
	}
	const struct given_box *a = &s->boxes[first], *b = &s->boxes[second];

	s->clash_ranks[0] = a->rank;
	s->clash_ranks[1] = b->rank;
	for (uint32_t d = 0; d < s->ndim; d++) {
		uint64_t a_end = a->offsets[d] + a->lengths[d], b_end = b->offsets[d] + b->lengths[d];

		s->clash_from[d] = a->offsets[d] > b->offsets[d] ? a->offsets[d] : b->offsets[d];
		s->clash_to[d] = a_end < b_end ? a_end : b_end;
	}
	s->has_clash = true;
}

static bool
is_done(const struct sweep *s)
{
	return (s->has_clash && s->has_hole) || s->work > MAX_WORK;
}

/* Keeps the active ranges that reach beyond `at`, and adds those that begin there. */
static size_t
step_to(uint64_t at, struct stretch *active, size_t n_active, const struct stretch *all, size_t n, size_t *next)
{
	size_t kept = 0;

	for (size_t i = 0; i < n_active; i++)
		if (active[i].end > at)
			active[kept++] = active[i];
	while (*next < n && all[*next].begin <= at)
		active[kept++] = all[(*next)++];
	return kept;
}

/* set: the n boxes that contain the slab in the dimensions before d. */
static int
sweep_boxes(struct sweep *s, const size_t *set, size_t n, uint32_t d, struct pawl_error *err)
{
	if (n == 0 && !s->has_hole)
		note_hole(s, d);
	if (d == s->ndim && n > 1 && !s->has_clash)
		note_clash(s, set, n);
	if (n == 0 || d == s->ndim)
		return 0;
	PAWL_FREE struct stretch *all = mem_zalloc(n, sizeof(*all));
	PAWL_FREE struct stretch *active = mem_zalloc(n, sizeof(*active));
	PAWL_FREE size_t *inner = mem_zalloc(n, sizeof(*inner));
	size_t n_active = 0, next = 0;

	if (!all || !active || !inner)
		return err_nomem(err, "save");
	for (size_t i = 0; i < n; i++) {
		const struct given_box *b = &s->boxes[set[i]];

		all[i] = (struct stretch){b->offsets[d], b->offsets[d] + b->lengths[d], set[i]};
	}
	qsort(all, n, sizeof(*all), compare_stretches);
	for (uint64_t at = 0; at < s->shape[d] && !is_done(s); at = s->to[d]) {
		uint64_t until;

		n_active = step_to(at, active, n_active, all, n, &next);
		until = next < n ? all[next].begin : s->shape[d];
		for (size_t i = 0; i < n_active; i++) {
			until = active[i].end < until ? active[i].end : until;
			inner[i] = active[i].box;
		}
		s->from[d] = at;
		s->to[d] = until;
		s->work += n_active + 1;
		TRY(sweep_boxes(s, inner, n_active, d + 1, err));
	}
	return 0;
}

static void
put_box(struct buf *out, uint32_t ndim, const uint64_t *shape, const uint64_t *from, const uint64_t *to)
{
	bool is_all = true;

	for (uint32_t d = 0; d < ndim; d++)
		is_all = is_all && from[d] == 0 && to[d] == shape[d];
	if (is_all) {
		buf_puts(out, "all of it");
		return;
	}
	buf_putc(out, '[');
	for (uint32_t d = 0; d < ndim; d++)
		buf_printf(out, "%s%llu:%llu", d ? ", " : "", (unsigned long long)from[d], (unsigned long long)to[d]);
	buf_putc(out, ']');
}

int
merge_put_fault(struct buf *out, uint32_t ndim, const uint64_t *shape, struct given_box *boxes, size_t n,
                struct pawl_error *err)
{
	struct sweep s = {.ndim = ndim, .shape = shape, .boxes = boxes};
	PAWL_FREE size_t *set = mem_zalloc(n + 1, sizeof(*set));

	if (!set)
		return err_nomem(err, "save");
	for (size_t i = 0; i < n; i++)
		set[i] = i;
	if (n > 1)
		qsort(boxes, n, sizeof(*boxes), compare_boxes);
	TRY(sweep_boxes(&s, set, n, 0, err));
	if (s.has_clash) {
		buf_printf(out, "ranks %u and %u both give ", s.clash_ranks[0], s.clash_ranks[1]);
		put_box(out, ndim, shape, s.clash_from, s.clash_to);
	}
	if (s.has_hole) {
		buf_puts(out, s.has_clash ? "; no rank gives " : "no rank gives ");
		put_box(out, ndim, shape, s.hole_from, s.hole_to);
	}
	if (!s.has_clash && !s.has_hole)
		buf_printf(out, "its %zu pieces overlap or leave holes", n);
	return 0;
}
