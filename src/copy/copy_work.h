/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_work: the threads that move objects from one store to another, piece by piece (diagram in
 * copy.h).
 */
#ifndef PAWL_COPY_WORK_H
#define PAWL_COPY_WORK_H

#include <pthread.h>

#include "base/mem.h"
#include "copy/copy.h"

enum copy_phase {
	COPY_OLD, /* an object of this size exists at the target: read back */
	COPY_SEND,
	COPY_CHECK, /* sent: read back */
	COPY_DONE
};

/* One object. While the work runs, its lock guards everything below `phase`; the worker that holds
 * the item owns the fields between. */
struct copy_item {
	const struct manifest_file *file; /* a file without checksums: they are computed, and stored in `learned` */
	struct sum128 *learned;           /* NULL = file->sums are known */
	struct store_reader *source;      /* NULL, or the open source (the caller's); needed to learn checksums */
	const char *from_key, *to_key;
	const char *link_key; /* NULL, or the same file at the target, to be linked first */
	uint64_t unit_bytes;  /* of one piece: complete blocks, or one block if checksums are learned */
	struct store_reader *reader;
	struct store_file *target;
	bool stale;      /* the target holds something else, which is removed first */
	bool no_check;   /* not read back after it was sent */
	bool no_sending; /* COPY_OLD only compares; `differs` is the result */

	enum copy_phase phase;
	bool busy, entered; /* busy: one worker opens or closes it, the others skip it */
	bool differs;       /* COPY_OLD: a piece differs */
	bool linked;
	uint64_t next; /* offset of the next piece to hand out */
	unsigned out;  /* pieces that workers hold */
};

struct copy_work {
	struct store *from, *to;
	const char *name; /* of the checkpoint or object, for errors */
	copy_step_fn *step;
	void *step_arg;
	unsigned n_streams;     /* 0 = COPY_STREAMS */
	uint64_t memory_bytes;  /* 0 = COPY_MEMORY */
	struct store_caps caps; /* of the target */
	struct copy_item *items;
	size_t n;
	unsigned from_copies;
	uint64_t buffer_bytes; /* of one worker: the largest unit */

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	size_t first; /* items before it are done */
	struct pawl_error error;
	struct copy_result result;
};

/* Brings all items to COPY_DONE. After a failure nothing is open, and complete objects stay at the
 * target. */
int copy_work_run(struct copy_work *w, struct pawl_error *err);

#endif
