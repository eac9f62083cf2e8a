/* SPDX-License-Identifier: Apache-2.0 */
/* Diff, export and reshard with every allocation failing (P4): what faults_bed.h promises, for the
 * calls of jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/faults_bed.h"
#include "pawl_jobs.h"

static int
diff_two(struct bed *b, struct pawl_error *err)
{
	struct pawl_diff *diff = UNTOUCHED;
	int rc = pawl_diff_open(b->run, 1, b->run, 3, NULL, &diff, err);

	assert_true(rc == 0 || diff == UNTOUCHED);
	if (rc == 0) {
		assert_int_equal(pawl_diff_count(diff), 2);
		pawl_diff_free(diff);
	}
	return rc;
}

static int
export_file(struct bed *b, struct pawl_error *err)
{
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	const char *include[] = {"model/*"};

	opts.include = include;
	opts.n_include = 1;
	opts.strip_prefix = "model/";
	opts.overwrite = 1;
	return pawl_convert(b->run, 2, small_path(&b->files, "model.safetensors").text, &opts, NULL, NULL, err);
}

static int
export_shards(struct bed *b, struct pawl_error *err)
{
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;

	opts.max_shard_bytes = 100000;
	opts.overwrite = 1;
	return pawl_convert(b->run, 2, small_path(&b->files, "shards").text, &opts, NULL, NULL, err);
}

/* Checkpoint 4: a tensor and a long text inside an extra state of the model. */
static int
export_model(struct bed *b, struct pawl_error *err)
{
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;

	opts.model = 1;
	opts.overwrite = 1;
	return pawl_convert(b->run, 4, small_path(&b->files, "model.pt").text, &opts, NULL, NULL, err);
}

/* Where a checkpoint is written again: next to the run, in a folder of its own. Without any memory
 * the library cannot remove what it has begun there. */
static void
reshard_target(struct bed *b, char path[160])
{
	snprintf(path, 160, "%s-anew/target", b->files.root);
}

static void
remove_targets(struct bed *b)
{
	char path[160];

	snprintf(path, sizeof(path), "%s-anew", b->files.root);
	nftw(path, small_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void
renew_targets(struct bed *b)
{
	char path[160];

	remove_targets(b);
	snprintf(path, sizeof(path), "%s-anew", b->files.root);
	assert_int_equal(mkdir(path, 0700), 0);
}

static int
reshard_with(struct bed *b, const char *compression, struct pawl_error *err)
{
	struct pawl_reshard_opts opts = PAWL_RESHARD_OPTS_INIT;
	char path[160];

	opts.world_size = 3;
	opts.compression = compression;
	reshard_target(b, path);
	int rc = pawl_reshard(b->run, 2, path, &opts, NULL, err);
	if (rc < 0 && access(path, F_OK) == 0)
		COMPLAIN("reshard, allocation %ld: has failed, and %s is there", atomic_load(&fault.nth), path);
	return rc;
}

static int
reshard(struct bed *b, struct pawl_error *err)
{
	return reshard_with(b, NULL, err);
}

static int
reshard_compressed(struct bed *b, struct pawl_error *err)
{
	return reshard_with(b, "zst", err);
}

static void
test_comparing(void **state)
{
	SWEEP(*state, "diff", NULL, diff_two, 0);
}

static void
test_exporting(void **state)
{
	SWEEP(*state, "export", NULL, export_file, 0);
	SWEEP(*state, "export, shards", NULL, export_shards, 0);
}

static void
test_exporting_a_model_with_an_extra_state(void **state)
{
	struct bed *b = *state;
	char recipe[5001];

	memset(recipe, 'r', sizeof(recipe) - 1);
	recipe[sizeof(recipe) - 1] = '\0';
	small_add(b->state, "model/l._extra_state/history", PAWL_F32, N_BIAS, b->bias);
	OK(pawl_state_set_str(b->state, "model/l._extra_state/recipe", recipe, err));
	save_one(b);
	SWEEP(b, "export, model", NULL, export_model, 0);
}

static void
test_resharding(void **state)
{
	SWEEP(*state, "reshard", renew_targets, reshard, 0);
	SWEEP(*state, "reshard, compressed", renew_targets, reshard_compressed, 0);
	remove_targets(*state);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_comparing),
		CASE(test_exporting),
		CASE(test_exporting_a_model_with_an_extra_state),
		CASE(test_resharding),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
