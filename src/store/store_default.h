/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_default: optional operations that the border builds from required ones, for engines that
 * lack them. s is the store to call, mostly an engine; arguments are checked. Private to src/store.
 */
#ifndef PAWL_STORE_STORE_DEFAULT_H
#define PAWL_STORE_STORE_DEFAULT_H

#include "store/store.h"

int store_default_get(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err);
int store_default_append(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err);
int store_default_pointer(struct store *s, const char *key, const char *target, struct pawl_error *err);
int store_default_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
/* If the object is larger than 8 MiB, a reader may find no object at `to` for a moment. */
int store_default_move(struct store *s, const char *from, const char *to, struct pawl_error *err);

#endif
