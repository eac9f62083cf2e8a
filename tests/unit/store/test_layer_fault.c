/* SPDX-License-Identifier: Apache-2.0 */
/* The fault layer: which call fails, how often, and that a failed one has left nothing. */
#include "helpers/store_bed.h"

#include <pthread.h>

/* A store in memory whose n-th `operation` fails. */
static struct bed
armed(const char *operation, uint64_t nth, int code, int forever)
{
	struct bed bed = {.kind = BED_MEM};
	bed_open(&bed);
	struct store *inner = bed.store;
	OK(&bed, pawl_fault_new(operation, nth, code, forever, &bed.fault, &bed.err));
	OK(&bed, store_fault_wrap(inner, bed.fault, &bed.store, &bed.err));
	return bed;
}

static void
test_the_nth_call_fails_and_only_that(void **state)
{
	(void)state;
	struct bed bed = armed("put", 3, PAWL_ENOSPACE, 0);
	put_text(&bed, "a", "1");
	put_text(&bed, "b", "2");
	FAILS(&bed, store_put_bytes(bed.store, "c", "3", 1, 0, &bed.err), PAWL_ENOSPACE, "c: cannot put: injected");
	put_text(&bed, "d", "4");
	assert_names(&bed, "", "a b d");
	assert_int_equal(pawl_fault_calls(bed.fault), 4);
	bed_close(&bed);
}

static void
test_forever_fails_from_the_nth_call_on(void **state)
{
	(void)state;
	struct bed bed = armed("put", 2, PAWL_EIO, 1);
	put_text(&bed, "a", "1");
	for (int i = 0; i < 5; i++)
		FAILS(&bed, store_put_bytes(bed.store, "b", "2", 1, 0, &bed.err), PAWL_EIO, "b");
	assert_names(&bed, "", "a");
	bed_close(&bed);
}

static void
test_a_replaced_object_survives_a_failed_put(void **state)
{
	(void)state;
	struct bed bed = armed("put", 2, PAWL_EIO, 0);
	put_text(&bed, "a", "old");
	FAILS(&bed, store_put_bytes(bed.store, "a", "new", 3, 0, &bed.err), PAWL_EIO, "a");
	assert_text(&bed, "a", "old");
	bed_close(&bed);
}

/* Runs the life of an object; returns its first error. The object must exist exactly if there is
 * none. */
static int
write_object(struct bed *bed, const char *key)
{
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = 30};
	struct store_entry entry;
	int rc = store_create(bed->store, key, &opts, &f, &bed->err);
	for (uint64_t at = 0; rc == 0 && at < 30; at += 10) {
		rc = store_write(bed->store, f, at, "0123456789", 10, &bed->err);
		if (rc < 0)
			store_abort(bed->store, f);
	}
	if (rc == 0)
		rc = store_finish(bed->store, f, &bed->err);
	assert_int_equal(store_stat(bed->store, key, &entry, NULL), rc == 0 ? 0 : PAWL_ENOTFOUND);
	return rc;
}

static void
test_P4_failed_create_write_and_finish_leave_no_object(void **state)
{
	(void)state;
	static const char *const operations[] = {"create", "write", "write", "write", "finish"};
	for (uint64_t i = 0; i < 5; i++) {
		struct bed bed = armed(operations[i], strcmp(operations[i], "write") == 0 ? i : 1, PAWL_EIO, 0);
		assert_int_equal(write_object(&bed, "d/pack"), PAWL_EIO);
		assert_non_null(strstr(bed.err.message, "d/pack: cannot"));
		assert_int_equal(write_object(&bed, "d/pack"), 0);
		bed_close(&bed);
	}
}

static void
test_P5_a_store_that_ignores_a_failed_write_cannot_finish(void **state)
{
	(void)state;
	struct bed bed = armed("write", 1, PAWL_ENOSPACE, 0);
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = 4};
	OK(&bed, store_create(bed.store, "pack", &opts, &f, &bed.err));
	FAILS(&bed, store_write(bed.store, f, 0, "1234", 4, &bed.err), PAWL_ENOSPACE, "pack");
	FAILS(&bed, store_write(bed.store, f, 0, "1234", 4, &bed.err), PAWL_EIO, "pack");
	FAILS(&bed, store_finish(bed.store, f, &bed.err), PAWL_EIO, "pack");
	assert_missing(&bed, "pack");
	bed_close(&bed);
}

static int
ignore(void *arg, const struct store_entry *entry)
{
	(void)arg, (void)entry;
	return 0;
}

/* Calls the operation once. */
static int
call(struct bed *bed, const char *operation)
{
	struct store *s = bed->store;
	struct pawl_error *err = &bed->err;
	struct store_entry entry;
	struct store_reader *r = NULL;
	char c;
	if (strcmp(operation, "put") == 0)
		return store_put_bytes(s, "put", "1", 1, 0, err);
	if (strcmp(operation, "stat") == 0)
		return store_stat(s, "a/x", &entry, err);
	if (strcmp(operation, "list") == 0)
		return store_list(s, "a", ignore, NULL, err);
	if (strcmp(operation, "link") == 0)
		return store_link(s, "a/x", "b/x", err);
	if (strcmp(operation, "remove") == 0)
		return store_remove(s, "a/y", err);
	if (strcmp(operation, "publish") == 0)
		return store_publish(s, "a", "published", err);
	assert_string_equal(operation, "read");
	OK(bed, store_open_reader(s, "a/x", &r, NULL, err));
	assert_false(store_is_cached(s, r, 0, 1));
	int rc = store_read(s, r, 0, &c, 1, err);
	store_close_reader(s, r);
	return rc;
}

static void
test_each_operation_counts_its_own_calls(void **state)
{
	(void)state;
	static const char *const operations[] = {"put", "stat", "list", "link", "remove", "publish", "read"};
	for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
		struct bed bed = armed(operations[i], 1, PAWL_ETRANSIENT, 0);
		struct store_file *f = NULL;
		struct store_create opts = {.nbytes = 1};
		for (int j = 0; j < 2; j++) {
			OK(&bed, store_create(bed.store, j == 0 ? "a/x" : "a/y", &opts, &f, &bed.err));
			OK(&bed, store_write(bed.store, f, 0, "1", 1, &bed.err));
			OK(&bed, store_finish(bed.store, f, &bed.err));
		}
		assert_int_equal(pawl_fault_calls(bed.fault), 0);
		assert_int_equal(call(&bed, operations[i]), PAWL_ETRANSIENT);
		assert_int_equal(call(&bed, operations[i]), 0);
		assert_int_equal(pawl_fault_calls(bed.fault), 2);
		bed_close(&bed);
	}
}

static void
test_any_counts_every_operation(void **state)
{
	(void)state;
	struct bed bed = armed("any", UINT64_MAX, PAWL_EIO, 0);
	uint64_t free_bytes;
	put_text(&bed, "a/x", "1");
	OK(&bed, store_append(bed.store, "a/y", "1", 1, &bed.err));
	OK(&bed, store_move(bed.store, "a/y", "a/z", &bed.err));
	OK(&bed, store_pointer(bed.store, "p", "a", &bed.err));
	OK(&bed, store_sync(bed.store, "a", &bed.err));
	OK(&bed, store_space(bed.store, &free_bytes, &bed.err));
	OK(&bed, store_remove_folder(bed.store, "a", &bed.err));
	assert_int_equal(pawl_fault_calls(bed.fault), 7);
	bed_close(&bed);

	bed = armed("any", 1, PAWL_EAUTH, 1);
	FAILS(&bed, store_append(bed.store, "a", "1", 1, &bed.err), PAWL_EAUTH, "a: cannot append");
	FAILS(&bed, store_move(bed.store, "a", "b", &bed.err), PAWL_EAUTH, "a: cannot move");
	FAILS(&bed, store_pointer(bed.store, "p", "a", &bed.err), PAWL_EAUTH, "p: cannot point");
	FAILS(&bed, store_sync(bed.store, "", &bed.err), PAWL_EAUTH, "cannot sync");
	FAILS(&bed, store_space(bed.store, &free_bytes, &bed.err), PAWL_EAUTH, "mem:");
	struct store_reader *r = NULL;
	FAILS(&bed, store_open_reader(bed.store, "a", &r, NULL, &bed.err), PAWL_EAUTH, "a: cannot open");
	bed_close(&bed);
}

static void *
put_many(void *arg)
{
	size_t failed = 0;
	for (int i = 0; i < 500; i++)
		failed += store_put_bytes(arg, "a", "1", 1, 0, NULL) < 0;
	return (void *)failed;
}

static void
test_one_call_fails_whatever_the_threads_do(void **state)
{
	(void)state;
	struct bed bed = armed("put", 700, PAWL_EIO, 0);
	pthread_t threads[2];
	size_t failed = 0;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, put_many, bed.store), 0);
	for (int i = 0; i < 2; i++) {
		void *ret = NULL;
		pthread_join(threads[i], &ret);
		failed += (size_t)ret;
	}
	assert_int_equal(failed, 1);
	assert_int_equal(pawl_fault_calls(bed.fault), 1000);
	bed_close(&bed);
}

static void
test_layers_nest_and_close_together(void **state)
{
	(void)state;
	struct bed bed = armed("put", 2, PAWL_EIO, 0);
	struct pawl_fault *outer = NULL;
	OK(&bed, pawl_fault_new("put", 1, PAWL_EBUSY, 0, &outer, &bed.err));
	OK(&bed, store_fault_wrap(bed.store, outer, &bed.store, &bed.err));
	assert_string_equal(bed.store->root, "mem:");
	FAILS(&bed, store_put_bytes(bed.store, "a", "1", 1, 0, &bed.err), PAWL_EBUSY, "a");
	put_text(&bed, "a", "1");
	FAILS(&bed, store_put_bytes(bed.store, "a", "1", 1, 0, &bed.err), PAWL_EIO, "a");
	bed_close(&bed);
	pawl_fault_free(outer);
	pawl_fault_free(NULL);
}

static void
test_bad_faults_are_refused(void **state)
{
	(void)state;
	struct bed bed = {0};
	struct pawl_fault *fault = NULL;
	FAILS(&bed, pawl_fault_new("puts", 1, PAWL_EIO, 0, &fault, &bed.err), PAWL_EUSAGE, "puts");
	FAILS(&bed, pawl_fault_new(NULL, 1, PAWL_EIO, 0, &fault, &bed.err), PAWL_EUSAGE, "expected put");
	FAILS(&bed, pawl_fault_new("put", 0, PAWL_EIO, 0, &fault, &bed.err), PAWL_EUSAGE, "found 0");
	FAILS(&bed, pawl_fault_new("put", 1, 0, 0, &fault, &bed.err), PAWL_EUSAGE, "0 is not");
	FAILS(&bed, pawl_fault_new("put", 1, -1000, 0, &fault, &bed.err), PAWL_EUSAGE, "-1000 is not");
	assert_null(fault);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_nth_call_fails_and_only_that),
		cmocka_unit_test(test_forever_fails_from_the_nth_call_on),
		cmocka_unit_test(test_a_replaced_object_survives_a_failed_put),
		cmocka_unit_test(test_P4_failed_create_write_and_finish_leave_no_object),
		cmocka_unit_test(test_P5_a_store_that_ignores_a_failed_write_cannot_finish),
		cmocka_unit_test(test_each_operation_counts_its_own_calls),
		cmocka_unit_test(test_any_counts_every_operation),
		cmocka_unit_test(test_one_call_fails_whatever_the_threads_do),
		cmocka_unit_test(test_layers_nest_and_close_together),
		cmocka_unit_test(test_bad_faults_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
