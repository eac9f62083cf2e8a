/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_api: pawl_copy. Promises P1, P2, P6 (the source is held meanwhile), P14, P15.
 */
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "catalog/catalog.h"
#include "catalog/hold_root.h"
#include "copy/copies.h"
#include "copy/copy_object.h"
#include "run/run.h"

/* "s3://bucket/a/name" -> "s3://bucket/a" and "name". */
static int
split_target(const char *to, char **ret_parent, char **ret_name, struct pawl_error *err)
{
	TRY(store_check_target(to, err));
	PAWL_FREE char *copy = mem_strdup(to);
	char *begin, *slash;
	if (!copy)
		return err_nomem(err, "copy");
	begin = strstr(copy, "://");
	begin = begin ? begin + 3 : copy;
	for (size_t n = strlen(begin); n > 1 && begin[n - 1] == '/'; n--)
		begin[n - 1] = 0;
	slash = strrchr(begin, '/');
	const char *name = slash ? slash + 1 : begin;
	if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (!slash && begin != copy))
		return err_set(err, PAWL_EUSAGE, "%s: expected a place that ends in a name for the checkpoint", to);
	*ret_name = mem_strdup(name);
	if (slash)
		slash[slash == copy ? 1 : 0] = 0;
	*ret_parent = mem_strdup(slash ? copy : ".");
	return *ret_name && *ret_parent ? 0 : err_nomem(err, "copy");
}

/* A checkpoint to copy: reading.name and .token point into the others. */
struct source {
	struct catalog_reading reading;
	struct store *store;
	struct buf folder; /* its key */
	char token[33];
};

static void
source_clear(struct source *s)
{
	buf_clear(&s->folder);
}

static int
find_source(struct pawl *run, uint64_t id, struct source *ret, struct pawl_error *err)
{
	if (run->home.foreign)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s was written by another program and has no manifest to copy it by", run->home.root);
	run_lock(run);
	const struct catalog_entry *e = catalog_get(run->catalog, id);
	if (e) {
		catalog_key(run->catalog, e->name, &ret->folder);
		ret->store = e->at ? e->at : run->store;
		memcpy(ret->token, e->summary->token, sizeof(ret->token));
		ret->reading = (struct catalog_reading){.catalog = run->catalog, .at = e->at, .id = id};
	}
	run_unlock(run);
	if (!e)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %llu", run->home.root,
		               (unsigned long long)id);
	TRY(buf_check(&ret->folder, "copy", err));
	const char *key = buf_str(&ret->folder), *slash = strrchr(key, '/');
	ret->reading.name = slash ? slash + 1 : key;
	ret->reading.token = ret->token;
	return 0;
}

static int
report_copy(const struct catalog_reading *from, const struct copy_result *result, struct pawl_copies **ret,
            struct pawl_error *err)
{
	PAWL_CLEAN(pawl_copies_free_clean) struct pawl_copies *copies = mem_zalloc(1, sizeof(*copies));
	struct pawl_copied *row = copies ? copies_add(copies, from->id, from->name, "") : NULL;
	if (!row)
		return err_nomem(err, "copy");
	copies_set(row, result);
	*ret = steal(&copies);
	return 0;
}

PAWL_DEFINE_CLEAN(struct pawl_hold, pawl_hold_close);

static int
copy_to(struct pawl *run, uint64_t id, const char *to, const struct pawl_copy_opts *given, struct pawl_meter *meter,
        struct pawl_copies **ret, struct pawl_error *err)
{
	struct pawl_copy_opts o = PAWL_COPY_OPTS_INIT;
	PAWL_FREE char *parent = NULL, *name = NULL;
	PAWL_CLEAN(source_clear) struct source source = {0};
	PAWL_CLEAN(store_close_clean) struct store *target = NULL;
	PAWL_CLEAN(pawl_hold_close_clean) struct pawl_hold *hold = NULL;
	struct copy_job job = {.meter = meter};
	struct copy_result result = {0};
	if (!run || !to || !*to)
		return err_set(err, PAWL_EUSAGE, "copy: expected a run and a target, found none");
	if (given && !given->size)
		return err_set(err, PAWL_EUSAGE, "copy: the options have no size; start from PAWL_COPY_OPTS_INIT");
	if (given)
		memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
	if (!id)
		TRY(pawl_find(run, "latest", &id, err));
	hold_for_reading(run, id, &hold, NULL); /* if the run is not writable, a deletion is noticed */
	TRY(find_source(run, id, &source, err));
	source.reading.is_held = hold != NULL;
	TRY(split_target(to, &parent, &name, err));
	TRY(copy_open_target(run->opts.io.stores, parent, run->opts.io.no_direct, &target, err));
	TRY(store_limit(&target, o.bytes_per_second, o.bytes_per_second, meter, err));
	job.from = source.store;
	job.to = target;
	job.from_folder = buf_str(&source.folder);
	job.to_folder = name;
	job.n_streams = o.n_streams;
	job.memory_bytes = o.memory_bytes;
	job.deadline_ms = o.timeout_ms > 0 ? clock_deadline_ms(o.timeout_ms) : 0;
	TRY(copy_from_run(&source.reading, &job, &result, err));
	return ret ? report_copy(&source.reading, &result, ret, err) : 0;
}

int
pawl_copy(struct pawl *run, uint64_t id, const char *to, const struct pawl_copy_opts *opts, struct pawl_meter *meter,
          struct pawl_copies **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};
	return err_give(err, copy_to(run, id, to, opts, meter, ret, &own), &own);
}
