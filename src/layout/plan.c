/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: tensors -> packs, in the order of the tree.
 *
 *   state -> [pack 0: small tensors] [pack 1: tensors up to pack_bytes] [pack 2 ...]
 *
 * A state that fits one pack is one pack. If packs can be linked, regroup.c decides instead which
 * tensors share one. The bytes of packs 1.. depend only on tensors and their names, never on the
 * checkpoint. So an unchanged pack can be linked instead of written.
 */
#include "layout/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "format/safetensors/safetensors.h"

/* Collects bytes to checksum: checksumming many small pieces would cost more than copying them. */
struct summer {
	struct sum_stream s;
	size_t n;
	char bytes[4096];
};

static void
sum_put(struct summer *s, const void *ptr, size_t len)
{
	if (len > sizeof(s->bytes) - s->n) {
		sum_update(&s->s, s->bytes, s->n);
		s->n = 0;
	}
	if (len > sizeof(s->bytes)) {
		sum_update(&s->s, ptr, len);
		return;
	}
	memcpy(s->bytes + s->n, ptr, len);
	s->n += len;
}

static void
sum_u64(struct summer *s, uint64_t value)
{
	sum_put(s, &value, sizeof(value));
}

static void
sum_tensor(struct summer *s, const struct state_tensor *t)
{
	uint64_t words[3 + 3 * PAWL_MAX_DIMS];
	uint32_t ndim = t->info.ndim;
	size_t n = 0, extent = sizeof(uint64_t) * ndim;

	words[n++] = t->elsewhere;
	if (!t->elsewhere) {
		words[n++] = (uint64_t)t->info.dtype << 32 | ndim;
		words[n++] = t->src.offsets != NULL;
	}
	if (!t->elsewhere && ndim > 0) {
		memcpy(words + n, t->info.shape, extent);
		n += ndim;
	}
	if (!t->elsewhere && ndim > 0 && t->src.offsets) {
		memcpy(words + n, t->src.shape, extent);
		memcpy(words + n + ndim, t->src.offsets, extent);
		n += 2 * (size_t)ndim;
	}
	sum_put(s, words, n * sizeof(words[0]));
	if (!t->elsewhere)
		sum_put(s, t->info.name, strlen(t->info.name) + 1);
}

struct sum128
plan_fingerprint(const struct pawl_state *state, const struct plan_opts *opts)
{
	struct summer s;

	sum_init(&s.s);
	s.n = 0;
	sum_u64(&s, opts->pack_bytes);
	sum_u64(&s, opts->block_bytes);
	sum_u64(&s, opts->rank);
	sum_put(&s, opts->run_id, strlen(opts->run_id));
	sum_u64(&s, state->n_tensors);
	for (size_t i = 0; i < state->n_tensors; i++)
		sum_tensor(&s, &state->tensors[i]);
	sum_update(&s.s, s.bytes, s.n);
	return sum_final(&s.s);
}

/* A tensor's entry in a pack's header: local shape; complex128 as pairs of F64. */
static int
describe_tensor(const struct state_tensor *t, struct bump *memory, struct st_tensor *ret, struct pawl_error *err)
{
	uint32_t ndim = t->info.ndim;
	bool pairs = t->info.dtype == PAWL_C128;
	uint64_t *shape = bump_array(memory, (uint64_t)ndim + 1, sizeof(*shape));

	if (!shape)
		return err_nomem(err, "plan");
	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = t->src.shape[d];
	if (pairs)
		shape[ndim] = 2;
	*ret = (struct st_tensor){.name = t->info.name,
	                          .dtype = pairs ? PAWL_F64 : t->info.dtype,
	                          .ndim = pairs ? ndim + 1 : ndim,
	                          .shape = shape};
	return 0;
}

/* "pawl.tensors": what the header alone cannot express of shards and complex128. Empty text if
 * none. */
static void
put_special(const struct plan_pack *pack, const struct pawl_state *state, struct buf *out)
{
	for (size_t i = 0; i < pack->n_slots; i++) {
		const struct state_tensor *t = &state->tensors[pack->slots[i].tensor];

		if (!t->src.offsets && t->info.dtype != PAWL_C128)
			continue;
		if (!out->len)
			buf_putc(out, '{');
		json_add_key(out, t->info.name);
		buf_putc(out, '{');
		json_add_text(out, "dtype", pawl_dtype_name(t->info.dtype));
		json_add_u64s(out, "shape", t->info.shape, t->info.ndim);
		if (t->src.offsets)
			json_add_u64s(out, "offsets", t->src.offsets, t->info.ndim);
		buf_putc(out, '}');
	}
	if (out->len)
		buf_putc(out, '}');
}

struct extra { /* pack 0's own metadata */
	struct pawl_slice checkpoint, state;
	char n_packs[24], rank[24];
};

/* Encodes what stays the same from save to save. */
static int
encode_entries(struct plan_pack *pack, const struct pawl_state *state, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_tensor *table = bump_array(&memory, pack->n_slots + 1, sizeof(*table));

	if (!table)
		return err_nomem(err, "plan");
	for (size_t i = 0; i < pack->n_slots; i++) {
		TRY(describe_tensor(&state->tensors[pack->slots[i].tensor], &memory, &table[i], err));
		table[i].begin = pack->slots[i].begin;
		table[i].end = pack->slots[i].begin + pack->slots[i].nbytes;
	}
	put_special(pack, state, &pack->special);
	TRY(buf_check(&pack->special, "plan", err));
	return safetensors_encode_entries(table, pack->n_slots, &pack->entries, err);
}

static int
encode_header(struct plan_pack *pack, const struct plan_opts *opts, const struct extra *extra, struct pawl_error *err)
{
	struct st_pair meta[8];
	size_t n_meta = 0;

	meta[n_meta++] = (struct st_pair){"format", "pt", 2};
	meta[n_meta++] = (struct st_pair){"pawl.format", "1", 1};
	meta[n_meta++] = (struct st_pair){"pawl.run", opts->run_id, strlen(opts->run_id)};
	if (pack->special.len)
		meta[n_meta++] = (struct st_pair){"pawl.tensors", pack->special.ptr, pack->special.len};
	if (extra) {
		meta[n_meta++] = (struct st_pair){"pawl.rank", extra->rank, strlen(extra->rank)};
		meta[n_meta++] = (struct st_pair){"pawl.packs", extra->n_packs, strlen(extra->n_packs)};
		meta[n_meta++] = (struct st_pair){"pawl.checkpoint", extra->checkpoint.ptr, extra->checkpoint.len};
		meta[n_meta++] = (struct st_pair){"pawl.state", extra->state.ptr, extra->state.len};
	}
	pack->header.len = 0;
	pack->header.failed = 0;
	return safetensors_wrap_entries((struct pawl_slice){pack->entries.ptr, pack->entries.len}, meta, n_meta,
	                                &pack->header, err);
}

/* Orders a pack's tensors as the reference writer does, and sets their offsets. */
static int
lay_out(struct plan_pack *pack, const struct pawl_state *state, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_tensor *table = bump_array(&memory, (uint64_t)pack->n_slots + 1, sizeof(*table));

	if (!table)
		return err_nomem(err, "plan");
	for (size_t i = 0; i < pack->n_slots; i++) {
		TRY(describe_tensor(&state->tensors[pack->slots[i].tensor], &memory, &table[i], err));
		table[i].tag = pack->slots[i].tensor;
	}
	TRY(safetensors_layout(table, pack->n_slots, &pack->data_nbytes, err));
	for (size_t i = 0; i < pack->n_slots; i++)
		pack->slots[i] = (struct plan_slot){table[i].tag, table[i].begin, table[i].end - table[i].begin};
	return 0;
}

/* Sets the pack of each tensor; ret[n_tensors]. Returns the number of packs (at least 1). */
static size_t
assign_packs(const struct pawl_state *state, uint64_t pack_bytes, size_t *ret)
{
	uint64_t total = 0, filled = 0;
	size_t pack = 0;

	for (size_t i = 0; i < state->n_tensors; i++)
		total += state->tensors[i].elsewhere ? 0 : state->tensors[i].local_nbytes;
	for (size_t i = 0; i < state->n_tensors; i++) {
		uint64_t nbytes = state->tensors[i].local_nbytes;

		ret[i] = 0;
		if (state->tensors[i].elsewhere)
			continue;
		if (total <= pack_bytes || nbytes < REGROUP_SMALL_BYTES)
			continue;
		if (pack == 0 || (filled && filled + nbytes > pack_bytes)) {
			pack++;
			filled = 0;
		}
		ret[i] = pack;
		filled += nbytes;
	}
	return pack + 1;
}

/* The same if packs can be linked: tensors keep the packs of the last checkpoint. */
static int
regroup_packs(struct plan *p, const struct pawl_state *state, const struct plan_opts *opts, size_t *ret,
              struct pawl_error *err)
{
	bool divided;

	p->tensors = bump_array(&p->memory, (uint64_t)state->n_tensors + 1, sizeof(*p->tensors));
	if (!p->tensors)
		return err_nomem(err, "plan");
	p->n_tensors = state->n_tensors;
	TRY(past_match(opts->past, state, p->tensors, err));
	if (opts->probes)
		TRY(regroup_expect(p->tensors, p->n_tensors, opts->probes, opts->pack_bytes, &divided, err));
	TRY(regroup_place_new(p->tensors, p->n_tensors, opts->rests, opts->pack_bytes, err));
	for (size_t i = 0; i < p->n_tensors; i++)
		ret[i] = p->tensors[i].pack == REGROUP_NONE ? 0 : p->tensors[i].pack;
	p->n_packs = regroup_count(p->tensors, p->n_tensors);
	return 0;
}

static int
fill_packs(struct plan *p, const struct pawl_state *state, const struct plan_opts *opts, struct pawl_error *err)
{
	PAWL_FREE size_t *pack_of = mem_zalloc(state->n_tensors + 1, sizeof(*pack_of));

	if (!pack_of)
		return err_nomem(err, "plan");
	if (opts->regroup)
		TRY(regroup_packs(p, state, opts, pack_of, err));
	else
		p->n_packs = assign_packs(state, opts->pack_bytes, pack_of);
	p->packs = bump_array(&p->memory, p->n_packs, sizeof(*p->packs));
	if (!p->packs)
		return err_nomem(err, "plan");
	for (size_t i = 0; i < state->n_tensors; i++)
		p->packs[pack_of[i]].n_slots += !state->tensors[i].elsewhere;
	for (size_t k = 0; k < p->n_packs; k++) {
		struct plan_pack *pack = &p->packs[k];

		snprintf(pack->name, sizeof(pack->name), "rank%05u-%05zu.safetensors", opts->rank, k);
		pack->slots = bump_array(&p->memory, (uint64_t)pack->n_slots + 1, sizeof(*pack->slots));
		if (!pack->slots)
			return err_nomem(err, "plan");
		pack->n_slots = 0;
	}
	for (size_t i = 0; i < state->n_tensors; i++) {
		struct plan_pack *pack = &p->packs[pack_of[i]];

		if (!state->tensors[i].elsewhere)
			pack->slots[pack->n_slots++].tensor = i;
	}
	return 0;
}

static struct sum128
sum_layout(const struct plan_pack *pack)
{
	struct sum_stream s;

	sum_init(&s);
	sum_update(&s, pack->entries.ptr, pack->entries.len);
	sum_update(&s, pack->special.ptr, pack->special.len);
	return sum_final(&s);
}

int
plan_make(const struct pawl_state *state, const struct plan_opts *opts, struct plan **ret, struct pawl_error *err)
{
	PAWL_CLEAN(plan_free_clean) struct plan *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_nomem(err, "plan");
	p->block_bytes = opts->block_bytes;
	p->pack_bytes = opts->pack_bytes;
	p->fingerprint = plan_fingerprint(state, opts);
	TRY(fill_packs(p, state, opts, err));
	for (size_t k = 0; k < p->n_packs; k++) {
		TRY(lay_out(&p->packs[k], state, err));
		TRY(encode_entries(&p->packs[k], state, err));
		p->packs[k].layout = sum_layout(&p->packs[k]);
		if (k == 0) /* its header changes with every save */
			continue;
		TRY(encode_header(&p->packs[k], opts, NULL, err));
		buf_clear(&p->packs[k].entries);
		buf_clear(&p->packs[k].special);
	}
	*ret = steal(&p);
	return 0;
}

/* ---- pack 0's header from save to save */

#define BEFORE_CHECKPOINT ",\"pawl.checkpoint\":\""
#define BEFORE_STATE "\",\"pawl.state\":\""

/* Replaces one text in the header by another, and updates the length at its start. */
static bool
splice_text(struct plan *p, size_t at, size_t old_len, const char *text, size_t len)
{
	struct plan_head *h = &p->head;
	struct buf *out = &p->packs[0].header;
	const size_t end = h->end - old_len + len;
	const size_t nbytes = (size_t)mem_round_up(end, SAFETENSORS_DATA_ALIGN), json_len = nbytes - 8;

	if (json_len > SAFETENSORS_MAX_HEADER || (nbytes > out->len && !buf_grow(out, nbytes - out->len)))
		return false;
	if (len != old_len) {
		memmove(out->ptr + at + len, out->ptr + at + old_len, h->end - at - old_len);
		memset(out->ptr + end, ' ', nbytes - end);
		for (unsigned i = 0; i < 8; i++)
			out->ptr[i] = (char)(unsigned char)(json_len >> (8 * i) & 0xff);
		out->len = nbytes;
		h->end = end;
	}
	memcpy(out->ptr + at, text, len);
	return true;
}

/* The length of a text inside a JSON string; SIZE_MAX if out of memory. */
static size_t
quoted_len(const char *text, size_t len)
{
	PAWL_CLEAN(buf_clear) struct buf quoted = {0};
	size_t more = 0;
	bool odd = false;

	for (size_t i = 0; i < len; i++) {
		const unsigned char c = (unsigned char)text[i];

		more += c == '"' || c == '\\' ? 1u : 0u;
		odd = odd || c < 0x20 || c >= 0x80;
	}
	if (!odd)
		return len + more;
	json_put_string(&quoted, text, len);
	return quoted.failed ? SIZE_MAX : quoted.len - 2;
}

/* True if the text ends at `end`. */
static bool
ends_with(const struct buf *b, size_t end, const char *text)
{
	const size_t len = strlen(text);

	return end >= len && memcmp(b->ptr + end - len, text, len) == 0;
}

/* Notes where the texts are in the new header, counted from its end. */
static void
note_head(struct plan *p, const struct extra *extra)
{
	const struct plan_pack *pack = &p->packs[0];
	const struct buf *header = &pack->header;
	struct plan_head *h = &p->head;
	size_t end = header->len, after = 3 + pack->entries.len + (pack->entries.len > 0);

	h->state_text.len = 0;
	h->state_text.failed = 0;
	buf_put(&h->state_text, extra->state.ptr, extra->state.len);
	h->state_len = quoted_len(extra->state.ptr, extra->state.len);
	h->checkpoint_len = quoted_len(extra->checkpoint.ptr, extra->checkpoint.len);
	if (h->state_text.failed || h->state_len == SIZE_MAX || h->checkpoint_len == SIZE_MAX)
		return; /* the next save encodes the header again */
	while (end > 0 && header->ptr[end - 1] == ' ')
		end--;
	if (end < after + h->state_len + strlen(BEFORE_STATE) + h->checkpoint_len)
		return;
	h->state = end - after - h->state_len;
	h->checkpoint = h->state - strlen(BEFORE_STATE) - h->checkpoint_len;
	if (ends_with(header, h->state, BEFORE_STATE) && ends_with(header, h->checkpoint, BEFORE_CHECKPOINT))
		h->end = end;
}

/* The number of equal bytes at the start and at the end of two texts. No character is cut. */
static void
compare_texts(struct pawl_slice a, struct pawl_slice b, size_t *ret_front, size_t *ret_back)
{
	const char *x = a.ptr, *y = b.ptr;
	const size_t shorter = a.len < b.len ? a.len : b.len;
	size_t front = 0, back = 0;

	while (front + 64 <= shorter && memcmp(x + front, y + front, 64) == 0)
		front += 64;
	while (front < shorter && x[front] == y[front])
		front++;
	while (front > 0 && (unsigned char)x[front - 1] >= 0x80)
		front--;
	while (back + 64 <= shorter - front && memcmp(x + a.len - back - 64, y + b.len - back - 64, 64) == 0)
		back += 64;
	while (back < shorter - front && x[a.len - back - 1] == y[b.len - back - 1])
		back++;
	while (back > 0 && (unsigned char)x[a.len - back] >= 0x80)
		back--;
	*ret_front = front;
	*ret_back = back;
}

/* Quotes again only the text between the first and the last difference of the state. */
static bool
renew_state(struct plan *p, struct pawl_slice state)
{
	struct plan_head *h = &p->head;
	const struct pawl_slice was = {h->state_text.ptr, h->state_text.len};
	const char *text = state.ptr;
	PAWL_CLEAN(buf_clear) struct buf middle = {0};
	size_t front, back, before;

	compare_texts(was, state, &front, &back);
	if (front == was.len && front == state.len)
		return true;

	const size_t gone = quoted_len(h->state_text.ptr + front, was.len - back - front);
	const size_t side = front < back ? quoted_len(text, front) : quoted_len(text + state.len - back, back);

	json_put_string(&middle, text + front, state.len - back - front);
	if (gone == SIZE_MAX || side == SIZE_MAX || middle.failed)
		return false;
	before = front < back ? side : h->state_len - gone - side;
	if (!splice_text(p, h->state + before, gone, middle.ptr + 1, middle.len - 2))
		return false;
	h->state_len = h->state_len - gone + middle.len - 2;
	h->state_text.len = 0;
	buf_put(&h->state_text, state.ptr, state.len);
	return !h->state_text.failed;
}

/* False: the header must be encoded again. */
static bool
renew_header(struct plan *p, const struct extra *extra)
{
	struct plan_head *h = &p->head;
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	if (h->end == 0 || !renew_state(p, extra->state))
		return false;
	json_put_string(&text, extra->checkpoint.ptr, extra->checkpoint.len);
	if (text.failed || !splice_text(p, h->checkpoint, h->checkpoint_len, text.ptr + 1, text.len - 2))
		return false;
	h->state += text.len - 2 - h->checkpoint_len;
	h->checkpoint_len = text.len - 2;
	return true;
}

/* Depends little on how tensors share packs. */
static uint64_t
room_bytes(const struct plan *p)
{
	uint64_t data = 0, room;

	for (size_t k = 0; k < p->n_packs; k++)
		data += p->packs[k].data_nbytes;
	room = data + p->packs[0].header.len + 2 * SAFETENSORS_DATA_ALIGN * regroup_most_packs(data, p->pack_bytes);
	return p->tensors && room > p->image_bytes ? room : p->image_bytes;
}

int
plan_refresh(struct plan *p, const struct plan_opts *opts, struct pawl_slice checkpoint_json,
             struct pawl_slice state_json, struct pawl_error *err)
{
	struct extra extra = {.checkpoint = checkpoint_json, .state = state_json};

	snprintf(extra.n_packs, sizeof(extra.n_packs), "%zu", p->n_packs);
	snprintf(extra.rank, sizeof(extra.rank), "%u", opts->rank);
	if (!renew_header(p, &extra)) {
		p->head.end = 0;
		TRY(encode_header(&p->packs[0], opts, &extra, err));
		note_head(p, &extra);
	}
	p->nbytes = 0;
	p->image_bytes = 0;
	p->n_blocks = 0;
	for (size_t k = 0; k < p->n_packs; k++) {
		struct plan_pack *pack = &p->packs[k];

		pack->nbytes = pack->header.len + pack->data_nbytes;
		pack->image_offset = p->image_bytes;
		pack->first_block = p->n_blocks;
		pack->n_blocks = (size_t)((pack->nbytes + p->block_bytes - 1) / p->block_bytes);
		p->n_blocks += pack->n_blocks;
		p->nbytes += pack->nbytes;
		p->image_bytes += mem_round_up(pack->nbytes, SAFETENSORS_DATA_ALIGN);
	}
	p->room_bytes = room_bytes(p);
	return 0;
}

void
plan_free(struct plan *p)
{
	if (!p)
		return;
	for (size_t k = 0; p->packs && k < p->n_packs; k++) {
		buf_clear(&p->packs[k].header);
		buf_clear(&p->packs[k].entries);
		buf_clear(&p->packs[k].special);
	}
	buf_clear(&p->head.state_text);
	bump_clear(&p->memory);
	mem_free(p);
}
