/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abort_commit: how a save is aborted where folders cannot be renamed. A checkpoint begins to exist
 * when its manifest is put, only if the key is free. The mark of an aborted save is put under the
 * same key in the same way. So there is one decision, and the second writer finds it made. That
 * holds even for a writer that was overtaken between its last check and its put.
 *
 *   checkpoints/<name>/manifest.json    {"pawl_withdrawn":1,"token":"<token>","by":"<32 hex>"}
 *
 * token is the save's, "" where it is not known. Only two processes put the mark:
 *   - a rank whose packs are in the folder, if the run was still its own when it checked after them
 *   - the process that has taken the run over, for every folder that has no manifest
 * The model tests/model/bucket.pml shows that no other save is ever aborted. Promises P2, P10, P11.
 */
#ifndef PAWL_ABORT_COMMIT_H
#define PAWL_ABORT_COMMIT_H

#include <stdbool.h>

#include "pawl.h"
#include "store/store.h"

/* Aborts the save in a folder. PAWL_EEXISTS: it was decided before. token: NULL = unknown. */
int abort_commit_put(struct store *store, const char *folder, const char *token, struct pawl_error *err);
/* The same for every folder in `folder` that has no manifest. */
int abort_commit_all(struct store *store, const char *folder, struct pawl_error *err);
/* Removes a folder that is not a checkpoint, but keeps the mark of the aborted save, which a late
 * writer must find. PAWL_EEXISTS: it is a checkpoint. */
int abort_commit_remove(struct store *store, const char *folder, struct pawl_error *err);
/* Removes the marks of saves that were aborted a week ago and left nothing else: no writer can be
 * that late. Adds their number to *count. */
int abort_commit_forget(struct pawl *run, bool dry_run, uint64_t *count, struct pawl_error *err);

#endif
