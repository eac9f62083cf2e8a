/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_nodes_sweep: packs on nodes that nothing speaks of any more: of saves that came to nothing before they had
 * marks, and of checkpoints that were removed while a node could not be reached. Called by gc.c. Promise P8: only below
 * the run's own id, and not at all when the store below shows no folder of a checkpoint (it may be the wrong place, or
 * not mounted).
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/nodes.h"

#define MAX_TOKENS 1000000u
#define MAX_ABSENT \
	16u /* numbers in a row without a folder: there are no more nodes, where nobody says how many there are */

struct token_row {
	char token[MARK_TOKEN_LEN + 1];
	uint32_t node;
};

struct token_list {
	struct token_row *rows;
	size_t n, cap;
};

struct sweep {
	struct nodes_store *s;
	struct token_list found, named;
	uint32_t node; /* that is being listed */
	struct bump memory;
	const char **folders; /* below the folder of checkpoints */
	size_t n_folders, cap_folders;
	uint64_t bytes; /* of the token that is being looked at */
};

static void
sweep_clear(struct sweep *w)
{
	mem_free(w->found.rows);
	mem_free(w->named.rows);
	mem_free(w->folders);
	bump_clear(&w->memory);
}

static int
add_token(struct token_list *list, const char *token, uint32_t node)
{
	if (list->n == MAX_TOKENS)
		return PAWL_ELIMIT;
	if (list->n == list->cap) {
		size_t cap = list->cap ? 2 * list->cap : 64;
		struct token_row *bigger = mem_resize(list->rows, cap, sizeof(*bigger));
		if (!bigger)
			return PAWL_ENOMEM;
		list->rows = bigger;
		list->cap = cap;
	}
	struct token_row *row = &list->rows[list->n++];

	memcpy(row->token, token, MARK_TOKEN_LEN);
	row->token[MARK_TOKEN_LEN] = 0;
	row->node = node;
	return 0;
}

static int
see_token(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;

	if (!entry->is_folder || strlen(entry->name) != MARK_TOKEN_LEN ||
	    strspn(entry->name, "0123456789abcdef") != MARK_TOKEN_LEN)
		return 0;
	return add_token(&w->found, entry->name, w->node);
}

/* A node that cannot be reached is left for another time. */
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
		int rc = store_list(node, buf_str(&key), see_token, w, NULL);

		if (rc == PAWL_ENOMEM || rc == PAWL_ELIMIT)
			return rc;
	}
	return 0;
}

static int
see_folder(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;

	if (!entry->is_folder)
		return 0;
	if (w->n_folders == w->cap_folders) {
		size_t cap = w->cap_folders ? 2 * w->cap_folders : 64;
		const char **bigger = mem_resize(w->folders, cap, sizeof(*bigger));
		if (!bigger)
			return PAWL_ENOMEM;
		w->folders = bigger;
		w->cap_folders = cap;
	}
	w->folders[w->n_folders] = bump_strndup(&w->memory, entry->name, strlen(entry->name));
	return w->folders[w->n_folders] ? (w->n_folders++, 0) : PAWL_ENOMEM;
}

static int
see_mark(void *arg, const struct store_entry *entry)
{
	struct sweep *w = arg;
	struct mark m;

	return mark_parse(entry->name, &m) ? add_token(&w->named, m.token, 0) : 0;
}

static int
collect_named(struct sweep *w, const char *folder, struct pawl_error *err)
{
	TRY(store_list(w->s->inner, folder, see_folder, w, err));
	for (size_t i = 0; i < w->n_folders; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		char token[MARK_TOKEN_LEN + 1];

		if (mark_folder_token(w->folders[i], strlen(w->folders[i]), token) &&
		    add_token(&w->named, token, 0) < 0)
			return err_set(err, PAWL_ENOMEM, "gc: out of memory");
		buf_printf(&key, "%s/%s", folder, w->folders[i]);
		TRY(buf_check(&key, "gc", err));
		int rc = store_list(w->s->inner, buf_str(&key), see_mark, w, err);

		if (rc == PAWL_ENOMEM || rc == PAWL_ELIMIT)
			return err_set(err, rc, "%s: too many packs for the memory", w->folders[i]);
		if (rc < 0 && rc != PAWL_ENOTFOUND) /* gone meanwhile: by its owner, with its packs */
			return rc;
	}
	return 0;
}

static bool
is_named(const struct sweep *w, const char *token)
{
	for (size_t i = 0; i < w->named.n; i++)
		if (strcmp(w->named.rows[i].token, token) == 0)
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
drop(struct sweep *w, const struct token_row *row, bool dry_run, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store *node;

	mark_node_key(w->s->run_id, row->token, NULL, &key);
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
store_nodes_sweep(struct store *layer, const char *folder, store_nodes_spare_fn *spare, void *arg, bool dry_run,
                  uint64_t *ret_count, uint64_t *ret_bytes, struct pawl_error *err)
{
	PAWL_CLEAN(sweep_clear) struct sweep w = {.s = (struct nodes_store *)layer};

	*ret_count = *ret_bytes = 0;
	if (list_nodes(&w) < 0) /* before what speaks of them: a save that begins meanwhile is in neither list */
		return err_set(err, PAWL_ENOMEM, "gc: out of memory");
	if (w.found.n == 0)
		return 0;
	TRY(collect_named(&w, folder, err));
	if (w.n_folders == 0)
		return 0;
	for (size_t i = 0; i < w.found.n; i++) {
		if (is_named(&w, w.found.rows[i].token) || spare(arg, w.found.rows[i].token))
			continue;
		TRY(drop(&w, &w.found.rows[i], dry_run, err));
		*ret_count += 1;
		*ret_bytes += w.bytes;
	}
	return 0;
}
