/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_set: the drivers that an owner uses, and one line of copies for each of its devices.
 * Thread-safe. The lines stay until device_set_clear.
 */
#ifndef PAWL_DEVICE_DEVICE_SET_H
#define PAWL_DEVICE_DEVICE_SET_H

#include <pthread.h>

#include "base/vec.h"
#include "device/device_queue.h"

/* The queue of one device. Any thread may add to it by device_line_copy. */
struct device_line {
	struct device *device; /* borrowed from the set */
	int kind, ordinal;
	int node; /* of memory next to it, or -1 */
	struct device_queue *queue;
	pthread_mutex_t lock; /* one thread adds at a time */
};

struct device_set {
	pthread_mutex_t lock;
	struct device *drivers[PAWL_DEVICE_HIP + 1]; /* by enum pawl_device */
	size_t most_units; /* that a save adds to a line, about. A driver holds a limited number */
	VEC(struct device_line *) lines;
};
void device_set_init(struct device_set *s);
/* Waits for all copies. */
void device_set_clear(struct device_set *s);

/* Asks the driver that the tensor names where its memory is, and loads that driver if needed.
 * *ret is NULL for host memory. PAWL_EUSAGE: the tensor names another device. */
int device_set_find(struct device_set *s, const struct pawl_tensor *t, bool *ret_managed, struct device_line **ret,
                    struct pawl_error *err);
/* device_queue_copy. Without copies *ret_unit stays as it is. */
int device_line_copy(struct device_line *l, enum device_direction direction, const struct device_copies *copies,
                     uint64_t *ret_unit, struct pawl_error *err);

#endif
