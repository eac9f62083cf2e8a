/* SPDX-License-Identifier: Apache-2.0 */
/* run_saves: the state of saves that lives as long as the run: their queue, memory, kept files and
 * the failures that were not reported yet. */
#ifndef PAWL_RUN_SAVES_H
#define PAWL_RUN_SAVES_H

#include <pthread.h>
#include <stdbool.h>

#include "pawl.h"
#include "policy/compress_rule.h"
#include "run/recycle.h"

struct writer; /* save/writer.h */

/* The calls of lower rooms to the queue of saves. */
struct run_queue_ops {
	/* A save is running, waiting or settling. */
	bool (*is_busy)(struct writer *w);
	/* A save with this token is running or waiting in this process. */
	bool (*has_token)(struct writer *w, const char *token);
	/* Faults in the memory for a save of about nbytes, in the background. */
	void (*prepare)(struct writer *w, uint64_t nbytes);
	/* The files of the checkpoint with this key are damaged: later saves link none of them. */
	void (*distrust)(struct writer *w, const char *folder);
	/* Waits until the saves that have begun are in the catalog or have failed; 0, ETIMEDOUT. */
	int (*wait_committed)(struct writer *w, int64_t deadline_ms);
};

struct run_saves {
	struct writer *writer;                 /* the queue; NULL when read-only */
	const struct run_queue_ops *queue_ops; /* set with writer */
	struct pawl_arena *arena;
	bool owns_arena;
	struct recycle recycle; /* has a lock of its own */

	struct compress_rule compress_rule; /* guarded by run_lock */

	pthread_mutex_t lock;       /* guards below; no other lock is taken while it is held */
	struct pawl_ticket *failed; /* failed saves, the oldest first; references, linked by next_failed */
};

/* Remembers a failed save until its error is reported. */
void run_saves_set_failed(struct run_saves *s, struct pawl_ticket *ticket);
/* The error of the oldest failed save that no caller has seen, once; else 0. */
int run_saves_take_failed(struct run_saves *s, struct pawl_error *err);
void run_saves_drop_failed(struct run_saves *s);

#endif
