/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes_sweep: removes packs on nodes that no mark and no hidden folder names any more. They belong
 * to saves that failed before they had marks, or to checkpoints that were removed while a node
 * could not be reached. Promise P8: it removes only below the run's own id. It removes nothing if
 * the inner store shows no folder of a checkpoint, because that may be the wrong place, or not
 * mounted.
 */
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/layers/nodes/nodes.h"

#define MAX_TOKENS 1000000u
#define MAX_ABSENT 16u /* after this many numbers in a row without a folder, there are no more nodes */

struct token_row {
	char token[MARK_TOKEN_LEN + 1];
	uint32_t node;
};

struct token_list {
	VEC(struct token_row) rows;
};

struct sweep {
	struct nodes_store *s;
	struct token_list found, named;
	uint32_t node; /* being listed */
	struct bump memory;
	VEC(const char *) folders; /* in the folder of checkpoints */
	uint64_t bytes;            /* of the current token */
};

static void
sweep_clear(struct sweep *w)
{
	vec_free(&w->found.rows);
	vec_free(&w->named.rows);
	vec_free(&w->folders);
	bump_clear(&w->memory);
}

static int
add_token(struct token_list *list, const char *token, uint32_t node)
{
	if (list->rows.n == MAX_TOKENS)
		return PAWL_ELIMIT;
	struct token_row *row = vec_add(&list->rows);

	if (!row)
		return PAWL_ENOMEM;
	memcpy(row->token, token, MARK_TOKEN_LEN);
	row->node = node;
	return 0;
}

static int
add_found(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;

	if (!entry->is_folder || strlen(entry->name) != MARK_TOKEN_LEN ||
	    strspn(entry->name, "0123456789abcdef") != MARK_TOKEN_LEN)
		return 0;
	return add_token(&w->found, entry->name, w->node);
}

/* Skips a node that cannot be reached; the next sweep retries it. */
static int
list_nodes(struct sweep *w)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, "packs/%s", w->s->run_id);
	for (uint32_t absent = 0; w->node < w->s->opts.n_nodes && absent < MAX_ABSENT; w->node++) {
		struct store *node;

		absent++;
		if (key.failed || nodes_at(w->s, w->node, false, &node, NULL) < 0)
			continue;
		absent = 0;
		int rc = store_list(node, buf_str(&key), add_found, w, NULL);

		if (rc == PAWL_ENOMEM || rc == PAWL_ELIMIT)
			return rc;
	}
	return 0;
}

static int
add_folder(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;

	if (!entry->is_folder)
		return 0;
	const char **folder = vec_add(&w->folders);

	if (folder)
		*folder = bump_strndup(&w->memory, entry->name, strlen(entry->name));
	return folder && *folder ? 0 : PAWL_ENOMEM;
}

static int
add_named(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;
	struct mark m;

	return nodes_mark_parse(entry->name, &m) ? add_token(&w->named, m.token, 0) : 0;
}

static int
collect_named(struct sweep *w, const char *folder, struct pawl_error *err)
{
	TRY(store_list(w->s->base.inner, folder, add_folder, w, err));
	for (size_t i = 0; i < w->folders.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		char token[MARK_TOKEN_LEN + 1];

		if (nodes_mark_folder_token(w->folders.items[i], strlen(w->folders.items[i]), token) &&
		    add_token(&w->named, token, 0) < 0)
			return err_nomem(err, "gc");
		buf_printf(&key, "%s/%s", folder, w->folders.items[i]);
		TRY(buf_check(&key, "gc", err));
		int rc = store_list(w->s->base.inner, buf_str(&key), add_named, w, err);

		if (rc == PAWL_ENOMEM || rc == PAWL_ELIMIT)
			return err_set(err, rc, "%s: too many packs for the memory", w->folders.items[i]);
		if (rc < 0 && rc != PAWL_ENOTFOUND) /* else its owner has removed it, together with its packs */
			return rc;
	}
	return 0;
}

static bool
is_named(const struct sweep *w, const char *token)
{
	for (size_t i = 0; i < w->named.rows.n; i++)
		if (strcmp(w->named.rows.items[i].token, token) == 0)
			return true;
	return false;
}

static int
add_bytes(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;

	if (!entry->is_folder && entry->n_links <= 1)
		w->bytes += entry->nbytes;
	return 0;
}

static int
remove_packs(struct sweep *w, const struct token_row *row, bool dry_run, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store *node;

	nodes_mark_node_key(w->s->run_id, row->token, NULL, &key);
	TRY(buf_check(&key, "gc", err));
	TRY(nodes_at(w->s, row->node, false, &node, err));
	w->bytes = 0;
	store_list(node, buf_str(&key), add_bytes, w, NULL);
	if (dry_run)
		return 0;
	int rc = store_remove_folder(node, buf_str(&key), err);

	return rc < 0 ? nodes_name_error(w->s, row->node, rc, err) : 0;
}

int
nodes_sweep(struct store *layer, const char *folder, store_nodes_spare_fn *spare, void *arg, bool dry_run,
            uint64_t *ret_count, uint64_t *ret_bytes, struct pawl_error *err)
{
	PAWL_CLEAN(sweep_clear) struct sweep w = {.s = (struct nodes_store *)layer};

	*ret_count = *ret_bytes = 0;
	if (list_nodes(&w) < 0) /* before the marks: a save that begins meanwhile is in neither list */
		return err_nomem(err, "gc");
	if (w.found.rows.n == 0)
		return 0;
	TRY(collect_named(&w, folder, err));
	if (w.folders.n == 0)
		return 0;
	for (size_t i = 0; i < w.found.rows.n; i++) {
		if (is_named(&w, w.found.rows.items[i].token) || spare(arg, w.found.rows.items[i].token))
			continue;
		TRY(remove_packs(&w, &w.found.rows.items[i], dry_run, err));
		*ret_count += 1;
		*ret_bytes += w.bytes;
	}
	return 0;
}
