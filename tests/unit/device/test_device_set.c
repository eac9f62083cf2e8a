/* SPDX-License-Identifier: Apache-2.0 */
/* device_set: one line of copies for each device that a tensor is on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/device_copies.h"
#include "device/device_set.h"
#include "helpers/device_bed.h"

static struct pawl_tensor
tensor_at(uint64_t pointer, int id)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.data = (void *)(uintptr_t)pointer;
	t.device = PAWL_DEVICE_CUDA;
	t.device_id = id;
	return t;
}

static struct device_line *
line_of(struct device_set *s, uint64_t pointer, int id)
{
	const struct pawl_tensor t = tensor_at(pointer, id);
	struct device_line *line;
	bool is_managed;

	OK(device_set_find(s, &t, &is_managed, &line, err));
	assert_false(is_managed);
	return line;
}

static void
test_each_device_has_one_line(void **state)
{
	struct device_set s;
	struct device_line *line;
	bool is_managed;

	(void)state;
	fake_reset(1, true);
	device_set_init(&s);
	const uint64_t first = fake_alloc(0, 100), second = fake_alloc(2, 100), beside = fake_alloc(2, 100);
	const struct pawl_tensor elsewhere = tensor_at(second, 1), managed = tensor_at(fake_alloc_managed(1, 100), -1);

	assert_int_equal(line_of(&s, first, -1)->ordinal, 0);
	assert_int_equal(line_of(&s, second + 50, 2)->ordinal, 2);
	assert_ptr_equal(line_of(&s, second, -1), line_of(&s, beside, -1));
	assert_ptr_not_equal(line_of(&s, first, -1), line_of(&s, second, -1));
	assert_null(line_of(&s, (uint64_t)(uintptr_t)&s, -1)); /* host memory */
	FAILS(PAWL_EUSAGE, "device_id is 1, but the memory is on device 2",
	      device_set_find(&s, &elsewhere, &is_managed, &line, err));
	OK(device_set_find(&s, &managed, &is_managed, &line, err));
	assert_true(is_managed && line->ordinal == 1);
	device_set_clear(&s);
	assert_int_equal(fake_live(), 0);
	assert_null(fake_misuse());
}

static void
test_copies_of_a_line_end_before_the_set_is_cleared(void **state)
{
	char host[100] = {0};
	struct device_set s;
	struct device_copies copies = {0};
	uint64_t unit = 7;

	(void)state;
	fake_reset(2, true);
	device_set_init(&s);
	const uint64_t memory = fake_alloc(1, sizeof(host));
	struct device_line *line = line_of(&s, memory, -1);

	OK(device_line_copy(line, DEVICE_TO_HOST, &copies, &unit, err));
	assert_int_equal(unit, 7); /* there was nothing to copy */
	memset(fake_shadow(memory), 5, sizeof(host));
	struct device_copy *copy = vec_add(&copies.list);

	assert_non_null(copy);
	*copy = (struct device_copy){
		.to = (uint64_t)(uintptr_t)host, .from = memory, .nbytes = sizeof(host), .rows = 1};
	OK(device_line_copy(line, DEVICE_TO_HOST, &copies, &unit, err));
	vec_free(&copies.list);
	device_set_clear(&s);
	assert_true(host[0] == 5 && host[sizeof(host) - 1] == 5);
	assert_int_equal(fake_live(), 0);
	assert_null(fake_misuse());
}

static void
test_every_failing_call_leaves_a_set_that_can_be_cleared(void **state)
{
	(void)state;
	for (long nth = 1;; nth++) {
		struct device_set s;
		struct device_line *line = NULL;
		bool is_managed;

		fake_reset(3, true);
		device_set_init(&s);
		const struct pawl_tensor t = tensor_at(fake_alloc(1, 100), -1);

		fake_fail(nth, 2); /* no memory */
		const int rc = device_set_find(&s, &t, &is_managed, &line, NULL);
		const bool was_reached = fake_calls() >= nth;

		assert_true((rc == 0) == (line != NULL));
		fake_fail(0, 0);
		device_set_clear(&s);
		assert_int_equal(fake_live(), 0);
		if (!was_reached)
			break;
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_device_has_one_line),
		cmocka_unit_test(test_copies_of_a_line_end_before_the_set_is_cleared),
		cmocka_unit_test(test_every_failing_call_leaves_a_set_that_can_be_cleared),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
