/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree: the ranks of a job restore the same checkpoint, or none (P11). Each question is a round.
 * All ranks ask in the same order, so rounds have the same numbers everywhere. A round uses the
 * same files as the end of a save (gather.h).
 *
 *   which checkpoint?   rank 0 decides; the others wait for its verdict
 *   did it work?        each rank reports; rank 0 reports the result of all, with the first failure
 *
 * The saves of all ranks have the same numbers too: each rank counts them, the failed ones as well.
 *
 * How a rank takes part is chosen once, when the run is opened. A process that is alone agrees with
 * itself at once.
 */
#ifndef PAWL_AGREE_H
#define PAWL_AGREE_H

#include "ranks/gather.h"
#include "run/run.h"

struct agree_ops {
	bool is_shared; /* other ranks take part */
	bool is_led;    /* rank 0 decides, and this is another rank */
	void (*announce)(struct pawl *run, uint64_t id, int code, const struct pawl_error *why);
	int (*on)(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err);
	void (*give_up)(struct pawl *run, const struct pawl_error *why);

	/* Counts a save, and returns its id. 0 = alone: the run gives the id. */
	uint64_t (*next_save)(struct pawl *run);
	int (*save_token)(const struct pawl *run, uint64_t id, char ret[33], struct pawl_error *err);
	/* Is this the token of the save after the latest one? Another rank may have begun it. */
	bool (*is_next_save)(struct pawl *run, const char *token);
	/* Reports to the other ranks that the save has failed here before this rank's part was
	 * written. */
	void (*report_save)(struct pawl *run, uint64_t id, const struct pawl_error *why);
	/* Does this job still own the run? */
	bool (*is_current)(const struct pawl *run);
};

extern const struct agree_ops agree_alone, agree_host, agree_guest;

/* Rank 0: code < 0 means that there is not a checkpoint to restore, because of *why. */
void agree_announce(struct pawl *run, uint64_t id, int code, const struct pawl_error *why);
/* Another rank: waits for the verdict. *ret_id, or rank 0's error. */
int agree_listen(struct pawl *run, uint64_t *ret_id, struct pawl_error *err);
/* code: the result on this rank, with *err; text: what rank 0 should know. Rank 0 calls fn with the
 * texts of the others; fn may refuse one. Returns 0 if it worked on all ranks, else the first
 * failure ("rank 2: ..."). */
int agree_on(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err);
/* The same at the end of a restore. *nbytes: what this rank has read; on rank 0 the total of all
 * ranks. May be NULL. */
int agree_outcome(struct pawl *run, int code, uint64_t *nbytes, struct pawl_error *err);
/* Instead of agree_outcome, on a rank that gives up: does not wait for the others. */
void agree_give_up(struct pawl *run, const struct pawl_error *why);

#endif
