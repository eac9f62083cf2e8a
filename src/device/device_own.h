/* SPDX-License-Identifier: Apache-2.0 */
/* device_own: what the files of this room share. */
#ifndef PAWL_DEVICE_DEVICE_OWN_H
#define PAWL_DEVICE_DEVICE_OWN_H

#include <stdatomic.h>
#include <sys/types.h>

#include "device/device.h"

/* Host memory is registered in pieces, which a copy must not cross. The borders are the multiples
 * of this number, so that every handle knows the pieces that another one has registered. */
#define DEVICE_PIECE_BYTES ((uint64_t)1 << 30)

struct device {
	atomic_uint refs;
	pid_t pid; /* that opened it */
	struct driver driver;
	bool is_demanded; /* the caller has device memory */
	atomic_bool is_lost;
	uint64_t piece_bytes; /* DEVICE_PIECE_BYTES; tests use less */
	const char *bus;      /* the kernel's folder of PCI devices; tests use another */
};

/* The primary context of one device, retained. */
struct device_context {
	struct device *device; /* a reference */
	int ordinal, id;
	void *ctx; /* NULL for HIP, which has none */
};
int device_context_open(struct device *d, int ordinal, struct device_context *ret, struct pawl_error *err);
void device_context_close(struct device_context *c);

/* From enter to leave the context is current on this thread, and a capture of a graph in another
 * thread allows all calls. leave reports nothing: the work is done. A zeroed scope is not
 * entered. */
struct device_scope {
	struct device *device;
	int before; /* HIP: the device that was current */
	int mode;
};
int device_enter(const struct device_context *c, struct device_scope *ret, struct pawl_error *err);
void device_leave(struct device_scope *s);
#define DEVICE_SCOPE PAWL_CLEAN(device_leave)

/* 0, or the error of a call's result. */
int device_check(const struct device_context *c, enum driver_call call, int result, struct pawl_error *err);
#define DEVICE_CALL(c, err, member, ...) \
	device_check((c), DRIVER_##member, (c)->device->driver.member(__VA_ARGS__), (err))

/* Is this another process than the one that opened it? */
bool device_is_forked(const struct device *d);
/* The bytes from an address to the next border of pieces. */
uint64_t device_room(const struct device *d, uint64_t address);

#endif
