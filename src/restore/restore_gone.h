/* SPDX-License-Identifier: Apache-2.0 */
/* restore_gone: tells whether an unreadable checkpoint is damaged, or was deleted while it was
 * read. */
#ifndef PAWL_RESTORE_GONE_H
#define PAWL_RESTORE_GONE_H

#include <stdbool.h>

#include "restore/restore.h"

#define RESTORE_LOOKS 100u /* for a run whose checkpoints are deleted each time before they are read */

/* Deletion renames a checkpoint's folder, then looks for holds, and renames it back if there is
 * one. Waits until it is back. For readers that had a hold before the folder was renamed. */
bool restore_wait_put_back(struct pawl *run, const char *name);
/* What a failure to read the current checkpoint means. 0: the failure itself; 1: a deletion was
 * called off, read again; PAWL_ENOTFOUND: the checkpoint was deleted, or another one took its
 * place. tries: how often it was read again. */
int restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err);

#endif
