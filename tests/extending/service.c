/* SPDX-License-Identifier: Apache-2.0 */
/* service: a list of objects under a lock. */
#include "extending/service.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

struct object {
	struct object *next;
	struct service_info info;
	char *key;
	char bytes[];
};

struct service {
	pthread_mutex_t lock;
	uint64_t n_versions;
	struct object *first;
};

struct service *
service_new(void)
{
	struct service *s = mem_zalloc(1, sizeof(*s));
	if (s)
		pthread_mutex_init(&s->lock, NULL);
	return s;
}

static void
free_object(struct object *o)
{
	mem_free(o->key);
	mem_free(o);
}

void
service_free(struct service *s)
{
	service_delete(s, "", true);
	pthread_mutex_destroy(&s->lock);
	mem_free(s);
}

static struct service *
lock_service(struct service *s)
{
	pthread_mutex_lock(&s->lock);
	return s;
}

static void
unlock_service(struct service **s)
{
	pthread_mutex_unlock(&(*s)->lock);
}
#define LOCKED(s) PAWL_CLEAN(unlock_service) struct service *locked_ __attribute__((unused)) = lock_service(s)

/* The link to the object of that key, or the end of the list. */
static struct object **
find_object(struct service *s, const char *key)
{
	struct object **at = &s->first;
	while (*at && strcmp((*at)->key, key) != 0)
		at = &(*at)->next;
	return at;
}

/* What follows the folder in the key of an object in it, or NULL. */
static const char *
path_below(const char *folder, const char *key)
{
	const size_t n = strlen(folder);
	if (n == 0)
		return key;
	return strncmp(key, folder, n) == 0 && key[n] == '/' ? key + n + 1 : NULL;
}

enum service_result
service_put(struct service *s, const char *key, const void *bytes, size_t nbytes, bool only_new)
{
	LOCKED(s);
	struct object **at = find_object(s, key), *old = *at;
	if (old && only_new)
		return SERVICE_EXISTS;
	PAWL_FREE struct object *o = mem_zalloc(1, sizeof(*o) + nbytes);
	if (!o || !(o->key = mem_strdup(key)))
		return SERVICE_FULL;
	o->info = (struct service_info){.nbytes = nbytes, .version = ++s->n_versions, .mtime_ns = clock_unix_ns()};
	if (nbytes > 0)
		memcpy(o->bytes, bytes, nbytes);
	o->next = old ? old->next : NULL;
	*at = steal(&o);
	if (old)
		free_object(old);
	return SERVICE_DONE;
}

enum service_result
service_look(struct service *s, const char *key, struct service_info *ret)
{
	LOCKED(s);
	const struct object *o = *find_object(s, key);
	*ret = o ? o->info : (struct service_info){.is_folder = true};
	for (const struct object *in = s->first; in && !o; in = in->next)
		o = path_below(key, in->key) ? in : NULL;
	return o ? SERVICE_DONE : SERVICE_MISSING;
}

enum service_result
service_read(struct service *s, const char *key, uint64_t version, uint64_t offset, void *dst, size_t n)
{
	LOCKED(s);
	const struct object *o = *find_object(s, key);
	if (!o)
		return SERVICE_MISSING;
	if (o->info.version != version)
		return SERVICE_CHANGED;
	memcpy(dst, o->bytes + offset, n);
	return SERVICE_DONE;
}

void
service_delete(struct service *s, const char *key, bool is_folder)
{
	LOCKED(s);
	for (struct object **at = &s->first, *o; (o = *at);) {
		if (is_folder ? !path_below(key, o->key) : strcmp(key, o->key) != 0) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		free_object(o);
	}
}

/* Compares the first parts of two paths. */
static int
compare_parts(const char *a, const char *b)
{
	const size_t n = strcspn(a, "/"), m = strcspn(b, "/");
	const int rc = memcmp(a, b, n < m ? n : m);
	return rc ? rc : (n > m) - (n < m);
}

bool
service_next(struct service *s, const char *folder, char name[SERVICE_NAME_BYTES], struct service_info *ret)
{
	LOCKED(s);
	const char *next = NULL;
	for (const struct object *o = s->first; o; o = o->next) {
		const char *path = path_below(folder, o->key);
		if (!path || compare_parts(path, name) <= 0)
			continue;
		const int rc = next ? compare_parts(path, next) : -1;
		if (rc > 0 || (rc == 0 && strchr(path, '/')))
			continue;
		next = path;
		*ret = strchr(path, '/') ? (struct service_info){.is_folder = true} : o->info;
	}
	if (next)
		snprintf(name, SERVICE_NAME_BYTES, "%.*s", (int)strcspn(next, "/"), next);
	return next;
}
