/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp: see dcp.h.
 *
 *   Metadata(state_dict_metadata={name: TensorStorageMetadata(properties, size,
 *                    chunks=[ChunkStorageMetadata(offsets, sizes)]) | BytesStorageMetadata()},
 *            planner_data={name: (key, key or index, ..)},
 *            storage_data={MetadataIndex(fqn, offset, index):
 *                              _StorageInfo(relative_path, offset, length)}, ..)
 *
 * Objects are dicts of attributes. Attributes of later versions are ignored unless they change the
 * meaning of the bytes. storage_data is sorted by name and offset, so that every chunk finds its
 * range. By the memo many rows may name one object. The size of what is read for each row is
 * limited, so that the time does not grow with the square of the file. Promises P16, P17.
 */
#include "format/torch/dcp.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "format/torch/pt_names.h"

#define LOOK_BACK 16u       /* files */
#define MAX_ATTRIBUTES 128u /* of an object; torch writes fewer than 10 */
#define MAX_NAME_BYTES 4096u
#define MAX_PATH_KEYS 1000u

/* A row of storage_data. */
struct stored {
	const char *name;
	size_t name_len;
	const struct pickle_node *offset; /* a tuple, or NULL: a value */
	struct dcp_range range;
};

struct decoder {
	const char *what;
	struct bump *memory;
	struct stored *stored; /* ascending */
	size_t n_stored;
	struct dcp *out;
	size_t cap_files, n_chunks; /* n_chunks: of all tensors */
	struct pawl_error *err;
};

static int
refuse_metadata(const struct decoder *d, const char *why)
{
	return err_set(d->err, PAWL_ECORRUPT, "%s: %s", d->what, why);
}

static int
wrong_item(const struct decoder *d, const char *name, size_t len, const char *why)
{
	return err_set(d->err, PAWL_ECORRUPT, "%s: '%.*s': %s", d->what, (int)(len < 200 ? len : 200), name, why);
}

static int
check_name(const struct decoder *d, const struct pickle_node *name)
{
	return name->len <= MAX_NAME_BYTES
	               ? 0
	               : err_set(d->err, PAWL_ELIMIT, "%s: a name of %zu bytes, at most %u are possible", d->what,
	                         name->len, MAX_NAME_BYTES);
}

/* A dict with the attributes of an object. */
static int
check_attributes(const struct decoder *d, const struct pickle_node *dict)
{
	return !dict || dict->len / 2 <= MAX_ATTRIBUTES
	               ? 0
	               : err_set(d->err, PAWL_ELIMIT, "%s: an object of %zu attributes, at most %u are possible",
	                         d->what, dict->len / 2, MAX_ATTRIBUTES);
}

static int
check_dimensions(const struct decoder *d, const char *name, size_t len, size_t ndim)
{
	return ndim <= PAWL_MAX_DIMS
	               ? 0
	               : err_set(d->err, PAWL_ELIMIT, "%s: '%.*s' has %zu dimensions, at most %d are possible", d->what,
	                         (int)(len < 200 ? len : 200), name, ndim, PAWL_MAX_DIMS);
}

/* The attributes of an object of this class, or NULL. */
static const struct pickle_node *
attributes_of(const struct pickle_node *node, int tag)
{
	if (!node || node->type != PICKLE_CALL || node->global->tag != tag || node->args->len != 0 || !node->call_state)
		return NULL;
	return node->call_state->type == PICKLE_DICT ? node->call_state : NULL;
}

static const struct pickle_node *
get_attribute(const struct pickle_node *object, const char *name, int type)
{
	const struct pickle_node *node = pickle_get(object, name);

	return node && node->type == type ? node : NULL;
}

/* The tuple in a torch.Size, or NULL. */
static const struct pickle_node *
size_of(const struct pickle_node *node)
{
	if (!node || node->type != PICKLE_CALL || node->global->tag != PT_SIZE || node->args->len != 1 ||
	    node->args->items[0]->type != PICKLE_TUPLE)
		return NULL;
	return node->args->items[0];
}

static bool
get_count(const struct pickle_node *node, uint64_t *ret)
{
	if (!node || node->type != PICKLE_INT || node->text || node->i < 0)
		return false;
	*ret = (uint64_t)node->i;
	return true;
}

/* The extents of a torch.Size with ndim of them; NULL with an error set. */
static const uint64_t *
read_extents(struct decoder *d, const struct pickle_node *node, size_t ndim)
{
	const struct pickle_node *tuple = size_of(node);
	uint64_t *extents = bump_array(d->memory, ndim + 1, sizeof(*extents));

	if (!extents) {
		err_nomem(d->err, d->what);
		return NULL;
	}
	bool is_good = tuple && tuple->len == ndim;
	for (size_t i = 0; is_good && i < ndim; i++)
		is_good = get_count(tuple->items[i], &extents[i]);
	if (!is_good)
		refuse_metadata(d, "a shape or an offset is damaged");
	return is_good ? extents : NULL;
}

/* -------------------------------------------------------------- storage_data */

static int
compare_text(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int c = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return c ? c : (a_len > b_len) - (a_len < b_len);
}

static int
compare_stored(const void *pa, const void *pb)
{
	const struct stored *a = pa, *b = pb;
	int c = compare_text(a->name, a->name_len, b->name, b->name_len);

	if (c || !a->offset || !b->offset)
		return c ? c : (a->offset != NULL) - (b->offset != NULL);
	if (a->offset->len != b->offset->len)
		return a->offset->len < b->offset->len ? -1 : 1;
	for (size_t i = 0; i < a->offset->len; i++) {
		if (a->offset->items[i]->i != b->offset->items[i]->i)
			return a->offset->items[i]->i < b->offset->items[i]->i ? -1 : 1;
	}
	return 0;
}

/* The number of a file, by its name. Rows name few files, again and again. So only the newest are
 * searched, and duplicates are joined at the end. */
static int
find_file(struct decoder *d, const struct pickle_node *path, uint32_t *ret)
{
	struct dcp *out = d->out;
	char name[129];

	if (path->len == 0 || path->len >= sizeof(name) || memchr(path->text, 0, path->len))
		return refuse_metadata(d, "a file without a safe name");
	memcpy(name, path->text, path->len);
	name[path->len] = '\0';
	if (!text_is_component(name))
		return err_set(d->err, PAWL_ECORRUPT, "%s: file '%.128s' is not a safe name in the folder", d->what,
		               name);
	for (size_t i = out->n_files; i-- > 0;) {
		if (strcmp(out->files[i], name) == 0) {
			*ret = (uint32_t)i;
			return 0;
		}
		if (out->n_files - i == LOOK_BACK)
			break;
	}
	if (out->n_files == d->cap_files) {
		size_t cap = d->cap_files ? 2 * d->cap_files : 64;
		const char **bigger = bump_array(d->memory, cap, sizeof(*bigger));
		if (!bigger)
			return err_nomem(d->err, d->what);
		if (out->n_files > 0)
			memcpy(bigger, out->files, out->n_files * sizeof(*bigger));
		out->files = bigger;
		d->cap_files = cap;
	}
	out->files[out->n_files] = bump_strndup(d->memory, name, path->len);
	if (!out->files[out->n_files])
		return err_nomem(d->err, d->what);
	*ret = (uint32_t)out->n_files++;
	return 0;
}

static int
read_stored(struct decoder *d, const struct pickle_node *key, const struct pickle_node *value, struct stored *ret)
{
	const struct pickle_node *index = attributes_of(key, PT_DCP_INDEX),
				 *info = attributes_of(value, PT_DCP_STORAGE);
	TRY(check_attributes(d, index));
	TRY(check_attributes(d, info));
	const struct pickle_node *name = index ? get_attribute(index, "fqn", PICKLE_STR) : NULL;
	const struct pickle_node *offset = index ? pickle_get(index, "offset") : NULL;
	const struct pickle_node *path = info ? get_attribute(info, "relative_path", PICKLE_STR) : NULL;
	const struct pickle_node *transforms = info ? pickle_get(info, "transform_descriptors") : NULL;
	uint64_t unused;

	if (!name || !path || !get_count(pickle_get(info, "offset"), &ret->range.begin) ||
	    !get_count(pickle_get(info, "length"), &ret->range.nbytes))
		return refuse_metadata(d, "a row of storage_data is damaged");
	if (transforms && transforms->type != PICKLE_NONE && !(transforms->type == PICKLE_LIST && transforms->len == 0))
		return err_set(d->err, PAWL_EUNSUPPORTED,
		               "%s: '%.*s' was transformed (compressed) by an extension of the writer", d->what,
		               (int)(name->len < 200 ? name->len : 200), name->text);
	TRY(check_name(d, name));
	ret->name = name->text;
	ret->name_len = name->len;
	ret->offset = offset && offset->type != PICKLE_NONE ? size_of(offset) : NULL;
	if (offset && offset->type != PICKLE_NONE && !ret->offset)
		return wrong_item(d, name->text, name->len, "its offset is not a torch.Size");
	if (ret->offset)
		TRY(check_dimensions(d, name->text, name->len, ret->offset->len));
	for (size_t i = 0; ret->offset && i < ret->offset->len; i++) {
		if (!get_count(ret->offset->items[i], &unused))
			return wrong_item(d, name->text, name->len, "its offset is damaged");
	}
	return find_file(d, path, &ret->range.file);
}

struct file {
	const char *name;
	uint32_t was;
};

static int
compare_files(const void *pa, const void *pb)
{
	const struct file *a = pa, *b = pb;

	return strcmp(a->name, b->name);
}

/* Every file once, by name. */
static int
join_files(struct decoder *d)
{
	struct dcp *out = d->out;
	struct file *files = bump_array(d->memory, out->n_files, sizeof(*files));
	uint32_t *numbers = bump_array(d->memory, out->n_files, sizeof(*numbers)), n = 0;

	if (!files || !numbers)
		return err_nomem(d->err, d->what);
	for (size_t i = 0; i < out->n_files; i++)
		files[i] = (struct file){out->files[i], (uint32_t)i};
	if (out->n_files > 0)
		qsort(files, out->n_files, sizeof(*files), compare_files);
	for (size_t i = 0; i < out->n_files; i++) {
		if (i > 0 && strcmp(files[i - 1].name, files[i].name) != 0)
			n++;
		out->files[n] = files[i].name;
		numbers[files[i].was] = n;
	}
	out->n_files = out->n_files > 0 ? n + 1u : 0;
	for (size_t i = 0; i < d->n_stored; i++)
		d->stored[i].range.file = numbers[d->stored[i].range.file];
	return 0;
}

static int
read_storage(struct decoder *d, const struct pickle_node *table)
{
	const size_t n = table->len / 2;

	if (n > DCP_MAX_PIECES)
		return err_set(d->err, PAWL_ELIMIT, "%s: %zu pieces, at most %u are possible", d->what, n,
		               DCP_MAX_PIECES);
	d->stored = bump_array(d->memory, n, sizeof(*d->stored));
	if (!d->stored)
		return err_nomem(d->err, d->what);
	for (; d->n_stored < n; d->n_stored++)
		TRY(read_stored(d, table->items[2 * d->n_stored], table->items[2 * d->n_stored + 1],
		                &d->stored[d->n_stored]));
	TRY(join_files(d));
	if (n > 0)
		qsort(d->stored, n, sizeof(*d->stored), compare_stored);
	for (size_t i = 1; i < n; i++) {
		if (compare_stored(&d->stored[i - 1], &d->stored[i]) == 0)
			return wrong_item(d, d->stored[i].name, d->stored[i].name_len, "a piece is stored twice");
	}
	return 0;
}

static int
find_stored(struct decoder *d, const struct dcp_item *item, const struct pickle_node *offset, struct dcp_range *ret)
{
	const struct stored wanted = {.name = item->name, .name_len = item->name_len, .offset = offset};
	const struct stored *found =
		d->n_stored ? bsearch(&wanted, d->stored, d->n_stored, sizeof(wanted), compare_stored) : NULL;

	if (!found)
		return wrong_item(d, item->name, item->name_len, "storage_data does not say where it is stored");
	*ret = found->range;
	return 0;
}

/* --------------------------------------------------------------------- items */

static int
read_dtype(struct decoder *d, const struct pickle_node *object, struct dcp_item *item)
{
	const struct pickle_node *node = pickle_get(object, "properties"), *state;

	if (!node || node->type != PICKLE_CALL || node->global->tag != PT_DCP_PROPERTIES || !node->call_state)
		return wrong_item(d, item->name, item->name_len, "it has no properties");
	state = node->call_state;
	TRY(check_attributes(d, state->type == PICKLE_DICT ? state : NULL));
	/* (dtype, layout, requires_grad, memory format, pin_memory) */
	const struct pickle_node *dtype = state->type == PICKLE_TUPLE && state->len > 0 ? state->items[0]
	                                  : state->type == PICKLE_DICT                  ? pickle_get(state, "dtype")
	                                                                                : NULL;
	if (!dtype || dtype->type != PICKLE_GLOBAL || !pt_is_dtype(dtype->global->tag))
		return wrong_item(d, item->name, item->name_len, "it has no dtype");
	item->dtype = dtype->global->tag - PT_DTYPE;
	return item->dtype ? 0
	                   : err_set(d->err, PAWL_EUNSUPPORTED, "%s: '%.*s' is of torch.%s, which pawl does not have",
	                             d->what, (int)(item->name_len < 200 ? item->name_len : 200), item->name,
	                             dtype->global->name);
}

static int
read_chunk(struct decoder *d, const struct dcp_item *item, const struct pickle_node *node, struct dcp_chunk *ret)
{
	const struct pickle_node *object = attributes_of(node, PT_DCP_CHUNK);

	if (!object)
		return wrong_item(d, item->name, item->name_len, "a piece is damaged");
	TRY(check_attributes(d, object));
	ret->offsets = read_extents(d, pickle_get(object, "offsets"), item->ndim);
	ret->sizes = ret->offsets ? read_extents(d, pickle_get(object, "sizes"), item->ndim) : NULL;
	if (!ret->sizes)
		return d->err ? d->err->code : PAWL_ECORRUPT;
	for (uint32_t i = 0; i < item->ndim; i++) {
		if (ret->offsets[i] > item->shape[i] || ret->sizes[i] > item->shape[i] - ret->offsets[i])
			return wrong_item(d, item->name, item->name_len, "a piece is outside it");
	}
	return find_stored(d, item, size_of(pickle_get(object, "offsets")), &ret->range);
}

static int
read_tensor(struct decoder *d, const struct pickle_node *object, struct dcp_item *item)
{
	TRY(check_attributes(d, object));
	const struct pickle_node *shape = size_of(pickle_get(object, "size"));
	const struct pickle_node *chunks = get_attribute(object, "chunks", PICKLE_LIST);

	if (!shape || !chunks)
		return wrong_item(d, item->name, item->name_len, "it has no shape or no pieces");
	TRY(check_dimensions(d, item->name, item->name_len, shape->len));
	item->is_tensor = true;
	item->ndim = (uint32_t)shape->len;
	item->shape = read_extents(d, pickle_get(object, "size"), shape->len);
	if (!item->shape)
		return d->err ? d->err->code : PAWL_ECORRUPT;
	TRY(read_dtype(d, object, item));
	d->n_chunks += chunks->len;
	if (d->n_chunks > DCP_MAX_PIECES)
		return err_set(d->err, PAWL_ELIMIT, "%s: more than %u pieces", d->what, DCP_MAX_PIECES);
	item->chunks = bump_array(d->memory, chunks->len, sizeof(*item->chunks));
	if (!item->chunks)
		return err_nomem(d->err, d->what);
	for (; item->n_chunks < chunks->len; item->n_chunks++)
		TRY(read_chunk(d, item, chunks->items[item->n_chunks], &item->chunks[item->n_chunks]));
	return 0;
}

/* Where in the nested tree it belongs. */
static int
read_path(struct decoder *d, const struct pickle_node *path, struct dcp_item *item)
{
	if (path->type != PICKLE_TUPLE || path->len == 0)
		return wrong_item(d, item->name, item->name_len, "its path is not a tuple");
	if (path->len > MAX_PATH_KEYS)
		return err_set(d->err, PAWL_ELIMIT, "%s: '%.*s': nested deeper than %u", d->what,
		               (int)(item->name_len < 200 ? item->name_len : 200), item->name, MAX_PATH_KEYS);
	for (size_t i = 0; i < path->len; i++) {
		const struct pickle_node *key = path->items[i];
		uint64_t unused;

		if (key->type != PICKLE_STR && (i == 0 || !get_count(key, &unused)))
			return wrong_item(d, item->name, item->name_len,
			                  "its path holds something that is neither a key nor an index");
		if (key->type == PICKLE_STR)
			TRY(check_name(d, key));
	}
	item->path = path->items;
	item->n_path = path->len;
	return 0;
}

static int
read_item(struct decoder *d, const struct pickle_node *name, const struct pickle_node *value, struct dcp_item *item)
{
	if (name->type != PICKLE_STR)
		return refuse_metadata(d, "a name that is not text");
	TRY(check_name(d, name));
	item->name = name->text;
	item->name_len = name->len;
	const struct pickle_node *tensor = attributes_of(value, PT_DCP_TENSOR);
	if (tensor)
		return read_tensor(d, tensor, item);
	/* an object without attributes has no state */
	if (value->type != PICKLE_CALL || value->global->tag != PT_DCP_BYTES)
		return wrong_item(d, name->text, name->len, "it is neither a tensor nor a value");
	return find_stored(d, item, NULL, &item->range);
}

/* ---------------------------------------------------------------------- paths */

struct named {
	const struct pickle_node *name, *path;
};

static int
compare_named(const void *pa, const void *pb)
{
	const struct named *a = pa, *b = pb;

	return compare_text(a->name->text, a->name->len, b->name->text, b->name->len);
}

/* Every item's path from planner_data; without that table every name is a key. */
static int
read_paths(struct decoder *d, const struct pickle_node *planner)
{
	if (!planner || (planner->type != PICKLE_DICT && planner->type != PICKLE_ODICT) || planner->len == 0)
		return 0;
	const size_t n = planner->len / 2;
	struct named *rows = bump_array(d->memory, n, sizeof(*rows));
	if (!rows)
		return err_nomem(d->err, d->what);
	for (size_t i = 0; i < n; i++) {
		rows[i] = (struct named){planner->items[2 * i], planner->items[2 * i + 1]};
		if (rows[i].name->type != PICKLE_STR)
			return refuse_metadata(d, "planner_data: a name that is not text");
		TRY(check_name(d, rows[i].name));
	}
	qsort(rows, n, sizeof(*rows), compare_named);
	for (size_t i = 0; i < d->out->n; i++) {
		struct dcp_item *item = &d->out->items[i];
		const struct pickle_node name = {.type = PICKLE_STR, .text = item->name, .len = item->name_len};
		const struct named wanted = {.name = &name}, *found;

		found = bsearch(&wanted, rows, n, sizeof(wanted), compare_named);
		if (!found)
			return wrong_item(d, item->name, item->name_len, "planner_data does not say where it belongs");
		TRY(read_path(d, found->path, item));
	}
	return 0;
}

int
dcp_decode(const char *what, const void *ptr, size_t len, struct bump *memory, struct dcp *ret, struct pawl_error *err)
{
	struct decoder d = {.what = what, .memory = memory, .out = ret, .err = err};
	struct pickle_node *root;

	*ret = (struct dcp){0};
	TRY(pickle_decode(what, ptr, len, pt_globals, pt_n_globals, memory, &root, err));
	const struct pickle_node *metadata = attributes_of(root, PT_DCP_METADATA);
	const struct pickle_node *state = metadata ? get_attribute(metadata, "state_dict_metadata", PICKLE_DICT) : NULL;
	const struct pickle_node *storage = metadata ? get_attribute(metadata, "storage_data", PICKLE_DICT) : NULL;
	if (!state || !storage)
		return refuse_metadata(
			&d, "expected the metadata of a distributed checkpoint of torch, found something else");
	TRY(read_storage(&d, storage));
	if (state->len / 2 > DCP_MAX_PIECES)
		return err_set(err, PAWL_ELIMIT, "%s: more than %u values", what, DCP_MAX_PIECES);
	ret->items = bump_array(memory, state->len / 2, sizeof(*ret->items));
	if (!ret->items)
		return err_nomem(err, what);
	for (; ret->n < state->len / 2; ret->n++)
		TRY(read_item(&d, state->items[2 * ret->n], state->items[2 * ret->n + 1], &ret->items[ret->n]));
	return read_paths(&d, pickle_get(metadata, "planner_data"));
}
