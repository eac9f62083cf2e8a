/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease: which process may write in a run folder now (P10). The file .lease holds the writer's
 * process and a token; a thread renews it. A second writer is refused while the holder lives. A
 * holder that lost its lease can neither commit nor delete.
 */
#ifndef PAWL_LEASE_H
#define PAWL_LEASE_H

#include <stdbool.h>

#include "base/clock.h"
#include "pawl.h"
#include "store/store.h"

#define LEASE_KEY ".lease"

struct lease;

/* What lease_take needs. The clock is for tests; NULL = the real one. */
struct lease_opts {
	bool maintenance;            /* as in pawl_open_opts: errors do not offer to open read-only */
	int64_t timeout_ms, wait_ms; /* as in pawl_open_opts.lease */
	pawl_lease_wait_fn *on_wait; /* NULL = none */
	void *on_wait_arg;
	int64_t (*now_ms)(void *arg); /* never goes back */
	void (*sleep_ms)(void *arg, int64_t ms);
	void *clock_arg;
};

/* What one observer has seen of a lease. Zero at first. */
struct lease_watch {
	char token[33];
	int64_t renewed_unix_ns; /* compared with the next one only: the clocks of hosts differ */
	int64_t since_ms;        /* by the observer's own clock: when it first saw this renewal */
	bool has_seen, has_changed;
};

/* Takes the lease, and waits for it as opts->wait_ms allows. PAWL_EBUSY names the holder. A lease
 * is taken over if its holder is provably dead, or was not seen to renew it for timeout_ms. One of
 * this process that no handle renews is taken over when its own timeout has passed. */
int lease_take(struct store *store, const struct lease_opts *opts, struct lease **ret, struct pawl_error *err);
/* 0 while the lease is still ours, else PAWL_ECONFLICT naming the new holder. */
int lease_check(struct lease *lease, struct pawl_error *err);
/* The token of a lease, 32 hex digits. */
const char *lease_token(const struct lease *lease);
/* 1 if the lease exists and has this token, alive or not. */
int lease_is(struct store *store, const char *token);
/* 1 if there is a lease, and it has another token. */
int lease_is_another(struct store *store, const char *token);
/* 1 if a process holds it that is not known to be dead. Only for display: one look cannot prove
 * more, since for a holder on another host the clocks decide. */
int lease_is_held(struct store *store, int64_t timeout_ms);
/* Looks at a lease that another process holds. 0 while it has that token and its holder is not
 * known to be dead, else PAWL_ECONFLICT with the reason. watch: kept from one look at this lease to
 * the next. */
int lease_look(struct store *store, const char *token, int64_t timeout_ms, struct lease_watch *watch,
               struct pawl_error *err);
/* The holder, and the time of its last renewal. PAWL_ENOTFOUND: the lease is free. */
int lease_read(struct store *store, struct clock_process *ret_holder, int64_t *ret_renewed_ns, struct pawl_error *err);
/* Removes the file if it is still ours, stops the thread. NULL is fine. */
void lease_drop(struct lease *lease);

#endif
