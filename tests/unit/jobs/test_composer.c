/* SPDX-License-Identifier: Apache-2.0 */
/* composer: the pure rules of checkpoint files by name (names, conflicts, what stays, what is left
 * out), and the complete path of a file with stores in folders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
	assert_int_equal(composer_split_url("", &root, &name, NULL), PAWL_EUSAGE);
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
	assert_int_equal(composer_spent(rows, 4, -1), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 4), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 9), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 3), 0);
	for (size_t i = 0; i < 4; i++)
		rows[i].remote = key;
	assert_int_equal(composer_spent(rows, 4, 1), SIZE_MAX);
	rows[1].uploaded = true;
	assert_int_equal(composer_spent(rows, 4, 1), 1);
	rows[1].uploading = true;
	assert_int_equal(composer_spent(rows, 4, 1), SIZE_MAX);
	rows[3].uploaded = true;
	assert_int_equal(composer_spent(rows, 4, 1), SIZE_MAX);
	assert_int_equal(composer_spent(rows, 4, 0), 3);
	assert_int_equal(composer_spent(rows, 0, 0), SIZE_MAX);
}

static void
test_R92_intervals_go_on_from_the_last_save_before(void **state)
{
	(void)state;
	struct composer_row rows[3] = {{.seq = 1}, {.seq = 2}, {.seq = 3}};
	struct pawl_progress now = at_batch(0, 25);
	for (size_t i = 0; i < 3; i++)
		rows[i].progress = at_batch(0, 10 * (int64_t)(i + 1));
	assert_int_equal(composer_before(rows, 3, &now)->seq, 2);
	now.batch = 9;
	assert_null(composer_before(rows, 3, &now));
	now.batch = 30;
	assert_int_equal(composer_before(rows, 3, &now)->seq, 3);
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

/* ------------------------------------------------------------- from begin to end */

struct bed {
	char root[64], folder[96], remote[160];
	struct pawl_saver_opts opts;
	struct pawl_rank rank;
};

static void
bed_make(struct bed *b)
{
	static const struct pawl_saver_opts init = PAWL_SAVER_OPTS_INIT;
	static const struct pawl_rank alone = PAWL_RANK_INIT;
	snprintf(b->root, sizeof b->root, "/tmp/pawl-saver-XXXXXX");
	assert_non_null(mkdtemp(b->root));
	snprintf(b->folder, sizeof b->folder, "%s/{run_name}/checkpoints", b->root);
	snprintf(b->remote, sizeof b->remote, "file://%s/there/{run_name}/ep{epoch}-ba{batch}.pt", b->root);
	b->opts = init;
	b->rank = alone;
	b->rank.world_size = 1;
	b->opts.rank = &b->rank;
	b->opts.folder = b->folder;
	b->opts.run_name = "r";
}

static void
bed_drop(struct bed *b)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s", b->root);
	assert_int_equal(system(command), 0);
}

static bool
exists(const struct bed *b, const char *name)
{
	char path[256];
	struct stat st;
	snprintf(path, sizeof path, "%s/%s", b->root, name);
	return lstat(path, &st) == 0;
}

static void
save_at(struct pawl_saver *s, int64_t epoch, int64_t batch)
{
	struct pawl_state *state = some_state();
	struct pawl_progress now = at_batch(epoch, batch);
	struct pawl_error err = {0};
	if (pawl_saver_save(s, &now, state, &err) != 0)
		fail_msg("%s", err.message);
	pawl_state_free(state);
}

static struct pawl_saver *
open_saver(const struct bed *b)
{
	struct pawl_saver *s = NULL;
	struct pawl_error err = {0};
	if (pawl_saver_open(&b->opts, &s, &err) < 0)
		fail_msg("%s", err.message);
	return s;
}

static void
close_saver(struct pawl_saver *s)
{
	struct pawl_error err = {0};
	if (pawl_saver_close(s, &err) < 0)
		fail_msg("%s", err.message);
}

static void
test_R78_R88_R94_R102_E7_files_a_link_and_a_memory(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_saved row = PAWL_SAVED_INIT;
	char target[64] = "";
	bed_make(&b);
	b.opts.num_checkpoints_to_keep = 2;
	struct pawl_saver *s = open_saver(&b);
	for (int i = 1; i <= 3; i++)
		save_at(s, 0, 10 * i);
	close_saver(s);
	assert_false(exists(&b, "r/checkpoints/ep0-ba10-rank0.pt"));
	assert_true(exists(&b, "r/checkpoints/ep0-ba20-rank0.pt") && exists(&b, "r/checkpoints/ep0-ba30-rank0.pt"));
	char link[128];
	snprintf(link, sizeof link, "%s/r/checkpoints/latest-rank0.pt", b.root);
	assert_true(readlink(link, target, sizeof target - 1) > 0);
	assert_string_equal(target, "ep0-ba30-rank0.pt");

	/* Another process continues where this one was. */
	s = open_saver(&b);
	struct pawl_progress now = at_batch(0, 30);
	assert_int_equal(pawl_saver_start(s, &now, NULL), 0);
	assert_int_equal(pawl_saver_get(s, 0, 0, &row, NULL), 0);
	assert_int_equal(row.progress.batch, 20);
	save_at(s, 0, 40);
	assert_int_equal(pawl_saver_wait(s, -1, NULL), 0);
	assert_false(exists(&b, "r/checkpoints/ep0-ba20-rank0.pt"));
	assert_int_equal(pawl_saver_get(s, 1, 0, &row, NULL), 0);
	assert_int_equal(row.progress.batch, 40);
	assert_int_equal(pawl_saver_get(s, 2, 0, &row, NULL), PAWL_ENOTFOUND);

	/* And no second one next to it. */
	struct pawl_saver *other = open_saver(&b);
	struct pawl_error err = {0};
	assert_int_equal(pawl_saver_start(other, &now, &err), PAWL_EBUSY);
	pawl_saver_close(other, NULL);
	close_saver(s);

	/* Only rank 0 writes. */
	b.rank.rank = 1;
	b.rank.world_size = 2;
	s = open_saver(&b);
	struct pawl_state *tree = some_state();
	now.batch = 50;
	assert_int_equal(pawl_saver_save(s, &now, tree, NULL), 1);
	pawl_state_free(tree);
	close_saver(s);
	assert_false(exists(&b, "r/checkpoints/ep0-ba50-rank1.pt"));
	bed_drop(&b);
}

static void
test_R85_R89_R95_R96_E12_uploads_pointers_and_what_stays(void **state)
{
	(void)state;
	struct bed b;
	char url[200], path[128], text[64] = "";
	bed_make(&b);
	b.opts.remote_file_name = b.remote;
	b.opts.latest_remote_file_name = "/{run_name}/latest";
	b.opts.num_checkpoints_to_keep = 0;
	struct pawl_saver *s = open_saver(&b);
	assert_int_equal(pawl_saver_uploads(s), 1);
	save_at(s, 0, 10);
	save_at(s, 1, 20);
	close_saver(s);
	assert_false(exists(&b, "r/checkpoints/ep1-ba20-rank0.pt"));
	assert_false(exists(&b, "r/checkpoints/latest-rank0.pt"));
	assert_true(exists(&b, "there/r/ep0-ba10.pt") && exists(&b, "there/r/ep1-ba20.pt"));
	snprintf(path, sizeof path, "%s/there/r/latest.symlink", b.root);
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	assert_non_null(fgets(text, sizeof text, f));
	fclose(f);
	assert_string_equal(text, "r/ep1-ba20.pt");
	/* The name alone and the object both lead there. */
	snprintf(path, sizeof path, "%s/back.pt", b.root);
	snprintf(url, sizeof url, "file://%s/there/r/ep1-ba20.pt", b.root);
	assert_int_equal(pawl_saver_fetch(url, path, NULL), 0);
	snprintf(url, sizeof url, "file://%s/there/none", b.root);
	assert_int_equal(pawl_saver_fetch(url, path, NULL), PAWL_ENOTFOUND);
	bed_drop(&b);
}

static void
test_R81_R88_R89_the_latest_is_found_again_here_and_there(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	char found[256], expected[256], into[128];
	bed_make(&b);
	b.opts.filename = "ep{epoch}-ba{batch}.tar.gz";
	b.opts.remote_file_name = b.remote;
	b.opts.latest_remote_file_name = "/{run_name}/latest";
	assert_int_equal(pawl_saver_latest(&b.opts, found, sizeof found, &err), PAWL_ENOTFOUND);
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 10);
	save_at(s, 1, 20);
	close_saver(s);
	b.rank.rank = 1; /* of what rank 0 has written for both */
	b.rank.world_size = 2;
	assert_int_equal(pawl_saver_latest(&b.opts, found, sizeof found, &err), 0);
	snprintf(expected, sizeof expected, "%s/r/checkpoints/ep1-ba20.tar.gz", b.root);
	assert_string_equal(found, expected);
	snprintf(into, sizeof into, "%s/into", b.root);
	assert_int_equal(mkdir(into, 0777), 0);
	assert_int_equal(pawl_saver_bring(&b.opts, "latest", into, found, sizeof found, &err), 0);
	assert_string_equal(found, expected); /* a tar is read in place */
	assert_int_equal(pawl_saver_bring(&b.opts, "{run_name}/{epoch}.pt", into, found, sizeof found, &err),
	                 PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "{epoch} has no value for loading"));
	/* Nothing is here any more: what has been uploaded is found. */
	b.opts.latest_filename = NULL;
	assert_int_equal(pawl_saver_latest(&b.opts, found, sizeof found, &err), 0);
	snprintf(expected, sizeof expected, "file://%s/there/r/ep1-ba20.pt", b.root);
	assert_string_equal(found, expected);
	bed_drop(&b);
}

static void
test_R90_R91_conflicts_and_intervals(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	struct pawl_progress now = at_batch(0, 0);
	bed_make(&b);
	b.opts.save_interval = "10ba";
	struct pawl_saver *s = open_saver(&b);
	assert_int_equal(pawl_saver_start(s, &now, NULL), 0);
	unsigned n = 0;
	for (int i = 1; i <= 30; i++) {
		now = at_batch(0, i);
		now.fraction = i / 30.0;
		if (pawl_saver_due(s, &now, NULL) == 1) {
			assert_int_equal(i % 10, 0);
			save_at(s, 0, i);
			n++;
			assert_int_equal(pawl_saver_due(s, &now, NULL), 0);
		}
	}
	assert_int_equal(n, 3);
	close_saver(s);
	/* From an earlier point on this run would write what is there. */
	s = open_saver(&b);
	now = at_batch(0, 20);
	assert_int_equal(pawl_saver_start(s, &now, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "ep0-ba30-rank0.pt"));
	now = at_batch(0, 30);
	assert_int_equal(pawl_saver_start(s, &now, &err), 0);
	close_saver(s);
	b.opts.overwrite = 1;
	s = open_saver(&b);
	now = at_batch(0, 0);
	assert_int_equal(pawl_saver_start(s, &now, &err), 0);
	close_saver(s);
	bed_drop(&b);
}

/* As a process leaves it that is killed between the two. */
static void
test_R90_E7_a_file_that_the_link_did_not_reach_does_not_stop_the_run(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	char link[128];
	bed_make(&b);
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 10);
	close_saver(s);
	snprintf(link, sizeof link, "%s/r/checkpoints/latest-rank0.pt", b.root);
	assert_int_equal(unlink(link), 0); /* the first file: the run begins again */
	s = open_saver(&b);
	struct pawl_progress now = at_batch(0, 0);
	if (pawl_saver_start(s, &now, &err) < 0)
		fail_msg("%s", err.message);
	save_at(s, 0, 10);
	save_at(s, 0, 20);
	close_saver(s);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(symlink("ep0-ba10-rank0.pt", link), 0);
	s = open_saver(&b);
	now = at_batch(0, 10);
	if (pawl_saver_start(s, &now, &err) < 0)
		fail_msg("%s", err.message);
	save_at(s, 0, 20);
	save_at(s, 0, 30);
	close_saver(s);
	/* A link that leads there, or to a file that is not the saver's, allows nothing. */
	s = open_saver(&b);
	assert_int_equal(pawl_saver_start(s, &now, &err), PAWL_EEXISTS);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(symlink("other.pt", link), 0);
	assert_int_equal(pawl_saver_start(s, &now, &err), PAWL_EEXISTS);
	close_saver(s);
	bed_drop(&b);
}

/* What a first save would refuse. */
static void
test_R73_R82_R91_bad_names_and_intervals_are_refused_when_opened(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_saver *s = NULL;
	struct pawl_error err = {0};
	char folder[96];
	const char *counters[] = {"epoch", "batch",          "batch_in_epoch", "sample",    "sample_in_epoch",
	                          "token", "token_in_epoch", "total_wct",      "epoch_wct", "batch_wct"};
	const char *bad[] = {"a.pt.br", "a.npz", "a-{step}.pt", "a-{id}.pt"};
	const char *good[] = {"a", "a.v2", "a.pt.zst", "a.tar.gz", "a.safetensors", "a.pt.d/{epoch}"};
	bed_make(&b);
	struct pawl_saver_opts plain = b.opts;
	for (size_t i = 0; i < COUNT(counters); i++) {
		snprintf(folder, sizeof folder, "%s/{run_name}/{%s:03d}", b.root, counters[i]);
		b.opts.folder = folder;
		assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
		assert_non_null(strstr(err.message, counters[i]));
		assert_int_equal(pawl_saver_latest(&b.opts, folder, sizeof folder, &err), PAWL_EUSAGE);
	}
	b.opts = plain;
	for (size_t i = 0; i < COUNT(bad); i++) {
		b.opts.filename = bad[i];
		assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	}
	for (size_t i = 0; i < COUNT(good); i++) {
		b.opts.filename = good[i];
		close_saver(open_saver(&b));
	}
	b.opts = plain;
	b.opts.latest_filename = "latest.pt.br";
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	b.opts = plain;
	b.opts.remote_file_name = "{run_name}/a.pt.br";
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	b.opts = plain;
	b.opts.save_interval = "auto";
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	assert_false(exists(&b, "r"));
	bed_drop(&b);
}

static void
test_R102_a_list_right_after_a_save_has_it(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_saved row = PAWL_SAVED_INIT;
	struct stat st;
	bed_make(&b);
	struct pawl_saver *s = open_saver(&b);
	for (int i = 1; i <= 3; i++) {
		save_at(s, 0, i);
		assert_int_equal(pawl_saver_wait_saves(s, -1, NULL), 0);
		assert_int_equal(pawl_saver_get(s, (size_t)i - 1, 0, &row, NULL), 0);
		assert_int_equal(row.progress.batch, i);
		assert_int_equal(stat(row.path, &st), 0);
	}
	close_saver(s);
	bed_drop(&b);
}

static void
test_R78_R79_a_shard_is_refused_by_every_rank(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	struct pawl_progress now = at_batch(0, 1);
	static float memory[2] = {1, 2};
	static const uint64_t shape[1] = {2}, whole[1] = {4}, offsets[1] = {0};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = shape;
	t.global_shape = whole;
	t.offsets = offsets;
	t.data = memory;
	for (int rank = 0; rank < 2; rank++) {
		struct pawl_state *shards = NULL;
		bed_make(&b);
		b.rank.rank = rank;
		b.rank.world_size = 2;
		struct pawl_saver *s = open_saver(&b);
		assert_int_equal(pawl_state_new(&shards, NULL), 0);
		assert_int_equal(pawl_state_set_rank(shards, (uint32_t)rank, 2, NULL), 0);
		assert_int_equal(pawl_state_set_tensor(shards, "model/w", &t, NULL), 0);
		assert_int_equal(pawl_saver_save(s, &now, shards, &err), PAWL_EUNSUPPORTED);
		assert_non_null(strstr(err.message, "'model/w' is a shard"));
		pawl_state_free(shards);
		close_saver(s);
		bed_drop(&b);
	}
}

static void
test_R76_R91_E2_bad_options_are_refused(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_saver *s = NULL;
	struct pawl_error err = {0};
	bed_make(&b);
	struct pawl_saver_opts good = b.opts;
	b.opts.filename = "{epcoh}.pt";
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "epoch"));
	b.opts = good;
	b.opts.filename = "../x.pt";
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	b.opts = good;
	b.opts.save_interval = "1fortnight";
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	b.opts = good;
	b.opts.num_checkpoints_to_keep = -2;
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	b.opts.num_checkpoints_to_keep = 0; /* and nothing is uploaded */
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	b.opts = good;
	b.opts.run_name = NULL;
	assert_int_equal(pawl_saver_open(&b.opts, &s, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "run_name"));
	assert_false(exists(&b, "r"));
	bed_drop(&b);
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
		cmocka_unit_test(test_R92_intervals_go_on_from_the_last_save_before),
		cmocka_unit_test(test_R98_R99_R100_paths_prefixes_and_stars_are_left_out),
		cmocka_unit_test(test_R97_weights_only),
		cmocka_unit_test(test_R78_R88_R94_R102_E7_files_a_link_and_a_memory),
		cmocka_unit_test(test_R85_R89_R95_R96_E12_uploads_pointers_and_what_stays),
		cmocka_unit_test(test_R81_R88_R89_the_latest_is_found_again_here_and_there),
		cmocka_unit_test(test_R90_R91_conflicts_and_intervals),
		cmocka_unit_test(test_R90_E7_a_file_that_the_link_did_not_reach_does_not_stop_the_run),
		cmocka_unit_test(test_R73_R82_R91_bad_names_and_intervals_are_refused_when_opened),
		cmocka_unit_test(test_R102_a_list_right_after_a_save_has_it),
		cmocka_unit_test(test_R78_R79_a_shard_is_refused_by_every_rank),
		cmocka_unit_test(test_R76_R91_E2_bad_options_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
