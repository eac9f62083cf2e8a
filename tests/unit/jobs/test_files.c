/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single files (pawl_files_*): what is refused, what a call of the store or an
 * allocation that fails leaves (P4, P5), many threads and pieces, errors told
 * once, what dead processes left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/wait.h>

#include "base/fd.h"
#include "helpers/failing_malloc.h"
#include "helpers/small_run.h"
#include "jobs/files/files.h"
#include "pawl_jobs.h"

#define N_WEIGHT ((uint64_t)3000001) /* 12 MB: several pieces, units and threads */

struct bed {
	char folder[128];
	char path[200];
	float *weight;
	double pairs[3][4];
	uint64_t n, two[2];
	int64_t turned[2];
	struct pawl_state *state;
};

static void
add(struct bed *b, const char *name, int dtype, uint32_t ndim, const uint64_t *shape, const int64_t *strides,
    void *data)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.strides = strides;
	t.data = data;
	OK(pawl_state_set_tensor(b->state, name, &t, err));
}

static int
setup(void **state)
{
	struct bed *b = calloc(1, sizeof *b);
	const char *place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/var/tmp";

	assert_non_null(b);
	snprintf(b->folder, sizeof b->folder, "%s/pawl-files-XXXXXX", place);
	assert_non_null(mkdtemp(b->folder));
	snprintf(b->path, sizeof b->path, "%s/x.pt", b->folder);
	b->weight = malloc(N_WEIGHT * sizeof(float));
	assert_non_null(b->weight);
	for (uint64_t i = 0; i < N_WEIGHT; i++)
		b->weight[i] = (float)i;
	for (size_t i = 0; i < 12; i++)
		b->pairs[i / 4][i % 4] = (double)i;
	b->n = 1000;
	b->two[0] = 4;
	b->two[1] = 3;
	b->turned[0] = 1;
	b->turned[1] = 4;
	OK(pawl_state_new(&b->state, err));
	add(b, "model/weight", PAWL_F32, 1, &b->n, NULL, b->weight);
	add(b, "model/turned", PAWL_F64, 2, b->two, b->turned, b->pairs);
	OK(pawl_state_set_int(b->state, "epoch", 3, err));
	*state = b;
	return 0;
}

static int
teardown(void **state)
{
	struct bed *b = *state;

	pawl_state_free(b->state);
	nftw(b->folder, small_remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(b->weight);
	free(b);
	return 0;
}

static struct pawl_files *
opened(struct pawl_fault *layer)
{
	struct pawl_files_opts opts = PAWL_FILES_OPTS_INIT;
	struct pawl_files *f = NULL;

	opts.threads = 3;
	opts.fault = layer;
	OK(pawl_files_open(&opts, &f, err));
	return f;
}

static int
save_as(struct pawl_files *f, const struct bed *b, const char *path, struct pawl_error *err)
{
	struct pawl_file_opts opts = PAWL_FILE_OPTS_INIT;

	opts.overwrite = 1;
	int rc = pawl_files_save(f, path, &opts, b->state, NULL, err);

	return rc < 0 ? rc : pawl_files_wait(f, -1, err);
}

/* Names in the folder; *ret_hidden of them begin with a dot. */
static size_t
count_names(const char *folder, size_t *ret_hidden)
{
	DIR *dir = opendir(folder);
	size_t n = 0;

	*ret_hidden = 0;
	assert_non_null(dir);
	for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		n++;
		*ret_hidden += e->d_name[0] == '.';
	}
	closedir(dir);
	return n;
}

static void
read_all(const char *path, struct buf *ret)
{
	buf_clear(ret);
	OK(fd_read_file(AT_FDCWD, path, (size_t)1 << 30, ret, err));
}

static void
write_all_of(const char *path, const struct buf *bytes)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes->ptr, 1, bytes->len, file), bytes->len);
	assert_int_equal(fclose(file), 0);
}

static bool
same_bytes(const struct buf *a, const struct buf *b)
{
	return a->len == b->len && memcmp(a->ptr, b->ptr, a->len) == 0;
}

/* ------------------------------------------------------------------------
 * tests */

static void
test_what_is_refused_is_refused_before_anything_is_written(void **state)
{
	struct bed *b = *state;
	struct pawl_files *f = opened(NULL);
	struct pawl_file_opts opts = PAWL_FILE_OPTS_INIT;
	char path[300];
	size_t hidden;

	FAILS(PAWL_EUSAGE, "the path of a file", pawl_files_save(f, "", NULL, b->state, NULL, err));
	FAILS(PAWL_EUSAGE, "the path of a file", pawl_files_save(f, "/tmp/", NULL, b->state, NULL, err));
	snprintf(path, sizeof path, "%s/x.bin", b->folder);
	FAILS(PAWL_EUSAGE, ".pt, .pth or .safetensors", pawl_files_save(f, path, NULL, b->state, NULL, err));
	snprintf(path, sizeof path, "%s/no/x.pt", b->folder);
	FAILS(PAWL_ENOTFOUND, "/no", pawl_files_save(f, path, NULL, b->state, NULL, err));
	FAILS(PAWL_EUNSUPPORTED, "to paths", pawl_files_save(f, "s3://bucket/x.pt", NULL, b->state, NULL, err));
	snprintf(path, sizeof path, "%s/x.pt.zst", b->folder);
	opts.level = 1000;
	FAILS(PAWL_EUSAGE, "1000", pawl_files_save(f, path, &opts, b->state, NULL, err));
	assert_int_equal(count_names(b->folder, &hidden), 0);

	OK(save_as(f, b, b->path, err));
	FAILS(PAWL_EEXISTS, "exists", pawl_files_save(f, b->path, NULL, b->state, NULL, err));
	OK(save_as(f, b, b->path, err)); /* that was not an error of the background */
	OK(pawl_files_close(f, err));
}

/* Many pieces, units and threads make the bytes that one thread makes, and a
 * format may be named. */
static void
test_threads_and_pieces_do_not_show_in_the_file(void **state)
{
	struct bed *b = *state;
	struct pawl_files_opts one = PAWL_FILES_OPTS_INIT;
	struct pawl_file_opts opts = PAWL_FILE_OPTS_INIT;
	struct pawl_files *f = opened(NULL), *alone = NULL;
	struct buf first = {0}, second = {0};
	char path[300];
	uint64_t n = N_WEIGHT;

	add(b, "model/large", PAWL_F32, 1, &n, NULL, b->weight);
	one.threads = 1;
	OK(pawl_files_open(&one, &alone, err));
	OK(save_as(f, b, b->path, err));
	read_all(b->path, &first);
	OK(save_as(alone, b, b->path, err));
	read_all(b->path, &second);
	assert_true(same_bytes(&first, &second));

	snprintf(path, sizeof path, "%s/x.model", b->folder);
	opts.format = "pt";
	OK(pawl_files_save(f, path, &opts, b->state, NULL, err));
	OK(pawl_files_wait(f, -1, err));
	read_all(path, &second);
	assert_true(same_bytes(&first, &second));
	buf_clear(&first);
	buf_clear(&second);
	OK(pawl_files_close(f, err));
	OK(pawl_files_close(alone, err));
}

/* P4, P5: whichever call of the store fails, the old file or the new one exists, never a partial
 * one. It is reported once. */
static void
test_P4_P5_a_failing_call_leaves_the_old_file(void **state)
{
	struct bed *b = *state;
	struct buf before = {0}, now = {0};
	struct pawl_files *f = opened(NULL);
	size_t hidden, failures = 0;

	OK(save_as(f, b, b->path, err));
	OK(pawl_files_close(f, err));
	read_all(b->path, &before);
	b->weight[3] = -1; /* the new one differs */
	for (uint64_t nth = 1;; nth++) {
		struct pawl_fault *layer = NULL;
		struct pawl_error found = {0};

		/* where a failure does not matter, the new one is written */
		write_all_of(b->path, &before);
		OK(pawl_fault_new("any", nth, PAWL_EIO, 0, &layer, err));
		f = opened(layer);
		int rc = save_as(f, b, b->path, &found);
		bool fired = pawl_fault_calls(layer) >= nth;

		OK(pawl_files_check(f, err)); /* told already */
		OK(pawl_files_close(f, err));
		pawl_fault_free(layer);
		read_all(b->path, &now);
		count_names(b->folder, &hidden);
		assert_int_equal(hidden, 0);
		if (rc < 0) {
			failures++;
			assert_int_equal(rc, PAWL_EIO);
			if (!strstr(found.message, "the file is in place"))
				assert_true(same_bytes(&before, &now));
		}
		if (!fired)
			break;
		assert_true(nth < 100);
	}
	assert_true(failures >= 3);              /* create, write, finish */
	assert_false(same_bytes(&before, &now)); /* the control: without a failure the new one is there */
	buf_clear(&before);
	buf_clear(&now);
}

/* The same for allocations, each one, and all from one on. */
static void
test_P4_a_failing_allocation_leaves_the_old_file(void **state)
{
	struct bed *b = *state;
	struct buf before = {0}, now = {0};
	struct pawl_files *f = opened(NULL);
	size_t hidden;

	OK(save_as(f, b, b->path, err));
	OK(pawl_files_close(f, err));
	read_all(b->path, &before);
	for (int forever = 0; forever <= 1; forever++) {
		for (long nth = 1;; nth++) {
			struct pawl_files *g = NULL;
			const size_t was = count_live();

			arm(nth, forever);
			int rc = pawl_files_open(NULL, &g, NULL);

			rc = rc < 0 ? rc : save_as(g, b, b->path, NULL);
			pawl_files_close(g, NULL);
			disarm();
			const bool fired = atomic_load(&fault.seen) >= nth;

			assert_true(rc == 0 || rc == PAWL_ENOMEM || rc == PAWL_ETRANSIENT);
			assert_int_equal(count_live(), was);
			count_names(b->folder, &hidden);
			assert_int_equal(hidden, 0);
			read_all(b->path, &now);
			assert_true(same_bytes(&before, &now));
			if (!fired) {
				assert_int_equal(rc, 0);
				break;
			}
			assert_true(nth < 5000);
		}
	}
	buf_clear(&before);
	buf_clear(&now);
}

static void
test_an_error_of_the_background_is_told_by_the_next_call_once(void **state)
{
	struct bed *b = *state;
	struct pawl_fault *layer = NULL;
	struct pawl_file_opts opts = PAWL_FILE_OPTS_INIT;
	struct pawl_ticket *ticket = NULL;

	OK(pawl_fault_new("write", 1, PAWL_EIO, 0, &layer, err));
	struct pawl_files *f = opened(layer);

	OK(pawl_files_save(f, b->path, &opts, b->state, &ticket, err));
	while (pawl_ticket_stage(ticket) < PAWL_STAGE_SETTLED)
		usleep(1000);
	assert_int_equal(pawl_ticket_stage(ticket), PAWL_STAGE_FAILED);
	FAILS(PAWL_EIO, "x.pt", pawl_files_save(f, b->path, &opts, b->state, NULL, err));
	OK(pawl_files_save(f, b->path, &opts, b->state, NULL, err));
	OK(pawl_files_close(f, err));
	FAILS(PAWL_EIO, "x.pt", pawl_ticket_wait(ticket, -1, err)); /* it outlives the handle */
	pawl_ticket_free(ticket);
	pawl_fault_free(layer);
}

static void
touch(const struct bed *b, const char *name)
{
	char path[400];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", b->folder, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
}

static void
test_what_a_dead_process_left_goes_and_what_a_live_one_writes_stays(void **state)
{
	struct bed *b = *state;
	struct pawl_files *f = opened(NULL);
	char alive[FILES_TEMP_BYTES], dead[FILES_TEMP_BYTES];
	size_t hidden;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	OK(files_temp_name(alive, err));

	/* the same name, of a process that has ended */
	char own[32], *at;

	snprintf(own, sizeof own, "-%lld-", (long long)getpid());
	at = strstr(alive, own);
	assert_non_null(at);
	snprintf(dead, sizeof dead, "%.*s-%lld-%s", (int)(at - alive), alive, (long long)pid, at + strlen(own));
	touch(b, alive);
	touch(b, dead);
	touch(b, ".pawl-anything.partial");
	OK(save_as(f, b, b->path, err));
	OK(pawl_files_close(f, err));
	assert_int_equal(count_names(b->folder, &hidden), 3);
	assert_int_equal(hidden, 2);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_what_is_refused_is_refused_before_anything_is_written),
		CASE(test_threads_and_pieces_do_not_show_in_the_file),
		CASE(test_P4_P5_a_failing_call_leaves_the_old_file),
		CASE(test_P4_a_failing_allocation_leaves_the_old_file),
		CASE(test_an_error_of_the_background_is_told_by_the_next_call_once),
		CASE(test_what_a_dead_process_left_goes_and_what_a_live_one_writes_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
