/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous_own: what rendezvous.c and rendezvous_door.c share. */
#ifndef PAWL_RENDEZVOUS_OWN_H
#define PAWL_RENDEZVOUS_OWN_H

#include <pthread.h>

#include "base/bump.h"
#include "base/mem.h"
#include "base/pool.h"
#include "ranks/rendezvous.h"
#include "ranks/rendezvous_text.h"
#include "run/lease.h"

#define RENDEZVOUS_POLL_FIRST_MS 5
#define RENDEZVOUS_LINGER_MS 5000 /* after opening, a closing rank 0 waits so long for ranks that have not joined */

struct rendezvous {
	struct store *store; /* borrowed */
	uint32_t rank, world;
	int64_t lease_timeout_ms, since_ms;
	struct lease_watch host_watch; /* of rank 0, by another rank; used by one thread at a time */
	int64_t left_ms;               /* while waiting: since when rank 0 is known to have left */
	int64_t factor;                /* of all pauses: 1, or FAR_FACTOR */
	bool by_broadcast;
	struct rendezvous_pass pass; /* fixed but for last_id, which the lock guards */
	char nonce[33];
	char job[SUM_HEX + 1]; /* checksum of the launcher's text for this start, "" if it gives none */

	struct pool *door;
	bool untold;          /* used by the door's thread only: attempt.json must be put (again) */
	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	bool stop;
	struct rendezvous_member *members; /* per rank */
	uint32_t n_members;
	struct rendezvous_refusal *refusals;
	size_t n_refusals;
	struct bump memory; /* texts of refusals */
};

/* "process 123 on host 'a'" */
void rendezvous_describe(const struct clock_process *p, char *who, size_t cap);

/* Rank 0: publishes the attempt and admits the others, on a thread of its own. */
int rendezvous_door_open(struct rendezvous *m, struct pawl_error *err);
/* Rank 0: waits for late ranks, stops that thread, and waits until the ranks that joined know it;
 * some seconds at most. */
void rendezvous_door_close(struct rendezvous *m);

#endif
