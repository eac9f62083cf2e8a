/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes_marks: finds, makes, finishes and removes the marks that record where packs are (nodes.h).
 * Marks are looked up in a listing of their folder. The last listing is kept, because the packs of
 * one checkpoint are requested one after the other.
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/nodes/nodes.h"

#define MAX_NAMES 1000000u /* marks in one folder */

static void
drop_listing(struct nodes_store *s)
{
	for (size_t i = 0; i < s->names.n; i++)
		mem_free(s->names.items[i]);
	vec_free(&s->names);
	mem_free(s->listed);
	s->listed = NULL;
}

void
nodes_forget(struct nodes_store *s)
{
	pthread_mutex_lock(&s->lock);
	drop_listing(s);
	pthread_mutex_unlock(&s->lock);
}

static int
add_mark(void *arg, const struct store_entry *entry)
{
	struct nodes_store *s = arg;
	struct mark m;

	if (entry->is_folder || entry->is_link || !nodes_mark_parse(entry->name, &m))
		return 0;
	if (s->names.n == MAX_NAMES)
		return PAWL_ELIMIT;
	char **name = vec_add(&s->names);

	if (name)
		*name = mem_strdup(entry->name);
	return name && *name ? 0 : PAWL_ENOMEM;
}

/* Called with the lock held. */
static int
list_marks(struct nodes_store *s, const char *folder, struct pawl_error *err)
{
	drop_listing(s);
	int rc = store_list(s->base.inner, folder, add_mark, s, err);

	s->listed = rc == 0 ? mem_strdup(folder) : NULL;
	if (rc == 0 && !s->listed)
		rc = PAWL_ENOMEM;
	if (rc == PAWL_ENOMEM)
		rc = err_nomem(err, folder);
	if (rc == PAWL_ELIMIT)
		rc = err_set(err, rc, "%s: too many packs", folder);
	if (rc < 0)
		drop_listing(s);
	return rc;
}

/* Called with the lock held. Returns 1 if found. */
static int
look_up(const struct nodes_store *s, const char *pack, char **ret_name, struct mark *ret)
{
	for (size_t i = 0; i < s->names.n; i++) {
		struct mark m;

		if (!nodes_mark_parse(s->names.items[i], &m) || !m.is_done || strcmp(m.pack, pack) != 0)
			continue;
		*ret_name = mem_strdup(s->names.items[i]);
		if (!*ret_name)
			return PAWL_ENOMEM;
		nodes_mark_parse(*ret_name, ret);
		return 1;
	}
	return 0;
}

static int
find_in(struct nodes_store *s, const char *folder, const char *pack, char **ret_name, struct mark *ret,
        struct pawl_error *err)
{
	int found = s->listed && strcmp(s->listed, folder) == 0 ? look_up(s, pack, ret_name, ret) : 0;

	if (found == 0) {
		TRY(list_marks(s, folder, err));
		found = look_up(s, pack, ret_name, ret);
	}
	return found < 0 ? err_nomem(err, pack) : found;
}

int
nodes_find(struct nodes_store *s, const char *key, char **ret_name, struct mark *ret, struct pawl_error *err)
{
	const char *slash = strrchr(key, '/');
	PAWL_FREE char *folder = mem_strndup(key, slash ? (size_t)(slash - key) : 0);

	if (!folder)
		return err_nomem(err, key);
	pthread_mutex_lock(&s->lock);
	int rc = find_in(s, folder, slash ? slash + 1 : key, ret_name, ret, err);

	pthread_mutex_unlock(&s->lock);
	return rc == 0 ? err_set(err, PAWL_ENOTFOUND, "%s: not found", key) : rc < 0 ? rc : 0;
}

void
nodes_mark_key(const char *key, const char *mark_name, struct buf *out)
{
	const char *slash = strrchr(key, '/');

	buf_printf(out, "%.*s%s", slash ? (int)(slash + 1 - key) : 0, key, mark_name);
}

/* Makes the keys of the mark for the time before (begun) and after the pack is written. */
static int
make_keys(const char *key, const struct mark *m, struct buf *begun, struct buf *done, struct pawl_error *err)
{
	for (int i = 0; i < 2; i++) {
		PAWL_CLEAN(buf_clear) struct buf name = {0};
		struct mark as = *m;

		as.is_done = i == 1;
		nodes_mark_format(&as, &name);
		nodes_mark_key(key, buf_str(&name), as.is_done ? done : begun);
		TRY(buf_check(&name, key, err));
		TRY(buf_check(as.is_done ? done : begun, key, err));
	}
	return 0;
}

int
nodes_mark_begun(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf begun = {0}, done = {0};

	TRY(make_keys(key, m, &begun, &done, err));
	return store_put_bytes(s->base.inner, buf_str(&begun), "", 0, 0, err);
}

int
nodes_mark_done(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf begun = {0}, done = {0};

	TRY(make_keys(key, m, &begun, &done, err));
	nodes_forget(s);
	return store_move(s->base.inner, buf_str(&begun), buf_str(&done), err);
}

void
nodes_unmark(struct nodes_store *s, const char *key, const struct mark *m)
{
	PAWL_CLEAN(buf_clear) struct buf begun = {0}, done = {0};

	if (make_keys(key, m, &begun, &done, NULL) == 0)
		store_remove(s->base.inner, buf_str(&begun), NULL);
}

size_t
nodes_take_marks(struct nodes_store *s, const char *folder, char ***ret)
{
	pthread_mutex_lock(&s->lock);
	list_marks(s, folder, NULL); /* a missing folder has none */
	size_t n = s->names.n;

	*ret = steal(&s->names.items);
	s->names.n = 0;
	drop_listing(s);
	pthread_mutex_unlock(&s->lock);
	return n;
}
