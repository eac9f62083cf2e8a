/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of CRC-32: known sums, sums of parts in any order, and the processor's way against the tables'. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/crc32.h"

static void
test_known_sums(void **state)
{
	struct crc32 c;

	(void)state;
	crc32_init(&c);
	assert_int_equal(crc32_bytes(&c, "", 0), 0);
	assert_int_equal(crc32_bytes(&c, "123456789", 9), 0xcbf43926u);
	assert_int_equal(crc32_bytes(&c, "The quick brown fox jumps over the lazy dog", 43), 0x414fa339u);
}

static void
test_parts_in_any_order_make_the_whole(void **state)
{
	unsigned char bytes[1000];
	struct crc32 c;

	(void)state;
	crc32_init(&c);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * i + 7);
	const uint32_t whole = crc32_bytes(&c, bytes, sizeof(bytes));
	for (size_t a = 0; a <= sizeof(bytes); a += 37) {
		for (size_t b = a; b <= sizeof(bytes); b += 53) {
			uint32_t parts = crc32_part(&c, bytes + b, sizeof(bytes) - b, 0);

			parts ^= crc32_part(&c, bytes, a, sizeof(bytes) - a);
			parts ^= crc32_part(&c, bytes + a, b - a, sizeof(bytes) - b);
			assert_int_equal(crc32_whole(&c, parts, sizeof(bytes)), whole);
		}
	}
	assert_int_not_equal(crc32_whole(&c, crc32_part(&c, bytes, 999, 1), sizeof(bytes)), whole);
}

/* Of every length about the limits, from and to every place: the sum is that of the bytes, and they arrive. */
static void
test_copies_are_what_was_summed(void **state)
{
	static const size_t lengths[] = {0, 1, 63, 64, 4095, 4096, 4097, 4160, 8192 + 17, 20000};
	unsigned char from[20100], to[20200];
	struct crc32 c;

	(void)state;
	crc32_init(&c);
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * i / 3 + 11 * i);
	for (unsigned folds = 0; folds < 2; folds++) {
		for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
			for (size_t at = 0; at < 70; at += 23) {
				const size_t n = lengths[k];

				memset(to, 0xee, sizeof(to));
				assert_int_equal(crc32_copy_part(&c, to + at + 1, from + at / 2, n, 7),
				                 crc32_part(&c, from + at / 2, n, 7));
				assert_memory_equal(to + at + 1, from + at / 2, n);
				assert_int_equal(to[at], 0xee);
				assert_int_equal(to[at + 1 + n], 0xee);
			}
		}
		c.folds = false;
	}
}

/* Far apart: one byte, and a mebibyte of zeros behind it. */
static void
test_a_part_far_from_the_end(void **state)
{
	static const unsigned char zeros[1 << 16];
	const uint64_t far = (uint64_t)1 << 20;
	struct crc32 c;
	uint32_t parts;

	(void)state;
	crc32_init(&c);
	parts = crc32_part(&c, "x", 1, far);
	for (uint64_t at = 0; at < far; at += sizeof(zeros))
		parts ^= crc32_part(&c, zeros, sizeof(zeros), far - at - sizeof(zeros));
	/* the same by itself: a part may begin anywhere */
	assert_int_equal(parts, crc32_part(&c, "x", 1, far));
	assert_int_not_equal(crc32_whole(&c, parts, far + 1), crc32_whole(&c, crc32_part(&c, "y", 1, far), far + 1));
}

/* By multiplication as by tables, whatever the length and the place. */
static void
test_the_processor_and_the_tables_agree(void **state)
{
	unsigned char bytes[1100];
	struct crc32 fast, slow;

	(void)state;
	crc32_init(&fast);
	slow = fast;
	slow.folds = false;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * i * 31 + i / 7);
	for (size_t n = 0; n <= 1050; n++) {
		const unsigned char *at = bytes + n % 17;

		assert_int_equal(crc32_bytes(&fast, at, n), crc32_bytes(&slow, at, n));
		assert_int_equal(crc32_part(&fast, at, n, 12345), crc32_part(&slow, at, n, 12345));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_sums),
		cmocka_unit_test(test_parts_in_any_order_make_the_whole),
		cmocka_unit_test(test_copies_are_what_was_summed),
		cmocka_unit_test(test_a_part_far_from_the_end),
		cmocka_unit_test(test_the_processor_and_the_tables_agree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
