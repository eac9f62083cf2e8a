/* SPDX-License-Identifier: Apache-2.0 */
/* device_spans: neighbours on one node are one span. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/device_spans.h"

static void
test_neighbours_on_one_node_are_joined(void **state)
{
	static const struct device_span added[] = {{0, 0}, {10, 0}, {20, 1}, {20, -1}, {30, 1}, {30, -1}, {40, 0}};
	static const struct device_span left[] = {{0, 0}, {20, -1}, {40, 0}};
	struct device_spans s = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(added) / sizeof(added[0]); i++)
		assert_true(device_spans_add(&s, added[i].begin, added[i].node));
	assert_int_equal(s.list.n, sizeof(left) / sizeof(left[0]));
	for (size_t i = 0; i < s.list.n; i++) {
		assert_int_equal(s.list.items[i].begin, left[i].begin);
		assert_int_equal(s.list.items[i].node, left[i].node);
	}
	device_spans_clear(&s);
	assert_int_equal(s.list.n, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_neighbours_on_one_node_are_joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
