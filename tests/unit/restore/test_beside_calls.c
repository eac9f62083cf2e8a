/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training run that saves, or puts a checkpoint back, at every single call of a reader: what is
 * deleted under a reader is neither damaged nor missing (R137, R156).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "helpers/readers.h"
#include "base/err.h"
#include "base/hidden.h"
#include "run/run.h"
#include "helpers/user_store.h"

/* The calls of one reader's store. */
static struct {
	const struct store_ops *straight;
	struct store_ops ops;
	struct small_run *r; /* the training */
	atomic_uint calls;
	unsigned at; /* the call before which the training saves */
	int64_t step;
	bool is_read_only; /* no hold can be made */
	unsigned n_blind;  /* so many lists of checkpoints show none, since the training saves meanwhile */
	int64_t taken;     /* if set, this step is taken away instead, and put back before the next call */
	char folder[600], hidden[600];
} stop;
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER; /* guards folder and hidden: several threads call stores */

static void
save_next(struct small_run *r)
{
	stop.step++;
	small_save(r, stop.step, (double)stop.step);
}

/* As a training run does that sees a hold or a pin only after it has renamed the folder. */
static void
take_away(void)
{
	char hidden[HIDDEN_NAME_BYTES], name[32];

	snprintf(name, sizeof(name), "checkpoint_%06lld", (long long)stop.taken);
	OK(hidden_name(name, HIDDEN_PARTIAL, hidden, err));
	pthread_mutex_lock(&moving);
	snprintf(stop.folder, sizeof(stop.folder), "%s/checkpoints/%s", stop.r->opts.root, name);
	snprintf(stop.hidden, sizeof(stop.hidden), "%s/checkpoints/%s", stop.r->opts.root, hidden);
	assert_int_equal(rename(stop.folder, stop.hidden), 0);
	pthread_mutex_unlock(&moving);
}

static void
put_back(void)
{
	pthread_mutex_lock(&moving);
	if (*stop.hidden)
		assert_int_equal(rename(stop.hidden, stop.folder), 0);
	*stop.hidden = '\0';
	pthread_mutex_unlock(&moving);
}

static void
count_call(void)
{
	const unsigned call = atomic_fetch_add(&stop.calls, 1) + 1;

	put_back();
	if (call == stop.at && stop.taken)
		take_away();
	else if (call == stop.at)
		save_next(stop.r);
}

/* The store's own operation, or that of the store it wraps. */
#define STRAIGHT(op, border, s, ...) \
	(stop.straight->op ? stop.straight->op(s, __VA_ARGS__) : border((s)->inner, __VA_ARGS__))

static int
stop_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n, int flags, struct pawl_error *err)
{
	count_call();
	if (stop.is_read_only)
		return err_set(err, PAWL_EREADONLY, "%s: cannot be put", key);
	return STRAIGHT(put, store_put, s, key, parts, n, flags, err);
}

static int
stop_open(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	count_call();
	return STRAIGHT(open, store_open_reader, s, key, ret, ret_nbytes, err);
}

static int
stop_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	count_call();
	return STRAIGHT(read, store_read, s, r, offset, dst, n, err);
}

static int
stop_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	count_call();
	return STRAIGHT(stat, store_stat, s, key, ret, err);
}

static int
stop_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	count_call();
	if (stop.n_blind > 0 && strcmp(folder, "checkpoints") == 0) {
		stop.n_blind--;
		save_next(stop.r);
		return 0;
	}
	int rc = STRAIGHT(list, store_list, s, folder, fn, arg, err);

	count_call();
	return rc;
}

static void
hook(struct pawl *reader)
{
	stop.straight = reader->store->ops;
	stop.ops = *stop.straight;
	stop.ops.put = stop_put;
	stop.ops.open = stop_open;
	stop.ops.read = stop_read;
	stop.ops.stat = stop_stat;
	stop.ops.list = stop_list;
	stop.ops.get = NULL;
	reader->store->ops = &stop.ops;
	atomic_store(&stop.calls, 0);
}

/* What a reader does from here on is counted and interrupted. */
typedef void stopped_fn(struct readers *all, struct pawl *reader);

static void
stopped_restore(struct readers *all, struct pawl *reader)
{
	restore_one(all, RESTORE, reader, NULL, false);
}

static void
stopped_restore_best(struct readers *all, struct pawl *reader)
{
	restore_one(all, SHOW, reader, "best", false);
}

static void
stopped_reload(struct readers *all, struct pawl *reader)
{
	uint64_t id;
	char ids[400];

	if (stop.taken) { /* all manifests are read again */
		small_age(stop.r, "checkpoints/checkpoint_000001", 1000 + stop.at);
		small_age(stop.r, "checkpoints/checkpoint_000002", 1000 + stop.at);
	}
	OK(pawl_reload(reader, err));
	OK(pawl_find(reader, "latest", &id, err));
	if (strchr(small_ids(reader, ids, sizeof(ids)), '!'))
		complain(all, LIST, ids);
}

static void
stopped_verify(struct readers *all, struct pawl *reader)
{
	struct pawl_error err = {0};

	(void)all;
	if (pawl_verify(reader, 0, NULL, NULL, &err) < 0)
		fail_msg("call %u: verify: %s", stop.at, err.message);
}

static void
stopped_load(struct readers *all, struct pawl *reader)
{
	restore_one(all, LOAD, reader, NULL, true);
}

/* As often as the reader makes calls. */
static unsigned
stop_everywhere(struct small_run *r, stopped_fn *fn, bool by_path)
{
	struct readers all = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
	char path[512];

	stop.r = r;
	for (stop.at = 1;; stop.at++) {
		snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_%06lld", r->opts.root, (long long)stop.step);
		struct pawl *reader = open_reader(&all, LOAD, by_path ? path : r->opts.root, by_path);

		assert_non_null(reader);
		hook(reader);
		fn(&all, reader);
		put_back();
		if (all.wrong)
			fail_msg("call %u: %s", stop.at, all.first);
		pawl_close(reader, NULL);
		if (atomic_load(&stop.calls) < stop.at)
			return stop.at - 1;
	}
}

static void
stop_all(struct small_run *r, bool is_read_only, int64_t taken)
{
	static const struct {
		const char *name;
		stopped_fn *fn;
		bool by_path;
	} kinds[] = {{"restore", stopped_restore, false},
	             {"restore best", stopped_restore_best, false},
	             {"reload, find", stopped_reload, false},
	             {"verify", stopped_verify, false},
	             {"load", stopped_load, true}};

	keep_one(r);
	if (taken)
		r->opts.retention.num_to_keep = 2;
	stop.taken = taken;
	stop.is_read_only = is_read_only;
	r->opts.io.no_direct = 1;
	small_open(r);
	stop.step = 0;
	save_next(r);
	if (taken)
		save_next(r);
	for (size_t i = 0; i < COUNT(kinds); i++) {
		if (kinds[i].by_path && user_shared) /* it shows the same for every URL */
			continue;
		unsigned n = stop_everywhere(r, kinds[i].fn, kinds[i].by_path);

		print_message("# %s: stopped at each of %u calls\n", kinds[i].name, n);
		assert_true(n > 2);
	}
}

static void
test_R137_a_save_at_any_call_of_a_reader_is_no_damage(void **state)
{
	stop_all(*state, false, 0);
}

static void
test_R137_a_checkpoint_put_back_at_any_call_of_a_reader_is_no_damage(void **state)
{
	stop_all(*state, false, 1);
}

static void
test_R137_the_newest_put_back_at_any_call_of_a_reader_is_no_damage(void **state)
{
	stop_all(*state, false, 2);
}

static void
test_R137_a_save_at_any_call_of_a_reader_that_cannot_hold_is_no_damage(void **state)
{
	stop_all(*state, true, 0);
}

static void
test_R137_a_save_at_any_call_of_a_reader_of_an_object_store_is_no_damage(void **state)
{
	struct small_run *r = *state;

	OK(store_open("mem:", true, false, &user_shared, err));
	r->opts.root = "user://run";
	r->opts.io.stores = &user_stores;
	stop_all(r, false, 0);
	pawl_close(r->run, NULL);
	r->run = NULL;
	store_close(user_shared);
	user_shared = NULL;
}

static void
test_R137_two_lists_that_show_none_beside_saves_are_not_believed(void **state)
{
	struct small_run *r = *state;
	struct readers all = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};

	keep_one(r);
	small_open(r);
	stop.r = r;
	stop.at = 0;
	stop.step = 0;
	save_next(r);
	small_age(r, "checkpoints", 1000); /* a save shows even where times are coarse */
	struct pawl *reader = open_reader(&all, LIST, r->root, 0);

	assert_non_null(reader);
	hook(reader);
	stop.n_blind = 2;
	OK(pawl_reload(reader, err));
	ASSERT_IDS("3", reader);
	pawl_close(reader, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R137_a_save_at_any_call_of_a_reader_is_no_damage, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_a_checkpoint_put_back_at_any_call_of_a_reader_is_no_damage,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_the_newest_put_back_at_any_call_of_a_reader_is_no_damage,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_a_save_at_any_call_of_a_reader_that_cannot_hold_is_no_damage,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(
			test_R137_a_save_at_any_call_of_a_reader_of_an_object_store_is_no_damage, small_setup,
			small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_two_lists_that_show_none_beside_saves_are_not_believed,
	                                        small_setup, small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
