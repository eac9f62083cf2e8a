/* SPDX-License-Identifier: Apache-2.0 */
/* CRC64NVME: the published values (NVM Express, NVM command set, 64b CRC test vectors; the check value of CRC
 * catalogues), both ways of computing it, any pieces, and sums that are joined. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/crc64nvme.h"

static void
test_published_values(void **state)
{
	(void)state;
	static unsigned char bytes[4096];
	uint64_t (*const ways[])(uint64_t, const void *, size_t) = {crc64nvme, crc64nvme_generic};
	for (size_t w = 0; w < 2; w++) {
		memset(bytes, 0, sizeof bytes);
		assert_true(ways[w](0, bytes, sizeof bytes) == 0x6482d367eb22b64e);
		memset(bytes, 0xff, sizeof bytes);
		assert_true(ways[w](0, bytes, sizeof bytes) == 0xc0ddba7302eca3ac);
		assert_true(ways[w](0, "123456789", 9) == 0xae8b14860a799888);
		assert_true(ways[w](0, "", 0) == 0);
	}
}

static void
test_pieces_add_up_to_the_whole(void **state)
{
	(void)state;
	unsigned char bytes[300];
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (unsigned char)(i * 37 + i / 7);
	const uint64_t whole = crc64nvme_generic(0, bytes, sizeof bytes);
	for (size_t cut = 0; cut <= sizeof bytes; cut++) {
		const uint64_t first = crc64nvme(0, bytes, cut), second = crc64nvme(0, bytes + cut, sizeof bytes - cut);
		assert_true(crc64nvme(first, bytes + cut, sizeof bytes - cut) == whole);
		assert_true(crc64nvme_join(first, second, sizeof bytes - cut) == whole);
		assert_true(second == crc64nvme_generic(0, bytes + cut, sizeof bytes - cut));
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
