/* SPDX-License-Identifier: Apache-2.0 */
/* py_save: the methods save and prepare of Run, and reading mappings: progress counters and
 * metrics. */
#include "py.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "py_lazy.h"

#define MAX_METRICS 1024

struct counter {
	const char *name;
	size_t offset;
	bool is_float;
};

#define WHOLE(n) {#n, offsetof(struct pawl_progress, n), false}
#define REAL(n) {#n, offsetof(struct pawl_progress, n), true}
static const struct counter counters[] = {
	WHOLE(epoch),           WHOLE(batch),    WHOLE(batch_in_epoch), WHOLE(sample),
	WHOLE(sample_in_epoch), WHOLE(token),    WHOLE(token_in_epoch), WHOLE(iteration),
	REAL(total_wct),        REAL(epoch_wct), REAL(batch_wct),       REAL(fraction),
};
#define N_COUNTERS (sizeof(counters) / sizeof(counters[0]))

/* The items of a mapping; anything else is refused by name. */
static PyObject *
items_of(struct py_state *st, PyObject *mapping, const char *what)
{
	PyObject *items = PyMapping_Items(mapping);

	if (!items && (PyErr_ExceptionMatches(PyExc_AttributeError) || PyErr_ExceptionMatches(PyExc_TypeError))) {
		PyErr_Clear();
		py_raise_received(st, mapping, "%s must be a dict of names and numbers", what);
	}
	return items;
}

/* A counter of the progress. It must not be negative: a negative value stands for a missing one. */
static int
read_counter(struct py_state *st, const char *name, PyObject *value, bool is_float, void *ret)
{
	double real = is_float ? PyFloat_AsDouble(value) : 0;
	long long whole = is_float ? 0 : PyLong_AsLongLong(value);

	if (!PyErr_Occurred() && real >= 0 && whole >= 0 && !(real > 1 && strcmp(name, "fraction") == 0)) {
		if (is_float)
			memcpy(ret, &real, sizeof(real));
		else
			memcpy(ret, &(int64_t){whole}, sizeof(int64_t));
		return 0;
	}
	if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
		return -1;
	PyErr_Clear();
	if (strcmp(name, "fraction") == 0)
		py_raise_received(st, value, "progress: fraction must be a number from 0 to 1");
	else
		py_raise_received(st, value, "progress: %s must be a %snumber of 0 or more", name,
		                  is_float ? "" : "whole ");
	return -1;
}

int
py_progress(struct py_state *st, PyObject *mapping, struct pawl_progress *ret)
{
	const struct counter *c, *end = counters + N_COUNTERS;

	*ret = (struct pawl_progress)PAWL_PROGRESS_INIT;
	if (mapping == Py_None)
		return 0;

	AUTO_REF items = items_of(st, mapping, "progress");

	for (Py_ssize_t i = 0; items && i < PyList_Size(items); i++) {
		PyObject *key = PyTuple_GetItem(PyList_GetItem(items, i), 0);   /* borrowed */
		PyObject *value = PyTuple_GetItem(PyList_GetItem(items, i), 1); /* borrowed */

		for (c = counters; c < end; c++)
			if (PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, c->name) == 0)
				break;
		if (c == end) {
			py_raise_text(
				st, PAWL_EUSAGE,
				"progress: unknown counter %R (epoch, batch, batch_in_epoch, sample, sample_in_epoch, "
				"token, token_in_epoch, iteration, total_wct, epoch_wct, batch_wct, fraction)",
				key);
			return -1;
		}
		TRY(read_counter(st, c->name, value, c->is_float, (char *)ret + c->offset));
	}
	return items ? 0 : -1;
}

PyObject *
py_progress_dict(const struct pawl_progress *p)
{
	AUTO_REF dict = PyDict_New();

	for (const struct counter *c = counters; dict && c < counters + N_COUNTERS; c++) {
		const void *field = (const char *)p + c->offset;
		const double real = c->is_float ? *(const double *)field : 0;
		const int64_t whole = c->is_float ? 0 : *(const int64_t *)field;
		AUTO_REF value = c->is_float ? PyFloat_FromDouble(real) : PyLong_FromLongLong(whole);

		if (!value || (real >= 0 && whole >= 0 && PyDict_SetItemString(dict, c->name, value) < 0))
			return NULL;
	}
	return Py_XNewRef(dict);
}

/* The largest double with the value's sign; less than 0 with an exception set. */
static int
saturate_int(PyObject *value, double *ret)
{
	AUTO_REF zero = PyLong_FromLong(0);
	const int is_negative = zero ? PyObject_RichCompareBool(value, zero, Py_LT) : -1;

	*ret = is_negative > 0 ? -DBL_MAX : DBL_MAX;
	return is_negative < 0 ? -1 : 0;
}

/* A number that is not a float became infinite in the conversion; was it finite before? */
static bool
was_finite(PyObject *value, PyObject *number)
{
	const int is_equal = PyFloat_Check(value) ? 1 : PyObject_RichCompareBool(value, number, Py_EQ);

	if (is_equal < 0)
		PyErr_Clear();
	return is_equal == 0;
}

/* A number as a double. Beyond the range it becomes the largest of its sign, so that its order is
 * kept. Anything else is marked as invalid. A text does not count as a number, even if float()
 * accepts it. */
static int
read_metric(struct py_state *st, PyObject *value, struct pawl_metric *ret)
{
	AUTO_REF number = NULL;

	ret->not_a_number = 1;
	ret->value = 0;
	if (PyUnicode_Check(value) || PyBytes_Check(value) || PyByteArray_Check(value))
		return 0;
	number = PyNumber_Float(value);
	if (number) {
		ret->value = PyFloat_AsDouble(number);
		ret->not_a_number = 0;
		return isinf(ret->value) && was_finite(value, number) ? saturate_int(value, &ret->value) : 0;
	}
	if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
		PyErr_Clear();
		ret->not_a_number = 0;
		return saturate_int(value, &ret->value);
	}
	if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(st->errors[0]))
		return -1;
	PyErr_Clear();
	return 0;
}

int
py_metrics(struct py_state *st, PyObject *mapping, struct pawl_metric **ret, size_t *ret_n, PyObject **keep)
{
	struct pawl_metric *rows;
	Py_ssize_t n;

	*ret = NULL;
	*ret_n = 0;
	*keep = NULL;
	if (mapping == Py_None)
		return 0;
	*keep = items_of(st, mapping, "metrics");
	if (!*keep)
		return -1;
	n = PyList_Size(*keep);
	if (n > MAX_METRICS) {
		py_raise_text(st, PAWL_ELIMIT, "%zd metrics, at most %d are possible", n, MAX_METRICS);
		return -1;
	}
	*ret = rows = PyMem_Calloc((size_t)n + 1, sizeof(*rows));
	if (!rows) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *key = PyTuple_GetItem(PyList_GetItem(*keep, i), 0);   /* borrowed */
		PyObject *value = PyTuple_GetItem(PyList_GetItem(*keep, i), 1); /* borrowed */

		if (!PyUnicode_Check(key)) {
			py_raise_received(st, key, "metrics: expected a name");
			return -1;
		}
		rows[i].name = PyUnicode_AsUTF8AndSize(key, NULL);
		if (!rows[i].name || read_metric(st, value, &rows[i]) < 0)
			return -1;
	}
	*ret_n = (size_t)n;
	return 0;
}

/* The library reports that a value was not a number; only Python knows which value it was. */
static void
name_bad_metrics(const struct pawl_metric *rows, size_t n, PyObject *items, struct pawl_error *err)
{
	for (size_t i = 0; i < n; i++) {
		size_t used = strlen(err->message);
		AUTO_REF text = NULL;
		const char *utf8;

		if (!rows[i].not_a_number)
			continue;
		text = PyUnicode_FromFormat("; %s is %R", rows[i].name,
		                            PyTuple_GetItem(PyList_GetItem(items, (Py_ssize_t)i), 1));
		utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
		PyErr_Clear();
		if (utf8 && used + strlen(utf8) < sizeof(err->message))
			memcpy(err->message + used, utf8, strlen(utf8) + 1);
	}
}

/* Ctrl+C: has a handler raised? The call that waits has released the interpreter lock. */
static int
is_interrupted(void *arg)
{
	struct py_walk *w = arg;

	PyEval_RestoreThread(w->thread);
	const int rc = PyErr_CheckSignals();

	w->thread = PyEval_SaveThread();
	return rc < 0;
}

static int
call_save(struct pawl *run, struct pawl_save_opts *opts, struct py_walk *w, struct pawl_ticket **ret,
          struct pawl_error *err)
{
	int rc;

	opts->interrupted = is_interrupted;
	opts->interrupted_arg = w;
	w->thread = PyEval_SaveThread();
	rc = pawl_save(run, opts, w->state, ret, err);
	PyEval_RestoreThread(w->thread);
	if (py_raise_kept(w->error)) { /* a tensor could not be fetched: its own error is more precise */
		pawl_ticket_free(rc == 0 ? *ret : NULL);
		return -1;
	}
	return rc;
}

/* With an exception set: this rank's part of the save has failed, and the other ranks need not wait
 * for it. */
static void
notify_ranks(struct py_run *self, const struct pawl_save_opts *opts)
{
	PyObject *kind, *value, *trace;

	PyErr_Fetch(&kind, &value, &trace);
	AUTO_RUN in = py_run_enter(self);
	if (in && pawl_world_size(in->run) > 1) {
		AUTO_REF text = value ? PyObject_Str(value) : NULL;
		const char *why = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;

		UNLOCKED(pawl_save_failed(in->run, opts, PAWL_EUSAGE, why));
	}
	PyErr_Clear();
	PyErr_Restore(kind, value, trace);
}

static int
take_lazy(struct pawl_save_opts *opts, struct py_walk *w)
{
	const unsigned char *at_once = py_lazy_at_once(w->lazy, pawl_state_tensor_count(w->state));

	if (!at_once)
		return -1;
	opts->rests = py_lazy_rests(w->lazy);
	if (!opts->lazy)
		return 0;
	opts->at_once = at_once;
	opts->changed = py_lazy_changed;
	opts->changed_arg = w->lazy;
	return 0;
}

/* Saves a state that was walked. Returns a Ticket. */
static PyObject *
save_walked(struct py_run *self, struct py_walk *w, struct pawl_save_opts *opts, PyObject *metrics)
{
	struct py_state *st = py_state_of((PyObject *)self);
	AUTO_RUN in = py_run_enter(self);
	struct pawl_metric *rows = NULL;
	struct pawl_ticket *ticket = NULL;
	struct pawl_error err = {0};
	AUTO_REF keep = NULL;
	PyObject *result = NULL;
	int rc;

	if (!in) {
		py_lazy_free(w->lazy);
		return NULL;
	}
	py_run_prune_lazy(self, false);
	const bool ready = !w->lazy || take_lazy(opts, w) == 0;

	if (ready && py_metrics(st, metrics, &rows, &opts->n_metrics, &keep) == 0) {
		opts->metrics = rows;
		rc = call_save(in->run, opts, w, &ticket, &err);
		if (rc == PAWL_EUSAGE)
			name_bad_metrics(rows, opts->n_metrics, keep, &err);
		if (rc < 0 && !PyErr_Occurred())
			py_raise(st, rc, &err);
		if (rc == 0)
			result = py_ticket_new(st, ticket, opts->step, opts->lazy ? w->keep : NULL,
			                       opts->lazy ? w->lazy : NULL);
		if (rc == 0 && opts->lazy)
			w->lazy = NULL; /* owned by the ticket */
		self->has_saved = self->has_saved || rc == 0;
		if (result && opts->lazy && PyList_Append(self->lazy, result) < 0)
			Py_CLEAR(result);
	} else {
		notify_ranks(self, opts);
	}
	PyMem_Free(rows);
	py_lazy_free(w->lazy);
	w->lazy = NULL;
	return result;
}

/* For a caller that could not even build its state. */
PyObject *
py_run_save_failed(struct py_run *self, PyObject *args)
{
	AUTO_RUN in = NULL;
	const char *why;

	if (!PyArg_ParseTuple(args, "s:save_failed", &why) || !(in = py_run_enter(self)))
		return NULL;
	UNLOCKED(pawl_save_failed(in->run, NULL, PAWL_EUSAGE, why));
	Py_RETURN_NONE;
}

PyObject *
py_no_numbers(PyObject *module, PyObject *mapping)
{
	struct pawl_metric *rows = NULL;
	AUTO_REF names = PyList_New(0);
	AUTO_REF keep = NULL;
	size_t n = 0;
	int rc = names ? py_metrics(PyModule_GetState(module), mapping, &rows, &n, &keep) : -1;

	for (size_t i = 0; rc == 0 && i < n; i++)
		if (rows[i].not_a_number)
			rc = PyList_Append(names, PyTuple_GetItem(PyList_GetItem(keep, (Py_ssize_t)i), 0));
	PyMem_Free(rows);
	return rc < 0 ? NULL : Py_NewRef(names);
}

static int
wait_turn(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	return pawl_wait_turn(arg, timeout_ms, err);
}

/* Waits for an earlier save, in slices, so that Ctrl+C is handled. */
static int
take_turn(struct py_run *self)
{
	AUTO_RUN in = py_run_enter(self);

	return in ? py_wait(py_state_of((PyObject *)self), Py_None, wait_turn, in->run, "another save was not written")
	          : -1;
}

PyObject *
py_run_save(struct py_run *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"step", "state", "metrics", "metadata", "progress", "lazy", "mode", "in_turn", NULL};
	struct py_state *st = py_state_of((PyObject *)self);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	PyObject *state, *metrics = Py_None, *metadata = Py_None, *progress = Py_None, *result = NULL;
	struct py_walk walk, notes = {0};
	struct py_lazy *lazy;
	double begin = py_now_seconds();
	int in_turn = 0;
	long long step;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LO|$OOOpip:save", words, &step, &state, &metrics, &metadata,
	                                 &progress, &opts.lazy, &opts.mode, &in_turn) ||
	    (in_turn && take_turn(self) < 0))
		return NULL;
	opts.step = step;
	opts.on_busy = in_turn ? PAWL_BUSY_WAIT + 1 : 0;
	/* only the first save of a run puts tensors that rest into packs of their own */
	const bool records = opts.lazy || !self->has_saved;

	lazy = records ? py_lazy_new(!self->has_saved) : NULL;
	if ((records && !lazy) || py_progress(st, progress, &opts.progress) < 0 ||
	    py_walk_begin_save(&walk, st, state, self->run, lazy, opts.lazy != 0) < 0) {
		py_lazy_free(lazy);
		notify_ranks(self, &opts);
		return NULL;
	}
	if (metadata == Py_None || py_walk_begin(&notes, st, metadata, true, NULL) == 0) {
		opts.metadata = notes.state;
		result = save_walked(self, &walk, &opts, metrics);
		py_walk_end(&notes);
	} else {
		py_lazy_free(lazy);
		py_add_note(NULL, "in the metadata");
		notify_ranks(self, &opts);
	}
	py_walk_end(&walk);
	if (result)
		py_ticket_held_since(result, begin);
	return result;
}

PyObject *
py_run_prepare(struct py_run *self, PyObject *state)
{
	struct py_state *st = py_state_of((PyObject *)self);
	struct py_walk walk;

	TRY_NULL(py_walk_begin(&walk, st, state, false, self->run));
	AUTO_RUN in = py_run_enter(self);
	int rc = in ? CALL(st, pawl_prepare(in->run, walk.state, err)) : -1;
	py_walk_end(&walk);
	return py_none(rc);
}
