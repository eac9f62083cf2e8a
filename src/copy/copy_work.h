/* SPDX-License-Identifier: Apache-2.0 */
/* copy_work: the threads of a copy and the steps of each file (diagram in copy.h). For copy.c only. */
#ifndef PAWL_COPY_WORK_H
#define PAWL_COPY_WORK_H

#include <pthread.h>

#include "base/mem.h"
#include "copy/copy.h"

enum copy_phase {
	COPY_OLD,   /* something of the right size is there: read back */
	COPY_SEND,
	COPY_CHECK, /* sent: read back */
	COPY_DONE
};

/* One file. Once the work has begun, all below `phase` is guarded by the work's lock; what is between is its worker's. */
struct copy_item {
	const struct manifest_file *file;
	const char *from_key, *to_key;
	const char *link_key; /* NULL, or the same file at the target, to be linked first */
	uint64_t unit_bytes;  /* of one piece: whole blocks */
	struct store_reader *reader;
	struct store_file *target;
	bool stale; /* something else is at the target: to be removed first */

	enum copy_phase phase;
	bool busy, entered; /* busy: one worker opens or closes it, the others leave it alone */
	bool differs;       /* COPY_OLD: a piece is not what it should be */
	bool linked;
	uint64_t next; /* offset of the piece to hand out next */
	unsigned out;  /* pieces that are not back yet */
};

struct copy_work {
	const struct copy_job *job;
	const char *name; /* of the checkpoint, for errors */
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

/* Brings all items to COPY_DONE. On failure nothing is open any more, and what is whole at the target stays. */
int copy_work_run(struct copy_work *w, struct pawl_error *err);
/* PAWL_ETIMEOUT or PAWL_ECANCELLED if it is time to stop. */
int copy_work_may_go_on(const struct copy_work *w, struct pawl_error *err);

#endif
