/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_stores: fsspec's file systems as stores of the library. Each operation calls a method of
 * _fsspec_store.Store. The operations run on the library's threads and on threads that called the
 * library, so each takes the GIL while it runs. A thread that waits in the library has released the
 * GIL. A thread that has not released it holds no lock of the library that another could wait for.
 */
#include "py.h"

#include <stdio.h>
#include <string.h>

#define MODULE "pawl._fsspec_store"

/* The calling thread may already have an exception set, such as one of a failed restore that now
 * releases its hold. An operation saves it and leaves it raised. */
struct call {
	PyGILState_STATE gil;
	PyObject *kind, *value, *trace;
};

static struct call
enter_python(void)
{
	struct call call = {.gil = PyGILState_Ensure()};

	PyErr_Fetch(&call.kind, &call.value, &call.trace);
	return call;
}

static void
leave_python(const struct call *call)
{
	PyErr_Restore(call->kind, call->value, call->trace);
	PyGILState_Release(call->gil);
}

/* Converts the current exception to code and text, and clears it. */
static int
take_raised(struct pawl_error *err)
{
	PyObject *kind, *value, *trace;
	long code = PAWL_EIO;

	PyErr_Fetch(&kind, &value, &trace);
	PyErr_NormalizeException(&kind, &value, &trace);
	AUTO_REF module = PyImport_ImportModule(MODULE);
	AUTO_REF number = module && value ? PyObject_CallMethod(module, "code_of", "O", value) : NULL;
	AUTO_REF shown = value ? PyObject_Str(value) : NULL;
	AUTO_REF name = kind ? PyObject_GetAttrString(kind, "__name__") : NULL;
	const char *text = shown ? PyUnicode_AsUTF8AndSize(shown, NULL) : NULL;
	const char *what = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;

	if (number)
		code = PyLong_AsLong(number);
	if (PyErr_Occurred())
		PyErr_Clear();
	err->code = code < 0 && code > -PY_N_CODES ? (int)code : PAWL_EIO;
	snprintf(err->message, sizeof(err->message), "%s%s%.400s",
	         text && *text ? text
	         : what        ? what
	                       : "an exception",
	         text && *text && what && strcmp(what, "UsageError") != 0 ? ", " : "",
	         text && *text && what && strcmp(what, "UsageError") != 0 ? what : "");
	PyErr_Restore(kind, value, trace);
	if (!py_pass_on())
		PyErr_Clear();
	return err->code;
}

/* 0 if there is a result, which is released. */
static int
take_result(PyObject *result, struct pawl_error *err)
{
	int rc = result ? 0 : take_raised(err);

	Py_XDECREF(result);
	return rc;
}

static int
store_open(void *arg, const char *url, int create, void **ret, int *ret_can_copy, struct pawl_error *err)
{
	struct call call = enter_python();

	(void)arg;
	{
		AUTO_REF module = PyImport_ImportModule(MODULE);
		AUTO_REF yes = PyBool_FromLong(create);
		PyObject *store = module ? PyObject_CallMethod(module, "Store", "sO", url, yes) : NULL;
		AUTO_REF copies = store ? PyObject_GetAttrString(store, "can_copy") : NULL;

		*ret = store;
		*ret_can_copy = copies == Py_True;
		if (!store)
			take_raised(err);
	}
	leave_python(&call);
	return *ret ? 0 : err->code;
}

static void
store_close(void *store)
{
	struct call call = enter_python();

	Py_DECREF((PyObject *)store);
	leave_python(&call);
}

static int
store_put(void *store, const char *key, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	struct call call = enter_python();
	/* memory owned by Python, which the file system may keep */
	int rc = take_result(PyObject_CallMethod(store, "put", "sy#", key, (const char *)ptr, (Py_ssize_t)nbytes), err);

	leave_python(&call);
	return rc;
}

static int
store_upload(void *store, const char *key, const char *path, uint64_t nbytes, struct pawl_error *err)
{
	struct call call = enter_python();
	int rc = take_result(PyObject_CallMethod(store, "upload", "ssK", key, path, (unsigned long long)nbytes), err);

	leave_python(&call);
	return rc;
}

static int
store_get(void *store, const char *key, size_t max, pawl_store_bytes_fn *take, void *take_arg, struct pawl_error *err)
{
	struct call call = enter_python();
	PyObject *bytes = PyObject_CallMethod(store, "get", "sK", key, (unsigned long long)max);
	char *ptr = NULL;
	Py_ssize_t len = 0;
	int rc = bytes && PyBytes_AsStringAndSize(bytes, &ptr, &len) == 0 ? take(take_arg, ptr, (size_t)len)
	                                                                  : take_raised(err);

	Py_XDECREF(bytes);
	leave_python(&call);
	return rc;
}

static int
store_read(void *store, const char *key, uint64_t offset, void *dst, size_t nbytes, struct pawl_error *err)
{
	struct call call = enter_python();
	PyObject *view = PyMemoryView_FromMemory(dst, (Py_ssize_t)nbytes, PyBUF_WRITE);
	int rc = take_result(
		view ? PyObject_CallMethod(store, "read", "sKO", key, (unsigned long long)offset, view) : NULL, err);

	if (view) /* if the file system kept it, it cannot write into reused memory later */
		take_result(PyObject_CallMethod(view, "release", NULL), &(struct pawl_error){0});
	Py_XDECREF(view);
	leave_python(&call);
	return rc;
}

static int
read_entry(PyObject *row, struct pawl_store_entry *ret)
{
	unsigned long long nbytes;
	long long mtime_ns;
	int is_folder;

	if (!PyArg_ParseTuple(row, "sKLp", &ret->name, &nbytes, &mtime_ns, &is_folder))
		return -1;
	ret->nbytes = nbytes;
	ret->mtime_ns = mtime_ns;
	ret->is_folder = is_folder;
	return 0;
}

static int
store_stat(void *store, const char *key, struct pawl_store_entry *ret, struct pawl_error *err)
{
	struct call call = enter_python();
	PyObject *row = PyObject_CallMethod(store, "stat", "s", key);
	int rc = row && read_entry(row, ret) == 0 ? 0 : take_raised(err);

	ret->name = NULL;
	Py_XDECREF(row);
	leave_python(&call);
	return rc;
}

static int
visit_rows(PyObject *rows, pawl_store_entry_fn *visit, void *visit_arg, struct pawl_error *err)
{
	int rc = 0;

	for (Py_ssize_t i = 0; i < PyList_Size(rows) && rc == 0; i++) {
		struct pawl_store_entry entry = {0};

		if (read_entry(PyList_GetItem(rows, i), &entry) < 0)
			return take_raised(err);
		rc = visit(visit_arg, &entry);
	}
	return rc;
}

static int
store_list(void *store, const char *folder, pawl_store_entry_fn *visit, void *visit_arg, struct pawl_error *err)
{
	struct call call = enter_python();
	PyObject *rows = PyObject_CallMethod(store, "list", "s", folder);
	int rc = rows ? visit_rows(rows, visit, visit_arg, err) : take_raised(err);

	Py_XDECREF(rows);
	leave_python(&call);
	return rc;
}

static int
store_remove(void *store, const char *key, int is_folder, struct pawl_error *err)
{
	struct call call = enter_python();
	int rc = take_result(PyObject_CallMethod(store, "remove", "sO", key, is_folder ? Py_True : Py_False), err);

	leave_python(&call);
	return rc;
}

static int
store_copy(void *store, const char *from, const char *to, struct pawl_error *err)
{
	struct call call = enter_python();
	int rc = take_result(PyObject_CallMethod(store, "copy", "ss", from, to), err);

	leave_python(&call);
	return rc;
}

const struct pawl_stores py_stores = {
	.size = sizeof(struct pawl_stores),
	.name = "fsspec",
	.open = store_open,
	.close = store_close,
	.put = store_put,
	.upload = store_upload,
	.get = store_get,
	.read = store_read,
	.stat = store_stat,
	.list = store_list,
	.remove = store_remove,
	.copy = store_copy,
};
