/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirrors: the known contents of a run's mirrors, the other stores that get copies of its
 * checkpoints.
 *
 * A mirror is a run of its own. Only its manifests decide what it holds (P2). The journal in the
 * run's folder,
 *
 *   .pawl/mirrors/<16 hex of the URL's checksum>.json
 *       {"pawl_mirror":1,"url":"s3://b/r","every":"1000ba",
 *        "done":[[7,"<token>"],[8,"<token>","retired"],..],
 *        "marks":[[7,"<checksum>"],..]}
 *
 * avoids requests to the mirror: it lists the checkpoints that the mirror has or had, verified. A
 * checkpoint in a listing but not in the journal is read back once before any use (P14). The
 * journal also shows other processes that the run has this mirror. So they delete no local
 * checkpoint that the mirror lacks (P6). `marks` has the checksums of the pins and late scores last
 * put in the mirror. So the next training also removes there what the run has removed meanwhile.
 * `every`, if the training gave it, tells maintenance what is not due for the mirror.
 * The upload queue is the catalog without the uploaded checkpoints, so a killed process loses
 * nothing of it.
 *
 * The run's lock guards the fields marked so; waits use the condition `changed` with it.
 */
#ifndef PAWL_MIRRORS_H
#define PAWL_MIRRORS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/sum.h"
#include "catalog/catalog.h"
#include "policy/trigger.h"
#include "run/run.h"

#define MIRROR_FOLDER ".pawl/mirrors"

struct mirror_done {
	uint64_t id;
	char token[33];
	bool retired;        /* the mirror's own retention has deleted it, or it was not due for the mirror */
	bool verified;       /* this run has read it back; false: only its manifest was listed */
	bool forgotten;      /* the mirror is being listed again, and has not shown it yet */
	struct sum128 marks; /* of the pin and late scores last put in the mirror; 0 = none or unknown */
};

/* A checkpoint whose upload has failed. */
struct mirror_try {
	uint64_t id;
	unsigned n;            /* failures in a row */
	int64_t not_before_ms; /* by clock_mono_ms */
	int64_t begin_ns;      /* when the last one began, by clock_mono_ns */
	struct pawl_error why;
	bool seen; /* a caller has got the error */
};

struct mirror {
	struct pawl *run;
	char *url;
	char *journal_key;
	const struct pawl_mirror *options; /* borrowed; NULL: known from a journal only */
	struct triggers every;             /* none: every checkpoint is copied */
	char *every_text;                  /* NULL = none */
	bool given;                        /* given by the options: only such a mirror is read and written */
	_Atomic(struct store *) store;     /* NULL until it could be opened */
	bool is_ours;                      /* used by the uploading thread only: its run.json has been checked */

	/* guarded by the run's lock */
	struct mirror_done *done; /* ascending by id */
	size_t n_done, cap_done;
	uint64_t n_changes; /* of done: a listing that began before the last one is old */
	uint64_t n_written; /* n_changes when the journal was written */
	struct mirror_try *tries;
	size_t n_tries, cap_tries;
	int64_t marks_not_before_ms; /* after marks could not be put */
	int64_t marks_failed_ns;     /* when the last try to put marks began that failed */
	int64_t not_before_ms;       /* for all: after a failure that could not be recorded without memory */
	uint64_t n_failed;
	uint32_t n_row;         /* failures since the last success */
	struct pawl_error last; /* of the last try; code 0 = it went well */
	bool unseen;            /* it concerns no checkpoint (opening, marks), and no caller has seen it */
	struct pawl_meter meter;
	bool uploading;      /* a checkpoint, or marks */
	char *latest, *best; /* used by the uploading thread only: names in the mirror's pointers; NULL = unknown */
};

struct mirrors {
	struct pawl *run;
	pthread_cond_t changed;
	struct pool *pool; /* NULL: nothing is uploaded in the background */
	atomic_bool stop;
	bool is_denied; /* a mirror has an unreadable checkpoint, perhaps newer than the local ones; the run's lock */
	int64_t wait_from_ns, wait_end_ms; /* of the last wait; guarded by the run's lock */
	size_t n;
	struct mirror list[];
};

/* ---- all mirrors together, mirrors.c; the run's lock is not held */

/* Lists the mirrors, and adds checkpoints that only they have to the catalog. */
int mirrors_list(struct pawl *run, struct pawl_error *err);
/* A checkpoint has been committed, or a mark has changed: wakes the uploading threads. */
void mirrors_wake(struct pawl *run);
/* The first upload error that no caller has seen, once; else 0. */
int mirrors_take_error(struct pawl *run, struct pawl_error *err);
/* The same after the error of a failed save; upload errors only if the options ask for them. */
int mirrors_take_pending(struct pawl *run, struct pawl_error *err);
/* The manifest of a checkpoint from the run's own store or, if that is damaged or gone, from a
 * mirror that has the same one. Also works without mirrors. */
int mirrors_manifest(struct pawl *run, uint64_t id, bool summary, struct manifest **ret, struct pawl_error *err);
/* PAWL_EEXISTS: the mirror's location holds another run. *ret_text: its run.json, if it has one. */
int mirror_check_owner(const struct mirror *m, struct store *store, struct buf *ret_text, struct pawl_error *err);

/* ---- known contents, mirror_queue.c; the run's lock is held */

/* The mirror has it now. */
bool mirror_has(const struct mirror *m, uint64_t id, const char *token);
/* The mirror has it now, and this run has read it back (P14). */
bool mirror_has_verified(const struct mirror *m, uint64_t id, const char *token);
/* The mirror has it or had it. */
bool mirror_had(const struct mirror *m, uint64_t id, const char *token);
/* It must be copied to the mirror: it never was, or was not read back. */
bool mirror_lacks(const struct mirror *m, uint64_t id, const char *token);
/* Marks the checkpoints that are not due by the mirror's time string: it does not lack them. */
void mirror_skip_undue(struct mirror *m, const struct catalog *c);
int mirror_note_done(struct mirror *m, uint64_t id, const char *token, bool retired, struct pawl_error *err);
/* Forgets the contents of the mirror before it is listed again. Remembers until the next time which
 * checkpoints were verified. */
void mirror_forget_done(struct mirror *m);
/* The number of outstanding tasks: running uploads, checkpoints whose upload has not begun since
 * then, changed marks. *ret_failed: one that has failed, or NULL. */
size_t mirrors_outstanding(const struct mirrors *ms, int64_t since_ns, struct mirror_try **ret_failed);
/* More uploads have failed in a row than the options allow without an error. */
bool mirror_is_over_budget(const struct mirror *m);
/* A failure that must be reported and has not been, or NULL. */
struct mirror_try *mirrors_unseen(const struct mirrors *ms);
void mirrors_see_all(struct mirrors *ms);
/* An entry whose pin or late scores differ between the run and the mirror; NULL = none. */
struct mirror_done *mirror_stale_marks(const struct mirror *m, const struct catalog *c);
struct mirror_done *mirror_find_done(const struct mirror *m, uint64_t id);
/* The checksum of a pin and late scores; 0 = there are none. */
struct sum128 mirror_marks_sum(bool pinned, const struct pawl_metric *late, size_t n);
/* Ends all pauses. */
void mirrors_hurry(struct mirrors *ms);
/* Remembers a failure, for the pause before the next try. */
void mirror_note_failure(struct mirror *m, uint64_t id, int64_t begin_ns, const struct pawl_error *why);
void mirror_forget_failure(struct mirror *m, uint64_t id);
/* true if some mirror of the run (ms may be NULL) lacks it. */
bool mirrors_lack(const struct mirrors *ms, const struct catalog_entry *e);
/* true if the run keeps no local copy of it (R95). */
bool mirrors_spend(const struct mirrors *ms, const struct catalog_entry *e);
uint32_t mirrors_count(const struct mirrors *ms, const struct catalog_entry *e);
/* enum pawl_level of an entry. */
int mirrors_level(const struct mirrors *ms, const struct catalog *c, const struct catalog_entry *e);
/* For an entry whose local files are gone: true if a mirror still has it. The entry then refers to
 * the mirror. */
bool mirrors_keep(const struct mirrors *ms, struct catalog_entry *e);
/* The entry to upload now: the newest that the mirror lacks and whose pause is over. NULL = none;
 * then *ret_until_ms is when to look again (-1 = when something changes). */
const struct catalog_entry *mirror_next(const struct mirror *m, const struct catalog *c, int64_t now_ms,
                                        int64_t *ret_until_ms);

/* Pure: which of n candidates is next (SIZE_MAX: none is due). */
struct mirror_candidate {
	uint64_t id;
	bool wanted;           /* the run has it, and the mirror does not */
	int64_t not_before_ms; /* 0 = at once */
};
size_t mirror_choose(const struct mirror_candidate *items, size_t n, int64_t now_ms, int64_t *ret_until_ms);
/* Pure: the pause after the n-th failure in a row (from 1). */
int64_t mirror_pause_ms(unsigned n);

/* Puts "mirror PLACE: " before an error, which names the place only once. Returns rc. */
int mirrors_prefix(const char *place, int rc, struct pawl_error *err);

/* The i-th mirror's store if it has the checkpoint and can be read, else NULL. */
struct store *mirrors_store(const struct mirrors *ms, size_t i, const struct catalog_entry *e);

/* ---- the journal, mirror_journal.c */

char *mirror_journal_key(const char *url); /* NULL: out of memory */
/* Reads the journal. A missing or damaged journal counts as empty: listing the mirror shows its
 * checkpoints, and marks are put again. */
void mirror_journal_read(struct mirror *m);
/* Writes the journal, for the checkpoints that exist in the run. The run's lock is not held. */
int mirror_journal_write(struct mirror *m, struct pawl_error *err);
/* The URLs of all journals of a run; strings are memory's. skips_bad: without those that cannot be
 * read. Only who deletes nothing may do so: a checkpoint that a mirror lacks must stay (P6). */
int mirror_journal_urls(struct store *store, bool skips_bad, struct bump *memory, const char ***ret, size_t *ret_n,
                        struct pawl_error *err);
/* Removes the journals of mirrors that the run no longer has. */
int mirror_journal_tidy(struct mirrors *ms, struct pawl_error *err);

#endif
