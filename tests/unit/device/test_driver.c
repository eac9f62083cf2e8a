/* SPDX-License-Identifier: Apache-2.0 */
/* driver: only what the process has loaded is used, unless more is demanded; old drivers, and
 * results by name. This program is not linked to the fake driver, but would find it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "device/driver.h"

static void *
load_fake(const char *name)
{
	char path[PATH_MAX + 1] = "", file[PATH_MAX + 64];

	assert_true(readlink("/proc/self/exe", path, PATH_MAX) > 0);
	snprintf(file, sizeof(file), "%s/%s", dirname(path), name);
	void *library = dlopen(file, RTLD_NOW);
	if (!library)
		fail_msg("%s", dlerror());
	return library;
}

static void
test_a_process_without_a_driver_stays_without(void **state)
{
	(void)state;
	static const enum driver_kind kinds[] = {DRIVER_CUDA, DRIVER_HIP};

	for (int i = 0; i < 2; i++) {
		struct device *d = NULL;
		struct pawl_error err = {0};

		assert_int_equal(device_open(kinds[i], false, &d, &err), PAWL_ENOTFOUND);
		assert_null(d);
		assert_non_null(strstr(err.message, "not loaded by this process"));
		assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	}
}

/* As for a program that passes device pointers. */
static void
test_a_demanded_driver_is_loaded(void **state)
{
	struct device *d = NULL;

	(void)state;
	assert_int_equal(device_open(DRIVER_CUDA, true, &d, NULL), 0);
	assert_non_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	device_close(d);
}

static void
test_the_library_of_the_process_is_found(void **state)
{
	(void)state;
	void *library = load_fake("libcuda.so.1");
	void (*hide)(bool) = NULL;
	void *found = dlsym(library, "fake_hide_addresses");
	struct driver drivers[2];

	memcpy(&hide, &found, sizeof(found));
	for (int hidden = 0; hidden < 2; hidden++) {
		hide(hidden);
		assert_int_equal(driver_load(DRIVER_CUDA, hidden, &drivers[hidden], NULL), 0);
	}
	/* The wanted signatures, with and without cuGetProcAddress. */
	found = dlsym(library, "cuMemcpyDtoHAsync_v2");
	for (int i = 0; i < 2; i++)
		assert_memory_equal(&drivers[i].copy_to_host, &found, sizeof(found));
	assert_non_null(drivers[1].copy_batch);
	assert_null(drivers[0].set_device); /* of HIP */

	load_fake("libamdhip64.so.7");
	assert_int_equal(driver_load(DRIVER_HIP, false, &drivers[0], NULL), 0);
	assert_null(drivers[0].ctx_push);
	assert_non_null(drivers[0].set_device);
	assert_null(drivers[0].copy_batch);
}

static int
name_nothing(int result, const char **ret)
{
	(void)result, (void)ret;
	return 1;
}

static void
test_results_have_a_code_and_an_advice(void **state)
{
	(void)state;
	static const struct {
		int result, code;
		bool is_lost;
		const char *text;
	} rows[] = {
		{2, PAWL_ENOMEM, false, "used up"},
		{3, PAWL_EUNSUPPORTED, false, "forked child"},
		{4, PAWL_ECANCELLED, false, "shut down"},
		{101, PAWL_EDEVICE, false, "CUDA_VISIBLE_DEVICES"},
		{214, PAWL_EDEVICE, true, "restart"},
		{700, PAWL_EDEVICE, true, "earlier checkpoints are intact"},
		{719, PAWL_EDEVICE, true, "restart"},
		{801, PAWL_EUNSUPPORTED, false, "not possible on this system"},
		{906, PAWL_EBUSY, false, "being captured"},
		{999, PAWL_EDEVICE, false, "reported an error"},
	};
	const struct driver d = {.kind = DRIVER_CUDA, .error_name = name_nothing};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pawl_error err = {0};
		bool is_lost = !rows[i].is_lost;
		char begin[64];

		snprintf(begin, sizeof(begin), "device 3: cuEventQuery: unknown error (%d): ", rows[i].result);
		assert_int_equal(driver_fail(&d, DRIVER_event_query, rows[i].result, "device 3", &is_lost, &err),
		                 rows[i].code);
		assert_int_equal(is_lost, rows[i].is_lost);
		assert_ptr_equal(strstr(err.message, begin), err.message);
		assert_non_null(strstr(err.message, rows[i].text));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_process_without_a_driver_stays_without),
		cmocka_unit_test(test_a_demanded_driver_is_loaded),
		cmocka_unit_test(test_the_library_of_the_process_is_found),
		cmocka_unit_test(test_results_have_a_code_and_an_advice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
