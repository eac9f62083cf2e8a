/* SPDX-License-Identifier: Apache-2.0 */
/* copy: folders of plain files: copying one durably, removing one. Nothing here follows symbolic links. */
#ifndef PAWL_CLI_COPY_H
#define PAWL_CLI_COPY_H

#include "cli.h"

/* Copies the plain files of folder `from` (not what lies in folders below, nor hidden files) into the new folder `to`,
 * with fsync of each and of the folder. A .safetensors file larger than most_bytes is PAWL_ECORRUPT. Counts into the
 * meter and stops with PAWL_ECANCELLED when it is cancelled. After a failure `to` may hold anything: remove it. */
int copy_folder(struct cli *cli, const char *from, const char *to, uint64_t most_bytes, struct pawl_meter *meter,
                struct pawl_error *err);
/* Gives a folder its final name, unless that exists (PAWL_EEXISTS), and makes that durable. */
int copy_publish(struct cli *cli, const char *from, const char *to, struct pawl_error *err);
/* Removes a folder that this command made, with all in it. Best effort. */
void copy_remove(const char *path);
/* The folder that holds `path`. */
const char *copy_parent(struct keep *keep, const char *path);
/* Refuses a place for something new that is inside a checkpoint, or inside the folders that a run keeps for itself. */
int copy_check_place(struct cli *cli, const char *path, struct pawl_error *err);

#endif
