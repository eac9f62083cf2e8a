/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of store_kept.c: one object is still read after its deletion. */
#include "helpers/store_bed.h"

#include "base/err.h"
#include "store/layers/kept/store_kept.h"

static int
setup(void **state)
{
	struct bed *b = calloc(1, sizeof *b);
	assert_non_null(b);
	b->kind = BED_DISK;
	bed_open(b);
	*state = b;
	return 0;
}

static int
teardown(void **state)
{
	struct bed *b = *state;
	bed_close(b);
	free(b);
	return 0;
}

static void
assert_kept(struct bed *b, const char *key, const char *expected)
{
	PAWL_CLEAN(store_opened_close) struct store_opened opened = {.store = b->store};
	struct store_entry entry;
	uint64_t nbytes;
	char bytes[16];

	assert_text(b, key, expected);
	OK(b, store_stat(b->store, key, &entry, &b->err));
	assert_int_equal(entry.nbytes, strlen(expected));
	OK(b, store_open_reader(b->store, key, &opened.reader, &nbytes, &b->err));
	assert_int_equal(nbytes, strlen(expected));
	OK(b, store_read(b->store, opened.reader, 0, bytes, (size_t)nbytes, &b->err));
	assert_memory_equal(bytes, expected, (size_t)nbytes);
}

static void
test_the_object_is_read_after_its_deletion_and_the_one_that_replaces_it(void **state)
{
	struct bed *b = *state;
	struct store_entry entry;
	put_text(b, "m.pt", "first");
	put_text(b, "other", "here");
	OK(b, store_kept_wrap(&b->store, "m.pt", &b->err));
	OK(b, store_remove(b->store, "m.pt", &b->err));
	assert_kept(b, "m.pt", "first");
	put_text(b, "m.pt", "second one");
	assert_kept(b, "m.pt", "second one");
	OK(b, store_remove(b->store, "m.pt", &b->err));
	assert_int_equal(store_stat(b->store, "m.pt", &entry, NULL), PAWL_ENOTFOUND);
	assert_kept(b, "other", "here");
	OK(b, store_remove(b->store, "other", &b->err));
	assert_int_equal(store_stat(b->store, "other", &entry, NULL), PAWL_ENOTFOUND);
}

/* Another process writes to the file that is open. */
static void
test_an_object_that_changed_is_not_shown_after_its_deletion(void **state)
{
	struct bed *b = *state;
	struct store_entry entry;
	char path[128];

	put_text(b, "m.pt", "first");
	OK(b, store_kept_wrap(&b->store, "m.pt", &b->err));
	snprintf(path, sizeof path, "%s/m.pt", b->dir);
	assert_int_equal(truncate(path, 3), 0);
	OK(b, store_remove(b->store, "m.pt", &b->err));
	assert_int_equal(store_stat(b->store, "m.pt", &entry, NULL), PAWL_ENOTFOUND);
}

static void
test_another_object_of_the_same_size_and_time_is_shown(void **state)
{
	struct bed *b = *state;
	struct stat st;
	char path[128];

	put_text(b, "m.pt", "first");
	OK(b, store_kept_wrap(&b->store, "m.pt", &b->err));
	snprintf(path, sizeof path, "%s/m.pt", b->dir);
	assert_int_equal(stat(path, &st), 0);
	OK(b, store_remove(b->store, "m.pt", &b->err));
	put_text(b, "m.pt", "other");
	const struct timespec times[2] = {st.st_mtim, st.st_mtim};
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	assert_kept(b, "m.pt", "other");
}

static void
test_only_a_file_is_kept_open(void **state)
{
	struct bed *b = *state;
	struct store *plain = b->store;
	put_text(b, "folder/file", "x");
	OK(b, store_kept_wrap(&b->store, "folder", &b->err));
	assert_ptr_equal(b->store, plain);
	assert_int_equal(store_kept_wrap(&b->store, "missing", &b->err), PAWL_ENOTFOUND);
	assert_ptr_equal(b->store, plain);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_object_is_read_after_its_deletion_and_the_one_that_replaces_it,
	                                        setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_object_that_changed_is_not_shown_after_its_deletion, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(test_another_object_of_the_same_size_and_time_is_shown, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(test_only_a_file_is_kept_open, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
