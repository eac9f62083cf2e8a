/* SPDX-License-Identifier: Apache-2.0 */
/* py_problems: the errors about values that cannot be saved, and about a saved and a live state
 * that do not fit. */
#include "py.h"

#include <string.h>

#define SHOWN_PROBLEMS 10 /* in an error; the report of restore(strict=False) has all */

/* ---- saving */

int
py_walk_note_refused(struct py_walk *w, const struct py_path *path)
{
	if (!PyErr_ExceptionMatches(w->st->errors[-PAWL_EUNSUPPORTED]))
		return -1;
	if (w->error[0]) {
		PyErr_Clear();
		AUTO_REF text = py_path_text(path);

		if (!text || PyList_Append(w->refused, text) < 0)
			return -1;
	} else {
		PyErr_Fetch(&w->error[0], &w->error[1], &w->error[2]);
		w->refused = PyList_New(0);
		if (!w->refused)
			return -1;
	}
	return 0;
}

int
py_walk_raise_refused(struct py_walk *w)
{
	const Py_ssize_t n = PyList_Size(w->refused);
	AUTO_REF table = n > 0 ? PyImport_ImportModule("pawl._names") : NULL;
	AUTO_REF paths = table ? PyObject_CallMethod(table, "listed", "O", w->refused) : NULL;

	if (paths) {
		PyErr_NormalizeException(&w->error[0], &w->error[1], &w->error[2]);
		py_raise_text(w->st, PAWL_EUNSUPPORTED, "%S; %zd more cannot be saved: %U", w->error[1], n, paths);
	} else if (n == 0) {
		py_raise_kept(w->error);
	}
	return -1;
}

/* ---- restoring */

/* Appends the paths of all leaves below a node. */
static int
list_paths(const struct pawl_node *node, const struct py_path *path, PyObject *paths)
{
	Py_ssize_t index = 0;

	if (!pawl_node_first(node)) {
		AUTO_REF text = py_path_text(path);

		return text ? PyList_Append(paths, text) : -1;
	}
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child), index++) {
		AUTO_REF key = pawl_node_key(child) ? py_scalar_object(pawl_node_key(child)) : NULL;
		struct py_path here = {.up = path, .key = key, .index = index};

		if (PyErr_Occurred() || list_paths(child, &here, paths) < 0)
			return -1;
	}
	return 0;
}

int
py_problem_glob(struct py_restore *r, const char *glob)
{
	AUTO_REF paths = PyList_New(0);

	if (!paths || list_paths(pawl_state_root(r->saved), NULL, paths) < 0)
		return -1;

	AUTO_REF table = PyImport_ImportModule("pawl._names");
	AUTO_REF near = table ? PyObject_CallMethod(table, "nearest", "sO", glob, paths) : NULL;
	AUTO_REF row = near ? PyUnicode_FromFormat("missing: no saved path matches '%s'%U", glob, near) : NULL;

	return row ? PyList_Append(r->problems, row) : -1;
}

/* The differences in one text. Of a long list the first and the last, which are of other kinds. */
static PyObject *
problems_text(PyObject *problems)
{
	const Py_ssize_t n = PyList_Size(problems), ends = SHOWN_PROBLEMS / 2;
	AUTO_REF semicolon = PyUnicode_FromString("; ");
	AUTO_REF shown = PyList_GetSlice(problems, 0, n > SHOWN_PROBLEMS ? ends : n);

	if (n > SHOWN_PROBLEMS && shown) {
		AUTO_REF more = PyUnicode_FromFormat("... %zd more ...", n - 2 * ends);
		AUTO_REF rest = PyList_GetSlice(problems, n - ends, n);

		if (!more || !rest || PyList_Append(shown, more) < 0 ||
		    PyList_SetSlice(shown, ends + 1, ends + 1, rest) < 0)
			return NULL;
	}
	return semicolon && shown ? PyUnicode_Join(semicolon, shown) : NULL;
}

/* 1 = one of the differences is of this kind. */
static int
has_problem(PyObject *problems, const char *kind)
{
	for (Py_ssize_t i = 0; i < PyList_Size(problems); i++) {
		const char *row = PyUnicode_AsUTF8AndSize(PyList_GetItem(problems, i), NULL);

		if (!row)
			return -1;
		if (strncmp(row, kind, strlen(kind)) == 0)
			return 1;
	}
	return 0;
}

/* What the caller can write when tensors differ. In the message, because logs omit notes. */
static const char *
way_out(int shape, int dtype)
{
	if (shape && dtype)
		return "; cast= converts floats, strict=False leaves such tensors as they are and restores the rest";
	if (shape)
		return "; strict=False leaves such tensors as they are and restores the rest";
	return dtype ? "; cast=\"float32\" converts floats, cast={\"model/*\": \"float32\"} some of them" : "";
}

int
py_check_problems(struct py_restore *r)
{
	Py_ssize_t n = PyList_Size(r->problems);

	if (n == 0 || r->opts->non_strict)
		return 0;
	AUTO_REF text = problems_text(r->problems);
	int shape = has_problem(r->problems, "shape: "), dtype = has_problem(r->problems, "dtype: ");

	if (!text || shape < 0 || dtype < 0)
		return -1;
	PyErr_Format(r->st->errors[-PAWL_EMISMATCH], "%s does not fit the state, %zd difference%s: %U%s",
	             pawl_restore_info(r->handle)->name, n, n == 1 ? "" : "s", text, way_out(shape, dtype));
	py_add_note(NULL,
	            "rename=[(\"old/*\", \"new/*\")] maps names, cast=\"float32\" converts floats, paths= selects "
	            "what to restore, and strict=False restores what fits; a tensor of another shape is never cut");
	return -1;
}
