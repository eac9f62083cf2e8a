/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_plain: see plain.h. Called by unpacked.c; calls what it wraps. Sizes of entries stay those of the bytes as they
 * lie there; only who opens the object sees the others.
 */
#include "store/plain.h"

#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/engine.h"

struct plain_store {
	struct store base;
	struct store *inner;
	const struct store_plain_view *view;
	char *key;
	pthread_mutex_t lock; /* guards below */
	void *opened;
	uint64_t nbytes;
};

struct plain_reader {
	struct store_reader base;
	struct store_reader *inner; /* NULL = what the view has opened */
};

static struct plain_store *
self_of(struct store *s)
{
	return (struct plain_store *)s;
}

static struct store *
inner_of(struct store *s)
{
	return self_of(s)->inner;
}

/* ------------------------------------------------------------------ reading */

static int
open_view(struct plain_store *s, struct pawl_error *err)
{
	pthread_mutex_lock(&s->lock);
	const int rc = s->opened ? 0 : s->view->open(s->inner, s->key, &s->opened, &s->nbytes, err);
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
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	if (strcmp(key, s->key) == 0) {
		TRY(open_view(s, err));
		*ret_nbytes = s->nbytes;
	} else {
		TRY(store_open_reader(s->inner, key, &r->inner, ret_nbytes, err));
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

	return r->inner ? store_read(s->inner, r->inner, offset, dst, n, err)
	                : s->view->read(s->opened, offset, dst, n, err);
}

static int
plain_view(struct store *base, struct store_reader *reader, uint64_t offset, size_t n, struct store_view *ret)
{
	(void)base, (void)reader, (void)offset, (void)n, (void)ret;
	return 0;
}

static void
plain_drop_view(struct store *base, struct store_view *view)
{
	(void)base, (void)view;
}

static void
plain_close_reader(struct store *base, struct store_reader *reader)
{
	struct plain_reader *r = (struct plain_reader *)reader;

	store_close_reader(inner_of(base), r->inner);
	mem_free(r->base.key);
	mem_free(r);
}

static int
plain_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	return store_stat(inner_of(base), key, ret, err);
}

static int
plain_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return store_list(inner_of(base), folder, fn, arg, err);
}

static int
plain_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	return store_space(inner_of(base), ret_free_bytes, err);
}

static int
plain_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	return store_notes(inner_of(base), fn, arg, err);
}

static void
plain_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(inner_of(base), ret);
	ret->direct_io = false;
	ret->offset_align = ret->memory_align = 1;
	ret->copies = 1;
}

static void
plain_close(struct store *base)
{
	struct plain_store *s = self_of(base);

	if (s->opened)
		s->view->close(s->opened);
	store_close(s->inner);
	pthread_mutex_destroy(&s->lock);
	mem_free(s->key);
	mem_free(base->root);
	mem_free(base);
}

/* ------------------------------------------------------------ what is refused */

static int
refuse(const char *key, struct pawl_error *err)
{
	return err_set(err, PAWL_EREADONLY, "%s: nothing can be written beside a file that is read unpacked", key);
}

static int
plain_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	(void)base, (void)parts, (void)n_parts, (void)flags;
	return refuse(key, err);
}

static int
plain_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	(void)base, (void)opts, (void)ret;
	return refuse(key, err);
}

static int
plain_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
            struct pawl_error *err)
{
	(void)base, (void)offset, (void)ptr, (void)len;
	return refuse(f->key, err);
}

static int
plain_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	(void)base;
	return refuse(f->key, err);
}

static void
plain_abort(struct store *base, struct store_file *f)
{
	(void)base, (void)f;
}

static int
plain_remove(struct store *base, const char *key, struct pawl_error *err)
{
	(void)base;
	return refuse(key, err);
}

static int
plain_pair(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	(void)base, (void)to;
	return refuse(from, err);
}

static int
plain_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	(void)base, (void)ptr, (void)len;
	return refuse(key, err);
}

/* ---------------------------------------------------------------- the layer */

static const struct store_ops plain_ops = {
	.name = "plain",
	.close = plain_close,
	.caps = plain_caps,
	.put = plain_put,
	.create = plain_create,
	.write = plain_write,
	.finish = plain_finish,
	.abort = plain_abort,
	.open = plain_open,
	.read = plain_read,
	.view = plain_view,
	.drop_view = plain_drop_view,
	.close_reader = plain_close_reader,
	.stat = plain_stat,
	.list = plain_list,
	.remove = plain_remove,
	.remove_folder = plain_remove,
	.link = plain_pair,
	.move = plain_pair,
	.publish = plain_pair,
	.pointer = plain_pair,
	.sync = plain_remove,
	.space = plain_space,
	.append = plain_append,
	.notes = plain_notes,
};

int
store_plain_wrap(struct store *s, const char *key, const struct store_plain_view *view, struct store **ret,
                 struct pawl_error *err)
{
	PAWL_FREE char *root = mem_strdup(s->root);
	PAWL_FREE char *copy = mem_strdup(key);
	struct plain_store *layer = root && copy ? mem_zalloc(1, sizeof(*layer)) : NULL;

	if (!layer)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	layer->base = (struct store){&plain_ops, steal(&root)};
	layer->inner = s;
	layer->view = view;
	layer->key = steal(&copy);
	pthread_mutex_init(&layer->lock, NULL);
	*ret = &layer->base;
	return 0;
}
