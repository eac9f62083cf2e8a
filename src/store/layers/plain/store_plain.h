/* SPDX-License-Identifier: Apache-2.0 */
/* store_plain: a read-only store in which one object appears as a view of its stored bytes. */
#ifndef PAWL_STORE_STORE_PLAIN_H
#define PAWL_STORE_STORE_PLAIN_H

#include "store/store.h"

struct store_plain_view {
	/* Called once, when the object is first opened; *ret lives until the store is closed. */
	int (*open)(struct store *inner, const char *key, void **ret, uint64_t *ret_nbytes, struct pawl_error *err);
	/* As store_ops.read; from any thread. */
	int (*read)(void *opened, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	void (*close)(void *opened);
};

/* On success the new store owns s. It cannot be written (PAWL_EREADONLY). All other objects appear
 * as in s. */
int store_plain_wrap(struct store *s, const char *key, const struct store_plain_view *view, struct store **ret,
                     struct pawl_error *err);

#endif
