/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export: writes tensors of a checkpoint as one safetensors file, or as a shard set with an index as the Hugging Face
 * libraries read it. Called by users (pawl_export); calls restore (to pick and hold), walk, safetensors and fetch.
 *
 *   select and name tensors ──> share them out to files ──> write each under a hidden name ──> rename all, index last
 *
 * Memory: one slab and the reading buffers (P16). Every byte is checked before it is written (P1). Files appear whole
 * and durable or not at all; nothing is replaced unless asked for. Tied tensors are written once, under their first
 * name.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fileio.h"
#include "base/json.h"
#include "format/safetensors.h"
#include "restore.h"
#include "table.h"
#include "walk.h"

#define SLAB_BYTES ((uint64_t)32 << 20)
#define RING_BYTES (32u << 20)
#define FILE_SUFFIX ".safetensors"
#define INDEX_NAME "model.safetensors.index.json"

/* A tensor that is exported. */
struct item {
	size_t tensor; /* row of the manifest */
	const char *name;
	uint64_t nbytes;
	size_t shard;
};

struct shard {
	char *name;      /* of the file */
	size_t first, n; /* items */
	char temp[48];   /* hidden name it is written under; "" = none (any more) */
};

struct exporter {
	struct pawl_restore *r;
	struct pawl_export_opts opts;
	struct pawl_meter *meter;
	struct bump memory;
	struct item *items;
	size_t n_items;
	struct table by_name;
	bool *taken; /* per row of the manifest */
	struct shard *shards;
	size_t n_shards;
	char *folder, *file; /* of the target; file NULL = a shard set */
	bool made_folder;    /* and not yet all that belongs into it */
	int dir_fd;
	struct fetch *fetch;
	char *slab;
	struct reshard_binding *bindings;
	struct st_pair *notes; /* metadata of every file: tied names, and what complex128 became */
	size_t n_notes;
};

static void
exporter_clear(struct exporter *x)
{
	for (size_t i = 0; i < x->n_shards; i++) {
		if (x->shards[i].temp[0])
			unlinkat(x->dir_fd, x->shards[i].temp, 0);
	}
	fd_clean_close(&x->dir_fd);
	if (x->made_folder)
		rmdir(x->folder); /* only if it is empty */
	fetch_free(x->fetch);
	mem_free(x->slab);
	mem_free(x->bindings);
	mem_free(x->notes);
	mem_free(x->items);
	mem_free(x->taken);
	mem_free(x->shards);
	table_clear(&x->by_name);
	pawl_restore_close(x->r);
	bump_clear(&x->memory);
}

static int
no_memory(struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "export: out of memory");
}

/* ---- what, under which names ---- */

static int
hex_value(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The name of a path: without the prefix, with dots if asked for, keys as they were before they were escaped. */
static char *
export_name(struct exporter *x, const char *path)
{
	const char *prefix = x->opts.strip_prefix ? x->opts.strip_prefix : "";
	if (strncmp(path, prefix, strlen(prefix)) == 0)
		path += strlen(prefix);
	char *name = bump_strndup(&x->memory, path, strlen(path)), *to = name;
	for (const char *from = name; from && *from; from++, to++) {
		int high = *from == '%' ? hex_value(from[1]) : -1, low = high >= 0 ? hex_value(from[2]) : -1;
		*to = *from == '/' && x->opts.dots ? '.' : *from;
		if (low >= 0 && high * 16 + low != 0) {
			*to = (char)(high * 16 + low);
			from += 2;
		}
	}
	if (to)
		*to = '\0';
	return name;
}

static struct item *
find_item(const struct exporter *x, const char *name)
{
	const uint64_t hash = table_hash((uint64_t)(uintptr_t)x, name, strlen(name));
	uintptr_t i;
	for (size_t cursor = 0; table_next(&x->by_name, hash, &cursor, &i);) {
		if (strcmp(x->items[i].name, name) == 0)
			return &x->items[i];
	}
	return NULL;
}

static int
add_note(struct exporter *x, const char *key, const char *value, struct pawl_error *err)
{
	for (size_t i = 0; i < x->n_notes; i++) {
		if (strcmp(x->notes[i].key, key) == 0)
			return 0;
	}
	struct st_pair *more = mem_resize(x->notes, x->n_notes + 1, sizeof *more);
	if (!more)
		return no_memory(err);
	x->notes = more;
	x->notes[x->n_notes++] = (struct st_pair){.key = key, .value = value, .value_len = strlen(value)};
	return 0;
}

/* A second name of a tensor: the files hold the tensor once, and their metadata says which name to look under, as
 * programs that write shared weights to safetensors do. */
static int
note_tie(struct exporter *x, const char *path, size_t tensor, struct pawl_error *err)
{
	const char *name = export_name(x, path), *kept = NULL;
	for (size_t i = 0; i < x->n_items && !kept; i++) {
		if (x->items[i].tensor == tensor)
			kept = x->items[i].name;
	}
	return name && kept ? add_note(x, name, kept, err) : no_memory(err);
}

/* "pawl.tensors", as in packs: what the header cannot say of complex128, which is written as pairs of F64. */
static int
note_complex(struct exporter *x, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	for (size_t i = 0; i < x->n_items; i++) {
		const struct manifest_tensor *t = &x->r->manifest->tensors[x->items[i].tensor];
		if (t->dtype != PAWL_C128)
			continue;
		buf_putc(&text, text.len ? ',' : '{');
		json_put_string(&text, x->items[i].name, strlen(x->items[i].name));
		buf_puts(&text, ":{\"dtype\":\"C128\",\"shape\":[");
		for (uint32_t d = 0; d < t->ndim; d++) {
			if (d)
				buf_putc(&text, ',');
			json_put_u64(&text, t->shape[d]);
		}
		buf_puts(&text, "]}");
	}
	if (!text.len)
		return 0;
	buf_putc(&text, '}');
	TRY(buf_check(&text, "export", err));
	const char *kept = bump_strndup(&x->memory, text.ptr, text.len);
	return kept ? add_note(x, "pawl.tensors", kept, err) : no_memory(err);
}

static int
see_leaf(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct exporter *x = arg;
	const size_t tensor = leaf->node->tensor;
	if (leaf->node->type != PAWL_TENSOR || !walk_included(x->opts.include, x->opts.n_include, leaf->path))
		return 0;
	if (x->taken[tensor])
		return note_tie(x, leaf->path, tensor, err);
	struct item item = {
		.tensor = tensor, .name = export_name(x, leaf->path), .nbytes = x->r->manifest->tensors[tensor].nbytes};
	if (!item.name)
		return no_memory(err);
	if (!item.name[0])
		return err_set(err, PAWL_EUSAGE, "export: nothing is left of the name of %s", leaf->path);
	if (find_item(x, item.name))
		return err_set(err, PAWL_EEXISTS, "export: two tensors would get the name %s (the second is %s)",
		               item.name, leaf->path);
	if (table_reserve(&x->by_name, 1) < 0)
		return no_memory(err);
	table_add(&x->by_name, table_hash((uint64_t)(uintptr_t)x, item.name, strlen(item.name)), x->n_items);
	x->taken[tensor] = true;
	x->items[x->n_items++] = item;
	return 0;
}

static int
select_items(struct exporter *x, struct pawl_error *err)
{
	const struct manifest *m = x->r->manifest;
	x->items = mem_zalloc((size_t)m->n_tensors, sizeof *x->items);
	x->taken = mem_zalloc((size_t)m->n_tensors, sizeof *x->taken);
	x->bindings = mem_zalloc((size_t)m->n_tensors, sizeof *x->bindings);
	if (!x->items || !x->taken || !x->bindings)
		return no_memory(err);
	TRY(add_note(x, "format", "pt", err));
	TRY(walk_leaves(m->state->root, see_leaf, x, err));
	TRY(note_complex(x, err));
	if (x->n_items == 0)
		return err_set(err, PAWL_ENOTFOUND, "%s has no tensor%s", x->r->info.name,
		               x->opts.n_include ? " that is asked for" : " to export");
	return 0;
}

/* ---- into which files ---- */

/* Fills the files one after the other; a tensor larger than the limit gets one of its own. */
static int
share_out(struct exporter *x, struct pawl_error *err)
{
	const uint64_t most = x->opts.max_shard_bytes;
	uint64_t used = 0;
	x->shards = mem_zalloc(x->n_items, sizeof *x->shards);
	if (!x->shards)
		return no_memory(err);
	for (size_t i = 0; i < x->n_items; i++) {
		uint64_t nbytes = x->items[i].nbytes;
		if (i == 0 || (most > 0 && used > 0 && (nbytes > most || used > most - nbytes))) {
			x->shards[x->n_shards++].first = i;
			used = 0;
		}
		used += nbytes;
		x->items[i].shard = x->n_shards - 1;
		x->shards[x->n_shards - 1].n++;
	}
	for (size_t i = 0; i < x->n_shards; i++) {
		struct shard *s = &x->shards[i];
		if (x->file)
			s->name = bump_strndup(&x->memory, x->file, strlen(x->file));
		else if (x->n_shards == 1)
			s->name = bump_printf(&x->memory, "model" FILE_SUFFIX);
		else
			s->name = bump_printf(&x->memory, "model-%05zu-of-%05zu" FILE_SUFFIX, i + 1, x->n_shards);
		if (!s->name)
			return no_memory(err);
	}
	return 0;
}

/* Splits the target into a folder, which is opened (and made for a shard set), and a file name. */
static int
open_target(struct exporter *x, const char *target, struct pawl_error *err)
{
	struct stat st;
	const bool is_folder = (stat(target, &st) == 0 && S_ISDIR(st.st_mode)) || target[strlen(target) - 1] == '/' ||
	                       x->opts.max_shard_bytes > 0;
	const char *slash = strrchr(target, '/');
	if (is_folder)
		x->folder = bump_strndup(&x->memory, target, strlen(target));
	else if (slash)
		x->folder = bump_strndup(&x->memory, target, slash == target ? 1 : (size_t)(slash - target));
	else
		x->folder = bump_strndup(&x->memory, ".", 1);
	if (!is_folder)
		x->file = bump_printf(&x->memory, "%s", slash ? slash + 1 : target);
	if (!x->folder || (!is_folder && !x->file))
		return no_memory(err);
	if (is_folder) {
		x->made_folder = stat(target, &st) < 0;
		TRY(fd_mkdirs(AT_FDCWD, x->folder, err));
	}
	x->dir_fd = open(x->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return x->dir_fd < 0 ? err_sys(err, errno, "export: %s", x->folder) : 0;
}

static int
check_free(const struct exporter *x, const char *name, struct pawl_error *err)
{
	struct stat st;
	if (x->opts.overwrite || fstatat(x->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	return err_set(err, PAWL_EEXISTS, "export: %s/%s exists already", x->folder, name);
}

static int
check_all_free(const struct exporter *x, struct pawl_error *err)
{
	for (size_t i = 0; i < x->n_shards; i++)
		TRY(check_free(x, x->shards[i].name, err));
	return x->n_shards > 1 ? check_free(x, INDEX_NAME, err) : 0;
}

/* ---- writing ---- */

/* A new file under a hidden name, which is left in temp; fd, or a code. */
static int
create_temp(const struct exporter *x, char temp[48], struct pawl_error *err)
{
	char token[33], name[48];
	TRY(clock_token(token, err));
	snprintf(name, sizeof name, ".%s.partial", token);
	int fd = openat(x->dir_fd, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return err_sys(err, errno, "export: %s/%s", x->folder, name);
	memcpy(temp, name, sizeof name);
	return fd;
}

/* The shard's table in the order of the format; complex128 goes as pairs of F64. */
static int
make_table(struct exporter *x, const struct shard *s, struct bump *memory, struct st_tensor **ret, uint64_t *ret_nbytes,
           struct pawl_error *err)
{
	struct st_tensor *tensors = bump_array(memory, s->n, sizeof *tensors);
	if (!tensors)
		return no_memory(err);
	for (size_t i = 0; i < s->n; i++) {
		const struct item *item = &x->items[s->first + i];
		const struct manifest_tensor *t = &x->r->manifest->tensors[item->tensor];
		tensors[i] =
			(struct st_tensor){.name = item->name, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape};
		if (t->dtype != PAWL_C128)
			continue;
		uint64_t *shape = bump_array(memory, (uint64_t)t->ndim + 1, sizeof *shape);
		if (!shape)
			return no_memory(err);
		memcpy(shape, t->shape, t->ndim * sizeof *shape);
		shape[t->ndim] = 2;
		tensors[i].dtype = PAWL_F64;
		tensors[i].shape = shape;
		tensors[i].ndim++;
	}
	TRY(st_layout(tensors, s->n, ret_nbytes, err));
	*ret = tensors;
	return 0;
}

static void
clean_plan(struct reshard_plan **plan)
{
	reshard_free(*plan);
}

/* Reads bytes [begin, end) of the shard's data into the slab. first: the first tensor that ends after begin. */
static int
fill_slab(struct exporter *x, const struct st_tensor *tensors, size_t n, size_t first, uint64_t begin, uint64_t end,
          struct pawl_error *err)
{
	PAWL_CLEAN(clean_plan) struct reshard_plan *plan = NULL;
	const struct manifest *m = x->r->manifest;
	size_t n_bindings = 0;
	for (size_t i = first; i < n && tensors[i].begin < end; i++) {
		const struct st_tensor *t = &tensors[i];
		const size_t row = find_item(x, t->name)->tensor;
		uint64_t from = t->begin > begin ? t->begin : begin, to = t->end < end ? t->end : end;
		if (from >= to)
			continue;
		struct pawl_tensor dst = {.size = sizeof dst,
		                          .dtype = m->tensors[row].dtype,
		                          .ndim = m->tensors[row].ndim,
		                          .shape = m->tensors[row].shape,
		                          .data = x->slab + (from - begin)};
		x->bindings[n_bindings++] = (struct reshard_binding){
			.tensor = row, .dst = dst, .contiguous = true, .begin = from - t->begin, .end = to - t->begin};
	}
	TRY(reshard_plan(m, x->bindings, n_bindings, fetch_unit_bytes(x->fetch, end - begin), &plan, err));
	struct fetch_job job = {
		.name = x->r->info.name, .folder = x->r->folder, .manifest = m, .plan = plan, .bindings = x->bindings};
	return fetch_run(x->fetch, &job, err);
}

static int
write_data(struct exporter *x, int fd, const struct st_tensor *tensors, size_t n, uint64_t data_begin, uint64_t nbytes,
           const char *what, struct pawl_error *err)
{
	size_t first = 0;
	for (uint64_t at = 0; at < nbytes;) {
		uint64_t end = nbytes - at < SLAB_BYTES ? nbytes : at + SLAB_BYTES;
		if (x->meter && __atomic_load_n(&x->meter->cancel, __ATOMIC_RELAXED))
			return err_set(err, PAWL_ECANCELLED, "export: cancelled");
		while (first < n && tensors[first].end <= at)
			first++;
		TRY(fill_slab(x, tensors, n, first, at, end, err));
		TRY(fd_pwrite_all(fd, x->slab, (size_t)(end - at), data_begin + at, what, err));
		if (x->meter)
			__atomic_fetch_add(&x->meter->done_bytes, end - at, __ATOMIC_RELAXED);
		at = end;
	}
	return 0;
}

static int
write_shard(struct exporter *x, struct shard *s, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	struct st_tensor *tensors = NULL;
	uint64_t nbytes = 0;
	TRY(make_table(x, s, &memory, &tensors, &nbytes, err));
	TRY(st_encode_header(tensors, s->n, x->notes, x->n_notes, &header, err));
	TRY(buf_check(&header, s->name, err));
	PAWL_FD int fd = create_temp(x, s->temp, err);
	TRY(fd);
	TRY(fd_pwrite_all(fd, header.ptr, header.len, 0, s->name, err));
	TRY(write_data(x, fd, tensors, s->n, header.len, nbytes, s->name, err));
	TRY(fd_sync(fd, s->name, err));
	return fd_close(&fd, s->name, err);
}

static int
write_index(struct exporter *x, char temp[48], struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	uint64_t total = 0;
	for (size_t i = 0; i < x->n_items; i++)
		total += x->items[i].nbytes;
	buf_printf(&text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", total);
	for (size_t i = 0; i < x->n_items; i++) {
		buf_puts(&text, i ? ",\n    " : "\n    ");
		json_put_string(&text, x->items[i].name, strlen(x->items[i].name));
		buf_printf(&text, ": \"%s\"", x->shards[x->items[i].shard].name);
	}
	buf_puts(&text, "\n  }\n}\n");
	TRY(buf_check(&text, INDEX_NAME, err));
	PAWL_FD int fd = create_temp(x, temp, err);
	TRY(fd);
	TRY(fd_pwrite_all(fd, text.ptr, text.len, 0, INDEX_NAME, err));
	TRY(fd_sync(fd, INDEX_NAME, err));
	return fd_close(&fd, INDEX_NAME, err);
}

/* Gives a finished file its name. Without overwrite a link, which never replaces; where links do not work, a rename. */
static int
reveal(const struct exporter *x, char temp[48], const char *name, struct pawl_error *err)
{
	if (!x->opts.overwrite) {
		if (linkat(x->dir_fd, temp, x->dir_fd, name, 0) == 0) {
			unlinkat(x->dir_fd, temp, 0);
			temp[0] = '\0';
			return 0;
		}
		TRY(check_free(x, name, err));
	}
	if (renameat(x->dir_fd, temp, x->dir_fd, name) < 0)
		return err_sys(err, errno, "export: %s/%s", x->folder, name);
	temp[0] = '\0';
	return 0;
}

/* An old index goes first and the new one comes last, so that a set is never seen half replaced. */
static int
reveal_all(struct exporter *x, char index_temp[48], struct pawl_error *err)
{
	if (!x->file && x->opts.overwrite && unlinkat(x->dir_fd, INDEX_NAME, 0) < 0 && errno != ENOENT)
		return err_sys(err, errno, "export: %s/" INDEX_NAME, x->folder);
	for (size_t i = 0; i < x->n_shards; i++)
		TRY(reveal(x, x->shards[i].temp, x->shards[i].name, err));
	if (index_temp[0]) {
		TRY(fd_sync(x->dir_fd, x->folder, err));
		TRY(reveal(x, index_temp, INDEX_NAME, err));
	}
	return fd_sync(x->dir_fd, x->folder, err);
}

/* ---- the whole ---- */

static int
take_options(struct exporter *x, const struct pawl_export_opts *opts, struct pawl_error *err)
{
	if (opts && !opts->size)
		return err_set(err, PAWL_EUSAGE, "export: the options have no size; start from PAWL_EXPORT_OPTS_INIT");
	if (opts)
		memcpy(&x->opts, opts, opts->size < sizeof x->opts ? opts->size : sizeof x->opts);
	return 0;
}

static int
open_source(struct exporter *x, struct pawl *run, uint64_t id, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	PAWL_FREE char *selector = id ? mem_printf("id:%" PRIu64, id) : NULL;
	if (id && !selector)
		return no_memory(err);
	opts.selector = selector;
	opts.no_fallback = 1;
	TRY(pawl_restore_open(run, &opts, &x->r, err));
	TRY(fetch_new(run->reads, run->opts.io_threads, RING_BYTES, &x->fetch, err));
	x->slab = mem_alloc(SLAB_BYTES);
	return x->slab ? 0 : no_memory(err);
}

static int
write_all(struct exporter *x, struct pawl_error *err)
{
	char index_temp[48] = "";
	if (x->meter) {
		uint64_t total = 0;
		for (size_t i = 0; i < x->n_items; i++)
			total += x->items[i].nbytes;
		__atomic_store_n(&x->meter->total_bytes, total, __ATOMIC_RELAXED);
	}
	for (size_t i = 0; i < x->n_shards; i++)
		TRY(write_shard(x, &x->shards[i], err));
	int rc = x->n_shards > 1 ? write_index(x, index_temp, err) : 0;
	if (rc == 0)
		rc = reveal_all(x, index_temp, err);
	if (index_temp[0])
		unlinkat(x->dir_fd, index_temp, 0);
	return rc;
}

static int
export_to(struct pawl *run, uint64_t id, const char *target, const struct pawl_export_opts *opts,
          struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(exporter_clear) struct exporter x = {.meter = meter, .dir_fd = -1};
	if (!run || !target || !target[0])
		return err_set(err, PAWL_EUSAGE, "export: expected a run and a target, found NULL or an empty text");
	TRY(take_options(&x, opts, err));
	TRY(open_source(&x, run, id, err));
	TRY(select_items(&x, err));
	TRY(open_target(&x, target, err));
	TRY(share_out(&x, err));
	TRY(check_all_free(&x, err));
	TRY(write_all(&x, err));
	x.made_folder = false;
	return 0;
}

int
pawl_export(struct pawl *run, uint64_t id, const char *target, const struct pawl_export_opts *opts,
            struct pawl_meter *meter, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, export_to(run, id, target, opts, meter, &own), &own);
}
