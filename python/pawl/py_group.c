/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of workers: what pawl_group_* decides, for pawl.train. Rows of numbers in, words out. */
#include "py.h"

#define TEXT 2048

/* Rows of a list, each (reports, has ended, silent_ms, still_ms); NULL with an error set. PyMem_Free them. */
static struct pawl_group_worker *
take_workers(PyObject *list, size_t *ret_n)
{
	Py_ssize_t n = PyList_Size(list);
	struct pawl_group_worker *rows = n < 0 ? NULL : PyMem_Calloc((size_t)n + 1, sizeof(*rows));

	for (Py_ssize_t i = 0; rows && i < n; i++) {
		unsigned long long reports;
		long long silent, still;

		if (!PyArg_ParseTuple(PyList_GetItem(list, i), "KpLL", &reports, &rows[i].has_ended, &silent, &still)) {
			PyMem_Free(rows);
			return NULL;
		}
		rows[i].n_reports = reports;
		rows[i].silent_ms = silent;
		rows[i].still_ms = still;
	}
	if (!rows && !PyErr_Occurred())
		PyErr_NoMemory();
	*ret_n = (size_t)n;
	return rows;
}

PyObject *
py_group_look(PyObject *module, PyObject *args)
{
	struct pawl_group_limits limits = PAWL_GROUP_LIMITS_INIT;
	long long silent, still;
	char text[TEXT];
	PyObject *list;
	int32_t rank;
	size_t n;

	(void)module;
	if (!PyArg_ParseTuple(args, "OLL", &list, &silent, &still))
		return NULL;
	struct pawl_group_worker *rows = take_workers(list, &n);
	if (!rows)
		return NULL;
	limits.silent_ms = silent;
	limits.still_ms = still;
	int found = (int)pawl_group_look(rows, n, &limits, &rank, text, sizeof(text));

	PyMem_Free(rows);
	return Py_BuildValue("iis", found, (int)rank, text);
}

PyObject *
py_group_late(PyObject *module, PyObject *args)
{
	unsigned long long report;
	char text[TEXT];
	PyObject *list;
	size_t n;

	(void)module;
	if (!PyArg_ParseTuple(args, "OK", &list, &report))
		return NULL;
	struct pawl_group_worker *rows = take_workers(list, &n);
	if (!rows)
		return NULL;
	pawl_group_late(rows, n, report, text, sizeof(text));
	PyMem_Free(rows);
	return PyUnicode_FromString(text);
}

PyObject *
py_group_again(PyObject *module, PyObject *args)
{
	unsigned long long n_failures;
	long long most;
	int end;

	(void)module;
	if (!PyArg_ParseTuple(args, "iKL", &end, &n_failures, &most))
		return NULL;
	return PyBool_FromLong(pawl_group_again((enum pawl_group_end)end, n_failures, most));
}

/* Files as (rank, name, bytes, sum); words, or None. */
PyObject *
py_group_clash(PyObject *module, PyObject *list)
{
	struct py_state *st = PyModule_GetState(module);
	Py_ssize_t n = PyList_Size(list);
	struct pawl_group_file *files = n < 0 ? NULL : PyMem_Calloc((size_t)n + 1, sizeof(*files));
	struct pawl_error err = {0};
	char text[TEXT];

	if (!files)
		return n < 0 ? NULL : PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < n; i++) {
		unsigned long long nbytes, sum;
		int rank;

		if (!PyArg_ParseTuple(PyList_GetItem(list, i), "isKK", &rank, &files[i].name, &nbytes, &sum)) {
			PyMem_Free(files);
			return NULL;
		}
		files[i].rank = rank;
		files[i].nbytes = nbytes;
		files[i].sum = sum;
	}
	int rc = pawl_group_clash(files, (size_t)n, text, sizeof(text), &err);

	PyMem_Free(files);
	if (rc < 0)
		return py_raise(st, rc, &err);
	return rc ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
}
