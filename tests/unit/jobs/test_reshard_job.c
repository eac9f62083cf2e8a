/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint written again for another number of ranks (pawl_reshard). R160, P1, P16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "helpers/hang.h"
#include "helpers/ranks.h"
#include "helpers/scratch.h"
#include "pawl_jobs.h"
#include "run/run.h"

#define TIMEOUT_MS HANG_MS
#define SAVED_WORLD 4

struct fixture {
	char root[256];   /* of the run */
	char folder[256]; /* new checkpoints go here */
	struct pawl *run;
	const char *compression;   /* of what is written */
	const char *rename, *cast; /* rules for what is written, or NULL */
};

static int
save_two(const struct rank_job *job)
{
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	struct rank_state s;

	rank_state_init(&s, job->rank, job->world);
	RANK_TRY(rank_open(job, &run, &err));
	for (int64_t step = 1; step <= 2; step++)
		RANK_TRY(rank_save(run, job, &s, step, NULL, &err));
	RANK_TRY(pawl_close(run, &err));
	rank_state_clear(&s);
	return 0;
}

static void
open_run(struct fixture *f)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};

	opts.root = f->root;
	opts.read_only = 1;
	if (pawl_open(&opts, &f->run, &err) < 0)
		fail_msg("%s", err.message);
}

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	char top[200];

	if (scratch_make(top, sizeof(top), "reshard") < 0)
		return -1;
	snprintf(f->root, sizeof(f->root), "%s/run", top);
	snprintf(f->folder, sizeof(f->folder), "%s/new", top);
	mkdir(f->folder, 0777);
	*state = f;
	if (ranks_run(f->root, SAVED_WORLD, TIMEOUT_MS, save_two, NULL) != 0)
		return -1;
	open_run(f);
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;

	pawl_close(f->run, NULL);
	*strrchr(f->root, '/') = 0;
	scratch_remove(f->root);
	free(f);
	return 0;
}

static size_t
count_entries(const char *folder)
{
	DIR *dir = opendir(folder);
	size_t n = 0;

	for (struct dirent *e; (e = readdir(dir));)
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(dir);
	return n;
}

static int
reshard(struct fixture *f, struct pawl *run, uint32_t world, bool drop, char path[300], struct pawl_meter *meter,
        struct pawl_error *err)
{
	struct pawl_reshard_opts opts = PAWL_RESHARD_OPTS_INIT;

	opts.world_size = world;
	opts.drop_rank_values = drop;
	opts.compression = f->compression;
	opts.rename = &f->rename;
	opts.n_rename = f->rename != NULL;
	opts.cast = &f->cast;
	opts.n_cast = f->cast != NULL;
	snprintf(path, 300, "%s/for-%u", f->folder, world);
	return pawl_reshard(run, 2, path, &opts, meter, err);
}

static struct pawl *
open_single(const char *path, const struct pawl_rank *who)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	opts.root = path;
	opts.single = 1;
	opts.read_only = 1;
	opts.ranks.self = who;
	if (pawl_open(&opts, &run, &err) < 0)
		fail_msg("%s: %s", path, err.message);
	return run;
}

/* Every rank of so many finds its own in it; by the rules, if there are any. */
static void
check_restores_by(const char *path, int world, int saved_world, const char *rename, const char *cast)
{
	struct pawl_error err = {0};

	for (int rank = 0; rank < world; rank++) {
		struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
		struct pawl *run = open_single(path, NULL);
		struct pawl_restore *restored = NULL;
		struct pawl_state *live = NULL;
		struct rank_state s;

		opts.rank_values = PAWL_RANK_VALUES_DROP;
		opts.non_strict = saved_world != SAVED_WORLD;
		opts.rename = &rename;
		opts.n_rename = rename != NULL;
		opts.cast = &cast;
		opts.n_cast = cast != NULL;
		rank_state_init(&s, rank, world);
		assert_int_equal(rank_state_build(&s, rank, world, &live, &err), 0);
		if (pawl_restore(run, &opts, live, &restored, &err) < 0)
			fail_msg("rank %d of %d: %s", rank, world, err.message);
		assert_int_equal(rank_state_differs(&s, -1, 2), 0);
		assert_int_equal(pawl_restore_info(restored)->world_size, saved_world);
		assert_int_equal(pawl_restore_info(restored)->step, 2);
		pawl_restore_close(restored);
		pawl_state_free(live);
		rank_state_clear(&s);
		pawl_close(run, NULL);
	}
}

static void
check_restores(const char *path, int world, int saved_world)
{
	check_restores_by(path, world, saved_world, NULL, NULL);
}

static void
check_verifies(const char *path)
{
	struct pawl_findings *findings = NULL;
	struct pawl_error err = {0};
	struct pawl *run = open_single(path, NULL);

	if (pawl_verify(run, 0, NULL, &findings, &err) < 0)
		fail_msg("%s: %s", path, err.message);
	pawl_findings_free(findings);
	pawl_close(run, NULL);
}

/* How many rows the comparison with the original has: only of values that each rank has for itself,
 * or differed. */
static size_t
count_differences(struct fixture *f, const char *path)
{
	struct pawl *made = open_single(path, NULL);
	struct pawl_error err = {0};
	struct pawl_diff *diff = NULL;
	uint64_t id;

	assert_int_equal(pawl_find(made, "latest", &id, &err), 0);
	assert_int_equal(pawl_diff_open(f->run, 2, made, id, NULL, &diff, &err), 0);
	size_t n = pawl_diff_count(diff);

	for (size_t i = 0; i < n; i++)
		if (strncmp(pawl_diff_get(diff, i)->path, "mine", 4) != 0 &&
		    strncmp(pawl_diff_get(diff, i)->path, "loss", 4) != 0)
			fail_msg("differs: %s", pawl_diff_get(diff, i)->path);
	pawl_diff_free(diff);
	pawl_close(made, NULL);
	return n;
}

static void
test_R151_R160_written_anew_for_any_number_of_ranks_it_is_the_same(void **state)
{
	static const uint32_t worlds[] = {1, 2, 3, 7, 40};
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300];

	for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
		struct pawl_meter meter = {0};

		if (reshard(f, f->run, worlds[i], true, path, &meter, &err) < 0)
			fail_msg("%s", err.message);
		check_verifies(path);
		assert_true(count_differences(f, path) > 0);
		check_restores(path, 1, (int)worlds[i]);
		check_restores(path, 3, (int)worlds[i]);
		assert_true(meter.total_bytes > 4 << 20);
		assert_int_equal(meter.done_bytes, meter.total_bytes);
		assert_true(count_entries(path) >= worlds[i] + 1);
	}
}

static void
test_R160_for_as_many_ranks_everything_stays(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300];

	if (reshard(f, f->run, SAVED_WORLD, false, path, NULL, &err) < 0)
		fail_msg("%s", err.message);
	check_verifies(path);
	assert_int_equal(count_differences(f, path), 0);
	check_restores(path, 2, SAVED_WORLD);
}

static void
test_names_and_dtypes_change_for_any_number_of_ranks(void **state)
{
	static const uint32_t worlds[] = {1, 3, SAVED_WORLD};
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300];

	f->rename = "*=new/*";
	f->cast = "*=fp64";
	for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
		struct pawl_meter meter = {0};

		if (reshard(f, f->run, worlds[i], true, path, &meter, &err) < 0)
			fail_msg("%s", err.message);
		check_verifies(path);
		check_restores_by(path, 2, (int)worlds[i], "new/*=*", "*=fp32");
		assert_int_equal(meter.done_bytes, meter.total_bytes);
		assert_true(meter.total_bytes > 8 << 20); /* twice the saved ones */
	}
}

static void
test_wrong_rules_leave_nothing(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300];

	f->rename = "*=one";
	assert_int_equal(reshard(f, f->run, 1, true, path, NULL, &err), PAWL_EEXISTS);
	f->rename = "none";
	assert_int_equal(reshard(f, f->run, 1, true, path, NULL, &err), PAWL_EUSAGE);
	f->rename = NULL;
	f->cast = "*=int8";
	assert_int_equal(reshard(f, f->run, 1, true, path, NULL, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "cast of '*' to 'int8': expected float16"));
	assert_int_equal(count_entries(f->folder), 0);
}

static void
test_E11_new_packs_are_compressed_on_request(void **state)
{
	static const char *const codecs[] = {"zst", "planes"};
	struct fixture *f = *state;
	struct pawl_error err = {0};
	struct stat st;
	char path[300], pack[400];

	for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++) {
		f->compression = codecs[i];
		if (reshard(f, f->run, SAVED_WORLD, false, path, NULL, &err) < 0)
			fail_msg("%s: %s", codecs[i], err.message);
		snprintf(pack, sizeof(pack), "%s/rank00003-00000.safetensors.%s", path, codecs[i]);
		assert_int_equal(stat(pack, &st), 0);
		check_verifies(path);
		assert_int_equal(count_differences(f, path), 0);
		check_restores(path, 2, SAVED_WORLD);
		scratch_remove(path);
	}
	f->compression = "rar";
	assert_int_equal(reshard(f, f->run, 2, true, path, NULL, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "compression: expected zst, planes"));
	assert_int_equal(count_entries(f->folder), 0);
}

static void
test_R160_values_per_rank_are_not_lost_unasked(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300];

	assert_int_equal(reshard(f, f->run, 3, false, path, NULL, &err), PAWL_EMISMATCH);
	assert_non_null(strstr(err.message, "kept per rank by 4 ranks do not fit 3 ranks: mine"));
	assert_int_equal(count_entries(f->folder), 0);
}

/* The shares are as even as complete rows allow. */
static void
test_packs_of_all_ranks_are_of_like_size(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300], pack[400];

	assert_int_equal(reshard(f, f->run, 8, true, path, NULL, &err), 0);
	for (int rank = 0; rank < 8; rank++) {
		struct stat st;

		snprintf(pack, sizeof(pack), "%s/rank%05d-00000.safetensors", path, rank);
		long long bytes = stat(pack, &st) == 0 ? st.st_size : 0;

		snprintf(pack, sizeof(pack), "%s/rank%05d-00001.safetensors", path, rank);
		bytes += stat(pack, &st) == 0 ? st.st_size : 0;
		assert_in_range(bytes, (512 << 10) - 8192, (512 << 10) + 40000);
	}
}

static void
test_P1_damage_is_found_while_reading_and_nothing_stays(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[400];

	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000002/rank00002-00001.safetensors", f->root);
	int fd = open(path, O_WRONLY);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "damage", 6, lseek(fd, 0, SEEK_END) - 100), 6);
	close(fd);
	assert_int_equal(reshard(f, f->run, 2, true, path, NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "rank00002-"));
	assert_int_equal(count_entries(f->folder), 0);
}

static void
fail_every_call(struct fixture *f)
{
	static const char *const operations[] = {"create", "write", "finish", "put", "publish", "read"};
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	char path[300];

	opts.root = f->root;
	opts.read_only = 1;
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		struct pawl_error err = {0};
		struct pawl *run = NULL;

		for (uint64_t nth = 1;; nth++) {
			assert_int_equal(pawl_fault_new(operations[i], nth, PAWL_EIO, 0, &opts.io.fault, &err), 0);
			int rc = pawl_open(&opts, &run, &err);

			if (rc == 0)
				rc = reshard(f, run, 2, true, path, NULL, &err);
			bool hit = pawl_fault_calls(opts.io.fault) >= nth;

			pawl_close(run, NULL);
			run = NULL;
			pawl_fault_free(opts.io.fault);
			if (!hit) {
				assert_int_equal(rc, 0);
				scratch_remove(path);
				assert_true(nth > 1);
				break;
			}
			if (rc == 0) /* a read that is tried again, or of what is not needed */
				scratch_remove(path);
			assert_int_equal(count_entries(f->folder), 0);
		}
	}
}

static void
test_P5_every_failing_call_of_the_store_leaves_nothing(void **state)
{
	fail_every_call(*state);
}

static void
test_P5_E11_so_it_is_with_compressed_packs(void **state)
{
	struct fixture *f = *state;

	f->compression = "planes";
	fail_every_call(f);
}

static void
test_wrong_calls_say_what_is_wrong(void **state)
{
	struct fixture *f = *state;
	struct pawl_reshard_opts opts = PAWL_RESHARD_OPTS_INIT;
	struct pawl_meter cancelled = {.cancel = 1};
	struct pawl_error err = {0};
	char path[300];

	assert_int_equal(reshard(f, f->run, 0, true, path, NULL, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "world_size: expected 1 to 100000, found 0"));
	assert_int_equal(reshard(f, f->run, 100001, true, path, NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_reshard(f->run, 2, path, NULL, NULL, &err), PAWL_EUSAGE);
	opts.world_size = 1;
	assert_int_equal(pawl_reshard(NULL, 2, path, &opts, NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_reshard(f->run, 2, "", &opts, NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_reshard(f->run, 9, path, &opts, NULL, &err), PAWL_ENOTFOUND);
	assert_int_equal(reshard(f, f->run, 2, true, path, &cancelled, &err), PAWL_ECANCELLED);
	assert_int_equal(count_entries(f->folder), 0);
	opts.drop_rank_values = 1;
	snprintf(path, sizeof(path), "%s/not/there", f->folder);
	assert_int_equal(pawl_reshard(f->run, 2, path, &opts, NULL, &err), PAWL_ENOTFOUND);
	assert_int_equal(reshard(f, f->run, 2, true, path, NULL, &err), 0);
	assert_int_equal(reshard(f, f->run, 2, true, path, NULL, &err), PAWL_EEXISTS);
	assert_int_equal(count_entries(f->folder), 1);
}

/* The store of the run, whose second checkpoint is deleted when its third pack is opened. */
static struct store_ops deleting;
static const struct store_ops *straight;
static _Atomic unsigned n_opened;

static int
open_after_deletion(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                    struct pawl_error *err)
{
	if (strstr(key, "checkpoint_000002/rank") && ++n_opened == 3)
		assert_int_equal(straight->remove_folder(s, "checkpoints/checkpoint_000002", err), 0);
	return straight->open(s, key, ret, ret_nbytes, err);
}

static void
test_P6_a_source_that_is_deleted_meanwhile_is_not_damaged(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	char path[300];

	straight = f->run->store->ops;
	deleting = *straight;
	deleting.open = open_after_deletion;
	f->run->store->ops = &deleting;
	assert_int_equal(reshard(f, f->run, 2, true, path, NULL, &err), PAWL_ENOTFOUND);
	f->run->store->ops = straight;
	assert_non_null(strstr(err.message, "checkpoint_000002 was deleted while it was read"));
	assert_int_equal(count_entries(f->folder), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R151_R160_written_anew_for_any_number_of_ranks_it_is_the_same,
	                                        setup, teardown),
		cmocka_unit_test_setup_teardown(test_R160_for_as_many_ranks_everything_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_names_and_dtypes_change_for_any_number_of_ranks, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_rules_leave_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_E11_new_packs_are_compressed_on_request, setup, teardown),
		cmocka_unit_test_setup_teardown(test_R160_values_per_rank_are_not_lost_unasked, setup, teardown),
		cmocka_unit_test_setup_teardown(test_packs_of_all_ranks_are_of_like_size, setup, teardown),
		cmocka_unit_test_setup_teardown(test_P1_damage_is_found_while_reading_and_nothing_stays, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(test_P5_every_failing_call_of_the_store_leaves_nothing, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(test_P5_E11_so_it_is_with_compressed_packs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_P6_a_source_that_is_deleted_meanwhile_is_not_damaged, setup,
	                                        teardown),
		cmocka_unit_test_setup_teardown(test_wrong_calls_say_what_is_wrong, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
