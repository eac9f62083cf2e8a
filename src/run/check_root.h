/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_root: refuses to begin a run inside another one. Without it a path that is one folder too
 * deep (a checkpoint, or the folder with all checkpoints) would begin a new run. That run would
 * have no checkpoint to continue from.
 */
#ifndef PAWL_CHECK_ROOT_H
#define PAWL_CHECK_ROOT_H

#include "run/run.h"

/* PAWL_EUSAGE names the path that was probably meant. */
int check_root(struct pawl *run, struct pawl_error *err);
/* A new run must not be named like a checkpoint of a run that exists (RUN@10): PAWL_EUSAGE. */
int check_root_name(const char *root, struct pawl_error *err);
/* Opens the store of the run whose checkpoints are in `folder`, of len characters. *ret is NULL if
 * there is none. stores: as in store_open_with. */
int check_root_open_run(const struct pawl_stores *stores, const char *folder, size_t len, struct store **ret,
                        struct pawl_error *err);

#endif
