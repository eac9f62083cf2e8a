/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoints of every released format (tests/golden) restore to their known contents, and
 * today's writer makes files that decode to the same. They are copied first: reading leaves holds
 * for a moment, and the source tree is left unchanged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/golden.h"
#include "helpers/trees.h"

#define GOLDEN_FOLDER_2 "tests/golden/v2"
#define GOLDEN_FOLDER "tests/golden/v1" /* tests run in the root of the source tree */

/* Copies a folder with all in it, also links and hidden files. */
static void
copy_tree(const char *from, const char *to)
{
	DIR *dir = opendir(from);

	if (!dir)
		fail_msg("%s is missing", from);
	assert_int_equal(mkdir(to, 0777), 0);
	for (struct dirent *d; (d = readdir(dir));) {
		char source[2048], target[2048], bytes[4096];
		struct stat st;
		ssize_t n;

		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		snprintf(source, sizeof(source), "%s/%s", from, d->d_name);
		snprintf(target, sizeof(target), "%s/%s", to, d->d_name);
		assert_int_equal(lstat(source, &st), 0);
		if (S_ISDIR(st.st_mode)) {
			copy_tree(source, target);
			continue;
		}
		if (S_ISLNK(st.st_mode)) {
			n = readlink(source, bytes, sizeof(bytes) - 1);
			assert_true(n > 0);
			bytes[n] = '\0';
			assert_int_equal(symlink(bytes, target), 0);
			continue;
		}
		int in = open(source, O_RDONLY), out = open(target, O_WRONLY | O_CREAT | O_EXCL, 0666);
		assert_true(in >= 0 && out >= 0);
		while ((n = read(in, bytes, sizeof(bytes))) > 0)
			assert_int_equal(write(out, bytes, (size_t)n), n);
		assert_int_equal(n, 0);
		close(in);
		close(out);
	}
	closedir(dir);
}

static void
copy_golden(const struct small_run *r)
{
	copy_tree(GOLDEN_FOLDER, small_path(r, "golden").text);
	copy_tree(GOLDEN_FOLDER_2, small_path(r, "golden2").text);
}

static struct pawl *
open_at(const struct small_run *r, const char *below, bool read_only, bool single)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct small_path root = small_path(r, below);
	struct pawl *run = NULL;

	opts.root = root.text;
	opts.read_only = read_only;
	opts.single = single;
	opts.retention.score_attributes = small_scores;
	opts.retention.n_scores = 1;
	OK(pawl_open(&opts, &run, err));
	return run;
}

static void
verify_all(struct pawl *run)
{
	struct pawl_findings *findings = NULL;

	OK(pawl_verify(run, 0, NULL, &findings, err));
	pawl_findings_free(findings);
}

static void
check_text(const struct pawl_state *state, const char *path, int type, const char *expected, size_t len)
{
	const struct pawl_node *node = pawl_state_at(state, path);

	assert_non_null(node);
	assert_int_equal(pawl_node_type(node), type);
	const struct pawl_scalar *scalar = pawl_node_scalar(node);
	assert_non_null(scalar);
	assert_int_equal(scalar->len, len);
	assert_memory_equal(scalar->ptr, expected, len);
}

/* Restores id into empty memory and compares every byte and every value with what is known. */
static void
check_restored(struct pawl *run, uint64_t id, int64_t step, void (*make)(struct golden *, int64_t))
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *r = NULL;
	struct golden known, empty;
	char selector[32];

	snprintf(selector, sizeof(selector), "id:%llu", (unsigned long long)id);
	opts.selector = selector;
	make(&known, step);
	make(&empty, -1);
	OK(pawl_restore(run, &opts, empty.state, &r, err));
	assert_int_equal(known.n, empty.n);
	for (size_t i = 0; i < known.n; i++)
		if (memcmp(known.data[i], empty.data[i], known.nbytes[i]) != 0)
			fail_msg("tensor %zu of checkpoint %s differs", i, selector);
	assert_true(tree_equal(known.state, pawl_restore_state(r)));
	if (pawl_state_at(known.state, "values/long str")) {
		char text[GOLDEN_LONG];

		memset(text, 'x', sizeof(text));
		check_text(pawl_restore_state(r), "values/long str", PAWL_STR, text, sizeof(text));
		golden_fill(text, sizeof(text), "long bytes", step);
		check_text(pawl_restore_state(r), "values/long bytes", PAWL_BYTES, text, sizeof(text));
	}
	pawl_restore_close(r);
	golden_clear(&known);
	golden_clear(&empty);
}

static void
check_info(const struct pawl_info *info, int64_t step, unsigned marks, size_t n_metrics, double accuracy,
           uint64_t n_files, uint64_t reused_bytes)
{
	assert_int_equal(info->id, step);
	assert_int_equal(info->step, step * 100);
	assert_int_equal(info->progress.epoch, step);
	assert_int_equal(info->progress.token, -1);
	assert_true(info->progress.total_wct == 12.5 && info->progress.fraction == 0.25);
	assert_string_equal(info->run_id, GOLDEN_RUN_ID);
	assert_int_equal(info->marks, marks);
	assert_int_equal(info->n_metrics, n_metrics);
	assert_string_equal(info->metrics[0].name, "accuracy");
	assert_true(info->metrics[0].value == accuracy && info->has_score && info->score == accuracy);
	assert_true(step == 1 ? isnan(info->metrics[1].value) : info->metrics[1].value == 0.25);
	assert_int_equal(info->n_tensors, 30);
	assert_int_equal(info->n_files, n_files);
	assert_int_equal(info->bytes - info->new_bytes, reused_bytes);
}

static void
check_metadata(struct pawl *run, uint64_t id)
{
	struct pawl_state *metadata = NULL;
	const char *author;
	int64_t step;

	OK(pawl_metadata(run, id, &metadata, err));
	OK(pawl_state_get_str(metadata, "author", &author, err));
	OK(pawl_state_get_int(metadata, "nested/step", &step, err));
	assert_string_equal(author, "nobody");
	assert_int_equal(step, (int64_t)id);
	pawl_state_free(metadata);
}

/* Everything that is known of the run of two checkpoints. The last two: of the second one. */
static void
check_run(struct pawl *run, uint64_t n_files, uint64_t reused_bytes)
{
	struct pawl_list *list = NULL;

	OK(pawl_list_open(run, 1, &list, err));
	assert_int_equal(pawl_list_count(list), 2);
	check_info(pawl_list_get(list, 0), 1, PAWL_MARK_PINNED, 2, 0.5, 2, 0);
	check_info(pawl_list_get(list, 1), 2, PAWL_MARK_LATEST | PAWL_MARK_BEST, 3, 0.75, n_files, reused_bytes);
	assert_string_equal(pawl_list_get(list, 1)->metrics[2].name, "recall");
	assert_true(pawl_list_get(list, 1)->metrics[2].value == 0.875);
	pawl_list_free(list);
	check_metadata(run, 1);
	check_metadata(run, 2);
	check_restored(run, 1, 1, golden_state);
	check_restored(run, 2, 2, golden_state);
	verify_all(run);
}

static void
test_R148_the_golden_run_holds_what_it_held(void **state)
{
	struct small_run *r = *state;

	copy_golden(r);
	struct pawl *run = open_at(r, "golden/run", true, false);
	check_run(run, 2, 69632);
	pawl_close(run, NULL);
}

static void
test_R148_the_golden_run_of_compressed_packs_holds_what_it_held(void **state)
{
	struct small_run *r = *state;

	copy_golden(r);
	struct pawl *run = open_at(r, "golden2/packed", true, false);
	check_run(run, 2, 65775);
	pawl_close(run, NULL);
}

static void
test_R148_the_golden_shards_of_two_ranks_are_put_together(void **state)
{
	struct small_run *r = *state;
	struct pawl_list *list = NULL;

	copy_golden(r);
	struct pawl *run = open_at(r, "golden/ranks", true, false);
	OK(pawl_list_open(run, 1, &list, err));
	assert_int_equal(pawl_list_count(list), 1);
	assert_int_equal(pawl_list_get(list, 0)->world_size, 2);
	assert_int_equal(pawl_list_get(list, 0)->n_files, 4);
	pawl_list_free(list);
	check_restored(run, 1, 1, golden_small_state);
	verify_all(run);
	pawl_close(run, NULL);
}

static void
test_R148_the_golden_single_checkpoint_holds_what_it_held(void **state)
{
	struct small_run *r = *state;

	copy_golden(r);
	struct pawl *run = open_at(r, "golden/single", true, true);
	check_restored(run, 1, 2, golden_small_state);
	pawl_close(run, NULL);
}

/* A run that an older version began continues: ids, marks and unchanged packs are taken over. */
static void
test_R148_the_golden_run_can_be_continued(void **state)
{
	struct small_run *r = *state;
	struct small_path root;
	struct pawl_list *list = NULL;
	struct pawl *run = NULL;

	copy_golden(r);
	root = small_path(r, "golden/run");
	golden_open(root.text, NULL, &run);
	golden_save(run, 3);
	OK(pawl_list_open(run, 1, &list, err));
	assert_int_equal(pawl_list_count(list), 3);
	assert_int_equal(pawl_list_get(list, 0)->marks, PAWL_MARK_PINNED);
	assert_int_equal(pawl_list_get(list, 1)->marks, PAWL_MARK_BEST);
	assert_int_equal(pawl_list_get(list, 2)->id, 3);
	assert_int_equal(pawl_list_get(list, 2)->attempt, 2);
	assert_int_equal(pawl_list_get(list, 2)->bytes - pawl_list_get(list, 2)->new_bytes, 69632);
	pawl_list_free(list);
	check_restored(run, 2, 2, golden_state);
	check_restored(run, 3, 3, golden_state);
	pawl_close(run, NULL);
}

/* The lines of a manifest from "state" to before "digest", and "files" without what depends on pack
 * 0's header. The caller frees. */
static char *
contents_of(const struct small_run *r, const char *manifest)
{
	size_t len;
	char *text = small_read(r, manifest, &len);
	char *begin = strstr(text, "\n\"state\":"), *files = strstr(text, "\n\"files\":[");

	assert_true(begin && files && begin < files);
	*files = '\0';
	memmove(text, begin, strlen(begin) + 1);
	return text;
}

static void
test_R148_todays_writer_makes_what_decodes_to_the_same(void **state)
{
	struct small_run *r = *state;
	static const char *const folders[] = {"run/checkpoints/checkpoint_000001", "run/checkpoints/checkpoint_000002"};

	copy_golden(r);
	small_mkdir(r, "today");
	golden_write_run(small_path(r, "today/run").text, NULL);
	golden_write_ranks(small_path(r, "today/ranks").text);
	golden_write_single(small_path(r, "today/single").text);
	for (size_t i = 0; i < COUNT(folders); i++) {
		char then[256], now[256];

		snprintf(then, sizeof(then), "golden/%s/manifest.json", folders[i]);
		snprintf(now, sizeof(now), "today/%s/manifest.json", folders[i]);
		char *a = contents_of(r, then), *b = contents_of(r, now);
		/* The same tree and the same names; the writer decides where pieces are in a
		 * file. */
		*strstr(a, "\n\"tensors\":[") = '\0';
		*strstr(b, "\n\"tensors\":[") = '\0';
		assert_string_equal(a, b);
		free(a);
		free(b);
	}
	struct pawl *run = open_at(r, "today/run", true, false);
	check_run(run, 3, 69632); /* the second save of a process knows what changes */
	pawl_close(run, NULL);
	run = open_at(r, "today/ranks", true, false);
	check_restored(run, 1, 1, golden_small_state);
	pawl_close(run, NULL);
	run = open_at(r, "today/single", true, true);
	check_restored(run, 1, 2, golden_small_state);
	pawl_close(run, NULL);
}

/* Control: the files are read, and a change in them is seen. */
static void
test_a_changed_golden_file_is_refused(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct golden empty;

	copy_golden(r);
	small_damage(r, "golden/run/checkpoints/checkpoint_000002/rank00000-00001.safetensors", -1);
	struct pawl *run = open_at(r, "golden/run", true, false);
	golden_state(&empty, -1);
	opts.selector = "id:2";
	FAILS(PAWL_ECORRUPT, "rank00000-00001.safetensors", pawl_restore(run, &opts, empty.state, NULL, err));
	golden_clear(&empty);
	pawl_close(run, NULL);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_R148_the_golden_run_holds_what_it_held),
		CASE(test_R148_the_golden_run_of_compressed_packs_holds_what_it_held),
		CASE(test_R148_the_golden_shards_of_two_ranks_are_put_together),
		CASE(test_R148_the_golden_single_checkpoint_holds_what_it_held),
		CASE(test_R148_the_golden_run_can_be_continued),
		CASE(test_R148_todays_writer_makes_what_decodes_to_the_same),
		CASE(test_a_changed_golden_file_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
