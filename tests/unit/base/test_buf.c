/* SPDX-License-Identifier: Apache-2.0 */
/* buf: grows, ends texts, stops at its maximum, and remembers the first failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/buf.h"

static void
test_pieces_are_joined(void **state)
{
	(void)state;
	struct buf b = {0};
	assert_string_equal(buf_str(&b), "");
	buf_puts(&b, "ab");
	buf_putc(&b, 'c');
	buf_put(&b, "d\0e", 3);
	buf_put(&b, NULL, 0);
	buf_printf(&b, "%03d|%s", 7, "x");
	assert_int_equal(b.len, 11);
	assert_memory_equal(buf_str(&b), "abcd\0e007|x", 12);
	assert_int_equal(buf_check(&b, "text", NULL), 0);
	buf_clear(&b);
	assert_null(b.ptr);
	assert_int_equal(b.len, 0);
	buf_clear(&b);
}

static void
test_text_stays_whole_at_every_length(void **state)
{
	(void)state;
	for (size_t step = 1; step < 70; step++) {
		struct buf b = {0};
		for (size_t i = 0; i < 300; i += step)
			buf_printf(&b, "%.*s", (int)step,
			           "0123456789012345678901234567890123456789012345678901234567890123456789");
		assert_int_equal(strlen(buf_str(&b)), b.len);
		assert_true(b.len >= 300 && b.len < 300 + step);
		for (size_t i = 0; i < b.len; i++)
			assert_int_equal(b.ptr[i], '0' + (int)(i % step % 10));
		buf_clear(&b);
	}
}

static void
test_grow_hands_out_room(void **state)
{
	(void)state;
	struct buf b = {0};
	char *room = buf_grow(&b, 1000);
	assert_non_null(room);
	memset(room, 'x', 1000);
	buf_puts(&b, "end");
	assert_int_equal(b.len, 1003);
	assert_string_equal(buf_str(&b) + 998, "xxend");
	buf_clear(&b);
}

static void
test_P16_the_maximum_is_exact(void **state)
{
	(void)state;
	struct buf b = {.max = 10};
	struct pawl_error err;
	buf_puts(&b, "0123456789");
	assert_int_equal(buf_check(&b, "it", &err), 0);
	assert_string_equal(buf_str(&b), "0123456789");
	buf_putc(&b, 'x');
	assert_int_equal(buf_check(&b, "it", &err), PAWL_ELIMIT);
	assert_string_equal(err.message, "it: longer than the limit of 10 bytes");
	buf_clear(&b);
	assert_int_equal(b.failed, 0);
	assert_int_equal(b.max, 10);
	buf_printf(&b, "%s", "01234567890");
	assert_int_equal(b.failed, PAWL_ELIMIT);
	buf_clear(&b);
}

static void
test_failures_stick(void **state)
{
	(void)state;
	struct buf b = {.max = 4};
	buf_puts(&b, "abc");
	buf_puts(&b, "too long");
	assert_int_equal(b.failed, PAWL_ELIMIT);
	buf_putc(&b, 'd');
	buf_printf(&b, "e");
	assert_null(buf_grow(&b, 1));
	assert_string_equal(buf_str(&b), "abc");
	buf_clear(&b);
}

static void
test_absurd_sizes_fail_cleanly(void **state)
{
	(void)state;
	struct buf b = {0};
	buf_putc(&b, 'x');
	assert_null(buf_grow(&b, SIZE_MAX));
	assert_int_equal(b.failed, PAWL_ELIMIT);
	buf_clear(&b);
	buf_putc(&b, 'x');
	assert_null(buf_grow(&b, SIZE_MAX - 1));
	assert_int_equal(b.failed, PAWL_ELIMIT);
	buf_clear(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces_are_joined),   cmocka_unit_test(test_text_stays_whole_at_every_length),
		cmocka_unit_test(test_grow_hands_out_room), cmocka_unit_test(test_P16_the_maximum_is_exact),
		cmocka_unit_test(test_failures_stick),      cmocka_unit_test(test_absurd_sizes_fail_cleanly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
