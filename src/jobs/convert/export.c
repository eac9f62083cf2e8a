/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export: writes tensors of a checkpoint to one file, or to a shard set with an index: a conversion
 * under other options.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "jobs/convert/convert.h"
#include "pawl_jobs.h"

/* An existing folder, a path that ends in '/', or any set of several files. */
static bool
is_folder(const char *target, const struct pawl_export_opts *opts)
{
	struct stat st;

	return (stat(target, &st) == 0 && S_ISDIR(st.st_mode)) || target[strlen(target) - 1] == '/' ||
	       opts->max_shard_bytes > 0;
}

/* The format by suffix; without one it is safetensors. NULL: the suffix names the format. */
static const char *
format_of(const char *target, const struct pawl_export_opts *opts)
{
	const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;

	if (is_folder(target, opts))
		return "hf";
	return strchr(name + (*name == '.'), '.') ? NULL : "safetensors";
}

int
pawl_export(struct pawl *run, uint64_t id, const char *target, const struct pawl_export_opts *opts,
            struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(convert_clear) struct convert_job c = {.what = "export", .meter = meter, .dir_fd = -1};
	struct pawl_export_opts own_opts = PAWL_EXPORT_OPTS_INIT;
	struct pawl_error own = {0};

	if (!run || !target || !target[0])
		return err_set(err, PAWL_EUSAGE, "export: expected a run and a target, found NULL or an empty text");
	if (opts && !opts->size)
		return err_set(err, PAWL_EUSAGE, "export: the options have no size; start from PAWL_EXPORT_OPTS_INIT");
	if (opts)
		memcpy(&own_opts, opts, opts->size < sizeof own_opts ? opts->size : sizeof own_opts);
	c.strip_prefix = own_opts.strip_prefix;
	c.only_model = own_opts.model;
	c.opts = (struct pawl_convert_opts){.size = sizeof c.opts,
	                                    .to = format_of(target, &own_opts),
	                                    .include = own_opts.include,
	                                    .n_include = own_opts.n_include,
	                                    .max_shard_bytes = own_opts.max_shard_bytes,
	                                    .dots = own_opts.dots,
	                                    .overwrite = own_opts.overwrite};
	return err_give(err, convert_run(&c, run, id, target, &own), &own);
}
