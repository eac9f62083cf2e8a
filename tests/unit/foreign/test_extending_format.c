/* SPDX-License-Identifier: Apache-2.0 */
/* The format of docs/how-to/extending.md: with its row in the table, images are checkpoints that
 * are found, read and converted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/parts.h"
#include "foreign/foreign_formats.h"
#include "helpers/model_file.h"
#include "pawl_jobs.h"

extern const struct foreign_format foreign_pgm;

/* In place of the library's table, which is in an object file of its own. */
const struct foreign_format *const foreign_formats[] = {&foreign_safetensors, &foreign_npy, &foreign_pgm, NULL};

static const char image[] = "P5\n3 2\n255\nabcdef";

static void
write_image(const struct small_run *r, const char *name, const char *bytes)
{
	char path[256];

	snprintf(path, sizeof path, "%s/%s", r->root, name);
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, strlen(bytes), f), strlen(bytes));
	assert_int_equal(fclose(f), 0);
}

/* The file is one array of 2 rows and 3 columns with these bytes. */
static void
expect_image(struct small_run *r, const char *name, const char *format)
{
	struct pawl_restore *restore;
	struct pawl_tensor live = PAWL_TENSOR_INIT;
	const uint64_t shape[] = {2, 3};
	char bytes[6];

	open_file(r, name);
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	assert_string_equal(pawl_restore_info(restore)->format, format);
	live.dtype = PAWL_U8;
	live.ndim = 2;
	live.shape = shape;
	live.data = bytes;
	OK(pawl_restore_bind(restore, pawl_node_tensor(pawl_state_root(pawl_restore_state(restore))), &live, err));
	OK(pawl_restore_read(restore, err));
	assert_memory_equal(bytes, "abcdef", 6);
	pawl_restore_close(restore);
}

static void
test_an_image_is_found_by_its_name_and_by_its_first_bytes(void **state)
{
	struct small_run *r = *state;
	const char *name;
	int is_mark = 1, n = 0;

	write_image(r, "a.pgm", image);
	write_image(r, "b", image);
	expect_image(r, "a.pgm", "pgm");
	expect_image(r, "b", "pgm");
	for (size_t i = 0; (name = pawl_foreign_name(i, &is_mark)); i++)
		n += strcmp(name, ".pgm") == 0 && !is_mark;
	assert_int_equal(n, 1);
}

#ifndef PAWL_WITHOUT_JOBS
static void
test_an_image_is_converted(void **state)
{
	struct small_run *r = *state;
	char target[256];
	uint64_t id;

	write_image(r, "a.pgm", image);
	open_file(r, "a.pgm");
	OK(pawl_find(r->run, "latest", &id, err));
	snprintf(target, sizeof target, "%s/a.npy", r->root);
	OK(pawl_convert(r->run, id, target, NULL, NULL, NULL, err));
	expect_image(r, "a.npy", "numpy.save");
}
#endif

static void
test_a_damaged_image_is_refused(void **state)
{
	static const struct {
		const char *bytes, *why;
	} rows[] = {
		{"P5\n3 2\n255\nabcde", "expected 6 bytes after the header, found 5"},
		{"P5\n3 2\n255\nabcdefg", "expected 6 bytes after the header, found 7"},
		{"P5\n999999999 999999999\n255\n", "expected 999999998000000001 bytes after the header, found 0"},
		{"P5\n3 2\n65535\nabcdef", "not the header of a grey image"},
		{"P5\n-3 2\n255\nabcdef", "bytes after the header, found 6"},
		{"P5\n", "not the header"},
		{"", "not the header"},
	};
	struct small_run *r = *state;
	struct pawl_restore *restore = NULL;

	for (size_t i = 0; i < COUNT(rows); i++) {
		write_image(r, "bad.pgm", rows[i].bytes);
		open_file(r, "bad.pgm");
		FAILS(PAWL_ECORRUPT, rows[i].why, pawl_restore_open(r->run, NULL, &restore, err));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_an_image_is_found_by_its_name_and_by_its_first_bytes, small_setup,
	                                        small_teardown),
#ifndef PAWL_WITHOUT_JOBS
		cmocka_unit_test_setup_teardown(test_an_image_is_converted, small_setup, small_teardown),
#endif
		cmocka_unit_test_setup_teardown(test_a_damaged_image_is_refused, small_setup, small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
