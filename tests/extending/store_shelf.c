/* SPDX-License-Identifier: Apache-2.0 */
/* store_shelf: an engine with only the twelve required operations; objects in a list in memory. */
#include "extending/store_shelf.h"

#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/engine.h"

struct object {
	struct object *next;
	char *key, *bytes;
	uint64_t nbytes;
	int64_t mtime_ns;
};

struct shelf {
	struct store base; /* every engine begins with it */
	pthread_mutex_t lock;
	struct object *first;
};

struct shelf_file {
	struct store_file base;
	struct object *object;
};

struct shelf_reader {
	struct store_reader base;
	char *bytes; /* a copy: readers keep what they opened */
};

static void
free_object(struct object *o)
{
	mem_free(o->key);
	mem_free(o->bytes);
	mem_free(o);
}
PAWL_DEFINE_CLEAN(struct object, free_object);

static struct object *
new_object(const char *key, uint64_t nbytes)
{
	PAWL_CLEAN(free_object_clean) struct object *o = mem_zalloc(1, sizeof(*o));
	if (!o || !(o->key = mem_strdup(key)) || !(o->bytes = mem_zalloc((size_t)nbytes, 1)))
		return NULL;
	o->nbytes = nbytes;
	o->mtime_ns = clock_unix_ns();
	return steal(&o);
}

static struct shelf *
lock(struct store *s)
{
	pthread_mutex_lock(&((struct shelf *)s)->lock);
	return (struct shelf *)s;
}

static void
unlock(struct shelf **s)
{
	pthread_mutex_unlock(&(*s)->lock);
}

/* The link to the object of that key, or the end of the list. */
static struct object **
find(struct shelf *s, const char *key)
{
	struct object **o = &s->first;
	while (*o && strcmp((*o)->key, key) != 0)
		o = &(*o)->next;
	return o;
}

/* Makes the object visible. Takes it over on success. */
static int
add(struct store *base, struct object *o, bool exclusive, struct pawl_error *err)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	struct object **place = find(s, o->key);
	if (*place && exclusive)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", o->key);
	o->next = *place ? (*place)->next : NULL;
	if (*place)
		free_object(*place);
	*place = o;
	return 0;
}

/* The name of the child of a folder that a key belongs to: its length, or 0. */
static size_t
child_of(const char *folder, const char *key, const char **ret)
{
	const size_t n = strlen(folder);
	if (n > 0 && (strncmp(key, folder, n) != 0 || key[n] != '/'))
		return 0;
	*ret = n > 0 ? key + n + 1 : key;
	return strcspn(*ret, "/");
}

/* ----------------------------------------------------------------- writing */

static int
shelf_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	uint64_t nbytes = 0, at = 0;
	for (size_t i = 0; i < n_parts; i++)
		nbytes += parts[i].len;
	PAWL_CLEAN(free_object_clean) struct object *o = new_object(key, nbytes);
	if (!o)
		return err_nomem(err, key);
	for (size_t i = 0; i < n_parts; at += parts[i++].len)
		if (parts[i].len > 0)
			memcpy(o->bytes + at, parts[i].ptr, parts[i].len);
	TRY(add(base, o, flags & STORE_EXCLUSIVE, err));
	o = NULL;
	return 0;
}

static int
shelf_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	if (*find(s, key))
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	PAWL_CLEAN(free_object_clean) struct object *o = new_object(key, opts->nbytes);
	struct shelf_file *f = o ? mem_zalloc(1, sizeof(*f)) : NULL;
	if (!f)
		return err_nomem(err, key);
	f->base = (struct store_file){.key = o->key, .nbytes = opts->nbytes, .offset_align = 1};
	f->object = steal(&o);
	*ret = &f->base;
	return 0;
}

static int
shelf_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
            struct pawl_error *err)
{
	const uint64_t left = f->nbytes - offset; /* without padding */
	(void)base, (void)err;
	memcpy(((struct shelf_file *)f)->object->bytes + offset, ptr, len < left ? len : (size_t)left);
	return 0;
}

static void
shelf_abort(struct store *base, struct store_file *f)
{
	(void)base;
	free_object(((struct shelf_file *)f)->object);
	mem_free(f);
}

static int
shelf_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	int rc = add(base, ((struct shelf_file *)f)->object, true, err);
	if (rc < 0)
		shelf_abort(base, f);
	else
		mem_free(f);
	return rc;
}

static int
shelf_remove(struct store *base, const char *key, struct pawl_error *err)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	struct object **place = find(s, key), *o = *place;
	(void)err;
	if (o) {
		*place = o->next;
		free_object(o);
	}
	return 0;
}

static int
shelf_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	const char *name;
	(void)err;
	for (struct object **place = &s->first; *place;) {
		struct object *o = *place;
		if (child_of(folder, o->key, &name) == 0) {
			place = &o->next;
			continue;
		}
		*place = o->next;
		free_object(o);
	}
	return 0;
}

/* ----------------------------------------------------------------- reading */

static int
shelf_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	const struct object *o = *find(s, key);
	if (!o)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", key);
	PAWL_FREE char *bytes = mem_alloc((size_t)o->nbytes);
	PAWL_FREE char *name = mem_strdup(key);
	struct shelf_reader *r = bytes && name ? mem_zalloc(1, sizeof(*r)) : NULL;
	if (!r)
		return err_nomem(err, key);
	memcpy(bytes, o->bytes, (size_t)o->nbytes);
	*r = (struct shelf_reader){.base = {steal(&name), o->nbytes}, .bytes = steal(&bytes)};
	*ret = &r->base;
	*ret_nbytes = o->nbytes;
	return 0;
}

static int
shelf_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	(void)base, (void)err;
	memcpy(dst, ((struct shelf_reader *)r)->bytes + offset, n);
	return 0;
}

static void
shelf_close_reader(struct store *base, struct store_reader *r)
{
	(void)base;
	mem_free(((struct shelf_reader *)r)->bytes);
	mem_free(r->key);
	mem_free(r);
}

static struct store_entry
entry_of(const struct object *o)
{
	return (struct store_entry){.nbytes = o->nbytes, .mtime_ns = o->mtime_ns, .n_links = 1};
}

static int
shelf_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	const char *name;
	for (const struct object *o = s->first; o; o = o->next) {
		const bool is_below = child_of(key, o->key, &name) > 0;
		if (!is_below && strcmp(o->key, key) != 0)
			continue;
		*ret = is_below ? (struct store_entry){.is_folder = true, .n_links = 1} : entry_of(o);
		return 0;
	}
	return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", key);
}

/* Each child once, and an object before a folder of the same name. Without memory: PAWL_ENOMEM. */
static int
collect(struct shelf *s, const char *folder, struct bump *memory, struct store_entry *ret, size_t *ret_n)
{
	for (const struct object *o = s->first; o; o = o->next) {
		const char *name;
		const size_t len = child_of(folder, o->key, &name);
		size_t i = 0;
		while (i < *ret_n && (strlen(ret[i].name) != len || strncmp(ret[i].name, name, len) != 0))
			i++;
		if (len == 0 || i < *ret_n)
			continue;
		ret[i] = name[len] == '/' ? (struct store_entry){.is_folder = true, .n_links = 1} : entry_of(o);
		ret[i].name = bump_strndup(memory, name, len);
		if (!ret[(*ret_n)++].name)
			return PAWL_ENOMEM;
	}
	return 0;
}

static int
copy_entries(struct store *base, const char *folder, struct bump *memory, struct store_entry **ret, size_t *ret_n)
{
	PAWL_CLEAN(unlock) struct shelf *s = lock(base);
	size_t n = 0;
	for (const struct object *o = s->first; o; o = o->next)
		n++;
	*ret = bump_array(memory, n + 1, sizeof(**ret));
	return *ret ? collect(s, folder, memory, *ret, ret_n) : PAWL_ENOMEM;
}

/* The callback may use the store, so it is called without the lock. */
static int
shelf_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct store_entry *entries;
	size_t n = 0;
	if (copy_entries(base, folder, &memory, &entries, &n) < 0)
		return err_nomem(err, folder);
	if (n == 0 && folder[0] != '\0')
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such folder", folder);
	for (size_t i = 0; i < n; i++)
		TRY(fn(arg, &entries[i]));
	return 0;
}

/* --------------------------------------------------------- the store itself */

static void
shelf_caps(struct store *base, struct store_caps *ret)
{
	(void)base;
	ret->exclusive_put = true;
	ret->flat = true;
}

static void
shelf_close(struct store *base)
{
	struct shelf *s = (struct shelf *)base;
	for (struct object *o = s->first, *next; o; o = next) {
		next = o->next;
		free_object(o);
	}
	pthread_mutex_destroy(&s->lock);
}

static const struct store_ops shelf_ops = {
	.put = shelf_put,
	.create = shelf_create,
	.write = shelf_write,
	.finish = shelf_finish,
	.abort = shelf_abort,
	.remove = shelf_remove,
	.remove_folder = shelf_remove_folder,
	.open = shelf_open,
	.read = shelf_read,
	.close_reader = shelf_close_reader,
	.stat = shelf_stat,
	.list = shelf_list,
	.close = shelf_close,
	.caps = shelf_caps,
};

int
store_shelf_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)create; /* a shelf has no root to make */
	PAWL_FREE struct shelf *s = mem_zalloc(1, sizeof(*s));
	if (!s)
		return err_nomem(err, url);
	TRY(store_init(&s->base, &shelf_ops, "shelf", url, err));
	pthread_mutex_init(&s->lock, NULL);
	*ret = &steal(&s)->base;
	return 0;
}
