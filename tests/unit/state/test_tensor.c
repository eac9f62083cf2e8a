/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of dtypes and of the copy between strided tensors and their logical contents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state/state.h"
#include "helpers/trees.h"

static void
test_dtypes_have_names_and_widths(void **unused)
{
	(void)unused;
	static const struct {
		int dtype;
		const char *name;
		unsigned bits;
	} rows[] = {
		{PAWL_BOOL, "BOOL", 8},
		{PAWL_F4, "F4", 4},
		{PAWL_F6_E2M3, "F6_E2M3", 6},
		{PAWL_F6_E3M2, "F6_E3M2", 6},
		{PAWL_U8, "U8", 8},
		{PAWL_I8, "I8", 8},
		{PAWL_F8_E5M2, "F8_E5M2", 8},
		{PAWL_F8_E4M3, "F8_E4M3", 8},
		{PAWL_F8_E8M0, "F8_E8M0", 8},
		{PAWL_F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
		{PAWL_F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
		{PAWL_I16, "I16", 16},
		{PAWL_U16, "U16", 16},
		{PAWL_F16, "F16", 16},
		{PAWL_BF16, "BF16", 16},
		{PAWL_I32, "I32", 32},
		{PAWL_U32, "U32", 32},
		{PAWL_F32, "F32", 32},
		{PAWL_C64, "C64", 64},
		{PAWL_F64, "F64", 64},
		{PAWL_I64, "I64", 64},
		{PAWL_U64, "U64", 64},
		{PAWL_C128, "C128", 128},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(rows[i].dtype, i + 1); /* the numbers are pinned */
		assert_string_equal(pawl_dtype_name(rows[i].dtype), rows[i].name);
		assert_int_equal(pawl_dtype_bits(rows[i].dtype), rows[i].bits);
		assert_int_equal(pawl_dtype_from_name(rows[i].name), rows[i].dtype);
	}
	static const int unknown[] = {0, -1, 24, 1000, INT32_MIN, INT32_MAX};
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		assert_null(pawl_dtype_name(unknown[i]));
		assert_int_equal(pawl_dtype_bits(unknown[i]), 0);
	}
	static const char *const names[] = {"", "F", "f32", "F3", "F320", "F8", "float32"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		assert_int_equal(pawl_dtype_from_name(names[i]), 0);
	assert_int_equal(pawl_dtype_from_name(NULL), 0);
}

static void
test_size_of_a_tensor(void **unused)
{
	(void)unused;
	static uint64_t shape[65] = {3, 4}, odd[1] = {3}, even[1] = {4}, none[2] = {0, 1ull << 40};
	static uint64_t huge[2] = {1ull << 31, 1ull << 33}, empty_huge[3] = {1ull << 40, 0, 1ull << 40};
	static const int64_t back[2] = {-4, -1}, far[2] = {1ll << 61, 1}, lowest[2] = {INT64_MIN, 1};
	static const struct {
		struct pawl_tensor t;
		int rc;
		uint64_t nbytes;
	} cases[] = {
		{{.dtype = PAWL_F32, .ndim = 2, .shape = shape}, 0, 48},
		{{.dtype = PAWL_C128}, 0, 16},
		{{.dtype = PAWL_F64, .ndim = 2, .shape = none}, 0, 0},
		{{.dtype = PAWL_F4, .ndim = 1, .shape = even}, 0, 2},
		{{.dtype = PAWL_F6_E2M3, .ndim = 1, .shape = even}, 0, 3},
		{{.dtype = PAWL_F4, .ndim = 1, .shape = odd}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_F6_E3M2, .ndim = 1, .shape = odd}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_U8, .ndim = 2, .shape = huge}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_U8, .ndim = 3, .shape = empty_huge}, PAWL_EUSAGE, 0},
		{{.dtype = 0, .ndim = 2, .shape = shape}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_U8, .ndim = 65, .shape = shape}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_U8, .ndim = 1}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_F32, .ndim = 2, .shape = shape, .strides = back}, 0, 48},
		{{.dtype = PAWL_F32, .ndim = 2, .shape = shape, .strides = far}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_F32, .ndim = 2, .shape = shape, .strides = lowest}, PAWL_EUSAGE, 0},
		{{.dtype = PAWL_F4, .ndim = 2, .shape = shape, .strides = back}, PAWL_EUNSUPPORTED, 0},
		{{.dtype = PAWL_F4, .ndim = 1, .shape = even, .strides = back + 1}, PAWL_EUNSUPPORTED, 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t nbytes = 77;
		struct pawl_error err = {0};
		int rc = tensor_nbytes(&cases[i].t, &nbytes, &err);
		if (rc != cases[i].rc || err.code != rc || nbytes != (rc == 0 ? cases[i].nbytes : 77))
			fail_msg("case %zu: %d, %llu (%s)", i, rc, (unsigned long long)nbytes, err.message);
	}
}

static void
test_which_strides_are_contiguous(void **unused)
{
	(void)unused;
	static const uint64_t shape[3] = {2, 1, 3}, empty[3] = {2, 0, 3};
	static const struct {
		int64_t strides[3];
		bool expected;
	} cases[] = {
		{{3, 3, 1}, true},   {{3, -99, 1}, true}, {{3, 0, 1}, true},  {{1, 1, 2}, false},
		{{-3, 3, 1}, false}, {{0, 3, 1}, false},  {{4, 4, 1}, false}, {{3, 3, -1}, false},
	};
	struct pawl_tensor t = {.dtype = PAWL_U8, .ndim = 3, .shape = shape};

	assert_true(tensor_is_contiguous(&t));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		t.strides = cases[i].strides;
		t.shape = shape;
		assert_int_equal(tensor_is_contiguous(&t), cases[i].expected);
		t.shape = empty;
		assert_true(tensor_is_contiguous(&t));
	}
	t.ndim = 0;
	assert_true(tensor_is_contiguous(&t));
}

/* ------------------------------------------------ copies, against a plain model */

#define MAX_ELEMENTS 4096

/* A tensor inside memory, whose first element is at `first`. */
struct sample {
	struct pawl_tensor t;
	uint64_t shape[PAWL_MAX_DIMS];
	int64_t strides[PAWL_MAX_DIMS];
	size_t item, count, memory_items, first;
	unsigned char *memory;
};

/* Element by element, the slow and obvious way. */
static size_t
address_of(const struct sample *s, size_t element)
{
	int64_t at = (int64_t)s->first;

	for (uint32_t d = s->t.ndim; d-- > 0;) {
		at += s->shape[d] > 1 ? (int64_t)(element % s->shape[d]) * s->strides[d] : 0;
		element /= s->shape[d];
	}
	return (size_t)at * s->item;
}

/* Random dims in random memory order: transposed, negative, stepped, broadcast (when allowed). */
static void
sample_make(struct sample *s, struct tree_random *r, bool broadcast)
{
	static const int dtypes[] = {PAWL_U8, PAWL_BF16, PAWL_F32, PAWL_F64, PAWL_C128};
	uint32_t order[6];
	size_t reach = 1;
	int64_t first = 0;

	memset(s, 0, sizeof(*s));
	s->t = (struct pawl_tensor)PAWL_TENSOR_INIT;
	s->t.dtype = dtypes[tree_below(r, 5)];
	s->item = pawl_dtype_bits(s->t.dtype) / 8;
	s->t.ndim = tree_below(r, 6);
	s->count = 1;
	for (uint32_t d = 0; d < s->t.ndim; d++) {
		s->shape[d] = 1 + tree_below(r, 4);
		s->count *= s->shape[d];
		order[d] = d;
	}
	for (uint32_t d = s->t.ndim; d > 1 && tree_below(r, 2); d--) {
		uint32_t other = tree_below(r, d), swap = order[d - 1];
		order[d - 1] = order[other];
		order[other] = swap;
	}
	for (uint32_t i = s->t.ndim; i-- > 0;) { /* innermost in memory first */
		uint32_t d = order[i];
		int64_t stride = (int64_t)reach * (1 + (tree_below(r, 4) == 0));
		if (broadcast && tree_below(r, 6) == 0)
			stride = 0;
		else
			reach = (size_t)stride * s->shape[d];
		if (tree_below(r, 5) == 0) {
			first += stride * (int64_t)(s->shape[d] - 1);
			stride = -stride;
		}
		s->strides[d] = stride;
		if (s->shape[d] == 1 && tree_below(r, 2))
			s->strides[d] = INT64_MAX; /* says nothing */
	}
	s->first = (size_t)first;
	s->memory_items = reach;
	s->memory = malloc(reach * s->item); /* exactly: the sanitizer sees one byte too many */
	assert_non_null(s->memory);
	for (size_t i = 0; i < reach * s->item; i++)
		s->memory[i] = (unsigned char)tree_next(r);
	s->t.shape = s->shape;
	s->t.strides = s->strides;
	s->t.data = s->memory + s->first * s->item;
}

static void
test_P1_gather_equals_the_model_for_any_strides_and_ranges(void **unused)
{
	(void)unused;
	struct tree_random r = {12345};
	static unsigned char expected[MAX_ELEMENTS * 16], found[MAX_ELEMENTS * 16];
	size_t strided = 0;

	for (int round = 0; round < 4000; round++) {
		struct sample s;
		sample_make(&s, &r, true);
		size_t nbytes = s.count * s.item;
		for (size_t i = 0; i < s.count; i++)
			memcpy(expected + i * s.item, s.memory + address_of(&s, i), s.item);
		tensor_gather(&s.t, 0, nbytes, found);
		assert_memory_equal(found, expected, nbytes);
		for (int k = 0; k < 6; k++) {
			size_t offset = tree_below(&r, (unsigned)nbytes + 1);
			size_t n = tree_below(&r, (unsigned)(nbytes - offset) + 1);
			unsigned char *part = malloc(n ? n : 1);
			tensor_gather(&s.t, offset, n, part);
			assert_memory_equal(part, expected + offset, n);
			free(part);
		}
		strided += !tensor_is_contiguous(&s.t);
		free(s.memory);
	}
	assert_in_range(strided, 2000, 3999);
}

static void
test_P1_scatter_in_pieces_equals_the_model_and_touches_nothing_else(void **unused)
{
	(void)unused;
	struct tree_random r = {54321};
	static unsigned char contents[MAX_ELEMENTS * 16];

	for (int round = 0; round < 4000; round++) {
		struct sample s;
		sample_make(&s, &r, false);
		size_t nbytes = s.count * s.item, all = s.memory_items * s.item;
		unsigned char *expected = malloc(all);
		for (size_t i = 0; i < nbytes; i++)
			contents[i] = (unsigned char)tree_next(&r);
		memcpy(expected, s.memory, all);
		for (size_t i = 0; i < s.count; i++)
			memcpy(expected + address_of(&s, i), contents + i * s.item, s.item);
		for (size_t at = 0; at < nbytes;) {
			size_t n = 1 + tree_below(&r, (unsigned)(nbytes - at));
			tensor_scatter(&s.t, at, n, contents + at);
			at += n;
		}
		assert_memory_equal(s.memory, expected, all);
		free(expected);
		free(s.memory);
	}
}

static void
test_small_elements_and_empty_tensors_are_copied_as_bytes(void **unused)
{
	(void)unused;
	uint64_t shape[2] = {3, 4}, empty[2] = {3, 0};
	int64_t strides[2] = {4, 1};
	unsigned char data[6] = {1, 2, 3, 4, 5, 6}, out[6] = {0};
	struct pawl_tensor t = {.dtype = PAWL_F4, .ndim = 2, .shape = shape, .strides = strides, .data = data};

	tensor_gather(&t, 1, 4, out);
	assert_memory_equal(out, "\2\3\4\5\0\0", 6);
	tensor_scatter(&t, 4, 2, "\x0e\x0f");
	assert_memory_equal(data, "\1\2\3\4\x0e\x0f", 6);
	t.shape = empty;
	t.data = NULL;
	tensor_gather(&t, 0, 0, out);
	tensor_scatter(&t, 0, 0, out);
	assert_memory_equal(out, "\2\3\4\5\0\0", 6);
}

static void
test_a_view_of_a_large_storage_reads_only_its_elements(void **unused)
{
	(void)unused;
	uint64_t shape[1] = {10};
	int64_t strides[1] = {-3};
	float storage[28], out[10];
	struct pawl_tensor t = {.dtype = PAWL_F32, .ndim = 1, .shape = shape, .strides = strides, .data = storage + 27};

	for (int i = 0; i < 28; i++)
		storage[i] = (float)i;
	tensor_gather(&t, 0, sizeof(out), out);
	for (int i = 0; i < 10; i++)
		assert_true(out[i] == (float)(27 - 3 * i));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dtypes_have_names_and_widths),
		cmocka_unit_test(test_size_of_a_tensor),
		cmocka_unit_test(test_which_strides_are_contiguous),
		cmocka_unit_test(test_P1_gather_equals_the_model_for_any_strides_and_ranges),
		cmocka_unit_test(test_P1_scatter_in_pieces_equals_the_model_and_touches_nothing_else),
		cmocka_unit_test(test_small_elements_and_empty_tensors_are_copied_as_bytes),
		cmocka_unit_test(test_a_view_of_a_large_storage_reads_only_its_elements),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
