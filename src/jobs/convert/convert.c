/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert: see convert.h.
 *
 *   options ──> source ──> select and name ──> divide among files
 *           ──> plan and write each under a hidden name
 *           ──> check what is left to check ──> give all their names, an index last
 *
 * Files appear complete and durable or not at all. Nothing is replaced without `overwrite`.
 * Promises P1, P2, P4, P16, P17.
 */
#include "jobs/convert/convert.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/text.h"
#include "layout/cast.h"
#include "layout/rename.h"
#include "pawl_jobs.h"

/* usable as PAWL_CLEAN(convert_clear) */
static void
convert_clear(struct convert_job *c)
{
	convert_place_clear(c);
	fetch_free(c->fetch);
	mem_free(c->raw);
	mem_free(c->item_crcs);
	mem_free(c->members);
	mem_free(c->notes);
	mem_free(c->ties);
	mem_free(c->extras);
	mem_free(c->items);
	mem_free(c->taken);
	mem_free(c->kept);
	mem_free(c->files);
	table_clear(&c->by_name);
	pawl_restore_close(c->r);
	bump_clear(&c->memory);
}

/* The format where the target's suffix does not name one; NULL: it does, or has to. */
static const char *
default_format(const char *dst, const struct pawl_convert_opts *o)
{
	const char *slash = strrchr(dst, '/'), *name = slash ? slash + 1 : dst;
	struct stat st;

	if (convert_target_of(dst, NULL))
		return NULL;
	if (o->max_shard_bytes || !*name || (stat(dst, &st) == 0 && S_ISDIR(st.st_mode)))
		return "hf";
	return strchr(name + (*name == '.'), '.') ? NULL : "safetensors";
}

static int
take_options(struct convert_job *c, const char *dst, struct pawl_error *err)
{
	const struct pawl_convert_opts *o = &c->opts;

	c->dtype = o->dtype ? cast_dtype(o->dtype) : 0;
	if (o->dtype && !c->dtype)
		return err_set(err, PAWL_EUSAGE, "dtype '%s': expected fp16, bf16, fp32 or fp64", o->dtype);
	TRY(text_check_list("convert: include", o->include, o->n_include, err));
	TRY(text_check_list("convert: exclude", o->exclude, o->n_exclude, err));
	TRY(text_check_list("convert: rename", o->rename, o->n_rename, err));
	for (size_t i = 0; i < o->n_rename; i++)
		TRY(rename_check(o->rename[i], err));
	c->is_whole = o->to && strcmp(o->to, "pawl") == 0;
	if (c->is_whole && (o->n_include || o->n_exclude || o->n_rename || o->dtype || o->dots || o->max_shard_bytes ||
	                    o->strip_prefix || o->model))
		return err_set(
			err, PAWL_EUSAGE,
			"a checkpoint of pawl is written completely; 'pawl restore' renames and casts; to select "
			"or shard tensors, write a .safetensors");
	if (c->is_whole)
		return 0;
	c->target = convert_target_of(dst, o->to ? o->to : default_format(dst, o));
	if (!c->target && o->to)
		return err_set(err, PAWL_EUSAGE, "'%s' is not a format to write: expected " CONVERT_TARGETS, o->to);
	if (!c->target)
		return err_set(err, PAWL_EUSAGE,
		               "%s: no format has this suffix; expected .safetensors, .pt, .pth, .npz or .npy, or the "
		               "name of a format (" CONVERT_TARGETS ")",
		               dst);
	if (o->max_shard_bytes && !c->target->is_folder)
		return err_set(err, PAWL_EUSAGE, "only a folder of the format hf or dcp is made of several files");
	return 0;
}

static int
open_source(struct convert_job *c, struct pawl *run, uint64_t id, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	PAWL_FREE char *selector = id ? mem_printf("id:%" PRIu64, id) : NULL;

	if (id && !selector)
		return err_nomem(err, "convert");
	opts.selector = selector;
	opts.no_fallback = 1;
	return pawl_restore_open(run, &opts, &c->r, err);
}

static int
write_file(struct convert_job *c, struct convert_file *f, struct pawl_error *err)
{
	PAWL_CLEAN(piece_plan_clear) struct piece_plan plan = {0};

	TRY(c->target->plan(c, f, &plan, err));
	TRY(hidden_name(f->name, HIDDEN_PARTIAL, f->temp, err));
	return convert_write(c, &plan, f, err);
}

static int
write_index(struct convert_job *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(c->target->index(c, &text, err));
	PAWL_FD int fd = convert_place_create(c, convert_index_name(c), c->index_temp, err);
	TRY(fd);
	TRY(fd_pwrite_all(fd, text.ptr, text.len, 0, "index", err));
	TRY(fd_sync(fd, "index", err));
	return fd_close(&fd, "index", err);
}

static int
write_all(struct convert_job *c, struct pawl_error *err)
{
	uint64_t total = 0;

	for (size_t i = 0; i < c->n_items; i++)
		total += c->r->manifest->tensors[c->items[i].tensor].nbytes;
	if (c->meter)
		__atomic_store_n(&c->meter->total_bytes, total, __ATOMIC_RELAXED);
	TRY(convert_write_begin(c, err));
	for (size_t i = 0; i < c->n_files; i++)
		TRY(write_file(c, &c->files[i], err));
	if (convert_index_name(c))
		TRY(write_index(c, err));
	TRY(convert_write_end(c, err));
	TRY(convert_place_reveal(c, err));
	c->made_folder = false;
	return 0;
}

static void
fill_report(const struct convert_job *c, struct pawl_convert_report *ret)
{
	struct pawl_convert_report report = {.size = sizeof report, .n_files = c->n_files, .n_left = c->n_left};

	for (size_t i = 0; i < c->n_items; i++) {
		report.bytes += c->items[i].nbytes;
		report.n_tensors += !c->r->manifest->state->tensors[c->items[i].tensor].is_blob;
	}
	if (c->is_whole) {
		report.n_tensors = c->r->manifest->n_tensors;
		report.bytes = c->whole_bytes;
		report.n_files = 1;
	}
	if (!ret)
		return;
	report.size = ret->size < sizeof report ? ret->size : sizeof report;
	memcpy(ret, &report, report.size);
}

/* Writes a checkpoint of pawl: the complete state, as its ranks would have written it. */
static int
write_whole(struct convert_job *c, struct pawl *run, uint64_t id, const char *dst, struct pawl_error *err)
{
	const struct manifest *m = c->r->manifest;
	struct pawl_reshard_opts opts = PAWL_RESHARD_OPTS_INIT;

	opts.world_size = m->world_size;
	for (uint64_t i = 0; i < m->n_tensors; i++)
		c->whole_bytes += m->tensors[i].nbytes;
	int rc = pawl_reshard(run, id, dst, &opts, c->meter, err);

	if (rc == PAWL_EEXISTS && c->opts.overwrite)
		return err_set(
			err, rc,
			"%s already exists, and a checkpoint of pawl replaces nothing; remove it, or choose another "
			"name",
			dst);
	return rc;
}

static int
convert_run(struct convert_job *c, struct pawl *run, uint64_t id, const char *dst, struct pawl_error *err)
{
	if (!run || !dst || !dst[0])
		return err_set(err, PAWL_EUSAGE, "expected a run and a target, found NULL or an empty text");
	TRY(take_options(c, dst, err));
	TRY(open_source(c, run, id, err));
	if (c->is_whole)
		return write_whole(c, run, id, dst, err);
	TRY(convert_select(c, err));
	TRY(convert_place_open(c, dst, err));
	TRY(convert_share_out(c, err));
	TRY(convert_place_check(c, err));
	return write_all(c, err);
}

int
pawl_convert(struct pawl *run, uint64_t id, const char *dst, const struct pawl_convert_opts *opts,
             struct pawl_meter *meter, struct pawl_convert_report *ret, struct pawl_error *err)
{
	PAWL_CLEAN(convert_clear) struct convert_job c = {.meter = meter, .dir_fd = -1};
	struct pawl_error own = {0};

	if (opts && !opts->size)
		return err_set(err, PAWL_EUSAGE, "the options have no size; start from PAWL_CONVERT_OPTS_INIT");
	if (opts)
		memcpy(&c.opts, opts, opts->size < sizeof c.opts ? opts->size : sizeof c.opts);
	int rc = convert_run(&c, run, id, dst, &own);
	if (rc == 0)
		fill_report(&c, ret);
	return err_give(err, rc, &own);
}
