/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign: see foreign.h. Finds the format of a path and has its reader build the manifest:
 *
 *   stat -> format by name or first bytes -> its reader: header -> state, tensor table, files
 *        -> manifest
 *
 * The reader of safetensors is in this file. Its state is one flat dict: a tensor's name is one
 * key, even with '/' or '.' in it. A file that pawl wrote becomes the tree that was saved
 * (foreign_own.c). Promises P1 (the ranges of a file without checksums tile it exactly) and P17
 * (the limits of the decoders).
 */
#include "foreign/foreign.h"

#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "foreign/foreign_formats.h"
#include "foreign/unpacked.h"
#include "format/safetensors/safetensors.h"
#include "read/compressed_pack.h"

#define BLOCK_BYTES ((uint64_t)1 << 20) /* of reading; nothing is checksummed */
#define MODEL_NAME "model.safetensors"
#define SNIFF_BYTES 256u

struct foreign_format {
	const char *name;
	const char *suffixes[3]; /* of file names */
	const char *mark;        /* of folders: this file is in it, and no manifest of pawl; NULL = it is a file */
	/* Is it a file of this format, judging by its first n bytes (at most SNIFF_BYTES)? */
	bool (*looks)(const unsigned char *first, size_t n, uint64_t file_nbytes);
	/* Fills in state, metadata, tensors, files and their numbers. */
	int (*read)(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
};

/* ------------------------------------------------------- parts of manifests */

static int
add_file(struct manifest *m, const char *key, uint64_t nbytes, struct pawl_error *err)
{
	m->files = bump_array(&m->memory, 1, sizeof(*m->files));
	char *name = bump_strndup(&m->memory, key, strlen(key));
	if (!m->files || !name)
		return err_nomem(err, key);
	m->files[0] = (struct manifest_file){.name = name,
	                                     .nbytes = nbytes,
	                                     .block_bytes = BLOCK_BYTES,
	                                     .n_blocks = (size_t)(nbytes / BLOCK_BYTES + (nbytes % BLOCK_BYTES != 0))};
	m->n_files = 1;
	m->bytes = m->new_bytes = nbytes;
	return 0;
}

/* A leaf of the open dict. path: scratch. */
static int
add_leaf(struct pawl_state *state, const struct st_tensor *st, struct buf *path, struct pawl_error *err)
{
	const struct pawl_scalar key = {.type = PAWL_STR, .ptr = st->name, .len = strlen(st->name)};

	TRY(pawl_state_key(state, &key, err));
	path->len = 0;
	state_put_key(path, &key);
	TRY(buf_check(path, st->name, err));
	TRY(state_add_named(state, PAWL_TENSOR, buf_str(path), "", err));
	return state_describe_tensor(state, &state->tensors[state->n_tensors - 1], st->dtype, st->ndim, st->shape, err);
}

static int
add_state(struct manifest *m, const struct st_table *table, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf path = {0};

	TRY(pawl_state_new(&m->state, err));
	TRY(pawl_state_begin(m->state, PAWL_DICT, err));
	for (size_t i = 0; i < table->n_tensors; i++)
		TRY(add_leaf(m->state, &table->tensors[i], &path, err));
	return pawl_state_end(m->state, err);
}

static int
add_metadata(struct manifest *m, const struct st_table *table, struct pawl_error *err)
{
	if (table->n_metadata == 0)
		return 0;
	TRY(pawl_state_new(&m->metadata, err));
	TRY(pawl_state_begin(m->metadata, PAWL_DICT, err));
	for (size_t i = 0; i < table->n_metadata; i++) {
		const struct st_pair *pair = &table->metadata[i];
		const struct pawl_scalar key = {.type = PAWL_STR, .ptr = pair->key, .len = strlen(pair->key)};
		const struct pawl_scalar value = {.type = PAWL_STR, .ptr = pair->value, .len = pair->value_len};

		TRY(pawl_state_key(m->metadata, &key, err));
		TRY(pawl_state_add(m->metadata, &value, err));
	}
	return pawl_state_end(m->metadata, err);
}

/* One piece of file 0 per tensor, for the complete tensor. */
static int
add_rows(struct manifest *m, const char *key, const struct st_table *table, struct pawl_error *err)
{
	struct manifest_piece *pieces = bump_array(&m->memory, table->n_tensors, sizeof(*pieces));
	uint64_t *origin = bump_array(&m->memory, PAWL_MAX_DIMS, sizeof(*origin));

	m->tensors = bump_array(&m->memory, table->n_tensors, sizeof(*m->tensors));
	if (!pieces || !origin || !m->tensors)
		return err_nomem(err, key);
	m->n_tensors = table->n_tensors;
	for (size_t i = 0; i < table->n_tensors; i++) {
		const struct st_tensor *st = &table->tensors[i];
		const struct pawl_tensor_info *info = &m->state->tensors[i].info;

		pieces[i] = (struct manifest_piece){.begin = table->data_begin + st->begin,
		                                    .nbytes = info->nbytes,
		                                    .offsets = origin,
		                                    .lengths = info->shape};
		m->tensors[i] = (struct manifest_tensor){.name = info->name,
		                                         .dtype = info->dtype,
		                                         .ndim = info->ndim,
		                                         .shape = info->shape,
		                                         .nbytes = info->nbytes,
		                                         .n_pieces = 1,
		                                         .pieces = &pieces[i]};
	}
	return 0;
}

/* ------------------------------------------------------------- safetensors */

static bool
looks_safetensors(const unsigned char *first, size_t n, uint64_t file_nbytes)
{
	uint64_t json_len;

	return n >= 9 && first[8] == '{' && st_header_len("", first, file_nbytes, &json_len, NULL) == 0;
}

static int
read_safetensors(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	struct st_table table;
	uint64_t nbytes;

	TRY(compressed_pack_read_header(store, key, &m->memory, &table, &nbytes, err));
	TRY(add_file(m, key, nbytes, err));
	int rc = foreign_own_read(&table, m, err);
	if (rc == 1)
		return 0;
	if (rc == 0)
		rc = add_state(m, &table, err);
	if (rc == 0)
		rc = add_metadata(m, &table, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", key);
	return add_rows(m, key, &table, err);
}

/* A folder with a model in one file, the layout of Hugging Face programs. */
static int
read_model_folder(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf file = {0};

	buf_printf(&file, "%s/" MODEL_NAME, key);
	TRY(buf_check(&file, key, err));
	TRY(read_safetensors(store, buf_str(&file), m, err));
	m->files[0].name = MODEL_NAME;
	return 0;
}

/* ------------------------------------------------------------- all formats */

static const struct foreign_format formats[] = {
	{"safetensors", {".safetensors"}, NULL, looks_safetensors, read_safetensors},
	{"numpy.savez", {".npz"}, NULL, foreign_npz_looks, foreign_npz_read},
	{"numpy.save", {".npy"}, NULL, foreign_npy_looks, foreign_npy_read},
	{"torch.save", {".pt", ".pth"}, NULL, foreign_pt_looks, foreign_pt_read},
	{"torch.distributed.checkpoint", {NULL}, ".metadata", NULL, foreign_dcp_read},
	{"safetensors shards", {".safetensors.index.json"}, NULL, NULL, foreign_index_read},
	{"safetensors shards", {NULL}, FOREIGN_INDEX_NAME, NULL, foreign_shards_read},
	{"safetensors", {NULL}, MODEL_NAME, NULL, read_model_folder},
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static bool
ends_with(const char *text, const char *suffix)
{
	size_t len = strlen(text), n = strlen(suffix);

	return len >= n && strcmp(text + len - n, suffix) == 0;
}

static int
sniff(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
      struct pawl_error *err)
{
	PAWL_CLEAN(store_opened_close) struct store_opened f = {.store = store};
	unsigned char first[SNIFF_BYTES];
	uint64_t nbytes;

	int rc = store_open_reader(store, key, &f.reader, &nbytes, err);

	if (rc == PAWL_EUNSUPPORTED)
		return err_set(err, rc, "%s is neither a folder nor a regular file", given);
	TRY(rc);
	size_t n = nbytes < sizeof(first) ? (size_t)nbytes : sizeof(first);
	if (n > 0)
		TRY(store_read(store, f.reader, 0, first, n, err));
	for (size_t i = 0; i < N_FORMATS; i++) {
		if (formats[i].looks && formats[i].looks(first, n, nbytes)) {
			*ret = &formats[i];
			return 0;
		}
	}
	return err_set(
		err, PAWL_ENOTFOUND,
		"%s is not a checkpoint: expected a checkpoint's folder, or a file of safetensors, torch.save or numpy",
		given);
}

/* Does the folder have this file? */
static int
holds(struct store *store, const char *folder, const char *name, bool *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store_entry entry;

	buf_printf(&key, "%s/%s", folder, name);
	TRY(buf_check(&key, folder, err));
	int rc = store_stat(store, buf_str(&key), &entry, err);
	*ret = rc == 0 && !entry.is_folder;
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

static int
detect_folder(struct store *store, const char *key, const struct foreign_format **ret, struct pawl_error *err)
{
	bool found;

	*ret = NULL;
	TRY(holds(store, key, MANIFEST_NAME, &found, err));
	for (size_t i = 0; i < N_FORMATS && !found; i++) {
		if (!formats[i].mark) /* the first one found counts */
			continue;
		TRY(holds(store, key, formats[i].mark, &found, err));
		if (found)
			*ret = &formats[i];
	}
	return 0;
}

bool
foreign_is_folder(const struct foreign_format *format)
{
	return format->mark != NULL;
}

int
foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
               struct pawl_error *err)
{
	struct store_entry entry;
	int rc = store_stat(store, key, &entry, err);

	*ret = NULL;
	if (rc == PAWL_ENOTFOUND || (rc == 0 && entry.is_link))
		return 0;
	TRY(rc);
	if (entry.is_folder)
		return detect_folder(store, key, ret, err);
	PAWL_FREE char *name = mem_strndup(given, unpacked_name_len(given)); /* "m.pt.zst" is a .pt */
	if (!name)
		return err_nomem(err, given);
	for (size_t i = 0; i < N_FORMATS; i++) {
		for (size_t k = 0; k < 3 && formats[i].suffixes[k]; k++) {
			if (ends_with(name, formats[i].suffixes[k])) {
				*ret = &formats[i];
				return 0;
			}
		}
	}
	return sniff(store, key, given, ret, err);
}

int
foreign_manifest(const struct foreign_format *format, struct store *store, const char *key, struct manifest **ret,
                 struct pawl_error *err)
{
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = mem_zalloc(1, sizeof(*m));
	PAWL_CLEAN(buf_clear) struct buf self_key = {0};
	struct store_entry entry;

	buf_printf(&self_key, "%s%s%s", key, format->mark ? "/" : "", format->mark ? format->mark : "");
	if (!m || self_key.failed)
		return err_nomem(err, key);
	TRY(store_stat(store, buf_str(&self_key), &entry, err));
	m->format = format->name;
	m->id = 1;
	m->world_size = 1;
	m->unix_ns = entry.mtime_ns;
	m->progress = (struct pawl_progress)PAWL_PROGRESS_INIT;
	/* Identifies this very file, so that a replacement is noticed. */
	const uint64_t self[2] = {entry.nbytes, (uint64_t)entry.mtime_ns};
	sum_to_hex(sum_bytes(self, sizeof(self)), m->token);
	TRY(format->read(store, key, m, err));
	*ret = steal(&m);
	return 0;
}
