/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_mem: keeps everything in memory, for tests and for runs without a disk.
 *
 * Contents are blobs that keys share (link) and readers hold. A reader keeps what it opened,
 * whatever happens to the key. Objects appear only at put and finish, and publish renames
 * under the single lock (P2, P10). Empty folders do not exist. Nothing survives the process:
 * durability lasts as long.
 */
#include "store/mem/store_mem_table.h"

#include <pthread.h>
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

struct mem_store {
	struct store base;
	pthread_mutex_t lock; /* guards all below, and the counts of blobs */
	struct mem_table table;
};

struct mem_file {
	struct store_file base;
	struct mem_blob *blob;
};

struct mem_reader {
	struct store_reader base;
	struct mem_blob *blob;
};

static struct mem_store *
memory_lock(struct store *base)
{
	struct mem_store *s = (struct mem_store *)base;
	pthread_mutex_lock(&s->lock);
	return s;
}

static void
memory_unlock(struct mem_store **ps)
{
	pthread_mutex_unlock(&(*ps)->lock);
}

/* The lock is held from here to the end of the scope. */
#define LOCKED(s, base) PAWL_CLEAN(memory_unlock) struct mem_store *s = memory_lock(base)

static int
not_found(struct pawl_error *err, const char *key)
{
	return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", key);
}

/* ----------------------------------------------------------------- objects */

static int
memory_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
           struct pawl_error *err)
{
	size_t total = 0;
	for (size_t i = 0; i < n_parts; i++)
		total += parts[i].len;
	PAWL_CLEAN(mem_blob_clean) struct mem_blob *blob = mem_blob_new(total, total);
	if (blob == NULL)
		return err_nomem(err, key);
	char *to = blob->ptr;
	for (size_t i = 0; i < n_parts; to += parts[i++].len)
		if (parts[i].len > 0)
			memcpy(to, parts[i].ptr, parts[i].len);

	LOCKED(s, base);
	TRY(mem_table_bind(&s->table, key, blob, flags & STORE_EXCLUSIVE, err));
	blob = NULL;
	return 0;
}

static void
free_file(struct mem_file **pf)
{
	struct mem_file *f = *pf;
	if (f == NULL)
		return;
	mem_blob_drop(f->blob);
	mem_free(f->base.key);
	mem_free(f);
}

static int
memory_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
              struct pawl_error *err)
{
	PAWL_CLEAN(free_file) struct mem_file *f = mem_zalloc(1, sizeof *f);
	if (f == NULL)
		return err_nomem(err, key);
	f->base.key = mem_strdup(key);
	f->blob = opts->nbytes <= SIZE_MAX ? mem_blob_new((size_t)opts->nbytes, (size_t)opts->nbytes) : NULL;
	if (f->base.key == NULL || f->blob == NULL)
		return err_nomem(err, key);
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;

	LOCKED(s, base);
	TRY(mem_table_check_place(&s->table, key, err));
	if (mem_table_find(&s->table, key) != NULL)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	*ret = &steal(&f)->base;
	return 0;
}

static int
memory_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
             struct pawl_error *err)
{
	(void)base, (void)err;
	struct mem_file *f = (struct mem_file *)bf;
	size_t left = f->blob->len - (size_t)offset;
	memcpy(f->blob->ptr + offset, ptr, len < left ? len : left);
	return 0;
}

static int
memory_finish(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	PAWL_CLEAN(free_file) struct mem_file *f = (struct mem_file *)bf;
	LOCKED(s, base);
	TRY(mem_table_bind(&s->table, bf->key, f->blob, true, err));
	f->blob = NULL;
	return 0;
}

static void
memory_abort(struct store *base, struct store_file *bf)
{
	(void)base;
	struct mem_file *f = (struct mem_file *)bf;
	free_file(&f);
}

static int
memory_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
            struct pawl_error *err)
{
	PAWL_FREE struct mem_reader *r = mem_zalloc(1, sizeof *r);
	PAWL_FREE char *name = mem_strdup(key);
	if (r == NULL || name == NULL)
		return err_nomem(err, key);
	LOCKED(s, base);
	struct mem_object *object = mem_table_find(&s->table, key);
	if (object == NULL)
		return not_found(err, key);
	r->blob = object->blob;
	r->blob->n_readers++;
	r->base = (struct store_reader){.key = steal(&name), .nbytes = r->blob->len};
	*ret_nbytes = r->base.nbytes;
	*ret = &steal(&r)->base;
	return 0;
}

static int
memory_read(struct store *base, struct store_reader *br, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	(void)base, (void)err;
	memcpy(dst, ((struct mem_reader *)br)->blob->ptr + offset, n);
	return 0;
}

static bool
memory_is_cached(struct store *base, struct store_reader *br, uint64_t offset, size_t n)
{
	(void)base, (void)br, (void)offset, (void)n;
	return true;
}

static void
memory_close_reader(struct store *base, struct store_reader *br)
{
	struct mem_reader *r = (struct mem_reader *)br;
	LOCKED(s, base);
	(void)s;
	r->blob->n_readers--;
	mem_blob_drop(r->blob);
	mem_free(r->base.key);
	mem_free(r);
}

/* Appends in place where there is room (a reader keeps the size it opened), otherwise on a copy. */
static int
memory_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	LOCKED(s, base);
	struct mem_object *object = mem_table_find(&s->table, key);
	struct mem_blob *old = object != NULL ? object->blob : NULL;
	size_t old_len = old != NULL ? old->len : 0;
	if (len > SIZE_MAX / 4 || old_len > SIZE_MAX / 4)
		return err_nomem(err, key);
	if (old != NULL && old->n_keys == 1 && len <= old->cap - old->len) {
		memcpy(old->ptr + old->len, ptr, len);
		old->len += len;
		object->mtime_ns = clock_unix_ns();
		return 0;
	}
	PAWL_CLEAN(mem_blob_clean) struct mem_blob *blob = mem_blob_new(old_len + len, (old_len + len) * 2);
	if (blob == NULL)
		return err_nomem(err, key);
	if (old_len > 0)
		memcpy(blob->ptr, old->ptr, old_len);
	memcpy(blob->ptr + old_len, ptr, len);
	TRY(mem_table_bind(&s->table, key, blob, false, err));
	blob = NULL;
	return 0;
}

/* ------------------------------------------------------------------- names */

static void
fill_entry(struct store_entry *entry, const struct mem_object *object)
{
	*entry = (struct store_entry){
		.nbytes = object->blob->len, .mtime_ns = object->mtime_ns, .n_links = object->blob->n_keys};
}

static int
memory_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	LOCKED(s, base);
	const struct mem_object *object = mem_table_find(&s->table, key);
	if (object != NULL)
		fill_entry(ret, object);
	else if (mem_table_is_folder(&s->table, key))
		*ret = (struct store_entry){.is_folder = true, .n_links = 1};
	else
		return not_found(err, key);
	return 0;
}

/* Copies the direct children of a folder to *ret, so that the callback runs without the lock. */
static int
collect_entries(struct store *base, const char *folder, struct bump *memory, struct store_entry **ret, size_t *ret_n,
                struct pawl_error *err)
{
	size_t begin, end, n = 0, skip = folder[0] != '\0' ? strlen(folder) + 1 : 0;
	LOCKED(s, base);
	mem_table_find_folder(&s->table, folder, &begin, &end);
	if (begin == end && skip > 0)
		return not_found(err, folder);
	struct store_entry *entries = bump_array(memory, end - begin, sizeof *entries);
	if (entries == NULL && begin < end)
		return err_nomem(err, folder);
	for (size_t i = begin; i < end; i++) {
		const char *name = s->table.objects[i].key + skip;
		size_t len = strcspn(name, "/");
		if (n > 0 && name[len] == '/' && strlen(entries[n - 1].name) == len &&
		    strncmp(entries[n - 1].name, name, len) == 0)
			continue;
		fill_entry(&entries[n], &s->table.objects[i]);
		if (name[len] == '/')
			entries[n] = (struct store_entry){.is_folder = true, .n_links = 1};
		entries[n].name = bump_strndup(memory, name, len);
		if (entries[n++].name == NULL)
			return err_nomem(err, folder);
	}
	*ret = entries;
	*ret_n = n;
	return 0;
}

static int
memory_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct store_entry *entries = NULL;
	size_t n = 0;
	TRY(collect_entries(base, folder, &memory, &entries, &n, err));
	for (size_t i = 0; i < n; i++)
		TRY(fn(arg, &entries[i]));
	return 0;
}

static int
memory_remove(struct store *base, const char *key, struct pawl_error *err)
{
	LOCKED(s, base);
	const struct mem_object *object = mem_table_find(&s->table, key);
	if (object == NULL)
		return mem_table_is_folder(&s->table, key)
		               ? err_set(err, PAWL_EUSAGE, "%s: is a folder, expected a file", key)
		               : 0;
	mem_table_unbind_one(&s->table, object);
	return 0;
}

static int
memory_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	size_t begin, end;
	LOCKED(s, base);
	if (mem_table_find(&s->table, folder) != NULL)
		return err_set(err, PAWL_EUSAGE, "%s: is not a folder", folder);
	mem_table_find_folder(&s->table, folder, &begin, &end);
	mem_table_unbind(&s->table, begin, end);
	return 0;
}

static int
memory_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	LOCKED(s, base);
	const struct mem_object *object = mem_table_find(&s->table, from);
	if (object == NULL)
		return not_found(err, from);
	return mem_table_bind(&s->table, to, object->blob, true, err);
}

static int
memory_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	LOCKED(s, base);
	const struct mem_object *object = mem_table_find(&s->table, from);
	if (object == NULL)
		return not_found(err, from);
	struct mem_blob *blob = object->blob;
	TRY(mem_table_bind(&s->table, to, blob, false, err));
	mem_table_unbind_one(&s->table, mem_table_find(&s->table, from));
	return 0;
}

static int
memory_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	LOCKED(s, base);
	return mem_table_rename_folder(&s->table, from, to, err);
}

static int
memory_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	LOCKED(s, base);
	return folder[0] == '\0' || mem_table_is_folder(&s->table, folder) ? 0 : not_found(err, folder);
}

static void
memory_close(struct store *base)
{
	struct mem_store *s = (struct mem_store *)base;
	mem_table_clear(&s->table);
	pthread_mutex_destroy(&s->lock);
}

static void
memory_caps(struct store *base, struct store_caps *ret)
{
	(void)base;
	*ret = (struct store_caps){
		.rename_folder = true, .exclusive_put = true, .link = true, .is_private = true, .offset_align = 1};
}

static const struct store_ops memory_ops = {
	.put = memory_put,
	.create = memory_create,
	.write = memory_write,
	.finish = memory_finish,
	.abort = memory_abort,
	.remove = memory_remove,
	.remove_folder = memory_remove_folder,
	.open = memory_open,
	.read = memory_read,
	.close_reader = memory_close_reader,
	.stat = memory_stat,
	.list = memory_list,
	.close = memory_close,
	.caps = memory_caps,
	.append = memory_append,
	.sync = memory_sync,
	.link = memory_link,
	.move = memory_move,
	.publish = memory_publish,
	.is_cached = memory_is_cached,
};

int
store_mem_open(struct store **ret, struct pawl_error *err)
{
	PAWL_FREE struct mem_store *s = mem_zalloc(1, sizeof *s);
	if (s == NULL)
		return err_nomem(err, "mem:");
	TRY(store_init(&s->base, &memory_ops, "mem", "mem:", err));
	pthread_mutex_init(&s->lock, NULL);
	*ret = &steal(&s)->base;
	return 0;
}
