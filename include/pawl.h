/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pawl.h - save training state without stopping the training, keep the right checkpoints, and
 * bring a run back exactly where it was.
 *
 * Read it from top to bottom, in the order of first use:
 *
 *   1. errors             6. saving                           11. mirrors and copies
 *   2. tensors            7. finding runs and checkpoints     12. stores of your own
 *   3. states             8. restoring                        13. testing programs that use pawl
 *   4. options of a run   9. when to save
 *   5. opening a run     10. events and maintenance
 *
 * pawl_jobs.h declares what is built on top of this: comparison, export, resharding, copies of
 * runs, syncing of folders, single files, archives, Composer's files.
 *
 * The shortest use:
 *
 *     struct pawl_error err = {0};
 *     struct pawl *run = NULL;
 *     struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
 *     opts.root = "runs/demo";
 *     if (pawl_open(&opts, &run, &err) < 0)
 *             ...                                               err.message says why
 *
 *     struct pawl_state *state = NULL;
 *     pawl_state_new(&state, &err);
 *     pawl_state_set_int(state, "epoch", 3, &err);
 *     pawl_state_set_tensor(state, "model/weight", &tensor, &err);
 *
 *     struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
 *     save.step = 3;
 *     pawl_save(run, &save, state, NULL, &err);                 returns after the copy
 *     ...
 *     pawl_wait(run, -1, &err);                                 all saves are durable
 *     pawl_close(run, NULL);
 *
 * Rules for all functions:
 * - A function that can fail returns 0, or another value that its comment explains, or a negative
 *   enum pawl_code. On failure it fills the caller's struct pawl_error, which may be NULL. It
 *   leaves all other out-parameters alone, unless its comment says otherwise. On success it leaves
 *   the error alone.
 * - Structs that may grow begin with `size`. Their _INIT macro sets it. In options, zero means the
 *   default. Later versions add fields at the end; structs inside others change with the soname.
 * - Handles are opaque. A function that frees one accepts NULL. Strings that a handle returns live
 *   as long as the handle. Close holds and restores before their run; tickets and lists may be used
 *   after it. A getter by index returns NULL beyond the last.
 * - A struct pawl and its tickets may be used from any thread. States, lists and restores may be
 *   used by one thread at a time. Callbacks run on the thread of the caller, unless their comment
 *   says otherwise.
 * - Strings are UTF-8. Names carry their units: _bytes, _ms, _seconds, _ns.
 * - The library never prints, exits or aborts. It has no global state, except what pawl_watch needs
 *   for its signals, and the libraries that it loads for buckets.
 */
#ifndef PAWL_H
#define PAWL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(PAWL_BUILD) && defined(__GNUC__)
#define PAWL_API __attribute__((visibility("default")))
#else
#define PAWL_API
#endif

#define PAWL_VERSION "0.1.0"
/* Version of the on-disk format that this library writes; compressed checkpoints have the next one.
 * It reads both, and all older ones. */
#define PAWL_FORMAT_VERSION 1

/* Version of the library at run time, for example "0.1.0". Static. */
PAWL_API const char *pawl_version(void);

/* ---------------------------------------------------------------- 1. errors */

enum pawl_code {
	PAWL_OK = 0,
	PAWL_EUSAGE = -1,        /* an argument or an option is wrong */
	PAWL_ENOMEM = -2,        /* out of memory */
	PAWL_ENOTFOUND = -3,     /* no such run, checkpoint, tensor or file */
	PAWL_EEXISTS = -4,       /* something would be overwritten */
	PAWL_EBUSY = -5,         /* another process writes this run, a save is running, or it is protected */
	PAWL_ECONFLICT = -6,     /* another writer won, or the lease was lost */
	PAWL_ENOSPACE = -7,      /* the disk or the quota is full */
	PAWL_EIO = -8,           /* the system reported an I/O error; `sys` holds errno */
	PAWL_ETRANSIENT = -9,    /* a retry may succeed */
	PAWL_EAUTH = -10,        /* permission or credentials are missing */
	PAWL_ECORRUPT = -11,     /* the bytes are not those that were written */
	PAWL_EVERSION = -12,     /* written by a newer version of the format */
	PAWL_ETIMEOUT = -13,     /* a deadline passed */
	PAWL_ECANCELLED = -14,   /* cancelled by the caller, or replaced by a newer save */
	PAWL_EMISMATCH = -15,    /* state and checkpoint do not fit each other */
	PAWL_ELIMIT = -16,       /* the input exceeds a documented limit */
	PAWL_EUNSUPPORTED = -17, /* not possible here, or not possible in a state */
	PAWL_EREADONLY = -18,    /* the handle was opened read-only, or the file system is */
	PAWL_EINTERNAL = -19,    /* a bug in pawl */
	PAWL_EDEVICE = -20       /* an accelerator or its driver failed */
};

/* Value of pawl_error.sys when a call that waits returns PAWL_ETIMEOUT because its own timeout
 * passed; what it waited for continues. Without it the save itself timed out, for example because
 * a rank delivered no part. */
#define PAWL_SYS_WAITED (-1)

/* Details of a failure; owned by the caller. message: lower case, names the object, what was
 * expected and what was found; always NUL-terminated. sys: errno, PAWL_SYS_WAITED or 0. */
struct pawl_error {
	int code;
	int sys;
	char message[1016];
};

/* Name of a code, for example "corrupt". Static; "unknown" for other numbers. */
PAWL_API const char *pawl_code_name(int code);
/* The code for a value of errno: ENOSPC and EDQUOT give PAWL_ENOSPACE, ENOENT gives PAWL_ENOTFOUND,
 * and so on. PAWL_EIO for all that have no code of their own. */
PAWL_API int pawl_code_from_errno(int sys);
/* Exit status of the command for a code. 0 ok, 1 failure, 2 usage, 3 not found, 4 corrupt, 5
 * temporary, 6 busy, 7 conflict, 130 cancelled. */
PAWL_API int pawl_code_exit_status(int code);
/* 1 if a repeated call may succeed although nothing was changed, else 0. */
PAWL_API int pawl_code_is_transient(int code);

/* --------------------------------------------------------------- 2. tensors */

/* The dtypes of safetensors 0.8, and complex128. The numbers never change. */
enum pawl_dtype {
	PAWL_BOOL = 1,
	PAWL_F4 = 2, /* float4_e2m1fn: 4 bits, two in a byte; the shape counts elements */
	PAWL_F6_E2M3 = 3,
	PAWL_F6_E3M2 = 4,
	PAWL_U8 = 5,
	PAWL_I8 = 6,
	PAWL_F8_E5M2 = 7,
	PAWL_F8_E4M3 = 8,
	PAWL_F8_E8M0 = 9,
	PAWL_F8_E4M3FNUZ = 10,
	PAWL_F8_E5M2FNUZ = 11,
	PAWL_I16 = 12,
	PAWL_U16 = 13,
	PAWL_F16 = 14,
	PAWL_BF16 = 15,
	PAWL_I32 = 16,
	PAWL_U32 = 17,
	PAWL_F32 = 18,
	PAWL_C64 = 19,
	PAWL_F64 = 20,
	PAWL_I64 = 21,
	PAWL_U64 = 22,
	PAWL_C128 = 23 /* stored in packs as F64 with a last dimension of 2 */
};

#define PAWL_MAX_DIMS 64

/* Upper-case safetensors name ("F32", "BF16", "C128"); NULL for another number. */
PAWL_API const char *pawl_dtype_name(int dtype);
/* Bits of one element (4, 6, 8 .. 128); 0 for another number. */
PAWL_API unsigned pawl_dtype_bits(int dtype);
/* Number of a name; 0 if there is no such name. */
PAWL_API int pawl_dtype_from_name(const char *name);

/* Bytes that are borrowed. */
struct pawl_slice {
	const void *ptr;
	size_t len;
};

/* Copies a tensor that the processor cannot read (for example one on a GPU) into dst: exactly
 * nbytes, C order. Called inside pawl_save. Returns 0 or a negative enum pawl_code. */
typedef int pawl_fill_fn(void *arg, void *dst, size_t nbytes, struct pawl_error *err);

/* Which of many ranks writes a tensor. */
enum pawl_writer {
	PAWL_WRITER_AUTO = 0,     /* a shard: the rank that passes it. A full tensor: all ranks pass
	                             the same one and share the writing of its bytes */
	PAWL_WRITER_HERE = 1,     /* this rank writes all that it passes */
	PAWL_WRITER_ELSEWHERE = 2 /* another rank; this one only states that the tensor exists */
};

/* Whose memory `data` of a tensor points to. */
enum pawl_device { PAWL_DEVICE_HOST = 0, PAWL_DEVICE_CUDA = 1, PAWL_DEVICE_HIP = 2 };
#define PAWL_NO_STREAM UINT64_MAX

/* Can this process copy from and to devices of this kind? Uses only a driver that the process has
 * loaded already. PAWL_ENOTFOUND: there is none. PAWL_EUNSUPPORTED: the driver is too old. */
PAWL_API int pawl_device_check(int device, struct pawl_error *err);

/* A tensor of the caller. Everything is borrowed: arrays until the call returns, `data` as the
 * function that takes the tensor says. */
struct pawl_tensor {
	size_t size;                  /* sizeof(struct pawl_tensor), by PAWL_TENSOR_INIT */
	int dtype;                    /* enum pawl_dtype */
	uint32_t ndim;                /* 0 for a scalar; at most PAWL_MAX_DIMS */
	const uint64_t *shape;        /* ndim extents, outermost first */
	const int64_t *strides;       /* ndim, in elements, any sign; NULL = C order */
	void *data;                   /* first element; may be NULL when nbytes is 0 or fill is set */
	const uint64_t *global_shape; /* ndim; NULL = this is the full tensor, not a shard */
	const uint64_t *offsets;      /* ndim; where this shard begins in the global tensor */
	pawl_fill_fn *fill;           /* set for memory that the processor cannot read */
	void *fill_arg;
	const char *kind; /* tag that comes back with the leaf ("torch", "numpy"), at most
	                     32 bytes; NULL = none */
	int writer;       /* enum pawl_writer; used only with many ranks */
	int device;       /* enum pawl_device: `data` is a pointer of this driver */
	int device_id;    /* number of the device in this process; -1 = the driver is asked */
	uint64_t stream;  /* the driver's handle of the stream that computes the tensor; 0 is
	                     the default stream. PAWL_NO_STREAM: a save or a restore waits
	                     for all work of the device, which is slow. After a lazy save it
	                     must exist until pawl_fence has returned */
};
#define PAWL_TENSOR_INIT {.size = sizeof(struct pawl_tensor), .device_id = -1, .stream = PAWL_NO_STREAM}

/* ---------------------------------------------------------------- 3. states */

/* A state is a tree of dict, list, tuple, tensor, int, float, bool, str, bytes and None. Leaves
 * have paths: keys and indices joined with '/'. Inside a key, '/' is written %2F and '%' %25. */
struct pawl_state;
struct pawl_node; /* a node of a state; borrowed, valid as long as the state */

enum pawl_type {
	PAWL_NONE = 0,
	PAWL_BOOLEAN = 1, /* i: 0 or 1 */
	PAWL_INT = 2,     /* i; beyond 64 bits decimal text in ptr and len */
	PAWL_FLOAT = 3,   /* f, bit-exact, also NaN and infinities */
	PAWL_STR = 4,     /* ptr and len, UTF-8 */
	PAWL_BYTES = 5,   /* ptr and len */
	PAWL_TENSOR = 6,
	PAWL_DICT = 7,
	PAWL_ODICT = 8, /* a dict that the caller's language calls ordered; same rules */
	PAWL_LIST = 9,
	PAWL_TUPLE = 10,
	PAWL_PER_RANK = 11, /* a value that each rank has for itself, such as a random generator. Built
	                       with one child, this rank's value; a checkpoint holds those of all ranks */
	PAWL_DIFFERS = 12   /* only in checkpoints of many ranks: a plain value that differed between them */
};

/* A value without children: a leaf, or a key of a dict (NONE .. BYTES). ptr: of str and bytes, NULL
 * in a restored state while a long one is not read (pawl_restore_state). */
struct pawl_scalar {
	int type;
	int64_t i;
	double f;
	const char *ptr;
	size_t len;
};

PAWL_API int pawl_state_new(struct pawl_state **ret, struct pawl_error *err);
PAWL_API void pawl_state_free(struct pawl_state *state);
/* The rank that builds the state, of how many (default 0 of 1). PAWL_EUSAGE if anything was added
 * already. PAWL_PER_RANK needs it. */
PAWL_API int pawl_state_set_rank(struct pawl_state *state, uint32_t rank, uint32_t world_size, struct pawl_error *err);

/* Simple building. Sets the leaf at a path of string keys ("model/layer1/weight") and makes the
 * dicts above it. PAWL_EEXISTS if the path is set already. str and bytes are copied. The data of a
 * tensor is borrowed until the save that uses the state has copied it (see pawl_save). */
PAWL_API int pawl_state_set_none(struct pawl_state *state, const char *path, struct pawl_error *err);
PAWL_API int pawl_state_set_bool(struct pawl_state *state, const char *path, int value, struct pawl_error *err);
PAWL_API int pawl_state_set_int(struct pawl_state *state, const char *path, int64_t value, struct pawl_error *err);
PAWL_API int pawl_state_set_float(struct pawl_state *state, const char *path, double value, struct pawl_error *err);
PAWL_API int pawl_state_set_str(struct pawl_state *state, const char *path, const char *value, struct pawl_error *err);
PAWL_API int pawl_state_set_bytes(struct pawl_state *state, const char *path, const void *ptr, size_t len,
                                  struct pawl_error *err);
PAWL_API int pawl_state_set_tensor(struct pawl_state *state, const char *path, const struct pawl_tensor *tensor,
                                   struct pawl_error *err);

/* Full building, in document order: begin a container, add its children (in a dict each after its
 * key), end it. The first value is the root. Limits: depth 256, 10,000,000 nodes.
 * type: PAWL_DICT, PAWL_ODICT, PAWL_LIST, PAWL_TUPLE or PAWL_PER_RANK. */
PAWL_API int pawl_state_begin(struct pawl_state *state, int type, struct pawl_error *err);
PAWL_API int pawl_state_end(struct pawl_state *state, struct pawl_error *err);
PAWL_API int pawl_state_key(struct pawl_state *state, const struct pawl_scalar *key, struct pawl_error *err);
/* A tag of at most 32 bytes for the container or scalar that is added next. It comes back with the
 * node (pawl_node_kind), and a reader that does not know it sees the plain value. "" = none. */
PAWL_API int pawl_state_kind(struct pawl_state *state, const char *kind, struct pawl_error *err);
PAWL_API int pawl_state_add(struct pawl_state *state, const struct pawl_scalar *value, struct pawl_error *err);
PAWL_API int pawl_state_add_tensor(struct pawl_state *state, const struct pawl_tensor *tensor, struct pawl_error *err);

/* Reading. The root of an empty state is NULL. */
PAWL_API const struct pawl_node *pawl_state_root(const struct pawl_state *state);
/* The node at a path; NULL if there is none. */
PAWL_API const struct pawl_node *pawl_state_at(const struct pawl_state *state, const char *path);
PAWL_API int pawl_node_type(const struct pawl_node *node);
/* Number of children; 0 for leaves. */
PAWL_API size_t pawl_node_count(const struct pawl_node *node);
PAWL_API const struct pawl_node *pawl_node_first(const struct pawl_node *node); /* NULL when empty */
PAWL_API const struct pawl_node *pawl_node_next(const struct pawl_node *node);  /* NULL after the last */
PAWL_API const struct pawl_scalar *pawl_node_key(const struct pawl_node *node); /* NULL outside of dicts */
/* The value of a leaf; NULL for tensors and containers. */
PAWL_API const struct pawl_scalar *pawl_node_scalar(const struct pawl_node *node);
/* Of PAWL_PER_RANK and PAWL_DIFFERS the value of this rank: the only child, or NULL in a restored
 * state that another number of ranks has saved. Of every other node the node itself. */
PAWL_API const struct pawl_node *pawl_node_own(const struct pawl_node *node);
/* Index in the state's table of tensors; SIZE_MAX if the node is not a tensor. Leaves with the same
 * memory, dtype, shape and strides (tied weights) share one index. */
PAWL_API size_t pawl_node_tensor(const struct pawl_node *node);
/* Tag of a node; "" if it has none. */
PAWL_API const char *pawl_node_kind(const struct pawl_node *node);

/* The value of a leaf. PAWL_EMISMATCH: it has another type. PAWL_ELIMIT: the int has more than 64
 * bits. A str lives as long as the state. */
PAWL_API int pawl_state_get_int(const struct pawl_state *state, const char *path, int64_t *ret, struct pawl_error *err);
PAWL_API int pawl_state_get_float(const struct pawl_state *state, const char *path, double *ret,
                                  struct pawl_error *err);
PAWL_API int pawl_state_get_str(const struct pawl_state *state, const char *path, const char **ret,
                                struct pawl_error *err);

/* A row of the table of tensors; borrowed from the state. */
struct pawl_tensor_info {
	const char *name; /* path of its first leaf, unique in the state */
	int dtype;
	uint32_t ndim;
	const uint64_t *shape; /* global shape */
	uint64_t nbytes;       /* of the global tensor */
};
/* Index of the tensor that was added last; an earlier index if the memory is the same. SIZE_MAX =
 * none yet. */
PAWL_API size_t pawl_state_last_tensor(const struct pawl_state *state);
PAWL_API size_t pawl_state_tensor_count(const struct pawl_state *state);
PAWL_API const struct pawl_tensor_info *pawl_state_tensor(const struct pawl_state *state, size_t index);
/* 1 if the path of a leaf matches a glob, else 0. '*' matches within and across '/'. */
PAWL_API int pawl_path_matches(const char *glob, const char *path);

/* ----------------------------------------------------- 4. options of a run */

struct pawl;        /* a run: a folder with checkpoints, opened for writing or reading */
struct pawl_arena;  /* staging memory, kept between saves */
struct pawl_ticket; /* a save that runs or has ended */
struct pawl_fault;  /* failures for tests, section 13 */
struct pawl_stores; /* stores of your own, section 12 */
struct pawl_metric; /* name and value, section 6 */
struct pawl_meter;  /* progress and cancellation, section 10 */

#define PAWL_KEEP_MEMORY (-2) /* num_to_keep: write nothing, keep the newest in memory */

/* A checkpoint, as a rule of the caller sees it. */
struct pawl_candidate {
	uint64_t id;
	int64_t step;
	double unix_seconds;
	uint64_t bytes; /* what deleting it frees at most */
	const struct pawl_metric *metrics;
	size_t n_metrics;
	int pinned, nonfinite;
};
/* Sets keep[i] for each candidate that the rule keeps; they are sorted by id, and keep[] is 0. May
 * run on any thread, and must not use the run. A negative code deletes nothing. */
typedef int pawl_keep_fn(void *arg, const struct pawl_candidate *candidates, size_t n, unsigned char *keep,
                         struct pawl_error *err);

/* What to keep. A checkpoint is kept if any rule keeps it. The latest, the best, the pinned, those
 * that a reader holds and the newest without NaN or Inf are always kept. No rule = keep all. */
struct pawl_retention {
	size_t size;
	int64_t num_to_keep;                 /* N >= 1: the newest N, with score attributes the best N; 0 = not set;
	                                        PAWL_KEEP_MEMORY */
	uint64_t keep_last;                  /* the newest N; 0 = not set, also below */
	uint64_t keep_best;                  /* the best N by score */
	const char *const *score_attributes; /* names of metrics, compared in this order. Checkpoints
	                        without a finite value come last, the older first */
	const int *score_orders;             /* for each attribute +1 = max, -1 = min; NULL = all max */
	size_t n_scores;                     /* at most 16 */
	uint64_t keep_every;                 /* the first checkpoint of every N steps: at each multiple, or the next
	                                        after it */
	double keep_seconds;                 /* checkpoints younger than this */
	double keep_hourly, keep_daily, keep_weekly; /* seconds: of the checkpoints younger than this,
	                        the first in every hour, day or week (UTC) */
	uint64_t max_bytes; /* of all together; the oldest go first, never pinned, held, best or latest */
	int drop_latest;    /* 1: num_to_keep and keep_best do not spare the latest */
	int strict_score;   /* 1: a full list of the best refuses a tie or worse before anything is
	                       written, as Ray's legacy manager does */
	pawl_keep_fn *keep; /* a rule of the caller; NULL = none */
	void *keep_arg;
};
#define PAWL_RETENTION_INIT {.size = sizeof(struct pawl_retention)}

enum pawl_mode {
	PAWL_MODE_SNAPSHOT = 0, /* copy to staging memory, return, write in the background */
	PAWL_MODE_RING = 1,     /* copy through ring_bytes; the caller waits for the last copy */
	PAWL_MODE_DIRECT = 2    /* like the ring; the caller also waits for the writes */
};

/* How tensors get from the caller to the writing threads. */
struct pawl_staging {
	struct pawl_arena *arena; /* shared staging memory; NULL = own */
	int mode;                 /* enum pawl_mode */
	uint32_t copy_threads;    /* 0 = one per processor, at most 4 */
	uint64_t arena_bytes;     /* most memory of one save, at least 8 MiB; larger states use a ring;
	                             0 = no limit */
	uint64_t ring_bytes;      /* 0 = 64 MiB */
	int device;               /* 1: a snapshot of tensors on devices is first copied within the
	                             device where its memory allows, so that pawl_save returns at
	                             once. The memory is kept. 0: never */
};

/* How checkpoints are stored in files. */
struct pawl_packs {
	uint64_t pack_bytes;     /* target size of a file; 0 = 256 MiB. The first saves use a 32nd of it,
	                            until it is known which tensors change */
	uint64_t block_bytes;    /* bytes per checksum, a power of two from 64 KiB to 8 MiB; 0 = 1 MiB */
	const char *compression; /* "zst" or "planes" (docs/how-to/compression.md); "auto" = planes where the
	                            store is slower than compression; NULL, "" or "none" = none */
	int compression_level;   /* 0 = the default of the codec */
	uint32_t recycle;        /* deleted checkpoints whose files are kept for reuse; 0 = none */
	int no_reuse;            /* 1: write unchanged tensors again instead of linking their files */
};

/* How bytes reach the store. */
struct pawl_io {
	uint32_t threads;                 /* 0 = 4 */
	int no_direct;                    /* 1: use the page cache for writes and reads */
	uint64_t write_bytes_per_second;  /* of all threads together; 0 = no limit */
	uint64_t read_bytes_per_second;   /* of all threads together; 0 = no limit */
	const struct pawl_stores *stores; /* for URLs that pawl does not know; copied; NULL = none */
	struct pawl_fault *fault;         /* failures for tests; NULL = none */
	const struct pawl_meter *meter;   /* if its cancel is set, waits for a limit of bytes end with
	                                     PAWL_ECANCELLED; NULL = none. Must outlive the run */
};

/* The rank of this process. */
struct pawl_rank {
	size_t size;
	int32_t rank, world_size;                        /* 0 of 1 if no launcher was found */
	int32_t local_rank, local_world_size, node_rank; /* -1 = unknown */
	char launcher[24]; /* "torchrun", "slurm", ...; "env" for RANK and WORLD_SIZE; "" = none */
	char attempt[192]; /* the same on all ranks of this start of the job, different for every
	                      other start; "" if the launcher has nothing like it */
};
#define PAWL_RANK_INIT {.size = sizeof(struct pawl_rank)}
/* Reads the variables that launchers set (docs/explanation/multi-rank.md has the table). The first
 * launcher found counts; an empty variable counts as not set. PAWL_EUSAGE names a variable with a
 * bad value. No other thread may change the environment during the call. */
PAWL_API int pawl_rank_identify(struct pawl_rank *rank, struct pawl_error *err);

/* Fills bytes with those of rank 0. Every rank calls it at the same point. Returns 0 or a negative
 * enum pawl_code. */
typedef int pawl_broadcast_fn(void *arg, void *bytes, size_t nbytes, struct pawl_error *err);

/* Many processes that save and restore one run together (docs/explanation/multi-rank.md). Every
 * rank opens the same root and calls pawl_save and pawl_restore equally often in the same order. */
struct pawl_ranks {
	const struct pawl_rank *self; /* from pawl_rank_identify; copied; NULL = alone */
	pawl_broadcast_fn *broadcast; /* replaces files in the store when the run is opened and when a
	                                 clock decides that a save is due; NULL = none */
	void *broadcast_arg;
	const char *node_folder; /* packs go to a folder of each node that all nodes can read: a path with
	                            {node_rank} in it. Give it at every open. NULL = in root */
	uint32_t n_partners;     /* other nodes that keep a copy of each pack, 0 to 7 */
	uint32_t n_nodes;        /* 0 = computed from self->local_world_size */
};

/* Another store to which committed checkpoints are copied in the background: a run of its own
 * (docs/how-to/mirrors.md). Files that are missing or damaged in root are read from it. */
struct pawl_mirror {
	const char *url;
	const char *every; /* copies only the first checkpoint at or after each multiple of this time
	                      string; NULL = every checkpoint */
	const struct pawl_retention *retention; /* of the copies; NULL = keep all */
};
/* How checkpoints reach the mirrors. */
struct pawl_uploads {
	uint32_t n_streams;        /* pieces in flight; 0 = 4, at most 64 */
	uint32_t error_budget;     /* failed tries in a row that are not reported; 0 = report each */
	uint64_t memory_bytes;     /* of the buffers of one upload; 0 = 256 MiB */
	uint64_t bytes_per_second; /* into each mirror; 0 = no limit */
	int delete_local;          /* 1: delete a checkpoint in root once every mirror has it, the latest
	                              too; pins and holds protect it */
	int fail_saves;            /* 1: failed uploads fail pawl_save and pawl_wait, and unreachable mirrors
	                              pawl_open; 0: pawl_check, pawl_wait_level, pawl_close report them */
	int leave_uploads;         /* 1: pawl_close does not wait; the next open resumes the uploads */
};

/* How long things may take. The lease keeps two processes from writing one run. */
struct pawl_timeouts {
	int64_t lease_ms;      /* a lease that is not renewed for this time is taken over; 0 = 120,000 */
	int64_t lease_wait_ms; /* for the lease of another process; 0 = until it is known to be alive or
	                          dead; -1 = do not wait */
	int64_t commit_ms;     /* longest wait for the other ranks; 0 = 1,800,000 */
	int64_t upload_ms;     /* of one checkpoint to one mirror, then it is tried again; 0 = 3,600,000 */
	double mtbf_seconds;   /* mean time between failures, for save_interval "auto"; 0 = 24 h */
};
/* Called every 2 s or more often while an open waits for a lease. A negative code ends the wait. */
typedef int pawl_lease_wait_fn(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err);

/* How a run and its checkpoints are named. */
struct pawl_naming {
	const char *run_id;        /* expected id of the run; NULL = any, or a new one */
	const char *name_template; /* of a checkpoint's folder; NULL = "checkpoint_{id:06d}" */
	uint64_t after_id;         /* new checkpoints get ids above this one */
};

/* What a save does while another save of the run is written. */
enum pawl_on_busy {
	PAWL_BUSY_WAIT = 0,
	PAWL_BUSY_SKIP = 1,   /* pawl_save returns PAWL_EBUSY and changes nothing */
	PAWL_BUSY_REPLACE = 2 /* copy the state; a copy that still waits is dropped (PAWL_ECANCELLED) */
};

/* What a save does with NaN and Inf in tensors or floats. */
enum pawl_nonfinite {
	PAWL_NONFINITE_ACCEPT = 0,
	PAWL_NONFINITE_FLAG = 1,  /* mark the checkpoint */
	PAWL_NONFINITE_REFUSE = 2 /* fail the save */
};

/* Zero means the default everywhere. pawl_option_get lists all options with unit and default. */
struct pawl_open_opts {
	size_t size;
	const char *root;                /* a path, file://path, a URL (docs/how-to/stores.md), or mem: for memory */
	int read_only;                   /* 1: no lease; only holds, pins and scores are written */
	int single;                      /* 1: root is one checkpoint, not a run. With read_only also a file or
	                                    folder that another program wrote (docs/how-to/convert.md) */
	int overwrite;                   /* 1: use a folder that holds another run; with single: replace it */
	int maintenance;                 /* 1: open to maintain the run: no new attempt, no clean-up */
	const char *save_interval;       /* for pawl_should_save, section 9; NULL = always due */
	int on_busy;                     /* enum pawl_on_busy */
	int nonfinite;                   /* enum pawl_nonfinite */
	struct pawl_retention retention; /* without score attributes, those of the run's last training count */
	struct pawl_staging staging;
	struct pawl_packs packs;
	struct pawl_io io;
	struct pawl_ranks ranks;
	const struct pawl_mirror *mirrors;
	size_t n_mirrors; /* at most 8 */
	struct pawl_uploads uploads;
	struct pawl_timeouts timeouts;
	pawl_lease_wait_fn *on_lease_wait; /* first called with waited_ms 0 */
	void *on_lease_wait_arg;
	struct pawl_naming naming;
};
#define PAWL_OPEN_OPTS_INIT {.size = sizeof(struct pawl_open_opts), .retention = PAWL_RETENTION_INIT}

/* One row of the table of options, from which the bindings and the reference are made. */
enum pawl_option_type {
	PAWL_OPTION_FLAG = 0,    /* int, 0 or 1 */
	PAWL_OPTION_CHOICE = 1,  /* int, index in `choices` */
	PAWL_OPTION_INT = 2,     /* int64_t or int, by `width` */
	PAWL_OPTION_COUNT = 3,   /* uint32_t or uint64_t, by `width` */
	PAWL_OPTION_BYTES = 4,   /* uint64_t */
	PAWL_OPTION_MS = 5,      /* int64_t, milliseconds */
	PAWL_OPTION_SECONDS = 6, /* double */
	PAWL_OPTION_TEXT = 7,    /* const char * */
	PAWL_OPTION_CALLER = 8   /* a pointer that only C can set: a callback, an array, a handle */
};
struct pawl_option {
	const char *name;     /* path in struct pawl_open_opts: "staging.ring_bytes" */
	int type;             /* enum pawl_option_type */
	size_t offset, width; /* of the field in struct pawl_open_opts, in bytes */
	int64_t low, high;    /* of numbers, after the default was filled in; 0, 0 = any */
	int64_t zero_is;      /* the number that a zero stands for; 0 = zero itself */
	const char *choices;  /* "snapshot ring direct"; NULL unless it is a choice */
	const char *what;     /* one sentence */
};
/* The i-th option; NULL after the last. Static. */
PAWL_API const struct pawl_option *pawl_option_get(size_t i);
/* Sizes and durations as people write them: "500MB" (1,000s), "2GiB" or "2G" (1,024s), also with
 * "/s"; "250ms", "5min", "7 days". Units in any case. Without a unit it is bytes or seconds. */
PAWL_API int pawl_parse_bytes(const char *text, uint64_t *ret, struct pawl_error *err);
PAWL_API int pawl_parse_seconds(const char *text, double *ret, struct pawl_error *err);

/* Staging memory that several runs of a process share. limit_bytes 0 = no limit. Thread-safe. A run
 * without one makes its own. The arena must outlive the runs that use it. */
PAWL_API int pawl_arena_new(size_t limit_bytes, struct pawl_arena **ret, struct pawl_error *err);
PAWL_API void pawl_arena_free(struct pawl_arena *arena);
/* Maps nbytes and faults them in before the first save. */
PAWL_API int pawl_arena_reserve(struct pawl_arena *arena, size_t nbytes, struct pawl_error *err);
/* Bytes of memory held now. */
PAWL_API size_t pawl_arena_bytes(const struct pawl_arena *arena);

/* ------------------------------------------------------- 5. opening a run */

/* Opens or creates a run and takes its lease, unless read_only. Strings are copied. PAWL_EBUSY
 * names the process that holds the lease. PAWL_EEXISTS: the folder holds another run. */
PAWL_API int pawl_open(const struct pawl_open_opts *opts, struct pawl **ret, struct pawl_error *err);
/* Waits for running saves, and for uploads without uploads.leave_uploads. Releases the lease.
 * Returns the first error of either that was not reported yet. The handle is freed in any case. */
PAWL_API int pawl_close(struct pawl *run, struct pawl_error *err);
PAWL_API const char *pawl_root(const struct pawl *run);   /* as given; absolute for paths */
PAWL_API const char *pawl_run_id(const struct pawl *run); /* 32 hex digits; "" for single */
/* What the store cannot guarantee to a run that is open for writing, in words; NULL = nothing. */
PAWL_API const char *pawl_warning(const struct pawl *run);
PAWL_API uint32_t pawl_my_rank(const struct pawl *run);    /* 0 when alone */
PAWL_API uint32_t pawl_world_size(const struct pawl *run); /* 1 when alone */
/* Reads what other processes have committed or deleted since. */
PAWL_API int pawl_reload(struct pawl *run, struct pawl_error *err);

/* 1 while a process has the run open for writing and is not known to be dead. Only for display:
 * one look cannot prove more about a process on another host. */
PAWL_API int pawl_is_open(struct pawl *run);

/* ---------------------------------------------------------------- 6. saving */

/* Counters of a training run; -1 = unknown. */
struct pawl_progress {
	int64_t epoch, batch, batch_in_epoch, sample, sample_in_epoch, token, token_in_epoch, iteration;
	double total_wct, epoch_wct, batch_wct; /* wall-clock seconds; < 0 = unknown */
	double fraction;                        /* of the training, 0 to 1; < 0 = unknown */
};
#define PAWL_PROGRESS_INIT {-1, -1, -1, -1, -1, -1, -1, -1, -1.0, -1.0, -1.0, -1.0}

struct pawl_metric {
	const char *name;
	double value;     /* NaN and infinities are stored, but are never the best */
	int not_a_number; /* 1: the caller's value is not a number; an error if the score needs it */
};

/* Which tensor has changed since pawl_save was called? Returns the index of one, or SIZE_MAX for
 * none. later: 0 = among those that were copied during the call, 1 = among the others. Called once
 * or twice after the copy, on any thread. */
typedef size_t pawl_changed_fn(void *arg, int later);

/* Must pawl_save end now? Called on the thread of pawl_save, ten times a second while it waits. */
typedef int pawl_interrupted_fn(void *arg);

struct pawl_save_opts {
	size_t size;
	int64_t step;                  /* the caller's own counter */
	struct pawl_progress progress; /* if all is unknown, batch = step */
	const struct pawl_metric *metrics;
	size_t n_metrics;
	const struct pawl_state *metadata; /* small values without tensors; NULL = none */
	int lazy;                          /* 1: return at once; the tensors must not change until pawl_fence
	                                      returns. If one does, the save fails and names it. Small states
	                                      are copied at once */
	int mode;                          /* 0 = the run's, else enum pawl_mode + 1 */
	int on_busy;                       /* 0 = the run's, else enum pawl_on_busy + 1. With many ranks
	                                      0 or PAWL_BUSY_WAIT + 1 */
	const unsigned char *at_once;      /* with lazy, one per tensor of the state: 1 = copied before
	                                      pawl_save returns. NULL = none */
	pawl_changed_fn *changed;          /* asked before the commit; NULL = the caller does not know */
	void *changed_arg;                 /* must live until the state was copied */
	const unsigned char *rests;        /* one per tensor of the state: 1 = it rarely changes. Such
	                                      tensors share files only with each other, from the first
	                                      save on. NULL = not known */
	pawl_interrupted_fn *interrupted;  /* not 0: the call ends with PAWL_ECANCELLED if it waits for
	                                      another save, for room in a ring, or for the store
	                                      (direct). NULL = never */
	void *interrupted_arg;             /* used only during the call */
};
#define PAWL_SAVE_OPTS_INIT {.size = sizeof(struct pawl_save_opts), .progress = PAWL_PROGRESS_INIT}

/* Maps the staging memory for saves of this state and faults it in on a thread of the run. The
 * first save then takes as long as later ones. Returns at once; the state is only measured.
 * pawl_restore_read does the same for what it has restored. An earlier save uses what is ready.
 * Without memory nothing is prepared; that is not an error. */
PAWL_API int pawl_prepare(struct pawl *run, const struct pawl_state *state, struct pawl_error *err);

/* Starts a save. Returns when the tensors have been copied (snapshot, ring), written (direct), or
 * at once (lazy). The library's threads do the rest. The state may be freed on return. The data of
 * its tensors must not change before the return, or with lazy before pawl_fence returns. A lazy
 * save reads them twice and fails with PAWL_EUSAGE if one has changed; docs/reference/c.md says
 * what it cannot see. ret_ticket may be NULL. A save is refused before anything is written:
 * - if a score attribute is missing (PAWL_EUSAGE), or space (PAWL_ENOSPACE);
 * - during another save, with PAWL_BUSY_SKIP (PAWL_EBUSY);
 * - after an error of an earlier save that was not reported yet (that error). With many ranks such
 *   an error does not stop the save: it begins, and the call returns the error without a ticket. */
PAWL_API int pawl_save(struct pawl *run, const struct pawl_save_opts *opts, const struct pawl_state *state,
                       struct pawl_ticket **ret_ticket, struct pawl_error *err);

/* With many ranks: this rank cannot take part in the save that the others start now, because its
 * state could not be built. Waits for its turn and tells the others why, so that the save fails at
 * once on all ranks. opts: the step and progress of that save, from which intervals count; NULL if
 * they are unknown. Alone it does nothing. Returns code. */
PAWL_API int pawl_save_failed(struct pawl *run, const struct pawl_save_opts *opts, int code, const char *why);

enum pawl_stage {
	PAWL_STAGE_STAGING = 0,   /* tensors are being copied */
	PAWL_STAGE_STAGED = 1,    /* tensors may change */
	PAWL_STAGE_WRITTEN = 2,   /* all files are durable */
	PAWL_STAGE_COMMITTED = 3, /* the checkpoint exists and survives a power loss */
	PAWL_STAGE_SETTLED = 4,   /* retention and pointers are done */
	PAWL_STAGE_FAILED = 5,    /* nothing has changed */
	PAWL_STAGE_SKIPPED = 6    /* not written: strict_score refused it */
};

struct pawl_save_stats {
	size_t size;
	uint64_t id;            /* 0 until known; a skipped save has used it up */
	uint64_t bytes;         /* of the checkpoint */
	uint64_t written_bytes; /* without what was reused */
	uint64_t reused_bytes;
	double blocked_seconds;              /* how long the caller waited */
	double stage_seconds, write_seconds; /* from the call: copied in memory, files durable */
	double commit_seconds, total_seconds;
	uint64_t minor_faults;     /* page faults of the copying threads */
	uint64_t plain_bytes;      /* of the checkpoint before compression */
	uint64_t registered_bytes; /* of the save's memory: registered with the driver of a device,
	                              which copies faster to it */
};
#define PAWL_SAVE_STATS_INIT {.size = sizeof(struct pawl_save_stats)}

/* Waits until the save is settled, skipped or failed; timeout_ms < 0 = forever. Returns the error
 * of the save, which then counts as reported, or PAWL_ETIMEOUT with PAWL_SYS_WAITED. */
PAWL_API int pawl_ticket_wait(struct pawl_ticket *ticket, int64_t timeout_ms, struct pawl_error *err);
/* The same, but returns 0 when the save reaches `stage` (enum pawl_stage, at most SETTLED).
 * PAWL_STAGE_COMMITTED waits for durability and not for retention. */
PAWL_API int pawl_ticket_wait_for(struct pawl_ticket *ticket, int stage, int64_t timeout_ms, struct pawl_error *err);
PAWL_API int pawl_ticket_stage(const struct pawl_ticket *ticket);
/* ret: initialised by PAWL_SAVE_STATS_INIT; at most ret->size bytes are written. */
PAWL_API void pawl_ticket_stats(const struct pawl_ticket *ticket, struct pawl_save_stats *ret);
PAWL_API void pawl_ticket_free(struct pawl_ticket *ticket);

/* Waits until every tensor passed to pawl_save so far may change; for lazy saves. If all tensors
 * that are still to be copied are on devices, their streams wait and the host does not. Then change
 * and free the tensors in the order of these streams. */
PAWL_API int pawl_fence(struct pawl *run, int64_t timeout_ms, struct pawl_error *err);
/* Waits until all saves are settled; returns the first error that was not reported yet. */
PAWL_API int pawl_wait(struct pawl *run, int64_t timeout_ms, struct pawl_error *err);
/* Waits until no save is written, so that the next one starts at once; or PAWL_ETIMEOUT. Leaves
 * errors alone. */
PAWL_API int pawl_wait_turn(struct pawl *run, int64_t timeout_ms, struct pawl_error *err);
/* Waits until the saves that have begun are checkpoints or have failed; or PAWL_ETIMEOUT. Leaves
 * errors alone. pawl_find, pawl_restore, pawl_pin, pawl_unpin, pawl_score and pawl_remove do this
 * first, without a limit. */
PAWL_API int pawl_wait_committed(struct pawl *run, int64_t timeout_ms, struct pawl_error *err);
/* The first error in the background that was not reported yet, or 0. Never waits. */
PAWL_API int pawl_check(struct pawl *run, struct pawl_error *err);
/* The same for saves alone, and with uploads.fail_saves for uploads: the error that the next
 * pawl_save would return. */
PAWL_API int pawl_check_saves(struct pawl *run, struct pawl_error *err);
/* 1 while a save runs. */
PAWL_API int pawl_is_saving(const struct pawl *run);

/* Progress of a save of a run with compression, as its writer last reported it. With many ranks
 * that of rank 0. */
struct pawl_saving {
	size_t size;
	uint64_t id;
	int64_t step;
	char name[256];         /* of the future checkpoint, cut if it is longer */
	double unix_seconds;    /* time of the report */
	uint64_t plain_bytes;   /* of the state */
	uint64_t done_bytes;    /* of these compressed so far */
	uint64_t written_bytes; /* compressed bytes in the store */
};
#define PAWL_SAVING_INIT {.size = sizeof(struct pawl_saving)}
/* The writer reports once a second, in the events of the run. PAWL_ENOTFOUND: no save runs. */
PAWL_API int pawl_saving(struct pawl *run, struct pawl_saving *ret, struct pawl_error *err);

/* ----------------------------------------- 7. finding runs and checkpoints */

enum pawl_kind {
	PAWL_KIND_NOTHING = 0, /* nothing, or an empty folder */
	PAWL_KIND_RUN = 1,
	PAWL_KIND_CHECKPOINT = 2, /* a single checkpoint */
	PAWL_KIND_OTHER = 3,      /* not pawl's */
	PAWL_KIND_SEARCH = 4      /* of pawl tune; only pawl_places_open reports it */
};
/* What a path or URL holds: enum pawl_kind, or a negative code (PAWL_ENOTFOUND: there is no such
 * bucket). stores: as in pawl_open_opts.io, for URLs that pawl does not know; NULL = none. */
PAWL_API int pawl_kind_of(const char *root, const struct pawl_stores *stores, struct pawl_error *err);

struct pawl_place {
	const char *path;    /* below the root: "demo", "saved/ep1-ba2-rank0.pt" */
	int kind;            /* enum pawl_kind; PAWL_KIND_OTHER: a file or a link */
	int is_link;         /* a link, which is not followed, or a text object of Composer's saver: "a.pt.symlink" */
	uint64_t bytes;      /* of a file */
	double unix_seconds; /* of a file or a search: its last change; 0 = unknown */
	const char *problem; /* why this folder was not listed; NULL = it was */
	const char *target;  /* the name in the store that the text object holds; NULL = unknown */
};
struct pawl_places;
/* Lists what is in a folder or URL and in its folder `checkpoints`, in natural order: runs, single
 * checkpoints, searches and other files. recursive: at any depth up to 32 folders. Leaves out
 * hidden names, and what is in a run or a checkpoint. PAWL_ENOTFOUND: no such folder. */
PAWL_API int pawl_places_open(const char *root, int recursive, struct pawl_places **ret, struct pawl_error *err);
PAWL_API size_t pawl_places_count(const struct pawl_places *places);
PAWL_API const struct pawl_place *pawl_places_get(const struct pawl_places *places, size_t i);
PAWL_API void pawl_places_free(struct pawl_places *places);

/* The schemes of URLs that pawl opens itself, by number: "file", "s3", "gs", "az", "ssh", "mem";
 * NULL after the last. A build may lack the engine of one; opening such a URL then says why. */
PAWL_API const char *pawl_url_scheme(size_t i);

/* The names by which checkpoints of other programs are known, by number; NULL after the last. They
 * are suffixes of files (".pt"), and files that mark a folder (".metadata"; *ret_is_mark = 1). */
PAWL_API const char *pawl_foreign_name(size_t i, int *ret_is_mark);

enum pawl_mark {
	PAWL_MARK_LATEST = 1, /* not set if an unreadable checkpoint may be the latest; the same for BEST */
	PAWL_MARK_BEST = 2,
	PAWL_MARK_PINNED = 4,
	PAWL_MARK_HELD = 8,        /* in use by a reader */
	PAWL_MARK_NONFINITE = 16,  /* contains NaN or Inf (option nonfinite) */
	PAWL_MARK_BAD = 32,        /* the manifest does not verify; only in lists with bad ones */
	PAWL_MARK_UNFINISHED = 64, /* bad, in a bucket, without a manifest: a save that runs or was cut
	                              off; not damage */
	PAWL_MARK_DENIED = 128     /* bad: reading the manifest is not permitted */
};

/* How much loss a checkpoint survives. */
enum pawl_level {
	PAWL_LEVEL_NONE = 0,  /* ends with the process: it is in memory */
	PAWL_LEVEL_LOCAL = 1, /* survives a power loss of this host */
	PAWL_LEVEL_REMOTE = 2 /* survives the loss of this host: stored remotely, or read back from every
	                         mirror */
};

/* Summary of a checkpoint, from its manifest; borrowed from the handle that returned it. */
struct pawl_info {
	uint64_t id;
	int64_t step;
	const char *name; /* of its folder */
	const char *path; /* complete: an absolute path or a URL; of a checkpoint that only a mirror
	                     has, the one there */
	const char *run_id;
	uint64_t attempt;
	double unix_seconds; /* when it was saved */
	struct pawl_progress progress;
	const struct pawl_metric *metrics; /* with those that were added later */
	size_t n_metrics;
	double score; /* the first score attribute */
	int has_score;
	uint64_t bytes;     /* of all files */
	uint64_t new_bytes; /* without reused packs */
	uint64_t n_tensors, n_files;
	uint32_t world_size;
	unsigned marks; /* enum pawl_mark */
	double blocked_seconds;
	const char *problem;  /* why it is bad; "" if it is not */
	const char *format;   /* "pawl", or the format of another program's file; static */
	int level;            /* enum pawl_level */
	int here;             /* 1: in the run's own folder; 0: only in a mirror */
	uint32_t n_mirrors;   /* mirrors that have it, verified */
	uint64_t plain_bytes; /* of all files before compression */
	int code;             /* why it is bad: PAWL_ECORRUPT for damage; another code, such as PAWL_EAUTH or
	                         PAWL_EVERSION: it may be intact. 0: it is not bad */
};

struct pawl_list;
/* Committed checkpoints, oldest first. with_bad: also folders whose manifest is missing or does not
 * verify, marked PAWL_MARK_BAD. with_bad 2: also saves that another process writes into a bucket,
 * marked PAWL_MARK_UNFINISHED, with the code PAWL_EBUSY. */
PAWL_API int pawl_list_open(struct pawl *run, int with_bad, struct pawl_list **ret, struct pawl_error *err);
PAWL_API size_t pawl_list_count(const struct pawl_list *list);
PAWL_API const struct pawl_info *pawl_list_get(const struct pawl_list *list, size_t i);
PAWL_API void pawl_list_free(struct pawl_list *list);

/* Finds the id for a selector. It is "latest", "best", "good" (the newest without NaN or Inf),
 * "400" or "step:400" (the newest of that step), "id:7", or a folder name. The error lists what
 * exists. */
PAWL_API int pawl_find(struct pawl *run, const char *selector, uint64_t *ret_id, struct pawl_error *err);
/* Splits the address RUN@SELECTOR at the last '@' of its last component. Returns 1 if there is one.
 * Returns 0 for all other addresses, also for a path with '@' that exists; root is then the address
 * and selector is "". Both have room for strlen(address) + 2 bytes. */
PAWL_API int pawl_split_address(const char *address, char *root, char *selector);
/* For errors: why nothing could be opened at an address, with names that exist near it or below it.
 * Always fails: PAWL_ENOTFOUND, PAWL_EUSAGE, PAWL_EAUTH, or the code of a store that did not
 * answer. */
PAWL_API int pawl_explain_address(const char *address, struct pawl_error *err);
/* The metadata given to pawl_save; NULL if none was given. The caller frees it. */
PAWL_API int pawl_metadata(struct pawl *run, uint64_t id, struct pawl_state **ret, struct pawl_error *err);

/* Waits for a checkpoint with an id above `after`, by polling. PAWL_ETIMEOUT: no new checkpoint
 * appeared; with the store's error if the last look failed. A look may take all of its retries. */
PAWL_API int pawl_wait_for_new(struct pawl *run, uint64_t after, int64_t timeout_ms, uint64_t *ret_id,
                               struct pawl_error *err);
/* Protects a checkpoint from deletion by any process until it is closed or this process dies. A
 * checkpoint that only a mirror has is held there. A checkpoint of a run that is opened by its own
 * path (single, read_only) is held until pawl_close. */
struct pawl_hold;
PAWL_API int pawl_hold_open(struct pawl *run, uint64_t id, struct pawl_hold **ret, struct pawl_error *err);
PAWL_API void pawl_hold_close(struct pawl_hold *hold);

/* ------------------------------------------------------------- 8. restoring */

/* Values per rank return to their rank. If the number of ranks has changed: */
enum pawl_rank_values {
	PAWL_RANK_VALUES_STRICT = 0, /* PAWL_EMISMATCH names them; with non_strict as DROP */
	PAWL_RANK_VALUES_DROP = 1,   /* live values stay; the report says "dropped: <path>" */
	PAWL_RANK_VALUES_WRAP = 2    /* rank r takes those of saved rank r modulo the saved world size */
};

/* Fills bytes with those of rank `root`, as MPI_Bcast does. Every rank calls it at the same point.
 * A negative code fails the restore; this rank then does not call it again. */
typedef int pawl_share_fn(void *arg, uint32_t root, void *bytes, size_t nbytes, struct pawl_error *err);

struct pawl_restore_opts {
	size_t size;
	const char *selector;       /* as pawl_find; NULL = "latest" */
	const char *const *include; /* globs of paths (pawl_path_matches); none = everything */
	size_t n_include;
	int non_strict;             /* 1: report differences instead of failing */
	int no_fallback;            /* 1: never use an older checkpoint */
	uint64_t ring_bytes;        /* reading buffers; 0 = 64 MiB, at most 96 MiB */
	int rank_values;            /* enum pawl_rank_values */
	pawl_share_fn *share_reads; /* with many ranks, on all or on none. One rank reads and verifies the
	                               bytes that all need. This function passes them to the others, on
	                               the thread of pawl_restore_read. NULL = each rank reads */
	void *share_arg;
	const char *const *rename; /* "GLOB=TEMPLATE" of paths, the first that matches counts: {1} is what
	                              the first '*' or '?' matched. include and the live state see the new
	                              paths */
	size_t n_rename;
	const char *const *cast; /* "GLOB=DTYPE", the first that matches counts: F16, BF16, F32 and F64
	                            ("float32", "bf16", ..) become this one; other dtypes stay */
	size_t n_cast;
};
#define PAWL_RESTORE_OPTS_INIT {.size = sizeof(struct pawl_restore_opts)}

/* Restores into a live state, whose tensors are filled in place, in one call: open, match, read,
 * and fall back to older checkpoints if needed. *ret gives info, plain values (pawl_restore_state)
 * and fallbacks; the caller closes it; ret may be NULL. live NULL: only plain values are read.
 * PAWL_ENOTFOUND for a new run. */
struct pawl_restore;
PAWL_API int pawl_restore(struct pawl *run, const struct pawl_restore_opts *opts, const struct pawl_state *live,
                          struct pawl_restore **ret, struct pawl_error *err);

/* The same in steps. Selects a checkpoint and reads its manifest. */
PAWL_API int pawl_restore_open(struct pawl *run, const struct pawl_restore_opts *opts, struct pawl_restore **ret,
                               struct pawl_error *err);
PAWL_API void pawl_restore_close(struct pawl_restore *restore);
/* Which checkpoint is restored. Borrowed; pawl_restore_fallback replaces it. */
PAWL_API const struct pawl_info *pawl_restore_info(const struct pawl_restore *restore);
/* The saved tree; its tensors have no data. A str or bytes of more than 4,096 bytes has ptr NULL
 * until pawl_restore_read, and stays so if `include` leaves it out. Borrowed;
 * pawl_restore_fallback replaces it. */
PAWL_API const struct pawl_state *pawl_restore_state(const struct pawl_restore *restore);
/* The metadata given to pawl_save; NULL if none was given. Borrowed, as the tree. */
PAWL_API const struct pawl_state *pawl_restore_metadata(const struct pawl_restore *restore);
/* Matches the leaves of a live state to the saved ones by path and binds its tensors. Differences
 * are PAWL_EMISMATCH, whose message names the first ten, or with non_strict go to the report.
 * Tensors with `fill` are not bound. */
PAWL_API int pawl_restore_match(struct pawl_restore *restore, const struct pawl_state *live, struct pawl_error *err);
/* Sets the memory that tensor `index` of the saved tree is read into. It has the same dtype and
 * shape, and any strides whose elements do not overlap. With offsets and global_shape it is that
 * box of the global tensor. May be called several times for a tensor. `data` is borrowed until
 * pawl_restore_read returns. */
PAWL_API int pawl_restore_bind(struct pawl_restore *restore, size_t index, const struct pawl_tensor *dst,
                               struct pawl_error *err);
/* The pieces of tensor `index` in the checkpoint: boxes that fill it exactly once. */
PAWL_API size_t pawl_restore_piece_count(const struct pawl_restore *restore, size_t index);
/* offsets and lengths: ndim numbers each, borrowed as the tree is; may be NULL. */
PAWL_API int pawl_restore_piece(const struct pawl_restore *restore, size_t index, size_t i, const uint64_t **offsets,
                                const uint64_t **lengths, struct pawl_error *err);
/* Reads everything bound and verifies each block. After a failure the destinations hold undefined
 * bytes. After PAWL_ECORRUPT, PAWL_EIO, PAWL_ELIMIT or PAWL_ENOTFOUND (deleted meanwhile) call
 * pawl_restore_fallback and bind again, or stop. */
PAWL_API int pawl_restore_read(struct pawl_restore *restore, struct pawl_error *err);
/* With many ranks: this rank cannot continue, for example because its memory does not fit. The
 * others get this reason when the restore is closed before it was read. */
PAWL_API void pawl_restore_failed(struct pawl_restore *restore, int code, const char *why);
/* Selects the next older valid checkpoint and records why. PAWL_ENOTFOUND: none is left, or
 * fallback is off. If why says PAWL_ENOTFOUND it selects again as pawl_restore_open did, without a
 * record. why may be NULL. */
PAWL_API int pawl_restore_fallback(struct pawl_restore *restore, const struct pawl_error *why, struct pawl_error *err);
/* Why checkpoints were passed over: "checkpoint_000007: ..." in each row. */
PAWL_API size_t pawl_restore_fallback_count(const struct pawl_restore *restore);
PAWL_API const char *pawl_restore_fallback_get(const struct pawl_restore *restore, size_t i);
/* Report of a match with non_strict: "missing: model/x", "unexpected: ...", "shape: ..." in each
 * row. */
PAWL_API size_t pawl_restore_report_count(const struct pawl_restore *restore);
PAWL_API const char *pawl_restore_report_get(const struct pawl_restore *restore, size_t i);

/* ------------------------------------------------------------ 9. when to save */

/* 1 if a save is due by the run's save_interval, else 0. An interval is a time string: "1ep" "5it"
 * "10ba" "5000sp" "1000000tok" "30sec" "0.25dur" "auto" "first", or several with commas, of which
 * any may be due. Always 1 without an interval, and once when fraction reaches 1. Intervals count
 * from the last save or from the restored checkpoint. A failed save is due again at the next point,
 * except with many ranks. progress may be NULL: then step counts batches. With many ranks and
 * an interval that uses a clock, rank 0 decides, and every rank calls it at the same point. If
 * rank 0 cannot tell, all ranks get an error. */
PAWL_API int pawl_should_save(struct pawl *run, int64_t step, const struct pawl_progress *progress,
                              struct pawl_error *err);
/* The same as a pure function: is a save due by `interval` between two points? last: of the last
 * save; NULL = there was none. "auto" is PAWL_EUSAGE. */
PAWL_API int pawl_interval_due(const char *interval, const struct pawl_progress *last, const struct pawl_progress *now,
                               struct pawl_error *err);
/* The interval in seconds that loses the least time for a cost per save and a mean time between
 * failures. 0 if one of the two is not above 0. Source: Young (CACM 17(9), 1974) with the
 * higher-order term of Daly (FGCS 22(3), 2006). */
PAWL_API double pawl_optimal_interval_seconds(double save_cost_seconds, double mtbf_seconds);

/* Watches SIGTERM and SIGUSR1. The handler sets a flag and calls the previous handler.
 * grace_seconds: time between the signal and the kill; 0 = unknown. One watch per process
 * (PAWL_EBUSY). pawl_watch_close restores the previous handlers. A forked child is not watched. */
struct pawl_watch;
PAWL_API int pawl_watch_open(double grace_seconds, struct pawl_watch **ret, struct pawl_error *err);
/* Number of the signal that arrived, or 0. */
PAWL_API int pawl_watch_signal(const struct pawl_watch *watch);
/* Id of the process that sent it; 0 = unknown, or no signal. */
PAWL_API int64_t pawl_watch_sender(const struct pawl_watch *watch);
/* Seconds until the kill; < 0 = unknown. */
PAWL_API double pawl_watch_seconds_left(const struct pawl_watch *watch);
PAWL_API void pawl_watch_close(struct pawl_watch *watch);

/* ----------------------------------------------- 10. events and maintenance */

/* Takes the oldest event of this handle that was not taken yet: a line of events.jsonl, as JSON
 * ("save", "save failed", "remove", "upload", "upload failed", ...). The last 1,000 are kept.
 * Returns 1 and the text, for pawl_event_free, or 0 if there is none. */
PAWL_API int pawl_event_take(struct pawl *run, char **ret, struct pawl_error *err);
PAWL_API void pawl_event_free(char *text);

/* Hides secrets in a text, in place: passwords in URLs, the rest of a line after
 * "password:" or "token=", and values of the environment. These are of variables named KEY, SECRET,
 * TOKEN and the like, from 6 bytes on. NULL is fine. Any thread, while the environment stays. */
PAWL_API void pawl_hide_secrets(char *text);

/* What retention does with a checkpoint. */
struct pawl_decision {
	uint64_t id;
	int keep;
	const char *reason; /* "latest", "best 1 of 3 by accuracy", "step 400 is a multiple of 100", ... */
};
struct pawl_decisions;
/* Applies a policy now, or with dry_run only says what it would do. One row per checkpoint, oldest
 * first. policy: NULL = that of the run; without score attributes those of the run count.
 * PAWL_EUSAGE: no checkpoint has the metric; the message names those that exist. ret may be
 * NULL. */
PAWL_API int pawl_prune(struct pawl *run, const struct pawl_retention *policy, int dry_run, struct pawl_decisions **ret,
                        struct pawl_error *err);
PAWL_API size_t pawl_decisions_count(const struct pawl_decisions *decisions);
PAWL_API const struct pawl_decision *pawl_decisions_get(const struct pawl_decisions *decisions, size_t i);
PAWL_API void pawl_decisions_free(struct pawl_decisions *decisions);

/* Pins protect a checkpoint from retention. Pins and scores may be set through a read-only handle,
 * for example by an evaluation next to the training. The training uses them at its next
 * decision. */
PAWL_API int pawl_pin(struct pawl *run, uint64_t id, struct pawl_error *err);
PAWL_API int pawl_unpin(struct pawl *run, uint64_t id, struct pawl_error *err);
/* Adds or replaces metrics of a committed checkpoint; the best is chosen again. */
PAWL_API int pawl_score(struct pawl *run, uint64_t id, const struct pawl_metric *metrics, size_t n,
                        struct pawl_error *err);
/* Deletes a checkpoint, manifest first. force: also a pinned one, the latest or the best.
 * PAWL_EBUSY while a reader holds it. */
PAWL_API int pawl_remove(struct pawl *run, uint64_t id, int force, struct pawl_error *err);

/* Progress of long work; another thread may read it. All fields are updated atomically. */
struct pawl_meter {
	volatile uint64_t done_bytes, total_bytes;
	volatile int cancel; /* set it to 1 to stop: PAWL_ECANCELLED */
};

/* One finding of a verification. */
struct pawl_finding {
	uint64_t id;
	const char *file;    /* name in the folder of the checkpoint */
	uint64_t begin, end; /* range of bytes */
	const char *tensor;  /* the first four tensors in it ("a, b"); "" if none */
	const char *message;
};
struct pawl_findings;
/* Reads and checks every byte of a checkpoint (id 0: of all). meter may be NULL. Returns
 * PAWL_ECORRUPT if there are findings; *ret is set then, too; ret may be NULL. Without findings, a
 * checkpoint that cannot be read gives its own error, such as PAWL_EAUTH or PAWL_EVERSION. */
PAWL_API int pawl_verify(struct pawl *run, uint64_t id, struct pawl_meter *meter, struct pawl_findings **ret,
                         struct pawl_error *err);
PAWL_API size_t pawl_findings_count(const struct pawl_findings *findings);
PAWL_API const struct pawl_finding *pawl_findings_get(const struct pawl_findings *findings, size_t i);
PAWL_API void pawl_findings_free(struct pawl_findings *findings);

/* Deletes what crashes left: partial folders of dead writers, folders of this run without manifest,
 * stale holds, recycled files. *ret_bytes: freed, or with dry_run to be freed. meter may be NULL;
 * it counts the freed bytes, and their total is not known. */
PAWL_API int pawl_gc(struct pawl *run, int dry_run, struct pawl_meter *meter, uint64_t *ret_count, uint64_t *ret_bytes,
                     struct pawl_error *err);
/* Rebuilds a lost or damaged manifest from the packs of a checkpoint. Refuses if a tensor is not
 * complete. dry_run: only says whether it would work. meter may be NULL. */
PAWL_API int pawl_repair(struct pawl *run, const char *name, int dry_run, struct pawl_meter *meter,
                         struct pawl_error *err);

/* Capabilities of the store under a root, found by trying them, as rows "key: value". */
struct pawl_rows;
PAWL_API int pawl_doctor(const char *root, struct pawl_rows **ret, struct pawl_error *err);
PAWL_API size_t pawl_rows_count(const struct pawl_rows *rows);
PAWL_API const char *pawl_rows_key(const struct pawl_rows *rows, size_t i);
PAWL_API const char *pawl_rows_value(const struct pawl_rows *rows, size_t i);
PAWL_API void pawl_rows_free(struct pawl_rows *rows);

/* ------------------------------------------------- 11. mirrors and copies */

/* Waits as pawl_wait does, up to an enum pawl_level. REMOTE: until every mirror has every
 * checkpoint of the run, or an upload failed after the call began (that error). PAWL_ETIMEOUT with
 * PAWL_SYS_WAITED. REMOTE without mirrors in a run that is stored here is PAWL_EUSAGE. On ranks
 * above 0 it is PAWL_EUNSUPPORTED, since only rank 0 copies. */
PAWL_API int pawl_wait_level(struct pawl *run, int level, int64_t timeout_ms, struct pawl_error *err);

/* A mirror of a run, as far as this process knows. */
struct pawl_mirror_info {
	size_t size;
	const char *url;
	uint64_t n_done, n_waiting;       /* checkpoints that it has, and that it still lacks */
	uint64_t n_failed;                /* failed tries since the run was opened */
	uint64_t done_bytes, total_bytes; /* of the upload in progress; 0 of 0 = none */
	int code;                         /* of the last try: 0, or a negative enum pawl_code */
	char message[256];                /* of the last try */
};
#define PAWL_MIRROR_INFO_INIT {.size = sizeof(struct pawl_mirror_info)}
/* The mirrors given at open, or if none were given those of the last training. Mirrors of the last
 * training are listed, but never read. */
PAWL_API size_t pawl_mirror_count(const struct pawl *run);
/* PAWL_ENOTFOUND beyond the last. */
PAWL_API int pawl_mirror_get(struct pawl *run, size_t i, struct pawl_mirror_info *ret, struct pawl_error *err);

/* Copies to the mirrors all that they lack, the newest first, and resumes interrupted uploads. Each
 * upload is tried once; returns the first error. For a run opened for maintenance; a training run
 * copies by itself, and this call then waits for it. meter: over all copies. */
PAWL_API int pawl_sync(struct pawl *run, struct pawl_meter *meter, struct pawl_error *err);

struct pawl_copy_opts {
	size_t size;
	uint32_t n_streams;        /* pieces in flight; 0 = 4, at most 64 */
	uint64_t memory_bytes;     /* of all buffers; 0 = 256 MiB */
	int64_t timeout_ms;        /* 0 = none */
	uint64_t bytes_per_second; /* of the target; 0 = no limit */
	int dry_run;               /* pawl_copy_run: 1 = only report what would be copied */
	const uint64_t *ids;       /* pawl_copy_run: only these, all must exist; NULL = all */
	size_t n_ids;
	pawl_lease_wait_fn *on_lease_wait; /* pawl_copy_run: while it waits for the target's lease */
	void *on_lease_wait_arg;
};
#define PAWL_COPY_OPTS_INIT {.size = sizeof(struct pawl_copy_opts)}
/* What happened to one checkpoint that was copied. */
struct pawl_copied {
	uint64_t id;
	const char *name;
	uint64_t bytes;                                 /* of its files */
	int was_there;                                  /* 1: the target had it */
	uint64_t sent_bytes, found_bytes, linked_bytes; /* found: left by an interrupted copy */
	const char *problem;                            /* not "": it is damaged at the source and was not copied */
};
struct pawl_copies;
/* Copies a checkpoint (id 0: the latest) to a path or URL, as a single one, between any two stores.
 * Every byte is verified when read and read back at the target; the manifest comes last. A repeated
 * call resumes. *ret may be NULL; it has one row. PAWL_EEXISTS: something else is there.
 * PAWL_ECORRUPT: the source is damaged. PAWL_ENOTFOUND: also if it was deleted meanwhile. */
PAWL_API int pawl_copy(struct pawl *run, uint64_t id, const char *to, const struct pawl_copy_opts *opts,
                       struct pawl_meter *meter, struct pawl_copies **ret, struct pawl_error *err);
PAWL_API size_t pawl_copies_count(const struct pawl_copies *copies);
PAWL_API const struct pawl_copied *pawl_copies_get(const struct pawl_copies *copies, size_t i);
PAWL_API void pawl_copies_free(struct pawl_copies *copies);

/* ---------------------------------------------------- 12. stores of your own */

/* An object or a folder. */
struct pawl_store_entry {
	const char *name; /* in a list: the last part of the key */
	uint64_t nbytes;
	int64_t mtime_ns; /* 0 = unknown */
	int is_folder;
};
/* The two functions that a store calls. The first gets each entry of a list, until it returns a
 * value other than 0. The second gets all bytes of an object, once. */
typedef int pawl_store_entry_fn(void *arg, const struct pawl_store_entry *entry);
typedef int pawl_store_bytes_fn(void *arg, const void *ptr, size_t nbytes);
/* A store for URLs that pawl does not know (docs/how-to/stores/fsspec.md): objects under keys,
 * which are relative paths. It cannot keep two writers apart (pawl_warning) and cannot serve many
 * ranks. All functions are required. They return 0 or a negative enum pawl_code with a message.
 * They are called on any thread, several at a time, and must not use a handle that was opened with
 * them. */
struct pawl_stores {
	size_t size;
	const char *name; /* for people; it and arg must live as long as the runs */
	void *arg;        /* for open */
	/* *ret_can_copy = 1: copy sends nothing. PAWL_ENOTFOUND: nothing is there and create is
	 * 0. */
	int (*open)(void *arg, const char *url, int create, void **ret, int *ret_can_copy, struct pawl_error *err);
	void (*close)(void *store);
	/* Replaces an object. */
	int (*put)(void *store, const char *key, const void *ptr, size_t nbytes, struct pawl_error *err);
	/* Puts a file. */
	int (*upload)(void *store, const char *key, const char *path, uint64_t nbytes, struct pawl_error *err);
	/* A complete object of at most max bytes, as it was at one moment. */
	int (*get)(void *store, const char *key, size_t max, pawl_store_bytes_fn *bytes, void *bytes_arg,
	           struct pawl_error *err);
	/* All nbytes, or PAWL_ECORRUPT. */
	int (*read)(void *store, const char *key, uint64_t offset, void *dst, size_t nbytes, struct pawl_error *err);
	int (*stat)(void *store, const char *key, struct pawl_store_entry *ret, struct pawl_error *err);
	/* The direct children of a folder. */
	int (*list)(void *store, const char *folder, pawl_store_entry_fn *entry, void *entry_arg,
	            struct pawl_error *err);
	/* Removing a folder removes its contents. */
	int (*remove)(void *store, const char *key, int is_folder, struct pawl_error *err);
	/* One object; replaces. */
	int (*copy)(void *store, const char *from, const char *to, struct pawl_error *err);
};
#define PAWL_STORES_INIT {.size = sizeof(struct pawl_stores)}

/* --------------------------------------- 13. testing programs that use pawl */

/* Makes the n-th call (from 1) of an operation fail with `code`, once or with forever from then on.
 * Operations: "put", "create", "write", "finish", "publish", "read", "list", "stat", "remove",
 * "link", "any". Pass it in pawl_open_opts.io.fault. */
PAWL_API int pawl_fault_new(const char *operation, uint64_t nth, int code, int forever, struct pawl_fault **ret,
                            struct pawl_error *err);
/* Matching calls so far. */
PAWL_API uint64_t pawl_fault_calls(const struct pawl_fault *fault);
PAWL_API void pawl_fault_free(struct pawl_fault *fault);

#ifdef __cplusplus
}
#endif
#endif
