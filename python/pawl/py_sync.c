/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_sync: Syncer, a struct pawl_syncer. Waits release the interpreter lock; cancel() from another
 * thread ends them.
 */
#include "py.h"

struct py_sync {
	PyObject_HEAD struct pawl_syncer *sync; /* NULL once closed */
	struct pawl_meter meter;
	unsigned calls; /* guarded by the interpreter lock */
};

static PyObject *
sync_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"local", "remote", "command", "shell", "timeout_ms", "verify", "fsspec", NULL};
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_syncer_opts opts = PAWL_SYNCER_OPTS_INIT;
	struct pawl_error err = {0};
	const char *local, *remote;
	long long timeout_ms = 0;
	int verify = 1, fsspec = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ss|$zpLpp:Syncer", names, &local, &remote, &opts.command,
	                                 &opts.shell, &timeout_ms, &verify, &fsspec))
		return NULL;
	opts.timeout_ms = timeout_ms;
	opts.no_verify = !verify;
	opts.stores = fsspec ? &py_stores : NULL;

	struct py_sync *self = py_object_new(type);

	if (!self)
		return NULL;
	int rc = pawl_syncer_open(local, remote, &opts, &self->sync, &err);

	if (rc < 0) {
		Py_DECREF((PyObject *)self);
		return py_raise(st, rc, &err);
	}
	return (PyObject *)self;
}

static void
sync_dealloc(struct py_sync *self)
{
	pawl_syncer_close(self->sync);
	py_object_free((PyObject *)self);
}

static struct py_state *
state_of(struct py_sync *self)
{
	return py_state_of((PyObject *)self);
}

/* Begins a call; NULL with an exception if it is closed. */
static struct py_sync *
enter_sync(struct py_sync *self)
{
	if (!self->sync) {
		py_raise_text(state_of(self), PAWL_EUSAGE, "the syncer is closed");
		return NULL;
	}
	self->calls++;
	return self;
}

static void
leave_sync(struct py_sync *self)
{
	self->calls--;
	self->meter.cancel = 0;
}
PY_DEFINE_CLEAN(struct py_sync *, leave_sync);
/* A call that ends with the scope. */
#define AUTO_CALL PY_CLEAN(leave_sync) struct py_sync *

enum way { WAY_UP, WAY_DOWN, WAY_VERIFY_UP, WAY_VERIFY_DOWN };

static int
transfer_way(struct py_sync *self, enum way way, struct pawl_syncer_report *ret, struct pawl_error *err)
{
	if (way == WAY_UP)
		return pawl_syncer_up(self->sync, &self->meter, ret, err);
	if (way == WAY_DOWN)
		return pawl_syncer_down(self->sync, &self->meter, ret, err);
	return pawl_syncer_verify(self->sync, way == WAY_VERIFY_DOWN, &self->meter, ret, err);
}

/* (verified, checkpoints, seconds, note) */
static PyObject *
run_sync(struct py_sync *self, enum way way)
{
	struct pawl_syncer_report report = PAWL_SYNCER_REPORT_INIT;
	AUTO_CALL in = enter_sync(self);

	if (!in)
		return NULL;
	TRY_NULL(CALL(state_of(self), transfer_way(self, way, &report, err)));
	return Py_BuildValue("(NKds)", PyBool_FromLong(report.verified), (unsigned long long)report.n_checkpoints,
	                     report.seconds, report.note);
}

static PyObject *
sync_up(struct py_sync *self, PyObject *none)
{
	(void)none;
	return run_sync(self, WAY_UP);
}

static PyObject *
sync_down(struct py_sync *self, PyObject *none)
{
	(void)none;
	return run_sync(self, WAY_DOWN);
}

static PyObject *
sync_verify(struct py_sync *self, PyObject *args)
{
	int down;

	if (!PyArg_ParseTuple(args, "p:verify", &down))
		return NULL;
	return run_sync(self, down ? WAY_VERIFY_DOWN : WAY_VERIFY_UP);
}

/* Returns the path of the view. */
static PyObject *
sync_freeze(struct py_sync *self, PyObject *none)
{
	AUTO_CALL in = enter_sync(self);
	const char *path = NULL;

	(void)none;
	if (!in)
		return NULL;
	TRY_NULL(CALL(state_of(self), pawl_syncer_freeze(self->sync, &self->meter, &path, err)));
	return PyUnicode_DecodeFSDefault(path);
}

static PyObject *
sync_thaw(struct py_sync *self, PyObject *none)
{
	(void)none;
	if (self->sync) {
		self->calls++;
		UNLOCKED(pawl_syncer_thaw(self->sync));
		self->calls--;
	}
	Py_RETURN_NONE;
}

static PyObject *
sync_prune(struct py_sync *self, PyObject *list)
{
	size_t n;
	AUTO_CALL in = enter_sync(self);
	AUTO_TEXTS texts = in ? py_texts(list, &n) : NULL;

	return texts ? py_none(CALL(state_of(self), pawl_syncer_prune(self->sync, texts, n, err))) : NULL;
}

static PyObject *
sync_cancel(struct py_sync *self, PyObject *none)
{
	(void)none;
	self->meter.cancel = 1;
	Py_RETURN_NONE;
}

static PyObject *
sync_close(struct py_sync *self, PyObject *none)
{
	struct py_state *st = PyType_GetModuleState(Py_TYPE((PyObject *)self));
	struct pawl_syncer *was = self->sync;

	(void)none;
	if (self->calls > 0)
		return py_raise_text(st, PAWL_EBUSY, "a sync is still running");
	self->sync = NULL;
	pawl_syncer_close(was);
	Py_RETURN_NONE;
}

PyObject *
py_clone_folder(PyObject *module, PyObject *args)
{
	const char *from, *to;

	if (!PyArg_ParseTuple(args, "ss:clone_folder", &from, &to))
		return NULL;
	return py_none(CALL(PyModule_GetState(module), pawl_clone_folder(from, to, NULL, err)));
}

/* Replaces what looks like a secret (P18) in a text from outside. */
PyObject *
py_hide_secrets(PyObject *module, PyObject *text)
{
	AUTO_REF bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
	/* a private, writable copy */
	AUTO_REF copy = bytes ? PyByteArray_FromObject(bytes) : NULL;

	(void)module;
	if (!copy)
		return NULL;
	pawl_hide_secrets(PyByteArray_AsString(copy));
	return PyUnicode_DecodeUTF8(PyByteArray_AsString(copy), PyByteArray_Size(copy), "surrogatepass");
}

/* The kind of content at a place: enum pawl_kind. fsspec False: only the library's own stores. */
PyObject *
py_kind_of(PyObject *module, PyObject *args)
{
	const char *place;
	int fsspec = 1;

	if (!PyArg_ParseTuple(args, "s|p:kind_of", &place, &fsspec))
		return NULL;
	int kind = CALL(PyModule_GetState(module), pawl_kind_of(place, fsspec ? &py_stores : NULL, err));
	return kind < 0 ? NULL : PyLong_FromLong(kind);
}

/* RUN@SELECTOR as (RUN, SELECTOR), any other address as (address, None). */
PyObject *
py_split_address(PyObject *module, PyObject *text)
{
	Py_ssize_t len;
	const char *address = PyUnicode_AsUTF8AndSize(text, &len);
	char *root = address ? PyMem_Malloc(2 * ((size_t)len + 2)) : NULL, *selector = root ? root + len + 2 : NULL;
	PyObject *ret = NULL;

	(void)module;
	if (root)
		ret = Py_BuildValue("sz", root, pawl_split_address(address, root, selector) ? selector : NULL);
	else if (address)
		PyErr_NoMemory();
	PyMem_Free(root);
	return ret;
}

/* Raises why nothing could be opened at an address. */
PyObject *
py_explain_address(PyObject *module, PyObject *text)
{
	const char *address = PyUnicode_AsUTF8AndSize(text, NULL);

	if (address)
		(void)CALL(PyModule_GetState(module), pawl_explain_address(address, err));
	return NULL;
}

int
py_sync_init(PyObject *module)
{
	static PyMethodDef methods[] = {
		{"up", PY_METHOD(sync_up), METH_NOARGS, "Copy local files to the remote place."},
		{"down", PY_METHOD(sync_down), METH_NOARGS, "Copy remote files to the local folder."},
		{"verify", PY_METHOD(sync_verify), METH_VARARGS, "Verify the remote or the local files."},
		{"freeze", PY_METHOD(sync_freeze), METH_NOARGS,
	         "Make a constant view of the local folder; returns its path."},
		{"thaw", PY_METHOD(sync_thaw), METH_NOARGS, "Remove what freeze has made."},
		{"prune", PY_METHOD(sync_prune), METH_O, "Remove folders at the remote place."},
		{"cancel", PY_METHOD(sync_cancel), METH_NOARGS, "Cancel the running sync."},
		{"close", PY_METHOD(sync_close), METH_NOARGS, "Free it."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, sync_new},
		{Py_tp_dealloc, sync_dealloc},
		{Py_tp_methods, methods},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl._pawl.Syncer", sizeof(struct py_sync), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, NULL);
}
