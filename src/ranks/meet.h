/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet: how the ranks of a job find each other: through small files in the run's folder, never by messages. Below
 * .pawl/meet:
 *
 *   attempt.json                 rank 0's: the token of this attempt, and which processes take part in it
 *   join-<rank>-<nonce>.json     a rank's: I am here, let me in
 *   <save token>/...             the parts and the verdict of one save (gather.h)
 *
 * The token is random, made by rank 0 when it opens the run; a rank knows it only from the attempt.json that lists the
 * rank's own nonce. So nothing that an earlier attempt left behind is ever taken for this one's (P2, P11). Two live
 * processes that claim one rank are told so: the second is refused.
 *
 * Rank 0 opens at once; a thread of its own lets the others in, whenever they come. With a broadcast function there are
 * no files: the attempt's text is handed to all.
 */
#ifndef PAWL_MEET_H
#define PAWL_MEET_H

#include <stdbool.h>

#include "base/clock.h"
#include "pawl.h"
#include "store/store.h"

#define MEET_FOLDER ".pawl/meet"

struct meet;

/* What every rank must know alike. */
struct meet_pass {
	char token[33]; /* of the attempt */
	char run_id[33];
	char lease[33]; /* token of the lease that rank 0 holds, "" if the store has none */
	uint64_t attempt;
	uint64_t last_id; /* ids of saves count on from here */
	int64_t created_ns;
};

struct meet_opts {
	const struct pawl_rank *rank;
	int64_t timeout_ms; /* how long to wait to be let in */
	int64_t lease_timeout_ms;
	pawl_broadcast_fn *broadcast; /* or NULL */
	void *broadcast_arg;
};

/* Rank 0, which holds the run's lease: clears what earlier attempts left, makes pass->token, opens the door. */
int meet_host(struct store *store, const struct meet_opts *opts, struct meet_pass *pass, struct meet **ret,
              struct pawl_error *err);
/* Another rank: waits to be let in. PAWL_ETIMEOUT if rank 0 does not come, PAWL_EBUSY if another process has this rank,
 * PAWL_EMISMATCH if the world's size is not rank 0's. */
int meet_join(struct store *store, const struct meet_opts *opts, struct meet_pass *ret_pass, struct meet **ret,
              struct pawl_error *err);
/* Stops the door; NULL is fine. Rank 0 keeps it open until all others have come or were refused, at most until some
 * seconds after it opened: who starts a little later should find out what has happened. Then it waits, for some seconds
 * at most, until those who came have read that they are in. */
void meet_leave(struct meet *m);

uint32_t meet_rank(const struct meet *m);
uint32_t meet_world(const struct meet *m);
/* This process's nonce, 32 hex digits. */
const char *meet_nonce(const struct meet *m);
/* The token of the save with this id: the same on all ranks of the attempt, and nowhere else. */
void meet_save_token(const struct meet *m, uint64_t id, char ret[33]);
/* Rank 0: a rank that comes anew counts its saves from here. */
void meet_note_id(struct meet *m, uint64_t id);

enum meet_state {
	MEET_UNSEEN, /* has never come */
	MEET_ALIVE,  /* or not known to be dead */
	MEET_DEAD
};
/* Rank 0: the nonce of the process that has a rank now, "" if none has come. */
void meet_nonce_of(struct meet *m, uint32_t rank, char ret[33]);
/* Rank 0: what is known of that process; who: "process 123 on host 'a'". */
enum meet_state meet_look(struct meet *m, uint32_t rank, char *who, size_t who_cap);
/* Rank 0: has a process of this rank been refused because it believes in another world, and no other come since? */
bool meet_refused(struct meet *m, uint32_t rank, char *why, size_t why_cap);
/* ret, one for each rank: has it never come? A rank that is not rank 0 goes by attempt.json; what it cannot read there it
 * takes for one that has. */
void meet_find_unopened(struct meet *m, bool *ret);
/* Another rank: 0 while rank 0 may still be there, else PAWL_ECONFLICT saying why not. */
int meet_check_host(struct meet *m, struct pawl_error *err);
/* Is the lease still that of this attempt's rank 0, dead or alive? */
bool meet_is_current(const struct meet *m);
/* When rank 0 opened the run, clock_mono_ms; of another rank: when it was let in. */
int64_t meet_since_ms(const struct meet *m);

#endif
