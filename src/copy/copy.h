/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy: copies one committed checkpoint, or some of its files, from one store to another. Upload,
 * download and copying between two buckets are the same: both sides are a struct store.
 *
 * Each file goes through these steps. Several files, and several pieces of each, are in flight at
 * once:
 *
 *   already there? --read back, good--> DONE
 *        \--missing, or different--> SENT --read back, good--> DONE
 *   all DONE --> manifest, last and exclusively --> the checkpoint exists at the target (P2)
 *
 * - Every block is compared with its checksum in the source's manifest before it is sent (P1). If
 *   it differs, the source's other copies are tried. If none is good, the error is PAWL_ECORRUPT
 *   and names checkpoint, file and range.
 * - Everything at the target is read back and compared with the same checksums (P14), however it
 *   got there. An ETag, date or size alone is not enough. While one file is read back, the next
 *   ones are sent.
 * - After an error, a deadline or a killed process, files that are complete stay at the target.
 *   They are not taken for a checkpoint there. The next call of the same copy reads them back and
 *   does not send them again (P15). It never trusts them unread: another run may have left them. In
 *   a local folder they are also synced, because the process that wrote them may have been killed
 *   before they were on the disk.
 * - Targets that rename folders keep these files in ".<name>.<token of the checkpoint>.partial"
 *   next to the final name; gc knows such folders. Other targets keep them in the final folder,
 *   without a manifest.
 * - Before the checkpoint exists, the folder is listed. Every file must be in it with its size,
 *   else PAWL_EIO: another process may have removed files since they were read back.
 * - If the target already holds the same manifest, the copy succeeds at once (P15). If it holds
 *   another one: PAWL_EEXISTS. A mark that withdrew a save there (abort_commit.h) is removed when
 *   it is ten minutes old; before that it is PAWL_ETRANSIENT.
 * - The caller protects the source from deletion meanwhile, by a hold if it can make one. It runs
 *   only one copy of the same checkpoint to the same target at a time. If two run, each succeeds or
 *   gets an error, and the checkpoint is complete in any case.
 */
#ifndef PAWL_COPY_H
#define PAWL_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "catalog/catalog.h"
#include "pawl.h"
#include "run/run.h"
#include "state/manifest.h"
#include "store/store.h"

#define COPY_STREAMS 4u
#define COPY_MEMORY ((uint64_t)256 << 20)

/* Called between pieces, by one thread at a time. nbytes: how many more bytes are at the target (0
 * = none). A negative result, with *err set, ends the copy with that code. */
typedef int copy_step_fn(void *arg, uint64_t nbytes, struct pawl_error *err);

/* Everything is borrowed until the call returns. */
struct copy_job {
	struct store *from, *to;
	const char *from_folder; /* key of the checkpoint's folder: "checkpoints/checkpoint_000007", or the name of
	                            a single checkpoint */
	const char *to_folder;
	const char *like_folder;  /* NULL, or key of another checkpoint at the target. Files that are the same in
	                             both are linked there (or copied by the server), not sent */
	unsigned n_streams;       /* pieces in flight at a time; 0 = COPY_STREAMS, at most COPY_MAX_STREAMS */
	uint64_t memory_bytes;    /* of all buffers together; 0 = COPY_MEMORY. If it is too little, fewer streams
	                             run; a file with larger blocks is PAWL_ELIMIT */
	int64_t deadline_ms;      /* by clock_mono_ms; 0 = none. PAWL_ETIMEOUT after that; checked between pieces */
	struct pawl_meter *meter; /* NULL = none. total_bytes grows by the checkpoint's size once it is known,
	                             done_bytes by what is at the target. cancel: PAWL_ECANCELLED; checked between
	                             pieces. Callers poll it, without a callback */
};

struct copy_result {
	uint64_t id;
	bool was_there; /* the checkpoint already existed at the target; nothing was copied */
	uint64_t bytes; /* of its files */
	uint64_t sent_bytes, found_bytes, linked_bytes; /* how they got to the target; found: from an earlier call */
};

/* ret may be NULL. Runs on the calling thread and n_streams - 1 others, which end before it
 * returns. */
int copy_checkpoint(const struct copy_job *job, struct copy_result *ret, struct pawl_error *err);
/* The same for a checkpoint of an open run. from: what job->from and job->from_folder name.
 * PAWL_ENOTFOUND also if it is deleted or replaced meanwhile. */
int copy_from_run(const struct catalog_reading *from, const struct copy_job *job, struct copy_result *ret,
                  struct pawl_error *err);
/* Fetches files again for a checkpoint that exists on both sides, to repair a local copy. m: its
 * manifest; files: n indices into m->files. Each file is verified, then replaces the existing one
 * in one step. The target must be able to replace an object (move). like_folder is not used. */
int copy_files(const struct copy_job *job, const struct manifest *m, const uint32_t *files, size_t n,
               struct pawl_error *err);

#endif
