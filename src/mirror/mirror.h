/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror: copies committed checkpoints to the run's mirrors in the background.
 * catalog/mirrors.h has their known contents.
 *
 *   committed --wanted--> copied and read back (copy.h) --> noted in the journal
 *                 |         --> the mirror's pointers --> its retention
 *                 \--failed--> wanted again after a pause that grows; newest first, always
 *
 * A mirror is a run of its own: run.json, checkpoints/, then latest and best. The pointers are put
 * only when everything they lead to has been verified in the mirror (R89).
 *
 * Threads: one for each mirror of a run that is open for training; uploads use copy.c's.
 */
#ifndef PAWL_MIRROR_H
#define PAWL_MIRROR_H

#include "catalog/mirrors.h"

/* ---- life, mirror.c */

/* Opens the mirrors of the options, which were checked; without any, those that the run has
 * journals of. Sets run->mirrors, which may be empty. A store that denies access is an error; one
 * that cannot be reached is an error only where uploads.fail_saves is set. */
int mirrors_open(struct pawl *run, struct pawl_error *err);
/* The text of run.json of the first mirror that has one. PAWL_ENOTFOUND: none has. Another error: a
 * mirror could not be read. */
int mirrors_get_run_file(struct pawl *run, struct buf *out, struct pawl_error *err);
/* Begins to upload. */
int mirrors_start(struct pawl *run, struct pawl_error *err);
/* Waits for the uploads, unless they are left to others, and stops the threads. Returns the first
 * error not yet reported. */
int mirrors_stop(struct pawl *run, struct pawl_error *err);
void mirrors_free(struct mirrors *ms);
/* Waits until nothing is outstanding (see mirrors_outstanding); 1 = the deadline has passed. */
int mirrors_wait(struct pawl *run, int64_t deadline_ms, struct pawl_error *err);
/* Opens a mirror's store if that has not been done. */
int mirror_open_store(struct mirror *m, bool create, struct pawl_error *err);

/* ---- reading back, mirror_read_back.c */

/* Compares every block of a checkpoint in that store with its checksum (P14). */
int mirror_read_back(struct store *there, const char *folder, struct pawl_meter *meter, int64_t deadline_ms,
                     struct pawl_error *err);

/* ---- one upload, mirror_upload.c */

/* Puts the pin and late scores of a checkpoint into the mirror, and decides its best checkpoint
 * again. */
int mirror_put_marks(struct mirror *m, uint64_t id, struct pawl_error *err);
/* Copies the checkpoint with this id; the run's lock is not held. meter may be NULL. A checkpoint
 * that the run's own store no longer has counts as success. A failure is noted, unless the meter
 * was cancelled. */
int mirror_upload(struct mirror *m, uint64_t id, struct pawl_meter *meter, struct pawl_error *err);

#endif
