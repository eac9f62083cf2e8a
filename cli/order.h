/* SPDX-License-Identifier: Apache-2.0 */
/* order: puts the numbers in names in order, and changes nothing else. */
#ifndef PAWL_CLI_ORDER_H
#define PAWL_CLI_ORDER_H

#include <stddef.h>

struct order_item {
	const char *name;
	size_t index; /* position before */

	/* for order.c */
	const char *token;
	size_t len, block;
};

/* "h.10", "head", "h.2" become "h.2", "h.10", "head": names that are equal up to a number follow
 * each other by that number. Apart from that, the earlier ones stay first. */
void order_numbers(struct order_item *items, size_t n);

#endif
