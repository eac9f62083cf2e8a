/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_checkpoints: the folders of a trial's checkpoints on the disk: test, remove, clone. A
 * checkpoint is immutable once it has its name, so a clone consists of links to its files. It costs
 * a call per file and no bytes (R158), and either of the two may be removed alone.
 */
#ifndef PAWL_TUNE_TRIAL_CHECKPOINTS_H
#define PAWL_TUNE_TRIAL_CHECKPOINTS_H

#include <stdbool.h>

#include "pawl.h"
#include "strings.h"

/* Is it a plain name: not empty, no '/', no '.' first, no control characters? */
bool trial_checkpoint_is_name(const char *name);
/* PAWL_ENOTFOUND: no folder has this name. After another error it may exist. */
int trial_checkpoint_find(int dirfd, const char *trial, const char *name, struct pawl_error *err);
/* Renames it first, so that a partly removed checkpoint is never visible. A missing checkpoint
 * counts as success. */
int trial_checkpoint_remove(int dirfd, const char *trial, const char *name, struct pawl_error *err);
/* Clones donor/name to trial/as: complete and durable, or not at all. Uses links; copies where the
 * file system has none. */
int trial_checkpoint_clone(int from_dirfd, const char *donor, const char *name, int dirfd, const char *trial,
                           const char *as, struct pawl_error *err);
/* Copies a file from one folder to another, durably; an existing file is replaced. */
int trial_checkpoint_copy_file(int from_dirfd, int to_dirfd, const char *name, struct pawl_error *err);
/* Adds the names of the entries of a trial's folder, without hidden ones. After an error some are
 * missing. */
void trial_checkpoint_list(int dirfd, const char *trial, struct strings *ret);
/* Removes saves and clones that a crash left under hidden names in the trial's folder. */
void trial_checkpoint_sweep(int dirfd, const char *trial);

#endif
