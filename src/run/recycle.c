/* SPDX-License-Identifier: Apache-2.0 */
/* recycle: see recycle.h. */
#include "run/recycle.h"

#include "base/clock.h"
#include "base/mem.h"
#include "run/run.h"

/* The lock is held. */
static int
note_file(struct recycle *r, const char *name, uint64_t nbytes)
{
	struct recycle_file *files = mem_resize(r->files, r->n + 1, sizeof(*files));

	if (!files)
		return PAWL_ENOMEM;
	r->files = files;
	files[r->n] = (struct recycle_file){.key = mem_printf(RECYCLE_FOLDER "/%s", name), .nbytes = nbytes};
	if (!files[r->n].key)
		return PAWL_ENOMEM;
	r->n++;
	return 0;
}

static int
load_one(void *arg, const struct store_entry *entry)
{
	return entry->is_folder || entry->is_link ? 0 : note_file(arg, entry->name, entry->nbytes);
}

void
recycle_load(struct pawl *run)
{
	pthread_mutex_lock(&run->recycle.lock);
	store_list(run->store, RECYCLE_FOLDER, load_one, &run->recycle, NULL);
	pthread_mutex_unlock(&run->recycle.lock);
}

void
recycle_clear(struct recycle *r)
{
	for (size_t i = 0; i < r->n; i++)
		mem_free(r->files[i].key);
	mem_free(r->files);
	pthread_mutex_destroy(&r->lock);
}

void
recycle_expect(struct pawl *run, size_t n_packs)
{
	pthread_mutex_lock(&run->recycle.lock);
	run->recycle.n_packs = n_packs;
	pthread_mutex_unlock(&run->recycle.lock);
}

uint64_t
recycle_bytes(struct pawl *run)
{
	uint64_t nbytes = 0;

	pthread_mutex_lock(&run->recycle.lock);
	for (size_t i = 0; i < run->recycle.n; i++)
		nbytes += run->recycle.files[i].nbytes;
	pthread_mutex_unlock(&run->recycle.lock);
	return nbytes;
}

static bool
is_full(struct pawl *run)
{
	struct recycle *r = &run->recycle;

	pthread_mutex_lock(&r->lock);
	bool full = r->n >= (size_t)run->opts.recycle * (r->n_packs ? r->n_packs : 1);
	pthread_mutex_unlock(&r->lock);
	return full;
}

void
recycle_put(struct pawl *run, const char *key, uint64_t nbytes)
{
	PAWL_FREE char *name = NULL, *to = NULL;
	char token[33];

	if (is_full(run) || clock_token(token, NULL) < 0)
		return;
	name = mem_printf("%llu-%s", (unsigned long long)nbytes, token);
	to = mem_printf(RECYCLE_FOLDER "/%s", name ? name : "");
	if (!name || !to || store_move(run->store, key, to, NULL) < 0)
		return;
	pthread_mutex_lock(&run->recycle.lock);
	note_file(&run->recycle, name, nbytes);
	pthread_mutex_unlock(&run->recycle.lock);
}

bool
recycle_take(struct pawl *run, uint64_t nbytes, struct buf *key)
{
	struct recycle *r = &run->recycle;
	size_t best = SIZE_MAX;

	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < r->n; i++)
		if (best == SIZE_MAX || r->files[i].nbytes == nbytes)
			best = i;
	if (best != SIZE_MAX) {
		buf_puts(key, r->files[best].key);
		mem_free(r->files[best].key);
		r->files[best] = r->files[--r->n];
	}
	pthread_mutex_unlock(&r->lock);
	return best != SIZE_MAX && !key->failed;
}
