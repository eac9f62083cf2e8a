/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: see fetch.h.
 *
 * Threads take units in turn (device_turns.h). A unit is read into the thread's buffer in one large
 * read, and checksummed and copied from that. The buffer is aligned, so that the engine can bypass
 * the page cache. A unit that is in the page cache already is read block by block.
 */
#include "read/fetch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "base/pool.h"
#include "base/sum.h"
#include "read/fetch_crc.h"
#include "read/fetch_files.h"
#include "read/compressed_pack.h"
#include "read/to_device.h"

#define HUGE_PAGE (2u << 20)
#define FUSED_BYTES (4u << 10) /* from this size on, a range is copied while checksummed; else in two passes */
#define MAX_THREADS 64u
#define NAMED_TENSORS 4u          /* of a damaged range; further ones are only counted */
#define MIN_UNIT_BYTES (1u << 20) /* minimum, however many threads share the ring */

struct fetch {
	struct store *store;
	struct pool *pool; /* made on first use */
	unsigned threads;
	uint64_t ring_bytes;
	char *memory;  /* as allocated */
	char *buffers; /* huge-page aligned */
	uint64_t buffer_bytes, n_buffers;
	struct device_set devices;
	struct device_pin *pin; /* of the buffers; NULL = not registered with a driver */
};

/* One fetch_run. */
struct fetching {
	const struct fetch_job *job;
	struct store *store;
	struct fetch_crc *crc;       /* NULL = none */
	struct to_device *to_device; /* NULL = all destinations are in host memory */
	struct device_turns turns;   /* of the units */
	atomic_bool stop;
	struct fetch_files *files;
	pthread_mutex_t lock; /* guards all below */
	size_t error_unit;
	struct pawl_error error;
};

struct worker {
	struct fetching *f;
	size_t group; /* of the turns */
	char *buffer;
	uint64_t buffer_bytes;
	/* the current unit */
	const struct reshard_unit *unit;
	const struct manifest_file *file;
	struct store_reader *reader;
	struct compressed_pack *compressed;
	size_t unit_index;
	size_t first_part;          /* first part that may overlap the current block */
	struct to_device_load load; /* from the buffer */
};

int
fetch_new(struct store *store, unsigned io_threads, uint64_t ring_bytes, struct fetch **ret, struct pawl_error *err)
{
	struct fetch *f = mem_zalloc(1, sizeof *f);
	if (!f)
		return err_nomem(err, "reading");
	f->store = store;
	device_set_init(&f->devices);
	f->threads = io_threads == 0 ? 1 : io_threads < MAX_THREADS / 2 ? 2 * io_threads : MAX_THREADS;
	f->ring_bytes = ring_bytes ? ring_bytes : FETCH_RING;
	if (f->ring_bytes > FETCH_MAX_RING)
		f->ring_bytes = FETCH_MAX_RING;
	*ret = f;
	return 0;
}

void
fetch_free(struct fetch *f)
{
	if (!f)
		return;
	pool_free(f->pool);
	device_set_clear(&f->devices);
	device_pin_free(f->pin);
	mem_free(f->memory);
	mem_free(f);
}

uint64_t
fetch_unit_bytes(const struct fetch *f, uint64_t wanted_bytes)
{
	uint64_t unit = f->ring_bytes / f->threads;
	uint64_t fair = wanted_bytes / (2 * (uint64_t)f->threads);
	unit = unit > RESHARD_UNIT_BYTES ? RESHARD_UNIT_BYTES : unit < MIN_UNIT_BYTES ? MIN_UNIT_BYTES : unit;
	return fair < unit ? fair : unit;
}

struct device_set *
fetch_devices(struct fetch *f)
{
	return &f->devices;
}

uint64_t
fetch_buffer_bytes(const struct fetch *f)
{
	return f->memory ? f->n_buffers * f->buffer_bytes + HUGE_PAGE : 0;
}

/* Allocates buffers for up to `wanted` threads, each as large as the largest unit. Their number is
 * stored in n_buffers. */
static int
make_buffers(struct fetch *f, const struct reshard_plan *plan, uint64_t wanted, struct pawl_error *err)
{
	uint64_t largest = 4096;
	for (size_t u = 0; u < plan->n_units; u++) {
		uint64_t n = plan->units[u].end - plan->units[u].begin;
		largest = n > largest ? n : largest;
	}
	if (largest > FETCH_MAX_RING)
		return err_set(err, PAWL_ELIMIT,
		               "a block of %" PRIu64 " bytes is larger than the %u that are read at once", largest,
		               FETCH_MAX_RING);
	largest = mem_round_up(largest, 4096);
	if (wanted * largest > f->ring_bytes)
		wanted = f->ring_bytes / largest;
	if (wanted == 0)
		wanted = 1;
	if (f->memory && f->buffer_bytes >= largest && f->n_buffers >= wanted)
		return 0;
	device_pin_free(steal(&f->pin));
	mem_free(f->memory);
	f->memory = mem_alloc((size_t)(wanted * largest + HUGE_PAGE));
	if (!f->memory)
		return err_set(err, PAWL_ENOMEM, "out of memory for %" PRIu64 " bytes of reading buffers",
		               wanted * largest);
	f->buffers = f->memory + (HUGE_PAGE - (uintptr_t)f->memory % HUGE_PAGE);
	f->buffer_bytes = largest;
	f->n_buffers = wanted;
	os_huge_pages(f->buffers, (size_t)(wanted * largest));
	return 0;
}

static struct sum128
expected_sum(const struct worker *w, uint64_t begin)
{
	return manifest_plain_sums(w->file)[begin / w->file->block_bytes];
}

/* ---- errors ---- */

/* Passes damage to the job's callback, or makes a failure the result. Returns 0 if the fetch
 * continues. */
static int
report_damage(struct worker *w, uint64_t begin, uint64_t end, struct pawl_error *why)
{
	struct fetching *f = w->f;
	const uint32_t file = w->unit->file;
	int rc = why->code;
	pthread_mutex_lock(&f->lock);
	if (f->job->bad && (rc == PAWL_ECORRUPT || rc == PAWL_EIO))
		rc = f->job->bad(f->job->arg, file, begin, end, why);
	if (rc < 0 && (f->error.code == 0 || w->unit_index < f->error_unit)) {
		fetch_locate(f->job, file, begin, end, why);
		f->error = *why;
		f->error_unit = w->unit_index;
	}
	pthread_mutex_unlock(&f->lock);
	if (rc < 0)
		atomic_store(&f->stop, true);
	return rc;
}

static int
report_sum(struct worker *w, uint64_t begin, uint64_t end, struct sum128 found)
{
	struct pawl_error err = {0};
	char want[32], got[32];
	sum_to_hex(expected_sum(w, begin), want);
	sum_to_hex(found, got);
	err_set(&err, PAWL_ECORRUPT, "not what was written: checksum %.32s expected, %.32s found", want, got);
	if (w->f->job->only_copy)
		err_prefix(&err, PAWL_ECORRUPT, "copy %u", w->f->job->only_copy);
	return report_damage(w, begin, end, &err);
}

/* ---- placing ---- */

static const struct reshard_part *
unit_parts(const struct worker *w)
{
	return w->f->job->plan->parts + w->unit->first_part;
}

/* Where byte `offset` of the file goes, if the part is one run into contiguous memory; else
 * NULL. */
static char *
find_straight(const struct worker *w, const struct reshard_part *part, uint64_t offset)
{
	const struct reshard_move *move = &w->f->job->plan->moves[part->move];
	const struct reshard_binding *b = &w->f->job->bindings[move->binding];
	if (move->n_outer > 0 || !b->contiguous || to_device_has(w->f->to_device, move->binding))
		return NULL;
	return (char *)b->dst.data + (move->dst + (offset - move->src) - move->dst_base);
}

/* Copies the runs of a part within [begin, end) to their destinations. bytes: the file's, from
 * `begin` on. */
static void
place_runs(struct worker *w, const struct reshard_part *part, uint64_t begin, uint64_t end, const char *bytes)
{
	const struct reshard_move *move = &w->f->job->plan->moves[part->move];
	const struct reshard_binding *b = &w->f->job->bindings[move->binding];
	struct reshard_cursor c;
	struct reshard_run run;
	reshard_seek(&c, move, begin > part->begin ? begin : part->begin, end < part->end ? end : part->end);
	while (reshard_next(&c, &run)) {
		if (to_device_has(w->f->to_device, move->binding))
			to_device_add(w->f->to_device, &w->load, move->binding, run.dst, run.nbytes,
			              bytes + (run.src - begin));
		else if (b->contiguous)
			memcpy((char *)b->dst.data + run.dst, bytes + (run.src - begin), (size_t)run.nbytes);
		else
			tensor_scatter(&b->dst, run.dst, (size_t)run.nbytes, bytes + (run.src - begin));
	}
}

/* The next part that overlaps [begin, end), starting at index *i; NULL at the end. */
static const struct reshard_part *
next_part(const struct worker *w, uint64_t begin, uint64_t end, size_t *i)
{
	const struct reshard_part *parts = unit_parts(w);
	while (*i < w->unit->n_parts && parts[*i].begin < end) {
		const struct reshard_part *part = &parts[(*i)++];
		if (part->end > begin)
			return part;
	}
	return NULL;
}

/* Blocks come in ascending order, so parts that end before this block are finished. */
static void
enter_block(struct worker *w, uint64_t begin)
{
	const struct reshard_part *parts = unit_parts(w);
	while (w->first_part < w->unit->n_parts && parts[w->first_part].end <= begin)
		w->first_part++;
}

/* The range of a part that is copied while it is checksummed. False: it is placed after the block
 * has been checked, as are parts that begin in bytes checksummed already. */
static bool
is_fused(const struct worker *w, const struct reshard_part *part, uint64_t begin, uint64_t end, uint64_t checksummed,
         uint64_t *ret_from, uint64_t *ret_to)
{
	uint64_t from = part->begin > begin ? part->begin : begin, to = part->end < end ? part->end : end;
	if (to - from < FUSED_BYTES || from < checksummed || !find_straight(w, part, from))
		return false;
	*ret_from = from;
	*ret_to = to;
	return true;
}

/* Places a block that has no checksum. */
static void
place_all(struct worker *w, uint64_t begin, uint64_t end, const char *bytes)
{
	const struct reshard_part *part;
	for (size_t i = w->first_part; (part = next_part(w, begin, end, &i));)
		place_runs(w, part, begin, end, bytes);
}

/* Waits until the buffer may be used again. */
static int
finish_load(struct worker *w, uint64_t begin, uint64_t end)
{
	struct pawl_error err = {0};

	return to_device_finish(&w->load, &err) < 0 ? report_damage(w, begin, end, &err) : 0;
}

/* Looks for a good copy of a block that differs from what was written. bytes: the bad ones, in the
 * buffer or in memory. */
static int
heal_block(struct worker *w, uint64_t begin, uint64_t end, const char *bytes, struct sum128 found)
{
	const struct fetch_job *job = w->f->job;
	bool in_buffer = bytes >= w->buffer && bytes < w->buffer + w->buffer_bytes;
	char *again = in_buffer ? w->buffer + (bytes - w->buffer) : w->buffer;
	for (unsigned copy = 0; !job->only_copy; copy++) {
		const size_t n = (size_t)(end - begin);
		int rc = w->compressed ? compressed_pack_read_copy(w->compressed, copy, begin, again, n, NULL)
		                       : store_read_copy(w->f->store, w->reader, copy, begin, again, n, NULL);
		if (rc == PAWL_ENOTFOUND)
			break;
		if (rc < 0 || !sum_equal(expected_sum(w, begin), sum_bytes(again, (size_t)(end - begin))))
			continue;
		place_all(w, begin, end, again);
		if (job->ret_healed_bytes)
			__atomic_fetch_add(job->ret_healed_bytes, end - begin, __ATOMIC_RELAXED);
		return finish_load(w, begin, end);
	}
	return report_sum(w, begin, end, found);
}

/* Checks one block that was read, and places the wanted bytes. */
static int
take_block(struct worker *w, uint64_t begin, uint64_t end, const char *bytes)
{
	const struct reshard_part *part;
	struct sum_stream s;
	uint64_t checksummed = begin, from, to;
	enter_block(w, begin);
	if (!manifest_plain_sums(w->file)) {
		fetch_crc_add(w->f->crc, w->unit->file, begin, end, bytes);
		place_all(w, begin, end, bytes);
		return 0;
	}
	sum_init(&s);
	for (size_t i = w->first_part; (part = next_part(w, begin, end, &i));) {
		if (!is_fused(w, part, begin, end, checksummed, &from, &to))
			continue;
		if (from > checksummed)
			sum_update(&s, bytes + (checksummed - begin), (size_t)(from - checksummed));
		sum_copy(&s, find_straight(w, part, from), bytes + (from - begin), (size_t)(to - from));
		checksummed = to;
	}
	struct sum128 found;
	if (checksummed == begin) {
		found = sum_bytes(bytes, (size_t)(end - begin));
	} else {
		sum_update(&s, bytes + (checksummed - begin), (size_t)(end - checksummed));
		found = sum_final(&s);
	}
	if (!sum_equal(expected_sum(w, begin), found))
		return heal_block(w, begin, end, bytes, found);
	checksummed = begin;
	for (size_t i = w->first_part; (part = next_part(w, begin, end, &i));) {
		if (is_fused(w, part, begin, end, checksummed, &from, &to))
			checksummed = to;
		else
			place_runs(w, part, begin, end, bytes);
	}
	return 0;
}

/* ---- reading ---- */

static uint64_t
block_end(const struct worker *w, uint64_t begin)
{
	uint64_t left = w->unit->end - begin;
	return begin + (left < w->file->block_bytes ? left : w->file->block_bytes);
}

static int
read_range(struct worker *w, uint64_t begin, uint64_t end, struct pawl_error *err)
{
	const unsigned only = w->f->job->only_copy;
	const size_t n = (size_t)(end - begin);
	if (w->compressed)
		return compressed_pack_read(w->compressed, begin, w->buffer, n, err);
	return only ? store_read_copy(w->f->store, w->reader, only - 1, begin, w->buffer, n, err)
	            : store_read(w->f->store, w->reader, begin, w->buffer, n, err);
}

/* Reads [begin, end) of the file into the buffer and takes its blocks. If damage is collected, an
 * unreadable range is tried again block by block, so that only the bad ones are reported. */
static int
take_range(struct worker *w, uint64_t begin, uint64_t end)
{
	struct pawl_error err = {0};
	int rc = read_range(w, begin, end, &err);
	if (rc == PAWL_ENOTFOUND && w->f->job->only_copy)
		return 0; /* the file was never meant to have so many copies */
	if (rc < 0 && (!w->f->job->bad || block_end(w, begin) == end))
		return report_damage(w, begin, end, &err);
	for (uint64_t at = begin; at < end; at = block_end(w, at)) {
		if (rc < 0)
			TRY(take_range(w, at, block_end(w, at)));
		else
			TRY(take_block(w, at, block_end(w, at), w->buffer + (at - begin)));
	}
	return finish_load(w, begin, end);
}

/* Takes the unit's blocks from an entry that is in memory and not in a file. */
static int
take_memory(struct worker *w)
{
	int rc = 0;
	for (uint64_t at = w->unit->begin; at < w->unit->end && rc == 0; at = block_end(w, at))
		rc = take_block(w, at, block_end(w, at), w->file->memory + at);
	return rc < 0 ? rc : finish_load(w, w->unit->begin, w->unit->end);
}

/* True if the unit is best read block by block. The buffer of a block stays in the processor's
 * cache between the read and the copy. A device copies from the complete buffer by itself. */
static bool
is_unit_cached(const struct worker *w)
{
	const struct reshard_unit *unit = w->unit;
	return !w->compressed && !w->f->job->only_copy && !to_device_has_unit(w->f->to_device, w->f->job->plan, unit) &&
	       store_is_cached(w->f->store, w->reader, unit->begin, (size_t)(unit->end - unit->begin));
}

static int
take_unit(struct worker *w)
{
	const struct reshard_unit *unit = w->unit;
	if (!is_unit_cached(w))
		return take_range(w, unit->begin, unit->end);
	for (uint64_t at = unit->begin; at < unit->end; at = block_end(w, at))
		TRY(take_range(w, at, block_end(w, at)));
	return 0;
}

/* Sets the worker's reader; 0 with a NULL reader if the file has been reported as bad. */
static int
enter_file(struct worker *w)
{
	struct pawl_error err = {0};
	uint64_t end = 0, size = w->file->nbytes;
	int rc = fetch_files_enter(w->f->files, w->unit->file, &w->reader, &w->compressed, &end, &err);
	return rc < 0 ? report_damage(w, end < size ? end : size, end > size ? end : size, &err) : 0;
}

/* ---- threads ---- */

static bool
must_stop(struct worker *w)
{
	const struct fetch_job *job = w->f->job;
	struct pawl_error err = {0};
	if (job->meter && __atomic_load_n(&job->meter->cancel, __ATOMIC_RELAXED))
		err_set(&err, PAWL_ECANCELLED, "reading was cancelled");
	else if (job->deadline_ms && clock_mono_ms() >= job->deadline_ms)
		err_set(&err, PAWL_ETIMEOUT, "reading exceeded its time limit");
	else
		return false;
	report_damage(w, w->unit->begin, w->unit->end, &err);
	return true;
}

static void
fetch_units(void *arg)
{
	struct worker *w = arg;
	struct fetching *f = w->f;
	const struct fetch_job *job = f->job;
	while (!atomic_load(&f->stop)) {
		if (!device_turns_take(&f->turns, &w->group, &w->unit_index))
			return;
		w->unit = &job->plan->units[w->unit_index];
		w->file = &job->manifest->files[w->unit->file];
		w->first_part = 0;
		if (must_stop(w) || enter_file(w) < 0)
			return;
		int rc = w->file->memory ? take_memory(w) : w->reader ? take_unit(w) : 0;
		fetch_files_leave(f->files, w->unit->file);
		if (rc < 0)
			return;
		if (job->meter)
			__atomic_fetch_add(&job->meter->done_bytes, w->unit->end - w->unit->begin, __ATOMIC_RELAXED);
	}
}

static int
run_workers(struct fetch *fetch, struct fetching *f, unsigned n, struct pawl_error *err)
{
	struct worker *workers PAWL_FREE = mem_zalloc(n, sizeof *workers);
	struct pool_group group;
	int rc = 0;
	if (!workers)
		return err_nomem(err, "reading");
	if (n > 1 && !fetch->pool)
		TRY(pool_new("pawl-read", fetch->threads - 1, &fetch->pool, err));
	pool_group_init(&group);
	for (unsigned i = 0; i < n; i++) /* in the order of the buffers, see to_device_pin */
		workers[i].group = device_turns_join(&f->turns);
	for (unsigned i = n; i-- > 0 && rc == 0;) {
		workers[i].f = f;
		workers[i].buffer = fetch->buffers + i * fetch->buffer_bytes;
		workers[i].buffer_bytes = fetch->buffer_bytes;
		if (i == 0)
			fetch_units(&workers[0]);
		else
			rc = pool_add(fetch->pool, &group, fetch_units, &workers[i], err);
	}
	if (rc < 0)
		atomic_store(&f->stop, true);
	pool_group_wait(&group);
	for (unsigned i = 0; i < n; i++)
		to_device_clear(&workers[i].load);
	pool_group_clear(&group);
	return rc < 0 ? rc : err_give(err, f->error.code, &f->error);
}

/* Checks the CRCs of ranges that were read completely. */
static int
check_crc(const struct fetching *f, struct pawl_error *err)
{
	const struct fetch_job *job = f->job;
	const struct manifest_member *bad;
	struct pawl_error why = {0};
	uint32_t found;
	for (size_t at = 0; (bad = fetch_crc_next_bad(f->crc, &at, &found));) {
		uint64_t begin = bad->begin, end = bad->begin + bad->nbytes;
		int rc = err_set(&why, PAWL_ECORRUPT, "not what was written: CRC %08x expected, %08x found", bad->crc,
		                 found);
		if (job->bad)
			rc = job->bad(job->arg, bad->file, begin, end, &why);
		if (rc == 0)
			continue;
		fetch_locate(job, bad->file, begin, end, &why);
		return err_give(err, rc, &why);
	}
	return 0;
}

static void
fetching_clear(struct fetching *f)
{
	device_turns_clear(&f->turns);
	to_device_free(f->to_device);
	fetch_crc_free(f->crc);
	fetch_files_free(f->files);
	pthread_mutex_destroy(&f->lock);
}

int
fetch_run(struct fetch *fetch, const struct fetch_job *job, struct pawl_error *err)
{
	const size_t n_units = job->plan->n_units;
	if (n_units == 0)
		return 0;
	int rc = make_buffers(fetch, job->plan, n_units < fetch->threads ? n_units : fetch->threads, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", job->name);
	PAWL_CLEAN(fetching_clear)
	struct fetching f = {.job = job, .store = fetch->store, .lock = PTHREAD_MUTEX_INITIALIZER};
	TRY(fetch_crc_new(job->manifest, &f.crc, err));
	TRY(fetch_files_new(fetch->store, job, &f.files, err));
	TRY(to_device_new(&fetch->devices, job, &f.to_device, err));
	if (!fetch->pin)
		fetch->pin = to_device_pin(f.to_device, fetch->buffers, fetch->buffer_bytes, fetch->n_buffers);
	TRY(to_device_share_units(f.to_device, job->plan, &f.turns, err));
	TRY(run_workers(fetch, &f, (unsigned)(fetch->n_buffers < n_units ? fetch->n_buffers : n_units), err));
	TRY(check_crc(&f, err));
	return to_device_fence(f.to_device, err);
}
