/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_turns: threads take items of work, such as the units of a save. The items of each device
 * are a group. A thread takes those of one group, and then joins the group that has the fewest
 * threads. So a slow device delays only the threads of its group. Thread-safe between init and
 * clear.
 */
#ifndef PAWL_DEVICE_DEVICE_TURNS_H
#define PAWL_DEVICE_DEVICE_TURNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

struct device_turns_group {
	size_t next, end; /* in the array of items */
	size_t n_threads;
};
struct device_turns {
	size_t n_groups;
	size_t *items;        /* those of group 0, then those of group 1, ... */
	pthread_mutex_t lock; /* guards below */
	struct device_turns_group *groups;
	size_t n_joined;
};

/* Items 0 to n - 1. group_of: of each item; NULL = all are in group 0. */
int device_turns_init(struct device_turns *t, size_t n, size_t n_groups, const size_t *group_of,
                      struct pawl_error *err);
void device_turns_clear(struct device_turns *t); /* zeroed is fine */
/* The group that a new thread begins with: each of them in turn. */
size_t device_turns_join(struct device_turns *t);
/* The next item for a thread of *group, which may change. False: all items are taken. */
bool device_turns_take(struct device_turns *t, size_t *group, size_t *ret);

#endif
