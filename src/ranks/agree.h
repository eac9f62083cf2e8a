/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree: the ranks of a job restore the same checkpoint, or none (P11). Each question is a round, numbered alike on all
 * ranks because all ask in the same order; its files are those of a save's end (gather.h).
 *
 *   which one?       rank 0 says; the others wait for its word
 *   did it work?     everybody says; rank 0 tells all whether it worked for all, and if not, for whom not and why
 *
 * Alone there is nothing to agree on: every function returns at once.
 */
#ifndef PAWL_AGREE_H
#define PAWL_AGREE_H

#include "ranks/gather.h"
#include "run/run.h"

/* Rank 0: code < 0: there is none, because of *why. */
void agree_announce(struct pawl *run, uint64_t id, int code, const struct pawl_error *why);
/* The others: waits for the word. *ret_id, or rank 0's error. */
int agree_listen(struct pawl *run, uint64_t *ret_id, struct pawl_error *err);
/* code: how it went here, with *err; text: what rank 0 should know. Rank 0 calls fn with the texts of the others, which may
 * refuse one. Returns 0 if it went well everywhere, else the first trouble ("rank 2: ..."). */
int agree_on(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err);
/* The same at the end of a restore. *nbytes: what this rank has read; on rank 0 what all have. May be NULL. */
int agree_outcome(struct pawl *run, int code, uint64_t *nbytes, struct pawl_error *err);
/* Instead of agree_outcome, by somebody who gives up: does not wait for the others. */
void agree_give_up(struct pawl *run, const struct pawl_error *why);

#endif
