/* SPDX-License-Identifier: Apache-2.0 */
/* The retention of a mirror, while other processes pin and hold what it is about to delete (P6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>

#include "helpers/small_run.h"
#include "helpers/user_store.h"
#include "mirror/mirror.h"

#define DOOMED "checkpoints/checkpoint_000001"

/* What another process does after the decision to delete, and before the folder is renamed or, in a
 * bucket, the manifest is removed. */
enum act { PIN, HOLD, BLOCK };

static struct {
	const struct store_ops *straight;
	struct store_ops ops;
	enum act act;
	struct pawl *there; /* of the other process */
	struct pawl_hold *hold;
	const char *hidden; /* the folder of pins and holds */
	unsigned n_removals;
	int code;
	struct pawl_error err;
} race;

static void
act_there(void)
{
	if (race.n_removals++ > 0)
		return;
	if (race.act == PIN)
		race.code = pawl_pin(race.there, 1, &race.err);
	else if (race.act == HOLD)
		race.code = pawl_hold_open(race.there, 1, &race.hold, &race.err);
	else
		race.code = symlink(".pawl", race.hidden); /* to itself: it cannot be listed */
}

static int
race_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	if (strcmp(from, DOOMED) == 0)
		act_there();
	return race.straight->publish(s, from, to, err);
}

static int
race_remove(struct store *s, const char *key, struct pawl_error *err)
{
	if (strcmp(key, DOOMED "/manifest.json") == 0)
		act_there();
	return race.straight->remove(s, key, err);
}

/* Saves 1 and 2. The mirror keeps one, so it deletes 1, unless the other process prevents that. */
static void
delete_while(struct small_run *r, bool is_bucket, enum act act, const char *expected)
{
	static char root[200], url[200], hidden[260];
	struct pawl_retention keep = PAWL_RETENTION_INIT;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	const struct pawl_mirror mirror = {.url = url, .retention = &keep};

	snprintf(root, sizeof(root), "%s/run", r->root);
	snprintf(url, sizeof(url), "%s%s", is_bucket ? "user:/" : r->root, "/mirror");
	if (is_bucket)
		OK(store_open("mem:", true, false, &user_shared, err));
	snprintf(hidden, sizeof(hidden), "%s/.pawl", url);
	memset(&race, 0, sizeof(race));
	race.act = act;
	race.hidden = hidden;
	keep.keep_last = 1;
	r->opts.root = root;
	r->opts.io.stores = opts.io.stores = &user_stores;
	r->opts.mirrors = &mirror;
	r->opts.n_mirrors = 1;
	small_open(r);
	small_save(r, 1, 1);
	OK(pawl_wait_level(r->run, PAWL_LEVEL_REMOTE, -1, err));
	opts.root = url;
	opts.read_only = 1;
	OK(pawl_open(&opts, &race.there, err));
	struct store *store = atomic_load(&r->run->mirrors->list[0].store);
	while (store->inner)
		store = store->inner;
	race.straight = store->ops;
	race.ops = *store->ops;
	race.ops.publish = race_publish;
	race.ops.remove = race_remove;
	store->ops = &race.ops;
	small_save(r, 2, 2);
	OK(pawl_wait_level(r->run, PAWL_LEVEL_REMOTE, -1, err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	if (race.code < 0)
		fail_msg("%s: %s", pawl_code_name(race.code), race.err.message);
	assert_int_equal(race.n_removals, 1);
	if (act == BLOCK)
		assert_int_equal(unlink(hidden), 0);
	OK(pawl_reload(race.there, err));
	ASSERT_IDS(expected, race.there);
	pawl_hold_close(race.hold);
	pawl_close(race.there, NULL);
	store_close(user_shared);
	user_shared = NULL;
}

static void
test_P6_a_checkpoint_of_the_mirror_that_is_pinned_before_its_folder_is_renamed_stays(void **state)
{
	delete_while(*state, false, PIN, "1 2");
}

static void
test_P6_a_checkpoint_of_the_mirror_that_is_held_before_its_folder_is_renamed_stays(void **state)
{
	delete_while(*state, false, HOLD, "1 2");
}

static void
test_P6_a_checkpoint_of_the_mirror_stays_if_pins_cannot_be_read_again(void **state)
{
	delete_while(*state, false, BLOCK, "1 2");
}

static void
test_P6_a_checkpoint_of_a_mirror_in_a_bucket_that_is_pinned_before_its_manifest_is_removed_stays(void **state)
{
	delete_while(*state, true, PIN, "1 2");
}

static void
test_P6_a_checkpoint_of_a_mirror_in_a_bucket_that_is_held_before_its_manifest_is_removed_stays(void **state)
{
	delete_while(*state, true, HOLD, "1 2");
}

static void
test_P6_a_checkpoint_that_only_a_mirror_has_is_held_there(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention keep = PAWL_RETENTION_INIT;
	struct small_path root = small_path(r, "run"), url = small_path(r, "mirror");
	const struct pawl_mirror mirror = {.url = url.text, .retention = &keep};
	struct pawl_hold *hold = NULL;

	keep.keep_last = 1;
	r->opts.root = root.text;
	r->opts.mirrors = &mirror;
	r->opts.n_mirrors = 1;
	small_open(r);
	small_save(r, 1, 1);
	OK(pawl_wait_level(r->run, PAWL_LEVEL_REMOTE, -1, err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	small_remove(r, "run/" DOOMED);
	small_open(r);
	OK(pawl_hold_open(r->run, 1, &hold, err));
	assert_int_equal(small_count(r, "mirror/.pawl/holds"), 1);
	small_save(r, 2, 2);
	OK(pawl_wait_level(r->run, PAWL_LEVEL_REMOTE, -1, err));
	assert_true(small_exists(r, "mirror/" DOOMED "/manifest.json"));
	pawl_hold_close(hold);
	assert_int_equal(small_count(r, "mirror/.pawl/holds"), 0);
	small_save(r, 3, 3);
	OK(pawl_wait_level(r->run, PAWL_LEVEL_REMOTE, -1, err));
	pawl_close(r->run, NULL); /* waits for the mirror's retention */
	r->run = NULL;
	assert_false(small_exists(r, "mirror/" DOOMED));
}

static void
test_closing_reports_a_failed_save_and_a_failed_upload(void **state)
{
	struct small_run *r = *state;
	struct small_path root = small_path(r, "run"), url = small_path(r, "mirror");
	const struct pawl_mirror mirror = {.url = url.text};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_ticket *ticket = NULL;
	struct pawl_state *tree = NULL;
	struct pawl_fault *fault = NULL;

	r->opts.root = root.text;
	r->opts.mirrors = &mirror;
	r->opts.n_mirrors = 1;
	OK(pawl_fault_new("publish", 2, PAWL_EIO, 0, &fault, err));
	r->opts.io.fault = fault;
	small_open(r);
	small_remove(r, "mirror");
	small_write(r, "mirror", "a file", 6);
	small_save(r, 1, 1);
	save.step = 2;
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_set_int(tree, "step", 2, err));
	OK(pawl_save(r->run, &save, tree, &ticket, err));
	FAILS(PAWL_EIO, "; an upload has failed too: ", pawl_close(r->run, err));
	r->run = NULL;
	pawl_ticket_free(ticket);
	pawl_state_free(tree);
	pawl_fault_free(fault);
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_P6_a_checkpoint_of_the_mirror_that_is_pinned_before_its_folder_is_renamed_stays),
		CASE(test_P6_a_checkpoint_of_the_mirror_that_is_held_before_its_folder_is_renamed_stays),
		CASE(test_P6_a_checkpoint_of_the_mirror_stays_if_pins_cannot_be_read_again),
		CASE(test_P6_a_checkpoint_of_a_mirror_in_a_bucket_that_is_pinned_before_its_manifest_is_removed_stays),
		CASE(test_P6_a_checkpoint_of_a_mirror_in_a_bucket_that_is_held_before_its_manifest_is_removed_stays),
		CASE(test_P6_a_checkpoint_that_only_a_mirror_has_is_held_there),
		CASE(test_closing_reports_a_failed_save_and_a_failed_upload),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
