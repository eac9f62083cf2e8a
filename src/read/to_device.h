/* SPDX-License-Identifier: Apache-2.0 */
/*
 * to_device: the destinations of a restore that are on accelerators. A block is checked in a read
 * buffer, which the driver knows, and is copied from there. The buffer is used again when its
 * copies have ended.
 */
#ifndef PAWL_TO_DEVICE_H
#define PAWL_TO_DEVICE_H

#include "device/device_set.h"
#include "device/device_pin.h"
#include "device/device_turns.h"
#include "layout/reshard.h"
#include "read/fetch.h"

struct to_device; /* of one fetch */

/* Finds the devices of a fetch, and orders the copies after what the callers' streams hold by now.
 * *ret is NULL if all destinations are in host memory; then no driver is asked. */
int to_device_new(struct device_set *set, const struct fetch_job *job, struct to_device **ret, struct pawl_error *err);
/* The same for n destinations that are filled without a fetch, also if all are in host memory. They
 * must outlive *ret. */
int to_device_new_bindings(struct device_set *set, const struct reshard_binding *bindings, size_t n,
                           struct to_device **ret, struct pawl_error *err);
void to_device_free(struct to_device *t); /* NULL is fine */
/* After the last copy: what the callers' streams get from now on runs after all copies. */
int to_device_fence(const struct to_device *t, struct pawl_error *err);
/* Is this destination on a device? */
bool to_device_has(const struct to_device *t, uint32_t binding);
/* Is any destination of this unit? */
bool to_device_has_unit(const struct to_device *t, const struct reshard_plan *plan, const struct reshard_unit *unit);
/* Divides the units among the reading threads, so that a slow device does not delay the others. */
int to_device_share_units(const struct to_device *t, const struct reshard_plan *plan, struct device_turns *ret,
                          struct pawl_error *err);
/* Registers the read buffers in the background. NULL: nothing is to be registered, or it cannot be,
 * which is only slower. */
struct device_pin *to_device_pin(const struct to_device *t, char *buffers, size_t buffer_bytes, size_t n);

/* Copies from one read buffer. Zeroed = none. Not thread-safe. */
struct to_device_load {
	struct device_line *line;
	struct device_copies copies; /* to this device */
	struct pawl_error error;     /* the first one, until to_device_finish */
};
/* Adds the copy of nbytes to a place in the logical contents of a destination. */
void to_device_add(struct to_device *t, struct to_device_load *load, uint32_t binding, uint64_t at, uint64_t nbytes,
                   const char *bytes);
/* Waits for all of them, also after a failure: the buffer is free. */
int to_device_finish(struct to_device_load *load, struct pawl_error *err);
void to_device_clear(struct to_device_load *load);

PAWL_DEFINE_CLEAN(struct to_device, to_device_free);

#endif
