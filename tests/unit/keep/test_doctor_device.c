/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_device: what pawl doctor shows of devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "helpers/device_run.h"

/* The values of all rows whose key begins so. */
static size_t
rows_of(const struct small_run *r, const char *key, char *out, size_t cap)
{
	struct pawl_rows *rows;
	size_t n = 0;

	OK(pawl_doctor(r->root, &rows, err));
	out[0] = '\0';
	for (size_t i = 0; i < pawl_rows_count(rows); i++)
		if (strncmp(pawl_rows_key(rows, i), key, strlen(key)) == 0) {
			n++;
			snprintf(out + strlen(out), cap - strlen(out), "%s\n", pawl_rows_value(rows, i));
		}
	pawl_rows_free(rows);
	return n;
}

static void
test_each_device_has_a_row_with_measured_rates(void **state)
{
	char text[1024];

	fake_reset(1, true);
	assert_int_equal(rows_of(*state, "device", text, sizeof(text)), FAKE_DEVICES);
	assert_int_equal(strncmp(text, "registered memory, to host ", 27), 0);
	assert_non_null(strstr(text, " GB/s, from host "));
	assert_int_equal(fake_live(), 0);
	assert_null(fake_misuse());
}

static void
test_the_version_of_the_driver_is_shown(void **state)
{
	char text[1024];

	fake_reset(1, true);
	assert_int_equal(rows_of(*state, "driver", text, sizeof(text)), 1);
	assert_string_equal(text, "CUDA 12.8\n");
	fake_reset(1, true);
	fake_fail(2, 999); /* the first is cuInit */
	assert_int_equal(rows_of(*state, "driver", text, sizeof(text)), 1);
	assert_non_null(strstr(text, "cuDriverGetVersion: "));
}

static void
test_memory_that_cannot_be_registered_is_named(void **state)
{
	char text[1024];

	fake_reset(2, true);
	fake_set_registrable(0);
	assert_int_equal(rows_of(*state, "device", text, sizeof(text)), FAKE_DEVICES);
	assert_int_equal(strncmp(text, "unregistered memory, ", 21), 0);
	assert_int_equal(fake_live(), 0);
}

static bool refuses;

ssize_t __real_write(int fd, const void *ptr, size_t n);
ssize_t __wrap_write(int fd, const void *ptr, size_t n);

ssize_t
__wrap_write(int fd, const void *ptr, size_t n)
{
	if (!refuses || !fake_is_registered(ptr))
		return __real_write(fd, ptr, n);
	errno = EFAULT;
	return -1;
}

static void
test_memory_that_system_calls_cannot_use_is_named(void **state)
{
	char text[1024];

	fake_reset(4, true);
	refuses = true;
	assert_int_equal(rows_of(*state, "device", text, sizeof(text)), FAKE_DEVICES);
	refuses = false;
	assert_int_equal(strncmp(text, "registered memory that system calls cannot use, to host ", 56), 0);
	assert_int_equal(fake_live(), 0);
}

static void
test_a_failure_is_shown(void **state)
{
	char text[1024];

	fake_reset(3, true);
	fake_fail(1, 999);
	assert_int_equal(rows_of(*state, "devices", text, sizeof(text)), 1);
	assert_int_equal(strncmp(text, "none: ", 6), 0);
	fake_reset(3, true);
	fake_set_memory(1000);
	assert_int_equal(rows_of(*state, "device", text, sizeof(text)), FAKE_DEVICES);
	assert_non_null(strstr(text, "device 0: 1000 bytes free"));
	assert_int_equal(fake_live(), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_each_device_has_a_row_with_measured_rates, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_version_of_the_driver_is_shown, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_memory_that_cannot_be_registered_is_named, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_memory_that_system_calls_cannot_use_is_named, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_failure_is_shown, small_setup, small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
