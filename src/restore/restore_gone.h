/* SPDX-License-Identifier: Apache-2.0 */
/* restore_gone: was a checkpoint that cannot be read damaged, or was it deleted while it was read? */
#ifndef PAWL_RESTORE_GONE_H
#define PAWL_RESTORE_GONE_H

#include <stdbool.h>

#include "restore/restore.h"

#define RESTORE_LOOKS 100u /* at a run whose checkpoints are deleted each time before they are read */

/* Deletion renames a checkpoint's folder, then looks for holds, and renames it back if there is one. Waits until it is
 * back; for readers whose hold was there before the folder was renamed. */
bool restore_wait_put_back(struct pawl *run, const char *name);
/* What a failure to read the checkpoint at hand means. 0: what it says; 1: a deletion was under way and was called off, read
 * again; PAWL_ENOTFOUND: the checkpoint was deleted, or another one took its place. tries: how often it was read again. */
int restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err);

#endif
