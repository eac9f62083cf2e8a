/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_retry: the only place that decides whether a call is repeated. See struct store_retry.
 *
 * Only PAWL_ETRANSIENT and PAWL_ETIMEOUT are repeated. Errors of usage, permission, damage or space
 * never are. Waits are random between zero and a limit that doubles (full jitter), so that many
 * ranks do not return at the same moment. All calls share a budget. If a server is down for all
 * clients, calls fail soon instead of adding to the server's load.
 *
 * P15: after a failure it is unknown whether the operation took place. Most calls can simply be
 * repeated. For the others, the store is examined before a later result is trusted:
 *
 *   exclusive put, link   "already exists": success if the object holds exactly these bytes
 *   move                  "no such source": success if the target has the source's size
 *   append                done if the bytes are stored after the old end of the object
 *   finish                seal is repeated; its engine recognises its own object
 *   publish               "no such source": success if the target is a folder
 *
 * A durable put and a publish are then synced (P3): the connection may have been lost between the
 * rename and the sync.
 *
 * Exchanging folders is not repeated. Notes are not repeated, because they describe this moment.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/mix.h"
#include "store/layers/layer.h"
#include "store/layers/retry/retry_look.h"

#define PER_TRY 10 /* of the budget; a success returns one */

struct retry_store {
	struct store base;
	struct store_retry opts;
	_Atomic int64_t budget;
	_Atomic uint64_t random; /* begins at random, and is mixed (mix.h) */
};

static bool
is_transient(int code)
{
	return code == PAWL_ETRANSIENT || code == PAWL_ETIMEOUT;
}

static int64_t
wait_ms(struct retry_store *s, unsigned tries)
{
	uint64_t limit = s->opts.base_ms;
	for (unsigned i = 1; i < tries && limit < s->opts.max_ms; i++)
		limit *= 2;
	if (limit > s->opts.max_ms)
		limit = s->opts.max_ms;
	return (int64_t)(mix_bits(atomic_fetch_add(&s->random, MIX_STEP)) % (limit + 1));
}

/* Called after a try with result rc. Returns true, after a wait, if the call is to be repeated. */
static bool
retry_leave(struct store *base, struct layer_call *call, int rc, struct pawl_error *err)
{
	struct retry_store *s = (struct retry_store *)base;
	const int64_t full = (int64_t)s->opts.budget * PER_TRY;
	call->n_tries++;
	if (!is_transient(rc)) {
		if (rc >= 0 && atomic_load(&s->budget) < full)
			atomic_fetch_add(&s->budget, 1);
		return false;
	}
	int64_t pause = wait_ms(s, call->n_tries);
	bool late =
		clock_mono_ns() / 1000000 + pause - call->begin_ns / 1000000 > (int64_t)s->opts.total_seconds * 1000;
	bool poor = atomic_load(&s->budget) < PER_TRY;
	if (call->n_tries >= s->opts.max_tries || late || poor) {
		struct pawl_error last = {0};
		if (err != NULL)
			last = *err;
		if (call->n_tries > 1 || poor)
			err_set(err, rc, "%s (tried %u times%s)", last.message, call->n_tries,
			        poor ? ", and too many other requests have failed" : "");
		return false;
	}
	atomic_fetch_sub(&s->budget, PER_TRY);
	clock_sleep_ms(pause);
	return true;
}

/* Calls as often as allowed; *ret_rc is the last result. */
#define REPEAT(base, call, ret_rc, err, expr)                                 \
	struct layer_call call = layer_call_of(base, LAYER_OTHER, "", "", 0); \
	int ret_rc;                                                           \
	do                                                                    \
		ret_rc = (expr);                                              \
	while (retry_leave(base, &call, ret_rc, err))

/* After the last try: true if an earlier one may have had an effect. */
static bool
is_unknown(const struct layer_call *call)
{
	return call->n_tries > 1;
}

/* ----------------------------------------------------------------- listing */

/* The caller sees entries only when the list is complete, so a page that fails shows none of them
 * twice. */
struct seen {
	struct bump memory;
	struct seen_entry {
		struct store_entry entry;
		struct seen_entry *next;
	} *first, **last;
};

static int
keep_entry(void *arg, const struct store_entry *entry)
{
	struct seen *seen = arg;
	struct seen_entry *copy = bump_alloc(&seen->memory, sizeof *copy);
	if (copy == NULL)
		return PAWL_ENOMEM;
	copy->entry = *entry;
	copy->entry.name = bump_strndup(&seen->memory, entry->name, strlen(entry->name));
	if (copy->entry.name == NULL)
		return PAWL_ENOMEM;
	*seen->last = copy;
	seen->last = &copy->next;
	return 0;
}

typedef int list_call(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);

static int
list_once(struct store *inner, list_call *list, const char *folder, struct seen *seen, struct pawl_error *err)
{
	bump_clear(&seen->memory);
	seen->first = NULL;
	seen->last = &seen->first;
	return list(inner, folder, keep_entry, seen, err);
}

static int
list_by(struct store *base, list_call *list, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct seen seen = {0};
	REPEAT(base, call, rc, err, list_once(base->inner, list, folder, &seen, err));
	for (const struct seen_entry *e = seen.first; rc == 0 && e != NULL; e = e->next)
		rc = fn(arg, &e->entry);
	bump_clear(&seen.memory);
	return rc;
}

static int
retry_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return list_by(base, store_list, folder, fn, arg, err);
}

static int
retry_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return list_by(base, store_list_all, folder, fn, arg, err);
}

/* ----------------------------------------------------------------- writing */

/* Makes the name of an object or folder durable. */
static int
sync_name(struct store *base, const char *key, struct pawl_error *err)
{
	const char *slash = strrchr(key, '/');
	PAWL_FREE char *folder = mem_strndup(key, slash != NULL ? (size_t)(slash - key) : 0);
	if (folder == NULL)
		return err_nomem(err, key);
	return store_sync(base, folder, err);
}

static int
retry_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	REPEAT(base, call, rc, err, store_put(base->inner, key, parts, n_parts, flags, err));
	if (rc != PAWL_EEXISTS || !is_unknown(&call) || !retry_look_holds(base, key, parts, n_parts))
		return rc;
	return flags & STORE_DURABLE ? sync_name(base, key, err) : 0;
}

static int
retry_put_if(struct store *base, const char *key, const char *tag, const struct pawl_slice *text,
             struct pawl_error *err)
{
	REPEAT(base, call, rc, err, store_put_if(base->inner, key, tag, text->ptr, text->len, err));
	return rc == PAWL_ECONFLICT && is_unknown(&call) && retry_look_holds(base, key, text, 1) ? 0 : rc;
}

static int
retry_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	REPEAT(base, call, rc, err, layer_seal(base->inner, f, err));
	if (rc == 0)
		return layer_finish(base->inner, f, err);
	store_abort(base->inner, f);
	return rc;
}

/* Makes one try, unless an earlier one has appended the bytes. */
static int
append_once(struct store *base, const char *key, uint64_t old_end, const void *ptr, size_t len,
            const struct layer_call *call, struct pawl_error *err)
{
	if (call->n_tries > 0 && retry_look_was_appended(base, key, old_end, ptr, len))
		return 0;
	return store_append(base->inner, key, ptr, len, err);
}

static int
retry_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct store_entry before = {0};
	int found = store_stat(base, key, &before, err);
	if (found < 0 && found != PAWL_ENOTFOUND)
		return found;
	const uint64_t old_end = found == 0 && !before.is_folder ? before.nbytes : 0;
	REPEAT(base, call, rc, err, append_once(base, key, old_end, ptr, len, &call, err));
	return rc;
}

/* ------------------------------------------------------------------- names */

static int
retry_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	REPEAT(base, call, rc, err, store_link(base->inner, from, to, err));
	return rc == PAWL_EEXISTS && is_unknown(&call) && retry_look_is_same(base, from, to) ? 0 : rc;
}

static int
retry_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store_entry source, target;
	TRY(store_stat(base, from, &source, err));
	REPEAT(base, call, rc, err, store_move(base->inner, from, to, err));
	bool moved = rc == PAWL_ENOTFOUND && is_unknown(&call) && store_stat(base, to, &target, NULL) == 0 &&
	             target.nbytes == source.nbytes;
	return moved ? 0 : rc;
}

static int
retry_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store_entry target;
	REPEAT(base, call, rc, err, store_publish(base->inner, from, to, err));
	bool moved = rc == PAWL_ENOTFOUND && is_unknown(&call) && store_stat(base, to, &target, NULL) == 0 &&
	             target.is_folder;
	return moved ? sync_name(base, to, err) : rc;
}

static int
retry_exchange(struct store *base, const char *a, const char *b, struct pawl_error *err)
{
	return store_exchange(base->inner, a, b, err);
}

static int
retry_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	return store_notes(base->inner, fn, arg, err);
}

/* ---------------------------------------------------------------- the layer */

static const struct store_ops retry_ops = {
	.put = retry_put,
	.put_if = retry_put_if,
	.finish = retry_finish,
	.append = retry_append,
	.list = retry_list,
	.list_all = retry_list_all,
	.link = retry_link,
	.move = retry_move,
	.publish = retry_publish,
	.exchange = retry_exchange,
	.notes = retry_notes,
	.leave = retry_leave, /* repeats all other calls */
};

static struct store_retry
with_defaults(const struct store_retry *opts)
{
	return (struct store_retry){.max_tries = opts->max_tries ? opts->max_tries : 8,
	                            .base_ms = opts->base_ms ? opts->base_ms : 100,
	                            .max_ms = opts->max_ms ? opts->max_ms : 20000,
	                            .total_seconds = opts->total_seconds ? opts->total_seconds : 3600,
	                            .budget = opts->budget ? opts->budget : 500};
}

/* Limits for opening, so that an unreachable root is reported early: number of tries, and
 * seconds. */
enum { OPEN_TRIES = 4, OPEN_SECONDS = 30 };

int
store_retry_open(store_open_by_fn *fn, const void *arg, const char *url, bool create, const struct store_retry *opts,
                 struct store **ret, struct pawl_error *err)
{
	struct retry_store opening = {.base = {.ops = &retry_ops},
	                              .opts = with_defaults(opts),
	                              .budget = OPEN_TRIES * PER_TRY,
	                              .random = (uint64_t)clock_mono_ns()};
	struct store *s = NULL;
	opening.opts.max_tries = opening.opts.max_tries < OPEN_TRIES ? opening.opts.max_tries : OPEN_TRIES;
	opening.opts.total_seconds = OPEN_SECONDS;
	REPEAT(&opening.base, call, rc, err, fn(arg, url, create, &s, err));
	TRY(rc);
	rc = store_log(&s, err);
	if (rc == 0)
		rc = store_retry_wrap(s, opts, ret, err);
	if (rc < 0)
		store_close(s);
	return rc;
}

int
store_retry_wrap(struct store *s, const struct store_retry *opts, struct store **ret, struct pawl_error *err)
{
	char token[33], begin_text[17];
	TRY(clock_token(token, err));
	PAWL_FREE struct retry_store *layer = mem_zalloc(1, sizeof *layer);
	if (layer == NULL)
		return err_nomem(err, s->root);
	TRY(layer_init(&layer->base, &retry_ops, s, err));
	memcpy(begin_text, token, 16);
	begin_text[16] = '\0';
	layer->opts = with_defaults(opts);
	atomic_store(&layer->budget, (int64_t)layer->opts.budget * PER_TRY);
	atomic_store(&layer->random, strtoull(begin_text, NULL, 16));
	*ret = &steal(&layer)->base;
	return 0;
}
