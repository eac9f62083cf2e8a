/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: one running save, from live tensors to a committed checkpoint.
 *
 *   STAGING --copied--> STAGED --written, fsynced--> WRITTEN --published--> COMMITTED --retained, pointed--> SETTLED
 *      \________________________\______________________\___________> FAILED (nothing has changed, P4)
 *
 * After COMMITTED nothing makes a save fail; later troubles are background errors of the run.
 *
 * Threads: the caller and the copy pool stage units (stage.c); a unit that is staged goes to the I/O pool (write.c);
 * the run's saver thread drives the rest (save.c). A unit belongs to one thread at a time.
 */
#ifndef PAWL_SAVE_H
#define PAWL_SAVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "layout/plan.h"
#include "run/run.h"
#include "run/ticket.h"
#include "save/arena.h"
#include "save/snapshot.h"
#include "state/manifest.h"

struct press;
struct save;
struct save_pack;

/* Checksums of a tensor's parts of its first and its last block, where it shares them with other tensors. */
struct tensor_ends {
	struct sum128 first, last;
};

/* The packs of the checkpoint before, for linking unchanged ones. */
struct reuse_pack {
	const char *name;
	uint64_t nbytes;
	size_t n_blocks;
	const struct sum128 *sums;
	/* of a save of this process; of a manifest all zero */
	struct sum128 layout;
	size_t n_slots;
	const struct tensor_ends *ends; /* of each slot; NULL = not known */
	/* of a compressed one, as it lies there; all above is of what it is unpacked */
	uint64_t packed_bytes;
	size_t n_packed_blocks;
	const struct sum128 *packed_sums; /* NULL = not compressed */
};
struct reuse {
	struct bump memory;
	const char *folder; /* key of the checkpoint */
	struct reuse_pack *packs;
	size_t n_packs;
	uint64_t block_bytes;
};

struct save_unit {
	struct save_pack *pack;
	uint64_t offset;
	size_t nbytes; /* of the file; memory behind mem is readable up to the next multiple of 4,096 when it is ours */
	const char *mem; /* staged bytes: arena, ring slot, or the live tensor */
	char *slot;      /* ring slot to give back, or NULL */
};

struct save_pack {
	struct save *save;
	size_t index;
	const struct plan_pack *plan;
	const char *name; /* of the file */
	char *image; /* snapshot mode: the pack's place in the arena */
	struct sum128 *sums;
	const struct reuse_pack *before; /* a pack of the same tensors to compare with, or NULL */
	struct tensor_ends *ends;        /* of each slot, while they are written; NULL where packs are not regrouped */
	bool linked;                     /* reused; set before the manifest is made */
	struct press *press;             /* NULL = not compressed; owned */
	atomic_size_t units_left;        /* to be written */

	pthread_mutex_t lock; /* guards below */
	struct store_file *file;
	bool undecided; /* all blocks so far equal those of `before`: parked, not written */
	struct save_unit **parked;
	size_t n_parked;
};

struct save {
	atomic_uint refs; /* the caller's and the saver's */
	struct pawl *run;
	struct writer *writer;
	struct pawl_ticket *ticket; /* a reference */
	uint64_t id;
	int64_t step, unix_ns;
	struct pawl_progress progress;
	int mode;
	const struct codec *codec; /* of its packs; NULL = they are not compressed */
	bool lazy, deferred; /* deferred: staged beside a running save, written later */
	struct bump memory;  /* sources, metrics, units, sums ... */
	struct buf state_json;
	struct buf manifest; /* the text that was put, from the commit until the catalog has taken it; of this rank, or "" */
	struct pawl_state *metadata; /* owned copy, or NULL */
	struct pawl_metric *metrics;
	size_t n_metrics;
	struct manifest_tensor *tensors; /* of the whole state; boxes in pieces until commit fills them in */
	size_t n_tensors;
	char token[33];
	char *name, *folder, *partial; /* checkpoint name; its key; the key it is written under */

	struct pawl_state share; /* what this rank writes of the state; borrows it, so only during the call */
	struct plan *plan;       /* owned until the save is released */
	uint64_t nbytes;         /* of all files; before WRITTEN as if none were compressed */
	uint64_t plain_nbytes;   /* of all files, unpacked */
	struct snapshot_source *sources;
	struct save_pack *packs;
	struct save_unit *units;
	size_t n_units;
	uint64_t unit_bytes; /* of one write: whole blocks, at most SAVE_UNIT_BYTES */
	atomic_size_t next_unit, next_check; /* to be staged; to be checked again (lazy.c) */
	bool *later;             /* of a lazy save, per tensor: it is copied after the call; NULL = all is copied during it */
	uint64_t later_nbytes;   /* of those tensors */
	struct sum128 *samples;  /* of those tensors, per tensor, as they looked at the call */
	pawl_changed_fn *find_changed; /* the caller's, or NULL */
	void *changed_arg;
	struct arena_region region;      /* image (snapshot) or ring */
	struct arena_region fill_region; /* host copies of tensors the processor cannot read (ring, direct) */
	struct group writing;
	atomic_uint_fast64_t minor_faults, written_bytes, reused_bytes;
	atomic_uint_fast64_t pressed_bytes; /* of the state: compressed so far */
	atomic_int_fast64_t tell_ns;        /* not before: the next word of that */
	atomic_uint_fast64_t coded_bytes, coded_ns; /* by the codec, of its threads' time; where compression goes by a rule */
	atomic_size_t not_finite; /* index of such a tensor, or SIZE_MAX */
	bool value_not_finite;    /* a float of the tree is NaN or infinite (option nonfinite) */
	bool is_publishing; /* the rename, or the manifest's put, has been asked for: it may be done, whatever it told */
	bool in_doubt;      /* it has failed, but may be a checkpoint for all that is known: what was written must stay */
	bool mark_settled, mark_good; /* run_mark_outcome has been called, and with what; the run's lock guards them */

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	unsigned n_sending;                  /* threads that give bytes to the store; where compression goes by a rule */
	int64_t sending_from_ns, sending_ns; /* since when; and the time for which there was one, before that */
	unsigned stagers;  /* copying threads still at work */
	bool is_held;      /* the caller is not through, and what comes after the copy would take its processor */
	char **free_slots; /* ring */
	size_t n_free_slots;
	int failed; /* first error */
	struct pawl_error error;
	int64_t begin_ns, staged_ns, written_ns, committed_ns;
};

/* Remembers the first error; later units are skipped. Returns code. */
int save_fail(struct save *s, int code, const struct pawl_error *err);
bool save_has_failed(struct save *s);

/* stage.c: sets up sources, units, packs and memory for a planned save (calls fill callbacks on this thread). */
int stage_prepare(struct save *s, const struct pawl_state *state, struct pawl_error *err);
/* Starts the copying threads (the caller has set s->stagers to 1 for this call); with help the calling thread copies
 * too and returns when all units are staged. */
void stage_start(struct save *s, bool help);
void stage_wait(struct save *s);
/* Returns when deadline_ms (clock_mono_ms, < 0 = never) has passed (ETIMEDOUT) or all is staged (0). */
int stage_wait_until(struct save *s, int64_t deadline_ms);
/* Of a save that is held: the caller is through. */
void stage_let_go(struct save *s);
/* All is staged, and nobody holds the save. */
void stage_wait_released(struct save *s);
void stage_give_slot(struct save *s, char *slot);

/* Are units handed on only when all are staged? Of one that waits for its turn; and where they are compressed from a
 * snapshot, so that this takes no processor from the copy that the caller waits for. */
static inline bool
save_offers_late(const struct save *s)
{
	return s->deferred || (s->codec && s->mode == PAWL_MODE_SNAPSHOT);
}

/* save.c: so many bytes of the state more have been compressed, or something was written. Tells of it once a second. */
void save_note_progress(struct save *s, uint64_t nbytes);

/* learn.c: takes the checksums of the tensors' ends in a unit, whose bytes are in memory. */
void learn_unit(const struct save_unit *u);
/* After the commit: finds which tensors had changed, and decides which share a pack from now on. *ret: for the next plan;
 * NULL without memory, and where packs are not regrouped. True: the next save needs another plan. */
bool learn_packs(struct save *s, struct past **ret);

/* write.c: hands a staged unit to the I/O threads, or parks it while its pack equals the one before. */
void write_offer(struct save_unit *u);
/* Links the packs that turned out unchanged (all units staged), waits for all writes. */
int write_settle(struct save *s, struct pawl_error *err);
/* store_write of a pack of the save. */
int write_bytes(struct save *s, struct store_file *file, uint64_t offset, const void *ptr, size_t n,
                struct pawl_error *err);
/* Throws away what was written. */
void write_abandon(struct save *s);

/* commit_ranks.c: the same for one of many ranks: hand in the part, and learn how it ends. */
int commit_ranks(struct save *s, struct pawl_error *err);
/* This rank's save has come to nothing before there was a part: the others are told. */
void commit_report_failure(struct pawl *run, uint64_t id, const struct pawl_error *why);
/* What has been written, as bytes of a manifest (or of a part). *ret (may be NULL) borrows from the save. */
int commit_describe(struct save *s, bool part, struct manifest *ret, struct buf *out, struct pawl_error *err);
/* Puts the manifest into the hidden folder, looks whether all files are there, and gives the folder its name; the commit of
 * a run of one process and of rank 0. */
int commit_bytes(struct save *s, struct buf *text, const struct manifest_file *files, size_t n,
                 struct pawl_error *err);

/* commit_settle.c: makes sure how a save ends whose own process cannot tell. 1 = it is committed; 0 = it is not and never
 * will be; or an error: that cannot be known now, and s->in_doubt is set. */
int commit_settle(struct save *s, struct pawl_error *err);

/* commit.c: manifest, publish. After success the checkpoint exists and is durable. */
int commit_publish(struct save *s, struct pawl_error *err);
/* JSON members of the summary (checkpoint's metadata in pack 0). */
int commit_summary(const struct save *s, struct buf *out, struct pawl_error *err);
/* The reuse table of a save just committed, or of a manifest found at open. */
int reuse_of_save(const struct save *s, struct reuse **ret, struct pawl_error *err);
int reuse_of_manifest(const struct manifest *m, const char *folder, struct reuse **ret, struct pawl_error *err);
void reuse_free(struct reuse *r);

/* save.c: the background half, a job of the saver thread; drops its reference. */
void save_run(void *save);
/* A save with everything copied that outlives the call (but not planned yet), one reference. id: 0 = the next one. */
int save_new(struct writer *w, const struct pawl_save_opts *opts, const struct pawl_state *state, uint64_t id,
             struct save **ret, struct pawl_error *err);
void save_unref(struct save *s);
/* How long the caller was or is being held, as far as it is known. */
double save_blocked_seconds(const struct save *s);

#endif
