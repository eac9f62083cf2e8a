/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_file: the identity of a run and its file, run.json:
 *
 *   {"pawl_run":1,"run":"<32 hex>","created_unix_ns":..,"attempt":N,"last_id":N,
 *    "scores":[["accuracy",1],..]}
 *
 * last_id: the highest id that was ever removed, so that no id is given out twice (E1); 0 = none.
 * scores: how the training ranks its checkpoints, so that later tools mean the same by "best".
 */
#ifndef PAWL_RUN_FILE_H
#define PAWL_RUN_FILE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "pawl.h"

#define RUN_KEY "run.json"

struct lease; /* run/lease.h */

struct run_identity {
	char run_id[33];
	uint64_t attempt;
	int64_t created_ns;  /* wall clock; when the run was begun */
	struct lease *lease; /* NULL when read-only, for a single checkpoint, and for every rank but 0 */
	char *file_damage;   /* why run.json could not be read; NULL = nothing */
	uint64_t stored_id;  /* last_id of run.json; guarded by run_edit */

	pthread_mutex_t lock; /* guards last_id; no other lock is taken while it is held */
	uint64_t last_id;     /* the highest id that was ever seen or given out */
};

/* A damaged file counts as missing, since the checkpoints hold the same data. */
int run_file_read(struct pawl *run, bool *ret_found, struct pawl_error *err);
/* Takes over a run.json from a mirror, if the run's folder is lost or on another host (R107,
 * R152). */
int run_file_adopt(struct pawl *run, const struct buf *text, struct pawl_error *err);
int run_file_write(struct pawl *run, struct pawl_error *err);
/* Adds a warning to the events if run.json was damaged. */
void run_file_warn(struct pawl *run);

/* Records durably that an id was given out, before the newest checkpoint is removed. Within
 * run_edit. */
int run_file_remember_id(struct pawl *run, uint64_t id, struct pawl_error *err);
uint64_t run_file_last_id(struct pawl *run);
/* An id was seen: later ones are higher. */
void run_file_raise_id(struct pawl *run, uint64_t id);
/* Gives out the id of a save: the given one, or the next if that is 0. A single checkpoint always
 * has id 1. */
uint64_t run_file_give_id(struct pawl *run, uint64_t id);

#endif
