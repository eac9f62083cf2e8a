/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of trials, with a folder of plain files for the system's: which group they are
 * made in, what is written there and what is read. What the system does with it is tested where it
 * lets this process make groups: tests/py/test_tune_cli.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cgroup.h"
#include "helpers/scratch.h"

struct fake {
	char root[256], self[300];
};

static void
put(const struct fake *f, const char *name, const char *text)
{
	char path[700];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s", f->root, name);
	for (char *c = strchr(path + strlen(f->root) + 1, '/'); c != NULL; c = strchr(c + 1, '/')) {
		*c = '\0';
		(void)mkdir(path, 0755);
		*c = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static void
check(const struct fake *f, const char *name, const char *want)
{
	char path[700], text[100];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s", f->root, name);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_non_null(fgets(text, sizeof(text), file));
	assert_int_equal(fclose(file), 0);
	assert_string_equal(text, want);
}

static void
make(struct fake *f, const char *self)
{
	assert_int_equal(scratch_make(f->root, sizeof(f->root), "cgroup"), 0);
	put(f, "self", self);
	(void)snprintf(f->self, sizeof(f->self), "%s/self", f->root);
}

/* Which folder groups are made in, by where the first one is found. */
static void
check_place(struct fake *f, const char *folder)
{
	struct cgroups c;
	char name[600];
	int fd;

	cgroups_open(&c, f->root, f->self);
	fd = cgroups_make(&c, 7, 1000000, 42);
	assert_int_equal(fd >= 0, folder != NULL);
	if (folder != NULL) {
		(void)snprintf(name, sizeof(name), "%s/pawl-%ld-7/%s", folder, (long)getpid(),
		               c.is_v1 ? "memory.limit_in_bytes" : "memory.max");
		check(f, name, "1000000");
		(void)snprintf(name, sizeof(name), "%s/pawl-%ld-7/%s", folder, (long)getpid(),
		               c.is_v1 ? "memory.memsw.limit_in_bytes" : "memory.swap.max");
		check(f, name, c.is_v1 ? "1000000" : "0");
		(void)snprintf(name, sizeof(name), "%s/pawl-%ld-7/cgroup.procs", folder, (long)getpid());
		check(f, name, "42");
		(void)close(fd);
	}
	cgroups_close(&c);
	scratch_remove(f->root);
}

static void
test_a_group_is_made_where_the_limits_of_ours_hold(void **state)
{
	struct fake f;

	(void)state;
	make(&f, "0::/user/me\n"); /* ours hands the controller on */
	put(&f, "user/me/cgroup.controllers", "cpu memory\n");
	put(&f, "user/me/cgroup.subtree_control", "cpu memory\n");
	put(&f, "user/me/memory.max", "500\n");
	check_place(&f, "user/me");
	make(&f, "1:name=systemd:/x\n0::/user/me\n"); /* it does not, and has no limit: next to it */
	put(&f, "user/me/cgroup.controllers", "cpu memory pids\n");
	put(&f, "user/me/cgroup.subtree_control", "\n");
	put(&f, "user/me/memory.max", "max\n");
	check_place(&f, "user");
	make(&f, "0::/user/me\n"); /* it has: a group next to it would not be under that */
	put(&f, "user/me/cgroup.controllers", "memory\n");
	put(&f, "user/me/memory.max", "500\n");
	check_place(&f, NULL);
	make(&f, "0::/\n"); /* nothing is above this one */
	put(&f, "cgroup.controllers", "memory\n");
	check_place(&f, NULL);
	make(&f, "0::/user/me\n"); /* no controller */
	put(&f, "user/me/cgroup.controllers", "cpu nomemory\n");
	put(&f, "user/me/memory.max", "max\n");
	check_place(&f, NULL);
	make(&f, "0::/../me\n"); /* of another namespace */
	put(&f, "me/cgroup.subtree_control", "memory\n");
	check_place(&f, NULL);
	make(&f, "8:cpu,memory:/user/me\n0::/\n"); /* version 1 has it */
	put(&f, "memory/user/me/tasks", "");
	check_place(&f, "memory/user/me");
	make(&f, "8:cpu:/memory\n"); /* a folder of that name is not a controller */
	put(&f, "memory/memory/tasks", "");
	check_place(&f, NULL);
}

static void
test_the_system_tells_whom_it_has_ended(void **state)
{
	static const struct {
		const char *file, *text;
		bool want;
	} rows[] = {
		{"memory.events", "low 0\nhigh 3\nmax 9\noom 1\noom_kill 1\noom_group_kill 1\n", true},
		{"memory.events", "low 0\nhigh 3\nmax 9\noom 0\noom_kill 0\n", false},
		{"memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", true},
		{"memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0\n", false},
		{"none", "", false},
	};

	(void)state;
	assert_false(cgroups_was_too_large(-1));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct fake f;
		int fd;

		make(&f, "");
		put(&f, rows[i].file, rows[i].text);
		fd = open(f.root, O_RDONLY | O_DIRECTORY);
		assert_int_equal(cgroups_was_too_large(fd), rows[i].want);
		(void)close(fd);
		scratch_remove(f.root);
	}
}

/* A runner that is killed removes nothing. The next one does, but not what another one still
 * uses. */
static void
test_groups_of_runners_that_are_gone_are_removed(void **state)
{
	static const char *const kept[] = {"pawl-1-2x", "pawl-x-1", "other"};
	const pid_t gone = 4194305; /* larger than any that Linux gives */
	struct cgroups c;
	struct fake f;
	char path[700];

	(void)state;
	make(&f, "0::/me\n");
	put(&f, "me/cgroup.subtree_control", "memory\n");
	for (size_t i = 0; i < 5; i++) {
		if (i < 3)
			(void)snprintf(path, sizeof(path), "%s/me/%s", f.root, kept[i]);
		else
			(void)snprintf(path, sizeof(path), "%s/me/pawl-%ld-%zu", f.root,
			               (long)(i == 3 ? getpid() : gone), i);
		assert_int_equal(mkdir(path, 0755), 0);
	}
	cgroups_open(&c, f.root, f.self);
	cgroups_close(&c);
	assert_int_equal(access(path, F_OK), -1); /* the last one */
	for (size_t i = 0; i < 4; i++) {
		if (i < 3)
			(void)snprintf(path, sizeof(path), "%s/me/%s", f.root, kept[i]);
		else
			(void)snprintf(path, sizeof(path), "%s/me/pawl-%ld-3", f.root, (long)getpid());
		assert_int_equal(access(path, F_OK), 0);
	}
	scratch_remove(f.root);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_group_is_made_where_the_limits_of_ours_hold),
		cmocka_unit_test(test_the_system_tells_whom_it_has_ended),
		cmocka_unit_test(test_groups_of_runners_that_are_gone_are_removed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
