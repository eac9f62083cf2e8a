/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the layout of single files: pt.c reads what file_pt.c lays out, also beyond 4 GiB. There
 * nothing is written: a source makes constants, sums and tensors from the plan. (torch itself reads
 * the files in tests/py/test_files.py.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/bump.h"
#include "base/crc.h"
#include "base/err.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/pt.h"
#include "layout/file_plan.h"
#include "state/state.h"

/* A file that is only planned. Tensors read as their contents or, if they have no memory, as
 * zeros. */
struct planned {
	const struct pawl_state *state;
	struct piece_plan plan;
};

static void
read_piece(const struct planned *f, const struct file_piece *piece, uint64_t from, char *dst, size_t n)
{
	const struct state_tensor *t = &f->state->tensors[piece->tensor];
	char sum[4] = {0};

	if (piece->kind == FILE_BYTES) {
		memcpy(dst, f->plan.bytes.ptr + piece->bytes_at + from, n);
	} else if (piece->kind == FILE_CRC) {
		const uint32_t crc = t->src.data ? crc32_bytes(t->src.data, t->local_nbytes) : 0;

		memcpy(sum, &crc, sizeof(sum));
		memcpy(dst, sum + from, n);
	} else if (t->src.data) {
		memcpy(dst, (const char *)t->src.data + from, n);
	} else {
		memset(dst, 0, n);
	}
}

static int
read_planned(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct planned *f = arg;
	char *to = dst;

	(void)err;
	for (size_t i = 0; i < f->plan.pieces.n && n > 0; i++) {
		const struct file_piece *piece = &f->plan.pieces.items[i];
		const uint64_t end = piece->at + piece->nbytes;
		size_t part;

		if (end <= offset)
			continue;
		part = end - offset < n ? (size_t)(end - offset) : n;
		read_piece(f, piece, offset - piece->at, to, part);
		to += part;
		offset += part;
		n -= part;
	}
	return 0;
}

static int
fill_nothing(void *arg, void *dst, size_t nbytes, struct pawl_error *err)
{
	(void)arg;
	(void)dst;
	(void)nbytes;
	return err_set(err, PAWL_EUSAGE, "nobody reads it");
}

static void
plan_it(struct planned *f, const struct pawl_state *state)
{
	const struct file_plan_opts opts = {.stem = "model"};
	struct pawl_error err = {0};
	uint64_t at = 0;

	*f = (struct planned){.state = state};
	if (file_plan_pt(state, &opts, &f->plan, &err) < 0)
		fail_msg("%s", err.message);
	for (size_t i = 0; i < f->plan.pieces.n; i++) { /* they tile the file */
		assert_int_equal(f->plan.pieces.items[i].at, at);
		assert_int_equal(f->plan.pieces.items[i].nbytes == 0, f->plan.pieces.items[i].kind == FILE_BEGIN ||
		                                                              f->plan.pieces.items[i].kind == FILE_END);
		at += f->plan.pieces.items[i].nbytes;
	}
	assert_int_equal(at, f->plan.nbytes);
}

static void
set_tensor(struct pawl_state *state, const char *path, int dtype, uint64_t n, void *data)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_error err = {0};

	t.dtype = dtype;
	t.ndim = 1;
	t.shape = &n;
	t.data = data;
	t.fill = data ? NULL : fill_nothing;
	if (pawl_state_set_tensor(state, path, &t, &err) < 0)
		fail_msg("%s", err.message);
}

/* The values of a .pt whose object is a dict: that of a key. */
static void
value_of(const struct pt *pt, const char *key, struct pt_value *ret)
{
	struct pawl_error err = {0};
	struct pt_value root, name;

	assert_int_equal(pt_value(pt, pt->root, &root, &err), 0);
	for (size_t i = 0; i < root.n; i += 2) {
		assert_int_equal(pt_value(pt, root.items[i], &name, &err), 0);
		if (name.len == strlen(key) && memcmp(name.text, key, name.len) == 0) {
			if (pt_value(pt, root.items[i + 1], ret, &err) < 0)
				fail_msg("%s: %s", key, err.message);
			return;
		}
	}
	fail_msg("no key '%s'", key);
}

static void
test_R148_what_is_laid_out_is_read_back(void **test)
{
	static float weights[3] = {1, 2, 3};
	static unsigned short counts[2] = {7, 65535};
	const char *big = "-123456789012345678901234567890";
	const struct pawl_scalar key = {PAWL_STR, .ptr = "big", .len = 3},
				 number = {PAWL_INT, .ptr = big, .len = strlen(big)};
	struct pawl_error err = {0};
	struct pawl_state *state = NULL;
	struct planned f;
	struct bump memory = {0};
	struct pt_value value;
	struct pt pt;

	(void)test;
	assert_int_equal(pawl_state_new(&state, &err), 0);
	assert_int_equal(pawl_state_begin(state, PAWL_DICT, &err), 0);
	assert_int_equal(pawl_state_key(state, &key, &err), 0);
	assert_int_equal(pawl_state_add(state, &number, &err), 0);
	assert_int_equal(pawl_state_end(state, &err), 0);
	plan_it(&f, state);
	const struct source only_number = {"model.pt", f.plan.nbytes, read_planned, &f};
	assert_int_equal(pt_open(&only_number, &memory, &pt, &err), 0);
	value_of(&pt, "big", &value);
	assert_int_equal(value.len, strlen(big));
	assert_memory_equal(value.text, big, value.len);
	piece_plan_clear(&f.plan);
	pawl_state_free(state);

	assert_int_equal(pawl_state_new(&state, &err), 0);
	set_tensor(state, "weights", PAWL_F32, 3, weights);
	set_tensor(state, "again", PAWL_F32, 3, weights);
	set_tensor(state, "counts", PAWL_U16, 2, counts);
	set_tensor(state, "nothing", PAWL_F64, 0, weights);
	pawl_state_set_int(state, "low", INT64_MIN, &err);
	pawl_state_set_bytes(state, "bytes", "\x00\xff\x80", 3, &err);
	plan_it(&f, state);
	const struct source file = {"model.pt", f.plan.nbytes, read_planned, &f};
	if (pt_open(&file, &memory, &pt, &err) < 0)
		fail_msg("%s", err.message);
	assert_string_equal(pt.zip.folder, "model");
	value_of(&pt, "low", &value);
	assert_true(value.i == INT64_MIN);
	value_of(&pt, "bytes", &value);
	assert_memory_equal(value.text, "\x00\xff\x80", 3);
	value_of(&pt, "nothing", &value);
	assert_int_equal(value.tensor->nbytes, 0);
	value_of(&pt, "counts", &value);
	assert_int_equal(value.tensor->dtype, PAWL_U16);
	assert_int_equal(value.tensor->nbytes, 4);
	value_of(&pt, "weights", &value);
	const uint64_t begin = value.tensor->begin;
	assert_int_equal(begin % 64, 0);
	value_of(&pt, "again", &value); /* one storage for both */
	assert_int_equal(value.tensor->begin, begin);
	float back[3];
	assert_int_equal(source_read(&file, begin, back, sizeof(back), &err), 0);
	assert_memory_equal(back, weights, sizeof(back));
	for (size_t i = 0; i < pt.zip.n; i++) { /* every sum is right */
		struct pawl_slice bytes;
		assert_int_equal(zip_read(&file, &pt.zip.members[i], 1 << 20, &memory, &bytes, &err), 0);
	}
	piece_plan_clear(&f.plan);
	pawl_state_free(state);
	bump_clear(&memory);
}

/* A tensor of 5 GiB, one of 4 GiB less a byte (its size just fits into 32 bits, what follows needs
 * 64), and small ones before and behind them. */
static void
test_sizes_and_places_beyond_4_gib(void **test)
{
	static const struct {
		const char *path;
		uint64_t n;
	} rows[] = {{"a", 100}, {"b", UINT64_C(5) << 30}, {"c", 3}, {"d", UINT32_MAX - 1u},
	            {"e", 0},   {"f", UINT32_MAX},        {"g", 1}};
	struct pawl_error err = {0};
	struct pawl_state *state = NULL;
	struct planned f;
	struct bump memory = {0};
	struct pt pt;
	uint64_t last = 0;

	(void)test;
	assert_int_equal(pawl_state_new(&state, &err), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		set_tensor(state, rows[i].path, PAWL_U8, rows[i].n, NULL);
	plan_it(&f, state);
	const struct source file = {"model.pt", f.plan.nbytes, read_planned, &f};
	if (pt_open(&file, &memory, &pt, &err) < 0)
		fail_msg("%s", err.message);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pt_value value;

		value_of(&pt, rows[i].path, &value);
		assert_true(value.tensor->nbytes == rows[i].n);
		assert_true(rows[i].n == 0 || (value.tensor->begin % 64 == 0 && value.tensor->begin >= last));
		last = rows[i].n ? value.tensor->begin + rows[i].n : last;
	}
	piece_plan_clear(&f.plan);
	pawl_state_free(state);
	bump_clear(&memory);
}

static void
test_R149_what_torch_cannot_hold_is_refused_by_name(void **test)
{
	static unsigned char bytes[64];
	const struct file_plan_opts opts = {.stem = "model"};
	const struct {
		int dtype;
		uint64_t n;
		const char *text;
	} rows[] = {{PAWL_F6_E2M3, 4, "torch has no dtype for the F6_E2M3 of 'model/w'"}};
	char digits[1000];

	(void)test;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pawl_error err = {0};
		struct pawl_state *state = NULL;
		struct piece_plan plan = {0};

		assert_int_equal(pawl_state_new(&state, &err), 0);
		set_tensor(state, "model/w", rows[i].dtype, rows[i].n, bytes);
		assert_int_equal(file_plan_pt(state, &opts, &plan, &err), PAWL_EUNSUPPORTED);
		assert_non_null(strstr(err.message, rows[i].text));
		piece_plan_clear(&plan);
		pawl_state_free(state);
	}
	memset(digits, '9', sizeof(digits));
	struct pawl_error err = {0};
	struct pawl_state *state = NULL;
	struct piece_plan plan = {0};
	const struct pawl_scalar number = {PAWL_INT, .ptr = digits, .len = sizeof(digits)};
	assert_int_equal(pawl_state_new(&state, &err), 0);
	assert_int_equal(pawl_state_add(state, &number, &err), 0);
	assert_int_equal(file_plan_pt(state, &opts, &plan, &err), PAWL_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "2,039 bits"));
	piece_plan_clear(&plan);
	pawl_state_free(state);
}

static void
test_R148_a_safetensors_file_carries_its_tree(void **test)
{
	static float weights[3] = {1, 2, 3};
	const struct file_plan_opts opts = {.stem = "model"};
	struct pawl_error err = {0};
	struct pawl_state *state = NULL;
	struct piece_plan plan = {0};
	struct bump memory = {0};
	struct st_table table;
	uint64_t json_len;

	(void)test;
	assert_int_equal(pawl_state_new(&state, &err), 0);
	set_tensor(state, "weights", PAWL_F32, 3, weights);
	pawl_state_set_int(state, "epoch", 3, &err);
	assert_int_equal(file_plan_safetensors(state, &opts, &plan, &err), 0);
	assert_int_equal(
		safetensors_header_len("m", (const unsigned char *)plan.bytes.ptr, plan.nbytes, &json_len, &err), 0);
	assert_int_equal(safetensors_decode("m", plan.bytes.ptr + 8, json_len, plan.nbytes, &memory, &table, &err), 0);
	assert_int_equal(table.n_tensors, 1);
	assert_non_null(strstr(safetensors_metadata(&table, "pawl.state")->value, "\"epoch\":3"));
	piece_plan_clear(&plan);
	pawl_state_free(state);
	bump_clear(&memory);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R148_what_is_laid_out_is_read_back),
		cmocka_unit_test(test_sizes_and_places_beyond_4_gib),
		cmocka_unit_test(test_R149_what_torch_cannot_hold_is_refused_by_name),
		cmocka_unit_test(test_R148_a_safetensors_file_carries_its_tree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
