/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_turn: the turn of a save. A call waits until it may begin one, and hands it to the threads
 * that write. While it waits it asks its caller whether to go on (pawl_save_opts.interrupted).
 */
#ifndef PAWL_WRITER_TURN_H
#define PAWL_WRITER_TURN_H

#include "save/writer.h"

#define WRITER_TURN_ASK_MS 100 /* between questions to the caller */

/* PAWL_ECANCELLED: the caller interrupts. opts has `interrupted`. */
int writer_turn_ask(const struct pawl_save_opts *opts, struct pawl_error *err);
/* Waits for a turn by a rule (enum pawl_on_busy). opts NULL: no caller is asked. After success the
 * call must hand over or give up. deferred: another save is still being written. */
int writer_turn_admit(struct writer *w, int policy, const struct pawl_save_opts *opts, bool *ret_deferred,
                      struct pawl_error *err);
/* Drops the call's reference to s, which may be NULL. */
void writer_turn_give_up(struct writer *w, struct save *s);
/* Makes s the running save, or the queued one. Returns with a reference kept for the caller. */
int writer_turn_hand_over(struct writer *w, struct save *s, struct pawl_error *err);
/* Waits until no save is being written. */
int writer_turn_wait_active(struct writer *w, const struct pawl_save_opts *opts, struct pawl_error *err);

#endif
