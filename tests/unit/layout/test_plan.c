/* SPDX-License-Identifier: Apache-2.0 */
/* plan: pack 0's header, renewed from save to save, is the one that a new plan makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sum.h"
#include "format/safetensors/safetensors.h"
#include "layout/plan.h"

#define N_TENSORS 40
#define TEXT_MAX 6000

static const struct plan_opts opts = {
	.pack_bytes = 1 << 20, .block_bytes = 1 << 16, .rank = 3, .run_id = "0123456789abcdef0123456789abcdef"};

static struct pawl_state *
make_state(uint32_t n, bool sharded)
{
	static float data[64];
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	uint64_t shape[2] = {4, 4}, whole[2] = {16, 4}, offsets[2] = {8, 0};
	struct pawl_state *s = NULL;
	char name[32];

	assert_int_equal(pawl_state_new(&s, NULL), 0);
	t.dtype = PAWL_F32;
	t.ndim = 2;
	t.shape = shape;
	t.global_shape = sharded ? whole : NULL;
	t.offsets = sharded ? offsets : NULL;
	for (uint32_t i = 0; i < n; i++) {
		t.data = data + i % 8;
		shape[1] = whole[1] = 4 + i; /* no two are tied */
		snprintf(name, sizeof(name), "layer%u/\"w\"", i);
		assert_int_equal(pawl_state_set_tensor(s, name, &t, NULL), 0);
	}
	return s;
}

static struct pawl_slice
slice(const char *text)
{
	return (struct pawl_slice){text, strlen(text)};
}

/* The header that a plan of its own has for these texts. */
static void
expect_header(struct plan *renewed, const struct pawl_state *state, const char *checkpoint, const char *text)
{
	struct plan *fresh = NULL;

	assert_int_equal(plan_refresh(renewed, &opts, slice(checkpoint), slice(text), NULL), 0);
	assert_int_equal(plan_make(state, &opts, &fresh, NULL), 0);
	assert_int_equal(plan_refresh(fresh, &opts, slice(checkpoint), slice(text), NULL), 0);
	assert_int_equal(renewed->packs[0].header.len, fresh->packs[0].header.len);
	assert_memory_equal(renewed->packs[0].header.ptr, fresh->packs[0].header.ptr, fresh->packs[0].header.len);
	assert_int_equal(renewed->nbytes, fresh->nbytes);
	assert_int_equal(renewed->packs[0].nbytes, fresh->packs[0].nbytes);
	plan_free(fresh);
}

static void
test_a_renewed_header_is_the_one_of_a_new_plan(void **unused)
{
	static const char *const rows[][2] = {
		{"{\"step\":9}", "{\"a\":1}"},
		{"{\"step\":9}", "{\"a\":1}"}, /* nothing has changed */
		{"{\"step\":10}", "{\"a\":1}"},
		{"{\"step\":10}", "{\"a\":12}"},
		{"{\"step\":11}", "{\"a\":1}"},
		{"{\"step\":11}", ""},
		{"", "{}"},
		{"{}", "{}{}"},
		{"{}", "{}"},
		{"{\"m\":1.5}", "\"\"\\\\\""},
		{"{\"m\":1.5}", "\"\"\\\\\\\""},
		{"{\"m\":1.5}", "\"\xc3\xa4\"\n1"},
		{"{\"m\":1.5}", "\"\xc3\xb6\"\n1"},
		{"{\"m\":1.5}", "\"\xc3\"\xa4\"\n1"},
		{"{\"m\":1.5}", "x"},
	};
	(void)unused;
	for (int sharded = 0; sharded < 2; sharded++)
		for (uint32_t n = 0; n <= N_TENSORS; n += N_TENSORS / 2) {
			struct pawl_state *state = make_state(n, sharded);
			struct plan *plan = NULL;

			assert_int_equal(plan_make(state, &opts, &plan, NULL), 0);
			for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
				expect_header(plan, state, rows[i][0], rows[i][1]);
			plan_free(plan);
			pawl_state_free(state);
		}
}

static void
put_random(char *text, size_t n)
{
	static const char letters[] = "abcdef012,:{}[]\"\"\\";

	for (size_t i = 0; i < n; i++)
		text[i] = letters[(size_t)rand() % (sizeof(letters) - 1)];
	text[n] = 0;
}

/* Texts that change, grow and shrink anywhere, across the borders of the padding. */
static void
test_random_changes(void **unused)
{
	struct pawl_state *state = make_state(N_TENSORS, true);
	char checkpoint[TEXT_MAX + 1], text[2 * TEXT_MAX + 1];
	struct plan *plan = NULL;

	(void)unused;
	srand(1);
	put_random(checkpoint, 100);
	put_random(text, TEXT_MAX);
	assert_int_equal(plan_make(state, &opts, &plan, NULL), 0);
	for (int i = 0; i < 400; i++) {
		size_t len = strlen(text), at = (size_t)rand() % (len + 1), cut = (size_t)rand() % (len - at + 1);
		size_t more = (size_t)rand() % (len < TEXT_MAX ? TEXT_MAX : 10);
		char added[TEXT_MAX + 1];

		cut = i % 3 ? cut % 8 : cut;
		put_random(added, i % 3 ? more % 8 : more);
		memmove(text + at + strlen(added), text + at + cut, len - at - cut + 1);
		memcpy(text + at, added, strlen(added));
		if (i % 2)
			put_random(checkpoint, (size_t)rand() % 300);
		expect_header(plan, state, checkpoint, text);
	}
	plan_free(plan);
	pawl_state_free(state);
}

/* Whatever the layout depends on changes the fingerprint, and nothing else does. */
static void
test_a_fingerprint_tells_structures_apart(void **unused)
{
	struct pawl_state *a = make_state(N_TENSORS, true), *b = make_state(N_TENSORS, true), *c = make_state(39, true),
			  *d = make_state(N_TENSORS, false);
	struct plan_opts other = opts;

	(void)unused;
	assert_true(sum_equal(plan_fingerprint(a, &opts), plan_fingerprint(b, &opts)));
	assert_false(sum_equal(plan_fingerprint(a, &opts), plan_fingerprint(c, &opts)));
	assert_false(sum_equal(plan_fingerprint(a, &opts), plan_fingerprint(d, &opts)));
	other.rank = 4;
	assert_false(sum_equal(plan_fingerprint(a, &opts), plan_fingerprint(a, &other)));
	pawl_state_free(a);
	pawl_state_free(b);
	pawl_state_free(c);
	pawl_state_free(d);
}

/* A text that is too long for any header is refused, and the next one makes a good header again. */
static void
test_after_a_header_that_is_too_long_the_next_is_right(void **unused)
{
	struct pawl_state *state = make_state(3, true);
	size_t n = SAFETENSORS_MAX_HEADER + 1;
	char *text = malloc(n + 1);
	struct plan *plan = NULL;

	(void)unused;
	assert_int_equal(plan_make(state, &opts, &plan, NULL), 0);
	expect_header(plan, state, "{\"step\":1}", "{\"a\":1}");
	memset(text, 'x', n);
	text[n] = 0;
	assert_int_equal(plan_refresh(plan, &opts, slice("{\"step\":2}"), slice(text), NULL), PAWL_ELIMIT);
	expect_header(plan, state, "{\"step\":3}", "{\"a\":1}");
	assert_int_equal(plan_refresh(plan, &opts, slice(text), slice("{\"a\":1}"), NULL), PAWL_ELIMIT);
	expect_header(plan, state, "{\"step\":4}", "{\"a\":2}");
	free(text);
	plan_free(plan);
	pawl_state_free(state);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_renewed_header_is_the_one_of_a_new_plan),
		cmocka_unit_test(test_random_changes),
		cmocka_unit_test(test_a_fingerprint_tells_structures_apart),
		cmocka_unit_test(test_after_a_header_that_is_too_long_the_next_is_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
