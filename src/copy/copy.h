/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy: one committed checkpoint from one store to another, or files of it. Up, down or between two buckets: both sides
 * are a struct store, and nothing here asks of which kind.
 *
 * A file goes through these steps; several files and several pieces of each are on their way at a time:
 *
 *   there already? --read back, good--> DONE
 *        \--absent, or not what it should be--> SENT --read back, good--> DONE
 *   all DONE --> manifest, last and exclusively --> the checkpoint exists at the target (P2)
 *
 * - Every block is compared with its sum in the source's manifest when it is read, before it is sent (P1). One that differs
 *   is looked for in the source's other copies, if it has any; else it is PAWL_ECORRUPT naming checkpoint, file and range.
 * - What the target holds is read back and compared with the same sums (P14), never by ETag, date or size alone: all of it,
 *   whoever brought it there and however. While one file is read back the next are being sent.
 * - Whatever ends it (an error, the deadline, the process), files that are whole at the target stay there, where nobody
 *   takes them for a checkpoint, and the next call of the same copy goes on from them: what is there already is read back
 *   and not sent again (P15). It is never believed unread: another run may have left it. In a folder of this machine it
 *   is synced, too: who wrote it may have been killed before it was on the disk.
 *     targets that rename folders: in ".<name>.<token of the checkpoint>.partial" beside the final name, which gc knows
 *     others: in the final folder, without a manifest
 * - Before the checkpoint exists the folder is listed: every file is in it, and of its size, else PAWL_EIO. Others may have
 *   taken it away since the files were read back.
 * - A target that holds the very manifest already is success at once (P15); one that holds another is PAWL_EEXISTS. What has
 *   called a save off there (withdraw.h) is removed when it is ten minutes old; before that it is PAWL_ETRANSIENT.
 * - The caller keeps the source from being deleted meanwhile (a hold), and only one copies the same checkpoint to the same
 *   target at a time; if two do, both are right or one gets an error, and the checkpoint is whole in any case.
 */
#ifndef PAWL_COPY_H
#define PAWL_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"
#include "run/run.h"
#include "state/manifest.h"
#include "store/store.h"

#define COPY_STREAMS 4u
#define COPY_MEMORY ((uint64_t)256 << 20)

/* All is borrowed until the call returns. */
struct copy_job {
	struct store *from, *to;
	const char *from_folder; /* key of the checkpoint's folder: "checkpoints/checkpoint_000007", or of a single one its name */
	const char *to_folder;
	const char *like_folder; /* NULL, or key of another checkpoint at the target: its files that are the same in this one are
	                            linked there (or copied by the server) and not sent */
	unsigned n_streams;      /* pieces on their way at a time; 0 = COPY_STREAMS, at most COPY_MAX_STREAMS */
	uint64_t memory_bytes;   /* of all buffers together; 0 = COPY_MEMORY. Fewer streams run where it is too little; a file
	                            whose blocks are larger is PAWL_ELIMIT */
	int64_t deadline_ms;     /* by clock_mono_ms; 0 = none. PAWL_ETIMEOUT when it has passed, looked at between pieces */
	struct pawl_meter *meter; /* NULL = none. total_bytes grows by the checkpoint's size when that is known, done_bytes by
	                            what is at the target; cancel: PAWL_ECANCELLED, looked at between pieces. Callers poll it;
	                            nothing is called back */
};

struct copy_result {
	uint64_t id;
	bool was_there;        /* the checkpoint existed at the target already; nothing was done */
	uint64_t bytes;        /* of its files */
	uint64_t sent_bytes, found_bytes, linked_bytes; /* how they came to the target; found: by an earlier call */
};

/* ret may be NULL. Runs on the calling thread and n_streams - 1 others, which are gone when it returns. */
int copy_checkpoint(const struct copy_job *job, struct copy_result *ret, struct pawl_error *err);
/* Fetches files of a checkpoint that is there on both sides anew (m: its manifest; files: n indices into m->files), each put
 * in the place of what is there in one step, verified first. For repairing a local copy. The target must be able to
 * replace an object (move). like_folder is not used. */
int copy_files(const struct copy_job *job, const struct manifest *m, const uint32_t *files, size_t n,
               struct pawl_error *err);

#endif
