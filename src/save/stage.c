/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage: from live tensors to staged units, on the caller's thread and the copy pool. Called by writer.c; calls
 * snapshot.c and, per unit, write_offer. The only part of a save that training waits for (idea 4).
 *
 *   snapshot  every unit has its place in the arena
 *   ring      a unit waits for a free slot; writing gives it back
 *   direct    a unit that lies in one aligned tensor is written from there, others pass through a slot
 */
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/lazy.h"
#include "save/press.h"
#include "save/save.h"
#include "save/writer.h"
#include "state/pack_name.h"

#define IMAGE_ALIGN 4096u

/* Deep copy of a tensor's arrays, so that a lazy save does not need the state any more. */
static const struct pawl_tensor *
copy_strided(struct save *s, const struct pawl_tensor *t)
{
	struct pawl_tensor *copy = bump_alloc(&s->memory, sizeof(*copy));
	uint64_t *shape = bump_array(&s->memory, (uint64_t)t->ndim + 1, sizeof(*shape));
	int64_t *strides = bump_array(&s->memory, (uint64_t)t->ndim + 1, sizeof(*strides));

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
make_sources(struct save *s, const struct pawl_state *state, struct pawl_error *err)
{
	s->sources = bump_array(&s->memory, (uint64_t)state->n_tensors + 1, sizeof(*s->sources));
	if (!s->sources)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		struct snapshot_source *source = &s->sources[i];

		source->dtype = t->info.dtype;
		if (t->elsewhere)
			continue;
		if (t->is_blob && s->lazy) { /* lies in the state's own memory, which may go */
			source->data = bump_strndup(&s->memory, t->src.data, (size_t)t->local_nbytes);
			if (!source->data)
				return err_set(err, PAWL_ENOMEM, "save: out of memory");
		} else if (t->contiguous || !t->local_nbytes) {
			source->data = t->src.data;
		} else {
			source->strided = copy_strided(s, &t->src);
			if (!source->strided)
				return err_set(err, PAWL_ENOMEM, "save: out of memory");
		}
	}
	return 0;
}

static bool
is_filled(const struct save *s, const struct state_tensor *t, size_t i)
{
	return !t->elsewhere && (t->src.fill || (lazy_at_once(s, i) && !t->is_blob));
}

/* Of a lazy save: here and now. */
static void
copy_now(const struct snapshot_source *source, char *dst, size_t n)
{
	if (source->strided)
		tensor_gather(source->strided, 0, n, dst);
	else
		sum_copy(NULL, dst, source->data, n);
}

/* Copies what cannot be read later: in a snapshot to its place, else to a copy in memory. Of what the processor cannot
 * read the caller's framework does it. */
static int
fill_tensors(struct save *s, const struct pawl_state *state, struct pawl_error *err)
{
	const struct plan *plan = s->plan;
	uint64_t extra = 0, used = 0;

	for (size_t i = 0; i < state->n_tensors; i++)
		if (is_filled(s, &state->tensors[i], i))
			extra += round_up(state->tensors[i].local_nbytes, 64);
	if (!extra)
		return 0;
	if (s->mode != PAWL_MODE_SNAPSHOT)
		TRY(arena_take(s->run->arena, (size_t)extra, &s->fill_region, err));
	for (size_t k = 0; k < plan->n_packs; k++) {
		for (size_t j = 0; j < plan->packs[k].n_slots; j++) {
			const struct plan_slot *slot = &plan->packs[k].slots[j];
			const struct pawl_tensor *t = &state->tensors[slot->tensor].src;
			char *dst;

			if (!slot->nbytes || !is_filled(s, &state->tensors[slot->tensor], slot->tensor))
				continue;
			if (s->mode == PAWL_MODE_SNAPSHOT) {
				dst = s->packs[k].image + plan->packs[k].header.len + slot->begin;
			} else {
				dst = (char *)s->fill_region.ptr + used;
				used += round_up(slot->nbytes, 64);
			}
			if (t->fill)
				TRY(t->fill(t->fill_arg, dst, (size_t)slot->nbytes, err));
			else
				copy_now(&s->sources[slot->tensor], dst, (size_t)slot->nbytes);
			s->sources[slot->tensor].data = dst;
			s->sources[slot->tensor].strided = NULL;
		}
	}
	return 0;
}

/* Takes room for more packs, where the limits allow it. */
static int
take_image(struct save *s, uint64_t limit, struct pawl_error *err)
{
	const uint64_t image = s->plan->image_bytes, room = s->plan->room_bytes;
	struct pawl_arena *arena = s->run->arena;
	struct pawl_error ignored = {0};

	if (room > image && (!limit || room <= limit) &&
	    (s->lazy ? arena_take_cold : arena_take)(arena, (size_t)room, &s->region, &ignored) == 0)
		return 0;
	return (s->lazy ? arena_take_cold : arena_take)(arena, (size_t)image, &s->region, err);
}

static int
make_memory(struct save *s, struct pawl_error *err)
{
	uint64_t ring = s->run->opts.ring_bytes, limit = s->run->opts.arena_bytes;

	if (s->mode == PAWL_MODE_SNAPSHOT && (!limit || s->plan->image_bytes <= limit))
		return take_image(s, limit, err);
	if (s->mode == PAWL_MODE_SNAPSHOT) { /* larger than allowed: pass it through what is allowed */
		s->mode = PAWL_MODE_RING;
		ring = limit;
	}
	if (ring < SAVE_UNIT_BYTES)
		ring = SAVE_UNIT_BYTES;
	TRY(arena_take(s->run->arena, (size_t)ring, &s->region, err));
	s->n_free_slots = s->region.nbytes / SAVE_UNIT_BYTES;
	if (s->n_free_slots > ring / SAVE_UNIT_BYTES)
		s->n_free_slots = (size_t)(ring / SAVE_UNIT_BYTES);
	s->free_slots = bump_array(&s->memory, s->n_free_slots, sizeof(*s->free_slots));
	if (!s->free_slots)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	for (size_t i = 0; i < s->n_free_slots; i++)
		s->free_slots[i] = (char *)s->region.ptr + i * SAVE_UNIT_BYTES;
	return 0;
}

static const struct reuse_pack *
find_before(const struct reuse *reuse, const struct plan *plan, const struct plan_pack *pack, const struct codec *codec)
{
	if (!reuse || reuse->block_bytes != plan->block_bytes)
		return NULL;
	for (size_t i = 0; i < reuse->n_packs; i++) {
		const struct reuse_pack *before = &reuse->packs[i];
		const bool is_same =
			before->n_slots ? before->n_slots == pack->n_slots && sum_equal(before->layout, pack->layout)
					: pack_same_place(before->name, pack->name);

		if (before->nbytes == pack->nbytes && is_same &&
		    (before->packed_sums ? pack_codec(before->name) : NULL) == codec)
			return before;
	}
	return NULL;
}

/* Where folders are not renamed, a save that was given up and one that takes its number write into one folder. So that
 * the one never writes over the other's files, each has names of its own there. */
static const char *
pack_name(struct save *s, const char *planned)
{
	const size_t stem = strlen(planned) - strlen(PACK_SUFFIX);
	const struct codec *codec = s->codec;
	const char *dot = codec ? "." : "", *suffix = codec ? codec_name(codec) : "";

	if (s->run->caps.rename_folder)
		return codec ? bump_printf(&s->memory, "%s.%s", planned, suffix) : planned;
	return bump_printf(&s->memory, "%.*s-%.*s" PACK_SUFFIX "%s%s", (int)stem, planned, PACK_TOKEN_LEN, s->token,
	                   dot, suffix);
}

/* A small state is cut finer, so that every thread gets some of it and writing begins early. */
static uint64_t
unit_bytes(const struct save *s)
{
	uint64_t threads = s->run->opts.io_threads, block = s->plan->block_bytes;
	uint64_t fair = s->plan->image_bytes / (2 * (threads ? threads : 1)) / block * block;

	return fair < block ? block : fair < SAVE_UNIT_BYTES ? fair : SAVE_UNIT_BYTES;
}

static int
make_packs(struct save *s, struct pawl_error *err)
{
	const struct plan *plan = s->plan;
	struct sum128 *sums = bump_array(&s->memory, (uint64_t)plan->n_blocks + 1, sizeof(*sums));
	size_t n_units = 0;

	s->unit_bytes = unit_bytes(s);
	s->packs = bump_array(&s->memory, plan->n_packs, sizeof(*s->packs));
	for (size_t k = 0; k < plan->n_packs; k++)
		n_units += (size_t)((plan->packs[k].nbytes + s->unit_bytes - 1) / s->unit_bytes);
	s->units = bump_array(&s->memory, (uint64_t)n_units + 1, sizeof(*s->units));
	if (!sums || !s->packs || !s->units)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	for (size_t k = 0; k < plan->n_packs; k++) {
		struct save_pack *p = &s->packs[k];
		const struct plan_pack *pp = &plan->packs[k];
		size_t here = (size_t)((pp->nbytes + s->unit_bytes - 1) / s->unit_bytes);

		p->save = s;
		p->index = k;
		p->plan = pp;
		p->name = pack_name(s, pp->name);
		p->sums = sums + pp->first_block;
		p->image = s->mode == PAWL_MODE_SNAPSHOT ? (char *)s->region.ptr + pp->image_offset : NULL;
		/* It may change meanwhile; or go meanwhile, once it is mirrored, and without an image it could not be
		 * written then. */
		bool fleeting = s->deferred || (!p->image && s->run->opts.drop_mirrored);
		p->before = fleeting ? NULL : find_before(s->writer->reuse, plan, pp, s->codec);
		p->undecided = p->before != NULL;
		p->parked = bump_array(&s->memory, (uint64_t)here + 1, sizeof(struct save_unit *));
		if (plan->tensors)
			p->ends = bump_array(&s->memory, (uint64_t)pp->n_slots + 1, sizeof(*p->ends));
		if (!p->parked || !p->name || (plan->tensors && !p->ends))
			return err_set(err, PAWL_ENOMEM, "save: out of memory");
		pthread_mutex_init(&p->lock, NULL);
		atomic_store(&p->units_left, here);
		if (s->codec)
			TRY(press_new(p, s->codec, here, &p->press, err));
		for (size_t u = 0; u < here; u++) {
			uint64_t offset = u * s->unit_bytes, left = pp->nbytes - offset;

			s->units[s->n_units++] =
				(struct save_unit){.pack = p,
			                           .offset = offset,
			                           .nbytes = (size_t)(left < s->unit_bytes ? left : s->unit_bytes)};
		}
	}
	return 0;
}

/* Without an image a pack cannot be parked, so whether it has changed is found out first, up to the first block that
 * has. */
static void
compare_ahead(struct save *s)
{
	const struct plan *plan = s->plan;

	for (size_t k = 0; k < plan->n_packs; k++) {
		struct save_pack *p = &s->packs[k];
		bool equal = p->before != NULL;

		for (size_t b = 0; equal && b < p->plan->n_blocks; b++) {
			uint64_t offset = b * plan->block_bytes, left = p->plan->nbytes - offset;
			struct sum128 sum;

			snapshot_unit(plan, k, s->sources, offset,
			              (size_t)(left < plan->block_bytes ? left : plan->block_bytes), s->free_slots[0],
			              &sum, false);
			p->sums[b] = sum;
			equal = sum_equal(sum, p->before->sums[b]);
		}
		p->linked = equal;
		p->undecided = equal;
	}
}

int
stage_prepare(struct save *s, const struct pawl_state *state, struct pawl_error *err)
{
	TRY(make_sources(s, state, err));
	TRY(make_memory(s, err));
	TRY(make_packs(s, err));
	TRY(fill_tensors(s, state, err));
	if (s->mode != PAWL_MODE_SNAPSHOT)
		compare_ahead(s);
	return lazy_note(s, err);
}

static char *
take_slot(struct save *s)
{
	char *slot;

	pthread_mutex_lock(&s->lock);
	while (s->n_free_slots == 0)
		cond_wait_until(&s->changed, &s->lock, -1);
	slot = s->free_slots[--s->n_free_slots];
	pthread_mutex_unlock(&s->lock);
	return slot;
}

void
stage_give_slot(struct save *s, char *slot)
{
	if (!slot)
		return;
	pthread_mutex_lock(&s->lock);
	s->free_slots[s->n_free_slots++] = slot;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static void
stage_unit(struct save *s, struct save_unit *u)
{
	struct save_pack *p = u->pack;
	const struct plan *plan = s->plan;
	struct sum128 *sums = p->sums + u->offset / plan->block_bytes;
	char *dst = NULL;
	size_t bad;

	if (p->linked) /* found equal ahead of the copy */
		return;
	if (p->image) {
		dst = p->image + u->offset;
		if (s->region.cold) /* of a lazy save: here rather than while its caller waits */
			arena_fault_in(dst, (size_t)round_up(u->nbytes, IMAGE_ALIGN));
	} else {
		if (s->mode == PAWL_MODE_DIRECT)
			u->mem = snapshot_in_place(plan, p->index, s->sources, u->offset, u->nbytes,
			                           s->run->caps.memory_align);
		if (!u->mem)
			dst = u->slot = take_slot(s);
	}
	bad = snapshot_unit(plan, p->index, s->sources, u->offset, u->nbytes, dst, sums, s->run->opts.nonfinite != 0);
	if (bad != SIZE_MAX) {
		atomic_store(&s->not_finite, bad);
		if (s->run->opts.nonfinite == 2) {
			struct pawl_error err = {0};

			save_fail(s,
			          err_set(&err, PAWL_EUSAGE,
			                  "tensor '%s' holds NaN or Inf, and the run refuses such states",
			                  s->tensors[bad].name),
			          &err);
		}
	}
	if (dst) {
		u->mem = dst;
		memset(dst + u->nbytes, 0, (size_t)(round_up(u->nbytes, IMAGE_ALIGN) - u->nbytes));
	}
	if (!save_offers_late(s))
		write_offer(u);
}

/* A thread is through; the last one says so. */
static void
leave(struct save *s)
{
	pthread_mutex_lock(&s->lock);
	if (--s->stagers == 0) {
		arena_warm(s->run->arena, &s->region);
		s->staged_ns = clock_mono_ns();
		ticket_stage(s->ticket, PAWL_STAGE_STAGED);
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* Adds up to n jobs to the copy pool, each of which ends by leaving. Returns how many. */
static unsigned
add_stagers(struct save *s, unsigned n, pool_fn *work)
{
	for (unsigned i = 0; i < n; i++) {
		pthread_mutex_lock(&s->lock);
		s->stagers++;
		pthread_mutex_unlock(&s->lock);
		if (pool_add(s->writer->copiers, NULL, work, s, NULL) < 0) {
			pthread_mutex_lock(&s->lock);
			s->stagers--;
			pthread_mutex_unlock(&s->lock);
			return i;
		}
	}
	return n;
}

static unsigned
other_threads(const struct save *s)
{
	unsigned n = s->writer->copiers ? pool_threads(s->writer->copiers) : 0;

	return n > s->n_units ? (unsigned)s->n_units : n;
}

/* Job: one of the threads that read the sources of a lazy save again. */
static void
check_work(void *arg)
{
	struct save *s = arg;

	lazy_check_units(s);
	leave(s);
}

/* A copying thread is through. The last one sees to it that what was copied is what the caller gave. */
static void
leave_copy(struct save *s)
{
	pthread_mutex_lock(&s->lock);
	bool is_last = s->stagers == 1;

	if (!is_last)
		s->stagers--;
	pthread_mutex_unlock(&s->lock);
	if (!is_last)
		return;
	if (lazy_verify(s)) {
		add_stagers(s, other_threads(s), check_work);
		lazy_check_units(s);
	}
	leave(s);
}

/* Job: one of the copying threads. */
static void
stage_work(void *arg)
{
	struct save *s = arg;
	struct rusage before, after;

	getrusage(RUSAGE_THREAD, &before);
	for (;;) {
		size_t i = atomic_fetch_add(&s->next_unit, 1);

		if (i >= s->n_units)
			break;
		stage_unit(s, &s->units[i]);
	}
	getrusage(RUSAGE_THREAD, &after);
	atomic_fetch_add(&s->minor_faults, (uint64_t)(after.ru_minflt - before.ru_minflt));
	leave_copy(s);
}

void
stage_start(struct save *s, bool help)
{
	if (add_stagers(s, other_threads(s), stage_work) == 0 || help) { /* somebody has to copy */
		stage_work(s);
		stage_wait(s);
	} else {
		leave_copy(s);
	}
}

int
stage_wait_until(struct save *s, int64_t deadline_ms)
{
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	while (s->stagers > 0 && rc == 0)
		rc = cond_wait_until(&s->changed, &s->lock, deadline_ms);
	if (s->stagers == 0)
		rc = 0;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

void
stage_wait(struct save *s)
{
	stage_wait_until(s, -1);
}

void
stage_let_go(struct save *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->is_held) {
		s->is_held = false;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
}

void
stage_wait_released(struct save *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->stagers > 0 || s->is_held)
		cond_wait_until(&s->changed, &s->lock, -1);
	pthread_mutex_unlock(&s->lock);
}
