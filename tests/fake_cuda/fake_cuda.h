/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda: a driver of accelerators over host memory, for tests. It has the calls that src/device
 * uses, and the soname of libcuda (built with FAKE_HIP: the names and the soname of HIP). A program
 * that is linked to it has therefore "loaded CUDA".
 *
 * Work happens in fake_step, and in calls that wait. Which stream advances, and by how many bytes
 * of a copy, is drawn from the seed: any order that streams and events allow. Device memory cannot
 * be read by the processor at the address that the driver gives. A copy of memory that is not
 * registered ends within its call.
 *
 * Misuse is noted: a copy without the right context, use of what was destroyed, memory freed or
 * unregistered while a copy is under way, copies across registered pieces or of more than 32 MiB,
 * unsafe calls during a capture, work on a captured stream.
 */
#ifndef PAWL_TESTS_FAKE_CUDA_H
#define PAWL_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_DEVICES 3

/* Forgets everything. is_initialised: as if the program had called cuInit. Forked children cannot
 * use the driver then. */
void fake_reset(uint64_t seed, bool is_initialised);
/* Advances one stream a little; false if no stream can advance. */
bool fake_step(void);
void fake_run(void); /* until no stream can */

/* The nth call from now on (1 = the next) returns `result`; 700 is sticky. A call that releases
 * something still releases it. 0 = none. */
void fake_fail(long nth, int result);
long fake_calls(void); /* since fake_fail */
/* The program exits: what was queued never happens, and each call returns
 * CUDA_ERROR_DEINITIALIZED. */
void fake_shut_down(void);
/* The nth wait for an event from now on is left out; 0 = none. For controls: the test must detect
 * it. */
void fake_ignore_wait(long nth);
long fake_waits(void); /* since fake_ignore_wait */

uint64_t fake_alloc(int ordinal, size_t n);
uint64_t fake_alloc_managed(int ordinal, size_t n);
void fake_free(uint64_t pointer);
void *fake_shadow(uint64_t pointer);      /* where a test reads and writes device memory */
void fake_set_memory(size_t n_free);      /* of each device */
void fake_set_registrable(size_t nbytes); /* then cuMemHostRegister is refused */
size_t fake_registered(void);             /* bytes */
void fake_wait_registered(size_t n);      /* until so many bytes are */
bool fake_is_registered(const void *ptr);
void fake_wait_copied(int ordinal, size_t n); /* bytes, by streams of the library */
void fake_set_queue(size_t n);    /* what a stream of the library holds; then a call waits for room. 0 = no end */
void fake_limit_copies(size_t n); /* streams of the library begin no copy once n bytes of a device are */
void fake_end_early(bool early);  /* waits of the host for an event return at once; streams still wait */
void fake_wait_full(void);        /* until a call waits so */
size_t fake_longest(void);        /* what a stream of the library held at most */
void fake_set_batch(int result);  /* what cuMemcpyBatchAsync returns; 0 = it works */
long fake_batches(void), fake_copies_2d(void);
void fake_hide_first(bool hide);     /* device 0 cannot be used: another process has it */
void fake_hide_addresses(bool hide); /* cuGetProcAddress finds nothing, as in old drivers */

/* The caller's side: streams, and computations on them. */
uint64_t fake_stream(int ordinal);
void fake_stream_end(uint64_t stream);
void fake_launch(int ordinal, uint64_t stream, void (*fn)(void *arg), void *arg);
bool fake_is_idle(uint64_t stream);         /* nothing is left to be done on it */
void fake_hold(uint64_t stream, bool hold); /* nothing of it begins meanwhile; 0 = all that are not the caller's */
void fake_capture(uint64_t stream);         /* begins a capture of this thread, mode global; 0 = ends it */
bool fake_capture_is_broken(void);

/* Contexts that are current on this thread (HIP: the current device). */
int fake_context_depth(void);
int fake_capture_mode(void);
/* What the library has not given back: contexts, streams, events, device memory, registrations. */
long fake_live(void);
/* The first misuse, or NULL. */
const char *fake_misuse(void);

#endif
