/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of outfile.c: what is put is what is stored, in pieces of any size, with and without a
 * codec. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "store/outfile.h"

#define BLOCK 4096u
#define ALIGN 65536u
#define SLAB (4 * ALIGN)
#define MOST (5 * SLAB + 12345)

static char *bytes;

static int
setup(void **state)
{
	struct store *s;

	bytes = malloc(MOST);
	for (size_t i = 0; i < MOST; i++)
		bytes[i] = (char)(i * i / 7 % 251);
	assert_int_equal(store_open("mem:", true, false, &s, NULL), 0);
	*state = s;
	return 0;
}

static int
teardown(void **state)
{
	store_close(*state);
	free(bytes);
	return 0;
}

static void
check_blocks(const struct outfile_blocks *blocks, const char *ptr, size_t nbytes)
{
	assert_int_equal(blocks->nbytes, nbytes);
	assert_int_equal(blocks->n, (nbytes + BLOCK - 1) / BLOCK);
	for (size_t i = 0; i < blocks->n; i++) {
		const size_t left = nbytes - i * BLOCK;
		assert_true(sum_equal(blocks->sums[i], sum_bytes(ptr + i * BLOCK, left < BLOCK ? left : BLOCK)));
	}
}

static void
put_in_room(struct outfile *file, size_t nbytes, size_t step)
{
	for (size_t at = 0; at < nbytes;) {
		char *room;
		uint64_t most;
		outfile_room(file, &room, &most);
		assert_true(most >= (nbytes - at < SLAB - ALIGN ? nbytes - at : SLAB - ALIGN));
		size_t n = nbytes - at < step ? nbytes - at : step;
		n = n < most ? n : (size_t)most;
		memcpy(room, bytes + at, n);
		assert_int_equal(outfile_put(file, n, NULL), 0);
		at += n;
	}
}

static const size_t sizes[] = {0, 1, BLOCK, SLAB - 1, SLAB, SLAB + 1, 2 * SLAB, MOST};
static const size_t steps[] = {1000, BLOCK, SLAB, SIZE_MAX};

static void
test_P1_what_is_put_is_stored_and_summed(void **state)
{
	struct store *s = *state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (size_t k = 0; k < 2 * sizeof steps / sizeof *steps; k++) {
			const struct outfile_opts opts = {
				.store = s, .key = "a", .nbytes = sizes[i], .block_bytes = BLOCK, .slab_bytes = SLAB};
			PAWL_CLEAN(outfile_abort_clean) struct outfile *file = NULL;
			PAWL_CLEAN(outfile_sums_clear) struct outfile_sums sums = {0};
			PAWL_CLEAN(buf_clear) struct buf found = {0};
			assert_int_equal(outfile_open(&opts, &file, NULL), 0);
			if (k % 2 == 0)
				put_in_room(file, sizes[i], steps[k / 2]);
			else
				for (size_t at = 0; at < sizes[i];) {
					size_t n = sizes[i] - at < steps[k / 2] ? sizes[i] - at : steps[k / 2];
					assert_int_equal(outfile_put_bytes(file, bytes + at, n, NULL), 0);
					at += n;
				}
			assert_int_equal(outfile_finish(&file, &sums, NULL), 0);
			assert_null(file);
			assert_int_equal(store_get(s, "a", MOST, &found, NULL), 0);
			assert_int_equal(found.len, sizes[i]);
			assert_memory_equal(found.ptr ? found.ptr : "", bytes, sizes[i]);
			check_blocks(&sums.file, bytes, sizes[i]);
			assert_int_equal(sums.plain.n, 0);
			assert_int_equal(store_remove(s, "a", NULL), 0);
		}
	}
}

struct memory {
	const char *ptr;
	size_t n;
};

static int
read_memory(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct memory *m = arg;
	(void)err;
	assert_true(offset + n <= m->n);
	memcpy(dst, m->ptr + offset, n);
	return 0;
}

static void
test_E11_a_compressed_one_has_sums_of_both_and_is_cut(void **state)
{
	char dir[] = "/var/tmp/pawl-outfile-XXXXXX";
	const struct codec *zst = codec_of_name("a.zst");
	struct store *s;
	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(store_open(dir, false, false, &s, NULL), 0);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		const struct outfile_opts opts = {.store = s,
		                                  .key = "a.zst",
		                                  .nbytes = sizes[i],
		                                  .block_bytes = BLOCK,
		                                  .slab_bytes = SLAB,
		                                  .codec = zst};
		PAWL_CLEAN(outfile_abort_clean) struct outfile *file = NULL;
		PAWL_CLEAN(outfile_sums_clear) struct outfile_sums sums = {0};
		PAWL_CLEAN(buf_clear) struct buf found = {0};
		struct codec_reader *reader;
		size_t n = 0;
		assert_int_equal(outfile_open(&opts, &file, NULL), 0);
		put_in_room(file, sizes[i], SIZE_MAX);
		assert_int_equal(outfile_finish(&file, &sums, NULL), 0);
		assert_int_equal(store_get(s, "a.zst", 2 * MOST, &found, NULL), 0);
		check_blocks(&sums.file, found.ptr, found.len);
		check_blocks(&sums.plain, bytes, sizes[i]);
		struct memory memory = {found.ptr, found.len};
		const struct source source = {
			.what = "a.zst", .nbytes = found.len, .read = read_memory, .arg = &memory};
		char *plain = malloc(MOST + 1);
		assert_int_equal(codec_reader_new(zst, &source, NULL, &reader, NULL), 0);
		assert_int_equal(codec_reader_get(reader, plain, MOST + 1, &n, NULL), 0);
		codec_reader_free(reader);
		assert_int_equal(n, sizes[i]);
		assert_memory_equal(plain, bytes, n);
		free(plain);
		assert_int_equal(store_remove(s, "a.zst", NULL), 0);
	}
	store_close(s);
	assert_int_equal(fd_remove_tree(AT_FDCWD, dir, NULL), 0);
}

static void
test_P2_aborted_it_leaves_nothing(void **state)
{
	struct store *s = *state;
	struct store_entry entry;
	for (size_t n = 0; n <= MOST; n += MOST / 3) {
		const struct outfile_opts opts = {.store = s, .key = "a", .nbytes = MOST + 1, .slab_bytes = SLAB};
		struct outfile *file;
		assert_int_equal(outfile_open(&opts, &file, NULL), 0);
		assert_int_equal(outfile_put_bytes(file, bytes, n, NULL), 0);
		outfile_abort(file);
		assert_int_equal(store_stat(s, "a", &entry, NULL), PAWL_ENOTFOUND);
	}
}

/* The thread's error comes out of a later call, and nothing has the key. */
static void
test_P5_a_failed_write_ends_it(void **state)
{
	static const char *const operations[] = {"create", "write", "finish"};
	const uint64_t calls[] = {1, 6, 1};
	(void)state;
	for (size_t i = 0; i < 3; i++) {
		for (uint64_t call = 1; call <= calls[i] + 1; call++) {
			struct pawl_fault *fault;
			struct store *memory, *s;
			struct store_entry entry;
			struct outfile *file = NULL;
			struct pawl_error err = {0};
			assert_int_equal(store_open("mem:", true, false, &memory, NULL), 0);
			assert_int_equal(pawl_fault_new(operations[i], call, PAWL_EIO, 0, &fault, NULL), 0);
			assert_int_equal(store_fault_wrap(memory, fault, &s, NULL), 0);
			const struct outfile_opts opts = {
				.store = s, .key = "a", .name = "NAME", .nbytes = MOST, .slab_bytes = SLAB};
			int rc = outfile_open(&opts, &file, &err);
			if (rc == 0)
				rc = outfile_put_bytes(file, bytes, MOST, &err);
			if (rc == 0)
				rc = outfile_finish(&file, NULL, &err);
			outfile_abort(file);
			assert_int_equal(rc, call <= calls[i] ? PAWL_EIO : 0);
			assert_int_equal(store_stat(s, "a", &entry, NULL), rc < 0 ? PAWL_ENOTFOUND : 0);
			assert_true(rc == 0 || strncmp(err.message, "NAME: ", 6) == 0);
			store_close(s);
			pawl_fault_free(fault);
		}
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P1_what_is_put_is_stored_and_summed),
		cmocka_unit_test(test_E11_a_compressed_one_has_sums_of_both_and_is_cut),
		cmocka_unit_test(test_P2_aborted_it_leaves_nothing),
		cmocka_unit_test(test_P5_a_failed_write_ends_it),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
