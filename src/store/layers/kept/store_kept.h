/* SPDX-License-Identifier: Apache-2.0 */
/* store_kept: a layer that keeps one object open, so that it can be read after its deletion. If it
 * was replaced or changed, the new one is shown. */
#ifndef PAWL_STORE_STORE_KEPT_H
#define PAWL_STORE_STORE_KEPT_H

#include "store/store.h"

/* Wraps *s. PAWL_ENOTFOUND if there is no such object; then, and for a folder or a link, *s stays
 * as it is. */
int store_kept_wrap(struct store **s, const char *key, struct pawl_error *err);

#endif
