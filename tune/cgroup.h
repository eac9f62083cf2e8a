/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup: a control group for each trial, if this process may make them. The system then ends a
 * trial that uses too much memory at once. Without groups, memory.h checks the memory periodically.
 *
 * Version 2: groups are made below the runner's own group, if that passes the memory controller on.
 * Otherwise they are made next to it, if it has the controller and no limit of its own. Groups next
 * to it would not be under that limit. Version 1: below the runner's own group.
 */
#ifndef PAWL_TUNE_CGROUP_H
#define PAWL_TUNE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_SELF "/proc/self/cgroup"

struct cgroups {
	int dirfd; /* folder in which groups are made; -1 = they cannot be made */
	bool is_v1;
	pid_t maker;
};
#define CGROUPS_INIT {.dirfd = -1}

/* root, self: CGROUP_ROOT and CGROUP_SELF, except in tests. A system without groups is not an
 * error. Removes groups that killed runners have left. */
void cgroups_open(struct cgroups *ret, const char *root, const char *self);
/* Makes a group for a trial; it contains pid and all processes that pid starts from now on. Returns
 * the descriptor of its folder, or -1 if it could not be made. */
int cgroups_make(struct cgroups *c, uint32_t trial, uint64_t memory_bytes, pid_t pid);
/* Has the system ended the trial because of its memory? */
bool cgroups_was_too_large(int group_fd);
/* Ends the processes left in the group and removes it. group_fd < 0 is allowed. */
void cgroups_remove(struct cgroups *c, uint32_t trial, int group_fd);
void cgroups_close(struct cgroups *c);

#endif
