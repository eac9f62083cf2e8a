/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate layer and what it counts with, by a clock that only moves when a thread sleeps: the
 * bytes a second are then a matter of arithmetic. R144: the bandwidth cap holds for all threads
 * together, in each direction.
 */
#include "helpers/store_bed.h"

#include <pthread.h>

#include "base/rate.h"

#define SECOND INT64_C(1000000000)
#define MIB ((size_t)1 << 20)

struct fake_clock {
	_Atomic int64_t now_ns;
	_Atomic int64_t slept_ns; /* of all sleeps together */
	_Atomic unsigned sleeps;
	unsigned cancel_at; /* the number of a sleep in which the owner cancels; 0 = it cannot */
	struct pawl_meter meter;
};

static int64_t
fake_now(void *arg)
{
	return ((struct fake_clock *)arg)->now_ns;
}

static void
fake_sleep(void *arg, int64_t ns)
{
	struct fake_clock *c = arg;
	c->now_ns += ns;
	c->slept_ns += ns;
	c->meter.cancel = ++c->sleeps == c->cancel_at;
}

/* A bed whose store is limited; the clock stands at a time that is not 0. */
static void
limit(struct bed *bed, struct fake_clock *clock, uint64_t write, uint64_t read)
{
	struct store_rate opts = {write, read, fake_now, fake_sleep, clock, clock->cancel_at ? &clock->meter : NULL};
	struct store *inner = bed->store;
	clock->now_ns = 77 * SECOND;
	OK(bed, store_rate_wrap(inner, &opts, &bed->store, &bed->err));
}

static void
test_what_was_taken_earlier_is_waited_for(void **state)
{
	(void)state;
	struct rate rate = {.bytes_per_second = 1000};
	assert_int_equal(rate_take(&rate, 500, 10 * SECOND), 0);            /* an idle line begins at once */
	assert_int_equal(rate_take(&rate, 250, 10 * SECOND), SECOND / 2);   /* behind the 500 */
	assert_int_equal(rate_take(&rate, 1, 10 * SECOND), SECOND * 3 / 4); /* behind both */
	assert_int_equal(rate_take(&rate, 100, 20 * SECOND), 0);            /* all is paid; nothing is saved up */
	assert_int_equal(rate_take(&rate, 100, 20 * SECOND), SECOND / 10);
}

static void
test_no_limit_and_absurd_sizes(void **state)
{
	(void)state;
	struct rate none = {0}, slow = {.bytes_per_second = 1};
	assert_int_equal(rate_take(&none, UINT64_MAX, 5), 0);
	assert_int_equal(none.paid_until_ns, 0);
	assert_int_equal(rate_take(&slow, UINT64_MAX, 5), 0);
	for (int i = 0; i < 10; i++) { /* the sum does not overflow, and a wait is never negative */
		int64_t ns = rate_take(&slow, UINT64_MAX, 5);
		assert_true(ns > 0 && ns <= INT64_MAX / 2);
	}
}

struct taker {
	struct rate *rate;
	int64_t longest_ns;
};

static void *
take_many(void *arg)
{
	struct taker *t = arg;
	for (int i = 0; i < 10000; i++) {
		int64_t ns = rate_take(t->rate, 1000, SECOND);
		t->longest_ns = ns > t->longest_ns ? ns : t->longest_ns;
	}
	return NULL;
}

/* All threads share one line: what they took adds up exactly, with the time standing still. */
static void
test_R144_threads_share_the_limit(void **state)
{
	(void)state;
	struct rate rate = {.bytes_per_second = 1000000};
	struct taker takers[4];
	pthread_t threads[4];
	int64_t longest = 0;
	for (int i = 0; i < 4; i++) {
		takers[i] = (struct taker){&rate, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, take_many, &takers[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		longest = takers[i].longest_ns > longest ? takers[i].longest_ns : longest;
	}
	assert_int_equal(rate.paid_until_ns - SECOND, 40 * SECOND); /* 40,000 times 1,000 bytes */
	assert_int_equal(longest, 40 * SECOND - SECOND / 1000);     /* the last one waits for all before it */
}

static void
test_R144_writes_are_paced(void **state)
{
	struct bed *bed = *state;
	struct fake_clock clock = {0};
	limit(bed, &clock, MIB, 0);
	struct bytes b = bytes_new(8 * MIB, 0, 1);
	write_bytes(bed, "pack", &b, 2 * MIB, NULL);
	/* The first piece is sent at once, so the waits are for all but one piece of the 8 MiB. */
	assert_true(clock.slept_ns >= 7 * SECOND && clock.slept_ns <= 8 * SECOND);
	int64_t before = clock.slept_ns;
	assert_bytes(bed, "pack", &b); /* reading is not limited */
	assert_int_equal(clock.slept_ns, before);
	free(b.memory);
}

static void
test_R144_reads_are_paced(void **state)
{
	struct bed *bed = *state;
	struct fake_clock clock = {0};
	struct store_reader *r = NULL;
	int64_t before;
	limit(bed, &clock, 0, MIB);
	struct bytes b = bytes_new(4 * MIB + 12345, 0, 2);
	write_bytes(bed, "pack", &b, b.len, NULL);
	assert_int_equal(clock.sleeps, 0);
	assert_bytes(bed, "pack", &b);
	assert_true(clock.slept_ns >= 3 * SECOND && clock.slept_ns <= 5 * SECOND);
	OK(bed, store_put_bytes(bed->store, "cached", b.ptr, MIB, 0, &bed->err)); /* through the page cache */
	OK(bed, store_open_reader(bed->store, "cached", &r, NULL, &bed->err));
	assert_true(store_is_cached(bed->store, r, 0, MIB)); /* it does not matter for the pace */
	store_close_reader(bed->store, r);
	before = clock.slept_ns;
	assert_bytes(bed, "cached", &(struct bytes){.ptr = b.ptr, .len = MIB});
	assert_true(clock.slept_ns > before);
	free(b.memory);
}

/* An upload is sent in one piece: at a low rate its wait may take hours. */
static void
test_a_wait_ends_when_the_owner_cancels(void **state)
{
	struct bed *bed = *state;
	struct fake_clock clock = {.cancel_at = 3};
	limit(bed, &clock, 1, 0);
	struct bytes b = bytes_new(MIB / 2, 0, 5);
	struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
	OK(bed, store_write(bed->store, f, 0, b.ptr, MIB / 4, &bed->err));
	FAILS(bed, store_write(bed->store, f, MIB / 4, b.ptr + MIB / 4, MIB / 4, &bed->err), PAWL_ECANCELLED,
	      "cancelled");
	assert_int_equal(clock.sleeps, 3);
	store_abort(bed->store, f);
	free(b.memory);
}

/* The negative control of both: the same without a limit. */
static void
test_without_a_limit_nobody_sleeps(void **state)
{
	struct bed *bed = *state;
	struct fake_clock clock = {0};
	limit(bed, &clock, 0, 0);
	struct bytes b = bytes_new(8 * MIB, 0, 3);
	write_bytes(bed, "pack", &b, 2 * MIB, NULL);
	assert_bytes(bed, "pack", &b);
	assert_int_equal(clock.sleeps, 0);
	free(b.memory);
}

/* A lease is renewed by a small put: it must not stand behind minutes of packs. */
static void
test_small_objects_are_counted_and_never_wait(void **state)
{
	struct bed *bed = *state;
	struct fake_clock clock = {0};
	struct bytes b = bytes_new(300000, 0, 4);
	limit(bed, &clock, 1000, 1000);
	write_bytes(bed, "pack", &b, b.len, NULL); /* 300 s of debt; one piece was free, another was not */
	unsigned before = clock.sleeps;
	put_text(bed, "lease", "mine");
	OK(bed, store_append(bed->store, "log", "line\n", 5, &bed->err));
	assert_int_equal(clock.sleeps, before);
	int64_t debt = clock.slept_ns;
	write_bytes(bed, "next", &b, b.len, NULL); /* waits for what the small ones took, too */
	assert_true(clock.slept_ns - debt >= (int64_t)(9.0 / 1000 * 1e9));
	free(b.memory);
}

static void
test_the_layer_shows_the_engine_below(void **state)
{
	struct bed *bed = *state;
	struct fake_clock clock = {0};
	char name[16];
	snprintf(name, sizeof name, "%s", bed->store->name);
	struct store_caps below = bed_caps(bed);
	limit(bed, &clock, 1, 1);
	struct store_caps above = bed_caps(bed);
	assert_string_equal(bed->store->name, name);
	assert_memory_equal(&below, &above, sizeof below);
	put_text(bed, "a/b", "x");
	OK(bed, store_link(bed->store, "a/b", "a/c", &bed->err));
	OK(bed, store_move(bed->store, "a/c", "a/d", &bed->err));
	assert_names(bed, "a", "b d");
	OK(bed, store_remove_folder(bed->store, "a", &bed->err));
	assert_missing(bed, "a/b");
}

static int
setup(void **state)
{
	struct bed *bed = *state;
	bed_open(bed);
	return 0;
}

static int
teardown(void **state)
{
	bed_close(*state);
	return 0;
}

#define EACH(fn)                                                                                \
	{#fn " (mem)", fn, setup, teardown, &mem}, {#fn " (disk)", fn, setup, teardown, &disk}, \
	{                                                                                       \
		#fn " (nodes)", fn, setup, teardown, &nodes                                     \
	}

int
main(void)
{
	static struct bed mem = {.kind = BED_MEM}, disk = {.kind = BED_DISK}, nodes = {.kind = BED_NODES};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_was_taken_earlier_is_waited_for),
		cmocka_unit_test(test_no_limit_and_absurd_sizes),
		cmocka_unit_test(test_R144_threads_share_the_limit),
		EACH(test_R144_writes_are_paced),
		EACH(test_R144_reads_are_paced),
		EACH(test_without_a_limit_nobody_sleeps),
		EACH(test_small_objects_are_counted_and_never_wait),
		EACH(test_a_wait_ends_when_the_owner_cancels),
		EACH(test_the_layer_shows_the_engine_below),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
