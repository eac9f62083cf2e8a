/* SPDX-License-Identifier: Apache-2.0 */
/* restore_pick: chooses the checkpoint of a restore, holds it against deletion and reads its
 * manifest. */
#ifndef PAWL_RESTORE_PICK_H
#define PAWL_RESTORE_PICK_H

#include <stdbool.h>

#include "restore/restore.h"

/* Takes the one that the caller has selected. One that vanishes meanwhile was deleted by a process
 * that had saved a newer one. So it selects again. */
int restore_pick(struct pawl_restore *r, struct pawl_error *err);
/* Makes the checkpoint with this id the current one. On failure the old one stays. */
int restore_pick_id(struct pawl_restore *r, uint64_t id, struct pawl_error *err);
/* Takes the newest valid checkpoint with an id of at most `most`, going down until one can be
 * opened. final: a vanished one is skipped like a damaged one; else it is PAWL_ENOTFOUND or
 * PAWL_ECONFLICT. One that may be intact ends it with its own error, such as PAWL_EAUTH
 * or PAWL_EVERSION. */
int restore_pick_below(struct pawl_restore *r, uint64_t most, bool final, struct pawl_error *err);
/* Adds "checkpoint_000007: why" to the fallbacks, without naming it twice. */
int restore_pick_note(struct pawl_restore *r, const char *name, const char *why, struct pawl_error *err);

#endif
