/* SPDX-License-Identifier: Apache-2.0 */
/* device_measure: rates of both directions, and whether the driver took the memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/device_measure.h"
#include "helpers/device_bed.h"

static struct device *
driver_of(uint64_t seed)
{
	struct device *d = NULL;

	fake_reset(seed, true);
	OK(device_open(DRIVER_CUDA, false, &d, err));
	return d;
}

static void
test_both_directions_are_measured(void **state)
{
	struct device *d = driver_of(1);
	struct device_rates rates;

	(void)state;
	OK(device_measure(d, 1, &rates, err));
	assert_true(rates.is_registered && rates.to_host > 0 && rates.from_host > 0);
	assert_int_equal(fake_registered(), 0); /* given back */
	fake_set_registrable(0);
	OK(device_measure(d, 1, &rates, err));
	assert_true(!rates.is_registered && rates.to_host > 0 && rates.from_host > 0);
	FAILS(PAWL_ENOTFOUND, "device 3 does not exist", device_measure(d, FAKE_DEVICES, &rates, err));
	device_close(d);
	assert_int_equal(fake_live(), 0);
	assert_null(fake_misuse());
}

static void
test_a_device_without_room_is_an_error(void **state)
{
	struct device *d = driver_of(2);
	struct device_rates rates = {.to_host = -1};

	(void)state;
	fake_set_memory(DEVICE_MEASURE_BYTES / 2);
	assert_true(device_measure(d, 0, &rates, NULL) < 0);
	assert_true(rates.to_host < 0); /* untouched */
	device_close(d);
	assert_int_equal(fake_live(), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_directions_are_measured),
		cmocka_unit_test(test_a_device_without_room_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
