/* SPDX-License-Identifier: Apache-2.0 */
/* device_samples: see device_samples.h. */
#include "device/device_samples.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define READING_BYTES ((size_t)DEVICE_SAMPLES * DEVICE_SAMPLE_BYTES)

_Static_assert(2 * READING_BYTES <= DEVICE_BLOCK_BYTES, "both readings are in one block");

int
device_samples_open(struct device_samples *s, struct device_line *line, struct pawl_error *err)
{
	TRY(device_queue_take_block(line->queue, &s->block, err));
	s->line = line;
	return 0;
}

void
device_samples_close(struct device_samples *s)
{
	if (s->line)
		device_queue_give_block(s->line->queue, s->block);
	device_copies_clear(&s->copies);
	s->line = NULL;
}

uint64_t
device_samples_next(const struct device_samples *s)
{
	return s->block + s->copies.list.n * DEVICE_SAMPLE_BYTES;
}

int
device_samples_read(struct device_samples *s, bool again, struct pawl_error *err)
{
	for (size_t i = 0; i < s->copies.list.n; i++)
		s->copies.list.items[i].to = s->block + (again ? READING_BYTES : 0) + i * DEVICE_SAMPLE_BYTES;
	return device_line_copy(s->line, DEVICE_WITHIN, &s->copies, &s->unit, err);
}

/* Brings both readings to host memory. */
static int
fetch_samples(struct device_samples *s, char *bytes, struct pawl_error *err)
{
	struct device_copy copy = {
		.to = (uint64_t)(uintptr_t)bytes, .from = s->block, .nbytes = 2 * READING_BYTES, .rows = 1};
	const struct device_copies copies = {.list = {.items = &copy, .n = 1}};

	TRY(device_line_copy(s->line, DEVICE_TO_HOST, &copies, &s->unit, err));
	return device_queue_wait(s->line->queue, s->unit, err);
}

int
device_samples_compare(struct device_samples *s, size_t *ret, struct pawl_error *err)
{
	PAWL_FREE char *bytes = mem_alloc(2 * READING_BYTES);
	int rc = bytes ? fetch_samples(s, bytes, err) : err_nomem(err, "device");

	if (rc < 0) { /* a copy to the bytes may be under way */
		(void)device_queue_drain(s->line->queue, NULL);
		return rc;
	}
	*ret = SIZE_MAX;
	for (size_t i = 0; i < s->copies.list.n && *ret == SIZE_MAX; i++) {
		const char *sample = bytes + i * DEVICE_SAMPLE_BYTES;

		if (memcmp(sample, sample + READING_BYTES, (size_t)s->copies.list.items[i].nbytes) != 0)
			*ret = i;
	}
	return 0;
}
