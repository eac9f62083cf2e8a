/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events: what has happened in a run, one line of JSON for each event, for people and tools.
 * Failures to write are ignored: nothing depends on the events. Any thread may call these
 * functions.
 *
 * In a folder a line is appended to events.jsonl. Objects cannot be appended to, so in a bucket
 * each process fills objects of its own, events/<milliseconds>-<8 hex>.jsonl. The lines of the
 * object that is being filled are kept in memory. The complete object is put again with each line
 * until it has 64 KiB. No two processes write to one object, and a line whose put fails is in the
 * next put of the same object. Single checkpoints, readers and every rank but 0 write none.
 */
#ifndef PAWL_EVENTS_H
#define PAWL_EVENTS_H

#include <pthread.h>
#include <stdbool.h>

#include "base/buf.h"
#include "run/run_file.h"
#include "store/store.h"

#define EVENTS_WAITING 1000u

struct run_events;

/* How events are stored. Chosen when the run is opened. */
struct events_ops {
	void (*add)(struct run_events *e, const struct buf *line);
	/* Key of what holds the latest lines, appended to ret; nothing if there is none. */
	int (*find_last)(struct run_events *e, struct buf *ret, struct pawl_error *err);
};

struct run_events {
	const struct events_ops *ops, *reads; /* for adding, and for reading the last lines */
	struct store *store;                  /* borrowed */
	const struct run_identity *self;      /* borrowed */

	pthread_mutex_t lock; /* guards below; held while the object is put */
	struct buf text;      /* of the object that is being filled */
	char key[48];

	pthread_mutex_t queue_lock;  /* guards below */
	char *queue[EVENTS_WAITING]; /* a ring of lines for pawl_event_take */
	size_t first, n;
};

/* has_events: false for single checkpoints. is_writer: false for readers and for every rank but
 * 0. */
void events_open(struct run_events *e, struct store *store, const struct run_identity *self, bool has_events,
                 bool is_writer);
/* fields: JSON members without braces. */
void events_add(struct run_events *e, const char *what, const char *fields);
/* Appends the members "code" and "error" to the fields of an event. */
void events_put_error(struct buf *fields, const struct pawl_error *why);
/* Adds a "warning" with code and message: something went wrong that stops nothing. */
void events_warn(struct run_events *e, const struct pawl_error *why);
/* The oldest line that was not taken yet; the caller frees it. NULL = none. */
char *events_take(struct run_events *e);
/* The last complete lines, at most 64 KiB; empty if there are none. */
int events_read_last(struct run_events *e, struct buf *ret, struct pawl_error *err);
void events_close(struct run_events *e);

#endif
