/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup: a control group for each trial, where this process may make them: the system itself then ends a trial that uses too much
 * memory, at once. Elsewhere memory.h looks from time to time.
 *
 * Version 2: groups are made below the runner's own, if that hands the memory controller on; else beside it, if it has the
 * controller and no limit of its own, which a group beside it would not be under. Version 1: below the runner's own.
 */
#ifndef PAWL_TUNE_CGROUP_H
#define PAWL_TUNE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_SELF "/proc/self/cgroup"

struct cgroups {
	int dirfd; /* where groups are made; -1 = they cannot be */
	bool is_v1;
	pid_t maker;
};
#define CGROUPS_INIT {.dirfd = -1}

/* root, self: CGROUP_ROOT, CGROUP_SELF but in tests. Not an error where there are none. What runners that were killed have left
 * there is removed. */
void cgroups_open(struct cgroups *ret, const char *root, const char *self);
/* A group for a trial, with all that its process starts from now on. The descriptor of its folder, or -1: it could not be had. */
int cgroups_make(struct cgroups *c, uint32_t trial, uint64_t memory_bytes, pid_t pid);
/* Has the system ended it for its memory? */
bool cgroups_was_too_large(int group_fd);
/* Ends what is left in it, and takes it away. group_fd < 0 is fine. */
void cgroups_remove(struct cgroups *c, uint32_t trial, int group_fd);
void cgroups_close(struct cgroups *c);

#endif
