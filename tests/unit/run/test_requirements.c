/* SPDX-License-Identifier: Apache-2.0 */
/* Requirements that no single source file answers for, through pawl.h: names and places, numbering,
 * order of a save, space. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "helpers/small_run.h"
#include "store/store.h"

#define N_SLOW_PACKS 4 /* of the save that is killed */

static const struct pawl_info *
newest(struct pawl_list *list)
{
	assert_true(pawl_list_count(list) > 0);
	return pawl_list_get(list, pawl_list_count(list) - 1);
}

static void
use_scores(struct small_run *r, int64_t num_to_keep, int strict)
{
	r->opts.retention.num_to_keep = num_to_keep;
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
	r->opts.retention.strict_score = strict;
}

/* Saves as small_save does and returns the id that the save was given; *ret_stage: how it ended. */
static uint64_t
save_for_id(struct small_run *r, int64_t step, double accuracy, int *ret_stage)
{
	struct pawl_metric metric = {.name = "accuracy", .value = accuracy};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	struct pawl_ticket *ticket = NULL;
	struct pawl_state *state;

	OK(pawl_state_new(&state, err));
	OK(pawl_state_set_int(state, "step", step, err));
	save.step = step;
	save.metrics = &metric;
	save.n_metrics = 1;
	OK(pawl_save(r->run, &save, state, &ticket, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	*ret_stage = pawl_ticket_stage(ticket);
	pawl_ticket_free(ticket);
	pawl_state_free(state);
	return stats.id;
}

static void
test_R3_memory_only_cannot_be_asked_of_checkpoints_on_disk(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention memory = PAWL_RETENTION_INIT;

	memory.num_to_keep = PAWL_KEEP_MEMORY;
	small_open(r);
	small_save(r, 1, 0.5);
	small_save(r, 2, 0.5);
	FAILS(PAWL_EUSAGE, "memory", pawl_prune(r->run, &memory, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "memory", pawl_prune(r->run, &memory, 1, NULL, err));
	ASSERT_IDS("1 2", r->run);
}

/* What became of the folders of checkpoints, in order: "+name" for each one that appeared, "-name"
 * for each that was removed. */
static void
changes_of_names(int watch, char *out, size_t cap)
{
	char buffer[8192] __attribute__((aligned(8)));
	size_t len = 0;

	out[0] = '\0';
	for (ssize_t n; (n = read(watch, buffer, sizeof(buffer))) > 0;) {
		for (char *at = buffer; at < buffer + n;) {
			const struct inotify_event *e = (const struct inotify_event *)(const void *)at;
			int came = (e->mask & (IN_CREATE | IN_MOVED_TO)) != 0;

			at += sizeof(*e) + e->len;
			if (e->len && e->name[0] != '.' && len < cap)
				len += (size_t)snprintf(out + len, cap - len, "%s%c%s", len ? " " : "",
				                        came ? '+' : '-', e->name);
		}
	}
}

static void
test_R4_the_new_one_has_its_name_before_the_loser_goes(void **state)
{
	struct small_run *r = *state;
	char seen[512];

	r->opts.retention.num_to_keep = 2;
	small_open(r);
	small_save(r, 1, 0.5);
	small_save(r, 2, 0.5);
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	assert_true(watch >= 0);
	assert_true(inotify_add_watch(watch, small_path(r, "checkpoints").text,
	                              IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO) >= 0);
	small_save(r, 3, 0.5);
	changes_of_names(watch, seen, sizeof(seen));
	assert_string_equal(seen, "+checkpoint_000003 -checkpoint_000001");
	ASSERT_IDS("2 3", r->run);
	OK(pawl_remove(r->run, 2, 1, err)); /* the control: this order is noticed */
	small_save(r, 4, 0.5);
	changes_of_names(watch, seen, sizeof(seen));
	assert_string_equal(seen, "-checkpoint_000002 +checkpoint_000004");
	close(watch);
}

static void
test_R13_checkpoints_lie_in_checkpoints_of_the_run_folder(void **state)
{
	struct small_run *r = *state;
	struct pawl_list *list;
	char expected[256];

	small_mkdir(r, "elsewhere");
	assert_int_equal(chdir(r->root), 0);
	assert_int_equal(chdir(".."), 0);
	r->opts.root =
		strrchr(r->root, '/') + 1; /* relative; places do not depend on where the program goes from here */
	small_open(r);
	small_save(r, 1, 0.5);
	assert_int_equal(chdir(small_path(r, "elsewhere").text), 0);
	small_save(r, 2, 0.5);
	OK(pawl_list_open(r->run, 0, &list, err));
	for (size_t i = 0; i < 2; i++) {
		snprintf(expected, sizeof(expected), "%s/checkpoints/checkpoint_%06zu", r->root, i + 1);
		assert_string_equal(pawl_list_get(list, i)->path, expected);
		assert_int_equal(access(expected, F_OK), 0);
	}
	pawl_list_free(list);
	assert_int_equal(small_count(r, "elsewhere"), 0);
	assert_int_equal(chdir("/"), 0);
}

static void
test_R14_R15_R23_E1_a_skipped_save_uses_up_its_number(void **state)
{
	struct small_run *r = *state;
	uint64_t id = 77;
	int stage;

	use_scores(r, 1, 1);
	small_open(r);
	FAILS(PAWL_ENOTFOUND, "no checkpoint",
	      pawl_find(r->run, "latest", &id, err)); /* no name while nothing was saved */
	assert_int_equal(save_for_id(r, 10, 0.5, &stage), 1);
	assert_int_equal(stage, PAWL_STAGE_SETTLED);
	assert_int_equal(save_for_id(r, 20, 0.4, &stage), 2);
	assert_int_equal(stage, PAWL_STAGE_SKIPPED);
	FAILS(PAWL_ENOTFOUND, "checkpoint_000002",
	      pawl_find(r->run, "checkpoint_000002", &id, err)); /* named, not on disk */
	assert_int_equal(id, 77);
	assert_int_equal(save_for_id(r, 30, 0.9, &stage), 3); /* the next one goes to id + 1 */
	assert_int_equal(stage, PAWL_STAGE_SETTLED);
	ASSERT_IDS("3", r->run);
	assert_true(small_exists(r, "checkpoints/checkpoint_000003/manifest.json"));
	assert_int_equal(small_count(r, "checkpoints"), 1);
}

static void
test_R17_R18_the_latest_is_the_highest_id_on_disk_or_none(void **state)
{
	struct small_run *r = *state;
	struct pawl_list *list;
	uint64_t id = 77;

	use_scores(r, 0, 0);
	small_open(r);
	FAILS(PAWL_ENOTFOUND, "no checkpoint", pawl_find(r->run, "latest", &id, err));
	assert_int_equal(id, 77);
	small_save(r, 30, 0.9); /* neither the highest step nor the best score */
	small_save(r, 10, 0.5);
	small_save(r, 20, 0.1);
	OK(pawl_find(r->run, "latest", &id, err));
	assert_int_equal(id, 3);
	OK(pawl_list_open(r->run, 0, &list, err));
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pawl_list_get(list, i)->marks & PAWL_MARK_LATEST, i == 2 ? PAWL_MARK_LATEST : 0);
	pawl_list_free(list);
	OK(pawl_remove(r->run, 3, 1, err));
	OK(pawl_find(r->run, "latest", &id, err));
	assert_int_equal(id, 2);
	OK(pawl_remove(r->run, 2, 1, err));
	OK(pawl_remove(r->run, 1, 1, err));
	FAILS(PAWL_ENOTFOUND, "no checkpoint", pawl_find(r->run, "latest", &id, err));
	assert_int_equal(id, 2);
}

static void
test_R19_a_new_run_has_no_checkpoint_and_no_best(void **state)
{
	struct small_run *r = *state;
	struct pawl_list *list;
	uint64_t id = 77;
	int stage;

	use_scores(r, 2, 0);
	small_open(r);
	OK(pawl_list_open(r->run, 1, &list, err));
	assert_int_equal(pawl_list_count(list), 0);
	pawl_list_free(list);
	FAILS(PAWL_ENOTFOUND, "", pawl_find(r->run, "latest", &id, err));
	FAILS(PAWL_ENOTFOUND, "", pawl_find(r->run, "best", &id, err));
	assert_int_equal(id, 77);
	assert_int_equal(save_for_id(r, 0, 0.1, &stage), 1); /* counting begins at 1 */
}

static void
test_R20_E7_opening_sets_the_rules_and_goes_on_with_numbers_scores_and_best(void **state)
{
	struct small_run *r = *state;
	uint64_t id;
	int stage;

	use_scores(r, 0, 0);
	r->opts.retention.keep_last = 10;
	small_open(r);
	small_save(r, 1, 0.9);
	small_save(r, 2, 0.2);
	small_save(r, 3, 0.3);
	r->opts.retention.keep_last = 0;
	use_scores(r, 1, 0);
	small_open(r);
	OK(pawl_find(r->run, "best", &id, err));
	assert_int_equal(id, 1);
	ASSERT_IDS("1 2 3", r->run);
	assert_int_equal(save_for_id(r, 4, 0.5, &stage), 4); /* the number after the newest one */
	ASSERT_IDS("1 4", r->run);                           /* the new rules: the best one, and the latest */
}

static void
test_R30_folders_are_made_and_nothing_half_written_has_the_name(void **state)
{
	struct small_run *r = *state;
	struct small_path root = small_path(r, "made/by/opening");
	struct pawl_fault *fault = NULL;
	uint64_t id;

	r->opts.root = root.text;
	small_open(r);
	small_open(r); /* existing ones are fine */
	small_save(r, 1, NAN);
	assert_true(small_exists(r, "made/by/opening/checkpoints/checkpoint_000001/manifest.json"));
	OK(pawl_fault_new("finish", 1, PAWL_EIO, 1, &fault, err));
	r->opts.io.fault = fault;
	small_open(r);
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *one;
	OK(pawl_state_new(&one, err));
	OK(pawl_state_set_int(one, "x", 1, err));
	struct pawl_error why = {0};
	int rc = pawl_save(r->run, &save, one, NULL, &why);
	rc = rc < 0 ? rc : pawl_wait(r->run, -1, &why);
	assert_int_equal(rc, PAWL_EIO);
	pawl_state_free(one);
	FAILS(PAWL_ENOTFOUND, "", pawl_find(r->run, "checkpoint_000002", &id, err));
	assert_int_equal(small_count(r, "made/by/opening/checkpoints"), 1);
	pawl_close(r->run, NULL);
	r->run = NULL;
	pawl_fault_free(fault);
}

static void
test_R42_a_run_keeps_everything_in_its_own_folder(void **state)
{
	struct small_run *r = *state;
	struct small_path roots[2];
	struct pawl_list *list;

	for (int i = 0; i < 2; i++) {
		roots[i] = small_path(r, i == 0 ? "first" : "second");
		r->opts.root = roots[i].text;
		small_open(r);
		small_save(r, i + 1, 0.5);
		OK(pawl_list_open(r->run, 0, &list, err));
		assert_int_equal(pawl_list_count(list), 1);
		assert_memory_equal(newest(list)->path, roots[i].text, strlen(roots[i].text));
		pawl_list_free(list);
	}
	pawl_close(r->run, NULL);
	r->run = NULL;
	assert_int_equal(small_count(r, ""), 2);
}

int __real_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                       struct pawl_error *err);
int __wrap_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                       struct pawl_error *err);

static _Atomic int64_t bytes_left = INT64_MAX; /* to be written before a write waits for ever */

int
__wrap_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                   struct pawl_error *err)
{
	while (atomic_fetch_sub(&bytes_left, (int64_t)len) <= 0)
		pause();
	return __real_store_write(s, f, offset, ptr, len, err);
}

/* How many packs have any bytes in the hidden folder of the save that is running. */
static size_t
packs_begun(const struct small_run *r)
{
	DIR *dir = opendir(small_path(r, "checkpoints").text);
	size_t n = 0;

	for (struct dirent *d; dir && (d = readdir(dir));) {
		struct stat st;

		if (!strstr(d->d_name, ".partial"))
			continue;
		for (int i = 0; i < N_SLOW_PACKS; i++) {
			char pack[512];

			snprintf(pack, sizeof(pack), "checkpoints/%s/rank00000-%05d.safetensors", d->d_name, i);
			n += stat(small_path(r, pack).text, &st) == 0 && st.st_size > 0;
		}
	}
	if (dir)
		closedir(dir);
	return n;
}

/* In the child: saves epoch 7, and then a state of several packs. That save stands still when most
 * packs are begun and the last bytes are not written; then it is killed. */
static void
save_until_killed(struct small_run *r)
{
	struct pawl_open_opts opts = r->opts;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *small = NULL, *large = NULL;
	struct pawl *run = NULL;
	uint64_t shape[] = {(uint64_t)1 << 20};
	char name[] = "w0";

	opts.packs.pack_bytes = 1 << 20;
	opts.io.threads = 1;
	tensor.dtype = PAWL_U8;
	tensor.ndim = 1;
	tensor.shape = shape;
	char *data = calloc(N_SLOW_PACKS, shape[0]);
	if (!data || pawl_open(&opts, &run, NULL) < 0 || pawl_state_new(&small, NULL) < 0 ||
	    pawl_state_new(&large, NULL) < 0 || pawl_state_set_int(small, "epoch", 7, NULL) < 0 ||
	    pawl_state_set_int(large, "epoch", 8, NULL) < 0)
		_exit(1);
	save.step = 7;
	if (pawl_save(run, &save, small, NULL, NULL) < 0 || pawl_wait(run, -1, NULL) < 0)
		_exit(1);
	for (int i = 0; i < N_SLOW_PACKS; i++, name[1]++) {
		tensor.data = data + (size_t)i * shape[0];
		if (pawl_state_set_tensor(large, name, &tensor, NULL) < 0)
			_exit(1);
	}
	save.step = 8;
	atomic_store(&bytes_left, (int64_t)(N_SLOW_PACKS - 1) << 20);
	if (pawl_save(run, &save, large, NULL, NULL) < 0)
		_exit(1);
	while (packs_begun(r) < N_SLOW_PACKS - 1) {
		if (!pawl_is_saving(run))
			_exit(2);
		usleep(1000);
	}
	kill(getpid(), SIGKILL);
}

static void
be_killed(struct small_run *r)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		save_until_killed(r);
		_exit(3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void
test_R55_the_newest_checkpoint_is_found_after_a_kill_and_none_in_a_new_run(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore *restore = NULL;
	int64_t epoch;

	small_open(r);
	FAILS(PAWL_ENOTFOUND, "no checkpoint", pawl_restore(r->run, NULL, NULL, &restore, err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	be_killed(r);
	assert_true(small_exists(r, ".lease"));
	assert_true(packs_begun(r) >= N_SLOW_PACKS - 1);
	assert_false(small_exists(r, "checkpoints/checkpoint_000002"));
	small_open(r);
	OK(pawl_restore(r->run, NULL, NULL, &restore, err));
	OK(pawl_state_get_int(pawl_restore_state(restore), "epoch", &epoch, err));
	assert_int_equal(epoch, 7);
	assert_int_equal(pawl_restore_info(restore)->step, 7);
	pawl_restore_close(restore);
	assert_int_equal(small_count(r, "checkpoints"), 1);
}

/* One checkpoint is there, nothing is next to it, and every byte of it is right. */
static void
assert_only_is_whole(const struct small_run *r, uint64_t id)
{
	struct pawl_findings *findings = NULL;
	char ids[16];

	snprintf(ids, sizeof(ids), "%llu", (unsigned long long)id);
	ASSERT_IDS(ids, r->run);
	assert_int_equal(small_count(r, "checkpoints"), 1);
	OK(pawl_verify(r->run, id, NULL, &findings, err));
	assert_int_equal(pawl_findings_count(findings), 0);
	pawl_findings_free(findings);
}

static void
test_R143_too_little_space_is_told_with_both_figures_before_anything_is_written(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *one;
	struct pawl_error why = {0};
	struct statvfs fs;
	uint64_t shape[] = {(uint64_t)1 << 20, (uint64_t)1 << 32}, need = 0, found = 0;
	int64_t strides[] = {0, 0};
	char byte = 1, path[256];

	r->opts.retention.num_to_keep = 1; /* room is not made by deleting */
	small_open(r);
	small_save(r, 1, 0.5);
	tensor.dtype = PAWL_U8; /* one byte, 2^52 times: no disk holds it, and no memory is needed to say so */
	tensor.ndim = 2;
	tensor.shape = shape;
	tensor.strides = strides;
	tensor.data = &byte;
	OK(pawl_state_new(&one, err));
	OK(pawl_state_set_tensor(one, "huge", &tensor, err));
	assert_int_equal(pawl_save(r->run, &save, one, NULL, &why), PAWL_ENOSPACE);
	pawl_state_free(one);
	const char *at = strstr(why.message, "needs about ");
	assert_non_null(at);
	assert_int_equal(
		sscanf(at, "needs about %" SCNu64 " bytes, but %255s has %" SCNu64 " bytes free", &need, path, &found),
		3);
	assert_true(need > (uint64_t)1 << 52 && need < ((uint64_t)1 << 52) + (1 << 24));
	assert_string_equal(path, r->root);
	assert_int_equal(statvfs(r->root, &fs), 0);
	assert_true(found > 0 && found <= (uint64_t)fs.f_blocks * fs.f_frsize);
	assert_only_is_whole(r, 1);
	small_save(r, 2, 0.5); /* and the run continues */
	ASSERT_IDS("3", r->run);
}

static void
test_R143_a_disk_that_fills_up_in_a_save_costs_no_older_checkpoint(void **state)
{
	static const char *const operations[] = {"create", "write", "finish", "publish"};
	struct small_run *r = *state;
	int failures = 0;

	r->opts.retention.num_to_keep = 1;
	for (size_t i = 0; i < COUNT(operations); i++) {
		struct small_path root = small_path(r, operations[i]);
		struct small_run in = {.opts = r->opts};
		struct pawl_fault *fault = NULL;
		struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
		struct pawl_state *one;
		struct pawl_error why = {0};

		snprintf(in.root, sizeof(in.root), "%.120s", root.text);
		in.opts.root = in.root;
		small_open(&in);
		small_save(&in, 1, 0.5);
		OK(pawl_fault_new(operations[i], 1, PAWL_ENOSPACE, 1, &fault, err));
		in.opts.io.fault = fault;
		small_open(&in);
		OK(pawl_state_new(&one, err));
		OK(pawl_state_set_int(one, "x", 1, err));
		int rc = pawl_save(in.run, &save, one, NULL, &why);
		rc = rc < 0 ? rc : pawl_wait(in.run, -1, &why);
		failures += rc == PAWL_ENOSPACE;
		pawl_state_free(one);
		assert_only_is_whole(&in, 1);
		pawl_close(in.run, NULL);
		pawl_fault_free(fault);
	}
	assert_int_equal(failures, COUNT(operations));
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_R3_memory_only_cannot_be_asked_of_checkpoints_on_disk),
		CASE(test_R4_the_new_one_has_its_name_before_the_loser_goes),
		CASE(test_R13_checkpoints_lie_in_checkpoints_of_the_run_folder),
		CASE(test_R14_R15_R23_E1_a_skipped_save_uses_up_its_number),
		CASE(test_R17_R18_the_latest_is_the_highest_id_on_disk_or_none),
		CASE(test_R19_a_new_run_has_no_checkpoint_and_no_best),
		CASE(test_R20_E7_opening_sets_the_rules_and_goes_on_with_numbers_scores_and_best),
		CASE(test_R30_folders_are_made_and_nothing_half_written_has_the_name),
		CASE(test_R42_a_run_keeps_everything_in_its_own_folder),
		CASE(test_R55_the_newest_checkpoint_is_found_after_a_kill_and_none_in_a_new_run),
		CASE(test_R143_too_little_space_is_told_with_both_figures_before_anything_is_written),
		CASE(test_R143_a_disk_that_fills_up_in_a_save_costs_no_older_checkpoint),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
