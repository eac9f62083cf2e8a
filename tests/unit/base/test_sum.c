/* SPDX-License-Identifier: Apache-2.0 */
/* sum: the published XXH3-128 values at once, in pieces and while copying. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/sum.h"

#define BYTES ((size_t)300000)

static unsigned char *
make_bytes(void)
{
	unsigned char *bytes = mem_alloc(BYTES);
	assert_non_null(bytes);
	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(i * 7 + 3);
	return bytes;
}

static void
assert_sum(struct sum128 sum, const char *hex)
{
	char text[33] = {0};
	sum_to_hex(sum, text);
	assert_string_equal(text, hex);
}

static void
test_published_values(void **state)
{
	(void)state;
	unsigned char *bytes = make_bytes();
	const struct {
		const void *ptr;
		size_t len;
		const char *hex;
	} rows[] = {
		{"", 0, "99aa06d3014798d86001c324468d497f"},         {NULL, 0, "99aa06d3014798d86001c324468d497f"},
		{"a", 1, "a96faf705af16834e6c632b61e964e1f"},        {"abc", 3, "06b05ab6733a618578af5f94892f3950"},
		{bytes, 240, "ad46c1021b076bc704e0b5f034bee80b"},    {bytes, 241, "ac6c3492c3d6b45d8beadd3a8874fe17"},
		{bytes, 100000, "d9e155dd16e141d00c056f6fcc340974"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_sum(sum_bytes(rows[i].ptr, rows[i].len), rows[i].hex);
	mem_free(bytes);
}

static void
test_streams_equal_whole_sums_at_every_length_and_alignment(void **state)
{
	(void)state;
	unsigned char *bytes = make_bytes();
	for (size_t len = 0; len <= 1025; len++) {
		const unsigned char *from = bytes + len % 67;
		struct sum128 expected = sum_bytes(from, len);
		struct sum_stream s;
		size_t cut = len * 3 / 7;
		sum_init(&s);
		sum_update(&s, from, cut);
		sum_update(&s, from + cut, len - cut);
		assert_true(sum_equal(sum_final(&s), expected));
		assert_true(sum_equal(sum_final(&s), expected));
	}
	mem_free(bytes);
}

/* Copies with guards around the destination, checks bytes, guards and sum. */
static void
check_copy(unsigned char *room, size_t dst_shift, const unsigned char *from, size_t len)
{
	unsigned char *to = room + 64 + dst_shift;
	struct sum_stream s;

	memset(room, 0xa5, len + 256);
	sum_init(&s);
	sum_copy(&s, to, from, len);
	if (len > 0)
		assert_memory_equal(to, from, len);
	assert_true(sum_equal(sum_final(&s), sum_bytes(from, len)));
	memset(to, 0, len);
	sum_copy(NULL, to, from, len);
	if (len > 0)
		assert_memory_equal(to, from, len);
	for (size_t i = 1; i <= 64; i++) {
		assert_int_equal(to[-(ptrdiff_t)i], 0xa5);
		assert_int_equal(to[len + i - 1], 0xa5);
	}
}

static void
test_P1_a_copy_is_exact_and_sums_what_it_copies(void **state)
{
	(void)state;
	unsigned char *bytes = make_bytes(), *room = mem_alloc(BYTES + 512);
	const size_t lengths[] = {4095, 4096, 4097, 5000, 8191, 65536, 65537, 131071, 262144, 299000};
	for (size_t len = 0; len <= 1025; len++)
		check_copy(room, len % 61, bytes + len % 53, len);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		for (size_t shift = 0; shift < 64; shift += 7)
			check_copy(room, shift, bytes + (shift * 5) % 64, lengths[i]);
	mem_free(bytes);
	mem_free(room);
}

/* Another process writes all the time, so every read of a place may find something else there. */
static void
test_P1_a_copy_of_bytes_that_change_meanwhile_has_the_sum_of_what_was_copied(void **state)
{
	(void)state;
	volatile unsigned char *shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned char *room = mem_alloc(BYTES);
	size_t n_changed = 0, n_wrong = 0;

	assert_true((void *)(uintptr_t)shared != MAP_FAILED);
	pid_t writer = fork();
	assert_true(writer >= 0);
	for (unsigned char value = 0; writer == 0; value++)
		for (size_t i = 0; i < BYTES; i += 61)
			shared[i] = value;
	for (size_t i = 0; i < 1000 || n_changed < 100; i++) {
		size_t len = i % 4 == 0 ? 3000 + i % 1000 : BYTES - 100 - i % 1000;
		struct sum_stream s;

		sum_init(&s);
		sum_copy(&s, room + i % 64, (const unsigned char *)(uintptr_t)shared + i % 61, len);
		n_wrong += !sum_equal(sum_final(&s), sum_bytes(room + i % 64, len));
		n_changed += memcmp(room + i % 64, (const unsigned char *)(uintptr_t)shared + i % 61, len) != 0;
	}
	kill(writer, SIGKILL);
	waitpid(writer, NULL, 0);
	munmap((void *)(uintptr_t)shared, BYTES);
	assert_int_equal(n_wrong, 0);
	mem_free(room);
}

static void
test_copies_join_into_one_sum(void **state)
{
	(void)state;
	unsigned char *bytes = make_bytes(), *room = mem_alloc(BYTES);
	struct sum_stream s;
	sum_init(&s);
	size_t at = 0;
	for (size_t step = 1; at < BYTES; step = step * 3 % 20011) {
		size_t len = step < BYTES - at ? step : BYTES - at;
		sum_copy(&s, room + at, bytes + at, len);
		at += len;
	}
	assert_memory_equal(room, bytes, BYTES);
	assert_true(sum_equal(sum_final(&s), sum_bytes(bytes, BYTES)));
	mem_free(bytes);
	mem_free(room);
}

static void
test_P1_every_flipped_bit_changes_the_sum(void **state)
{
	(void)state;
	unsigned char bytes[600];
	memset(bytes, 0x5a, sizeof(bytes));
	struct sum128 sum = sum_bytes(bytes, sizeof(bytes));
	for (size_t bit = 0; bit < sizeof(bytes) * 8; bit++) {
		bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_false(sum_equal(sum_bytes(bytes, sizeof(bytes)), sum));
		bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
	}
	assert_true(sum_equal(sum_bytes(bytes, sizeof(bytes)), sum));
}

static void
test_hex_is_strict_and_comes_back(void **state)
{
	(void)state;
	struct sum128 sum = {.lo = UINT64_C(0xfedcba9876543210), .hi = UINT64_C(0x0123456789abcdef)}, back;
	char text[33] = {0};
	sum_to_hex(sum, text);
	assert_string_equal(text, "0123456789abcdeffedcba9876543210");
	assert_true(sum_from_hex(text, &back));
	assert_true(sum_equal(back, sum));
	const char bad[] = {'A', 'F', 'g', ' ', '/', ':', '`', '\0', '\xff', '@'};
	for (size_t i = 0; i < sizeof(bad); i++)
		for (size_t at = 0; at < 32; at += 31) {
			char wrong[33];
			memcpy(wrong, text, sizeof(wrong));
			wrong[at] = bad[i];
			assert_false(sum_from_hex(wrong, &back));
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_values),
		cmocka_unit_test(test_streams_equal_whole_sums_at_every_length_and_alignment),
		cmocka_unit_test(test_P1_a_copy_is_exact_and_sums_what_it_copies),
		cmocka_unit_test(test_P1_a_copy_of_bytes_that_change_meanwhile_has_the_sum_of_what_was_copied),
		cmocka_unit_test(test_copies_join_into_one_sum),
		cmocka_unit_test(test_P1_every_flipped_bit_changes_the_sum),
		cmocka_unit_test(test_hex_is_strict_and_comes_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
