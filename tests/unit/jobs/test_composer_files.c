/* SPDX-License-Identifier: Apache-2.0 */
/* composer: checkpoint files by name from begin to end, with stores in folders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "jobs/composer/composer.h"
#include "pawl_jobs.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* ------------------------------------------------------------------ the bed */

static struct pawl_progress
at_batch(int64_t epoch, int64_t batch)
{
	struct pawl_progress p = PAWL_PROGRESS_INIT;
	p.epoch = epoch;
	p.batch = batch;
	return p;
}

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
	assert_int_equal(pawl_state_set_tensor(s, "state/model/weights", &t, NULL), 0);
	return s;
}

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

/* Opens the savers of two ranks of one run. */
static void
open_ranks(struct bed *b, struct pawl_saver *ranks[2])
{
	for (int rank = 1; rank >= 0; rank--) {
		b->rank.rank = rank;
		ranks[rank] = open_saver(b);
	}
}

static void
check_due(struct pawl_saver *ranks[2], int64_t batch, int due)
{
	struct pawl_progress now = at_batch(0, batch);
	assert_int_equal(pawl_saver_due(ranks[0], &now, NULL), due);
	assert_int_equal(pawl_saver_due(ranks[1], &now, NULL), due);
}

/* The state may be a collective operation, which every rank must begin. */
static void
test_R92_after_a_restart_every_rank_counts_from_the_last_save_of_rank_0(void **state)
{
	(void)state;
	const char *folders[] = {"checkpoints", "{rank}"};
	for (size_t i = 0; i < COUNT(folders); i++) {
		struct bed b;
		struct pawl_saver *ranks[2];
		bed_make(&b);
		snprintf(b.folder, sizeof b.folder, "%s/{run_name}/%s", b.root, folders[i]);
		b.rank.world_size = 2;
		b.opts.save_interval = "10ba";
		open_ranks(&b, ranks);
		check_due(ranks, 9, 0);
		check_due(ranks, 10, 1);
		save_at(ranks[0], 0, 10);
		close_saver(ranks[0]);
		close_saver(ranks[1]);
		open_ranks(&b, ranks);
		for (int batch = 11; batch < 20; batch++)
			check_due(ranks, batch, 0);
		check_due(ranks, 20, 1);
		close_saver(ranks[0]);
		close_saver(ranks[1]);
		/* A rank that comes late saves what rank 0 has saved. */
		open_ranks(&b, ranks);
		save_at(ranks[0], 0, 20);
		assert_int_equal(pawl_saver_wait(ranks[0], -1, NULL), 0);
		struct pawl_progress now = at_batch(0, 20);
		assert_int_equal(pawl_saver_due(ranks[1], &now, NULL), 1);
		close_saver(ranks[0]);
		close_saver(ranks[1]);
		open_ranks(&b, ranks);
		check_due(ranks, 20, 1);
		check_due(ranks, 20, 1);
		close_saver(ranks[0]);
		close_saver(ranks[1]);
		bed_drop(&b);
	}
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

/* Killed between the two, with one file to keep: the run continues from the older file. */
static void
test_R88_R94_E7_the_file_that_a_run_continues_from_stays_until_the_link_moves(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	char link[128], target[64] = "", found[256];
	bed_make(&b);
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 10);
	save_at(s, 0, 20);
	close_saver(s);
	snprintf(link, sizeof link, "%s/r/checkpoints/latest-rank0.pt", b.root);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(symlink("ep0-ba10-rank0.pt", link), 0);
	b.opts.num_checkpoints_to_keep = 1;
	s = open_saver(&b);
	struct pawl_progress now = at_batch(0, 10);
	if (pawl_saver_start(s, &now, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(pawl_saver_latest(&b.opts, found, sizeof found, &err), 0);
	assert_non_null(strstr(found, "/ep0-ba10-rank0.pt"));
	save_at(s, 0, 20);
	close_saver(s);
	assert_true(readlink(link, target, sizeof target - 1) > 0);
	assert_string_equal(target, "ep0-ba20-rank0.pt");
	assert_false(exists(&b, "r/checkpoints/ep0-ba10-rank0.pt"));
	assert_true(exists(&b, "r/checkpoints/ep0-ba20-rank0.pt"));
	bed_drop(&b);
}

/* Whether a save is due is asked before the state is known to be a folder. */
static void
test_R90_a_folder_is_refused_where_a_later_one_was_packed(void **state)
{
	(void)state;
	const char *names[] = {"ep{epoch}-ba{batch}-rank{rank}.pt", "ep{epoch}-ba{batch}.tar"};
	for (size_t i = 0; i < COUNT(names); i++) {
		struct bed b;
		struct pawl_error err = {0};
		struct pawl_progress now = at_batch(5, 500);
		char given[96];
		bed_make(&b);
		b.opts.filename = names[i];
		b.opts.save_interval = "1ba";
		snprintf(given, sizeof given, "%s/given", b.root);
		assert_int_equal(mkdir(given, 0777), 0);
		struct pawl_saver *s = open_saver(&b);
		assert_int_equal(pawl_saver_due(s, &now, NULL), 1);
		assert_int_equal(pawl_saver_save_folder(s, &now, given, NULL), 0);
		now = at_batch(6, 600);
		assert_int_equal(pawl_saver_save_folder(s, &now, given, NULL), 0);
		close_saver(s);
		s = open_saver(&b);
		now = at_batch(0, 1);
		int rc = pawl_saver_due(s, &now, &err); /* a name with .tar is checked here */
		if (rc == 1)
			rc = pawl_saver_save_folder(s, &now, given, &err);
		assert_int_equal(rc, PAWL_EEXISTS);
		assert_non_null(strstr(err.message, "may conflict with a future checkpoint"));
		now = at_batch(6, 601);
		assert_int_equal(pawl_saver_due(s, &now, NULL), 1);
		assert_int_equal(pawl_saver_save_folder(s, &now, given, NULL), 0);
		close_saver(s);
		bed_drop(&b);
	}
}

static void
test_R90_R94_a_start_that_is_refused_deletes_nothing(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_progress now = at_batch(0, 1);
	bed_make(&b);
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 10);
	save_at(s, 0, 20);
	close_saver(s);
	b.opts.num_checkpoints_to_keep = 1;
	s = open_saver(&b);
	assert_int_equal(pawl_saver_start(s, &now, NULL), PAWL_EEXISTS);
	assert_true(exists(&b, "r/checkpoints/ep0-ba10-rank0.pt") && exists(&b, "r/checkpoints/ep0-ba20-rank0.pt"));
	now.batch = 20;
	assert_int_equal(pawl_saver_start(s, &now, NULL), 0);
	assert_false(exists(&b, "r/checkpoints/ep0-ba10-rank0.pt"));
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
	const char *bad[] = {"a.pt.br", "a.npz", "a.npy", "a.gz", "a.tar.xz", "a.tar.zst", "a-{step}.pt", "a-{id}.pt"};
	const char *good[] = {"a", "a.v2", "a.pt.zst", "a.tar.gz", "a.safetensors", "a.pt.d/{epoch}", "a.gz/{epoch}"};
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

/* What a saver does between two calls of a reader: it removes the file that the link leads to and
 * points the link to the next one. */
static const char *replaced_in;

char *__real_realpath(const char *path, char *ret);
char *__wrap_realpath(const char *path, char *ret);

char *
__wrap_realpath(const char *path, char *ret)
{
	char old[200], new[200], link[200];

	if (!replaced_in)
		return __real_realpath(path, ret);
	snprintf(old, sizeof old, "%s/old.pt", replaced_in);
	snprintf(new, sizeof new, "%s/new.pt", replaced_in);
	snprintf(link, sizeof link, "%s/latest-rank0.pt", replaced_in);
	assert_int_equal(rename(old, new), 0);
	ret = __real_realpath(path, ret);
	assert_null(ret);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(symlink("new.pt", link), 0);
	replaced_in = NULL;
	errno = ENOENT;
	return ret;
}

static void
test_R81_a_link_that_is_replaced_while_it_is_read_is_read_again(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	char folder[160], path[200], found[256];
	bed_make(&b);
	snprintf(folder, sizeof folder, "%s/r/checkpoints", b.root);
	assert_int_equal(fd_mkdirs(AT_FDCWD, folder, NULL), 0);
	snprintf(path, sizeof path, "%s/old.pt", folder);
	assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0666)), 0);
	snprintf(path, sizeof path, "%s/latest-rank0.pt", folder);
	assert_int_equal(symlink("old.pt", path), 0);
	replaced_in = folder;
	assert_int_equal(pawl_saver_latest(&b.opts, found, sizeof found, &err), 0);
	assert_string_equal(strrchr(found, '/'), "/new.pt");
	snprintf(path, sizeof path, "%s/new.pt", folder);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(pawl_saver_latest(&b.opts, found, sizeof found, &err), PAWL_ENOTFOUND);
	bed_drop(&b);
}

/* --------------------------------------------------------------- what goes wrong */

/* Uploads of test_R85_an_upload_that_is_late_.., which wait for the gate. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_shut;
	unsigned n_begun, n_running, most_running;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int __real_composer_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
                             const atomic_bool *stop, struct pawl_error *err);
int __wrap_composer_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
                             const atomic_bool *stop, struct pawl_error *err);

int
__wrap_composer_put_file(const char *path, struct store *to, const char *key, bool overwrite, int64_t deadline_ms,
                         const atomic_bool *stop, struct pawl_error *err)
{
	pthread_mutex_lock(&gate.lock);
	gate.n_begun++;
	if (++gate.n_running > gate.most_running)
		gate.most_running = gate.n_running;
	pthread_cond_broadcast(&gate.changed);
	while (gate.is_shut)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
	int rc = __real_composer_put_file(path, to, key, overwrite, deadline_ms, stop, err);
	pthread_mutex_lock(&gate.lock);
	gate.n_running--;
	pthread_mutex_unlock(&gate.lock);
	return rc;
}

static void
test_R85_an_upload_that_is_late_does_not_replace_a_newer_one(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_saved row = PAWL_SAVED_INIT;
	char remote[160];
	bed_make(&b);
	snprintf(remote, sizeof remote, "file://%s/there/model.pt", b.root);
	b.opts.filename = "model.pt";
	b.opts.remote_file_name = remote;
	b.opts.overwrite = 1;
	b.opts.num_concurrent_uploads = 2;
	gate.is_shut = true;
	gate.n_begun = gate.most_running = 0;
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 1);
	pthread_mutex_lock(&gate.lock);
	while (gate.n_begun == 0)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
	save_at(s, 0, 2);
	assert_int_equal(pawl_saver_wait_saves(s, -1, NULL), 0);
	pthread_mutex_lock(&s->lock);
	assert_int_equal(s->n_busy, 1); /* the second upload has not begun */
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&gate.lock);
	gate.is_shut = false;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
	assert_int_equal(pawl_saver_wait(s, -1, NULL), 0);
	assert_int_equal(gate.n_begun, 2);
	assert_int_equal(gate.most_running, 1);
	assert_int_equal(pawl_saver_get(s, 0, 1, &row, NULL), 0);
	assert_int_equal(row.progress.batch, 2);
	assert_int_equal(row.uploaded, 1);
	close_saver(s);
	bed_drop(&b);
}

static unsigned
count_open_files(void)
{
	unsigned n = 0;
	DIR *dir = opendir("/proc/self/fd");
	if (!dir)
		skip();
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void
test_R90_a_start_that_failed_can_be_repeated(void **state)
{
	(void)state;
	struct bed b;
	char path[256], command[600];
	struct pawl_progress now = at_batch(0, 2);
	bed_make(&b);
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 1);
	snprintf(path, sizeof path, "%s/%s", s->folder, s->work);
	close_saver(s);
	snprintf(command, sizeof command, "rm -rf %s && touch %s", path, path);
	assert_int_equal(system(command), 0);
	s = open_saver(&b);
	const unsigned n = count_open_files();
	for (int i = 0; i < 3; i++)
		assert_int_not_equal(pawl_saver_start(s, &now, NULL), 0);
	assert_int_equal(count_open_files(), n);
	assert_int_equal(unlink(path), 0);
	save_at(s, 0, 2);
	struct pawl_saver *other = open_saver(&b); /* it waits for no lock but the one that is held */
	assert_int_equal(pawl_saver_start(other, &now, NULL), PAWL_EBUSY);
	assert_int_equal(pawl_saver_start(other, &now, NULL), PAWL_EBUSY);
	pawl_saver_close(other, NULL);
	close_saver(s);
	assert_true(exists(&b, "r/checkpoints/ep0-ba1-rank0.pt") && exists(&b, "r/checkpoints/ep0-ba2-rank0.pt"));
	bed_drop(&b);
}

static void
test_a_child_of_a_closed_saver_does_not_hold_the_folder(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_error err = {0};
	struct pawl_progress now = at_batch(0, 1);
	int ends[2], status = -1;
	char byte;
	bed_make(&b);
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 1);
	assert_int_equal(pawl_saver_wait(s, -1, NULL), 0);
	assert_int_equal(pipe(ends), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) == 0 ? 0 : 1); /* until the parent has closed the pipe */
	}
	close(ends[0]);
	close_saver(s);
	s = open_saver(&b);
	int rc = pawl_saver_start(s, &now, &err);
	close_saver(s);
	close(ends[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	if (rc < 0)
		fail_msg("%s", err.message);
	bed_drop(&b);
}

static void
test_P4_R102_a_save_that_fails_keeps_the_file_of_its_name_known(void **state)
{
	(void)state;
	struct bed b;
	struct pawl_saved row = PAWL_SAVED_INIT;
	char journal[256], aside[264];
	bed_make(&b);
	b.opts.filename = "model.pt";
	struct pawl_saver *s = open_saver(&b);
	save_at(s, 0, 1);
	assert_int_equal(pawl_saver_wait(s, -1, NULL), 0);
	/* A folder in its place stands for a journal that cannot be written. */
	snprintf(journal, sizeof journal, "%s/%s", s->folder, s->journal);
	snprintf(aside, sizeof aside, "%s.aside", journal);
	assert_int_equal(rename(journal, aside), 0);
	assert_int_equal(mkdir(journal, 0777), 0);
	save_at(s, 0, 2);
	assert_int_not_equal(pawl_saver_wait(s, -1, NULL), 0);
	assert_int_equal(rmdir(journal), 0);
	assert_int_equal(rename(aside, journal), 0);
	assert_int_equal(pawl_saver_get(s, 0, 1, &row, NULL), 0);
	assert_int_equal(row.progress.batch, 1);
	save_at(s, 0, 3); /* without overwrite: only its own file may be replaced */
	assert_int_equal(pawl_saver_wait(s, -1, NULL), 0);
	assert_int_equal(pawl_saver_get(s, 0, 1, &row, NULL), 0);
	assert_int_equal(row.progress.batch, 3);
	assert_int_equal(pawl_saver_get(s, 1, 1, &row, NULL), PAWL_ENOTFOUND);
	close_saver(s);
	bed_drop(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R78_R88_R94_R102_E7_files_a_link_and_a_memory),
		cmocka_unit_test(test_R85_R89_R95_R96_E12_uploads_pointers_and_what_stays),
		cmocka_unit_test(test_R81_R88_R89_the_latest_is_found_again_here_and_there),
		cmocka_unit_test(test_R81_a_link_that_is_replaced_while_it_is_read_is_read_again),
		cmocka_unit_test(test_R90_R91_conflicts_and_intervals),
		cmocka_unit_test(test_R92_after_a_restart_every_rank_counts_from_the_last_save_of_rank_0),
		cmocka_unit_test(test_R90_E7_a_file_that_the_link_did_not_reach_does_not_stop_the_run),
		cmocka_unit_test(test_R88_R94_E7_the_file_that_a_run_continues_from_stays_until_the_link_moves),
		cmocka_unit_test(test_R90_a_folder_is_refused_where_a_later_one_was_packed),
		cmocka_unit_test(test_R90_R94_a_start_that_is_refused_deletes_nothing),
		cmocka_unit_test(test_R73_R82_R91_bad_names_and_intervals_are_refused_when_opened),
		cmocka_unit_test(test_R102_a_list_right_after_a_save_has_it),
		cmocka_unit_test(test_R78_R79_a_shard_is_refused_by_every_rank),
		cmocka_unit_test(test_R76_R91_E2_bad_options_are_refused),
		cmocka_unit_test(test_R85_an_upload_that_is_late_does_not_replace_a_newer_one),
		cmocka_unit_test(test_R90_a_start_that_failed_can_be_repeated),
		cmocka_unit_test(test_a_child_of_a_closed_saver_does_not_hold_the_folder),
		cmocka_unit_test(test_P4_R102_a_save_that_fails_keeps_the_file_of_its_name_known),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
