/* SPDX-License-Identifier: Apache-2.0 */
/* store_kept: a layer that keeps one object open, so that it can be read after its deletion. If the
 * object changes or is replaced, the layer passes all calls on. */
#ifndef PAWL_STORE_STORE_KEPT_H
#define PAWL_STORE_STORE_KEPT_H

#include "store/store.h"

/* Wraps *s. A folder or a link leaves *s as it is, and so does PAWL_ENOTFOUND: there is no such
 * object. The engine must have stat_reader. */
int store_kept_wrap(struct store **s, const char *key, struct pawl_error *err);

#endif
