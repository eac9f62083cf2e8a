/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of the table of options: its default is filled in and its range is checked, so a new
 * row needs no test of that; and one option on its way through pawl_open
 * (docs/how-to/extending.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"
#include "run/option_table.h"

static bool
is_ranged(const struct pawl_option *o)
{
	return o->type != PAWL_OPTION_TEXT && o->type != PAWL_OPTION_CALLER && o->type != PAWL_OPTION_SECONDS &&
	       (o->low || o->high);
}

static void
set(struct pawl_open_opts *opts, const struct pawl_option *o, int64_t value)
{
	memcpy((char *)opts + o->offset, &value, o->width); /* little-endian */
}

static int64_t
get(const struct pawl_open_opts *opts, const struct pawl_option *o)
{
	int64_t value = 0;

	memcpy(&value, (const char *)opts + o->offset, o->width);
	return value;
}

static void
test_a_zero_becomes_the_default(void **state)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	const struct pawl_option *o;

	(void)state;
	OK(option_table_complete(&opts, err));
	for (size_t i = 0; (o = pawl_option_get(i)); i++)
		if (is_ranged(o))
			assert_int_equal(get(&opts, o), o->zero_is);
}

static void
test_a_number_outside_its_range_is_refused_by_name(void **state)
{
	const struct pawl_option *o;
	size_t n = 0;

	(void)state;
	for (size_t i = 0; (o = pawl_option_get(i)); i++) {
		if (!is_ranged(o))
			continue;
		struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
		set(&opts, o, o->high);
		OK(option_table_complete(&opts, err));
		set(&opts, o, o->high + 1);
		FAILS(PAWL_EUSAGE, o->name, option_table_complete(&opts, err));
		if (o->low != 0 && o->low != 1) { /* zero is the default */
			set(&opts, o, o->low - 1);
			FAILS(PAWL_EUSAGE, o->name, option_table_complete(&opts, err));
		}
		n++;
	}
	assert_true(n > 10);
}

static void
test_an_option_reaches_the_run(void **state)
{
	struct small_run *r = *state;
	struct pawl *run = NULL;

	r->opts.packs.recycle = 1001;
	FAILS(PAWL_EUSAGE, "packs.recycle: expected 0 to 1000, found 1001", pawl_open(&r->opts, &run, err));
	r->opts.packs.recycle = 1000;
	OK(pawl_open(&r->opts, &run, err));
	OK(pawl_close(run, err));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_zero_becomes_the_default),
		cmocka_unit_test(test_a_number_outside_its_range_is_refused_by_name),
		cmocka_unit_test_setup_teardown(test_an_option_reaches_the_run, small_setup, small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
