/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz: what every target needs: its entry, a check that ends the program, bytes in memory as a
 * source. */
#ifndef PAWL_TESTS_FUZZ_H
#define PAWL_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pawl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void
check(bool holds)
{
	if (!holds)
		abort();
}

struct bytes {
	uint8_t *ptr;
	size_t n, cap;
};

/* For a struct source: reading beyond the end is an error of the caller. */
static inline int
read_bytes(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct bytes *b = (const struct bytes *)arg;

	(void)err;
	check(offset <= b->n && n <= b->n - offset);
	memcpy(dst, b->ptr + offset, n);
	return 0;
}

#endif
