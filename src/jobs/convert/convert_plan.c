/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_plan: see convert.h. Pure but for memory: which items go into which file, and the pieces
 * of a file. To add a format, add a row to the table here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "foreign/foreign_formats.h"
#include "format/numpy/npy.h"
#include "jobs/convert/convert.h"

#define MODEL_NAME "model.safetensors"

/* ---- safetensors ---- */

/* The file's table in the order of the format; complex128 becomes pairs of F64. */
static int
make_table(const struct convert_job *c, const struct convert_file *f, struct bump *memory, struct st_tensor **ret,
           struct pawl_error *err)
{
	struct st_tensor *tensors = bump_array(memory, f->n, sizeof *tensors);
	uint64_t nbytes;

	if (!tensors)
		return err_nomem(err, "convert");
	for (size_t i = 0; i < f->n; i++) {
		const struct convert_item *item = &c->items[f->first + i];
		const struct manifest_tensor *t = &c->r->manifest->tensors[item->tensor];
		tensors[i] = (struct st_tensor){.name = item->name,
		                                .dtype = item->dtype,
		                                .ndim = t->ndim,
		                                .shape = t->shape,
		                                .tag = f->first + i};
		if (item->dtype != PAWL_C128)
			continue;
		uint64_t *shape = bump_array(memory, (uint64_t)t->ndim + 1, sizeof *shape);
		if (!shape)
			return err_nomem(err, "convert");
		if (t->ndim)
			memcpy(shape, t->shape, t->ndim * sizeof *shape);
		shape[t->ndim] = 2;
		tensors[i].dtype = PAWL_F64;
		tensors[i].shape = shape;
		tensors[i].ndim++;
	}
	TRY(safetensors_layout(tensors, f->n, &nbytes, err));
	*ret = tensors;
	return 0;
}

static int
plan_safetensors(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct st_tensor *tensors = NULL;

	TRY(make_table(c, f, &memory, &tensors, err));
	TRY(safetensors_encode_header(tensors, f->n, c->notes, c->n_notes, &plan->bytes, err));
	for (size_t i = 0; i < f->n; i++)
		TRY(piece_plan_add(plan, FILE_TENSOR, tensors[i].tag, tensors[i].end - tensors[i].begin, err));
	return piece_plan_finish(plan, err);
}

/* ---- numpy ---- */

int
convert_wrong_dtype(const struct convert_item *item, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED, "%s is %s, a dtype that numpy does not have; --dtype fp32 casts floats",
	               item->name, pawl_dtype_name(item->dtype));
}

static int
plan_npy(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan, struct pawl_error *err)
{
	const struct convert_item *item = &c->items[f->first];
	const struct manifest_tensor *t = &c->r->manifest->tensors[item->tensor];

	if (f->n != 1)
		return err_set(err, PAWL_EUSAGE,
		               "a file of numpy.save holds one array, %zu tensors are asked for; choose "
		               "one with --include, or write a .npz",
		               f->n);
	if (!npy_descr(item->dtype))
		return convert_wrong_dtype(item, err);
	TRY(npy_encode_header(item->dtype, t->ndim, t->shape, &plan->bytes, err));
	return piece_plan_add(plan, FILE_TENSOR, f->first, item->nbytes, err);
}

/* ---- all formats ---- */

static const struct convert_target targets[] = {
	{"safetensors", {".safetensors"}, .has_ties = true, .plan = plan_safetensors},
	{"hf",
         {NULL},
         .is_folder = true,
         .has_ties = true,
         .plan = plan_safetensors,
         .index_name = FOREIGN_INDEX_NAME,
         .single_name = MODEL_NAME,
         .index = convert_index},
	{"dcp",
         {NULL},
         .is_folder = true,
         .plan = convert_dcp_plan,
         .index_name = ".metadata",
         .index = convert_dcp_metadata,
         .index_always = true},
	{"pt", {".pt", ".pth"}, .has_ties = true, .has_extras = true, .plan = convert_pt_plan},
	{"npz", {".npz"}, .plan = convert_npz_plan},
	{"npy", {".npy"}, .plan = plan_npy},
};
#define N_TARGETS (sizeof(targets) / sizeof(targets[0]))

const struct convert_target *
convert_target_of(const char *path, const char *to)
{
	const size_t len = strlen(path);

	for (size_t i = 0; i < N_TARGETS; i++) {
		if (to && strcmp(to, targets[i].name) == 0)
			return &targets[i];
		for (size_t k = 0; k < 2 && !to && targets[i].suffixes[k]; k++) {
			const size_t n = strlen(targets[i].suffixes[k]);
			if (len > n && strcmp(path + len - n, targets[i].suffixes[k]) == 0)
				return &targets[i];
		}
	}
	return NULL;
}

/* ---- dividing among files ---- */

static int
name_files(struct convert_job *c, struct pawl_error *err)
{
	for (size_t i = 0; i < c->n_files; i++) {
		struct convert_file *f = &c->files[i];
		if (c->file)
			f->name = c->file;
		else if (c->target->index_always)
			f->name = bump_printf(&c->memory, "__0_%zu.distcp", i);
		else if (c->n_files == 1)
			f->name = c->target->single_name;
		else
			f->name = bump_printf(&c->memory, "model-%05zu-of-%05zu.safetensors", i + 1, c->n_files);
		if (!f->name)
			return err_nomem(err, "convert");
	}
	return 0;
}

/* Fills the files one after the other. A tensor larger than the limit gets its own. */
int
convert_share_out(struct convert_job *c, struct pawl_error *err)
{
	const uint64_t most = c->file ? 0 : c->opts.max_shard_bytes;
	uint64_t used = 0;

	c->files = mem_zalloc(c->n_items, sizeof *c->files);
	if (!c->files)
		return err_nomem(err, "convert");
	for (size_t i = 0; i < c->n_items; i++) {
		const uint64_t nbytes = c->items[i].nbytes;
		if (i == 0 || (most > 0 && used > 0 && (nbytes > most || used > most - nbytes))) {
			c->files[c->n_files++].first = i;
			used = 0;
		}
		used += nbytes;
		c->items[i].file = c->n_files - 1;
		c->files[c->n_files - 1].n++;
	}
	return name_files(c, err);
}

const char *
convert_index_name(const struct convert_job *c)
{
	return c->n_files > 1 || c->target->index_always ? c->target->index_name : NULL;
}

int
convert_index(const struct convert_job *c, struct buf *out, struct pawl_error *err)
{
	uint64_t total = 0;

	for (size_t i = 0; i < c->n_items; i++)
		total += c->items[i].nbytes;
	buf_printf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", total);
	for (size_t i = 0; i < c->n_items; i++) {
		buf_puts(out, i ? ",\n    " : "\n    ");
		json_put_string(out, c->items[i].name, strlen(c->items[i].name));
		buf_printf(out, ": \"%s\"", c->files[c->items[i].file].name);
	}
	buf_puts(out, "\n  }\n}\n");
	return buf_check(out, "index", err);
}
