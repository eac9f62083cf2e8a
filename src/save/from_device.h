/* SPDX-License-Identifier: Apache-2.0 */
/*
 * from_device: the tensors of a save that are on accelerators. A queue of each device copies their
 * bytes to the places where the save wants them. It runs after what the caller's streams hold at
 * the call.
 *
 *   snapshot       one thread adds the copies of all units; each unit is then waited for
 *   ring, direct   each unit is copied to its slot when it has one
 *
 * The processor cannot read the sources of a lazy save again (lazy.h). Instead the device reads
 * samples of them at the call, and again when the caller's streams have done what they held at the
 * fence. So a write before the fence that hits a sample fails the save.
 */
#ifndef PAWL_FROM_DEVICE_H
#define PAWL_FROM_DEVICE_H

#include "save/save.h"

/* Finds out which tensors of the share are on which device. Without such tensors m->from_device
 * stays NULL, and no driver is asked. */
int from_device_open(struct save_image *m, struct pawl_error *err);
/* With the option staging.device, where memory allows: copies all of them within their devices, on
 * the caller's streams. The save is lazy then, and the caller may change these tensors at once. */
int from_device_stage(struct save_image *m, struct pawl_error *err);
/* The address of the copy of tensor i within its device, or 0. */
uint64_t from_device_staged(const struct save_image *m, size_t i);
/* Waits until no copy of the save is under way. */
void from_device_close(struct save_image *m);
/* After from_device_open alone: no copy was added. */
void from_device_forget(struct save_image *m);
/* Is tensor i on a device, so that the processor cannot read it? */
bool from_device_has(const struct save_image *m, size_t i);
/* Is it in managed memory? The processor reads it during the call. */
bool from_device_has_managed(const struct save_image *m, size_t i);

/* On the caller's thread, before the first copy. Orders the copies after the caller's work, and
 * registers the save's memory with the driver in the background. Of a lazy save: adds the first
 * reading of the samples. */
int from_device_begin(struct save_image *m, struct pawl_error *err);
/* Of a lazy save: adds the copy of a tensor that may change when the call has returned ... */
int from_device_add_tensor(struct save_image *m, size_t tensor, char *dst, uint64_t nbytes, struct pawl_error *err);
/* ... and lets the caller's streams wait for all that was added by now. */
int from_device_hold(struct save_image *m, struct pawl_error *err);

/* Divides the units among the copying threads, so that a slow device does not delay the others. */
int from_device_share_units(struct save_image *m, struct pawl_error *err);
/* The memory node next to the device of a unit; -1 = unknown, or none of it is on a device. */
int from_device_node(const struct save_image *m, const struct save_unit *u);
/* Is a slot of a ring on this node? Of -1 each one is. */
bool from_device_is_near(const struct save_image *m, const char *slot, int node);
/* Are the devices next to different memory nodes? */
bool from_device_has_nodes(const struct save_image *m);
/* Registers the region, or each one of the arena if there is none yet, with the driver in the
 * background. nbytes: of a ring. The bytes of each device are put on its node. */
void from_device_register(const struct save_image *m, size_t nbytes);

/* A copying thread begins. The first one adds the copies of all units of a snapshot. */
void from_device_add_units(struct save_image *m);
/* Waits until the tensors' bytes are in dst. They are bytes [offset, offset + n) of a pack ... */
int from_device_fetch(struct save_image *m, size_t pack, uint64_t offset, size_t n, char *dst, struct pawl_error *err);
/* ... or those of a unit of a snapshot. */
int from_device_wait(struct save_image *m, const struct save_unit *u, struct pawl_error *err);
/* All units of a snapshot are staged: the copies replace the tensors as sources. */
void from_device_settle(struct save_image *m);
/* Waits for the samples. *ret: a tensor that has changed since the call, or SIZE_MAX. */
int from_device_find_changed(struct save_image *m, size_t *ret, struct pawl_error *err);

/* Lets the caller's streams wait for the copies of a lazy save, once these are added: a driver
 * takes a limited number at a time. 1 = done, so that the caller's later work may change the
 * tensors. 0 = the caller must wait until the save is staged. ETIMEDOUT: deadline_ms. */
int from_device_fence(struct save_image *m, int64_t deadline_ms);

#endif
