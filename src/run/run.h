/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run: an open run: its store, catalog, lease, options and the save in progress. Everything that is shared between
 * threads is here, under one lock.
 */
#ifndef PAWL_RUN_H
#define PAWL_RUN_H

#include <pthread.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "pawl.h"
#include "policy/compress_rule.h"
#include "policy/trigger.h"
#include "run/recycle.h"
#include "store/store.h"

/* Limits of options, for the rooms that they concern. */
#define MIRROR_MAX 8u        /* mirrors of a run */
#define COPY_MAX_STREAMS 64u /* pieces of one upload that are under way at a time */
#define SAVE_UNIT_BYTES ((uint64_t)8 << 20) /* of one write, at most; a multiple of every block size up to it */

struct catalog; /* catalog/catalog.h */
struct foreign_format; /* foreign/foreign.h */
struct codec;  /* format/codec.h */
struct writer; /* queue of saves, tickets: writer.h */
struct lease;  /* lease.h */
struct meet;   /* meet.h */
struct mirrors; /* mirror.h */
struct save;   /* save.h */

/* events.c: the lines of the object that is being filled, in stores where nothing can be appended. */
struct run_events {
	pthread_mutex_t lock; /* guards below */
	struct buf text;
	char key[48];
};

/* What the rooms below ask the queue of saves. */
struct run_queue_ops {
	/* A save is running, waiting or settling. */
	bool (*is_busy)(struct writer *w);
	/* A save with this token is running or waiting, in this process. */
	bool (*has_token)(struct writer *w, const char *token);
};

struct pawl {
	/* set once by pawl_open */
	struct store *store;
	struct store *nodes; /* the layer of node folders in it, borrowed; NULL = none */
	uint32_t node;       /* on which one this process is */
	struct store_caps caps;
	char *root;                           /* absolute path, or "mem:" */
	char *single_name;                    /* NULL for runs; then store's root is the parent folder */
	struct store *hold_store;             /* of the run around a single checkpoint that is held; NULL = none */
	struct buf hold_key;                  /* of that hold */
	bool lacks_hold;                      /* there is a run around it, which it cannot be held in */
	const struct foreign_format *foreign; /* of what another program wrote; NULL = pawl's own */
	char run_id[33];
	uint64_t attempt;
	struct pawl_open_opts opts;      /* strings copied (owned_* below); defaults filled in */
	struct pawl_retention retention; /* arrays copied; score attributes of the last training where none were given */
	struct bump strings;             /* memory of the copies */
	struct triggers triggers;        /* none: every point is due */
	const struct codec *codec;       /* of new packs; NULL = they are not compressed */
	bool compress_by_rule;           /* "auto": with the codec, or not */
	struct pawl_arena *arena;
	bool owns_arena;
	int64_t created_ns;  /* wall clock; when the run was begun */
	struct lease *lease; /* NULL when read-only, of a single checkpoint, and of every rank but 0 */
	struct meet *meet;   /* NULL when alone */
	struct pawl_rank who;
	struct pawl_stores stores; /* the caller's own, copied */
	uint32_t rank, world;  /* 0 of 1 when alone */
	struct writer *writer; /* NULL when read-only */
	const struct run_queue_ops *queue_ops; /* set with writer */
	struct recycle recycle;
	char *warning;     /* see pawl_warning, or NULL */
	char *file_damage;     /* why run.json could not be read, or NULL */
	struct run_events events;
	struct mirrors *mirrors; /* NULL = none */
	struct store *reads;   /* for reading checkpoints: the store, with the mirrors behind it */

	/* Held, before lock, by whoever changes the catalog, also while stores are asked for what it is changed to. So nobody
	 * who only looks waits for a store. */
	pthread_mutex_t edit;
	uint64_t stored_id; /* last_id of run.json; guarded by edit */

	pthread_mutex_t lock; /* guards all below */
	struct catalog *catalog;         /* changed with both held, read with either; catalog.h says who takes lock; owned */
	uint64_t last_id;                /* highest id ever seen or given out in this run */
	struct pawl_progress last_saved; /* the mark that intervals are counted from: the latest save, or what was restored */
	bool has_saved;
	uint64_t marking_id;            /* the save that set the mark and may fail yet; 0 = none */
	struct pawl_progress last_good; /* the mark before it: of a save that was committed, or of what was restored */
	bool has_good;
	double wct_before;     /* training seconds up to wct_from_ns, as far as known */
	int64_t wct_from_ns;   /* monotonic: when the run was opened, or a checkpoint was restored */
	uint64_t n_rounds; /* many ranks: how often they have agreed on something (agree.h) */
	uint64_t meet_id;  /* many ranks: id of the latest save; counts alike on all */
	char *left_behind; /* rank 0: hidden folder of a failed save that a slow rank may write to yet */
	uint64_t meet_cleared; /* rank 0: the files by which the ranks met for saves up to this id are gone */
	double save_cost_seconds;    /* measured, for "auto" */
	struct compress_rule compress_rule;
	struct pawl_ticket *pending; /* a failed save whose error nobody may have seen yet; a reference */
};

/* Copies the options, fills the defaults in and checks them; who we are among how many, too. run_options.c. */
int run_take_options(struct pawl *run, const struct pawl_open_opts *opts, struct pawl_error *err);
#define RUN_KEY "run.json"
/* run_file.c: run.json. Reading one that is damaged counts as finding none, and run_warn_of_damage tells of it; adopting: the
 * run's folder is lost, or on another host, and a mirror knows which run this is. */
bool run_is_id(const char *text);
int run_read_file(struct pawl *run, bool *ret_found, struct pawl_error *err);
int run_adopt_file(struct pawl *run, const struct buf *text, struct pawl_error *err);
int run_write_file(struct pawl *run, struct pawl_error *err);
void run_warn_of_damage(struct pawl *run);
/* Replaces a text by a copy that lives as long as the run; NULL stays NULL. */
int run_copy_text(struct pawl *run, const char **field, struct pawl_error *err);
void run_lock(struct pawl *run);
void run_unlock(struct pawl *run);
/* Are unchanged packs linked into the next checkpoint? */
static inline bool
run_links_packs(const struct pawl *run)
{
	return !run->opts.no_reuse && run->caps.link;
}
/* For changing the catalog: see edit above. Not while lock is held. */
void run_edit(struct pawl *run);
void run_edited(struct pawl *run);
/* PAWL_EREADONLY if the handle may not write. */
int run_check_writable(const struct pawl *run, struct pawl_error *err);
/* The same for deleting and repairing, which of many ranks only rank 0 does (PAWL_EUSAGE for others). */
int run_check_keeper(const struct pawl *run, struct pawl_error *err);
/* Remembers a failed save until somebody is told of it. */
void run_set_pending(struct pawl *run, struct pawl_ticket *ticket);
/* The mark of the triggers. run_mark_at: the training goes on from here (NULL = from nothing); a save moves the mark
 * when it has been taken, and back when it fails. */
void run_mark_at(struct pawl *run, const struct pawl_progress *progress);
void run_mark_saved(struct pawl *run, struct save *s);
void run_mark_outcome(struct pawl *run, struct save *s, bool good);
/* The error of a failed save that nobody has seen, once; else 0. */
int run_take_pending(struct pawl *run, struct pawl_error *err);
/* Adds one line to what is told of the run (events.jsonl; in buckets objects of their own); failures are ignored. events.c.
 * `fields`: JSON members without braces. */
void run_event(struct pawl *run, const char *what, const char *fields);
/* The last of what is in the events, whole lines; empty if there are none. events.c. */
int run_last_events(struct pawl *run, struct buf *ret, struct pawl_error *err);
/* The same for what goes wrong and stops nothing: "warning", with code and error. */
void run_warn(struct pawl *run, const struct pawl_error *why);
/* Makes it durable that an id has been given out, before the newest checkpoint is removed. Within run_edit. */
int run_remember_id(struct pawl *run, uint64_t id, struct pawl_error *err);
/* Gives every hidden folder of a save another hidden name, so that nobody who was writing it can publish it any more: an
 * earlier holder of the lease may have passed all its checks. Done by whoever opens the run to train, before the
 * checkpoints are listed; nothing is deleted. gc.c. */
int run_hide_partials(struct pawl *run, struct pawl_error *err);
/* Applies retention: decide, then remove (manifest first, P7). The lease is checked before. The caller holds neither
 * lock. */
int run_retain(struct pawl *run, const struct pawl_retention *policy, bool dry_run, struct pawl_decisions **ret,
               struct pawl_error *err);
/* Rewrites the latest and best pointers where they changed. */
int run_point(struct pawl *run, struct pawl_error *err);

#endif
