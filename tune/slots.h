/* SPDX-License-Identifier: Apache-2.0 */
/* slots: assigns the processors and devices of this machine to trials. */
#ifndef PAWL_TUNE_SLOTS_H
#define PAWL_TUNE_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

#define SLOTS_MAX_GPUS 64

struct slots {
	double cpus, cpus_free;
	size_t n_gpus;
	char gpu_names[SLOTS_MAX_GPUS][64]; /* as CUDA_VISIBLE_DEVICES has them: numbers or ids */
	double gpu_free[SLOTS_MAX_GPUS];    /* 1 = unused */
};

/* The resources of one trial. */
struct share {
	double cpu, gpu; /* gpu: of each device of the mask */
	uint64_t gpus;
};

/* cpus, gpus: see struct tune_runner_opts. visible: CUDA_VISIBLE_DEVICES, or NULL. */
void slots_init(struct slots *s, double cpus, int64_t gpus, const char *visible);
/* Could this amount ever be assigned? PAWL_EUSAGE names what the machine has. */
int slots_check(const struct slots *s, double cpu, double gpu, struct pawl_error *err);
/* gpu: an integer number of devices, or a fraction of one. False: not available now. */
bool slots_take(struct slots *s, double cpu, double gpu, struct share *ret);
void slots_give(struct slots *s, const struct share *share);
/* Writes the devices of a share, such as "0,3". */
void slots_visible(const struct slots *s, const struct share *share, char *text, size_t nbytes);

#endif
