/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device: a handle of a driver of accelerators, and where a pointer belongs. Thread-safe.
 *
 * Nothing in this room changes what the program sees. No call leaves a context current, also after
 * a failure. A capture of a graph in another thread continues. A forked child cannot use a handle;
 * it can close it. No copy crosses the border of a registered piece, which drivers refuse.
 *
 * The caller frees the queue before the pin, and the pin before its memory is unmapped. It frees
 * everything before the program exits: nothing runs in destructors or atexit.
 *
 * An error names the device, the call, the driver's name of the result, and what to do.
 */
#ifndef PAWL_DEVICE_DEVICE_H
#define PAWL_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "device/driver.h"

struct device;

/* With `demanded`, as for a program that passes device pointers, loads and initialises the driver.
 * Else it uses only a driver that the process has loaded already. Errors as of driver_load. */
int device_open(enum driver_kind kind, bool demanded, struct device **ret, struct pawl_error *err);
struct device *device_ref(struct device *d);
/* Drops a reference; NULL is fine. Queues and pins hold references of their own. */
void device_close(struct device *d);

enum device_place_kind {
	DEVICE_PLACE_HOST,   /* pageable or registered; also everything while the driver is not in use */
	DEVICE_PLACE_DEVICE, /* the processor cannot read it */
	DEVICE_PLACE_MANAGED /* moves by itself; the processor can read it */
};
struct device_place {
	enum device_place_kind kind;
	int ordinal; /* of this process, by CUDA_VISIBLE_DEVICES; of a part of a device (MIG), its own. -1 = HOST */
};
int device_find(struct device *d, uint64_t pointer, struct device_place *ret, struct pawl_error *err);

/* The version of CUDA or HIP that the driver implements. */
int device_version(struct device *d, int *ret_major, int *ret_minor, struct pawl_error *err);
/* The number of the memory node next to the device, or -1 if unknown. For a preference, never a
 * binding. */
int device_node(struct device *d, int ordinal);

/* An error was sticky: every later call fails. */
bool device_is_lost(const struct device *d);

#endif
