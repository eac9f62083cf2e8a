/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_checkpoints: the folders of a trial's checkpoints on the disk: there or not, removed, cloned. A checkpoint is immutable
 * once it has its name, so that a clone is links to its files: it costs a call per file and no bytes (R158), and each of the two
 * may go without the other. Which to keep is decided in experiment_apply.c.
 */
#ifndef PAWL_TUNE_TRIAL_CHECKPOINTS_H
#define PAWL_TUNE_TRIAL_CHECKPOINTS_H

#include <stdbool.h>

#include "pawl.h"

/* A plain name: not empty, no '/', no '.' first, no control letters. */
bool checkpoint_is_name(const char *name);
bool checkpoint_is_there(int dirfd, const char *trial, const char *name);
/* Under another name first, so that half of it is never seen. Missing is success. */
int checkpoint_remove(int dirfd, const char *trial, const char *name, struct pawl_error *err);
/* donor/name becomes trial/as: whole and durable, or not there. Links; where the file system has none, copies. */
int checkpoint_clone(int from_dirfd, const char *donor, const char *name, int dirfd, const char *trial, const char *as,
                     struct pawl_error *err);
/* A copy of a file of one folder in another, durable; one that lies there is replaced. */
int checkpoint_copy_file(int from_dirfd, int to_dirfd, const char *name, struct pawl_error *err);
/* Removes what a crash left in the trial's folder: saves and clones under hidden names. */
void checkpoint_sweep(int dirfd, const char *trial);

#endif
