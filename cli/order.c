/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order: see order.h. A name is a sequence of tokens: text and numbers alternate. Names that share
 * their first tokens are ordered by the next one: numbers by value, texts by their first use.
 */
#include "order.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ORDER_MAX_TOKENS 64u /* names that differ only after so many keep their order */
#define DIGITS "0123456789"

static bool
is_number(const struct order_item *item)
{
	return item->len > 0 && item->token[0] >= '0' && item->token[0] <= '9';
}

static int
compare_sizes(size_t a, size_t b)
{
	return (a > b) - (a < b);
}

static int
compare_tokens(const struct order_item *a, const struct order_item *b)
{
	const int order = memcmp(a->token, b->token, a->len < b->len ? a->len : b->len);

	return order != 0 ? order : compare_sizes(a->len, b->len);
}

static int
compare_values(const struct order_item *a, const struct order_item *b)
{
	const size_t zeros_a = strspn(a->token, "0"), zeros_b = strspn(b->token, "0");
	const size_t len_a = a->len - (zeros_a < a->len ? zeros_a : a->len);
	const size_t len_b = b->len - (zeros_b < b->len ? zeros_b : b->len);

	if (len_a != len_b)
		return compare_sizes(len_a, len_b);
	const int order = memcmp(a->token + a->len - len_a, b->token + b->len - len_b, len_a);

	return order != 0 ? order : compare_sizes(a->len, b->len);
}

/* Equal tokens follow each other. */
static int
by_token(const void *left, const void *right)
{
	const struct order_item *a = left, *b = right;
	const int order = compare_tokens(a, b);

	return order != 0 ? order : compare_sizes(a->index, b->index);
}

static int
by_block(const void *left, const void *right)
{
	const struct order_item *a = left, *b = right;
	int order = compare_sizes(a->block, b->block);

	if (order == 0 && is_number(a) && is_number(b))
		order = compare_values(a, b);
	return order != 0 ? order : compare_sizes(a->index, b->index);
}

/* All numbers are one block, each text is one. Its place is that of its first item. */
static void
find_blocks(struct order_item *items, size_t n)
{
	size_t numbers = SIZE_MAX;

	for (size_t i = 0; i < n; i++)
		if (is_number(&items[i]) && items[i].index < numbers)
			numbers = items[i].index;
	for (size_t i = 0; i < n; i++) {
		const bool same = i > 0 && compare_tokens(&items[i], &items[i - 1]) == 0;

		items[i].block = is_number(&items[i]) ? numbers : same ? items[i - 1].block : items[i].index;
	}
}

static void
order_from(struct order_item *items, size_t n, size_t at, unsigned depth)
{
	for (size_t i = 0; i < n; i++) {
		const size_t digits = strspn(items[i].name + at, DIGITS);

		items[i].token = items[i].name + at;
		items[i].len = digits > 0 ? digits : strcspn(items[i].token, DIGITS);
	}
	qsort(items, n, sizeof(*items), by_token);
	find_blocks(items, n);
	qsort(items, n, sizeof(*items), by_block);
	for (size_t i = 0, end; i < n; i = end) {
		const size_t len = items[i].len;

		for (end = i + 1; end < n && compare_tokens(&items[end], &items[i]) == 0;)
			end++;
		if (end - i > 1 && len > 0 && depth < ORDER_MAX_TOKENS)
			order_from(items + i, end - i, at + len, depth + 1);
	}
}

void
order_numbers(struct order_item *items, size_t n)
{
	for (size_t i = 0; i < n; i++)
		items[i].index = i;
	if (n > 1)
		order_from(items, n, 0, 0);
}
