/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_pin: registers host memory with the driver, so that copies run at the speed of the bus and
 * without the host. Registering is slow (seconds for many GB). It runs on a thread of its own, in
 * pieces, from the beginning of the memory.
 *
 * Memory that is not registered works too: then a copy holds the thread that starts it. Some
 * containers and systems allow no registration; device_pin_wait
 * reports the reason.
 *
 * The pages do not exist in a forked child (MADV_DONTFORK). A copy that runs during a fork would
 * otherwise write to pages that only the child sees.
 */
#ifndef PAWL_DEVICE_DEVICE_PIN_H
#define PAWL_DEVICE_DEVICE_PIN_H

#include "device/device.h"
#include "device/device_spans.h"

struct device_pin;

/* Registers [ptr, ptr + nbytes), for all devices. ptr is a multiple of the page size. Until
 * device_pin_free the memory stays mapped. Copies may begin at once. Errors only of the start; a
 * piece that cannot be registered ends the work quietly. First the pages are put on the memory
 * nodes of the spans (copied; NULL = all on the node of the device). Registered pages do not move
 * again. */
int device_pin_new(struct device *d, int ordinal, const struct device_spans *spans, void *ptr, size_t nbytes,
                   struct device_pin **ret, struct pawl_error *err);
/* Bytes from the beginning that are registered by now. */
size_t device_pin_ready(const struct device_pin *p);
/* Waits until all pieces are registered or one was refused. 0, or the refusal. */
int device_pin_wait(struct device_pin *p, struct pawl_error *err);
/* Stops registering, and ends all registrations. No copy of this memory may be under way. NULL is
 * fine. */
void device_pin_free(struct device_pin *p);

#endif
