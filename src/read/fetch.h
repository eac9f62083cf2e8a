/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: carries a reshard plan out: reads its units with several threads, checks every block against the manifest
 * (P1, P21), and puts the bytes where they belong. Every block that is touched is checked whole, also where only a
 * part of it is wanted. Foreign files have no sums of blocks; what of them carries a CRC-32 and is read whole is checked
 * by that, after it has been placed.
 *
 * Memory: the reading buffers, at most FETCH_MAX_RING in all, made by the first run and kept (R145, P16).
 */
#ifndef PAWL_FETCH_H
#define PAWL_FETCH_H

#include "layout/reshard.h"
#include "pawl.h"
#include "store/store.h"

#define FETCH_RING (64u << 20)      /* default: reads of 8 MiB on eight threads */
#define FETCH_MAX_RING (96u << 20)  /* and so the largest block that can be read */

struct fetch;

/* A range of a file that could not be read or is not what was written; `why` does not say where. Called on a reading
 * thread, one call at a time. 0 = go on with the rest, a negative code = stop with `why`. */
typedef int fetch_bad_fn(void *arg, uint32_t file, uint64_t begin, uint64_t end, const struct pawl_error *why);

struct fetch_job {
	const char *name;   /* of the checkpoint, for errors */
	const char *folder; /* its key in the store; "" = the root itself */
	const struct manifest *manifest;
	const struct reshard_plan *plan;
	const struct reshard_binding *bindings; /* as given to reshard_plan */
	struct pawl_meter *meter; /* NULL = none; done_bytes grows, total_bytes is the caller's */
	fetch_bad_fn *bad;  /* NULL = the first damage ends the fetch */
	void *arg;
	bool held; /* no process cuts the files: what of them is in memory may be read from a map */
	unsigned only_copy; /* 0 = any copy of what is damaged in one; k = copy k - 1 alone, as far as there is one */
	uint64_t *ret_healed_bytes; /* NULL, or grows by what was damaged in one copy and taken from another */
};

/* io_threads: as in the run's options; twice as many threads read, because each also sums and copies between its reads.
 * ring_bytes 0 = FETCH_RING. The store must outlive the fetch. Not thread-safe. */
int fetch_new(struct store *store, unsigned io_threads, uint64_t ring_bytes, struct fetch **ret, struct pawl_error *err);
void fetch_free(struct fetch *f); /* NULL is fine */
/* The unit size to plan with when so many bytes are wanted: large reads, but work for all threads. */
uint64_t fetch_unit_bytes(const struct fetch *f, uint64_t wanted_bytes);
/* PAWL_ECORRUPT names checkpoint, file, byte range and the tensors there; a missing or short file is that too.
 * After a failure the destinations hold undefined bytes. */
int fetch_run(struct fetch *f, const struct fetch_job *job, struct pawl_error *err);
/* Appends the names of the tensors that have bytes in the range, in file order, the first few. */
void fetch_tensors_at(const struct manifest *m, uint32_t file, uint64_t begin, uint64_t end, struct buf *out);
/* Puts "name: file: bytes a to b (tensor t): " before what is wrong. */
void fetch_locate(const struct fetch_job *job, uint32_t file, uint64_t begin, uint64_t end, struct pawl_error *err);
/* Bytes of reading buffers held now. */
uint64_t fetch_buffer_bytes(const struct fetch *f);

#endif
