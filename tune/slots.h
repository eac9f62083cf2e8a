/* SPDX-License-Identifier: Apache-2.0 */
/* slots: the processors and devices of this machine, shared out to trials. */
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
	double gpu_free[SLOTS_MAX_GPUS];    /* 1 = nobody uses it */
};

/* What a trial was given. */
struct share {
	double cpu, gpu; /* gpu: of each device of the mask */
	uint64_t gpus;
};

/* cpus, gpus: see struct tune_runner_opts. visible: CUDA_VISIBLE_DEVICES, or NULL. */
void slots_init(struct slots *s, double cpus, int64_t gpus, const char *visible);
/* Could it ever be given? PAWL_EUSAGE: what is there. */
int slots_check(const struct slots *s, double cpu, double gpu, struct pawl_error *err);
/* gpu: a whole number of devices, or a part of one. False: not now. */
bool slots_take(struct slots *s, double cpu, double gpu, struct share *ret);
void slots_give(struct slots *s, const struct share *share);
/* "0,3" */
void slots_visible(const struct slots *s, const struct share *share, char *text, size_t nbytes);

#endif
