/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog: see catalog.h. Called by run.c, save.c, upkeep.c, find.c, restore.c; calls manifest.c, marks.c, holds.c,
 * retain.c and the store.
 *
 * A reload first gathers everything that can fail, one row per folder, and then changes the table, so that an error
 * leaves the catalog as it was (P8); only the second half needs the guard, so that nobody waits for the store who only
 * looks:
 *
 *   list folders -> read what is new -> read marks -> read holds | -> move known entries over, add new ones, order by
 * id
 *       ^                |
 *       └── the newest was deleted meanwhile
 *
 * Promises P2 (a verifying manifest, nothing else), P8, P9 (order of ids), P17.
 */
#include "catalog/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "catalog/catalog_entry.h"
#include "catalog/catalog_list.h"

static int
out_of_memory(struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "catalog: out of memory");
}

static void
begin_change(const struct catalog *c)
{
	if (c->guard)
		pthread_mutex_lock(c->guard);
}

static void
end_change(const struct catalog *c)
{
	if (c->guard)
		pthread_mutex_unlock(c->guard);
}

struct retain_item
catalog_retain_item(const struct catalog_entry *e)
{
	return (struct retain_item){.id = e->id,
	                            .step = e->summary->step,
	                            .unix_seconds = (double)e->summary->unix_ns / 1e9,
	                            .bytes = e->summary->new_bytes,
	                            .metrics = e->metrics,
	                            .n_metrics = e->n_metrics,
	                            .pinned = e->pinned,
	                            .nonfinite = e->summary->nonfinite};
}

void
catalog_key(const struct catalog *c, const char *name, struct buf *out)
{
	if (c->foreign && !foreign_is_folder(c->foreign))
		return;
	if (!c->single_name)
		buf_puts(out, CATALOG_FOLDER "/");
	buf_puts(out, name);
}

void
catalog_manifest_key(const struct catalog *c, const char *name, struct buf *out)
{
	catalog_key(c, name, out);
	if (!c->foreign)
		buf_puts(out, "/" MANIFEST_NAME);
	else if (!foreign_is_folder(c->foreign))
		buf_puts(out, name);
}

/* ------------------------------------------------------------------- order */

static int
compare_numbers(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/* By id; of one id the valid ones first, of these those in the run's own store, of these the one first that has the
 * better claim to it. */
static int
compare_entries(const void *pa, const void *pb)
{
	const struct catalog_entry *a = pa, *b = pb;
	int c = compare_numbers(a->id, b->id);

	if (c == 0)
		c = !a->summary - !b->summary;
	if (c == 0)
		c = (a->at != NULL) - (b->at != NULL);
	if (c == 0)
		c = (a->name_id != a->id) - (b->name_id != b->id);
	if (c == 0)
		c = compare_numbers(strlen(a->name), strlen(b->name));
	return c ? c : strcmp(a->name, b->name);
}

static void
remove_at(struct catalog *c, size_t at)
{
	catalog_entry_clear(&c->entries[at]);
	c->n--;
	memmove(&c->entries[at], &c->entries[at + 1], (c->n - at) * sizeof(*c->entries));
}

/* Sorts, and turns all but the first of several valid entries with one id into bad ones; out of memory, they are
 * dropped. */
static int
order_entries(struct catalog *c, struct pawl_error *err)
{
	const struct catalog_entry *owner = NULL;
	int rc = 0;

	if (c->n)
		qsort(c->entries, c->n, sizeof(*c->entries), compare_entries);
	for (size_t i = 0; i < c->n; i++) {
		struct catalog_entry *e = &c->entries[i];

		if (!e->summary)
			continue;
		if (!owner || owner->id != e->id) {
			owner = e;
			continue;
		}
		if (e->at) { /* it is in the run's own store as well, or in another mirror */
			remove_at(c, i--);
			continue;
		}
		char *problem = mem_printf("its id %llu is that of %s", (unsigned long long)e->id, owner->name);
		if (problem) {
			catalog_entry_turn_bad(e, problem);
		} else {
			rc = out_of_memory(err);
			remove_at(c, i--);
		}
	}
	return rc;
}

/* -------------------------------------------------------------------- load */

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

/* Finds the known entry of each row: both lists in the order of names, walked side by side. */
static int
match_known(const struct catalog *c, const struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	PAWL_FREE struct catalog_entry **known = mem_zalloc(c->n, sizeof(struct catalog_entry *));
	size_t k = 0;

	if (!known)
		return out_of_memory(err);
	for (size_t i = 0; i < c->n; i++)
		known[i] = &c->entries[i];
	if (c->n)
		qsort(known, c->n, sizeof(*known), compare_by_name);
	for (size_t i = 0; i < l->n; i++) {
		while (k < c->n && strcmp(known[k]->name, l->found[i].name) < 0)
			k++;
		if (k < c->n && strcmp(known[k]->name, l->found[i].name) == 0 && known[k]->summary && !known[k]->at &&
		    known[k]->mtime_ns == l->found[i].mtime_ns && known[k]->mtime_ns)
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
	struct mark *marks;
	size_t n_marks;

	TRY(marks_read(c->store, rows->names, rows->n, memory, &marks, &n_marks, err));
	for (size_t i = 0; i < n_marks; i++) {
		struct row *row = find_row(rows, marks[i].name);
		const struct manifest *summary = row->old ? row->old->summary : row->added.summary;

		row->pinned = marks[i].pinned;
		if (!summary || !marks[i].n_metrics)
			continue;
		mem_free(row->metrics);
		row->metrics = marks_overlay(summary->metrics, summary->n_metrics, marks[i].metrics, marks[i].n_metrics,
		                             &row->n_metrics);
		if (!row->metrics)
			return out_of_memory(err);
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

/* The entry of a save that was called off and left nothing else, as it was read before, or NULL. */
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
	PAWL_FREE struct catalog_want *wants = mem_zalloc(l->n, sizeof(*wants));
	size_t n = 0;

	if (!wants)
		return out_of_memory(err);
	for (size_t i = 0; i < l->n; i++) {
		struct catalog_entry *e = &rows->row[i].added;

		if (rows->row[i].old)
			continue;
		if (!is_known_mark(c, &l->found[i])) {
			wants[n++] = (struct catalog_want){&l->found[i], e};
			continue;
		}
		TRY(catalog_entry_empty(c, l->found[i].name, e, err));
		e->mtime_ns = l->found[i].mtime_ns;
		e->is_withdrawn = true;
	}
	return catalog_list_read(c, wants, n, err);
}

static int
gather_once(const struct catalog *c, struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	TRY(catalog_list_folders(c, l, err));
	rows->row = mem_zalloc(l->n, sizeof(*rows->row));
	rows->names = mem_zalloc(l->n, sizeof(*rows->names));
	if (!rows->row || !rows->names)
		return out_of_memory(err);
	rows->n = l->n;
	for (size_t i = 0; i < l->n; i++)
		rows->names[i] = l->found[i].name;
	TRY(match_known(c, l, rows, err));
	return read_new(c, l, rows, err);
}

enum lost { LOST_NONE, LOST_PERHAPS, LOST };

/* Was the newest one deleted while the others were read? Then a newer one was committed before, which the listing may
 * not have. Where folders cannot be renamed, the manifest goes first and the rest of the folder later. */
static enum lost
find_lost(const struct catalog_listing *l, const struct rows *rows)
{
	uint64_t newest = 0, lost = 0, perhaps = 0;

	for (size_t i = 0; i < rows->n; i++) {
		const struct catalog_entry *e = rows->row[i].old ? rows->row[i].old : &rows->row[i].added;

		if (e->is_gone) /* a name may not tell the id */
			lost = e->id == 0 ? UINT64_MAX : e->id > lost ? e->id : lost;
		else if (e->summary && e->id > newest)
			newest = e->id;
		else if (e->code == PAWL_ENOTFOUND && !e->is_withdrawn && !l->found[i].is_known_empty &&
		         e->id > perhaps)
			perhaps = e->id;
	}
	return lost > newest ? LOST : perhaps > newest ? LOST_PERHAPS : LOST_NONE;
}

/* Looks again until the newest one is not lost, or two listings agree on that it has no manifest. */
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

static int
gather(const struct catalog *c, struct catalog_listing *l, struct rows *rows, struct pawl_error *err)
{
	TRY(gather_settled(c, l, rows, err));
	if (c->single_name)
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

/* Of a folder that the save has left behind packs in, the user is told. */
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
		n += is_only_withdrawn(&l->found[i], &rows->row[i]);
	return n;
}

int
catalog_reload(struct catalog *c, struct pawl_error *err)
{
	PAWL_CLEAN(catalog_listing_clear) struct catalog_listing l = {0};
	PAWL_CLEAN(rows_clear) struct rows rows = {0};

	TRY(gather(c, &l, &rows, err));
	struct catalog_entry *entries = mem_zalloc(rows.n + c->n, sizeof(*entries));
	struct catalog_entry *withdrawn = mem_zalloc(count_withdrawn(&l, &rows), sizeof(*withdrawn));
	if (!entries || !withdrawn) {
		mem_free(entries);
		mem_free(withdrawn);
		return out_of_memory(err);
	}
	size_t n = 0, n_withdrawn = 0, cap = rows.n + c->n;
	begin_change(c);
	for (size_t i = 0; i < rows.n; i++) {
		bool is_mark = is_only_withdrawn(&l.found[i], &rows.row[i]);

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
	int rc = order_entries(c, err);
	end_change(c);
	return rc;
}

int
catalog_load(struct catalog *c, struct store *store, const char *single_name, const char *name_template,
             struct pawl_error *err)
{
	*c = (struct catalog){.store = store, .single_name = single_name, .name_template = name_template};
	return catalog_reload(c, err);
}

int
catalog_load_foreign(struct catalog *c, struct store *store, const char *name, const struct foreign_format *format,
                     struct pawl_error *err)
{
	*c = (struct catalog){.store = store, .single_name = name, .foreign = format};
	return catalog_reload(c, err);
}

/* Empties the table; it can be loaded again. */
void
catalog_clear(struct catalog *c)
{
	for (size_t i = 0; i < c->n; i++)
		catalog_entry_clear(&c->entries[i]);
	for (size_t i = 0; i < c->n_withdrawn; i++)
		catalog_entry_clear(&c->withdrawn[i]);
	mem_free(c->entries);
	mem_free(c->withdrawn);
	c->entries = c->withdrawn = NULL;
	c->n = c->cap = c->n_withdrawn = 0;
}

int
catalog_reload_holds(struct catalog *c, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct hold *holds;
	size_t n_holds;

	if (c->single_name)
		return 0;
	TRY(holds_read(c->store, &memory, &holds, &n_holds, err));
	begin_change(c);
	for (size_t i = 0; i < c->n; i++) {
		c->entries[i].held = false;
		for (size_t k = 0; k < n_holds && !c->entries[i].held; k++)
			c->entries[i].held = holds[k].alive && strcmp(holds[k].name, c->entries[i].name) == 0;
	}
	end_change(c);
	return 0;
}

void
catalog_note_held(struct catalog *c, uint64_t id)
{
	begin_change(c);
	struct catalog_entry *e = catalog_get(c, id);

	if (e)
		e->held = !c->single_name;
	end_change(c);
}

/* ----------------------------------------------------------- one at a time */

static int
make_room(struct catalog *c, struct pawl_error *err)
{
	if (c->n < c->cap)
		return 0;
	size_t cap = c->cap < 32 ? 64 : 2 * c->cap;
	struct catalog_entry *entries = mem_resize(c->entries, cap, sizeof(*entries));
	if (!entries)
		return out_of_memory(err);
	c->entries = entries;
	c->cap = cap;
	return 0;
}

/* Is one of the first n entries, which are in order, a good one of this id? */
static bool
is_known(const struct catalog *c, size_t n, uint64_t id)
{
	struct catalog first = {.entries = c->entries, .n = n};

	return catalog_get(&first, id) != NULL;
}

/* In the place of the one of its name. */
static int
put_entry(struct catalog *c, struct catalog_entry *e, struct pawl_error *err)
{
	TRY(make_room(c, err));
	for (size_t i = 0; i < c->n; i++) {
		if (!c->entries[i].at && strcmp(c->entries[i].name, e->name) == 0) {
			remove_at(c, i);
			break;
		}
	}
	c->entries[c->n++] = *e;
	*e = (struct catalog_entry){0};
	return order_entries(c, err);
}

int
catalog_add(struct catalog *c, const char *name, struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(catalog_entry_clear) struct catalog_entry e = {0};
	int64_t mtime_ns;

	TRY(catalog_list_time(c, name, &mtime_ns, err));
	TRY(catalog_entry_read(c, name, mtime_ns, text, text->len > 0, &e, err));
	if (e.problem)
		return err_set(err, PAWL_ECORRUPT, "%s: %s", name, e.problem);
	begin_change(c);
	int rc = put_entry(c, &e, err);
	end_change(c);
	return rc;
}

int
catalog_take_far(struct catalog *c, struct catalog *from, struct store *at, const char *run_id, struct pawl_error *err)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n; i++) {
		if (c->entries[i].at == at)
			catalog_entry_clear(&c->entries[i]);
		else
			c->entries[n++] = c->entries[i];
	}
	c->n = n;
	for (size_t i = 0; i < from->n; i++) {
		struct catalog_entry *e = &from->entries[i];

		if (!e->summary || strcmp(e->summary->run_id, run_id) != 0 || is_known(c, n, e->id))
			continue;
		TRY(make_room(c, err));
		e->at = at;
		e->held = false; /* that is the mirror's matter */
		e->mtime_ns = 0;
		c->entries[c->n++] = *e;
		*e = (struct catalog_entry){0};
	}
	return order_entries(c, err);
}

void
catalog_drop(struct catalog *c, uint64_t id)
{
	const struct catalog_entry *e = catalog_get(c, id);

	if (e)
		remove_at(c, (size_t)(e - c->entries));
}

int
catalog_read_pin(const struct catalog *c, const struct catalog_entry *e, bool *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const char *names[] = {e->name};
	struct mark *marks;
	size_t n_marks;

	if (c->single_name) {
		*ret = false;
		return 0;
	}
	TRY(marks_read(c->store, names, 1, &memory, &marks, &n_marks, err));
	*ret = n_marks > 0 && marks[0].pinned;
	return 0;
}

int
catalog_mark(struct catalog *c, struct catalog_entry *e, const bool *pinned, const struct pawl_metric *metrics,
             size_t n, struct pawl_error *err)
{
	struct mark mark = {.name = e->name, .pinned = pinned ? *pinned : e->pinned};
	size_t n_all;

	if (c->single_name || !e->summary)
		return err_set(err, PAWL_EUSAGE, "%s: only checkpoints of a run can be pinned or scored", e->name);
	if (e->at)
		return err_set(err, PAWL_EUNSUPPORTED, "%s lies only in the mirror %s; pin or score it there", e->name,
		               e->at->root);
	PAWL_FREE struct pawl_metric *all = marks_overlay(e->metrics, e->n_metrics, metrics, n, &n_all);
	PAWL_FREE struct pawl_metric *late = mem_zalloc(e->n_metrics + n, sizeof(*late));
	if (!all || !late)
		return out_of_memory(err);
	mark.metrics = late;
	mark.n_metrics = marks_late(e->summary->metrics, e->summary->n_metrics, all, n_all, late);
	TRY(marks_write(c->store, &mark, err));
	begin_change(c);
	e->pinned = mark.pinned;
	catalog_entry_set_metrics(e, steal(&all), n_all);
	end_change(c);
	return 0;
}
