/* SPDX-License-Identifier: Apache-2.0 */
/* meet_own: what the files of meet share (meet.c, meet_door.c). */
#ifndef PAWL_MEET_OWN_H
#define PAWL_MEET_OWN_H

#include <pthread.h>

#include "base/mem.h"
#include "base/pool.h"
#include "ranks/meet.h"
#include "ranks/meet_text.h"
#include "run/lease.h"

#define MEET_POLL_FIRST_MS 5
#define MEET_LINGER_MS 5000 /* so long after opening rank 0 that closes the run still waits for those who have not come */

struct meet {
	struct store *store; /* borrowed */
	uint32_t rank, world;
	int64_t lease_timeout_ms, since_ms;
	struct lease_watch host_watch; /* of rank 0, by another rank; used by one thread at a time */
	int64_t left_ms; /* while waiting: since when rank 0 is known to have left */
	int64_t factor;  /* of all pauses: 1, or FAR_FACTOR */
	bool by_broadcast;
	struct meet_pass pass; /* fixed but for last_id, which the lock guards */
	char nonce[33];
	char job[SUM_HEX + 1]; /* sum of the launcher's text for this start, "" if it gives none */

	struct pool *door;
	bool untold;          /* the door's own: attempt.json is to be put (again) */
	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	bool stop;
	struct meet_member *members; /* per rank */
	uint32_t n_members;
	struct meet_refusal *refusals;
	size_t n_refusals;
	struct bump memory; /* texts of refusals */
};

/* "process 123 on host 'a'" */
void meet_describe(const struct clock_process *p, char *who, size_t cap);

/* Rank 0: shows the attempt, and lets the others in from now on, on a thread of its own. */
int meet_door_open(struct meet *m, struct pawl_error *err);
/* Rank 0: waits for who is late, stops that thread, and waits until those who came know it; for some seconds at most. */
void meet_door_close(struct meet *m);

#endif
