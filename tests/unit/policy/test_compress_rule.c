/* SPDX-License-Identifier: Apache-2.0 */
/* compress_rule: on where the link is slower than the coder, without switching back and
 * forth; off where there is no gain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "policy/compress_rule.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define GB 1000000000u

static struct compress_rate
rate_of(double bytes_per_second)
{
	struct compress_rate r = {0};

	if (bytes_per_second > 0)
		compress_measure(&r, GB, GB / bytes_per_second);
	return r;
}

static void
test_E11_on_where_the_link_is_slower_than_the_coder(void **state)
{
	static const struct {
		double store, mirror, coder; /* bytes a second; 0 = not known */
		bool was_on, on;
	} rows[] = {
		{0, 0, 0, false, false},     /* no link */
		{0, 0, 2e9, true, false},    /* none any more */
		{100e6, 0, 0, false, true},  /* before the coder has been measured */
		{799e6, 0, 0, false, true},  /* below 0.8 of it */
		{801e6, 0, 0, false, false}, /* above */
		{801e6, 0, 0, true, true},   /* but it stays on */
		{1249e6, 0, 0, true, true},  /* up to 1.25 of it */
		{1251e6, 0, 0, true, false},      {10e9, 0, 1.5e9, true, false},    /* a fast link */
		{900e6, 0, 1.5e9, false, true},                                     /* the coder as it is measured */
		{900e6, 0, 1e9, false, false},    {0, 100e6, 1.5e9, false, true},   /* a mirror */
		{0, 10e9, 1.5e9, false, false},   {10e9, 50e6, 1.5e9, false, true}, /* the slower one of two */
		{50e6, 10e9, 1.5e9, false, true}, {10e9, 10e9, 1.5e9, false, false},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct compress_rule r = {.store = rate_of(rows[i].store),
		                          .mirror = rate_of(rows[i].mirror),
		                          .coder = rate_of(rows[i].coder),
		                          .on = rows[i].was_on};
		if (compress_decide(&r) != rows[i].on || r.on != rows[i].on)
			fail_msg("row %zu", i);
	}
}

static void
test_E11_a_link_near_the_coder_does_not_switch_it_back_and_forth(void **state)
{
	struct compress_rule r = {0};
	unsigned n_changes = 0;

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		const bool before = r.on;

		compress_measure(&r.store, GB, i % 2 ? 1.0 / 0.85 : 1.0 / 1.2);
		n_changes += compress_decide(&r) != before;
	}
	assert_int_equal(n_changes, 0);
	for (unsigned i = 0; i < 4; i++) /* a link that has become slow */
		compress_measure(&r.store, GB, 20);
	assert_true(compress_decide(&r));
	for (unsigned i = 0; i < 20; i++) /* and fast again */
		compress_measure(&r.store, GB, 0.1);
	assert_false(compress_decide(&r));
}

static void
test_E11_what_does_not_shrink_is_left_alone_for_a_while(void **state)
{
	struct compress_rule r = {.store = rate_of(50e6)};

	(void)state;
	assert_true(compress_decide(&r));
	compress_saw(&r, GB, GB / 100 * 94);
	assert_true(compress_decide(&r));
	compress_saw(&r, COMPRESS_MIN_BYTES - 1, COMPRESS_MIN_BYTES); /* too little to tell */
	assert_true(compress_decide(&r));
	compress_saw(&r, GB, GB / 100 * 96);
	for (unsigned i = 0; i < COMPRESS_REST_SAVES; i++)
		assert_false(compress_decide(&r));
	assert_true(compress_decide(&r)); /* tried again */
}

static void
test_rates_follow_what_is_measured_last(void **state)
{
	struct compress_rate r = {0};

	(void)state;
	assert_true(compress_rate(&r) == 0);
	compress_measure(&r, COMPRESS_MIN_BYTES - 1, 1);
	compress_measure(&r, GB, 0);
	assert_true(compress_rate(&r) == 0);
	compress_measure(&r, GB, 1);
	assert_true(compress_rate(&r) == 1e9);
	for (unsigned i = 0; i < 10; i++)
		compress_measure(&r, GB, 0.1);
	assert_true(compress_rate(&r) > 9e9 && compress_rate(&r) < 10e9);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_E11_on_where_the_link_is_slower_than_the_coder),
		cmocka_unit_test(test_E11_a_link_near_the_coder_does_not_switch_it_back_and_forth),
		cmocka_unit_test(test_E11_what_does_not_shrink_is_left_alone_for_a_while),
		cmocka_unit_test(test_rates_follow_what_is_measured_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
