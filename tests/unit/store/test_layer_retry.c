/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The retry layer over an engine that fails on command: before anything has happened, or after
 * everything has (a lost answer). Whatever the order, each operation must have the same result as
 * without failures (P15).
 */
#include "helpers/store_bed.h"
#include "helpers/user_store.h"

#include "base/err.h"
#include "store/layers/layer.h"

/* The outcome of each call in turn: '.' its own result, 'b' a failure before it, 'a' one after it,
 * 't' a deadline before it, 'x' refused rights. The last one counts forever. */
struct flaky {
	struct store base; /* a layer */
	const char *script;
	unsigned calls;
	char synced[64]; /* the folder of the last sync that succeeded, which stands for an fsync */
};

struct flaky_file {
	struct store_file base;
	struct store_file *inner; /* NULL once it is sealed */
};

static int
fail_with(char c, const char *what, struct pawl_error *err)
{
	return err_set(err,
	               c == 't'   ? PAWL_ETIMEOUT
	               : c == 'x' ? PAWL_EAUTH
	                          : PAWL_ETRANSIENT,
	               "%s: told to fail", what);
}

static char
step(struct store *base)
{
	struct flaky *f = (struct flaky *)base;
	char c = *f->script;
	f->calls++;
	if (f->script[1] != '\0')
		f->script++;
	return c;
}

/* The call, with the failure that the script has for it. */
#define PLAY(base, what, call)                   \
	char c_ = step(base);                    \
	if (strchr("btx", c_) != NULL)           \
		return fail_with(c_, what, err); \
	int rc_ = (call);                        \
	return c_ == 'a' ? fail_with(c_, what, err) : rc_

static int
flaky_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n, int flags, struct pawl_error *err)
{
	PLAY(s, key, store_put(s->inner, key, parts, n, flags, err));
}

static int
flaky_create(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	char c = step(s);
	if (c != '.')
		return fail_with(c, key, err);
	struct flaky_file *f = mem_zalloc(1, sizeof *f);
	TRY(store_create(s->inner, key, opts, &f->inner, err));
	f->base.key = mem_strdup(key);
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	*ret = &f->base;
	return 0;
}

static int
flaky_write(struct store *s, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
            struct pawl_error *err)
{
	struct flaky_file *f = (struct flaky_file *)bf;
	PLAY(s, bf->key, layer_write(s->inner, f->inner, offset, ptr, len, err));
}

static int
flaky_seal(struct store *s, struct store_file *bf, struct pawl_error *err)
{
	struct flaky_file *f = (struct flaky_file *)bf;
	char c = step(s);
	int rc = 0;
	if (strchr("btx", c) != NULL)
		return fail_with(c, bf->key, err);
	if (f->inner != NULL)
		rc = layer_finish(s->inner, steal(&f->inner), err);
	return c == 'a' ? fail_with(c, bf->key, err) : rc;
}

static void
flaky_abort(struct store *s, struct store_file *bf)
{
	struct flaky_file *f = (struct flaky_file *)bf;
	if (f->inner != NULL)
		store_abort(s->inner, f->inner);
	mem_free(bf->key);
	mem_free(f);
}

static int
flaky_finish(struct store *s, struct store_file *bf, struct pawl_error *err)
{
	(void)err;
	assert_null(((struct flaky_file *)bf)->inner); /* the layer has sealed it */
	flaky_abort(s, bf);
	return 0;
}

static int
flaky_open(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	char c = step(s);
	return c != '.' ? fail_with(c, key, err) : store_open_reader(s->inner, key, ret, ret_nbytes, err);
}

static int
flaky_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	PLAY(s, r->key, store_read(s->inner, r, offset, dst, n, err));
}

static int
flaky_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	PLAY(s, key, store_stat(s->inner, key, ret, err));
}

static int
flaky_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	PLAY(s, folder, store_list(s->inner, folder, fn, arg, err));
}

static int
flaky_remove(struct store *s, const char *key, struct pawl_error *err)
{
	PLAY(s, key, store_remove(s->inner, key, err));
}

static int
flaky_remove_folder(struct store *s, const char *folder, struct pawl_error *err)
{
	PLAY(s, folder, store_remove_folder(s->inner, folder, err));
}

static int
flaky_link(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	PLAY(s, from, store_link(s->inner, from, to, err));
}

static int
flaky_move(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	PLAY(s, from, store_move(s->inner, from, to, err));
}

static int
flaky_append(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	PLAY(s, key, store_append(s->inner, key, ptr, len, err));
}

static int
flaky_pointer(struct store *s, const char *key, const char *target, struct pawl_error *err)
{
	PLAY(s, key, store_pointer(s->inner, key, target, err));
}

static int
flaky_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	PLAY(s, from, store_publish(s->inner, from, to, err));
}

static int
flaky_sync(struct store *s, const char *folder, struct pawl_error *err)
{
	char c = step(s);
	if (c != '.')
		return fail_with(c, folder, err);
	TRY(store_sync(s->inner, folder, err));
	snprintf(((struct flaky *)s)->synced, sizeof((struct flaky *)s)->synced, "%s", folder);
	return 0;
}

static const struct store_ops flaky_ops = {
	.put = flaky_put,
	.create = flaky_create,
	.write = flaky_write,
	.seal = flaky_seal,
	.finish = flaky_finish,
	.abort = flaky_abort,
	.open = flaky_open,
	.read = flaky_read,
	.stat = flaky_stat,
	.list = flaky_list,
	.remove = flaky_remove,
	.remove_folder = flaky_remove_folder,
	.link = flaky_link,
	.move = flaky_move,
	.pointer = flaky_pointer,
	.append = flaky_append,
	.publish = flaky_publish,
	.sync = flaky_sync,
};

struct retry_bed {
	struct bed bed;
	struct flaky *flaky; /* the bed's */
};

static void
retry_open_bed(struct retry_bed *b, const struct store_retry *opts)
{
	*b = (struct retry_bed){.bed = {.kind = BED_MEM}};
	struct store *inner;
	OK(&b->bed, store_open("mem:", true, false, &inner, &b->bed.err));
	b->flaky = mem_zalloc(1, sizeof *b->flaky);
	OK(&b->bed, layer_init(&b->flaky->base, &flaky_ops, inner, &b->bed.err));
	b->flaky->script = ".";
	OK(&b->bed, store_retry_wrap(&b->flaky->base, opts, &b->bed.store, &b->bed.err));
}

static int
setup(void **state)
{
	struct retry_bed *b = mem_zalloc(1, sizeof *b);
	retry_open_bed(b, &(struct store_retry){.base_ms = 1});
	*state = b;
	return 0;
}

static int
teardown(void **state)
{
	struct retry_bed *b = *state;
	store_close(b->bed.store);
	mem_free(b);
	return 0;
}

/* What failures an operation may meet before it gets through. */
static const char *const scripts[] = {".", "b.", "a.", "t.", "bb.", "ab.", "ba.", "aa.", "babab."};
#define N_SCRIPTS (sizeof scripts / sizeof scripts[0])

static void
test_P15_every_operation_comes_to_the_same_whatever_fails(void **state)
{
	struct retry_bed *b = *state;
	struct bed *bed = &b->bed;
	struct store *s = bed->store;
	for (size_t i = 0; i < N_SCRIPTS; i++) {
#define WITH(call) (b->flaky->script = scripts[i], (call))
		OK(bed, WITH(store_put_bytes(s, "d/put", "one", 3, 0, &bed->err)));
		OK(bed, WITH(store_put_bytes(s, "d/excl", "mine", 4, STORE_EXCLUSIVE, &bed->err)));
		OK(bed, WITH(store_link(s, "d/put", "d/link", &bed->err)));
		OK(bed, WITH(store_append(s, "d/log", "line\n", 5, &bed->err)));
		OK(bed, WITH(store_append(s, "d/log", "line\n", 5, &bed->err)));
		OK(bed, WITH(store_pointer(s, "d/latest", "d/put", &bed->err)));
		OK(bed, WITH(store_put_bytes(s, "d/source", "moved", 5, 0, &bed->err)));
		OK(bed, WITH(store_move(s, "d/source", "d/target", &bed->err)));
		b->flaky->script = ".";
		assert_text(bed, "d/put", "one");
		assert_text(bed, "d/excl", "mine");
		assert_text(bed, "d/link", "one");
		assert_text(bed, "d/log", "line\nline\n");
		assert_text(bed, "d/target", "moved");
		assert_names(bed, "d", "excl latest link log put target");
		OK(bed, WITH(store_remove(s, "d/put", &bed->err)));
		b->flaky->script = ".";
		assert_names(bed, "d", "excl latest link log target");
		OK(bed, WITH(store_remove_folder(s, "d", &bed->err)));
		b->flaky->script = ".";
		assert_missing(bed, "d");
#undef WITH
	}
}

static void
test_P15_streamed_objects_come_through(void **state)
{
	struct retry_bed *b = *state;
	struct bed *bed = &b->bed;
	for (size_t i = 0; i < N_SCRIPTS; i++) {
		struct store_file *f = NULL;
		struct store_create opts = {.nbytes = 6};
		b->flaky->script = scripts[i];
		OK(bed, store_create(bed->store, "pack", &opts, &f, &bed->err));
		b->flaky->script = scripts[i];
		OK(bed, store_write(bed->store, f, 3, "def", 3, &bed->err));
		b->flaky->script = scripts[i];
		OK(bed, store_write(bed->store, f, 0, "abc", 3, &bed->err));
		b->flaky->script = scripts[i];
		OK(bed, store_finish(bed->store, f, &bed->err));
		b->flaky->script = scripts[i];
		assert_text(bed, "pack", "abcdef");
		b->flaky->script = ".";
		OK(bed, store_remove(bed->store, "pack", &bed->err));
	}
}

/* The first try may have renamed, and then lost the connection before it synced. */
static void
test_P3_what_a_lost_answer_has_put_or_published_is_synced(void **state)
{
	struct retry_bed *b = *state;
	struct bed *bed = &b->bed;
	struct store *s = bed->store;
	const int durable = STORE_EXCLUSIVE | STORE_DURABLE;
	/* Later calls look at the store, and sync. */
	static const char *const lost[] = {"a.", "aa.", "ab.", "a..b.", "a...b."};
	for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
		put_text(bed, "d/.part/a", "1");
#define SYNCS(folder, call)                                    \
	do {                                                   \
		strcpy(b->flaky->synced, "none");              \
		b->flaky->script = lost[i];                    \
		OK(bed, call);                                 \
		b->flaky->script = ".";                        \
		assert_string_equal(b->flaky->synced, folder); \
	} while (0)
		SYNCS("d", store_publish(s, "d/.part", "d/done", &bed->err));
		SYNCS("d/done", store_put_bytes(s, "d/done/b", "mine", 4, durable, &bed->err));
		SYNCS("", store_put_bytes(s, "top", "mine", 4, durable, &bed->err));
		SYNCS("none", store_put_bytes(s, "d/c", "mine", 4, STORE_EXCLUSIVE, &bed->err));
#undef SYNCS
		OK(bed, store_remove_folder(s, "d", &bed->err));
		OK(bed, store_remove(s, "top", &bed->err));
	}
}

static void
test_P3_what_cannot_be_synced_after_a_lost_answer_fails(void **state)
{
	struct retry_bed *b = *state;
	struct bed *bed = &b->bed;
	put_text(bed, "d/.part/a", "1");
	b->flaky->script = "a..x";
	FAILS(bed, store_publish(bed->store, "d/.part", "d/done", &bed->err), PAWL_EAUTH, "d: told to fail");
	b->flaky->script = "a...x";
	FAILS(bed, store_put_bytes(bed->store, "d/b", "mine", 4, STORE_EXCLUSIVE | STORE_DURABLE, &bed->err),
	      PAWL_EAUTH, "d: told to fail");
}

static void
test_a_list_that_fails_half_way_shows_nothing_twice(void **state)
{
	struct retry_bed *b = *state;
	put_text(&b->bed, "d/a", "1");
	put_text(&b->bed, "d/b", "1");
	b->flaky->script = "aa.";
	assert_names(&b->bed, "d", "a b");
}

static void
test_somebody_elses_object_is_not_taken_for_ours(void **state)
{
	struct retry_bed *b = *state;
	struct bed *bed = &b->bed;
	put_text(bed, "theirs", "not this");
	put_text(bed, "mine", "this one");
	b->flaky->script = "b.";
	FAILS(bed, store_put_bytes(bed->store, "theirs", "this one", 8, STORE_EXCLUSIVE, &bed->err), PAWL_EEXISTS,
	      "theirs");
	b->flaky->script = "b.";
	FAILS(bed, store_link(bed->store, "mine", "theirs", &bed->err), PAWL_EEXISTS, "theirs");
	b->flaky->script = ".";
	assert_text(bed, "theirs", "not this");
	/* The very same bytes, but no failure before: that is a conflict. */
	FAILS(bed, store_put_bytes(bed->store, "mine", "this one", 8, STORE_EXCLUSIVE, &bed->err), PAWL_EEXISTS,
	      "mine");
	FAILS(bed, store_move(bed->store, "nothing", "mine", &bed->err), PAWL_ENOTFOUND, "nothing");
}

static void
test_only_what_may_pass_is_tried_again(void **state)
{
	struct retry_bed *b = *state;
	struct bed *bed = &b->bed;
	b->flaky->script = "x";
	b->flaky->calls = 0;
	FAILS(bed, store_put_bytes(bed->store, "a", "1", 1, 0, &bed->err), PAWL_EAUTH, "a: told to fail");
	assert_int_equal(b->flaky->calls, 1);
	assert_null(strstr(bed->err.message, "tried"));
	b->flaky->script = "bbx";
	b->flaky->calls = 0;
	FAILS(bed, store_put_bytes(bed->store, "a", "1", 1, 0, &bed->err), PAWL_EAUTH, "a");
	assert_int_equal(b->flaky->calls, 3);
}

static void
test_P16_tries_time_and_budget_have_limits(void **state)
{
	(void)state;
	struct retry_bed b;
	retry_open_bed(&b, &(struct store_retry){.base_ms = 1, .max_ms = 2});
	b.flaky->script = "b";
	FAILS(&b.bed, store_put_bytes(b.bed.store, "a", "1", 1, 0, &b.bed.err), PAWL_ETRANSIENT,
	      "a: told to fail (tried 8 times)");
	assert_int_equal(b.flaky->calls, 8);
	store_close(b.bed.store);

	retry_open_bed(&b, &(struct store_retry){.max_tries = 100, .base_ms = 1, .max_ms = 1, .budget = 5});
	b.flaky->script = "b";
	FAILS(&b.bed, store_put_bytes(b.bed.store, "a", "1", 1, 0, &b.bed.err), PAWL_ETRANSIENT,
	      "too many other requests");
	assert_int_equal(b.flaky->calls, 6);
	/* Nothing in reserve any more: one try each. Success fills it up again. */
	FAILS(&b.bed, store_put_bytes(b.bed.store, "a", "1", 1, 0, &b.bed.err), PAWL_ETRANSIENT, "too many");
	assert_int_equal(b.flaky->calls, 7);
	b.flaky->script = ".";
	for (int i = 0; i < 20; i++)
		put_text(&b.bed, "a", "1");
	b.flaky->script = "b.";
	put_text(&b.bed, "a", "2");
	store_close(b.bed.store);

	retry_open_bed(&b, &(struct store_retry){
				   .max_tries = 1000, .base_ms = 100000000, .max_ms = 100000000, .total_seconds = 1});
	b.flaky->script = "b";
	FAILS(&b.bed, store_put_bytes(b.bed.store, "a", "1", 1, 0, &b.bed.err), PAWL_ETRANSIENT, "a");
	store_close(b.bed.store);
}

struct opening {
	int failures, calls;
};

static int
open_late(const void *arg, const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)url, (void)create;
	struct opening *const *po = arg, *o = *po;
	return o->calls++ < o->failures ? err_set(err, PAWL_ETRANSIENT, "not yet") : store_mem_open(ret, err);
}

static void
test_opening_is_tried_a_few_times(void **state)
{
	(void)state;
	struct pawl_error err = {0};
	struct store *s = NULL;
	const struct store_retry opts = {.base_ms = 1};
	struct opening o = {.failures = 3}, *po = &o;
	assert_int_equal(store_retry_open(open_late, &po, "url", true, &opts, &s, &err), 0);
	store_close(s);
	o = (struct opening){.failures = 4};
	assert_int_equal(store_retry_open(open_late, &po, "url", true, &opts, &s, &err), PAWL_ETRANSIENT);
	assert_string_equal(err.message, "not yet (tried 4 times)");
}

static int
open_users_late(void *arg, const char *url, int create, void **ret, int *ret_can_copy, struct pawl_error *err)
{
	struct opening *o = arg;
	return o->calls++ < o->failures ? err_set(err, PAWL_ETRANSIENT, "not yet")
	                                : user_open(NULL, url, create, ret, ret_can_copy, err);
}

static void
test_opening_the_callers_store_is_tried_a_few_times(void **state)
{
	(void)state;
	struct bed bed = {0};
	struct opening o = {.failures = 1};
	struct pawl_stores stores = user_stores;
	stores.open = open_users_late;
	stores.arg = &o;
	OK(&bed, store_open_with(&stores, "user://x", true, false, &bed.store, &bed.err));
	put_text(&bed, "a", "1");
	assert_text(&bed, "a", "1");
	store_close(bed.store);
	o = (struct opening){.failures = 4};
	FAILS(&bed, store_open_with(&stores, "user://x", true, false, &bed.store, &bed.err), PAWL_ETRANSIENT,
	      "not yet (tried 4 times)");
	assert_int_equal(o.calls, 4);
}

int
main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_P15_every_operation_comes_to_the_same_whatever_fails),
		CASE(test_P15_streamed_objects_come_through),
		CASE(test_P3_what_a_lost_answer_has_put_or_published_is_synced),
		CASE(test_P3_what_cannot_be_synced_after_a_lost_answer_fails),
		CASE(test_a_list_that_fails_half_way_shows_nothing_twice),
		CASE(test_somebody_elses_object_is_not_taken_for_ours),
		CASE(test_only_what_may_pass_is_tried_again),
		cmocka_unit_test(test_P16_tries_time_and_budget_have_limits),
		cmocka_unit_test(test_opening_is_tried_a_few_times),
		cmocka_unit_test(test_opening_the_callers_store_is_tried_a_few_times),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
