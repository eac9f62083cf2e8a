/* SPDX-License-Identifier: Apache-2.0 */
/* removal: checkpoints that another process pins, scores or holds while they are deleted (P6), in a
 * folder and in a bucket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "helpers/hang.h"
#include "helpers/small_run.h"
#include "helpers/user_store.h"
#include "run/run.h"

#define DOOMED "checkpoints/checkpoint_000001"
#define MANIFEST DOOMED "/manifest.json"

enum act { NONE, PIN, HOLD, SCORE };

/* The deleting process has one handle of the run, the other process has another. */
static struct {
	struct store *writer, *reader; /* their engines */
	const struct store_ops *straight_writer, *straight_reader;
	struct store_ops writer_ops, reader_ops;
	enum act act;
	bool is_late;     /* its hold or mark is made after the checkpoint was hidden, not before */
	bool is_cut_off;  /* the other process can look for the manifest once only */
	bool no_way_back; /* the hidden folder cannot be renamed again */
	struct pawl *run, *there;
	struct pawl_hold *hold;
	pthread_t thread;
	atomic_bool is_ready;  /* the other process knows the checkpoint, and is about to make its hold or mark */
	atomic_bool is_hidden; /* the checkpoint has been hidden */
	atomic_bool is_seen;   /* the other process has looked for the manifest in vain, or has ended */
	unsigned n_removals;
	int code;
	struct pawl_error err;
} race;

static void
wait_for(const atomic_bool *what)
{
	for (unsigned i = 0; !atomic_load(what) && !atomic_load(&race.is_seen) && i < HANG_MS; i++)
		usleep(1000);
}

static void *
act_there(void *arg)
{
	const struct pawl_metric score = {.name = "late", .value = 1};

	(void)arg;
	if (race.act == PIN)
		race.code = pawl_pin(race.there, 1, &race.err);
	else if (race.act == HOLD)
		race.code = pawl_hold_open(race.there, 1, &race.hold, &race.err);
	else if (race.act == SCORE)
		race.code = pawl_score(race.there, 1, &score, 1, &race.err);
	atomic_store(&race.is_seen, true);
	return NULL;
}

static void
act_before(void)
{
	if (race.n_removals++ > 0)
		return;
	if (!race.is_late) {
		act_there(NULL);
		return;
	}
	assert_int_equal(pthread_create(&race.thread, NULL, act_there, NULL), 0);
	wait_for(&race.is_ready);
}

static void
act_after(void)
{
	atomic_store(&race.is_hidden, true);
	if (race.is_late)
		wait_for(&race.is_seen);
}

static int
race_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	const bool is_removal = strcmp(from, DOOMED) == 0;

	if (race.no_way_back && strcmp(to, DOOMED) == 0)
		return err_set(err, PAWL_EIO, "no way back");
	if (is_removal)
		act_before();
	int rc = race.straight_writer->publish(s, from, to, err);

	if (is_removal)
		act_after();
	return rc;
}

static int
race_remove(struct store *s, const char *key, struct pawl_error *err)
{
	const bool is_removal = strcmp(key, MANIFEST) == 0;

	if (is_removal)
		act_before();
	int rc = race.straight_writer->remove(s, key, err);

	if (is_removal)
		act_after();
	return rc;
}

static int
race_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	if (race.is_cut_off && strcmp(key, MANIFEST) == 0 && atomic_load(&race.is_seen))
		return err_set(err, PAWL_EAUTH, "cut off");
	int rc = race.straight_reader->stat(s, key, ret, err);

	if (rc == PAWL_ENOTFOUND && strcmp(key, MANIFEST) == 0)
		atomic_store(&race.is_seen, true);
	return rc;
}

/* Before the hold or mark. */
static int
race_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	if (strncmp(key, ".pawl/", 6) == 0 && !atomic_exchange(&race.is_ready, true)) {
		if (race.is_late)
			wait_for(&race.is_hidden);
		else
			assert_int_equal(pawl_remove(race.run, 1, 1, NULL), 0);
	}
	return race.straight_reader->put(s, key, parts, n_parts, flags, err);
}

static struct store *
engine_of(struct store *s)
{
	while (s->inner)
		s = s->inner;
	return s;
}

/* Three checkpoints, in a folder or in a bucket, and a second handle. */
static void
begin_race(struct small_run *r, bool is_bucket)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;

	memset(&race, 0, sizeof(race));
	if (is_bucket) {
		OK(store_open("mem:", true, false, &user_shared, err));
		r->opts.root = "user://run";
		r->opts.io.stores = &user_stores;
	}
	small_open(r);
	for (int64_t step = 1; step <= 3; step++)
		small_save(r, step, NAN);
	opts.root = r->opts.root;
	opts.io.stores = r->opts.io.stores;
	opts.read_only = 1;
	OK(pawl_open(&opts, &race.there, err));
	race.run = r->run;
	race.writer = engine_of(r->run->store);
	race.straight_writer = race.writer->ops;
	race.writer_ops = *race.writer->ops;
	race.reader = engine_of(race.there->store);
	race.straight_reader = race.reader->ops;
	race.reader_ops = *race.reader->ops;
}

static void
end_race(struct small_run *r)
{
	race.writer->ops = race.straight_writer;
	race.reader->ops = race.straight_reader;
	pawl_hold_close(race.hold);
	pawl_close(race.there, NULL);
	pawl_close(r->run, NULL);
	r->run = NULL;
	store_close(user_shared);
	user_shared = NULL;
}

/* Keeps only the newest, and checks what is reported of the first one. */
static void
prune_and_expect(struct small_run *r, const char *reason)
{
	struct pawl_retention newest = PAWL_RETENTION_INIT;
	struct pawl_decisions *decisions = NULL;

	newest.keep_last = 1;
	OK(pawl_prune(r->run, &newest, 0, &decisions, err));
	const struct pawl_decision *first = pawl_decisions_get(decisions, 0);

	assert_int_equal(first->id, 1);
	assert_int_equal(first->keep, reason != NULL);
	if (reason)
		assert_string_equal(first->reason, reason);
	pawl_decisions_free(decisions);
}

static void
delete_while(struct small_run *r, bool is_bucket, enum act act, bool is_late, const char *reason)
{
	struct pawl_restore_opts first = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore = NULL;

	begin_race(r, is_bucket);
	race.act = act;
	race.is_late = is_late;
	race.writer_ops.publish = race_publish;
	race.writer_ops.remove = race_remove;
	race.writer->ops = &race.writer_ops;
	race.reader_ops.stat = race_stat;
	if (is_late)
		race.reader_ops.put = race_put;
	race.reader->ops = &race.reader_ops;
	prune_and_expect(r, reason);
	if (is_late)
		assert_int_equal(pthread_join(race.thread, NULL), 0);
	if (race.code < 0)
		fail_msg("%s: %s", pawl_code_name(race.code), race.err.message);
	assert_true(race.n_removals > 0);
	OK(pawl_reload(race.there, err));
	ASSERT_IDS(reason ? "1 3" : "3", race.there);
	first.selector = "id:1";
	if (reason)
		OK(pawl_restore_open(race.there, &first, &restore, err));
	pawl_restore_close(restore);
	end_race(r);
}

static void
test_P6_a_checkpoint_that_is_held_or_pinned_just_before_its_removal_stays_and_is_reported_as_kept(void **state)
{
	for (int is_bucket = 0; is_bucket < 2; is_bucket++) {
		small_remove(*state, "");
		delete_while(*state, is_bucket, HOLD, false, "held by a reader");
		small_remove(*state, "");
		delete_while(*state, is_bucket, PIN, false, "pinned");
		small_remove(*state, "");
		delete_while(*state, is_bucket, NONE, false, NULL);
	}
}

static void
test_P6_who_holds_or_pins_a_checkpoint_during_its_removal_gets_it_once_it_is_put_back(void **state)
{
	for (int is_bucket = 0; is_bucket < 2; is_bucket++) {
		small_remove(*state, "");
		delete_while(*state, is_bucket, HOLD, true, "held by a reader");
		small_remove(*state, "");
		delete_while(*state, is_bucket, PIN, true, "pinned");
	}
}

static void
test_P6_a_pinned_checkpoint_that_cannot_be_put_back_is_an_error_with_the_name_of_its_folder(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention newest = PAWL_RETENTION_INIT;
	struct pawl_decisions *decisions = NULL;
	struct pawl_error err = {0};

	begin_race(r, false);
	race.act = PIN;
	race.no_way_back = true;
	race.writer_ops.publish = race_publish;
	race.writer->ops = &race.writer_ops;
	newest.keep_last = 1;
	assert_int_equal(pawl_prune(r->run, &newest, 0, &decisions, &err), PAWL_EIO);
	assert_non_null(strstr(err.message, "rename checkpoints/.checkpoint_000001."));
	assert_non_null(strstr(err.message, " to " DOOMED));
	assert_non_null(strstr(err.message, "no way back"));
	pawl_decisions_free(decisions);
	end_race(r);
}

static void
test_a_pin_or_score_that_comes_after_the_deletion_is_refused_and_leaves_no_mark(void **state)
{
	struct small_run *r = *state;

	for (int is_bucket = 0; is_bucket < 2; is_bucket++) {
		for (enum act act = PIN; act <= SCORE; act++) {
			if (act == HOLD)
				continue;
			small_remove(r, "");
			begin_race(r, is_bucket);
			race.act = act;
			race.reader_ops.put = race_put;
			race.reader->ops = &race.reader_ops;
			act_there(NULL);
			assert_int_equal(race.code, PAWL_ENOTFOUND);
			assert_non_null(strstr(race.err.message, "checkpoint_000001 has just been deleted"));
			struct store_entry entry;
			assert_int_equal(store_stat(r->run->store, ".pawl/marks/checkpoint_000001.json", &entry, NULL),
			                 PAWL_ENOTFOUND);
			end_race(r);
		}
	}
}

static void
test_P6_a_hold_pin_or_score_of_a_checkpoint_that_may_be_gone_is_an_error(void **state)
{
	struct small_run *r = *state;

	for (int is_bucket = 0; is_bucket < 2; is_bucket++) {
		for (enum act act = PIN; act <= SCORE; act++) {
			small_remove(r, "");
			begin_race(r, is_bucket);
			race.act = act;
			race.is_cut_off = true;
			race.reader_ops.put = race_put;
			race.reader_ops.stat = race_stat;
			race.reader->ops = &race.reader_ops;
			act_there(NULL);
			assert_int_equal(race.code, PAWL_EAUTH);
			assert_non_null(strstr(race.err.message, "cut off"));
			assert_null(race.hold);
			end_race(r);
		}
	}
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_P6_a_checkpoint_that_is_held_or_pinned_just_before_its_removal_stays_and_is_reported_as_kept),
		CASE(test_P6_who_holds_or_pins_a_checkpoint_during_its_removal_gets_it_once_it_is_put_back),
		CASE(test_P6_a_pinned_checkpoint_that_cannot_be_put_back_is_an_error_with_the_name_of_its_folder),
		CASE(test_P6_a_hold_pin_or_score_of_a_checkpoint_that_may_be_gone_is_an_error),
		CASE(test_a_pin_or_score_that_comes_after_the_deletion_is_refused_and_leaves_no_mark),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
