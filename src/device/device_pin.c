/* SPDX-License-Identifier: Apache-2.0 */
/* device_pin: see device_pin.h. */
#include "device/device_pin.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "device/device_own.h"

struct device_pin {
	struct device_context context;
	char *ptr;
	size_t nbytes;
	struct device_spans spans;
	struct pool *pool;
	struct pool_group work;
	atomic_bool stop;
	atomic_size_t ready;
	struct pawl_error why; /* of the refusal; code 0 = none. Read after the work has ended */
};

static size_t
piece_at(const struct device_pin *p, size_t at)
{
	const uint64_t room = device_room(p->context.device, (uint64_t)(uintptr_t)p->ptr + at);

	return p->nbytes - at < room ? p->nbytes - at : (size_t)room;
}

static int
keep_from_children(void *ptr, size_t n, bool keep)
{
#ifdef MADV_DONTFORK
	return madvise(ptr, n, keep ? MADV_DONTFORK : MADV_DOFORK);
#else
	(void)ptr, (void)n, (void)keep;
	return 0;
#endif
}

static int
register_piece(struct device_pin *p, size_t at, struct pawl_error *err)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	size_t n = piece_at(p, at);

	TRY(device_enter(&p->context, &scope, err));
	if (keep_from_children(p->ptr + at, n, true) != 0)
		return err_set(err, PAWL_EUNSUPPORTED, "device: memory cannot be kept out of forked children");
	int rc = DEVICE_CALL(&p->context, err, host_register, p->ptr + at, n, DRIVER_REGISTER_PORTABLE);

	if (rc < 0)
		keep_from_children(p->ptr + at, n, false);
	return rc;
}

static void
put_on_nodes(struct device_pin *p)
{
	for (size_t i = 0; i < p->spans.list.n; i++) {
		const struct device_span *s = &p->spans.list.items[i];
		const size_t end = i + 1 < p->spans.list.n ? s[1].begin : p->nbytes;

		if (s->begin < p->nbytes)
			mem_prefer_node(p->ptr + s->begin, (end < p->nbytes ? end : p->nbytes) - s->begin, s->node);
	}
}

static void
register_all(void *arg)
{
	struct device_pin *p = arg;

	put_on_nodes(p);
	for (size_t at = 0; at < p->nbytes && !atomic_load(&p->stop); at += piece_at(p, at)) {
		if (register_piece(p, at, &p->why) < 0)
			return;
		atomic_store(&p->ready, at + piece_at(p, at));
	}
}

static int
copy_spans(struct device_pin *p, const struct device_spans *spans, struct pawl_error *err)
{
	bool is_copied = true;

	if (!spans)
		is_copied = device_spans_add(&p->spans, 0, device_node(p->context.device, p->context.ordinal));
	for (size_t i = 0; spans && is_copied && i < spans->list.n; i++)
		is_copied = device_spans_add(&p->spans, spans->list.items[i].begin, spans->list.items[i].node);
	return is_copied ? 0 : err_nomem(err, "device");
}

PAWL_DEFINE_CLEAN(struct device_pin, device_pin_free);

int
device_pin_new(struct device *d, int ordinal, const struct device_spans *spans, void *ptr, size_t nbytes,
               struct device_pin **ret, struct pawl_error *err)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if ((uintptr_t)ptr % page)
		return err_set(err, PAWL_EINTERNAL, "device: expected memory in pages of %zu bytes", page);
	PAWL_CLEAN(device_pin_free_clean) struct device_pin *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_nomem(err, "device");
	pool_group_init(&p->work);
	p->ptr = ptr;
	p->nbytes = nbytes;
	TRY(device_context_open(d, ordinal, &p->context, err));
	TRY(copy_spans(p, spans, err));
	TRY(pool_new_calm("pawl-pin", 1, &p->pool, err));
	TRY(pool_add(p->pool, &p->work, register_all, p, err));
	*ret = steal(&p);
	return 0;
}

size_t
device_pin_ready(const struct device_pin *p)
{
	return atomic_load(&p->ready);
}

int
device_pin_wait(struct device_pin *p, struct pawl_error *err)
{
	pool_group_wait(&p->work);
	return p->why.code ? err_give(err, p->why.code, &p->why) : 0;
}

static void
unregister_all(struct device_pin *p)
{
	DEVICE_SCOPE struct device_scope scope = {0};
	const size_t ready = atomic_load(&p->ready);

	(void)device_enter(&p->context, &scope, NULL);
	for (size_t at = 0; at < ready; at += piece_at(p, at)) {
		(void)p->context.device->driver.host_unregister(p->ptr + at);
		keep_from_children(p->ptr + at, piece_at(p, at), false);
	}
}

void
device_pin_free(struct device_pin *p)
{
	if (!p)
		return;
	atomic_store(&p->stop, true);
	if (p->context.device && device_is_forked(p->context.device))
		return; /* its thread and its pages are the parent's */
	pool_free(p->pool);
	if (p->context.device) {
		unregister_all(p);
		device_context_close(&p->context);
	}
	pool_group_clear(&p->work);
	device_spans_clear(&p->spans);
	mem_free(p);
}
