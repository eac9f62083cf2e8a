/* SPDX-License-Identifier: Apache-2.0 */
/* fetch: units of many files with several threads, limits, collected damage. From a store in
 * memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sum.h"
#include "read/fetch.h"

#define N_FILES 300
#define FILE_BYTES 3000
#define BLOCK 512
#define N_BLOCKS ((FILE_BYTES + BLOCK - 1) / BLOCK)

struct fixture {
	struct store *store;
	struct manifest m;
	struct manifest_file files[N_FILES];
	struct manifest_tensor tensors[N_FILES];
	struct manifest_piece pieces[N_FILES];
	struct sum128 sums[N_FILES][N_BLOCKS];
	char names[N_FILES][16];
	unsigned char bytes[N_FILES][FILE_BYTES], got[N_FILES][FILE_BYTES - 100];
	uint64_t shape;
	struct reshard_binding bindings[N_FILES];
	struct fetch *fetch;
};

/* Every file holds one tensor, from byte 100 on. */
static int
setup(void **state)
{
	static const uint64_t zero = 0;
	struct fixture *f = calloc(1, sizeof *f);
	char key[32];
	assert_int_equal(store_open("mem:", true, false, &f->store, NULL), 0);
	f->shape = FILE_BYTES - 100;
	f->m = (struct manifest){.files = f->files, .n_files = N_FILES, .tensors = f->tensors, .n_tensors = N_FILES};
	for (unsigned i = 0; i < N_FILES; i++) {
		snprintf(f->names[i], sizeof f->names[i], "f%03u", i);
		snprintf(key, sizeof key, "c/f%03u", i);
		for (unsigned k = 0; k < FILE_BYTES; k++)
			f->bytes[i][k] = (unsigned char)(k * 7 + k / 256 + i);
		for (unsigned b = 0; b < N_BLOCKS; b++)
			f->sums[i][b] =
				sum_bytes(f->bytes[i] + b * BLOCK, b + 1 < N_BLOCKS ? BLOCK : FILE_BYTES % BLOCK);
		assert_int_equal(store_put_bytes(f->store, key, f->bytes[i], FILE_BYTES, 0, NULL), 0);
		f->files[i] = (struct manifest_file){.name = f->names[i],
		                                     .nbytes = FILE_BYTES,
		                                     .block_bytes = BLOCK,
		                                     .n_blocks = N_BLOCKS,
		                                     .sums = f->sums[i]};
		f->pieces[i] = (struct manifest_piece){
			.file = i, .begin = 100, .nbytes = f->shape, .offsets = &zero, .lengths = &f->shape};
		f->tensors[i] = (struct manifest_tensor){.name = f->names[i],
		                                         .dtype = PAWL_U8,
		                                         .ndim = 1,
		                                         .shape = &f->shape,
		                                         .nbytes = f->shape,
		                                         .n_pieces = 1,
		                                         .pieces = &f->pieces[i]};
		f->bindings[i] = (struct reshard_binding){
			.tensor = i,
			.contiguous = true,
			.dst = {.dtype = PAWL_U8, .ndim = 1, .shape = &f->shape, .data = f->got[i]}};
	}
	assert_int_equal(fetch_new(f->store, 4, 0, &f->fetch, NULL), 0);
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;
	fetch_free(f->fetch);
	store_close(f->store);
	free(f);
	return 0;
}

static int
run(struct fixture *f, fetch_bad_fn *bad, void *arg, struct pawl_error *err)
{
	struct reshard_plan *plan = NULL;
	if (bad)
		assert_int_equal(reshard_plan_all(&f->m, 1024, &plan, NULL), 0);
	else
		assert_int_equal(reshard_plan(&f->m, f->bindings, N_FILES, 1024, &plan, NULL), 0);
	struct fetch_job job = {.name = "ck",
	                        .folder = "c",
	                        .manifest = &f->m,
	                        .plan = plan,
	                        .bindings = f->bindings,
	                        .bad = bad,
	                        .arg = arg};
	int rc = fetch_run(f->fetch, &job, err);
	reshard_free(plan);
	return rc;
}

static void
test_all_files_are_read_and_the_buffers_kept(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	uint64_t held = 0;
	assert_int_equal(fetch_buffer_bytes(f->fetch), 0);
	for (int i = 0; i < 3; i++) {
		memset(f->got, 0, sizeof f->got);
		assert_int_equal(run(f, NULL, NULL, &err), 0);
		for (unsigned k = 0; k < N_FILES; k++)
			assert_memory_equal(f->got[k], f->bytes[k] + 100, FILE_BYTES - 100);
		assert_true(held == 0 || held == fetch_buffer_bytes(f->fetch));
		held = fetch_buffer_bytes(f->fetch);
	}
}

static void
damage(struct fixture *f, unsigned file, unsigned at)
{
	char key[32];
	snprintf(key, sizeof key, "c/f%03u", file);
	f->bytes[file][at] ^= 1;
	assert_int_equal(store_put_bytes(f->store, key, f->bytes[file], FILE_BYTES, 0, NULL), 0);
}

static void
test_P1_one_damaged_block_among_many_files_stops_the_reading(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	damage(f, 217, 2999);
	assert_int_equal(run(f, NULL, NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "ck: f217: bytes 2560 to 3000 (tensor f217): "));
}

static int
count_bad(void *arg, uint32_t file, uint64_t begin, uint64_t end, const struct pawl_error *why)
{
	unsigned *seen = arg;
	assert_int_equal(why->code, PAWL_ECORRUPT);
	assert_true(begin < end && end <= FILE_BYTES);
	seen[file]++;
	return 0;
}

static void
test_damage_is_collected_without_stopping(void **state)
{
	struct fixture *f = *state;
	static unsigned seen[N_FILES];
	struct pawl_error err = {0};
	memset(seen, 0, sizeof seen);
	damage(f, 5, 10);
	damage(f, 5, 600);
	damage(f, 299, 1500);
	assert_int_equal(store_remove(f->store, "c/f100", NULL), 0);
	assert_int_equal(run(f, count_bad, seen, &err), 0);
	for (unsigned i = 0; i < N_FILES; i++)
		assert_int_equal(seen[i], i == 5 ? 2 : i == 299 || i == 100 ? 1 : 0);
}

static void
test_P16_blocks_too_large_for_memory_are_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	f->files[0].nbytes = FETCH_MAX_RING + 1;
	f->files[0].block_bytes = (uint64_t)1 << 40;
	f->files[0].n_blocks = 1;
	assert_int_equal(run(f, NULL, NULL, &err), PAWL_ELIMIT);
}

static void
test_units_fit_threads_and_ring(void **state)
{
	struct fixture *f = *state;
	struct fetch *small = NULL;
	assert_int_equal(fetch_unit_bytes(f->fetch, UINT64_MAX), FETCH_RING / 8);
	assert_int_equal(fetch_unit_bytes(f->fetch, 16000), 1000);
	assert_int_equal(fetch_new(f->store, 1, 1, &small, NULL), 0);
	assert_int_equal(fetch_unit_bytes(small, UINT64_MAX), 1 << 20);
	fetch_free(small);
	fetch_free(NULL);
}

static void
assert_named(const struct manifest *m, uint64_t begin, uint64_t end, const char *expected)
{
	struct buf names = {0};
	fetch_tensors_at(m, 7, begin, end, &names);
	assert_string_equal(names.len ? buf_str(&names) : "", expected);
	buf_clear(&names);
}

static void
test_the_tensors_of_a_range_are_named_in_file_order(void **state)
{
	struct fixture *f = *state;
	assert_named(&f->m, 0, 100, "");
	assert_named(&f->m, 0, 101, "f007");
	f->pieces[8] = (struct manifest_piece){.file = 7, .begin = 50, .nbytes = 20};
	assert_named(&f->m, 0, 3000, "f008, f007");
	assert_named(&f->m, 70, 3000, "f007");
	for (uint64_t i = 9; i < 14; i++)
		f->pieces[i] = (struct manifest_piece){.file = 7, .begin = i, .nbytes = 1};
	assert_named(&f->m, 0, 3000, "f009, f010, f011, f012 and more");
}

/* ---- files that change while they are read ---- */

#define PACK_BYTES 8192
#define ROWS 32
#define COLUMNS 64

/* A file in memory with two tensors in one block. The first is read into a map of that file, over
 * the bytes of the second. Another process can do the same while the block is being placed. */
static void
check_second_tensor(const int64_t *strides)
{
	static const uint64_t origin[2] = {0}, shape[2] = {ROWS, COLUMNS}, begins[2] = {1000, 5000};
	char dir[] = "/dev/shm/pawl-fetch-XXXXXX", path[64];
	unsigned char image[PACK_BYTES], got[ROWS * COLUMNS], want[ROWS * COLUMNS];
	struct store *store = NULL;
	struct fetch *fetch = NULL;
	struct reshard_plan *plan = NULL;
	struct pawl_error err = {0};
	struct manifest_piece pieces[2];
	struct manifest_tensor tensors[2];
	struct reshard_binding bindings[2];
	for (size_t i = 0; i < sizeof image; i++)
		image[i] = (unsigned char)(i * 7 + i / 256);
	struct sum128 sum = sum_bytes(image, sizeof image);
	struct manifest_file file = {
		.name = "p", .nbytes = PACK_BYTES, .block_bytes = PACK_BYTES, .n_blocks = 1, .sums = &sum};
	const struct manifest m = {.files = &file, .n_files = 1, .tensors = tensors, .n_tensors = 2};

	assert_non_null(mkdtemp(dir));
	assert_int_equal(store_open(dir, true, false, &store, NULL), 0);
	assert_int_equal(store_put_bytes(store, "c/p", image, sizeof image, 0, NULL), 0);
	snprintf(path, sizeof path, "%s/c/p", dir);
	PAWL_FD int fd = open(path, O_RDWR | O_CLOEXEC);
	char *map = mmap(NULL, PACK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	for (size_t i = 0; i < 2; i++) {
		pieces[i] = (struct manifest_piece){
			.begin = begins[i], .nbytes = sizeof got, .offsets = origin, .lengths = shape};
		tensors[i] = (struct manifest_tensor){.name = i ? "b" : "a",
		                                      .dtype = PAWL_U8,
		                                      .ndim = 2,
		                                      .shape = shape,
		                                      .nbytes = sizeof got,
		                                      .n_pieces = 1,
		                                      .pieces = &pieces[i]};
		bindings[i] = (struct reshard_binding){.tensor = i,
		                                       .contiguous = strides == NULL,
		                                       .dst = {.dtype = PAWL_U8,
		                                               .ndim = 2,
		                                               .shape = shape,
		                                               .strides = strides,
		                                               .data = i ? (char *)got : map + begins[1]}};
	}
	assert_int_equal(fetch_new(store, 1, 0, &fetch, NULL), 0);
	assert_int_equal(reshard_plan(&m, bindings, 2, PACK_BYTES, &plan, NULL), 0);
	struct fetch_job job = {.name = "ck", .folder = "c", .manifest = &m, .plan = plan, .bindings = bindings};
	if (fetch_run(fetch, &job, &err) < 0)
		fail_msg("%s", err.message);

	for (size_t row = 0; row < ROWS; row++)
		for (size_t column = 0; column < COLUMNS; column++)
			want[strides ? row + column * ROWS : row * COLUMNS + column] =
				image[begins[1] + row * COLUMNS + column];
	assert_memory_equal(got, want, sizeof want);
	assert_memory_not_equal(map + begins[1], image + begins[1], sizeof want); /* the file has changed */
	reshard_free(plan);
	fetch_free(fetch);
	munmap(map, PACK_BYTES);
	store_close(store);
	assert_int_equal(fd_remove_tree(AT_FDCWD, dir, NULL), 0);
}

static void
test_P1_a_block_that_changes_after_its_check_is_not_read_again(void **state)
{
	static const int64_t by_columns[2] = {1, ROWS};
	(void)state;
	check_second_tensor(by_columns);
	check_second_tensor(NULL);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_all_files_are_read_and_the_buffers_kept),
		T(test_P1_one_damaged_block_among_many_files_stops_the_reading),
		T(test_damage_is_collected_without_stopping),
		cmocka_unit_test(test_P1_a_block_that_changes_after_its_check_is_not_read_again),
		T(test_P16_blocks_too_large_for_memory_are_refused),
		T(test_units_fit_threads_and_ring),
		T(test_the_tensors_of_a_range_are_named_in_file_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
