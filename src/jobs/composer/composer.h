/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer: named checkpoint files, as Composer's CheckpointSaver has them (R59-R103). There is one
 * file per save, named by a template, and a link to the latest one. A given number is kept here,
 * and all are uploaded.
 *
 *   state --ignored keys out--> staged copy, written in the background under .pawl/
 *         --durable--> noted in the journal --renamed--> link to it
 *         --> uploaded and read back --> noted --> remote pointer --> older ones deleted here
 *
 * - A file gets its name only when it is complete and durable, and after it is in the journal. What
 *   a killed process leaves below .pawl/ is removed by the next saver. Any other file it left has
 *   its name and is in the journal (P2, E7, P8).
 * - The journal, <folder>/.pawl/saver-<16 hex>.json, lists the files that this saver wrote and that
 *   still exist here, and which of them were uploaded. Nothing else is ever deleted.
 * - Decisions are pure: composer_names.c (names, conflicts), composer_keep.c (what is deleted),
 *   composer_filter.c (what is saved).
 *
 * Threads: one thread finishes saves in their order; uploads run on num_concurrent_uploads others.
 * The lock guards the marked fields.
 */
#ifndef PAWL_COMPOSER_H
#define PAWL_COMPOSER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/mem.h"
#include "foreign/compressed_file.h"
#include "pawl.h"
#include "pawl_jobs.h"
#include "policy/name.h"
#include "policy/trigger.h"
#include "store/store.h"

#define COMPOSER_INNER_NAME COMPRESSED_FILE_TAR_MEMBER /* of the state in a tar, as in Composer */

struct upload;

/* A checkpoint that was written. */
struct composer_row {
	uint64_t seq;  /* order of the saves, from 1 */
	char *name;    /* below the folder */
	char *remote;  /* remote key; NULL = not uploaded */
	char *pointer; /* remote key of the pointer that will lead to it; NULL = none */
	struct pawl_progress progress;
	bool uploaded, uploading;
	bool replaces; /* the remote object of its name is this saver's own */
	bool replaced; /* a save that gets its name is on the way; the journal leaves the row out */
};

struct pawl_saver {
	/* as opened; constant */
	char *run_name, *folder; /* folder: with variables filled in */
	char *folder_template, *filename, *latest_filename, *remote_name, *remote_latest; /* NULL = none */
	char *remote_root; /* URL of the store of the remote names; NULL = nothing is uploaded */
	bool has_interval, overwrite, weights_only, raw_pickle;
	bool of_folders; /* every rank writes its own tar (R79) */
	bool by_caller;  /* the caller uploads */
	struct triggers interval;
	int64_t keep, timeout_ms;
	char **ignore;
	size_t n_ignore;
	uint32_t n_uploads;
	struct pawl_rank rank;
	struct pawl_arena *arena;

	/* used only on the caller's thread */
	bool begun, has_last;
	bool started[2];           /* no file is in the way (R90); [1]: with ".tar" appended to the name */
	bool asked;                /* a rank that does not write has read the last save of rank 0 */
	struct pawl_progress last; /* intervals are counted from here: the last save, or the start */
	struct pawl_files *files;
	int lock_fd;
	pid_t locked_by;      /* the process that took the lock */
	char *work, *journal; /* keys below the folder */
	struct store *here;
	struct pool *finisher, *uploader;

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	struct composer_row *rows; /* ascending by seq */
	size_t n_rows, cap_rows;
	uint64_t next_seq, pointed_seq;             /* pointed: the newest that a remote pointer leads to */
	bool pointing, opening;                     /* a thread writes a pointer, or opens the remote store, now */
	unsigned n_busy;                            /* unfinished saves and uploads */
	unsigned n_saving;                          /* unfinished saves */
	struct store *there;                        /* opened by the first upload */
	struct upload *in_flight;                   /* uploads that were begun; composer_work.c */
	struct pawl_error save_error, upload_error; /* the first that was not reported yet; code 0 = none */
	atomic_bool stop;
};

/* ---- composer_names.c, pure */

/* .tar, .tar.gz, .tgz, .tar.bz2, .tar.lzma */
bool composer_is_tar(const char *name);
/* Fills a template in, without leading slashes (R86). as_tar: appends ".tar" if the name is not a
 * tar's (R80). */
int composer_fill(const char *template_text, const struct name_values *values, bool as_tar, char **ret,
                  struct pawl_error *err);
/* The format for a file, by name. NULL if its suffix names one, or a compression. */
const char *composer_format(const char *path);
/* Copies a text for the caller. PAWL_ELIMIT, and ret stays as it was, if cap is too small. */
int composer_give_text(const char *text, char *ret, size_t cap, struct pawl_error *err);
/* Copies the options that the caller knows; the others are 0, as all are if given is NULL. */
int composer_take_opts(const struct pawl_saver_opts *given, struct pawl_saver_opts *ret, struct pawl_error *err);
/* The same for a rank. */
int composer_take_rank(const struct pawl_rank *given, struct pawl_rank *ret, struct pawl_error *err);
/* As composer_fill, for a folder. Its part before the first variable may be any path. PAWL_EUSAGE:
 * a variable that changes during training. */
int composer_fill_folder(const char *template_text, const struct name_values *values, char **ret,
                         struct pawl_error *err);
/* Splits "s3://bucket/a/{epoch}" into the URL of the store ("s3://bucket") and the name in it
 * ("a/{epoch}"). For stores other than buckets, the store is all before the part with the first
 * variable, or before the last part. A name without "://" gives NULL and itself. PAWL_EUSAGE: a
 * variable in the name of the bucket. */
int composer_split_url(const char *template_text, char **ret_root, char **ret_name, struct pawl_error *err);
/* 1 if `name` can come from the template, its other variables being as in values. *ret then has the
 * counters in it; others are -1. */
int composer_parse(const char *template_text, const struct name_values *values, bool as_tar, const char *name,
                   struct pawl_progress *ret, struct pawl_error *err);
/* R90: true if a run at `now` may later write the file saved at `was`. Also true if `was` has no
 * total counters. */
bool composer_conflicts(const struct pawl_progress *was, const struct pawl_progress *now);
/* The target of a relative link, both below the same folder: "a/latest", "a/b/x" -> "b/x". NULL:
 * out of memory. */
char *composer_relative(const char *link, const char *target);

/* ---- composer_keep.c, pure; composer_journal.c */

/* The oldest row to delete, or SIZE_MAX. It is beyond the newest `keep` (-1 = all are kept), and
 * was uploaded or is not to be uploaded (R94, R95). The row with the seq `linked` stays. */
size_t composer_spent(const struct composer_row *rows, size_t n, int64_t keep, uint64_t linked);
/* The newest row before `now`, or at `now` if or_at, or NULL: intervals continue from it after a
 * restart. */
const struct composer_row *composer_before(const struct composer_row *rows, size_t n, const struct pawl_progress *now,
                                           bool or_at);

void composer_row_clear(struct composer_row *row);
/* On success it takes over what row owns. */
int composer_add_row(struct pawl_saver *s, const struct composer_row *row, struct pawl_error *err);
void composer_drop_row(struct pawl_saver *s, size_t i);
int composer_journal_write(struct pawl_saver *s, struct pawl_error *err);
/* A damaged journal counts as missing. */
int composer_journal_read(struct pawl_saver *s, struct pawl_error *err);

/* ---- composer_filter.c, pure */

/* The state without the paths in `ignore` (R98, R99), and only the model's weights if weights_only
 * (R97). Tensors stay borrowed. */
int composer_filter(const struct pawl_state *state, const char *const *ignore, size_t n, bool weights_only,
                    struct pawl_state **ret, struct pawl_error *err);

/* ---- composer_begin.c */

/* The values for templates; progress NULL = unknown. */
struct name_values composer_values(const struct pawl_saver *s, const struct pawl_progress *progress);
/* On the first call in a process that writes it locks the folder and reads the journal. It looks
 * for files in the way, resumes uploads, and deletes spent files. The first call with as_tar looks
 * for tar files in the way. In a process that does not write: reads the last save of rank 0. */
int composer_start(struct pawl_saver *s, const struct pawl_progress *now, bool writes, bool as_tar,
                   struct pawl_error *err);
/* Releases the folder's lock. */
void composer_unlock(struct pawl_saver *s);
/* The row of a file, or NULL. */
const struct composer_row *composer_own_row(const struct pawl_saver *s, const char *name);
/* The seq of the row that the latest link leads to: a run continues from it. 0: there is none. The
 * lock is held. */
int composer_linked(const struct pawl_saver *s, uint64_t *ret, struct pawl_error *err);

/* ---- composer_remote.c */

/* Uploads a file completely, and reads it back. PAWL_EEXISTS: something else has its name and must
 * not be replaced. */
int composer_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
                      const atomic_bool *stop, struct pawl_error *err);
/* Follows text objects that represent links; *key becomes the key of a file. PAWL_ENOTFOUND: they
 * lead to none. */
int composer_follow(const char *root, char **key, struct pawl_error *err);
/* Writes the text object that represents a link: its content is the key it leads to. */
int composer_put_pointer(struct store *to, const char *key, const char *target, struct pawl_error *err);

/* ---- composer_work.c: work on the threads */

/* One save, from writing its file on. The job frees all that it owns. */
struct composer_job {
	struct pawl_saver *saver;
	struct composer_row row;
	char *room;                 /* path of its own folder below .pawl/, removed with the job */
	char *staged;               /* path of the file in it */
	char *inner;                /* NULL, or path of a folder in it that is packed into the file */
	char *link;                 /* below the folder; NULL = none */
	struct pawl_ticket *ticket; /* NULL = the file is written */
};
void composer_job_free(struct composer_job *job);
void composer_finish(void *job); /* for the finisher */
/* Starts all waiting uploads. The lock is held. */
void composer_begin_uploads(struct pawl_saver *s);
/* Deletes spent files here. The lock is held. */
int composer_drop_spent(struct pawl_saver *s, struct pawl_error *err);
/* A path below the folder; NULL: out of memory. */
char *composer_path(const struct pawl_saver *s, const char *name);

#endif
