/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_safetensors: a .safetensors file, or a folder with a model in one, as a checkpoint. Its
 * state is one flat dict: a tensor's name is one key, even with '/' or '.' in it. A file that pawl
 * wrote becomes the tree that was saved (foreign_own.c). Promises P1 (the ranges of a file without
 * checksums tile it exactly) and P17 (the limits of the decoders).
 */
#include <string.h>

#include "base/err.h"
#include "foreign/foreign_formats.h"
#include "format/safetensors/safetensors.h"
#include "read/compressed_pack.h"

#define BLOCK_BYTES ((uint64_t)1 << 20) /* of reading; nothing is checksummed */
#define MODEL_NAME "model.safetensors"

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
looks_like_safetensors(const unsigned char *first, size_t n, uint64_t file_nbytes)
{
	uint64_t json_len;

	return n >= 9 && first[8] == '{' && safetensors_header_len("", first, file_nbytes, &json_len, NULL) == 0;
}

static int
read_file(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
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
read_folder(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf file = {0};

	buf_printf(&file, "%s/" MODEL_NAME, key);
	TRY(buf_check(&file, key, err));
	TRY(read_file(store, buf_str(&file), m, err));
	m->files[0].name = MODEL_NAME;
	return 0;
}

const struct foreign_format foreign_safetensors = {
	"safetensors", {".safetensors"}, NULL, looks_like_safetensors, read_file};
const struct foreign_format foreign_model_folder = {"safetensors", {NULL}, MODEL_NAME, NULL, read_folder};
