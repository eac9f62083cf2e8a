/* SPDX-License-Identifier: Apache-2.0 */
/* py_saver: Saver, a struct pawl_saver. Waits release the interpreter lock. */
#include "py.h"

#include <string.h>
#include <unistd.h>

#define MAX_IGNORE 1024

struct py_saver {
	PyObject_HEAD struct pawl_saver *saver; /* NULL once closed */
	pid_t pid;                              /* of the process that created it: only there its threads exist */
	unsigned calls;                         /* guarded by the interpreter lock */
};

static struct py_state *
state_of(struct py_saver *self)
{
	return py_state_of((PyObject *)self);
}

/* Begins a use of the saver, by one thread at a time; NULL with an exception. */
static struct py_saver *
enter_saver(struct py_saver *self)
{
	struct py_state *st = state_of(self);

	if (!self->saver)
		py_raise_text(st, PAWL_EUSAGE, "the checkpoint saver is closed");
	else if (self->pid != getpid())
		py_raise_text(st, PAWL_EUSAGE, "the checkpoint saver was made before fork(), by process %ld",
		              (long)self->pid);
	else if (self->calls > 0)
		py_raise_text(st, PAWL_EBUSY, "the checkpoint saver is in use by another thread");
	else
		self->calls++;
	return PyErr_Occurred() ? NULL : self;
}

static void
leave_saver(struct py_saver *self)
{
	self->calls--;
}
PY_DEFINE_CLEAN(struct py_saver *, leave_saver);
/* A use that ends with the scope. */
#define AUTO_CALL PY_CLEAN(leave_saver) struct py_saver *

/* ------------------------------------------------------------------ opening */

static int
read_ignore(PyObject *paths, const char **rows, size_t *n)
{
	Py_ssize_t count = PyTuple_Size(paths);
	if (count < 0 || count > MAX_IGNORE) {
		if (count >= 0)
			PyErr_Format(PyExc_ValueError, "ignore_keys: at most %d paths", MAX_IGNORE);
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		rows[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(paths, i), NULL);
		if (!rows[i])
			return -1;
	}
	*n = (size_t)count;
	return 0;
}

static int
open_saver(struct py_state *st, PyObject *args, PyObject *kwargs, struct pawl_saver **ret)
{
	static char *names[] = {"folder",
	                        "filename",
	                        "remote_file_name",
	                        "latest_filename",
	                        "latest_remote_file_name",
	                        "save_interval",
	                        "overwrite",
	                        "num_checkpoints_to_keep",
	                        "weights_only",
	                        "ignore_keys",
	                        "num_concurrent_uploads",
	                        "upload_timeout_ms",
	                        "run_name",
	                        "rank",
	                        "uploads_by_caller",
	                        "raw_pickle",
	                        NULL};
	const char *paths[MAX_IGNORE]; /* borrowed from the tuple */
	struct pawl_saver_opts o = PAWL_SAVER_OPTS_INIT;
	struct pawl_rank rank = PAWL_RANK_INIT;
	PyObject *ignore = NULL;
	long long keep = -1, timeout_ms = 0;
	int uploads = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sszzzz$pLpO!iLz(iiiii)pp:Saver", names, &o.folder, &o.filename,
	                                 &o.remote_file_name, &o.latest_filename, &o.latest_remote_file_name,
	                                 &o.save_interval, &o.overwrite, &keep, &o.weights_only, &PyTuple_Type, &ignore,
	                                 &uploads, &timeout_ms, &o.run_name, &rank.rank, &rank.world_size,
	                                 &rank.local_rank, &rank.local_world_size, &rank.node_rank,
	                                 &o.uploads_by_caller, &o.raw_pickle))
		return -1;
	TRY(read_ignore(ignore, paths, &o.n_ignore_keys));
	TRY(py_shared_arena(st, &o.arena));
	o.num_checkpoints_to_keep = keep;
	o.num_concurrent_uploads = (uint32_t)uploads;
	o.upload_timeout_ms = timeout_ms;
	o.ignore_keys = paths;
	o.rank = &rank;
	return CALL(st, pawl_saver_open(&o, ret, err));
}

static PyObject *
saver_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_saver *saver = NULL;

	TRY_NULL(open_saver(st, args, kwargs, &saver));
	struct py_saver *self = py_object_new(type);
	if (!self) {
		pawl_saver_close(saver, NULL);
		return NULL;
	}
	self->saver = saver;
	self->pid = getpid();
	return (PyObject *)self;
}

static void
saver_dealloc(struct py_saver *self)
{
	struct pawl_saver *was = self->saver;

	if (was && self->pid == getpid())
		UNLOCKED(pawl_saver_close(was, NULL));
	py_object_free((PyObject *)self);
}

/* ------------------------------------------------------------------- saving */

typedef int progress_fn(struct pawl_saver *, const struct pawl_progress *, struct pawl_error *);

static PyObject *
call_progress(struct py_saver *self, PyObject *args, const char *format, progress_fn *fn, bool answers)
{
	struct pawl_progress now;
	AUTO_CALL in = NULL;
	PyObject *mapping;

	if (!PyArg_ParseTuple(args, format, &mapping) || py_progress(state_of(self), mapping, &now) < 0 ||
	    !(in = enter_saver(self)))
		return NULL;
	int rc = CALL(state_of(self), fn(self->saver, &now, err));
	return rc < 0 || !answers ? py_none(rc) : PyBool_FromLong(rc > 0);
}

static PyObject *
saver_start(struct py_saver *self, PyObject *args)
{
	return call_progress(self, args, "O:start", pawl_saver_start, false);
}

static PyObject *
saver_due(struct py_saver *self, PyObject *args)
{
	return call_progress(self, args, "O:due", pawl_saver_due, true);
}

/* Returns True if this process writes it. */
static PyObject *
saver_save(struct py_saver *self, PyObject *args)
{
	struct py_state *st = state_of(self);
	struct pawl_progress now;
	struct pawl_error err = {0};
	struct py_walk w;
	PyObject *mapping, *state;

	if (!PyArg_ParseTuple(args, "OO:save", &mapping, &state) || py_progress(st, mapping, &now) < 0 ||
	    py_walk_begin(&w, st, state, false, NULL) < 0)
		return NULL;
	AUTO_CALL in = enter_saver(self);
	if (!in) {
		py_walk_end(&w);
		return NULL;
	}
	w.thread = PyEval_SaveThread();
	int rc = pawl_saver_save(self->saver, &now, w.state, &err);
	PyEval_RestoreThread(w.thread);
	bool raised = py_raise_kept(w.error); /* a tensor could not be fetched: its own error is more precise */
	py_walk_end(&w);
	if (raised)
		return NULL;
	return rc < 0 ? py_raise(st, rc, &err) : PyBool_FromLong(rc == 0);
}

static PyObject *
saver_save_folder(struct py_saver *self, PyObject *args)
{
	struct pawl_progress now;
	AUTO_CALL in = NULL;
	PyObject *mapping;
	const char *folder;

	if (!PyArg_ParseTuple(args, "Os:save_folder", &mapping, &folder) ||
	    py_progress(state_of(self), mapping, &now) < 0 || !(in = enter_saver(self)))
		return NULL;
	return py_none(CALL(state_of(self), pawl_saver_save_folder(self->saver, &now, folder, err)));
}

/* ------------------------------------------------------- waiting and listing */

static int
wait_call(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_saver_wait(arg, timeout_ms, err);
}

static PyObject *
saver_wait(struct py_saver *self, PyObject *args)
{
	PyObject *timeout = Py_None;
	AUTO_CALL in = NULL;

	if (!PyArg_ParseTuple(args, "|O:wait", &timeout) || !(in = enter_saver(self)))
		return NULL;
	return py_none(py_wait(state_of(self), timeout, wait_call, self->saver, "saves or uploads are still running"));
}

static int
wait_saves_call(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_saver_wait_saves(arg, timeout_ms, err);
}

static PyObject *
saver_wait_saves(struct py_saver *self, PyObject *none)
{
	AUTO_CALL in = enter_saver(self);

	(void)none;
	return in ? py_none(py_wait(state_of(self), Py_None, wait_saves_call, self->saver, "saves are still running"))
	          : NULL;
}

static PyObject *
saver_check(struct py_saver *self, PyObject *none)
{
	AUTO_CALL in = enter_saver(self);

	(void)none;
	return in ? py_none(CALL(state_of(self), pawl_saver_check(self->saver, err))) : NULL;
}

static PyObject *
saver_close(struct py_saver *self, PyObject *none)
{
	struct pawl_saver *was = self->saver;

	(void)none;
	if (!was || self->pid != getpid()) {
		self->saver = NULL;
		Py_RETURN_NONE;
	}
	AUTO_CALL in = enter_saver(self);
	if (!in)
		return NULL;
	self->saver = NULL;
	return py_none(CALL(state_of(self), pawl_saver_close(was, err)));
}

/* Its paths: a single one, or one per rank if each rank has a folder. */
static PyObject *
paths_of(struct py_saver *self, const struct pawl_saved *row)
{
	uint32_t n = pawl_saver_writers(self->saver);
	AUTO_REF list = PyList_New(0);
	struct pawl_error err = {0};
	char path[sizeof row->path];

	for (uint32_t rank = 0; list && rank < n; rank++) {
		int rc = pawl_saver_path(self->saver, row, n == 1 ? 0 : (int32_t)rank, path, sizeof(path), &err);
		AUTO_REF text = rc < 0 ? py_raise(state_of(self), rc, &err) : PyUnicode_DecodeFSDefault(path);
		if (!text || PyList_Append(list, text) < 0)
			return NULL;
	}
	return Py_XNewRef(list);
}

/* (number, progress, path, remote name, remote pointer, uploaded, paths), the oldest first. all:
 * includes checkpoints that only wait for their upload. */
static PyObject *
saver_saved(struct py_saver *self, PyObject *args)
{
	struct pawl_saved row = PAWL_SAVED_INIT;
	struct pawl_error err = {0};
	AUTO_REF list = PyList_New(0);
	AUTO_CALL in = NULL;
	int all = 0, rc = 0;

	if (!PyArg_ParseTuple(args, "|p:saved", &all) || !list || !(in = enter_saver(self)))
		return NULL;
	for (size_t i = 0; (rc = pawl_saver_get(self->saver, i, all, &row, &err)) == 0; i++) {
		AUTO_REF progress = py_progress_dict(&row.progress);
		AUTO_REF paths = progress ? paths_of(self, &row) : NULL;
		AUTO_REF item = NULL;
		if (paths)
			item = Py_BuildValue("(KOsssOO)", (unsigned long long)row.seq, progress, row.path, row.remote,
			                     row.pointer, row.uploaded ? Py_True : Py_False, paths);
		if (!item || PyList_Append(list, item) < 0)
			return NULL;
	}
	return rc == PAWL_ENOTFOUND ? Py_NewRef(list) : py_raise(state_of(self), rc, &err);
}

static PyObject *
saver_uploaded(struct py_saver *self, PyObject *args)
{
	AUTO_CALL in = NULL;
	unsigned long long seq;

	if (!PyArg_ParseTuple(args, "K:uploaded", &seq) || !(in = enter_saver(self)))
		return NULL;
	return py_none(CALL(state_of(self), pawl_saver_uploaded(self->saver, seq, err)));
}

static PyObject *
saver_folder(struct py_saver *self, void *closure)
{
	(void)closure;
	return self->saver ? PyUnicode_FromString(pawl_saver_folder(self->saver)) : Py_NewRef(Py_None);
}

static PyObject *
saver_uploads(struct py_saver *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(self->saver && pawl_saver_uploads(self->saver));
}

/* Arguments: (run_name, folder, latest_filename, latest_remote_file_name, remote_file_name).
 * Returns the place of the latest checkpoint: a path or URL. With (place, folder) appended, returns
 * the path of a file that can be opened. None: no latest checkpoint exists. */
PyObject *
py_saver_find(PyObject *module, PyObject *args)
{
	struct pawl_saver_opts o = PAWL_SAVER_OPTS_INIT;
	struct pawl_error err = {0};
	const char *place = NULL, *folder = NULL;
	char found[8192];
	int rc;

	if (!PyArg_ParseTuple(args, "zszzz|ss:saver_find", &o.run_name, &o.folder, &o.latest_filename,
	                      &o.latest_remote_file_name, &o.remote_file_name, &place, &folder))
		return NULL;
	rc = UNLOCKED(place ? pawl_saver_bring(&o, place, folder, found, sizeof(found), &err)
	                    : pawl_saver_latest(&o, found, sizeof(found), &err));
	if (rc == PAWL_ENOTFOUND && !place)
		Py_RETURN_NONE;
	return rc < 0 ? py_raise(PyModule_GetState(module), rc, &err) : PyUnicode_DecodeFSDefault(found);
}

PyObject *
py_path_matches(PyObject *module, PyObject *args)
{
	const char *glob, *path;

	(void)module;
	return PyArg_ParseTuple(args, "ss:path_matches", &glob, &path) ? PyBool_FromLong(pawl_path_matches(glob, path))
	                                                               : NULL;
}

int
py_saver_init(PyObject *module)
{
#define METHOD(name, flags, doc) {#name, PY_METHOD(saver_##name), flags, doc}
	static PyMethodDef methods[] = {
		METHOD(start, METH_VARARGS, "The training is at this point."),
		METHOD(due, METH_VARARGS, "Is a save due?"),
		METHOD(save, METH_VARARGS, "Start a save; True if this process writes it."),
		METHOD(save_folder, METH_VARARGS, "Pack a folder as this rank's checkpoint."),
		METHOD(wait, METH_VARARGS, "Wait for saves and uploads."),
		METHOD(wait_saves, METH_NOARGS, "Wait until the files of all saves are written."),
		METHOD(check, METH_NOARGS, "Raise the first error that no call has raised yet."),
		METHOD(close, METH_NOARGS, "Wait, and free it."),
		METHOD(saved, METH_VARARGS, "The checkpoint files on this machine."),
		METHOD(uploaded, METH_VARARGS, "The caller has uploaded one."),
		{NULL, NULL, 0, NULL},
	};
	static PyGetSetDef members[] = {
		{"folder", (getter)saver_folder, NULL, "Filled in; None once closed.", NULL},
		{"uploads", (getter)saver_uploads, NULL, "Does it upload?", NULL},
		{NULL, NULL, NULL, NULL, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, saver_new},
		{Py_tp_dealloc, saver_dealloc},
		{Py_tp_methods, methods},
		{Py_tp_getset, members},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl._pawl.Saver", sizeof(struct py_saver), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, NULL);
}
