/* SPDX-License-Identifier: Apache-2.0 */
/* Large manifests, which are parsed row by row. P1, P16, P17. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "state/manifest_check.h"
#include "state/manifest_lines.h"

#define PIECES 180000u
#define FILES 3u

/* A tensor of many pieces, in turn in each file. */
static void
make_text(struct buf *out)
{
	uint64_t shape[] = {PIECES, 4}, *extents = calloc((size_t)PIECES * 4, sizeof(*extents));
	struct manifest_piece *pieces = calloc(PIECES, sizeof(*pieces));
	static struct sum128 sums[64];
	struct manifest_file files[FILES];
	struct manifest_tensor t = {"w", PAWL_F32, 2, shape, PIECES * 16, PIECES, pieces, false, NULL};
	struct manifest m = {.id = 7, .step = 1, .world_size = FILES, .tensors = &t, .n_tensors = 1};
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_error err = {0};

	memset(m.run_id, 'a', 32);
	memset(m.token, 'b', 32);
	for (uint32_t i = 0; i < PIECES; i++) {
		uint64_t *offsets = &extents[i * 4], *lengths = offsets + 2;

		offsets[0] = i;
		lengths[0] = 1;
		lengths[1] = 4;
		pieces[i] = (struct manifest_piece){i % FILES, (uint64_t)(i / FILES) * 16, 16, offsets, lengths, NULL};
	}
	for (uint32_t k = 0; k < FILES; k++) {
		static const char *const names[] = {"a", "b", "c"};

		files[k] = (struct manifest_file){.name = names[k],
		                                  .nbytes = (PIECES / FILES) * 16,
		                                  .block_bytes = 1 << 20,
		                                  .n_blocks = 1,
		                                  .sums = sums};
		m.bytes += files[k].nbytes;
	}
	m.new_bytes = m.bytes;
	m.files = files;
	m.n_files = FILES;
	tensor.dtype = PAWL_F32;
	tensor.ndim = 2;
	tensor.shape = shape;
	tensor.data = shape; /* never read */
	assert_int_equal(pawl_state_new(&m.state, &err), 0);
	assert_int_equal(pawl_state_set_tensor(m.state, "w", &tensor, &err), 0);
	if (manifest_encode(&m, out, &err) < 0)
		fail_msg("%s", err.message);
	pawl_state_free(m.state);
	free(extents);
	free(pieces);
}

static void
test_P16_a_large_manifest_reads_back(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_error err = {0};
	struct manifest *m = NULL;

	make_text(&text);
	assert_true(text.len > (8u << 20));
	if (manifest_decode("m", text.ptr, text.len, false, &m, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(m->n_tensors, 1);
	assert_int_equal(m->n_files, FILES);
	assert_int_equal(m->tensors[0].n_pieces, PIECES);
	for (uint32_t i = 0; i < PIECES; i++) {
		const struct manifest_piece *p = &m->tensors[0].pieces[i];

		assert_int_equal(p->file, i % FILES);
		assert_int_equal(p->begin, (i / FILES) * 16);
		assert_int_equal(p->offsets[0], i);
		assert_int_equal(p->lengths[0], 1);
		assert_int_equal(p->nbytes, 16);
	}
	assert_string_equal(m->files[2].name, "c");
	manifest_free(m);
}

/* Replaces the first `from` by `to`, and seals the result. */
static void
edit(const struct buf *text, const char *from, const char *to, struct buf *out)
{
	size_t body = text->len - MANIFEST_TAIL_BYTES, len = strlen(from);
	const char *at = memmem(text->ptr, body, from, len);
	char hex[32];

	if (!at)
		fail_msg("nothing to replace: %s", from);
	buf_put(out, text->ptr, (size_t)(at - text->ptr));
	buf_puts(out, to);
	buf_put(out, at + len, (size_t)(text->ptr + body - at) - len);
	sum_to_hex(sum_bytes(out->ptr, out->len), hex);
	buf_puts(out, MANIFEST_DIGEST);
	buf_put(out, hex, sizeof(hex));
	buf_puts(out, MANIFEST_END);
}

static void
test_P17_rows_that_are_not_in_lines_are_refused(void **unused)
{
	(void)unused;
	static const char *const lies[][2] = {
		{",\n\"tensors\":[\n", ",\n \"tensors\":[\n"},
		{",\n\"tensors\":[\n", ",\n\"tensors\":[ \n"},
		{",\n\"tensors\":[\n", ",\n\"tensors\":[\n\n"},
		{",\n\"tensors\":[\n", ",\n\"more\":[\n"},
		{",\n\"tensors\":[\n", ",\n\"more\":1,\n\"tensors\":[\n"},
		{",\n\"tensors\":[\n", ",\n\"tensors\":[\n],\n\"tensors\":[\n"},
		{"\"state\":{", "\"state\":{\"x\":[\n1],\n\"tensors\":[\n1],"},
		{"{\"name\":\"w\"", "[\"name\",\"w\""},
		{"{\"name\":\"w\"", "{\"name\":\"v\""},
		{"{\"name\":\"w\"", "{\"name\":\"w\",\"name\":\"w\""},
		{"{\"name\":\"w\"", "\n{\"name\":\"w\""},
		{"]}\n],\n\"files\":[", "]},\n],\n\"files\":["},
		{"]}\n],\n\"files\":[", "]}],\n\"files\":["},
		{"]}\n],\n\"files\":[", "]}\n],\n\n\"files\":["},
		{"]}\n],\n\"files\":[", "]}\n]\n\"files\":["},
		{"]}\n],\n\"files\":[", "]}\n],\n\"more\":1,\n\"files\":["},
		{"]}\n],\n\"files\":[", "]}\n],\n\"tensors\":[\n],\n\"files\":["},
		{"\"},\n{\"name\":\"b\"", "\"}\n{\"name\":\"b\""},
		{"\"},\n{\"name\":\"b\"", "\"},{\"name\":\"b\""},
		{"\"},\n{\"name\":\"b\"", "\"},\n,\n{\"name\":\"b\""},
		{"\"}\n],", "\"},\n],"},
		{"\"}\n],", "\"}\n],\n\"more\":1,"},
		{"\"}\n],", "\"}\n]"},
		{"\"n_files\":3", "\"n_files\":2"},
		{"\"n_tensors\":1", "\"n_tensors\":18446744073709551615"},
		{"\"begin\":16,", "\"begin\":17,"},
		{"\"begin\":16,", "\"begin\":16,\"begin\":16,"},
	};
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	make_text(&text);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		PAWL_CLEAN(buf_clear) struct buf lie = {0};
		struct pawl_error err = {0};
		struct manifest *m = NULL;

		edit(&text, lies[i][0], lies[i][1], &lie);
		int rc = manifest_decode("m", lie.ptr, lie.len, false, &m, &err);

		if (rc != PAWL_ECORRUPT)
			fail_msg("lie %zu: %d (%s)", i, rc, err.message);
		assert_int_equal(strncmp(err.message, "m: ", 3), 0);
	}
}

static void
test_lines_are_taken_one_by_one(void **unused)
{
	(void)unused;
	static const char text[] = "\n{1},\n{22}\n],\nend";
	struct manifest_lines l = {.what = "m", .at = text, .end = text + strlen(text)};
	struct pawl_slice row;

	assert_int_equal(manifest_count_lines(&l, NULL), 0);
	assert_int_equal(l.n, 2);
	assert_int_equal(manifest_next_line(&l, 0, &row, NULL), 0);
	assert_int_equal(row.len, 3);
	assert_memory_equal(row.ptr, "{1}", 3);
	assert_int_equal(manifest_next_line(&l, 1, &row, NULL), 0);
	assert_memory_equal(row.ptr, "{22}", 4);
	assert_int_equal(manifest_skip(&l, "\n],x", NULL), PAWL_ECORRUPT);
	assert_int_equal(manifest_skip(&l, "\n],\nend", NULL), 0);
	assert_int_equal(manifest_skip(&l, "e", NULL), PAWL_ECORRUPT);
	for (size_t n = 0; n < strlen(text) - 6; n++) { /* the end comes too early */
		l = (struct manifest_lines){.what = "m", .at = text, .end = text + n};
		assert_int_equal(manifest_count_lines(&l, NULL), PAWL_ECORRUPT);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P16_a_large_manifest_reads_back),
		cmocka_unit_test(test_P17_rows_that_are_not_in_lines_are_refused),
		cmocka_unit_test(test_lines_are_taken_one_by_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
