/* SPDX-License-Identifier: Apache-2.0 */
/* py_files: Files, a struct pawl_files: single files written in the background. */
#include "py.h"

#include <string.h>
#include <unistd.h>

struct py_files {
	PyObject_HEAD struct pawl_files *files; /* NULL once closed */
	pid_t pid;                              /* of the process that created it: only there its threads exist */
	unsigned calls;                         /* guarded by the interpreter lock */
};

static PyObject *
files_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"threads", "bandwidth", NULL};
	struct py_state *st = PyType_GetModuleState(type);
	struct pawl_files_opts opts = PAWL_FILES_OPTS_INIT;
	struct pawl_error err = {0};
	unsigned long long bandwidth = 0;
	unsigned threads = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$IK:Files", names, &threads, &bandwidth) ||
	    py_shared_arena(st, &opts.arena) < 0)
		return NULL;
	opts.threads = threads;
	opts.bytes_per_second = bandwidth;

	struct py_files *self = py_object_new(type);

	if (!self)
		return NULL;
	self->pid = getpid();
	int rc = pawl_files_open(&opts, &self->files, &err);

	if (rc < 0) {
		Py_DECREF((PyObject *)self);
		return py_raise(st, rc, &err);
	}
	return (PyObject *)self;
}

static void
files_dealloc(struct py_files *self)
{
	if (self->files && self->pid == getpid())
		UNLOCKED(pawl_files_close(self->files, NULL));
	py_object_free((PyObject *)self);
}

static struct pawl_files *
enter_files(struct py_files *self)
{
	struct py_state *st = py_state_of((PyObject *)self);

	if (!self->files)
		py_raise_text(st, PAWL_EUSAGE, "the file saver is closed");
	else if (self->pid != getpid())
		py_raise_text(st, PAWL_EUSAGE, "the file saver was made before fork(), by process %ld",
		              (long)self->pid);
	else
		self->calls++;
	return PyErr_Occurred() ? NULL : self->files;
}

static PyObject *
save_walked(struct py_files *self, const char *path, const struct pawl_file_opts *opts, struct py_walk *w)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct pawl_files *files = enter_files(self);
	struct pawl_ticket *ticket = NULL;
	struct pawl_error err = {0};

	if (!files)
		return NULL;
	w->thread = PyEval_SaveThread();
	int rc = pawl_files_save(files, path, opts, w->state, &ticket, &err);
	PyEval_RestoreThread(w->thread);
	self->calls--;
	if (py_raise_kept(w->error)) { /* a tensor could not be fetched: its own error is more precise */
		pawl_ticket_free(ticket);
		return NULL;
	}
	return rc < 0 ? py_raise(st, rc, &err) : py_ticket_new(st, ticket, 0, NULL, NULL);
}

static PyObject *
files_save(struct py_files *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"path", "state", "overwrite", "raw_pickle", "format", "level", NULL};
	struct py_state *st = py_state_of((PyObject *)self);
	struct pawl_file_opts opts = PAWL_FILE_OPTS_INIT;
	double begin = py_now_seconds();
	struct py_walk walk;
	const char *path;
	PyObject *state;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|$ppzi:save", names, &path, &state, &opts.overwrite,
	                                 &opts.raw_pickle, &opts.format, &opts.level) ||
	    py_walk_begin(&walk, st, state, false, NULL) < 0)
		return NULL;
	PyObject *result = save_walked(self, path, &opts, &walk);

	py_walk_end(&walk);
	if (result)
		py_ticket_held_since(result, begin);
	return result;
}

static int
wait_files(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_files_wait(arg, timeout_ms, err);
}

static PyObject *
files_wait(struct py_files *self, PyObject *args)
{
	struct pawl_files *files;
	PyObject *timeout = Py_None;

	if (!PyArg_ParseTuple(args, "|O:wait", &timeout) || !(files = enter_files(self)))
		return NULL;
	int rc = py_wait(py_state_of((PyObject *)self), timeout, wait_files, files, "the files were not written");

	self->calls--;
	return py_none(rc);
}

static PyObject *
files_check(struct py_files *self, PyObject *none)
{
	struct pawl_files *files = enter_files(self);
	struct pawl_error err = {0};

	(void)none;
	if (!files)
		return NULL;
	int rc = pawl_files_check(files, &err);

	self->calls--;
	if (rc < 0)
		return py_raise(py_state_of((PyObject *)self), rc, &err);
	Py_RETURN_NONE;
}

/* Waits before closing, so that Ctrl+C is handled. An error is raised after everything is
 * closed. */
static PyObject *
files_close(struct py_files *self, PyObject *none)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct pawl_files *was = self->files;

	(void)none;
	if (!was || self->pid != getpid()) {
		self->files = NULL;
		Py_RETURN_NONE;
	}
	if (self->calls > 0)
		return py_raise_text(st, PAWL_EBUSY, "a call of the file saver is still running");
	self->files = NULL;
	return py_none(CALL(st, pawl_files_close(was, err)));
}

int
py_files_init(PyObject *module)
{
	static PyMethodDef methods[] = {
		{"save", PY_METHOD(files_save), METH_VARARGS | METH_KEYWORDS, "Begin a file."},
		{"wait", PY_METHOD(files_wait), METH_VARARGS, "Wait for all files begun so far."},
		{"check", PY_METHOD(files_check), METH_NOARGS,
	         "Raise an error that no call has "
	         "raised yet."},
		{"close", PY_METHOD(files_close), METH_NOARGS, "Wait, and free it."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot slots[] = {
		{Py_tp_new, files_new},
		{Py_tp_dealloc, files_dealloc},
		{Py_tp_methods, methods},
		{0, NULL},
	};
	const PyType_Spec spec = {"pawl._pawl.Files", sizeof(struct py_files), 0, Py_TPFLAGS_DEFAULT, slots};

	return py_add_type(module, spec, NULL);
}
