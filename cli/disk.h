/* SPDX-License-Identifier: Apache-2.0 */
/* disk: the bytes that a run has on a local disk. A file that several checkpoints share counts
 * once. */
#ifndef PAWL_CLI_DISK_H
#define PAWL_CLI_DISK_H

#include "cli.h"

/* Of one checkpoint. */
struct disk_use {
	uint64_t bytes; /* of its files */
	uint64_t own;   /* of those that no other checkpoint shares: free once it is deleted */
};
struct disk_run {
	uint64_t bytes;    /* of all checkpoints, each as if it were alone */
	uint64_t used;     /* on the disk */
	uint64_t leftover; /* of these by unfinished saves, and set aside for reuse */
};

/* The use of a checkpoint. In a bucket they share no files, and manifests know their sizes. */
void disk_of_checkpoint(struct cli *cli, const struct pawl_info *info, struct disk_use *ret);
/* The files of a run's checkpoints as they are now, to be asked after some are deleted. */
struct disk_files;
struct disk_files *disk_files_of(struct cli *cli, const struct pawl_list *list);
/* The bytes that are free once the checkpoints with these positions in the list are deleted. */
uint64_t disk_freed(struct cli *cli, const struct disk_files *files, const bool *is_deleted);
/* The use of a run's folder or URL; list: its checkpoints. */
void disk_of_run(struct cli *cli, const char *root, const struct pawl_list *list, struct disk_run *ret);

#endif
