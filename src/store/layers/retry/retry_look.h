/* SPDX-License-Identifier: Apache-2.0 */
/* retry_look: finds out whether an operation whose answer was lost has been done. False also if
 * that cannot be found out. */
#ifndef PAWL_STORE_LAYER_RETRY_LOOK_H
#define PAWL_STORE_LAYER_RETRY_LOOK_H

#include "store/store.h"

/* True if the object holds exactly these bytes. */
bool retry_look_holds(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts);
/* True if both objects hold the same bytes. */
bool retry_look_is_same(struct store *base, const char *one, const char *other);
/* True if the object holds the bytes anywhere from offset on. Other writers may have appended,
 * too. */
bool retry_look_was_appended(struct store *base, const char *key, uint64_t offset, const void *ptr, size_t len);

#endif
