/* SPDX-License-Identifier: Apache-2.0 */
/* plain: a store to read from, in which one object is seen as something else makes it of its bytes (unpacked). */
#ifndef PAWL_STORE_PLAIN_H
#define PAWL_STORE_PLAIN_H

#include "store/store.h"

struct store_plain_view {
	/* Once, when the object is first opened; what it makes stays until the store is closed. */
	int (*open)(struct store *inner, const char *key, void **ret, uint64_t *ret_nbytes, struct pawl_error *err);
	/* As store_ops.read; any threads. */
	int (*read)(void *opened, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	void (*close)(void *opened);
};

/* Wraps s; on success the layer owns s. Nothing can be written (PAWL_EREADONLY). All other objects are as they are. */
int store_plain_wrap(struct store *s, const char *key, const struct store_plain_view *view, struct store **ret,
                     struct pawl_error *err);

#endif
