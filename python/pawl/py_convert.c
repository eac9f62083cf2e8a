/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_convert: Run.convert, which calls pawl_convert on a thread of its own. The calling thread can
 * thus handle Ctrl+C, which cancels the conversion and removes its output.
 */
#include "py.h"

#include <pthread.h>
#include <time.h>

struct conversion {
	struct pawl *run;
	const char *dst;
	uint64_t id;
	struct pawl_convert_opts opts;
	struct pawl_meter meter;
	struct pawl_convert_report report;

	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t ended;
	bool is_over;
	int rc;
	struct pawl_error err;
};

static void *
work(void *arg)
{
	struct conversion *c = arg;
	struct pawl_error err = {0};
	int rc = pawl_convert(c->run, c->id, c->dst, &c->opts, &c->meter, &c->report, &err);

	pthread_mutex_lock(&c->lock);
	c->rc = rc;
	c->err = err;
	c->is_over = true;
	pthread_cond_signal(&c->ended);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static int
wait_work(void *arg, int64_t timeout_ms, struct pawl_error *err)
{
	struct conversion *c = arg;
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(timeout_ms / 1000);
	until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&c->lock);
	while (!c->is_over && rc == 0)
		rc = pthread_cond_timedwait(&c->ended, &c->lock, &until);
	rc = c->is_over ? c->rc : PAWL_ETIMEOUT;
	if (c->is_over)
		*err = c->err;
	else
		err->sys = PAWL_SYS_WAITED;
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static void
conversion_init(struct conversion *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->ended, &attr);
	pthread_condattr_destroy(&attr);
}

static void
conversion_clear(struct conversion *c)
{
	pthread_cond_destroy(&c->ended);
	pthread_mutex_destroy(&c->lock);
}

/* Returns -1 with an exception. */
static int
convert(struct py_state *st, struct conversion *c)
{
	pthread_t thread;
	int rc;

	if (pthread_create(&thread, NULL, work, c) != 0) {
		py_raise_text(st, PAWL_ENOMEM, "convert: no thread could be started");
		return -1;
	}
	rc = py_wait(st, Py_None, wait_work, c, "convert");
	c->meter.cancel = rc < 0;
	UNLOCKED(pthread_join(thread, NULL));
	return rc;
}

PyObject *
py_run_convert(struct py_run *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"id",   "dst",       "to", "include", "exclude", "rename", "dtype", "max_shard_bytes",
	                        "dots", "overwrite", NULL};
	struct py_state *st = py_state_of((PyObject *)self);
	struct conversion c = {.opts = PAWL_CONVERT_OPTS_INIT, .report = PAWL_CONVERT_REPORT_INIT};
	PyObject *include, *exclude, *rename, *result = NULL;
	AUTO_RUN in = NULL;
	unsigned long long id, max_shard_bytes = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KszO!O!O!z|Kpp:convert", words, &id, &c.dst, &c.opts.to,
	                                 &PyTuple_Type, &include, &PyTuple_Type, &exclude, &PyTuple_Type, &rename,
	                                 &c.opts.dtype, &max_shard_bytes, &c.opts.dots, &c.opts.overwrite))
		return NULL;
	c.id = id;
	c.opts.max_shard_bytes = max_shard_bytes;
	AUTO_TEXTS includes = py_texts(include, &c.opts.n_include);
	AUTO_TEXTS excludes = includes ? py_texts(exclude, &c.opts.n_exclude) : NULL;
	AUTO_TEXTS renames = excludes ? py_texts(rename, &c.opts.n_rename) : NULL;
	if (!renames || !(in = py_run_enter(self)))
		return NULL;
	c.run = in->run;
	c.opts.include = includes;
	c.opts.exclude = excludes;
	c.opts.rename = renames;
	conversion_init(&c);
	if (convert(st, &c) == 0)
		result = Py_BuildValue("{s:K,s:K,s:K,s:K}", "n_tensors", (unsigned long long)c.report.n_tensors,
		                       "n_files", (unsigned long long)c.report.n_files, "nbytes",
		                       (unsigned long long)c.report.bytes, "n_left",
		                       (unsigned long long)c.report.n_left);
	conversion_clear(&c);
	return result;
}
