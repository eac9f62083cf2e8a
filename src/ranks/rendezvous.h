/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous: how the ranks of a job find each other: by small files in the run's folder. Below
 * .pawl/meet:
 *
 *   attempt.json               rank 0's: the token of this attempt, and the processes in it
 *   join-<rank>-<nonce>.json   another rank's request to join
 *   <save token>/...           the parts and the verdict of one save (gather.h)
 *
 * Rank 0 makes a random token when it opens the run. Another rank learns it only from an
 * attempt.json that lists its own nonce. So no file of an earlier attempt is ever taken for one of
 * this attempt (P2, P11). Of two live processes that claim one rank, the second is refused.
 *
 * Rank 0 opens at once; its own thread admits the others whenever they join. With a broadcast
 * function, no files are used: the text of the attempt is broadcast.
 */
#ifndef PAWL_RENDEZVOUS_H
#define PAWL_RENDEZVOUS_H

#include <stdbool.h>

#include "base/clock.h"
#include "pawl.h"
#include "store/store.h"

#define RENDEZVOUS_FOLDER ".pawl/meet"

struct rendezvous;

/* What all ranks share. */
struct rendezvous_pass {
	char token[33]; /* of the attempt */
	char run_id[33];
	char lease[33]; /* token of the lease that rank 0 holds, "" if the store has none */
	uint64_t attempt;
	uint64_t last_id; /* ids of saves continue from here */
	int64_t created_ns;
};

struct rendezvous_opts {
	const struct pawl_rank *rank;
	int64_t timeout_ms; /* how long to wait to be admitted */
	int64_t lease_timeout_ms;
	pawl_broadcast_fn *broadcast; /* or NULL */
	void *broadcast_arg;
};

/* Rank 0, which holds the run's lease: removes what earlier attempts left, makes pass->token,
 * admits other ranks. */
int rendezvous_host(struct store *store, const struct rendezvous_opts *opts, struct rendezvous_pass *pass,
                    struct rendezvous **ret, struct pawl_error *err);
/* Another rank: waits to be admitted. PAWL_ETIMEOUT if rank 0 does not open the run, PAWL_EBUSY if
 * another process has this rank, PAWL_EMISMATCH if the world's size is not rank 0's. Errors of the
 * store are waited out, and reported when the time is over; a missing permission at once. */
int rendezvous_join(struct store *store, const struct rendezvous_opts *opts, struct rendezvous_pass *ret_pass,
                    struct rendezvous **ret, struct pawl_error *err);
/* Stops admitting; NULL is fine. Rank 0 first waits until all others have joined or were refused,
 * so that a rank that starts a little later learns the outcome. This wait ends some seconds after
 * it opened. Then rank 0 waits, for some seconds at most, until the ranks that joined have read
 * that they were admitted. */
void rendezvous_leave(struct rendezvous *m);

uint32_t rendezvous_rank(const struct rendezvous *m);
uint32_t rendezvous_world(const struct rendezvous *m);
/* This process's nonce, 32 hex digits. */
const char *rendezvous_nonce(const struct rendezvous *m);
/* The token of the save with this id: the same on all ranks of the attempt, and unique to it. */
void rendezvous_save_token(const struct rendezvous *m, uint64_t id, char ret[33]);
/* Rank 0: a rank that is started again counts its saves from here. */
void rendezvous_note_id(struct rendezvous *m, uint64_t id);

enum rendezvous_state {
	RENDEZVOUS_UNSEEN, /* has never joined */
	RENDEZVOUS_ALIVE,  /* or not known to be dead */
	RENDEZVOUS_DEAD
};
/* Rank 0: the nonce of the process that has a rank now, "" if none has joined. */
void rendezvous_nonce_of(struct rendezvous *m, uint32_t rank, char ret[33]);
/* Rank 0: the known state of that process; who: "process 123 on host 'a'". */
enum rendezvous_state rendezvous_look(struct rendezvous *m, uint32_t rank, char *who, size_t who_cap);
/* Rank 0: was a process of this rank refused because of another world size, with no other joining
 * since? */
bool rendezvous_refused(struct rendezvous *m, uint32_t rank, char *why, size_t why_cap);
/* ret, one for each rank: has it never joined? Ranks other than 0 use attempt.json; if they cannot
 * read it, all ranks count as joined. */
void rendezvous_find_unopened(struct rendezvous *m, bool *ret);
/* Another rank: 0 while rank 0 may be alive, else PAWL_ECONFLICT with the reason. */
int rendezvous_check_host(struct rendezvous *m, struct pawl_error *err);
/* Is the lease still that of this attempt's rank 0, dead or alive? */
bool rendezvous_is_current(const struct rendezvous *m);
/* When rank 0 opened the run, clock_mono_ms; of another rank: when it was admitted. */
int64_t rendezvous_since_ms(const struct rendezvous *m);

#endif
