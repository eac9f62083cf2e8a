/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_nodes: see store_nodes.h. Promises P2 (the inner store alone decides what exists), P4 (a
 * failed link leaves nothing) and P8 (packs are stored under their run's id).
 */
#include "store/layers/nodes/store_nodes.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/nodes/nodes.h"

/* ------------------------------------------------------------------- nodes */

static char *
node_url(const struct nodes_store *s, uint32_t node)
{
	const char *at = strstr(s->template_url, NODES_VARIABLE);

	return mem_printf("%.*s%u%s", (int)(at - s->template_url), s->template_url, node, at + strlen(NODES_VARIABLE));
}

int
nodes_name_error(const struct nodes_store *s, uint32_t node, int rc, struct pawl_error *err)
{
	PAWL_FREE char *url = node_url(s, node);

	return err_prefix(err, rc, "node %u (%s)", node, url ? url : s->template_url);
}

/* Called with the lock held. */
static int
open_node(struct nodes_store *s, uint32_t node, bool make, struct pawl_error *err)
{
	while (s->nodes.n <= node) {
		struct store **place = vec_add(&s->nodes);

		if (!place)
			return err_nomem(err, NULL);
	}
	if (s->nodes.items[node])
		return 0;
	PAWL_FREE char *url = node_url(s, node);

	if (!url)
		return err_nomem(err, NULL);
	return store_open(url, make, s->opts.no_direct_io, &s->nodes.items[node], err);
}

int
nodes_at(struct nodes_store *s, uint32_t node, bool make, struct store **ret, struct pawl_error *err)
{
	pthread_mutex_lock(&s->lock);
	int rc = open_node(s, node, make, err);

	if (rc == 0)
		*ret = s->nodes.items[node];
	pthread_mutex_unlock(&s->lock);
	return rc < 0 ? nodes_name_error(s, node, rc, err) : 0;
}

void
nodes_targets(const struct nodes_store *s, struct mark *ret)
{
	ret->n_nodes = s->opts.n_copies;
	for (uint32_t i = 0; i < s->opts.n_copies; i++)
		ret->nodes[i] = (s->opts.node + i) % s->opts.n_nodes;
}

int
nodes_sync(struct nodes_store *s, struct store *node, const char *token, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf folder = {0}, above = {0};

	nodes_mark_node_key(s->run_id, token, NULL, &folder);
	buf_printf(&above, "packs/%s", s->run_id);
	TRY(buf_check(&folder, "packs", err));
	TRY(buf_check(&above, "packs", err));
	TRY(store_sync(node, buf_str(&folder), err));
	return store_sync(node, buf_str(&above), err); /* to create a pack does not sync its folder's name */
}

/* ------------------------------------------------------------------- names */

static struct nodes_store *
self_of(struct store *base)
{
	return (struct nodes_store *)base;
}

static int
nodes_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	PAWL_FREE char *name = NULL;
	struct pawl_error why = {0};
	struct mark m;
	int rc = store_stat(base->inner, key, ret, &why);

	int found = rc == PAWL_ENOTFOUND ? nodes_find(self_of(base), key, &name, &m, err) : rc;

	if (rc == PAWL_ENOTFOUND && found == 0)
		*ret = (struct store_entry){.nbytes = m.nbytes, .n_links = 1};
	return found == 0 || found != rc ? found : err_set(err, rc, "%s", why.message);
}

struct listing {
	store_list_fn *fn;
	void *arg;
};

/* Shows a mark as its pack. */
static int
show_entry(void *arg, const struct store_entry *entry)
{
	const struct listing *l = arg;
	struct store_entry shown = *entry;
	struct mark m;

	if (!entry->is_folder && !entry->is_link && nodes_mark_parse(entry->name, &m)) {
		if (!m.is_done)
			return 0;
		shown.name = m.pack;
		shown.nbytes = m.nbytes;
		shown.n_links = 1;
	}
	return l->fn(l->arg, &shown);
}

static int
nodes_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return store_list(base->inner, folder, show_entry, &(struct listing){fn, arg}, err);
}

/* Copies on a node that cannot be reached are left to the next sweep. */
static void
remove_copies(struct nodes_store *s, const struct mark *m)
{
	for (uint32_t i = 0; i < m->n_nodes; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		struct store *node;

		nodes_mark_node_key(s->run_id, m->token, m->pack, &key);
		if (!key.failed && nodes_at(s, m->nodes[i], false, &node, NULL) == 0)
			store_remove(node, buf_str(&key), NULL);
	}
}

static int
nodes_remove(struct store *base, const char *key, struct pawl_error *err)
{
	struct nodes_store *s = self_of(base);
	PAWL_FREE char *name = NULL;
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	struct mark m;
	int rc = nodes_find(s, key, &name, &m, err);

	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	if (rc == 0) {
		remove_copies(s, &m);
		nodes_mark_key(key, name, &whole);
		TRY(buf_check(&whole, key, err));
		nodes_forget(s);
		TRY(store_remove(s->base.inner, buf_str(&whole), err));
	}
	return store_remove(s->base.inner, key, err);
}

static void
remove_token(struct nodes_store *s, uint32_t node, const char *token)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store *at;

	nodes_mark_node_key(s->run_id, token, NULL, &key);
	if (!key.failed && nodes_at(s, node, false, &at, NULL) == 0)
		store_remove_folder(at, buf_str(&key), NULL);
}

/* Removes the packs of the hidden folder itself, finished or not, on the nodes that this process
 * writes to. */
static void
remove_own(struct nodes_store *s, const char *folder)
{
	char token[MARK_TOKEN_LEN + 1];
	struct mark targets;

	if (!nodes_mark_folder_token(folder, strlen(folder), token))
		return;
	nodes_targets(s, &targets);
	for (uint32_t i = 0; i < targets.n_nodes; i++)
		remove_token(s, targets.nodes[i], token);
}

/* Removes the packs first, finished or begun. As long as the folder exists, its marks record where
 * the rest is. */
static int
nodes_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct nodes_store *s = self_of(base);
	char **names = NULL;
	size_t n = nodes_take_marks(s, folder, &names);
	struct mark m, done = {.n_nodes = 0};

	remove_own(s, folder);
	for (size_t i = 0; i < n; i++) {
		bool same = nodes_mark_parse(names[i], &m) && m.n_nodes == done.n_nodes &&
		            strcmp(m.token, done.token) == 0 &&
		            memcmp(m.nodes, done.nodes, m.n_nodes * sizeof(m.nodes[0])) == 0;

		for (uint32_t k = 0; k < m.n_nodes && !same; k++) /* the token is of this save only */
			remove_token(s, m.nodes[k], m.token);
		done = m;
	}
	for (size_t i = 0; i < n; i++)
		mem_free(names[i]);
	mem_free(names);
	return store_remove_folder(s->base.inner, folder, err);
}

/* Links a pack on the nodes of its new mark; *ret_n_linked nodes have the link, even on failure. */
static int
link_copies(struct nodes_store *s, const struct mark *m, const char *from, const char *to, uint32_t *ret_n_linked,
            struct pawl_error *err)
{
	for (uint32_t i = 0; i < m->n_nodes; i++) {
		struct store *node;

		TRY(nodes_at(s, m->nodes[i], false, &node, err));
		int rc = store_link(node, from, to, err);

		if (rc == 0) {
			*ret_n_linked = i + 1;
			rc = nodes_sync(s, node, m->token, err);
		}
		if (rc < 0)
			return nodes_name_error(s, m->nodes[i], rc, err);
	}
	return 0;
}

/* A failed link leaves nothing (P4): the caller may write a pack at the same key. */
static void
undo_link(struct nodes_store *s, const char *key, const struct mark *m, uint32_t n_linked)
{
	struct mark made = *m;

	made.n_nodes = n_linked;
	remove_copies(s, &made);
	nodes_unmark(s, key, m);
}

/* Links an unchanged pack on its nodes, if new packs would go to the same nodes. */
static int
nodes_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct nodes_store *s = self_of(base);
	PAWL_CLEAN(buf_clear) struct buf old_key = {0}, new_key = {0};
	PAWL_FREE char *name = NULL;
	char token[MARK_TOKEN_LEN + 1];
	struct mark old, new = {.nbytes = 0};
	size_t folder_len;

	int rc = nodes_find(s, from, &name, &old, err);
	if (rc == PAWL_ENOTFOUND)
		return store_link(s->base.inner, from, to, err);
	TRY(rc);
	nodes_targets(s, &new);
	if (!nodes_mark_pack_key(to, &folder_len, token, &new.pack) || new.n_nodes != old.n_nodes ||
	    memcmp(new.nodes, old.nodes, new.n_nodes * sizeof(new.nodes[0])) != 0)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: its packs are on other nodes", from);
	new.nbytes = old.nbytes;
	memcpy(new.token, token, sizeof(new.token));
	nodes_mark_node_key(s->run_id, old.token, old.pack, &old_key);
	nodes_mark_node_key(s->run_id, new.token, new.pack, &new_key);
	TRY(buf_check(&old_key, from, err));
	TRY(buf_check(&new_key, to, err));
	uint32_t n_linked = 0;
	rc = nodes_mark_begun(s, to, &new, err);

	if (rc == 0)
		rc = link_copies(s, &new, buf_str(&old_key), buf_str(&new_key), &n_linked, err);
	if (rc == 0)
		rc = nodes_mark_done(s, to, &new, err);
	if (rc < 0)
		undo_link(s, to, &new, n_linked);
	return rc;
}

static int
nodes_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct nodes_store *s = self_of(base);
	PAWL_FREE char *name = NULL;
	struct mark m;

	int rc = nodes_find(s, from, &name, &m, err);
	if (rc == 0)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: packs on nodes cannot be moved", from);
	if (rc != PAWL_ENOTFOUND)
		return rc;
	return store_move(s->base.inner, from, to, err);
}

static int
nodes_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	nodes_forget(self_of(base));
	return store_publish(base->inner, from, to, err);
}

static int
nodes_exchange(struct store *base, const char *a, const char *b, struct pawl_error *err)
{
	nodes_forget(self_of(base));
	return store_exchange(base->inner, a, b, err);
}

/* --------------------------------------------------------- the store itself */

/* Free space of the node that receives the large files. */
static int
nodes_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	struct nodes_store *s = self_of(base);
	struct store *own;

	TRY(nodes_at(s, s->opts.node, false, &own, err));
	return store_space(own, ret_free_bytes, err);
}

static uint32_t
larger_of(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static void
nodes_caps(struct store *base, struct store_caps *ret)
{
	struct nodes_store *s = self_of(base);
	struct store_caps own;
	struct store *node;

	store_get_caps(s->base.inner, ret);
	ret->can_cut = false; /* a mark states the size before the pack is written */
	ret->copies = s->opts.read_only ? NODES_MAX_COPIES : s->opts.n_copies; /* a reader cannot know the number */
	if (nodes_at(s, s->opts.node, false, &node, NULL) < 0)
		return;
	store_get_caps(node, &own);
	ret->link = ret->link && own.link;
	ret->direct_io = own.direct_io;
	ret->offset_align = larger_of(ret->offset_align, own.offset_align);
	ret->unit_bytes = ret->unit_bytes > own.unit_bytes ? ret->unit_bytes : own.unit_bytes;
	ret->max_object_bytes = own.max_object_bytes;
}

static void
nodes_close(struct store *base)
{
	struct nodes_store *s = self_of(base);

	for (size_t i = 0; i < s->nodes.n; i++)
		store_close(s->nodes.items[i]);
	vec_free(&s->nodes);
	nodes_forget(s);
	pthread_mutex_destroy(&s->lock);
	mem_free(s->template_url);
}

static const struct store_ops nodes_ops = {
	.create = nodes_create,
	.write = nodes_write,
	.finish = nodes_finish,
	.abort = nodes_abort,
	.remove = nodes_remove,
	.remove_folder = nodes_remove_folder,
	.open = nodes_open,
	.read = nodes_read,
	.close_reader = nodes_close_reader,
	.stat = nodes_stat,
	.list = nodes_list,
	.close = nodes_close,
	.caps = nodes_caps,
	.space = nodes_space,
	.link = nodes_link,
	.move = nodes_move,
	.publish = nodes_publish,
	.exchange = nodes_exchange,
	.read_copy = nodes_read_copy,
	.is_cached = nodes_is_cached,
};

void
store_nodes_set_run(struct store *layer, const char *run_id)
{
	struct nodes_store *s = self_of(layer);

	memcpy(s->run_id, run_id, sizeof(s->run_id));
}

static int
check_opts(const struct store_nodes *o, struct pawl_error *err)
{
	const char *at = strstr(o->template_url, NODES_VARIABLE);

	if (!at || strstr(at + 1, NODES_VARIABLE))
		return err_set(err, PAWL_EUSAGE, "node folder '%s': expected " NODES_VARIABLE " in it, once",
		               o->template_url);
	if (o->n_nodes < 1 || o->n_nodes > NODES_MAX_NODES || o->node >= o->n_nodes)
		return err_set(err, PAWL_EUSAGE,
		               "node folder: expected a node below their number (1 to %u), found %u of %u",
		               NODES_MAX_NODES, o->node, o->n_nodes);
	if (o->n_copies < 1 || o->n_copies > NODES_MAX_COPIES || o->n_copies > o->n_nodes)
		return err_set(err, PAWL_EUSAGE,
		               "ranks.n_partners: expected %u other nodes to keep copies, there are %u",
		               o->n_copies - 1, o->n_nodes - 1);
	return 0;
}

static int
start_layer(struct nodes_store *layer, const struct store_nodes *opts, struct pawl_error *err)
{
	struct store *own;

	layer->template_url = mem_strdup(opts->template_url);
	if (!layer->template_url)
		return err_nomem(err, opts->template_url);
	layer->opts = *opts;
	layer->opts.template_url = layer->template_url;
	return opts->read_only ? 0 : nodes_at(layer, opts->node, true, &own, err);
}

int
store_nodes_wrap(struct store *s, const struct store_nodes *opts, struct store **ret, struct pawl_error *err)
{
	TRY(check_opts(opts, err));
	PAWL_FREE struct nodes_store *layer = mem_zalloc(1, sizeof(*layer));

	if (!layer)
		return err_nomem(err, s->root);
	TRY(layer_init(&layer->base, &nodes_ops, s, err));
	pthread_mutex_init(&layer->lock, NULL);
	int rc = start_layer(layer, opts, err);

	if (rc < 0) { /* the caller still owns the inner store */
		layer->base.inner = NULL;
		store_close(&steal(&layer)->base);
		return rc;
	}
	*ret = &steal(&layer)->base;
	return 0;
}
