/* SPDX-License-Identifier: Apache-2.0 */
/* events: their writers, and what is read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "run/events.h"

struct fixture {
	struct store *store;
	struct run_identity self;
	struct run_events events;
	struct buf text;
	struct pawl_error err;
};

static int
setup(void **state)
{
	static struct fixture f;

	f = (struct fixture){.self.attempt = 3};
	pthread_mutex_init(&f.events.lock, NULL);
	pthread_mutex_init(&f.events.queue_lock, NULL);
	*state = &f;
	return store_open("mem:", true, false, &f.store, &f.err);
}

static int
teardown(void **state)
{
	struct fixture *f = *state;

	events_close(&f->events);
	buf_clear(&f->text);
	store_close(f->store);
	return 0;
}

static const char *
read_last(struct fixture *f)
{
	f->text.len = 0;
	assert_int_equal(events_read_last(&f->events, &f->text, &f->err), 0);
	return buf_str(&f->text);
}

static void
test_a_writer_finds_its_events(void **state)
{
	struct fixture *f = *state;

	events_open(&f->events, f->store, &f->self, true, true);
	assert_string_equal(read_last(f), "");
	events_add(&f->events, "gc", "\"count\":2");
	events_add(&f->events, "remove", "");
	assert_non_null(strstr(read_last(f), "\"what\":\"gc\",\"attempt\":3,\"count\":2}\n"));
	assert_non_null(strstr(read_last(f), "\"what\":\"remove\",\"attempt\":3}\n"));
}

static void
test_events_are_taken_once_the_oldest_first(void **state)
{
	struct fixture *f = *state;
	char *line;

	events_open(&f->events, f->store, &f->self, false, false); /* taken also where none are written */
	for (int i = 0; i < 1002; i++)
		events_add(&f->events, i < 2 ? "gc" : "remove", "");
	for (int i = 0; i < 1000; i++) {
		line = events_take(&f->events);
		assert_non_null(strstr(line, "\"what\":\"remove\""));
		mem_free(line);
	}
	assert_null(events_take(&f->events));
}

static void
test_P8_a_reader_reads_events_and_writes_none(void **state)
{
	struct fixture *f = *state;

	events_open(&f->events, f->store, &f->self, true, true);
	events_add(&f->events, "gc", "");
	const size_t before = strlen(read_last(f));

	events_open(&f->events, f->store, &f->self, true, false);
	events_add(&f->events, "remove", "");
	assert_int_equal(strlen(read_last(f)), before);
}

static void
test_P8_a_single_checkpoint_has_no_events(void **state)
{
	struct fixture *f = *state;

	events_open(&f->events, f->store, &f->self, false, true);
	events_add(&f->events, "gc", "");
	assert_string_equal(read_last(f), "");
	events_open(&f->events, f->store, &f->self, true, true);
	assert_string_equal(read_last(f), "");
}

/* ---- a bucket */

static struct {
	struct store_ops ops;
	const struct store_ops *straight;
	bool is_refused;
	size_t n_puts, largest;
} bucket;

static void
bucket_caps(struct store *s, struct store_caps *ret)
{
	bucket.straight->caps(s, ret);
	ret->flat = true;
}

static int
bucket_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
           struct pawl_error *err)
{
	bucket.n_puts++;
	bucket.largest = parts[0].len > bucket.largest ? parts[0].len : bucket.largest;
	return bucket.is_refused ? PAWL_EAUTH : bucket.straight->put(s, key, parts, n_parts, flags, err);
}

static void
test_the_events_of_a_bucket_that_refuses_them_do_not_grow_without_limit(void **state)
{
	struct fixture *f = *state;
	const size_t most = ((size_t)64 << 10) + 200; /* the last line begins before the limit */

	memset(&bucket, 0, sizeof(bucket));
	bucket.straight = f->store->ops;
	bucket.ops = *bucket.straight;
	bucket.ops.caps = bucket_caps;
	bucket.ops.put = bucket_put;
	f->store->ops = &bucket.ops;
	events_open(&f->events, f->store, &f->self, true, true);
	bucket.is_refused = true;
	for (int i = 0; i < 3000; i++)
		events_add(&f->events, "remove", "");
	assert_int_equal(bucket.n_puts, 3000);
	assert_in_range(bucket.largest, most - 400, most);
	bucket.is_refused = false;
	events_add(&f->events, "gc", "\"count\":7");
	assert_non_null(strstr(read_last(f), "\"count\":7"));
	f->store->ops = bucket.straight;
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_a_writer_finds_its_events),
		T(test_events_are_taken_once_the_oldest_first),
		T(test_P8_a_reader_reads_events_and_writes_none),
		T(test_P8_a_single_checkpoint_has_no_events),
		T(test_the_events_of_a_bucket_that_refuses_them_do_not_grow_without_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
