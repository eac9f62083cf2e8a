/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage: from live tensors to staged units, on the caller's thread and the copy pool. This is the
 * only part of a save that training waits for.
 *
 *   snapshot  every unit has its place in the arena
 *   ring      a unit takes a free slot, or faults in a new one, or waits; writing frees the slot.
 *             A snapshot whose memory is cold passes through the warm part, which grows when no
 *             slot is free
 *   direct    a ring; the caller also waits for the writes
 *
 * Tensors on devices are copied to a unit's place first (from_device.c).
 */
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "save/commit.h"
#include "save/compress.h"
#include "save/from_device.h"
#include "save/lazy.h"
#include "save/ring.h"
#include "save/save.h"
#include "save/writer.h"
#include "state/pack_name.h"

#define COLD_BYTES ((uint64_t)64 << 20) /* a smaller region is faulted in faster than it is written */

/* Deep copy of a tensor's arrays: a lazy save outlives the state. */
static const struct pawl_tensor *
copy_strided(struct save_image *m, const struct pawl_tensor *t)
{
	struct pawl_tensor *copy = bump_alloc(&m->memory, sizeof(*copy));
	uint64_t *shape = bump_array(&m->memory, (uint64_t)t->ndim + 1, sizeof(*shape));
	int64_t *strides = bump_array(&m->memory, (uint64_t)t->ndim + 1, sizeof(*strides));

	if (!copy || !shape || !strides)
		return NULL;
	*copy = *t;
	memcpy(shape, t->shape, t->ndim * sizeof(*shape));
	memcpy(strides, t->strides, t->ndim * sizeof(*strides));
	copy->shape = shape;
	copy->strides = strides;
	return copy;
}

static int
make_sources(struct save_image *m, const struct pawl_state *state, struct pawl_error *err)
{
	m->sources = bump_array(&m->memory, (uint64_t)state->n_tensors + 1, sizeof(*m->sources));
	if (!m->sources)
		return err_nomem(err, "save");
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		struct snapshot_source *source = &m->sources[i];

		source->dtype = t->info.dtype;
		if (t->elsewhere)
			continue;
		source->on_device = from_device_has(m, i);
		if (from_device_staged(m, i)) {
			source->data = (const char *)(uintptr_t)from_device_staged(m, i);
		} else if (t->is_blob && m->lazy.is_on) { /* in the state's own memory, which may be freed */
			source->data = bump_strndup(&m->memory, t->src.data, (size_t)t->local_nbytes);
			if (!source->data)
				return err_nomem(err, "save");
		} else if (t->contiguous || !t->local_nbytes) {
			source->data = t->src.data;
		} else {
			source->strided = copy_strided(m, &t->src);
			if (!source->strided)
				return err_nomem(err, "save");
		}
	}
	return 0;
}

static bool
is_filled(const struct save_image *m, const struct state_tensor *t, size_t i)
{
	return !t->elsewhere && (t->src.fill || (lazy_at_once(m, i) && !t->is_blob));
}

/* Of a lazy save: a tensor that is copied during the call. */
static void
copy_now(const struct snapshot_source *source, char *dst, size_t n)
{
	if (source->strided)
		tensor_gather(source->strided, 0, n, dst);
	else
		sum_copy(NULL, dst, source->data, n);
}

/* A part of the region that is filled next. */
static void
warm_up(const struct save_image *m, char *ptr, size_t nbytes)
{
	if ((size_t)(ptr - (char *)m->region.ptr) + nbytes > m->region.warm_bytes)
		arena_fault_in(ptr, nbytes);
}

/* Copies tensors that cannot be read later: in a snapshot to their place, else to a region of their
 * own. The caller's framework copies tensors that the processor cannot read. */
static int
fill_tensors(struct save_image *m, const struct pawl_state *state, struct pawl_error *err)
{
	const struct plan *plan = m->plan;
	uint64_t extra = 0, used = 0;

	for (size_t i = 0; i < state->n_tensors; i++)
		if (is_filled(m, &state->tensors[i], i))
			extra += mem_round_up(state->tensors[i].local_nbytes, 64);
	if (!extra)
		return 0;
	if (m->mode != PAWL_MODE_SNAPSHOT)
		TRY(arena_take(m->env->arena, (size_t)extra, &m->fill_region, err));
	for (size_t k = 0; k < plan->n_packs; k++) {
		for (size_t j = 0; j < plan->packs[k].n_slots; j++) {
			const struct plan_slot *slot = &plan->packs[k].slots[j];
			const struct pawl_tensor *t = &state->tensors[slot->tensor].src;
			char *dst;

			if (!slot->nbytes || !is_filled(m, &state->tensors[slot->tensor], slot->tensor))
				continue;
			if (m->mode == PAWL_MODE_SNAPSHOT) {
				dst = m->packs[k].bytes + plan->packs[k].header.len + slot->begin;
				warm_up(m, dst, (size_t)slot->nbytes);
			} else {
				dst = (char *)m->fill_region.ptr + used;
				used += mem_round_up(slot->nbytes, 64);
			}
			if (m->sources[slot->tensor].on_device) {
				TRY(from_device_add_tensor(m, slot->tensor, dst, slot->nbytes, err));
				continue;
			}
			if (t->fill)
				TRY(tensor_fill(&state->tensors[slot->tensor], dst, (size_t)slot->nbytes, err));
			else
				copy_now(&m->sources[slot->tensor], dst, (size_t)slot->nbytes);
			m->sources[slot->tensor].data = dst;
			m->sources[slot->tensor].strided = NULL;
		}
	}
	return 0;
}

/* Takes room for more packs, where the limits allow it. */
static int
take_image(struct save_image *m, uint64_t limit, struct pawl_error *err)
{
	const uint64_t image = m->plan->image_bytes, room = m->plan->room_bytes;
	struct pawl_arena *arena = m->env->arena;
	struct pawl_error ignored = {0};

	if (room > image && (!limit || room <= limit) &&
	    arena_take_cold(arena, (size_t)room, &m->region, &ignored) == 0)
		return 0;
	return arena_take_cold(arena, (size_t)image, &m->region, err);
}

/* Is a snapshot faster through the warm part of its memory than through pages that are faulted
 * in first? It is not if the caller does not wait for the copy, or if each unit must keep its
 * place. */
static bool
should_pass_through(const struct save_image *m, const struct pawl_state *state)
{
	if (m->lazy.is_on || m->deferred || m->codec || m->from_device || !m->env->caps->local ||
	    m->region.warm_bytes + COLD_BYTES > m->plan->image_bytes)
		return false;
	for (size_t i = 0; i < state->n_tensors; i++)
		if (is_filled(m, &state->tensors[i], i))
			return false;
	return true;
}

static int
make_memory(struct save_image *m, const struct pawl_state *state, struct pawl_error *err)
{
	uint64_t ring = m->env->opts->staging.ring_bytes, limit = m->env->opts->staging.arena_bytes;
	const int mode = m->mode;

	if (mode == PAWL_MODE_SNAPSHOT && (!limit || m->plan->image_bytes <= limit)) {
		TRY(take_image(m, limit, err));
		m->passes_through = should_pass_through(m, state);
		return m->passes_through ? ring_make(m, m->region.nbytes, err) : 0;
	}
	if (mode == PAWL_MODE_SNAPSHOT) /* larger than allowed: it passes through the allowed size */
		ring = limit;
	if (ring < SAVE_UNIT_BYTES)
		ring = SAVE_UNIT_BYTES;
	TRY(arena_take_cold(m->env->arena, (size_t)ring, &m->region, err));
	TRY(ring_make(m, ring, err));
	if (m->from_device) { /* a slot cannot wait for the device while the caller continues */
		m->lazy.is_on = false;
		m->lazy.later = NULL;
	}
	m->mode = mode == PAWL_MODE_DIRECT ? mode : PAWL_MODE_RING;
	return 0;
}

const struct reuse_pack *
stage_find_before(const struct reuse *reuse, const struct plan *plan, const struct plan_pack *pack,
                  const struct codec *codec)
{
	if (!reuse || atomic_load(&reuse->is_damaged) || reuse->block_bytes != plan->block_bytes)
		return NULL;
	for (size_t i = 0; i < reuse->n_packs; i++) {
		const struct reuse_pack *before = &reuse->packs[i];
		const bool is_same =
			before->n_slots ? before->n_slots == pack->n_slots && sum_equal(before->layout, pack->layout)
					: pack_same_place(before->name, pack->name);

		if (before->nbytes == pack->nbytes && is_same &&
		    (before->compressed_sums ? pack_codec(before->name) : NULL) == codec)
			return before;
	}
	return NULL;
}

/* Where folders are not renamed, an abandoned save and the next one with its id write into one
 * folder. Each has file names of its own, so that neither overwrites the other's files. */
static const char *
pack_name(struct save_image *m, const char *planned)
{
	const size_t stem = strlen(planned) - strlen(PACK_SUFFIX);
	const struct codec *codec = m->codec;
	const char *dot = codec ? "." : "", *suffix = codec ? codec_name(codec) : "";

	if (m->env->commit->is_hidden)
		return codec ? bump_printf(&m->memory, "%s.%s", planned, suffix) : planned;
	return bump_printf(&m->memory, "%.*s-%.*s" PACK_SUFFIX "%s%s", (int)stem, planned, PACK_TOKEN_LEN, m->token,
	                   dot, suffix);
}

/* A small state is cut finer, so that every thread has work and writing begins early. */
static uint64_t
unit_bytes(const struct save_image *m)
{
	uint64_t threads = m->env->opts->io.threads, block = m->plan->block_bytes;
	uint64_t fair = m->plan->image_bytes / (2 * (threads ? threads : 1)) / block * block;

	return fair < block ? block : fair < SAVE_UNIT_BYTES ? fair : SAVE_UNIT_BYTES;
}

static int
make_packs(struct save_image *m, struct pawl_error *err)
{
	const struct plan *plan = m->plan;
	struct sum128 *sums = bump_array(&m->memory, (uint64_t)plan->n_blocks + 1, sizeof(*sums));
	size_t n_units = 0;

	m->packs = bump_array(&m->memory, plan->n_packs, sizeof(*m->packs));
	for (size_t k = 0; k < plan->n_packs; k++)
		n_units += (size_t)((plan->packs[k].nbytes + m->unit_bytes - 1) / m->unit_bytes);
	m->units = bump_array(&m->memory, (uint64_t)n_units + 1, sizeof(*m->units));
	if (!sums || !m->packs || !m->units)
		return err_nomem(err, "save");
	for (size_t k = 0; k < plan->n_packs; k++) {
		struct save_pack *p = &m->packs[k];
		const struct plan_pack *pp = &plan->packs[k];
		size_t here = (size_t)((pp->nbytes + m->unit_bytes - 1) / m->unit_bytes);

		p->image = m;
		p->index = k;
		p->plan = pp;
		p->name = pack_name(m, pp->name);
		p->sums = sums + pp->first_block;
		p->bytes = m->mode == PAWL_MODE_SNAPSHOT ? (char *)m->region.ptr + pp->image_offset : NULL;
		/* The pack before may be replaced until this save is written. Or it is deleted once
		 * it is mirrored. Then this pack could not be written without a copy in memory. */
		bool fleeting = m->deferred || (!p->bytes && m->env->opts->uploads.delete_local);
		p->before = fleeting ? NULL : stage_find_before(m->env->writer->reuse, plan, pp, m->codec);
		p->undecided = p->before != NULL;
		p->parked = bump_array(&m->memory, (uint64_t)here + 1, sizeof(struct save_unit *));
		if (plan->tensors)
			p->ends = bump_array(&m->memory, (uint64_t)pp->n_slots + 1, sizeof(*p->ends));
		if (!p->parked || !p->name || (plan->tensors && !p->ends))
			return err_nomem(err, "save");
		pthread_mutex_init(&p->lock, NULL);
		atomic_store(&p->units_left, here);
		if (m->codec)
			TRY(compress_new(p, m->codec, here, &p->compress, err));
		for (size_t u = 0; u < here; u++) {
			uint64_t offset = u * m->unit_bytes, left = pp->nbytes - offset;

			m->units[m->n_units++] =
				(struct save_unit){.pack = p,
			                           .offset = offset,
			                           .nbytes = (size_t)(left < m->unit_bytes ? left : m->unit_bytes)};
		}
	}
	return 0;
}

/* bad: the tensor that holds NaN or Inf; SIZE_MAX = none. */
static void
note_not_finite(struct save_image *m, size_t bad)
{
	struct pawl_error err = {0};

	if (bad == SIZE_MAX)
		return;
	atomic_store(&m->progress->not_finite, bad);
	if (m->env->opts->nonfinite == 2)
		save_fail(m->progress,
		          err_set(&err, PAWL_EUSAGE, "tensor '%s' holds NaN or Inf, and the run refuses such states",
		                  m->request->tensors[bad].name),
		          &err);
}

/* Without a copy in memory a pack cannot be parked. So it is compared and linked before the copy.
 * The comparison ends at the first block that differs. */
static int
compare_ahead(struct save_image *m, struct pawl_error *err)
{
	const struct plan *plan = m->plan;
	char *slot = ring_take_slot(m, (size_t)plan->block_bytes, -1);

	for (size_t k = 0; k < plan->n_packs; k++) {
		struct save_pack *p = &m->packs[k];
		bool equal = p->before != NULL;
		size_t bad = SIZE_MAX;

		for (size_t b = 0; equal && b < p->plan->n_blocks; b++) {
			uint64_t offset = b * plan->block_bytes, left = p->plan->nbytes - offset;
			const size_t n = (size_t)(left < plan->block_bytes ? left : plan->block_bytes);
			struct sum128 sum;

			TRY(from_device_fetch(m, k, offset, n, slot, err));
			const size_t found =
				snapshot_unit(plan, k, m->sources, offset, n, slot, &sum, m->env->opts->nonfinite != 0);
			bad = found != SIZE_MAX ? found : bad;
			p->sums[b] = sum;
			equal = sum_equal(sum, p->before->sums[b]);
		}
		p->undecided = equal;
		note_not_finite(m, bad); /* if the pack is linked, it is not looked at again */
	}
	m->ring.fresh = 0; /* no unit has a slot yet */
	return write_link_ahead(m, err);
}

int
stage_prepare(struct save_image *m, const struct pawl_state *state, struct pawl_error *err)
{
	TRY(make_sources(m, state, err));
	m->unit_bytes = unit_bytes(m);
	TRY(make_memory(m, state, err));
	TRY(make_packs(m, err));
	TRY(from_device_share_units(m, err));
	TRY(from_device_begin(m, err));
	TRY(lazy_begin(m, err));
	TRY(fill_tensors(m, state, err));
	TRY(from_device_hold(m, err));
	if (m->mode != PAWL_MODE_SNAPSHOT)
		TRY(compare_ahead(m, err));
	return lazy_note(m, err);
}

/* Brings what is on devices to the unit's place. False: the save has failed. */
static bool
fetch_from_devices(struct save_image *m, const struct save_unit *u, char *dst)
{
	struct pawl_error err = {0};
	const int rc = !dst             ? 0
	               : u->pack->bytes ? from_device_wait(m, u, &err)
	                                : from_device_fetch(m, u->pack->index, u->offset, u->nbytes, dst, &err);

	return rc == 0 || save_fail(m->progress, rc, &err) == 0;
}

static void
stage_unit(struct save_image *m, struct save_unit *u)
{
	struct save_pack *p = u->pack;
	const struct plan *plan = m->plan;
	struct sum128 *sums = p->sums + u->offset / plan->block_bytes;
	char *dst = NULL;
	size_t bad = SIZE_MAX;

	if (p->linked) /* found equal ahead of the copy */
		return;
	if (p->bytes) {
		dst = p->bytes + u->offset;
		warm_up(m, dst, (size_t)mem_round_up(u->nbytes, IMAGE_ALIGN));
	} else {
		dst = u->slot = ring_take_slot(m, u->nbytes, from_device_node(m, u));
		if (!dst) /* the save has failed */
			return;
	}
	if (fetch_from_devices(m, u, dst))
		bad = snapshot_unit(plan, p->index, m->sources, u->offset, u->nbytes, dst, sums,
		                    m->env->opts->nonfinite != 0);
	note_not_finite(m, bad);
	u->mem = dst;
	memset(dst + u->nbytes, 0, (size_t)(mem_round_up(u->nbytes, IMAGE_ALIGN) - u->nbytes));
	if (!save_offers_late(m))
		write_offer(u);
}

/* A copying thread ends. True, and still counted: it is the last one. */
static bool
is_last_thread(struct save_image *m)
{
	pthread_mutex_lock(&m->progress->lock);
	const bool is_last = m->progress->stagers == 1;

	if (!is_last)
		m->progress->stagers--;
	pthread_mutex_unlock(&m->progress->lock);
	return is_last;
}

/* The last thread asks for the last time what has changed, and reports that all is staged. */
static void
end_thread(struct save_image *m)
{
	if (!is_last_thread(m))
		return;
	lazy_ask(m);
	pthread_mutex_lock(&m->progress->lock);
	m->progress->stagers = 0;
	arena_note_warm(m->env->arena, &m->region,
	                m->ring.n_steps ? m->ring.next_step * ARENA_STEP_BYTES : (size_t)m->plan->image_bytes);
	m->progress->registered_bytes = arena_registered(m->env->arena, &m->region);
	m->progress->staged_ns = clock_mono_ns();
	ticket_stage(m->progress->ticket, PAWL_STAGE_STAGED);
	pthread_cond_broadcast(&m->progress->changed);
	pthread_mutex_unlock(&m->progress->lock);
}

/* Adds up to n jobs to the copy pool, each of which ends by leaving. Returns how many. */
static unsigned
add_stagers(struct save_image *m, unsigned n, pool_fn *work)
{
	for (unsigned i = 0; i < n; i++) {
		pthread_mutex_lock(&m->progress->lock);
		m->progress->stagers++;
		pthread_mutex_unlock(&m->progress->lock);
		if (pool_add(m->env->writer->copiers, NULL, work, m, NULL) < 0) {
			pthread_mutex_lock(&m->progress->lock);
			m->progress->stagers--;
			pthread_mutex_unlock(&m->progress->lock);
			return i;
		}
	}
	return n;
}

static unsigned
other_threads(const struct save_image *m)
{
	const unsigned n = pool_threads(m->env->writer->copiers);

	return n > m->n_units ? (unsigned)m->n_units : n;
}

/* Job: one of the threads that read the sources of a lazy save again. */
static void
check_work(void *arg)
{
	struct save_image *m = arg;

	lazy_check_units(m);
	end_thread(m);
}

/* A copying thread ends. The last one checks that lazily copied tensors have not changed. */
static void
leave_copy(struct save_image *m)
{
	if (!is_last_thread(m))
		return;
	from_device_settle(m);
	if (lazy_verify(m)) {
		add_stagers(m, other_threads(m), check_work);
		lazy_check_units(m);
	}
	end_thread(m);
}

/* Job: one of the copying threads. */
static void
stage_work(void *arg)
{
	struct save_image *m = arg;
	const uint64_t faults_before = os_thread_faults();
	size_t group = device_turns_join(&m->turns);

	from_device_add_units(m);
	for (size_t i; device_turns_take(&m->turns, &group, &i);)
		stage_unit(m, &m->units[i]);
	atomic_fetch_add(&m->progress->minor_faults, os_thread_faults() - faults_before);
	leave_copy(m);
}

/* Without help the last job takes the place of this call. The call must not be the one that ends
 * the copy, since that waits for the devices and reads the sources again. */
void
stage_start(struct save_image *m, bool help)
{
	const unsigned others = other_threads(m);

	if (help && m->env->opts->staging.copy_threads > 1)
		add_stagers(m, others, stage_work);
	if (!help) {
		add_stagers(m, others ? others - 1 : 0, stage_work);
		if (pool_add(m->env->writer->copiers, NULL, stage_work, m, NULL) == 0)
			return;
	}
	stage_work(m);
	stage_wait(m);
}

int
stage_wait_until(struct save_image *m, int64_t deadline_ms)
{
	int rc = 0;

	pthread_mutex_lock(&m->progress->lock);
	while (m->progress->stagers > 0 && rc == 0)
		rc = pool_cond_wait_until(&m->progress->changed, &m->progress->lock, deadline_ms);
	if (m->progress->stagers == 0)
		rc = 0;
	pthread_mutex_unlock(&m->progress->lock);
	return rc;
}

void
stage_cancel(struct save_image *m, int code, const struct pawl_error *err)
{
	save_fail(m->progress, code, err);
	pthread_mutex_lock(&m->progress->lock);
	pthread_cond_broadcast(&m->progress->changed);
	pthread_mutex_unlock(&m->progress->lock);
	stage_wait(m);
	stage_let_go(m);
}

void
stage_wait(struct save_image *m)
{
	stage_wait_until(m, -1);
}

void
stage_let_go(struct save_image *m)
{
	pthread_mutex_lock(&m->progress->lock);
	if (m->progress->is_held) {
		m->progress->is_held = false;
		pthread_cond_broadcast(&m->progress->changed);
	}
	pthread_mutex_unlock(&m->progress->lock);
}

void
stage_wait_released(struct save_image *m)
{
	pthread_mutex_lock(&m->progress->lock);
	while (m->progress->stagers > 0 || m->progress->is_held)
		pool_cond_wait_until(&m->progress->changed, &m->progress->lock, -1);
	pthread_mutex_unlock(&m->progress->lock);
}
