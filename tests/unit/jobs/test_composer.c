/* SPDX-License-Identifier: Apache-2.0 */
/* composer: the pure rules of checkpoint files by name (names, conflicts, what stays, what is left
 * out). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "jobs/composer/composer.h"
#include "pawl_jobs.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;

static struct name_values
some_values(void)
{
	struct name_values v = {.run_name = "awesome-training-run",
	                        .rank = 0,
	                        .world_size = 1,
	                        .local_world_size = 1,
	                        .progress = unknown};
	v.progress.epoch = 1;
	v.progress.batch = 42;
	return v;
}

static struct pawl_progress
at_batch(int64_t epoch, int64_t batch)
{
	struct pawl_progress p = unknown;
	p.epoch = epoch;
	p.batch = batch;
	return p;
}

/* -------------------------------------------------------------------- names */

static void
test_R77_R84_R86_the_example_names(void **state)
{
	(void)state;
	const struct {
		const char *text;
		bool as_tar;
		const char *name;
	} rows[] = {
		{"ep{epoch}-ba{batch}-rank{rank}", false, "ep1-ba42-rank0"},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", false, "ep1-ba42-rank0.pt"},
		{"{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}", false,
	         "awesome-training-run/checkpoints/ep1-ba42-rank0"},
		{"///{run_name}/x", false, "awesome-training-run/x"},
		{"ep{epoch:03d}-ba{batch}", false, "ep001-ba42"},
		{"latest-rank{rank}", true, "latest-rank0.tar"},
	};
	struct name_values v = some_values();
	for (size_t i = 0; i < COUNT(rows); i++) {
		char *name = NULL;
		assert_int_equal(composer_fill(rows[i].text, &v, rows[i].as_tar, &name, NULL), 0);
		assert_string_equal(name, rows[i].name);
		mem_free(name);
	}
	char *folder = NULL;
	assert_int_equal(composer_fill_folder("/data/../x/{run_name}/checkpoints/", &v, &folder, NULL), 0);
	assert_string_equal(folder, "/data/../x/awesome-training-run/checkpoints");
	mem_free(folder);
	assert_int_equal(composer_fill_folder("s3://bucket/{run_name}", &v, &folder, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_fill_folder("s3:/bucket/{run_name}", &v, &folder, NULL), PAWL_EUSAGE);
}

static void
test_R80_R81_a_tar_has_the_suffix_of_one(void **state)
{
	(void)state;
	const char *tars[] = {"a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.lzma"};
	const char *others[] = {"a", "a.pt", "a.pt.gz", "tar", ".tar", "a.tar.x", "atar"};
	for (size_t i = 0; i < COUNT(tars); i++)
		assert_true(composer_is_tar(tars[i]));
	for (size_t i = 0; i < COUNT(others); i++)
		assert_false(composer_is_tar(others[i]));
}

static void
test_R85_a_url_names_the_store_and_the_file(void **state)
{
	(void)state;
	const struct {
		const char *text, *root, *name;
	} rows[] = {
		{"{run_name}/a.pt", NULL, "{run_name}/a.pt"},
		{"//a/b.pt", NULL, "a/b.pt"},
		{"s3://bucket/{run_name}/a.pt", "s3://bucket", "{run_name}/a.pt"},
		{"s3://bucket/team/x/a{epoch}.pt", "s3://bucket", "team/x/a{epoch}.pt"},
		{"s3://bucket/a.pt?region=eu", "s3://bucket?region=eu", "a.pt"},
		{"file:///mnt/backup/{run_name}/a.pt", "file:///mnt/backup", "{run_name}/a.pt"},
		{"file:///mnt/backup/a.pt", "file:///mnt/backup", "a.pt"},
		{"ssh://host/data/ep{epoch}.pt", "ssh://host/data", "ep{epoch}.pt"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char *root = NULL, *name = NULL;
		assert_int_equal(composer_split_url(rows[i].text, &root, &name, NULL), 0);
		assert_string_equal(name, rows[i].name);
		assert_true((root == NULL) == (rows[i].root == NULL));
		if (root)
			assert_string_equal(root, rows[i].root);
		mem_free(root);
		mem_free(name);
	}
	char *root, *name;
	assert_int_equal(composer_split_url("s3://bucket", &root, &name, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_split_url("s3://bucket/", &root, &name, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_split_url("s3:/bucket/x{epoch}.pt", &root, &name, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_split_url("", &root, &name, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_split_url("s3://{run_name}/x.pt", &root, &name, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_split_url("gs://a-{rank}/x{epoch}.pt", &root, &name, NULL), PAWL_EUSAGE);
	assert_int_equal(composer_split_url("ssh://{rank}/x{epoch}.pt", &root, &name, NULL), PAWL_EUSAGE);
}

static void
test_R88_a_link_is_relative(void **state)
{
	(void)state;
	const char *rows[][3] = {{"latest", "a", "a"},
	                         {"latest", "x/a", "x/a"},
	                         {"x/latest", "x/a", "a"},
	                         {"x/latest", "y/a", "../y/a"},
	                         {"x/y/latest", "a", "../../a"}};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char *text = composer_relative(rows[i][0], rows[i][1]);
		assert_string_equal(text, rows[i][2]);
		mem_free(text);
	}
}

static void
test_R90_only_later_names_conflict(void **state)
{
	(void)state;
	struct name_values v = some_values();
	const struct {
		const char *text, *name;
		int matches;
		bool conflicts; /* at epoch 1, batch 42 */
	} rows[] = {
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "ep1-ba42-rank0.pt", 1, false},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "ep0-ba7-rank0.pt", 1, false},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "ep1-ba43-rank0.pt", 1, true},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "ep2-ba1-rank0.pt", 1, true},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "ep9-ba99-rank1.pt", 0, false},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "ep9-ba99-rank0.pt.tmp", 0, false},
		{"ep{epoch}-ba{batch}-rank{rank}.pt", "notes.txt", 0, false},
		{"ep{epoch:04d}.pt", "ep0002.pt", 1, true},
		{"{run_name}-{batch}", "awesome-training-run-50", 1, true},
		{"{run_name}-{batch}", "other-50", 0, false},
		{"t{total_wct}-{epoch}", "t12.5-9", 1, true},
		{"model.pt", "model.pt", 1, true},
		{"{{x}}{epoch}", "{x}3", 1, true},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct pawl_progress was = unknown;
		int rc = composer_parse(rows[i].text, &v, false, rows[i].name, &was, NULL);
		assert_int_equal(rc, rows[i].matches);
		if (rc == 1)
			assert_int_equal(composer_conflicts(&was, &v.progress), rows[i].conflicts);
	}
}

/* ---------------------------------------------------------------- retention */

static void
test_R94_R95_R96_the_oldest_go_first_each_after_its_upload(void **state)
{
	(void)state;
	char key[] = "k";
	struct composer_row rows[4] = {{.seq = 1}, {.seq = 2}, {.seq = 3}, {.seq = 4}};
	assert_int_equal(composer_spent(rows, 4, -1, 0), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 4, 0), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 9, 0), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 3, 0), 0);
	for (size_t i = 0; i < 4; i++)
		rows[i].remote = key;
	assert_int_equal(composer_spent(rows, 4, 1, 0), SIZE_MAX);
	rows[1].uploaded = true;
	assert_int_equal(composer_spent(rows, 4, 1, 0), 1);
	rows[1].uploading = true;
	assert_int_equal(composer_spent(rows, 4, 1, 0), SIZE_MAX);
	rows[3].uploaded = true;
	assert_int_equal(composer_spent(rows, 4, 1, 0), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 0, 0), 3);
	assert_int_equal(composer_spent(rows, 0, 0, 0), SIZE_MAX);
}

static void
test_R88_R94_the_file_that_the_latest_link_leads_to_stays(void **state)
{
	(void)state;
	const struct composer_row rows[3] = {{.seq = 4}, {.seq = 5}, {.seq = 9}};
	assert_int_equal(composer_spent(rows, 3, 1, 4), 1);
	assert_int_equal(composer_spent(rows, 3, 1, 5), 0);
	assert_int_equal(composer_spent(rows + 1, 2, 1, 5), SIZE_MAX);
	assert_int_equal(composer_spent(rows + 1, 2, 1, 9), 0);
}

static void
test_R92_intervals_go_on_from_the_last_save_before(void **state)
{
	(void)state;
	struct composer_row rows[3] = {{.seq = 1}, {.seq = 2}, {.seq = 3}};
	struct pawl_progress now = at_batch(0, 25);
	for (size_t i = 0; i < 3; i++)
		rows[i].progress = at_batch(0, 10 * (int64_t)(i + 1));
	assert_int_equal(composer_before(rows, 3, &now, true)->seq, 2);
	now.batch = 9;
	assert_null(composer_before(rows, 3, &now, true));
	now.batch = 30;
	assert_int_equal(composer_before(rows, 3, &now, true)->seq, 3);
	assert_int_equal(composer_before(rows, 3, &now, false)->seq, 2);
}

/* ------------------------------------------------------------ what is saved */

static struct pawl_state *
some_state(void)
{
	static float memory[4] = {1, 2, 3, 4};
	static const uint64_t shape[1] = {4};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_state *s = NULL;
	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = shape;
	t.data = memory;
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "state/model/layer1.weights", &t, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "state/model/layer1.bias", &t, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "state/model/layer2.weights", &t, NULL), 0);
	assert_int_equal(pawl_state_set_int(s, "state/rank_zero_seed", 17, NULL), 0);
	assert_int_equal(pawl_state_set_str(s, "state/metadata/torch", "2", NULL), 0);
	assert_int_equal(pawl_state_set_int(s, "rng/python", 3, NULL), 0);
	return s;
}

static bool
has(const struct pawl_state *s, const char *path)
{
	return pawl_state_at(s, path) != NULL;
}

static void
test_R98_R99_R100_paths_prefixes_and_stars_are_left_out(void **state)
{
	(void)state;
	struct pawl_state *s = some_state(), *less = NULL;
	const char *exact[] = {"state/model/layer1.weights", "state/model/layer1.bias"};
	const char *prefix[] = {"state/model"}, *star[] = {"state/model/*"}, *stars[] = {"state/model/layer*.weights"};
	const char *random[] = {"state/rank_zero_seed", "rng"}, *part[] = {"state/mod"};

	assert_int_equal(composer_filter(s, exact, 2, false, &less, NULL), 0);
	assert_false(has(less, exact[0]) || has(less, exact[1]));
	assert_true(has(less, "state/model/layer2.weights") && has(less, "rng/python"));
	assert_int_equal(pawl_state_tensor_count(less), 1);
	pawl_state_free(less);

	assert_int_equal(composer_filter(s, prefix, 1, false, &less, NULL), 0);
	assert_false(has(less, "state/model"));
	assert_true(has(less, "state/rank_zero_seed"));
	pawl_state_free(less);

	assert_int_equal(composer_filter(s, star, 1, false, &less, NULL), 0);
	assert_false(has(less, "state/model/layer1.bias"));
	assert_int_equal(pawl_state_tensor_count(less), 0);
	pawl_state_free(less);

	assert_int_equal(composer_filter(s, stars, 1, false, &less, NULL), 0);
	assert_false(has(less, "state/model/layer1.weights") || has(less, "state/model/layer2.weights"));
	assert_true(has(less, "state/model/layer1.bias"));
	pawl_state_free(less);

	assert_int_equal(composer_filter(s, random, 2, false, &less, NULL), 0);
	assert_false(has(less, "rng") || has(less, "state/rank_zero_seed"));
	pawl_state_free(less);

	assert_int_equal(composer_filter(s, part, 1, false, &less, NULL), 0);
	assert_true(has(less, "state/model/layer1.bias"));
	pawl_state_free(less);
	pawl_state_free(s);
}

static void
test_R97_weights_only(void **state)
{
	(void)state;
	struct pawl_state *s = some_state(), *less = NULL, *plain = NULL;
	struct pawl_error err = {0};
	assert_int_equal(composer_filter(s, NULL, 0, true, &less, NULL), 0);
	assert_true(has(less, "state/model/layer1.bias") && has(less, "state/metadata/torch"));
	assert_false(has(less, "rng") || has(less, "state/rank_zero_seed"));
	pawl_state_free(less);
	pawl_state_free(s);
	assert_int_equal(pawl_state_new(&plain, NULL), 0);
	assert_int_equal(pawl_state_set_int(plain, "model/w", 1, NULL), 0);
	assert_int_equal(pawl_state_set_int(plain, "models/w", 1, NULL), 0);
	assert_int_equal(composer_filter(plain, NULL, 0, true, &less, NULL), 0);
	assert_true(has(less, "model/w"));
	assert_false(has(less, "models/w"));
	pawl_state_free(less);
	pawl_state_free(plain);
	assert_int_equal(pawl_state_new(&plain, NULL), 0);
	assert_int_equal(pawl_state_set_int(plain, "weights", 1, NULL), 0);
	assert_int_equal(composer_filter(plain, NULL, 0, true, &less, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "state/model"));
	pawl_state_free(plain);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R77_R84_R86_the_example_names),
		cmocka_unit_test(test_R80_R81_a_tar_has_the_suffix_of_one),
		cmocka_unit_test(test_R85_a_url_names_the_store_and_the_file),
		cmocka_unit_test(test_R88_a_link_is_relative),
		cmocka_unit_test(test_R90_only_later_names_conflict),
		cmocka_unit_test(test_R94_R95_R96_the_oldest_go_first_each_after_its_upload),
		cmocka_unit_test(test_R88_R94_the_file_that_the_latest_link_leads_to_stays),
		cmocka_unit_test(test_R92_intervals_go_on_from_the_last_save_before),
		cmocka_unit_test(test_R98_R99_R100_paths_prefixes_and_stars_are_left_out),
		cmocka_unit_test(test_R97_weights_only),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
