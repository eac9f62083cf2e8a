/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync: what the parts of syncing a folder share. See pawl_jobs.h, "syncing", and
 * docs/how-to/sync.md.
 *   sync.c          the handle: kinds of places, passes, deadlines
 *   sync_command.c  a program: its command line, its end, its output
 *   sync_rsync.c    rsync over ssh
 *   sync_store.c    from one store to another
 *   sync_links.c    files that are links of each other
 *   sync_clone.c    copies a folder inside its store
 *   sync_check.c    verifies the copied files
 *   sync_prune.c    removes at the target what the source does not keep
 *   sync_sent.c     the files that a sync sent
 *   sync_view.c     the frozen folder that a command or a function gets
 *   copy_run.c      a complete run to another place
 */
#ifndef PAWL_SYNC_H
#define PAWL_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"
#include "pawl_jobs.h"

#define SYNC_MAX_DEPTH 16 /* of folders */
#define SYNC_MAX_FILES 1000000u
#define SYNC_JOURNAL "journal"        /* of a search: names its checkpoints */
#define SYNC_SEARCH "experiment.json" /* makes a folder a search: sent last, so that a part of one is none */

/* Deadline and cancellation. */
struct sync_limit {
	int64_t begin_ms, deadline_ms; /* of clock_mono_ms */
	struct pawl_meter *meter;      /* or NULL */
};
/* PAWL_ETIMEOUT or PAWL_ECANCELLED, naming `what`. */
int sync_limit_check(const struct sync_limit *l, const char *what, struct pawl_error *err);

enum sync_place_kind {
	SYNC_LOCAL, /* a path */
	SYNC_HOST,  /* user@host:path, as for rsync and scp */
	SYNC_STORE, /* a URL that store_open knows, or the caller's stores */
	SYNC_OTHER  /* another URL */
};
struct sync_place {
	enum sync_place_kind kind;
	char *text;                       /* as given; a path absolute */
	char *store;                      /* as store_open takes it, or NULL */
	const struct pawl_stores *stores; /* the caller's own, or NULL */
};
/* PAWL_EUSAGE: empty, with a password, or a host that would be an option. */
int sync_place_read(const char *given, struct sync_place *ret, struct pawl_error *err);
void sync_place_clear(struct sync_place *p);
struct store;
/* Opens the store of a place that has one. */
int sync_place_open(const struct sync_place *p, bool create, struct store **ret, struct pawl_error *err);

/* ---- sync_command.c */

/* Splits a template into words and fills in {source} and {target}; shell: the words of `sh -c`. In
 * `memory`. PAWL_EUSAGE: a field is missing, a quote is open. */
int sync_command_words(const char *line, bool shell, const char *source, const char *target, struct bump *memory,
                       char ***ret, struct pawl_error *err);
/* Runs a program, and writes `feed` (or NULL) to its input. Its process group is killed at the
 * limit, and what is left of it after the program ends. PAWL_EIO with its last output, in which
 * secrets of the environment are hidden, unless it exits with 0. *ret_status: the status, -1 if
 * there is none. */
int sync_run(char *const argv[], const struct buf *feed, const struct sync_limit *limit, int *ret_status,
             struct pawl_error *err);

/* ---- transfers */

/* Files below a store's root, grouped by the order of transfer, each name ended by NUL. Files that
 * belong only to this place are left out (saves in progress, leases, temporary names). */
struct sync_names {
	struct buf packs; /* and all other files */
	struct buf manifests, searches, pointers;
	struct buf runs; /* folders with a run, each with '/' at its end: "", "a/b/" */
};
/* True if an entry of a folder belongs only to this place: saves in progress, leases, holds, what
 * is being removed. */
bool sync_stays_here(const char *folder, const char *name);
/* True for a file of a checkpoint of one of the listed runs. Such files never change. Folders of
 * users may have the same names. */
bool sync_is_fixed(const struct sync_names *names, const char *key);
int sync_list(struct store *store, const struct sync_limit *limit, struct sync_names *ret, struct pawl_error *err);
void sync_names_clear(struct sync_names *names);

/* ---- sync_view.c: a frozen view of a folder, with complete checkpoints only. {.fd = -1} =
 * none. */
struct sync_view {
	char *path;              /* ends with the folder's own name */
	char *holder;            /* the folder that contains it; removed with it */
	int fd;                  /* of holder, locked */
	struct sync_names names; /* its files */
};
/* folder: an absolute path. */
int sync_view_make(const char *folder, const struct sync_limit *limit, struct sync_view *ret, struct pawl_error *err);
/* Names the folder in an error instead of the view, which the user does not know. */
void sync_view_name_source(const struct sync_view *v, const char *folder, struct pawl_error *err);
/* Removes it. */
void sync_view_clear(struct sync_view *v);

/* ---- sync_sent.c: the files that a sync sent. A server may answer that it stored a file, and lose
 * it. Zero-initialised = none. */
struct sync_sent {
	struct bump memory;
	struct sync_file {
		const char *key;
		uint64_t nbytes;
	} *items;
	size_t n, cap;
};
int sync_sent_add(struct sync_sent *sent, const char *key, uint64_t nbytes, struct pawl_error *err);
/* PAWL_EIO: of the files in folders below `above`, one is missing in the store, or shorter than it
 * was sent. Ignores those in `folders`. */
int sync_sent_check(const struct sync_sent *sent, struct store *store, const char *above, const char *const *folders,
                    size_t n, const struct sync_limit *limit, struct pawl_error *err);
void sync_sent_clear(struct sync_sent *sent);

/* One of the two must be local. pointers_only: only pointers, else all other files. */
int sync_rsync(const struct sync_place *source, const struct sync_place *target, bool pointers_only,
               const struct sync_limit *limit, struct pawl_error *err);
/* sent: gets the files that were sent; or NULL. */
int sync_store(const struct sync_place *source, const struct sync_place *target, bool pointers_only,
               const struct sync_limit *limit, struct sync_sent *sent, struct pawl_error *err);

/* ---- sync_prune.c: removes folders of a store and their contents; a missing one is success. A
 * folder stays while the store lacks a file that was sent to a folder next to it. */
int sync_prune(struct store *store, const char *const *folders, size_t n, const struct sync_sent *sent,
               const struct sync_limit *limit, struct pawl_error *err);

/* ---- sync_links.c: regular files of a local folder that have several names. Zero-initialised =
 * none. */
struct sync_link {
	dev_t device;
	ino_t inode;
	const char *key; /* borrowed from the given names */
	enum { SYNC_LINK_UNKNOWN, SYNC_LINK_THERE, SYNC_LINK_ABSENT } at_target;
	uint64_t nbytes;  /* THERE: of the file that the target has */
	int64_t mtime_ns; /* the same, of the local file */
};
struct sync_links {
	struct sync_link *items;
	size_t n, cap;
};
/* names: of files below root, each ended by NUL; they must outlive the links. */
int sync_links_find(struct sync_links *links, const char *root, const struct buf *names, struct pawl_error *err);
/* The link of a file; NULL: it has only one name. */
struct sync_link *sync_links_get(const struct sync_links *links, const char *root, const char *key);
/* All given names of its file, including `of`. */
struct sync_link *sync_links_twins(const struct sync_links *links, struct sync_link *of, size_t *ret_n);
void sync_links_clear(struct sync_links *links);

/* ---- sync_check.c */

/* Checkpoints that were verified, by identity. Zero-initialised = none. */
struct sync_seen {
	struct bump memory;
	char **names;
	size_t n, cap;
};
void sync_seen_clear(struct sync_seen *seen);
/* Verifies all checkpoints below target that are not in seen. expected: a folder whose checkpoints
 * must exist in the target, or NULL. Then only those with a manifest in before (listed before the
 * sync) are checked. PAWL_ECORRUPT, PAWL_ENOTFOUND. */
int sync_check(const struct sync_place *target, const char *expected, const struct sync_names *before,
               struct sync_seen *seen, const struct sync_limit *limit, uint64_t *ret_n, struct pawl_error *err);

#endif
