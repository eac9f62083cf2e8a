/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recycle: packs of deleted checkpoints that are kept in .pawl/recycle, so that a later save
 * overwrites them instead of allocating new blocks. The option `recycle` of a run sets the number
 * of checkpoints. Any thread may call these.
 */
#ifndef PAWL_RECYCLE_H
#define PAWL_RECYCLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/vec.h"
#include "store/store.h"

#define RECYCLE_FOLDER ".pawl/recycle"

struct recycle_file {
	char *key;
	uint64_t nbytes;
};

struct recycle {
	struct store *store;    /* borrowed */
	size_t max_checkpoints; /* whose packs are kept; 0 = none */

	pthread_mutex_t lock; /* guards below; no other lock is taken while it is held */
	VEC(struct recycle_file) files;
	size_t n_packs; /* of the last checkpoint */
};

/* Finds what earlier processes have kept; finding none is fine. */
void recycle_load(struct recycle *r);
void recycle_clear(struct recycle *r);
/* A checkpoint of this run has this many packs. */
void recycle_expect(struct recycle *r, size_t n_packs);
uint64_t recycle_bytes(struct recycle *r);
/* Keeps the pack of a deleted checkpoint, unless enough are kept. */
void recycle_put(struct recycle *r, const char *key, uint64_t nbytes);
/* Takes a kept file, of this size if there is one, and appends its key. False: there is none. */
bool recycle_take(struct recycle *r, uint64_t nbytes, struct buf *key);

#endif
