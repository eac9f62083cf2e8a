/* SPDX-License-Identifier: Apache-2.0 */
/* restore_gone: tells whether an unreadable checkpoint is damaged, or was deleted while it was
 * read. */
#ifndef PAWL_RESTORE_GONE_H
#define PAWL_RESTORE_GONE_H

#include "restore/restore.h"

#define RESTORE_LOOKS 100u /* for a run whose checkpoints are deleted each time before they are read */

/* What a failure to read the current checkpoint means. 0: the failure itself; 1: a deletion was
 * called off, read again; PAWL_ENOTFOUND: the checkpoint was deleted, or another one took its
 * place. tries: how often it was read again. */
int restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err);

#endif
