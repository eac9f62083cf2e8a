/* SPDX-License-Identifier: Apache-2.0 */
/* place: where a path leads to inside of a run. */
#ifndef PAWL_PLACE_H
#define PAWL_PLACE_H

#include "run/run.h"

/* PAWL_EUSAGE if a run is about to be begun inside of another one. */
int run_check_place(struct pawl *run, struct pawl_error *err);
/* Reading: holds the checkpoint of a run that is opened by its own path, or by that of a file in it. */
int run_hold_place(struct pawl *run, struct pawl_error *err);
/* True if no program that keeps to the rules changes the files of this single checkpoint while it is open: it is held, or it
 * is a checkpoint of pawl's that lies in no run. */
bool run_place_is_safe(const struct pawl *run);
void run_drop_place(struct pawl *run);

#endif
