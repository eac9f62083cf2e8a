/* SPDX-License-Identifier: Apache-2.0 */
/* catalog: see catalog.h. The table itself: order, and changes of one entry. Promises P2, P9 (order
 * of ids), P17. */
#include "catalog/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "catalog/catalog_entry.h"
#include "catalog/catalog_list.h"
#include "catalog/catalog_own.h"

void
catalog_begin_change(const struct catalog *c)
{
	if (c->guard)
		pthread_mutex_lock(c->guard);
}

void
catalog_end_change(const struct catalog *c)
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
	if (!c->kind->is_file)
		buf_printf(out, "%s%s", c->kind->folder, name);
}

void
catalog_manifest_key(const struct catalog *c, const char *name, struct buf *out)
{
	buf_printf(out, "%s%s%s", c->kind->folder, name, c->kind->manifest);
}

/* ------------------------------------------------------------------- order */

static int
compare_numbers(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/* By id. Within one id: valid entries first, then entries in the run's own store, then the one with
 * the better claim to the id. */
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

/* Sorts, and turns all but the first of several valid entries with one id into bad ones. Without
 * memory they are dropped. */
int
catalog_order(struct catalog *c, struct pawl_error *err)
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
			rc = err_nomem(err, "catalog");
			remove_at(c, i--);
		}
	}
	return rc;
}

static int
load_catalog(struct catalog *c, struct pawl_error *err)
{
	struct store_caps caps;

	store_get_caps(c->store, &caps);
	c->kind = catalog_kind_of(c, &caps);
	c->level = caps.is_private ? PAWL_LEVEL_NONE : caps.flat ? PAWL_LEVEL_REMOTE : PAWL_LEVEL_LOCAL;
	return catalog_reload(c, err);
}

int
catalog_load_unowned(struct catalog *c, struct store *store, const char *single_name, const char *name_template,
                     int64_t lease_timeout_ms, struct pawl_error *err)
{
	*c = (struct catalog){.store = store,
	                      .single_name = single_name,
	                      .name_template = name_template,
	                      .lease_timeout_ms = lease_timeout_ms};
	return load_catalog(c, err);
}

int
catalog_load(struct catalog *c, struct store *store, const char *single_name, const char *name_template,
             struct pawl_error *err)
{
	return catalog_load_unowned(c, store, single_name, name_template, 0, err);
}

int
catalog_load_foreign(struct catalog *c, struct store *store, const char *name, const struct foreign_format *format,
                     struct pawl_error *err)
{
	*c = (struct catalog){.store = store, .single_name = name, .foreign = format};
	return load_catalog(c, err);
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

	if (!c->kind->is_run)
		return 0;
	TRY(holds_read(c->store, &memory, &holds, &n_holds, err));
	catalog_begin_change(c);
	for (size_t i = 0; i < c->n; i++) {
		c->entries[i].held = false;
		for (size_t k = 0; k < n_holds && !c->entries[i].held; k++)
			c->entries[i].held = holds[k].alive && strcmp(holds[k].name, c->entries[i].name) == 0;
	}
	catalog_end_change(c);
	return 0;
}

void
catalog_note_held(struct catalog *c, uint64_t id)
{
	catalog_begin_change(c);
	struct catalog_entry *e = catalog_get(c, id);

	if (e)
		e->held = c->kind->is_run && !e->at; /* else the mirror has the hold */
	catalog_end_change(c);
}

/* ----------------------------------------------------------- one at a time */

/* Is one of the first n entries, which are in order, a good one of this id? */
static bool
is_known(const struct catalog *c, size_t n, uint64_t id)
{
	struct catalog first = {.entries = c->entries, .n = n};

	return catalog_get(&first, id) != NULL;
}

/* Replaces the entry of that name. */
static int
put_entry(struct catalog *c, struct catalog_entry *e, struct pawl_error *err)
{
	if (!array_reserve(c->entries, c->cap, c->n + 1))
		return err_nomem(err, "catalog");
	for (size_t i = 0; i < c->n; i++) {
		if (!c->entries[i].at && strcmp(c->entries[i].name, e->name) == 0) {
			remove_at(c, i);
			break;
		}
	}
	c->entries[c->n++] = *e;
	*e = (struct catalog_entry){0};
	return catalog_order(c, err);
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
	catalog_begin_change(c);
	int rc = put_entry(c, &e, err);
	catalog_end_change(c);
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
		if (!array_reserve(c->entries, c->cap, c->n + 1))
			return err_nomem(err, "catalog");
		e->at = at;
		e->held = false; /* only the mirror has holds on it */
		e->mtime_ns = 0;
		c->entries[c->n++] = *e;
		*e = (struct catalog_entry){0};
	}
	return catalog_order(c, err);
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
	struct pin_mark *marks;
	size_t n_marks;

	if (!c->kind->is_run) {
		*ret = false;
		return 0;
	}
	TRY(pins_read(c->store, names, 1, &memory, &marks, &n_marks, err));
	*ret = n_marks > 0 && marks[0].pinned;
	return 0;
}

int
catalog_mark(struct catalog *c, struct catalog_entry *e, const bool *pinned, const struct pawl_metric *metrics,
             size_t n, struct pawl_error *err)
{
	PAWL_CLEAN(pins_unlock) struct pins_lock lock = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pin_mark mark = {.name = e->name}, *there;
	const char *names[] = {e->name};
	size_t n_there, n_known, n_all;

	if (!c->kind->is_run || !e->summary)
		return err_set(err, PAWL_EUSAGE, "%s: only checkpoints of a run can be pinned or scored", e->name);
	if (e->at)
		return err_set(err, PAWL_EUNSUPPORTED, "%s is stored only in the mirror %s; pin or score it there",
		               e->name, e->at->root);
	TRY(pins_lock(c->store, e->name, &lock, err));
	TRY(pins_read(c->store, names, 1, &memory, &there, &n_there, err)); /* the table may be older */
	if (n_there)
		mark = there[0];
	if (pinned) {
		mark.pinned = *pinned;
		mark.pin_copied = false;
	}
	PAWL_FREE struct pawl_metric *known =
		pins_overlay(e->summary->metrics, e->summary->n_metrics, mark.metrics, mark.n_metrics, &n_known);
	if (!known)
		return err_nomem(err, "catalog");
	PAWL_FREE struct pawl_metric *all = pins_overlay(known, n_known, metrics, n, &n_all);
	PAWL_FREE struct pawl_metric *late = mem_zalloc(n_known + n, sizeof(*late));
	if (!all || !late)
		return err_nomem(err, "catalog");
	mark.metrics = late;
	mark.n_metrics = pins_late(e->summary->metrics, e->summary->n_metrics, all, n_all, late);
	TRY(pins_write(c->store, &mark, err));
	catalog_begin_change(c);
	e->pinned = mark.pinned;
	catalog_entry_set_metrics(e, steal(&all), n_all);
	catalog_end_change(c);
	return 0;
}
