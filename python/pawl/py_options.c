/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_options: converts the arguments of Run() to those of pawl_open; opens nothing.
 * CheckpointManager defines the public options, their defaults and their checks.
 */
#include "py.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_SECONDS 1e9 /* 31 years; fits as milliseconds in each option */

static int
to_size(PyObject *obj, void *ret)
{
	unsigned long long value = PyLong_AsUnsignedLongLong(obj);

	if (value == (unsigned long long)-1 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_OverflowError))
			PyErr_Format(PyExc_ValueError, "expected a whole number of 0 or more, found %R", obj);
		return 0;
	}
	*(uint64_t *)ret = value;
	return 1;
}

static int
read_scores(struct py_state *st, PyObject *names, PyObject *orders, struct py_options *ret)
{
	struct pawl_retention *retention = &ret->opts.retention;
	Py_ssize_t n = names ? PyTuple_Size(names) : 0;

	if (n == 0)
		return PyErr_Occurred() ? -1 : 0;
	if (n > PY_MAX_SCORES) {
		py_raise_text(st, PAWL_ELIMIT, "%zd score attributes, at most %d are possible", n, PY_MAX_SCORES);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		ret->score_names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), NULL);
		ret->score_orders[i] = orders ? (int)PyLong_AsLong(PyTuple_GetItem(orders, i)) : 1;
		if (!ret->score_names[i] || PyErr_Occurred())
			return -1;
	}
	retention->score_attributes = ret->score_names;
	retention->score_orders = ret->score_orders;
	retention->n_scores = (size_t)n;
	return 0;
}

/* The arena of the module, created by the first run that needs it. A child of fork() creates its
 * own: its parent's locks may have been copied while they were locked. */
int
py_shared_arena(struct py_state *st, struct pawl_arena **ret)
{
	struct pawl_error err = {0};
	int rc = 0;

	if (!st->arena || st->arena_pid != getpid())
		rc = pawl_arena_new(0, &st->arena, &err);
	if (rc < 0) {
		py_raise(st, rc, &err);
		return -1;
	}
	st->arena_pid = getpid();
	*ret = st->arena;
	return 0;
}

static int
arm_fault(struct py_state *st, PyObject *tuple, struct pawl_fault **ret)
{
	struct pawl_error err = {0};
	const char *operation;
	uint64_t nth;
	int code, forever, rc;

	if (tuple == Py_None)
		return 0;
	if (!PyArg_ParseTuple(tuple, "sO&ip:fault", &operation, to_size, &nth, &code, &forever))
		return -1;
	rc = pawl_fault_new(operation, nth, code, forever, ret, &err);
	if (rc < 0)
		py_raise(st, rc, &err);
	return rc < 0 ? -1 : 0;
}

/* Copies the type and the message of the current exception, which stays raised. */
static void
put_exception(char *text, size_t cap, const char *what)
{
	PyObject *kind, *value, *trace;

	PyErr_Fetch(&kind, &value, &trace);
	AUTO_REF shown = value ? PyObject_Str(value) : NULL;
	const char *words = shown ? PyUnicode_AsUTF8AndSize(shown, NULL) : NULL;
	AUTO_REF name = kind ? PyObject_GetAttrString(kind, "__name__") : NULL;
	const char *type = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;

	PyErr_Clear();
	snprintf(text, cap, "%s has raised %.100s%s%.400s", what, type ? type : "an exception",
	         words && *words ? ": " : "", words ? words : "");
	PyErr_Restore(kind, value, trace);
}

/* Calls the caller's function with bytes; with root, also with a bytearray and the rank whose bytes
 * are valid. The memory belongs to Python, so the function may keep it. It returns bytes, or None
 * if it has filled the bytearray. */
static int
call_broadcast(PyObject *function, const uint32_t *root, void *bytes, size_t nbytes, struct pawl_error *err)
{
	AUTO_REF given = root ? PyByteArray_FromStringAndSize(bytes, (Py_ssize_t)nbytes)
	                      : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)nbytes);
	AUTO_REF rank = root ? PyLong_FromUnsignedLong(*root) : NULL;
	AUTO_REF answer = given ? PyObject_CallFunctionObjArgs(function, given, rank, NULL) : NULL;
	PyObject *from = root && answer == Py_None ? given : answer;
	bool good = false;
	Py_buffer view;

	if (from && PyObject_GetBuffer(from, &view, PyBUF_SIMPLE) == 0) {
		good = (size_t)view.len == nbytes;
		if (good)
			memcpy(bytes, view.buf, nbytes);
		PyBuffer_Release(&view);
	}
	if (good)
		return 0;
	if (answer)
		snprintf(err->message, sizeof(err->message),
		         "the broadcast function did not return bytes of the same length");
	else
		put_exception(err->message, sizeof(err->message), "the broadcast function");
	if (PyErr_Occurred() && !py_pass_on())
		PyErr_WriteUnraisable(function);
	return err->code = PAWL_EUSAGE;
}

/* Both run inside a call of the library, on the thread that released the GIL for it. */
static int
broadcast_bytes(void *arg, void *bytes, size_t nbytes, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct pawl_error own = {0};
	int rc = call_broadcast(arg, NULL, bytes, nbytes, err ? err : &own);

	PyGILState_Release(gil);
	return rc;
}

int
py_broadcast_from(void *arg, uint32_t root, void *bytes, size_t nbytes, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct pawl_error own = {0};
	int rc = call_broadcast(arg, &root, bytes, nbytes, err ? err : &own);

	PyGILState_Release(gil);
	return rc;
}

/* Calls the caller's function on the first call, and signal handlers on each. An exception of
 * either ends the wait. It is kept for run_new, since the library may call Python before it
 * returns. */
static int
report_lease_wait(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct py_options *o = arg;
	bool fails = false;

	if (waited_ms == 0 && o->on_lease_wait != Py_None) {
		AUTO_REF answer = PyObject_CallFunction(o->on_lease_wait, "s", why);

		fails = !answer;
	}
	fails = fails || PyErr_CheckSignals() < 0;
	if (fails)
		PyErr_Fetch(&o->raised[0], &o->raised[1], &o->raised[2]);
	PyGILState_Release(gil);
	if (fails && err)
		*err = (struct pawl_error){.code = PAWL_ECANCELLED,
		                           .message = "the wait for the lease was interrupted"};
	return fails ? PAWL_ECANCELLED : 0;
}

/* ---- a rule of the caller ---- */

static PyObject *
make_candidate(const struct pawl_candidate *c)
{
	AUTO_REF metrics = PyDict_New();

	for (size_t i = 0; metrics && i < c->n_metrics; i++) {
		AUTO_REF value = PyFloat_FromDouble(c->metrics[i].value);
		if (!value || PyDict_SetItemString(metrics, c->metrics[i].name, value) < 0)
			return NULL;
	}
	return metrics ? Py_BuildValue("(KLdKOii)", (unsigned long long)c->id, (long long)c->step, c->unix_seconds,
	                               (unsigned long long)c->bytes, metrics, c->pinned, c->nonfinite)
	               : NULL;
}

/* Calls function([(id, step, ...), ...]), which returns one truth value for each. */
static int
call_rule(PyObject *function, const struct pawl_candidate *candidates, size_t n, unsigned char *keep)
{
	AUTO_REF list = PyList_New(0);

	for (size_t i = 0; list && i < n; i++) {
		AUTO_REF one = make_candidate(&candidates[i]);
		if (!one || PyList_Append(list, one) < 0)
			return -1;
	}
	AUTO_REF answer = list ? PyObject_CallFunctionObjArgs(function, list, NULL) : NULL;

	if (!answer || PyList_Size(answer) != (Py_ssize_t)n)
		return -1;
	for (size_t i = 0; i < n; i++) {
		const int truth = PyObject_IsTrue(PyList_GetItem(answer, (Py_ssize_t)i));
		if (truth < 0)
			return -1;
		keep[i] = truth > 0;
	}
	return 0;
}

static int
py_keep(void *arg, const struct pawl_candidate *candidates, size_t n, unsigned char *keep, struct pawl_error *err)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	int rc = call_rule(arg, candidates, n, keep);

	if (rc < 0) {
		struct pawl_error own = {.code = PAWL_EUSAGE};
		put_exception(own.message, sizeof(own.message), "the rule of retention");
		if (err)
			*err = own;
		if (!py_pass_on())
			PyErr_Clear();
	}
	PyGILState_Release(gil);
	return rc < 0 ? PAWL_EUSAGE : 0;
}

/* ---- the table of options ---- */

static int
refuse_value(struct py_state *st, const char *name, const char *expected, PyObject *value)
{
	if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
	    !PyErr_ExceptionMatches(PyExc_OverflowError) && !PyErr_ExceptionMatches(PyExc_ValueError))
		return -1;
	PyErr_Clear();
	py_raise_received(st, value, "%s must be %s", name, expected);
	return -1;
}

/* The index of a word in a choice; -1: not found. */
static int
find_choice(const char *choices, const char *word)
{
	size_t len = strlen(word);

	for (int i = 0; *choices; i++) {
		size_t n = strcspn(choices, " ");
		if (n == len && memcmp(choices, word, n) == 0)
			return i;
		choices += n + (choices[n] == ' ');
	}
	return -1;
}

/* A whole number of Python, also one of another type (NumPy's). A size may be a text or 1e9. */
static int
read_whole(const struct pawl_option *row, PyObject *value, unsigned long long *ret)
{
	uint64_t nbytes = 0;

	if (row->type == PAWL_OPTION_BYTES && PyUnicode_Check(value)) {
		const char *text = PyUnicode_AsUTF8AndSize(value, NULL);
		if (!text || pawl_parse_bytes(text, &nbytes, NULL) < 0)
			return -1;
		*ret = nbytes;
		return 0;
	}
	const bool is_float = row->type == PAWL_OPTION_BYTES && PyFloat_Check(value);

	if (is_float && PyFloat_AsDouble(value) != floor(PyFloat_AsDouble(value)))
		return -1;
	AUTO_REF whole = PyBool_Check(value) ? NULL : is_float ? PyNumber_Long(value) : PyNumber_Index(value);

	*ret = whole ? PyLong_AsUnsignedLongLong(whole) : 0;
	return !whole || PyErr_Occurred() ? -1 : 0;
}

static int
set_whole(struct py_state *st, const struct pawl_option *row, PyObject *value, void *field)
{
	const bool is_signed = row->type == PAWL_OPTION_INT;
	const unsigned long long top = row->width == 4 ? (is_signed ? INT32_MAX : UINT32_MAX)
	                               : is_signed     ? INT64_MAX
	                                               : UINT64_MAX;
	const bool memory = is_signed && PyLong_Check(value) && PyLong_AsLongLong(value) == PAWL_KEEP_MEMORY;
	unsigned long long found = 0;

	PyErr_Clear();
	if (!memory && (read_whole(row, value, &found) < 0 || found > top))
		return refuse_value(st, row->name,
		                    row->type == PAWL_OPTION_BYTES
		                            ? "a size of 0 or more: a number of bytes or a text such as 500MB"
		                    : row->width == 4 ? "a whole number of 0 to 2**32"
		                                      : "a whole number of 0 or more",
		                    value);
	if (row->width == 4)
		*(uint32_t *)field = memory ? (uint32_t)PAWL_KEEP_MEMORY : (uint32_t)found;
	else
		*(uint64_t *)field = memory ? (uint64_t)PAWL_KEEP_MEMORY : found;
	return 0;
}

/* In Python, durations are numbers of seconds or texts. timeouts.lease_wait_ms may be -1 ms. */
static int
set_seconds(struct py_state *st, const struct pawl_option *row, PyObject *value, void *field)
{
	const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
	const bool never = row->type == PAWL_OPTION_MS && row->low < 0;
	double seconds = 0;
	bool good = text ? pawl_parse_seconds(text, &seconds, NULL) == 0 : !PyBool_Check(value);

	if (good && !text)
		seconds = PyFloat_AsDouble(value);
	if (!good || PyErr_Occurred() || !(seconds >= 0 || (never && seconds == -0.001)))
		return refuse_value(
			st, row->name,
			"a time: a number of seconds of 0 or more, a timedelta or a text such as 90s or 5min", value);
	if (seconds > LONGEST_SECONDS)
		seconds = LONGEST_SECONDS;
	if (row->type == PAWL_OPTION_MS)
		*(int64_t *)field = (int64_t)(seconds * 1000);
	else
		*(double *)field = seconds;
	return 0;
}

/* "wait", "skip" or "replace" */
static int
set_choice(struct py_state *st, const struct pawl_option *row, PyObject *value, int *field)
{
	const char *word = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
	char expected[120] = "";

	*field = word ? find_choice(row->choices, word) : -1;
	if (*field >= 0)
		return 0;
	for (const char *at = row->choices; *at;) {
		const size_t n = strcspn(at, " "), len = strlen(expected);
		snprintf(expected + len, sizeof expected - len, "%s\"%.*s\"", len ? " or " : "", (int)n, at);
		at += n + (at[n] == ' ');
	}
	return refuse_value(st, row->name, expected, value);
}

static int
set_row(struct py_state *st, const struct pawl_option *row, PyObject *value, void *field)
{
	switch (row->type) {
	case PAWL_OPTION_FLAG:
		*(int *)field = PyObject_IsTrue(value);
		return *(int *)field < 0 ? -1 : 0;
	case PAWL_OPTION_CHOICE:
		return set_choice(st, row, value, field);
	case PAWL_OPTION_MS:
	case PAWL_OPTION_SECONDS:
		return set_seconds(st, row, value, field);
	case PAWL_OPTION_TEXT:
		*(const char **)field = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
		return *(const char **)field ? 0 : refuse_value(st, row->name, "a text", value);
	default:
		return set_whole(st, row, value, field);
	}
}

/* Options that the library takes in a form specific to C. 1 = done, 0 = unknown option. */
static int
set_other(struct py_state *st, struct py_options *o, const char *name, PyObject *value)
{
	static const struct {
		const char *name;
		size_t offset;
	} numbers[] = {
		{"ranks.rank", offsetof(struct pawl_rank, rank)},
		{"ranks.world_size", offsetof(struct pawl_rank, world_size)},
		{"ranks.local_world_size", offsetof(struct pawl_rank, local_world_size)},
		{"ranks.node_rank", offsetof(struct pawl_rank, node_rank)},
	};
	const struct {
		const char *name;
		PyObject **ret;
	} objects[] = {
		{"retention.score_attributes", &o->score_attributes},
		{"retention.score_orders", &o->orders},
		{"on_lease_wait", &o->on_lease_wait},
		{"ranks.broadcast", &o->broadcast},
		{"retention.keep", &o->keep},
		{"mirrors", &o->mirrors},
		{"io.fault", &o->fault},
	};

	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		if (strcmp(name, numbers[i].name) == 0) {
			const long found = PyLong_AsLong(value);
			if (PyErr_Occurred() || found < -1 || found > INT32_MAX)
				return refuse_value(st, name, "a whole number below 2**31", value);
			*(int32_t *)((char *)&o->rank + numbers[i].offset) = (int32_t)found;
			return 1;
		}
	for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
		if (strcmp(name, objects[i].name) == 0) {
			*objects[i].ret = value;
			return 1;
		}
	if (strcmp(name, "ranks.attempt") != 0)
		return 0;
	o->attempt = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
	return o->attempt ? 1 : refuse_value(st, name, "a text", value);
}

static int
set_option(struct py_state *st, struct py_options *o, const char *name, PyObject *value)
{
	if (value == Py_None)
		return 0;
	int rc = set_other(st, o, name, value);
	if (rc != 0)
		return rc < 0 ? -1 : 0;
	for (size_t i = 0; pawl_option_get(i); i++) {
		const struct pawl_option *row = pawl_option_get(i);
		if (strcmp(row->name, name) == 0 && row->type != PAWL_OPTION_CALLER)
			return set_row(st, row, value, (char *)&o->opts + row->offset);
	}
	PyErr_Format(PyExc_TypeError, "Run() has no option '%s'", name);
	return -1;
}

/* Run(root, **options): options by their names in the table, such as "staging.ring_bytes"; None =
 * the default. */
static int
read_words(struct py_state *st, struct py_options *o, PyObject *args, PyObject *kwargs)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;

	if (!PyArg_ParseTuple(args, "s:Run", &o->opts.root))
		return -1;
	while (kwargs && PyDict_Next(kwargs, &at, &key, &value)) {
		const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
		if (!name || set_option(st, o, name, value) < 0)
			return -1;
	}
	return 0;
}

/* Reads the rules of a mirror by their names, such as "keep_last". */
static int
read_rules(struct py_state *st, struct py_options *o, PyObject *rules, struct pawl_retention *k)
{
	static const char prefix[] = "retention.";
	const size_t base = offsetof(struct pawl_open_opts, retention);
	PyObject *key, *value;
	Py_ssize_t at = 0;

	*k = (struct pawl_retention)PAWL_RETENTION_INIT;
	k->score_attributes = o->opts.retention.score_attributes;
	k->score_orders = o->opts.retention.score_orders;
	k->n_scores = o->opts.retention.n_scores;
	while (PyDict_Next(rules, &at, &key, &value)) {
		const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
		for (size_t i = 0; name && pawl_option_get(i); i++) {
			const struct pawl_option *row = pawl_option_get(i);
			if (strncmp(row->name, prefix, strlen(prefix)) == 0 && strcmp(row->name, name) == 0 &&
			    set_row(st, row, value, (char *)k + (row->offset - base)) < 0)
				return -1;
		}
	}
	return PyErr_Occurred() ? -1 : 0;
}

/* Each mirror is (url, every or None, rules or None). */
static int
read_mirrors(struct py_state *st, struct py_options *o)
{
	Py_ssize_t n = o->mirrors ? PyTuple_Size(o->mirrors) : 0;

	if (n < 0)
		return -1;
	if (n > PY_MAX_MIRRORS) {
		py_raise_text(st, PAWL_ELIMIT, "%zd mirrors, at most %d are possible", n, PY_MAX_MIRRORS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *rules;
		if (!PyArg_ParseTuple(PyTuple_GetItem(o->mirrors, i), "szO:mirror", &o->mirror_list[i].url,
		                      &o->mirror_list[i].every, &rules))
			return -1;
		if (rules == Py_None)
			continue;
		TRY(read_rules(st, o, rules, &o->mirror_rules[i]));
		o->mirror_list[i].retention = &o->mirror_rules[i];
	}
	o->opts.mirrors = n ? o->mirror_list : NULL;
	o->opts.n_mirrors = (size_t)n;
	return 0;
}

int
py_options_read(struct py_options *o, struct py_state *st, PyObject *args, PyObject *kwargs)
{
	*o = (struct py_options){
		.opts = PAWL_OPEN_OPTS_INIT, .fault = Py_None, .broadcast = Py_None, .on_lease_wait = Py_None};
	o->rank = (struct pawl_rank)PAWL_RANK_INIT;
	o->rank.world_size = 1;
	o->rank.local_world_size = o->rank.node_rank = -1;
	TRY(read_words(st, o, args, kwargs));
	TRY(read_scores(st, o->score_attributes, o->orders, o));
	TRY(read_mirrors(st, o));
	o->opts.on_lease_wait = report_lease_wait;
	o->opts.on_lease_wait_arg = o;
	return o->opts.read_only ? 0 : py_shared_arena(st, &o->opts.staging.arena);
}

int
py_options_keep(struct py_options *o, struct py_state *st, struct py_run *self)
{
	TRY(arm_fault(st, o->fault, &self->fault));
	o->opts.io.fault = self->fault;
	o->opts.io.stores = &py_stores;
	if (o->attempt)
		snprintf(o->rank.attempt, sizeof(o->rank.attempt), "%s", o->attempt);
	o->opts.ranks.self = &o->rank;
	if (o->broadcast != Py_None) {
		self->broadcast = Py_NewRef(o->broadcast);
		o->opts.ranks.broadcast = broadcast_bytes;
		o->opts.ranks.broadcast_arg = self->broadcast;
	}
	if (o->keep) {
		self->keep = Py_NewRef(o->keep);
		o->opts.retention.keep = py_keep;
		o->opts.retention.keep_arg = self->keep;
	}
	return 0;
}
