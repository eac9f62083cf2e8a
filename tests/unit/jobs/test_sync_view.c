/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The view of a folder that commands and functions are given, while the folder changes at known
 * points. Each link is made by linkat, which this program intercepts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "helpers/scratch.h"
#include "jobs/sync/sync.h"

static struct {
	int fails_with;       /* each link; 0 = it is made */
	void (*before)(void); /* called before the first link */
	void (*each)(void);   /* and before every one */
} on_link;

int __real_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags);
int __wrap_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags);
int
__wrap_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
	void (*before)(void) = on_link.before;
	on_link.before = NULL;
	if (before != NULL)
		before();
	if (on_link.each != NULL)
		on_link.each();
	if (on_link.fails_with != 0) {
		errno = on_link.fails_with;
		return -1;
	}
	return __real_linkat(from_fd, from, to_fd, to, flags);
}

static char root[160]; /* of a test; its folder is root/run */

static char *
in_root(const char *name)
{
	static char path[4][300];
	static unsigned i;
	snprintf(path[++i % 4], sizeof path[0], "%s/%s", root, name);
	return path[i % 4];
}

static void
put(const char *name, const char *text)
{
	char *path = in_root(name), *slash = strrchr(path, '/');
	*slash = '\0';
	assert_int_equal(fd_mkdirs(AT_FDCWD, path, NULL), 0);
	*slash = '/';
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static const char *
text_of(const struct sync_view *v, const char *name)
{
	static char text[100];
	PAWL_FREE char *path = mem_printf("%s/%s", v->path, name);
	FILE *file = fopen(path, "r");
	if (file == NULL)
		return NULL;
	text[fread(text, 1, sizeof text - 1, file)] = '\0';
	fclose(file);
	return text;
}

static int
set_up(void **state)
{
	(void)state;
	memset(&on_link, 0, sizeof on_link);
	if (scratch_make(root, sizeof root, "view") < 0)
		return -1;
	put("run/run.json", "{}");
	put("run/.lease", "mine");
	put("run/.lock", "1 host");
	put("run/.runner", "1 2 host");
	put("run/.pawl/holds/reader", "reads");
	put("run/checkpoints/a/manifest.json", "m");
	put("run/checkpoints/a/pack", "aa");
	put("run/checkpoints/b/manifest.json", "m");
	put("run/checkpoints/b/pack", "bb");
	put("run/checkpoints/.c.token.partial/pack", "half");
	put("run/checkpoints/d/pack", "no manifest yet");
	put("run/trial/journal", "1\n");
	put("run/trial/t/checkpoint_000001/x", "one");
	put("run/trial/t/checkpoint_000001/y", "two");
	put("run/trial/t/.checkpoint_removed_checkpoint_000000/x", "old");
	put("run/trial/t/result.json", "{}\n");
	(void)symlink("checkpoints/b", in_root("run/latest"));
	(void)symlink("checkpoints/gone", in_root("run/best"));
	(void)symlink("/etc/passwd", in_root("run/out"));
	return 0;
}

static int
tear_down(void **state)
{
	(void)state;
	return fd_remove_tree(AT_FDCWD, root, NULL);
}

static struct sync_view
view(void)
{
	const struct sync_limit limit = {.deadline_ms = INT64_MAX};
	struct sync_view v = {.fd = -1};
	struct pawl_error err = {0};
	char folder[200];
	snprintf(folder, sizeof folder, "%s/run", root);
	if (sync_view_make(folder, &limit, &v, &err) < 0)
		fail_msg("%s", err.message);
	return v;
}

static ino_t
inode_of(const char *path)
{
	struct stat st;
	assert_int_equal(stat(path, &st), 0);
	return st.st_ino;
}

static bool
is_in(const struct sync_view *v, const char *name)
{
	struct stat st;
	PAWL_FREE char *path = mem_printf("%s/%s", v->path, name);
	return lstat(path, &st) == 0;
}

static void
test_R113_R119_a_view_has_what_is_complete_and_nothing_else(void **state)
{
	(void)state;
	static const char *const absent[] = {"checkpoints/.c.token.partial",
	                                     "checkpoints/d",
	                                     ".lease",
	                                     ".lock",
	                                     ".runner",
	                                     ".pawl/holds",
	                                     "trial/t/.checkpoint_removed_checkpoint_000000",
	                                     "best",
	                                     "out"};
	struct sync_view v = view();
	assert_string_equal(strrchr(v.path, '/'), "/run");
	for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
		if (is_in(&v, absent[i]))
			fail_msg("%s is in the view", absent[i]);
	assert_string_equal(text_of(&v, "latest/pack"), "bb");
	assert_string_equal(text_of(&v, "trial/journal"), "1\n");
	assert_string_equal(text_of(&v, "trial/t/checkpoint_000001/y"), "two");
	PAWL_FREE char *pack = mem_printf("%s/checkpoints/a/pack", v.path);
	assert_true(inode_of(pack) == inode_of(in_root("run/checkpoints/a/pack"))); /* no bytes are copied */
	put("run/trial/t/result.json", "{}\n{}\n");
	assert_int_equal(rename(in_root("run/checkpoints/a"), in_root("run/checkpoints/.a.partial")), 0);
	assert_int_equal(fd_remove_tree(AT_FDCWD, in_root("run/checkpoints/.a.partial"), NULL), 0);
	assert_string_equal(text_of(&v, "checkpoints/a/pack"), "aa"); /* it stays as it was */
	assert_string_equal(text_of(&v, "trial/t/result.json"), "{}\n");
	sync_view_clear(&v);
	assert_int_equal(fd_remove_tree(AT_FDCWD, in_root("run"), NULL), 0);
	assert_int_equal(rmdir(root), 0); /* the folder was all that was left */
	assert_int_equal(mkdir(root, 0700), 0);
}

static void
remove_both(void)
{
	assert_int_equal(rename(in_root("run/checkpoints/a"), in_root("run/checkpoints/.a.partial")), 0);
	assert_int_equal(rename(in_root("run/checkpoints/b"), in_root("run/checkpoints/.b.partial")), 0);
	assert_int_equal(rename(in_root("run/trial/t/checkpoint_000001"), in_root("run/trial/t/.checkpoint_1")), 0);
}

static void
test_R119_a_checkpoint_that_is_removed_while_it_is_linked_is_not_in_the_view(void **state)
{
	(void)state;
	on_link.before = remove_both; /* one of them is half linked then */
	struct sync_view v = view();
	assert_false(is_in(&v, "checkpoints/a") || is_in(&v, "checkpoints/b") || is_in(&v, "latest"));
	assert_false(is_in(&v, "trial/t/checkpoint_000001"));
	assert_string_equal(text_of(&v, "run.json"), "{}");
	assert_null(memmem(v.names.manifests.ptr, v.names.manifests.len, "checkpoints/", 12));
	sync_view_clear(&v);
}

/* A search saves a checkpoint, reports it in its journal, and removes the one before. */
static void
replace_checkpoint(void)
{
	put("run/trial/t/checkpoint_000002/x", "new");
	put("run/trial/journal", "1\n2\n");
	assert_int_equal(fd_remove_tree(AT_FDCWD, in_root("run/trial/t/checkpoint_000001"), NULL), 0);
}

static void
test_R119_a_journal_and_its_checkpoints_are_of_one_time(void **state)
{
	(void)state;
	on_link.before = replace_checkpoint;
	struct sync_view v = view();
	assert_string_equal(text_of(&v, "trial/journal"), "1\n2\n");
	assert_string_equal(text_of(&v, "trial/t/checkpoint_000002/x"), "new");
	assert_false(is_in(&v, "trial/t/checkpoint_000001"));
	sync_view_clear(&v);
}

static void
append_journal(void)
{
	FILE *file = fopen(in_root("run/trial/journal"), "a");
	assert_non_null(file);
	fputs("more\n", file);
	fclose(file);
}

static void
test_R119_a_journal_that_always_changes_does_not_keep_a_view_from_being_made(void **state)
{
	(void)state;
	on_link.each = append_journal;
	struct sync_view v = view();
	assert_string_equal(text_of(&v, "checkpoints/a/pack"), "aa");
	sync_view_clear(&v);
}

static void
test_R119_where_files_cannot_be_linked_they_are_copied(void **state)
{
	(void)state;
	static const int causes[] = {EXDEV, EPERM, EOPNOTSUPP, EMLINK, EACCES};
	const struct timespec when[2] = {{1000, 0}, {1000, 5}};
	assert_int_equal(utimensat(AT_FDCWD, in_root("run/checkpoints/a/pack"), when, 0), 0);
	for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
		struct stat st;
		on_link.fails_with = causes[i];
		struct sync_view v = view();
		PAWL_FREE char *pack = mem_printf("%s/checkpoints/a/pack", v.path);
		assert_string_equal(text_of(&v, "checkpoints/a/pack"), "aa");
		assert_int_equal(stat(pack, &st), 0);
		assert_true(st.st_nlink == 1 && st.st_mtim.tv_sec == 1000 && st.st_mtim.tv_nsec == 5);
		sync_view_clear(&v);
	}
	const struct sync_limit limit = {.deadline_ms = INT64_MAX};
	struct sync_view v = {.fd = -1};
	struct pawl_error err = {0};
	on_link.fails_with = ENOSPC; /* an error that a copy would not change */
	assert_true(sync_view_make(in_root("run"), &limit, &v, &err) < 0);
	assert_non_null(strstr(err.message, "link"));
}

static void
test_what_a_dead_maker_has_left_is_removed_and_a_living_one_s_stays(void **state)
{
	(void)state;
	put(".run.00000001.sync.tmp/run/x", "dead");
	put(".run.00000002.sync.tmp/run/x", "alive");
	put(".runner.00000001.sync.tmp/run/x", "of another folder");
	PAWL_FD int fd = open(in_root(".run.00000002.sync.tmp"), O_RDONLY | O_DIRECTORY);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	struct sync_view v = view(), other = view(); /* two at a time */
	assert_int_equal(access(in_root(".run.00000001.sync.tmp"), F_OK), -1);
	assert_int_equal(access(in_root(".run.00000002.sync.tmp/run/x"), F_OK), 0);
	assert_int_equal(access(in_root(".runner.00000001.sync.tmp/run/x"), F_OK), 0);
	assert_string_equal(text_of(&v, "checkpoints/a/pack"), "aa");
	assert_string_equal(text_of(&other, "checkpoints/a/pack"), "aa");
	sync_view_clear(&other);
	assert_string_equal(text_of(&v, "checkpoints/a/pack"), "aa");
	sync_view_clear(&v);
}

static void
test_P16_a_view_that_takes_too_long_is_given_up_and_removed(void **state)
{
	(void)state;
	const struct sync_limit limit = {.deadline_ms = clock_mono_ms() - 1};
	struct sync_view v = {.fd = -1};
	struct pawl_error err = {0};
	assert_int_equal(sync_view_make(in_root("run"), &limit, &v, &err), PAWL_ETIMEOUT);
	assert_int_equal(fd_remove_tree(AT_FDCWD, in_root("run"), NULL), 0);
	assert_int_equal(rmdir(root), 0);
	assert_int_equal(mkdir(root, 0700), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R113_R119_a_view_has_what_is_complete_and_nothing_else, set_up,
	                                        tear_down),
		cmocka_unit_test_setup_teardown(
			test_R119_a_checkpoint_that_is_removed_while_it_is_linked_is_not_in_the_view, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(test_R119_a_journal_and_its_checkpoints_are_of_one_time, set_up,
	                                        tear_down),
		cmocka_unit_test_setup_teardown(
			test_R119_a_journal_that_always_changes_does_not_keep_a_view_from_being_made, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(test_R119_where_files_cannot_be_linked_they_are_copied, set_up,
	                                        tear_down),
		cmocka_unit_test_setup_teardown(test_what_a_dead_maker_has_left_is_removed_and_a_living_one_s_stays,
	                                        set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_P16_a_view_that_takes_too_long_is_given_up_and_removed, set_up,
	                                        tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
