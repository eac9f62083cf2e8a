/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_find: finds the checkpoint that a caller means: look-ups in the catalog, selectors, and
 * waiting for one that is new or put back. It decides nothing: the order is that of the ids (P9),
 * and policy/retain.h finds the best. Promises P12, P16 (waits have a deadline).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/text.h"
#include "catalog/mirrors.h"
#include "run/run.h"

#define POLL_FIRST_MS 10
#define POLL_LAST_MS 500
#define SHOWN_MAX 10u     /* checkpoints that an error lists */
#define PUT_BACK_MS 10000 /* a deletion reads the holds meanwhile; its process may have died there */
#define PUT_BACK_FIRST_MS 2
#define PUT_BACK_LAST_MS 100

/* ---------------------------------------------------------------- look-ups */

struct catalog_entry *
catalog_get(const struct catalog *c, uint64_t id)
{
	size_t lo = 0, hi = c->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (c->entries[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	/* Within one id the valid entry is first. */
	return lo < c->n && c->entries[lo].id == id && c->entries[lo].summary ? &c->entries[lo] : NULL;
}

struct catalog_entry *
catalog_latest(const struct catalog *c)
{
	for (size_t i = c->n; i-- > 0;) {
		if (c->entries[i].summary)
			return &c->entries[i];
	}
	return NULL;
}

struct catalog_entry *
catalog_best(const struct catalog *c, const struct pawl_retention *policy)
{
	struct catalog_entry *best = NULL;

	if (policy->num_to_keep == PAWL_KEEP_MEMORY || policy->n_scores == 0)
		return NULL; /* R3: the best stays unset */
	for (size_t i = 0; i < c->n; i++) {
		struct catalog_entry *e = &c->entries[i];

		/* Only a score that counts is better than none. */
		if (e->summary && retain_compare(policy, e->metrics, e->n_metrics, best ? best->metrics : NULL,
		                                 best ? best->n_metrics : 0) > 0)
			best = e;
	}
	return best;
}

bool
catalog_may_be_intact(const struct catalog_entry *e)
{
	return !e->summary && !err_is_damage(e->code);
}

const struct catalog_entry *
catalog_denied(const struct catalog *c, const struct catalog_entry *than)
{
	for (size_t i = c->n; i-- > 0;) {
		const struct catalog_entry *e = &c->entries[i];

		/* The name may not show the id. */
		if (catalog_may_be_intact(e) && (!than || e->id == 0 || e->id > than->id) && !catalog_get(c, e->id))
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
		return err_nomem(err, "catalog");
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

/* The problem without the name or path before it, which the caller adds. */
static const char *
reason_of(const struct catalog_entry *e)
{
	const size_t len = strlen(e->name);

	for (const char *at = strstr(e->problem, e->name); at; at = strstr(at + 1, e->name))
		if (strncmp(at + len, ": ", 2) == 0)
			return at + len + 2;
	return e->problem;
}

int
catalog_refuse(const struct catalog_entry *e, struct pawl_error *err)
{
	const bool is_read = e->code == PAWL_ENOTFOUND || e->code == PAWL_ECORRUPT;

	return err_set(err, e->code, "%s %s: %s", e->name, is_read ? "is not a checkpoint" : "cannot be read",
	               reason_of(e));
}

/* Returns an error if an unreadable checkpoint could change the answer. than: the answer, if only
 * newer checkpoints could change it; else NULL. */
static int
refuse_denied(struct catalog *c, const struct catalog_entry *than, const char *what, struct pawl_error *err)
{
	const struct catalog_entry *e = catalog_denied(c, than);

	if (!e)
		return 0;
	if (c->single_name)
		return err_set(err, e->code, "%s", reason_of(e));
	return err_set(err, e->code, "%s cannot be read, so that %s is unknown: %s", e->name, what, reason_of(e));
}

static bool
is_step(const char *text)
{
	text += *text == '-';
	return *text && text[strspn(text, "0123456789")] == '\0';
}

/* Is the text the id of a checkpoint? */
static bool
is_id(struct catalog *c, const char *text)
{
	char *end;
	unsigned long long id = strtoull(text, &end, 10);

	return !*end && catalog_get(c, id) != NULL;
}

/* What a selector that finds nothing could have named: the newest checkpoints by `what`, which is
 * "step", "id" or "name". */
static int
refuse_absent(struct catalog *c, const char *what, const char *selector, struct pawl_error *err)
{
	char names[640] = "", first[48] = "there are ";
	size_t n = 0, len = 0, n_all = 0, i = c->n;

	for (size_t k = 0; k < c->n; k++)
		n_all += c->entries[k].summary != NULL;
	while (i > 0 && n < SHOWN_MAX)
		n += c->entries[--i].summary != NULL;
	if (n < n_all)
		snprintf(first, sizeof(first), "the newest of %zu are ", n_all);
	else if (n == 1)
		snprintf(first, sizeof(first), "the only one is ");
	for (const struct catalog_entry *e, *last = NULL; i < c->n; i++) {
		const char *comma = len > 0 ? ", " : "";

		e = &c->entries[i];
		if (!e->summary || len >= sizeof(names))
			continue;
		if (*what == 's' && last && last->summary->step == e->summary->step)
			continue;
		last = e;
		if (*what == 's')
			len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%" PRId64, comma,
			                        e->summary->step);
		else if (*what == 'i')
			len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%" PRIu64, comma, e->id);
		else
			len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%s", comma, e->name);
	}
	const bool is_meant = *what == 's' && is_id(c, selector);
	return err_set(err, PAWL_ENOTFOUND, "no checkpoint has the %s %.200s; %s%s%s%.200s", what, selector,
	               n == 0 ? "there is no checkpoint yet" : first, names,
	               *what == 'n' ? "; or select by latest, best, good, a step or id:N"
	               : is_meant   ? "; to select by id, write id:"
	                            : "",
	               is_meant ? selector : "");
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
		return err_set(err, PAWL_EUSAGE, "selector '%.200s': expected a number of 64 bits, found one beyond",
		               text);
	for (size_t i = c->n; i-- > 0;) {
		if (c->entries[i].summary && c->entries[i].summary->step == step) {
			*ret = &c->entries[i];
			return 0;
		}
	}
	TRY(refuse_denied(c, NULL, "its step", err));
	return refuse_absent(c, "step", text, err);
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
			return catalog_refuse(&c->entries[i], err);
	}
	return refuse_absent(c, "id", text, err);
}

static int
find_by_name(struct catalog *c, const char *name, struct catalog_entry **ret, struct pawl_error *err)
{
	for (size_t i = 0; i < c->n; i++) {
		if (strcmp(c->entries[i].name, name) != 0)
			continue;
		if (!c->entries[i].summary)
			return catalog_refuse(&c->entries[i], err);
		*ret = &c->entries[i];
		return 0;
	}
	return refuse_absent(c, "name", name, err);
}

static int
find_best(struct catalog *c, const struct pawl_retention *policy, struct catalog_entry **ret, struct pawl_error *err)
{
	struct catalog_entry *best = catalog_best(c, policy);

	TRY(refuse_denied(c, NULL, "the best checkpoint", err));
	if (!best && catalog_latest(c) && policy->n_scores == 0)
		return err_set(err, PAWL_ENOTFOUND,
		               "there is no best checkpoint: the run has no score; say which metric decides "
		               "(score_attribute, or --by METRIC)");
	if (!best && catalog_latest(c))
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
	struct catalog_entry *latest = catalog_latest(c);

	if (selector && !*selector)
		return err_set(err, PAWL_EUSAGE,
		               "the selector is empty (expected latest, best, good, a step, id:N or a checkpoint's "
		               "name)");
	if (selector && strcmp(selector, "best") == 0)
		return find_best(c, policy, ret, err);
	if (selector && strcmp(selector, "good") == 0)
		return find_good(c, ret, err);
	if (selector && strncmp(selector, "step:", 5) == 0)
		return find_by_step(c, selector + 5, ret, err);
	if (selector && is_step(selector))
		return find_by_step(c, selector, ret, err);
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
pawl_split_address(const char *address, char *root, char *selector)
{
	const char *sign = strstr(address, "://"), *path = sign ? sign + 3 : address;
	const bool is_url = text_is_url(address);
	const size_t len = is_url ? strcspn(path, "?") : strlen(path);
	size_t at = len;

	*selector = '\0';
	memcpy(root, address, strlen(address) + 1);
	while (at > 0 && path[at - 1] != '@' && path[at - 1] != '/')
		at--;
	if (at == 0 || path[at - 1] != '@')
		return 0;
	if (is_url ? memchr(path, '/', at) == NULL : access(path, F_OK) == 0) /* ssh://user@host */
		return 0;
	memcpy(selector, path + at, len - at);
	selector[len - at] = '\0';
	memmove(root + (path - address) + at - 1, path + len, strlen(path + len) + 1);
	if (!*root)
		memcpy(root, ".", 2);
	return 1;
}

int
pawl_find(struct pawl *run, const char *selector, uint64_t *ret_id, struct pawl_error *err)
{
	struct catalog_entry *e = NULL;

	if (!run || !selector || !ret_id)
		return err_set(err, PAWL_EUSAGE,
		               "find: expected a run, a selector and a pointer that receives the id, found NULL");
	run_wait_committed(run, -1);
	run_lock(run);
	int rc = catalog_find(run->catalog, &run->settings.retention, selector, &e, err);
	if (rc == 0)
		*ret_id = e->id;
	run_unlock(run);
	return rc < 0 ? err_prefix(err, rc, "%s", run->home.root) : 0;
}

static int
reload_catalog(struct pawl *run, struct pawl_error *err)
{
	if (!run)
		return err_set(err, PAWL_EUSAGE, "reload: expected a run, found NULL");
	run_edit(run);
	int rc = catalog_reload(run->catalog, err);
	run_edited(run);
	run_lock(run);
	for (size_t i = 0; i < run->catalog->n; i++)
		run_file_raise_id(run, run->catalog->entries[i].id);
	run_unlock(run);
	return rc;
}

int
pawl_reload(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, reload_catalog(run, &own), &own);
}

/* ------------------------------------------------------------------ waiting */

/* *ret_id: 0 = there is none. */
static int
latest_id(struct pawl *run, uint64_t *ret_id, struct pawl_error *err)
{
	struct catalog_entry *latest = NULL;

	run_lock(run);
	int rc = catalog_find(run->catalog, &run->settings.retention, NULL, &latest, err);
	*ret_id = rc == 0 ? latest->id : 0;
	run_unlock(run);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

static int
wait_for_new(struct pawl *run, uint64_t after, int64_t timeout_ms, uint64_t *ret_id, struct pawl_error *err)
{
	if (!run || !ret_id)
		return err_set(err, PAWL_EUSAGE, "wait: expected a run and a pointer that receives the id, found NULL");

	int64_t begin = clock_mono_ms(), pause = POLL_FIRST_MS;
	for (;;) {
		struct pawl_error why = {0};
		uint64_t id = 0;
		int rc = pawl_reload(run, &why);

		if (rc == 0)
			rc = latest_id(run, &id, &why);
		if (rc < 0 && !pawl_code_is_transient(rc))
			return err_give(err, rc, &why);
		if (rc == 0 && id > after) {
			*ret_id = id;
			return 0;
		}
		int64_t left = timeout_ms < 0 ? POLL_LAST_MS : timeout_ms - (clock_mono_ms() - begin);
		if (left <= 0)
			return err_waited(err, "%s: no checkpoint after id %llu came within %lld ms%s%s",
			                  run->home.root, (unsigned long long)after, (long long)timeout_ms,
			                  rc < 0 ? "; waiting for the store, whose last error is: " : "",
			                  rc < 0 ? why.message : "");
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

/* What a deletion leaves until it has ended: the hidden folder, or files without a manifest. */
struct rest {
	const char *name; /* of the checkpoint */
	bool found;
};

static int
visit_hidden(void *arg, const struct store_entry *entry)
{
	struct rest *rest = arg;
	const char *token = hidden_token(entry->name, HIDDEN_PARTIAL);
	char hidden[HIDDEN_NAME_BYTES];

	if (!token)
		return 0;
	hidden_name_of(rest->name, token, HIDDEN_PARTIAL, hidden);
	rest->found = rest->found || strcmp(hidden, entry->name) == 0;
	return 0;
}

static int
visit_file(void *arg, const struct store_entry *entry)
{
	(void)entry;
	((struct rest *)arg)->found = true;
	return 0;
}

/* If the store cannot tell, there may be a rest. */
static bool
has_rest(const struct catalog *c, struct store *store, const char *name)
{
	PAWL_CLEAN(buf_clear) struct buf folder = {0};
	struct rest rest = {.name = name};
	struct store_caps caps;
	int rc;

	store_get_caps(store, &caps);
	catalog_key(c, name, &folder);
	if (caps.rename_folder)
		rc = store_list(store, CATALOG_FOLDER, visit_hidden, &rest, NULL);
	else
		rc = store_list(store, buf_str(&folder), visit_file, &rest, NULL);
	return rest.found || (rc < 0 && rc != PAWL_ENOTFOUND);
}

int
catalog_wait_put_back(const struct catalog *c, struct store *at, const char *name, struct pawl_error *err)
{
	const int64_t end_ms = clock_mono_ms() + PUT_BACK_MS;
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	int64_t pause_ms = PUT_BACK_FIRST_MS;
	struct store *store = at ? at : c->store;
	struct store_entry entry;
	bool is_last = false;

	catalog_manifest_key(c, name, &key);
	TRY(buf_check(&key, name, err));
	for (;;) {
		struct pawl_error why = {0};
		int rc = store_stat(store, buf_str(&key), &entry, &why);

		if (rc != PAWL_ENOTFOUND)
			return rc < 0 ? err_give(err, rc, &why) : 1;
		if (is_last)
			return 0;
		is_last = clock_mono_ms() >= end_ms || !has_rest(c, store, name);
		if (is_last) /* it may have been put back since the look at the manifest */
			continue;
		clock_sleep_ms(pause_ms);
		pause_ms = 2 * pause_ms < PUT_BACK_LAST_MS ? 2 * pause_ms : PUT_BACK_LAST_MS;
	}
}
