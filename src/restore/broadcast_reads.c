/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broadcast_reads: see broadcast_reads.h. Promises P1, P11, P16.
 *
 * All memory for messages is allocated before the ranks agree to begin. After that, a rank that
 * fails still calls the function as often as the others. A rank stops calling it only when the
 * function itself fails or returns other bytes than were sent. Then no rank knows which call the
 * others are in.
 */
#include "restore/broadcast_reads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sum.h"
#include "base/text.h"
#include "layout/rank_share.h"
#include "ranks/agree.h"

#define MAGIC UINT64_C(0x7265616470617731)
#define MAX_CHUNK ((uint64_t)8 << 20)
#define MIN_CHUNK ((uint64_t)64 << 10)
#define WORD "share "

/* A box that this rank wants. */
struct want {
	struct sum128 key; /* of the tensor and the box, the same on all ranks; the first field, since find_want
	                      compares it */
	size_t binding;
	uint32_t n_others; /* rank 0: how many other ranks want it, and the last of them that reported it */
	uint32_t last;
};

/* A box that all ranks want, as rank 0 sends it to them. */
struct common {
	struct sum128 key;
	uint64_t rows, row_bytes; /* it is cut between rows */
};

struct frame {
	uint64_t magic, number, nbytes; /* number of the call, and the bytes that follow */
	uint32_t root;
	int32_t code; /* negative: the root could not read them */
	struct sum128 sum;
	char message[464];
};

struct sharing {
	struct pawl_restore *r;
	uint32_t rank, world;
	struct want *wants; /* ascending by key, without duplicates */
	size_t n_wants;
	struct common *commons; /* room for n_wants */
	size_t *binding_of;     /* per common box */
	size_t n_commons;
	uint64_t total_bytes; /* of the common boxes */
	uint64_t chunk_bytes; /* of a message: the smallest that fits the memory of every rank */
	struct frame *frame;
	char *payload; /* behind the frame */
	uint64_t number;
	bool is_broken;          /* the function is not called any more */
	struct pawl_error error; /* the first error here */
};

/* A position in the common boxes. */
struct cursor {
	size_t box;
	uint64_t at, done; /* bytes of the boxes before it, and of this one */
};

struct piece {
	size_t box;
	uint64_t begin, end; /* bytes of the box's logical contents */
};

static void
sharing_clear(struct sharing *s)
{
	mem_free(s->wants);
	mem_free(s->commons);
	mem_free(s->binding_of);
	mem_free(s->frame);
}

uint64_t
broadcast_reads_chunk(uint64_t ring_bytes)
{
	uint64_t ring = ring_bytes == 0 ? FETCH_RING : ring_bytes > FETCH_MAX_RING ? FETCH_MAX_RING : ring_bytes;

	return ring / 4 > MAX_CHUNK ? MAX_CHUNK : ring / 4 < MIN_CHUNK ? MIN_CHUNK : ring / 4;
}

/* ---- what this rank wants */

static struct sum128
key_of(const struct reshard_binding *b)
{
	static const uint64_t origin[PAWL_MAX_DIMS];
	const size_t extent = b->dst.ndim * sizeof(uint64_t);
	const uint64_t tensor = b->tensor;
	struct sum_stream s;

	sum_init(&s);
	sum_update(&s, &tensor, sizeof(tensor));
	sum_update(&s, b->dst.offsets ? b->dst.offsets : origin, extent);
	if (extent)
		sum_update(&s, b->dst.shape, extent);
	return sum_final(&s);
}

static int
compare_keys(const void *a, const void *b)
{
	const struct sum128 *x = a, *y = b;

	if (x->hi != y->hi)
		return x->hi < y->hi ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static int
compare_wants(const void *a, const void *b)
{
	const struct want *x = a, *y = b;
	int order = compare_keys(&x->key, &y->key);

	return order ? order : x->binding < y->binding ? -1 : x->binding > y->binding;
}

static struct want *
find_want(const struct sharing *s, const struct sum128 *key)
{
	return s->n_wants ? bsearch(key, s->wants, s->n_wants, sizeof(*s->wants), compare_keys) : NULL;
}

/* If a box is wanted in two places, the second is read separately. */
static void
sort_wants(struct sharing *s)
{
	size_t n = 0;

	if (s->n_wants > 1)
		qsort(s->wants, s->n_wants, sizeof(*s->wants), compare_wants);
	for (size_t i = 0; i < s->n_wants; i++)
		if (n == 0 || compare_keys(&s->wants[i].key, &s->wants[n - 1].key) != 0)
			s->wants[n++] = s->wants[i];
	s->n_wants = n;
}

static int
prepare_rounds(struct sharing *s, struct pawl_error *err)
{
	const struct pawl_restore *r = s->r;
	uint64_t nbytes;

	s->chunk_bytes = broadcast_reads_chunk(r->ring_bytes);
	s->wants = mem_zalloc(r->n_bindings, sizeof(*s->wants));
	s->commons = mem_zalloc(r->n_bindings, sizeof(*s->commons));
	s->binding_of = mem_zalloc(r->n_bindings, sizeof(*s->binding_of));
	s->frame = mem_zalloc(1, sizeof(*s->frame) + (size_t)s->chunk_bytes);
	if (!s->wants || !s->commons || !s->binding_of || !s->frame)
		return err_nomem(err, "restore");
	s->payload = (char *)(s->frame + 1);
	for (size_t i = 0; i < r->n_bindings; i++) {
		TRY(tensor_nbytes(&r->bindings[i].dst, &nbytes, err));
		if (nbytes > 0 && !r->bindings[i].dst.device) /* each rank reads what goes to a device */
			s->wants[s->n_wants++] = (struct want){.key = key_of(&r->bindings[i]), .binding = i};
	}
	sort_wants(s);
	return 0;
}

/* "share <bytes of a message>\n", and a line of 32 digits for each box. */
static void
put_wants(const struct sharing *s, struct buf *out)
{
	buf_printf(out, WORD "%" PRIu64 "\n", s->chunk_bytes);
	for (size_t i = 0; i < s->n_wants; i++) {
		char *line = buf_grow(out, 33);

		if (!line)
			return;
		sum_to_hex(s->wants[i].key, line);
		line[32] = '\n';
	}
}

/* Rank 0 reads what another rank wants. */
static int
take_wants(void *arg, uint32_t rank, const struct buf *text, struct pawl_error *err)
{
	struct sharing *s = arg;
	const size_t word = strlen(WORD);
	const char *end = text->len ? memchr(text->ptr, '\n', text->len) : NULL;
	double chunk = 0;

	if (text->len < word || memcmp(text->ptr, WORD, word) != 0)
		return err_set(err, PAWL_EMISMATCH, "rank %u: share_reads is not set there, and is on rank 0", rank);
	if (!end || text_get_number(text->ptr + word, (size_t)(end - text->ptr) - word, &chunk) == 0 ||
	    chunk < (double)MIN_CHUNK || chunk > (double)MAX_CHUNK || (text->len - (size_t)(end + 1 - text->ptr)) % 33)
		return err_set(err, PAWL_ECONFLICT, "rank %u: its list of reads is malformed", rank);
	if ((uint64_t)chunk < s->chunk_bytes)
		s->chunk_bytes = (uint64_t)chunk;
	for (const char *line = end + 1; line < text->ptr + text->len; line += 33) {
		struct sum128 key;
		struct want *want = sum_from_hex(line, &key) ? find_want(s, &key) : NULL;

		if (want && want->last != rank) {
			want->last = rank;
			want->n_others++;
		}
	}
	return 0;
}

/* ---- one message */

static void
note_error(struct sharing *s, int code, const struct pawl_error *why)
{
	if (s->error.code < 0 || code >= 0)
		return;
	s->error = *why;
	s->error.code = code;
}

/* Sends nbytes of the payload from the root to all ranks. Errors are noted. True if the payload can
 * be used. */
static bool
pass_payload(struct sharing *s, uint32_t root, uint64_t nbytes)
{
	struct frame *f = s->frame;
	struct pawl_error why = {0};
	const bool is_root = root == s->rank;

	memset(f, 0, sizeof(*f));
	s->number++;
	if (is_root) {
		*f = (struct frame){.magic = MAGIC, .number = s->number, .nbytes = nbytes, .root = root};
		f->code = s->error.code;
		if (f->code < 0)
			text_copy(f->message, sizeof(f->message), s->error.message);
		else
			f->sum = sum_bytes(s->payload, (size_t)nbytes);
	}
	int rc = s->r->share_fn(s->r->share_arg, root, f, sizeof(*f) + (size_t)nbytes, &why);

	if (rc != 0) {
		rc = rc > 0              ? PAWL_EUSAGE
		     : err_is_damage(rc) ? PAWL_ETRANSIENT
		                         : rc; /* a failed broadcast is not damage of the checkpoint */
		err_prefix(&why, rc, "share_reads: the broadcast of what rank %u read", root);
		s->is_broken = true;
	} else if (is_root) {
		return s->error.code >= 0;
	} else if (f->magic != MAGIC || f->number != s->number || f->root != root || f->nbytes != nbytes ||
	           (f->code >= 0 && !sum_equal(f->sum, sum_bytes(s->payload, (size_t)nbytes)))) {
		rc = err_set(&why, PAWL_EUSAGE,
		             "share_reads: the broadcast function gave rank %u other bytes than rank %u sent", s->rank,
		             root);
		s->is_broken = true;
	} else if (f->code < 0) {
		f->message[sizeof(f->message) - 1] = 0;
		rc = err_set(&why, f->code, "rank %u: %s", root, f->message);
	}
	note_error(s, rc, &why);
	return rc == 0;
}

/* ---- what all want */

static int
compare_sizes(const void *a, const void *b)
{
	const size_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void
set_rows(const struct reshard_binding *b, struct common *ret)
{
	uint64_t nbytes = 0;

	tensor_nbytes(&b->dst, &nbytes, NULL); /* was checked before */
	ret->rows = 1;
	ret->row_bytes = nbytes;
	if (nbytes < RANK_SHARE_CUT_BYTES || b->dst.ndim == 0 || pawl_dtype_bits(b->dst.dtype) % 8 != 0)
		return;
	ret->rows = b->dst.shape[0];
	ret->row_bytes = nbytes / b->dst.shape[0];
}

/* Rank 0 chooses the common boxes, after it has read the wants of all ranks. */
static void
choose_boxes(struct sharing *s)
{
	for (size_t i = 0; i < s->n_wants; i++)
		if (s->wants[i].n_others == s->world - 1)
			s->binding_of[s->n_commons++] = s->wants[i].binding;
	if (s->n_commons > 1)
		qsort(s->binding_of, s->n_commons, sizeof(*s->binding_of), compare_sizes);
	for (size_t i = 0; i < s->n_commons; i++) {
		const struct reshard_binding *b = &s->r->bindings[s->binding_of[i]];

		s->commons[i].key = key_of(b);
		set_rows(b, &s->commons[i]);
	}
}

/* Finds the boxes that rank 0 named among this rank's own. */
static bool
take_commons(struct sharing *s)
{
	for (size_t i = 0; i < s->n_commons; i++) {
		const struct want *want = find_want(s, &s->commons[i].key);
		struct common mine;

		if (!want)
			return false;
		set_rows(&s->r->bindings[want->binding], &mine);
		if (mine.rows != s->commons[i].rows || mine.row_bytes != s->commons[i].row_bytes)
			return false;
		s->binding_of[i] = want->binding;
	}
	return true;
}

/* Rank 0 sends the number of boxes and the length of a message, then the boxes. */
static void
hand_out_commons(struct sharing *s)
{
	uint64_t head[2] = {s->n_commons, s->chunk_bytes}, per = s->chunk_bytes / sizeof(*s->commons);

	memcpy(s->payload, head, sizeof(head));
	bool good = pass_payload(s, 0, sizeof(head));

	memcpy(head, s->payload, sizeof(head));
	if (!good)
		return;
	if (head[0] <= s->n_wants && head[1] >= MIN_CHUNK && head[1] <= s->chunk_bytes) {
		s->n_commons = (size_t)head[0];
		s->chunk_bytes = head[1];
		per = s->chunk_bytes / sizeof(*s->commons);
	} else {
		good = false;
	}
	for (size_t i = 0; good && i < s->n_commons; i += per) {
		size_t n = s->n_commons - i < per ? s->n_commons - i : (size_t)per;

		memcpy(s->payload, s->commons + i, n * sizeof(*s->commons));
		good = pass_payload(s, 0, n * sizeof(*s->commons));
		memcpy(s->commons + i, s->payload, n * sizeof(*s->commons));
	}
	if (good && (s->rank == 0 || take_commons(s)))
		for (size_t i = 0; i < s->n_commons; i++)
			s->total_bytes += s->commons[i].rows * s->commons[i].row_bytes;
	else if (!s->is_broken) {
		struct pawl_error why = {0};

		s->is_broken = true;
		note_error(s, err_set(&why, PAWL_EUSAGE, "share_reads: the broadcast function gave no list of rank 0"),
		           &why);
	}
}

/* ---- shares */

/* The next bytes of the share that ends at `end` of the common bytes, at most `most`. */
static bool
next_piece(const struct sharing *s, struct cursor *c, uint64_t end, uint64_t most, struct piece *ret)
{
	while (c->box < s->n_commons) {
		const struct common *box = &s->commons[c->box];
		const uint64_t nbytes = box->rows * box->row_bytes;
		uint64_t rows = end > c->at ? (end - c->at - 1) / box->row_bytes + 1 : 0;
		uint64_t to = rows < box->rows ? rows * box->row_bytes : nbytes;

		if (to > c->done && to - c->done > most)
			to = c->done + most;
		*ret = (struct piece){c->box, c->done, to};
		if (to > c->done)
			c->done = to;
		if (c->done == nbytes) {
			c->at += nbytes;
			c->done = 0;
			c->box++;
		}
		if (ret->end > ret->begin)
			return true;
		if (to < nbytes)
			return false;
	}
	return false;
}

static uint64_t
share_end(const struct sharing *s, uint32_t rank)
{
	return rank_share_cut(s->total_bytes, rank + 1, s->world);
}

/* Makes a binding of some rows of a destination. A piece of a share begins and ends between
 * rows. */
static int
cut_binding(const struct reshard_binding *b, const struct common *box, const struct piece *p, struct bump *memory,
            struct reshard_binding *ret, struct pawl_error *err)
{
	const uint64_t from = p->begin / box->row_bytes, rows = (p->end - p->begin) / box->row_bytes;
	const uint32_t ndim = b->dst.ndim;

	*ret = *b;
	if (rows == box->rows)
		return 0;
	uint64_t *shape = bump_copy(memory, b->dst.shape, ndim, sizeof(*shape)),
		 *offsets = bump_copy(memory, b->dst.offsets, ndim, sizeof(*offsets));

	if (!shape || !offsets)
		return err_nomem(err, "restore");
	shape[0] = rows;
	offsets[0] += from;
	ret->dst.shape = shape;
	ret->dst.offsets = offsets;
	int64_t step = b->contiguous ? (int64_t)box->row_bytes
	                             : b->dst.strides[0] * (int64_t)(pawl_dtype_bits(b->dst.dtype) / 8);

	ret->dst.data = (char *)b->dst.data + (int64_t)from * step;
	return 0;
}

/* Reads this rank's share, and what only this rank wants. */
static int
read_share(struct sharing *s, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct pawl_restore *r = s->r;
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_FREE struct reshard_binding *list = mem_zalloc(r->n_bindings, sizeof(*list));
	PAWL_FREE bool *is_common = mem_zalloc(r->n_bindings, sizeof(*is_common));
	struct cursor c = {0};
	struct piece p;
	size_t n = 0;

	if (!list || !is_common)
		return err_nomem(err, "restore");
	for (size_t i = 0; i < s->n_commons; i++)
		is_common[s->binding_of[i]] = true;
	for (size_t i = 0; i < r->n_bindings; i++)
		if (!is_common[i])
			list[n++] = r->bindings[i];
	while (s->rank > 0 && next_piece(s, &c, share_end(s, s->rank - 1), UINT64_MAX, &p))
		;
	while (next_piece(s, &c, share_end(s, s->rank), UINT64_MAX, &p)) /* at most one of each common box */
		TRY(cut_binding(&r->bindings[s->binding_of[p.box]], &s->commons[p.box], &p, &memory, &list[n++], err));
	return restore_fetch(r, list, n, ret_nbytes, err);
}

enum walk { COUNT, PACK, UNPACK };

/* The length of a share's next message. PACK and UNPACK also copy the bytes between the
 * destinations and the payload. */
static uint64_t
walk_chunk(const struct sharing *s, struct cursor *c, uint64_t end, enum walk what)
{
	struct piece p;
	uint64_t n = 0;

	while (n < s->chunk_bytes && next_piece(s, c, end, s->chunk_bytes - n, &p)) {
		const struct reshard_binding *b = &s->r->bindings[s->binding_of[p.box]];
		const size_t nbytes = (size_t)(p.end - p.begin);
		char *memory = b->contiguous ? (char *)b->dst.data + p.begin : NULL;

		if (what == PACK && memory)
			memcpy(s->payload + n, memory, nbytes);
		else if (what == PACK)
			tensor_gather(&b->dst, p.begin, nbytes, s->payload + n);
		else if (what == UNPACK && memory)
			memcpy(memory, s->payload + n, nbytes);
		else if (what == UNPACK)
			tensor_scatter(&b->dst, p.begin, nbytes, s->payload + n);
		n += nbytes;
	}
	return n;
}

/* Sends every rank's share to all ranks. */
static void
hand_out_shares(struct sharing *s)
{
	struct cursor c = {0};

	for (uint32_t root = 0; root < s->world; root++) {
		const uint64_t end = share_end(s, root);

		for (;;) {
			struct cursor begin = c;
			const bool packs = root == s->rank && s->error.code == 0;
			const uint64_t n = walk_chunk(s, &c, end, packs ? PACK : COUNT);

			if (n == 0)
				break;
			bool good = pass_payload(s, root, n);

			if (s->is_broken)
				return;
			if (good && root != s->rank && s->error.code == 0)
				walk_chunk(s, &begin, end, UNPACK);
		}
	}
}

int
broadcast_reads(struct pawl_restore *r, int code, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(sharing_clear) struct sharing s = {.r = r, .rank = r->run->group.rank, .world = r->run->group.world};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_error why = {0};

	if (code == 0)
		code = prepare_rounds(&s, err);
	if (code == 0) {
		put_wants(&s, &text);
		code = buf_check(&text, "restore", err);
	}
	code = agree_on(r->run, code, &text, take_wants, &s, err);
	if (code < 0) {
		r->owes_word = false; /* all ranks have heard of it */
		return code;
	}
	buf_clear(&text);
	if (s.rank == 0)
		choose_boxes(&s);
	hand_out_commons(&s);
	if (!s.is_broken) {
		note_error(&s, read_share(&s, ret_nbytes, &why), &why);
		hand_out_shares(&s);
	}
	return err_give(err, s.error.code, &s.error);
}
