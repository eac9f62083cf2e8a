/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog: the committed checkpoints of a run, read from their manifests; nothing else decides (P2,
 * P9, E7, R139). It is built at open, kept current by saves, and refreshed by catalog_reload, which
 * reads only new names and folders that changed. Pins and late scores: pins.h. Readers' holds:
 * holds.h.
 *
 * Hold run_edit to change the catalog. Hold the guard, if there is one, only while the table is
 * inconsistent, and never during I/O. catalog_reload, _reload_holds, _add and _mark take it; around
 * catalog_drop and _take_far the caller does. Hold either to read it.
 *
 * Layout below the run's root (a single checkpoint is the folder `single_name`, and nothing else
 * exists):
 *   checkpoints/<name>/manifest.json
 *
 * A folder counts if its name is a safe component, it is a real folder and its manifest verifies.
 * One that does not count is remembered with the reason, and retention never deletes it. One that
 * is deleted while a reload reads it is left out; if it was the newest, the reload lists again. If
 * two claim the same id, it belongs to the name that ends in that number. Else it belongs to the
 * shorter, then to the first one in order. The other one counts as bad.
 */
#ifndef PAWL_CATALOG_H
#define PAWL_CATALOG_H

#include <pthread.h>
#include <stdbool.h>

#include "base/bump.h"
#include "base/mem.h"
#include "catalog/holds.h"
#include "catalog/pins.h"
#include "foreign/foreign.h"
#include "policy/retain.h"
#include "state/manifest.h"
#include "store/store.h"

#define CATALOG_HOLDS HOLDS_FOLDER
#define CATALOG_DELETING ".deleting"                    /* file in a folder whose deletion has begun */
#define CATALOG_MAX 1000000u                            /* checkpoints in a run */
#define CATALOG_NO_MANIFEST MANIFEST_NAME " is missing" /* the problem of a folder that is not a checkpoint at all */
struct catalog;
struct catalog_entry;
struct fetch;
struct fetch_job;
/* P2: in a bucket a folder without a manifest is a running save, or what a killed one left. It is
 * not damage. */
bool catalog_is_unfinished(const struct catalog *c, const struct catalog_entry *e);

struct catalog_entry {
	struct manifest *summary; /* owned; NULL for a bad one */
	char *name;               /* folder name */
	char *problem;            /* NULL, or why the manifest does not verify */
	int code;                 /* of the problem: PAWL_ENOTFOUND no manifest; see catalog_may_be_intact */
	uint64_t id;              /* of the summary; of a bad one: name_id */
	uint64_t name_id;         /* by the run's template, else the digits at the end of the name, or 0 */
	/* Saved ones overlaid with late ones; one block with the names, or the summary's. */
	struct pawl_metric *metrics;
	size_t n_metrics;
	bool pinned, held;
	int64_t mtime_ns;  /* of the folder when it was read; 0 = read it again */
	bool is_withdrawn; /* of a bad one: its save was aborted (ranks/abort_commit.h) */
	bool is_running;   /* of a bad one: another process may be saving it, see catalog_load_unowned */
	bool is_gone;      /* deleted between its listing and its reading; the table holds no such entry */
	struct store *at;  /* NULL = in the run's own store; else the only mirror that has it, borrowed */
};

struct mirrors;         /* catalog/mirrors.h */
struct catalog_listing; /* catalog/catalog_list.h */

/* What differs between kinds of catalogs. Chosen when the catalog is loaded. */
struct catalog_kind {
	const char *folder;   /* of the checkpoints: CATALOG_FOLDER "/", or "" */
	const char *manifest; /* after a checkpoint's name: the key whose existence makes it a checkpoint */
	bool is_run;          /* checkpoints come and go, and have pins, late scores and holds */
	bool is_file;         /* a checkpoint is one file, not a folder */
	bool is_listed_whole; /* one listing shows a state that has existed */
	bool is_by_manifest;  /* a checkpoint has the time of its manifest, and a listing shows both */
	/* Lists the checkpoints, in any order. */
	int (*list)(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err);
};

struct catalog {
	const struct catalog_kind *kind;
	struct store *store;                  /* borrowed */
	const struct mirrors *mirrors;        /* known contents of mirrors; NULL = the run has none; borrowed */
	const char *single_name;              /* of a single checkpoint */
	int level;                            /* enum pawl_level of what the store holds */
	const char *name_template;            /* of the run's names; NULL = unknown; borrowed */
	int64_t lease_timeout_ms;             /* of other processes, as of pawl_open_opts; 0 = the lease is ours */
	pthread_mutex_t *guard;               /* the run's lock; NULL = no other thread sees the table; borrowed */
	const struct foreign_format *foreign; /* of what another program wrote, or NULL; borrowed */
	struct catalog_entry *entries;        /* ascending by id; bad ones sorted in by the id of their name */
	size_t n, cap;
	/* Aborted saves that left nothing else (ranks/abort_commit.h). They are not checkpoints,
	 * but their names and ids are used. */
	struct catalog_entry *withdrawn;
	size_t n_withdrawn;
};

int catalog_load(struct catalog *c, struct store *store, const char *single_name, const char *name_template,
                 struct pawl_error *err);
/* The same for a process that has no lease. In a flat store a save is written under its own name:
 * what has no manifest is running while another process holds the lease. */
int catalog_load_unowned(struct catalog *c, struct store *store, const char *single_name, const char *name_template,
                         int64_t lease_timeout_ms, struct pawl_error *err);
/* The catalog of one file or folder that another program wrote. */
int catalog_load_foreign(struct catalog *c, struct store *store, const char *name, const struct foreign_format *format,
                         struct pawl_error *err);
/* True for a bad entry whose problem is not damage, such as a missing permission or a newer
 * format. */
bool catalog_may_be_intact(const struct catalog_entry *e);
/* The newest bad entry that may be intact and newer than `than` (NULL = any), or NULL. A copy in a
 * mirror counts as the entry. */
const struct catalog_entry *catalog_denied(const struct catalog *c, const struct catalog_entry *than);
/* The error of a bad entry that a caller wants. */
int catalog_refuse(const struct catalog_entry *e, struct pawl_error *err);
/* A listing that fails is an error and changes nothing (P8). Entries whose folder is gone are
 * dropped. Marks and holds are read again. */
int catalog_reload(struct catalog *c, struct pawl_error *err);
void catalog_clear(struct catalog *c);
/* Takes over the checkpoints of this run that only another store (a mirror) has. They replace those
 * taken before, and survive a reload until the run's own store has them too. from: the other
 * store's catalog; the caller still clears it. */
int catalog_take_far(struct catalog *c, struct catalog *from, struct store *at, const char *run_id,
                     struct pawl_error *err);
/* Adds one checkpoint just committed. text: its manifest, or empty, which is then read from the
 * store. */
int catalog_add(struct catalog *c, const char *name, struct buf *text, struct pawl_error *err);
void catalog_drop(struct catalog *c, uint64_t id);
/* The valid entry of an id, the newest valid one, or NULL. */
struct catalog_entry *catalog_get(const struct catalog *c, uint64_t id);
struct catalog_entry *catalog_latest(const struct catalog *c);
/* Best valid entry by policy, or NULL. */
struct catalog_entry *catalog_best(const struct catalog *c, const struct pawl_retention *policy);
/* Resolves a selector of pawl_find. */
int catalog_find(struct catalog *c, const struct pawl_retention *policy, const char *selector,
                 struct catalog_entry **ret, struct pawl_error *err);
/* Items for retain_decide (valid entries only, ascending); strings are borrowed from the catalog;
 * the caller frees the array with mem_free. */
int catalog_items(const struct catalog *c, struct retain_item **ret, size_t *ret_n, struct pawl_error *err);
/* Is it pinned now, by any process? The table stays as it is. */
int catalog_read_pin(const struct catalog *c, const struct catalog_entry *e, bool *ret, struct pawl_error *err);
/* Pins, late scores: changes the mark file and updates the entry by it. NULL = leave: what other
 * processes have set stays. */
int catalog_mark(struct catalog *c, struct catalog_entry *e, const bool *pinned, const struct pawl_metric *metrics,
                 size_t n, struct pawl_error *err);
/* Reads the holds again. */
int catalog_reload_holds(struct catalog *c, struct pawl_error *err);
/* A hold has just been made on an entry. */
void catalog_note_held(struct catalog *c, uint64_t id);
/* A deletion hides a checkpoint, then looks for holds and pins, and puts it back if there is one
 * (keep/removal.h). Waits until the manifest is back (1), or the deletion has ended (0). Below 0:
 * the store cannot tell. at: NULL, or the mirror that has it. Call it with a hold or a pin, and
 * without run_edit. */
int catalog_wait_put_back(const struct catalog *c, struct store *at, const char *name, struct pawl_error *err);
/* A checkpoint that is being read. Everything is borrowed. */
struct catalog_reading {
	const struct catalog *catalog;
	struct store *at; /* NULL, or the only mirror that has it */
	const char *name;
	uint64_t id;
	const char *token; /* with the id: of the manifest that was opened */
	bool is_held;
};
/* What a failure to read it means. 0: the failure itself; 1: a deletion was called off, read again;
 * PAWL_ENOTFOUND: the checkpoint was deleted, or another one took its place. tries: how often it
 * was read again. */
int catalog_judge(const struct catalog_reading *r, const struct pawl_error *why, unsigned tries,
                  struct pawl_error *err);
/* fetch_run, and catalog_judge if it fails. */
int catalog_fetch(const struct catalog_reading *r, struct fetch *fetch, const struct fetch_job *job,
                  struct pawl_error *err);
/* Fills *ret from an entry; everything is copied to `memory`. */
int catalog_info(const struct catalog *c, const struct catalog_entry *e, const struct pawl_retention *policy,
                 struct bump *memory, struct pawl_info *ret, struct pawl_error *err);
/* An entry with a summary as retention sees it, without holds and mirrors; strings are the
 * entry's. */
struct retain_item catalog_retain_item(const struct catalog_entry *e);
/* Appends the key of the folder of an entry's files: "checkpoints/<name>", for a single checkpoint
 * its name, for a foreign file nothing. */
void catalog_key(const struct catalog *c, const char *name, struct buf *out);
/* Appends the key whose existence makes it a checkpoint: the manifest, or the foreign file or
 * folder. */
void catalog_manifest_key(const struct catalog *c, const char *name, struct buf *out);
/* Full manifest of an entry, read and verified now. */
int catalog_manifest(const struct catalog *c, const struct catalog_entry *e, struct manifest **ret,
                     struct pawl_error *err);
/* The same, but only the summary is decoded. */
int catalog_summary(const struct catalog *c, const struct catalog_entry *e, struct manifest **ret,
                    struct pawl_error *err);

#endif
