/* SPDX-License-Identifier: Apache-2.0 */
/* fake_core: streams and their order, device memory, what a test asks for. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda/fake_own.h"

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
_Thread_local struct fake_thread fake_thread;

static void
lock_fake(void)
{
	pthread_mutex_lock(&fake.lock);
}

static void
unlock_fake(void)
{
	pthread_mutex_unlock(&fake.lock);
}

/* A child must not get a lock that a thread of its parent holds. */
__attribute__((constructor)) static void
guard_forks(void)
{
	pthread_atfork(lock_fake, unlock_fake, unlock_fake);
}

void *
fake_zalloc(size_t n)
{
	void *ptr = calloc(1, n);

	if (!ptr)
		abort();
	return ptr;
}

void
fake_note(const char *format, ...)
{
	va_list arguments;

	if (fake.misuse[0])
		return;
	va_start(arguments, format);
	vsnprintf(fake.misuse, sizeof(fake.misuse), format, arguments);
	va_end(arguments);
}

static uint64_t
draw(uint64_t below)
{
	uint64_t z = fake.random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % below;
}

/* ----------------------------------------------------------------- objects */

struct context *
fake_current(void)
{
#ifdef FAKE_HIP
	return &fake.contexts[fake_thread.device];
#else
	return fake_thread.depth ? fake_thread.stack[fake_thread.depth - 1] : NULL;
#endif
}

struct stream *
fake_new_stream(struct context *ctx)
{
	struct stream *s = fake_zalloc(sizeof(*s));

	*s = (struct stream){.next = fake.streams, .ctx = ctx, .is_alive = true};
	fake.streams = s;
	return s;
}

static struct stream *
default_stream(struct context *ctx, bool is_per_thread)
{
	for (struct stream *s = fake.streams; s; s = s->next)
		if (s->ctx == ctx &&
		    (is_per_thread ? s->is_per_thread && pthread_equal(s->thread, pthread_self()) : s->is_legacy))
			return s;
	struct stream *s = fake_new_stream(ctx);

	s->is_callers = s->is_blocking = true;
	s->is_legacy = !is_per_thread;
	s->is_per_thread = is_per_thread;
	s->thread = pthread_self();
	return s;
}

struct stream *
fake_find_stream(void *handle, const char *call)
{
	if ((uintptr_t)handle <= 2) {
		struct context *ctx = fake_current();

		if (!ctx)
			fake_note("%s: a default stream, but no context is current", call);
		return ctx ? default_stream(ctx, (uintptr_t)handle == 2) : NULL;
	}
	for (struct stream *s = fake.streams; s; s = s->next)
		if (s == handle && s->is_alive)
			return s;
	fake_note("%s: the stream does not exist any more", call);
	return NULL;
}

struct event *
fake_find_event(void *handle, const char *call)
{
	for (struct event *e = fake.events; e; e = e->next)
		if (e == handle && e->is_alive)
			return e;
	fake_note("%s: the event does not exist any more", call);
	return NULL;
}

/* Also memory that was freed: it stays mapped until fake_reset. */
static struct memory *
find_mapped(uint64_t address)
{
	for (struct memory *m = fake.memory; m; m = m->next)
		if (address >= (uint64_t)(uintptr_t)m->address && address < (uint64_t)(uintptr_t)m->address + m->n)
			return m;
	return NULL;
}

struct memory *
fake_find_memory(uint64_t address)
{
	struct memory *m = find_mapped(address);

	return m && m->is_alive ? m : NULL;
}

bool
fake_find_registration(uint64_t ptr, size_t n, struct registration **ret)
{
	*ret = NULL;
	for (struct registration *r = fake.registrations; r; r = r->next) {
		uint64_t begin = (uint64_t)(uintptr_t)r->ptr;

		if (!r->is_alive || ptr >= begin + r->n || ptr + n <= begin)
			continue;
		if (ptr < begin || ptr + n > begin + r->n)
			return false;
		*ret = r;
	}
	return true;
}

/* --------------------------------------------------------------- the order */

static bool
is_full(const struct stream *s)
{
	return fake.queue && !s->is_callers && s->n_ops >= fake.queue;
}

struct op *
fake_add(struct stream *s, struct op op)
{
	struct op *new = fake_zalloc(sizeof(*new));

	if (is_full(s)) {
		fake.was_full = true;
		pthread_cond_broadcast(&fake.changed);
	}
	while (is_full(s))
		if (!fake_step_locked())
			pthread_cond_wait(&fake.changed, &fake.lock);
	s->n_ops++;
	if (!s->is_callers && s->n_ops > fake.longest)
		fake.longest = s->n_ops;
	*new = op;
	new->number = ++fake.next_number;
	if (s->last)
		s->last->next = new;
	else
		s->first = new;
	s->last = new;
	pthread_cond_broadcast(&fake.changed);
	return new;
}

/* The default stream and blocking streams of its context wait for each other's earlier work. */
static bool
is_held_by_default(const struct stream *s)
{
	for (struct stream *other = fake.streams; other; other = other->next)
		if (other != s && other->ctx == s->ctx && other->first && other->first->number < s->first->number &&
		    ((s->is_legacy && other->is_blocking) || (s->is_blocking && other->is_legacy)))
			return true;
	return false;
}

static bool
can_advance(const struct stream *s)
{
	const struct op *op = s->first;

	if (!op || s->is_held || is_held_by_default(s))
		return false;
	if (op->kind == OP_COPY && !op->done && !s->is_callers && fake.copied[s->ctx->ordinal] >= fake.most_copied)
		return false;
	return op->kind != OP_WAIT || op->event->done >= op->version;
}

static char *
shadow_of(uint64_t address)
{
	struct memory *m = find_mapped(address);

	return m ? m->shadow + (address - (uint64_t)(uintptr_t)m->address) : (char *)(uintptr_t)address;
}

static bool
advance_copy(const struct stream *s, struct op *op)
{
	size_t total = op->width * op->rows, n = (size_t)draw(total - op->done) + 1;

	if (!s->is_callers)
		fake.copied[s->ctx->ordinal] += n;

	for (size_t end = op->done + n; op->done < end;) {
		size_t row = op->done / op->width, column = op->done % op->width;
		size_t step = op->width - column < end - op->done ? op->width - column : end - op->done;

		memcpy(shadow_of(op->to.at + row * op->to.pitch) + column,
		       shadow_of(op->from.at + row * op->from.pitch) + column, step);
		op->done += step;
	}
	return op->done == total;
}

static void
end_first(struct stream *s)
{
	struct op *op = s->first;

	s->first = op->next;
	s->n_ops--;
	if (!s->first)
		s->last = NULL;
	if (op->host)
		op->host->in_flight--;
	if (op->ret_done)
		*op->ret_done = true;
	free(op);
	pthread_cond_broadcast(&fake.changed);
}

bool
fake_step_locked(void)
{
	uint64_t n = 0, chosen;
	struct stream *s;

	for (s = fake.streams; s; s = s->next)
		n += can_advance(s);
	if (!n)
		return false;
	chosen = draw(n);
	for (s = fake.streams; !can_advance(s) || chosen-- > 0;)
		s = s->next;
	struct op *op = s->first;
	bool ends = true;

	if (op->kind == OP_COPY)
		ends = advance_copy(s, op);
	else if (op->kind == OP_LAUNCH)
		op->fn(op->arg);
	else if (op->kind == OP_RECORD && op->event->done < op->version)
		op->event->done = op->version;
	if (ends)
		end_first(s);
	return true;
}

void
fake_wait_locked(const bool *done)
{
	while (!*done)
		if (!fake_step_locked())
			pthread_cond_wait(&fake.changed, &fake.lock);
}

bool
fake_is_used(const char *begin, size_t n)
{
	const uint64_t from = (uint64_t)(uintptr_t)begin, end = from + n;

	for (struct stream *s = fake.streams; s; s = s->next)
		for (struct op *op = s->first; op; op = op->next)
			if (op->kind == OP_COPY &&
			    ((op->to.at >= from && op->to.at < end) || (op->from.at >= from && op->from.at < end)))
				return true;
	return false;
}

/* The device is lost: what was queued never happens, and no thread waits for it. */
void
fake_drop_work(void)
{
	for (struct stream *s = fake.streams; s; s = s->next)
		while (s->first)
			end_first(s);
	for (struct event *e = fake.events; e; e = e->next)
		e->done = e->recorded;
}

/* ------------------------------------------------------------- for the test */

#define LOCKED __attribute__((cleanup(unlock), unused)) int locked = pthread_mutex_lock(&fake.lock)
static void
unlock(int *unused)
{
	(void)unused;
	pthread_mutex_unlock(&fake.lock);
}

#define CLEAR(list)                                           \
	while (fake.list) {                                   \
		__typeof__(fake.list) next = fake.list->next; \
		free(fake.list);                              \
		fake.list = next;                             \
	}

void
fake_reset(uint64_t seed, bool is_initialised)
{
	LOCKED;
	fake_drop_work();
	for (struct memory *m = fake.memory; m; m = m->next) {
		munmap(m->address, m->n);
		munmap(m->shadow, m->n);
	}
	CLEAR(memory);
	CLEAR(streams);
	CLEAR(events);
	CLEAR(registrations);
	fake.queue = fake.longest = 0;
	fake.most_copied = SIZE_MAX;
	fake.was_full = fake.ends_early = false;
	memset(fake.copied, 0, sizeof(fake.copied));
	fake.random = seed;
	fake.is_initialised = is_initialised;
	fake.pid = getpid();
	fake.hide_addresses = fake.hide_first = fake.capture_is_broken = false;
	fake.captured = NULL;
	fake.sticky = fake.fail_result = fake.batch_result = 0;
	fake.calls = fake.fail_nth = fake.waits = fake.ignore_nth = fake.batches = fake.copies_2d = 0;
	fake.n_free = fake.registrable = SIZE_MAX / 2;
	for (int i = 0; i < FAKE_DEVICES; i++)
		fake.contexts[i] = (struct context){.ordinal = i};
	fake.misuse[0] = '\0';
	fake_thread = (struct fake_thread){0};
}

static size_t
registered(void)
{
	size_t n = 0;

	for (struct registration *r = fake.registrations; r; r = r->next)
		n += r->is_alive ? r->n : 0;
	return n;
}

void
fake_wait_registered(size_t n)
{
	LOCKED;
	while (registered() < n)
		pthread_cond_wait(&fake.changed, &fake.lock);
}

bool
fake_is_registered(const void *ptr)
{
	LOCKED;
	for (const struct registration *r = fake.registrations; r; r = r->next)
		if (r->is_alive && (const char *)ptr >= r->ptr && (const char *)ptr < r->ptr + r->n)
			return true;
	return false;
}

void
fake_wait_copied(int ordinal, size_t n)
{
	LOCKED;
	while (fake.copied[ordinal] < n)
		pthread_cond_wait(&fake.changed, &fake.lock);
}

void
fake_limit_copies(size_t n)
{
	LOCKED;
	fake.most_copied = n;
	pthread_cond_broadcast(&fake.changed);
}

void
fake_shut_down(void)
{
	LOCKED;
	fake.sticky = DEINITIALIZED;
	fake_drop_work();
}

void
fake_hold(uint64_t stream, bool hold)
{
	LOCKED;

	for (struct stream *s = fake.streams; s; s = s->next)
		if (stream ? (uint64_t)(uintptr_t)s == stream : !s->is_callers)
			s->is_held = hold;
	pthread_cond_broadcast(&fake.changed);
}

void
fake_wait_full(void)
{
	LOCKED;
	while (!fake.was_full)
		pthread_cond_wait(&fake.changed, &fake.lock);
}

bool
fake_step(void)
{
	LOCKED;
	return fake_step_locked();
}

void
fake_run(void)
{
	LOCKED;
	while (fake_step_locked())
		;
}

void
fake_fail(long nth, int result)
{
	LOCKED;
	fake.calls = 0;
	fake.fail_nth = nth;
	fake.fail_result = result;
}

long
fake_calls(void)
{
	LOCKED;
	return fake.calls;
}

void
fake_ignore_wait(long nth)
{
	LOCKED;
	fake.waits = 0;
	fake.ignore_nth = nth;
}

long
fake_waits(void)
{
	LOCKED;
	return fake.waits;
}

static uint64_t
new_memory(int ordinal, size_t n, bool is_managed)
{
	LOCKED;
	struct memory *m = fake_zalloc(sizeof(*m));
	int fd = memfd_create("fake_cuda", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)n) != 0)
		abort();
	m->address = mmap(NULL, n, is_managed ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED, fd, 0);
	m->shadow = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m->address == MAP_FAILED || m->shadow == MAP_FAILED)
		abort();
	close(fd);
	m->ordinal = ordinal;
	m->is_managed = is_managed;
	m->is_alive = m->is_callers = true;
	m->n = n;
	m->next = fake.memory;
	fake.memory = m;
	return (uint64_t)(uintptr_t)m->address;
}

uint64_t
fake_alloc(int ordinal, size_t n)
{
	return new_memory(ordinal, n, false);
}

uint64_t
fake_alloc_managed(int ordinal, size_t n)
{
	return new_memory(ordinal, n, true);
}

void
fake_free(uint64_t pointer)
{
	LOCKED;
	struct memory *m = fake_find_memory(pointer);

	if (!m || fake_is_used(m->address, m->n))
		fake_note("device memory was freed while a copy was under way");
	if (m)
		m->is_alive = false;
}

void *
fake_shadow(uint64_t pointer)
{
	LOCKED;
	return shadow_of(pointer);
}

#define SETTER(name, type, member)   \
	void name(type value)        \
	{                            \
		LOCKED;              \
		fake.member = value; \
	}
SETTER(fake_set_memory, size_t, n_free)
SETTER(fake_set_registrable, size_t, registrable)
SETTER(fake_set_queue, size_t, queue)
SETTER(fake_end_early, bool, ends_early)
SETTER(fake_set_batch, int, batch_result)
SETTER(fake_hide_first, bool, hide_first)
SETTER(fake_hide_addresses, bool, hide_addresses)

#define GETTER(name, type, value) \
	type name(void)           \
	{                         \
		LOCKED;           \
		return value;     \
	}
GETTER(fake_longest, size_t, fake.longest)
GETTER(fake_registered, size_t, registered())
GETTER(fake_batches, long, fake.batches)
GETTER(fake_copies_2d, long, fake.copies_2d)
GETTER(fake_capture_is_broken, bool, fake.capture_is_broken)
GETTER(fake_context_depth, int, fake_thread.depth + fake_thread.device)
GETTER(fake_capture_mode, int, fake_thread.mode)
GETTER(fake_misuse, const char *, fake.misuse[0] ? fake.misuse : NULL)

uint64_t
fake_stream(int ordinal)
{
	LOCKED;
	struct stream *s = fake_new_stream(&fake.contexts[ordinal]);

	s->is_blocking = s->is_callers = true;
	return (uint64_t)(uintptr_t)s;
}

static struct stream *
callers_stream(int ordinal, uint64_t stream)
{
	if (stream <= 2)
		return default_stream(&fake.contexts[ordinal], stream == 2);
	return fake_find_stream((void *)(uintptr_t)stream, "the caller");
}

void
fake_stream_end(uint64_t stream)
{
	LOCKED;
	callers_stream(0, stream)->is_alive = false;
}

void
fake_launch(int ordinal, uint64_t stream, void (*fn)(void *arg), void *arg)
{
	LOCKED;
	fake_add(callers_stream(ordinal, stream), (struct op){.kind = OP_LAUNCH, .fn = fn, .arg = arg});
}

bool
fake_is_idle(uint64_t stream)
{
	LOCKED;
	return callers_stream(0, stream)->first == NULL;
}

void
fake_capture(uint64_t stream)
{
	LOCKED;
	fake.captured = stream ? callers_stream(0, stream) : NULL;
	fake.capturer = pthread_self();
}

long
fake_live(void)
{
	LOCKED;
	long n = 0;

	for (struct stream *s = fake.streams; s; s = s->next)
		n += s->is_alive && !s->is_callers;
	for (struct event *e = fake.events; e; e = e->next)
		n += e->is_alive;
	for (struct memory *m = fake.memory; m; m = m->next)
		n += m->is_alive && !m->is_callers;
	for (struct registration *r = fake.registrations; r; r = r->next)
		n += r->is_alive;
	for (int i = 0; i < FAKE_DEVICES; i++)
		n += fake.contexts[i].retained;
	return n;
}
