/* SPDX-License-Identifier: Apache-2.0 */
/* fake_calls: the driver's calls, under the names by which libcuda (or HIP) exports them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fake_cuda/fake_hip.h"
#include "fake_cuda/fake_own.h"

struct copy_2d { /* CUDA_MEMCPY2D */
	size_t src_x, src_y;
	int src_type;
	const void *src_host;
	uint64_t src_device;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	int dst_type;
	void *dst_host;
	uint64_t dst_device;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height;
};

#define LOCKED __attribute__((cleanup(unlock), unused)) int locked = pthread_mutex_lock(&fake.lock)
static void
unlock(int *unused)
{
	(void)unused;
	pthread_mutex_unlock(&fake.lock);
}

/* What a call returns before it does anything; 0 = it may begin. */
static int
begin(void)
{
	if (++fake.calls == fake.fail_nth) {
		if (fake.fail_result == ILLEGAL_ADDRESS) {
			fake.sticky = fake.fail_result;
			fake_drop_work();
		}
		return fake.fail_result;
	}
	return fake.sticky ? fake.sticky : fake.is_initialised && getpid() == fake.pid ? OK : NOT_INITIALIZED;
}

/* Calls that a global capture of another thread forbids. */
static int
begin_unsafe(const char *call)
{
	int result = begin();

	if (fake.captured && fake_thread.mode != RELAXED) {
		fake_note("%s: not allowed during a capture", call);
		fake.capture_is_broken = true;
		return CAPTURE_UNSUPPORTED;
	}
	return result;
}

#define BEGIN                          \
	LOCKED;                        \
	do {                           \
		int begun_ = begin();  \
		if (begun_ != OK)      \
			return begun_; \
	} while (0)
#define BEGIN_UNSAFE                                 \
	LOCKED;                                      \
	do {                                         \
		int begun_ = begin_unsafe(__func__); \
		if (begun_ != OK)                    \
			return begun_;               \
	} while (0)

static int
need_context(struct context **ret, const char *call)
{
	*ret = fake_current();
	if (*ret)
		return OK;
	fake_note("%s: no context is current", call);
	return INVALID_CONTEXT;
}
#define CONTEXT(name)                                       \
	struct context *name;                               \
	do {                                                \
		int found_ = need_context(&name, __func__); \
		if (found_ != OK)                           \
			return found_;                      \
	} while (0)

/* The stream, of the current context and not captured. */
static int
need_stream(void *handle, bool any_context, struct stream **ret, const char *call)
{
	*ret = fake_find_stream(handle, call);
	if (!*ret)
		return INVALID_HANDLE;
	if (!any_context && (*ret)->ctx != fake_current()) {
		fake_note("%s: the stream belongs to another context", call);
		return INVALID_CONTEXT;
	}
	if (*ret == fake.captured) {
		fake_note("%s: the stream is being captured", call);
		fake.capture_is_broken = true;
		return CAPTURE_UNSUPPORTED;
	}
	return OK;
}
#define STREAM(name, handle, any_context)                                       \
	struct stream *name;                                                    \
	do {                                                                    \
		int found_ = need_stream(handle, any_context, &name, __func__); \
		if (found_ != OK)                                               \
			return found_;                                          \
	} while (0)
#define EVENT(name, handle)                                     \
	struct event *name = fake_find_event(handle, __func__); \
	if (!name)                                              \
	return INVALID_HANDLE

/* --------------------------------------------------------- process, devices */

int
cuInit(unsigned flags)
{
	LOCKED;
	if (++fake.calls == fake.fail_nth)
		return fake.fail_result;
	if (fake.is_initialised && getpid() != fake.pid)
		return NOT_INITIALIZED;
	fake.is_initialised = true;
	fake.pid = getpid();
	return flags ? INVALID_VALUE : OK;
}

int
cuDriverGetVersion(int *ret)
{
	LOCKED;
	if (++fake.calls == fake.fail_nth)
		return fake.fail_result;
#ifdef FAKE_HIP
	*ret = 60342134;
#else
	*ret = 12080;
#endif
	return OK;
}

int
cuGetErrorName(int result, const char **ret)
{
	static const struct {
		int result;
		const char *name;
	} names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
	             {3, "CUDA_ERROR_NOT_INITIALIZED"},   {4, "CUDA_ERROR_DEINITIALIZED"},
	             {4, "CUDA_ERROR_DEINITIALIZED"},     {101, "CUDA_ERROR_INVALID_DEVICE"},
	             {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {800, "CUDA_ERROR_NOT_PERMITTED"},
	             {801, "CUDA_ERROR_NOT_SUPPORTED"},   {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].result == result) {
			*ret = names[i].name;
			return OK;
		}
	return INVALID_VALUE;
}

int
cuDeviceGet(int *ret, int ordinal)
{
	BEGIN;
	if (ordinal < 0 || ordinal >= FAKE_DEVICES || (fake.hide_first && ordinal == 0))
		return INVALID_DEVICE;
	*ret = ordinal;
	return OK;
}

int
cuDeviceGetPCIBusId(char *ret, int n, int device)
{
	BEGIN;
	snprintf(ret, (size_t)n, "ffff:%02X:00.0", device);
	return OK;
}

int
cuCtxSynchronize(void)
{
	BEGIN_UNSAFE;
	CONTEXT(ctx);
	if (fake.captured && fake.captured->ctx == ctx) { /* in every mode */
		fake_note("%s: a stream of the context is being captured", __func__);
		fake.capture_is_broken = true;
		return CAPTURE_UNSUPPORTED;
	}
	for (struct stream *s = fake.streams; s; s = s->next)
		while (s->ctx == ctx && s->first)
			if (!fake_step_locked())
				pthread_cond_wait(&fake.changed, &fake.lock);
	return OK;
}

int
cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	BEGIN;
	CONTEXT(ctx);
	(void)ctx;
	*ret_least = 0;
	*ret_greatest = -5;
	return OK;
}

int
cuThreadExchangeStreamCaptureMode(int *mode)
{
	LOCKED;
	int result = begin(), before = fake_thread.mode;

	if (result != OK && *mode == RELAXED)
		return result;
	fake_thread.mode = *mode;
	*mode = before;
	return result;
}

#ifdef FAKE_HIP
int hipGetDevice(int *ret);
int hipSetDevice(int device);
int hipStreamGetDevice(void *stream, int *ret);

int
hipGetDevice(int *ret)
{
	BEGIN;
	*ret = fake_thread.device;
	return OK;
}

int
hipSetDevice(int device)
{
	LOCKED;
	int result = begin();

	if (result == OK || device == 0)
		fake_thread.device = device;
	return result;
}

int
hipStreamGetDevice(void *stream, int *ret)
{
	BEGIN;
	struct stream *s = fake_find_stream(stream, __func__);

	if (!s)
		return INVALID_HANDLE;
	*ret = s->ctx->ordinal;
	return OK;
}
#else
int
cuDevicePrimaryCtxRetain(void **ret, int device)
{
	BEGIN;
	fake.contexts[device].retained++;
	*ret = &fake.contexts[device];
	return OK;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
	LOCKED;
	if (--fake.contexts[device].retained < 0)
		fake_note("a context was released more often than retained");
	return begin();
}

int
cuCtxPushCurrent_v2(void *ctx)
{
	BEGIN;
	if (fake_thread.depth == 16 || !ctx)
		return INVALID_CONTEXT;
	fake_thread.stack[fake_thread.depth++] = ctx;
	return OK;
}

int
cuCtxPopCurrent_v2(void **ret)
{
	LOCKED;
	if (!fake_thread.depth)
		fake_note("a context was popped from nothing");
	else
		*ret = fake_thread.stack[--fake_thread.depth];
	return begin();
}

int
cuStreamGetCtx(void *stream, void **ret)
{
	BEGIN;
	struct stream *s = fake_find_stream(stream, __func__);

	if (!s)
		return INVALID_HANDLE;
	*ret = s->ctx;
	return OK;
}
#endif

/* ------------------------------------------------------------------ memory */

int
cuPointerGetAttributes(unsigned n, int *attributes, void **data, uint64_t pointer)
{
	BEGIN;
	struct memory *m = fake_find_memory(pointer);
	struct registration *r = NULL;

	fake_find_registration(pointer, 1, &r);
	for (unsigned i = 0; i < n; i++) {
		int *ret = data[i];

		if (attributes[i] == 2)
			*ret = m ? 2 : r ? 1 : 0;
		else if (attributes[i] == 8)
			*(bool *)data[i] = m && m->is_managed;
		else if (attributes[i] == 9)
			*ret = m ? m->ordinal : r ? 0 : -2;
		else
			return INVALID_VALUE;
	}
	return OK;
}

int
cuMemHostRegister_v2(void *ptr, size_t n, unsigned flags)
{
	BEGIN_UNSAFE;
	CONTEXT(ctx);
	(void)ctx;
	struct registration *r;
	size_t total = n;

	if (flags != 1 || !n)
		return INVALID_VALUE;
	if (!fake_find_registration((uint64_t)(uintptr_t)ptr, n, &r) || r)
		return ALREADY_REGISTERED;
	for (r = fake.registrations; r; r = r->next)
		total += r->is_alive ? r->n : 0;
	if (total > fake.registrable)
		return NOT_PERMITTED;
	r = fake_zalloc(sizeof(*r));
	*r = (struct registration){.next = fake.registrations, .is_alive = true, .ptr = ptr, .n = n};
	fake.registrations = r;
	pthread_cond_broadcast(&fake.changed);
	return OK;
}

int
cuMemHostUnregister(void *ptr)
{
	LOCKED;
	int result = begin_unsafe(__func__);

	for (struct registration *r = fake.registrations; r; r = r->next) {
		if (!r->is_alive || r->ptr != ptr)
			continue;
		if (r->in_flight)
			fake_note("host memory was unregistered while a copy was under way");
		r->is_alive = false;
		return result;
	}
	fake_note("host memory was unregistered that is not registered");
	return NOT_REGISTERED;
}

int
cuMemAlloc_v2(uint64_t *ret, size_t n)
{
	uint64_t pointer;
	int ordinal;
	{
		BEGIN_UNSAFE;
		CONTEXT(ctx);
		if (n > fake.n_free)
			return OUT_OF_MEMORY;
		fake.n_free -= n;
		ordinal = ctx->ordinal;
	}
	pointer = fake_alloc(ordinal, n);
	LOCKED;
	fake_find_memory(pointer)->is_callers = false;
	*ret = pointer;
	return OK;
}

int
cuMemFree_v2(uint64_t pointer)
{
	LOCKED;
	int result = begin_unsafe(__func__);
	struct memory *m = fake_find_memory(pointer);

	if (!m || fake_is_used(m->address, m->n))
		fake_note("device memory was freed while a copy was under way");
	if (!m)
		return INVALID_VALUE;
	m->is_alive = false;
	fake.n_free += m->n;
	return result;
}

int
cuMemGetInfo_v2(size_t *ret_free, size_t *ret_all)
{
	BEGIN;
	CONTEXT(ctx);
	(void)ctx;
	*ret_free = fake.n_free;
	*ret_all = SIZE_MAX / 2;
	return OK;
}

/* --------------------------------------------------------- streams, events */

int
cuStreamCreateWithPriority(void **ret, unsigned flags, int priority)
{
	BEGIN;
	CONTEXT(ctx);
	if (flags != 1 || priority != 0)
		return INVALID_VALUE; /* the training's streams come first, and none of them waits */
	*ret = fake_new_stream(ctx);
	return OK;
}

int
cuStreamDestroy_v2(void *stream)
{
	LOCKED;
	int result = begin();
	struct stream *s = fake_find_stream(stream, __func__);

	if (s)
		s->is_alive = false;
	return s ? result : INVALID_HANDLE;
}

int
cuStreamIsCapturing(void *stream, int *ret)
{
	BEGIN;
	struct stream *s = fake_find_stream(stream, __func__);

	if (!s)
		return INVALID_HANDLE;
	if (s->is_legacy && fake.captured && fake.captured->ctx == s->ctx)
		return CAPTURE_IMPLICIT;
	*ret = s == fake.captured;
	return OK;
}

int
cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	BEGIN;
	STREAM(s, stream, true);
	EVENT(e, event);
	if (flags)
		return INVALID_VALUE;
	if (++fake.waits != fake.ignore_nth)
		fake_add(s, (struct op){.kind = OP_WAIT, .event = e, .version = e->recorded});
	return OK;
}

int
cuStreamSynchronize(void *stream)
{
	BEGIN_UNSAFE;
	STREAM(s, stream, true);
	while (s->first)
		if (!fake_step_locked())
			pthread_cond_wait(&fake.changed, &fake.lock);
	return fake.sticky;
}

int
cuEventCreate(void **ret, unsigned flags)
{
	BEGIN;
	CONTEXT(ctx);
	if (!(flags & 2))
		return INVALID_VALUE; /* an event with time is slower than needed */
	struct event *e = fake_zalloc(sizeof(*e));

	*e = (struct event){.next = fake.events, .ctx = ctx, .is_alive = true};
	fake.events = e;
	*ret = e;
	return OK;
}

int
cuEventDestroy_v2(void *event)
{
	LOCKED;
	int result = begin();
	struct event *e = fake_find_event(event, __func__);

	if (e)
		e->is_alive = false;
	return e ? result : INVALID_HANDLE;
}

int
cuEventRecord(void *event, void *stream)
{
	BEGIN;
	EVENT(e, event);
	STREAM(s, stream, true);
	if (e->ctx != s->ctx) {
		fake_note("%s: the event belongs to another context than the stream", __func__);
		return INVALID_HANDLE;
	}
	fake_add(s, (struct op){.kind = OP_RECORD, .event = e, .version = ++e->recorded});
	return OK;
}

/* Work may advance before the answer, so that a loop of queries ends. */
int
cuEventQuery(void *event)
{
	BEGIN_UNSAFE;
	EVENT(e, event);
	if (e->done < e->recorded)
		fake_step_locked();
	return e->done < e->recorded ? NOT_READY : fake.sticky;
}

int
cuEventSynchronize(void *event)
{
	BEGIN_UNSAFE;
	EVENT(e, event);
	for (uint64_t version = e->recorded; e->done < version && !fake.ends_early;)
		if (!fake_step_locked())
			pthread_cond_wait(&fake.changed, &fake.lock);
	return fake.sticky;
}

/* ------------------------------------------------------------------ copies */

#define MOST_BYTES (32 << 20) /* of one copy from or to host memory */

/* One side is host memory unless host is 0. */
static int
add_copy(struct stream *s, struct op op, uint64_t host, uint64_t device, size_t device_bytes, size_t host_bytes)
{
	struct memory *m = fake_find_memory(device);
	bool done = false;

	if (!m || device + device_bytes > (uint64_t)(uintptr_t)m->address + m->n) {
		fake_note("a copy of memory that is not on a device");
		return INVALID_VALUE;
	}
	if (m->ordinal != s->ctx->ordinal) {
		fake_note("a copy of memory of device %d on a stream of device %d", m->ordinal, s->ctx->ordinal);
		return INVALID_VALUE;
	}
	op.kind = OP_COPY;
	if (host && op.width * op.rows > MOST_BYTES) {
		fake_note("a copy of more than %d bytes: others wait for it", MOST_BYTES);
		return INVALID_VALUE;
	}
	if (host && !fake_find_registration(host, host_bytes, &op.host)) {
		fake_note("a copy crosses the border of registered memory");
		return INVALID_VALUE;
	}
	if (op.host)
		op.host->in_flight++;
	if (host && !op.host)
		op.ret_done = &done;
	fake_add(s, op);
	if (host && !op.host)
		fake_wait_locked(&done);
	return OK;
}

static int
copy_1d(void *stream, uint64_t to, uint64_t from, size_t n, bool host_is_to, bool has_host, const char *call)
{
	struct stream *s;
	int result = need_stream(stream, false, &s, call);

	if (result != OK || !n)
		return result;
	return add_copy(s, (struct op){.to = {to, n}, .from = {from, n}, .width = n, .rows = 1},
	                !has_host    ? 0
	                : host_is_to ? to
	                             : from,
	                host_is_to ? from : to, n, n);
}

int
cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream)
{
	BEGIN;
	return copy_1d(stream, (uint64_t)(uintptr_t)to, from, n, true, true, __func__);
}

int
cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream)
{
	BEGIN;
	return copy_1d(stream, to, (uint64_t)(uintptr_t)from, n, false, true, __func__);
}

int
cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *stream)
{
	BEGIN;
	return copy_1d(stream, to, from, n, false, false, __func__);
}

int
cuMemcpy2DAsync_v2(const struct copy_2d *c, void *stream)
{
	BEGIN;
	STREAM(s, stream, false);
	const uint64_t to = c->dst_type == 1 ? (uint64_t)(uintptr_t)c->dst_host : c->dst_device;
	const uint64_t from = c->src_type == 1 ? (uint64_t)(uintptr_t)c->src_host : c->src_device;
	const uint64_t host = c->dst_type == 1 ? to : c->src_type == 1 ? from : 0;
	const bool device_is_to = c->dst_type == 2;
	const size_t span_to = (c->height - 1) * c->dst_pitch + c->width,
		     span_from = (c->height - 1) * c->src_pitch + c->width;

	fake.copies_2d++;
	if (c->dst_pitch < c->width || c->src_pitch < c->width || c->dst_pitch > INT32_MAX ||
	    c->src_pitch > INT32_MAX || !c->height)
		return INVALID_VALUE;
	return add_copy(
		s,
		(struct op){
			.to = {to, c->dst_pitch}, .from = {from, c->src_pitch}, .width = c->width, .rows = c->height},
		host, device_is_to ? to : from, device_is_to ? span_to : span_from, device_is_to ? span_from : span_to);
}

#ifndef FAKE_HIP
int
cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *nbytes, size_t n, void *attributes, size_t *at,
                   size_t n_attributes, size_t *ret_failed, void *stream)
{
	BEGIN;
	fake.batches++;
	*ret_failed = SIZE_MAX;
	if (fake.batch_result)
		return fake.batch_result;
	if (*(int *)attributes != 1 || n_attributes != 1 || at[0] != 0 || !n || (uintptr_t)stream <= 2)
		return INVALID_VALUE;
	for (size_t i = 1; i < n; i++) /* copies of a batch have no order */
		for (size_t j = 0; j < i; j++)
			if (to[j] < to[i] + nbytes[i] && to[i] < to[j] + nbytes[j])
				return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		const bool host_is_to = !fake_find_memory(to[i]), has_host = host_is_to || !fake_find_memory(from[i]);
		int result = copy_1d(stream, to[i], from[i], nbytes[i], host_is_to, has_host, __func__);

		if (result != OK) {
			*ret_failed = i;
			return result;
		}
	}
	return OK;
}

/* The interface of before CUDA 3.2, with 32-bit pointers. */
int cuMemcpyDtoHAsync(void *to, unsigned from, unsigned n, void *stream);
int cuMemcpyHtoDAsync(unsigned to, const void *from, unsigned n, void *stream);

int
cuMemcpyDtoHAsync(void *to, unsigned from, unsigned n, void *stream)
{
	(void)to, (void)from, (void)n, (void)stream;
	fake_note("the 32-bit cuMemcpyDtoHAsync was called");
	return INVALID_VALUE;
}

int
cuMemcpyHtoDAsync(unsigned to, const void *from, unsigned n, void *stream)
{
	(void)to, (void)from, (void)n, (void)stream;
	fake_note("the 32-bit cuMemcpyHtoDAsync was called");
	return INVALID_VALUE;
}

int
cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags, int *ret_status)
{
	static const struct {
		const char *name;
		int version;
		void *fn;
	} newest[] = {
		{"cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2},
		{"cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2},
		{"cuMemcpyDtoDAsync", 3020, cuMemcpyDtoDAsync_v2},
		{"cuMemcpyBatchAsync", 12080, cuMemcpyBatchAsync},
		{"cuEventQuery", 2000, cuEventQuery},
	};

	(void)ret_status;
	if (flags != 1)
		return INVALID_VALUE;
	for (size_t i = 0; i < sizeof(newest) / sizeof(newest[0]) && !fake.hide_addresses; i++)
		if (strcmp(symbol, newest[i].name) == 0 && version >= newest[i].version) {
			*ret = newest[i].fn;
			return OK;
		}
	*ret = NULL; /* the others by their symbols */
	return 500;
}
#endif
