/* SPDX-License-Identifier: Apache-2.0 */
/* py_convert: Run.convert. Ctrl+C cancels a conversion and removes its output. */
#include "py_work.h"

struct conversion {
	struct pawl *run;
	const char *dst;
	uint64_t id;
	struct pawl_convert_opts opts;
	struct pawl_convert_report report;
};

static int
run_convert(void *arg, struct pawl_meter *meter, struct pawl_error *err)
{
	struct conversion *c = arg;

	return pawl_convert(c->run, c->id, c->dst, &c->opts, meter, &c->report, err);
}

PyObject *
py_run_convert(struct py_run *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {
		"id",   "dst",       "to",           "include", "exclude",  "rename", "dtype", "max_shard_bytes",
		"dots", "overwrite", "strip_prefix", "model",   "progress", NULL};
	struct py_state *st = py_state_of((PyObject *)self);
	struct conversion c = {.opts = PAWL_CONVERT_OPTS_INIT, .report = PAWL_CONVERT_REPORT_INIT};
	PyObject *include, *exclude, *rename, *progress = Py_None;
	struct pawl_error err;
	AUTO_RUN in = NULL;
	unsigned long long id, max_shard_bytes = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KszO!O!O!z|KppzpO:convert", words, &id, &c.dst, &c.opts.to,
	                                 &PyTuple_Type, &include, &PyTuple_Type, &exclude, &PyTuple_Type, &rename,
	                                 &c.opts.dtype, &max_shard_bytes, &c.opts.dots, &c.opts.overwrite,
	                                 &c.opts.strip_prefix, &c.opts.model, &progress))
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
	int rc = py_work(st, progress, run_convert, &c, &err);

	if (rc < 0)
		return err.code < 0 ? py_raise(st, rc, &err) : NULL;
	return Py_BuildValue("{s:K,s:K,s:K,s:K}", "n_tensors", (unsigned long long)c.report.n_tensors, "n_files",
	                     (unsigned long long)c.report.n_files, "nbytes", (unsigned long long)c.report.bytes,
	                     "n_left", (unsigned long long)c.report.n_left);
}
