/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_machine: the parts of the machine of pickle.c: its memory, its stack with marks, its memo,
 * and the values that are bytes of the stream. Promises P16, P17.
 */
#include "format/torch/pickle_machine.h"

#include <string.h>

#include "base/err.h"
#include "base/table.h"
#include "base/text.h"
#include "base/vec.h"

#define MAX_MEMO_SLOTS (PICKLE_MAX_MEMORY / sizeof(struct pickle_slot))

int
pickle_wrong(struct pickle_machine *m, const char *why)
{
	return err_set(m->err, PAWL_ECORRUPT, "%s: byte %zu: %s", m->what, m->op_at, why);
}

int
pickle_too_much(struct pickle_machine *m, const char *why)
{
	return err_set(m->err, PAWL_ELIMIT, "%s: byte %zu: %s", m->what, m->op_at, why);
}

int
pickle_out_of_memory(struct pickle_machine *m)
{
	return err_nomem(m->err, m->what);
}

/* ------------------------------------------------------------------ memory */

static int
spend_bytes(struct pickle_machine *m, uint64_t nbytes)
{
	if (nbytes > PICKLE_MAX_MEMORY - m->spent)
		return pickle_too_much(m, "its values take more than 512 MiB");
	m->spent += (size_t)nbytes;
	return 0;
}

int
pickle_take_memory(struct pickle_machine *m, size_t nbytes, void **ret)
{
	TRY(spend_bytes(m, nbytes + 16));
	*ret = bump_alloc(m->memory, nbytes);
	return *ret ? 0 : pickle_out_of_memory(m);
}

int
pickle_new(struct pickle_machine *m, int type, struct pickle_node **ret)
{
	void *memory;

	TRY(pickle_take_memory(m, sizeof(struct pickle_node), &memory));
	*ret = memory;
	(*ret)->type = (uint8_t)type;
	return 0;
}

int
pickle_push(struct pickle_machine *m, struct pickle_node *node)
{
	if (m->n_stack == PICKLE_MAX_STACK)
		return pickle_too_much(m, "more than 1,000,000 values on the stack");
	if (!array_reserve(m->stack, m->cap_stack, m->n_stack + 1))
		return pickle_out_of_memory(m);
	m->stack[m->n_stack++] = node;
	return 0;
}

int
pickle_push_mark(struct pickle_machine *m)
{
	if (m->n_marks == PICKLE_MAX_STACK)
		return pickle_too_much(m, "more than 1,000,000 marks");
	if (!array_reserve(m->marks, m->cap_marks, m->n_marks + 1))
		return pickle_out_of_memory(m);
	m->marks[m->n_marks++] = m->n_stack;
	return 0;
}

/* The number of values above the last mark. */
size_t
pickle_above_mark(const struct pickle_machine *m)
{
	return m->n_stack - (m->n_marks ? m->marks[m->n_marks - 1] : 0);
}

int
pickle_pop(struct pickle_machine *m, struct pickle_node **ret)
{
	if (pickle_above_mark(m) == 0)
		return pickle_wrong(m, "takes a value, but the stack is empty");
	*ret = m->stack[--m->n_stack];
	return 0;
}

/* Removes the last mark and the values above it; they stay readable until the next push. */
int
pickle_pop_mark(struct pickle_machine *m, struct pickle_node ***ret, size_t *ret_n)
{
	if (m->n_marks == 0)
		return pickle_wrong(m, "takes values down to a mark, but there is none");
	size_t mark = m->marks[--m->n_marks];
	*ret = m->stack + mark;
	*ret_n = m->n_stack - mark;
	m->n_stack = mark;
	return 0;
}

/* -------------------------------------------------------------------- memo */

/* Its address is a secret that the numbers of a hostile stream cannot be chosen for. */
static struct pickle_slot *
find_slot(const struct pickle_machine *m, struct pickle_slot *slots, size_t cap, uint64_t index)
{
	size_t at = (size_t)table_mix((uint64_t)(uintptr_t)m, index) & (cap - 1);

	while (slots[at].node && slots[at].index != index)
		at = (at + 1) & (cap - 1);
	return &slots[at];
}

static int
grow_memo(struct pickle_machine *m)
{
	size_t cap = m->cap_memo ? 2 * m->cap_memo : 256;

	if (cap > MAX_MEMO_SLOTS)
		return pickle_too_much(m, "its memo takes more than 512 MiB");
	TRY(spend_bytes(m, (cap - m->cap_memo) * sizeof(*m->memo)));
	struct pickle_slot *bigger = mem_zalloc(cap, sizeof(*bigger));
	if (!bigger)
		return pickle_out_of_memory(m);
	for (size_t i = 0; i < m->cap_memo; i++) {
		if (m->memo[i].node)
			*find_slot(m, bigger, cap, m->memo[i].index) = m->memo[i];
	}
	mem_free(m->memo);
	m->memo = bigger;
	m->cap_memo = cap;
	return 0;
}

int
pickle_put(struct pickle_machine *m, uint64_t index)
{
	if (pickle_above_mark(m) == 0)
		return pickle_wrong(m, "puts a value into the memo, but the stack is empty");
	if (2 * (m->n_memo + 1) > m->cap_memo)
		TRY(grow_memo(m));
	struct pickle_slot *slot = find_slot(m, m->memo, m->cap_memo, index);
	m->n_memo += slot->node == NULL;
	*slot = (struct pickle_slot){index, m->stack[m->n_stack - 1]};
	return 0;
}

int
pickle_get_memo(struct pickle_machine *m, uint64_t index)
{
	const struct pickle_slot *slot = m->cap_memo ? find_slot(m, m->memo, m->cap_memo, index) : NULL;

	if (!slot || !slot->node)
		return pickle_wrong(m, "takes something out of the memo that was never put there");
	return pickle_push(m, slot->node);
}

/* ------------------------------------------------------------------- bytes */

int
pickle_take(struct pickle_machine *m, uint64_t n, const unsigned char **ret)
{
	size_t end = m->frame_end ? m->frame_end : m->len;

	if (n > end - m->at)
		return pickle_wrong(m, m->frame_end ? "reaches beyond its frame" : "the stream ends too early");
	*ret = m->bytes + m->at;
	m->at += (size_t)n;
	return 0;
}

/* A little-endian number of n bytes. */
int
pickle_take_number(struct pickle_machine *m, unsigned n, uint64_t *ret)
{
	const unsigned char *p;

	TRY(pickle_take(m, n, &p));
	*ret = 0;
	for (unsigned i = n; i-- > 0;)
		*ret = *ret << 8 | p[i];
	return 0;
}

int
pickle_push_int(struct pickle_machine *m, int64_t value)
{
	struct pickle_node *node;

	TRY(pickle_new(m, PICKLE_INT, &node));
	node->i = value;
	return pickle_push(m, node);
}

int
pickle_push_float(struct pickle_machine *m, double value)
{
	struct pickle_node *node;

	TRY(pickle_new(m, PICKLE_FLOAT, &node));
	node->f = value;
	return pickle_push(m, node);
}

int
pickle_push_bool(struct pickle_machine *m, bool value)
{
	struct pickle_node **kept = value ? &m->yes : &m->no;

	if (!*kept) {
		TRY(pickle_new(m, PICKLE_BOOL, kept));
		(*kept)->i = value;
	}
	return pickle_push(m, *kept);
}

int
pickle_push_text(struct pickle_machine *m, int type, const char *text, size_t len)
{
	struct pickle_node *node;

	if (type == PICKLE_STR && !text_is_utf8(text, len))
		return pickle_wrong(m, "a text that is not UTF-8");
	TRY(pickle_new(m, type, &node));
	node->text = text;
	node->len = len;
	if (type == PICKLE_STR)
		m->last_text = node;
	return pickle_push(m, node);
}

/* A text or bytes after their length, a number of n_len bytes. */
int
pickle_push_counted(struct pickle_machine *m, int type, unsigned n_len)
{
	const unsigned char *p;
	uint64_t len;

	TRY(pickle_take_number(m, n_len, &len));
	TRY(pickle_take(m, len, &p));
	return pickle_push_text(m, type, (const char *)p, (size_t)len);
}

/* ------------------------------------------------------------------- longs */

/* The decimal digits of a two's complement number, little-endian: divides by 10^9 until nothing is
 * left. */
static int
put_digits(struct pickle_machine *m, const unsigned char *p, size_t n, struct pickle_node *node)
{
	uint32_t words[PICKLE_MAX_LONG_BYTES / 4 + 1] = {0};
	const bool negative = p[n - 1] & 0x80;
	size_t n_words = n / 4 + 1, at = n * 5 / 2 + 12;
	uint64_t carry = 1;
	void *memory;

	TRY(pickle_take_memory(m, at + 1, &memory));
	char *text = memory;
	for (size_t i = 0; i < n_words * 4; i++) {
		uint32_t byte = i < n ? p[i] : negative ? 0xff : 0;
		words[i / 4] |= byte << (8 * (i % 4));
	}
	for (size_t i = 0; i < n_words && negative; i++) {
		carry += ~words[i];
		words[i] = (uint32_t)carry;
		carry >>= 32;
	}
	const char *end = text + at;
	while (n_words > 0) {
		uint64_t rest = 0;
		for (size_t i = n_words; i-- > 0;) {
			rest = rest << 32 | words[i];
			words[i] = (uint32_t)(rest / 1000000000);
			rest %= 1000000000;
		}
		while (n_words > 0 && words[n_words - 1] == 0)
			n_words--;
		for (unsigned d = 0; d < 9 && (n_words > 0 || rest > 0); d++, rest /= 10)
			text[--at] = (char)('0' + rest % 10);
	}
	if (negative)
		text[--at] = '-';
	node->text = text + at;
	node->len = (size_t)(end - node->text);
	return 0;
}

int
pickle_spend_long(struct pickle_machine *m, uint64_t n)
{
	if (n > PICKLE_MAX_LONG_BYTES)
		return pickle_too_much(m, "a whole number of more than 4,096 bytes");
	m->longs_bytes += (size_t)n;
	if (m->longs_bytes > PICKLE_MAX_LONGS_BYTES)
		return pickle_too_much(m, "more than 1 MiB of whole numbers beyond 64 bits");
	return 0;
}

int
pickle_push_long(struct pickle_machine *m, unsigned n_len)
{
	const unsigned char *p;
	struct pickle_node *node;
	uint64_t n, value = 0;

	TRY(pickle_take_number(m, n_len, &n));
	if (n_len == 4 && n > INT32_MAX)
		return pickle_wrong(m, "a whole number of a negative length");
	TRY(pickle_take(m, n, &p));
	while (n > 8 && (p[n - 1] == 0 || p[n - 1] == 0xff) && ((p[n - 1] ^ p[n - 2]) & 0x80) == 0)
		n--; /* encoded longer than necessary */
	if (n <= 8) {
		for (size_t i = 8; i-- > 0;)
			value = value << 8 | (i < n ? p[i] : n > 0 && (p[n - 1] & 0x80) ? 0xffu : 0u);
		return pickle_push_int(m, (int64_t)value);
	}
	TRY(pickle_spend_long(m, n));
	TRY(pickle_new(m, PICKLE_INT, &node));
	TRY(put_digits(m, p, (size_t)n, node));
	return pickle_push(m, node);
}
