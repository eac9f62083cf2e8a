/* SPDX-License-Identifier: Apache-2.0 */
/* state_rename: moves parts of a decoded state to other paths. */
#ifndef PAWL_STATE_RENAME_H
#define PAWL_STATE_RENAME_H

#include "base/buf.h"
#include "state/state.h"

/* Appends the new path of the leaf at `path`; the same path if it stays. */
typedef void state_rename_fn(void *arg, const char *path, struct buf *ret);
/* Lists, tuples and values per rank move as they are, when all of their leaves move together.
 * PAWL_EEXISTS: two leaves would have one path. PAWL_EUSAGE: an element of a list or tuple would
 * move alone. After a failure the state is incomplete. */
int state_rename(struct pawl_state *state, state_rename_fn *fn, void *arg, struct pawl_error *err);

#endif
