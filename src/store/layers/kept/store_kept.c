/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_kept: see store_kept.h. Readers share the one that was opened first, until the object
 * changes. Only for engines whose readers survive a deletion: those of open files do.
 */
#include "store/layers/kept/store_kept.h"

#include <stdatomic.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/layer.h"
#include "store/store_default.h"

struct kept_store {
	struct store base;
	char *key;
	struct store_entry entry;
	struct store_reader *reader;
	atomic_bool is_other; /* it has changed, or another object has had its name since */
};

static struct kept_store *
self_of(struct store *s)
{
	return (struct kept_store *)s;
}

static bool
is_kept(struct store *base, const char *key)
{
	return strcmp(self_of(base)->key, key) == 0;
}

static bool
is_same(const struct store_entry *a, const struct store_entry *b)
{
	return a->nbytes == b->nbytes && a->mtime_ns == b->mtime_ns && a->file_id == b->file_id;
}

static int
kept_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct kept_store *s = self_of(base);
	struct pawl_error why = {0};
	struct store_entry open = {0};

	if (!is_kept(base, key) || atomic_load(&s->is_other))
		return store_stat(base->inner, key, ret, err);
	const bool is_unchanged =
		store_stat_reader(base->inner, s->reader, &open, NULL) == 0 && is_same(&open, &s->entry);
	int rc = store_stat(base->inner, key, ret, &why);

	if (rc == PAWL_ENOTFOUND && is_unchanged) {
		*ret = s->entry;
		return 0;
	}
	if (rc == PAWL_ENOTFOUND || (rc == 0 && !(is_unchanged && is_same(ret, &s->entry))))
		atomic_store(&s->is_other, true);
	return err_give(err, rc, &why);
}

static int
kept_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct kept_store *s = self_of(base);
	struct store_entry now;

	if (!is_kept(base, key) || kept_stat(base, key, &now, NULL) < 0 || atomic_load(&s->is_other))
		return store_open_reader(base->inner, key, ret, ret_nbytes, err);
	*ret = s->reader;
	*ret_nbytes = s->reader->nbytes;
	return 0;
}

static void
kept_close_reader(struct store *base, struct store_reader *r)
{
	if (r != self_of(base)->reader)
		store_close_reader(base->inner, r);
}

/* tag: only engines with put_if are asked for it. */
static int
kept_get(struct store *base, const char *key, size_t max, struct buf *out, char *tag, struct pawl_error *err)
{
	(void)tag;
	return store_default_get(base, key, max, out, err);
}

static void
kept_close(struct store *base)
{
	struct kept_store *s = self_of(base);

	store_close_reader(base->inner, s->reader);
	mem_free(s->key);
}

static const struct store_ops kept_ops = {
	.open = kept_open,
	.close_reader = kept_close_reader,
	.get = kept_get,
	.stat = kept_stat,
	.close = kept_close,
};

int
store_kept_wrap(struct store **s, const char *key, struct pawl_error *err)
{
	PAWL_FREE char *copy = mem_strdup(key);
	PAWL_FREE struct kept_store *layer = mem_zalloc(1, sizeof(*layer));
	struct store_entry entry;

	TRY(store_stat(*s, key, &entry, err));
	if (entry.is_folder || entry.is_link)
		return 0;
	if (!copy || !layer)
		return err_nomem(err, key);
	TRY(store_open_reader(*s, key, &layer->reader, NULL, err));
	int rc = store_stat_reader(*s, layer->reader, &layer->entry, err);
	if (rc == 0)
		rc = layer_init(&layer->base, &kept_ops, *s, err);
	if (rc < 0) {
		store_close_reader(*s, layer->reader);
		return rc;
	}
	layer->key = steal(&copy);
	layer->is_other = layer->entry.nbytes != layer->reader->nbytes; /* it is being written */
	*s = &steal(&layer)->base;
	return 0;
}
