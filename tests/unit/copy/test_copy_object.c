/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copy_object.c: one object from store to store, from a local file and to one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "copy/copy_object.h"

#define LARGE ((size_t)20 << 20) /* three pieces */

struct fixture {
	char dir[64];
	char *bytes;
	struct store *disk, *memory;
};

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	snprintf(f->dir, sizeof f->dir, "/var/tmp/pawl-object-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	f->bytes = malloc(LARGE);
	for (size_t i = 0; i < LARGE; i++)
		f->bytes[i] = (char)(i / 4096 + i);
	assert_int_equal(store_open(f->dir, false, false, &f->disk, NULL), 0);
	assert_int_equal(store_open("mem:", true, false, &f->memory, NULL), 0);
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;
	store_close(f->disk);
	store_close(f->memory);
	assert_int_equal(fd_remove_tree(AT_FDCWD, f->dir, NULL), 0);
	free(f->bytes);
	free(f);
	return 0;
}

static int
count_entry(void *arg, const struct store_entry *entry)
{
	(void)entry;
	++*(size_t *)arg;
	return 0;
}

static void
check_object(struct store *s, const char *folder, const char *key, const char *bytes, size_t n)
{
	PAWL_CLEAN(buf_clear) struct buf found = {0};
	size_t n_entries = 0;
	assert_int_equal(store_get(s, key, LARGE, &found, NULL), 0);
	assert_int_equal(found.len, n);
	assert_memory_equal(found.ptr ? found.ptr : "", bytes, n);
	assert_int_equal(store_list(s, folder, count_entry, &n_entries, NULL), 0);
	assert_int_equal(n_entries, 1); /* nothing hidden is left */
}

struct steps {
	uint64_t nbytes;
	unsigned n, most;
};

static int
take_step(void *arg, uint64_t nbytes, struct pawl_error *err)
{
	struct steps *steps = arg;
	steps->nbytes += nbytes;
	return ++steps->n > steps->most ? err_set(err, PAWL_ECANCELLED, "stopped") : 0;
}

static void
test_P14_an_object_arrives_as_it_is(void **state)
{
	struct fixture *f = *state;
	const size_t sizes[] = {0, 1, 100000, (size_t)8 << 20, LARGE};
	for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
		const size_t n = sizes[i / 2];
		struct store *to = i % 2 ? f->disk : f->memory;
		struct steps steps = {.most = UINT32_MAX};
		const struct copy_object job = {.from = f->memory,
		                                .to = to,
		                                .from_key = "from/a",
		                                .to_key = "to/b",
		                                .read_back = i > 3,
		                                .step = take_step,
		                                .arg = &steps};
		assert_int_equal(store_put_bytes(f->memory, "from/a", f->bytes, n, 0, NULL), 0);
		assert_int_equal(copy_object(&job, NULL), 0);
		check_object(to, "to", "to/b", f->bytes, n);
		assert_int_equal(steps.nbytes, n);
	}
}

static void
test_P15_what_is_there_is_compared(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct copy_object job = {
		.from = f->memory, .to = f->disk, .from_key = "a", .to_key = "b", .existing = COPY_KEEP};
	assert_int_equal(store_put_bytes(f->memory, "a", f->bytes, LARGE, 0, NULL), 0);
	assert_int_equal(copy_object(&job, NULL), 0);
	assert_int_equal(copy_object(&job, NULL), 0); /* the same bytes */
	f->bytes[LARGE - 1] ^= 1;
	assert_int_equal(store_put_bytes(f->memory, "a", f->bytes, LARGE, 0, NULL), 0);
	assert_int_equal(copy_object(&job, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "choose another name"));
	job.existing = COPY_UPDATE;
	assert_int_equal(copy_object(&job, NULL), 0);
	check_object(f->disk, "", "b", f->bytes, LARGE);
	assert_int_equal(store_put_bytes(f->memory, "a", f->bytes, 7, 0, NULL), 0);
	job.existing = COPY_KEEP;
	assert_int_equal(copy_object(&job, NULL), PAWL_EEXISTS); /* another length */
	job.from_key = "none";
	assert_int_equal(copy_object(&job, NULL), PAWL_ENOTFOUND);
}

static void
test_P2_stopped_or_failed_it_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	static const char *const operations[] = {"create", "write", "finish", "read"};
	struct store_entry entry;
	int failed = 0;
	assert_int_equal(store_put_bytes(f->memory, "a", f->bytes, LARGE, 0, NULL), 0);
	for (unsigned most = 0; most < 4; most++) {
		struct steps steps = {.most = most};
		const struct copy_object job = {.from = f->memory,
		                                .to = f->disk,
		                                .from_key = "a",
		                                .to_key = "b",
		                                .read_back = true,
		                                .step = take_step,
		                                .arg = &steps};
		assert_int_equal(copy_object(&job, NULL), PAWL_ECANCELLED);
		assert_int_equal(store_stat(f->disk, "b", &entry, NULL), PAWL_ENOTFOUND);
	}
	for (size_t o = 0; o < sizeof operations / sizeof *operations; o++) {
		for (uint64_t nth = 1; nth <= 3; nth++) {
			struct pawl_fault *fault;
			struct store *inner, *to;
			assert_int_equal(store_open(f->dir, false, false, &inner, NULL), 0);
			assert_int_equal(pawl_fault_new(operations[o], nth, PAWL_EIO, 0, &fault, NULL), 0);
			assert_int_equal(store_fault_wrap(inner, fault, &to, NULL), 0);
			const struct copy_object job = {
				.from = f->memory, .to = to, .from_key = "a", .to_key = "b", .read_back = true};
			const int rc = copy_object(&job, NULL);
			failed += rc < 0;
			if (rc < 0)
				assert_int_equal(store_stat(f->disk, "b", &entry, NULL), PAWL_ENOTFOUND);
			else
				check_object(f->disk, "", "b", f->bytes, LARGE);
			assert_int_equal(store_remove(f->disk, "b", NULL), 0);
			store_close(to);
			pawl_fault_free(fault);
		}
	}
	assert_true(failed == 1 + 3 + 1 + 3); /* the faults took effect */
}

static void
test_a_local_file_is_an_object_of_its_folder(void **state)
{
	struct fixture *f = *state;
	struct store *from, *to;
	struct copy_object job = {.to = f->memory, .to_key = "x/y", .read_back = true};
	char path[96];
	snprintf(path, sizeof path, "%s/file", f->dir);
	assert_int_equal(store_put_bytes(f->disk, "file", f->bytes, LARGE, 0, NULL), 0);
	assert_int_equal(copy_open_path(path, &from, &job.from_key, NULL), 0);
	job.from = from;
	assert_int_equal(copy_object(&job, NULL), 0);
	check_object(f->memory, "x", "x/y", f->bytes, LARGE);
	assert_int_equal(store_remove(f->disk, "file", NULL), 0);
	job = (struct copy_object){.from = f->memory, .from_key = "x/y"};
	assert_int_equal(copy_open_path(path, &to, &job.to_key, NULL), 0);
	job.to = to;
	assert_int_equal(copy_object(&job, NULL), 0);
	check_object(f->disk, "", "file", f->bytes, LARGE);
	store_close(from);
	store_close(to);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_P14_an_object_arrives_as_it_is, setup, teardown),
		cmocka_unit_test_setup_teardown(test_P15_what_is_there_is_compared, setup, teardown),
		cmocka_unit_test_setup_teardown(test_P2_stopped_or_failed_it_leaves_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_local_file_is_an_object_of_its_folder, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
