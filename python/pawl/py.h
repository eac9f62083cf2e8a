/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py: declarations shared by the files of the extension module _pawl. The module only translates:
 * Python objects to the calls of pawl.h and tune.h, and back. The library decides, writes and
 * reads.
 *
 *   _pawl.c        the module, its functions
 *   py_error.c     exceptions
 *   py_run.c       Run: open, wait, close
 *   py_options.c   Run: the arguments of open
 *   py_save.c      Run: saving
 *   py_list.c      Run: finding, listing, pins, scores, deletion, holds
 *   py_maintenance.c  Run: verifying, comparing, copying, pruning, repair
 *   py_work.c      long work with a meter
 *   py_convert.c   Run: other formats
 *   py_pieces.c    Run: the pieces of a checkpoint's tensors, boxes of tensors
 *   py_stores.c    stores through fsspec
 *   py_saver.c     Saver: checkpoint files by name
 *   py_files.c     Files: single files
 *   py_sync.c      Syncer
 *   py_tune.c      Experiment
 *   py_tune_drive.c  Experiment, for a driver of its own
 *   py_tune_run.c  TrialRunner
 *   py_ticket.c    Ticket, Hold, Watch
 *   py_object.c    the module's types
 *   py_frame.c     torch, NumPy and JAX, if they are imported
 *   py_lazy.c      what the first save and lazy saves must know about their tensors
 *   py_tensor.c    a framework's tensor -> struct pawl_tensor, without copying
 *   py_dlpack.c    the same by DLPack
 *   py_device.c    the same on a device
 *   py_walk.c      Python objects -> struct pawl_state
 *   py_kind.c      values with a kind
 *   py_build.c     struct pawl_state -> Python objects
 *   py_match.c     which live object receives which saved value
 *   py_leaf.c      the same for one tensor
 *   py_optim.c     the tensors of an optimizer that has not stepped yet
 *   py_problems.c  errors about values that cannot be saved or do not fit
 *   py_make.c      new tensors of a framework
 *   py_restore.c   the restore loop, and storing values into live objects
 *
 * The GIL is released around every call that may wait. The module has no global variables: all
 * lasting data belongs to the module's state, which is found through the type of an object.
 */
#ifndef PAWL_PY_H
#define PAWL_PY_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API /* the build defines it too */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "pawl.h"
#include "pawl_jobs.h"
#include "py_try.h"

#define PY_N_CODES (-PAWL_EDEVICE + 1)
#define PY_N_DTYPES (PAWL_C128 + 1)
#define PY_MAX_DEPTH 256 /* of containers; the library's own limit */
#define PY_SLICE_MS 100  /* longest time without a check for Ctrl+C */

/* Stores a reference in a slot and releases the previous one. */
static inline void
py_set(PyObject **slot, PyObject *value)
{
	PyObject *old = *slot;

	*slot = value;
	Py_XDECREF(old);
}

/* Names that are looked up often, kept as interned strings. The formatter moves such a list each
 * time. */
/* clang-format off */
#define PY_STRINGS(X) \
	X(dtype) X(shape) X(stride) X(strides) X(data_ptr) X(is_cpu) X(is_cuda) X(get_device) X(layout) \
	X(is_conj) X(is_neg) X(is_meta) X(requires_grad) X(resolve_conj) X(resolve_neg) X(detach) \
	X(contiguous) X(view) X(copy_) X(itemsize) X(name) X(isnative) X(__array_interface__) \
	X(state_dict) X(load_state_dict) X(tensor) X(global_shape) X(offsets) X(copy) X(clear) \
	X(_metadata) X(empty) X(per_rank) X(value) X(writer)
/* clang-format on */

#define PY_STRING_MEMBER(n) PyObject *n;

struct dl_tensor;

/* What is known about a framework; module is NULL until it was seen in sys.modules. */
struct py_torch {
	PyObject *module, *tensor, *parameter, *nn_module, *size, *strided;
	PyObject *codes;                                  /* dict: torch dtype -> number of enum pawl_dtype */
	PyObject *dtypes[PY_N_DTYPES];                    /* the reverse; NULL where torch has none */
	int (*show)(void *object, struct dl_tensor *ret); /* py_dlpack.c; NULL where torch has none */
	int driver;       /* of tensors on devices: enum pawl_device; -1 = none, 0 = not known yet */
	PyObject *stream; /* torch's function for the current stream, or NULL */
};
struct py_numpy {
	PyObject *module, *ndarray, *generic, *memmap;
	PyObject *codes; /* dict: numpy dtype -> number, 0 = cannot be saved; filled on first use */
	PyObject *dtypes[PY_N_DTYPES];
};
struct py_jax {
	PyObject *module, *array, *shape; /* jax.Array, jax.ShapeDtypeStruct */
};

/* State of the module. */
struct py_state {
	PyObject *errors[PY_N_CODES]; /* by -code; [0] is PawlError */
	PyObject *run_type, *ticket_type, *hold_type, *watch_type, *experiment_type;
	PyObject *ordered_dict; /* collections.OrderedDict */
	PyObject *shard;        /* pawl.Shard, once it is imported */
	PyObject *per_rank;     /* pawl.PerRank */
	struct py_torch torch;
	struct py_numpy numpy;
	struct py_jax jax;
	struct {
		PY_STRINGS(PY_STRING_MEMBER)
	} s;
	struct pawl_arena *arena; /* shared by all runs of the interpreter; created by the first */
	pid_t arena_pid;
};

/* A position inside a state, for errors: a list from the innermost container outwards. NULL is the
 * root. */
struct py_path {
	const struct py_path *up;
	PyObject *container; /* borrowed */
	PyObject *key;       /* borrowed; NULL = index */
	Py_ssize_t index;
};

/* ---- py_object.c ---- */

/* A zeroed object of a type; NULL with MemoryError. For its tp_new. */
void *py_object_new(PyTypeObject *type);
/* Frees an object that owns nothing any more. Called by a tp_dealloc, or used as one. */
void py_object_free(PyObject *self);

/* ---- py_error.c ---- */

int py_errors_init(PyObject *module, struct py_state *st);
/* Raises the error of a library call. Always returns NULL. */
PyObject *py_raise(struct py_state *st, int code, const struct pawl_error *err);
/* Raises an exception of a code; format as PyUnicode_FromFormat. Always returns NULL. */
PyObject *py_raise_text(struct py_state *st, int code, const char *format, ...);
/* PAWL_EUSAGE: the text, and the value in short. Always returns NULL. */
PyObject *py_raise_received(struct py_state *st, PyObject *value, const char *format, ...);
/* Raises "'a/b': " and the text. Always returns -1. */
int py_raise_at(struct py_state *st, int code, const struct py_path *path, const char *format, ...);
/* The exception object for a code, not raised. New reference. */
PyObject *py_error_new(struct py_state *st, int code, const struct pawl_error *err);
/* For a function of the caller that the library called. Takes a current KeyboardInterrupt or
 * SystemExit in the main thread. The caller then gets it after the library's own error. False:
 * another exception, which stays current. */
bool py_pass_on(void);
/* Text of a position, e.g. "model/layer1/weight". New reference. */
PyObject *py_path_text(const struct py_path *path);
/* "a" or "an", as the name of a type requires. */
const char *py_article(PyObject *name);
/* Adds "at 'a/b': " and the text to the current exception; without a path only the text. */
void py_add_note(const struct py_path *path, const char *format, ...);
/* Turns the current exception (if it is an ordinary one) into an UnsupportedError that names the
 * position, with the original as its cause. Always returns -1. */
int py_wrap_at(struct py_state *st, const struct py_path *path, PyObject *obj);

/* ---- py_frame.c ---- */

/* Checks which frameworks are imported now. Cheap when nothing has changed. */
int py_frames_refresh(struct py_state *st);
/* The same after importing a required framework; `why` names the tensor. */
int py_need_torch(struct py_state *st, const char *why);
int py_need_numpy(struct py_state *st, const char *why);
int py_need_jax(struct py_state *st, const char *why);
/* Number of a numpy dtype (new ones are looked up by name), 0 if a state cannot contain it, -1 with
 * an exception. */
int py_numpy_code(struct py_state *st, PyObject *dtype);
/* The numpy dtype of a number, borrowed; imports ml_dtypes if needed. NULL with an exception. */
PyObject *py_numpy_dtype(struct py_state *st, int code, const char *why);
void py_frames_clear(struct py_state *st);
int py_frames_traverse(struct py_state *st, visitproc visit, void *arg);

/* ---- py_tensor.c ---- */

/* The bytes of a framework's tensor. raw points into the struct: do not move it. */
struct py_tensor {
	struct pawl_tensor raw;
	uint64_t shape[PAWL_MAX_DIMS], global_shape[PAWL_MAX_DIMS], offsets[PAWL_MAX_DIMS];
	int64_t strides[PAWL_MAX_DIMS];
	PyObject *owner; /* keeps raw.data alive; new reference */
	bool on_device;  /* the processor cannot read it. raw.device: the library can; else raw.data is NULL */
	int device;      /* torch's number of that device */
	bool fixed;      /* cannot be written in place: read-only, immutable, or raw describes a copy */
};
void py_tensor_clear(struct py_tensor *t);
/* 1: obj is a tensor and *ret describes it; 0: it is not a tensor; -1 with an exception: a tensor
 * that cannot be saved. */
int py_tensor_describe(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *ret);
/* The same of a jax.ShapeDtypeStruct, which a restore replaces by an array. */
int py_tensor_describe_shape(struct py_state *st, PyObject *obj, const struct py_path *path, struct py_tensor *ret);
/* Copies a tensor from a device into host memory, in C order. */
int py_tensor_fetch(struct py_state *st, PyObject *tensor, void *dst, size_t nbytes);

/* ---- py_make.c ---- */

/* An empty tensor of the named kind for saved data; *ret describes its memory. Returns a holder:
 * py_tensor_finish makes the final object from it, once the bytes have been read. */
PyObject *py_tensor_new(struct py_state *st, const struct pawl_tensor_info *info, const char *kind,
                        struct py_tensor *ret);
PyObject *py_tensor_finish(struct py_state *st, PyObject *holder, const char *kind,
                           const struct pawl_tensor_info *info);

/* ---- py_dlpack.c ---- */

/* Loads torch's table of functions, if it has one. Leaves no exception. */
void py_dlpack_load(struct py_state *st);
/* Sets dtype, shape, strides and data of ret->raw. False, without an exception, if the attributes
 * must be read instead. Does not detect views with the negative bit. */
bool py_dlpack_describe(struct py_state *st, PyObject *obj, struct py_tensor *ret);
/* The same and the device for an array of this dtype on a device. The driver copies it in the order
 * of its default stream. The owner becomes (array, capsule). False, without an exception, if the
 * array is elsewhere or cannot be shown. */
bool py_dlpack_device(PyObject *obj, int dtype, struct py_tensor *ret);

/* ---- py_device.c ---- */

/* Sets device, stream and data of ret->raw for ret->owner. False, without an exception, if torch
 * must copy it. */
bool py_device_describe(struct py_state *st, struct py_tensor *ret);
/* Is this torch's current stream of the device? */
bool py_device_is_current(struct py_state *st, int device, uint64_t stream);

/* ---- py_walk.c ---- */

struct py_fill;
struct py_lazy;
/* A walked state. While the GIL is released for a save, `thread` is the state from which a fill
 * takes it again. */
struct py_walk {
	struct py_state *st;
	struct pawl_state *state;
	PyObject *keep; /* list: objects that must live until the tensors have been staged */
	struct py_fill *fills;
	PyThreadState *thread;
	PyObject *error[3];   /* raised inside a fill; while walking, of the first refused value */
	PyObject *refused;    /* list: paths of further values that cannot be saved */
	bool by_driver;       /* tensors on devices are copied by the library; else by torch */
	bool no_tensors;      /* metadata: tensors are not allowed */
	struct py_lazy *lazy; /* borrowed: records the tensors; NULL = not needed */
	bool is_lazy;         /* what shows a tensor lives until the library has copied it */
	bool in_optimizer;    /* the walk is inside the state of an optimizer */
	bool in_rank;         /* the walk is inside a value per rank */
};
int py_walk_begin(struct py_walk *w, struct py_state *st, PyObject *root, bool no_tensors, const struct pawl *run);
/* The same for a save of a run. */
int py_walk_begin_save(struct py_walk *w, struct py_state *st, PyObject *root, const struct pawl *run,
                       struct py_lazy *lazy, bool is_lazy);
void py_walk_end(struct py_walk *w);
/* Notes a value or a key that cannot be saved: the walk continues, so that one error names all of
 * them. The state is not used then. -1: another error. */
int py_walk_note_refused(struct py_walk *w, const struct py_path *path);
/* Raises the error of the first value, with the paths of the others. Always returns -1. */
int py_walk_raise_refused(struct py_walk *w);
/* Converts a scalar. Its text is borrowed from obj or from *keep, a new reference to release after
 * use. 1 = done, 0 = obj is not a scalar, -1 with an exception. */
int py_scalar(struct py_state *st, PyObject *obj, const struct py_path *path, struct pawl_scalar *ret, PyObject **keep);
/* Is it exactly a scalar type, so that no other check is needed? */
static inline bool
py_is_simple(PyObject *obj)
{
	return obj == Py_None || PyUnicode_CheckExact(obj) || PyLong_CheckExact(obj) || PyFloat_CheckExact(obj) ||
	       PyBool_Check(obj) || PyBytes_CheckExact(obj);
}
/* 1 if obj has a callable state_dict, 0 if not, -1 with an exception. */
int py_has_state_dict(struct py_state *st, PyObject *obj);

/* ---- py_build.c ---- */

/* Python's object for a scalar. New reference. */
PyObject *py_scalar_object(const struct pawl_scalar *s);
/* If a ValueError is raised because a saved integer has more digits than Python converts, raises an
 * error that says this and names the integer. */
void py_name_long_int(struct py_state *st, const struct pawl_node *root);
/* The tree of a state without tensors. New reference. */
PyObject *py_plain_object(const struct pawl_node *node);

/* ---- py_kind.c ---- */

struct py_restore;
struct py_kinded;
/* True for plain containers and tensors, without a look at the table. */
bool py_has_no_kind(struct py_state *st, PyObject *obj);
/* 1 and new references if the object has a kind, 0 if not, -1 with an exception. */
int py_kind_parts(struct py_state *st, PyObject *obj, PyObject **ret_kind, PyObject **ret_value);
/* Is its value plain data? 1, 0, or -1, without an exception, if it has no kind. */
int py_kind_is_plain(struct py_state *st, PyObject *live, int depth);
/* Does each process have its own values of this kind? 1, 0, or -1 with an exception. */
int py_kind_is_per_rank(PyObject *kind);
/* The value that a kind names; the plain value if the kind is unknown. New reference. */
PyObject *py_kind_make(const char *kind, PyObject *value);
/* The live object with the saved value of kind `saved`, or a new object of its type. */
PyObject *py_kind_rebuild(const struct py_kinded *k, PyObject *value, const char *saved, bool in_place);
/* If the live object has a kind, adds a row and sets *ret_value, borrowed: 1. Else 0; -1 with an
 * exception. */
int py_kind_push(struct py_restore *r, const struct pawl_node *node, PyObject *live, PyObject **ret_value);
/* Is it the value of the live object pushed last, and are its children named by the type? */
bool py_kind_has_fields(const struct py_restore *r, PyObject *value);
/* The row of this node and object, if it is the next one, else NULL. */
const struct py_kinded *py_kind_next(struct py_restore *r, const struct pawl_node *node, PyObject *live);
/* Reports a saved value that the live object of a kind, pushed last, has no place for. */
int py_kind_check(struct py_restore *r, const struct pawl_node *node, const struct py_path *path);
/* Reports that the saved value and the live one are of other types, by the names of their kinds. */
int py_kind_differs(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_path *path);
void py_kind_clear(struct py_restore *r);

/* ---- py_match.c ---- */

enum py_rule {
	PY_NEW,    /* no live object: everything is created */
	PY_USER,   /* the caller's containers: equal keys required, values replaced in them */
	PY_MODULE, /* the state_dict of a torch module: equal keys required */
	PY_OBJECT  /* the state_dict of another object: what fits is read in place; the object checks the rest */
};

/* The result for one leaf, in the order of the saved tree. In partial restores scalars have a leaf,
 * too. */
struct py_leaf {
	PyObject *holder;  /* new tensor to read into; NULL = none */
	PyObject *value;   /* the live tensor, or the finished holder; NULL = left out, or not finished yet */
	PyObject *copy_to; /* the holder is copied to it after reading: the live tensor, or its local piece */
	PyObject *live;    /* the value after that copy; without copy_to an array of JAX, whose
	                       sharding the holder gets */
	const char *kind;  /* of the finished holder */
	size_t other;      /* 1 + the next leaf tied to this one, but of another kind; 0 = none */
	bool left_out;     /* not selected: value is the live value, if any */
	bool is_rejected;  /* a difference was reported: the live value stays unchanged */
};

/* The memory of a live tensor that is read into, or copied to after reading. Those that are read
 * into do not overlap: they form a tree ordered by address (a treap). The others form a list. */
struct py_range {
	uintptr_t from, to;
	size_t index;       /* saved tensor */
	size_t leaf;        /* its value is the live tensor */
	size_t left, right; /* 1 + range, 0 = none. In the list, left is the next one */
};

/* A live object with state_dict and load_state_dict. */
struct py_object {
	const struct pawl_node *node;
	PyObject *live, *state_dict;
	PyObject *skip;              /* set: keys of state_dict that must not be loaded */
	PyObject *parameters;        /* dict: saved number -> DTensor of an optimizer; NULL = not an optimizer */
	const struct py_path *where; /* its position; only compared, while it is matched */
	bool is_module;
	bool must_load; /* a module whose tensors were not all read in place */
	bool is_wanted; /* something in it was selected */
};

/* A part of the tree whose live values stay unchanged. */
struct py_skip {
	const struct pawl_node *node;
	PyObject *live; /* borrowed from the caller's state, or NULL; only compared */
};

/* A live object of a kind, and its plain value, which is matched in its place. */
struct py_kinded {
	const struct pawl_node *node;
	PyObject *live, *kind, *value;
};

struct py_restore {
	struct py_state *st;
	uint32_t world; /* ranks of this job */
	struct pawl_restore *handle;
	const struct pawl_state *saved;
	const struct pawl_restore_opts *opts;
	struct py_leaf *leaves;
	size_t n_leaves, cap_leaves, next_leaf;
	struct py_object *objects;
	size_t n_objects, cap_objects, next_object;
	struct py_skip *skips; /* in the order of the saved tree, like leaves and objects */
	size_t n_skips, cap_skips, next_skip;
	struct py_kinded *kinded; /* in the order of the saved tree */
	size_t n_kinded, cap_kinded, next_kinded;
	size_t *fresh; /* per saved tensor: 1 + leaf with its new tensor, so that tied ones become one object */
	bool *glob_used;
	size_t object;    /* 1 + the object whose state_dict is being matched; 0 = none */
	PyObject *memory; /* set: addresses of its tensors, if it is a module */
	struct py_range *ranges;
	size_t n_ranges, cap_ranges;
	size_t read_into, copied_to; /* 1 + the root of the tree, 1 + the first of the list; 0 = none */
	PyObject *problems;          /* list of str */
	PyObject *notices;           /* list of str: lines of the report that do not count as differences */
};
/* Finds and binds a destination for every saved tensor. Differences are added to r->problems. live
 * NULL: everything is created. */
int py_match(struct py_restore *r, PyObject *live);
/* Reports a glob of a partial restore that matches no path, and the nearest path. */
int py_problem_glob(struct py_restore *r, const char *glob);
/* Raises all differences as one error (strict), or nothing. */
int py_check_problems(struct py_restore *r);
void py_match_clear(struct py_restore *r);
/* Helpers of py_match, in order: room for one more row; a new leaf; a difference ("kind: path" and
 * the text). The module whose state_dict is being matched, or NULL; a mark that it must be loaded;
 * the destination of a tensor leaf. */
void *py_grow(void *rows, size_t n, size_t *cap, size_t size);
struct py_leaf *py_leaf_push(struct py_restore *r);
int py_problem(struct py_restore *r, const char *kind, const struct py_path *path, const char *format, ...);
struct py_object *py_module_of(struct py_restore *r);
void py_module_must_load(struct py_restore *r);
int py_match_tensor(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
                    const struct py_path *path);
/* py_optim.c: tensors that an optimizer does not have yet. Stores its parameters in o->parameters.
 * 0, or -1 with an exception. */
int py_optim_look(struct py_restore *r, const struct pawl_node *node, struct py_object *o);
/* A new tensor in host memory for the saved one at path, laid out as its parameter. None if the
 * parameter is not a DTensor or has another shape. New reference; NULL with an exception. */
PyObject *py_optim_tensor(struct py_restore *r, const struct pawl_node *node, const struct py_path *path);
/* The value in a pawl.PerRank; any other object unchanged. New reference. */
PyObject *py_unwrap(struct py_state *st, PyObject *live);
/* Does it contain neither a tensor nor an object? */
bool py_is_plain(struct py_state *st, PyObject *live, int depth);
bool py_node_is_plain(const struct pawl_node *node);
/* Does the live container have the shape of the saved one, so that children can be looked up? */
bool py_is_alike(const struct pawl_node *node, PyObject *live);
/* Borrowed child of a live container with the same shape, NULL if absent. key or index as in the
 * saved container. */
PyObject *py_live_child(PyObject *live, PyObject *key, Py_ssize_t index);

/* ---- py_restore.c ---- */

/* Restores into live (NULL = into new objects). Returns (tree, info, fallbacks, report, metadata),
 * or None if no checkpoint can be opened. */
PyObject *py_restore_run(struct py_state *st, struct pawl *run, PyObject *live, const struct pawl_restore_opts *opts);

/* ---- py_run.c, py_options.c, py_list.c, py_ticket.c ---- */

struct py_run {
	PyObject_HEAD struct pawl *run; /* NULL once closed */
	pid_t pid;                      /* of the process that opened it */
	struct pawl_fault *fault;       /* of tests, or NULL */
	PyObject *lazy;                 /* list of tickets whose tensors may not have been copied yet */
	PyObject *broadcast;            /* the caller's function, or NULL */
	PyObject *keep;                 /* the caller's rule of retention, or NULL */
	PyObject *holds;                /* list of holds, released before the run is closed */
	PyObject *root;                 /* stays when the run is closed */
	unsigned calls;                 /* methods that use run now; protected by the GIL, like all fields */
	bool closing;
	bool waits_uploads; /* close() waits for uploads */
	bool has_saved;
};
/* The arguments of opening a run. Texts are borrowed from the arguments of Run(). */
#define PY_MAX_SCORES 16
#define PY_MAX_MIRRORS 8
struct py_options {
	struct pawl_open_opts opts;
	const char *score_names[PY_MAX_SCORES];
	int score_orders[PY_MAX_SCORES];
	/* values that the library takes in another form */
	PyObject *fault, *broadcast, *on_lease_wait; /* borrowed; None = none */
	PyObject *raised[3];                         /* the exception that ended the wait for the lease */
	struct pawl_rank rank;
	const char *attempt;
	PyObject *score_attributes, *orders, *mirrors, *keep; /* borrowed */
	struct pawl_mirror mirror_list[PY_MAX_MIRRORS];
	struct pawl_retention mirror_rules[PY_MAX_MIRRORS];
};
/* The arena of the module, borrowed. */
int py_shared_arena(struct py_state *st, struct pawl_arena **ret);
/* Reads the arguments of Run(). Do not move *o afterwards. 0, or -1 with an exception. */
int py_options_read(struct py_options *o, struct py_state *st, PyObject *args, PyObject *kwargs);
/* Adds to *o the parts that live as long as the run and are stored in it: the fault layer, the
 * caller's function. */
int py_options_keep(struct py_options *o, struct py_state *st, struct py_run *self);
/* A pawl_share_fn: arg is the function given when the run was opened. It is called as
 * function(bytearray, root). */
int py_broadcast_from(void *arg, uint32_t root, void *bytes, size_t nbytes, struct pawl_error *err);
/* fsspec's file systems, for URLs without an engine in the library. */
extern const struct pawl_stores py_stores;
/* Begins the use of the run: self, or NULL with an exception if it is closed. */
struct py_run *py_run_enter(struct py_run *self);
void py_run_leave(struct py_run *self);
PY_DEFINE_CLEAN(struct py_run *, py_run_leave);
/* A use that ends with the scope. */
#define AUTO_RUN PY_CLEAN(py_run_leave) struct py_run *
struct py_state *py_state_of(PyObject *self);
PyObject *py_info_dict(const struct pawl_info *info);

int py_run_init(PyObject *module, struct py_state *st);
/* Function of the module: the names of a dict's metrics that are not numbers. */
PyObject *py_no_numbers(PyObject *module, PyObject *mapping);
/* The texts of a list or tuple, borrowed from it, and NULL. NULL with an exception. */
const char **py_texts(PyObject *texts, size_t *ret_n);
static inline void
py_texts_free(const char **texts)
{
	PyMem_Free((void *)texts);
}
PY_DEFINE_CLEAN(const char **, py_texts_free);
#define AUTO_TEXTS PY_CLEAN(py_texts_free) const char **
/* Metrics of a mapping. Free *ret with PyMem_Free; names are borrowed from *keep, a new
 * reference. */
int py_metrics(struct py_state *st, PyObject *mapping, struct pawl_metric **ret, size_t *ret_n, PyObject **keep);

/* Releases the tensors of lazy saves that have been copied, or of all. */
void py_run_prune_lazy(struct py_run *self, bool all);

/* Methods of Run, as PyMethodDef wants them. */
PyObject *py_run_save(struct py_run *self, PyObject *args, PyObject *kwargs);
PyObject *py_run_prepare(struct py_run *self, PyObject *state);
PyObject *py_run_save_failed(struct py_run *self, PyObject *args);
PyObject *py_run_list(struct py_run *self, PyObject *args);
PyObject *py_run_info(struct py_run *self, PyObject *args);
PyObject *py_run_find(struct py_run *self, PyObject *args);
/* The metadata of a checkpoint as Python objects; NULL: none, an empty dict. */
PyObject *py_metadata(struct py_state *st, const struct pawl_state *metadata);
PyObject *py_run_metadata(struct py_run *self, PyObject *args);
PyObject *py_run_restore(struct py_run *self, PyObject *args, PyObject *kwargs);
PyObject *py_run_convert(struct py_run *self, PyObject *args, PyObject *kwargs);
PyObject *py_run_describe(struct py_run *self, PyObject *args);
PyObject *py_run_read(struct py_run *self, PyObject *args);
PyObject *py_run_pin(struct py_run *self, PyObject *args);
PyObject *py_run_unpin(struct py_run *self, PyObject *args);
PyObject *py_run_remove(struct py_run *self, PyObject *args);
PyObject *py_run_score(struct py_run *self, PyObject *args);
PyObject *py_run_prune(struct py_run *self, PyObject *args);
PyObject *py_run_verify(struct py_run *self, PyObject *args); /* py_maintenance.c, as the next ones */
PyObject *py_run_diff(struct py_run *self, PyObject *args);
PyObject *py_run_copy(struct py_run *self, PyObject *args);
PyObject *py_run_gc(struct py_run *self, PyObject *args);
PyObject *py_run_repair(struct py_run *self, PyObject *args);
PyObject *py_doctor(PyObject *module, PyObject *args);
PyObject *py_run_reload(struct py_run *self, PyObject *none);
PyObject *py_run_wait_for_new(struct py_run *self, PyObject *args);
PyObject *py_run_hold(struct py_run *self, PyObject *args);

int py_ticket_init(PyObject *module, struct py_state *st);
/* Takes ownership of ticket and lazy. keep: objects that a lazy save may still be copying, or
 * NULL. */
PyObject *py_ticket_new(struct py_state *st, struct pawl_ticket *ticket, long long step, PyObject *keep,
                        struct py_lazy *lazy);
/* Adds time that the library did not measure: the caller was blocked since begin (of
 * py_now_seconds). */
void py_ticket_held_since(PyObject *ticket, double begin);
/* Releases the tensors if they have been copied (or in any case, if force). True if it has none
 * left. */
bool py_ticket_release(PyObject *ticket, bool force);
/* If torch's current stream is not that of the lazy save: waits until its tensors are copied. */
int py_ticket_fence(PyObject *ticket, PyObject *timeout);
PyObject *py_hold_new(struct py_state *st, struct pawl_hold *hold);
void py_hold_release(PyObject *hold);
int py_hold_init(PyObject *module, struct py_state *st);
int py_sync_init(PyObject *module); /* py_sync.c */
PyObject *py_clone_folder(PyObject *module, PyObject *args);
PyObject *py_hide_secrets(PyObject *module, PyObject *text);
PyObject *py_kind_of(PyObject *module, PyObject *args);
PyObject *py_split_address(PyObject *module, PyObject *text);
PyObject *py_explain_address(PyObject *module, PyObject *text);
int py_files_init(PyObject *module); /* py_files.c */
int py_saver_init(PyObject *module); /* py_saver.c */
/* Function of the module. */
PyObject *py_saver_find(PyObject *module, PyObject *args);
PyObject *py_path_matches(PyObject *module, PyObject *args);
int py_tune_init(PyObject *module, struct py_state *st); /* py_tune.c */
int py_tune_run_init(PyObject *module);                  /* py_tune_run.c */

double py_now_seconds(void); /* monotonic */

/* A number of seconds, a text such as "5min" or a timedelta. False, with or without an exception:
 * none of them. */
bool py_read_seconds(PyObject *value, double *ret);
#define PY_METHOD(f) ((PyCFunction)(void (*)(void))(f))
/* Adds a type to the module, under the last part of its name. *ret: NULL or a new reference. */
int py_add_type(PyObject *module, PyType_Spec spec, PyObject **ret);
/* Raises an exception that was kept by PyErr_Fetch, and forgets it. False if there is none. */
bool py_raise_kept(PyObject *kept[3]);

/* Waits in slices, so that signals are handled. Calls call(arg, ms) without the GIL until it
 * returns anything but PAWL_ETIMEOUT, or the time is over. timeout: None or seconds. format, as
 * PyUnicode_FromFormat: what was not done when the time was over. 0, or -1 with an exception. */
typedef int py_wait_fn(void *arg, int64_t timeout_ms, struct pawl_error *err);
int py_wait(struct py_state *st, PyObject *timeout, py_wait_fn *call, void *arg, const char *format, ...);
/* Counters of the progress <-> a dict of those that are known. */
int py_progress(struct py_state *st, PyObject *mapping, struct pawl_progress *ret);
PyObject *py_progress_dict(const struct pawl_progress *p);

#endif
