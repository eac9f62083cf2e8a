/* SPDX-License-Identifier: Apache-2.0 */
/* vec: arrays grow, start as zeros, and stay as they are without memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/vec.h"

static void
test_items_stay_and_new_ones_are_zero(void **state)
{
	VEC(uint64_t) numbers = {0};

	(void)state;
	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t *item = vec_add(&numbers);
		assert_non_null(item);
		assert_int_equal(*item, 0);
		*item = i;
	}
	assert_int_equal(numbers.n, 1000);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(numbers.items[i], i);
	vec_free(&numbers);
	assert_null(numbers.items);
	assert_int_equal(numbers.n, 0);
}

static void
test_without_memory_the_array_stays(void **state)
{
	VEC(uint32_t) numbers = {0};

	(void)state;
	*(uint32_t *)vec_add(&numbers) = 7;
	assert_true(vec_reserve(&numbers, 16));
	assert_false(vec_reserve(&numbers, SIZE_MAX / 2));
	assert_int_equal(numbers.n, 1);
	assert_int_equal(numbers.items[0], 7);
	vec_free(&numbers);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_items_stay_and_new_ones_are_zero),
		cmocka_unit_test(test_without_memory_the_array_stays),
	};
	return cmocka_run_group_tests_name("vec", tests, NULL, NULL);
}
