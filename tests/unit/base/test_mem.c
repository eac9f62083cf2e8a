/* SPDX-License-Identifier: Apache-2.0 */
/* mem: overflow ends in NULL, the bump allocator keeps its alignment and its limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bump.h"
#include "base/mem.h"

static void
test_sizes_that_overflow_give_null(void **state)
{
	(void)state;
	assert_null(mem_zalloc(SIZE_MAX / 2, 3));
	assert_null(mem_resize(NULL, SIZE_MAX / 2, 3));
	assert_null(mem_strndup("", SIZE_MAX));
	struct bump b = {0};
	assert_null(bump_array(&b, UINT64_MAX / 2, 3));
	assert_null(bump_alloc(&b, SIZE_MAX));
	assert_null(bump_alloc(&b, SIZE_MAX - 8));
	assert_null(bump_strndup(&b, "", SIZE_MAX));
	bump_clear(&b);
}

static void
test_nothing_is_a_unique_pointer(void **state)
{
	(void)state;
	void *a = mem_alloc(0), *b = mem_alloc(0), *c = mem_zalloc(0, 8), *d = mem_resize(NULL, 0, 8);
	assert_non_null(a);
	assert_non_null(b);
	assert_non_null(c);
	assert_non_null(d);
	assert_ptr_not_equal(a, b);
	mem_free(a);
	mem_free(b);
	mem_free(c);
	mem_free(d);
	mem_free(NULL);
}

static void
test_a_failed_resize_keeps_the_block(void **state)
{
	(void)state;
	char *text = mem_strdup("kept");
	assert_null(mem_resize(text, SIZE_MAX / 2, 4));
	assert_string_equal(text, "kept");
	text = mem_resize(text, 100, 1);
	assert_string_equal(text, "kept");
	mem_free(text);
}

static void
test_zalloc_is_zero(void **state)
{
	(void)state;
	unsigned char *bytes = mem_zalloc(100, 10);
	for (size_t i = 0; i < 1000; i++)
		assert_int_equal(bytes[i], 0);
	mem_free(bytes);
}

static void
test_strings(void **state)
{
	(void)state;
	char *a = mem_strndup("hello world", 5), *b = mem_printf("%s-%d", "x", 42);
	assert_string_equal(a, "hello");
	assert_string_equal(b, "x-42");
	mem_free(a);
	mem_free(b);
}

static void
test_cleanup_frees_and_steal_takes(void **state)
{
	(void)state;
	char *taken = NULL;
	{
		PAWL_FREE char *dropped = mem_strdup("dropped by the scope");
		PAWL_FREE char *text = mem_strdup("taken");
		assert_non_null(dropped);
		taken = steal(&text);
		assert_null(text);
	}
	assert_string_equal(taken, "taken");
	mem_free(taken);
}

static void
test_checked_arithmetic(void **state)
{
	(void)state;
	uint64_t r = 7;
	assert_true(mem_add_ok(UINT64_MAX - 1, 1, &r));
	assert_int_equal(r, UINT64_MAX);
	assert_false(mem_add_ok(UINT64_MAX, 1, &r));
	assert_true(mem_mul_ok(UINT32_MAX, UINT32_MAX, &r));
	assert_false(mem_mul_ok(UINT64_C(1) << 32, UINT64_C(1) << 32, &r));
	assert_int_equal(mem_round_up(0, 4096), 0);
	assert_int_equal(mem_round_up(1, 4096), 4096);
	assert_int_equal(mem_round_up(4096, 4096), 4096);
}

static void
test_bump_memory_is_aligned_zeroed_and_apart(void **state)
{
	(void)state;
	struct bump b = {0};
	unsigned char *blocks[300];
	size_t sizes[300];
	for (size_t i = 0; i < 300; i++) {
		sizes[i] = (i * 7919) % 20000;
		blocks[i] = bump_alloc(&b, sizes[i]);
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % 16, 0);
		for (size_t k = 0; k < sizes[i]; k++)
			assert_true(blocks[i][k] == 0);
		memset(blocks[i], (int)(i & 0xff), sizes[i]);
	}
	for (size_t i = 0; i < 300; i++)
		for (size_t k = 0; k < sizes[i]; k++)
			assert_true(blocks[i][k] == (i & 0xff));
	bump_clear(&b);
	assert_null(b.chunks);
	assert_int_equal(b.used_bytes, 0);
}

static void
test_bump_strings(void **state)
{
	(void)state;
	struct bump b = {0};
	assert_string_equal(bump_strndup(&b, "abcdef", 3), "abc");
	assert_string_equal(bump_printf(&b, "%05d", 42), "00042");
	bump_clear(&b);
}

static void
test_P16_bump_stops_at_its_limit(void **state)
{
	(void)state;
	struct bump b = {.limit_bytes = 1000};
	size_t n = 0;
	while (bump_alloc(&b, 10))
		n++;
	assert_int_equal(n, 1000 / 16);
	assert_true(b.used_bytes <= 1000);
	assert_null(bump_alloc(&b, 500));
	bump_clear(&b);
	assert_int_equal(b.limit_bytes, 1000);
	assert_non_null(bump_alloc(&b, 992));
	assert_null(bump_alloc(&b, 1));
	/* 16 bytes are taken at a time: the 8 after 992 are not enough for one. */
	assert_false(bump_has_room(&b, 1));
	bump_clear(&b);
	assert_true(bump_has_room(&b, 992));
	assert_false(bump_has_room(&b, 993));
	assert_false(bump_has_room(&b, SIZE_MAX));
	assert_true(bump_has_room(&(struct bump){0}, SIZE_MAX));
}

static int
policy_of(void *ptr)
{
	int mode = -1;

	return syscall(SYS_get_mempolicy, &mode, NULL, 0, ptr, MPOL_F_ADDR) == 0 ? mode : -1;
}

static void
test_pages_are_put_on_the_preferred_node(void **state)
{
	const size_t n = (size_t)1 << 20;
	char *ptr = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(ptr, MAP_FAILED);
	if (policy_of(ptr) < 0)
		skip(); /* a container may forbid these calls, or the kernel lack them */
	ptr[0] = 7;
	mem_prefer_node(ptr, n / 2, -1);
	mem_prefer_node(ptr, n / 2, 1 << 20);
	assert_int_equal(policy_of(ptr), MPOL_DEFAULT);
	mem_prefer_node(ptr, n / 2, 0);
	assert_int_equal(policy_of(ptr), MPOL_PREFERRED);
	assert_int_equal(policy_of(ptr + n / 2), MPOL_DEFAULT);
	assert_int_equal(ptr[0], 7);
	munmap(ptr, n);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes_that_overflow_give_null),
		cmocka_unit_test(test_nothing_is_a_unique_pointer),
		cmocka_unit_test(test_a_failed_resize_keeps_the_block),
		cmocka_unit_test(test_zalloc_is_zero),
		cmocka_unit_test(test_strings),
		cmocka_unit_test(test_cleanup_frees_and_steal_takes),
		cmocka_unit_test(test_checked_arithmetic),
		cmocka_unit_test(test_bump_memory_is_aligned_zeroed_and_apart),
		cmocka_unit_test(test_bump_strings),
		cmocka_unit_test(test_P16_bump_stops_at_its_limit),
		cmocka_unit_test(test_pages_are_put_on_the_preferred_node),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
