/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard: see reshard.h.
 *
 * Three passes. Overlap every piece with every box (moves). List the file ranges that the moves
 * touch (spans). Sort the spans and cut their union into units. Except for the sort, time is linear
 * in pieces and touched blocks. A move of a billion tiny runs costs one step per block that it
 * touches.
 */
#include "layout/reshard.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "layout/reshard_strided.h"

struct span {
	uint32_t file, move;
	uint64_t begin, end;
};

struct planner {
	const struct manifest *m;
	const struct reshard_binding *bindings;
	struct reshard_plan *plan;
	size_t cap_moves;
	struct span *spans;
	size_t n_spans, cap_spans;
	size_t cap_units;
};

static void
planner_clear(struct planner *p)
{
	mem_free(p->spans);
	reshard_free(p->plan);
}

void
reshard_free(struct reshard_plan *plan)
{
	if (!plan)
		return;
	mem_free(plan->moves);
	mem_free(plan->parts);
	mem_free(plan->units);
	bump_clear(&plan->memory);
	mem_free(plan);
}

/* ---- runs of a move ---- */

/* Puts the cursor on the first run that ends after `offset`, measured by `steps` from `base`. */
static void
seek_by(struct reshard_cursor *c, const uint64_t *steps, uint64_t base, uint64_t offset)
{
	const struct reshard_move *m = c->move;
	uint64_t left = offset > base ? offset - base : 0;
	c->src = m->src;
	c->dst = m->dst;
	c->done = false;
	for (uint32_t d = 0; d < m->n_outer; d++) {
		uint64_t i = left / steps[d];
		if (i > m->counts[d] - 1)
			i = m->counts[d] - 1;
		c->index[d] = i;
		left -= i * steps[d];
		c->src += i * m->src_steps[d];
		c->dst += i * m->dst_steps[d];
	}
}

/* Advances to the next run of the grid. */
static void
advance_run(struct reshard_cursor *c)
{
	const struct reshard_move *m = c->move;
	for (uint32_t d = m->n_outer; d-- > 0;) {
		c->src += m->src_steps[d];
		c->dst += m->dst_steps[d];
		if (++c->index[d] < m->counts[d])
			return;
		c->src -= m->counts[d] * m->src_steps[d];
		c->dst -= m->counts[d] * m->dst_steps[d];
		c->index[d] = 0;
	}
	c->done = true;
}

void
reshard_seek(struct reshard_cursor *c, const struct reshard_move *move, uint64_t begin, uint64_t end)
{
	c->move = move;
	c->begin = begin > move->src_begin ? begin : move->src_begin;
	c->end = end < move->src_end ? end : move->src_end;
	seek_by(c, move->src_steps, move->src, c->begin);
	if (c->src + move->run_bytes <= c->begin)
		advance_run(c);
}

bool
reshard_next(struct reshard_cursor *c, struct reshard_run *ret)
{
	const struct reshard_move *m = c->move;
	if (c->done || c->begin >= c->end || c->src >= c->end)
		return false;
	uint64_t begin = c->src > c->begin ? c->src : c->begin;
	uint64_t end = c->src + m->run_bytes < c->end ? c->src + m->run_bytes : c->end;
	uint64_t dst = c->dst + (begin - c->src);
	if (m->dst_end > 0) {
		uint64_t before = dst < m->dst_base ? m->dst_base - dst : 0;
		uint64_t behind = dst + (end - begin) > m->dst_end ? dst + (end - begin) - m->dst_end : 0;
		begin += before;
		dst += before;
		end -= behind;
	}
	ret->src = begin;
	ret->dst = dst - m->dst_base;
	ret->nbytes = end - begin;
	advance_run(c);
	return true;
}

/* ---- moves ---- */

/* Bytes of a number of elements; must be a whole number. */
static int
element_bytes(uint64_t n, unsigned bits, const char *name, uint64_t *ret, struct pawl_error *err)
{
	uint64_t total;
	if (!mem_mul_ok(n, bits, &total) && (bits % 8 != 0 || !mem_mul_ok(n, bits / 8, ret)))
		return err_set(err, PAWL_ELIMIT, "tensor %s is too large", name);
	if (bits % 8 == 0) {
		*ret = n * (bits / 8);
		return 0;
	}
	if (total % 8 != 0)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "tensor %s: this sharding splits elements of %u bits inside a byte", name, bits);
	*ret = total / 8;
	return 0;
}

/* false if they do not overlap. */
static bool
find_overlap(uint32_t ndim, const struct manifest_piece *piece, const struct pawl_tensor *box,
             struct reshard_overlap *o)
{
	uint64_t src_stride = 1, dst_stride = 1;
	bool joined = true; /* all inner dimensions are complete in both: the run still grows */
	uint32_t at = PAWL_MAX_DIMS;
	memset(o, 0, offsetof(struct reshard_overlap, counts));
	o->run = 1;
	for (uint32_t d = ndim; d-- > 0;) {
		uint64_t piece_from = piece->offsets[d], piece_n = piece->lengths[d];
		uint64_t box_from = box->offsets ? box->offsets[d] : 0, box_n = box->shape[d];
		uint64_t from = piece_from > box_from ? piece_from : box_from;
		uint64_t to = piece_from + piece_n < box_from + box_n ? piece_from + piece_n : box_from + box_n;
		if (from >= to)
			return false;
		o->src += (from - piece_from) * src_stride;
		o->dst += (from - box_from) * dst_stride;
		if (joined) {
			o->run *= to - from;
			joined = to - from == piece_n && to - from == box_n;
		} else if (to - from > 1) {
			at--;
			o->counts[at] = to - from;
			o->src_steps[at] = src_stride;
			o->dst_steps[at] = dst_stride;
		}
		src_stride *= piece_n;
		dst_stride *= box_n;
	}
	o->n_outer = PAWL_MAX_DIMS - at;
	return true;
}

static int
fill_move(struct planner *p, const struct manifest_tensor *t, const struct reshard_overlap *o,
          struct reshard_move *move, struct pawl_error *err)
{
	unsigned bits = pawl_dtype_bits(t->dtype);
	TRY(element_bytes(o->run, bits, t->name, &move->run_bytes, err));
	TRY(element_bytes(o->src, bits, t->name, &move->src, err));
	TRY(element_bytes(o->dst, bits, t->name, &move->dst, err));
	move->n_outer = o->n_outer;
	if (o->n_outer == 0)
		return 0;
	uint64_t *memory = bump_array(&p->plan->memory, (uint64_t)o->n_outer * 3, sizeof *memory);
	if (!memory)
		return err_nomem(err, t->name);
	const uint32_t first = PAWL_MAX_DIMS - o->n_outer;
	for (uint32_t d = 0; d < o->n_outer; d++) {
		memory[d] = o->counts[first + d];
		TRY(element_bytes(o->src_steps[first + d], bits, t->name, &memory[o->n_outer + d], err));
		TRY(element_bytes(o->dst_steps[first + d], bits, t->name, &memory[2 * o->n_outer + d], err));
	}
	move->counts = memory;
	move->src_steps = memory + o->n_outer;
	move->dst_steps = memory + 2 * o->n_outer;
	return 0;
}

/* Cuts a move to the bytes [begin, end) of the destination. */
static void
cut_move(struct reshard_move *move, uint64_t begin, uint64_t end)
{
	struct reshard_cursor c = {.move = move};
	uint64_t last = move->src + move->run_bytes;
	for (uint32_t d = 0; d < move->n_outer; d++)
		last += (move->counts[d] - 1) * move->src_steps[d];
	move->src_begin = move->src;
	move->src_end = last;
	move->dst_base = begin;
	if (begin > 0) {
		seek_by(&c, move->dst_steps, move->dst, begin);
		if (c.dst + move->run_bytes <= begin)
			advance_run(&c);
		move->src_begin = c.done ? last : c.src + (begin > c.dst ? begin - c.dst : 0);
	}
	if (end > 0) {
		seek_by(&c, move->dst_steps, move->dst, end - 1);
		if (c.dst + move->run_bytes < end)
			advance_run(&c);
		if (!c.done)
			move->src_end = c.src + (end > c.dst ? end - c.dst : 0);
	}
}

static int
put_move(struct planner *p, const struct reshard_move *move, struct pawl_error *err)
{
	if (p->plan->n_moves >= UINT32_MAX)
		return err_set(err, PAWL_ELIMIT, "more than %u overlaps of pieces and destinations", UINT32_MAX);
	if (!array_reserve(p->plan->moves, p->cap_moves, p->plan->n_moves + 1))
		return err_nomem(err, "plan of a restore");
	p->plan->moves[p->plan->n_moves++] = *move;
	return 0;
}

/* ---- pieces with strides ---- */

static int
add_strided(struct planner *p, uint32_t binding, const struct manifest_tensor *t, const struct manifest_piece *piece,
            struct pawl_error *err)
{
	const struct reshard_binding *b = &p->bindings[binding];
	const uint64_t item = pawl_dtype_bits(t->dtype) / 8, *shape = b->dst.shape;
	uint64_t at[PAWL_MAX_DIMS], n[PAWL_MAX_DIMS], begin = b->begin / item, end = 1;
	for (uint32_t d = 0; d < t->ndim; d++)
		end *= shape[d];
	if (b->end > 0)
		end = (b->end + item - 1) / item;
	while (begin < end) {
		struct reshard_move move = {
			.binding = binding, .file = piece->file, .dst_base = b->begin, .dst_end = b->end};
		struct reshard_overlap o;
		reshard_next_box(t->ndim, shape, &begin, end, at, n);
		if (!reshard_find_strided(t->ndim, piece, &b->dst, at, n, &o))
			continue;
		TRY(fill_move(p, t, &o, &move, err));
		move.src += piece->begin;
		move.src_begin = move.src;
		move.src_end = move.src + move.run_bytes;
		for (uint32_t d = 0; d < move.n_outer; d++)
			move.src_end += (move.counts[d] - 1) * move.src_steps[d];
		TRY(put_move(p, &move, err));
	}
	return 0;
}

static int
add_move(struct planner *p, uint32_t binding, const struct manifest_tensor *t, const struct manifest_piece *piece,
         struct pawl_error *err)
{
	const struct reshard_binding *b = &p->bindings[binding];
	struct reshard_overlap o;
	struct reshard_move move = {.binding = binding, .file = piece->file};
	uint64_t piece_end;
	if (!piece->strides && !find_overlap(t->ndim, piece, &b->dst, &o))
		return 0;
	if (piece->file >= p->m->n_files || !mem_add_ok(piece->begin, piece->nbytes, &piece_end) ||
	    piece_end > manifest_plain_bytes(&p->m->files[piece->file]))
		return err_set(err, PAWL_ECORRUPT, "tensor %s: a piece is outside its file", t->name);
	if (piece->strides)
		return add_strided(p, binding, t, piece, err);
	TRY(fill_move(p, t, &o, &move, err));
	move.src += piece->begin;
	cut_move(&move, b->begin, b->end);
	if (move.src_begin >= move.src_end)
		return 0;
	return put_move(p, &move, err);
}

static int
check_box(const struct manifest_tensor *t, const struct reshard_binding *b, struct pawl_error *err)
{
	if (b->dst.ndim != t->ndim)
		return err_set(err, PAWL_EUSAGE, "tensor %s has %u dimensions, the destination %u", t->name, t->ndim,
		               b->dst.ndim);
	for (uint32_t d = 0; d < t->ndim; d++) {
		uint64_t from = b->dst.offsets ? b->dst.offsets[d] : 0, end;
		if (!mem_add_ok(from, b->dst.shape[d], &end) || end > t->shape[d])
			return err_set(err, PAWL_EUSAGE,
			               "tensor %s: the destination is outside it in dimension %u (%" PRIu64
			               " elements from %" PRIu64 " of %" PRIu64 ")",
			               t->name, d, b->dst.shape[d], from, t->shape[d]);
	}
	if (b->end > 0 && (!b->contiguous || b->begin > b->end))
		return err_set(err, PAWL_EUSAGE, "tensor %s: a range of bytes needs contiguous memory", t->name);
	return 0;
}

static int
make_moves(struct planner *p, size_t n, struct pawl_error *err)
{
	if (n > UINT32_MAX)
		return err_set(err, PAWL_ELIMIT, "more than %u destinations", UINT32_MAX);
	for (size_t i = 0; i < n; i++) {
		if (p->bindings[i].tensor >= p->m->n_tensors)
			return err_set(err, PAWL_EUSAGE, "there is no tensor %zu: the checkpoint has %" PRIu64,
			               p->bindings[i].tensor, p->m->n_tensors);
		const struct manifest_tensor *t = &p->m->tensors[p->bindings[i].tensor];
		TRY(check_box(t, &p->bindings[i], err));
		for (size_t k = 0; k < t->n_pieces; k++)
			TRY(add_move(p, (uint32_t)i, t, &t->pieces[k], err));
	}
	return 0;
}

/* ---- spans ---- */

static int
add_span(struct planner *p, uint32_t file, uint32_t move, uint64_t begin, uint64_t end, struct pawl_error *err)
{
	if (!array_reserve(p->spans, p->cap_spans, p->n_spans + 1))
		return err_nomem(err, "plan of a restore");
	p->spans[p->n_spans++] = (struct span){file, move, begin, end};
	return 0;
}

/* Adds the ranges that a grid of runs touches. Runs whose blocks meet become one range. */
static int
add_grid_spans(struct planner *p, uint32_t index, struct pawl_error *err)
{
	const struct reshard_move *move = &p->plan->moves[index];
	const uint64_t block = p->m->files[move->file].block_bytes;
	struct reshard_cursor c;
	struct reshard_run run;
	bool open = false;
	uint64_t begin = 0, end = 0, covered = move->src_begin; /* covered: end of the blocks in the span so far */
	for (;;) {
		reshard_seek(&c, move, covered, move->src_end);
		if (!reshard_next(&c, &run))
			break;
		if (open && run.src / block > covered / block) {
			TRY(add_span(p, move->file, index, begin, end, err));
			open = false;
		}
		if (!open)
			begin = run.src;
		open = true;
		uint64_t run_end = run.src + run.nbytes, past = (run_end - 1) / block + 1;
		end = mem_mul_ok(past, block, &covered) && covered < move->src_end ? covered : move->src_end;
		covered = end;
	}
	return open ? add_span(p, move->file, index, begin, end, err) : 0;
}

static int
compare_spans(const void *a, const void *b)
{
	const struct span *x = a, *y = b;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->move < y->move ? -1 : x->move > y->move;
}

static int
make_spans(struct planner *p, struct pawl_error *err)
{
	bool sorted = true;
	for (uint32_t i = 0; i < p->plan->n_moves; i++) {
		const struct reshard_move *move = &p->plan->moves[i];
		if (p->m->files[move->file].block_bytes == 0)
			return err_set(err, PAWL_ECORRUPT, "file %s has blocks of 0 bytes",
			               p->m->files[move->file].name);
		if (move->n_outer == 0)
			TRY(add_span(p, move->file, i, move->src_begin, move->src_end, err));
		else
			TRY(add_grid_spans(p, i, err));
	}
	for (size_t i = 1; i < p->n_spans && sorted; i++)
		sorted = compare_spans(&p->spans[i - 1], &p->spans[i]) <= 0;
	if (!sorted)
		qsort(p->spans, p->n_spans, sizeof *p->spans, compare_spans);
	return 0;
}

/* ---- units ---- */

/* Cuts the range [begin, end) of a file, already rounded to blocks, into units. */
static int
add_units(struct planner *p, uint32_t file, uint64_t begin, uint64_t end, uint64_t unit_bytes, struct pawl_error *err)
{
	const uint64_t block = p->m->files[file].block_bytes;
	const uint64_t step = unit_bytes > block ? unit_bytes - unit_bytes % block : block;
	while (begin < end) {
		uint64_t unit_end = end - begin > step ? begin + step : end;
		if (!array_reserve(p->plan->units, p->cap_units, p->plan->n_units + 1))
			return err_nomem(err, "plan of a restore");
		p->plan->units[p->plan->n_units++] =
			(struct reshard_unit){.file = file, .begin = begin, .end = unit_end};
		p->plan->nbytes += unit_end - begin;
		begin = unit_end;
	}
	return 0;
}

static int
make_units(struct planner *p, uint64_t unit_bytes, struct pawl_error *err)
{
	uint64_t begin = 0, end = 0;
	uint32_t file = 0;
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct span *s = &p->spans[i];
		const struct manifest_file *f = &p->m->files[s->file];
		uint64_t from = s->begin - s->begin % f->block_bytes, to;
		if (!mem_mul_ok((s->end - 1) / f->block_bytes + 1, f->block_bytes, &to) || to > manifest_plain_bytes(f))
			to = manifest_plain_bytes(f);
		if (s->file == file && begin < end && from <= end) {
			end = to > end ? to : end;
			continue;
		}
		TRY(add_units(p, file, begin, end, unit_bytes, err));
		file = s->file;
		begin = from;
		end = to;
	}
	return add_units(p, file, begin, end, unit_bytes, err);
}

/* For every span and unit that overlap: counts the parts, or fills them in. */
static void
place_parts(struct planner *p, bool fill)
{
	struct reshard_plan *plan = p->plan;
	size_t first = 0;
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct span *s = &p->spans[i];
		while (plan->units[first].file < s->file || plan->units[first].end <= s->begin)
			first++;
		for (size_t u = first; u < plan->n_units; u++) {
			struct reshard_unit *unit = &plan->units[u];
			if (unit->file != s->file || unit->begin >= s->end)
				break;
			if (fill) {
				struct reshard_part *part = &plan->parts[unit->first_part + unit->n_parts];
				part->move = s->move;
				part->begin = s->begin > unit->begin ? s->begin : unit->begin;
				part->end = s->end < unit->end ? s->end : unit->end;
			}
			unit->n_parts++;
		}
	}
}

static int
make_parts(struct planner *p, struct pawl_error *err)
{
	struct reshard_plan *plan = p->plan;
	place_parts(p, false);
	for (size_t u = 0; u < plan->n_units; u++) {
		plan->units[u].first_part = plan->n_parts;
		plan->n_parts += plan->units[u].n_parts;
		plan->units[u].n_parts = 0;
	}
	plan->parts = mem_zalloc(plan->n_parts, sizeof *plan->parts);
	if (!plan->parts)
		return err_nomem(err, "plan of a restore");
	place_parts(p, true);
	return 0;
}

int
reshard_plan(const struct manifest *m, const struct reshard_binding *bindings, size_t n, uint64_t unit_bytes,
             struct reshard_plan **ret, struct pawl_error *err)
{
	PAWL_CLEAN(planner_clear) struct planner p = {.m = m, .bindings = bindings};
	p.plan = mem_zalloc(1, sizeof *p.plan);
	if (!p.plan)
		return err_nomem(err, "plan of a restore");
	TRY(make_moves(&p, n, err));
	TRY(make_spans(&p, err));
	if (p.n_spans > 0) {
		TRY(make_units(&p, unit_bytes, err));
		TRY(make_parts(&p, err));
	}
	*ret = steal(&p.plan);
	return 0;
}

int
reshard_plan_all(const struct manifest *m, uint64_t unit_bytes, struct reshard_plan **ret, struct pawl_error *err)
{
	PAWL_CLEAN(planner_clear) struct planner p = {.m = m};
	p.plan = mem_zalloc(1, sizeof *p.plan);
	if (!p.plan)
		return err_nomem(err, "plan of a restore");
	for (uint32_t f = 0; f < m->n_files; f++) {
		if (m->files[f].block_bytes == 0)
			return err_set(err, PAWL_ECORRUPT, "file %s has blocks of 0 bytes", m->files[f].name);
		if (!m->files[f].memory)
			TRY(add_units(&p, f, 0, manifest_plain_bytes(&m->files[f]), unit_bytes, err));
	}
	*ret = steal(&p.plan);
	return 0;
}
