/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_plan: see conversion.h. Called by conversion.c; calls the formats. Pure but for memory: which items go
 * into which file, and of what pieces a file is made. A further format is one more row of the table here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "foreign/foreign_formats.h"
#include "format/numpy/npy.h"
#include "jobs/convert/conversion.h"

#define MODEL_NAME "model.safetensors"

int
conversion_plan_add(struct conversion_plan *plan, struct conversion_piece piece)
{
	if (plan->n == plan->cap) {
		size_t cap = plan->cap ? 2 * plan->cap : 64;
		struct conversion_piece *bigger = mem_resize(plan->pieces, cap, sizeof *bigger);
		if (!bigger)
			return PAWL_ENOMEM;
		plan->pieces = bigger;
		plan->cap = cap;
	}
	plan->pieces[plan->n++] = piece;
	return 0;
}

void
conversion_plan_clear(struct conversion_plan *plan)
{
	bump_clear(&plan->memory);
	buf_clear(&plan->bytes);
	mem_free(plan->pieces);
}

/* ---- safetensors ---- */

/* The file's table in the order of the format; complex128 goes as pairs of F64. */
static int
make_table(const struct conversion *c, const struct conversion_file *f, struct bump *memory, struct st_tensor **ret,
           struct pawl_error *err)
{
	struct st_tensor *tensors = bump_array(memory, f->n, sizeof *tensors);
	uint64_t nbytes;

	if (!tensors)
		return conversion_no_memory(c, err);
	for (size_t i = 0; i < f->n; i++) {
		const struct conversion_item *item = &c->items[f->first + i];
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
			return conversion_no_memory(c, err);
		if (t->ndim)
			memcpy(shape, t->shape, t->ndim * sizeof *shape);
		shape[t->ndim] = 2;
		tensors[i].dtype = PAWL_F64;
		tensors[i].shape = shape;
		tensors[i].ndim++;
	}
	TRY(st_layout(tensors, f->n, &nbytes, err));
	*ret = tensors;
	return 0;
}

static int
plan_safetensors(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan,
                 struct pawl_error *err)
{
	struct st_tensor *tensors = NULL;

	TRY(make_table(c, f, &plan->memory, &tensors, err));
	TRY(st_encode_header(tensors, f->n, c->notes, c->n_notes, &plan->bytes, err));
	TRY(buf_check(&plan->bytes, f->name, err));
	const struct conversion_piece head = {
		.kind = CONVERSION_BYTES, .ptr = plan->bytes.ptr, .nbytes = plan->bytes.len};
	if (conversion_plan_add(plan, head) < 0)
		return conversion_no_memory(c, err);
	for (size_t i = 0; i < f->n; i++) {
		const struct conversion_piece piece = {
			.kind = CONVERSION_TENSOR, .item = tensors[i].tag, .nbytes = tensors[i].end - tensors[i].begin};
		if (conversion_plan_add(plan, piece) < 0)
			return conversion_no_memory(c, err);
	}
	return 0;
}

/* ---- numpy ---- */

int
conversion_wrong_dtype(const struct conversion *c, const struct conversion_item *item, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED,
	               "%s: %s is %s, a dtype that numpy does not have; --dtype fp32 casts floats", c->what, item->name,
	               pawl_dtype_name(item->dtype));
}

static int
plan_npy(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan, struct pawl_error *err)
{
	const struct conversion_item *item = &c->items[f->first];
	const struct manifest_tensor *t = &c->r->manifest->tensors[item->tensor];

	if (f->n != 1)
		return err_set(err, PAWL_EUSAGE,
		               "%s: a file of numpy.save holds one array, %zu tensors are asked for; choose "
		               "one with --include, or write a .npz",
		               c->what, f->n);
	if (!npy_descr(item->dtype))
		return conversion_wrong_dtype(c, item, err);
	TRY(npy_encode_header(item->dtype, t->ndim, t->shape, &plan->bytes, err));
	const struct conversion_piece head = {
		.kind = CONVERSION_BYTES, .ptr = plan->bytes.ptr, .nbytes = plan->bytes.len};
	const struct conversion_piece data = {.kind = CONVERSION_TENSOR, .item = f->first, .nbytes = item->nbytes};
	return conversion_plan_add(plan, head) < 0 || conversion_plan_add(plan, data) < 0 ? conversion_no_memory(c, err)
	                                                                                  : 0;
}

/* ---- all formats ---- */

static const struct conversion_target targets[] = {
	{"safetensors", {".safetensors"}, false, true, plan_safetensors, NULL, NULL, false},
	{"hf", {NULL}, true, true, plan_safetensors, FOREIGN_INDEX_NAME, conversion_index, false},
	{"dcp", {NULL}, true, false, conversion_plan_dcp, ".metadata", conversion_dcp_metadata, true},
	{"pt", {".pt", ".pth"}, false, true, conversion_plan_pt, NULL, NULL, false},
	{"npz", {".npz"}, false, false, conversion_plan_npz, NULL, NULL, false},
	{"npy", {".npy"}, false, false, plan_npy, NULL, NULL, false},
};
#define N_TARGETS (sizeof(targets) / sizeof(targets[0]))

const struct conversion_target *
conversion_target_of(const char *path, const char *to)
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

/* ---- into which files ---- */

static int
name_files(struct conversion *c, struct pawl_error *err)
{
	for (size_t i = 0; i < c->n_files; i++) {
		struct conversion_file *f = &c->files[i];
		if (c->file)
			f->name = c->file;
		else if (c->target->index_always)
			f->name = bump_printf(&c->memory, "__0_%zu.distcp", i);
		else if (c->n_files == 1)
			f->name = MODEL_NAME;
		else
			f->name = bump_printf(&c->memory, "model-%05zu-of-%05zu.safetensors", i + 1, c->n_files);
		if (!f->name)
			return conversion_no_memory(c, err);
	}
	return 0;
}

/* Fills the files one after the other; a tensor larger than the limit gets one of its own. */
int
conversion_share_out(struct conversion *c, struct pawl_error *err)
{
	const uint64_t most = c->file ? 0 : c->opts.max_shard_bytes;
	uint64_t used = 0;

	c->files = mem_zalloc(c->n_items, sizeof *c->files);
	if (!c->files)
		return conversion_no_memory(c, err);
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
conversion_index_name(const struct conversion *c)
{
	return c->n_files > 1 || c->target->index_always ? c->target->index_name : NULL;
}

int
conversion_index(const struct conversion *c, struct buf *out, struct pawl_error *err)
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
