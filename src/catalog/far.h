/* SPDX-License-Identifier: Apache-2.0 */
/*
 * far: what is known of a run's mirrors, the other stores to which its checkpoints are copied.
 *
 * A mirror is a run of its own. Its manifests alone say what it holds (P2). The journal in the run's folder,
 *
 *   .pawl/mirrors/<16 hex of the URL's checksum>.json
 *       {"pawl_mirror":1,"url":"s3://b/r","done":[[7,"<token>"],[8,"<token>","retired"],..]}
 *
 * saves asking the mirror: it lists the checkpoints that the mirror has or had, verified. A checkpoint that a listing shows
 * and the journal does not name is read back once before anything relies on it (P14). The journal also tells other processes
 * that the run has this mirror, so that they delete nothing here that is not there yet (P6). The upload queue is the
 * catalog without what is done, so a killed process loses nothing of it.
 *
 * Fields marked so are guarded by the run's lock; waits use the condition `changed` with it.
 */
#ifndef PAWL_FAR_H
#define PAWL_FAR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/sum.h"
#include "catalog/catalog.h"
#include "run/run.h"

#define MIRROR_FOLDER ".pawl/mirrors"

struct mirror_done {
	uint64_t id;
	char token[33];
	bool retired; /* it was there; the mirror's own retention has deleted it */
	bool verified;  /* this run has read it back there; false: a listing has shown its manifest, and no more is known */
	bool forgotten; /* it is being listed anew: not there until the listing says so */
	struct sum128 marks; /* of the pin and late scores that were put there last; 0 = none, or not known */
};

/* A checkpoint whose upload has failed. */
struct mirror_try {
	uint64_t id;
	unsigned n;            /* failures in a row */
	int64_t not_before_ms; /* by clock_mono_ms */
	int64_t begin_ms;      /* when the last one began */
	struct pawl_error why;
	bool seen; /* somebody has been told of it */
};

struct mirror {
	struct pawl *run;
	char *url;
	char *journal_key;
	bool given;                   /* by the options: only such a one is read and written */
	_Atomic(struct store *) store; /* NULL until it could be opened */
	bool is_ours;                 /* the uploading thread's: its run.json has been looked at */

	/* guarded by the run's lock */
	struct mirror_done *done; /* ascending by id */
	size_t n_done, cap_done;
	uint64_t n_changes; /* of done: a listing that began before the last one is old */
	struct mirror_try *tries;
	size_t n_tries, cap_tries;
	int64_t marks_not_before_ms, marks_failed_ms; /* after one could not be put */
	int64_t not_before_ms; /* for all: after a failure that there was no memory to remember */
	uint64_t n_failed;
	uint32_t n_row; /* failures since the last success */
	struct pawl_error last; /* of the last try; code 0 = it went well */
	bool unseen;            /* it is of no checkpoint (opening, marks), and nobody has been told of it */
	struct pawl_meter meter;
	bool uploading;
	char *latest, *best;    /* the uploading thread's: names that the pointers there have; NULL = not known */
};

struct mirrors {
	struct pawl *run;
	pthread_cond_t changed;
	struct pool *pool; /* NULL: nothing is uploaded in the background */
	atomic_bool stop;
	bool is_denied; /* one has a checkpoint that may not be read, and may be newer than those here; the run's lock */
	int64_t wait_from_ms, wait_end_ms; /* of the last wait; guarded by the run's lock */
	size_t n;
	struct mirror list[];
};

/* ---- the mirrors as a whole, far.c; the run's lock is not held */

/* Lists what the mirrors hold and adds to the catalog what is not here. */
int mirrors_list(struct pawl *run, struct pawl_error *err);
/* A checkpoint has been committed, or a mark has changed: wakes the uploading threads. */
void mirrors_wake(struct pawl *run);
/* The first upload error that no caller has seen, once; else 0. */
int mirrors_take_error(struct pawl *run, struct pawl_error *err);
/* The same after the error of a failed save; upload errors only where the options ask for them. */
int mirrors_take_pending(struct pawl *run, struct pawl_error *err);
/* The manifest of a checkpoint from here or, where that is damaged or gone, from a mirror that has the same one. Also works
 * without mirrors. */
int mirrors_manifest(struct pawl *run, uint64_t id, bool summary, struct manifest **ret, struct pawl_error *err);
/* PAWL_EEXISTS: the mirror's place holds another run. *ret_text: its run.json, if there is one. */
int mirror_check_owner(const struct mirror *m, struct store *store, struct buf *ret_text, struct pawl_error *err);

/* ---- what is known, mirror_queue.c; the run's lock is held */

/* It is there now. */
bool mirror_has(const struct mirror *m, uint64_t id, const char *token);
/* It is there now, and this run has read it back (P14). */
bool mirror_has_verified(const struct mirror *m, uint64_t id, const char *token);
/* It is or was there. */
bool mirror_had(const struct mirror *m, uint64_t id, const char *token);
/* It is to be brought there: it never was, or nobody has read it back. */
bool mirror_lacks(const struct mirror *m, uint64_t id, const char *token);
int mirror_note_done(struct mirror *m, uint64_t id, const char *token, bool retired, struct pawl_error *err);
/* Forgets all that is there, before it is listed anew. That it has been verified is remembered for the same checkpoint until
 * the next time. */
void mirror_forget_done(struct mirror *m);
/* How much is still to be done: uploads under way, checkpoints that are here and whose upload was not begun since then,
 * changed marks; *ret_failed: one
 * that has failed, or NULL. */
size_t mirrors_outstanding(const struct mirrors *ms, int64_t since_ms, struct mirror_try **ret_failed);
/* More tries have failed in a row than the options let pass without a word. */
bool mirror_is_over_budget(const struct mirror *m);
/* A failure that is to be told and that nobody has been told of, or NULL. */
struct mirror_try *mirrors_unseen(const struct mirrors *ms);
void mirrors_see_all(struct mirrors *ms);
/* An entry that is there, and whose pin or late scores here are others than there; NULL = none. */
struct mirror_done *mirror_stale_marks(const struct mirror *m, const struct catalog *c);
struct mirror_done *mirror_find_done(const struct mirror *m, uint64_t id);
/* Of a pin and late scores; 0 = there are none. */
struct sum128 mirror_marks_sum(bool pinned, const struct pawl_metric *late, size_t n);
/* The pauses are over. */
void mirrors_hurry(struct mirrors *ms);
/* Remembers a failure, for the pause before the next try. */
void mirror_note_failure(struct mirror *m, uint64_t id, int64_t begin_ms, const struct pawl_error *why);
void mirror_forget_failure(struct mirror *m, uint64_t id);
/* true if some mirror of the run (ms may be NULL) lacks it. */
bool mirrors_lack(const struct mirrors *ms, const struct catalog_entry *e);
/* true if nothing of it is to stay here (R95). */
bool mirrors_spend(const struct mirrors *ms, const struct catalog_entry *e);
uint32_t mirrors_count(const struct mirrors *ms, const struct catalog_entry *e);
/* enum pawl_level of an entry. */
int mirrors_level(const struct mirrors *ms, const struct catalog *c, const struct catalog_entry *e);
/* For an entry whose files here are gone: true if it lives on in a mirror, and the entry now says so. */
bool mirrors_keep(const struct mirrors *ms, struct catalog_entry *e);
/* The entry to upload now: the newest that is not there and whose pause is over; NULL = none, and *ret_until_ms says when to
 * look again (-1 = when something changes). */
const struct catalog_entry *mirror_next(const struct mirror *m, const struct catalog *c, int64_t now_ms,
                                        int64_t *ret_until_ms);

/* Pure: which of n candidates is next (SIZE_MAX: none is due). */
struct mirror_candidate {
	uint64_t id;
	bool wanted;           /* here, and not there */
	int64_t not_before_ms; /* 0 = at once */
};
size_t mirror_choose(const struct mirror_candidate *items, size_t n, int64_t now_ms, int64_t *ret_until_ms);
/* Pure: the pause after the n-th failure in a row (from 1). */
int64_t mirror_pause_ms(unsigned n);

/* The i-th mirror's store if it has the checkpoint and can be read, else NULL. */
struct store *mirrors_store(const struct mirrors *ms, size_t i, const struct catalog_entry *e);

/* ---- the journal, mirror_journal.c */

char *mirror_journal_key(const char *url); /* NULL: out of memory */
/* Reads what is done; one that is missing or damaged counts as empty, for what it says can be found out again. */
void mirror_journal_read(struct mirror *m);
/* Writes what is done of the checkpoints that are here. The run's lock is not held. */
int mirror_journal_write(struct mirror *m, struct pawl_error *err);
/* The URLs of all journals of a run; strings are memory's. */
int mirror_journal_urls(struct store *store, struct bump *memory, const char ***ret, size_t *ret_n, struct pawl_error *err);
/* Removes the journals of mirrors that the run has no more. */
int mirror_journal_tidy(struct mirrors *ms, struct pawl_error *err);

#endif
