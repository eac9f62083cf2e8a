/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that may not be read: missing permission is not damage (R137). No older one is taken
 * in their place, nothing is reported about their bytes, and neither gc nor repair changes them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "helpers/small_run.h"
#include "run/run.h"
#include "helpers/user_store.h"

#define NEWEST "checkpoints/checkpoint_000003"

static void
save_three(struct small_run *r)
{
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
	small_open(r);
	for (int64_t step = 1; step <= 3; step++)
		small_save(r, step, (double)(4 - step));
}

static int
restore_code(struct pawl *run, const char *selector, struct pawl_error *err)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore = NULL;

	opts.selector = selector;
	int rc = pawl_restore_open(run, &opts, &restore, err);

	pawl_restore_close(restore);
	return rc;
}

static unsigned
marks_of(struct pawl *run, uint64_t id)
{
	struct pawl_list *list;
	unsigned marks = 0;

	OK(pawl_list_open(run, 1, &list, err));
	for (size_t i = 0; i < pawl_list_count(list); i++)
		if (pawl_list_get(list, i)->id == id)
			marks = pawl_list_get(list, i)->marks;
	pawl_list_free(list);
	return marks;
}

/* The run's newest checkpoint, 3, may not be read. */
static void
expect_denied(struct pawl *run)
{
	uint64_t id;

	FAILS(PAWL_EAUTH, "checkpoint_000003", restore_code(run, NULL, err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", restore_code(run, "3", err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", restore_code(run, "checkpoint_000003", err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", restore_code(run, "good", err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", restore_code(run, "best", err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", restore_code(run, "step:3", err));
	OK(restore_code(run, "2", err));
	OK(restore_code(run, "step:2", err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", pawl_wait_for_new(run, 2, 0, &id, err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", pawl_verify(run, 0, NULL, NULL, err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", pawl_verify(run, 3, NULL, NULL, err));
	OK(pawl_verify(run, 2, NULL, NULL, err));
	assert_int_equal(marks_of(run, 3), PAWL_MARK_BAD | PAWL_MARK_DENIED);
	assert_int_equal(marks_of(run, 2) & (PAWL_MARK_BAD | PAWL_MARK_DENIED), 0);
}

/* ---- permissions of folders and files */

/* Runs fn in a process that permissions count for. */
static void
as_another(struct small_run *r, void (*fn)(struct small_run *r))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		if (geteuid() == 0 && setuid(65534) < 0)
			_exit(2);
		r->run = NULL; /* the parent's */
		r->opts.read_only = 1;
		fn(r); /* a failed assertion ends the process with another status */
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void
look_at_run(struct small_run *r)
{
	small_open(r);
	expect_denied(r->run);
}

static void
look_at_checkpoint(struct small_run *r)
{
	struct small_path path = small_path(r, NEWEST);
	struct pawl_error why = {0};
	struct pawl *one = NULL;
	uint64_t id = 0;

	r->opts.root = path.text;
	r->opts.single = 1;
	int rc = pawl_open(&r->opts, &one, &why);

	if (rc == 0)
		rc = restore_code(one, NULL, &why);
	assert_int_equal(rc, PAWL_EAUTH);
	assert_non_null(strstr(why.message, "checkpoint")); /* what is shut, or a folder above it */
	if (one)
		FAILS(PAWL_EAUTH, "checkpoint_000003", pawl_find(one, "latest", &id, err));
	pawl_close(one, NULL);
}

/* Whichever file in it is shut: the message names the run, the user and what to do. */
static void
expect_refusal(struct small_run *r, const char *refusal)
{
	struct pawl_error why = {0};
	struct passwd *user = getpwuid(geteuid());
	char wanted[512];

	snprintf(wanted, sizeof(wanted), "%s: user %s %s", r->root, user ? user->pw_name : "65534", refusal);
	assert_int_equal(pawl_open(&r->opts, &r->run, &why), PAWL_EAUTH);
	assert_string_equal(why.message, wanted);
	assert_int_equal(why.sys, EACCES);
}

static void
open_is_denied(struct small_run *r)
{
	expect_refusal(r, "may not read this; ask the owner for permission");
}

static void
writing_is_denied(struct small_run *r)
{
	r->opts.read_only = 0;
	expect_refusal(r, "may not write here; ask the owner for permission, or choose another place");
}

static void
shut(struct small_run *r, const char *below, void (*fn)(struct small_run *r))
{
	assert_int_equal(chmod(small_path(r, below).text, 0), 0);
	as_another(r, fn);
	assert_int_equal(chmod(small_path(r, below).text, 0755), 0);
}

static void
test_R137_no_permission_for_a_file_or_folder_is_an_access_error(void **state)
{
	struct small_run *r = *state;

	save_three(r);
	assert_int_equal(chmod(r->root, 0755), 0);
	shut(r, NEWEST "/manifest.json", look_at_run);
	shut(r, NEWEST "/manifest.json", look_at_checkpoint);
	shut(r, NEWEST, look_at_run);
	shut(r, NEWEST, look_at_checkpoint);
	shut(r, "checkpoints", open_is_denied);
	shut(r, "checkpoints", look_at_checkpoint);
	shut(r, "run.json", open_is_denied);
	shut(r, "", open_is_denied);
}

static void
test_a_run_that_may_not_be_written_is_named_with_the_user_and_a_way_out(void **state)
{
	struct small_run *r = *state;

	save_three(r);
	pawl_close(r->run, NULL);
	r->run = NULL;
	assert_int_equal(chmod(r->root, 0555), 0);
	as_another(r, writing_is_denied);
	assert_int_equal(chmod(r->root, 0755), 0);
}

/* ---- a store that refuses one manifest */

static const struct store_ops *straight;
static struct store_ops refusing;
static int refused_sys;

static int
refuse_open(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	if (strcmp(key, NEWEST "/manifest.json") == 0)
		return err_sys(err, refused_sys, "%s: cannot open", key);
	return straight->open(s, key, ret, ret_nbytes, err);
}

static void
refuse(struct small_run *r, int sys)
{
	straight = r->run->store->ops;
	refusing = *straight;
	refusing.get = NULL;
	refusing.open = refuse_open;
	refused_sys = sys;
	r->run->store->ops = &refusing;
	/* what is known already is read again when its folder has changed */
	small_age(r, NEWEST, 60 + sys);
	OK(pawl_reload(r->run, err));
}

static void
test_R137_every_refusal_of_the_system_is_an_access_error(void **state)
{
	static const int refusals[] = {EACCES, EPERM, EBUSY};
	struct small_run *r = *state;

	save_three(r);
	for (size_t i = 0; i < COUNT(refusals); i++) {
		refuse(r, refusals[i]);
		expect_denied(r->run);
		r->run->store->ops = straight;
	}
	refuse(r, EIO); /* that is damage */
	OK(restore_code(r->run, NULL, err));
	r->run->store->ops = straight;
}

static void
test_P8_what_may_not_be_read_is_neither_deleted_nor_repaired(void **state)
{
	struct small_run *r = *state;
	char ids[400];

	r->opts.retention.num_to_keep = 2;
	small_open(r);
	for (int64_t step = 1; step <= 3; step++)
		small_save(r, step, NAN);
	refuse(r, EACCES);
	small_save(r, 4, NAN);
	OK(pawl_gc(r->run, 0, NULL, NULL, NULL, err));
	FAILS(PAWL_EAUTH, "checkpoint_000003", pawl_repair(r->run, "checkpoint_000003", 0, NULL, err));
	ASSERT_IDS("2 checkpoint_000003! 4", r->run);
	r->run->store->ops = straight;
	OK(pawl_reload(r->run, err));
	assert_string_equal(small_ids(r->run, ids, sizeof(ids)), "2 3 4");
}

/* ---- an object store that refuses one, as a bucket by status 403 */

static int refusal; /* 0 = none */

static int
refusing_get(void *store, const char *key, size_t max, pawl_store_bytes_fn *take, void *arg, struct pawl_error *err)
{
	if (refusal && strstr(key, NEWEST "/manifest.json"))
		return err_set(err, refusal, "status 403");
	return user_get(store, key, max, take, arg, err);
}

/* Saves three checkpoints. The newest is refused while `refusal` is set. */
static void
begin_refusing(struct small_run *r, struct pawl_stores *stores)
{
	*stores = user_stores;
	stores->get = refusing_get;
	OK(store_open("mem:", true, false, &user_shared, err));
	r->opts.root = "user://run";
	r->opts.io.stores = stores;
	save_three(r);
	r->opts.read_only = 1;
}

static void
end_refusing(struct small_run *r)
{
	refusal = 0;
	small_open(r);
	OK(restore_code(r->run, "3", err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	store_close(user_shared);
	user_shared = NULL;
}

static void
test_R137_no_permission_for_an_object_is_an_access_error(void **state)
{
	struct pawl_stores stores;

	begin_refusing(*state, &stores);
	refusal = PAWL_EAUTH;
	small_open(*state);
	expect_denied(((struct small_run *)*state)->run);
	end_refusing(*state);
}

static void
test_a_named_checkpoint_has_the_error_of_its_manifest(void **state)
{
	static const int codes[] = {PAWL_EIO, PAWL_ELIMIT, PAWL_EVERSION};
	struct small_run *r = *state;
	struct pawl_stores stores;

	begin_refusing(r, &stores);
	for (size_t i = 0; i < COUNT(codes); i++) {
		refusal = codes[i];
		small_open(r);
		FAILS(codes[i], "checkpoint_000003 cannot be read: ", restore_code(r->run, "id:3", err));
		FAILS(codes[i], "checkpoint_000003 cannot be read: ", restore_code(r->run, "checkpoint_000003", err));
	}
	end_refusing(r);
}

static void
test_the_newest_bad_manifest_gives_a_restore_its_error(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore = NULL;
	struct pawl_stores stores;

	opts.no_fallback = 1;
	begin_refusing(r, &stores);
	refusal = PAWL_EIO;
	small_open(r);
	FAILS(PAWL_EIO, "falling back to an older checkpoint is off", pawl_restore_open(r->run, &opts, &restore, err));
	end_refusing(r);
}

/* ---- mirrors */

static void
mirror_is_denied(struct small_run *r)
{
	FAILS(PAWL_EAUTH, "checkpoint_000003", pawl_open(&r->opts, &r->run, err));
}

static void
mirror_is_read_instead(struct small_run *r)
{
	struct pawl_restore *restore = NULL;

	small_open(r);
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	assert_int_equal(pawl_restore_info(restore)->id, 3);
	assert_int_equal(pawl_restore_fallback_count(restore), 0);
	pawl_restore_close(restore);
}

/* A newer one that is only in a mirror is not skipped. One that a mirror has, too, is read
 * there. */
static void
test_R137_no_permission_in_a_mirror_is_an_access_error(void **state)
{
	struct small_run *r = *state;
	struct small_path root = small_path(r, "run"), mirror = small_path(r, "mirror");
	const struct pawl_mirror mirrors[] = {{.url = mirror.text}};

	assert_int_equal(chmod(r->root, 0755), 0);
	r->opts.root = root.text;
	r->opts.mirrors = mirrors;
	r->opts.n_mirrors = 1;
	save_three(r);
	OK(pawl_close(r->run, err)); /* waits for the uploads */
	r->run = NULL;
	shut(r, "run/" NEWEST "/manifest.json", mirror_is_read_instead);
	small_remove(r, "run/" NEWEST);
	shut(r, "mirror/" NEWEST "/manifest.json", mirror_is_denied);
	as_another(r, mirror_is_read_instead);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R137_no_permission_for_a_file_or_folder_is_an_access_error,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_run_that_may_not_be_written_is_named_with_the_user_and_a_way_out,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_every_refusal_of_the_system_is_an_access_error, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_P8_what_may_not_be_read_is_neither_deleted_nor_repaired,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_named_checkpoint_has_the_error_of_its_manifest, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_newest_bad_manifest_gives_a_restore_its_error, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_no_permission_in_a_mirror_is_an_access_error, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_no_permission_for_an_object_is_an_access_error, small_setup,
	                                        small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
