/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_copy: the caller's tensors -> the image of a file. It is the only part of a save that the
 * caller waits for.
 *
 * Promise P1: the CRCs are computed in the same pass, from the bytes the caller gave. The image is
 * cut into units of adjacent bytes, across pieces. Each thread takes the next unit and faults its
 * pages in if they are new. It copies in steps that stay in the cache for the CRC. Writers follow
 * the units that are copied from the first one on without a gap.
 */
#include <string.h>

#include "base/clock.h"
#include "base/crc.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/sum.h"
#include "jobs/files/files.h"
#include "state/state.h"

#define STEP_BYTES ((size_t)256 << 10)
#define MIN_UNIT_BYTES ((uint64_t)256 << 10)
#define MAX_UNIT_BYTES ((uint64_t)4 << 20)

static char *
image_at(const struct files_job *job, uint64_t offset)
{
	return (char *)job->region.ptr + offset;
}

/* Bytes [from, to) of tensor piece p. */
static void
copy_tensor(struct files_job *job, size_t p, uint64_t from, uint64_t to)
{
	const struct file_piece *piece = &job->plan.pieces.items[p];
	const bool has_crc = job->crc_piece[piece->tensor] == p;
	const char *data = job->data[piece->tensor];
	uint32_t sum = 0;

	while (from < to) {
		const size_t n = to - from < STEP_BYTES ? (size_t)(to - from) : STEP_BYTES;
		char *dst = image_at(job, piece->at + from);

		const uint64_t after = piece->nbytes - from - n;

		if (!data)
			tensor_gather(&job->state->tensors[piece->tensor].src, from, n, dst);
		if (!data || data + from == dst) /* the bytes are in place */
			sum ^= has_crc ? crc32_part(dst, n, after) : 0;
		else if (has_crc)
			sum ^= crc32_copy_part(dst, data + from, n, after);
		else
			sum_copy(NULL, dst, data + from, n);
		from += n;
	}
	if (has_crc)
		atomic_fetch_xor(&job->sums[piece->tensor], sum);
}

static void
copy_range(struct files_job *job, uint64_t begin, uint64_t end)
{
	const struct piece_plan *plan = &job->plan;

	if (end > job->region.warm_bytes)
		arena_fault_in(image_at(job, begin), (size_t)(end - begin));
	for (size_t i = piece_plan_find(plan, begin); i < plan->pieces.n && plan->pieces.items[i].at < end; i++) {
		const struct file_piece *p = &plan->pieces.items[i];
		const uint64_t from = p->at > begin ? 0 : begin - p->at;
		const uint64_t to = p->at + p->nbytes < end ? p->nbytes : end - p->at;

		if (p->kind == FILE_BYTES)
			memcpy(image_at(job, p->at + from), plan->bytes.ptr + p->bytes_at + from, (size_t)(to - from));
		else if (p->kind == FILE_TENSOR)
			copy_tensor(job, i, from, to);
	}
}

static uint64_t
n_units(const struct files_job *job)
{
	return (job->plan.nbytes + job->unit_bytes - 1) / job->unit_bytes;
}

/* Marks a unit as copied. If it closed the gap, the writers are woken. */
static void
mark_copied(struct files_job *job, uint64_t unit)
{
	const uint64_t n = n_units(job);

	pthread_mutex_lock(&job->lock);
	job->copied[unit] = 1;
	if (unit == job->n_copied) {
		while (job->n_copied < n && job->copied[job->n_copied])
			job->n_copied++;
		pthread_cond_broadcast(&job->changed);
	}
	pthread_mutex_unlock(&job->lock);
}

/* Job of a copying thread, and of the caller. */
static void
copy_work(void *arg)
{
	struct files_job *job = arg;

	for (;;) {
		const uint64_t unit = atomic_fetch_add(&job->next, 1), begin = unit * job->unit_bytes;

		if (begin >= job->plan.nbytes)
			return;
		const uint64_t left = job->plan.nbytes - begin;
		copy_range(job, begin, begin + (left < job->unit_bytes ? left : job->unit_bytes));
		mark_copied(job, unit);
	}
}

void
files_copy_wait(struct files_job *job, uint64_t end)
{
	pthread_mutex_lock(&job->lock);
	while (end == UINT64_MAX ? !job->is_image
	                         : job->n_copied < n_units(job) && job->n_copied * job->unit_bytes < end)
		pool_cond_wait_until(&job->changed, &job->lock, -1);
	pthread_mutex_unlock(&job->lock);
}

static int
check_tensors(const struct files_job *job, const struct pawl_state *state, struct pawl_error *err)
{
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];

		if (t->elsewhere || t->local_nbytes != t->info.nbytes)
			return err_set(err, PAWL_EUNSUPPORTED,
			               "%s: tensor '%s' is a shard; a single file holds full tensors", job->target.path,
			               t->info.name);
	}
	return 0;
}

static int
make_tables(struct files_job *job, const struct pawl_state *state, struct pawl_error *err)
{
	const size_t n = state->n_tensors;
	const struct piece_plan *plan = &job->plan;

	job->sums = mem_zalloc(n + 1, sizeof *job->sums);
	job->crc_piece = mem_zalloc(n + 1, sizeof *job->crc_piece);
	job->data = mem_zalloc(n + 1, sizeof *job->data);
	if (!job->sums || !job->crc_piece || !job->data)
		return err_nomem(err, job->target.path);
	for (size_t i = 0; i < n; i++) {
		const struct state_tensor *t = &state->tensors[i];

		job->crc_piece[i] = SIZE_MAX;
		job->data[i] = t->contiguous && !t->src.fill ? t->src.data : NULL;
		if (t->src.device)
			return err_set(err, PAWL_EUNSUPPORTED,
			               "tensor '%s' is on a device; copy it to host memory first", t->info.name);
	}
	/* from the end: a CRC is met before its piece, and of several pieces the first counts */
	for (size_t i = plan->pieces.n; i-- > 0;) {
		const struct file_piece *p = &plan->pieces.items[i];

		if (p->kind == FILE_CRC && job->crc_piece[p->tensor] == SIZE_MAX)
			job->crc_piece[p->tensor] = SIZE_MAX - 1;
		else if (p->kind == FILE_TENSOR && job->crc_piece[p->tensor] != SIZE_MAX)
			job->crc_piece[p->tensor] = i;
	}
	return 0;
}

/* The caller's framework copies what the processor cannot read, on this thread, straight to its
 * place. */
static int
fill_tensors(struct files_job *job, const struct pawl_state *state, struct pawl_error *err)
{
	for (size_t i = 0; i < job->plan.pieces.n; i++) {
		const struct file_piece *p = &job->plan.pieces.items[i];

		if (p->kind != FILE_TENSOR)
			continue;
		const struct pawl_tensor *t = &state->tensors[p->tensor].src;
		char *dst = image_at(job, p->at);

		if (!t->fill || !p->nbytes || job->data[p->tensor])
			continue;
		TRY(tensor_fill(&state->tensors[p->tensor], dst, (size_t)p->nbytes, err));
		job->data[p->tensor] = dst;
	}
	return 0;
}

/* Every thread gets some units, for any size. */
static uint64_t
unit_bytes(const struct files_job *job)
{
	const uint64_t threads = 1 + (job->files->copiers ? pool_threads(job->files->copiers) : 0);
	const uint64_t fair = mem_round_up(job->plan.nbytes / (4 * threads) + 1, 4096);

	return fair < MIN_UNIT_BYTES ? MIN_UNIT_BYTES : fair < MAX_UNIT_BYTES ? fair : MAX_UNIT_BYTES;
}

int
files_copy_begin(struct files_job *job, const struct pawl_state *state, struct pawl_error *err)
{
	TRY(check_tensors(job, state, err));
	TRY(make_tables(job, state, err));
	job->unit_bytes = unit_bytes(job);
	job->copied = mem_zalloc(n_units(job) + 1, 1);
	if (!job->copied)
		return err_nomem(err, job->target.path);
	TRY(arena_take_cold(job->files->arena, (size_t)job->plan.nbytes, &job->region, err));
	TRY(fill_tensors(job, state, err));
	job->state = state;
	return 0;
}

void
files_copy(struct files_job *job)
{
	struct pool *copiers = job->files->copiers;
	struct pool_group group;
	unsigned helpers = copiers ? pool_threads(copiers) : 0;
	const uint64_t units = n_units(job);

	if (helpers >= units)
		helpers = units ? (unsigned)units - 1 : 0;
	pool_group_init(&group);
	for (unsigned i = 0; i < helpers; i++) {
		if (pool_add(copiers, &group, copy_work, job, NULL) < 0)
			break; /* fewer helpers are enough */
	}
	copy_work(job);
	pool_group_wait(&group);
	pool_group_clear(&group);
	job->state = NULL;
	arena_note_warm(job->files->arena, &job->region, (size_t)job->plan.nbytes);
	ticket_stage(job->ticket, PAWL_STAGE_STAGED);
	pthread_mutex_lock(&job->lock);
	job->staged_ns = clock_mono_ns();
	job->is_image = true;
	pthread_cond_broadcast(&job->changed);
	pthread_mutex_unlock(&job->lock);
}
