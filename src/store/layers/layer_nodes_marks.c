/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_nodes_marks: the marks that say where packs are (nodes.h): found, made, finished, taken back. Called by the
 * other layer_nodes*.c; calls the store below only. Marks are looked up in a listing of their folder, of which the last
 * one is kept: packs of one checkpoint are asked for one after the other.
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/nodes.h"

#define MAX_NAMES 1000000u /* marks in one folder */

static void
drop_listing(struct nodes_store *s)
{
	for (size_t i = 0; i < s->n_names; i++)
		mem_free(s->names[i]);
	mem_free(s->names);
	mem_free(s->listed);
	s->names = NULL;
	s->listed = NULL;
	s->n_names = 0;
}

void
nodes_forget(struct nodes_store *s)
{
	pthread_mutex_lock(&s->lock);
	drop_listing(s);
	pthread_mutex_unlock(&s->lock);
}

static int
note_mark(void *arg, const struct store_entry *entry)
{
	struct nodes_store *s = arg;
	struct mark m;

	if (entry->is_folder || entry->is_link || !mark_parse(entry->name, &m))
		return 0;
	if (s->n_names == MAX_NAMES)
		return PAWL_ELIMIT;
	if ((s->n_names & (s->n_names + 1)) == 0) { /* room for twice as many */
		char **bigger = mem_resize(s->names, 2 * (s->n_names + 1), sizeof(char *));
		if (!bigger)
			return PAWL_ENOMEM;
		s->names = bigger;
	}
	s->names[s->n_names] = mem_strdup(entry->name);
	return s->names[s->n_names] ? (s->n_names++, 0) : PAWL_ENOMEM;
}

/* Called with the lock held. */
static int
list_marks(struct nodes_store *s, const char *folder, struct pawl_error *err)
{
	drop_listing(s);
	int rc = store_list(s->inner, folder, note_mark, s, err);

	s->listed = rc == 0 ? mem_strdup(folder) : NULL;
	if (rc == 0 && !s->listed)
		rc = PAWL_ENOMEM;
	if (rc == PAWL_ENOMEM || rc == PAWL_ELIMIT)
		rc = err_set(err, rc, rc == PAWL_ENOMEM ? "%s: out of memory" : "%s: too many packs", folder);
	if (rc < 0)
		drop_listing(s);
	return rc;
}

/* Called with the lock held. 1 = found. */
static int
look_up(const struct nodes_store *s, const char *pack, char **ret_name, struct mark *ret)
{
	for (size_t i = 0; i < s->n_names; i++) {
		struct mark m;

		if (!mark_parse(s->names[i], &m) || !m.is_done || strcmp(m.pack, pack) != 0)
			continue;
		*ret_name = mem_strdup(s->names[i]);
		if (!*ret_name)
			return PAWL_ENOMEM;
		mark_parse(*ret_name, ret);
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
	return found < 0 ? err_set(err, found, "%s: out of memory", pack) : found;
}

int
nodes_find(struct nodes_store *s, const char *key, char **ret_name, struct mark *ret, struct pawl_error *err)
{
	const char *slash = strrchr(key, '/');
	PAWL_FREE char *folder = mem_strndup(key, slash ? (size_t)(slash - key) : 0);

	if (!folder)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
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

/* Key of the mark as it is before (begun) and after. */
static int
both_keys(const char *key, const struct mark *m, struct buf *begun, struct buf *done, struct pawl_error *err)
{
	for (int i = 0; i < 2; i++) {
		PAWL_CLEAN(buf_clear) struct buf name = {0};
		struct mark as = *m;

		as.is_done = i == 1;
		mark_format(&as, &name);
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

	TRY(both_keys(key, m, &begun, &done, err));
	return store_put_bytes(s->inner, buf_str(&begun), "", 0, 0, err);
}

int
nodes_mark_done(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf begun = {0}, done = {0};

	TRY(both_keys(key, m, &begun, &done, err));
	nodes_forget(s);
	return store_move(s->inner, buf_str(&begun), buf_str(&done), err);
}

void
nodes_unmark(struct nodes_store *s, const char *key, const struct mark *m)
{
	PAWL_CLEAN(buf_clear) struct buf begun = {0}, done = {0};

	if (both_keys(key, m, &begun, &done, NULL) == 0)
		store_remove(s->inner, buf_str(&begun), NULL);
}

size_t
nodes_take_marks(struct nodes_store *s, const char *folder, char ***ret)
{
	pthread_mutex_lock(&s->lock);
	list_marks(s, folder, NULL); /* one that is not there has none */
	size_t n = s->n_names;

	*ret = steal(&s->names);
	s->n_names = 0;
	drop_listing(s);
	pthread_mutex_unlock(&s->lock);
	return n;
}
