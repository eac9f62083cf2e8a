/* SPDX-License-Identifier: Apache-2.0 */
/* from_device_sample: finds tensors on devices that change before a lazy save has copied them. See
 * from_device.h. */
#include "save/from_device.h"

#include "base/err.h"
#include "base/mix.h"
#include "save/from_device_own.h"

#define PER_THREAD_STREAM 2u /* the handle means another stream on each thread */

/* Adds the copy of sample k: a place in the tensor that differs from save to save. */
static int
add_sample(struct save_image *m, size_t tensor, uint64_t k, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	const size_t line = d->places[tensor].line - 1;
	const struct snapshot_source *source = &m->sources[tensor];
	const uint64_t size = m->share.tensors[tensor].local_nbytes;
	const uint64_t n = source->strided              ? (uint64_t)pawl_dtype_bits(source->dtype) / 8
	                   : size < DEVICE_SAMPLE_BYTES ? size
	                                                : DEVICE_SAMPLE_BYTES;
	const uint64_t place = ((m->request->id * DEVICE_SAMPLES + k) * MIX_STEP >> 16) % (size / n);
	struct device_samples *s = &d->samples[line];

	d->sampled[line][s->copies.list.n] = tensor;
	return from_device_list_part(m, tensor, place * n, n, (char *)(uintptr_t)device_samples_next(s), &s->copies,
	                             err);
}

int
from_device_sample(struct save_image *m, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	size_t *tensors = bump_array(&m->memory, (uint64_t)m->share.n_tensors + 1, sizeof(*tensors)), n = 0;

	d->sampled = bump_array(&m->memory, (uint64_t)d->lines.n + 1, sizeof(*d->sampled));
	d->samples = bump_array(&m->memory, (uint64_t)d->lines.n + 1, sizeof(*d->samples));
	if (!tensors || !d->sampled || !d->samples)
		return err_nomem(err, "save");
	for (size_t i = 0; i < d->lines.n; i++)
		TRY(device_samples_open(&d->samples[i], d->lines.items[i], err));
	for (size_t i = 0; i < m->share.n_tensors; i++)
		if (m->lazy.later[i] && from_device_has(m, i))
			tensors[n++] = i;
	for (uint64_t k = 0; n && k < DEVICE_SAMPLES; k++)
		TRY(add_sample(m, tensors[(m->request->id * DEVICE_SAMPLES + k) % n], k, err));
	for (size_t i = 0; i < d->lines.n; i++)
		TRY(device_samples_read(&d->samples[i], false, err));
	return 0;
}

static int
sample_now(struct save_image *m, bool is_caller, struct pawl_error *err)
{
	struct from_device *d = m->from_device;

	for (size_t i = 0; i < d->streams.n; i++) {
		const struct stream *s = &d->streams.items[i];
		const bool is_of_caller = s->handle == PER_THREAD_STREAM && !is_caller;
		const int rc = is_of_caller ? 0 : device_queue_after(s->line->queue, s->handle, err);

		if (rc < 0 && (is_caller || rc != PAWL_EBUSY))
			return rc;
	}
	for (size_t i = 0; i < d->lines.n; i++)
		TRY(device_samples_read(&d->samples[i], true, err));
	d->is_sampled_again = true;
	return 0;
}

int
from_device_sample_again(struct save_image *m, bool is_caller, struct pawl_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&m->lazy.asking);
	if (!m->from_device->is_sampled_again)
		rc = sample_now(m, is_caller, err);
	pthread_mutex_unlock(&m->lazy.asking);
	return rc;
}

int
from_device_find_changed(struct save_image *m, size_t *ret, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	size_t found = SIZE_MAX;

	*ret = SIZE_MAX;
	if (!d || !d->samples)
		return 0;
	TRY(from_device_sample_again(m, false, err));
	for (size_t i = 0; i < d->lines.n && *ret == SIZE_MAX; i++) {
		TRY(device_samples_compare(&d->samples[i], &found, err));
		*ret = found == SIZE_MAX ? SIZE_MAX : d->sampled[i][found];
	}
	return 0;
}
