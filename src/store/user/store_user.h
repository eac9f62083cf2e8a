/* SPDX-License-Identifier: Apache-2.0 */
/* store_user: an engine that calls the caller's own functions (struct pawl_stores), for URLs of
 * other schemes. */
#ifndef PAWL_STORE_STORE_USER_H
#define PAWL_STORE_STORE_USER_H

#include "store/store.h"

/* PAWL_EUSAGE if the table is incomplete. */
int store_user_check(const struct pawl_stores *stores, struct pawl_error *err);
/* Copies the table; name and arg must live until the store is closed. Adds no layers. */
int store_user_open(const struct pawl_stores *stores, const char *url, bool create, struct store **ret,
                    struct pawl_error *err);

#endif
