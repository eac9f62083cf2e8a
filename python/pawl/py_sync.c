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
	static char *names[] = {"local", "remote", "command", "shell", "timeout_ms", "verify", NULL};
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_syncer_opts opts = PAWL_SYNCER_OPTS_INIT;
	struct pawl_error err = {0};
	const char *local, *remote;
	long long timeout_ms = 0;
	int verify = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ss|$zpLp:Syncer", names, &local, &remote, &opts.command,
	                                 &opts.shell, &timeout_ms, &verify))
		return NULL;
	opts.timeout_ms = timeout_ms;
	opts.no_verify = !verify;

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

enum way { WAY_UP, WAY_DOWN, WAY_VERIFY_UP, WAY_VERIFY_DOWN };

/* (verified, checkpoints, seconds, note) */
static PyObject *
run(struct py_sync *self, enum way way)
{
	struct py_state *st = PyType_GetModuleState(Py_TYPE((PyObject *)self));
	struct pawl_syncer_report report = PAWL_SYNCER_REPORT_INIT;
	struct pawl_error err = {0};
	int rc;

	if (!self->sync)
		return py_raise_text(st, PAWL_EUSAGE, "the syncer is closed");
	self->calls++;
	Py_BEGIN_ALLOW_THREADS if (way == WAY_UP) rc = pawl_syncer_up(self->sync, &self->meter, &report, &err);
	else if (way == WAY_DOWN) rc = pawl_syncer_down(self->sync, &self->meter, &report, &err);
	else rc = pawl_syncer_verify(self->sync, way == WAY_VERIFY_DOWN, &self->meter, &report, &err);
	Py_END_ALLOW_THREADS self->calls--;
	self->meter.cancel = 0;
	if (rc < 0)
		return py_raise(st, rc, &err);
	return Py_BuildValue("(NKds)", PyBool_FromLong(report.verified), (unsigned long long)report.n_checkpoints,
	                     report.seconds, report.note);
}

static PyObject *
sync_up(struct py_sync *self, PyObject *none)
{
	(void)none;
	return run(self, WAY_UP);
}

static PyObject *
sync_down(struct py_sync *self, PyObject *none)
{
	(void)none;
	return run(self, WAY_DOWN);
}

static PyObject *
sync_verify(struct py_sync *self, PyObject *args)
{
	int down;

	if (!PyArg_ParseTuple(args, "p:verify", &down))
		return NULL;
	return run(self, down ? WAY_VERIFY_DOWN : WAY_VERIFY_UP);
}

/* Returns the path of the view. */
static PyObject *
sync_freeze(struct py_sync *self, PyObject *none)
{
	struct py_state *st = PyType_GetModuleState(Py_TYPE((PyObject *)self));
	struct pawl_error err = {0};
	const char *path = NULL;
	int rc;

	(void)none;
	if (!self->sync)
		return py_raise_text(st, PAWL_EUSAGE, "the syncer is closed");
	self->calls++;
	Py_BEGIN_ALLOW_THREADS rc = pawl_syncer_freeze(self->sync, &self->meter, &path, &err);
	Py_END_ALLOW_THREADS self->calls--;
	self->meter.cancel = 0;
	return rc < 0 ? py_raise(st, rc, &err) : PyUnicode_DecodeFSDefault(path);
}

static PyObject *
sync_thaw(struct py_sync *self, PyObject *none)
{
	(void)none;
	if (self->sync) {
		self->calls++;
		Py_BEGIN_ALLOW_THREADS pawl_syncer_thaw(self->sync);
		Py_END_ALLOW_THREADS self->calls--;
	}
	Py_RETURN_NONE;
}

/* A list of texts as C strings, which live as long as the list. The caller frees the array. */
static const char **
texts_of(PyObject *list, Py_ssize_t *ret_n)
{
	Py_ssize_t n = PyList_Check(list) ? PyList_Size(list) : -1;
	const char **texts = n < 0 ? NULL : PyMem_Calloc((size_t)n + 1, sizeof(*texts));

	if (!texts && !PyErr_Occurred())
		PyErr_SetString(PyExc_TypeError, "expected a list of str");
	for (Py_ssize_t i = 0; texts && i < n; i++) {
		texts[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, i), NULL);
		if (!texts[i]) {
			PyMem_Free(texts);
			return NULL;
		}
	}
	*ret_n = n;
	return texts;
}

static PyObject *
sync_prune(struct py_sync *self, PyObject *list)
{
	struct py_state *st = PyType_GetModuleState(Py_TYPE((PyObject *)self));
	struct pawl_error err = {0};
	Py_ssize_t n;
	int rc;

	if (!self->sync)
		return py_raise_text(st, PAWL_EUSAGE, "the syncer is closed");

	const char **texts = texts_of(list, &n);

	if (!texts)
		return NULL;
	self->calls++;
	Py_BEGIN_ALLOW_THREADS rc = pawl_syncer_prune(self->sync, texts, (size_t)n, &err);
	Py_END_ALLOW_THREADS self->calls--;
	PyMem_Free(texts);
	return rc < 0 ? py_raise(st, rc, &err) : Py_NewRef(Py_None);
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
	struct pawl_error err = {0};
	const char *from, *to;
	int rc;

	if (!PyArg_ParseTuple(args, "ss:clone_folder", &from, &to))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_clone_folder(from, to, NULL, &err);
	Py_END_ALLOW_THREADS return rc < 0 ? py_raise(PyModule_GetState(module), rc, &err) : Py_NewRef(Py_None);
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

/* The kind of content at a place: enum pawl_kind. */
PyObject *
py_kind_of(PyObject *module, PyObject *args)
{
	struct pawl_error err = {0};
	const char *place;
	int rc;

	if (!PyArg_ParseTuple(args, "s:kind_of", &place))
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pawl_kind_of(place, &err);
	Py_END_ALLOW_THREADS return rc < 0 ? py_raise(PyModule_GetState(module), rc, &err) : PyLong_FromLong(rc);
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

int
py_sync_init(PyObject *module)
{
	static PyMethodDef methods[] = {
		{"up", (PyCFunction)(void (*)(void))sync_up, METH_NOARGS, "From here to there."},
		{"down", (PyCFunction)(void (*)(void))sync_down, METH_NOARGS, "From there to here."},
		{"verify", (PyCFunction)(void (*)(void))sync_verify, METH_VARARGS, "Verify what is there, or here."},
		{"freeze", (PyCFunction)(void (*)(void))sync_freeze, METH_NOARGS, "The folder as it is now."},
		{"thaw", (PyCFunction)(void (*)(void))sync_thaw, METH_NOARGS, "Remove what freeze has made."},
		{"prune", (PyCFunction)(void (*)(void))sync_prune, METH_O, "Remove folders there."},
		{"cancel", (PyCFunction)(void (*)(void))sync_cancel, METH_NOARGS, "End what runs."},
		{"close", (PyCFunction)(void (*)(void))sync_close, METH_NOARGS, "Free it."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, sync_new},
		{Py_tp_dealloc, sync_dealloc},
		{Py_tp_methods, methods},
		{0, NULL},
	};
	PyType_Spec spec = {.name = "pawl._pawl.Syncer",
	                    .basicsize = sizeof(struct py_sync),
	                    .flags = Py_TPFLAGS_DEFAULT,
	                    .slots = slots};
	AUTO_REF type = PyType_FromModuleAndSpec(module, &spec, NULL);

	return type ? PyModule_AddObjectRef(module, "Syncer", type) : -1;
}
