/* SPDX-License-Identifier: Apache-2.0 */
/* device: where pointers belong, and whether the driver is started. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/device_bed.h"

static void
test_pointers_belong_to_a_device_or_the_host(void **state)
{
	(void)state;
	struct bed b;
	struct device_place place;
	struct device_pin *pin;
	int local = 0;

	bed_make(&b, 1, 2, UINT64_MAX);
	OK(device_open(DRIVER_CUDA, false, &b.d, err));
	OK(device_pin_new(b.d, 0, NULL, b.host, PAGE, &pin, err));
	OK(device_pin_wait(pin, err));
	OK(device_find(b.d, b.tensors[0] + 100, &place, err));
	assert_int_equal(place.kind, DEVICE_PLACE_DEVICE);
	assert_int_equal(place.ordinal, 2);
	OK(device_find(b.d, fake_alloc_managed(1, PAGE), &place, err));
	assert_int_equal(place.kind, DEVICE_PLACE_MANAGED);
	assert_int_equal(place.ordinal, 1);
	OK(device_find(b.d, (uint64_t)(uintptr_t)b.host, &place, err)); /* registered */
	assert_int_equal(place.kind, DEVICE_PLACE_HOST);
	OK(device_find(b.d, (uint64_t)(uintptr_t)&local, &place, err));
	assert_int_equal(place.kind, DEVICE_PLACE_HOST);
	assert_int_equal(place.ordinal, -1);
	device_pin_free(pin);
	device_close(b.d);
	assert_int_equal(fake_live(), 0);
	bed_check(&b);
}

static void
test_the_driver_is_started_only_on_demand(void **state)
{
	(void)state;
	struct device *d;
	struct device_queue *q;
	struct device_place place;

	fake_reset(1, false);
	OK(device_open(DRIVER_CUDA, false, &d, err));
	OK(device_find(d, 4096, &place, err));
	assert_int_equal(place.kind, DEVICE_PLACE_HOST);
	FAILS(PAWL_EUNSUPPORTED, "not initialised", device_queue_new(d, 0, &q, err));
	device_close(d);
	fake_fail(1, 100);
	FAILS(PAWL_EDEVICE, "driver: cuInit: unknown error (100): no such device",
	      device_open(DRIVER_CUDA, true, &d, err));
	OK(device_open(DRIVER_CUDA, true, &d, err));
	OK(device_queue_new(d, 0, &q, err));
	device_queue_free(q);
	device_close(d);
	device_close(NULL);
	assert_int_equal(fake_live(), 0);
}

static void
test_a_device_that_does_not_exist_is_named(void **state)
{
	(void)state;
	struct device *d;
	struct device_queue *q;

	fake_reset(1, true);
	OK(device_open(DRIVER_CUDA, false, &d, err));
	FAILS(PAWL_EDEVICE,
	      "device 3: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101): no such device; CUDA_VISIBLE_DEVICES",
	      device_queue_new(d, FAKE_DEVICES, &q, err));
	assert_int_equal(device_node(d, FAKE_DEVICES), -1);
	assert_int_equal(device_node(d, 0), -1); /* its address is on no bus */
	device_close(d);
	assert_int_equal(fake_live(), 0);
}

static void
test_references_keep_the_device(void **state)
{
	(void)state;
	struct device *d;
	struct device_queue *q;

	fake_reset(1, true);
	OK(device_open(DRIVER_CUDA, false, &d, err));
	OK(device_queue_new(d, 0, &q, err));
	device_close(d);
	OK(device_queue_drain(q, err));
	device_queue_free(q);
	assert_int_equal(fake_live(), 0);
	assert_null(fake_misuse());
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pointers_belong_to_a_device_or_the_host),
		cmocka_unit_test(test_the_driver_is_started_only_on_demand),
		cmocka_unit_test(test_a_device_that_does_not_exist_is_named),
		cmocka_unit_test(test_references_keep_the_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
