/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: one running save, from live tensors to a committed checkpoint.
 *
 *   STAGING --copied--> STAGED --written, fsynced--> WRITTEN --published--> COMMITTED
 *      \________________________\______________________\________> FAILED (nothing changed, P4)
 *   COMMITTED --retained, pointed--> SETTLED
 *
 * After COMMITTED nothing makes a save fail. Later errors are background errors of the run.
 *
 *   save_request   what the caller asked for, copied
 *   save_env       what all saves of a run use
 *   save_image     where the bytes are: plan, packs, units, staging memory. Staging and writing
 *                  see only this.
 *   save_progress  how far the save is: counters, times, the first error
 *
 * Threads: the caller and the copy pool stage units. The I/O pool writes staged units. The run's
 * saver thread does the rest. A unit belongs to one thread at a time.
 */
#ifndef PAWL_SAVE_H
#define PAWL_SAVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "device/device_turns.h"
#include "layout/plan.h"
#include "run/run.h"
#include "run/ticket.h"
#include "save/arena.h"
#include "save/snapshot.h"
#include "state/manifest.h"

#define IMAGE_ALIGN 4096u /* memory behind a unit is readable up to a multiple of it */

struct commit_ops;
struct compress;
struct from_device;
struct save;
struct save_image;
struct save_pack;

/* Checksums of a tensor's parts of its first and its last block, where it shares them with other
 * tensors. */
struct tensor_ends {
	struct sum128 first, last;
};

/* The packs of the checkpoint before, for linking unchanged ones. */
struct reuse_pack {
	const char *name;
	uint64_t nbytes;
	size_t n_blocks;
	const struct sum128 *sums;
	/* of a save of this process; all zero for a manifest */
	struct sum128 layout;
	size_t n_slots;
	const struct tensor_ends *ends; /* of each slot; NULL = not known */
	/* of the compressed file; all fields above describe its plain bytes */
	uint64_t compressed_bytes;
	size_t n_compressed_blocks;
	const struct sum128 *compressed_sums; /* NULL = not compressed */
};
struct reuse {
	struct bump memory;
	const char *folder; /* key of the checkpoint */
	struct reuse_pack *packs;
	size_t n_packs;
	uint64_t block_bytes;
	atomic_bool is_damaged; /* a restore found so: nothing is linked from it */
};

struct save_unit {
	struct save_pack *pack;
	uint64_t offset;
	size_t nbytes; /* of the file; memory behind mem is readable up to the next multiple of 4,096 when it is ours */
	const char *mem; /* staged bytes: arena or ring slot */
	char *slot;      /* ring slot to give back, or NULL */
};

struct save_pack {
	struct save_image *image;
	size_t index;
	const struct plan_pack *plan;
	const char *name; /* of the file */
	char *bytes;      /* snapshot mode: the pack's place in the arena */
	struct sum128 *sums;
	const struct reuse_pack *before; /* a pack of the same tensors to compare with, or NULL */
	struct tensor_ends *ends;        /* of each slot, while they are written; NULL where packs are not regrouped */
	bool linked;                     /* reused; set before the pack is staged, or before the manifest is made */
	struct compress *compress;       /* NULL = not compressed; owned */
	atomic_size_t units_left;        /* to be written */

	pthread_mutex_t lock; /* guards below */
	struct store_file *file;
	bool undecided; /* all blocks so far equal those of `before`: parked, not written */
	struct save_unit **parked;
	size_t n_parked;
};

/* What the caller asked for. Copied before the call returns; constant after that. */
struct save_request {
	uint64_t id;
	int64_t step, unix_ns;
	struct pawl_progress counters;
	struct pawl_metric *metrics;
	size_t n_metrics;
	struct pawl_state *metadata; /* or NULL; owned */
	struct buf state_json;
	bool value_not_finite;           /* a float of the tree is NaN or infinite (option nonfinite) */
	struct manifest_tensor *tensors; /* of the complete state; boxes in pieces until commit fills them in */
	size_t n_tensors;
	pawl_changed_fn *find_changed; /* or NULL */
	void *changed_arg;
};

/* How far the save is. */
struct save_progress {
	struct pawl_ticket *ticket; /* a reference */
	atomic_size_t next_check;   /* unit to be checked again (lazy.c) */
	struct pool_group writing;
	atomic_uint_fast64_t minor_faults, written_bytes, reused_bytes;
	atomic_uint_fast64_t compressed_bytes;      /* plain bytes that have been compressed */
	atomic_int_fast64_t next_note_ns;           /* of the next "saving" event, at the earliest */
	atomic_uint_fast64_t coded_bytes, coded_ns; /* by the codec, in time of its threads; for the rule of "auto" */
	atomic_size_t not_finite;                   /* index of such a tensor, or SIZE_MAX */

	pthread_mutex_t lock; /* guards below, and the ring */
	pthread_cond_t changed;
	unsigned n_sending;                  /* threads that give bytes to the store; for the rule of "auto" */
	int64_t sending_from_ns, sending_ns; /* since when; and the time for which there was one, before that */
	unsigned stagers;                    /* copying threads that are at work */
	bool is_held; /* the caller is still in the call; work after the copy would compete for its processor */
	int failed;   /* first error */
	struct pawl_error error;
	uint64_t registered_bytes; /* when the copy ended */
	int64_t begin_ns, staged_ns, written_ns, committed_ns;
};

/* The slots that units pass through, in the region of the image. */
struct save_ring {
	char **free_slots;
	size_t n_free_slots;
	size_t fresh;                       /* offset of memory that no slot has used yet */
	size_t next_step, n_steps, n_ready; /* parts to be faulted in: the next; all; those before it that are ready */
	unsigned char *is_ready;            /* per part */
};

/* What all saves of a run use. Borrowed from the run. All but the contents of store, arena, recycle
 * and writer is constant while the run is open. */
struct save_env {
	const struct pawl_open_opts *opts;
	struct store *store;
	const struct store_caps *caps;
	const struct commit_ops *commit;
	struct pawl_arena *arena;
	struct recycle *recycle;
	struct writer *writer;
	bool is_timed;     /* the rule of "auto" needs the time in which threads give bytes to the store */
	bool owns_partial; /* this rank removes the folder of a failed save */
};

/* Which tensors are copied after the call, and what is known of them. */
struct save_lazy {
	bool is_on;
	bool *later;            /* per tensor; NULL = all is copied during the call */
	uint64_t later_nbytes;  /* of those tensors */
	struct sum128 *samples; /* per tensor: of those at the end of the call, of others at its begin */
	/* Per tensor, until the end of the call: of those that are copied during it. */
	const struct snapshot_source *sources;
	pthread_mutex_t asking; /* guards is_asked, and is held while the caller is asked what has changed */
	bool is_asked;          /* about those tensors */
};

/* Where the bytes are. */
struct save_image {
	const struct save_env *env;
	const struct save_request *request;
	struct save_progress *progress;
	void (*note_progress)(void *arg, uint64_t nbytes); /* so many plain bytes more are compressed, or written */
	void *note_arg;
	struct bump memory; /* of all parts of the save */
	int mode;
	const struct codec *codec; /* NULL = packs are not compressed */
	bool deferred;             /* staged while another save runs, written later */
	char token[33];
	char *partial; /* key that the checkpoint is written under */

	struct pawl_state share; /* what this rank writes of the state; borrows it, so only during the call */
	struct plan *plan;       /* owned until the save is released */
	struct snapshot_source *sources;
	struct from_device *from_device; /* NULL = all tensors are in host memory */
	struct save_pack *packs;
	struct save_unit *units;
	size_t n_units;
	struct device_turns turns; /* in which they are staged */
	uint64_t unit_bytes;       /* of one write: complete blocks, at most SAVE_UNIT_BYTES */
	struct save_lazy lazy;
	uint64_t *probes;                /* per tensor (regroup.h); NULL where packs are not regrouped */
	const unsigned char *rests;      /* of the caller, so only during the call */
	struct arena_region region;      /* all bytes (snapshot) or ring */
	struct arena_region fill_region; /* host copies of tensors the processor cannot read (ring, direct) */
	bool passes_through;             /* a snapshot that uses its region as a ring */
	struct save_ring ring;
};

struct save {
	atomic_uint refs; /* the caller's and the saver's */
	struct pawl *run;
	struct writer *writer;
	struct save_request request;
	struct save_image image;
	struct save_progress progress;
	char *name, *folder;   /* of the checkpoint; its key */
	uint64_t nbytes;       /* of all files; before WRITTEN as if none were compressed */
	uint64_t plain_nbytes; /* the same before compression */
	struct buf manifest;   /* of this rank, or ""; as it was put, from the commit until the catalog has taken it */
	bool is_publishing; /* the rename or the manifest's put was tried: it may have happened, whatever it returned */
	bool in_doubt;      /* it has failed, but may be a checkpoint: the written files must stay */
	bool mark_settled,
		mark_good; /* mark_outcome was called, and with what; the lock of run->interval guards them */
};

/* Remembers the first error; later units are skipped. Returns code. */
int save_fail(struct save_progress *p, int code, const struct pawl_error *err);
bool save_has_failed(struct save_progress *p);

/* stage.c: sets up sources, units, packs and memory for a planned save (calls fill callbacks on
 * this thread). */
int stage_prepare(struct save_image *m, const struct pawl_state *state, struct pawl_error *err);
/* The pack to link for this one if nothing in it has changed, or NULL. reuse may be NULL. */
const struct reuse_pack *stage_find_before(const struct reuse *reuse, const struct plan *plan,
                                           const struct plan_pack *pack, const struct codec *codec);
/* Starts the copying threads. The caller counts as one of the stagers already. With help the
 * calling thread copies, too, and returns when all units are staged; else it waits for nothing. */
void stage_start(struct save_image *m, bool help);
void stage_wait(struct save_image *m);
/* Fails the save, and waits until no thread copies any more. */
void stage_cancel(struct save_image *m, int code, const struct pawl_error *err);
/* Waits until all is staged (0), or until deadline_ms of clock_mono_ms (ETIMEDOUT; < 0 = never). */
int stage_wait_until(struct save_image *m, int64_t deadline_ms);
/* Of a save that is held: the caller leaves the call. */
void stage_let_go(struct save_image *m);
/* Waits until all is staged and the caller has left the call. */
void stage_wait_released(struct save_image *m);

/* Are units written only when all are staged? Yes if the save waits for its turn. Yes if a snapshot
 * is compressed, which would compete with the copy that the caller waits for. */
static inline bool
save_offers_late(const struct save_image *m)
{
	return m->deferred || (m->codec && m->mode == PAWL_MODE_SNAPSHOT);
}

/* learn.c: before the plan, on the caller's thread: takes probes of the tensors. */
int learn_probes(struct save_image *m, struct pawl_error *err);
/* Checksums the tensors' ends in a unit whose bytes are in memory. */
void learn_unit(const struct save_unit *u);
/* After the commit: finds which tensors have changed, and decides which of them share a pack from
 * now on. *ret is for the next plan; NULL without memory, and where packs are not regrouped. True:
 * the next save needs another plan. */
bool learn_packs(struct save_image *m, struct past **ret);

/* write.c: hands a staged unit to the I/O threads, or parks it while its pack equals the one
 * before. */
void write_offer(struct save_unit *u);
/* After all units are staged: links the unchanged packs and waits for all writes. */
int write_settle(struct save_image *m, struct pawl_error *err);
/* store_write of a pack of the save. */
int write_bytes(struct save_image *m, struct store_file *file, uint64_t offset, const void *ptr, size_t n,
                struct pawl_error *err);
/* For packs that were found equal ahead of the copy: links them. A pack that cannot be linked will
 * be staged and written. */
int write_link_ahead(struct save_image *m, struct pawl_error *err);
/* Removes the packs of a save that has failed before any unit was staged. */
void write_unlink(struct save_image *m);
/* Removes what was written. in_doubt: the save may be a checkpoint, so that packs in its folder
 * stay. Ranks share the folder: a rank that does not own it removes only its own files. */
void write_abandon(struct save_image *m, bool in_doubt);

/* reuse.c: the packs of a save just committed, or of a manifest found at open. */
int reuse_of_save(const struct save *s, struct reuse **ret, struct pawl_error *err);
int reuse_of_manifest(const struct manifest *m, const char *folder, struct reuse **ret, struct pawl_error *err);
void reuse_free(struct reuse *r);

/* save.c: the background half, a job of the saver thread; drops its reference. */
void save_run(void *save);
/* A new save, not planned yet, with a copy of everything that outlives the call. One reference. id:
 * 0 = the next one. */
int save_new(struct writer *w, const struct pawl_save_opts *opts, const struct pawl_state *state, uint64_t id,
             struct save **ret, struct pawl_error *err);
void save_unref(struct save *s);
/* How long the caller was blocked, as far as is known. */
double save_blocked_seconds(const struct save *s);

/* mark.c: a save moves the mark of the intervals when it has been taken, and back when it fails. */
void mark_saved(struct pawl *run, struct save *s);
void mark_outcome(struct pawl *run, struct save *s, bool good);

#endif
