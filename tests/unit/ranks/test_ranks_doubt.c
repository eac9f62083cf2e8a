/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks when one of them cannot know how a save ended: what it has written stays, and the
 * others find the outcome by themselves. P2, P11. Real processes; the calls that go wrong are
 * wrapped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "helpers/ranks_board.h"
#include "ranks/gather.h"

/* Of the second save, set before the processes are started. */
static enum trouble {
	RENAME_IS_SLOW,  /* rank 1 gives up while rank 0 renames the folder, and cannot rename it either */
	VERDICT_IS_LOST, /* rank 1 sees no verdict, and has no memory for the name that it finds */
	NO_MEMORY_FOR_VERDICT,
	NO_MEMORY_FOR_NAME, /* after the verdict */
	ANSWERS_ARE_LOST    /* rank 0 puts the manifest, and each put of this key fails for it */
} trouble;
static bool is_bucket; /* folders cannot be renamed, as in a bucket */

static int own_rank = -1;         /* of this process */
static atomic_bool is_second;     /* its second save has begun */
static atomic_bool has_no_memory; /* for the name of the checkpoint, once */

void __real_store_get_caps(struct store *s, struct store_caps *ret);
void __wrap_store_get_caps(struct store *s, struct store_caps *ret);
int __real_store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags,
                           struct pawl_error *err);
int __wrap_store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags,
                           struct pawl_error *err);
int __wrap_store_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
int __real_store_publish(struct store *s, const char *from, const char *to, struct pawl_error *err);
int __wrap_store_publish(struct store *s, const char *from, const char *to, struct pawl_error *err);
int __real_gather_verdict(const struct gather_round *round, char **ret_name, struct pawl_error *err);
int __wrap_gather_verdict(const struct gather_round *round, char **ret_name, struct pawl_error *err);
char *__real_mem_strdup(const char *text);
char *__wrap_mem_strdup(const char *text);
char *__real_bump_strndup(struct bump *b, const char *text, size_t len);
char *__wrap_bump_strndup(struct bump *b, const char *text, size_t len);

void
__wrap_store_get_caps(struct store *s, struct store_caps *ret)
{
	__real_store_get_caps(s, ret);
	ret->rename_folder = ret->rename_folder && !is_bucket;
}

int
__wrap_store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags, struct pawl_error *err)
{
	const char *folder = strstr(key, "checkpoint_000002/");

	if (trouble != ANSWERS_ARE_LOST || own_rank != 0 || !folder || !strstr(folder, "/manifest.json"))
		return __real_store_put_bytes(s, key, ptr, len, flags, err);
	if (!atomic_exchange(&board->held[0], 2))
		__real_store_put_bytes(s, key, ptr, len, flags, NULL);
	return err_set(err, PAWL_EIO, "the answer is lost");
}

struct walk {
	struct store *store;
	const char *root, *below; /* the folder in it that is listed, or NULL */
	store_list_fn *fn;
	void *arg;
};

static int
visit_entry(void *arg, const struct store_entry *entry)
{
	const struct walk *w = arg;
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	struct store_entry seen = *entry;

	if (w->below) {
		buf_printf(&name, "%s/%s", w->below, entry->name);
		seen.name = buf_str(&name);
		return entry->is_folder ? 0 : w->fn(w->arg, &seen);
	}
	const struct walk inner = {.below = entry->name, .fn = w->fn, .arg = w->arg};

	buf_printf(&name, "%s/%s", w->root, entry->name);
	return entry->is_folder ? store_list(w->store, buf_str(&name), visit_entry, (void *)&inner, NULL)
	                        : w->fn(w->arg, entry);
}

/* As a bucket lists: the files of a folder, and of those in it. */
int
__wrap_store_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct walk walk = {.store = s, .root = folder, .fn = fn, .arg = arg};
	int rc = store_list(s, folder, visit_entry, &walk, err);

	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

int
__wrap_store_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	if (!atomic_load(&is_second) || trouble != RENAME_IS_SLOW)
		return __real_store_publish(s, from, to, err);
	if (own_rank == 1)
		return err_set(err, PAWL_EIO, "the rename fails");
	atomic_store(&board->held[0], 2);
	wait_until(&board->done[1], 2);
	return __real_store_publish(s, from, to, err);
}

int
__wrap_gather_verdict(const struct gather_round *round, char **ret_name, struct pawl_error *err)
{
	if (!atomic_load(&is_second))
		return __real_gather_verdict(round, ret_name, err);
	if (trouble == ANSWERS_ARE_LOST)
		return __real_gather_verdict(round, ret_name, err);
	if (trouble == RENAME_IS_SLOW || trouble == VERDICT_IS_LOST) {
		wait_until(trouble == RENAME_IS_SLOW ? &board->held[0] : &board->done[0], 2);
		atomic_store(&has_no_memory, trouble == VERDICT_IS_LOST);
		err_set(err, PAWL_ETIMEOUT, "the deadline has passed");
		return 0;
	}
	atomic_store(&has_no_memory, trouble == NO_MEMORY_FOR_VERDICT);
	int rc = __real_gather_verdict(round, ret_name, err);

	atomic_store(&has_no_memory, trouble == NO_MEMORY_FOR_NAME);
	return rc;
}

static bool
is_refused(const char *text)
{
	return strcmp(text, "checkpoint_000002") == 0 && atomic_exchange(&has_no_memory, false);
}

char *
__wrap_mem_strdup(const char *text)
{
	return is_refused(text) ? NULL : __real_mem_strdup(text);
}

char *
__wrap_bump_strndup(struct bump *b, const char *text, size_t len)
{
	return is_refused(text) ? NULL : __real_bump_strndup(b, text, len);
}

static int
save_two(const struct rank_job *job)
{
	struct pawl *run = NULL;

	own_rank = job->rank;
	if (open_run(job, NULL, &run) < 0)
		return 1;
	save_step(job, run, STRAIGHT, 1);
	atomic_store(&is_second, true);
	save_step(job, run, STRAIGHT, 2);
	if (trouble == ANSWERS_ARE_LOST && own_rank == 0)
		_exit(0); /* what the others wait for */
	pawl_close(run, NULL);
	return 0;
}

/* Rank 0 saves two checkpoints, which stay complete. The second save ends with this code on rank
 * 1. */
static void
expect_on_rank_1(const char *root, enum trouble what, bool in_bucket, int code)
{
	trouble = what;
	is_bucket = in_bucket;
	assert_int_equal(ranks_run(root, 2, LONG_MS, save_two, NULL), 0);
	expect_saved(3, 1, 0);
	expect_saved(1, 2, 0);
	expect_saved(2, 2, code);
	expect_listed(root, 1u << 1 | 1u << 2);
	if (code < 0)
		expect_saved_text(2, 2, "whether the save was committed is not known");
}

static void
test_P2_a_rank_that_cannot_abort_a_save_leaves_its_packs_to_the_commit(void **state)
{
	expect_on_rank_1(*state, RENAME_IS_SLOW, false, PAWL_EIO);
}

static void
test_P2_a_rank_without_memory_for_what_it_finds_leaves_its_packs_to_the_checkpoint(void **state)
{
	expect_on_rank_1(*state, VERDICT_IS_LOST, true, PAWL_ENOMEM);
}

static void
test_P11_a_verdict_that_a_rank_has_no_memory_for_is_read_again(void **state)
{
	expect_on_rank_1(*state, NO_MEMORY_FOR_VERDICT, true, 0);
}

static void
test_P11_a_committed_save_needs_no_memory_for_its_name(void **state)
{
	expect_on_rank_1(*state, NO_MEMORY_FOR_NAME, true, 0);
}

static void
test_P2_P11_a_rank_0_that_cannot_know_the_outcome_leaves_it_to_the_others_to_find(void **state)
{
	trouble = ANSWERS_ARE_LOST;
	is_bucket = true;
	assert_int_equal(ranks_run(*state, WORLD, LONG_MS, save_two, NULL), 0);
	expect_saved(ALL, 1, 0);
	expect_saved(1, 2, PAWL_EIO);
	expect_saved_text(1, 2, "whether the save was committed is not known");
	expect_saved(BUT(0), 2, 0);
	expect_listed(*state, 1u << 1 | 1u << 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_P2_a_rank_that_cannot_abort_a_save_leaves_its_packs_to_the_commit),
		TEST(test_P2_a_rank_without_memory_for_what_it_finds_leaves_its_packs_to_the_checkpoint),
		TEST(test_P11_a_verdict_that_a_rank_has_no_memory_for_is_read_again),
		TEST(test_P11_a_committed_save_needs_no_memory_for_its_name),
		TEST(test_P2_P11_a_rank_0_that_cannot_know_the_outcome_leaves_it_to_the_others_to_find),
	};

	cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
