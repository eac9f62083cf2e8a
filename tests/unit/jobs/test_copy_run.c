/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of copy_run.c: a run that is brought to another one, again and again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"
#include "helpers/user_store.h"
#include "pawl_jobs.h"
#include "run/run.h"

/* A path next to the run, which goes with it. */
static const char *
beside(const struct small_run *r, const char *name)
{
	static char path[200];

	snprintf(path, sizeof(path), "%s/%s", r->root, name);
	return path;
}

static void
begin(struct small_run *r)
{
	static char root[160];

	snprintf(root, sizeof(root), "%s/source", r->root);
	r->opts.root = root;
	small_open(r);
	for (int64_t step = 1; step <= 3; step++)
		small_save(r, step * 10, 0.1 * (double)step);
}

/* "3 2! 1": ids as they were reported, ! for those that were there. */
static const char *
rows(const struct pawl_copies *copies)
{
	static char text[200];
	size_t len = 0;

	text[0] = '\0';
	for (size_t i = 0; i < pawl_copies_count(copies); i++) {
		const struct pawl_copied *row = pawl_copies_get(copies, i);

		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%llu%s%s", i ? " " : "",
		                        (unsigned long long)row->id, row->was_there ? "!" : "",
		                        row->problem[0] ? "?" : "");
	}
	assert_null(pawl_copies_get(copies, pawl_copies_count(copies)));
	return text;
}

#define COPIES(expected, call)                               \
	do {                                                 \
		struct pawl_copies *copies = NULL;           \
		OK(call);                                    \
		assert_string_equal(rows(copies), expected); \
		pawl_copies_free(copies);                    \
	} while (0)

static size_t
count_at(const char *root)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_list *list = NULL;
	struct pawl *run = NULL;

	opts.root = root;
	opts.read_only = 1;
	OK(pawl_open(&opts, &run, err));
	OK(pawl_list_open(run, 0, &list, err));
	OK(pawl_verify(run, 0, NULL, NULL, err));
	size_t n = pawl_list_count(list);
	pawl_list_free(list);
	pawl_close(run, NULL);
	return n;
}

static void
test_a_run_is_brought_over_and_kept_up_to_date(void **state)
{
	struct small_run *r = *state;
	struct pawl_copy_opts opts = PAWL_COPY_OPTS_INIT;
	struct pawl_meter meter = {0};
	uint64_t two = 2;

	begin(r);
	opts.dry_run = 1;
	COPIES("3 2 1", pawl_copy_run(r->run, beside(r, "there"), &opts, NULL, &copies, err));
	assert_int_equal(pawl_kind_of(beside(r, "there"), NULL, NULL), PAWL_KIND_NOTHING);
	opts.dry_run = 0;
	opts.ids = &two;
	opts.n_ids = 1;
	COPIES("2", pawl_copy_run(r->run, beside(r, "there"), &opts, NULL, &copies, err));
	assert_int_equal(count_at(beside(r, "there")), 1);
	/* the source is open for training meanwhile, and continues */
	small_save(r, 40, 0.4);
	COPIES("4 3 2! 1", pawl_copy_run(r->run, beside(r, "there"), NULL, &meter, &copies, err));
	assert_int_equal(meter.done_bytes, meter.total_bytes);
	assert_int_equal(count_at(beside(r, "there")), 4);
	COPIES("4! 3! 2! 1!", pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, &copies, err));
	OK(pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, NULL, err));
}

static void
test_wrong_calls_are_refused(void **state)
{
	struct small_run *r = *state;
	struct pawl_copy_opts none = {0};

	begin(r);
	FAILS(PAWL_EUSAGE, "no target", pawl_copy_run(r->run, NULL, NULL, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "no run", pawl_copy_run(NULL, beside(r, "x"), NULL, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "no size", pawl_copy_run(r->run, beside(r, "x"), &none, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "is lost when it is closed", pawl_copy_run(r->run, "mem:", NULL, NULL, NULL, err));
	FAILS(PAWL_EEXISTS, "something else", pawl_copy_run(r->run, r->root, NULL, NULL, NULL, err));
	FAILS(PAWL_EUSAGE, "unknown kind", pawl_copy_run(r->run, "gopher://x", NULL, NULL, NULL, err));
	uint64_t ids[] = {3, 9};
	struct pawl_copy_opts some = PAWL_COPY_OPTS_INIT;

	some.ids = ids;
	some.n_ids = 2;
	FAILS(PAWL_ENOTFOUND, "checkpoint 9 does not exist",
	      pawl_copy_run(r->run, beside(r, "x"), &some, NULL, NULL, err));
	assert_int_equal(pawl_kind_of(beside(r, "x"), NULL, NULL), PAWL_KIND_NOTHING);
	pawl_copies_free(NULL);
}

static void
test_a_cancelled_transfer_is_gone_on_with(void **state)
{
	struct small_run *r = *state;
	struct pawl_meter meter = {.cancel = 1};

	begin(r);
	FAILS(PAWL_ECANCELLED, "cancelled", pawl_copy_run(r->run, beside(r, "there"), NULL, &meter, NULL, err));
	assert_int_equal(count_at(beside(r, "there")), 0);
	meter.cancel = 0;
	COPIES("3 2 1", pawl_copy_run(r->run, beside(r, "there"), NULL, &meter, &copies, err));
}

static void
test_P1_what_is_damaged_is_passed_over_and_told(void **state)
{
	struct small_run *r = *state;
	struct pawl_copies *copies = NULL;
	struct pawl_error err = {0};
	char path[256];

	begin(r);
	snprintf(path, sizeof(path), "%s/source/checkpoints/checkpoint_000002/rank00000-00000.safetensors", r->root);
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	assert_int_equal(fseek(file, 4096, SEEK_SET), 0);
	assert_int_equal(fputc(0x77, file), 0x77);
	fclose(file);
	assert_int_equal(pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, &copies, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "checkpoint_000002"));
	assert_string_equal(rows(copies), "3 2? 1");
	pawl_copies_free(copies);
	assert_int_equal(count_at(beside(r, "there")), 2);
}

/* The store of the source, whose second checkpoint is deleted when its pack is opened. */
static struct store_ops deleting;
static const struct store_ops *straight;

static int
open_after_deletion(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                    struct pawl_error *err)
{
	if (strstr(key, "checkpoint_000002/rank"))
		assert_int_equal(straight->remove_folder(s, "checkpoints/checkpoint_000002", err), 0);
	return straight->open(s, key, ret, ret_nbytes, err);
}

static void
test_P6_what_is_deleted_meanwhile_is_not_damaged(void **state)
{
	struct small_run *r = *state;

	begin(r);
	straight = r->run->store->ops;
	deleting = *straight;
	deleting.open = open_after_deletion;
	r->run->store->ops = &deleting;
	COPIES("3 1", pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, &copies, err));
	r->run->store->ops = straight;
	assert_int_equal(count_at(beside(r, "there")), 2);
	assert_int_equal(small_count(r, "source/checkpoints"), 2);
	assert_int_equal(small_count(r, "there/checkpoints"), 2); /* nothing is left of the other one */
}

static void
test_what_lies_in_a_mirror_alone_is_brought_over_too(void **state)
{
	struct small_run *r = *state;
	struct pawl_retention keep = PAWL_RETENTION_INIT;
	static char mirror[200];
	static const struct pawl_mirror mirrors[] = {{.url = mirror}};

	snprintf(mirror, sizeof(mirror), "%s", beside(r, "mirror"));
	r->opts.mirrors = mirrors;
	r->opts.n_mirrors = 1;
	begin(r);
	OK(pawl_wait_level(r->run, PAWL_LEVEL_REMOTE, -1, err));
	keep.num_to_keep = 1;
	OK(pawl_prune(r->run, &keep, 0, NULL, err));
	assert_int_equal(pawl_kind_of(beside(r, "source/checkpoints/checkpoint_000002"), NULL, NULL),
	                 PAWL_KIND_NOTHING);
	COPIES("3 2 1", pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, &copies, err));
	assert_int_equal(count_at(beside(r, "there")), 3);
}

static unsigned
marks_of(struct pawl *run, size_t i)
{
	struct pawl_list *list = NULL;

	OK(pawl_list_open(run, 0, &list, err));
	assert_in_range(i, 0, pawl_list_count(list) - 1);
	unsigned marks = pawl_list_get(list, i)->marks;
	pawl_list_free(list);
	return marks;
}

static void
test_P6_a_pin_and_a_score_of_the_target_stay(void **state)
{
	struct small_run *r = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_metric late = {.name = "late", .value = 0.5}, other = {.name = "other", .value = 0.25};
	struct pawl *there = NULL;
	size_t len;

	begin(r);
	OK(pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, NULL, err));
	opts.root = beside(r, "there");
	opts.maintenance = 1;
	OK(pawl_open(&opts, &there, err));
	OK(pawl_pin(there, 2, err));
	OK(pawl_score(there, 2, &other, 1, err));
	pawl_close(there, NULL);
	OK(pawl_score(r->run, 2, &late, 1, err));
	OK(pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, NULL, err));
	opts.root = beside(r, "there");
	OK(pawl_open(&opts, &there, err));
	assert_int_equal(marks_of(there, 0) & PAWL_MARK_PINNED, 0);
	assert_int_equal(marks_of(there, 1) & PAWL_MARK_PINNED, PAWL_MARK_PINNED);
	pawl_close(there, NULL);
	char *text = small_read(r, "there/.pawl/marks/checkpoint_000002.json", &len);
	assert_non_null(strstr(text, "\"late\":0.5"));
	assert_non_null(strstr(text, "\"other\":0.25"));
	free(text);
}

/* The run of a mirror ends its own pins there, so the target's pin must not become one of them. */
static void
test_P6_a_pin_of_the_target_stays_its_own_when_a_mirror_is_copied_to_it(void **state)
{
	static const char copied[] = "{\"pinned\":true,\"pin_copied\":true,\"metrics\":{\"late\":0.5}}";
	static const char mark[] = "there/.pawl/marks/checkpoint_000002.json";
	static const char own[] = "{\"pinned\":true,\"metrics\":{}}";
	struct small_run *r = *state;
	size_t len;

	begin(r);
	OK(pawl_pin(r->run, 1, err));
	OK(pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, NULL, err));
	small_write(r, "source/.pawl/marks/checkpoint_000002.json", copied, sizeof(copied) - 1);
	small_write(r, mark, own, sizeof(own) - 1);
	OK(pawl_copy_run(r->run, beside(r, "there"), NULL, NULL, NULL, err));
	char *text = small_read(r, mark, &len);
	assert_string_equal(text, "{\"pinned\":true,\"metrics\":{\"late\":0.5}}\n");
	free(text);
}

static void
test_a_run_is_brought_to_a_store_of_the_callers_and_back(void **state)
{
	struct small_run *r = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *run;

	OK(store_open("mem:", true, false, &user_shared, err));
	r->opts.io.stores = &user_stores;
	begin(r);
	assert_int_equal(pawl_kind_of("user://x", &user_stores, NULL), PAWL_KIND_NOTHING);
	COPIES("3 2 1", pawl_copy_run(r->run, "user://x", NULL, NULL, &copies, err));
	assert_int_equal(pawl_kind_of("user://x", &user_stores, NULL), PAWL_KIND_RUN);
	assert_int_equal(pawl_kind_of("user://x", NULL, NULL), PAWL_EUSAGE);
	opts.root = "user://x";
	opts.read_only = 1;
	opts.io.stores = &user_stores;
	OK(pawl_open(&opts, &run, err));
	COPIES("3 2 1", pawl_copy_run(run, beside(r, "back"), NULL, NULL, &copies, err));
	OK(pawl_close(run, err));
	assert_int_equal(count_at(beside(r, "back")), 3);
	store_close(user_shared);
	user_shared = NULL;
}

int
main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_a_run_is_brought_over_and_kept_up_to_date),
		CASE(test_wrong_calls_are_refused),
		CASE(test_a_cancelled_transfer_is_gone_on_with),
		CASE(test_P1_what_is_damaged_is_passed_over_and_told),
		CASE(test_P6_what_is_deleted_meanwhile_is_not_damaged),
		CASE(test_what_lies_in_a_mirror_alone_is_brought_over_too),
		CASE(test_P6_a_pin_and_a_score_of_the_target_stay),
		CASE(test_P6_a_pin_of_the_target_stays_its_own_when_a_mirror_is_copied_to_it),
		CASE(test_a_run_is_brought_to_a_store_of_the_callers_and_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
