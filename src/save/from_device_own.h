/* SPDX-License-Identifier: Apache-2.0 */
/* from_device_own: what from_device.c and from_device_sample.c share. */
#ifndef PAWL_FROM_DEVICE_OWN_H
#define PAWL_FROM_DEVICE_OWN_H

#include "device/device_samples.h"
#include "save/save.h"

/* A stream of the caller, and the line that reads what it computes. */
struct stream {
	struct device_line *line;
	uint64_t handle;
};

struct place {
	size_t line; /* 1 + index; 0 = host memory */
	bool is_managed, is_added;
	uint64_t staged; /* the copy within the device, or 0 */
};

struct from_device {
	VEC(struct device_line *) lines;
	VEC(struct stream) streams;
	struct place *places;              /* per tensor */
	uint64_t *early;                   /* per line: the unit that the copies during the call end with */
	uint64_t *ends;                    /* per unit of the save, per queue: the unit that it ends with */
	struct device_samples *samples;    /* per line; NULL = nothing may change before its copy */
	size_t (*sampled)[DEVICE_SAMPLES]; /* per line, per sample: the tensor */
	bool is_sampled_again;             /* m->lazy.asking guards it */
	atomic_bool is_adding;             /* a thread has begun to add the units */
	size_t n_added;                    /* units of the save; the lock of the progress guards it */
	atomic_bool is_fenced;
	bool is_staging; /* uses the memory of the lines */
	bool is_settled; /* its copies have ended; those in the queues are of later saves */
};

/* Lists the copies of bytes [at, at + n) of a tensor to dst. */
int from_device_list_part(const struct save_image *m, size_t tensor, uint64_t at, uint64_t n, char *dst,
                          struct device_copies *out, struct pawl_error *err);

/* Adds the first reading of a lazy save. With many tensors, others are sampled in the next save. */
int from_device_sample(struct save_image *m, struct pawl_error *err);
/* Adds the second reading, once, after what the caller's streams hold by now. Only on the caller's
 * thread a capture is an error: there the host can wait instead. */
int from_device_sample_again(struct save_image *m, bool is_caller, struct pawl_error *err);

#endif
