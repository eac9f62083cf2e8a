/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find: which checkpoint is meant, and what is known about it: look-ups in the catalog, selectors, lists, waiting for a
 * new one and holding one. Called by users, run.c, upkeep.c, restore.c; calls catalog.c, holds.c and the store. Decides
 * nothing: the order is the ids' (P9), the best is retain.c's. Promises P6 (holds), P12, P16 (waits have a deadline).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "catalog/far.h"
#include "run/run.h"

#define POLL_FIRST_MS 10
#define POLL_LAST_MS 500

/* ---------------------------------------------------------------- look-ups */

struct catalog_entry *
catalog_get(struct catalog *c, uint64_t id)
{
	size_t lo = 0, hi = c->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (c->entries[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	/* Of one id the valid entry stands first. */
	return lo < c->n && c->entries[lo].id == id && c->entries[lo].summary ? &c->entries[lo] : NULL;
}

static struct catalog_entry *
latest_of(const struct catalog *c)
{
	for (size_t i = c->n; i-- > 0;) {
		if (c->entries[i].summary)
			return &c->entries[i];
	}
	return NULL;
}

static struct catalog_entry *
best_of(const struct catalog *c, const struct pawl_retention *policy)
{
	struct catalog_entry *best = NULL;

	if (policy->num_to_keep == PAWL_KEEP_MEMORY || policy->n_scores == 0)
		return NULL; /* R3: the best stays unset */
	for (size_t i = 0; i < c->n; i++) {
		struct catalog_entry *e = &c->entries[i];

		/* Against nothing at all only a score that counts is better. */
		if (e->summary && retain_compare(policy, e->metrics, e->n_metrics, best ? best->metrics : NULL,
		                                 best ? best->n_metrics : 0) > 0)
			best = e;
	}
	return best;
}

struct catalog_entry *
catalog_latest(struct catalog *c)
{
	return latest_of(c);
}

struct catalog_entry *
catalog_best(struct catalog *c, const struct pawl_retention *policy)
{
	return best_of(c, policy);
}

const struct catalog_entry *
catalog_denied(struct catalog *c, const struct catalog_entry *than)
{
	for (size_t i = c->n; i-- > 0;) {
		const struct catalog_entry *e = &c->entries[i];

		/* A name may not tell the id. */
		if (e->code == PAWL_EAUTH && (!than || e->id == 0 || e->id > than->id) && !catalog_get(c, e->id))
			return e;
	}
	return NULL;
}

int
catalog_items(const struct catalog *c, struct retain_item **ret, size_t *ret_n, struct pawl_error *err)
{
	struct retain_item *items = mem_zalloc(c->n, sizeof(*items));
	size_t n = 0;

	if (!items)
		return err_set(err, PAWL_ENOMEM, "catalog: out of memory");
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];

		if (!e->summary || e->at)
			continue;
		items[n] = catalog_retain_item(e);
		items[n].held = e->held;
		items[n].unmirrored = mirrors_lack(c->mirrors, e);
		items[n++].spent = mirrors_spend(c->mirrors, e);
	}
	*ret = items;
	*ret_n = n;
	return 0;
}

/* --------------------------------------------------------------- selectors */

/* A folder that is there but is no good says why. */
static int
refuse_bad(const struct catalog_entry *e, struct pawl_error *err)
{
	if (e->code == PAWL_EAUTH)
		return err_set(err, PAWL_EAUTH, "%s cannot be read: %s", e->name, e->problem);
	return err_set(err, e->code == PAWL_ENOTFOUND ? PAWL_ENOTFOUND : PAWL_ECORRUPT, "%s is not a checkpoint: %s",
	               e->name, e->problem);
}

/* An answer that one that may not be read could change: the user must know of it. than: the answer, where only newer
 * ones can change it; else NULL. */
static int
refuse_denied(struct catalog *c, const struct catalog_entry *than, const char *what, struct pawl_error *err)
{
	const struct catalog_entry *e = catalog_denied(c, than);

	if (!e)
		return 0;
	return err_set(err, PAWL_EAUTH, "%s cannot be read, so that %s is unknown: %s", e->name, what, e->problem);
}

static int
find_by_step(struct catalog *c, const char *text, struct catalog_entry **ret, struct pawl_error *err)
{
	char *end;

	errno = 0;
	long long step = strtoll(text, &end, 10);
	if (!*text || *end)
		return err_set(err, PAWL_EUSAGE, "selector 'step:%.200s': expected a whole number", text);
	if (errno == ERANGE)
		return err_set(err, PAWL_EUSAGE,
		               "selector 'step:%.200s': expected a number of 64 bits, found one beyond", text);
	for (size_t i = c->n; i-- > 0;) {
		if (c->entries[i].summary && c->entries[i].summary->step == step) {
			*ret = &c->entries[i];
			return 0;
		}
	}
	TRY(refuse_denied(c, NULL, "its step", err));
	return err_set(err, PAWL_ENOTFOUND, "there is no checkpoint of step %lld", step);
}

static int
find_by_id(struct catalog *c, const char *text, struct catalog_entry **ret, struct pawl_error *err)
{
	char *end;

	errno = 0;
	unsigned long long id = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end)
		return err_set(err, PAWL_EUSAGE, "selector 'id:%.200s': expected a whole number", text);
	if (errno == ERANGE)
		return err_set(err, PAWL_EUSAGE, "selector 'id:%.200s': expected a number of 64 bits, found one beyond",
		               text);
	struct catalog_entry *e = catalog_get(c, id);
	if (e) {
		*ret = e;
		return 0;
	}
	for (size_t i = 0; i < c->n; i++) {
		if (c->entries[i].id == id)
			return refuse_bad(&c->entries[i], err);
	}
	return err_set(err, PAWL_ENOTFOUND, "there is no checkpoint with id %llu", id);
}

static int
find_by_name(struct catalog *c, const char *name, struct catalog_entry **ret, struct pawl_error *err)
{
	for (size_t i = 0; i < c->n; i++) {
		if (strcmp(c->entries[i].name, name) != 0)
			continue;
		if (!c->entries[i].summary)
			return refuse_bad(&c->entries[i], err);
		*ret = &c->entries[i];
		return 0;
	}
	if (name[0] && name[strspn(name, "0123456789")] == '\0')
		return find_by_id(c, name, ret, err);
	return err_set(
		err, PAWL_ENOTFOUND,
		"there is no checkpoint '%.200s'; expected latest, best, good, an id, step:<number> or a folder name",
		name);
}

static int
find_best(struct catalog *c, const struct pawl_retention *policy, struct catalog_entry **ret, struct pawl_error *err)
{
	struct catalog_entry *best = catalog_best(c, policy);

	TRY(refuse_denied(c, NULL, "the best checkpoint", err));
	if (!best && latest_of(c) && policy->n_scores == 0)
		return err_set(err, PAWL_ENOTFOUND,
		               "there is no best checkpoint: the run has no score; say which metric decides "
		               "(score_attribute, or --by METRIC)");
	if (!best && latest_of(c))
		return err_set(err, PAWL_ENOTFOUND, "there is no best checkpoint: none has a finite score by '%s'",
		               policy->score_attributes[0]);
	if (!best)
		return err_set(err, PAWL_ENOTFOUND, "there is no checkpoint yet");
	*ret = best;
	return 0;
}

/* R157: the newest that was not flagged for NaN or Inf. */
static int
find_good(struct catalog *c, struct catalog_entry **ret, struct pawl_error *err)
{
	for (size_t i = c->n; i-- > 0;) {
		if (c->entries[i].summary && !c->entries[i].summary->nonfinite) {
			*ret = &c->entries[i];
			return refuse_denied(c, *ret, "the newest good checkpoint", err);
		}
	}
	TRY(refuse_denied(c, NULL, "the newest good checkpoint", err));
	return err_set(err, PAWL_ENOTFOUND, "there is no checkpoint without NaN or Inf");
}

int
catalog_find(struct catalog *c, const struct pawl_retention *policy, const char *selector, struct catalog_entry **ret,
             struct pawl_error *err)
{
	struct catalog_entry *latest = latest_of(c);

	if (selector && strcmp(selector, "best") == 0)
		return find_best(c, policy, ret, err);
	if (selector && strcmp(selector, "good") == 0)
		return find_good(c, ret, err);
	if (selector && strncmp(selector, "step:", 5) == 0)
		return find_by_step(c, selector + 5, ret, err);
	if (selector && strncmp(selector, "id:", 3) == 0)
		return find_by_id(c, selector + 3, ret, err);
	if (selector && strcmp(selector, "latest") != 0)
		return find_by_name(c, selector, ret, err);
	TRY(refuse_denied(c, latest, "the latest checkpoint", err));
	if (!latest)
		return err_set(err, PAWL_ENOTFOUND, "there is no checkpoint yet");
	*ret = latest;
	return 0;
}

int
pawl_find(struct pawl *run, const char *selector, uint64_t *ret_id, struct pawl_error *err)
{
	struct catalog_entry *e = NULL;

	if (!run || !selector || !ret_id)
		return err_set(err, PAWL_EUSAGE, "find: expected a run, a selector and a place for the id, found NULL");
	run_lock(run);
	int rc = catalog_find(run->catalog, &run->retention, selector, &e, err);
	if (rc == 0)
		*ret_id = e->id;
	run_unlock(run);
	return rc < 0 ? err_prefix(err, rc, "%s", run->root) : 0;
}

static int
reload(struct pawl *run, struct pawl_error *err)
{
	if (!run)
		return err_set(err, PAWL_EUSAGE, "reload: expected a run, found NULL");
	run_edit(run);
	int rc = catalog_reload(run->catalog, err);
	run_edited(run);
	run_lock(run);
	for (size_t i = 0; i < run->catalog->n; i++) {
		if (run->catalog->entries[i].id > run->last_id)
			run->last_id = run->catalog->entries[i].id;
	}
	run_unlock(run);
	return rc;
}

int
pawl_reload(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, reload(run, &own), &own);
}

/* --------------------------------------------------------- infos and lists */

struct pawl_list {
	struct bump memory;
	struct pawl_info *infos;
	size_t n;
};

/* What is the same for all infos of a list. */
struct outlook {
	const struct catalog *catalog;
	const struct pawl_retention *policy;
	const struct catalog_entry *latest, *best;
	const char *prefix; /* of paths: "/abs/run/" or "" */
	struct bump *memory;
};

static int
outlook_init(struct outlook *o, const struct catalog *c, const struct pawl_retention *policy, struct bump *memory,
             struct pawl_error *err)
{
	struct store_caps caps;

	store_get_caps(c->store, &caps);
	*o = (struct outlook){.catalog = c,
	                      .policy = policy,
	                      .latest = latest_of(c),
	                      .best = best_of(c, policy),
	                      .prefix = "",
	                      .memory = memory};
	if (caps.local)
		o->prefix = bump_printf(memory, "%s/", c->store->root);
	return o->prefix ? 0 : err_set(err, PAWL_ENOMEM, "catalog: out of memory");
}

/* Where it lies: below the run's root, or, if only there, in a mirror, by a path or URL of its own. What follows a "?"
 * in a URL stays at its end. */
static const char *
path_of(const struct outlook *o, const struct catalog_entry *e)
{
	const char *folder = o->catalog->single_name ? "" : CATALOG_FOLDER "/";

	if (!e->at)
		return bump_printf(o->memory, "%s%s%s", o->prefix, folder, e->name);
	const char *root = e->at->root;
	size_t len = strstr(root, "://") ? strcspn(root, "?") : strlen(root);
	const char *rest = root + len;

	while (len > 1 && root[len - 1] == '/')
		len--;
	return bump_printf(o->memory, "%.*s/%s%s%s", (int)len, root, folder, e->name, rest);
}

/* Copies of everything: the entry may go while the info is still looked at. */
static bool
copy_strings(const struct outlook *o, const struct catalog_entry *e, struct pawl_info *ret)
{
	const char *run_id = e->summary ? e->summary->run_id : "";
	const char *problem = e->problem ? e->problem : "";
	struct pawl_metric *metrics = bump_array(o->memory, e->n_metrics, sizeof(*metrics));

	ret->name = bump_strndup(o->memory, e->name, strlen(e->name));
	ret->path = path_of(o, e);
	ret->run_id = bump_strndup(o->memory, run_id, strlen(run_id));
	ret->problem = bump_strndup(o->memory, problem, strlen(problem));
	ret->metrics = metrics;
	ret->n_metrics = e->n_metrics;
	for (size_t i = 0; metrics && i < e->n_metrics; i++) {
		metrics[i] = e->metrics[i];
		metrics[i].name = bump_strndup(o->memory, e->metrics[i].name, strlen(e->metrics[i].name));
		if (!metrics[i].name)
			return false;
	}
	return ret->name && ret->path && ret->run_id && ret->problem && metrics;
}

static void
copy_score(const struct outlook *o, struct pawl_info *ret)
{
	for (size_t i = 0; o->policy->n_scores && i < ret->n_metrics; i++) {
		if (ret->metrics[i].not_a_number || strcmp(ret->metrics[i].name, o->policy->score_attributes[0]) != 0)
			continue;
		ret->score = ret->metrics[i].value;
		ret->has_score = 1;
	}
}

static void
copy_summary(const struct manifest *m, struct pawl_info *ret)
{
	ret->step = m->step;
	ret->attempt = m->attempt;
	ret->unix_seconds = (double)m->unix_ns / 1e9;
	ret->progress = m->progress;
	ret->bytes = m->bytes;
	ret->new_bytes = m->new_bytes;
	ret->plain_bytes = m->plain_bytes ? m->plain_bytes : m->bytes;
	ret->n_tensors = m->n_tensors;
	ret->n_files = m->n_files;
	while (m->files && ret->n_files > 0 && m->files[ret->n_files - 1].memory) /* only in name (foreign_tree.h) */
		ret->n_files--;
	ret->world_size = m->world_size;
	ret->blocked_seconds = m->blocked_seconds;
	ret->format = m->format ? m->format : ret->format;
}

static int
fill_info(const struct outlook *o, const struct catalog_entry *e, struct pawl_info *ret, struct pawl_error *err)
{
	struct pawl_info info = {.id = e->id, .progress = PAWL_PROGRESS_INIT, .format = "pawl", .here = !e->at};

	if (!copy_strings(o, e, &info))
		return err_set(err, PAWL_ENOMEM, "catalog: out of memory");
	copy_score(o, &info);
	if (e->summary)
		copy_summary(e->summary, &info);
	info.marks = (e == o->latest ? PAWL_MARK_LATEST : 0u) | (e == o->best ? PAWL_MARK_BEST : 0u) |
	             (e->pinned ? PAWL_MARK_PINNED : 0u) | (e->held ? PAWL_MARK_HELD : 0u) |
	             (e->summary && e->summary->nonfinite ? PAWL_MARK_NONFINITE : 0u) |
	             (e->problem ? PAWL_MARK_BAD : 0u) | (e->code == PAWL_EAUTH ? PAWL_MARK_DENIED : 0u) |
	             (catalog_is_unfinished(o->catalog, e) ? PAWL_MARK_UNFINISHED : 0u);
	info.level = mirrors_level(o->catalog->mirrors, o->catalog, e);
	info.n_mirrors = mirrors_count(o->catalog->mirrors, e);
	*ret = info;
	return 0;
}

int
catalog_info(const struct catalog *c, const struct catalog_entry *e, const struct pawl_retention *policy,
             struct bump *memory, struct pawl_info *ret, struct pawl_error *err)
{
	struct outlook o;

	TRY(outlook_init(&o, c, policy, memory, err));
	return fill_info(&o, e, ret, err);
}

void
pawl_list_free(struct pawl_list *list)
{
	if (!list)
		return;
	bump_clear(&list->memory);
	mem_free(list);
}

size_t
pawl_list_count(const struct pawl_list *list)
{
	return list->n;
}

const struct pawl_info *
pawl_list_get(const struct pawl_list *list, size_t i)
{
	return i < list->n ? &list->infos[i] : NULL;
}

static void
list_clean(struct pawl_list **list)
{
	pawl_list_free(*list);
}

static int
fill_list(const struct pawl *run, bool with_bad, struct pawl_list *list, struct pawl_error *err)
{
	const struct catalog *c = run->catalog;
	struct outlook o;

	TRY(outlook_init(&o, c, &run->retention, &list->memory, err));
	list->infos = bump_array(&list->memory, c->n, sizeof(*list->infos));
	if (!list->infos)
		return err_set(err, PAWL_ENOMEM, "list: out of memory");
	for (size_t i = 0; i < c->n; i++) {
		if (c->entries[i].summary || with_bad)
			TRY(fill_info(&o, &c->entries[i], &list->infos[list->n++], err));
	}
	return 0;
}

int
pawl_list_open(struct pawl *run, int with_bad, struct pawl_list **ret, struct pawl_error *err)
{
	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE, "list: expected a run and a place for the list, found NULL");
	PAWL_CLEAN(list_clean) struct pawl_list *list = mem_zalloc(1, sizeof(*list));
	if (!list)
		return err_set(err, PAWL_ENOMEM, "list: out of memory");
	run_lock(run);
	int rc = fill_list(run, with_bad, list, err);
	run_unlock(run);
	TRY(rc);
	*ret = steal(&list);
	return 0;
}

int
pawl_metadata(struct pawl *run, uint64_t id, struct pawl_state **ret, struct pawl_error *err)
{
	struct manifest *m = NULL;

	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE, "metadata: expected a run and a place for the state, found NULL");
	TRY(mirrors_manifest(run, id, true, &m, err));
	*ret = steal(&m->metadata);
	manifest_free(m);
	return 0;
}

/* ------------------------------------------------------- waiting, holding */

/* *ret_id: 0 = there is none. */
static int
latest_id(struct pawl *run, uint64_t *ret_id, struct pawl_error *err)
{
	struct catalog_entry *latest = NULL;

	run_lock(run);
	int rc = catalog_find(run->catalog, &run->retention, NULL, &latest, err);
	*ret_id = rc == 0 ? latest->id : 0;
	run_unlock(run);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

static int
wait_for_new(struct pawl *run, uint64_t after, int64_t timeout_ms, uint64_t *ret_id, struct pawl_error *err)
{
	if (!run || !ret_id)
		return err_set(err, PAWL_EUSAGE, "wait: expected a run and a place for the id, found NULL");

	int64_t begin = clock_mono_ms(), pause = POLL_FIRST_MS;
	for (;;) {
		uint64_t id = 0;
		int rc = pawl_reload(run, err);

		if (rc == 0)
			rc = latest_id(run, &id, err);
		if (rc < 0 && !pawl_code_is_transient(rc))
			return rc;
		if (rc == 0 && id > after) {
			*ret_id = id;
			return 0;
		}
		int64_t left = timeout_ms < 0 ? POLL_LAST_MS : timeout_ms - (clock_mono_ms() - begin);
		if (left <= 0)
			return err_waited(err, "%s: no checkpoint after id %llu came within %lld ms", run->root,
			                  (unsigned long long)after, (long long)timeout_ms);
		clock_sleep_ms(pause < left ? pause : left);
		pause = 2 * pause < POLL_LAST_MS ? 2 * pause : POLL_LAST_MS;
	}
}

int
pawl_wait_for_new(struct pawl *run, uint64_t after, int64_t timeout_ms, uint64_t *ret_id, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, wait_for_new(run, after, timeout_ms, ret_id, &own), &own);
}

struct pawl_hold {
	struct pawl *run;
	struct buf key; /* of the hold's file; empty for a single checkpoint, which nobody's retention deletes */
};

static void
hold_clean(struct pawl_hold **hold)
{
	pawl_hold_close(*hold);
}

/* Folder key of a checkpoint, read anew if it is not known yet. */
static int
find_folder(struct pawl *run, uint64_t id, struct buf *name, struct buf *manifest_key, struct pawl_error *err)
{
	int rc = 0;

	run_edit(run);
	if (!catalog_get(run->catalog, id))
		rc = catalog_reload(run->catalog, err);
	const struct catalog_entry *e = rc == 0 ? catalog_get(run->catalog, id) : NULL;
	if (e) {
		buf_puts(name, e->name);
		catalog_manifest_key(run->catalog, e->name, manifest_key);
	}
	run_edited(run);
	TRY(rc);
	if (!e)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %llu", run->root,
		               (unsigned long long)id);
	TRY(buf_check(name, "hold", err));
	return buf_check(manifest_key, "hold", err);
}

static int
hold_open(struct pawl *run, uint64_t id, struct pawl_hold **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf name = {0}, manifest_key = {0};
	struct store_entry entry;

	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE, "hold: expected a run and a place for the hold, found NULL");
	TRY(find_folder(run, id, &name, &manifest_key, err));
	PAWL_CLEAN(hold_clean) struct pawl_hold *hold = mem_zalloc(1, sizeof(*hold));
	if (!hold)
		return err_set(err, PAWL_ENOMEM, "hold: out of memory");
	hold->run = run;
	if (!run->single_name)
		TRY(holds_make(run->store, buf_str(&name), &hold->key, err));
	/* It may have been deleted while the hold was being made; from here on whoever deletes sees the hold. */
	int rc = store_stat(run->store, buf_str(&manifest_key), &entry, err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s has just been deleted", buf_str(&name));
	TRY(rc);
	run_edit(run);
	catalog_note_held(run->catalog, id);
	run_edited(run);
	*ret = steal(&hold);
	return 0;
}

int
pawl_hold_open(struct pawl *run, uint64_t id, struct pawl_hold **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, hold_open(run, id, ret, &own), &own);
}

void
pawl_hold_close(struct pawl_hold *hold)
{
	if (!hold)
		return;
	if (hold->key.len) {
		store_remove(hold->run->store, buf_str(&hold->key), NULL);
		run_edit(hold->run);
		catalog_reload_holds(hold->run->catalog, NULL); /* another hold may be on it */
		run_edited(hold->run);
	}
	buf_clear(&hold->key);
	mem_free(hold);
}
