/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pawl.h - save training state without stopping the training, keep the right
 * checkpoints, and bring a run back exactly where it was.
 *
 * The only installed header of libpawl; read it top to bottom, simple to advanced:
 *
 *   1. errors            4. opening a run     7. finding and listing
 *   2. dtypes, tensors   5. saving, tickets   8. restoring
 *   3. state trees       6. retention         9. triggers  10. upkeep
 *                                                          11. mirrors, copies
 *                                                          12. syncing  13. single files  14. other formats  15. tar
 *   16. checkpoint files by name                           17. groups of workers
 *
 * The shortest use:
 *
 *     struct pawl_error err = {0};
 *     struct pawl *run = NULL;
 *     struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
 *     opts.root = "runs/demo";
 *     if (pawl_open(&opts, &run, &err) < 0) ...                err.message says why
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
 *     pawl_wait(run, -1, &err);                                  all saves durable
 *     pawl_close(run, NULL);
 *
 * Rules that hold everywhere:
 * - Functions that can fail return 0 (or 1, where the comment says what that means), or a negative enum pawl_code
 *   with the details in the caller's struct pawl_error (which may be NULL; on success it stays as it is). On failure
 *   nothing is written to out-parameters.
 * - Structs that the caller makes begin with `size`, set by their _INIT macro; a zero option means its default;
 *   later versions only append fields.
 * - Handles are opaque. Every destroyer accepts NULL. Strings returned by a handle live as long
 *   as the handle (or until the next call that the comment names).
 * - A struct pawl and its tickets may be used from any thread; states, lists and restores from one
 *   thread at a time. No callback ever runs on a thread of the library.
 * - Strings are UTF-8. Units stand in the names: _bytes, _ms, _seconds, _ns.
 * - The library never prints, exits or aborts, and has no global state but what pawl_watch needs for its signals.
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
/* Version of the on-disk form that this library writes; it reads this one and older ones. */
#define PAWL_FORMAT_VERSION 1

/* Version of the library at run time, e.g. "0.1.0". Static. */
PAWL_API const char *pawl_version(void);

/* ---------------------------------------------------------------- 1. errors */

enum pawl_code {
	PAWL_OK = 0,
	PAWL_EUSAGE = -1,        /* an argument or option is wrong */
	PAWL_ENOMEM = -2,        /* memory */
	PAWL_ENOTFOUND = -3,     /* no such run, checkpoint, tensor, file */
	PAWL_EEXISTS = -4,       /* would overwrite something */
	PAWL_EBUSY = -5,         /* somebody else writes here now, or a save is running */
	PAWL_ECONFLICT = -6,     /* another writer won, or the lease was lost */
	PAWL_ENOSPACE = -7,      /* disk or quota full */
	PAWL_EIO = -8,           /* the system reported an I/O error; `sys` holds errno */
	PAWL_ETRANSIENT = -9,    /* may work when tried again */
	PAWL_EAUTH = -10,        /* permission or credentials */
	PAWL_ECORRUPT = -11,     /* bytes are not what was written */
	PAWL_EVERSION = -12,     /* written by a newer format version */
	PAWL_ETIMEOUT = -13,     /* a deadline passed */
	PAWL_ECANCELLED = -14,   /* given up on request, or replaced by a newer save */
	PAWL_EMISMATCH = -15,    /* state and checkpoint do not fit each other */
	PAWL_ELIMIT = -16,       /* input exceeds a documented limit */
	PAWL_EUNSUPPORTED = -17, /* cannot be done here, or cannot be held in a state */
	PAWL_EREADONLY = -18,    /* the handle was opened read-only */
	PAWL_EINTERNAL = -19     /* a bug in pawl */
};

/* In pawl_error.sys, with PAWL_ETIMEOUT from a call that waits: its own time is over, and what it waited for goes on. Without
 * it, that is what a save has failed with (a rank gave no part in time, say). */
#define PAWL_SYS_WAITED (-1)

/* Caller-owned details of a failure. message: lower case, names the object, what was expected and
 * what was found; always NUL-terminated. sys: errno, PAWL_SYS_WAITED or 0. */
struct pawl_error {
	int code;
	int sys;
	char message[1016];
};

/* Name of a code, e.g. "corrupt". Static; "unknown" for other numbers. */
PAWL_API const char *pawl_code_name(int code);
/* The code for an errno value: ENOSPC and EDQUOT are PAWL_ENOSPACE, ENOENT is PAWL_ENOTFOUND, and so on; PAWL_EIO for those that
 * say no more than that it failed. */
PAWL_API int pawl_code_from_errno(int sys);
/* Exit status that the command uses for a code: 0 ok, 1 failure, 2 usage, 3 not found, 4 corrupt,
 * 5 temporary, 6 busy, 7 conflict, 130 cancelled. */
PAWL_API int pawl_code_exit_status(int code);
/* 1 if repeating the call may succeed without anything being changed, else 0. */
PAWL_API int pawl_code_is_transient(int code);

/* ------------------------------------------------------- 2. dtypes, tensors */

/* The dtypes of safetensors 0.8 and complex128. Numbers are pinned for ever. */
enum pawl_dtype {
	PAWL_BOOL = 1,
	PAWL_F4 = 2, /* 4 bits: float4_e2m1fn, two to a byte; the shape counts elements */
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

/* Upper-case safetensors name ("F32", "BF16", "C128"), or NULL for another number. */
PAWL_API const char *pawl_dtype_name(int dtype);
/* Bits of one element (4, 6, 8 .. 128), or 0 for another number. */
PAWL_API unsigned pawl_dtype_bits(int dtype);
/* Number of a name, or 0. */
PAWL_API int pawl_dtype_from_name(const char *name);

/* A run of bytes somebody else owns. */
struct pawl_slice {
	const void *ptr;
	size_t len;
};

/* Called on the caller's own thread, inside pawl_save, to copy a tensor that the processor cannot
 * read (one on a GPU) into dst: exactly nbytes, C order. Returns 0 or a negative enum pawl_code. */
typedef int pawl_fill_fn(void *arg, void *dst, size_t nbytes, struct pawl_error *err);

/* Who of many ranks writes a tensor that a rank gives. */
enum pawl_writer {
	PAWL_WRITER_AUTO = 0,     /* a shard: the rank that gives it. A whole tensor: every rank has the same one, and they
	                             share the writing of its bytes */
	PAWL_WRITER_HERE = 1,     /* this rank, all that it gives */
	PAWL_WRITER_ELSEWHERE = 2 /* another rank; this one says only that the tensor belongs to the state */
};

/* A tensor of the caller. Everything is borrowed: arrays until the call returns, `data` as the
 * function that takes it says. */
struct pawl_tensor {
	size_t size;               /* sizeof(struct pawl_tensor), by PAWL_TENSOR_INIT */
	int dtype;                 /* enum pawl_dtype */
	uint32_t ndim;             /* 0 for a scalar; at most PAWL_MAX_DIMS */
	const uint64_t *shape;     /* ndim extents, outermost first */
	const int64_t *strides;    /* ndim, in elements, any sign; NULL = C order */
	void *data;                /* first element; may be NULL when nbytes is 0 or fill is set */
	const uint64_t *global_shape; /* ndim; NULL = the tensor is whole, not a shard */
	const uint64_t *offsets;      /* ndim; where this shard starts in the global tensor */
	pawl_fill_fn *fill;        /* set for memory that the processor cannot read */
	void *fill_arg;
	const char *kind;          /* free tag that comes back with the leaf ("torch", "numpy"), <= 32 bytes; NULL = none */
	int writer;                /* enum pawl_writer; matters only with many ranks */
};
#define PAWL_TENSOR_INIT {.size = sizeof(struct pawl_tensor)}

/* ----------------------------------------------------------- 3. state trees */

/* A state is a tree of dict, list, tuple, tensor, int, float, bool, str, bytes and None.
 * Leaves have paths: keys and indices joined with '/', '/' and '%' inside a key written %2F, %25. */
struct pawl_state;
struct pawl_node; /* a node of a state; borrowed, valid as long as the state */

enum pawl_type {
	PAWL_NONE = 0,
	PAWL_BOOLEAN = 1, /* i: 0 or 1 */
	PAWL_INT = 2,     /* i; or, beyond 64 bits, decimal text in ptr/len */
	PAWL_FLOAT = 3,   /* f, bit-exact, also NaN and infinities */
	PAWL_STR = 4,     /* ptr/len, UTF-8 */
	PAWL_BYTES = 5,   /* ptr/len */
	PAWL_TENSOR = 6,
	PAWL_DICT = 7,
	PAWL_ODICT = 8, /* a dict that the caller's language calls ordered; same rules */
	PAWL_LIST = 9,
	PAWL_TUPLE = 10,
	PAWL_PER_RANK = 11, /* a value that every rank of a job has for itself (a random generator, a place in the data). Given
	                       with one child, this rank's; what a checkpoint of many ranks holds has one for each */
	PAWL_DIFFERS = 12   /* only in checkpoints of many ranks: a plain value of which they did not have the same */
};

/* A value without children: a leaf, or a key of a dict (any of NONE .. BYTES). */
struct pawl_scalar {
	int type;
	int64_t i;
	double f;
	const char *ptr;
	size_t len;
};

PAWL_API int pawl_state_new(struct pawl_state **ret, struct pawl_error *err);
PAWL_API void pawl_state_free(struct pawl_state *state);
/* For a state with PAWL_PER_RANK in it, before anything is added: which of how many ranks builds it (0 of 1). */
PAWL_API int pawl_state_set_rank(struct pawl_state *, uint32_t rank, uint32_t world_size, struct pawl_error *);

/* Simple building: sets the leaf at a path of string keys ("model/layer1/weight"), making dicts on
 * the way; the root is a dict. Setting a path twice is an error (PAWL_EEXISTS). Tensor data is
 * borrowed until the save that uses the state has staged it (see pawl_save); str and bytes are copied. */
PAWL_API int pawl_state_set_none(struct pawl_state *, const char *path, struct pawl_error *);
PAWL_API int pawl_state_set_bool(struct pawl_state *, const char *path, int value, struct pawl_error *);
PAWL_API int pawl_state_set_int(struct pawl_state *, const char *path, int64_t value, struct pawl_error *);
PAWL_API int pawl_state_set_float(struct pawl_state *, const char *path, double value, struct pawl_error *);
PAWL_API int pawl_state_set_str(struct pawl_state *, const char *path, const char *value, struct pawl_error *);
PAWL_API int pawl_state_set_bytes(struct pawl_state *, const char *path, const void *ptr, size_t len, struct pawl_error *);
PAWL_API int pawl_state_set_tensor(struct pawl_state *, const char *path, const struct pawl_tensor *, struct pawl_error *);

/* Full building, in document order: begin a container, add its children (each preceded by its key
 * inside a dict), end it. The first thing added is the root. Limits: depth 256, 10,000,000 nodes. */
PAWL_API int pawl_state_begin(struct pawl_state *, int type /* DICT, ODICT, LIST, TUPLE, PER_RANK */, struct pawl_error *);
PAWL_API int pawl_state_end(struct pawl_state *, struct pawl_error *);
PAWL_API int pawl_state_key(struct pawl_state *, const struct pawl_scalar *key, struct pawl_error *);
PAWL_API int pawl_state_add(struct pawl_state *, const struct pawl_scalar *value, struct pawl_error *);
PAWL_API int pawl_state_add_tensor(struct pawl_state *, const struct pawl_tensor *, struct pawl_error *);

/* Reading. root is NULL for an empty state; at() is NULL where there is nothing. */
PAWL_API const struct pawl_node *pawl_state_root(const struct pawl_state *);
PAWL_API const struct pawl_node *pawl_state_at(const struct pawl_state *, const char *path);
PAWL_API int pawl_node_type(const struct pawl_node *);
PAWL_API size_t pawl_node_count(const struct pawl_node *);                     /* children; 0 for leaves */
PAWL_API const struct pawl_node *pawl_node_first(const struct pawl_node *);    /* NULL when empty */
PAWL_API const struct pawl_node *pawl_node_next(const struct pawl_node *);     /* NULL after the last */
PAWL_API const struct pawl_scalar *pawl_node_key(const struct pawl_node *);    /* NULL outside dicts */
PAWL_API const struct pawl_scalar *pawl_node_scalar(const struct pawl_node *); /* NULL for tensors, containers */
/* Of values per rank, the one that is this rank's own: the only child, or NULL where there is none (a restored state whose
 * world had another size). Of every other node: the node itself. */
PAWL_API const struct pawl_node *pawl_node_own(const struct pawl_node *);
/* Index into the tensor table of the state, or SIZE_MAX if the node is no tensor. Tied leaves
 * (same memory, dtype, shape and strides) share one index. */
PAWL_API size_t pawl_node_tensor(const struct pawl_node *);
PAWL_API const char *pawl_node_kind(const struct pawl_node *); /* tag of a tensor leaf, "" if none */

PAWL_API int pawl_state_get_int(const struct pawl_state *, const char *path, int64_t *ret, struct pawl_error *);
PAWL_API int pawl_state_get_float(const struct pawl_state *, const char *path, double *ret, struct pawl_error *);
PAWL_API int pawl_state_get_str(const struct pawl_state *, const char *path, const char **ret, struct pawl_error *);

/* One row of a state's tensor table. Borrowed from the state. */
struct pawl_tensor_info {
	const char *name;       /* path of its first leaf, unique in the state */
	int dtype;
	uint32_t ndim;
	const uint64_t *shape;  /* global shape */
	uint64_t nbytes;        /* of the whole tensor */
};
/* Index of the tensor that was added last: an earlier one if it has the same memory. SIZE_MAX = none yet. */
PAWL_API size_t pawl_state_last_tensor(const struct pawl_state *);
PAWL_API size_t pawl_state_tensor_count(const struct pawl_state *);
PAWL_API const struct pawl_tensor_info *pawl_state_tensor(const struct pawl_state *, size_t index);

/* --------------------------------------------------------- 4. opening a run */

struct pawl;        /* a run: a folder with checkpoints, opened for writing or reading */
struct pawl_arena;  /* pre-faulted staging memory, kept between saves */
struct pawl_ticket; /* a running or finished save */
struct pawl_fault;  /* an armed fault layer, for tests of what surrounds pawl */

/* Staging memory that several runs of a process share; limit_bytes 0 = no limit. Thread-safe.
 * A run without one makes its own. The arena must outlive the runs that use it. */
PAWL_API int pawl_arena_new(size_t limit_bytes, struct pawl_arena **ret, struct pawl_error *);
PAWL_API void pawl_arena_free(struct pawl_arena *);
/* Maps and faults in nbytes ahead of the first save. */
PAWL_API int pawl_arena_reserve(struct pawl_arena *, size_t nbytes, struct pawl_error *);
PAWL_API size_t pawl_arena_bytes(const struct pawl_arena *); /* memory held now */

enum pawl_mode {
	PAWL_MODE_SNAPSHOT = 0, /* copy to the arena, return, write in the background */
	PAWL_MODE_RING = 1,     /* pass through ring_bytes of memory; the caller waits for the last copy */
	PAWL_MODE_DIRECT = 2    /* write from the live tensors; the caller waits for the writes */
};

enum pawl_on_busy {           /* what a save does while another one of the run is still being written */
	PAWL_BUSY_WAIT = 0,
	PAWL_BUSY_SKIP = 1,   /* no save: pawl_save returns PAWL_EBUSY and changes nothing */
	PAWL_BUSY_REPLACE = 2 /* stage it beside; an older staged save that has not started is dropped (PAWL_ECANCELLED) */
};

#define PAWL_KEEP_MEMORY (-2) /* num_to_keep: nothing is written, the newest lives in memory */

/* What to keep. All rules are united: a checkpoint is kept if any rule keeps it, and always if it
 * is pinned, held by a reader, the best, (unless drop_latest) the latest, or where that is flagged for NaN or Inf the newest
 * one that is not. No rule set = keep everything. */
struct pawl_retention {
	size_t size;
	int64_t num_to_keep;      /* N >= 1: the newest N, or the best N when score attributes are given;
	                             0 = not set; PAWL_KEEP_MEMORY; other negatives are refused */
	uint64_t keep_last;       /* the newest N; 0 = rule not set (also below) */
	uint64_t keep_best;       /* the best N by score */
	const char *const *score_attributes; /* metric names, compared lexicographically; checkpoints that lack one, or where it
	                             is not finite, come after all others, the older first */
	const int *score_orders;  /* per attribute: +1 = max, -1 = min; NULL = all max */
	size_t n_scores;          /* at most 16 */
	uint64_t keep_every;      /* every checkpoint whose step is a multiple of this */
	double keep_seconds;      /* those younger than this */
	uint64_t max_bytes;       /* budget: of those kept by no pin, hold or best/latest role, oldest go first */
	int drop_latest;          /* 1: the latest gets no special protection by num_to_keep/keep_best */
	int strict_score;         /* 1: as Ray's legacy manager does, a full best list refuses a tie or worse
	                             before anything is written */
};
#define PAWL_RETENTION_INIT {.size = sizeof(struct pawl_retention)}

/* Called by every rank at the same point of the program: fills bytes with those of rank 0. 0 or a negative enum
 * pawl_code. */
typedef int pawl_broadcast_fn(void *arg, void *bytes, size_t nbytes, struct pawl_error *err);

/* Which process of a job of many this one is. */
struct pawl_rank {
	size_t size;
	int32_t rank, world_size; /* 0 of 1 where no launcher is found */
	int32_t local_rank, local_world_size, node_rank; /* -1 = not known */
	char launcher[24];        /* "torchrun", "openmpi", "slurm", ...; "env" for RANK and WORLD_SIZE alone; "" = none */
	char attempt[192];        /* what all ranks of this start of the job share and no other start has; "" where the
	                             launcher gives nothing of that kind. Printable, without blanks */
};
#define PAWL_RANK_INIT {.size = sizeof(struct pawl_rank)}
/* Reads the environment, as the launcher has set it; docs/multi-rank.md has the table. The first launcher that is found
 * counts; an empty variable is one that is not set. PAWL_EUSAGE names the variable and what it holds: no number, negative,
 * a rank that is not below its size, or one of rank and size without the other. No thread may change the environment
 * meanwhile. rank: as PAWL_RANK_INIT made it; no more than rank->size bytes are written. */
PAWL_API int pawl_rank_identify(struct pawl_rank *rank, struct pawl_error *);

/* An object or a folder in a store of your own. see and take are yours to call: for each entry of a list, which returns what
 * is not 0, or once with all bytes of an object. */
struct pawl_store_entry {
	const char *name; /* of a list: the last part */
	uint64_t nbytes;
	int64_t mtime_ns; /* 0 = not known */
	int is_folder;
};
typedef int pawl_store_see_fn(void *arg, const struct pawl_store_entry *);
typedef int pawl_store_take_fn(void *arg, const void *ptr, size_t nbytes);
/* A kind of store of your own, for URLs that no engine of pawl's knows (docs/stores/fsspec.md): objects under keys, relative
 * paths. Nothing keeps two writers apart there (pawl_warning), and jobs of many ranks are refused. Functions return 0 or a
 * negative enum pawl_code with a message, are called on any thread, several at a time, and must not call pawl with a handle
 * opened with them. open: *ret_can_copy = 1: copy sends nothing; PAWL_ENOTFOUND: nothing is there, and create is 0. get: a whole
 * object of at most max bytes, as it was at one moment. read: all bytes or PAWL_ECORRUPT. list: what lies directly in a folder. */
struct pawl_stores {
	size_t size;
	const char *name; /* shown to people; it and arg must live as long as the runs */
	void *arg;        /* for open */
	int (*open)(void *arg, const char *url, int create, void **ret, int *ret_can_copy, struct pawl_error *);
	void (*close)(void *store);
	int (*put)(void *store, const char *key, const void *ptr, size_t nbytes, struct pawl_error *); /* replaces */
	int (*upload)(void *store, const char *key, const char *path, uint64_t nbytes, struct pawl_error *); /* from a file */
	int (*get)(void *store, const char *key, size_t max, pawl_store_take_fn *take, void *take_arg, struct pawl_error *);
	int (*read)(void *store, const char *key, uint64_t offset, void *dst, size_t nbytes, struct pawl_error *);
	int (*stat)(void *store, const char *key, struct pawl_store_entry *ret, struct pawl_error *); /* or PAWL_ENOTFOUND */
	int (*list)(void *store, const char *folder, pawl_store_see_fn *see, void *see_arg, struct pawl_error *);
	int (*remove)(void *store, const char *key, int is_folder, struct pawl_error *); /* a folder with all in it */
	int (*copy)(void *store, const char *from, const char *to, struct pawl_error *); /* one object; replaces */
};
#define PAWL_STORES_INIT {.size = sizeof(struct pawl_stores)}
typedef int pawl_lease_wait_fn(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err);
struct pawl_open_opts {
	size_t size;
	const char *root;         /* run folder: a path, file://path, or mem: (private, in memory) */
	int read_only;            /* 1: no lease; holds, pins and scores are all that is written */
	int single;               /* 1: root is one checkpoint, not a run (pawl.save, pawl.load). With read_only also a
	                             safetensors file that another program wrote: a flat dict of tensors, its
	                             header's metadata, and no sums, so that only its structure is verified */
	int overwrite;            /* 1: adopt a folder that holds checkpoints of another run; with single: replace */
	const char *run_id;       /* expected id of an existing run; NULL = whatever is there, or new */
	const char *name_template;/* NULL = "checkpoint_{id:06d}" */
	struct pawl_retention retention;
	struct pawl_arena *arena; /* NULL = own */
	int mode;                 /* enum pawl_mode */
	int on_busy;              /* enum pawl_on_busy */
	uint64_t arena_bytes;     /* most staging memory of one save; larger states pass through a ring; 0 = no limit */
	uint64_t ring_bytes;      /* 0 = 64 MiB */
	uint64_t pack_bytes;      /* target size of a pack; 0 = 256 MiB. A 32nd of it until it is known what changes */
	uint64_t block_bytes;     /* unit of checksums, a power of two >= 64 KiB; 0 = 1 MiB */
	uint64_t bandwidth_bytes_per_second; /* of writing, all threads together; 0 = no limit */
	uint32_t copy_threads;    /* 0 = min(4, processors) */
	uint32_t io_threads;      /* 0 = 4 */
	uint32_t recycle;         /* how many deleted checkpoints' files are kept aside for reuse; 0 = none. Overwritten are
	                             those of the same size that no process has open, on local filesystems */
	int no_reuse;             /* 1: never hard-link unchanged packs, nor group tensors by what changes together */
	int no_direct_io;         /* 1: buffered writes and reads */
	int strict_latest;        /* 1: restore never falls back to an older checkpoint */
	int64_t lease_timeout_ms; /* a lease not renewed for so long is taken over; 0 = 120000. All timeouts: at most 10^12 */
	const char *save_interval;/* time strings for pawl_should_save: "1ep", "auto", "first,500ba", ...; NULL = always */
	double mtbf_seconds;      /* for "auto": mean time between failures; 0 = 24 h */
	struct pawl_fault *fault; /* tests: a fault layer around the store; NULL = none */
	int nonfinite;            /* R157: a state with NaN or Inf, in tensors or floats: 0 = accept, 1 = flag in the manifest,
	                             2 = refuse */
	int upkeep;               /* 1: opened to maintain the run, not to train: no new attempt, and nothing is cleared up. With
	                             or without: if no score attributes are given, those of its last training rank */
	const struct pawl_rank *rank; /* one of many processes that save and restore together (docs/multi-rank.md), as
	                             pawl_rank_identify found it; NULL = alone. Every rank opens the same root, and calls
	                             pawl_save and pawl_restore equally often in the same order. Copied */
	int64_t commit_timeout_ms;/* many ranks: how long one waits for the others at most; 0 = 1,800,000 (30 min) */
	pawl_broadcast_fn *broadcast; /* many ranks: hands rank 0's bytes to all, instead of files in the store, when the run
	                             is opened and when a clock decides that a save is due; NULL = none */
	void *broadcast_arg;
	const char *node_folder;  /* R159: packs lie in a folder of the node that writes them, a path with {node_rank} in it by
	                             which every node reaches every one; all else stays in root, which all nodes share. NULL =
	                             in root, too. Paths are not stored: who opens such a run gives them again */
	uint32_t partner;         /* with node_folder: on how many other nodes, the next ones, each pack is kept, too; 0 to 7.
	                             A pack that is missing or damaged on one is read from another */
	uint32_t n_nodes;         /* with node_folder: how many nodes there are; 0 = by rank->local_world_size */
	uint64_t read_bandwidth_bytes_per_second; /* of reading, all threads together; 0 = no limit */
	const char *const *mirrors; /* other stores, by URL, to which every checkpoint is copied in the background after it has
	                             been committed here (docs/mirrors.md); each holds a run by itself. What is missing or
	                             damaged here is read from them */
	size_t n_mirrors;         /* at most 8 */
	uint32_t num_concurrent_uploads; /* pieces on their way to a mirror at a time; 0 = 4, at most 64 */
	int64_t upload_timeout_ms;/* of one checkpoint to one mirror, then it is tried again later; 0 = 3,600,000 */
	uint64_t upload_memory_bytes; /* of the buffers of one upload; 0 = 256 MiB */
	int drop_mirrored;        /* 1: a checkpoint that every mirror has is deleted here, the latest too; pins and holds keep it */
	const struct pawl_retention *mirror_retention; /* of the copies in the mirrors; NULL = they are kept for ever */
	int mirror_errors;        /* 0: an upload that fails is told by pawl_check, pawl_wait_level and pawl_close alone; 1: pawl_save
	                             and pawl_wait fail too, as for a save that has failed; an open whose mirror cannot be
	                             reached, too */
	int leave_uploads;        /* 1: pawl_close does not wait for uploads: who opens the run next goes on with them */
	uint64_t after_id;        /* ids of new checkpoints are above this one, as they are above those of the run */
	uint64_t upload_bandwidth_bytes_per_second; /* into each mirror, all threads together; 0 = no limit */
	uint32_t upload_error_budget; /* so many failed tries in a row at a mirror are not told by pawl_check and pawl_close, nor
	                             fail a save; the next one is. They are events, and pawl_mirror_get counts them */
	const char *compression;  /* of the packs of new checkpoints, on the library's own threads behind the copy: "zst", "gz", "lz4",
	                             "xz", "bz2", "lzma" or "planes" (docs/compression.md); "auto": planes where what they go over (a
	                             store that is not this host's own, or a mirror) is slower than that; NULL, "" or "none" = not
	                             compressed */
	int compression_level;    /* 0 = the codec's default */
	const struct pawl_stores *stores; /* for other URLs in root, mirrors and targets of copies; copied; NULL = none */
	int64_t lease_wait_ms;    /* for another process's lease; 0 = until that is known to be alive or dead; -1 = none */
	pawl_lease_wait_fn *on_lease_wait; /* called every 2 s or more often while it waits; a negative code ends that */
	void *on_lease_wait_arg;
};
#define PAWL_OPEN_OPTS_INIT {.size = sizeof(struct pawl_open_opts), .retention = PAWL_RETENTION_INIT}

/* Opens or creates a run. Takes the run's lease unless read_only: PAWL_EBUSY names the holder.
 * PAWL_EEXISTS if the folder holds checkpoints of another run. Strings are copied. */
PAWL_API int pawl_open(const struct pawl_open_opts *, struct pawl **ret, struct pawl_error *);
/* Waits for running saves, releases the lease. The first error of a save that nobody has seen is
 * returned here; the handle is gone in any case. */
PAWL_API int pawl_close(struct pawl *, struct pawl_error *);
PAWL_API const char *pawl_root(const struct pawl *);   /* as given, absolute for paths */
PAWL_API const char *pawl_run_id(const struct pawl *); /* 32 hex digits; "" for single */
/* What the store cannot promise to a run that is open for writing, in words; NULL = nothing. It is an event, too. */
PAWL_API const char *pawl_warning(const struct pawl *);
PAWL_API uint32_t pawl_my_rank(const struct pawl *);    /* 0 when alone */
PAWL_API uint32_t pawl_world_size(const struct pawl *); /* 1 when alone */
/* Reads what other processes have committed or deleted since. */
PAWL_API int pawl_reload(struct pawl *, struct pawl_error *);

/* --------------------------------------------------------------- 5. saving */

/* Counters of a training; -1 = unknown. */
struct pawl_progress {
	int64_t epoch, batch, batch_in_epoch, sample, sample_in_epoch, token, token_in_epoch, iteration;
	double total_wct, epoch_wct, batch_wct; /* wall-clock seconds; < 0 = unknown */
	double fraction;                        /* of the whole training, 0..1; < 0 = unknown */
};
#define PAWL_PROGRESS_INIT {-1, -1, -1, -1, -1, -1, -1, -1, -1.0, -1.0, -1.0, -1.0}

struct pawl_metric {
	const char *name;
	double value;    /* NaN and infinities are stored, but never best and never evict */
	int not_a_number;/* 1: the caller's value was no number; an error if the score needs it */
};

/* Has a tensor changed since the call of pawl_save? Returns the index of one that has, or SIZE_MAX. later: 0 = asks of the
 * tensors that the call has copied, 1 = of the others. Called on any thread, once each, when they have been copied. */
typedef size_t pawl_changed_fn(void *arg, int later);

struct pawl_save_opts {
	size_t size;
	int64_t step;                 /* the caller's own counter */
	struct pawl_progress progress;/* batch = step where everything is unknown */
	const struct pawl_metric *metrics;
	size_t n_metrics;
	const struct pawl_state *metadata; /* small user data, no tensors; NULL = none */
	int lazy;                     /* 1: return at once; tensors must not change until pawl_fence. If one does, the save
	                                 fails, and its error names the tensor. A state that is small is copied at once */
	int mode;                     /* 0 = the run's, else enum pawl_mode + 1 */
	int on_busy;                  /* 0 = the run's, else enum pawl_on_busy + 1 */
	const unsigned char *at_once; /* with lazy, one per tensor of the state in its order: 1 = copied before pawl_save returns,
	                                 since it may change before pawl_fence. NULL = none */
	pawl_changed_fn *changed;     /* the caller knows of writes to its tensors; nothing is committed before it has said that
	                                 there was none. NULL = it does not */
	void *changed_arg;            /* lives until the save has been staged */
};
#define PAWL_SAVE_OPTS_INIT {.size = sizeof(struct pawl_save_opts), .progress = PAWL_PROGRESS_INIT}

/* Starts a save. Returns when the tensors have been copied (snapshot, ring), written (direct) or at
 * once (lazy); the rest happens on the library's threads. The state itself may be freed on return;
 * its tensors' data must stay unchanged until the return, or with lazy until pawl_fence returns. A lazy save reads them
 * twice and fails (PAWL_EUSAGE, told by the ticket) when a tensor has changed meanwhile; docs/c.md says what it cannot see.
 * ret_ticket may be NULL. Refused before anything is written: a missing score attribute
 * (PAWL_EUSAGE), too little space (PAWL_ENOSPACE, with both figures), a running save with on_busy
 * skip (PAWL_EBUSY), an earlier background error that nobody has seen (that error). */
PAWL_API int pawl_save(struct pawl *, const struct pawl_save_opts *, const struct pawl_state *,
                       struct pawl_ticket **ret_ticket, struct pawl_error *);

/* One of many ranks cannot take part in the save that the others begin now (its state could not be made): waits for its
 * turn and tells them why, so that the save fails soon and everywhere, and that ids keep meaning the same on all ranks.
 * Alone it does nothing. Returns code. */
PAWL_API int pawl_save_failed(struct pawl *, int code, const char *why);

enum pawl_stage {
	PAWL_STAGE_STAGING = 0,   /* tensors are being copied */
	PAWL_STAGE_STAGED = 1,    /* tensors may change */
	PAWL_STAGE_WRITTEN = 2,   /* all files are durable */
	PAWL_STAGE_COMMITTED = 3, /* the checkpoint exists and survives power loss */
	PAWL_STAGE_SETTLED = 4,   /* retention and pointers are done */
	PAWL_STAGE_FAILED = 5,    /* nothing has changed */
	PAWL_STAGE_SKIPPED = 6    /* not written: strict_score refused it */
};

struct pawl_save_stats {
	size_t size;
	uint64_t id;             /* 0 until known */
	uint64_t bytes;          /* of the checkpoint */
	uint64_t written_bytes;  /* less what was reused */
	uint64_t reused_bytes;
	double blocked_seconds;  /* how long the caller was held */
	double stage_seconds, write_seconds, commit_seconds, total_seconds;
	uint64_t minor_faults;   /* of the copying threads, while copying */
	uint64_t plain_bytes;    /* of the checkpoint, unpacked */
};
#define PAWL_SAVE_STATS_INIT {.size = sizeof(struct pawl_save_stats)}

/* Waits until the save is settled, skipped or failed; timeout_ms < 0 = for ever. Returns the save's
 * own error (which then counts as seen), or PAWL_ETIMEOUT with PAWL_SYS_WAITED. */
PAWL_API int pawl_ticket_wait(struct pawl_ticket *, int64_t timeout_ms, struct pawl_error *);
/* The same, but returns 0 as soon as the save has come to `stage` (enum pawl_stage, up to SETTLED): PAWL_STAGE_COMMITTED waits
 * for durability and not for the retention that follows. */
PAWL_API int pawl_ticket_wait_for(struct pawl_ticket *, int stage, int64_t timeout_ms, struct pawl_error *);
PAWL_API int pawl_ticket_stage(const struct pawl_ticket *);
/* ret: as PAWL_SAVE_STATS_INIT made it; no more than ret->size bytes are written. */
PAWL_API void pawl_ticket_stats(const struct pawl_ticket *, struct pawl_save_stats *ret);
PAWL_API void pawl_ticket_free(struct pawl_ticket *);

/* Waits until no save is being written, so that the next one need not wait for its turn; PAWL_ETIMEOUT. Errors stay as they
 * are, seen or not. For who must look up from a long wait now and then. */
PAWL_API int pawl_wait_turn(struct pawl *, int64_t timeout_ms, struct pawl_error *);
/* Waits until every tensor given to pawl_save so far may change (for lazy saves). */
PAWL_API int pawl_fence(struct pawl *, int64_t timeout_ms, struct pawl_error *);
/* Waits until all saves are settled; returns the first error nobody has seen. */
PAWL_API int pawl_wait(struct pawl *, int64_t timeout_ms, struct pawl_error *);
/* The first background error nobody has seen, or 0. Never waits. */
PAWL_API int pawl_check(struct pawl *, struct pawl_error *);
/* The same of saves alone (with mirror_errors of uploads, too): what the next pawl_save would fail with. */
PAWL_API int pawl_check_saves(struct pawl *, struct pawl_error *);
/* 1 while a save is running. */
PAWL_API int pawl_is_saving(const struct pawl *);

/* ------------------------------------------------- 6. retention, on request */

/* What retention would do (dry_run) or does now. Returned rows: one per checkpoint, oldest first. */
struct pawl_decision {
	uint64_t id;
	int keep;
	const char *reason; /* "latest", "best 1 of 3 by accuracy", "step 400 is a multiple of 100", ... */
};
struct pawl_decisions;
/* A policy without score attributes goes by the run's for what is best. PAWL_EUSAGE for a policy by a metric that no
 * checkpoint has; the message names those there are. */
PAWL_API int pawl_prune(struct pawl *, const struct pawl_retention * /* NULL = the run's */, int dry_run,
                        struct pawl_decisions **ret, struct pawl_error *);
PAWL_API size_t pawl_decisions_count(const struct pawl_decisions *);
PAWL_API const struct pawl_decision *pawl_decisions_get(const struct pawl_decisions *, size_t i);
PAWL_API void pawl_decisions_free(struct pawl_decisions *);

/* Pins, and scores (pawl_score), may be given through a read-only handle too: by an evaluation, say, beside the training
 * that writes the run. The training sees them when it next decides what to keep. */
PAWL_API int pawl_pin(struct pawl *, uint64_t id, struct pawl_error *);
PAWL_API int pawl_unpin(struct pawl *, uint64_t id, struct pawl_error *);
/* Adds or replaces metrics of a committed checkpoint; best is decided anew. */
PAWL_API int pawl_score(struct pawl *, uint64_t id, const struct pawl_metric *, size_t n, struct pawl_error *);
/* Deletes one checkpoint, manifest first. force: also a pinned one, the latest or the best.
 * PAWL_EBUSY while a reader holds it. */
PAWL_API int pawl_remove(struct pawl *, uint64_t id, int force, struct pawl_error *);

/* ------------------------------------------------------ 7. finding, listing */

enum pawl_mark {
	PAWL_MARK_LATEST = 1,
	PAWL_MARK_BEST = 2,
	PAWL_MARK_PINNED = 4,
	PAWL_MARK_HELD = 8,
	PAWL_MARK_NONFINITE = 16, /* holds NaN or Inf (option nonfinite) */
	PAWL_MARK_BAD = 32,       /* the manifest does not verify; only in lists asked for with bad ones */
	PAWL_MARK_UNFINISHED = 64, /* with that, in a bucket: there is no manifest, so it is a save that goes on, or what one
	                             that was cut off has left: no damage, and pawl_verify of all says nothing of it */
	PAWL_MARK_DENIED = 128     /* with PAWL_MARK_BAD: no permission to read the manifest, which may well be good */
};

/* Summary of a checkpoint, from its manifest. Borrowed from the handle that returned it. */
struct pawl_info {
	uint64_t id;
	int64_t step;
	const char *name;     /* folder name */
	const char *path;     /* below the root's own path; absolute for file stores; of one that is not here its place in a mirror,
	                         a path or URL */
	const char *run_id;
	uint64_t attempt;
	double unix_seconds;  /* when it was saved */
	struct pawl_progress progress;
	const struct pawl_metric *metrics; /* with late scores */
	size_t n_metrics;
	double score;         /* by the first score attribute */
	int has_score;
	uint64_t bytes;       /* of all files */
	uint64_t new_bytes;   /* less reused packs */
	uint64_t n_tensors, n_files;
	uint32_t world_size;
	unsigned marks;       /* enum pawl_mark */
	double blocked_seconds;
	const char *problem;  /* why it is bad, "" otherwise */
	const char *format;   /* "pawl", or of a file that another program wrote: "safetensors". Static */
	int level;            /* enum pawl_level: what it survives */
	int here;             /* 1: in the run's own folder; 0: only in a mirror */
	uint32_t n_mirrors;   /* how many mirrors have it, verified */
	uint64_t plain_bytes; /* of all files unpacked; as bytes where none is compressed */
};

struct pawl_list;
/* Committed checkpoints, oldest first (order of ids). with_bad: also folders whose manifest is
 * missing or does not verify, marked PAWL_MARK_BAD. */
PAWL_API int pawl_list_open(struct pawl *, int with_bad, struct pawl_list **ret, struct pawl_error *);
PAWL_API size_t pawl_list_count(const struct pawl_list *);
PAWL_API const struct pawl_info *pawl_list_get(const struct pawl_list *, size_t i);
PAWL_API void pawl_list_free(struct pawl_list *);

/* A save that goes on, of a run whose checkpoints are compressed: how far it was when its writer last said so; of many
 * ranks rank 0, of its own part. */
struct pawl_saving {
	size_t size;
	uint64_t id;
	int64_t step;
	char name[256];         /* of the checkpoint that it is to be, cut if it is longer */
	double unix_seconds;    /* when that was so */
	uint64_t plain_bytes;   /* of the state */
	uint64_t done_bytes;    /* of them: compressed */
	uint64_t written_bytes; /* compressed ones, in the store */
};
#define PAWL_SAVING_INIT {.size = sizeof(struct pawl_saving)}
/* Who writes says it once a second, in the run's events. PAWL_ENOTFOUND: nobody says that a save goes on. ret: as
 * PAWL_SAVING_INIT made it. */
PAWL_API int pawl_saving(struct pawl *, struct pawl_saving *ret, struct pawl_error *);

/* Finds the id for a selector: "latest", "best", "good" (the newest not flagged for NaN or Inf), "7" or "id:7",
 * "step:400", a folder name. PAWL_ENOTFOUND if there is none. */
PAWL_API int pawl_find(struct pawl *, const char *selector, uint64_t *ret_id, struct pawl_error *);
/* The user's metadata of a checkpoint; NULL state if none was given. The caller frees it. */
PAWL_API int pawl_metadata(struct pawl *, uint64_t id, struct pawl_state **ret, struct pawl_error *);

/* Waits for a checkpoint with an id above `after`; PAWL_ETIMEOUT when none came. Polls. (R156) */
PAWL_API int pawl_wait_for_new(struct pawl *, uint64_t after, int64_t timeout_ms, uint64_t *ret_id, struct pawl_error *);
/* Holds a checkpoint against deletion by any process while it is used; dies with the process. Opening a checkpoint of a
 * run by its own path (`single`, `read_only`) holds it until pawl_close. */
struct pawl_hold;
PAWL_API int pawl_hold_open(struct pawl *, uint64_t id, struct pawl_hold **ret, struct pawl_error *);
PAWL_API void pawl_hold_close(struct pawl_hold *);

/* ------------------------------------------------------------- 8. restoring */

/* Values per rank go back to their rank. Where another number of ranks saved than restores there is no such rank; then: */
enum pawl_rank_values {
	PAWL_RANK_VALUES_STRICT = 0, /* PAWL_EMISMATCH naming them; with non_strict as _DROP */
	PAWL_RANK_VALUES_DROP = 1,   /* the live values stay as they are; a line "dropped: <path>" of the report says so */
	PAWL_RANK_VALUES_WRAP = 2    /* rank r takes those of saved rank r modulo the saved world's size */
};

/* Called by every rank at the same point, equally often: fills bytes with those of rank `root`, as MPI_Bcast does. 0 or a
 * negative enum pawl_code; then the restore fails, and this rank calls it no more. */
typedef int pawl_share_fn(void *arg, uint32_t root, void *bytes, size_t nbytes, struct pawl_error *err);

struct pawl_restore_opts {
	size_t size;
	const char *selector;        /* as pawl_find; NULL = "latest" */
	const char *const *include;  /* path globs ('*' within and across '/'); none = everything */
	size_t n_include;
	int non_strict;              /* 1: report differences instead of failing */
	int no_fallback;             /* 1: never take an older checkpoint */
	uint64_t ring_bytes;         /* reading buffers; 0 = 64 MiB, at most 96 MiB is used */
	int rank_values;             /* enum pawl_rank_values: PAWL_PER_RANK values when the world's size has changed */
	pawl_share_fn *share_reads;  /* many ranks, set on all or on none: a tensor that all of them want whole, or the same box
	                                of, is read and verified by one (each reads an even share) and handed to the others by
	                                this function, on the thread that calls pawl_restore_read. NULL = each reads for itself */
	void *share_arg;
};
#define PAWL_RESTORE_OPTS_INIT {.size = sizeof(struct pawl_restore_opts)}
/* 1 if the path of a leaf matches a glob as in `include`, else 0. */
PAWL_API int pawl_path_matches(const char *glob, const char *path);

struct pawl_restore;
/* Picks a checkpoint and reads its manifest; tensors are read by pawl_restore_read. */
PAWL_API int pawl_restore_open(struct pawl *, const struct pawl_restore_opts *, struct pawl_restore **ret, struct pawl_error *);
PAWL_API void pawl_restore_close(struct pawl_restore *);
PAWL_API const struct pawl_info *pawl_restore_info(const struct pawl_restore *);
/* The saved tree; its tensors have no data. Borrowed; replaced by pawl_restore_fallback. */
PAWL_API const struct pawl_state *pawl_restore_state(const struct pawl_restore *);
/* Names the memory that tensor `index` of the saved tree is read into: same dtype and shape, any
 * strides; with offsets/global_shape set, that box of the global tensor. May be called several times
 * per tensor. `data` is borrowed until pawl_restore_read returns. */
PAWL_API int pawl_restore_bind(struct pawl_restore *, size_t index, const struct pawl_tensor *dst, struct pawl_error *);
/* How tensor `index` of the saved tree lies in the checkpoint: its pieces, boxes that together fill it once. offsets and
 * lengths: ndim numbers each, borrowed as the tree is; they may be NULL. PAWL_ENOTFOUND where there is no such piece. */
PAWL_API size_t pawl_restore_piece_count(const struct pawl_restore *, size_t index);
PAWL_API int pawl_restore_piece(const struct pawl_restore *, size_t index, size_t i, const uint64_t **offsets,
                                const uint64_t **lengths, struct pawl_error *);
/* Matches the leaves of a live state to the saved ones by path and binds its tensors. Differences
 * (missing, unexpected, wrong dtype, wrong shape) are PAWL_EMISMATCH naming them all, or with
 * non_strict go to the report. Tensors with `fill` set are not bound. */
PAWL_API int pawl_restore_match(struct pawl_restore *, const struct pawl_state *live, struct pawl_error *);
/* Reads everything bound, verifying every block. On PAWL_ECORRUPT the destinations hold undefined
 * bytes: call pawl_restore_fallback and bind again, or give up. PAWL_ENOTFOUND: the checkpoint was deleted
 * while it was read; the same two choices. */
PAWL_API int pawl_restore_read(struct pawl_restore *, struct pawl_error *);
/* One of many ranks cannot go on with its restore (its memory does not fit what was saved, say): what the others are told
 * when it is closed before it has been read. Without this, and without an error of the library's own, they hear that the
 * rank gave the restore up. */
PAWL_API void pawl_restore_failed(struct pawl_restore *, int code, const char *why);
/* Moves on to the next older valid checkpoint, remembering why. PAWL_ENOTFOUND: there is none, or
 * fallback is off. After PAWL_ENOTFOUND (in why) it selects again instead, as pawl_restore_open did: that is no
 * fallback, and nothing is remembered. */
PAWL_API int pawl_restore_fallback(struct pawl_restore *, const struct pawl_error *why, struct pawl_error *);
/* Why checkpoints were passed over: "checkpoint_000007: ..." per row. */
PAWL_API size_t pawl_restore_fallback_count(const struct pawl_restore *);
PAWL_API const char *pawl_restore_fallback_get(const struct pawl_restore *, size_t i);
/* Report of a non-strict match: "missing: model/x", "unexpected: ...", "shape: ..." per row. */
PAWL_API size_t pawl_restore_report_count(const struct pawl_restore *);
PAWL_API const char *pawl_restore_report_get(const struct pawl_restore *, size_t i);

/* All of the above in one call, for a live state whose tensors are filled in place: open, match,
 * read, and fall back as often as needed. *ret (may be NULL) is to be closed by the caller and
 * gives info, scalars (pawl_restore_state) and fallbacks. PAWL_ENOTFOUND on a fresh run. */
PAWL_API int pawl_restore(struct pawl *, const struct pawl_restore_opts *, const struct pawl_state *live,
                          struct pawl_restore **ret, struct pawl_error *);

/* ------------------------------------------------------------- 9. triggers */

/* 1 if a save is due by the run's save_interval at this point of the training, else 0; negative if the interval needs a
 * counter that is not given. An interval is one time string ("1ep" "5it" "10ba" "5000sp" "1000000tok" "30sec" "0.25dur"
 * "auto", or "first": nothing has been saved yet), or several with commas between them, of which any may be due.
 * Always 1 without an interval, and once when fraction reaches 1. Does not count as a save: pawl_save moves the mark that
 * intervals are counted from; a restore sets it to where the checkpoint was saved; alone (not one of many ranks) a save that
 * fails moves it back, so that the next point is due again.
 * progress may be NULL: then step counts batches. */
PAWL_API int pawl_should_save(struct pawl *, int64_t step, const struct pawl_progress *, struct pawl_error *);
/* The same as a pure function: is a save due by `interval` between two points? */
PAWL_API int pawl_interval_due(const char *interval, const struct pawl_progress *last, const struct pawl_progress *now,
                               struct pawl_error *);
/* The interval in seconds that wastes least time for a cost per save and a mean time between
 * failures: Young (CACM 17(9), 1974) with Daly's higher-order term (FGCS 22(3), 2006). */
PAWL_API double pawl_optimal_interval_seconds(double save_cost_seconds, double mtbf_seconds);

/* Watches SIGTERM and SIGUSR1: the handler only sets a flag and passes the signal on to the handler that was there before.
 * grace_seconds: time from signal to kill, if known (0 = unknown). One watch per process at a time (PAWL_EBUSY);
 * pawl_watch_close puts the earlier handlers back. A forked child is not watched: there the signals do what they did before. */
struct pawl_watch;
PAWL_API int pawl_watch_open(double grace_seconds, struct pawl_watch **ret, struct pawl_error *);
PAWL_API int pawl_watch_signal(const struct pawl_watch *);          /* number of the signal that came, or 0 */
PAWL_API int64_t pawl_watch_sender(const struct pawl_watch *);      /* the process that sent it; 0 = not known, or none came */
PAWL_API double pawl_watch_seconds_left(const struct pawl_watch *); /* < 0 = unknown */
PAWL_API void pawl_watch_close(struct pawl_watch *);

/* ------------------------------------------------------------- 10. upkeep */

/* Progress of long work, polled from another thread, or NULL. All fields are atomically updated. */
struct pawl_meter {
	volatile uint64_t done_bytes, total_bytes;
	volatile int cancel; /* set to 1 to stop: PAWL_ECANCELLED */
};

/* One finding of a verification. */
struct pawl_finding {
	uint64_t id;
	const char *file;    /* name in the checkpoint's folder */
	uint64_t begin, end; /* byte range */
	const char *tensor;  /* tensors touched, the first four by name ("a, b"); "" if none */
	const char *message;
};
struct pawl_findings;
/* Reads every byte of a checkpoint (id 0: of all) and checks it. Returns PAWL_ECORRUPT when
 * findings exist; *ret is set then too (the one exception to the rule on out-parameters). */
PAWL_API int pawl_verify(struct pawl *, uint64_t id, struct pawl_meter *, struct pawl_findings **ret, struct pawl_error *);
PAWL_API size_t pawl_findings_count(const struct pawl_findings *);
PAWL_API const struct pawl_finding *pawl_findings_get(const struct pawl_findings *, size_t i);
PAWL_API void pawl_findings_free(struct pawl_findings *);

enum pawl_change { PAWL_SAME = 0, PAWL_ADDED = 1, PAWL_REMOVED = 2, PAWL_CHANGED = 3 };
struct pawl_diff_row {
	const char *path;
	int change;          /* enum pawl_change; same ones are not listed */
	int is_tensor;
	const char *was, *is;/* dtype and shape, or the value as text */
	double max_abs, max_rel; /* of changed tensors of equal dtype and shape; else NaN. Elements where both
	                            are NaN count as equal */
};
struct pawl_diff;
/* Compares two checkpoints, reading tensors in a stream. The runs may be the same handle. */
PAWL_API int pawl_diff_open(struct pawl *a, uint64_t id_a, struct pawl *b, uint64_t id_b, struct pawl_meter *,
                            struct pawl_diff **ret, struct pawl_error *);
PAWL_API size_t pawl_diff_count(const struct pawl_diff *);
PAWL_API const struct pawl_diff_row *pawl_diff_get(const struct pawl_diff *, size_t i);
PAWL_API void pawl_diff_free(struct pawl_diff *);

struct pawl_export_opts {
	size_t size;
	const char *const *include; /* path globs; none = everything */
	size_t n_include;
	const char *strip_prefix;   /* removed from tensor names, e.g. "model/"; NULL = none */
	uint64_t max_shard_bytes;   /* 0 = one file; else a Hugging Face shard set with index */
	int dots;                   /* 1: write '.' instead of '/' in names */
	int overwrite;
	int model;                  /* 1: the model's state dict alone, under the names that load_state_dict takes */
};
#define PAWL_EXPORT_OPTS_INIT {.size = sizeof(struct pawl_export_opts)}
/* Writes tensors of a checkpoint as target: a file in the format of its suffix, or a folder for shards. Constant memory. */
PAWL_API int pawl_export(struct pawl *, uint64_t id, const char *target, const struct pawl_export_opts *,
                         struct pawl_meter *, struct pawl_error *);

struct pawl_reshard_opts {
	size_t size;
	uint32_t world_size;        /* how many ranks the new checkpoint is laid out for; at least 1 */
	int drop_rank_values;       /* 1: values per rank are left out where the number of ranks changes; 0: PAWL_EMISMATCH */
	const char *compression;    /* of the new packs, as in struct pawl_open_opts; NULL = not compressed */
	int compression_level;      /* 0 = the codec's default */
};
#define PAWL_RESHARD_OPTS_INIT {.size = sizeof(struct pawl_reshard_opts)}
/* Writes a checkpoint (id 0: the latest) anew as a single one at target, a folder that is not there yet, as so many ranks
 * would have written it: large tensors cut between rows into even shares, one set of packs per rank. Step, metrics and
 * metadata stay. Plain values that differed between the ranks become rank 0's where their number changes. Reads and
 * checks every byte once, in constant memory; on failure nothing stays. */
PAWL_API int pawl_reshard(struct pawl *, uint64_t id, const char *target, const struct pawl_reshard_opts *,
                          struct pawl_meter *, struct pawl_error *);

/* Deletes what crashes left (partial folders of dead writers, folders without manifest that this
 * run wrote, stale holds, recycled files). *ret_bytes: freed, or with dry_run to be freed. */
PAWL_API int pawl_gc(struct pawl *, int dry_run, uint64_t *ret_count, uint64_t *ret_bytes, struct pawl_error *);
/* Rebuilds a lost or damaged manifest from the packs of a checkpoint folder; refuses if any tensor
 * is incomplete. dry_run: only says whether it would work. */
PAWL_API int pawl_repair(struct pawl *, const char *name, int dry_run, struct pawl_error *);

/* Capabilities of the store under a root, found by trying, as rows "key: value". */
struct pawl_rows;
PAWL_API int pawl_doctor(const char *root, struct pawl_rows **ret, struct pawl_error *);
PAWL_API size_t pawl_rows_count(const struct pawl_rows *);
PAWL_API const char *pawl_rows_key(const struct pawl_rows *, size_t i);
PAWL_API const char *pawl_rows_value(const struct pawl_rows *, size_t i);
PAWL_API void pawl_rows_free(struct pawl_rows *);

/* Fault layer, for testing programs that use pawl: the n-th call (from 1) of an operation named
 * "put", "create", "write", "finish", "publish", "read", "list", "stat", "remove", "link" or "any" fails
 * with `code`, once or (forever) from then on. */
PAWL_API int pawl_fault_new(const char *operation, uint64_t nth, int code, int forever, struct pawl_fault **ret,
                            struct pawl_error *);
PAWL_API uint64_t pawl_fault_calls(const struct pawl_fault *); /* matching calls seen so far */
PAWL_API void pawl_fault_free(struct pawl_fault *);

/* ---------------------------------------------------- 11. mirrors, copies */

enum pawl_level {
	PAWL_LEVEL_NONE = 0,   /* ends with the process (memory) */
	PAWL_LEVEL_LOCAL = 1,  /* survives a power cut of this host */
	PAWL_LEVEL_REMOTE = 2  /* survives the loss of this host: it lies in a remote store, or all mirrors of the run have it and
	                          have been read back */
};
/* pawl_wait up to a level: LOCAL is pawl_wait. REMOTE waits until every checkpoint of the run is in every mirror, or an upload
 * has failed since the call began: then that error. PAWL_ETIMEOUT with PAWL_SYS_WAITED. On ranks above 0 REMOTE
 * is PAWL_EUNSUPPORTED where there are mirrors: rank 0 copies, and only it can tell. */
PAWL_API int pawl_wait_level(struct pawl *, int level, int64_t timeout_ms, struct pawl_error *);

/* One mirror of a run, as far as this process knows. */
struct pawl_mirror_info {
	size_t size;
	const char *url;
	uint64_t n_done, n_waiting;     /* checkpoints that are there (of those known), and that are to be copied still */
	uint64_t n_failed;              /* tries that have failed since the run was opened */
	uint64_t done_bytes, total_bytes; /* of the upload in progress; 0 of 0 = none */
	int code;                       /* of the last try: 0, or a negative enum pawl_code */
	char message[256];              /* of that */
};
#define PAWL_MIRROR_INFO_INIT {.size = sizeof(struct pawl_mirror_info)}
/* The mirrors given when the run was opened; where none were, those that its last training had (then nothing is read from
 * them). */
PAWL_API size_t pawl_mirror_count(const struct pawl *);
/* ret: as PAWL_MIRROR_INFO_INIT made it. PAWL_ENOTFOUND beyond the last. */
PAWL_API int pawl_mirror_get(struct pawl *, size_t i, struct pawl_mirror_info *ret, struct pawl_error *);

/* Copies to the mirrors all that they lack, newest first, and returns when that is done; every upload is tried once and the
 * first error returned. For a run that is open for upkeep: one that trains does it by itself (then this waits for that).
 * Goes on where a process that was killed has left. meter: over all copies. */
PAWL_API int pawl_sync(struct pawl *, struct pawl_meter *, struct pawl_error *);

struct pawl_copy_opts {
	size_t size;
	uint32_t n_streams;    /* pieces on their way at a time; 0 = 4, at most 64 */
	uint64_t memory_bytes; /* of all buffers together; 0 = 256 MiB */
	int64_t timeout_ms;    /* 0 = none; else PAWL_ETIMEOUT after that */
	uint64_t bandwidth_bytes_per_second; /* of the target; 0 = no limit. Of the source: in its pawl_open_opts */
	int dry_run;           /* pawl_copy_run: 1 = only say what would be copied */
	const uint64_t *ids;   /* pawl_copy_run: only these; none = all */
	size_t n_ids;
	pawl_lease_wait_fn *on_lease_wait; /* pawl_copy_run: while it waits for the lease of the target; NULL = none */
	void *on_lease_wait_arg;
};
#define PAWL_COPY_OPTS_INIT {.size = sizeof(struct pawl_copy_opts)}
/* Copies one checkpoint (id 0: the latest) to `to`, a path or URL, as a single one: every byte is verified when it is read,
 * read back at the target, and the manifest comes last, so that nothing half is ever there. Between any two stores.
 * Repeating it goes on where an earlier call was stopped; if the very checkpoint is there already, it does nothing.
 * PAWL_EEXISTS: something else is there. PAWL_ECORRUPT: the source is damaged; nothing is committed. */
PAWL_API int pawl_copy(struct pawl *, uint64_t id, const char *to, const struct pawl_copy_opts *, struct pawl_meter *,
                       struct pawl_error *);

/* What has become of one checkpoint of a run. */
struct pawl_copied {
	uint64_t id;
	const char *name;
	uint64_t bytes;        /* of its files */
	int was_there;         /* 1: the target had it already */
	uint64_t sent_bytes, found_bytes, linked_bytes; /* how they came to the target; found: by a copy that was cut off */
	const char *problem;   /* not "": it is damaged at the source and was passed over, and why */
};
struct pawl_copies;
/* Brings a whole run to `to`, a path or URL, or up to date there: what is missing, the newest first, with ids, run.json, pins,
 * late scores and pointers; each as by pawl_copy. Nothing at the target is removed; its lease is taken. Repeating it goes on.
 * What is damaged at the source is passed over and told at the end (PAWL_ECORRUPT). *ret may be NULL; it is set after
 * failures, too, where there are rows (newest first). PAWL_ECONFLICT: the target has another checkpoint of the same id;
 * PAWL_EEXISTS: another run or something else is there. */
PAWL_API int pawl_copy_run(struct pawl *, const char *to, const struct pawl_copy_opts *, struct pawl_meter *,
                           struct pawl_copies **ret, struct pawl_error *);
PAWL_API size_t pawl_copies_count(const struct pawl_copies *);
PAWL_API const struct pawl_copied *pawl_copies_get(const struct pawl_copies *, size_t i);
PAWL_API void pawl_copies_free(struct pawl_copies *);

enum pawl_kind {
	PAWL_KIND_NOTHING = 0,    /* nothing, or an empty folder */
	PAWL_KIND_RUN = 1,
	PAWL_KIND_CHECKPOINT = 2, /* a single one */
	PAWL_KIND_OTHER = 3       /* something that is not pawl's */
};
/* What lies at a root, a path or a URL: enum pawl_kind, or a negative code where that cannot be found out. */
PAWL_API int pawl_kind_of(const char *root, struct pawl_error *);

/* ------------------------------------------------------------ 12. syncing folders */

/* Brings a folder (a run, or many in one) to another place, or back: by rsync over ssh to user@host:path, by pawl's own
 * stores to a path or a URL that pawl_open takes, by a command anywhere. A sync deletes nothing there. Packs go before manifests,
 * and pointers after what they lead to has been verified. See docs/sync.md. */
struct pawl_syncer_opts {
	size_t size;
	const char *command; /* instead of pawl's own ways, without a shell: must have {source} and {target} in it. NULL = none */
	int shell;           /* 1: the command is given to /bin/sh, with the places quoted */
	int64_t timeout_ms;  /* of one sync, verification and all; 0 = 1,800,000 */
	int no_verify;       /* 1: what came over is not read again and verified */
};
#define PAWL_SYNCER_OPTS_INIT {.size = sizeof(struct pawl_syncer_opts)}

struct pawl_syncer_report {
	size_t size;
	int verified;           /* 1: every checkpoint that was there has come over and verifies by pawl's own sums */
	uint64_t n_checkpoints; /* so many */
	double seconds;
	char note[200];         /* why it was not verified; "" otherwise */
};
#define PAWL_SYNCER_REPORT_INIT {.size = sizeof(struct pawl_syncer_report)}

/* local: a path. Nothing is looked at yet but the words: PAWL_EUSAGE for a place that no way leads to, a command without a
 * field, a password in a URL. Strings are copied. */
struct pawl_syncer;
PAWL_API int pawl_syncer_open(const char *local, const char *remote, const struct pawl_syncer_opts *, struct pawl_syncer **ret,
                            struct pawl_error *);
/* From here to there, and back. One at a time on a handle, else PAWL_EBUSY. ret: as PAWL_SYNCER_REPORT_INIT made it, or NULL. A
 * sync that has failed is repeated as it is; what had come over is not sent again. Setting meter->cancel to 1 ends it. */
PAWL_API int pawl_syncer_up(struct pawl_syncer *, struct pawl_meter *, struct pawl_syncer_report *ret, struct pawl_error *);
PAWL_API int pawl_syncer_down(struct pawl_syncer *, struct pawl_meter *, struct pawl_syncer_report *ret, struct pawl_error *);
/* Verification alone, of what somebody else has moved: what is there (down = 0), or here. */
PAWL_API int pawl_syncer_verify(struct pawl_syncer *, int down, struct pawl_meter *, struct pawl_syncer_report *ret,
                              struct pawl_error *);
/* For a mover of the caller's own: a view of the folder, with complete checkpoints only, that does not change until thaw or
 * close removes it; pawl_syncer_verify(down = 0) looks at the view then. Makes the folders above the target. See docs/sync.md. */
PAWL_API int pawl_syncer_freeze(struct pawl_syncer *, struct pawl_meter *, const char **ret_path, struct pawl_error *);
PAWL_API void pawl_syncer_thaw(struct pawl_syncer *);
/* Removes folders there ("trial_1/checkpoint_3"). Success, too: they are not there, only a command can write to the place. */
PAWL_API int pawl_syncer_prune(struct pawl_syncer *, const char *const *folders, size_t n, struct pawl_error *);
PAWL_API void pawl_syncer_close(struct pawl_syncer *); /* not while it syncs; NULL is fine */
/* The files of a folder again in another folder of the same bucket, host or disk: by links, or by copies that the server makes,
 * a request or a few for each and no bytes through this machine. The files must not change or be removed meanwhile. What has the
 * same name at `to` is replaced, other files stay there; symbolic links are left out. After a failure it may be repeated. meter:
 * cancel ends it; or NULL. PAWL_EUNSUPPORTED: not one store, or it cannot do it. PAWL_ENOTFOUND: there is nothing. */
PAWL_API int pawl_clone_folder(const char *from, const char *to, struct pawl_meter *, struct pawl_error *);
/* Puts stars over secrets in what a program has said, in place: values of environment variables named KEY, SECRET, TOKEN and the
 * like, passwords in URLs, what follows "password:" or "token=". Any thread, while the environment does not change. */
PAWL_API void pawl_hide_secrets(char *text);

/* --------------------------------------------------------------- 13. single files */

/* Writes a state to a single file that other programs read, in the background, in the format that the name's suffix says:
 * .pt or .pth (torch.load), .safetensors; each also with the suffix of a compression after it (x.pt.zst). The tensors are
 * copied to staging memory, the caller goes on, the file is written under a hidden name beside its place, made durable and
 * given its name. Whatever fails, what had the name before stays (or nothing is there). See docs/files.md. */
struct pawl_files_opts {
	size_t size;
	struct pawl_arena *arena; /* NULL = own */
	uint32_t threads;         /* that copy, and that write; 0 = as many as there are cores, at most 16 */
	uint64_t bandwidth_bytes; /* a second, of writing; 0 = no limit */
	struct pawl_fault *fault; /* tests: a fault layer around the store of each folder; NULL = none */
};
#define PAWL_FILES_OPTS_INIT {.size = sizeof(struct pawl_files_opts)}

struct pawl_file_opts {
	size_t size;
	const char *format; /* a suffix in place of the name's, "pt.zst" say; NULL = by the name */
	int overwrite;      /* 0: PAWL_EEXISTS where the name is taken, now or when the file is given it */
	int level;          /* of compression, 0 = its default */
	int raw_pickle;     /* 1: in .pt files, a dict of the one key "$pickle" with bytes stands for these pickle opcodes (no
	                       PROTO, no STOP, no memo; they leave one object). What they say is the caller's care */
};
#define PAWL_FILE_OPTS_INIT {.size = sizeof(struct pawl_file_opts)}

struct pawl_files; /* files being written, one after another; from any thread */
/* options NULL: all defaults. */
PAWL_API int pawl_files_open(const struct pawl_files_opts *options, struct pawl_files **ret, struct pawl_error *);
/* Returns when the tensors have been copied; the state may go then. Refused before anything is written: a format that is not
 * known (PAWL_EUSAGE), what it cannot hold, a taken name, a folder that is not there, an earlier background error that
 * nobody has seen (that error). options NULL: by suffix, no overwriting. ret_ticket may be NULL. Stages of the ticket: STAGED,
 * WRITTEN, COMMITTED and SETTLED at once. */
PAWL_API int pawl_files_save(struct pawl_files *, const char *path, const struct pawl_file_opts *options,
                             const struct pawl_state *, struct pawl_ticket **ret_ticket, struct pawl_error *);
/* Waits until all saves so far have come to an end (timeout_ms < 0: for ever); then as pawl_files_check. PAWL_ETIMEOUT with
 * PAWL_SYS_WAITED. */
PAWL_API int pawl_files_wait(struct pawl_files *, int64_t timeout_ms, struct pawl_error *);
/* The first error of the background that nobody has been told of, once. */
PAWL_API int pawl_files_check(struct pawl_files *, struct pawl_error *);
/* Waits, tells as pawl_files_check does, and frees in any case. NULL is fine. Tickets stay good. */
PAWL_API int pawl_files_close(struct pawl_files *, struct pawl_error *);

/* ------------------------------------------------------------ 14. other formats */

/* Writes tensors of a checkpoint, or of a file or folder of another program that is opened as one, as files of other formats:
 * one of safetensors, of torch.save (.pt, one flat dict), of numpy (.npz, .npy), a folder as the Hugging Face libraries or
 * torch.distributed.checkpoint keep models, or, as pawl_reshard does, a checkpoint of pawl's own. Tensors are streamed, so that
 * memory does not grow with the size; everything is checked as far as the source has sums; files get their names when all are
 * whole and durable. Values that are no tensors stay behind, but not with "dcp" (unless there are new names) and "pawl", which
 * takes no choice, names and dtype. See docs/convert.md. */
struct pawl_convert_opts {
	size_t size;
	const char *to;             /* "safetensors", "hf", "pt", "dcp", "pawl", "npz", "npy"; NULL = by the suffix of the name */
	const char *const *include; /* globs of paths; none = everything */
	size_t n_include;
	const char *const *exclude;
	size_t n_exclude;
	const char *const *rename;  /* "GLOB=TEMPLATE", the first one that matches counts: {1} is what the first '*' or '?' matched,
	                               {0} the whole name */
	size_t n_rename;
	const char *dtype;          /* "fp16", "bf16", "fp32", "fp64": what F16, BF16, F32 and F64 become; NULL = they stay */
	uint64_t max_shard_bytes;   /* of "hf" and "dcp": 0 = one file */
	int dots;                   /* 1: write '.' instead of '/' in names, after renaming */
	int overwrite;
};
#define PAWL_CONVERT_OPTS_INIT {.size = sizeof(struct pawl_convert_opts)}
struct pawl_convert_report {
	size_t size;
	uint64_t n_tensors, n_files, bytes; /* written; bytes of tensors */
	uint64_t n_left;                    /* values that are no tensors and stayed behind */
};
#define PAWL_CONVERT_REPORT_INIT {.size = sizeof(struct pawl_convert_report)}
/* ret: NULL, or as its INIT made it. PAWL_EEXISTS: two tensors would get one name, or something is there already;
 * PAWL_EUNSUPPORTED: the format has no such dtype. */
PAWL_API int pawl_convert(struct pawl *, uint64_t id, const char *dst, const struct pawl_convert_opts *, struct pawl_meter *,
                          struct pawl_convert_report *ret, struct pawl_error *);

/* ----------------------------------------------------------------- 15. tar */

/* A folder of files as one archive, by the suffix of its name: .tar .tgz .tar.gz .tar.bz2 .tar.lz4 .tar.lzma .tar.lzo
 * .tar.planes .tar.xz .tar.zst; and back. What is made is durable when it gets its name, or is not there at all. */
struct pawl_tar_opts {
	size_t size;
	int overwrite;      /* of packing: replace an archive that is there */
	int level;          /* of compression; 0 = its default */
	uint32_t threads;   /* of compression; 0 = as many as there are cores */
	uint64_t max_bytes; /* of unpacking; 0 = 1 TiB */
};
#define PAWL_TAR_OPTS_INIT {.size = sizeof(struct pawl_tar_opts)}
/* Regular files and folders in order of their names; anything else is PAWL_EUNSUPPORTED. */
PAWL_API int pawl_tar_pack(const char *folder, const char *path, const struct pawl_tar_opts *, struct pawl_error *);
/* Into a folder that is not there, or empty (else PAWL_EEXISTS). Names that lead out of it, links and devices are refused. */
PAWL_API int pawl_tar_unpack(const char *path, const char *folder, const struct pawl_tar_opts *, struct pawl_error *);

/* ---------------------------------------------- 16. checkpoint files by name */

/* One file per save, with a name from a template, as Composer's CheckpointSaver writes them (docs/composer.md): kept so many
 * here, uploaded in the background, a link to the latest one here and there. Files are written by pawl_files_save: a file has
 * its name only when it is whole and durable. What has been written, and what of it uploaded, is remembered in
 * <folder>/.pawl, so that a process that comes after goes on. One thread at a time on a handle. */
struct pawl_saver;
struct pawl_saver_opts {
	size_t size;
	/* Templates. Variables: run_name rank local_rank world_size local_world_size node_rank, and but in folder: epoch batch
	 * batch_in_epoch sample sample_in_epoch token token_in_epoch total_wct epoch_wct batch_wct. */
	const char *folder;            /* a path */
	const char *filename;          /* below the folder; the suffix says the format: .pt, .pt.zst, .tar.gz, .safetensors, .. */
	const char *remote_file_name;  /* the URL of a file (s3://bucket/{run_name}/..), or a name in `remote`; leading slashes do
	                                  not count; NULL = nothing is uploaded */
	const char *latest_filename;   /* of a symbolic link to the latest one; NULL = none */
	const char *latest_remote_file_name; /* in the same store; with ".symlink" after it the name of an object that holds the
	                                  remote name of the latest one. NULL, or without latest_filename: none */
	const char *save_interval;     /* time strings, as pawl_interval_due takes them; NULL = the caller decides */
	int overwrite;                 /* 1: what is in the way may be replaced */
	int weights_only;              /* 1: of the state only what is at "model", or "state/model" */
	int64_t num_checkpoints_to_keep; /* here; the oldest go first, each after its upload; -1 = all, 0 = none */
	const char *const *ignore_keys;  /* path globs: what is left out of the state, with all below it */
	size_t n_ignore_keys;
	uint32_t num_concurrent_uploads;
	int64_t upload_timeout_ms;     /* of one file */
	const char *run_name;          /* NULL = unknown: {run_name} is an error */
	const struct pawl_rank *rank;  /* NULL = as pawl_rank_identify finds it. Only rank 0 writes states; of folders every rank
	                                  writes its own */
	const char *remote;            /* URL of the store that relative remote names are in; NULL = none */
	int uploads_by_caller;         /* 1: relative remote names without a store are uploaded by the caller, who tells it by
	                                  pawl_saver_uploaded */
	struct pawl_arena *arena;      /* NULL = own */
	int raw_pickle;                /* as in struct pawl_file_opts */
};
#define PAWL_SAVER_OPTS_INIT                                                                       \
	{                                                                                          \
		.size = sizeof(struct pawl_saver_opts), .folder = "{run_name}/checkpoints",        \
		.filename = "ep{epoch}-ba{batch}-rank{rank}.pt",                                   \
		.remote_file_name = "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt",    \
		.latest_filename = "latest-rank{rank}.pt",                                         \
		.latest_remote_file_name = "{run_name}/checkpoints/latest-rank{rank}.pt",          \
		.save_interval = "1ep", .num_checkpoints_to_keep = -1, .num_concurrent_uploads = 1, \
		.upload_timeout_ms = 3600000                                                       \
	}
/* Nothing is touched yet. PAWL_EUSAGE: unknown variables, names that leave the folder, options that contradict each other. */
PAWL_API int pawl_saver_open(const struct pawl_saver_opts *, struct pawl_saver **ret, struct pawl_error *);
/* The training is at `now`: intervals count from here. Makes the folder, goes on with uploads of a process that was killed.
 * PAWL_EEXISTS: the folder has checkpoints of later points, which this run would come to write. PAWL_EBUSY: another process
 * writes these files here. The first due or save does the same, with intervals that count from the last save before now. */
PAWL_API int pawl_saver_start(struct pawl_saver *, const struct pawl_progress *now, struct pawl_error *);
/* 1 if a save is due: a threshold of the interval, or the end of the training (fraction 1), has been passed since the last
 * one. Never twice at the same batch. */
PAWL_API int pawl_saver_due(struct pawl_saver *, const struct pawl_progress *now, struct pawl_error *);
/* Starts a save, due or not; returns when the tensors have been copied: 0, or 1 where another rank writes. Returns the first
 * error of an earlier save that nobody has seen, before anything is done. */
PAWL_API int pawl_saver_save(struct pawl_saver *, const struct pawl_progress *now, const struct pawl_state *, struct pawl_error *);
/* The same with a folder of files for a state, such as DeepSpeed writes: every rank packs its own as a tar file (".tar" is
 * appended where the name says no other), and returns when it has been packed. PAWL_EUSAGE: several ranks would write the
 * same file, as {rank} is missing; weights_only. */
PAWL_API int pawl_saver_save_folder(struct pawl_saver *, const struct pawl_progress *now, const char *folder,
                                    struct pawl_error *);
/* Waits until all saves are durable and all uploads done or failed; the first error that nobody has seen. PAWL_ETIMEOUT with
 * PAWL_SYS_WAITED. */
PAWL_API int pawl_saver_wait(struct pawl_saver *, int64_t timeout_ms, struct pawl_error *);
/* Waits until every save that has begun has its file or has failed. It does not wait for uploads, and leaves errors to the
 * other calls. */
PAWL_API int pawl_saver_wait_saves(struct pawl_saver *, int64_t timeout_ms, struct pawl_error *);
/* The first error that nobody has seen, of a save or an upload (which is tried again after the next save). */
PAWL_API int pawl_saver_check(struct pawl_saver *, struct pawl_error *);
/* Waits, and frees the handle in any case. */
PAWL_API int pawl_saver_close(struct pawl_saver *, struct pawl_error *);

struct pawl_saved {
	size_t size;
	uint64_t seq;         /* order of the saves, from 1 */
	struct pawl_progress progress;
	int uploaded;
	char path[4096];
	char remote[1100];    /* name in the store; "" = none */
	char pointer[1100];   /* of what leads to it there; "" = none */
};
#define PAWL_SAVED_INIT {.size = sizeof(struct pawl_saved)}
/* The i-th checkpoint file that is here, the oldest first, at most num_checkpoints_to_keep; all: those, too, that wait for
 * their upload. ret: as PAWL_SAVED_INIT made it. PAWL_ENOTFOUND beyond the last. */
PAWL_API int pawl_saver_get(struct pawl_saver *, size_t i, int all, struct pawl_saved *ret, struct pawl_error *);
/* How many files a checkpoint has: 1, or of folders one per rank. */
PAWL_API uint32_t pawl_saver_writers(const struct pawl_saver *);
/* The path of the file that a rank has written for a row; with folders per rank it is good on that rank's node only. */
PAWL_API int pawl_saver_path(struct pawl_saver *, const struct pawl_saved *row, int32_t rank, char *ret, size_t cap,
                             struct pawl_error *);
/* The caller has uploaded it. */
PAWL_API int pawl_saver_uploaded(struct pawl_saver *, uint64_t seq, struct pawl_error *);
PAWL_API const char *pawl_saver_folder(const struct pawl_saver *);
PAWL_API int pawl_saver_uploads(const struct pawl_saver *); /* 1 if it uploads */

/* Brings a file from a store, by its URL, to path; objects ending in ".symlink" are followed, where they are named or where
 * there is none of the name itself. Nothing half is left on failure. */
PAWL_API int pawl_saver_fetch(const char *url, const char *path, struct pawl_error *);
/* Where a run goes on after a restart: the path that its latest link leads to (its own, or that of rank 0), else the URL of what
 * its remote latest leads to. Of the options: folder, latest_filename, latest_remote_file_name (a URL, or a name in the store of
 * remote_file_name), remote, run_name, rank. PAWL_ENOTFOUND: a run that has neither. */
PAWL_API int pawl_saver_latest(const struct pawl_saver_opts *, char *ret, size_t cap, struct pawl_error *);
/* ret: the path of a checkpoint file that can be opened. place: "latest", or a path or URL, templates without counters. What has
 * been fetched lies in folder, which is there and empty. Of a tar its composer_states.pt is read, where it lies. */
PAWL_API int pawl_saver_bring(const struct pawl_saver_opts *, const char *place, const char *folder, char *ret, size_t cap,
                              struct pawl_error *);

/* --------------------------------------------------- 17. groups of workers */

/* What a program decides that starts several workers and watches them (pawl.train does): pure functions of what it has seen. It
 * has the clock, the processes and the messages. A text that does not fit is cut off. Rows are one per rank, in its order. */
struct pawl_group_worker {
	uint64_t n_reports; /* that it has come to */
	int has_ended;      /* its function has returned, after so many */
	int64_t silent_ms;  /* since its last sign of life; 0 before the first */
	int64_t still_ms;   /* since it last came to a report or said that it gets on */
};
struct pawl_group_limits {
	size_t size;
	int64_t silent_ms; /* after so long without a sign a worker counts as gone; 0 = never */
	int64_t still_ms;  /* after so long in which nobody has got on the group counts as stuck; 0 = never */
};
#define PAWL_GROUP_LIMITS_INIT {.size = sizeof(struct pawl_group_limits)}
enum pawl_group_trouble {
	PAWL_GROUP_WELL,
	PAWL_GROUP_SILENT,  /* a worker is gone: *ret_rank is to be killed */
	PAWL_GROUP_UNEQUAL, /* one has ended with fewer reports than another has come to: the program is wrong */
	PAWL_GROUP_STUCK,   /* none that still runs has got on: all are to be ended */
};
/* The first thing that is wrong with a group, in words. *ret_rank: -1 where it is no single one. */
PAWL_API enum pawl_group_trouble pawl_group_look(const struct pawl_group_worker *, size_t n, const struct pawl_group_limits *,
                                                 int32_t *ret_rank, char *text, size_t cap);
/* How many have not come to a report, and in words where they are. */
PAWL_API size_t pawl_group_late(const struct pawl_group_worker *, size_t n, uint64_t report, char *text, size_t cap);

enum pawl_group_end {
	PAWL_GROUP_DONE,
	PAWL_GROUP_FAILED, /* a worker raised, was killed, or hung */
	PAWL_GROUP_WRONG,  /* the program is wrong: it would fail again */
	PAWL_GROUP_TOLD,   /* a scheduler has ended it, and will start it again */
};
/* 1 if the group is to be started again after so many failures, this one included; max_failures -1: always. */
PAWL_API int pawl_group_again(enum pawl_group_end, uint64_t n_failures, int64_t max_failures);

struct pawl_group_file {
	const char *name; /* below the folder that a rank has given */
	int32_t rank;
	uint64_t nbytes, sum; /* length, and any sum of the contents that is the same on all ranks */
};
/* 1 and words if two ranks give one name with different contents (the first such name), 0 if not. */
PAWL_API int pawl_group_clash(const struct pawl_group_file *, size_t n, char *text, size_t cap, struct pawl_error *);

#ifdef __cplusplus
}
#endif
#endif
