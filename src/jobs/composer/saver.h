/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saver: named checkpoint files, as Composer's CheckpointSaver has them (R59-R103): one file per save, its name from a
 * template, a link to the latest one, so many kept here, all uploaded.
 *
 *   state --ignored keys out--> staged copy, written in the background under .pawl/ --durable--> noted in the journal
 *         --renamed--> link to it --> uploaded and read back --> noted --> pointer there --> older ones deleted here
 *
 * - A file has its name only when it is whole and durable, and is in the journal before that: what a killed process leaves is
 *   below .pawl/ and is removed by who comes next, or has its name and is known (P2, E7, P8).
 * - The journal, <folder>/.pawl/saver-<16 hex>.json, lists what this saver has written and is still here, and what of it has
 *   been uploaded. Nothing else is ever deleted.
 * - Deciders are pure: saver_names.c (names, conflicts), saver_keep.c (what goes), saver_filter.c (what is saved).
 *
 * Threads: saves are finished by one thread in their order, uploads run on num_concurrent_uploads others. The lock guards
 * what is marked so.
 */
#ifndef PAWL_SAVER_H
#define PAWL_SAVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/mem.h"
#include "foreign/unpacked.h"
#include "pawl.h"
#include "policy/name.h"
#include "policy/trigger.h"
#include "store/store.h"

#define SAVER_INNER_NAME UNPACKED_TAR_MEMBER /* of the state in a tar, as Composer has it */

/* A checkpoint that has been written. */
struct saver_row {
	uint64_t seq;  /* order of the saves, from 1 */
	char *name;    /* below the folder */
	char *remote;  /* key there; NULL = not to be uploaded */
	char *pointer; /* key there of what is to lead to it; NULL = none */
	struct pawl_progress progress;
	bool uploaded, uploading;
	bool replaces; /* what has its name there is this saver's own */
};

struct pawl_saver {
	/* as opened; nothing of it changes */
	char *run_name, *folder; /* folder: filled in */
	char *folder_template, *filename, *latest_filename, *remote_name, *remote_latest; /* NULL = none */
	char *remote_root;       /* URL of the store that the remote names are in; NULL = nothing is uploaded */
	bool has_interval, overwrite, weights_only, raw_pickle;
	bool of_folders;         /* every rank writes, a tar of its own (R79) */
	bool by_caller;          /* who uses the saver uploads */
	struct triggers interval;
	int64_t keep, timeout_ms;
	char **ignore;
	size_t n_ignore;
	uint32_t n_uploads;
	struct pawl_rank rank;
	struct pawl_arena *arena;

	/* the caller's thread's */
	bool begun, started, has_last; /* started: nothing is in the way (R90) */
	struct pawl_progress last; /* where intervals are counted from: the last save, or the start */
	struct pawl_files *files;
	int lock_fd;
	char *work, *journal; /* keys below the folder */
	struct store *here;
	struct pool *finisher, *uploader;

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	struct saver_row *rows; /* ascending by seq */
	size_t n_rows, cap_rows;
	uint64_t next_seq, pointed_seq; /* pointed: the newest that a pointer there leads to */
	bool pointing, opening;         /* somebody puts a pointer, or opens the store there, now */
	unsigned n_busy;                /* saves and uploads that are not finished */
	unsigned n_saving;              /* of these the saves */
	struct store *there;            /* opened by the first upload */
	struct pawl_error save_error, upload_error; /* the first that nobody has seen; code 0 = none */
	atomic_bool stop;
};

/* ---- saver_names.c, pure */

/* .tar, .tar.gz, .tgz, .tar.bz2, .tar.lzma */
bool saver_is_tar(const char *name);
/* Fills a template in, without leading slashes (R86); as_tar: ".tar" is appended where the name is no tar's (R80). */
int saver_fill(const char *template_text, const struct name_values *values, bool as_tar, char **ret, struct pawl_error *err);
/* The format that a file gets, by name: NULL where its own suffix says it. */
const char *saver_format(const char *path);
/* The name of a variable in the template that changes during the training, or NULL. */
const char *saver_counter_in(const char *template_text);
/* As saver_fill for a folder, which may begin with any path: that is what stands before the first part with a variable.
 * PAWL_EUSAGE: a variable that changes during the training. */
int saver_fill_folder(const char *template_text, const struct name_values *values, char **ret, struct pawl_error *err);
/* Splits "s3://bucket/a/{epoch}" into the URL of the store ("s3://bucket") and the name in it ("a/{epoch}"); of other stores
 * than buckets the store is all before the part with the first variable, or the last part. A name without "://" gives NULL and
 * itself. */
int saver_split_url(const char *template_text, char **ret_root, char **ret_name, struct pawl_error *err);
/* 1 if `name` can have come of the template, its other variables being as in values; *ret then has the counters that stand in
 * it, others are -1. */
int saver_parse(const char *template_text, const struct name_values *values, bool as_tar, const char *name,
                struct pawl_progress *ret, struct pawl_error *err);
/* R90: is there one at `was` that a run that is at `now` may come to write? (What names no counter may be.) */
bool saver_conflicts(const struct pawl_progress *was, const struct pawl_progress *now);
/* How a link in a folder names a file, both below the same one: "a/latest", "a/b/x" -> "b/x". NULL: out of memory. */
char *saver_relative(const char *link, const char *target);

/* ---- saver_keep.c, pure; saver_journal.c */

/* The oldest row that is to go, or SIZE_MAX: of those beyond the newest `keep` (-1 = all are kept), one that has been
 * uploaded or is not to be (R94, R95). */
size_t saver_spent(const struct saver_row *rows, size_t n, int64_t keep);
/* The newest row at or before `now`, or NULL: where intervals go on after a restart. */
const struct saver_row *saver_before(const struct saver_row *rows, size_t n, const struct pawl_progress *now);

void saver_row_clear(struct saver_row *row);
int saver_add_row(struct pawl_saver *s, const struct saver_row *row, struct pawl_error *err); /* owns what is in row then */
void saver_drop_row(struct pawl_saver *s, size_t i);
int saver_journal_write(struct pawl_saver *s, struct pawl_error *err);
/* A journal that is damaged counts as none. */
int saver_journal_read(struct pawl_saver *s, struct pawl_error *err);

/* ---- saver_filter.c, pure */

/* The state without what the paths name (R98, R99), of it only the model's weights if asked (R97). Tensors stay borrowed. */
int saver_filter(const struct pawl_state *state, const char *const *ignore, size_t n, bool weights_only,
                 struct pawl_state **ret, struct pawl_error *err);

/* ---- saver_begin.c */

/* What templates are filled in with; progress NULL = unknown. */
struct name_values saver_values(const struct pawl_saver *s, const struct pawl_progress *progress);
/* The first time, in a process that writes: takes the folder, reads the journal, goes on with uploads, and looks for what is
 * in the way. */
int saver_start(struct pawl_saver *s, const struct pawl_progress *now, bool writes, bool as_tar, struct pawl_error *err);
/* The row of a file, or NULL. */
const struct saver_row *saver_own_row(const struct pawl_saver *s, const char *name);

/* ---- saver_remote.c */

/* Brings a file there, whole and read back. PAWL_EEXISTS: something else has its name, and it is not to be replaced. */
int saver_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
                   const atomic_bool *stop, struct pawl_error *err);
/* Follows text objects that stand for links: *key becomes that of a file. PAWL_ENOTFOUND: it leads to none. */
int saver_follow(const char *root, char **key, struct pawl_error *err);
/* The text object that stands for a link: its content is the key that it leads to. */
int saver_put_pointer(struct store *to, const char *key, const char *target, struct pawl_error *err);

/* ---- saver_work.c: what happens on the threads */

/* One save, from its file being written on. All that it owns is freed by the job. */
struct saver_job {
	struct pawl_saver *saver;
	struct saver_row row;
	char *room;                  /* path of a folder of its own below .pawl/, which goes with the job */
	char *staged;                /* path of the file in it */
	char *inner;                 /* NULL, or path of a folder in it that is to be packed as the file */
	char *link;                  /* below the folder; NULL = none */
	struct pawl_ticket *ticket;  /* NULL = it is written */
};
void saver_job_free(struct saver_job *job);
void saver_finish(void *job); /* for the finisher */
/* Begins all uploads that wait. The lock is held. */
void saver_begin_uploads(struct pawl_saver *s);
/* Deletes here what is to go. The lock is held. */
int saver_drop_spent(struct pawl_saver *s, struct pawl_error *err);
/* A path below the folder; NULL: out of memory. */
char *saver_path(const struct pawl_saver *s, const char *name);

#endif
