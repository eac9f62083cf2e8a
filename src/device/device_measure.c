/* SPDX-License-Identifier: Apache-2.0 */
/* device_measure: see device_measure.h. */
#include "device/device_measure.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/os.h"
#include "device/device_own.h"
#include "device/device_pin.h"
#include "device/device_queue.h"

#define ROUNDS 4u

struct bench {
	void *host;
	struct device_pin *pin;
	struct device_queue *queue;
	uint64_t memory; /* on the device */
};

static void
bench_clear(struct bench *b)
{
	device_queue_free(b->queue);
	device_pin_free(b->pin);
	if (b->host)
		munmap(b->host, DEVICE_MEASURE_BYTES);
}

/* The first round is not counted. */
static int
measure_rate(struct bench *b, enum device_direction direction, double *ret, struct pawl_error *err)
{
	const uint64_t host = (uint64_t)(uintptr_t)b->host;
	const bool to_host = direction == DEVICE_TO_HOST;
	const struct device_copy copy = {.to = to_host ? host : b->memory,
	                                 .from = to_host ? b->memory : host,
	                                 .nbytes = DEVICE_MEASURE_BYTES,
	                                 .rows = 1};
	int64_t begin_ns = 0;
	uint64_t unit;

	for (unsigned i = 0; i <= ROUNDS; i++) {
		begin_ns = i == 1 ? clock_mono_ns() : begin_ns;
		TRY(device_queue_copy(b->queue, direction, &copy, 1, &unit, err));
		if (i == 0 || i == ROUNDS)
			TRY(device_queue_wait(b->queue, unit, err));
	}
	const int64_t ns = clock_mono_ns() - begin_ns;

	*ret = (double)(ROUNDS * DEVICE_MEASURE_BYTES) / ((double)(ns > 0 ? ns : 1) / 1e9);
	return 0;
}

/* Can system calls use the memory? See fd_pwrite. */
static bool
can_be_written_from(const void *memory)
{
	int ends[2];

	if (os_pipe(ends) != 0)
		return true;
	PAWL_FD int in = ends[1];
	PAWL_FD int out = ends[0];

	(void)out;
	return write(in, memory, 1) == 1 || errno != EFAULT;
}

int
device_measure(struct device *d, int ordinal, struct device_rates *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bench_clear) struct bench b = {0};
	struct device_rates rates;
	int id;

	if (d->driver.device_get(&id, ordinal) != DRIVER_SUCCESS)
		return err_set(err, PAWL_ENOTFOUND, "device %d does not exist", ordinal);
	b.host = mmap(NULL, DEVICE_MEASURE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b.host == MAP_FAILED) {
		b.host = NULL;
		return err_nomem(err, "device");
	}
	TRY(device_pin_new(d, ordinal, NULL, b.host, DEVICE_MEASURE_BYTES, &b.pin, err));
	rates.is_registered = device_pin_wait(b.pin, NULL) == 0;
	rates.is_gone_around = !can_be_written_from(b.host);
	TRY(device_queue_new(d, ordinal, &b.queue, err));
	TRY(device_queue_stage(b.queue, DEVICE_MEASURE_BYTES, &b.memory, err));
	TRY(measure_rate(&b, DEVICE_FROM_HOST, &rates.from_host, err));
	TRY(measure_rate(&b, DEVICE_TO_HOST, &rates.to_host, err));
	*ret = rates;
	return 0;
}
