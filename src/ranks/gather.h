/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather: the end of a save of many ranks, through small files in .pawl/meet/<save token>:
 *
 *   part-<rank>-<nonce>.json    what a rank has written: a manifest with the pieces of this rank (manifest.h)
 *   fault-<rank>-<nonce>.json   a rank that could not
 *   verdict.json                how the save has ended; a hint, since the commit itself decides (commit.c)
 *
 * Every wait has a deadline (P16). All functions run on the saver's thread, never on the training's.
 */
#ifndef PAWL_GATHER_H
#define PAWL_GATHER_H

#include "base/buf.h"
#include "ranks/meet.h"
#include "run/ticket.h"
#include "store/store.h"

/* A rank's part of the save, or why there is none. Not for rank 0. */
int gather_put_part(struct store *store, const struct meet *m, const char *token, const struct buf *text,
                    struct pawl_error *err);
void gather_put_fault(struct store *store, const struct meet *m, const char *token, const struct pawl_error *why);

/* What the ranks wait for each other at: the end of a save, or a step of a restore (agree.h). */
struct gather_round {
	struct store *store;
	struct meet *m;
	const char *token;          /* of the save, or of this step */
	enum gather_kind {
		GATHER_SAVE,
		GATHER_CHOICE, /* of a restore: rank 0 says which checkpoint; nobody gives a part */
		GATHER_RESTORE
	} kind;
	int64_t timeout_ms;         /* the run's commit_timeout: nobody waits longer, counted from the call */
	struct pawl_ticket *ticket; /* is told whom it waits for; NULL = none */
};

/* How long a rank waits in a round. Rank 0 waits less than the others, so that its verdict, which names who is missing, has
 * come by then; they wait less than all of it, since calling the save off takes its time, too. */
int64_t gather_patience_ms(uint32_t rank, int64_t timeout_ms);

/* Called with each part as it comes, in any order; text is the callee's. A failure ends the gathering. */
typedef int gather_fn(void *arg, uint32_t rank, const struct buf *text, struct pawl_error *err);
/* Rank 0: waits for the parts of all others. A rank that reports a fault, has died or was started anew, or does not
 * come in time, fails it; the error names the ranks. */
int gather_parts(const struct gather_round *round, gather_fn *fn, void *arg, struct pawl_error *err);

/* Rank 0: tells the others how it ended: code 0 and the checkpoint's name, or an error. */
void gather_put_verdict(struct store *store, const char *token, int code, const char *name,
                        const struct pawl_error *why);
/* Another rank: waits for the verdict. 1 = committed, *ret_name (mem_free) is the checkpoint's; 0 = there is none, and
 * there will be none in time (*err says why: rank 0 has gone, or the time is over); negative = the save has failed
 * everywhere, for this reason. */
int gather_verdict(const struct gather_round *round, char **ret_name, struct pawl_error *err);
/* The same without waiting. 0 = there is none now. */
int gather_read_verdict(struct store *store, const char *token, char **ret_name, struct pawl_error *err);
/* Rank 0: removes the files of a save that everybody has left. */
void gather_clear(struct store *store, const char *token);

#endif
