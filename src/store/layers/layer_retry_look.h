/* SPDX-License-Identifier: Apache-2.0 */
/* layer_retry_look: has an operation whose answer was lost been done? False also when that cannot be found out. */
#ifndef PAWL_STORE_LAYER_RETRY_LOOK_H
#define PAWL_STORE_LAYER_RETRY_LOOK_H

#include "store/store.h"

/* Does the object hold these very bytes? */
bool look_holds(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts);
/* Do two objects hold the same? */
bool look_is_same(struct store *base, const char *one, const char *other);
/* Do the bytes stand anywhere from offset on? Others may have appended, too. */
bool look_was_appended(struct store *base, const char *key, uint64_t offset, const void *ptr, size_t len);

#endif
