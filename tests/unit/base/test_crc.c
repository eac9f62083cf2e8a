/* SPDX-License-Identifier: Apache-2.0 */
/* crc: published values of each checksum, parts in any order, copies, pieces and joined
 * checksums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/crc.h"

static void
test_known_sums(void **state)
{
	(void)state;
	assert_int_equal(crc32_bytes("", 0), 0);
	assert_int_equal(crc32_bytes("123456789", 9), 0xcbf43926u);
	assert_int_equal(crc32_bytes("The quick brown fox jumps over the lazy dog", 43), 0x414fa339u);
}

static void
test_parts_in_any_order_make_the_whole(void **state)
{
	unsigned char bytes[1000];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * i + 7);
	const uint32_t whole = crc32_bytes(bytes, sizeof(bytes));
	for (size_t a = 0; a <= sizeof(bytes); a += 37) {
		for (size_t b = a; b <= sizeof(bytes); b += 53) {
			uint32_t parts = crc32_part(bytes + b, sizeof(bytes) - b, 0);

			parts ^= crc32_part(bytes, a, sizeof(bytes) - a);
			parts ^= crc32_part(bytes + a, b - a, sizeof(bytes) - b);
			assert_int_equal(crc32_whole(parts, sizeof(bytes)), whole);
		}
	}
	assert_int_not_equal(crc32_whole(crc32_part(bytes, 999, 1), sizeof(bytes)), whole);
}

/* Of every length about the limits, from and to every place: the checksum is that of the bytes, and
 * they are copied. */
static void
test_copies_are_what_was_summed(void **state)
{
	static const size_t lengths[] = {0, 1, 63, 64, 4095, 4096, 4097, 4160, 8192 + 17, 20000};
	unsigned char from[20100], to[20200];

	(void)state;
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * i / 3 + 11 * i);
	for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
		for (size_t at = 0; at < 70; at += 23) {
			const size_t n = lengths[k];

			memset(to, 0xee, sizeof(to));
			assert_int_equal(crc32_copy_part(to + at + 1, from + at / 2, n, 7),
			                 crc32_part(from + at / 2, n, 7));
			assert_memory_equal(to + at + 1, from + at / 2, n);
			assert_int_equal(to[at], 0xee);
			assert_int_equal(to[at + 1 + n], 0xee);
		}
	}
}

/* Far apart: one byte, and a mebibyte of zeros behind it. */
static void
test_a_part_far_from_the_end(void **state)
{
	static const unsigned char zeros[1 << 16];
	const uint64_t far = (uint64_t)1 << 20;
	uint32_t parts;

	(void)state;
	parts = crc32_part("x", 1, far);
	for (uint64_t at = 0; at < far; at += sizeof(zeros))
		parts ^= crc32_part(zeros, sizeof(zeros), far - at - sizeof(zeros));
	/* the same by itself: a part may begin anywhere */
	assert_int_equal(parts, crc32_part("x", 1, far));
	assert_int_not_equal(crc32_whole(parts, far + 1), crc32_whole(crc32_part("y", 1, far), far + 1));
}

/* RFC 3720, B.4. */
static void
test_published_values_of_crc32c(void **state)
{
	unsigned char bytes[32] = {0};

	(void)state;
	assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x8a9136aa);
	memset(bytes, 0xff, sizeof bytes);
	assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x62a8ab43);
	for (unsigned i = 0; i < 32; i++)
		bytes[i] = (unsigned char)i;
	assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x46dd794e);
	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(crc32c(0, "", 0), 0);
}

/* One bit at a time. */
static uint64_t
slow_crc(uint64_t before, uint64_t polynomial, uint64_t ones, const unsigned char *b, size_t len)
{
	uint64_t value = before ^ ones;

	for (size_t i = 0; i < len; i++) {
		value ^= b[i];
		for (unsigned bit = 0; bit < 8; bit++)
			value = (value >> 1) ^ (value & 1 ? polynomial : 0);
	}
	return value ^ ones;
}

static uint64_t
slow_crc64nvme(uint64_t before, const unsigned char *b, size_t len)
{
	return slow_crc(before, UINT64_C(0x9a6c9329ac4bc9b5), UINT64_MAX, b, len);
}

static void
test_crc32_and_crc32c_of_every_length_and_alignment(void **state)
{
	unsigned char bytes[1100];

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * i * 31 + i / 7);
	for (size_t n = 0; n <= 1050; n++) {
		const unsigned char *at = bytes + n % 17;

		assert_int_equal(crc32_bytes(at, n), slow_crc(0, 0xedb88320, UINT32_MAX, at, n));
		assert_int_equal(crc32c(7, at, n), slow_crc(7, 0x82f63b78, UINT32_MAX, at, n));
	}
}

static void
test_pieces_of_crc32c_add_up_to_the_whole(void **state)
{
	unsigned char bytes[700];

	(void)state;
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (unsigned char)(i * 37 + i / 7);
	const uint32_t whole = crc32c(0, bytes, sizeof bytes);
	for (size_t cut = 0; cut <= sizeof bytes; cut++)
		assert_int_equal(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof bytes - cut), whole);
}

/* NVM Express, NVM command set, 64b CRC test vectors; the check value of CRC catalogues. */
static void
test_published_values_of_crc64nvme(void **state)
{
	static unsigned char bytes[4096];

	(void)state;
	if (!crc64nvme_exists())
		return; /* then nothing calls it: test_s3_config */
	assert_true(crc64nvme(0, bytes, sizeof bytes) == UINT64_C(0x6482d367eb22b64e));
	memset(bytes, 0xff, sizeof bytes);
	assert_true(crc64nvme(0, bytes, sizeof bytes) == UINT64_C(0xc0ddba7302eca3ac));
	assert_true(crc64nvme(0, "123456789", 9) == UINT64_C(0xae8b14860a799888));
	assert_true(crc64nvme(0, "", 0) == 0);
}

static void
test_joined_crc64nvme_is_that_of_the_whole(void **state)
{
	unsigned char bytes[300];

	(void)state;
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (unsigned char)(i * 37 + i / 7);
	const uint64_t whole = slow_crc64nvme(0, bytes, sizeof bytes);
	for (size_t cut = 0; cut <= sizeof bytes; cut++) {
		const size_t rest = sizeof bytes - cut;
		const uint64_t first = slow_crc64nvme(0, bytes, cut), second = slow_crc64nvme(0, bytes + cut, rest);

		assert_true(crc64nvme_join(first, second, rest) == whole);
		if (!crc64nvme_exists())
			continue;
		assert_true(crc64nvme(0, bytes, cut) == first);
		assert_true(crc64nvme(first, bytes + cut, rest) == whole);
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
		cmocka_unit_test(test_published_values_of_crc32c),
		cmocka_unit_test(test_crc32_and_crc32c_of_every_length_and_alignment),
		cmocka_unit_test(test_pieces_of_crc32c_add_up_to_the_whole),
		cmocka_unit_test(test_published_values_of_crc64nvme),
		cmocka_unit_test(test_joined_crc64nvme_is_that_of_the_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
