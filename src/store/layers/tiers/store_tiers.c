/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_tiers: see store_tiers.h. Promises P1 (no bytes are used unchecked: the rooms above compare
 * checksums) and P6 (it has no operation that writes).
 */
#include "store/layers/tiers/store_tiers.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "store/engine.h"

#define MAX_SUSPECTS 10000u /* further ones are not recorded; reads are still correct */

struct tiers {
	struct store base;
	pthread_mutex_t lock; /* guards the suspects */
	VEC(char *) suspects;
	size_t n; /* of stores */
	_Atomic(struct store *) stores[];
};

struct tiers_reader {
	struct store_reader base;
	pthread_mutex_t lock; /* guards the opening of readers */
	size_t at;            /* the one that is read from; changed only before the first read */
	struct store *stores[];
};

/* The readers follow the stores in one block. */
static struct store_reader **
readers_of(struct tiers_reader *r, size_t n)
{
	return (struct store_reader **)(void *)(r->stores + n);
}

static struct tiers *
self_of(struct store *base)
{
	return (struct tiers *)base;
}

/* Best effort: without memory the object is not repaired this time. */
static void
add_suspect(struct tiers *t, const char *key)
{
	pthread_mutex_lock(&t->lock);
	bool known = t->suspects.n >= MAX_SUSPECTS;
	for (size_t i = 0; i < t->suspects.n && !known; i++)
		known = strcmp(t->suspects.items[i], key) == 0;
	PAWL_FREE char *copy = known ? NULL : mem_strdup(key);
	if (copy) {
		char **place = vec_add(&t->suspects);
		if (place)
			*place = steal(&copy);
	}
	pthread_mutex_unlock(&t->lock);
}

/* ------------------------------------------------------------------ reading */

static int
open_at(struct tiers *t, struct tiers_reader *r, size_t i, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct store_reader **readers = readers_of(r, t->n);
	if (!r->stores[i])
		return err_set(err, PAWL_ENOTFOUND, "%s: that store is not open", r->base.key);
	if (readers[i]) {
		*ret_nbytes = readers[i]->nbytes;
		return 0;
	}
	return store_open_reader(r->stores[i], r->base.key, &readers[i], ret_nbytes, err);
}

/* Keeps the error to report: the first one, except that any other error replaces "not found". */
static void
keep_error(struct pawl_error *first, int rc, const struct pawl_error *why)
{
	if (first->code != 0 && (first->code != PAWL_ENOTFOUND || rc == PAWL_ENOTFOUND))
		return;
	*first = *why;
	first->code = rc;
}

/* Opens the object in the first store from i on that has it. */
static int
open_from(struct tiers *t, struct tiers_reader *r, size_t i, struct pawl_error *err)
{
	struct pawl_error first = {0}, why = {0};
	for (; i < t->n; i++) {
		int rc = open_at(t, r, i, &r->base.nbytes, &why);
		if (rc == 0) {
			r->at = i;
			if (i > 0)
				add_suspect(t, r->base.key);
			return 0;
		}
		keep_error(&first, rc, &why);
	}
	if (first.code == 0)
		first.code = err_set(&first, PAWL_ENOTFOUND, "%s: no store has it", r->base.key);
	return err_give(err, first.code, &first);
}

static void
free_reader(struct tiers *t, struct tiers_reader *r)
{
	for (size_t i = 0; i < t->n; i++) {
		if (readers_of(r, t->n)[i])
			store_close_reader(r->stores[i], readers_of(r, t->n)[i]);
	}
	pthread_mutex_destroy(&r->lock);
	mem_free(r->base.key);
	mem_free(r);
}

static int
tiers_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct tiers *t = self_of(base);
	struct tiers_reader *r =
		mem_zalloc(1, sizeof *r + t->n * (sizeof(struct store *) + sizeof(struct store_reader *)));
	if (!r)
		return err_nomem(err, key);
	pthread_mutex_init(&r->lock, NULL);
	for (size_t i = 0; i < t->n; i++)
		r->stores[i] = atomic_load(&t->stores[i]);
	r->base.key = mem_strdup(key);
	int rc = r->base.key ? open_from(t, r, 0, err) : err_nomem(err, key);
	if (rc < 0) {
		free_reader(t, r);
		return rc;
	}
	*ret = &r->base;
	*ret_nbytes = r->base.nbytes;
	return 0;
}

static int
tiers_pass_over(struct store *base, struct store_reader *reader, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct tiers *t = self_of(base);
	struct tiers_reader *r = (struct tiers_reader *)reader;
	TRY(open_from(t, r, r->at + 1, err));
	*ret_nbytes = r->base.nbytes;
	return 0;
}

/* Reads the same range from store i. */
static int
read_at(struct tiers *t, struct tiers_reader *r, size_t i, unsigned copy, uint64_t offset, void *dst, size_t n,
        struct pawl_error *err)
{
	uint64_t nbytes = 0;
	pthread_mutex_lock(&r->lock);
	int rc = open_at(t, r, i, &nbytes, err);
	pthread_mutex_unlock(&r->lock);
	TRY(rc);
	if (nbytes != r->base.nbytes)
		return err_set(err, PAWL_ECORRUPT, "%s: expected %" PRIu64 " bytes, found %" PRIu64, r->base.key,
		               r->base.nbytes, nbytes);
	TRY(store_read_copy(r->stores[i], readers_of(r, t->n)[i], copy, offset, dst, n, err));
	if (i > 0)
		add_suspect(t, r->base.key);
	return 0;
}

static int
tiers_read(struct store *base, struct store_reader *reader, uint64_t offset, void *dst, size_t n,
           struct pawl_error *err)
{
	struct tiers *t = self_of(base);
	struct tiers_reader *r = (struct tiers_reader *)reader;
	struct pawl_error why = {0};
	int rc = store_read(r->stores[r->at], readers_of(r, t->n)[r->at], offset, dst, n, &why);
	for (size_t i = r->at + 1; rc < 0 && i < t->n; i++) {
		if (read_at(t, r, i, 0, offset, dst, n, NULL) == 0)
			return 0;
	}
	return err_give(err, rc, &why);
}

static int
tiers_read_copy(struct store *base, struct store_reader *reader, unsigned copy, uint64_t offset, void *dst, size_t n,
                struct pawl_error *err)
{
	struct tiers *t = self_of(base);
	struct tiers_reader *r = (struct tiers_reader *)reader;
	for (size_t i = 0; i < t->n; i++) {
		struct store_caps caps = {.copies = 1};
		if (r->stores[i])
			store_get_caps(r->stores[i], &caps);
		if (copy >= caps.copies) {
			copy -= caps.copies;
			continue;
		}
		int rc = read_at(t, r, i, copy, offset, dst, n, err);
		/* "not found" is reserved for a number beyond the last copy of all */
		return rc == PAWL_ENOTFOUND ? err_set(err, PAWL_ECORRUPT, "%s: there is no such copy", r->base.key)
		                            : rc;
	}
	return err_set(err, PAWL_ENOTFOUND, "%s: there are no more copies", r->base.key);
}

static bool
tiers_is_cached(struct store *base, struct store_reader *reader, uint64_t offset, size_t n)
{
	struct tiers_reader *r = (struct tiers_reader *)reader;
	return r->at == 0 && store_is_cached(r->stores[0], readers_of(r, self_of(base)->n)[0], offset, n);
}

static void
tiers_close_reader(struct store *base, struct store_reader *reader)
{
	free_reader(self_of(base), (struct tiers_reader *)reader);
}

static int
tiers_get(struct store *base, const char *key, size_t max, struct buf *out, char *tag, struct pawl_error *err)
{
	(void)tag; /* they can only be read */
	struct tiers *t = self_of(base);
	struct pawl_error first = {0}, why = {0};
	for (size_t i = 0; i < t->n; i++) {
		struct store *s = atomic_load(&t->stores[i]);
		int rc = s ? store_get(s, key, max, out, &why) : PAWL_ENOTFOUND;
		if (rc == 0)
			return 0;
		if (s)
			keep_error(&first, rc, &why);
	}
	return err_give(err, first.code, &first);
}

static int
tiers_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct tiers *t = self_of(base);
	struct pawl_error first = {0}, why = {0};
	for (size_t i = 0; i < t->n; i++) {
		struct store *s = atomic_load(&t->stores[i]);
		int rc = s ? store_stat(s, key, ret, &why) : PAWL_ENOTFOUND;
		if (rc == 0)
			return 0;
		if (s)
			keep_error(&first, rc, &why);
	}
	return err_give(err, first.code, &first);
}

static int
tiers_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return store_list(atomic_load(&self_of(base)->stores[0]), folder, fn, arg, err);
}

/* ---------------------------------------------------------------- the layer */

static void
tiers_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(atomic_load(&self_of(base)->stores[0]), ret);
}

static void
tiers_close(struct store *base)
{
	struct tiers *t = self_of(base);
	for (size_t i = 0; i < t->suspects.n; i++)
		mem_free(t->suspects.items[i]);
	vec_free(&t->suspects);
	pthread_mutex_destroy(&t->lock);
}

static const struct store_ops tiers_ops = {
	.open = tiers_open,
	.read = tiers_read,
	.close_reader = tiers_close_reader,
	.stat = tiers_stat,
	.list = tiers_list,
	.close = tiers_close,
	.caps = tiers_caps,
	.get = tiers_get,
	.read_copy = tiers_read_copy,
	.pass_over = tiers_pass_over,
	.is_cached = tiers_is_cached,
};

int
store_tiers_new(struct store *first, size_t n, struct store **ret, struct pawl_error *err)
{
	PAWL_FREE struct tiers *t = mem_zalloc(1, sizeof *t + (n + 1) * sizeof t->stores[0]);
	if (!t)
		return err_nomem(err, first->root);
	TRY(store_init(&t->base, &tiers_ops, "tiers", first->root, err));
	pthread_mutex_init(&t->lock, NULL);
	t->n = n + 1;
	atomic_store(&t->stores[0], first);
	*ret = &steal(&t)->base;
	return 0;
}

void
store_tiers_set(struct store *base, size_t i, struct store *s)
{
	if (s)
		atomic_store(&self_of(base)->stores[i + 1], s);
}

/* Called with the lock held. NULL when out of memory. */
static const char **
copy_suspects(const struct tiers *t, struct bump *memory)
{
	const char **keys = bump_array(memory, (uint64_t)t->suspects.n + 1, sizeof *keys);
	for (size_t i = 0; keys && i < t->suspects.n; i++) {
		keys[i] = bump_strndup(memory, t->suspects.items[i], strlen(t->suspects.items[i]));
		if (!keys[i])
			return NULL;
	}
	return keys;
}

int
store_tiers_take_suspects(struct store *base, struct bump *memory, const char ***ret, struct pawl_error *err)
{
	struct tiers *t = self_of(base);
	pthread_mutex_lock(&t->lock);
	*ret = copy_suspects(t, memory);
	while (*ret && t->suspects.n > 0)
		mem_free(t->suspects.items[--t->suspects.n]);
	pthread_mutex_unlock(&t->lock);
	return *ret ? 0 : err_nomem(err, base->root);
}
