/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_shards: a set of safetensors files and its index (model.safetensors.index.json), in which
 * the Hugging Face libraries keep large models, as a checkpoint.
 *
 *   {"metadata": {"total_size": 123, ..},
 *    "weight_map": {"tensor": "model-00001-of-00002.safetensors", ..}}
 *
 * The index decides which tensors exist; its order is that of the state. Tensors that it does not
 * name are ignored. Promises P1 (as for safetensors files), P16, P17 (files are named by safe keys,
 * below the index).
 */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "foreign/foreign_formats.h"
#include "foreign/foreign_tree.h"
#include "read/compressed_pack.h"
#include "state/pack_name.h"

#define MAX_INDEX_BYTES ((size_t)256 << 20)
#define MAX_FILES 100000u
#define MAX_MEMORY ((size_t)2 << 30) /* used while a set is opened */

struct shards {
	struct store *store;
	const char *index, *folder; /* keys; folder "" = the root */
	struct bump memory;
	struct foreign_tree tree;
	struct table files;   /* name -> number */
	struct table tensors; /* (number, name) -> struct st_tensor */
	struct st_table *tables;
	uint32_t n_files;
	struct pawl_error *err;
};

static void
clean_shards(struct shards *s)
{
	table_clear(&s->files);
	table_clear(&s->tensors);
	foreign_tree_clear(&s->tree);
	bump_clear(&s->memory);
}

static uint64_t
tensor_hash(const struct shards *s, uint32_t file, const char *name)
{
	return table_hash(table_mix((uintptr_t)s, file), name, strlen(name));
}

static const struct st_tensor *
find_tensor(const struct shards *s, uint32_t file, const char *name)
{
	uintptr_t value;

	for (size_t cursor = 0; table_next(&s->tensors, tensor_hash(s, file, name), &cursor, &value);) {
		const struct st_tensor *t = (const struct st_tensor *)value;
		if (t->tag == file && strcmp(t->name, name) == 0)
			return t;
	}
	return NULL;
}

/* Reads the header of the next file. */
static int
open_shard(struct shards *s, const char *name, uint32_t *ret)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct st_table *table;
	struct store_entry entry;
	uint64_t nbytes;

	if (s->n_files == MAX_FILES)
		return err_set(s->err, PAWL_ELIMIT, "%s: more than %u files", s->index, MAX_FILES);
	if (!text_is_key(name) || !strstr(name, PACK_SUFFIX) || name[0] == '.')
		return err_set(s->err, PAWL_ECORRUPT, "%s: '%.200s' is not a safe name for a safetensors file",
		               s->index, name);
	buf_printf(&key, "%s%s%s", s->folder, s->folder[0] ? "/" : "", name);
	TRY(buf_check(&key, s->index, s->err));
	int rc = store_stat(s->store, buf_str(&key), &entry, s->err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(s->err, PAWL_ECORRUPT, "%s: it names %s, which does not exist", s->index, name);
	TRY(rc);
	if (entry.is_folder || entry.is_link)
		return err_set(s->err, PAWL_EUNSUPPORTED, "%s is a %s; expected a regular file", buf_str(&key),
		               entry.is_link ? "symbolic link, which is not followed" : "folder");
	table = &s->tables[s->n_files];
	TRY(compressed_pack_read_header(s->store, buf_str(&key), &s->memory, table, &nbytes, s->err));
	TRY(foreign_add_file(&s->tree, name, nbytes, ret, s->err));
	if (table_reserve(&s->tensors, table->n_tensors) < 0 || table_reserve(&s->files, 1) < 0)
		return err_nomem(s->err, s->index);
	for (size_t i = 0; i < table->n_tensors; i++) {
		table->tensors[i].tag = *ret;
		table_add(&s->tensors, tensor_hash(s, *ret, table->tensors[i].name), (uintptr_t)&table->tensors[i]);
	}
	table_add(&s->files, table_hash((uintptr_t)s, name, strlen(name)), *ret);
	s->n_files++;
	return 0;
}

/* The number of a file, opened when it is first named. */
static int
find_shard(struct shards *s, const char *name, uint32_t *ret)
{
	uintptr_t value;

	for (size_t cursor = 0; table_next(&s->files, table_hash((uintptr_t)s, name, strlen(name)), &cursor, &value);) {
		*ret = (uint32_t)value;
		if (strcmp(s->tree.m->files[*ret].name, name) == 0)
			return 0;
	}
	return open_shard(s, name, ret);
}

static int
add_weight(struct shards *s, const struct json *weight)
{
	struct pawl_state *state = s->tree.m->state;
	const struct pawl_scalar key = {.type = PAWL_STR, .ptr = weight->key, .len = weight->key_len};
	struct foreign_pieces *pieces = bump_alloc(&s->tree.m->memory, sizeof(*pieces));
	const struct st_tensor *t;
	uint32_t file;

	if (!pieces)
		return err_nomem(s->err, s->index);
	if (weight->type != JSON_STRING)
		return err_set(s->err, PAWL_ECORRUPT, "%s: \"weight_map\": expected names of files", s->index);
	TRY(find_shard(s, weight->str, &file));
	t = find_tensor(s, file, weight->key);
	if (!t)
		return err_set(s->err, PAWL_ECORRUPT, "%s: it says that %.200s is in %s, which has no such tensor",
		               s->index, weight->key, weight->str);
	const struct pt_tensor view = {.dtype = t->dtype,
	                               .ndim = t->ndim,
	                               .shape = t->shape,
	                               .begin = s->tables[file].data_begin + t->begin,
	                               .nbytes = t->end - t->begin};
	TRY(foreign_add_pieces(&s->tree, file, 0, &view, NULL, pieces, s->err));
	TRY(pawl_state_key(state, &key, s->err));
	return foreign_add_tensor(&s->tree, t->dtype, t->ndim, t->shape, "", pieces, s->err);
}

/* Copies the plain values of the index's "metadata" and ignores all others. */
static int
add_metadata(struct shards *s, const struct json *metadata)
{
	struct manifest *m = s->tree.m;

	if (!metadata || metadata->type != JSON_OBJECT || metadata->len == 0)
		return 0;
	TRY(pawl_state_new(&m->metadata, s->err));
	TRY(pawl_state_begin(m->metadata, PAWL_DICT, s->err));
	for (const struct json *j = metadata->first; j; j = j->next) {
		const struct pawl_scalar key = {.type = PAWL_STR, .ptr = j->key, .len = j->key_len};
		struct pawl_scalar value = {.type = PAWL_STR, .ptr = j->str, .len = j->len};

		if (j->type == JSON_INT)
			value = (struct pawl_scalar){.type = PAWL_INT, .i = j->i};
		else if (j->type == JSON_REAL)
			value = (struct pawl_scalar){.type = PAWL_FLOAT, .f = j->real};
		else if (j->type != JSON_STRING)
			continue;
		TRY(pawl_state_key(m->metadata, &key, s->err));
		TRY(pawl_state_add(m->metadata, &value, s->err));
	}
	return pawl_state_end(m->metadata, s->err);
}

static int
read_index(struct shards *s)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const struct json_limits limits = {.max_bytes = MAX_INDEX_BYTES};
	const struct json *map;
	struct json *index;

	TRY(store_get(s->store, s->index, MAX_INDEX_BYTES, &text, s->err));
	TRY(json_parse(s->index, text.ptr, text.len, &limits, &s->memory, &index, s->err));
	TRY(json_get_type(s->index, index, "weight_map", JSON_OBJECT, &map, s->err));
	s->tables = bump_array(&s->memory, map->len < MAX_FILES ? map->len : MAX_FILES, sizeof(*s->tables));
	if (!s->tables)
		return err_nomem(s->err, s->index);
	TRY(pawl_state_begin(s->tree.m->state, PAWL_DICT, s->err));
	for (const struct json *w = map->first; w; w = w->next)
		TRY(add_weight(s, w));
	TRY(pawl_state_end(s->tree.m->state, s->err));
	TRY(add_metadata(s, json_get(index, "metadata")));
	return foreign_tree_finish(&s->tree, s->err);
}

static int
read_set(struct store *store, const char *index, const char *folder, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(clean_shards)
	struct shards s = {
		.store = store, .index = index, .folder = folder, .memory = {.limit_bytes = MAX_MEMORY}, .err = err};

	TRY(foreign_tree_begin(&s.tree, m, err));
	return read_index(&s);
}

static int
read_index_file(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	return read_set(store, key, "", m, err);
}

static int
read_folder(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_FREE char *index = mem_printf("%s/" FOREIGN_INDEX_NAME, key);

	if (!index)
		return err_nomem(err, key);
	return read_set(store, index, key, m, err);
}

const struct foreign_format foreign_index = {
	"safetensors shards", {".safetensors.index.json"}, NULL, NULL, read_index_file};
const struct foreign_format foreign_shards = {"safetensors shards", {NULL}, FOREIGN_INDEX_NAME, NULL, read_folder};
