/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run: an open run, as parts. Each part has a header of its own, which names its lock. A function
 * takes the part that it needs, and the complete run only if it needs several.
 *
 * Locks are taken in this order: run_edit, run_lock, then the lock of one part. No store is called
 * while run_lock is held, so a thread that only reads never waits for I/O.
 */
#ifndef PAWL_RUN_H
#define PAWL_RUN_H

#include <pthread.h>
#include <stdbool.h>

#include "base/clock.h"
#include "pawl.h"
#include "run/events.h"
#include "run/interval.h"
#include "run/run_file.h"
#include "run/run_group.h"
#include "run/run_home.h"
#include "run/run_options.h"
#include "run/run_saves.h"
#include "store/store.h"

struct agree_ops;   /* ranks/agree.h */
struct catalog;     /* catalog/catalog.h */
struct commit_ops;  /* save/commit.h */
struct gc_ops;      /* keep/gc.h */
struct mirrors;     /* catalog/mirrors.h */
struct removal_ops; /* keep/removal.h */
struct role_ops;    /* save/role.h */

/* Guards the catalog and what is known of mirrors: changed with both held, read with either. */
struct run_guard {
	pthread_mutex_t edit; /* held by the thread that changes them, also during I/O */
	pthread_mutex_t lock; /* held for as long as they are inconsistent */
	pthread_t editor;     /* the thread that holds edit; guarded by lock */
	bool is_edited;       /* guarded by lock */
};

/* What differs between kinds of runs, as tables of operations. Chosen once, when the run is
 * opened. */
struct run_modes {
	const struct removal_ops *removal; /* keep/removal.h: how a checkpoint ends */
	const struct gc_ops *gc;           /* keep/gc.h: what an unfinished save leaves */
	const struct commit_ops *commit;   /* save/commit.h: how a checkpoint begins to exist */
	const struct agree_ops *agree;     /* ranks/agree.h: alone, rank 0, or another rank */
	const struct role_ops *role;       /* save/role.h: what this process does in a save */
};

struct pawl {
	struct pawl_open_opts opts;   /* what the caller asked for, copied and completed */
	struct run_settings settings; /* what is derived from it: run_options.h */
	struct store *store;          /* the run's folder or bucket */
	struct run_home home;         /* where that is, and what it can do: run_home.h */
	struct run_identity self;     /* which run this is; the lease; ids: run_file.h */
	struct run_group group;       /* the ranks: run_group.h */
	struct run_guard guard;
	struct catalog *catalog;  /* the checkpoints: catalog/catalog.h */
	struct mirrors *mirrors;  /* copies in other stores: catalog/mirrors.h; may be none, never NULL */
	struct run_saves saves;   /* what all saves share: run_saves.h */
	struct interval interval; /* what the next save is counted from: interval.h */
	struct run_events events; /* events.jsonl: events.h */
	struct run_modes modes;
};

/* A run with all of its locks and nothing else; NULL without memory. run_delete frees what the
 * parts of this room own. */
struct pawl *run_new(void);
void run_delete(struct pawl *run);
/* Opens run->store at a path or URL. A handle that writes makes a missing folder. */
int run_open_store(struct pawl *run, const char *url, struct pawl_error *err);

void run_lock(struct pawl *run);
void run_unlock(struct pawl *run);
/* For changing the catalog. Not while run_lock is held. */
void run_edit(struct pawl *run);
void run_edited(struct pawl *run);
/* Waits until the saves that have begun in this process are in the catalog or have failed, so that
 * a caller finds its own. Returns 0, or ETIMEDOUT after deadline_ms (< 0 = never). Returns at once
 * on the thread that holds run_edit, for example in a rule of retention: a commit would wait for
 * it. */
int run_wait_committed(struct pawl *run, int64_t deadline_ms);

/* PAWL_EREADONLY if the handle may not write. */
int run_check_writable(const struct pawl *run, struct pawl_error *err);
/* The same for deleting and repairing, which only rank 0 may do (PAWL_EUSAGE for others). */
int run_check_keeper(const struct pawl *run, struct pawl_error *err);

/* Are unchanged packs linked into the next checkpoint? */
static inline bool
run_links_packs(const struct pawl *run)
{
	return !run->opts.packs.no_reuse && run->home.caps.link;
}

#endif
