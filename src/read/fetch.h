/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: executes a reshard plan. Several threads read its units, check every block against the
 * manifest (P1), and copy the bytes to their destinations. A block is checked completely even
 * if only a part of it is wanted. Foreign files have no checksums of blocks. A range of them that
 * has a CRC-32 and is read completely is checked by that, after it was placed.
 *
 * Memory: the read buffers, at most FETCH_MAX_RING in all. The first run allocates them, later ones
 * reuse them (R145, P16).
 */
#ifndef PAWL_FETCH_H
#define PAWL_FETCH_H

#include "layout/reshard.h"
#include "pawl.h"
#include "store/store.h"

#define FETCH_RING (64u << 20)     /* default: reads of 8 MiB on eight threads */
#define FETCH_MAX_RING (96u << 20) /* also the largest block that can be read */

struct fetch;
struct device_set;

/* Reports a range of a file that is unreadable or damaged; `why` does not name the place. Called on
 * a reading thread, one call at a time. 0 = continue with the rest, a negative code = stop with
 * `why`. */
typedef int fetch_bad_fn(void *arg, uint32_t file, uint64_t begin, uint64_t end, const struct pawl_error *why);

struct fetch_job {
	const char *name;   /* of the checkpoint, for errors */
	const char *folder; /* its key in the store; "" = the root itself */
	const struct manifest *manifest;
	const struct reshard_plan *plan;
	const struct reshard_binding *bindings; /* as given to reshard_plan */
	struct pawl_meter *meter;               /* NULL = none; done_bytes grows, total_bytes is the caller's */
	int64_t deadline_ms; /* of clock_mono_ms; 0 = none. PAWL_ETIMEOUT after that; checked between units */
	fetch_bad_fn *bad;   /* NULL = the first damage ends the fetch */
	void *arg;
	unsigned only_copy; /* 0 = a damaged block is taken from any copy; k = only copy k - 1, as far as it exists */
	uint64_t *ret_healed_bytes; /* NULL, or grows by the bytes that were damaged in one copy and read from
	                               another */
};

/* io_threads: as in the run's options. Twice as many threads read, because each also checksums and
 * copies between its reads. ring_bytes 0 = FETCH_RING. The store must outlive the fetch. Not
 * thread-safe. */
int fetch_new(struct store *store, unsigned io_threads, uint64_t ring_bytes, struct fetch **ret,
              struct pawl_error *err);
void fetch_free(struct fetch *f); /* NULL is fine */
/* The unit size to plan with for this many bytes: large reads, but work for all threads. */
uint64_t fetch_unit_bytes(const struct fetch *f, uint64_t wanted_bytes);
/* PAWL_ECORRUPT names checkpoint, file, byte range and the tensors in it, also for a missing or
 * short file. After a failure the destinations hold undefined bytes. */
int fetch_run(struct fetch *f, const struct fetch_job *job, struct pawl_error *err);
/* Appends the names of the first few tensors that have bytes in the range, in file order. */
void fetch_tensors_at(const struct manifest *m, uint32_t file, uint64_t begin, uint64_t end, struct buf *out);
/* Prefixes the message with "name: file: bytes a to b (tensor t): ". */
void fetch_locate(const struct fetch_job *job, uint32_t file, uint64_t begin, uint64_t end, struct pawl_error *err);
/* The devices that it copies to. */
struct device_set *fetch_devices(struct fetch *f);
/* Bytes of read buffers held now. */
uint64_t fetch_buffer_bytes(const struct fetch *f);

#endif
