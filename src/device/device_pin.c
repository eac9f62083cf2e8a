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
	size_t nbytes, piece_bytes;
	struct pool *pool;
	struct group work;
	atomic_bool stop;
	atomic_size_t ready;
	struct pawl_error why; /* of the refusal; code 0 = none. Read after the work has ended */
};

static size_t
piece_at(const struct device_pin *p, size_t at)
{
	return p->nbytes - at < p->piece_bytes ? p->nbytes - at : p->piece_bytes;
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
register_all(void *arg)
{
	struct device_pin *p = arg;

	mem_prefer_node(p->ptr, p->nbytes, device_node(p->context.device, p->context.ordinal)); /* pinned pages stay */
	for (size_t at = 0; at < p->nbytes && !atomic_load(&p->stop); at += piece_at(p, at)) {
		if (register_piece(p, at, &p->why) < 0)
			return;
		atomic_store(&p->ready, at + piece_at(p, at));
	}
}

static int
add_range(struct device *d, const struct device_pin *p, struct pawl_error *err)
{
	const uint64_t begin = (uint64_t)(uintptr_t)p->ptr;

	pthread_mutex_lock(&d->lock);
	struct device_range *range = vec_add(&d->ranges);

	if (range)
		*range = (struct device_range){begin, begin + p->nbytes, p->piece_bytes};
	pthread_mutex_unlock(&d->lock);
	return range ? 0 : err_nomem(err, "device");
}

static void
remove_range(struct device *d, const void *ptr)
{
	pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < d->ranges.n; i++)
		if (d->ranges.items[i].begin == (uint64_t)(uintptr_t)ptr) {
			d->ranges.items[i] = d->ranges.items[--d->ranges.n];
			break;
		}
	pthread_mutex_unlock(&d->lock);
}

PAWL_DEFINE_CLEAN(struct device_pin, device_pin_free);

int
device_pin_new(struct device *d, int ordinal, void *ptr, size_t nbytes, size_t piece_bytes, struct device_pin **ret,
               struct pawl_error *err)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	piece_bytes = piece_bytes ? piece_bytes : DEVICE_PIN_PIECE_BYTES;
	if ((uintptr_t)ptr % page || piece_bytes % page)
		return err_set(err, PAWL_EINTERNAL, "device: expected memory and pieces in pages of %zu bytes", page);
	PAWL_CLEAN(device_pin_free_clean) struct device_pin *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_nomem(err, "device");
	group_init(&p->work);
	p->ptr = ptr;
	p->nbytes = nbytes;
	p->piece_bytes = piece_bytes;
	TRY(device_context_open(d, ordinal, &p->context, err));
	TRY(add_range(d, p, err));
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
	group_wait(&p->work);
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
		remove_range(p->context.device, p->ptr);
		device_context_close(&p->context);
	}
	group_clear(&p->work);
	mem_free(p);
}
