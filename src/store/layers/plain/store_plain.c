/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_plain: see store_plain.h. It is a separate store over the one that it wraps, because it has
 * no operation that writes. Entries keep the sizes of the stored bytes; only an open reader has the
 * size of the view.
 */
#include "store/layers/plain/store_plain.h"

#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/engine.h"

struct plain_store {
	struct store base;
	struct store *source; /* owned */
	const struct store_plain_view *view;
	char *key;
	pthread_mutex_t lock; /* guards below */
	void *opened;
	uint64_t nbytes;
};

struct plain_reader {
	struct store_reader base;
	struct store_reader *inner; /* NULL = the view */
};

static struct plain_store *
self_of(struct store *s)
{
	return (struct plain_store *)s;
}

/* ------------------------------------------------------------------ reading */

static int
open_view(struct plain_store *s, struct pawl_error *err)
{
	pthread_mutex_lock(&s->lock);
	const int rc = s->opened ? 0 : s->view->open(s->source, s->key, &s->opened, &s->nbytes, err);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static int
plain_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct plain_store *s = self_of(base);
	PAWL_FREE struct plain_reader *r = mem_zalloc(1, sizeof(*r));
	PAWL_FREE char *name = mem_strdup(key);

	if (!r || !name)
		return err_nomem(err, key);
	if (strcmp(key, s->key) == 0) {
		TRY(open_view(s, err));
		*ret_nbytes = s->nbytes;
	} else {
		TRY(store_open_reader(s->source, key, &r->inner, ret_nbytes, err));
	}
	r->base = (struct store_reader){.key = steal(&name), .nbytes = *ret_nbytes};
	*ret = &steal(&r)->base;
	return 0;
}

static int
plain_read(struct store *base, struct store_reader *reader, uint64_t offset, void *dst, size_t n,
           struct pawl_error *err)
{
	struct plain_store *s = self_of(base);
	struct plain_reader *r = (struct plain_reader *)reader;

	return r->inner ? store_read(s->source, r->inner, offset, dst, n, err)
	                : s->view->read(s->opened, offset, dst, n, err);
}

static void
plain_close_reader(struct store *base, struct store_reader *reader)
{
	struct plain_reader *r = (struct plain_reader *)reader;

	store_close_reader(self_of(base)->source, r->inner);
	mem_free(r->base.key);
	mem_free(r);
}

static int
plain_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	return store_stat(self_of(base)->source, key, ret, err);
}

static int
plain_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return store_list(self_of(base)->source, folder, fn, arg, err);
}

static int
plain_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	return store_space(self_of(base)->source, ret_free_bytes, err);
}

static int
plain_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	return store_notes(self_of(base)->source, fn, arg, err);
}

static void
plain_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(self_of(base)->source, ret);
	ret->direct_io = false;
	ret->offset_align = ret->copies = 1;
}

static void
plain_close(struct store *base)
{
	struct plain_store *s = self_of(base);

	if (s->opened)
		s->view->close(s->opened);
	store_close(s->source);
	pthread_mutex_destroy(&s->lock);
	mem_free(s->key);
}

static const struct store_ops plain_ops = {
	.open = plain_open,
	.read = plain_read,
	.close_reader = plain_close_reader,
	.stat = plain_stat,
	.list = plain_list,
	.close = plain_close,
	.caps = plain_caps,
	.space = plain_space,
	.notes = plain_notes,
};

int
store_plain_wrap(struct store *s, const char *key, const struct store_plain_view *view, struct store **ret,
                 struct pawl_error *err)
{
	PAWL_FREE char *copy = mem_strdup(key);
	PAWL_FREE struct plain_store *layer = mem_zalloc(1, sizeof(*layer));

	if (!layer || !copy)
		return err_nomem(err, key);
	TRY(store_init(&layer->base, &plain_ops, "plain", s->root, err));
	layer->source = s;
	layer->view = view;
	layer->key = steal(&copy);
	pthread_mutex_init(&layer->lock, NULL);
	*ret = &steal(&layer)->base;
	return 0;
}
