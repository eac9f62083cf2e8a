/* SPDX-License-Identifier: Apache-2.0 */
/* from_device: see from_device.h. Promises P1 (no torn copy), P16 (a ring stays a ring). */
#include "save/from_device.h"

#include <errno.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/from_device_own.h"
#include "save/lazy.h"
#include "save/writer.h"

#define COPIES PAWL_CLEAN(device_copies_clear) struct device_copies

/* ---- the devices of a save ---- */

static int
note_line(struct from_device *d, struct device_line *q, uint64_t stream, size_t *ret, struct pawl_error *err)
{
	size_t i = 0;

	while (i < d->lines.n && d->lines.items[i] != q)
		i++;
	if (i == d->lines.n) {
		struct device_line **added = vec_add(&d->lines);

		if (!added)
			return err_nomem(err, "save");
		*added = q;
	}
	*ret = i + 1;
	for (size_t k = 0; k < d->streams.n; k++)
		if (d->streams.items[k].line == q && d->streams.items[k].handle == stream)
			return 0;
	struct stream *added = vec_add(&d->streams);

	if (!added)
		return err_nomem(err, "save");
	*added = (struct stream){q, stream};
	return 0;
}

static int
find_all(struct save_image *m, struct from_device *d, struct pawl_error *err)
{
	for (size_t i = 0; i < m->share.n_tensors; i++) {
		const struct state_tensor *t = &m->share.tensors[i];
		struct device_line *q = NULL;
		int rc;

		if (!t->src.device || t->elsewhere || !t->local_nbytes)
			continue;
		rc = device_set_find(&m->env->writer->devices, &t->src, &d->places[i].is_managed, &q, err);
		if (rc == 0 && q)
			rc = note_line(d, q, t->src.stream, &d->places[i].line, err);
		if (rc < 0)
			return err_prefix(err, rc, "tensor '%s'", t->info.name);
	}
	return 0;
}

int
from_device_open(struct save_image *m, struct pawl_error *err)
{
	const size_t n = m->share.n_tensors;
	size_t first = 0;

	while (first < n && !m->share.tensors[first].src.device)
		first++;
	if (first == n)
		return 0;
	struct from_device *d = bump_alloc(&m->memory, sizeof(*d));

	if (!d)
		return err_nomem(err, "save");
	*d = (struct from_device){.places = bump_array(&m->memory, (uint64_t)n + 1, sizeof(*d->places))};
	m->from_device = d;
	if (!d->places)
		return err_nomem(err, "save");
	TRY(find_all(m, d, err));
	d->early = bump_array(&m->memory, (uint64_t)d->lines.n + 1, sizeof(*d->early));
	return d->early ? 0 : err_nomem(err, "save");
}

/* ---- copies within the devices ---- */

#define STAGED_ALIGN 256u

static bool
can_stage(const struct save_image *m)
{
	const struct from_device *d = m->from_device;

	if (!d || !d->lines.n || !m->env->opts->staging.device || m->mode != PAWL_MODE_SNAPSHOT)
		return false;
	for (size_t i = 0; i < d->streams.n; i++)
		if (d->streams.items[i].handle == PAWL_NO_STREAM)
			return false;
	return true;
}

/* Gives each tensor of a line its address. False: there is not enough memory. */
static bool
take_room(const struct save_image *m, size_t line)
{
	struct from_device *d = m->from_device;
	uint64_t total = 0, begin;

	for (size_t i = 0; i < m->share.n_tensors; i++)
		if (from_device_has(m, i) && d->places[i].line == line + 1)
			total += mem_round_up(m->share.tensors[i].local_nbytes, STAGED_ALIGN);
	if (total && device_queue_stage(d->lines.items[line]->queue, total, &begin, NULL) < 0)
		return false;
	for (size_t i = 0; total && i < m->share.n_tensors; i++)
		if (from_device_has(m, i) && d->places[i].line == line + 1) {
			d->places[i].staged = begin;
			begin += mem_round_up(m->share.tensors[i].local_nbytes, STAGED_ALIGN);
		}
	return true;
}

static int
stage_stream(struct save_image *m, const struct stream *s, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	COPIES copies = {0};

	for (size_t i = 0; i < m->share.n_tensors; i++) {
		const struct state_tensor *t = &m->share.tensors[i];
		const uint64_t bits = (uint64_t)pawl_dtype_bits(t->info.dtype);

		if (!d->places[i].staged || d->lines.items[d->places[i].line - 1] != s->line ||
		    t->src.stream != s->handle)
			continue;
		if (!t->contiguous) {
			TRY(device_copies_add(&copies, &t->src, bits / 8, 0, t->local_nbytes, d->places[i].staged,
			                      false, err));
			continue;
		}
		struct device_copy *copy = vec_add(&copies.list);

		if (!copy)
			return err_nomem(err, "save");
		*copy = (struct device_copy){.to = d->places[i].staged,
		                             .from = (uint64_t)(uintptr_t)t->src.data,
		                             .nbytes = t->local_nbytes,
		                             .rows = 1};
	}
	pthread_mutex_lock(&s->line->lock);
	int rc = device_queue_copy_staged(s->line->queue, s->handle, copies.list.items, copies.list.n, err);

	pthread_mutex_unlock(&s->line->lock);
	return rc;
}

int
from_device_stage(struct save_image *m, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	bool is_free = false, fits = true;

	/* The memory is that of one save. The copies of an earlier one may not be added yet. */
	if (!can_stage(m) || !atomic_compare_exchange_strong(&m->env->writer->is_staging, &is_free, true))
		return 0;
	d->is_staging = true;
	for (size_t i = 0; i < d->lines.n && fits; i++)
		fits = take_room(m, i);
	if (!fits) {
		for (size_t i = 0; i < m->share.n_tensors; i++)
			d->places[i].staged = 0;
		return 0;
	}
	if (!m->lazy.later)
		m->lazy.later = bump_array(&m->memory, (uint64_t)m->share.n_tensors + 1, sizeof(*m->lazy.later));
	if (!m->lazy.later)
		return err_nomem(err, "save");
	for (size_t i = 0; i < m->share.n_tensors; i++)
		m->lazy.later[i] = d->places[i].staged != 0;
	for (size_t i = 0; i < d->streams.n; i++)
		TRY(stage_stream(m, &d->streams.items[i], err));
	m->lazy.is_on = m->lazy.is_asked = true;
	atomic_store(&d->is_fenced, true);
	return 0;
}

uint64_t
from_device_staged(const struct save_image *m, size_t i)
{
	return m->from_device ? m->from_device->places[i].staged : 0;
}

static void
end_staging(struct save_image *m)
{
	if (m->from_device->is_staging)
		atomic_store(&m->env->writer->is_staging, false);
	m->from_device->is_staging = false;
}

void
from_device_forget(struct save_image *m)
{
	if (!m->from_device)
		return;
	vec_free(&m->from_device->lines);
	vec_free(&m->from_device->streams);
	m->from_device = NULL;
}

void
from_device_close(struct save_image *m)
{
	struct from_device *d = m->from_device;

	if (!d)
		return;
	for (size_t i = 0; !d->is_settled && i < d->lines.n; i++)
		(void)device_queue_drain(d->lines.items[i]->queue, NULL);
	for (size_t i = 0; d->samples && i < d->lines.n; i++)
		device_samples_close(&d->samples[i]);
	end_staging(m);
	from_device_forget(m);
}

bool
from_device_has(const struct save_image *m, size_t i)
{
	return m->from_device && m->from_device->places[i].line && !m->from_device->places[i].is_managed;
}

bool
from_device_has_managed(const struct save_image *m, size_t i)
{
	return m->from_device && m->from_device->places[i].is_managed;
}

int
from_device_begin(struct save_image *m, struct pawl_error *err)
{
	struct from_device *d = m->from_device;

	if (!d || !d->lines.n)
		return 0;
	d->ends = bump_array(&m->memory, (uint64_t)m->n_units * d->lines.n + 1, sizeof(*d->ends));
	if (!d->ends)
		return err_nomem(err, "save");
	from_device_register(m, m->region.nbytes);
	for (size_t i = 0; i < d->streams.n && !atomic_load(&d->is_fenced); i++) /* what is staged is in order */
		TRY(device_queue_after(d->streams.items[i].line->queue, d->streams.items[i].handle, err));
	for (size_t i = 0; i < m->share.n_tensors; i++) /* the processor reads it when the device has written it */
		if (d->places[i].is_managed)
			TRY(device_queue_drain(d->lines.items[d->places[i].line - 1]->queue, err));
	if (!m->lazy.is_on || atomic_load(&d->is_fenced) || m->mode != PAWL_MODE_SNAPSHOT)
		return 0;
	const int rc = from_device_sample(m, err);

	if (rc == PAWL_ENOMEM) { /* no room for samples: then nothing may change before its copy */
		m->lazy.is_on = false;
		m->lazy.later = NULL;
	}
	return rc == PAWL_ENOMEM ? 0 : rc;
}

/* ---- copies ---- */

int
from_device_list_part(const struct save_image *m, size_t tensor, uint64_t at, uint64_t n, char *dst,
                      struct device_copies *out, struct pawl_error *err)
{
	const struct snapshot_source *source = &m->sources[tensor];

	if (source->strided)
		return device_copies_add(out, source->strided, (uint64_t)pawl_dtype_bits(source->dtype) / 8, at, n,
		                         (uint64_t)(uintptr_t)dst, false, err);
	struct device_copy *copy = vec_add(&out->list);

	if (!copy)
		return err_nomem(err, "save");
	*copy = (struct device_copy){
		.to = (uint64_t)(uintptr_t)dst, .from = (uint64_t)(uintptr_t)source->data + at, .nbytes = n, .rows = 1};
	return 0;
}

/* Joins the last two copies, if they are two parts of one. */
static void
join_last(struct device_copies *c)
{
	if (c->list.n < 2)
		return;
	const struct device_copy *last = &c->list.items[c->list.n - 1];
	struct device_copy *before = &c->list.items[c->list.n - 2];

	if (before->rows == 1 && last->rows == 1 && before->from + before->nbytes == last->from &&
	    before->to + before->nbytes == last->to) {
		before->nbytes += last->nbytes;
		c->list.n--;
	}
}

/* The copies on one queue for bytes [offset, end) of a pack. */
static int
list_range(const struct save_image *m, const struct plan_pack *p, uint64_t offset, uint64_t end, size_t queue,
           char *dst, struct device_copies *out, struct pawl_error *err)
{
	const uint64_t data = p->header.len;

	for (size_t j = snapshot_slot_at(p, offset > data ? offset - data : 0); j < p->n_slots; j++) {
		const struct plan_slot *slot = &p->slots[j];
		const uint64_t begin = data + slot->begin, stop = begin + slot->nbytes;
		const uint64_t from = begin > offset ? begin : offset, to = stop < end ? stop : end;

		if (begin >= end)
			break;
		if (from >= to || !from_device_has(m, slot->tensor) ||
		    m->from_device->places[slot->tensor].line != queue + 1 ||
		    m->from_device->places[slot->tensor].is_added)
			continue;
		TRY(from_device_list_part(m, slot->tensor, from - begin, to - from, dst + (from - offset), out, err));
		if (from > begin) /* the unit before ends within this tensor */
			join_last(out);
	}
	return 0;
}

/* Adds the copies of a range to each queue. ret_units: the last unit of each queue. */
static int
add_range(struct save_image *m, size_t pack, uint64_t offset, size_t n, char *dst, uint64_t *ret_units,
          struct pawl_error *err)
{
	struct from_device *d = m->from_device;

	for (size_t i = 0; i < d->lines.n; i++) {
		COPIES copies = {0};

		ret_units[i] = d->early[i];
		TRY(list_range(m, &m->plan->packs[pack], offset, offset + n, i, dst, &copies, err));
		TRY(device_line_copy(d->lines.items[i], DEVICE_TO_HOST, &copies, &ret_units[i], err));
	}
	return 0;
}

static int
wait_for(struct from_device *d, const uint64_t *units, struct pawl_error *err)
{
	for (size_t i = 0; i < d->lines.n; i++)
		if (units[i])
			TRY(device_queue_wait(d->lines.items[i]->queue, units[i], err));
	return 0;
}

int
from_device_fetch(struct save_image *m, size_t pack, uint64_t offset, size_t n, char *dst, struct pawl_error *err)
{
	if (!m->from_device || !m->from_device->lines.n)
		return 0;
	PAWL_FREE uint64_t *units = mem_zalloc(m->from_device->lines.n, sizeof(*units));

	if (!units)
		return err_nomem(err, "save");
	TRY(add_range(m, pack, offset, n, dst, units, err));
	return wait_for(m->from_device, units, err);
}

int
from_device_add_tensor(struct save_image *m, size_t tensor, char *dst, uint64_t nbytes, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	struct place *place = &d->places[tensor];
	COPIES copies = {0};

	TRY(from_device_list_part(m, tensor, 0, nbytes, dst, &copies, err));
	TRY(device_line_copy(d->lines.items[place->line - 1], DEVICE_TO_HOST, &copies, &d->early[place->line - 1],
	                     err));
	place->is_added = true;
	return 0;
}

/* Lets the caller's streams wait for what was added by now. */
static int
fence_streams(struct from_device *d, struct pawl_error *err)
{
	for (size_t i = 0; i < d->streams.n; i++)
		TRY(device_queue_fence(d->streams.items[i].line->queue, d->streams.items[i].handle, err));
	return 0;
}

int
from_device_hold(struct save_image *m, struct pawl_error *err)
{
	struct from_device *d = m->from_device;

	if (!d || !m->lazy.is_on || atomic_load(&d->is_fenced))
		return 0;
	const int rc = fence_streams(d, err);

	return rc == PAWL_EBUSY ? wait_for(d, d->early, err) : rc; /* a graph is being captured */
}

/* ---- units of a snapshot ---- */

/* Adds the copies of units [first, end). They end together. */
static int
add_units(struct save_image *m, size_t first, size_t end, struct pawl_error *err)
{
	struct from_device *d = m->from_device;

	for (size_t q = 0; q < d->lines.n; q++) {
		uint64_t last = d->early[q];
		COPIES copies = {0};

		for (size_t i = first; i < end; i++) {
			const struct save_unit *u = &m->units[i];

			TRY(list_range(m, u->pack->plan, u->offset, u->offset + u->nbytes, q,
			               u->pack->bytes + u->offset, &copies, err));
		}
		TRY(device_line_copy(d->lines.items[q], DEVICE_TO_HOST, &copies, &last, err));
		for (size_t i = first; i < end; i++)
			d->ends[i * d->lines.n + q] = last;
	}
	return 0;
}

void
from_device_add_units(struct save_image *m)
{
	struct from_device *d = m->from_device;
	struct pawl_error err = {0};

	if (!d || !d->lines.n || m->mode != PAWL_MODE_SNAPSHOT || atomic_exchange(&d->is_adding, true))
		return;
	const size_t most = m->env->writer->devices.most_units, step = (m->n_units + most - 1) / most;

	for (size_t i = 0, end; i < m->n_units; i = end) {
		end = m->n_units - i < step ? m->n_units : i + step;
		const int rc = add_units(m, i, end, &err);

		if (rc < 0)
			save_fail(m->progress, rc, &err);
		pthread_mutex_lock(&m->progress->lock);
		d->n_added = rc < 0 ? m->n_units : end;
		pthread_cond_broadcast(&m->progress->changed);
		pthread_mutex_unlock(&m->progress->lock);
		if (rc < 0)
			return;
	}
}

int
from_device_wait(struct save_image *m, const struct save_unit *u, struct pawl_error *err)
{
	struct from_device *d = m->from_device;
	const size_t i = (size_t)(u - m->units);

	if (!d || !d->lines.n)
		return 0;
	pthread_mutex_lock(&m->progress->lock);
	while (d->n_added <= i)
		pool_cond_wait_until(&m->progress->changed, &m->progress->lock, -1);
	const int failed = m->progress->failed; /* perhaps because not all copies were added */

	pthread_mutex_unlock(&m->progress->lock);
	if (failed)
		return failed;
	return wait_for(d, d->ends + i * d->lines.n, err);
}

void
from_device_settle(struct save_image *m)
{
	struct from_device *d = m->from_device;

	if (!d)
		return;
	if (save_has_failed(m->progress)) /* copies may still run */
		for (size_t i = 0; i < d->lines.n; i++)
			(void)device_queue_drain(d->lines.items[i]->queue, NULL);
	d->is_settled = true;
	end_staging(m);
	for (size_t k = 0; m->mode == PAWL_MODE_SNAPSHOT && k < m->plan->n_packs; k++) {
		const struct plan_pack *p = &m->plan->packs[k];

		for (size_t j = 0; j < p->n_slots; j++) {
			struct snapshot_source *source = &m->sources[p->slots[j].tensor];

			if (!source->on_device)
				continue;
			*source = (struct snapshot_source){
				.data = m->packs[k].bytes + p->header.len + p->slots[j].begin, .dtype = source->dtype};
		}
	}
}

/* ---- the fence of a lazy save ---- */

/* Are all tensors that are copied after the call on devices? */
static bool
can_fence(const struct save_image *m)
{
	if (!m->from_device || !m->lazy.later || m->mode != PAWL_MODE_SNAPSHOT)
		return false;
	for (size_t i = 0; i < m->request->n_tensors; i++)
		if (m->lazy.later[i] && !from_device_has(m, i))
			return false;
	return true;
}

int
from_device_fence(struct save_image *m, int64_t deadline_ms)
{
	struct from_device *d = m->from_device;
	int rc = 0;

	if (d && atomic_load(&d->is_fenced))
		return 1;
	if (!can_fence(m))
		return 0;
	pthread_mutex_lock(&m->progress->lock);
	while (d->n_added < m->n_units && rc == 0)
		rc = pool_cond_wait_until(&m->progress->changed, &m->progress->lock, deadline_ms);
	const bool all_added = d->n_added >= m->n_units;

	pthread_mutex_unlock(&m->progress->lock);
	if (!all_added)
		return rc;
	if (save_has_failed(m->progress) || from_device_sample_again(m, true, NULL) < 0 || fence_streams(d, NULL) < 0)
		return 0;
	lazy_ask(m);
	atomic_store(&d->is_fenced, true);
	return 1;
}
