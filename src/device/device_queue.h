/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_queue: copies on one device, on a stream of the queue's own, in the order in which they
 * are added. Save and restore use it like this:
 *
 *   save      device_queue_after(caller's stream)       the copies see what was computed before
 *             device_queue_copy(...) -> unit            for each unit of the writer
 *             device_queue_fence(caller's stream)       later computations wait for the copies,
 *                                                       on the device; no host thread waits
 *             device_queue_wait(unit)                   the unit's bytes are in host memory
 *   restore   device_queue_after, device_queue_copy, device_queue_wait (the host memory is free),
 *             device_queue_fence (the caller's stream sees the tensors)
 *
 * One thread adds at a time; any thread may wait or poll. The memory of a copy, on both sides, must
 * stay as it is until its unit has ended. After a failed device_queue_copy or device_queue_wait
 * that is so after device_queue_drain.
 *
 * A caller's stream is the driver's handle of it. 0 is the default stream (of the primary context,
 * as in all frameworks), 2 (CU_STREAM_PER_THREAD) that of the calling thread. With DEVICE_NO_STREAM
 * the host waits for everything on the device, which is slow.
 *
 * A stream that a graph is being captured from is refused with PAWL_EBUSY. The capture continues.
 * With DEVICE_NO_STREAM that holds for every blocking stream of the device; a capture of a
 * non-blocking one fails, since the driver does not report it.
 */
#ifndef PAWL_DEVICE_DEVICE_QUEUE_H
#define PAWL_DEVICE_DEVICE_QUEUE_H

#include "device/device.h"
#include "device/device_copies.h"

struct device_queue;

#define DEVICE_NO_STREAM UINT64_MAX
#define DEVICE_COPY_BYTES ((uint64_t)32 << 20) /* longer copies are cut */

enum device_direction { DEVICE_TO_HOST, DEVICE_FROM_HOST, DEVICE_WITHIN };

int device_queue_new(struct device *d, int ordinal, struct device_queue **ret, struct pawl_error *err);
/* Waits for the copies; NULL is fine. */
void device_queue_free(struct device_queue *q);

/* What is added from now on runs after what the caller's stream holds by now. */
int device_queue_after(struct device_queue *q, uint64_t stream, struct pawl_error *err);
/* Adds one unit of copies; *ret_unit counts from 1. */
int device_queue_copy(struct device_queue *q, enum device_direction direction, const struct device_copy *copies,
                      size_t n, uint64_t *ret_unit, struct pawl_error *err);
/* Has the unit ended? 1 or 0. */
int device_queue_poll(struct device_queue *q, uint64_t unit, struct pawl_error *err);
/* Waits for the unit, and so for all units before it. */
int device_queue_wait(struct device_queue *q, uint64_t unit, struct pawl_error *err);
/* What the caller's stream gets from now on runs after all units added by now. The driver orders
 * that itself, also after units that the host has waited for. */
int device_queue_fence(struct device_queue *q, uint64_t stream, struct pawl_error *err);
/* Waits until nothing of the queue runs, also after failures. */
int device_queue_drain(struct device_queue *q, struct pawl_error *err);

/* Memory on the device for copies that need not wait for the bus. PAWL_ENOMEM: less than a tenth
 * more than nbytes is free there. The queue keeps it for the next time, and frees it with
 * device_queue_unstage or at its end. The address stays valid while nbytes does not grow. */
int device_queue_stage(struct device_queue *q, uint64_t nbytes, uint64_t *ret, struct pawl_error *err);
/* Copies within the device, on the caller's stream. What is added to the queue from now on runs
 * after them, so device_queue_after is not needed. PAWL_EUSAGE for DEVICE_NO_STREAM. Before memory
 * is used again: device_queue_fence. */
int device_queue_copy_staged(struct device_queue *q, uint64_t stream, const struct device_copy *copies, size_t n,
                             struct pawl_error *err);
/* Frees the memory of device_queue_stage, after the copies from it. Waits for the device. */
void device_queue_unstage(struct device_queue *q);

/* A block of DEVICE_BLOCK_BYTES on the device, for small copies within it. Any thread may take and
 * give. The queue keeps blocks for the next time. */
#define DEVICE_BLOCK_BYTES ((size_t)32 << 10)
int device_queue_take_block(struct device_queue *q, uint64_t *ret, struct pawl_error *err);
/* No copy of the block is under way. */
void device_queue_give_block(struct device_queue *q, uint64_t block);

#endif
