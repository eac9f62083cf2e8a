/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_write: see convert.h.
 *
 *   pieces ──> a round: what fits a slab ──> fetch its tensors ──> cast ──> checksum ──> append
 *
 * Memory: three slabs and the read buffers (P16). Data with block checksums is checked by fetch as
 * it is read. Ranges with their own CRC-32 are longer than a round, so they are checked here as
 * they pass. A range that is not read in order (views, shared storages) is read once more at the
 * end. Only then do files get their names (P1).
 */
#include "jobs/convert/convert.h"

#include <string.h>

#include "base/crc.h"
#include "base/err.h"
#include "base/fd.h"
#include "layout/cast.h"
#include "restore/restore_gone.h"
#include "store/outfile.h"

#define RING_BYTES (32u << 20)
#define MAX_BINDINGS 4096u           /* of a round */
#define EDGE_BYTES ((uint64_t)65536) /* of a range, around its tensor: read separately */

/* A part of a tensor in a round. */
struct part {
	size_t item;
	uint64_t begin, end; /* of its contents as read */
	char *raw, *out;     /* equal if nothing is cast */
};

/* The start or end of a checksummed range of the file, or the place of a CRC. */
struct place {
	enum file_piece_kind kind;
	size_t item;
	uint64_t at;     /* in the slab */
	uint64_t nbytes; /* of the range that begins */
};

struct round {
	struct part parts[MAX_BINDINGS];
	struct reshard_binding bindings[MAX_BINDINGS];
	struct place marks[2 * MAX_BINDINGS];
	size_t n_parts, n_marks;
	char *out;
	uint64_t out_room, out_used, raw_used;
};

struct writer {
	struct convert_job *c;
	const struct piece_plan *plan;
	size_t piece;
	uint64_t piece_at; /* its bytes written so far */
	struct round *round;
	size_t summing;                 /* the item whose range is in progress; SIZE_MAX = none */
	uint64_t stretch, stretch_left; /* its bytes; bytes left */
};

static const struct manifest_tensor *
tensor_of(const struct convert_job *c, size_t item)
{
	return &c->r->manifest->tensors[c->items[item].tensor];
}

/* ---- source ranges with a CRC ---- */

/* The member that contains an offset of a file, or SIZE_MAX. */
static size_t
find_member(const struct manifest *m, uint32_t file, uint64_t at)
{
	size_t i = manifest_find_member(m, file, at);

	return i < m->n_members && m->members[i].file == file && m->members[i].begin <= at ? i : SIZE_MAX;
}

/* True if the tensor is read in the order of the file, with little of the member around it. */
static bool
goes_through(const struct manifest_tensor *t, const struct manifest_member *member)
{
	const struct manifest_piece *p = &t->pieces[0];

	return t->n_pieces == 1 && !p->strides && p->begin >= member->begin &&
	       p->begin + p->nbytes <= member->begin + member->nbytes && member->nbytes - p->nbytes <= EDGE_BYTES;
}

static void
mark_members(struct convert_job *c)
{
	const struct manifest *m = c->r->manifest;

	for (size_t i = 0; i < c->n_items; i++) {
		const struct manifest_tensor *t = tensor_of(c, i);
		for (size_t k = 0; k < t->n_pieces; k++) {
			size_t at =
				t->pieces[k].nbytes ? find_member(m, t->pieces[k].file, t->pieces[k].begin) : SIZE_MAX;
			if (at == SIZE_MAX)
				continue;
			struct convert_member *member = &c->members[at];
			if (!member->wanted)
				*member = (struct convert_member){.member = at, .item = SIZE_MAX, .wanted = true};
			if (member->item == SIZE_MAX && goes_through(t, &m->members[at]))
				member->item = i;
		}
	}
}

static struct convert_member *
member_of_item(const struct convert_job *c, size_t item)
{
	const struct manifest_tensor *t = tensor_of(c, item);

	if (!c->members || t->n_pieces != 1 || t->nbytes == 0)
		return NULL;
	size_t at = find_member(c->r->manifest, t->pieces[0].file, t->pieces[0].begin);
	return at != SIZE_MAX && c->members[at].item == item ? &c->members[at] : NULL;
}

static int
check_member(const struct convert_job *c, const struct convert_member *member, struct pawl_error *err)
{
	const struct manifest *m = c->r->manifest;
	const struct manifest_member *row = &m->members[member->member];
	const uint32_t found = crc32_whole(member->parts, row->nbytes);
	PAWL_CLEAN(buf_clear) struct buf tensors = {0};

	if (found == row->crc)
		return 0;
	fetch_tensors_at(m, row->file, row->begin, row->begin + row->nbytes, &tensors);
	return err_set(err, PAWL_ECORRUPT,
	               "%s: %s: bytes %llu to %llu (tensor %s): not what was written: CRC %08x expected, %08x found",
	               c->r->info.name, m->files[row->file].name, (unsigned long long)row->begin,
	               (unsigned long long)(row->begin + row->nbytes), buf_str(&tensors), row->crc, found);
}

/* Reads [begin, end) of a file only for the CRC of a member. */
static int
sum_range(struct convert_job *c, struct convert_member *member, uint64_t begin, uint64_t end, struct pawl_error *err)
{
	struct store *store = c->r->run->home.reads;
	PAWL_CLEAN(store_opened_close) struct store_opened f = {.store = store};
	const struct manifest_member *row = &c->r->manifest->members[member->member];
	const char *name = c->r->manifest->files[row->file].name;
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	uint64_t nbytes;

	if (begin == end)
		return 0;
	buf_printf(&key, "%s%s%s", c->r->folder, c->r->folder[0] ? "/" : "", name);
	TRY(buf_check(&key, name, err));
	TRY(store_open_reader(store, buf_str(&key), &f.reader, &nbytes, err));
	for (uint64_t at = begin; at < end;) {
		const size_t n = end - at < CONVERT_SLAB_BYTES ? (size_t)(end - at) : (size_t)CONVERT_SLAB_BYTES;
		TRY(store_read(store, f.reader, at, c->raw, n, err));
		at += n;
		member->parts ^= crc32_part(c->raw, n, row->begin + row->nbytes - at);
	}
	return 0;
}

/* Adds a part of a tensor to its member's CRC. */
static void
sum_part(struct convert_job *c, const struct part *p)
{
	struct convert_member *member = member_of_item(c, p->item);
	const struct manifest_tensor *t = tensor_of(c, p->item);

	if (!member)
		return;
	const struct manifest_member *row = &c->r->manifest->members[member->member];
	const uint64_t end = row->begin + row->nbytes, base = t->pieces[0].begin;
	member->parts ^= crc32_part(p->raw, (size_t)(p->end - p->begin), end - (base + p->end));
	member->done = p->end == t->nbytes;
}

/* ---- a round ---- */

static size_t
size_of(int dtype)
{
	return pawl_dtype_bits(dtype) / 8;
}

/* Takes as much of a tensor as fits; false: nothing fits. */
static bool
take_tensor(struct writer *w, const struct file_piece *piece)
{
	struct convert_job *c = w->c;
	struct round *r = w->round;
	const int from = tensor_of(c, piece->tensor)->dtype, to = c->items[piece->tensor].dtype;
	const uint64_t left = piece->nbytes - w->piece_at, out_room = r->out_room - r->out_used;
	struct part *p = &r->parts[r->n_parts];

	if (left == 0) {
		w->piece++;
		w->piece_at = 0;
		return true;
	}
	if (r->n_parts == MAX_BINDINGS)
		return false;
	*p = (struct part){.item = piece->tensor, .out = r->out + r->out_used, .raw = r->out + r->out_used};
	uint64_t take = left < out_room ? left : out_room;
	if (from == to) {
		p->begin = w->piece_at;
		p->end = p->begin + take;
	} else {
		uint64_t n = take / size_of(to), raw_room = (CONVERT_SLAB_BYTES - r->raw_used) / size_of(from);
		n = n < raw_room ? n : raw_room;
		take = n * size_of(to);
		p->begin = w->piece_at / size_of(to) * size_of(from);
		p->end = p->begin + n * size_of(from);
		p->raw = c->raw + r->raw_used;
		r->raw_used += n * size_of(from);
	}
	if (take == 0)
		return false;
	r->n_parts++;
	r->out_used += take;
	w->piece_at += take;
	return true;
}

static bool
take_bytes(struct writer *w, const struct file_piece *piece)
{
	struct round *r = w->round;
	const uint64_t left = piece->nbytes - w->piece_at, room = r->out_room - r->out_used;
	const uint64_t take = left < room ? left : room;

	if (take > 0)
		memcpy(r->out + r->out_used, w->plan->bytes.ptr + piece->bytes_at + w->piece_at, (size_t)take);
	r->out_used += take;
	w->piece_at += take;
	if (w->piece_at < piece->nbytes)
		return false;
	w->piece++;
	w->piece_at = 0;
	return true;
}

static bool
take_mark(struct writer *w, const struct file_piece *piece)
{
	struct round *r = w->round;

	if (r->n_marks == 2 * MAX_BINDINGS || piece->nbytes > r->out_room - r->out_used)
		return false;
	struct place *mark = &r->marks[r->n_marks++];
	*mark = (struct place){.kind = piece->kind, .item = piece->tensor, .at = r->out_used};
	for (const struct file_piece *p = piece; piece->kind == FILE_BEGIN && p->kind != FILE_END; p++)
		mark->nbytes += p->nbytes;
	r->out_used += piece->nbytes;
	w->piece++;
	return true;
}

static void
fill_round(struct writer *w)
{
	bool more = true;

	w->round->n_parts = w->round->n_marks = 0;
	w->round->out_used = w->round->raw_used = 0;
	while (more && w->piece < w->plan->pieces.n) {
		const struct file_piece *piece = &w->plan->pieces.items[w->piece];
		if (piece->kind == FILE_TENSOR)
			more = take_tensor(w, piece);
		else if (piece->kind == FILE_BYTES)
			more = take_bytes(w, piece);
		else
			more = take_mark(w, piece);
	}
}

static int
fetch_round(struct writer *w, struct pawl_error *err)
{
	PAWL_CLEAN(reshard_free_clean) struct reshard_plan *plan = NULL;
	struct convert_job *c = w->c;
	struct round *r = w->round;
	const struct manifest *m = c->r->manifest;
	uint64_t nbytes = 0;

	for (size_t i = 0; i < r->n_parts; i++) {
		const struct part *p = &r->parts[i];
		const struct manifest_tensor *t = tensor_of(c, p->item);
		const struct pawl_tensor dst = {
			.size = sizeof dst, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape, .data = p->raw};
		r->bindings[i] = (struct reshard_binding){.tensor = c->items[p->item].tensor,
		                                          .dst = dst,
		                                          .contiguous = true,
		                                          .begin = p->begin,
		                                          .end = p->end};
		nbytes += p->end - p->begin;
	}
	if (r->n_parts == 0)
		return 0;
	TRY(reshard_plan(m, r->bindings, r->n_parts, fetch_unit_bytes(c->fetch, nbytes), &plan, err));
	struct fetch_job job = {
		.name = c->r->info.name, .folder = c->r->folder, .manifest = m, .plan = plan, .bindings = r->bindings};
	TRY(restore_fetch_run(c->r, c->fetch, &job, err));
	for (size_t i = 0; i < r->n_parts; i++) {
		const struct part *p = &r->parts[i];
		const int from = tensor_of(c, p->item)->dtype, to = c->items[p->item].dtype;
		sum_part(c, p);
		if (p->raw != p->out)
			cast_floats(from, p->raw, to, p->out, (size_t)(p->end - p->begin) / size_of(from));
	}
	return 0;
}

/* The CRCs of the file, combined from consecutive parts, so that the result is known where the
 * range ends. */
static void
sum_round(struct writer *w)
{
	struct convert_job *c = w->c;
	struct round *r = w->round;
	uint64_t at = 0;

	for (size_t i = 0; i <= r->n_marks; i++) {
		const struct place *mark = i < r->n_marks ? &r->marks[i] : NULL;
		const uint64_t end = mark ? mark->at : r->out_used;
		if (w->summing != SIZE_MAX) {
			w->stretch_left -= end - at;
			c->item_crcs[w->summing] ^= crc32_part(r->out + at, (size_t)(end - at), w->stretch_left);
		}
		at = end;
		if (!mark)
			break;
		if (mark->kind == FILE_BEGIN) {
			w->summing = mark->item;
			w->stretch = w->stretch_left = mark->nbytes;
		} else if (mark->kind == FILE_END) {
			c->item_crcs[w->summing] = crc32_whole(c->item_crcs[w->summing], w->stretch);
			w->summing = SIZE_MAX;
		} else {
			for (unsigned k = 0; k < 4; k++)
				r->out[end + k] = (char)(c->item_crcs[mark->item] >> (8 * k) & 0xff);
		}
	}
}

/* ---- all files ---- */

int
convert_write_begin(struct convert_job *c, struct pawl_error *err)
{
	const struct manifest *m = c->r->manifest;

	TRY(fetch_new(c->r->run->home.reads, c->r->run->opts.io.threads, RING_BYTES, &c->fetch, err));
	c->raw = mem_alloc(CONVERT_SLAB_BYTES);
	c->item_crcs = mem_zalloc(c->n_items, sizeof *c->item_crcs);
	c->members = m->n_members ? mem_zalloc(m->n_members, sizeof *c->members) : NULL;
	if (!c->raw || !c->item_crcs || (m->n_members && !c->members))
		return err_nomem(err, "convert");
	if (c->members)
		mark_members(c);
	return 0;
}

static int
write_rounds(struct writer *w, struct outfile *output, struct pawl_error *err)
{
	struct convert_job *c = w->c;
	struct round *round = w->round;

	while (w->piece < w->plan->pieces.n) {
		if (c->meter && __atomic_load_n(&c->meter->cancel, __ATOMIC_RELAXED))
			return err_set(err, PAWL_ECANCELLED, "cancelled");
		outfile_room(output, &round->out, &round->out_room);
		fill_round(w);
		TRY(fetch_round(w, err));
		sum_round(w);
		TRY(outfile_put(output, round->out_used, err));
		for (size_t i = 0; c->meter && i < round->n_parts; i++)
			__atomic_fetch_add(&c->meter->done_bytes, round->parts[i].end - round->parts[i].begin,
			                   __ATOMIC_RELAXED);
	}
	return 0;
}

int
convert_write(struct convert_job *c, const struct piece_plan *plan, struct convert_file *f, struct pawl_error *err)
{
	PAWL_FREE struct round *round = mem_alloc(sizeof *round);
	PAWL_CLEAN(outfile_abort_clean) struct outfile *output = NULL;
	struct writer w = {.c = c, .plan = plan, .round = round, .summing = SIZE_MAX};

	if (!round)
		return err_nomem(err, "convert");
	TRY(outfile_open(&(struct outfile_opts){.store = c->store,
	                                        .key = f->temp,
	                                        .name = f->name,
	                                        .nbytes = plan->nbytes,
	                                        .slab_bytes = CONVERT_SLAB_BYTES},
	                 &output, err));
	TRY(write_rounds(&w, output, err));
	return outfile_finish(&output, NULL, err);
}

int
convert_write_end(struct convert_job *c, struct pawl_error *err)
{
	for (size_t i = 0; c->members && i < c->r->manifest->n_members; i++) {
		struct convert_member *member = &c->members[i];
		const struct manifest_member *row = &c->r->manifest->members[i];
		const uint64_t end = row->begin + row->nbytes;

		if (!member->wanted)
			continue;
		if (c->meter && __atomic_load_n(&c->meter->cancel, __ATOMIC_RELAXED))
			return err_set(err, PAWL_ECANCELLED, "cancelled");
		if (member->done) {
			const struct manifest_piece *p = &tensor_of(c, member->item)->pieces[0];
			TRY(sum_range(c, member, row->begin, p->begin, err));
			TRY(sum_range(c, member, p->begin + p->nbytes, end, err));
		} else {
			member->parts = 0;
			TRY(sum_range(c, member, row->begin, end, err));
		}
		TRY(check_member(c, member, err));
	}
	return 0;
}
