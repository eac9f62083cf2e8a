/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C: the published values (RFC 3720, B.4), both ways of computing it, any pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/crc32c.h"

static void
test_published_values(void **state)
{
	(void)state;
	unsigned char bytes[32];
	uint32_t (*const ways[])(uint32_t, const void *, size_t) = {crc32c, crc32c_generic};
	for (size_t w = 0; w < 2; w++) {
		memset(bytes, 0, sizeof bytes);
		assert_int_equal(ways[w](0, bytes, sizeof bytes), 0x8a9136aa);
		memset(bytes, 0xff, sizeof bytes);
		assert_int_equal(ways[w](0, bytes, sizeof bytes), 0x62a8ab43);
		for (unsigned i = 0; i < 32; i++)
			bytes[i] = (unsigned char)i;
		assert_int_equal(ways[w](0, bytes, sizeof bytes), 0x46dd794e);
		assert_int_equal(ways[w](0, "123456789", 9), 0xe3069283);
		assert_int_equal(ways[w](0, "", 0), 0);
	}
}

static void
test_pieces_add_up_to_the_whole(void **state)
{
	(void)state;
	unsigned char bytes[700];
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (unsigned char)(i * 37 + i / 7);
	const uint32_t whole = crc32c_generic(0, bytes, sizeof bytes);
	for (size_t cut = 0; cut <= sizeof bytes; cut++) {
		assert_int_equal(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof bytes - cut), whole);
		assert_int_equal(crc32c(0, bytes + cut, sizeof bytes - cut),
		                 crc32c_generic(0, bytes + cut, sizeof bytes - cut));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_values),
		cmocka_unit_test(test_pieces_add_up_to_the_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
