/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_tiers: see layer_tiers.h. Called through the border by fetch.c and restore_read.c; calls the stores it is made
 * of. Promise P1 (nothing is taken unread: sums are compared above), P6 (it cannot write).
 */
#include "store/layers/layer_tiers.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "store/engine.h"

#define MAX_SUSPECTS 10000u /* more are not remembered: what is read is right all the same */

struct tiers {
	struct store base;
	pthread_mutex_t lock; /* guards the suspects */
	char **suspects;
	size_t n_suspects, cap_suspects;
	size_t n; /* of stores */
	_Atomic(struct store *) stores[];
};

struct tiers_reader {
	struct store_reader base;
	pthread_mutex_t lock; /* guards what of the readers is opened */
	size_t at;            /* the one that is read from; changed only before anybody reads */
	struct store *stores[];
};

/* The readers stand behind the stores in one block. */
static struct store_reader **
readers_of(struct tiers_reader *r, size_t n)
{
	return (struct store_reader **)(void *)(r->stores + n);
}

static struct tiers *
self(struct store *base)
{
	return (struct tiers *)base;
}

/* Best effort: without memory it is not repaired this time. */
static void
suspect(struct tiers *t, const char *key)
{
	pthread_mutex_lock(&t->lock);
	bool known = t->n_suspects >= MAX_SUSPECTS;
	for (size_t i = 0; i < t->n_suspects && !known; i++)
		known = strcmp(t->suspects[i], key) == 0;
	if (!known && t->n_suspects == t->cap_suspects) {
		size_t cap = t->cap_suspects ? 2 * t->cap_suspects : 8;
		char **bigger = mem_resize(t->suspects, cap, sizeof *bigger);
		known = bigger == NULL;
		if (bigger) {
			t->suspects = bigger;
			t->cap_suspects = cap;
		}
	}
	char *copy = known ? NULL : mem_strdup(key);
	if (copy)
		t->suspects[t->n_suspects++] = copy;
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

/* Opens the object in the first store from i on that has it. What is worse than "not there" counts for more. */
static int
open_from(struct tiers *t, struct tiers_reader *r, size_t i, struct pawl_error *err)
{
	struct pawl_error first = {0}, why = {0};
	for (; i < t->n; i++) {
		int rc = open_at(t, r, i, &r->base.nbytes, &why);
		if (rc == 0) {
			r->at = i;
			if (i > 0)
				suspect(t, r->base.key);
			return 0;
		}
		if (first.code == 0 || (first.code == PAWL_ENOTFOUND && rc != PAWL_ENOTFOUND)) {
			first = why;
			first.code = rc;
		}
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
	struct tiers *t = self(base);
	struct tiers_reader *r =
		mem_zalloc(1, sizeof *r + t->n * (sizeof(struct store *) + sizeof(struct store_reader *)));
	if (!r)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	pthread_mutex_init(&r->lock, NULL);
	for (size_t i = 0; i < t->n; i++)
		r->stores[i] = atomic_load(&t->stores[i]);
	r->base.key = mem_strdup(key);
	int rc = r->base.key ? open_from(t, r, 0, err) : err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
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
	struct tiers *t = self(base);
	struct tiers_reader *r = (struct tiers_reader *)reader;
	TRY(open_from(t, r, r->at + 1, err));
	*ret_nbytes = r->base.nbytes;
	return 0;
}

/* The same range from another store than the one at hand. */
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
		return err_set(err, PAWL_ECORRUPT, "%s: %" PRIu64 " bytes expected, %" PRIu64 " found", r->base.key,
		               r->base.nbytes, nbytes);
	TRY(store_read_copy(r->stores[i], readers_of(r, t->n)[i], copy, offset, dst, n, err));
	if (i > 0)
		suspect(t, r->base.key);
	return 0;
}

static int
tiers_read(struct store *base, struct store_reader *reader, uint64_t offset, void *dst, size_t n,
           struct pawl_error *err)
{
	struct tiers *t = self(base);
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
	struct tiers *t = self(base);
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
		/* "not found" is kept for a number beyond the last copy of all */
		return rc == PAWL_ENOTFOUND ? err_set(err, PAWL_ECORRUPT, "%s: there is no such copy", r->base.key)
		                            : rc;
	}
	return err_set(err, PAWL_ENOTFOUND, "%s: there are no more copies", r->base.key);
}

static int
tiers_view(struct store *base, struct store_reader *reader, uint64_t offset, size_t n, struct store_view *ret)
{
	struct tiers_reader *r = (struct tiers_reader *)reader;
	return r->at == 0 ? store_view(r->stores[0], readers_of(r, self(base)->n)[0], offset, n, ret, NULL) : 0;
}

static void
tiers_drop_view(struct store *base, struct store_view *view)
{
	store_drop_view(atomic_load(&self(base)->stores[0]), view);
}

static void
tiers_close_reader(struct store *base, struct store_reader *reader)
{
	free_reader(self(base), (struct tiers_reader *)reader);
}

static int
tiers_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct tiers *t = self(base);
	struct pawl_error first = {0}, why = {0};
	for (size_t i = 0; i < t->n; i++) {
		struct store *s = atomic_load(&t->stores[i]);
		int rc = s ? store_get(s, key, max, out, &why) : PAWL_ENOTFOUND;
		if (rc == 0 && s)
			return 0;
		if (s && (first.code == 0 || first.code == PAWL_ENOTFOUND)) {
			first = why;
			first.code = rc;
		}
	}
	return err_give(err, first.code, &first);
}

static int
tiers_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct tiers *t = self(base);
	struct pawl_error first = {0}, why = {0};
	for (size_t i = 0; i < t->n; i++) {
		struct store *s = atomic_load(&t->stores[i]);
		int rc = s ? store_stat(s, key, ret, &why) : PAWL_ENOTFOUND;
		if (rc == 0 && s)
			return 0;
		if (s && (first.code == 0 || first.code == PAWL_ENOTFOUND)) {
			first = why;
			first.code = rc;
		}
	}
	return err_give(err, first.code, &first);
}

static int
tiers_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return store_list(atomic_load(&self(base)->stores[0]), folder, fn, arg, err);
}

/* ---------------------------------------------------------------- the layer */

static void
tiers_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(atomic_load(&self(base)->stores[0]), ret);
}

static void
tiers_close(struct store *base)
{
	struct tiers *t = self(base);
	for (size_t i = 0; i < t->n_suspects; i++)
		mem_free(t->suspects[i]);
	mem_free(t->suspects);
	pthread_mutex_destroy(&t->lock);
	mem_free(base->root);
	mem_free(t);
}

static const struct store_ops tiers_ops = {
	.name = "tiers",
	.close = tiers_close,
	.caps = tiers_caps,
	.open = tiers_open,
	.pass_over = tiers_pass_over,
	.read = tiers_read,
	.read_copy = tiers_read_copy,
	.view = tiers_view,
	.drop_view = tiers_drop_view,
	.close_reader = tiers_close_reader,
	.get = tiers_get,
	.stat = tiers_stat,
	.list = tiers_list,
};

int
store_tiers_new(struct store *first, size_t n, struct store **ret, struct pawl_error *err)
{
	struct tiers *t = mem_zalloc(1, sizeof *t + (n + 1) * sizeof t->stores[0]);
	PAWL_FREE char *root = mem_strdup(first->root);
	if (!t || !root) {
		mem_free(t);
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", first->root);
	}
	t->base = (struct store){&tiers_ops, steal(&root)};
	pthread_mutex_init(&t->lock, NULL);
	t->n = n + 1;
	atomic_store(&t->stores[0], first);
	*ret = &t->base;
	return 0;
}

void
store_tiers_set(struct store *base, size_t i, struct store *s)
{
	if (s)
		atomic_store(&self(base)->stores[i + 1], s);
}

int
store_tiers_take_suspects(struct store *base, struct bump *memory, const char ***ret, struct pawl_error *err)
{
	struct tiers *t = self(base);
	pthread_mutex_lock(&t->lock);
	const char **keys = bump_array(memory, (uint64_t)t->n_suspects + 1, sizeof *keys);
	bool whole = keys != NULL;
	for (size_t i = 0; whole && i < t->n_suspects; i++) {
		keys[i] = bump_strndup(memory, t->suspects[i], strlen(t->suspects[i]));
		whole = keys[i] != NULL;
	}
	for (size_t i = 0; whole && i < t->n_suspects; i++)
		mem_free(t->suspects[i]);
	t->n_suspects = whole ? 0 : t->n_suspects;
	pthread_mutex_unlock(&t->lock);
	if (!whole)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", base->root);
	*ret = keys;
	return 0;
}
