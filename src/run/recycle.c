/* SPDX-License-Identifier: Apache-2.0 */
/* recycle: see recycle.h. */
#include "run/recycle.h"

#include "base/clock.h"
#include "base/mem.h"
#include "pawl.h"

/* The lock is held. */
static int
add_file(struct recycle *r, const char *name, uint64_t nbytes)
{
	char *key = mem_printf(RECYCLE_FOLDER "/%s", name);
	if (!key)
		return PAWL_ENOMEM;
	struct recycle_file *file = vec_add(&r->files);
	if (!file) {
		mem_free(key);
		return PAWL_ENOMEM;
	}
	*file = (struct recycle_file){.key = key, .nbytes = nbytes};
	return 0;
}

static int
add_listed(void *arg, const struct store_entry *entry)
{
	return entry->is_folder || entry->is_link ? 0 : add_file(arg, entry->name, entry->nbytes);
}

void
recycle_load(struct recycle *r)
{
	pthread_mutex_lock(&r->lock);
	store_list(r->store, RECYCLE_FOLDER, add_listed, r, NULL);
	pthread_mutex_unlock(&r->lock);
}

void
recycle_clear(struct recycle *r)
{
	for (size_t i = 0; i < r->files.n; i++)
		mem_free(r->files.items[i].key);
	vec_free(&r->files);
	pthread_mutex_destroy(&r->lock);
}

void
recycle_expect(struct recycle *r, size_t n_packs)
{
	pthread_mutex_lock(&r->lock);
	r->n_packs = n_packs;
	pthread_mutex_unlock(&r->lock);
}

uint64_t
recycle_bytes(struct recycle *r)
{
	uint64_t nbytes = 0;

	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < r->files.n; i++)
		nbytes += r->files.items[i].nbytes;
	pthread_mutex_unlock(&r->lock);
	return nbytes;
}

static bool
is_full(struct recycle *r)
{
	pthread_mutex_lock(&r->lock);
	bool full = r->files.n >= r->max_checkpoints * (r->n_packs ? r->n_packs : 1);

	pthread_mutex_unlock(&r->lock);
	return full;
}

void
recycle_put(struct recycle *r, const char *key, uint64_t nbytes)
{
	PAWL_FREE char *name = NULL, *to = NULL;
	char token[33];

	if (is_full(r) || clock_token(token, NULL) < 0)
		return;
	name = mem_printf("%llu-%s", (unsigned long long)nbytes, token);
	to = mem_printf(RECYCLE_FOLDER "/%s", name ? name : "");
	if (!name || !to || store_move(r->store, key, to, NULL) < 0)
		return;
	pthread_mutex_lock(&r->lock);
	add_file(r, name, nbytes);
	pthread_mutex_unlock(&r->lock);
}

bool
recycle_take(struct recycle *r, uint64_t nbytes, struct buf *key)
{
	size_t best = SIZE_MAX;

	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < r->files.n; i++)
		if (best == SIZE_MAX || r->files.items[i].nbytes == nbytes)
			best = i;
	if (best != SIZE_MAX) {
		buf_puts(key, r->files.items[best].key);
		mem_free(r->files.items[best].key);
		r->files.items[best] = r->files.items[--r->files.n];
	}
	pthread_mutex_unlock(&r->lock);
	return best != SIZE_MAX && !key->failed;
}
