/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_error: PawlError and one subclass per code. Each subclass also derives from the matching
 * builtin exception, so that `except FileExistsError` works as well as `except pawl.ExistsError`.
 */
#include "py.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "py_os.h"

struct error_kind {
	int code;
	const char *name, *doc;
	PyObject **also; /* builtin base, or NULL */
};

static PyObject *
new_kind(PyObject *base, const struct error_kind *kind)
{
	char full[64];
	AUTO_REF bases = kind->also ? PyTuple_Pack(2, base, *kind->also) : PyTuple_Pack(1, base);
	AUTO_REF dict = Py_BuildValue("{s:i,s:s}", "code", kind->code, "code_name", pawl_code_name(kind->code));

	if (!bases || !dict)
		return NULL;
	snprintf(full, sizeof(full), "pawl.%s", kind->name);
	return PyErr_NewExceptionWithDoc(full, kind->doc, bases, dict);
}

static int
add_kind(PyObject *module, struct py_state *st, const struct error_kind *kind)
{
	PyObject *made = new_kind(st->errors[0], kind);

	if (!made)
		return -1;
	st->errors[-kind->code] = made;
	return PyModule_AddObjectRef(module, kind->name, made);
}

int
py_errors_init(PyObject *module, struct py_state *st)
{
	const struct error_kind kinds[] = {
		{PAWL_EUSAGE, "UsageError", "An argument or option is wrong.", &PyExc_ValueError},
		{PAWL_ENOMEM, "OutOfMemoryError", "There is not enough memory.", &PyExc_MemoryError},
		{PAWL_ENOTFOUND, "NotFoundError", "No such run, checkpoint, tensor or file.", &PyExc_LookupError},
		{PAWL_EEXISTS, "ExistsError", "Something would be overwritten.", &PyExc_FileExistsError},
		{PAWL_EBUSY, "BusyError", "Another writer is active, or a save is running.", NULL},
		{PAWL_ECONFLICT, "ConflictError", "Another writer won, or the lease was lost.", NULL},
		{PAWL_ENOSPACE, "NoSpaceError", "The disk or a quota is full.", &PyExc_OSError},
		{PAWL_EIO, "StorageError", "The system reported an I/O error.", &PyExc_OSError},
		{PAWL_ETRANSIENT, "TransientError", "It may work when it is tried again.", &PyExc_OSError},
		{PAWL_EAUTH, "AccessError", "Permission or credentials are missing.", &PyExc_PermissionError},
		{PAWL_ECORRUPT, "CorruptError", "Bytes are not what was written.", NULL},
		{PAWL_EVERSION, "VersionError", "It was written by a newer format version.", NULL},
		{PAWL_ETIMEOUT, "TimeoutError", "A deadline passed.", &PyExc_TimeoutError},
		{PAWL_ECANCELLED, "CancelledError", "Cancelled on request, or replaced by a newer save.", NULL},
		{PAWL_EMISMATCH, "MismatchError", "State and checkpoint do not match.", &PyExc_ValueError},
		{PAWL_ELIMIT, "LimitError", "Input exceeds a documented limit.", &PyExc_ValueError},
		{PAWL_EUNSUPPORTED, "UnsupportedError", "It cannot be done here, or cannot be held in a state.",
	         &PyExc_TypeError},
		{PAWL_EREADONLY, "ReadOnlyError", "The run was opened read-only.", &PyExc_PermissionError},
		{PAWL_EINTERNAL, "InternalError", "A bug in pawl.", &PyExc_RuntimeError},
		{PAWL_EDEVICE, "DeviceError", "An accelerator or its driver failed.", &PyExc_RuntimeError},
	};
	AUTO_REF dict = Py_BuildValue("{s:i,s:s}", "code", 0, "code_name", "");

	if (!dict)
		return -1;
	st->errors[0] = PyErr_NewExceptionWithDoc("pawl.PawlError", "Base of all errors of pawl: .code, .code_name.",
	                                          NULL, dict);
	if (!st->errors[0] || PyModule_AddObjectRef(module, "PawlError", st->errors[0]) < 0)
		return -1;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		TRY(add_kind(module, st, &kinds[i]));
	return 0;
}

static PyObject *
class_of(struct py_state *st, int code)
{
	if (code < 0 && -code < PY_N_CODES && st->errors[-code])
		return st->errors[-code];
	return st->errors[0];
}

PyObject *
py_error_new(struct py_state *st, int code, const struct pawl_error *err)
{
	PyObject *class = class_of(st, code);
	AUTO_REF text = PyUnicode_DecodeUTF8(err->message, (Py_ssize_t)strlen(err->message), "replace");
	PyObject *exc = text ? PyObject_CallFunctionObjArgs(class, text, NULL) : NULL;

	if (exc && err->sys && PyObject_IsInstance(exc, PyExc_OSError) == 1) {
		AUTO_REF sys = PyLong_FromLong(err->sys);

		if (!sys || PyObject_SetAttrString(exc, "errno", sys) < 0) {
			Py_DECREF(exc);
			return NULL;
		}
	}
	return exc;
}

PyObject *
py_raise(struct py_state *st, int code, const struct pawl_error *err)
{
	AUTO_REF exc = py_error_new(st, code, err);

	if (exc)
		PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
	return NULL;
}

PyObject *
py_raise_text(struct py_state *st, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	PyErr_FormatV(class_of(st, code), format, args);
	va_end(args);
	return NULL;
}

PyObject *
py_raise_received(struct py_state *st, PyObject *value, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	AUTO_REF text = PyUnicode_FromFormatV(format, args);
	va_end(args);
	AUTO_REF checks = PyImport_ImportModule("pawl._checks");
	AUTO_REF shown = checks ? PyObject_CallMethod(checks, "shown", "O", value) : NULL;

	return text ? py_raise_text(st, PAWL_EUSAGE, "%U, received %V", text, shown, "another value") : NULL;
}

static PyObject *
component_of(const struct py_path *p)
{
	if (!p->key)
		return PyUnicode_FromFormat("%zd", p->index);
	if (p->key == Py_None)
		return PyUnicode_FromString("null");
	if (PyBool_Check(p->key))
		return PyUnicode_FromString(p->key == Py_True ? "true" : "false");
	if (!PyUnicode_Check(p->key)) {
		PyObject *text = PyObject_Str(p->key);

		if (text || !PyErr_ExceptionMatches(PyExc_Exception))
			return text;
		PyErr_Clear(); /* an integer too long to convert */
		return PyUnicode_FromString("?");
	}

	AUTO_REF once = PyObject_CallMethod(p->key, "replace", "ss", "%", "%25");

	return once ? PyObject_CallMethod(once, "replace", "ss", "/", "%2F") : NULL;
}

PyObject *
py_path_text(const struct py_path *path)
{
	AUTO_REF parts = PyList_New(0);
	AUTO_REF slash = PyUnicode_FromString("/");

	if (!parts || !slash)
		return NULL;
	for (; path; path = path->up) {
		AUTO_REF part = component_of(path);

		if (!part || PyList_Append(parts, part) < 0)
			return NULL;
	}
	TRY_NULL(PyList_Reverse(parts));

	AUTO_REF text = PyUnicode_Join(slash, parts);
	/* half a surrogate pair could not be printed */
	AUTO_REF bytes = text ? PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace") : NULL;

	return bytes ? PyUnicode_FromEncodedObject(bytes, "utf-8", "strict") : NULL;
}

int
py_raise_at(struct py_state *st, int code, const struct py_path *path, const char *format, ...)
{
	AUTO_REF where = py_path_text(path);
	va_list args;

	if (!where)
		return -1;
	va_start(args, format);
	AUTO_REF what = PyUnicode_FromFormatV(format, args);

	va_end(args);
	if (what)
		PyErr_Format(class_of(st, code), path ? "'%U': %U" : "%Uthe state: %U", where, what);
	return -1;
}

const char *
py_article(PyObject *name)
{
	Py_UCS4 first = PyUnicode_GetLength(name) > 0 ? PyUnicode_ReadChar(name, 0) : 0;

	return first && first < 128 && strchr("aeiouAEIOU", (int)first) ? "an" : "a";
}

void
py_add_note(const struct py_path *path, const char *format, ...)
{
	PyObject *type, *value, *trace;
	va_list args;

	PyErr_Fetch(&type, &value, &trace);
	PyErr_NormalizeException(&type, &value, &trace);
	va_start(args, format);
	AUTO_REF text = PyUnicode_FromFormatV(format, args);
	AUTO_REF where = py_path_text(path);
	AUTO_REF note = text && where ? PyUnicode_FromFormat(path ? "at '%U': %U" : "%U%U", where, text) : NULL;

	va_end(args);
	if (note && value) {
		AUTO_REF done = PyObject_CallMethod(value, "add_note", "O", note);

		(void)done;
	}
	PyErr_Clear(); /* a note that fails must not hide the error */
	PyErr_Restore(type, value, trace);
}

int
py_wrap_at(struct py_state *st, const struct py_path *path, PyObject *obj)
{
	PyObject *type, *value, *trace;
	AUTO_REF type_name = NULL;
	AUTO_REF text = NULL;

	if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError) ||
	    PyErr_ExceptionMatches(st->errors[0]))
		return -1;
	PyErr_Fetch(&type, &value, &trace);
	PyErr_NormalizeException(&type, &value, &trace);
	if (trace)
		PyException_SetTraceback(value, trace);
	type_name = PyType_GetQualName(Py_TYPE(obj));
	text = PyObject_Str(value);
	if (type_name && text)
		py_raise_at(st, PAWL_EUNSUPPORTED, path, "%s %U cannot be held in a state: %U", py_article(type_name),
		            type_name, text);
	if (PyErr_ExceptionMatches(st->errors[0])) {
		PyObject *new_type, *new_value, *new_trace;

		PyErr_Fetch(&new_type, &new_value, &new_trace);
		PyErr_NormalizeException(&new_type, &new_value, &new_trace);
		Py_INCREF(value);
		PyException_SetCause(new_value, value);
		PyErr_Restore(new_type, new_value, new_trace);
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(trace);
	return -1;
}

static int
raise_again(void *value)
{
	AUTO_REF kind = PyObject_Type(value);

	PyErr_SetObject(kind, value);
	Py_DECREF((PyObject *)value);
	return -1;
}

bool
py_pass_on(void)
{
	PyObject *kind, *value, *trace;

	if (!py_os_is_main_thread() ||
	    (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) && !PyErr_ExceptionMatches(PyExc_SystemExit)))
		return false;
	PyErr_Fetch(&kind, &value, &trace);
	PyErr_NormalizeException(&kind, &value, &trace);
	if (Py_AddPendingCall(raise_again, Py_NewRef(value)) < 0)
		Py_DECREF(value);
	Py_XDECREF(kind);
	Py_XDECREF(value);
	Py_XDECREF(trace);
	return true;
}
