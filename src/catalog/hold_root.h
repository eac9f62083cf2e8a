/* SPDX-License-Identifier: Apache-2.0 */
/* hold_root: holds a single checkpoint in its run while it is read by its own path, or by that of a
 * file in it (P6). */
#ifndef PAWL_HOLD_ROOT_H
#define PAWL_HOLD_ROOT_H

#include "run/run.h"

/* A hold on a checkpoint that is about to be read. If its deletion has begun, PAWL_ENOTFOUND at
 * once: the caller looks for another one. None, and 0, for a single checkpoint, which
 * hold_root_take holds. */
int hold_for_reading(struct pawl *run, uint64_t id, struct pawl_hold **ret, struct pawl_error *err);
/* Closes holds of one run, which may be NULL, and reads the holds that remain once. */
void hold_close_all(struct pawl *run, struct pawl_hold **holds, size_t n);

/* Does nothing for a run, and outside of one. */
int hold_root_take(struct pawl *run, struct pawl_error *err);
void hold_root_drop(struct pawl *run);

#endif
