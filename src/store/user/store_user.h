/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_user: an engine of the caller's own functions (struct pawl_stores in pawl.h), for URLs of kinds that no engine
 * here knows. Called by store_open_with; its file names no other engine.
 */
#ifndef PAWL_STORE_STORE_USER_H
#define PAWL_STORE_STORE_USER_H

#include "store/store.h"

/* Is the table whole? PAWL_EUSAGE names what is missing. */
int store_user_check(const struct pawl_stores *stores, struct pawl_error *err);
/* The table is copied; what its arg points to must live until the store is closed. Nothing is wrapped around it. */
int store_user_open(const struct pawl_stores *stores, const char *url, bool create, struct store **ret,
		    struct pawl_error *err);

#endif
