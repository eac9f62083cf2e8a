/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_samples: some bytes of memory on one device, read twice, to find out whether the memory
 * has changed in between. The device reads them, in the order of the queue, so no host thread
 * waits. The zeroed structure is empty.
 */
#ifndef PAWL_DEVICE_DEVICE_SAMPLES_H
#define PAWL_DEVICE_DEVICE_SAMPLES_H

#include "device/device_set.h"

#define DEVICE_SAMPLES 256u
#define DEVICE_SAMPLE_BYTES 64u

struct device_samples {
	struct device_line *line; /* NULL = not open */
	uint64_t block;           /* on the device: the first reading, then the second */
	struct device_copies copies;
	uint64_t unit; /* of the last reading */
};
int device_samples_open(struct device_samples *s, struct device_line *line, struct pawl_error *err);
/* Both readings have ended, or the line is drained. */
void device_samples_close(struct device_samples *s);

/* Where the copy of the next sample goes. Add one copy of at most DEVICE_SAMPLE_BYTES to `copies`,
 * at most DEVICE_SAMPLES times. */
uint64_t device_samples_next(const struct device_samples *s);
/* Adds a reading to the queue. */
int device_samples_read(struct device_samples *s, bool again, struct pawl_error *err);
/* Waits for both. *ret: the first sample that differs, or SIZE_MAX. */
int device_samples_compare(struct device_samples *s, size_t *ret, struct pawl_error *err);

#endif
