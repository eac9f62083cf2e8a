/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_reload: reads the table again; see catalog.h. It first gathers everything that can fail,
 * one row for each folder, and then changes the table. So an error leaves the catalog as it was
 * (P8), and only the second half holds the guard.
 *
 *   gather:  list folders -> read new ones -> read marks -> read holds
 *                ^                |
 *                └── the newest was deleted, or the run closed, meanwhile
 *   change:  move known entries over -> add new ones -> order by id
 *
 * Promises P2 (only a manifest that verifies counts), P8, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "catalog/catalog.h"
#include "catalog/catalog_entry.h"
#include "catalog/catalog_list.h"
#include "catalog/catalog_own.h"
#include "run/lease.h"

/* What a reload knows of one folder before it changes anything. */
struct row {
	struct catalog_entry *old;   /* the entry to carry over, or NULL */
	struct catalog_entry added;  /* else the one read now */
	struct pawl_metric *metrics; /* saved ones overlaid with late scores; NULL = no late ones */
	size_t n_metrics;
	bool pinned, held;
};

struct rows {
	struct row *row; /* in the order of the listing: by name */
	const char **names;
	size_t n;
};

static void
rows_clear(struct rows *rows)
{
	for (size_t i = 0; rows->row && i < rows->n; i++) {
		catalog_entry_clear(&rows->row[i].added);
		mem_free(rows->row[i].metrics);
	}
	mem_free(rows->row);
	mem_free(rows->names);
}

static int
compare_by_name(const void *a, const void *b)
{
	return strcmp((*(struct catalog_entry *const *)a)->name, (*(struct catalog_entry *const *)b)->name);
}

/* Finds the known entry of each row. Both lists are sorted by name. */
static int
match_known(const struct catalog *c, const struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	PAWL_FREE struct catalog_entry **known = mem_zalloc(c->n, sizeof(struct catalog_entry *));
	size_t k = 0;

	if (!known)
		return err_nomem(err, "catalog");
	for (size_t i = 0; i < c->n; i++)
		known[i] = &c->entries[i];
	if (c->n)
		qsort(known, c->n, sizeof(*known), compare_by_name);
	for (size_t i = 0; i < l->found.n; i++) {
		while (k < c->n && strcmp(known[k]->name, l->found.items[i].name) < 0)
			k++;
		if (k < c->n && strcmp(known[k]->name, l->found.items[i].name) == 0 && known[k]->summary &&
		    !known[k]->at && known[k]->mtime_ns == l->found.items[i].mtime_ns && known[k]->mtime_ns)
			rows->row[i].old = known[k];
	}
	return 0;
}

static int
compare_name(const void *key, const void *row)
{
	return strcmp(key, *(const char *const *)row);
}

static struct row *
find_row(const struct rows *rows, const char *name)
{
	const char **at = rows->n ? bsearch(name, rows->names, rows->n, sizeof(*rows->names), compare_name) : NULL;

	return at ? &rows->row[at - rows->names] : NULL;
}

static int
apply_marks(const struct catalog *c, struct rows *rows, struct bump *memory, struct pawl_error *err)
{
	struct pin_mark *marks;
	size_t n_marks;

	TRY(pins_read(c->store, rows->names, rows->n, memory, &marks, &n_marks, err));
	for (size_t i = 0; i < n_marks; i++) {
		struct row *row = find_row(rows, marks[i].name);
		const struct manifest *summary = row->old ? row->old->summary : row->added.summary;

		row->pinned = marks[i].pinned;
		if (!summary || !marks[i].n_metrics)
			continue;
		mem_free(row->metrics);
		row->metrics = pins_overlay(summary->metrics, summary->n_metrics, marks[i].metrics, marks[i].n_metrics,
		                            &row->n_metrics);
		if (!row->metrics)
			return err_nomem(err, "catalog");
	}
	return 0;
}

static int
apply_holds(const struct catalog *c, struct rows *rows, struct bump *memory, struct pawl_error *err)
{
	struct hold *holds;
	size_t n_holds;

	TRY(holds_read(c->store, memory, &holds, &n_holds, err));
	for (size_t i = 0; i < n_holds; i++) {
		struct row *row = find_row(rows, holds[i].name);

		if (row && holds[i].alive)
			row->held = true;
	}
	return 0;
}

/* The known entry of an aborted save that left nothing else, or NULL. */
static const struct catalog_entry *
find_withdrawn(const struct catalog *c, const char *name)
{
	for (size_t i = 0; i < c->n_withdrawn; i++)
		if (strcmp(c->withdrawn[i].name, name) == 0)
			return &c->withdrawn[i];
	return NULL;
}

static bool
is_known_mark(const struct catalog *c, const struct catalog_found *found)
{
	const struct catalog_entry *e = found->mtime_ns ? find_withdrawn(c, found->name) : NULL;

	return e && e->mtime_ns == found->mtime_ns;
}

static int
read_new(const struct catalog *c, const struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	PAWL_FREE struct catalog_want *wants = mem_zalloc(l->found.n, sizeof(*wants));
	size_t n = 0;

	if (!wants)
		return err_nomem(err, "catalog");
	for (size_t i = 0; i < l->found.n; i++) {
		struct catalog_entry *e = &rows->row[i].added;

		if (rows->row[i].old)
			continue;
		if (!is_known_mark(c, &l->found.items[i])) {
			wants[n++] = (struct catalog_want){&l->found.items[i], e};
			continue;
		}
		TRY(catalog_entry_empty(c, l->found.items[i].name, e, err));
		e->mtime_ns = l->found.items[i].mtime_ns;
		e->is_withdrawn = true;
	}
	return catalog_list_read(c, wants, n, err);
}

static int
gather_once(const struct catalog *c, struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	TRY(catalog_list_folders(c, l, err));
	rows->row = mem_zalloc(l->found.n, sizeof(*rows->row));
	rows->names = mem_zalloc(l->found.n, sizeof(*rows->names));
	if (!rows->row || !rows->names)
		return err_nomem(err, "catalog");
	rows->n = l->found.n;
	for (size_t i = 0; i < l->found.n; i++)
		rows->names[i] = l->found.items[i].name;
	TRY(match_known(c, l, rows, err));
	return read_new(c, l, rows, err);
}

enum lost { LOST_NONE, LOST_PERHAPS, LOST };

/* Was the newest one deleted while the others were read? If so, a newer one was committed before,
 * which the listing may lack. Where folders cannot be renamed, the manifest is deleted first and
 * the rest of the folder later. */
static enum lost
find_lost(const struct catalog_listing *l, const struct rows *rows)
{
	uint64_t newest = 0, lost = 0, perhaps = 0;

	for (size_t i = 0; i < rows->n; i++) {
		const struct catalog_entry *e = rows->row[i].old ? rows->row[i].old : &rows->row[i].added;

		if (e->is_gone) /* the name may not show the id */
			lost = e->id == 0 ? UINT64_MAX : e->id > lost ? e->id : lost;
		else if (e->summary && e->id > newest)
			newest = e->id;
		else if (e->code == PAWL_ENOTFOUND && !e->is_withdrawn && !l->found.items[i].is_known_empty &&
		         e->id > perhaps)
			perhaps = e->id;
	}
	return lost > newest ? LOST : perhaps > newest ? LOST_PERHAPS : LOST_NONE;
}

/* Repeats until the newest one is not lost, or two listings agree that it has no manifest. */
static int
gather_settled(const struct catalog *c, struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	PAWL_CLEAN(catalog_listing_clear) struct catalog_listing before = {0};

	for (unsigned looks = 1;; looks++) {
		TRY(gather_once(c, l, rows, err));
		enum lost lost = find_lost(l, rows);

		if (lost == LOST_NONE || looks == CATALOG_LOOKS ||
		    (lost == LOST_PERHAPS && looks > 1 && catalog_listing_is_same(l, &before)))
			return 0;
		rows_clear(rows);
		*rows = (struct rows){0};
		catalog_listing_clear(&before);
		before = *l;
		*l = (struct catalog_listing){0};
	}
}

/* Has it neither a manifest nor the mark of an aborted save? */
static bool
is_open(const struct catalog_listing *l, const struct rows *rows, size_t i)
{
	return !rows->row[i].old && l->found.items[i].is_known_empty;
}

static bool
has_open(const struct catalog_listing *l, const struct rows *rows)
{
	for (size_t i = 0; i < rows->n; i++)
		if (is_open(l, rows, i))
			return true;
	return false;
}

/* Tells running saves from what a killed one left. If no process holds the lease, the run is listed
 * again: one may have committed and closed the run after the first list. */
static int
gather_unowned(const struct catalog *c, struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	bool is_held = false;

	TRY(gather_settled(c, l, rows, err));
	for (unsigned looks = 0; looks < 2 && c->lease_timeout_ms > 0 && has_open(l, rows); looks++) {
		is_held = lease_is_held(c->store, c->lease_timeout_ms);
		if (is_held || looks > 0)
			break;
		rows_clear(rows);
		*rows = (struct rows){0};
		catalog_listing_clear(l);
		*l = (struct catalog_listing){0};
		TRY(gather_settled(c, l, rows, err));
	}
	for (size_t i = 0; is_held && i < rows->n; i++)
		rows->row[i].added.is_running = is_open(l, rows, i);
	return 0;
}

static int
gather_rows(const struct catalog *c, struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	TRY(gather_unowned(c, l, rows, err));
	if (!c->kind->is_run)
		return 0;
	TRY(apply_marks(c, rows, &l->memory, err));
	return apply_holds(c, rows, &l->memory, err);
}

static void
take_row(struct row *row, struct catalog_entry *ret)
{
	struct catalog_entry *from = row->old ? row->old : &row->added;

	*ret = *from;
	*from = (struct catalog_entry){0};
	if (ret->summary) {
		catalog_entry_set_metrics(ret, row->metrics ? row->metrics : ret->summary->metrics,
		                          row->metrics ? row->n_metrics : ret->summary->n_metrics);
		row->metrics = NULL;
	}
	ret->pinned = row->pinned;
	ret->held = row->held;
}

/* A folder with packs is reported to the user. */
static bool
is_only_withdrawn(const struct catalog_found *found, const struct row *row)
{
	return !row->old && row->added.is_withdrawn && !found->has_packs;
}

static size_t
count_withdrawn(const struct catalog_listing *l, const struct rows *rows)
{
	size_t n = 0;

	for (size_t i = 0; i < rows->n; i++)
		n += is_only_withdrawn(&l->found.items[i], &rows->row[i]);
	return n;
}

int
catalog_reload(struct catalog *c, struct pawl_error *err)
{
	PAWL_CLEAN(catalog_listing_clear) struct catalog_listing l = {0};
	PAWL_CLEAN(rows_clear) struct rows rows = {0};

	TRY(gather_rows(c, &l, &rows, err));
	struct catalog_entry *entries = mem_zalloc(rows.n + c->n, sizeof(*entries));
	struct catalog_entry *withdrawn = mem_zalloc(count_withdrawn(&l, &rows), sizeof(*withdrawn));
	if (!entries || !withdrawn) {
		mem_free(entries);
		mem_free(withdrawn);
		return err_nomem(err, "catalog");
	}
	size_t n = 0, n_withdrawn = 0, cap = rows.n + c->n;
	catalog_begin_change(c);
	for (size_t i = 0; i < rows.n; i++) {
		bool is_mark = is_only_withdrawn(&l.found.items[i], &rows.row[i]);

		if (!rows.row[i].added.is_gone)
			take_row(&rows.row[i], is_mark ? &withdrawn[n_withdrawn++] : &entries[n++]);
	}
	for (size_t i = 0; i < c->n; i++) {
		if (!c->entries[i].at)
			continue;
		entries[n++] = c->entries[i];
		c->entries[i] = (struct catalog_entry){0};
	}
	catalog_clear(c);
	c->entries = entries;
	c->n = n;
	c->cap = cap;
	c->withdrawn = withdrawn;
	c->n_withdrawn = n_withdrawn;
	int rc = catalog_order(c, err);
	catalog_end_change(c);
	return rc;
}
