/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots: see slots.h. Devices are only numbers here: a trial is kept on its own by the environment
 * variable it is started with.
 */
#include "slots.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

#define SLOTS_EPSILON 1e-9 /* for sums of shares such as 0.1 */

static double
count_cpus(void)
{
#ifdef __linux__
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (double)CPU_COUNT(&set);
#endif
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (double)n : 1;
}

static void
add_gpu(struct slots *s, const char *name, size_t len)
{
	if (s->n_gpus == SLOTS_MAX_GPUS || len >= sizeof(s->gpu_names[0]))
		return;
	memcpy(s->gpu_names[s->n_gpus], name, len);
	s->gpu_names[s->n_gpus][len] = '\0';
	s->gpu_free[s->n_gpus++] = 1;
}

static void
find_gpus(struct slots *s, const char *visible)
{
	char path[32], name[8];

	if (visible != NULL) {
		for (const char *at = visible; *at != '\0';) {
			size_t len = strcspn(at, ", ");

			if (len == 2 && strncmp(at, "-1", 2) == 0)
				return; /* CUDA hides this device and all after it */
			if (len > 0)
				add_gpu(s, at, len);
			at += len;
			at += strspn(at, ", ");
		}
		return;
	}
	for (unsigned i = 0; i < SLOTS_MAX_GPUS; i++) {
		(void)snprintf(path, sizeof(path), "/dev/nvidia%u", i);
		(void)snprintf(name, sizeof(name), "%u", i);
		if (access(path, F_OK) == 0)
			add_gpu(s, name, strlen(name));
	}
}

void
slots_init(struct slots *s, double cpus, int64_t gpus, const char *visible)
{
	char name[24];

	*s = (struct slots){0};
	s->cpus = s->cpus_free = cpus > 0 ? cpus : count_cpus();
	if (gpus >= 0)
		find_gpus(s, visible);
	if (gpus > 0) {
		if ((size_t)gpus < s->n_gpus)
			s->n_gpus = (size_t)gpus;
		while (s->n_gpus < SLOTS_MAX_GPUS && (int64_t)s->n_gpus < gpus) {
			(void)snprintf(name, sizeof(name), "%zu", s->n_gpus);
			add_gpu(s, name, strlen(name));
		}
	}
}

int
slots_check(const struct slots *s, double cpu, double gpu, struct pawl_error *err)
{
	if (gpu > 1 && gpu != floor(gpu))
		return err_set(err, PAWL_EUSAGE,
		               "resources.gpu: expected a whole number of devices or a part of one, found %g", gpu);
	if (cpu > s->cpus + SLOTS_EPSILON)
		return err_set(err, PAWL_EUSAGE, "resources.cpu: a trial needs %g processors, there are %g", cpu,
		               s->cpus);
	if (gpu > (double)s->n_gpus)
		return err_set(err, PAWL_EUSAGE, "resources.gpu: a trial needs %g devices, there are %zu", gpu,
		               s->n_gpus);
	return 0;
}

/* The fullest device with enough room, so that unused devices stay free; < 0 = none. */
static int
find_part(const struct slots *s, double gpu)
{
	int best = -1;

	for (size_t i = 0; i < s->n_gpus; i++)
		if (s->gpu_free[i] + SLOTS_EPSILON >= gpu && (best < 0 || s->gpu_free[i] < s->gpu_free[best]))
			best = (int)i;
	return best;
}

bool
slots_take(struct slots *s, double cpu, double gpu, struct share *ret)
{
	struct share share = {.cpu = cpu, .gpu = gpu < 1 ? gpu : 1};
	size_t want = gpu < 1 ? 0 : (size_t)gpu;
	int part;

	if (cpu > s->cpus_free + SLOTS_EPSILON)
		return false;
	if (gpu > 0 && gpu < 1) {
		part = find_part(s, gpu);
		if (part < 0)
			return false;
		share.gpus = (uint64_t)1 << part;
	}
	for (size_t i = 0; i < s->n_gpus && want > 0; i++)
		if (s->gpu_free[i] + SLOTS_EPSILON >= 1) {
			share.gpus |= (uint64_t)1 << i;
			want--;
		}
	if (want > 0)
		return false;
	s->cpus_free -= cpu;
	for (size_t i = 0; i < s->n_gpus; i++)
		if (share.gpus >> i & 1)
			s->gpu_free[i] -= share.gpu;
	*ret = share;
	return true;
}

void
slots_give(struct slots *s, const struct share *share)
{
	s->cpus_free += share->cpu;
	for (size_t i = 0; i < s->n_gpus; i++)
		if (share->gpus >> i & 1)
			s->gpu_free[i] += share->gpu;
}

void
slots_visible(const struct slots *s, const struct share *share, char *text, size_t nbytes)
{
	size_t at = 0;

	text[0] = '\0';
	for (size_t i = 0; i < s->n_gpus && at < nbytes; i++)
		if (share->gpus >> i & 1)
			at += (size_t)snprintf(text + at, nbytes - at, "%s%s", at > 0 ? "," : "", s->gpu_names[i]);
}
