/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_run: copies a complete run, or some of its checkpoints, from any place to any other, on
 * request (pawl cp, pawl sync). Copies in the background of a training run are made by mirror.c.
 *
 *   look at the target -> run.json -> lease -> each missing checkpoint, newest first
 *   -> marks -> pointers (P12)
 *
 * If the target already has a part, the copy continues from it. A checkpoint with the same name, id
 * and token is left alone. Another one under the same id is PAWL_ECONFLICT. Nothing at the target
 * is ever removed. A damaged checkpoint of the source is skipped and reported at the end. Every
 * other error ends the transfer, and a second one resumes it (P15). If the source's training
 * deletes a checkpoint before its copy, the source is listed again.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/text.h"
#include "catalog/catalog.h"
#include "catalog/hold_root.h"
#include "catalog/pins.h"
#include "catalog/places.h"
#include "copy/copies.h"
#include "copy/copy_object.h"
#include "keep/pointers.h"
#include "pawl_jobs.h"
#include "run/run.h"

#define MAX_SMALL_BYTES ((size_t)1 << 20) /* run.json and marks */
#define MOST_LOOKS 100u                   /* lists of a source whose checkpoints are deleted */

/* One checkpoint of the source, as it was when it was listed. */
struct item {
	uint64_t id, bytes;
	struct store *at;           /* NULL, or the only mirror that has it; borrowed */
	const char *name, *problem; /* problem: why its manifest is unusable, or NULL */
	int code;                   /* of the problem */
	char token[33];
};

struct items {
	struct bump memory;
	struct item *items; /* ascending */
	size_t n;
	struct pawl *from;
	struct pawl_hold **holds; /* of the items that were asked for by id, or NULL */
};

/* The last item that the source deleted before its copy; code 0 = none. */
struct gone_item {
	struct pawl_error why;
	char token[33];
};

struct copy_run {
	struct pawl *from;
	const struct pawl_copy_opts *opts;
	struct pawl_meter *meter;
	struct pawl_copies *copies;
	int64_t deadline_ms;
};

static void
clean_run(struct pawl **run)
{
	pawl_close(*run, NULL);
}

PAWL_DEFINE_CLEAN(struct pawl_hold, pawl_hold_close);

static void
items_clear(struct items *items)
{
	if (items->holds)
		hold_close_all(items->from, items->holds, items->n);
	bump_clear(&items->memory);
	*items = (struct items){0};
}

/* Adds a row for an item; NULL if out of memory. */
static struct pawl_copied *
add_report(struct copy_run *t, const struct item *item, const char *problem)
{
	struct pawl_copied *row = copies_add(t->copies, item->id, item->name, problem);

	if (row)
		row->bytes = item->bytes;
	return row;
}

/* ------------------------------------------------------------- one checkpoint */

static bool
is_asked_for(const struct pawl_copy_opts *opts, uint64_t id)
{
	for (size_t i = 0; i < opts->n_ids; i++)
		if (opts->ids[i] == id)
			return true;
	return opts->n_ids == 0;
}

static bool
has_report(const struct copy_run *t, uint64_t id)
{
	for (size_t i = 0; i < t->copies->n; i++)
		if (t->copies->rows[i].id == id)
			return true;
	return false;
}

static bool
has_token(const struct items *items, const char *token)
{
	for (size_t i = 0; i < items->n; i++)
		if (strcmp(items->items[i].token, token) == 0)
			return true;
	return false;
}

/* Holds the items that were asked for by id. PAWL_ENOTFOUND if one does not exist, or no longer. */
static int
hold_items(struct copy_run *t, struct items *items, struct pawl_error *err)
{
	items->from = t->from;
	items->holds = bump_array(&items->memory, (uint64_t)items->n + 1, sizeof(struct pawl_hold *));
	if (!items->holds)
		return err_nomem(err, "copy");
	for (size_t i = 0; i < t->opts->n_ids; i++) {
		const uint64_t id = t->opts->ids[i];
		size_t k = 0;

		if (has_report(t, id))
			continue;
		while (k < items->n && items->items[k].id != id)
			k++;
		if (k == items->n)
			return err_set(err, PAWL_ENOTFOUND, "%s: checkpoint %" PRIu64 " does not exist",
			               t->from->home.root, id);
		if (t->opts->dry_run || items->items[k].problem || items->holds[k])
			continue;
		if (pawl_hold_open(t->from, id, &items->holds[k], err) == PAWL_ENOTFOUND)
			return PAWL_ENOTFOUND;
	}
	return 0;
}

/* Lists the requested checkpoints of the source that were not copied yet. Folders without a
 * manifest are skipped. */
static int
list_items(struct copy_run *t, struct items *ret, struct pawl_error *err)
{
	struct pawl *from = t->from;
	int rc = 0;

	run_lock(from);
	ret->items = bump_array(&ret->memory, from->catalog->n + 1, sizeof(*ret->items));
	if (!ret->items)
		rc = err_nomem(err, "copy");
	for (size_t i = 0; rc == 0 && i < from->catalog->n; i++) {
		const struct catalog_entry *e = &from->catalog->entries[i];
		struct item *item = &ret->items[ret->n];

		if (!is_asked_for(t->opts, e->id) || e->code == PAWL_ENOTFOUND || has_report(t, e->id))
			continue;
		*item = (struct item){.id = e->id, .at = e->at};
		item->name = bump_printf(&ret->memory, "%s", e->name);
		item->problem = e->summary ? NULL : bump_printf(&ret->memory, "%s", e->problem);
		item->code = catalog_may_be_intact(e) ? e->code : PAWL_ECORRUPT;
		if (!item->name || (!e->summary && !item->problem))
			rc = err_nomem(err, "copy");
		if (e->summary) {
			item->bytes = e->summary->bytes;
			memcpy(item->token, e->summary->token, sizeof(item->token));
		}
		ret->n++;
	}
	run_unlock(from);
	return rc < 0 ? rc : hold_items(t, ret, err);
}

static int
copy_one(struct copy_run *t, const struct item *item, bool is_held, struct store *to, const char *to_folder,
         const char *like, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_hold_close_clean) struct pawl_hold *hold = NULL;
	PAWL_CLEAN(buf_clear) struct buf folder = {0};
	struct copy_result result = {0};
	struct pawl_copied *row;
	struct copy_job job = {.from = item->at ? item->at : t->from->store,
	                       .to = to,
	                       .to_folder = to_folder,
	                       .like_folder = like,
	                       .n_streams = t->opts->n_streams,
	                       .memory_bytes = t->opts->memory_bytes,
	                       .deadline_ms = t->deadline_ms,
	                       .meter = t->meter};

	catalog_key(t->from->catalog, item->name, &folder);
	TRY(buf_check(&folder, item->name, err));
	job.from_folder = buf_str(&folder);
	/* If a hold cannot be written, no other process can delete either. */
	if (!is_held && pawl_hold_open(t->from, item->id, &hold, err) == PAWL_ENOTFOUND)
		return PAWL_ENOTFOUND;
	const struct catalog_reading reading = {.catalog = t->from->catalog,
	                                        .at = item->at,
	                                        .name = item->name,
	                                        .id = item->id,
	                                        .token = item->token,
	                                        .is_held = is_held || hold};
	TRY(copy_from_run(&reading, &job, &result, err));
	row = add_report(t, item, "");
	if (!row)
		return err_nomem(err, "copy");
	copies_set(row, &result);
	return 0;
}

/* ------------------------------------------------------------- a complete run */

/* Copies a small object; a missing one is skipped. */
static int
copy_small(struct store *from, struct store *to, const char *key, int flags, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf theirs = {0}, ours = {0};
	int rc = store_get(from, key, MAX_SMALL_BYTES, &theirs, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	rc = store_get(to, key, MAX_SMALL_BYTES, &ours, NULL);
	if (rc == 0 && ours.len == theirs.len && memcmp(ours.ptr, theirs.ptr, ours.len) == 0)
		return 0;
	return store_put_bytes(to, key, theirs.ptr, theirs.len, flags, err);
}

/* A new target becomes the run before it holds any checkpoint. So whatever is found there later is
 * known to be its own. */
static int
begin_target(struct copy_run *t, const char *target, struct pawl_error *err)
{
	PAWL_CLEAN(store_close_clean) struct store *store = NULL;
	struct store_caps caps;

	TRY(copy_open_target(t->from->opts.io.stores, target, false, &store, err));
	store_get_caps(store, &caps);
	return copy_small(t->from->store, store, RUN_KEY, STORE_DURABLE | (caps.exclusive_put ? STORE_EXCLUSIVE : 0),
	                  err);
}

/* A target with neither run.json nor a checkpoint becomes this run. */
static int
check_same_run(const struct pawl *from, struct pawl *to, struct pawl_error *err)
{
	bool is_new = !to->self.created_ns && !catalog_latest(to->catalog);

	if (strcmp(to->self.run_id, from->self.run_id) != 0 && !is_new)
		return err_set(err, PAWL_EEXISTS, "%s is the run %s, expected %s, the run %s", to->home.root,
		               to->self.run_id, from->home.root, from->self.run_id);
	memcpy(to->self.run_id, from->self.run_id, sizeof(to->self.run_id));
	return 0;
}

static int
open_target(struct copy_run *t, const char *target, struct pawl **ret, struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	int kind = places_kind_of(target, t->from->opts.io.stores, err);

	TRY(kind);
	if (kind == PAWL_KIND_CHECKPOINT)
		return err_set(err, PAWL_EEXISTS, "%s is a single checkpoint; a run needs a place of its own", target);
	if (kind == PAWL_KIND_OTHER)
		return err_set(err, PAWL_EEXISTS, "%s holds something else; a run needs a place of its own", target);
	if (kind == PAWL_KIND_NOTHING && t->opts->dry_run)
		return 0;
	if (kind == PAWL_KIND_NOTHING)
		TRY(begin_target(t, target, err));
	opts.root = target;
	opts.read_only = t->opts->dry_run;
	opts.maintenance = 1;
	opts.packs.no_reuse = 1;
	opts.io.stores = t->from->opts.io.stores;
	opts.io.write_bytes_per_second = opts.io.read_bytes_per_second = t->opts->bytes_per_second;
	opts.io.meter = t->meter;
	opts.on_lease_wait = t->opts->on_lease_wait;
	opts.on_lease_wait_arg = t->opts->on_lease_wait_arg;
	TRY(pawl_open(&opts, ret, err));
	return check_same_run(t->from, *ret, err);
}

/* 1: the target has it; 0: it does not. */
static int
compare_target(struct pawl *to, const struct item *item, struct pawl_error *err)
{
	int rc = 0;

	if (!to)
		return 0;
	run_lock(to);
	const struct catalog_entry *e = catalog_get(to->catalog, item->id);
	if (e && (strcmp(e->summary->token, item->token) != 0 || strcmp(e->name, item->name) != 0))
		rc = err_set(err, PAWL_ECONFLICT, "%s: its %s differs from the source's %s, which has the same id",
		             to->home.root, e->name, item->name);
	else if (e)
		rc = 1;
	run_unlock(to);
	return rc;
}

/* Removes what a copy left for resuming: it is useless if the source is damaged or deleted. */
static void
drop_rest(struct pawl *to, const struct item *item)
{
	char hidden[HIDDEN_NAME_BYTES];

	hidden_name_of(item->name, item->token, HIDDEN_PARTIAL, hidden);
	PAWL_FREE char *partial = mem_printf(CATALOG_FOLDER "/%s", hidden);
	if (partial && to->home.caps.rename_folder)
		store_remove_folder(to->store, partial, NULL);
}

/* Copies one item. 1: the target has it now; 0: it does not. Damage is reported in its row, and in
 * *worst. A deleted one has no row. */
static int
copy_item(struct copy_run *t, struct pawl *to, const struct item *item, bool is_held, const char *like,
          struct pawl_error *worst, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf folder = {0};
	struct pawl_copied *row;
	int rc = item->problem ? err_set(err, item->code, "%s: %s", item->name, item->problem)
	                       : compare_target(to, item, err);

	if (rc == 0 && !t->opts->dry_run) {
		buf_printf(&folder, CATALOG_FOLDER "/%s", item->name);
		rc = buf_check(&folder, item->name, err);
		if (rc == 0)
			rc = copy_one(t, item, is_held, to->store, buf_str(&folder), like, err);
		if (rc == 0)
			return 1;
		if (rc == PAWL_ECORRUPT || rc == PAWL_ENOTFOUND)
			drop_rest(to, item);
	}
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0 && rc != PAWL_ECORRUPT)
		return rc;
	row = add_report(t, item, rc < 0 ? err->message : "");
	if (!row)
		return err_nomem(err, "copy");
	row->was_there = rc == 1;
	if (rc < 0 && worst->code == 0)
		*worst = *err;
	return rc == 1;
}

/* What another process pins or scores in the target stays, also if it does so during the copy. The
 * target's pin stays its own: the run of a mirror ends its own pins there. */
static int
copy_mark(struct copy_run *t, struct pawl *to, const struct pawl_copied *row, struct pawl_error *err)
{
	PAWL_CLEAN(pins_unlock) struct pins_lock lock = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pin_mark *from = NULL, *there = NULL;
	size_t n = 0, n_there = 0;

	TRY(pins_read(t->from->store, &row->name, 1, &memory, &from, &n, err));
	if (n == 0)
		return 0;
	TRY(pins_lock(to->store, row->name, &lock, err));
	TRY(pins_read(to->store, &row->name, 1, &memory, &there, &n_there, err));
	struct pin_mark mark = *from;
	if (n_there && there->pinned) {
		mark.pinned = true;
		mark.pin_copied = false;
	}
	PAWL_FREE struct pawl_metric *all =
		pins_overlay(n_there ? there->metrics : NULL, n_there ? there->n_metrics : 0, from->metrics,
	                     from->n_metrics, &mark.n_metrics);
	if (!all)
		return err_nomem(err, "copy");
	mark.metrics = all;
	return pins_write(to->store, &mark, err);
}

/* Copies pins and late scores, then sets the pointers for people and tools. */
static int
copy_rest(struct copy_run *t, struct pawl *to, struct pawl_error *err)
{
	for (size_t i = 0; i < t->copies->n; i++) {
		if (!*t->copies->rows[i].problem)
			TRY(copy_mark(t, to, &t->copies->rows[i], err));
	}
	if (t->from->self.attempt >= to->self.attempt && t->from->self.stored_id >= to->self.stored_id)
		TRY(copy_small(t->from->store, to->store, RUN_KEY, STORE_DURABLE, err));
	TRY(pawl_reload(to, err));
	return pointers_update(to, err);
}

/* Is the target the run itself, maybe by another path? */
static bool
is_same(const struct pawl *from, const char *target)
{
	const char *path = text_skip_file(target);
	char whole[PATH_MAX];
	const char *place = from->home.caps.local && realpath(path, whole) ? whole : target;
	size_t len = strlen(place), own = strlen(from->home.root);

	while (len > 1 && place[len - 1] == '/')
		len--;
	while (own > 1 && from->home.root[own - 1] == '/')
		own--;
	return len == own && strncmp(place, from->home.root, len) == 0;
}

/* Copies the items, the newest first. Fills *gone if the source deleted one before its copy. */
static int
copy_items(struct copy_run *t, struct pawl *to, const struct items *items, struct buf *like, struct pawl_error *worst,
           struct gone_item *gone, struct pawl_error *err)
{
	for (size_t i = items->n; i-- > 0;) {
		const struct item *item = &items->items[i];
		const bool is_held = items->holds && items->holds[i];
		const int rc = copy_item(t, to, item, is_held, like->len ? buf_str(like) : NULL, worst, err);

		TRY(rc);
		if (!has_report(t, item->id)) {
			gone->why = *err;
			memcpy(gone->token, item->token, sizeof(gone->token));
		}
		if (rc == 0)
			continue;
		buf_clear(like);
		buf_printf(like, CATALOG_FOLDER "/%s", item->name);
		TRY(buf_check(like, item->name, err));
	}
	return 0;
}

static int
copy_run(struct copy_run *t, const char *target, struct pawl_error *err)
{
	PAWL_CLEAN(items_clear) struct items items = {0};
	PAWL_CLEAN(clean_run) struct pawl *to = NULL;
	PAWL_CLEAN(buf_clear) struct buf like = {0};
	struct pawl_error worst = {0};
	struct gone_item gone;

	if (t->from->home.single_name)
		return err_set(err, PAWL_EUSAGE, "%s is a single checkpoint, not a run", t->from->home.root);
	if (is_same(t->from, target))
		return err_set(err, PAWL_EUSAGE, "%s and %s are the same run; name another place", t->from->home.root,
		               target);
	TRY(list_items(t, &items, err));
	TRY(open_target(t, target, &to, err));
	for (unsigned looks = 1;; looks++) {
		gone = (struct gone_item){0};
		TRY(copy_items(t, to, &items, &like, &worst, &gone, err));
		if (!gone.why.code)
			break;
		items_clear(&items);
		TRY(pawl_reload(t->from, err));
		TRY(list_items(t, &items, err));
		if (looks == MOST_LOOKS || has_token(&items, gone.token)) /* it was another thing that is missing */
			return err_give(err, gone.why.code, &gone.why);
	}
	if (!t->opts->dry_run)
		TRY(copy_rest(t, to, err));
	if (worst.code && err)
		*err = worst;
	return worst.code;
}

/* --------------------------------------------------------------------- faces */

static int
transfer_run(struct pawl *from, const char *target, const struct pawl_copy_opts *given, struct pawl_meter *meter,
             struct pawl_copies **ret, struct pawl_error *err)
{
	struct pawl_copy_opts opts = PAWL_COPY_OPTS_INIT;
	PAWL_CLEAN(pawl_copies_free_clean) struct pawl_copies *copies = mem_zalloc(1, sizeof(*copies));
	struct copy_run t = {.from = from, .opts = &opts, .meter = meter, .copies = copies};

	if (!copies)
		return err_nomem(err, "copy");
	if (!from || !target || !*target)
		return err_set(err, PAWL_EUSAGE, "copy: expected a run and a target, found %s",
		               from ? "no target" : "no run");
	if (given && !given->size)
		return err_set(err, PAWL_EUSAGE, "copy: the options have no size; start from PAWL_COPY_OPTS_INIT");
	if (given)
		memcpy(&opts, given, given->size < sizeof(opts) ? given->size : sizeof(opts));
	if (opts.n_ids && !opts.ids)
		return err_set(err, PAWL_EUSAGE, "copy: expected %zu ids, found NULL", opts.n_ids);
	if (from->home.foreign)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s was written by another program; export or reshard makes a checkpoint of it",
		               from->home.root);
	TRY(store_check_target(target, err));
	if (opts.timeout_ms > 0)
		t.deadline_ms = clock_deadline_ms(opts.timeout_ms);
	int rc = copy_run(&t, target, err);
	if (ret && (rc == 0 || copies->n))
		*ret = steal(&copies);
	return rc;
}

int
pawl_copy_run(struct pawl *from, const char *target, const struct pawl_copy_opts *opts, struct pawl_meter *meter,
              struct pawl_copies **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, transfer_run(from, target, opts, meter, ret, &own), &own);
}
