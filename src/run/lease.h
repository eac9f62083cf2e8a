/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease: who writes in a run folder now (P10). The file .lease holds the writer's process and a token and is renewed by
 * a thread; a second writer is refused while the holder lives, and a holder that lost its lease can neither commit nor
 * delete.
 */
#ifndef PAWL_LEASE_H
#define PAWL_LEASE_H

#include "pawl.h"
#include "store/store.h"

#define LEASE_KEY ".lease"

struct lease;

/* PAWL_EBUSY names the holder. A dead process's lease, or another host's that was not renewed for timeout_ms, is taken
 * over. */
int lease_take(struct store *store, int64_t timeout_ms, struct lease **ret, struct pawl_error *err);
/* 0 while the lease is still ours, else PAWL_ECONFLICT naming the new holder. */
int lease_check(struct lease *lease, struct pawl_error *err);
/* The token of a lease, 32 hex digits. */
const char *lease_token(const struct lease *lease);
/* 1 if the lease is there and has this token, alive or not. */
int lease_is(struct store *store, const char *token);
/* 1 if there is a lease, and it has another token. */
int lease_is_another(struct store *store, const char *token);
/* 1 if somebody holds it who is not known to be gone. */
int lease_is_held(struct store *store, int64_t timeout_ms);
/* Looks at a lease that another process holds: 0 while it has that token and its holder is not known to be gone, else
 * PAWL_ECONFLICT saying what has become of it. */
int lease_look(struct store *store, const char *token, int64_t timeout_ms, struct pawl_error *err);
/* Removes the file if it is still ours, stops the thread. NULL is fine. */
void lease_drop(struct lease *lease);

#endif
