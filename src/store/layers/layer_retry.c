/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_retry: the only place that decides whether something is tried again. See struct store_retry in store.h.
 *
 * Wrapped around remote engines by store_open. Tried again is what may be better the next time, by the class of its
 * code: PAWL_ETRANSIENT and PAWL_ETIMEOUT; never a matter of usage, of rights, of damage or of space. Waits are random
 * between nothing and a limit that doubles (full jitter), so that many ranks do not come back at the same moment. A
 * budget is shared by all operations: when a server is down for everybody, work fails soon instead of adding to its
 * load.
 *
 * P15: after a failure it is not known whether the operation has happened. Most may simply be repeated; for the others
 * what is there is looked at before the verdict of a later try is believed:
 *   exclusive put, link   "exists already": success if it holds the very bytes
 *   move                  "there is no source": success if the target has its size, and the source was there before
 *   append                done already if the bytes stand behind where the object ended before
 *   finish                is done by seal, whose engine knows its own object
 *   publish               "there is no source": success if the target is a folder
 * Exchanging folders is not repeated: engines that can do that are local.
 */
#include "store/engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/layers/layer_retry_look.h"

#define PER_TRY 10 /* of the budget; a success gives back one */

struct retry_store {
	struct store base;
	struct store *inner;
	struct store_ops ops; /* ours, under the engine's name, which is what people want to know */
	struct store_retry opts;
	_Atomic int64_t budget;
	_Atomic uint64_t random;
};

struct attempt {
	struct retry_store *s;
	struct store *inner;
	unsigned tries;
	int64_t begin_ms;
	bool unknown; /* an earlier try has failed in a way that tells nothing */
};

static struct attempt
begin(struct store *base)
{
	struct retry_store *s = (struct retry_store *)base;
	return (struct attempt){.s = s, .inner = s->inner, .begin_ms = clock_mono_ms()};
}

static struct store *
inner_of(struct store *base)
{
	return ((struct retry_store *)base)->inner;
}

static bool
may_pass(int code)
{
	return code == PAWL_ETRANSIENT || code == PAWL_ETIMEOUT;
}

/* Well mixed numbers from a counter (splitmix64); the beginning is random. */
static uint64_t
next_random(struct retry_store *s)
{
	uint64_t x = atomic_fetch_add(&s->random, UINT64_C(0x9e3779b97f4a7c15));
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static int64_t
wait_ms(struct retry_store *s, unsigned tries)
{
	uint64_t limit = s->opts.base_ms;
	for (unsigned i = 1; i < tries && limit < s->opts.max_ms; i++)
		limit *= 2;
	if (limit > s->opts.max_ms)
		limit = s->opts.max_ms;
	return (int64_t)(next_random(s) % (limit + 1));
}

/* After a try that came to rc: is there to be another? Waits, if so. */
static bool
again(struct attempt *a, int rc, struct pawl_error *err)
{
	struct retry_store *s = a->s;
	const int64_t full = (int64_t)s->opts.budget * PER_TRY;
	a->tries++;
	if (!may_pass(rc)) {
		if (rc >= 0 && atomic_load(&s->budget) < full)
			atomic_fetch_add(&s->budget, 1);
		return false;
	}
	a->unknown = true;
	int64_t pause = wait_ms(s, a->tries);
	bool late = clock_mono_ms() + pause - a->begin_ms > (int64_t)s->opts.total_seconds * 1000;
	bool poor = atomic_load(&s->budget) < PER_TRY;
	if (a->tries >= s->opts.max_tries || late || poor) {
		struct pawl_error last = {0};
		if (err != NULL)
			last = *err;
		if (a->tries > 1 || poor)
			err_set(err, rc, "%s (tried %u times%s)", last.message, a->tries,
			        poor ? ", and too many other requests have failed" : "");
		return false;
	}
	atomic_fetch_sub(&s->budget, PER_TRY);
	clock_sleep_ms(pause);
	return true;
}

/* ----------------------------------------------------------------- reading */

static int
retry_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->open(a.inner, key, ret, ret_nbytes, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->read(a.inner, r, offset, dst, n, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct attempt a = begin(base);
	size_t before = out->len;
	int rc;
	if (a.inner->ops->get == NULL)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: cannot be read in one go", key);
	do {
		out->len = before;
		rc = a.inner->ops->get(a.inner, key, max, out, err);
	} while (again(&a, rc, err));
	return rc;
}

static int
retry_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	return inner_of(base)->ops->view(inner_of(base), r, offset, n, ret);
}

static void
retry_drop_view(struct store *base, struct store_view *view)
{
	inner_of(base)->ops->drop_view(inner_of(base), view);
}

static void
retry_close_reader(struct store *base, struct store_reader *r)
{
	inner_of(base)->ops->close_reader(inner_of(base), r);
}

static int
retry_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->stat(a.inner, key, ret, err);
	while (again(&a, rc, err));
	return rc;
}

/* Entries are passed on when the list is complete, so that a page that fails does not show some of them twice. */
struct seen {
	struct bump memory;
	struct seen_entry {
		struct store_entry entry;
		struct seen_entry *next;
	} *first, **last;
};

static int
see(void *arg, const struct store_entry *entry)
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

static int
list_by(struct store *base, bool all, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct attempt a = begin(base);
	struct seen seen = {0};
	int rc;
	do {
		bump_clear(&seen.memory);
		seen.first = NULL;
		seen.last = &seen.first;
		rc = (all ? store_list_all : store_list)(a.inner, folder, see, &seen, err);
	} while (again(&a, rc, err));
	for (const struct seen_entry *e = seen.first; rc == 0 && e != NULL; e = e->next)
		rc = fn(arg, &e->entry);
	bump_clear(&seen.memory);
	return rc;
}

static int
retry_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return list_by(base, false, folder, fn, arg, err);
}

static int
retry_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return list_by(base, true, folder, fn, arg, err);
}

/* ----------------------------------------------------------------- writing */

static int
retry_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->put(a.inner, key, parts, n_parts, flags, err);
	while (again(&a, rc, err));
	return rc == PAWL_EEXISTS && a.unknown && look_holds(base, key, parts, n_parts) ? 0 : rc;
}

static int
retry_get_tagged(struct store *base, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
                 struct pawl_error *err)
{
	struct attempt a = begin(base);
	const size_t before = out->len;
	int rc;
	do {
		out->len = before;
		rc = store_get_tagged(a.inner, key, max, out, tag, err);
	} while (again(&a, rc, err));
	return rc;
}

static int
retry_put_if(struct store *base, const char *key, const char *tag, const struct pawl_slice *text,
             struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = store_put_if(a.inner, key, tag, text->ptr, text->len, err);
	while (again(&a, rc, err));
	return rc == PAWL_ECONFLICT && a.unknown && look_holds(base, key, text, 1) ? 0 : rc;
}

static int
retry_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->create(a.inner, key, opts, ret, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
            struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->write(a.inner, f, offset, ptr, len, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_seal(struct store *base, struct store_file *f, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	if (a.inner->ops->seal == NULL)
		return 0;
	do
		rc = a.inner->ops->seal(a.inner, f, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	struct store *s = inner_of(base);
	int rc = retry_seal(base, f, err);
	if (rc == 0)
		return s->ops->finish(s, f, err);
	s->ops->abort(s, f);
	return rc;
}

static void
retry_abort(struct store *base, struct store_file *f)
{
	inner_of(base)->ops->abort(inner_of(base), f);
}

static int
retry_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->pointer(a.inner, key, target, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct attempt a = begin(base);
	struct store_entry before = {0};
	int rc = retry_stat(base, key, &before, err);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	const uint64_t old_end = rc == 0 && !before.is_folder ? before.nbytes : 0;
	do {
		if (a.unknown && look_was_appended(base, key, old_end, ptr, len))
			return 0;
		rc = a.inner->ops->append(a.inner, key, ptr, len, err);
	} while (again(&a, rc, err));
	return rc;
}

/* ------------------------------------------------------------------- names */

static int
retry_remove(struct store *base, const char *key, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->remove(a.inner, key, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->remove_folder(a.inner, folder, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->link(a.inner, from, to, err);
	while (again(&a, rc, err));
	return rc == PAWL_EEXISTS && a.unknown && look_is_same(base, from, to) ? 0 : rc;
}

static int
retry_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store *s = inner_of(base);
	struct store_entry source, target;
	TRY(retry_stat(base, from, &source, err));
	struct attempt a = begin(base);
	int rc;
	do
		rc = s->ops->move(s, from, to, err);
	while (again(&a, rc, err));
	bool moved = rc == PAWL_ENOTFOUND && a.unknown && retry_stat(base, to, &target, NULL) == 0 &&
	             target.nbytes == source.nbytes;
	return moved ? 0 : rc;
}

static int
retry_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store_entry target;
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->publish(a.inner, from, to, err);
	while (again(&a, rc, err));
	bool moved = rc == PAWL_ENOTFOUND && a.unknown && retry_stat(base, to, &target, NULL) == 0 && target.is_folder;
	return moved ? 0 : rc;
}

static int
retry_exchange(struct store *base, const char *a, const char *b, struct pawl_error *err)
{
	return store_exchange(inner_of(base), a, b, err);
}

static int
retry_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->sync(a.inner, folder, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = a.inner->ops->space(a.inner, ret_free_bytes, err);
	while (again(&a, rc, err));
	return rc;
}

static int
retry_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	struct attempt a = begin(base);
	int rc;
	do
		rc = store_sweep(a.inner, before_ns, ret_n, err);
	while (again(&a, rc, err));
	return rc;
}

/* Not repeated: what is asked is how it is now. */
static int
retry_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	return store_notes(inner_of(base), fn, arg, err);
}

/* ---------------------------------------------------------------- the layer */

static void
retry_close(struct store *base)
{
	store_close(inner_of(base));
	mem_free(base->root);
	mem_free(base);
}

static void
retry_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(inner_of(base), ret);
}

static const struct store_ops retry_ops = {
	.name = "retry",
	.close = retry_close,
	.caps = retry_caps,
	.put = retry_put,
	.create = retry_create,
	.write = retry_write,
	.seal = retry_seal,
	.finish = retry_finish,
	.abort = retry_abort,
	.open = retry_open,
	.read = retry_read,
	.view = retry_view,
	.drop_view = retry_drop_view,
	.close_reader = retry_close_reader,
	.get = retry_get,
	.stat = retry_stat,
	.list = retry_list,
	.list_all = retry_list_all,
	.get_tagged = retry_get_tagged,
	.put_if = retry_put_if,
	.remove = retry_remove,
	.remove_folder = retry_remove_folder,
	.link = retry_link,
	.move = retry_move,
	.publish = retry_publish,
	.exchange = retry_exchange,
	.pointer = retry_pointer,
	.sync = retry_sync,
	.space = retry_space,
	.append = retry_append,
	.sweep = retry_sweep,
	.notes = retry_notes,
};

static struct store_retry
defaults(const struct store_retry *opts)
{
	return (struct store_retry){.max_tries = opts->max_tries ? opts->max_tries : 8,
	                            .base_ms = opts->base_ms ? opts->base_ms : 100,
	                            .max_ms = opts->max_ms ? opts->max_ms : 20000,
	                            .total_seconds = opts->total_seconds ? opts->total_seconds : 3600,
	                            .budget = opts->budget ? opts->budget : 500};
}

/* A root that cannot be reached is told early: this many tries, and none after this time. */
enum { OPEN_TRIES = 4, OPEN_SECONDS = 30 };

int
store_retry_open(store_open_fn *fn, const char *url, bool create, const struct store_retry *opts, struct store **ret,
                 struct pawl_error *err)
{
	struct retry_store opening = {
		.opts = defaults(opts), .budget = OPEN_TRIES * PER_TRY, .random = (uint64_t)clock_mono_ns()};
	struct store *s = NULL;
	opening.opts.max_tries = opening.opts.max_tries < OPEN_TRIES ? opening.opts.max_tries : OPEN_TRIES;
	opening.opts.total_seconds = OPEN_SECONDS;
	struct attempt a = begin(&opening.base);
	int rc;
	do
		rc = fn(url, create, &s, err);
	while (again(&a, rc, err));
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
	PAWL_FREE char *root = mem_strdup(s->root);
	struct retry_store *layer = mem_zalloc(1, sizeof *layer);
	if (root == NULL || layer == NULL) {
		mem_free(layer);
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", s->root);
	}
	memcpy(begin_text, token, 16);
	begin_text[16] = '\0';
	*layer = (struct retry_store){.base = {&layer->ops, steal(&root)}, .inner = s, .ops = retry_ops};
	layer->ops.name = s->ops->name;
	layer->opts = defaults(opts);
	atomic_store(&layer->budget, (int64_t)layer->opts.budget * PER_TRY);
	atomic_store(&layer->random, strtoull(begin_text, NULL, 16));
	*ret = &layer->base;
	return 0;
}
