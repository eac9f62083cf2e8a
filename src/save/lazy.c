/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lazy: see lazy.h. A save must hold the state as it was at the call, although most of it is copied
 * later:
 *   - Tensors that may change before the fence (buffers, and all that no optimizer updates) are
 *     copied during the call.
 *   - The caller's framework counts writes (option changed). The counts are compared after the
 *     copy, and once more before the fence is released: a write is counted when it has ended.
 *   - For writes that are not counted, every tensor is sampled before its copy and after it. Its
 *     first bytes are always a sample: an operation that is still writing has changed them.
 *   - After that every block that was copied later is read again and must have the checksum of its
 *     copy. So the complete copy was in memory at one moment. By samples and counts, this moment
 *     was before any change.
 *   - Of tensors on devices the device reads samples, in the order of the caller's streams
 *     (from_device.h). Their blocks are not read again.
 * A change fails the save before anything is committed.
 */
#include "save/lazy.h"

#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "save/from_device.h"
#include "state/state.h"

#define LEAST_BYTES ((uint64_t)4 << 20) /* less is copied in about a millisecond */
#define SAMPLE_BYTES ((size_t)64)
#define SAMPLE_STEP ((uint64_t)4096)     /* one sample in so many bytes of a tensor ... */
#define MOST_SAMPLES ((uint64_t)1 << 18) /* ... or in more, so that a save takes about so many: a few milliseconds */

int
lazy_decide(struct save_image *m, struct save_request *request, const struct pawl_save_opts *opts,
            struct pawl_error *err)
{
	bool *later = bump_array(&m->memory, (uint64_t)m->share.n_tensors + 1, sizeof(*later));
	uint64_t total = 0, bytes = 0, host_bytes = 0;

	request->find_changed = opts->changed;
	request->changed_arg = opts->changed_arg;
	if (!opts->lazy || m->mode == PAWL_MODE_DIRECT)
		return 0;
	if (!later)
		return err_nomem(err, "save");
	for (size_t i = 0; i < m->share.n_tensors; i++) {
		const struct state_tensor *t = &m->share.tensors[i];

		later[i] = !t->elsewhere && !t->is_blob && !t->src.fill && !from_device_has_managed(m, i) &&
		           !(opts->at_once && opts->at_once[i]);
		host_bytes += later[i] && !from_device_has(m, i) ? t->local_nbytes : 0;
		total += t->elsewhere ? 0 : t->local_nbytes;
		bytes += later[i] ? t->local_nbytes : 0;
	}
	/* A few host tensors must not make the fence wait on the host. */
	for (size_t i = 0; m->from_device && host_bytes < LEAST_BYTES && i < m->share.n_tensors; i++)
		later[i] = later[i] && from_device_has(m, i);
	m->lazy.is_on = bytes >= LEAST_BYTES && bytes >= total / 2;
	m->lazy.later = m->lazy.is_on ? later : NULL;
	m->lazy.later_nbytes = bytes;
	return 0;
}

/* ---- what has changed ---- */

static int
refuse_change(struct save_image *m, size_t tensor, bool at_once, struct pawl_error *err)
{
	if (at_once)
		return err_set(err, PAWL_EUSAGE,
		               "tensor '%s' was changed by another thread while the save of step %lld copied it; "
		               "nothing was saved. No thread may change the state during a save",
		               m->request->tensors[tensor].name, (long long)m->request->step);
	return err_set(err, PAWL_EUSAGE,
	               "tensor '%s' changed before the lazy save of step %lld had copied it; nothing was saved. Call "
	               "before_step() (in C pawl_fence) after a lazy save and before anything changes the tensors, or "
	               "save without lazy",
	               m->request->tensors[tensor].name, (long long)m->request->step);
}

/* By the counts of the caller's framework. */
static int
ask_caller(struct save_image *m, bool later, struct pawl_error *err)
{
	size_t found = m->request->find_changed ? m->request->find_changed(m->request->changed_arg, later) : SIZE_MAX;

	return found < m->request->n_tensors ? refuse_change(m, found, !m->lazy.is_on || !later, err) : 0;
}

static void
read_source(const struct snapshot_source *source, uint64_t at, size_t n, char *to)
{
	if (source->strided)
		tensor_gather(source->strided, at, n, to);
	else
		memcpy(to, source->data + at, n);
}

/* The checksum of a tensor's first and last bytes, or of all of a small one, and of samples between
 * them. Their places differ from page to page and from save to save. */
static struct sum128
sample_source(const struct save_image *m, const struct snapshot_source *source, uint64_t n)
{
	uint64_t step = SAMPLE_STEP;
	char lines[64 * SAMPLE_BYTES];
	struct sum_stream sum;
	size_t used = 0;

	while (m->lazy.later_nbytes / step > MOST_SAMPLES)
		step *= 2;
	sum_init(&sum);
	if (n > SAMPLE_BYTES) {
		read_source(source, 0, SAMPLE_BYTES, lines);
		used = SAMPLE_BYTES;
	}
	for (uint64_t page = 0, number = m->request->id; page + SAMPLE_BYTES < n; page += step, number += 37) {
		uint64_t at = page + number % (step / SAMPLE_BYTES) * SAMPLE_BYTES;

		if (used == sizeof(lines)) {
			sum_update(&sum, lines, used);
			used = 0;
		}
		read_source(source, at + SAMPLE_BYTES < n ? at : page, SAMPLE_BYTES, lines + used);
		used += SAMPLE_BYTES;
	}
	sum_update(&sum, lines, used);
	used = (size_t)(n < SAMPLE_STEP ? n : SAMPLE_BYTES);
	read_source(source, n - used, used, lines);
	sum_update(&sum, lines, used);
	return sum_final(&sum);
}

/* Samples each tensor in host memory that is copied later, or during the call. With compare: the
 * first one that has changed since; else SIZE_MAX. */
static size_t
sample_all(struct save_image *m, const struct snapshot_source *sources, bool later, bool compare)
{
	for (size_t k = 0; k < m->plan->n_packs; k++) {
		const struct plan_pack *p = &m->plan->packs[k];

		for (size_t j = 0; j < p->n_slots; j++) {
			size_t i = p->slots[j].tensor;
			const bool is_on_host = sources[i].data || sources[i].strided;

			if (m->lazy.later[i] != later || !p->slots[j].nbytes || !is_on_host || from_device_has(m, i))
				continue;
			struct sum128 now = sample_source(m, &sources[i], p->slots[j].nbytes);

			if (compare && !sum_equal(now, m->lazy.samples[i]))
				return i;
			m->lazy.samples[i] = now;
		}
	}
	return SIZE_MAX;
}

int
lazy_begin(struct save_image *m, struct pawl_error *err)
{
	const size_t n = m->share.n_tensors;

	if (!m->lazy.is_on)
		return 0;
	struct snapshot_source *sources = bump_array(&m->memory, (uint64_t)n + 1, sizeof(*sources));

	m->lazy.samples = bump_array(&m->memory, (uint64_t)n + 1, sizeof(*m->lazy.samples));
	if (!m->lazy.samples || !sources)
		return err_nomem(err, "save");
	for (size_t i = 0; i < n; i++)
		if (!m->share.tensors[i].src.fill)
			sources[i] = m->sources[i];
	m->lazy.sources = sources;
	sample_all(m, sources, false, false);
	return 0;
}

int
lazy_note(struct save_image *m, struct pawl_error *err)
{
	if (!m->lazy.is_on)
		return 0;
	const size_t found = sample_all(m, m->lazy.sources, false, true);

	if (found != SIZE_MAX)
		return refuse_change(m, found, true, err);
	m->lazy.sources = NULL;
	sample_all(m, m->sources, true, false);
	return ask_caller(m, false, err);
}

/* After the final question the caller may change tensors on a device, although the copy runs, and
 * its argument may go. */
static int
ask_later(struct save_image *m, bool is_final, struct pawl_error *err)
{
	const bool has_failed = save_has_failed(m->progress);
	int rc = 0;

	pthread_mutex_lock(&m->lazy.asking);
	if (!m->lazy.is_asked && !has_failed)
		rc = ask_caller(m, true, err);
	m->lazy.is_asked = m->lazy.is_asked || is_final;
	pthread_mutex_unlock(&m->lazy.asking);
	return rc;
}

void
lazy_ask(struct save_image *m)
{
	struct pawl_error err = {0};
	const int rc = ask_later(m, true, &err);

	if (rc < 0)
		save_fail(m->progress, rc, &err);
}

bool
lazy_verify(struct save_image *m)
{
	struct pawl_error err = {0};
	int rc = 0;

	if (save_has_failed(m->progress))
		return false;
	if (!m->lazy.is_on)
		rc = ask_caller(m, false, &err);
	if (rc == 0)
		rc = ask_later(m, false, &err);
	if (rc == 0 && m->lazy.is_on) {
		size_t found = sample_all(m, m->sources, true, true);

		if (found == SIZE_MAX)
			rc = from_device_find_changed(m, &found, &err);
		if (found != SIZE_MAX)
			rc = refuse_change(m, found, false, &err);
	}
	if (rc < 0)
		save_fail(m->progress, rc, &err);
	return m->lazy.is_on && rc == 0;
}

/* ---- reading the sources again ---- */

static bool
slot_differs(const struct save_pack *p, const struct plan_slot *slot, const struct snapshot_source *source, uint64_t at,
             size_t n)
{
	const char *copy = p->bytes + p->plan->header.len + slot->begin;
	char bytes[4096];

	while (n) {
		size_t here = n < sizeof(bytes) ? n : sizeof(bytes);

		read_source(source, at, here, bytes);
		if (memcmp(bytes, copy + at, here) != 0)
			return true;
		at += here;
		n -= here;
	}
	return false;
}

/* A tensor of [begin, end) of the pack that is copied later, or SIZE_MAX. With look: the one that
 * has changed, if there is a copy to compare it with. */
static size_t
find_tensor(const struct save_image *m, const struct save_pack *p, uint64_t begin, uint64_t end, bool look)
{
	const uint64_t data = p->plan->header.len;
	size_t found = SIZE_MAX, j = snapshot_slot_at(p->plan, begin > data ? begin - data : 0);

	for (; j < p->plan->n_slots && data + p->plan->slots[j].begin < end; j++) {
		const struct plan_slot *slot = &p->plan->slots[j];
		uint64_t slot_begin = data + slot->begin, slot_end = slot_begin + slot->nbytes;
		uint64_t from = slot_begin > begin ? slot_begin : begin, to = slot_end < end ? slot_end : end;

		if (from >= to || lazy_at_once(m, slot->tensor) || from_device_has(m, slot->tensor))
			continue;
		if (found == SIZE_MAX)
			found = slot->tensor;
		if (!look)
			break;
		if (p->bytes &&
		    slot_differs(p, slot, &m->sources[slot->tensor], from - slot_begin, (size_t)(to - from)))
			return slot->tensor;
	}
	return found;
}

static int
check_unit(struct save_image *m, const struct save_unit *u, struct pawl_error *err)
{
	const uint64_t block_bytes = m->plan->block_bytes, end = u->offset + u->nbytes;

	for (uint64_t at = u->offset; at < end; at += block_bytes) {
		const uint64_t stop = end - at < block_bytes ? end : at + block_bytes;
		struct sum128 now;

		if (find_tensor(m, u->pack, at, stop, false) == SIZE_MAX)
			continue;
		snapshot_unit(m->plan, u->pack->index, m->sources, at, (size_t)(stop - at), NULL, &now, false);
		if (!sum_equal(now, u->pack->sums[at / block_bytes]))
			return refuse_change(m, find_tensor(m, u->pack, at, stop, true), false, err);
	}
	return 0;
}

void
lazy_check_units(struct save_image *m)
{
	struct pawl_error err = {0};

	for (;;) {
		size_t i = atomic_fetch_add(&m->progress->next_check, 1);
		int rc;

		if (i >= m->n_units || save_has_failed(m->progress))
			return;
		rc = m->units[i].pack->linked ? 0 : check_unit(m, &m->units[i], &err);
		if (rc < 0)
			save_fail(m->progress, rc, &err);
	}
}
