/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog: the committed checkpoints of a run, read from their manifests; nothing else decides (P2, P9, E7, R139).
 * Rebuilt at open, kept current by the save path, refreshed by catalog_reload (only new names, and folders that
 * changed, are read). Pins and late scores: marks.h; readers' holds: holds.h.
 *
 * Who changes it is alone in that (run_edit), and holds the guard, if there is one, for as long as the table is not what it
 * should be, never while a store is asked: catalog_reload, _reload_holds, _add and _mark take it; around catalog_drop and
 * _take_far the caller does, who knows more that must change with it. Whoever reads is alone, or holds the guard.
 *
 * Layout below the run's root (single: the folder of the checkpoint is `single_name`, and nothing else exists):
 *   checkpoints/<name>/manifest.json
 *
 * A folder counts if its name is a safe component, it is a real folder and its manifest verifies. One that does not is
 * remembered with the reason, and never deleted by retention. One that is deleted while a reload reads it is left out; if it
 * was the newest, the reload lists again. Of two that claim the same id, the one whose name ends in
 * that number (then the shorter, then the first by name) has it; the other one counts as bad.
 */
#ifndef PAWL_CATALOG_H
#define PAWL_CATALOG_H

#include <pthread.h>
#include <stdbool.h>

#include "base/mem.h"
#include "catalog/holds.h"
#include "catalog/marks.h"
#include "foreign/foreign.h"
#include "policy/retain.h"
#include "state/manifest.h"
#include "store/store.h"

#define CATALOG_MARKS MARKS_FOLDER
#define CATALOG_HOLDS HOLDS_FOLDER
#define CATALOG_DELETING ".deleting"                    /* file in a folder whose deletion has begun */
#define CATALOG_MAX 1000000u                            /* checkpoints in a run */
#define CATALOG_NO_MANIFEST MANIFEST_NAME " is missing" /* the problem of a folder that is no checkpoint at all */
struct catalog;
struct catalog_entry;
/* P2: in a bucket a folder without a manifest is a save that goes on, or what one that was cut off has left; no damage. */
bool catalog_is_unfinished(const struct catalog *c, const struct catalog_entry *e);

struct catalog_entry {
	struct manifest *summary; /* owned; NULL for a bad one */
	char *name;               /* folder name */
	char *problem;            /* NULL, or why the manifest does not verify */
	int code; /* of the problem: PAWL_ENOTFOUND there is no manifest, PAWL_EAUTH it may not be read, else damage */
	uint64_t id;              /* of the summary; of a bad one: name_id */
	uint64_t name_id;         /* what the run's template says of the name, else the digits at its end, or 0 */
	struct pawl_metric *metrics; /* saved ones overlaid with late ones; one block with the names, or the summary's */
	size_t n_metrics;
	bool pinned, held;
	int64_t mtime_ns; /* of the folder when it was read; 0 = read it again */
	bool is_withdrawn; /* of a bad one: there is what calls the save off (withdraw.h) where the manifest would be */
	bool is_gone;      /* deleted between its listing and its reading; the table holds no such entry */
	struct store *at; /* NULL: in the run's own store; else the only place where it is: a mirror's, borrowed */
};

struct mirrors; /* mirror.h */

struct catalog {
	struct store *store;           /* borrowed */
	const struct mirrors *mirrors; /* who knows what the mirrors have; NULL = there are none; borrowed */
	const char *single_name;       /* NULL for runs */
	const char *name_template;     /* of the run's names; NULL = unknown; borrowed */
	pthread_mutex_t *guard;        /* the run's lock; NULL = nobody else sees the table; borrowed */
	const struct foreign_format *foreign; /* of what another program wrote, or NULL; borrowed */
	struct catalog_entry *entries; /* ascending by id; bad ones sorted in by the id of their name */
	size_t n, cap;
	/* Saves that were called off and left nothing but that (withdraw.h): no checkpoints, but their names and ids are used
	 * up. */
	struct catalog_entry *withdrawn;
	size_t n_withdrawn;
};

int catalog_load(struct catalog *c, struct store *store, const char *single_name, const char *name_template,
                 struct pawl_error *err);
/* The catalog of one file or folder that another program wrote. */
int catalog_load_foreign(struct catalog *c, struct store *store, const char *name, const struct foreign_format *format,
                         struct pawl_error *err);
/* The newest entry that may not be read and may be newer than `than` (NULL = than nothing), or NULL. A mirror's copy of it
 * is as good as itself. */
const struct catalog_entry *catalog_denied(struct catalog *c, const struct catalog_entry *than);
/* A listing that fails is an error and changes nothing (P8). Entries whose folder is gone are dropped. Marks and holds
 * are read anew. */
int catalog_reload(struct catalog *c, struct pawl_error *err);
void catalog_clear(struct catalog *c);
/* Takes over what another store (a mirror's) has of this run and c has not, and forgets what it had before; such entries
 * stay over a reload until they are in the run's own store, too. from: the other store's catalog, still to be cleared. */
int catalog_take_far(struct catalog *c, struct catalog *from, struct store *at, const char *run_id,
                     struct pawl_error *err);
/* Adds one checkpoint just committed. text: its manifest, or empty, which is then read from the store. */
int catalog_add(struct catalog *c, const char *name, struct buf *text, struct pawl_error *err);
void catalog_drop(struct catalog *c, uint64_t id);
/* The valid entry of an id, the newest valid one, or NULL. */
struct catalog_entry *catalog_get(struct catalog *c, uint64_t id);
struct catalog_entry *catalog_latest(struct catalog *c);
/* Best valid entry by policy, or NULL. */
struct catalog_entry *catalog_best(struct catalog *c, const struct pawl_retention *policy);
/* Resolves a selector of pawl_find. */
int catalog_find(struct catalog *c, const struct pawl_retention *policy, const char *selector,
                 struct catalog_entry **ret, struct pawl_error *err);
/* Items for retain_decide (valid entries only, ascending); strings are borrowed from the catalog; caller mem_frees the
 * array. */
int catalog_items(const struct catalog *c, struct retain_item **ret, size_t *ret_n, struct pawl_error *err);
/* Is it pinned by now, also by another process? The table stays as it is. */
int catalog_read_pin(const struct catalog *c, const struct catalog_entry *e, bool *ret, struct pawl_error *err);
/* Pins, late scores: writes the mark file and updates the entry. NULL metrics = leave. */
int catalog_mark(struct catalog *c, struct catalog_entry *e, const bool *pinned, const struct pawl_metric *metrics,
                 size_t n, struct pawl_error *err);
/* Reads the holds anew. */
int catalog_reload_holds(struct catalog *c, struct pawl_error *err);
/* A hold has just been made on an entry. */
void catalog_note_held(struct catalog *c, uint64_t id);
/* Fills *ret from an entry; everything is copied to `memory`. */
int catalog_info(const struct catalog *c, const struct catalog_entry *e, const struct pawl_retention *policy,
                 struct bump *memory, struct pawl_info *ret, struct pawl_error *err);
/* What retention is told of an entry with a summary, without holds and mirrors; strings are the entry's. */
struct retain_item catalog_retain_item(const struct catalog_entry *e);
/* Key of the folder that an entry's files lie in: "checkpoints/<name>", the name alone for single, nothing for a foreign
 * file. Appended to out. */
void catalog_key(const struct catalog *c, const char *name, struct buf *out);
/* Key of what makes it a checkpoint by being there: the manifest, or the foreign file or folder. */
void catalog_manifest_key(const struct catalog *c, const char *name, struct buf *out);
/* Full manifest of an entry, read and verified now. */
int catalog_manifest(const struct catalog *c, const struct catalog_entry *e, struct manifest **ret,
                     struct pawl_error *err);
/* The same, but only the summary is decoded. */
int catalog_summary(const struct catalog *c, const struct catalog_entry *e, struct manifest **ret,
                    struct pawl_error *err);

#endif
