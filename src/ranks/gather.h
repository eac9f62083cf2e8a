/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather: the end of a save of many ranks, through small files in .pawl/meet/<save token>:
 *
 *   part-<rank>-<nonce>.json    a manifest with what this rank has written (state/manifest.h)
 *   fault-<rank>-<nonce>.json   why a rank could not write its part
 *   verdict.json                how the save ended; a hint, since the commit decides
 *
 * Every wait has a deadline (P16). All functions run on the saver's thread, never on the
 * training's.
 */
#ifndef PAWL_GATHER_H
#define PAWL_GATHER_H

#include "base/buf.h"
#include "ranks/rendezvous.h"
#include "run/ticket.h"
#include "store/store.h"

/* A rank's part of the save, or why there is none. Not for rank 0. */
int gather_put_part(struct store *store, const struct rendezvous *m, const char *token, const struct buf *text,
                    struct pawl_error *err);
void gather_put_fault(struct store *store, const struct rendezvous *m, const char *token, const struct pawl_error *why);

/* Where the ranks wait for each other: the end of a save, or a step of a restore (agree.h). */
struct gather_round {
	struct store *store;
	struct rendezvous *m;
	const char *token; /* of the save, or of this step */
	enum gather_kind {
		GATHER_SAVE,
		GATHER_CHOICE, /* of a restore: rank 0 chooses the checkpoint; no rank has a part */
		GATHER_RESTORE
	} kind;
	int64_t timeout_ms;         /* timeouts.commit_ms: the longest wait, counted from the call */
	struct pawl_ticket *ticket; /* shows which ranks are missing; NULL = none */
};

/* How long a rank waits in a round. Rank 0 waits less than the others, so that they receive its
 * verdict, which names the missing ranks. The others wait less than the timeout, since aborting the
 * save takes time too. */
int64_t gather_patience_ms(uint32_t rank, int64_t timeout_ms);

/* Called with each part as it arrives, in any order; text is the callee's. A failure ends the
 * gathering. */
typedef int gather_fn(void *arg, uint32_t rank, const struct buf *text, struct pawl_error *err);
/* Rank 0: waits for the parts of all others. It fails if a rank reports a fault, died, was started
 * again or is late; the error names the ranks. */
int gather_parts(const struct gather_round *round, gather_fn *fn, void *arg, struct pawl_error *err);

/* Rank 0: reports the outcome to the others: code 0 and the checkpoint's name, or an error. The
 * error means that the save never becomes a checkpoint: a rank that reads it removes its files. */
void gather_put_verdict(struct store *store, const char *token, int code, const char *name,
                        const struct pawl_error *why);
/* Another rank: waits for the verdict. 1 = committed, *ret_name (mem_free) is the checkpoint's. 0 =
 * there is none, and none will arrive in time; *err has the reason: rank 0 has gone, or the time is
 * over. Negative = the save has failed everywhere, for this reason. */
int gather_verdict(const struct gather_round *round, char **ret_name, struct pawl_error *err);
/* The same without waiting. 0 = there is none now. */
int gather_read_verdict(struct store *store, const char *token, char **ret_name, struct pawl_error *err);
/* Rank 0: removes the files of a save that all ranks have left. */
void gather_clear(struct store *store, const char *token);

#endif
