/* SPDX-License-Identifier: Apache-2.0 */
/* _pawl: the extension module: its state, and the functions that need no run. */
#include "py_tune.h"

#include <unistd.h>

static PyObject *
get_version(PyObject *module, PyObject *none)
{
	(void)module;
	(void)none;
	return PyUnicode_FromString(pawl_version());
}

static PyObject *
optimal_interval(PyObject *module, PyObject *args)
{
	static const char *const names[] = {"save_cost_seconds", "mtbf_seconds"};
	PyObject *given[2];
	double seconds[2];

	if (!PyArg_ParseTuple(args, "OO:optimal_interval", &given[0], &given[1]))
		return NULL;
	for (int i = 0; i < 2; i++) {
		if (py_read_seconds(given[i], &seconds[i]))
			continue;
		PyErr_Clear();
		return py_raise_received(PyModule_GetState(module), given[i],
		                         "%s must be a number of seconds, a timedelta or a text such as 5min",
		                         names[i]);
	}
	return PyFloat_FromDouble(pawl_optimal_interval_seconds(seconds[0], seconds[1]));
}

static PyObject *
interval_due(PyObject *module, PyObject *args)
{
	struct py_state *st = PyModule_GetState(module);
	struct pawl_progress last, now;
	struct pawl_error err = {0};
	PyObject *was, *is;
	const char *interval;
	int rc;

	if (!PyArg_ParseTuple(args, "sOO:interval_due", &interval, &was, &is) || py_progress(st, was, &last) < 0 ||
	    py_progress(st, is, &now) < 0)
		return NULL;
	rc = pawl_interval_due(interval, &last, &now, &err);
	return rc < 0 ? py_raise(st, rc, &err) : PyBool_FromLong(rc);
}

static PyObject *
arena_bytes(PyObject *module, PyObject *none)
{
	struct py_state *st = PyModule_GetState(module);

	(void)none;
	return PyLong_FromSize_t(st->arena ? pawl_arena_bytes(st->arena) : 0);
}

static PyObject *
get_stores(PyObject *module, PyObject *none)
{
	(void)module;
	(void)none;
	return PyLong_FromVoidPtr((void *)&py_stores);
}

static PyObject *
number_or_none(void *number)
{
	int32_t value = *(const int32_t *)number;

	return value < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(value);
}

/* Reads the environment of the C library, which os.environ updates. */
static PyObject *
rank_identify(PyObject *module, PyObject *none)
{
	struct pawl_rank r = PAWL_RANK_INIT;
	struct pawl_error err = {0};
	int rc = pawl_rank_identify(&r, &err);

	(void)none;
	if (rc < 0)
		return py_raise(PyModule_GetState(module), rc, &err);
	return Py_BuildValue("{s:i,s:i,s:O&,s:O&,s:O&,s:s,s:s}", "rank", (int)r.rank, "world_size", (int)r.world_size,
	                     "local_rank", number_or_none, &r.local_rank, "local_world_size", number_or_none,
	                     &r.local_world_size, "node_rank", number_or_none, &r.node_rank, "launcher", r.launcher,
	                     "attempt", r.attempt);
}

static PyObject *
url_schemes(PyObject *module, PyObject *none)
{
	PyObject *list = PyList_New(0);

	(void)module, (void)none;
	for (size_t i = 0; list && pawl_url_scheme(i); i++) {
		PyObject *scheme = PyUnicode_FromString(pawl_url_scheme(i));

		if (!scheme || PyList_Append(list, scheme) < 0)
			Py_CLEAR(list);
		Py_XDECREF(scheme);
	}
	return list;
}

/* Sets the type pawl.Shard, which registers itself here. */
static PyObject *
set_shard(PyObject *module, PyObject *type)
{
	struct py_state *st = PyModule_GetState(module);

	py_set(&st->shard, Py_NewRef(type));
	return Py_NewRef(type);
}

/* Sets the type pawl.PerRank, which registers itself here. */
static PyObject *
set_per_rank(PyObject *module, PyObject *type)
{
	struct py_state *st = PyModule_GetState(module);

	py_set(&st->per_rank, Py_NewRef(type));
	return Py_NewRef(type);
}

/* Walks a state and discards the result: a value that could not be saved raises here. Returns the
 * number of tensors. */
static PyObject *
check_state(PyObject *module, PyObject *state)
{
	struct py_state *st = PyModule_GetState(module);
	struct py_walk walk;
	size_t n;

	TRY_NULL(py_walk_begin(&walk, st, state, false, NULL));
	n = pawl_state_tensor_count(walk.state);
	py_walk_end(&walk);
	return PyLong_FromSize_t(n);
}

static PyObject *
parse_seconds(PyObject *module, PyObject *text)
{
	const char *utf8 = PyUnicode_AsUTF8AndSize(text, NULL);
	struct pawl_error err = {0};
	double seconds;

	if (!utf8)
		return NULL;
	int rc = pawl_parse_seconds(utf8, &seconds, &err);
	return rc < 0 ? py_raise(PyModule_GetState(module), rc, &err) : PyFloat_FromDouble(seconds);
}

static PyObject *
parse_bytes(PyObject *module, PyObject *text)
{
	const char *utf8 = PyUnicode_AsUTF8AndSize(text, NULL);
	struct pawl_error err = {0};
	uint64_t nbytes;

	if (!utf8)
		return NULL;
	int rc = pawl_parse_bytes(utf8, &nbytes, &err);
	return rc < 0 ? py_raise(PyModule_GetState(module), rc, &err) : PyLong_FromUnsignedLongLong(nbytes);
}

static PyMethodDef functions[] = {
	{"version", get_version, METH_NOARGS,
         "The version of the library.\n\nReturns:\n    Numbers with dots, as text."},
	{"url_schemes", url_schemes, METH_NOARGS, "Schemes of the URLs that pawl opens itself."},
	{"optimal_interval", optimal_interval, METH_VARARGS,
         "The interval between saves that wastes the least time (Young, Daly).\n\nArgs:\n"
         "    save_cost_seconds: How long a save holds the training, a duration.\n"
         "    mtbf_seconds: Mean time between failures, a duration.\n\nReturns:\n    Seconds."},
	{"interval_due", interval_due, METH_VARARGS,
         "Is a save due by a time string between two points of a training run?"},
	{"parse_seconds", parse_seconds, METH_O, "A time as text, in seconds."},
	{"parse_bytes", parse_bytes, METH_O, "A size as text, in bytes."},
	{"arena_bytes", arena_bytes, METH_NOARGS, "Staging memory held by this process."},
	{"stores", get_stores, METH_NOARGS, "Address of the struct pawl_stores that runs are opened with."},
	{"rank_identify", rank_identify, METH_NOARGS, "Which process of a job this is."},
	{"set_shard", set_shard, METH_O, "Register the type of shards."},
	{"set_per_rank", set_per_rank, METH_O, "Register the type of values per rank."},
	{"check_state", check_state, METH_O, "Walk a state without saving it."},
	{"saver_find", py_saver_find, METH_VARARGS, "Find a checkpoint file to load."},
	{"path_matches", py_path_matches, METH_VARARGS, "Does a path match a glob?"},
	{"no_numbers", py_no_numbers, METH_O, "Names of the metrics that are not numbers."},
	{"tune_spec_check", py_tune_spec_check, METH_VARARGS, "(canonical document, number of trials)"},
	{"tune_spec_config", py_tune_spec_config, METH_VARARGS, "The configuration of one of its trials."},
	{"clone_folder", py_clone_folder, METH_VARARGS, "A folder again in the store that it is in."},
	{"hide_secrets", py_hide_secrets, METH_O, "A text of others, with stars over what looks like a secret."},
	{"doctor", py_doctor, METH_VARARGS, "What a place can do: {what: found}."},
	{"kind_of", py_kind_of, METH_VARARGS,
         "What is at a place: 0 = nothing, 1 = a run, 2 = a checkpoint, 3 = else."},
	{"explain_address", py_explain_address, METH_O, "Raises why nothing could be opened at an address."},
	{"split_address", py_split_address, METH_O, "RUN@SELECTOR as (RUN, SELECTOR)."},
	{"tune_leftovers", py_tune_leftovers, METH_VARARGS, "What a sync of an experiment begins with."},
	{"tune_leftovers_after", py_tune_leftovers_after, METH_O, "Folders that may go at its place."},
	{"exchange", py_tune_exchange, METH_VARARGS, "Two folders, into each other's place."},
	{NULL, NULL, 0, NULL},
};

static int
intern_strings(struct py_state *st)
{
#define INTERN(n)                                        \
	if (!(st->s.n = PyUnicode_InternFromString(#n))) \
		return -1;
	PY_STRINGS(INTERN)
#undef INTERN
	return 0;
}

static int
add_numbers(PyObject *module)
{
	static const struct {
		const char *name;
		int value;
	} numbers[] = {
		{"KEEP_MEMORY", PAWL_KEEP_MEMORY},
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		TRY(PyModule_AddIntConstant(module, numbers[i].name, numbers[i].value));
	return 0;
}

static int
module_exec(PyObject *module)
{
	struct py_state *st = PyModule_GetState(module);
	AUTO_REF collections = PyImport_ImportModule("collections");

	if (!collections)
		return -1;
	st->ordered_dict = PyObject_GetAttrString(collections, "OrderedDict");
	if (!st->ordered_dict || intern_strings(st) < 0 || py_errors_init(module, st) < 0 ||
	    py_run_init(module, st) < 0 || py_ticket_init(module, st) < 0 || py_hold_init(module, st) < 0 ||
	    py_sync_init(module) < 0 || py_files_init(module) < 0 || py_saver_init(module) < 0 ||
	    py_tune_init(module, st) < 0 || py_tune_run_init(module) < 0)
		return -1;
	return add_numbers(module);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
	struct py_state *st = PyModule_GetState(module);

	for (int i = 0; i < PY_N_CODES; i++)
		Py_VISIT(st->errors[i]);
	Py_VISIT(st->run_type);
	Py_VISIT(st->ticket_type);
	Py_VISIT(st->hold_type);
	Py_VISIT(st->watch_type);
	Py_VISIT(st->experiment_type);
	Py_VISIT(st->ordered_dict);
	Py_VISIT(st->shard);
	Py_VISIT(st->per_rank);
	return py_frames_traverse(st, visit, arg);
}

static int
module_clear(PyObject *module)
{
	struct py_state *st = PyModule_GetState(module);

	for (int i = 0; i < PY_N_CODES; i++)
		Py_CLEAR(st->errors[i]);
	Py_CLEAR(st->run_type);
	Py_CLEAR(st->ticket_type);
	Py_CLEAR(st->hold_type);
	Py_CLEAR(st->watch_type);
	Py_CLEAR(st->experiment_type);
	Py_CLEAR(st->ordered_dict);
	Py_CLEAR(st->shard);
	Py_CLEAR(st->per_rank);
	py_frames_clear(st);
	return 0;
}

/* A run keeps its type alive, and the type keeps the module alive. When the module is freed, no run
 * uses the arena any more. */
static void
module_free(void *module)
{
	struct py_state *st = PyModule_GetState(module);

	if (!st)
		return;
	module_clear(module);
#define DROP(n) Py_CLEAR(st->s.n);
	PY_STRINGS(DROP)
#undef DROP
	if (st->arena_pid == getpid())
		pawl_arena_free(st->arena);
	st->arena = NULL;
}

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, module_exec},
	{0, NULL},
};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "pawl._pawl",
	.m_doc = "The library behind pawl.",
	.m_size = sizeof(struct py_state),
	.m_methods = functions,
	.m_slots = slots,
	.m_traverse = module_traverse,
	.m_clear = module_clear,
	.m_free = module_free,
};

PyMODINIT_FUNC PyInit__pawl(void);

PyMODINIT_FUNC
PyInit__pawl(void)
{
	return PyModuleDef_Init(&definition);
}
