/* SPDX-License-Identifier: Apache-2.0 */
/* source: bytes to read from, in any storage. Readers of formats with more than a header use it. */
#ifndef PAWL_FORMAT_SOURCE_H
#define PAWL_FORMAT_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct source {
	const char *what; /* names it in errors */
	uint64_t nbytes;
	/* Exactly n bytes from offset on, which is at most nbytes - n; or an error. */
	int (*read)(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	void *arg;
};

/* PAWL_ECORRUPT for a range outside the source. */
static inline int
source_read(const struct source *s, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	if (n > s->nbytes || offset > s->nbytes - n)
		return err_set(err, PAWL_ECORRUPT, "%s: expected %zu bytes at %llu, but there are %llu in all", s->what,
		               n, (unsigned long long)offset, (unsigned long long)s->nbytes);
	return n > 0 ? s->read(s->arg, offset, dst, n, err) : 0;
}

#endif
