/* SPDX-License-Identifier: Apache-2.0 */
/* device: see device.h. */
#include "device/device.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "device/device_own.h"

int
device_open(enum driver_kind kind, bool demanded, struct device **ret, struct pawl_error *err)
{
	PAWL_FREE struct device *d = mem_zalloc(1, sizeof(*d));

	if (!d)
		return err_nomem(err, "device");
	TRY(driver_load(kind, demanded, &d->driver, err));
	if (demanded) {
		int result = d->driver.init(0);

		if (result != DRIVER_SUCCESS)
			return driver_fail(&d->driver, DRIVER_init, result, "driver", NULL, err);
	}
	atomic_init(&d->refs, 1);
	atomic_init(&d->is_lost, false);
	d->pid = getpid();
	d->is_demanded = demanded;
	d->piece_bytes = DEVICE_PIECE_BYTES;
	d->bus = "/sys/bus/pci/devices";
	*ret = steal(&d);
	return 0;
}

int
pawl_device_check(int device, struct pawl_error *err)
{
	struct device *d;

	if (device != PAWL_DEVICE_CUDA && device != PAWL_DEVICE_HIP)
		return err_set(err, PAWL_EUSAGE, "device: expected %d or %d, found %d", PAWL_DEVICE_CUDA,
		               PAWL_DEVICE_HIP, device);
	TRY(device_open((enum driver_kind)device, false, &d, err));
	device_close(d);
	return 0;
}

struct device *
device_ref(struct device *d)
{
	atomic_fetch_add(&d->refs, 1);
	return d;
}

void
device_close(struct device *d)
{
	if (!d || atomic_fetch_sub(&d->refs, 1) != 1)
		return;
	mem_free(d);
}

bool
device_is_forked(const struct device *d)
{
	return getpid() != d->pid;
}

bool
device_is_lost(const struct device *d)
{
	return atomic_load(&d->is_lost);
}

static int
refuse_fork(const struct device *d, struct pawl_error *err)
{
	if (!device_is_forked(d))
		return 0;
	return err_set(err, PAWL_EUNSUPPORTED,
	               "device: opened by process %ld; a forked child cannot use it; start processes by spawn",
	               (long)d->pid);
}

int
device_check(const struct device_context *c, enum driver_call call, int result, struct pawl_error *err)
{
	bool is_lost;
	char where[32];

	if (result == DRIVER_SUCCESS)
		return 0;
	if (c->ordinal < 0)
		snprintf(where, sizeof(where), "driver");
	else
		snprintf(where, sizeof(where), "device %d", c->ordinal);
	int rc = driver_fail(&c->device->driver, call, result, where, &is_lost, err);

	if (is_lost)
		atomic_store(&c->device->is_lost, true);
	return rc;
}

int
device_find(struct device *d, uint64_t pointer, struct device_place *ret, struct pawl_error *err)
{
	int attributes[] = {DRIVER_ATTRIBUTE_MEMORY_TYPE, DRIVER_ATTRIBUTE_IS_MANAGED, DRIVER_ATTRIBUTE_ORDINAL};
	struct {
		int value, rest; /* an attribute may be wider than documented */
	} found[3] = {{0, 0}, {0, 0}, {-1, 0}};
	void *data[] = {&found[0], &found[1], &found[2]};
	struct device_context any = {.device = d, .ordinal = -1};

	TRY(refuse_fork(d, err));
	int result = d->driver.pointer_attributes(3, attributes, data, pointer);

	if (result == DRIVER_NOT_INITIALIZED && !d->is_demanded) { /* so there is no device memory */
		*ret = (struct device_place){.kind = DEVICE_PLACE_HOST, .ordinal = -1};
		return 0;
	}
	TRY(device_check(&any, DRIVER_pointer_attributes, result, err));
	const bool is_managed = (found[1].value & 0xff) != 0;

	ret->kind = is_managed                               ? DEVICE_PLACE_MANAGED
	            : found[0].value == DRIVER_MEMORY_DEVICE ? DEVICE_PLACE_DEVICE
	                                                     : DEVICE_PLACE_HOST;
	ret->ordinal = ret->kind == DEVICE_PLACE_HOST ? -1 : found[2].value;
	return 0;
}

int
device_version(struct device *d, int *ret_major, int *ret_minor, struct pawl_error *err)
{
	const struct device_context any = {.device = d, .ordinal = -1};
	const bool is_hip = d->driver.kind == DRIVER_HIP;
	int version;

	TRY(refuse_fork(d, err));
	TRY(DEVICE_CALL(&any, err, version, &version));
	*ret_major = version / (is_hip ? 10000000 : 1000);
	*ret_minor = is_hip ? version / 100000 % 100 : version / 10 % 100;
	return 0;
}

int
device_node(struct device *d, int ordinal)
{
	char id[32] = "", path[PATH_MAX], text[16] = "";
	int device;

	if (device_is_forked(d) || d->driver.device_get(&device, ordinal) != DRIVER_SUCCESS ||
	    d->driver.device_pci(id, (int)sizeof(id) - 1, device) != DRIVER_SUCCESS)
		return -1;
	for (char *c = id; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	snprintf(path, sizeof(path), "%s/%s/numa_node", d->bus, id);
	PAWL_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return -1;
	return (int)strtol(text, NULL, 10);
}

/* ---------------------------------------------------------------- contexts */

int
device_context_open(struct device *d, int ordinal, struct device_context *ret, struct pawl_error *err)
{
	struct device_context c = {.device = d, .ordinal = ordinal};

	TRY(refuse_fork(d, err));
	TRY(DEVICE_CALL(&c, err, device_get, &c.id, ordinal));
	if (d->driver.ctx_retain)
		TRY(DEVICE_CALL(&c, err, ctx_retain, &c.ctx, c.id));
	device_ref(d);
	*ret = c;
	return 0;
}

void
device_context_close(struct device_context *c)
{
	if (c->ctx && !device_is_forked(c->device))
		(void)c->device->driver.ctx_release(c->id);
	device_close(c->device);
	*c = (struct device_context){0};
}

static void
leave_context(const struct device_scope *s)
{
	const struct driver *d = &s->device->driver;
	void *ctx;

	if (d->set_device)
		(void)d->set_device(s->before);
	else
		(void)d->ctx_pop(&ctx);
}

int
device_enter(const struct device_context *c, struct device_scope *ret, struct pawl_error *err)
{
	struct device_scope s = {.device = c->device, .mode = DRIVER_CAPTURE_RELAXED};

	TRY(refuse_fork(c->device, err));
	if (device_is_lost(c->device))
		return err_set(err, PAWL_EDEVICE, "device %d: lost by an earlier error; restart the process",
		               c->ordinal);
	if (c->device->driver.set_device) {
		TRY(DEVICE_CALL(c, err, get_device, &s.before));
		TRY(DEVICE_CALL(c, err, set_device, c->id));
	} else {
		TRY(DEVICE_CALL(c, err, ctx_push, c->ctx));
	}
	int rc = DEVICE_CALL(c, err, capture_mode, &s.mode);

	if (rc < 0) {
		leave_context(&s);
		return rc;
	}
	*ret = s;
	return 0;
}

void
device_leave(struct device_scope *s)
{
	if (!s->device)
		return;
	(void)s->device->driver.capture_mode(&s->mode);
	leave_context(s);
	s->device = NULL;
}

/* --------------------------------------------------------- registered memory */

uint64_t
device_room(const struct device *d, uint64_t address)
{
	return d->piece_bytes - address % d->piece_bytes;
}
