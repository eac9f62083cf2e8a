/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streamed objects without a server: pieces straddle parts, a part cannot be sent, and the same
 * write is repeated, as the retry layer does it (P15).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "store/object/object.h"

#define MIB ((size_t)1 << 20)
#define N_PARTS 3u
#define OBJECT_BYTES (20 * MIB) /* parts of 8, 8 and 4 MiB */

static struct {
	char bytes[OBJECT_BYTES];                  /* as sent */
	unsigned sent[N_PARTS], failures[N_PARTS]; /* failures: still to come */
} server;

static int
upload_begin(struct object_store *s, const char *key, const char *token, bool sums, char **ret_id,
             struct pawl_error *err)
{
	(void)s, (void)key, (void)sums, (void)err;
	*ret_id = mem_strdup(token);
	return *ret_id != NULL ? 0 : PAWL_ENOMEM;
}

static int
upload_part(struct object_store *s, const char *key, const char *id, size_t i, const void *ptr, size_t len,
            struct object_part_sum *ret, struct pawl_error *err)
{
	(void)s, (void)id, (void)ret;
	assert_true(i < N_PARTS && i * OBJECT_PART_BYTES + len <= OBJECT_BYTES);
	if (server.failures[i] > 0) {
		server.failures[i]--;
		return err_set(err, PAWL_ETRANSIENT, "%s: part %zu was not taken", key, i);
	}
	memcpy(server.bytes + i * OBJECT_PART_BYTES, ptr, len);
	server.sent[i]++;
	return 0;
}

static int
upload_end(struct object_store *s, const char *key, const char *id, const struct object_part_sum *parts, size_t n,
           bool exclusive, struct pawl_error *err)
{
	(void)s, (void)key, (void)id, (void)parts, (void)exclusive, (void)err;
	assert_int_equal(n, N_PARTS);
	return 0;
}

static const struct object_protocol protocol = {.max_object_bytes = S3_MAX_OBJECT_BYTES,
                                                .max_parts = S3_MAX_PARTS,
                                                .upload_begin = upload_begin,
                                                .upload_part = upload_part,
                                                .upload_end = upload_end};

static char *
make_bytes(void)
{
	char *bytes = malloc(OBJECT_BYTES);
	assert_non_null(bytes);
	for (size_t i = 0; i < OBJECT_BYTES; i++)
		bytes[i] = (char)(i * 31 + (i >> 16) + 1);
	return bytes;
}

/* Pieces of one size in a given order, each repeated until it is accepted. n_failures[i]: how often
 * part i is refused. */
static void
check_pieces(size_t piece, const size_t *order, size_t n, const unsigned n_failures[N_PARTS])
{
	struct object_store s = {.protocol = &protocol};
	const struct store_create opts = {.nbytes = OBJECT_BYTES, .own_name = true};
	struct store_file *f = NULL;
	struct pawl_error err = {0};
	char *bytes = make_bytes();
	memset(&server, 0, sizeof server);
	memcpy(server.failures, n_failures, sizeof server.failures);
	assert_int_equal(object_create(&s.base, "pack", &opts, &f, &err), 0);
	for (size_t i = 0; i < n; i++) {
		const size_t at = order[i] * piece, left = OBJECT_BYTES - at;
		int rc;
		while ((rc = object_write(&s.base, f, at, bytes + at, left < piece ? left : piece, &err)) != 0)
			assert_int_equal(rc, PAWL_ETRANSIENT);
	}
	assert_int_equal(object_finish(&s.base, f, &err), 0);
	for (size_t i = 0; i < N_PARTS; i++)
		assert_int_equal(server.sent[i], 1);
	assert_memory_equal(server.bytes, bytes, OBJECT_BYTES);
	free(bytes);
}

/* The piece at 6 MiB ends part 0 and begins part 1. Whichever part cannot be sent, the bytes in the
 * other one count once. */
static void
test_R144_P15_a_piece_of_two_parts_that_comes_again_counts_once(void **state)
{
	(void)state;
	static const size_t orders[][4] = {{0, 1, 2, 3}, {2, 1, 0, 3}, {2, 3, 1, 0}, {1, 0, 3, 2}};
	static const unsigned failures[][N_PARTS] = {{0, 0, 0}, {0, 1, 0}, {0, 3, 0}, {2, 1, 0}, {1, 2, 3}};
	for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++)
		for (size_t k = 0; k < sizeof failures / sizeof failures[0]; k++)
			check_pieces(6 * MIB, orders[i], 4, failures[k]);
}

static void
test_P15_pieces_of_several_whole_parts_come_again(void **state)
{
	(void)state;
	static const size_t whole[] = {0}, halves[] = {1, 0};
	static const unsigned failures[N_PARTS] = {1, 2, 1};
	check_pieces(OBJECT_BYTES, whole, 1, failures);
	check_pieces(OBJECT_BYTES / 2, halves, 2, failures);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R144_P15_a_piece_of_two_parts_that_comes_again_counts_once),
		cmocka_unit_test(test_P15_pieces_of_several_whole_parts_come_again),
	};
	return cmocka_run_group_tests_name("object_write", tests, NULL, NULL);
}
