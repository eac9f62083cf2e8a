/* SPDX-License-Identifier: Apache-2.0 */
/* pins: see pins.h. Promises P6 (pins), P8, P17 (hostile bytes). */
#include "catalog/pins.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/json.h"
#include "base/text.h"
#include "state/manifest.h"
#include "state/state.h"

#define MARK_SUFFIX ".json"
#define MARK_MAX_BYTES ((size_t)1 << 20)
#define MARK_MAX_METRICS 1000u
#define LOCK_MS 10000 /* a change takes a few requests; its process may have died there */
#define LOCK_WAIT_MS 60000
#define LOCK_ABSENT 10u /* a put that is refused so often without a lock fails for another reason */
#define LOCK_FIRST_MS 2
#define LOCK_LAST_MS 100

/* ----------------------------------------------------------------- reading */

static int
decode_metrics(const char *what, const struct json *object, struct bump *memory, struct pin_mark *ret,
               struct pawl_error *err)
{
	if (object->len > MARK_MAX_METRICS)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %u metrics, found %zu", what, MARK_MAX_METRICS,
		               object->len);
	ret->metrics = bump_array(memory, object->len, sizeof(*ret->metrics));
	if (!ret->metrics)
		return err_nomem(err, PINS_FOLDER);
	for (const struct json *value = object->first; value; value = value->next) {
		struct pawl_metric *m = &ret->metrics[ret->n_metrics++];

		*m = (struct pawl_metric){.name = value->key, .value = NAN, .not_a_number = value->type == JSON_NULL};
		if (!m->not_a_number && !state_get_float(value, &m->value))
			return err_set(err, PAWL_ECORRUPT, "%s: metric \"%s\": expected a number", what, value->key);
	}
	return 0;
}

static int
decode_mark(const char *what, const struct buf *text, struct bump *memory, struct pin_mark *ret, struct pawl_error *err)
{
	const struct json_limits limits = {.max_bytes = MARK_MAX_BYTES};
	const struct json *pinned, *metrics;
	struct json *root;

	TRY(json_parse(what, text->ptr, text->len, &limits, memory, &root, err));
	TRY(json_get_type(what, root, "pinned", JSON_BOOL, &pinned, err));
	TRY(json_get_type(what, root, "metrics", JSON_OBJECT, &metrics, err));
	TRY(decode_metrics(what, metrics, memory, ret, err));
	ret->pinned = pinned->boolean;
	const struct json *copied = json_get(root, "pin_copied");
	ret->pin_copied = copied && copied->type == JSON_BOOL && copied->boolean;
	return 0;
}

struct listing {
	const char *const *names; /* wanted, sorted */
	size_t n;
	struct pin_mark *marks; /* found, in any order */
	size_t n_marks;
};

static int
compare_name(const void *key, const void *row)
{
	return strcmp(key, *(const char *const *)row);
}

static int
compare_marks(const void *a, const void *b)
{
	return strcmp(((const struct pin_mark *)a)->name, ((const struct pin_mark *)b)->name);
}

static int
visit_entry(void *arg, const struct store_entry *entry)
{
	struct listing *l = arg;
	size_t len = strlen(entry->name), suffix = strlen(MARK_SUFFIX);
	char name[256];

	if (entry->is_folder || entry->is_link || len <= suffix || len - suffix >= sizeof(name) ||
	    strcmp(entry->name + len - suffix, MARK_SUFFIX) != 0)
		return 0;
	memcpy(name, entry->name, len - suffix);
	name[len - suffix] = '\0';
	const char *const *wanted = bsearch(name, l->names, l->n, sizeof(*l->names), compare_name);
	/* A folder has no name twice, but a broken file system may list one twice. */
	if (wanted && l->n_marks < l->n)
		l->marks[l->n_marks++].name = *wanted;
	return 0;
}

static int
read_mark(struct store *store, struct buf *scratch, struct bump *memory, struct pin_mark *mark, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	int rc;

	buf_printf(&key, PINS_FOLDER "/%s" MARK_SUFFIX, mark->name);
	TRY(buf_check(&key, mark->name, err));
	scratch->len = 0;
	rc = store_get(store, buf_str(&key), MARK_MAX_BYTES, scratch, err);
	if (rc == PAWL_ENOTFOUND) /* removed since the listing */
		return 0;
	if (rc == 0)
		rc = decode_mark(buf_str(&key), scratch, memory, mark, err);
	if (rc != PAWL_ECORRUPT && rc != PAWL_ELIMIT)
		return rc;
	*mark = (struct pin_mark){.name = mark->name, .pinned = true};
	return 0;
}

int
pins_read(struct store *store, const char *const *names, size_t n, struct bump *memory, struct pin_mark **ret,
          size_t *ret_n, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf scratch = {0};
	struct listing l = {.names = names, .n = n, .marks = bump_array(memory, n, sizeof(*l.marks))};

	if (!l.marks)
		return err_nomem(err, PINS_FOLDER);
	int rc = n ? store_list(store, PINS_FOLDER, visit_entry, &l, err) : 0;
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	for (size_t i = 0; i < l.n_marks; i++)
		TRY(read_mark(store, &scratch, memory, &l.marks[i], err));
	if (l.n_marks)
		qsort(l.marks, l.n_marks, sizeof(*l.marks), compare_marks);
	*ret = l.marks;
	*ret_n = l.n_marks;
	return 0;
}

/* ----------------------------------------------------------------- locking */

/* What a process sees of the lock while it is refused. */
struct lock_watch {
	char token[HIDDEN_TOKEN_LEN + 1];
	int64_t since_ms;  /* when it first saw this token */
	unsigned n_absent; /* how often in a row there was none */
};

/* A crash leaves the lock, which then does not change. gc removes it as any temporary file. False:
 * it keeps no process out, since it cannot be made or removed. */
static bool
look_at_lock(struct store *store, const char *key, struct lock_watch *watch, int64_t now_ms)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	int rc = store_get(store, key, HIDDEN_TOKEN_LEN, &text, NULL);

	watch->n_absent = rc == PAWL_ENOTFOUND ? watch->n_absent + 1 : 0;
	if (rc == PAWL_ENOTFOUND || (rc == 0 && strcmp(buf_str(&text), watch->token) != 0)) {
		text_copy(watch->token, sizeof(watch->token), rc == 0 ? buf_str(&text) : "");
		watch->since_ms = now_ms;
	} else if (now_ms - watch->since_ms >= LOCK_MS) {
		watch->since_ms = now_ms;
		return store_remove(store, key, NULL) == 0;
	}
	return watch->n_absent < LOCK_ABSENT;
}

static int
take_lock(struct store *store, const char *name, const char *key, struct pawl_error *err)
{
	char token[HIDDEN_TOKEN_LEN + 1];
	int64_t now_ms = clock_mono_ms(), pause_ms = LOCK_FIRST_MS;
	const int64_t end_ms = now_ms + LOCK_WAIT_MS;
	struct lock_watch watch = {.since_ms = now_ms};

	TRY(clock_token(token, err));
	for (;;) {
		struct pawl_error why = {0};
		int rc = store_put_bytes(store, key, token, HIDDEN_TOKEN_LEN, STORE_EXCLUSIVE, &why);

		if (rc == PAWL_EUNSUPPORTED)
			return 0;
		if (rc != PAWL_EEXISTS)
			return err_give(err, rc, &why);
		now_ms = clock_mono_ms();
		if (now_ms >= end_ms)
			return err_set(err, PAWL_EBUSY, "%s: other processes are changing its pin or scores; try again",
			               name);
		if (!look_at_lock(store, key, &watch, now_ms))
			return 0;
		clock_sleep_ms(pause_ms);
		pause_ms = 2 * pause_ms < LOCK_LAST_MS ? 2 * pause_ms : LOCK_LAST_MS;
	}
}

int
pins_lock(struct store *store, const char *name, struct pins_lock *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	char hidden[HIDDEN_NAME_BYTES];
	struct store_caps caps;

	store_get_caps(store, &caps);
	if (!caps.exclusive_put)
		return 0;
	hidden_name_fixed(name, HIDDEN_TMP, hidden);
	buf_printf(&key, PINS_FOLDER "/%s", hidden);
	TRY(buf_check(&key, name, err));
	TRY(take_lock(store, name, buf_str(&key), err));
	*ret = (struct pins_lock){.store = store, .key = key, .begin_ms = clock_mono_ms()};
	key = (struct buf){0};
	return 0;
}

void
pins_unlock(struct pins_lock *lock)
{
	/* After LOCK_MS another process may have it. */
	if (lock->key.len && clock_mono_ms() - lock->begin_ms < LOCK_MS)
		store_remove(lock->store, buf_str(&lock->key), NULL);
	buf_clear(&lock->key);
}

/* ----------------------------------------------------------------- writing */

static int
check_metrics(const struct pin_mark *mark, struct pawl_error *err)
{
	if (mark->n_metrics > MARK_MAX_METRICS)
		return err_set(err, PAWL_ELIMIT, "%s: at most %u late metrics are allowed, received %zu", mark->name,
		               MARK_MAX_METRICS, mark->n_metrics);
	for (size_t i = 0; i < mark->n_metrics; i++) {
		if (!text_is_utf8(mark->metrics[i].name, strlen(mark->metrics[i].name)))
			return err_set(err, PAWL_EUSAGE, "%s: the name of late metric %zu is not UTF-8", mark->name,
			               i + 1);
	}
	return 0;
}

int
pins_write(struct store *store, const struct pin_mark *mark, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {.max = MARK_MAX_BYTES};

	buf_printf(&key, PINS_FOLDER "/%s" MARK_SUFFIX, mark->name);
	TRY(buf_check(&key, mark->name, err));
	if (!mark->pinned && mark->n_metrics == 0) {
		TRY(store_remove(store, buf_str(&key), err));
		int rc = store_sync(store, PINS_FOLDER, err);
		return rc == PAWL_ENOTFOUND ? 0 : rc; /* it never had a mark */
	}
	TRY(check_metrics(mark, err));
	buf_putc(&text, '{');
	json_add_bool(&text, "pinned", mark->pinned);
	if (mark->pinned && mark->pin_copied)
		json_add_bool(&text, "pin_copied", true);
	json_add_key(&text, "metrics");
	manifest_put_metrics(mark->metrics, mark->n_metrics, &text);
	buf_puts(&text, "}\n");
	TRY(buf_check(&text, buf_str(&key), err));
	return store_put_bytes(store, buf_str(&key), text.ptr, text.len, STORE_DURABLE, err);
}

/* ------------------------------------------------------------- late scores */

struct pawl_metric *
pins_overlay(const struct pawl_metric *saved, size_t n_saved, const struct pawl_metric *late, size_t n_late,
             size_t *ret_n)
{
	size_t n = 0, text = 0, most = n_saved + n_late;

	for (size_t i = 0; i < n_saved; i++)
		text += strlen(saved[i].name) + 1;
	for (size_t i = 0; i < n_late; i++)
		text += strlen(late[i].name) + 1;
	struct pawl_metric *all = mem_alloc(most * sizeof(*all) + text);
	if (!all)
		return NULL;
	char *names = (char *)(all + most);
	for (size_t i = 0; i < most; i++) {
		const struct pawl_metric *m = i < n_saved ? &saved[i] : &late[i - n_saved];
		size_t at = i < n_saved ? n : 0, len = strlen(m->name) + 1; /* saved ones have different names */

		while (at < n && strcmp(all[at].name, m->name) != 0)
			at++;
		if (at == n) {
			all[n++].name = memcpy(names, m->name, len);
			names += len;
		}
		all[at].value = m->value;
		all[at].not_a_number = m->not_a_number;
	}
	*ret_n = n;
	return all;
}

static bool
same_metric(const struct pawl_metric *a, const struct pawl_metric *b)
{
	return !a->not_a_number == !b->not_a_number && memcmp(&a->value, &b->value, sizeof(a->value)) == 0;
}

size_t
pins_late(const struct pawl_metric *saved, size_t n_saved, const struct pawl_metric *all, size_t n_all,
          struct pawl_metric *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < n_all; i++) {
		bool known = false;

		for (size_t k = 0; k < n_saved && !known; k++)
			known = strcmp(saved[k].name, all[i].name) == 0 && same_metric(&saved[k], &all[i]);
		if (!known)
			ret[n++] = all[i];
	}
	return n;
}
