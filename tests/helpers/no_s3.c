/* SPDX-License-Identifier: Apache-2.0 */
/* no_s3: stands for the tests of what a build without S3 does not have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void
test_this_build_has_no_s3(void **state)
{
	(void)state;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_this_build_has_no_s3)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
