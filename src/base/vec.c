/* SPDX-License-Identifier: Apache-2.0 */
/* vec: how arrays grow: to 16 items at first, then twice as many each time. */
#include "base/vec.h"

#include <stdint.h>
#include <string.h>

enum { FIRST_ITEMS = 16 };

bool
vec_reserve_items(void **items, size_t *capacity, size_t n, size_t item_bytes)
{
	if (n <= *capacity)
		return true;
	size_t more = *capacity <= SIZE_MAX / 2 ? 2 * *capacity : SIZE_MAX;
	if (more < n)
		more = n;
	if (more < FIRST_ITEMS)
		more = FIRST_ITEMS;
	void *grown = mem_resize(*items, more, item_bytes);
	if (!grown)
		return false;
	*items = grown;
	*capacity = more;
	return true;
}

void *
vec_add_item(void **items, size_t *n, size_t *capacity, size_t item_bytes)
{
	if (!vec_reserve_items(items, capacity, *n + 1, item_bytes))
		return NULL;
	void *item = (char *)*items + *n * item_bytes;
	memset(item, 0, item_bytes);
	++*n;
	return item;
}
