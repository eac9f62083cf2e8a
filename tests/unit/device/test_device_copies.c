/* SPDX-License-Identifier: Apache-2.0 */
/* device_copies: any part of any strided tensor, compared with one element at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "device/device_copies.h"

#define BASE 5000000u /* addresses are numbers: nothing is read */
#define BYTES 90000000u

static uint64_t
draw(uint64_t *state, uint64_t below)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % below;
}

/* The address of byte `at` of the tensor in C order. */
static uint64_t
address_of(const struct pawl_tensor *t, uint64_t element_bytes, uint64_t at)
{
	uint64_t element = at / element_bytes;
	int64_t place = 0, dense = 1;

	for (uint32_t i = t->ndim; i-- > 0;) {
		place += (int64_t)(element % t->shape[i]) * (t->strides ? t->strides[i] : dense);
		dense *= (int64_t)t->shape[i];
		element /= t->shape[i];
	}
	return BASE + (uint64_t)(place * (int64_t)element_bytes) + at % element_bytes;
}

/* Each byte of the range is copied once, between the right addresses. */
static void
check_copies(const struct pawl_tensor *t, uint64_t element_bytes, uint64_t offset, uint64_t nbytes, bool to_tensor)
{
	struct device_copies out = {0};
	uint64_t done = 0;

	assert_int_equal(device_copies_add(&out, t, element_bytes, offset, nbytes, BYTES, to_tensor, NULL), 0);
	for (size_t i = 0; i < out.list.n; i++) {
		const struct device_copy *c = &out.list.items[i];

		assert_true(c->rows == 1 || (c->rows > 1 && c->to_pitch >= c->nbytes && c->from_pitch >= c->nbytes));
		for (uint64_t row = 0; row < c->rows; row++)
			for (uint64_t byte = 0; byte < c->nbytes; byte++) {
				const uint64_t to = c->to + row * c->to_pitch + byte,
					       from = c->from + row * c->from_pitch + byte;

				assert_int_equal(to_tensor ? from : to, BYTES + done);
				assert_int_equal(to_tensor ? to : from, address_of(t, element_bytes, offset + done));
				done++;
			}
	}
	assert_int_equal(done, nbytes);
	vec_free(&out.list);
}

static void
test_any_part_of_any_strides(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		uint64_t random = seed, shape[5], nbytes = 1u << draw(&random, 4);
		int64_t strides[5], dense = 1;
		const uint64_t element_bytes = nbytes;
		struct pawl_tensor t = PAWL_TENSOR_INIT;

		t.ndim = (uint32_t)draw(&random, 6);
		t.shape = shape;
		t.data = (void *)(uintptr_t)BASE;
		for (uint32_t i = t.ndim; i-- > 0;) {
			shape[i] = 1 + draw(&random, 6);
			nbytes *= shape[i];
			strides[i] = dense;
			dense *= (int64_t)(shape[i] + draw(&random, 2)); /* a gap, sometimes */
			if (draw(&random, 6) == 0)
				strides[i] = (int64_t)draw(&random, 200) - 100; /* backwards, 0 and overlaps, too */
		}
		for (uint32_t i = t.ndim; i > 1; i--) { /* transposed */
			const uint64_t other = draw(&random, 3) ? i - 1 : draw(&random, i);
			const int64_t stride = strides[i - 1];

			strides[i - 1] = strides[other];
			strides[other] = stride;
		}
		t.strides = draw(&random, 5) ? strides : NULL;
		const uint64_t offset = draw(&random, nbytes), n = draw(&random, nbytes - offset + 1);

		check_copies(&t, element_bytes, offset, n, seed % 2);
		check_copies(&t, element_bytes, 0, nbytes, seed % 2);
	}
}

static size_t
count_copies(uint32_t ndim, const uint64_t *shape, const int64_t *strides, uint64_t offset, uint64_t nbytes)
{
	struct device_copies out = {0};
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.ndim = ndim;
	t.shape = shape;
	t.strides = strides;
	t.data = (void *)(uintptr_t)BASE;
	assert_int_equal(device_copies_add(&out, &t, 4, offset, nbytes, BYTES, false, NULL), 0);
	size_t n = out.list.n;
	vec_free(&out.list);
	return n;
}

static void
test_common_tensors_need_few_copies(void **state)
{
	(void)state;
	static const uint64_t shape[] = {8, 100, 50};
	static const int64_t columns[] = {10000, 100, 1}, dense[] = {5000, 50, 1}, wide[] = {20000, 100, 1};

	assert_int_equal(count_copies(3, shape, dense, 0, 160000), 1);
	assert_int_equal(count_copies(3, shape, NULL, 123, 1000), 1);
	assert_int_equal(count_copies(3, shape, columns, 0, 160000), 1); /* one pitch for all rows */
	assert_int_equal(count_copies(3, shape, wide, 0, 160000), 8);
	assert_int_equal(count_copies(3, shape, columns, 4, 159000), 3); /* a part of a row, rows, a part */
	assert_int_equal(count_copies(0, NULL, NULL, 0, 4), 1);
	assert_int_equal(count_copies(3, shape, dense, 0, 0), 0);
}

static void
test_copies_that_are_listed_twice_are_made_once(void **state)
{
	(void)state;
	static const uint64_t shape[] = {8, 100, 50};
	static const int64_t wide[] = {20000, 100, 1};
	struct device_copies out = {0};
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.ndim = 3;
	t.shape = shape;
	t.strides = wide;
	for (int i = 0; i < 3; i++) { /* the third one has memory of its own */
		t.data = (void *)(uintptr_t)(BASE + (i == 2 ? 640000 : 0));
		assert_int_equal(device_copies_add(&out, &t, 4, 0, 160000, BYTES, true, NULL), 0);
	}
	assert_int_equal(out.list.n, 24);
	device_copies_drop_twins(&out);
	assert_int_equal(out.list.n, 16);
	for (size_t i = 0; i < 16; i++) {
		assert_int_equal(out.list.items[i].to, BASE + i * 80000);
		assert_int_equal(out.list.items[i].from, BYTES + i % 8 * 20000);
	}
	vec_free(&out.list);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_part_of_any_strides),
		cmocka_unit_test(test_common_tensors_need_few_copies),
		cmocka_unit_test(test_copies_that_are_listed_twice_are_made_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
