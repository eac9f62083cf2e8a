/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver: the calls of the CUDA driver, or of HIP, that the room uses, found at run time. There is
 * no build dependency on either. The types are those of their binary interface. A result, a device
 * and a mode are int; a context, a stream and an event are opaque pointers; device memory is a
 * 64-bit number.
 */
#ifndef PAWL_DEVICE_DRIVER_H
#define PAWL_DEVICE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

enum driver_kind { DRIVER_CUDA = 1, DRIVER_HIP = 2 };

enum {
	DRIVER_SUCCESS = 0,
	DRIVER_NOT_INITIALIZED = 3,
	DRIVER_DEINITIALIZED = 4,
	DRIVER_NOT_READY = 600,
	DRIVER_NOT_SUPPORTED = 801
};

#define DRIVER_STREAM_LEGACY ((uintptr_t)1)     /* CU_STREAM_LEGACY, hipStreamLegacy */
#define DRIVER_STREAM_PER_THREAD ((uintptr_t)2) /* CU_STREAM_PER_THREAD, hipStreamPerThread */
#define DRIVER_STREAM_NON_BLOCKING 1u
#define DRIVER_EVENT_BLOCKING_SYNC 1u
#define DRIVER_EVENT_DISABLE_TIMING 2u
#define DRIVER_REGISTER_PORTABLE 1u
#define DRIVER_CAPTURE_RELAXED 2
#define DRIVER_ORDER_STREAM 1 /* CU_MEMCPY_SRC_ACCESS_ORDER_STREAM */

/* Attributes of a pointer, and kinds of memory. */
enum { DRIVER_ATTRIBUTE_MEMORY_TYPE = 2, DRIVER_ATTRIBUTE_IS_MANAGED = 8, DRIVER_ATTRIBUTE_ORDINAL = 9 };
enum { DRIVER_MEMORY_HOST = 1, DRIVER_MEMORY_DEVICE = 2 };

/* CUDA_MEMCPY2D and hip_Memcpy2D. */
struct driver_copy_2d {
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

/* CUmemcpyAttributes of CUDA 12.8. The hints about locations are (type, id). */
struct driver_batch {
	int order;
	int src_hint[2], dst_hint[2];
	unsigned flags;
};

/* X(member, arguments, name in CUDA, suffix of the symbol in libcuda, version that has the wanted
 * signature, name in HIP, may be missing). "" = the driver of this kind does not need it. */
#define DRIVER_CALLS(X)                                                                                                \
	X(init, (unsigned), "cuInit", "", 2000, "hipInit", false)                                                      \
	X(version, (int *), "cuDriverGetVersion", "", 2020, "hipDriverGetVersion", false)                              \
	X(error_name, (int, const char **), "cuGetErrorName", "", 6000, "hipDrvGetErrorName", false)                   \
	X(device_get, (int *, int), "cuDeviceGet", "", 2000, "hipDeviceGet", false)                                    \
	X(device_pci, (char *, int, int), "cuDeviceGetPCIBusId", "", 4010, "hipDeviceGetPCIBusId", false)              \
	X(ctx_retain, (void **, int), "cuDevicePrimaryCtxRetain", "", 7000, "", false)                                 \
	X(ctx_release, (int), "cuDevicePrimaryCtxRelease", "_v2", 11000, "", false)                                    \
	X(ctx_push, (void *), "cuCtxPushCurrent", "_v2", 4000, "", false)                                              \
	X(ctx_pop, (void **), "cuCtxPopCurrent", "_v2", 4000, "", false)                                               \
	X(get_device, (int *), "", "", 0, "hipGetDevice", false)                                                       \
	X(set_device, (int), "", "", 0, "hipSetDevice", false)                                                         \
	X(ctx_sync, (void), "cuCtxSynchronize", "", 2000, "hipDeviceSynchronize", false)                               \
	X(priority_range, (int *, int *), "cuCtxGetStreamPriorityRange", "", 5050, "hipDeviceGetStreamPriorityRange",  \
	  false)                                                                                                       \
	X(pointer_attributes, (unsigned, int *, void **, uint64_t), "cuPointerGetAttributes", "", 7000,                \
	  "hipDrvPointerGetAttributes", false)                                                                         \
	X(host_register, (void *, size_t, unsigned), "cuMemHostRegister", "_v2", 6050, "hipHostRegister", false)       \
	X(host_unregister, (void *), "cuMemHostUnregister", "", 4000, "hipHostUnregister", false)                      \
	X(mem_alloc, (uint64_t *, size_t), "cuMemAlloc", "_v2", 3020, "hipMalloc", false)                              \
	X(mem_free, (uint64_t), "cuMemFree", "_v2", 3020, "hipFree", false)                                            \
	X(mem_info, (size_t *, size_t *), "cuMemGetInfo", "_v2", 3020, "hipMemGetInfo", false)                         \
	X(stream_create, (void **, unsigned, int), "cuStreamCreateWithPriority", "", 5050,                             \
	  "hipStreamCreateWithPriority", false)                                                                        \
	X(stream_destroy, (void *), "cuStreamDestroy", "_v2", 4000, "hipStreamDestroy", false)                         \
	X(stream_ctx, (void *, void **), "cuStreamGetCtx", "", 9020, "", false)                                        \
	X(stream_device, (void *, int *), "", "", 0, "hipStreamGetDevice", false)                                      \
	X(stream_capturing, (void *, int *), "cuStreamIsCapturing", "", 10000, "hipStreamIsCapturing", false)          \
	X(stream_wait, (void *, void *, unsigned), "cuStreamWaitEvent", "", 3020, "hipStreamWaitEvent", false)         \
	X(stream_sync, (void *), "cuStreamSynchronize", "", 2000, "hipStreamSynchronize", false)                       \
	X(event_create, (void **, unsigned), "cuEventCreate", "", 2000, "hipEventCreateWithFlags", false)              \
	X(event_destroy, (void *), "cuEventDestroy", "_v2", 4000, "hipEventDestroy", false)                            \
	X(event_record, (void *, void *), "cuEventRecord", "", 2000, "hipEventRecord", false)                          \
	X(event_query, (void *), "cuEventQuery", "", 2000, "hipEventQuery", false)                                     \
	X(event_sync, (void *), "cuEventSynchronize", "", 2000, "hipEventSynchronize", false)                          \
	X(copy_to_host, (void *, uint64_t, size_t, void *), "cuMemcpyDtoHAsync", "_v2", 3020, "hipMemcpyDtoHAsync",    \
	  false)                                                                                                       \
	X(copy_to_device, (uint64_t, const void *, size_t, void *), "cuMemcpyHtoDAsync", "_v2", 3020,                  \
	  "hipMemcpyHtoDAsync", false)                                                                                 \
	X(copy_on_device, (uint64_t, uint64_t, size_t, void *), "cuMemcpyDtoDAsync", "_v2", 3020,                      \
	  "hipMemcpyDtoDAsync", false)                                                                                 \
	X(copy_2d, (const struct driver_copy_2d *, void *), "cuMemcpy2DAsync", "_v2", 3020, "hipMemcpyParam2DAsync",   \
	  false)                                                                                                       \
	X(copy_batch,                                                                                                  \
	  (uint64_t *, uint64_t *, size_t *, size_t, struct driver_batch *, size_t *, size_t, size_t *, void *),       \
	  "cuMemcpyBatchAsync", "", 12080, "", true)                                                                   \
	X(capture_mode, (int *), "cuThreadExchangeStreamCaptureMode", "", 10010, "hipThreadExchangeStreamCaptureMode", \
	  false)

enum driver_call {
#define DRIVER_NUMBER(member, ...) DRIVER_##member,
	DRIVER_CALLS(DRIVER_NUMBER)
#undef DRIVER_NUMBER
		DRIVER_N_CALLS
};

struct driver {
	enum driver_kind kind;
	void *library; /* of dlopen; never unloaded */
#define DRIVER_MEMBER(member, arguments, ...) int(*member) arguments;
	DRIVER_CALLS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

/* Finds the calls. Without `load` only a library that the process has loaded already is used.
 * PAWL_ENOTFOUND: there is none. PAWL_EUNSUPPORTED: the driver is too old; the message names the
 * missing call. */
int driver_load(enum driver_kind kind, bool load, struct driver *ret, struct pawl_error *err);
/* Fills *err with the call, the driver's name of the result, and what to do. `where` names the
 * device. *ret_lost (may be NULL): the error is sticky; every later call of the process fails. */
int driver_fail(const struct driver *d, enum driver_call call, int result, const char *where, bool *ret_lost,
                struct pawl_error *err);

#endif
