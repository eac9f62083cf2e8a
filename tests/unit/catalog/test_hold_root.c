/* SPDX-License-Identifier: Apache-2.0 */
/* hold_root: checkpoints of a run that are opened by their own path are held. Reading processes are
 * stopped in the middle of a copy while a writer removes, recycles and overwrites files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "foreign/foreign.h"
#include "helpers/small_run.h"

#define N ((size_t)6 << 18) /* elements of F32: 6 MiB, of which a reader takes 1 MiB at a time */
#define PACK "checkpoints/checkpoint_000001/rank00000-00000.safetensors"

/* ------------------------------------------- a process that stops in a copy */

/* The memory to read into cannot be accessed. A thread that tries reports it to the test, and waits
 * for its answer. */
static struct {
	char *memory;
	int hear, ask;
} stop;

static void
at_touch(int sig, siginfo_t *info, void *context)
{
	char c;

	(void)sig, (void)context;
	if ((char *)info->si_addr < stop.memory || (char *)info->si_addr >= stop.memory + N * sizeof(float))
		_exit(90);
	if (write(stop.hear, "s", 1) != 1 || read(stop.ask, &c, 1) != 1 ||
	    mprotect(stop.memory, N * sizeof(float), PROT_READ | PROT_WRITE) < 0)
		_exit(91);
}

static float
value(int64_t step, size_t i)
{
	return (float)step + (float)i * 0.5f;
}

/* Restores the checkpoint at path; returns 0 if every value is that of step 1, else the positive
 * code of the error. */
static int
read_path(const char *path)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_restore_opts restore = PAWL_RESTORE_OPTS_INIT;
	struct pawl_state *state = NULL;
	struct pawl *run = NULL;
	struct pawl_error err = {0};

	opts.root = path;
	opts.single = opts.read_only = 1;
	restore.ring_bytes = 1 << 20; /* the calling thread reads alone: the others block signals */
	stop.memory = mmap(NULL, N * sizeof(float), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stop.memory == MAP_FAILED || pawl_state_new(&state, NULL) < 0)
		return 92;
	small_add(state, "w", PAWL_F32, N, stop.memory);
	int rc = pawl_open(&opts, &run, &err);
	if (rc == 0)
		rc = pawl_restore(run, &restore, state, NULL, &err);
	for (size_t i = 0; rc == 0 && i < N; i++)
		rc = ((float *)(void *)stop.memory)[i] == value(1, i) ? 0 : -93;
	if (rc < 0)
		fprintf(stderr, "reader: %s\n", err.message);
	pawl_close(run, NULL);
	pawl_state_free(state);
	return -rc;
}

struct reader {
	pid_t pid;
	int ask;
};

/* Starts a process that reads the first checkpoint, and returns when it is in the middle. The run
 * must be closed. */
static struct reader
reader_start(const struct small_run *r, bool can_hold)
{
	struct reader reader;
	int ask[2], hear[2];
	char path[200], c = 0;

	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000001", r->root);
	assert_true(pipe(ask) == 0 && pipe(hear) == 0);
	reader.pid = fork();
	assert_true(reader.pid >= 0);
	if (reader.pid == 0) {
		const struct sigaction touch = {.sa_sigaction = at_touch, .sa_flags = SA_SIGINFO};
		const struct rlimit none = {0, 0};

		close(ask[1]);
		close(hear[0]);
		stop.ask = ask[0];
		stop.hear = hear[1];
		signal(SIGBUS, SIG_DFL); /* a sanitizer catches it */
		signal(SIGXFSZ, SIG_IGN);
		if (sigaction(SIGSEGV, &touch, NULL) < 0 || (!can_hold && setrlimit(RLIMIT_FSIZE, &none) < 0))
			_exit(94);
		_exit(read_path(path));
	}
	close(ask[0]);
	close(hear[1]);
	if (read(hear[0], &c, 1) != 1 || c != 's')
		fail_msg("the reader ended before it copied");
	close(hear[0]);
	reader.ask = ask[1];
	return reader;
}

static int
reader_end(struct reader *reader)
{
	int status;

	assert_int_equal(write(reader->ask, "g", 1), 1);
	assert_int_equal(waitpid(reader->pid, &status, 0), reader->pid);
	close(reader->ask);
	return status;
}

/* ------------------------------------------------------------------- writing */

static void
save(struct small_run *r, int64_t step, size_t n)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_ticket *ticket;
	struct pawl_state *state;
	float *data = malloc(n * sizeof(*data));

	assert_non_null(data);
	for (size_t i = 0; i < n; i++)
		data[i] = value(step, i);
	OK(pawl_state_new(&state, err));
	small_add(state, "w", PAWL_F32, n, data);
	opts.step = step;
	OK(pawl_save(r->run, &opts, state, &ticket, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_free(ticket);
	pawl_state_free(state);
	free(data);
	OK(pawl_wait(r->run, -1, err)); /* what is not kept has gone, too */
}

static void
start(struct small_run *r)
{
	r->opts.packs.recycle = 1;
	r->opts.packs.no_reuse = 1;
	r->opts.retention.num_to_keep = 1;
	small_open(r);
	save(r, 1, N);
}

static void
pause_run(struct small_run *r)
{
	pawl_close(r->run, NULL);
	r->run = NULL;
}

/* Trains with states of this size while a process is in the middle of reading the first
 * checkpoint. */
static void
check_reader(void **state, bool can_hold, size_t n)
{
	struct small_run *r = *state;

	start(r);
	pause_run(r);
	struct reader reader = reader_start(r, can_hold);
	small_open(r);
	for (int64_t step = 2; step <= 5; step++)
		save(r, step, n);
	int is_kept = small_exists(r, PACK);
	assert_int_equal(reader_end(&reader), 0);
	assert_int_equal(is_kept, can_hold);
	assert_int_equal(small_count(r, ".pawl/holds"), 0);
	save(r, 6, n);
	assert_false(small_exists(r, PACK));
}

static void
test_R142_P6_a_reader_by_path_keeps_its_checkpoint(void **state)
{
	check_reader(state, true, 1000);
}

static void
test_P1_a_reader_without_a_hold_reads_what_was_saved_while_files_shrink(void **state)
{
	check_reader(state, false, 1000);
}

static void
test_P1_a_reader_without_a_hold_reads_what_was_saved_while_files_are_replaced(void **state)
{
	check_reader(state, false, N);
}

/* That the process above is in the middle of a file. It ends by an error, never by a signal. */
static void
test_P1_a_reader_notices_a_file_that_is_cut(void **state)
{
	struct small_run *r = *state;

	for (int can_hold = 0; can_hold < 2; can_hold++) {
		start(r);
		pause_run(r);
		struct reader reader = reader_start(r, can_hold);
		assert_int_equal(truncate(small_path(r, PACK).text, 4096), 0);
		int status = reader_end(&reader);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == -PAWL_ECORRUPT);
		assert_int_equal(small_count(r, ".pawl/holds"), 0);
		nftw(r->root, small_remove_one, 16, FTW_DEPTH | FTW_PHYS);
	}
	assert_int_equal(mkdir(r->root, 0700), 0);
}

/* ------------------------------------------------------------------- opening */

static struct pawl *
open_path(const char *path)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *run = NULL;

	opts.root = path;
	opts.single = 1;
	opts.read_only = 1;
	OK(pawl_open(&opts, &run, err));
	return run;
}

static void
test_R142_every_path_to_a_checkpoint_of_a_run_holds_it_until_it_is_closed(void **state)
{
	struct small_run *r = *state;
	static const char *const paths[] = {"checkpoints/checkpoint_000001", "checkpoints/checkpoint_000001/", PACK,
	                                    "latest", "latest/rank00000-00000.safetensors"};

	small_open(r);
	save(r, 1, 16);
	for (size_t i = 0; i < COUNT(paths); i++) {
		struct pawl *reader = open_path(small_path(r, paths[i]).text);

		assert_int_equal(small_count(r, ".pawl/holds"), 1);
		FAILS(PAWL_EBUSY, "held", pawl_remove(r->run, 1, 1, err));
		pawl_close(reader, NULL);
		assert_int_equal(small_count(r, ".pawl/holds"), 0);
	}
	OK(pawl_remove(r->run, 1, 1, err));
}

static void
test_opening_what_is_not_in_a_run_leaves_nothing(void **state)
{
	struct small_run *r = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	char path[200];

	snprintf(path, sizeof(path), "%s/alone/checkpoints/x", r->root);
	opts.root = path;
	opts.single = 1;
	OK(pawl_open(&opts, &r->run, err));
	save(r, 1, 16);
	pause_run(r);
	struct pawl *reader = open_path(path);
	assert_int_equal(small_count(r, "alone"), 1);
	pawl_close(reader, NULL);
	assert_int_equal(small_count(r, "alone"), 1);
}

/* A folder that is renamed, as a deletion does, once an opening knows the format of its file. */
static struct {
	const char *from, *to;
} vanish;

int __real_foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
                          struct pawl_error *error);
int __wrap_foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
                          struct pawl_error *error);

int
__wrap_foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
                      struct pawl_error *error)
{
	int rc = __real_foreign_detect(store, key, given, ret, error);

	if (vanish.from)
		assert_int_equal(rename(vanish.from, vanish.to), 0);
	vanish.from = NULL;
	return rc;
}

static void
test_a_file_whose_folder_is_renamed_while_it_is_opened_keeps_its_path(void **state)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct small_run *r = *state;
	struct pawl *reader = NULL;
	const struct small_path path = small_path(r, PACK), from = small_path(r, "checkpoints/checkpoint_000001"),
				to = small_path(r, "checkpoints/.gone");

	small_open(r);
	save(r, 1, 16);
	opts.root = path.text;
	opts.single = opts.read_only = 1;
	vanish.from = from.text;
	vanish.to = to.text;
	OK(pawl_open(&opts, &reader, err));
	assert_string_equal(pawl_root(reader), path.text);
	pawl_close(reader, NULL);
	assert_int_equal(small_count(r, ".pawl/holds"), 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		T(test_R142_P6_a_reader_by_path_keeps_its_checkpoint),
		T(test_P1_a_reader_without_a_hold_reads_what_was_saved_while_files_shrink),
		T(test_P1_a_reader_without_a_hold_reads_what_was_saved_while_files_are_replaced),
		T(test_P1_a_reader_notices_a_file_that_is_cut),
		T(test_R142_every_path_to_a_checkpoint_of_a_run_holds_it_until_it_is_closed),
		T(test_opening_what_is_not_in_a_run_leaves_nothing),
		T(test_a_file_whose_folder_is_renamed_while_it_is_opened_keeps_its_path),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
