/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pawl_jobs.h - what is built on top of runs. The rules of pawl.h hold here, too.
 *
 *   1. comparing checkpoints    4. copying runs, syncing folders
 *   2. exporting, converting    5. single files
 *   3. resharding               6. archives of folders
 *                               7. checkpoint files by name (Composer)
 *
 * Not part of a library that was built with -Djobs=disabled.
 */
#ifndef PAWL_JOBS_H
#define PAWL_JOBS_H

#include "pawl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------- 1. comparing checkpoints */

enum pawl_change { PAWL_SAME = 0, PAWL_ADDED = 1, PAWL_REMOVED = 2, PAWL_CHANGED = 3 };
struct pawl_diff_row {
	const char *path;
	int change; /* enum pawl_change, never PAWL_SAME */
	int is_tensor;
	const char *was, *is;    /* dtype and shape; the value as text, or the type of a container,
	                            with its kind: "list (deque)". Types and kinds count only between
	                            checkpoints of one format */
	double max_abs, max_rel; /* of changed tensors with the same dtype and shape; else NaN. Two NaN
	                            count as equal */
};
struct pawl_diff;
/* Compares two checkpoints and streams their tensors. Both runs may be the same handle. */
PAWL_API int pawl_diff_open(struct pawl *run_a, uint64_t id_a, struct pawl *run_b, uint64_t id_b,
                            struct pawl_meter *meter, struct pawl_diff **ret, struct pawl_error *err);
PAWL_API size_t pawl_diff_count(const struct pawl_diff *diff);
PAWL_API const struct pawl_diff_row *pawl_diff_get(const struct pawl_diff *diff, size_t i);
PAWL_API void pawl_diff_free(struct pawl_diff *diff);

/* ---------------------------------------------------- 2. exporting, converting */

struct pawl_convert_opts {
	size_t size;
	const char *to; /* "safetensors", "hf", "pt", "dcp", "pawl", "npz", "npy"; NULL = by suffix: safetensors
	                   without one, "hf" for a folder and for shards */
	const char *const *include; /* globs of paths; none = everything */
	size_t n_include;
	const char *const *exclude;
	size_t n_exclude;
	const char *const *rename; /* "GLOB=TEMPLATE", the first that matches counts, such as
	                              "old.*=new.*". The n-th '*' on the right, or {n}, is what
	                              the n-th '*' or '?' matched. {0} is the full name */
	size_t n_rename;
	const char *dtype;        /* "fp16", "bf16", "fp32", "fp64" for F16, BF16, F32 and F64; NULL = keep */
	uint64_t max_shard_bytes; /* of "hf" and "dcp"; 0 = one file */
	const char *strip_prefix; /* removed from names of tensors, for example "model/"; NULL = none */
	int model;                /* 1: only the model, under the names that load_state_dict takes */
	int dots;                 /* 1: write '.' instead of '/' in names, after renaming */
	int overwrite;            /* 1: replace existing files; a checkpoint of pawl replaces nothing */
};
#define PAWL_CONVERT_OPTS_INIT {.size = sizeof(struct pawl_convert_opts)}
struct pawl_convert_report {
	size_t size;
	uint64_t n_tensors, n_files, bytes; /* written; bytes of tensors */
	uint64_t n_left;                    /* values that are not tensors and were left out */
};
#define PAWL_CONVERT_REPORT_INIT {.size = sizeof(struct pawl_convert_report)}
/* Writes a checkpoint (id 0: the latest) in another format. The source may also be a file or folder
 * of another program that was opened as one. Formats are safetensors, torch.save (.pt, a flat
 * dict), numpy (.npz, .npy), the folders of the Hugging Face libraries and of
 * torch.distributed.checkpoint, and checkpoints of pawl. Streams tensors in constant memory and
 * checks the source's checksums. Files get their names when all are complete and durable. Only
 * "dcp" without rename, and "pawl", keep values that are not tensors. "pawl" takes no include,
 * exclude, rename, dots and dtype. See docs/how-to/convert.md. PAWL_EEXISTS: two tensors would get
 * one name, or the target exists. PAWL_EUNSUPPORTED: the format lacks the dtype. ret: NULL or
 * initialised. */
PAWL_API int pawl_convert(struct pawl *run, uint64_t id, const char *target, const struct pawl_convert_opts *opts,
                          struct pawl_meter *meter, struct pawl_convert_report *ret, struct pawl_error *err);

/* ------------------------------------------------------------- 3. resharding */

struct pawl_reshard_opts {
	size_t size;
	uint32_t world_size;       /* ranks of the new checkpoint, at least 1 */
	int drop_rank_values;      /* 1: leave values per rank out if the number of ranks changes; 0:
	                              PAWL_EMISMATCH */
	const char *compression;   /* of the new packs, as in struct pawl_packs */
	int compression_level;     /* 0 = the default of the codec */
	const char *const *rename; /* other names and dtypes, as in struct pawl_restore_opts */
	size_t n_rename;
	const char *const *cast;
	size_t n_cast;
};
#define PAWL_RESHARD_OPTS_INIT {.size = sizeof(struct pawl_reshard_opts)}
/* Writes a checkpoint (id 0: the latest) to a new folder, target, as another number of ranks would
 * have written it. Large tensors are cut between rows into even shares, and each rank has its own
 * packs. Step, metrics and metadata stay. If the number of ranks changes, plain values that
 * differed become those of rank 0. Reads and checks every byte once, in constant memory. After a
 * failure nothing is left. */
PAWL_API int pawl_reshard(struct pawl *run, uint64_t id, const char *target, const struct pawl_reshard_opts *opts,
                          struct pawl_meter *meter, struct pawl_error *err);

/* ------------------------------------------- 4. copying runs, syncing folders */

/* Copies a complete run to a path or URL, or updates it there, the newest checkpoint first, with
 * ids, pins, scores and pointers. Removes nothing at the target and takes its lease. A repeated
 * call resumes. Checkpoints that are deleted meanwhile are left out. Those that are damaged at the
 * source are left out and reported (PAWL_ECORRUPT). *ret may be NULL; it is set after failures,
 * too. PAWL_ECONFLICT: the target has another checkpoint with this id. PAWL_EEXISTS: another run or
 * something else is there. */
PAWL_API int pawl_copy_run(struct pawl *run, const char *to, const struct pawl_copy_opts *opts,
                           struct pawl_meter *meter, struct pawl_copies **ret, struct pawl_error *err);

struct pawl_syncer_opts {
	size_t size;
	const char *command; /* with {source} and {target} in it, run without a shell; NULL = pawl's own ways */
	int shell;           /* 1: run the command by /bin/sh, with both places quoted */
	int64_t timeout_ms;  /* of one sync with its verification; 0 = 1,800,000 */
	int no_verify;       /* 1: do not read back and verify */
	const struct pawl_stores *stores; /* for URLs that pawl does not know, without a command; copied; NULL = none */
};
#define PAWL_SYNCER_OPTS_INIT {.size = sizeof(struct pawl_syncer_opts)}

struct pawl_syncer_report {
	size_t size;
	int verified;           /* 1: every checkpoint at the source was transferred and verified */
	uint64_t n_checkpoints; /* how many */
	double seconds;
	char note[200]; /* why it was not verified; "" otherwise */
};
#define PAWL_SYNCER_REPORT_INIT {.size = sizeof(struct pawl_syncer_report)}

/* Brings a folder with one or many runs to another place, or back. To user@host:path it uses rsync
 * over ssh, to a path or URL pawl's stores, or it runs a command. Nothing at the target is deleted.
 * Packs go before manifests; pointers go last, after what they name was verified. See
 * docs/how-to/sync.md. local: a path. Opening checks only the texts: PAWL_EUSAGE for an unknown
 * kind of place, a command without the fields, a password in a URL. Strings are copied. */
struct pawl_syncer;
PAWL_API int pawl_syncer_open(const char *local, const char *remote, const struct pawl_syncer_opts *opts,
                              struct pawl_syncer **ret, struct pawl_error *err);
/* From local to remote, and back. One at a time per handle, else PAWL_EBUSY. A failed sync may be
 * repeated; what was transferred is not sent again. ret: initialised, or NULL. */
PAWL_API int pawl_syncer_up(struct pawl_syncer *syncer, struct pawl_meter *meter, struct pawl_syncer_report *ret,
                            struct pawl_error *err);
PAWL_API int pawl_syncer_down(struct pawl_syncer *syncer, struct pawl_meter *meter, struct pawl_syncer_report *ret,
                              struct pawl_error *err);
/* Only verifies what another program has moved: at remote (down = 0) or at local. */
PAWL_API int pawl_syncer_verify(struct pawl_syncer *syncer, int down, struct pawl_meter *meter,
                                struct pawl_syncer_report *ret, struct pawl_error *err);
/* For programs that move files themselves: a view of the folder with complete checkpoints only. It
 * does not change until thaw or close removes it. Makes the parent folders of the target. */
PAWL_API int pawl_syncer_freeze(struct pawl_syncer *syncer, struct pawl_meter *meter, const char **ret_path,
                                struct pawl_error *err);
PAWL_API void pawl_syncer_thaw(struct pawl_syncer *syncer);
/* Removes folders at remote ("trial_1/checkpoint_3"). Succeeds if they do not exist, and if only a
 * command can write there. PAWL_EIO: a folder stays, since a file that the last sync sent to a
 * folder next to it is missing there, or cut. */
PAWL_API int pawl_syncer_prune(struct pawl_syncer *syncer, const char *const *folders, size_t n,
                               struct pawl_error *err);
/* Not during a sync. */
PAWL_API void pawl_syncer_close(struct pawl_syncer *syncer);
/* Duplicates the files of a folder in the same bucket, host or disk. Links or the server's own copy
 * do it, so no bytes pass through this machine. The files must not change meanwhile. Files with the
 * same name at `to` are replaced, others stay; symbolic links are left out. After a failure the
 * call may be repeated. PAWL_EUNSUPPORTED: these are two stores, or the store cannot do it. */
PAWL_API int pawl_clone_folder(const char *from, const char *to, struct pawl_meter *meter, struct pawl_error *err);

/* ------------------------------------------------------------ 5. single files */

struct pawl_files_opts {
	size_t size;
	struct pawl_arena *arena;  /* NULL = own */
	uint32_t threads;          /* that copy, at most 16, and that write, at most 4; 0 = one per
	                              processor */
	uint64_t bytes_per_second; /* written; 0 = no limit */
	struct pawl_fault *fault;  /* failures for tests; NULL = none */
};
#define PAWL_FILES_OPTS_INIT {.size = sizeof(struct pawl_files_opts)}

struct pawl_file_opts {
	size_t size;
	const char *format; /* a suffix that replaces that of the name, for example "pt.zst"; NULL = by name */
	int overwrite;      /* 0: PAWL_EEXISTS if the name is taken */
	int level;          /* of compression; 0 = its default */
	int raw_pickle;     /* 1: in .pt files a dict with the only key "$pickle" stands for these pickle
	                       opcodes. They have no PROTO, STOP and memo, and leave one object */
};
#define PAWL_FILE_OPTS_INIT {.size = sizeof(struct pawl_file_opts)}

/* Writes states to single files that other programs read, in the background, one after another. The
 * suffix decides the format: .pt or .pth (torch.load), .safetensors, each also compressed
 * (x.pt.zst). A file is written under a hidden name and renamed when it is durable; a failure
 * leaves the old file. May be used from any thread. See docs/how-to/files.md. */
struct pawl_files;
/* opts: NULL = defaults. */
PAWL_API int pawl_files_open(const struct pawl_files_opts *opts, struct pawl_files **ret, struct pawl_error *err);
/* Returns when the tensors have been copied; the state may then be freed. Refused before
 * anything is written: an unknown format, a value that the format cannot hold, a taken name, a
 * missing folder. After an earlier error that was not reported yet it returns that error. The
 * ticket has the stages STAGED, WRITTEN, then COMMITTED and SETTLED together. opts and
 * ret_ticket may be NULL. */
PAWL_API int pawl_files_save(struct pawl_files *files, const char *path, const struct pawl_file_opts *opts,
                             const struct pawl_state *state, struct pawl_ticket **ret_ticket, struct pawl_error *err);
/* Waits until all saves so far have ended (timeout_ms < 0: forever), then as pawl_files_check. */
PAWL_API int pawl_files_wait(struct pawl_files *files, int64_t timeout_ms, struct pawl_error *err);
/* The first error that was not reported yet, once. */
PAWL_API int pawl_files_check(struct pawl_files *files, struct pawl_error *err);
/* Waits, returns what pawl_files_check returns, and frees in any case. Tickets stay valid. */
PAWL_API int pawl_files_close(struct pawl_files *files, struct pawl_error *err);

/* ---------------------------------------------------- 6. archives of folders */

struct pawl_tar_opts {
	size_t size;
	int overwrite;      /* of packing: replace an existing archive */
	int level;          /* of compression; 0 = its default */
	uint32_t threads;   /* of compression; 0 = one per processor */
	uint64_t max_bytes; /* of unpacking; 0 = 1 TiB */
};
#define PAWL_TAR_OPTS_INIT {.size = sizeof(struct pawl_tar_opts)}
/* Packs the regular files and folders of a folder, sorted by name, into an archive. Its suffix
 * decides the format: .tar, .tgz, .tar.gz, .tar.zst, ... (docs/reference/composer.md). Other kinds
 * of files are PAWL_EUNSUPPORTED. The archive appears when it is durable. */
PAWL_API int pawl_tar_pack(const char *folder, const char *path, const struct pawl_tar_opts *opts,
                           struct pawl_error *err);
/* Unpacks into a folder that is empty or does not exist (else PAWL_EEXISTS). Refuses names that
 * lead out of it, links and devices. */
PAWL_API int pawl_tar_unpack(const char *path, const char *folder, const struct pawl_tar_opts *opts,
                             struct pawl_error *err);

/* ---------------------------------- 7. checkpoint files by name (Composer) */

/* One file per save, with a name from a template, as Composer's CheckpointSaver writes them
 * (docs/reference/composer.md). The newest are kept, and files are uploaded in the background. A
 * link names the latest, here and in the store. <folder>/.pawl records what was written and
 * uploaded, so that a later process can continue. One thread at a time per handle. */
struct pawl_saver;
struct pawl_saver_opts {
	size_t size;
	/* Templates. Variables: run_name rank local_rank world_size local_world_size node_rank; not
	 * in folder: epoch batch batch_in_epoch sample sample_in_epoch token token_in_epoch
	 * total_wct epoch_wct batch_wct. */
	const char *folder;           /* a path */
	const char *filename;         /* below the folder; the suffix is the format: .pt, .pt.zst, .tar.gz, ... */
	const char *remote_file_name; /* URL of a file (s3://bucket/{run_name}/..), or a name in `remote`;
	                                 NULL = no uploads */
	const char *latest_filename;  /* of a symbolic link to the latest; NULL = none */
	const char *latest_remote_file_name; /* in the same store; with ".symlink" appended, the object that
	                                  holds the remote name of the latest. NULL = none */
	const char *save_interval;           /* as pawl_interval_due takes it; NULL = the caller decides */
	int overwrite;                       /* 1: existing files may be replaced */
	int weights_only;                    /* 1: only what is at "model", or at "state/model" */
	int64_t num_checkpoints_to_keep;     /* in the folder; the oldest go first, each after its upload; -1 = all */
	const char *const *ignore_keys;      /* globs of paths that are left out of the state */
	size_t n_ignore_keys;
	uint32_t num_concurrent_uploads; /* 0 = 1, at most 64 */
	int64_t upload_timeout_ms;       /* of one file; 0 = 3,600,000 */
	const char *run_name;            /* NULL = unknown: {run_name} is then an error */
	const struct pawl_rank *rank;    /* NULL = pawl_rank_identify. Only rank 0 writes states; every rank
	                                    writes its own folders */
	const char *remote;              /* URL of the store for relative remote names; NULL = none */
	int uploads_by_caller;           /* 1: the caller uploads relative remote names without a store and
	                                    reports it by pawl_saver_uploaded */
	struct pawl_arena *arena;        /* NULL = own */
	int raw_pickle;                  /* as in struct pawl_file_opts */
};
#define PAWL_SAVER_OPTS_INIT                                                             \
	{.size = sizeof(struct pawl_saver_opts),                                         \
	 .folder = "{run_name}/checkpoints",                                             \
	 .filename = "ep{epoch}-ba{batch}-rank{rank}.pt",                                \
	 .remote_file_name = "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt", \
	 .latest_filename = "latest-rank{rank}.pt",                                      \
	 .latest_remote_file_name = "{run_name}/checkpoints/latest-rank{rank}.pt",       \
	 .save_interval = "1ep",                                                         \
	 .num_checkpoints_to_keep = -1,                                                  \
	 .num_concurrent_uploads = 1,                                                    \
	 .upload_timeout_ms = 3600000}
/* Writes nothing yet. PAWL_EUSAGE: unknown variables, names that lead out of the folder, options
 * that contradict each other. */
PAWL_API int pawl_saver_open(const struct pawl_saver_opts *opts, struct pawl_saver **ret, struct pawl_error *err);
/* The training is at `now`; intervals count from here. Makes the folder and resumes uploads of a
 * process that was killed. Without this call the first due or save does it, with intervals that
 * count from the last save before now. PAWL_EEXISTS: the folder has checkpoints of later points.
 * PAWL_EBUSY: another process writes these files. */
PAWL_API int pawl_saver_start(struct pawl_saver *saver, const struct pawl_progress *now, struct pawl_error *err);
/* 1 if a save is due: the interval or the end of the training (fraction 1) has passed since the
 * last save. Never twice for one batch. */
PAWL_API int pawl_saver_due(struct pawl_saver *saver, const struct pawl_progress *now, struct pawl_error *err);
/* Starts a save, due or not, and returns when the tensors have been copied: 0, or 1 if another rank
 * writes. First returns an error of an earlier save that was not reported yet. */
PAWL_API int pawl_saver_save(struct pawl_saver *saver, const struct pawl_progress *now, const struct pawl_state *state,
                             struct pawl_error *err);
/* The same with a folder of files instead of a state, such as DeepSpeed writes. Every rank packs
 * its own as a tar file (".tar" is appended if the name has no such suffix) and returns when it is
 * packed. PAWL_EUSAGE: weights_only, or {rank} is missing and several ranks would write one
 * file. */
PAWL_API int pawl_saver_save_folder(struct pawl_saver *saver, const struct pawl_progress *now, const char *folder,
                                    struct pawl_error *err);
/* Waits until all saves are durable and all uploads have ended; returns the first error that was
 * not reported yet, or PAWL_ETIMEOUT with PAWL_SYS_WAITED. */
PAWL_API int pawl_saver_wait(struct pawl_saver *saver, int64_t timeout_ms, struct pawl_error *err);
/* Waits until every save has its file or has failed, not for uploads. Reports no errors. */
PAWL_API int pawl_saver_wait_saves(struct pawl_saver *saver, int64_t timeout_ms, struct pawl_error *err);
/* The first error of a save or an upload that was not reported yet. A failed upload is tried again
 * after the next save. */
PAWL_API int pawl_saver_check(struct pawl_saver *saver, struct pawl_error *err);
/* Waits, and frees the handle in any case. */
PAWL_API int pawl_saver_close(struct pawl_saver *saver, struct pawl_error *err);

struct pawl_saved {
	size_t size;
	uint64_t seq; /* number of the save, from 1 */
	struct pawl_progress progress;
	int uploaded;
	char path[4096];
	char remote[1100];  /* name in the store; "" = none */
	char pointer[1100]; /* of the remote object that names it; "" = none */
};
#define PAWL_SAVED_INIT {.size = sizeof(struct pawl_saved)}
/* The i-th file in the folder, the oldest first, at most num_checkpoints_to_keep; all: with those
 * that only wait for their upload. PAWL_ENOTFOUND beyond the last. */
PAWL_API int pawl_saver_get(struct pawl_saver *saver, size_t i, int all, struct pawl_saved *ret,
                            struct pawl_error *err);
/* Files per checkpoint: 1, or for folders one per rank. */
PAWL_API uint32_t pawl_saver_writers(const struct pawl_saver *saver);
/* Path of the file that a rank has written for a row; with folders, valid on the node of that
 * rank. */
PAWL_API int pawl_saver_path(struct pawl_saver *saver, const struct pawl_saved *row, int32_t rank, char *ret,
                             size_t cap, struct pawl_error *err);
/* The caller has uploaded it. */
PAWL_API int pawl_saver_uploaded(struct pawl_saver *saver, uint64_t seq, struct pawl_error *err);
PAWL_API const char *pawl_saver_folder(const struct pawl_saver *saver);
/* 1 if it uploads. */
PAWL_API int pawl_saver_uploads(const struct pawl_saver *saver);

/* Downloads a file by its URL to path. Objects whose names end in ".symlink" are followed, also if
 * only such an object exists. A failure leaves nothing. */
PAWL_API int pawl_saver_fetch(const char *url, const char *path, struct pawl_error *err);
/* Where a run continues after a restart. That is the path that its latest link names (its own, or
 * that of rank 0), else the URL that its remote latest names. Uses folder, latest_filename,
 * latest_remote_file_name, remote, run_name and rank of the options. PAWL_ENOTFOUND: neither
 * exists. */
PAWL_API int pawl_saver_latest(const struct pawl_saver_opts *opts, char *ret, size_t cap, struct pawl_error *err);
/* ret: the path of a checkpoint file that can be opened. place: "latest", or a path or URL, which
 * may be a template without counters. Downloads go to folder, which must exist and be empty. Of a
 * tar the file composer_states.pt is read in place. */
PAWL_API int pawl_saver_bring(const struct pawl_saver_opts *opts, const char *place, const char *folder, char *ret,
                              size_t cap, struct pawl_error *err);

#ifdef __cplusplus
}
#endif
#endif
