/* SPDX-License-Identifier: Apache-2.0 */
/* pins: processes that change the mark of one checkpoint at the same time (P6, R155). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "helpers/hang.h"
#include "helpers/small_run.h"
#include "base/clock.h"
#include "catalog/catalog.h"
#include "run/run.h"

#define MARK ".pawl/marks/checkpoint_000001.json"
#define LOCK_MS 10000

/* ---- time, which passes at once where a test wants it */

static atomic_int_fast64_t passed_ms;
static atomic_bool is_fast;

int64_t __real_clock_mono_ms(void);
void __real_clock_sleep_ms(int64_t ms);
int64_t __wrap_clock_mono_ms(void);
void __wrap_clock_sleep_ms(int64_t ms);

int64_t
__wrap_clock_mono_ms(void)
{
	return __real_clock_mono_ms() + atomic_load(&passed_ms);
}

void
__wrap_clock_sleep_ms(int64_t ms)
{
	if (atomic_load(&is_fast))
		atomic_fetch_add(&passed_ms, ms);
	else
		__real_clock_sleep_ms(ms);
}

/* ---- two processes, as two handles */

static struct pawl *
start(struct small_run *r)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *other = NULL;

	small_open(r);
	small_save(r, 1, 0.5);
	opts.root = r->root;
	opts.read_only = 1;
	OK(pawl_open(&opts, &other, err));
	return other;
}

static void
score(struct pawl *run, const char *name, double value)
{
	const struct pawl_metric metric = {.name = name, .value = value};

	OK(pawl_score(run, 1, &metric, 1, err));
}

/* What a process that opens the run now finds, as "pinned accuracy=0.5 loss=2". */
static void
expect(struct small_run *r, const char *expected)
{
	struct catalog c;
	struct store *store;
	char text[200] = "";
	size_t len = 0;

	OK(store_open(r->root, false, false, &store, err));
	OK(catalog_load(&c, store, NULL, NULL, err));
	const struct catalog_entry *e = catalog_get(&c, 1);

	assert_non_null(e);
	len += (size_t)snprintf(text, sizeof(text), "%s", e->pinned ? "pinned" : "free");
	for (size_t i = 0; i < e->n_metrics; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, " %s=%g", e->metrics[i].name,
		                        e->metrics[i].value);
	assert_string_equal(text, expected);
	catalog_clear(&c);
	store_close(store);
}

static void
test_P6_pins_and_scores_of_another_process_survive_a_change_of_a_mark(void **state)
{
	struct small_run *r = *state;
	struct catalog_entry *known;
	struct pawl *other = start(r);

	/* catalog_mark alone: the table is older than the mark */
	const bool pinned = true, unpinned = false;
	const struct pawl_metric late = {.name = "late", .value = 4};
	known = catalog_get(r->run->catalog, 1);
	OK(pawl_pin(other, 1, err));
	score(other, "loss", 2);
	OK(catalog_mark(r->run->catalog, known, NULL, &late, 1, err));
	assert_true(known->pinned);
	expect(r, "pinned accuracy=0.5 loss=2 late=4");
	score(other, "loss", 3);
	OK(catalog_mark(r->run->catalog, known, &unpinned, NULL, 0, err));
	expect(r, "free accuracy=0.5 loss=3 late=4");
	OK(catalog_mark(r->run->catalog, known, &pinned, NULL, 0, err));
	expect(r, "pinned accuracy=0.5 loss=3 late=4");
	pawl_close(other, NULL);
}

/* ---- at the same time */

static struct {
	const struct store_ops *straight, *straight_other;
	struct store_ops ops, other_ops;
	struct pawl *other;
	pthread_t thread;
	atomic_bool is_begun, is_over; /* the other process wants the mark; it has ended */
	atomic_uint n_tries;
	int code;
	struct pawl_error err;
} race;

static void *
pin_there(void *arg)
{
	(void)arg;
	race.code = pawl_pin(race.other, 1, &race.err);
	atomic_store(&race.is_over, true);
	return NULL;
}

/* Between the score's look at the mark and its write another process pins. */
static int
race_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	if (strcmp(key, MARK) == 0 && !atomic_exchange(&race.is_begun, true)) {
		assert_int_equal(pthread_create(&race.thread, NULL, pin_there, NULL), 0);
		for (unsigned i = 0; atomic_load(&race.n_tries) == 0 && !atomic_load(&race.is_over) && i < HANG_MS; i++)
			usleep(1000);
	}
	return race.straight->put(s, key, parts, n_parts, flags, err);
}

static int
race_put_there(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
               struct pawl_error *err)
{
	int rc = race.straight_other->put(s, key, parts, n_parts, flags, err);

	if (rc == PAWL_EEXISTS)
		atomic_fetch_add(&race.n_tries, 1);
	return rc;
}

static void
test_P6_a_pin_that_is_made_while_another_process_writes_a_score_stays(void **state)
{
	struct small_run *r = *state;

	memset(&race, 0, sizeof(race));
	race.other = start(r);
	race.straight = r->run->store->ops;
	race.ops = *race.straight;
	race.ops.put = race_put;
	r->run->store->ops = &race.ops;
	race.straight_other = race.other->store->ops;
	race.other_ops = *race.straight_other;
	race.other_ops.put = race_put_there;
	race.other->store->ops = &race.other_ops;
	score(r->run, "loss", 2);
	assert_int_equal(pthread_join(race.thread, NULL), 0);
	if (race.code < 0)
		fail_msg("%s: %s", pawl_code_name(race.code), race.err.message);
	expect(r, "pinned accuracy=0.5 loss=2");
	assert_int_equal(small_count(r, ".pawl/marks"), 1); /* no lock is left */
	r->run->store->ops = race.straight;
	race.other->store->ops = race.straight_other;
	pawl_close(race.other, NULL);
}

/* ---- what a crash left */

static void
test_P16_a_lock_whose_process_has_died_is_waited_for_and_then_removed(void **state)
{
	struct small_run *r = *state;
	struct pawl *other = start(r);
	struct pins_lock dead = {0};

	OK(pins_lock(r->run->store, "checkpoint_000001", &dead, err));
	buf_clear(&dead.key);
	atomic_store(&is_fast, true);
	const int64_t begin_ms = clock_mono_ms();

	OK(pawl_pin(other, 1, err));
	assert_true(clock_mono_ms() - begin_ms >= LOCK_MS);
	atomic_store(&is_fast, false);
	expect(r, "pinned accuracy=0.5");
	assert_int_equal(small_count(r, ".pawl/marks"), 1);
	pawl_close(other, NULL);
}

static int
refuse_lock(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
            struct pawl_error *err)
{
	char token[33];

	if (!(flags & STORE_EXCLUSIVE))
		return race.straight->put(s, key, parts, n_parts, flags, err);
	snprintf(token, sizeof(token), "%032u", atomic_fetch_add(&race.n_tries, 1));
	const struct pawl_slice part = {token, 32}; /* another process each time */

	assert_int_equal(race.straight->put(s, key, &part, 1, 0, NULL), 0);
	return race.straight->put(s, key, parts, n_parts, flags, err);
}

static void
test_P16_a_mark_that_other_processes_change_all_the_time_is_an_error_in_the_end(void **state)
{
	struct small_run *r = *state;

	memset(&race, 0, sizeof(race));
	race.other = start(r);
	race.straight = race.other->store->ops;
	race.ops = *race.straight;
	race.ops.put = refuse_lock;
	race.other->store->ops = &race.ops;
	atomic_store(&is_fast, true);
	FAILS(PAWL_EBUSY, "other processes are changing its pin or scores", pawl_pin(race.other, 1, err));
	atomic_store(&is_fast, false);
	expect(r, "free accuracy=0.5");
	race.other->store->ops = race.straight;
	pawl_close(race.other, NULL);
}

static int
refuse_remove(struct store *s, const char *key, struct pawl_error *err)
{
	(void)s, (void)key, (void)err;
	return PAWL_EAUTH;
}

static void
test_a_store_where_nothing_may_be_removed_takes_pins_and_scores(void **state)
{
	struct small_run *r = *state;

	memset(&race, 0, sizeof(race));
	race.other = start(r);
	race.straight = race.other->store->ops;
	race.ops = *race.straight;
	race.ops.remove = refuse_remove;
	race.other->store->ops = &race.ops;
	atomic_store(&is_fast, true);
	OK(pawl_pin(race.other, 1, err));
	score(race.other, "loss", 2);
	atomic_store(&is_fast, false);
	expect(r, "pinned accuracy=0.5 loss=2");
	race.other->store->ops = race.straight;
	pawl_close(race.other, NULL);
}

static void
test_a_file_in_the_place_of_the_folder_of_marks_is_an_error_at_once(void **state)
{
	struct small_run *r = *state;
	struct pawl *other = start(r);

	OK(pawl_pin(other, 1, err));
	small_remove(r, ".pawl/marks");
	small_write(r, ".pawl/marks", "x", 1);
	atomic_store(&is_fast, true);
	const int64_t begin_ms = atomic_load(&passed_ms);

	FAILS(PAWL_EEXISTS, "marks is not a folder", pawl_pin(other, 1, err));
	assert_true(atomic_load(&passed_ms) - begin_ms < 1000);
	atomic_store(&is_fast, false);
	pawl_close(other, NULL);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_P6_pins_and_scores_of_another_process_survive_a_change_of_a_mark),
		CASE(test_P6_a_pin_that_is_made_while_another_process_writes_a_score_stays),
		CASE(test_P16_a_lock_whose_process_has_died_is_waited_for_and_then_removed),
		CASE(test_P16_a_mark_that_other_processes_change_all_the_time_is_an_error_in_the_end),
		CASE(test_a_store_where_nothing_may_be_removed_takes_pins_and_scores),
		CASE(test_a_file_in_the_place_of_the_folder_of_marks_is_an_error_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
