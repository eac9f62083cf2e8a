/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recycle: packs of deleted checkpoints that are kept in .pawl/recycle, so that a later save overwrites them instead of
 * allocating new blocks. Option `recycle` of a run says for how many checkpoints. Any thread may call these.
 */
#ifndef PAWL_RECYCLE_H
#define PAWL_RECYCLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define RECYCLE_FOLDER ".pawl/recycle"

struct pawl;

struct recycle_file {
	char *key;
	uint64_t nbytes;
};
struct recycle {
	pthread_mutex_t lock; /* guards below */
	struct recycle_file *files;
	size_t n;
	size_t n_packs; /* of the last checkpoint */
};

/* Finds what earlier processes have kept. Finding none is fine. */
void recycle_load(struct pawl *run);
void recycle_clear(struct recycle *r);
/* So many packs has a checkpoint of this run. */
void recycle_expect(struct pawl *run, size_t n_packs);
uint64_t recycle_bytes(struct pawl *run);
/* Keeps a deleted checkpoint's pack, unless enough are kept. */
void recycle_put(struct pawl *run, const char *key, uint64_t nbytes);
/* Takes a kept file, of this size if there is one. Appends its key; false if there is none. */
bool recycle_take(struct pawl *run, uint64_t nbytes, struct buf *key);

#endif
