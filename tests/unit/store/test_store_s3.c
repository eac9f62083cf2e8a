/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only the S3 engine has, against the server that PAWL_TEST_S3 names (tests/py/test_s3.py
 * starts one). Without a server only what needs none.
 */
#include "helpers/store_bed.h"

#include <pthread.h>

#include "store/object/object.h"

#define MIB ((size_t)1 << 20)

static int
setup(void **state)
{
	struct bed *bed = mem_zalloc(1, sizeof *bed);
	bed->kind = BED_S3;
	*state = bed;
	char token[33], url[512];
	assert_int_equal(clock_token(token, &bed->err), 0);
	snprintf(url, sizeof url, "%s/%s", getenv("PAWL_TEST_S3"), token);
	OK(bed, store_s3_open(url, true, &bed->store, &bed->err));
	return 0;
}

static int
teardown(void **state)
{
	struct bed *bed = *state;
	bed_close(bed);
	mem_free(bed);
	return 0;
}

static void
test_a_large_object_is_copied_in_parts(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(21 * MIB + 77, 0, 1);
	write_bytes(bed, "pack", &b, 8 * MIB, NULL);
	((struct object_store *)bed->store)->max_copy_bytes = 20 * MIB;
	OK(bed, store_link(bed->store, "pack", "copy", &bed->err));
	assert_bytes(bed, "copy", &b);
	OK(bed, store_move(bed->store, "copy", "moved", &bed->err));
	assert_bytes(bed, "moved", &b);
	assert_missing(bed, "copy");
	free(b.memory);
}

struct writer {
	struct bed *bed;
	struct store_file *f;
	const struct bytes *b;
	size_t first, piece;
	int rc;
};

static void *
writer_main(void *arg)
{
	struct writer *w = arg;
	for (size_t at = w->first * w->piece; w->rc == 0 && at < w->b->len; at += 4 * w->piece) {
		size_t left = w->b->len - at;
		w->rc = store_write(w->bed->store, w->f, at, w->b->ptr + at, left < w->piece ? left : w->piece, NULL);
	}
	return NULL;
}

/* Pieces that are parts, pieces of parts, and pieces that straddle them, by four threads. */
static void
test_parts_are_gathered_from_any_pieces(void **state)
{
	struct bed *bed = *state;
	static const size_t pieces[] = {8 * MIB, 1 * MIB, 3 * MIB + 1, 17 * MIB};
	struct bytes b = bytes_new(26 * MIB + 5, 0, 2);
	for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
		char key[16];
		snprintf(key, sizeof key, "pack%zu", i);
		struct store_file *f = begin_bytes(bed, key, &b, NULL);
		pthread_t threads[4];
		struct writer writers[4];
		for (size_t t = 0; t < 4; t++) {
			writers[t] = (struct writer){bed, f, &b, t, pieces[i], 0};
			assert_int_equal(pthread_create(&threads[t], NULL, writer_main, &writers[t]), 0);
		}
		for (size_t t = 0; t < 4; t++) {
			pthread_join(threads[t], NULL);
			assert_int_equal(writers[t].rc, 0);
		}
		OK(bed, store_finish(bed->store, f, &bed->err));
		assert_bytes(bed, key, &b);
	}
	free(b.memory);
}

static void
test_large_reads_and_odd_ranges(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(75 * MIB + 3, 0, 3), got = bytes_new(75 * MIB + 3, 0, 4);
	struct store_reader *r = NULL;
	static const size_t ranges[][2] = {
		{0, 75 * MIB + 3}, {1, 74 * MIB}, {12 * MIB - 1, 12 * MIB + 2}, {75 * MIB + 2, 1}};
	write_bytes(bed, "pack", &b, 8 * MIB, NULL);
	OK(bed, store_open_reader(bed->store, "pack", &r, NULL, &bed->err));
	for (size_t i = 0; i < 4; i++) {
		memset(got.ptr, 0, got.len);
		OK(bed, store_read(bed->store, r, ranges[i][0], got.ptr, ranges[i][1], &bed->err));
		assert_int_equal(memcmp(got.ptr, b.ptr + ranges[i][0], ranges[i][1]), 0);
	}
	store_close_reader(bed->store, r);
	free(got.memory);
	free(b.memory);
}

static void
test_objects_of_any_size_fit_into_ten_thousand_parts(void **state)
{
	struct bed *bed = *state;
	static const uint64_t sizes[] = {UINT64_C(80) << 30, UINT64_C(1) << 40, S3_MAX_OBJECT_BYTES};
	for (size_t i = 0; i < 3; i++) {
		struct store_create opts = {.nbytes = sizes[i]};
		struct store_file *f = NULL;
		OK(bed, store_create(bed->store, "huge", &opts, &f, &bed->err));
		store_abort(bed->store, f);
	}
	struct store_create opts = {.nbytes = S3_MAX_OBJECT_BYTES + 1};
	struct store_file *f = NULL;
	FAILS(bed, store_create(bed->store, "huge", &opts, &f, &bed->err), PAWL_ELIMIT, "huge");
	uint64_t left = 0;
	OK(bed, store_sweep(bed->store, INT64_MAX, &left, &bed->err));
	assert_int_equal(left, 0);
}

/* Nothing listens there, and no credentials are asked for. */
static void
test_a_store_without_a_server_cannot_be_opened(void **state)
{
	(void)state;
	struct pawl_error err = {0};
	struct store *s = NULL;
	setenv("AWS_ACCESS_KEY_ID", "x", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "x", 1);
	setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9", 1);
	assert_int_equal(store_s3_open("s3://bucket/x", true, &s, &err), PAWL_ETRANSIENT);
	assert_non_null(strstr(err.message, "s3://bucket/x: cannot open: 127.0.0.1:9"));
	assert_int_equal(store_s3_open("s3://", true, &s, &err), PAWL_EUSAGE);
}

int
main(void)
{
	const struct CMUnitTest alone[] = {cmocka_unit_test(test_a_store_without_a_server_cannot_be_opened)};
	if (getenv("PAWL_TEST_S3") == NULL)
		return cmocka_run_group_tests(alone, NULL, NULL);
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_a_large_object_is_copied_in_parts),
		CASE(test_parts_are_gathered_from_any_pieces),
		CASE(test_large_reads_and_odd_ranges),
		CASE(test_objects_of_any_size_fit_into_ten_thousand_parts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
