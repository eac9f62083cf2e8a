/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_queue: see device_queue.h.
 *
 * Units end in the order in which they were added, because one stream carries them all. An event is
 * recorded after each; that of unit u is in events[u % n_events]. It is used again when its unit is
 * known to have ended. A thread that still waits for it then waits for a later unit as well.
 */
#include "device/device_queue.h"

#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "device/device_own.h"

#define FIRST_EVENTS 64u
#define BATCH 256u                        /* copies of one call */
#define BATCH_BYTES ((uint64_t)256 << 10) /* of one copy; larger ones gain nothing */

struct device_queue {
	struct device_context context;
	void *stream;
	uint64_t staging, staging_bytes;
	bool has_batch;       /* the driver has not refused it yet */
	pthread_mutex_t lock; /* guards what follows */
	void **events;
	uint64_t n_events;
	uint64_t added, ended;       /* units; those up to `ended` are known to have ended */
	VEC(uint64_t) blocks, spare; /* all; those that can be taken */
};

PAWL_DEFINE_CLEAN(struct device_queue, device_queue_free);

static const struct driver *
driver_of(const struct device_queue *q)
{
	return &q->context.device->driver;
}

static int
open_stream(struct device_queue *q, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	int least, greatest;

	TRY(device_enter(&q->context, &scope, err));
	TRY(DEVICE_CALL(&q->context, err, priority_range, &least, &greatest));
	return DEVICE_CALL(&q->context, err, stream_create, &q->stream, DRIVER_STREAM_NON_BLOCKING, least);
}

int
device_queue_new(struct device *d, int ordinal, struct device_queue **ret, struct pawl_error *err)
{
	PAWL_CLEAN(device_queue_free_clean) struct device_queue *q = mem_zalloc(1, sizeof(*q));

	if (!q)
		return err_nomem(err, "device");
	pthread_mutex_init(&q->lock, NULL);
	q->has_batch = d->driver.copy_batch != NULL;
	TRY(device_context_open(d, ordinal, &q->context, err));
	TRY(open_stream(q, err));
	*ret = steal(&q);
	return 0;
}

/* Gives back what the driver takes, also where the context cannot be entered. */
static void
close_stream(struct device_queue *q)
{
	DEVICE_SCOPE struct device_scope scope = {0};

	if (device_is_forked(q->context.device))
		return;
	(void)device_enter(&q->context, &scope, NULL);
	if (q->stream)
		(void)driver_of(q)->stream_sync(q->stream);
	for (uint64_t i = 0; i < q->n_events; i++)
		if (q->events[i])
			(void)driver_of(q)->event_destroy(q->events[i]);
	if (q->staging)
		(void)driver_of(q)->mem_free(q->staging);
	for (size_t i = 0; i < q->blocks.n; i++)
		(void)driver_of(q)->mem_free(q->blocks.items[i]);
	if (q->stream)
		(void)driver_of(q)->stream_destroy(q->stream);
}

void
device_queue_free(struct device_queue *q)
{
	if (!q)
		return;
	if (q->context.device) {
		close_stream(q);
		device_context_close(&q->context);
	}
	pthread_mutex_destroy(&q->lock);
	vec_free(&q->blocks);
	vec_free(&q->spare);
	mem_free(q->events);
	mem_free(q);
}

/* -------------------------------------------------------- the caller's stream */

/* The stream as the driver takes it. Not every version of HIP has a handle for the default one. */
static void *
caller_stream(const struct device_queue *q, uint64_t stream)
{
	if (stream == 0 && driver_of(q)->kind == DRIVER_CUDA)
		stream = DRIVER_STREAM_LEGACY;
	return (void *)(uintptr_t)stream;
}

/* Enters the context of the caller's stream, which may be of another device. The default streams
 * are those of this device. */
static int
enter_stream(struct device_queue *q, void *stream, struct device_scope *scope, struct pawl_error *err)
{
	struct device_context theirs = q->context;
	int capturing = 0;

	if ((uintptr_t)stream > DRIVER_STREAM_PER_THREAD && !device_is_forked(q->context.device)) {
		if (driver_of(q)->stream_ctx)
			TRY(DEVICE_CALL(&q->context, err, stream_ctx, stream, &theirs.ctx));
		if (driver_of(q)->stream_device)
			TRY(DEVICE_CALL(&q->context, err, stream_device, stream, &theirs.id));
	}
	TRY(device_enter(&theirs, scope, err));
	TRY(DEVICE_CALL(&q->context, err, stream_capturing, stream, &capturing));
	if (capturing)
		return err_set(
			err, PAWL_EBUSY,
			"device %d: a graph is being captured from the stream; call again when the capture has ended",
			q->context.ordinal);
	return 0;
}

/* The context of the caller's stream is current: its event must be of the same context. */
static int
wait_for_caller(struct device_queue *q, void *stream, struct pawl_error *err)
{
	void *event;

	TRY(DEVICE_CALL(&q->context, err, event_create, &event, DRIVER_EVENT_DISABLE_TIMING));
	int rc = DEVICE_CALL(&q->context, err, event_record, event, stream);

	if (rc == 0)
		rc = DEVICE_CALL(&q->context, err, stream_wait, q->stream, event, 0);
	(void)driver_of(q)->event_destroy(event);
	return rc;
}

int
device_queue_after(struct device_queue *q, uint64_t stream, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	const bool is_known = stream != DEVICE_NO_STREAM;
	void *handle = caller_stream(q, is_known ? stream : 0);

	TRY(enter_stream(q, handle, &scope, err)); /* the default stream reports those of blocking ones */
	return is_known ? wait_for_caller(q, handle, err) : DEVICE_CALL(&q->context, err, ctx_sync);
}

/* The event of the last unit, also if the host knows that it has ended; NULL if there is none. */
static void *
last_event(struct device_queue *q)
{
	pthread_mutex_lock(&q->lock);
	void *event = q->added ? q->events[q->added % q->n_events] : NULL;

	pthread_mutex_unlock(&q->lock);
	return event;
}

int
device_queue_fence(struct device_queue *q, uint64_t stream, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	void *event = last_event(q);

	if (!event)
		return 0;
	if (stream == DEVICE_NO_STREAM)
		return device_queue_drain(q, err);
	TRY(enter_stream(q, caller_stream(q, stream), &scope, err));
	return DEVICE_CALL(&q->context, err, stream_wait, caller_stream(q, stream), event, 0);
}

/* ------------------------------------------------------------------ copies */

/* Small copies that have not been handed to the driver yet. */
struct batch {
	uint64_t to[BATCH], from[BATCH];
	size_t nbytes[BATCH];
	size_t n;
};

static int
add_one(struct device_queue *q, void *stream, enum device_direction direction, uint64_t to, uint64_t from,
        uint64_t nbytes, struct pawl_error *err)
{
	if (direction == DEVICE_TO_HOST)
		return DEVICE_CALL(&q->context, err, copy_to_host, (void *)(uintptr_t)to, from, nbytes, stream);
	if (direction == DEVICE_WITHIN)
		return DEVICE_CALL(&q->context, err, copy_on_device, to, from, nbytes, stream);
	return DEVICE_CALL(&q->context, err, copy_to_device, to, (const void *)(uintptr_t)from, nbytes, stream);
}

static int
add_batch(struct device_queue *q, enum device_direction direction, struct batch *b, struct pawl_error *err)
{
	struct driver_batch attributes = {.order = DRIVER_ORDER_STREAM};
	size_t first = 0, failed;

	if (q->has_batch && b->n > 1) {
		int result = driver_of(q)->copy_batch(b->to, b->from, b->nbytes, b->n, &attributes, &first, 1, &failed,
		                                      q->stream);

		q->has_batch = result != DRIVER_NOT_SUPPORTED;
		if (q->has_batch) {
			b->n = 0;
			return device_check(&q->context, DRIVER_copy_batch, result, err);
		}
	}
	for (size_t i = 0; i < b->n; i++)
		TRY(add_one(q, q->stream, direction, b->to[i], b->from[i], b->nbytes[i], err));
	b->n = 0;
	return 0;
}

static int
add_2d(struct device_queue *q, void *stream, enum device_direction direction, const struct device_copy *c,
       struct pawl_error *err)
{
	struct driver_copy_2d copy = {.width = c->nbytes,
	                              .height = c->rows,
	                              .src_pitch = c->from_pitch,
	                              .dst_pitch = c->to_pitch,
	                              .src_type = DRIVER_MEMORY_DEVICE,
	                              .src_device = c->from,
	                              .dst_type = DRIVER_MEMORY_DEVICE,
	                              .dst_device = c->to};

	if (direction == DEVICE_TO_HOST) {
		copy.dst_type = DRIVER_MEMORY_HOST;
		copy.dst_host = (void *)(uintptr_t)c->to;
	} else if (direction == DEVICE_FROM_HOST) {
		copy.src_type = DRIVER_MEMORY_HOST;
		copy.src_host = (const void *)(uintptr_t)c->from;
	}
	return DEVICE_CALL(&q->context, err, copy_2d, &copy, stream);
}

/* How many bytes of a copy, from `at` on, are in one registered piece of host memory. */
static uint64_t
room_of(const struct device_queue *q, enum device_direction direction, const struct device_copy *c, uint64_t at)
{
	if (direction == DEVICE_WITHIN)
		return UINT64_MAX;
	return device_room(q->context.device, (direction == DEVICE_TO_HOST ? c->to : c->from) + at);
}

/* Rows that one 2-D copy takes: below the limit, and within one registered piece. */
static uint64_t
rows_of(struct device_queue *q, enum device_direction direction, const struct device_copy *c)
{
	const uint64_t pitch = direction == DEVICE_TO_HOST ? c->to_pitch : c->from_pitch;
	const uint64_t room = room_of(q, direction, c, 0);
	uint64_t rows = room < c->nbytes ? 0 : 1 + (room - c->nbytes) / pitch;

	if (rows * c->nbytes > DEVICE_COPY_BYTES)
		rows = DEVICE_COPY_BYTES / c->nbytes;
	return rows < c->rows ? rows : c->rows;
}

/* One row, cut at the limit and at borders of registered memory. */
static int
add_row(struct device_queue *q, enum device_direction direction, const struct device_copy *c, struct batch *b,
        struct pawl_error *err)
{
	for (uint64_t at = 0, n; at < c->nbytes; at += n) {
		const uint64_t room = room_of(q, direction, c, at);

		n = c->nbytes - at < DEVICE_COPY_BYTES ? c->nbytes - at : DEVICE_COPY_BYTES;
		n = n < room ? n : room;
		if (n > BATCH_BYTES) {
			TRY(add_one(q, q->stream, direction, c->to + at, c->from + at, n, err));
			continue;
		}
		b->to[b->n] = c->to + at;
		b->from[b->n] = c->from + at;
		b->nbytes[b->n++] = n;
		if (b->n == BATCH)
			TRY(add_batch(q, direction, b, err));
	}
	return 0;
}

static int
add_copy(struct device_queue *q, enum device_direction direction, struct device_copy c, struct batch *b,
         struct pawl_error *err)
{
	while (c.rows) {
		struct device_copy part = c;

		part.rows = c.rows > 1 ? rows_of(q, direction, &c) : 1;
		if (part.rows > 1) {
			TRY(add_2d(q, q->stream, direction, &part, err));
		} else {
			part.rows = 1;
			TRY(add_row(q, direction, &part, b, err));
		}
		c.rows -= part.rows;
		c.to += c.to_pitch * part.rows;
		c.from += c.from_pitch * part.rows;
	}
	return 0;
}

/* ------------------------------------------------------------------- units */

/* Doubles the events. The lock is held. */
static int
grow_events(struct device_queue *q, struct pawl_error *err)
{
	const uint64_t n = q->n_events ? 2 * q->n_events : FIRST_EVENTS;
	void **events = mem_zalloc(n, sizeof(*events));

	if (!events)
		return err_nomem(err, "device");
	for (uint64_t i = 0; i < q->n_events; i++) /* of units ended + 1 ... ended + n_events */
		events[(q->ended + 1 + i) % n] = q->events[(q->ended + 1 + i) % q->n_events];
	mem_free(q->events);
	q->events = events;
	q->n_events = n;
	return 0;
}

/* Finds out which units have ended, as far as `unit`. The lock is held. 0 or an error. */
static int
note_ended(struct device_queue *q, uint64_t unit, struct pawl_error *err)
{
	while (q->ended < unit) {
		int result = driver_of(q)->event_query(q->events[(q->ended + 1) % q->n_events]);

		if (result == DRIVER_NOT_READY)
			break;
		TRY(device_check(&q->context, DRIVER_event_query, result, err));
		q->ended++;
	}
	return 0;
}

/* An event for the next unit. */
static int
next_event(struct device_queue *q, void ***ret, struct pawl_error *err)
{
	if (q->n_events && q->added - q->ended >= q->n_events)
		TRY(note_ended(q, q->ended + 1, err));
	if (q->added - q->ended >= q->n_events)
		TRY(grow_events(q, err));
	void **event = &q->events[(q->added + 1) % q->n_events];

	if (!*event)
		TRY(DEVICE_CALL(&q->context, err, event_create, event,
		                DRIVER_EVENT_DISABLE_TIMING | DRIVER_EVENT_BLOCKING_SYNC));
	*ret = event;
	return 0;
}

int
device_queue_copy(struct device_queue *q, enum device_direction direction, const struct device_copy *copies, size_t n,
                  uint64_t *ret_unit, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	struct batch batch;
	void **event;

	batch.n = 0;
	TRY(device_enter(&q->context, &scope, err));
	for (size_t i = 0; i < n; i++)
		TRY(add_copy(q, direction, copies[i], &batch, err));
	TRY(add_batch(q, direction, &batch, err));

	pthread_mutex_lock(&q->lock);
	int rc = next_event(q, &event, err);

	if (rc == 0)
		rc = DEVICE_CALL(&q->context, err, event_record, *event, q->stream);
	if (rc == 0)
		*ret_unit = ++q->added;
	pthread_mutex_unlock(&q->lock);
	return rc;
}

int
device_queue_poll(struct device_queue *q, uint64_t unit, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};

	TRY(device_enter(&q->context, &scope, err));
	pthread_mutex_lock(&q->lock);
	int rc = note_ended(q, unit, err);
	const bool has_ended = q->ended >= unit;

	pthread_mutex_unlock(&q->lock);
	return rc < 0 ? rc : has_ended;
}

int
device_queue_wait(struct device_queue *q, uint64_t unit, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};

	TRY(device_enter(&q->context, &scope, err));
	pthread_mutex_lock(&q->lock);
	void *event = unit > q->ended ? q->events[unit % q->n_events] : NULL;

	pthread_mutex_unlock(&q->lock);
	if (!event)
		return 0;
	TRY(DEVICE_CALL(&q->context, err, event_sync, event));
	pthread_mutex_lock(&q->lock);
	q->ended = q->ended < unit ? unit : q->ended;
	pthread_mutex_unlock(&q->lock);
	return 0;
}

int
device_queue_drain(struct device_queue *q, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	const int rc = device_enter(&q->context, &scope, err);

	if (rc < 0 && !device_is_forked(q->context.device)) /* the memory is used again after this call */
		(void)driver_of(q)->stream_sync(q->stream);
	return rc < 0 ? rc : DEVICE_CALL(&q->context, err, stream_sync, q->stream);
}

/* ----------------------------------------------------------------- staging */

void
device_queue_unstage(struct device_queue *q)
{
	DEVICE_SCOPE struct device_scope scope = {0};

	if (!q->staging || device_enter(&q->context, &scope, NULL) < 0)
		return;
	(void)driver_of(q)->stream_sync(q->stream);
	(void)driver_of(q)->mem_free(q->staging);
	q->staging = q->staging_bytes = 0;
}

int
device_queue_stage(struct device_queue *q, uint64_t nbytes, uint64_t *ret, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	size_t n_free, n_all;

	if (q->staging_bytes < nbytes) {
		device_queue_unstage(q);
		TRY(device_enter(&q->context, &scope, err));
		TRY(DEVICE_CALL(&q->context, err, mem_info, &n_free, &n_all));
		if (n_free / 11 < nbytes / 10)
			return err_set(err, PAWL_ENOMEM,
			               "device %d: %zu bytes free, %llu needed for a copy of the state",
			               q->context.ordinal, n_free, (unsigned long long)nbytes);
		TRY(DEVICE_CALL(&q->context, err, mem_alloc, &q->staging, nbytes));
		q->staging_bytes = nbytes;
	}
	*ret = q->staging;
	return 0;
}

int
device_queue_copy_staged(struct device_queue *q, uint64_t stream, const struct device_copy *copies, size_t n,
                         struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};

	if (stream == DEVICE_NO_STREAM)
		return err_set(err, PAWL_EUSAGE, "device %d: a copy within the device needs the caller's stream",
		               q->context.ordinal);
	TRY(device_queue_fence(q, stream, err)); /* earlier copies may still read the staging memory */
	void *handle = caller_stream(q, stream);

	TRY(enter_stream(q, handle, &scope, err));
	for (size_t i = 0; i < n; i++) {
		const struct device_copy *c = &copies[i];

		TRY(c->rows == 1 ? add_one(q, handle, DEVICE_WITHIN, c->to, c->from, c->nbytes, err)
		                 : add_2d(q, handle, DEVICE_WITHIN, c, err));
	}
	return wait_for_caller(q, handle, err);
}

/* ------------------------------------------------------------------ blocks */

int
device_queue_take_block(struct device_queue *q, uint64_t *ret, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	int rc = 0;

	TRY(device_enter(&q->context, &scope, err));
	pthread_mutex_lock(&q->lock);
	if (!vec_reserve(&q->blocks, q->blocks.n + 1) || !vec_reserve(&q->spare, q->blocks.n + 1)) {
		rc = err_nomem(err, "device");
	} else if (q->spare.n) {
		*ret = q->spare.items[--q->spare.n];
	} else {
		rc = DEVICE_CALL(&q->context, err, mem_alloc, ret, DEVICE_BLOCK_BYTES);
		if (rc == 0)
			q->blocks.items[q->blocks.n++] = *ret;
	}
	pthread_mutex_unlock(&q->lock);
	return rc;
}

void
device_queue_give_block(struct device_queue *q, uint64_t block)
{
	pthread_mutex_lock(&q->lock);
	q->spare.items[q->spare.n++] = block; /* there is room for all blocks */
	pthread_mutex_unlock(&q->lock);
}
