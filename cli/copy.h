/* SPDX-License-Identifier: Apache-2.0 */
/* copy: folders that a command creates: where they may be, their final name, their removal.
 * Symbolic links are never followed. */
#ifndef PAWL_CLI_COPY_H
#define PAWL_CLI_COPY_H

#include "cli.h"

/* Renames a folder to its final name, unless that exists (PAWL_EEXISTS), and makes that durable. */
int copy_publish(const char *from, const char *to, struct pawl_error *err);
/* Removes a folder that this command made, with its contents. Best effort. */
void copy_remove(const char *path);
/* The folder that contains `path`. */
const char *copy_parent(struct keep *keep, const char *path);
/* Refuses a folder whose name would look like a file that 'pawl convert' writes. */
int copy_check_suffix(struct cli *cli, const char *command, const char *dest, struct pawl_error *err);
/* Refuses a destination inside a checkpoint, or inside the internal folders of a run. */
int copy_check_place(struct cli *cli, const char *path, struct pawl_error *err);

#endif
