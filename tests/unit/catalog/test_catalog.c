/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of catalog*.c, pins.c and holds.c: what counts as a checkpoint, and how it is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "helpers/hang.h"
#include "helpers/small_run.h"
#include "base/clock.h"
#include "base/err.h"
#include "catalog/catalog.h"
#include "run/run.h"

#define FIRST "checkpoints/checkpoint_000001"

static struct small_run *
start(void **state, int64_t n_saves)
{
	struct small_run *r = *state;

	small_open(r);
	for (int64_t i = 1; i <= n_saves; i++)
		small_save(r, 100 * i, (double)i / 10);
	return r;
}

/* Opens the run's folder as another process would: for reading. */
static struct pawl *
look(const struct small_run *r)
{
	struct pawl_open_opts opts = r->opts;
	struct pawl *run = NULL;

	opts.read_only = 1;
	OK(pawl_open(&opts, &run, err));
	return run;
}

/* Puts a manifest, made by hand, into a folder. */
static void
put_manifest(const struct small_run *r, const char *name, uint64_t id, char run_digit)
{
	struct manifest m = {.id = id,
	                     .attempt = 1,
	                     .step = (int64_t)id,
	                     .unix_ns = 1,
	                     .progress = PAWL_PROGRESS_INIT,
	                     .world_size = 1};
	struct buf text = {0};
	char key[256];

	memset(m.run_id, run_digit, 32);
	memset(m.token, 'd', 32);
	OK(manifest_encode_with(&m, (struct pawl_slice){"{}", 2}, &text, err));
	snprintf(key, sizeof(key), "checkpoints/%s", name);
	mkdir(small_path(r, "checkpoints").text, 0777);
	small_mkdir(r, key);
	snprintf(key, sizeof(key), "checkpoints/%s/manifest.json", name);
	small_write(r, key, text.ptr, text.len);
	buf_clear(&text);
}

/* -------------------------------------------------------- what counts, order */

static void
test_R139_E7_everything_is_read_back_from_the_manifests(void **state)
{
	struct small_run *r = start(state, 3);
	struct pawl_metric late = {.name = "accuracy", .value = 0.9};

	OK(pawl_pin(r->run, 2, err));
	OK(pawl_score(r->run, 1, &late, 1, err));
	pawl_close(r->run, NULL);
	r->run = NULL;
	/* Everything that is derived may be gone. */
	unlink(small_path(r, "latest").text);
	unlink(small_path(r, "best").text);
	unlink(small_path(r, "events.jsonl").text);
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
	struct pawl *run = look(r);
	struct pawl_list *list;
	OK(pawl_list_open(run, 0, &list, err));
	assert_int_equal(pawl_list_count(list), 3);
	const struct pawl_info *one = pawl_list_get(list, 0), *two = pawl_list_get(list, 1),
			       *three = pawl_list_get(list, 2);
	assert_true(one->marks == PAWL_MARK_BEST && one->score == 0.9 && one->has_score);
	assert_true(two->marks == PAWL_MARK_PINNED && two->score == 0.2);
	assert_true(three->marks == PAWL_MARK_LATEST && three->step == 300 && three->id == 3);
	assert_string_equal(three->name, "checkpoint_000003");
	assert_string_equal(three->path, small_path(r, "checkpoints/checkpoint_000003").text);
	assert_string_equal(three->run_id, pawl_run_id(run));
	assert_string_equal(three->problem, "");
	assert_int_equal(three->n_tensors, 1);
	assert_int_equal(three->n_files, 1);
	assert_true(three->bytes > 256 && three->world_size == 1);
	assert_null(pawl_list_get(list, 3));
	pawl_close(run, NULL);
	assert_string_equal(three->name, "checkpoint_000003"); /* a list outlives its run */
	pawl_list_free(list);
}

static void
test_P9_order_is_that_of_ids_not_of_names_or_times(void **state)
{
	struct small_run *r = *state;

	put_manifest(r, "checkpoint_10", 10, 'a');
	put_manifest(r, "checkpoint_9", 9, 'a');
	put_manifest(r, "checkpoint_000100", 100, 'a');
	put_manifest(r, "zz", 2, 'a');
	small_age(r, "checkpoints/checkpoint_000100", 9000);
	struct pawl *run = look(r);
	ASSERT_IDS("2 9 10 100", run);
	uint64_t id = 0;
	OK(pawl_find(run, "latest", &id, err));
	assert_int_equal(id, 100);
	pawl_close(run, NULL);
}

static void
test_P2_only_real_folders_with_safe_names_and_verifying_manifests_count(void **state)
{
	struct small_run *r = start(state, 2);

	put_manifest(r, ".hidden_7", 7, 'a');
	put_manifest(r, ".checkpoint_000008.dddddddddddddddddddddddddddddddd.partial", 8, 'a');
	put_manifest(r, "a name with spaces", 9, 'a');
	put_manifest(r, "-rf", 10, 'a');
	small_mkdir(r, "elsewhere");
	put_manifest(r, "checkpoint_000011", 11, 'a');
	small_rename(r, "checkpoints/checkpoint_000011", "elsewhere/checkpoint_000011");
	assert_int_equal(symlink("../elsewhere/checkpoint_000011", small_path(r, "checkpoints/checkpoint_000011").text),
	                 0);
	small_write(r, "checkpoints/checkpoint_000012", "x", 1);
	small_mkdir(r, "checkpoints/checkpoint_000013");
	OK(pawl_reload(r->run, err));
	ASSERT_IDS("1 2 checkpoint_000013!", r->run);
}

/* Another program or a person has put it there: pawl never makes such a checkpoint, and none is
 * still being made. */
static void
test_P2_a_folder_in_place_of_a_manifest_is_damage(void **state)
{
	struct small_run *r = start(state, 1);

	small_remove(r, FIRST "/manifest.json");
	small_mkdir(r, FIRST "/manifest.json");
	struct pawl *run = look(r);
	ASSERT_IDS("checkpoint_000001!", run);
	FAILS(PAWL_ECORRUPT, "manifest.json is a folder", pawl_find(run, "id:1", &(uint64_t){0}, err));
	FAILS(PAWL_ECORRUPT, "manifest.json is a folder",
	      pawl_restore_open(run, NULL, &(struct pawl_restore *){0}, err));
	pawl_close(run, NULL);
}

static void
test_P2_bad_manifests_are_remembered_with_their_problem(void **state)
{
	struct small_run *r = start(state, 3);
	struct pawl_list *list;
	size_t len;

	char *text = small_read(r, FIRST "/manifest.json", &len);
	small_damage(r, FIRST "/manifest.json", 40);
	memmove(strstr(text, ":1,"), ":9,", 3);
	small_write(r, "checkpoints/checkpoint_000002/manifest.json", text, len);
	small_remove(r, "checkpoints/checkpoint_000003/manifest.json");
	free(text);
	struct pawl *run = look(r);
	ASSERT_IDS("checkpoint_000001! checkpoint_000002! checkpoint_000003!", run);
	OK(pawl_list_open(run, 1, &list, err));
	assert_non_null(strstr(pawl_list_get(list, 0)->problem, "digest"));
	assert_true(pawl_list_get(list, 1)->problem[0] != '\0');
	assert_string_equal(pawl_list_get(list, 2)->problem, "manifest.json is missing");
	assert_int_equal(pawl_list_get(list, 0)->id, 1);
	pawl_list_free(list);
	OK(pawl_list_open(run, 0, &list, err));
	assert_int_equal(pawl_list_count(list), 0);
	pawl_list_free(list);
	uint64_t id = 77;
	FAILS(PAWL_ENOTFOUND, "no checkpoint yet", pawl_find(run, "latest", &id, err));
	FAILS(PAWL_ECORRUPT, "digest", pawl_find(run, "id:1", &id, err));
	FAILS(PAWL_ENOTFOUND, "missing", pawl_find(run, "checkpoint_000003", &id, err));
	assert_int_equal(id, 77);
	pawl_close(run, NULL);
}

static void
test_every_flipped_bit_of_a_manifest_is_noticed(void **state)
{
	struct small_run *r = start(state, 1);
	struct catalog c;
	size_t len;
	char *text = small_read(r, FIRST "/manifest.json", &len);

	for (size_t i = 0; i < len; i++) {
		text[i] ^= (char)(1 << (i % 8));
		small_write(r, FIRST "/manifest.json", text, len);
		text[i] ^= (char)(1 << (i % 8));
		OK(catalog_load(&c, r->run->store, NULL, NULL, err));
		assert_true(c.n == 1 && c.entries[0].problem && !c.entries[0].summary);
		catalog_clear(&c);
	}
	small_write(r, FIRST "/manifest.json", text, len - 1);
	OK(catalog_load(&c, r->run->store, NULL, NULL, err));
	assert_non_null(c.entries[0].problem);
	catalog_clear(&c);
	free(text);
}

static void
test_P8_checkpoints_of_another_run_are_listed_and_never_deleted(void **state)
{
	struct small_run *r = start(state, 3);
	struct pawl_retention one = PAWL_RETENTION_INIT;

	put_manifest(r, "guest_000020", 20, 'e');
	put_manifest(r, "other_run_checkpoint_000001", 1, 'e'); /* an id of ours */
	OK(pawl_reload(r->run, err));
	ASSERT_IDS("1 other_run_checkpoint_000001! 2 3 20", r->run);
	one.num_to_keep = 1;
	OK(pawl_prune(r->run, &one, 0, NULL, err));
	assert_true(small_exists(r, "checkpoints/other_run_checkpoint_000001/manifest.json"));
	assert_true(small_exists(r, "checkpoints/guest_000020/manifest.json"));
}

static void
test_of_two_folders_with_one_id_one_has_it_and_retention_leaves_the_other(void **state)
{
	struct small_run *r = start(state, 2);
	struct pawl_retention last = PAWL_RETENTION_INIT;
	struct pawl_list *list;

	small_copy(r, FIRST, "checkpoints/copy");
	small_copy(r, FIRST, "checkpoints/a_copy");
	OK(pawl_reload(r->run, err));
	ASSERT_IDS("1 copy! a_copy! 2", r->run);
	OK(pawl_reload(r->run, err));
	ASSERT_IDS("1 copy! a_copy! 2", r->run);
	OK(pawl_list_open(r->run, 1, &list, err));
	assert_string_equal(pawl_list_get(list, 1)->problem, "its id 1 is that of checkpoint_000001");
	pawl_list_free(list);
	last.keep_last = 1;
	OK(pawl_prune(r->run, &last, 0, NULL, err));
	OK(pawl_reload(r->run, err)); /* the original is gone, and the copy takes its place */
	ASSERT_IDS("1 a_copy! 2", r->run);
}

static void
test_R152_a_run_folder_that_was_moved_lists_and_finds(void **state)
{
	struct small_run *r = start(state, 2);
	char before[64];

	snprintf(before, sizeof(before), "%.60s", r->root);
	OK(pawl_close(r->run, err));
	r->run = NULL;
	snprintf(r->root, sizeof(r->root), "%s-moved", before);
	assert_int_equal(rename(before, r->root), 0);
	small_open(r);
	ASSERT_IDS("1 2", r->run);
	struct pawl_list *list;
	OK(pawl_list_open(r->run, 0, &list, err));
	assert_string_equal(pawl_list_get(list, 0)->path, small_path(r, FIRST).text);
	pawl_list_free(list);
	small_save(r, 300, 0.3);
	ASSERT_IDS("1 2 3", r->run);
}

static void
test_single_checkpoint_lists_itself_only(void **state)
{
	struct small_run *r = start(state, 2);
	struct catalog c;
	struct store *store;
	struct buf key = {0};

	OK(store_open(small_path(r, "checkpoints").text, false, false, &store, err));
	OK(catalog_load(&c, store, "checkpoint_000002", NULL, err));
	assert_int_equal(c.n, 1);
	assert_int_equal(catalog_latest(&c)->id, 2);
	catalog_key(&c, c.entries[0].name, &key);
	assert_string_equal(buf_str(&key), "checkpoint_000002");
	bool pin = true;
	FAILS(PAWL_EUSAGE, "of a run", catalog_mark(&c, &c.entries[0], &pin, NULL, 0, err));
	catalog_clear(&c);
	OK(catalog_load(&c, store, "nothing", NULL, err));
	assert_int_equal(c.n, 0);
	catalog_clear(&c);
	buf_clear(&key);
	store_close(store);
}

/* ------------------------------------------------------------------ reload */

/* A catalog of the run's own files behind a fault layer. */
struct behind {
	struct store *plain, *faulty;
	struct pawl_fault *fault;
};

static struct behind
behind_fault(const struct small_run *r, const char *operation, uint64_t nth, int code)
{
	struct behind b = {0};

	OK(store_open(r->root, false, false, &b.plain, err));
	OK(pawl_fault_new(operation, nth, code, 1, &b.fault, err));
	OK(store_fault_wrap(b.plain, b.fault, &b.faulty, err));
	return b;
}

static void
behind_close(struct behind *b)
{
	store_close(b->faulty);
	pawl_fault_free(b->fault);
}

static void
test_reload_reads_only_what_is_new_or_has_changed(void **state)
{
	struct small_run *r = start(state, 5);
	struct behind b = behind_fault(r, "read", UINT64_MAX, PAWL_EIO);
	struct catalog c;

	small_age(r, "checkpoints/checkpoint_000002", 5); /* a change below has another time then */
	OK(catalog_load(&c, b.faulty, NULL, NULL, err));
	assert_int_equal(c.n, 5);
	uint64_t all = pawl_fault_calls(b.fault);
	OK(catalog_reload(&c, err));
	assert_int_equal(pawl_fault_calls(b.fault), all);
	small_save(r, 600, 0.6);
	OK(catalog_reload(&c, err));
	uint64_t one = pawl_fault_calls(b.fault) - all;
	assert_true(one > 0 && one * 5 <= all);
	assert_int_equal(c.n, 6);
	/* Another process deletes: manifest first, so that for a while a folder without one is
	 * left. */
	small_remove(r, "checkpoints/checkpoint_000002/manifest.json");
	small_remove(r, "checkpoints/checkpoint_000004");
	OK(catalog_reload(&c, err));
	assert_int_equal(c.n, 5);
	assert_null(catalog_get(&c, 2));
	assert_null(catalog_get(&c, 4));
	assert_int_equal(catalog_latest(&c)->id, 6);
	catalog_clear(&c);
	behind_close(&b);
}

static void
test_listing_costs_grow_in_proportion(void **state)
{
	struct small_run *r = *state;
	uint64_t calls[3] = {0};
	char name[64];

	for (uint64_t n = 0; n < 3; n++) {
		for (uint64_t i = 1; i <= 100u << n; i++) {
			snprintf(name, sizeof(name), "checkpoints/c_%06llu", (unsigned long long)i);
			if (!small_exists(r, name))
				put_manifest(r, name + 12, i, 'a');
		}
		struct behind b = behind_fault(r, "any", UINT64_MAX, PAWL_EIO);
		struct catalog c;
		OK(catalog_load(&c, b.faulty, NULL, NULL, err));
		assert_int_equal(c.n, 100u << n);
		calls[n] = pawl_fault_calls(b.fault);
		catalog_clear(&c);
		behind_close(&b);
	}
	assert_int_equal(calls[1] - calls[0], calls[0] - (calls[0] % 100));
	assert_int_equal(calls[2] - calls[1], 2 * (calls[1] - calls[0]));
	assert_true(calls[0] <= 205); /* an open and a read per checkpoint, and a few listings */
}

/* Everything that can be seen of a catalog, as text. */
static void
describe(const struct catalog *c, char *out, size_t cap)
{
	size_t len = 0;

	for (size_t i = 0; i < c->n && len < cap; i++)
		len += (size_t)snprintf(out + len, cap - len, "%llu:%s:%d%d:%zu:%s ",
		                        (unsigned long long)c->entries[i].id, c->entries[i].name, c->entries[i].pinned,
		                        c->entries[i].held, c->entries[i].n_metrics,
		                        c->entries[i].problem ? c->entries[i].problem : "");
}

static void
test_P8_a_reload_that_fails_changes_nothing(void **state)
{
	struct small_run *r = start(state, 3);
	static const char *const operations[] = {"list", "any"};
	char before[512], after[512];
	struct pawl_hold *hold;
	unsigned failures = 0;

	OK(pawl_pin(r->run, 1, err));
	OK(pawl_hold_open(r->run, 2, &hold, err));
	for (size_t k = 0; k < COUNT(operations); k++) {
		for (uint64_t nth = 1, done = 0; !done; nth++) {
			struct behind b = behind_fault(r, operations[k], nth, PAWL_ETRANSIENT);
			struct store *sound;
			struct catalog c;

			OK(store_open(r->root, false, false, &sound, err));
			OK(catalog_load(&c, sound, NULL, NULL, err));
			describe(&c, before, sizeof(before));
			/* Changes that a successful reload would see. */
			small_rename(r, FIRST, "moved");
			put_manifest(r, "checkpoint_000009", 9, 'a');
			c.store = b.faulty;
			struct pawl_error err = {0};
			int rc = catalog_reload(&c, &err);
			describe(&c, after, sizeof(after));
			if (rc < 0) {
				failures++;
				assert_int_equal(rc, PAWL_ETRANSIENT);
				assert_string_equal(before, after);
			} else {
				done = 1;
				assert_string_not_equal(before, after);
			}
			small_rename(r, "moved", FIRST);
			small_remove(r, "checkpoints/checkpoint_000009");
			catalog_clear(&c);
			store_close(sound);
			behind_close(&b);
		}
	}
	assert_true(failures >= 6);
	pawl_hold_close(hold);
}

static void
test_a_manifest_that_cannot_be_read_does_not_hide_the_others(void **state)
{
	struct small_run *r = start(state, 3);
	struct behind b = behind_fault(r, "read", 1, PAWL_EIO);
	struct catalog c;

	OK(catalog_load(&c, b.faulty, NULL, NULL, err)); /* EIO for each of them: they are there, but bad */
	assert_int_equal(c.n, 3);
	for (size_t i = 0; i < 3; i++)
		assert_non_null(c.entries[i].problem);
	assert_null(catalog_latest(&c));
	c.store = b.plain; /* the disk has recovered: bad ones are read again */
	OK(catalog_reload(&c, err));
	assert_int_equal(catalog_latest(&c)->id, 3);
	catalog_clear(&c);
	behind_close(&b);
}

static void
test_P13_best_by_score_ignores_bad_and_unscored_ones(void **state)
{
	struct small_run *r = *state;
	uint64_t id;

	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
	small_open(r);
	FAILS(PAWL_ENOTFOUND, "no checkpoint yet", pawl_find(r->run, "best", &id, err));
	small_save(r, 1, INFINITY);
	FAILS(PAWL_ENOTFOUND, "none has a finite score", pawl_find(r->run, "best", &id, err));
	small_save(r, 2, 0.5);
	small_save(r, 3, 0.7);
	small_save(r, 4, 0.7);
	small_save(r, 5, -INFINITY);
	OK(pawl_find(r->run, "best", &id, err));
	assert_int_equal(id, 3);
	small_damage(r, "checkpoints/checkpoint_000003/manifest.json", 60);
	small_age(r, "checkpoints/checkpoint_000003", 1);
	OK(pawl_reload(r->run, err));
	OK(pawl_find(r->run, "best", &id, err));
	assert_int_equal(id, 4);
}

/* ------------------------------------------------------------------- finding */

static void
test_an_address_splits_at_the_selector(void **state)
{
	struct small_run *r = start(state, 1);
	char path[512];
	const struct {
		const char *address, *root, *selector; /* NULL: none */
	} cases[] = {
		{"runs/demo@400", "runs/demo", "400"},
		{"runs/demo@id:7", "runs/demo", "id:7"},
		{"runs/me@home/demo@best", "runs/me@home/demo", "best"},
		{"runs/me@home/demo", NULL, NULL},
		{"@latest", ".", "latest"},
		{"runs/demo@", "runs/demo", ""},
		{"file:///runs/demo@best", "file:///runs/demo", "best"},
		{"s3://bucket/run@400", "s3://bucket/run", "400"},
		{"s3://bucket/run@400?region=x@y", "s3://bucket/run?region=x@y", "400"},
		{"ssh://me@host/run", NULL, NULL},
		{"ssh://me@host", NULL, NULL},
		{"ssh://me@host/run@best", "ssh://me@host/run", "best"},
		{"", NULL, NULL},
		{path, NULL, NULL}, /* it exists */
	};

	snprintf(path, sizeof(path), "%s/odd@400", r->root);
	assert_int_equal(mkdir(path, 0700), 0);
	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *address = cases[i].address, *root = cases[i].root ? cases[i].root : address;
		char found_root[512], found[512];
		int rc = pawl_split_address(address, found_root, found);

		assert_int_equal(rc, cases[i].root != NULL);
		assert_string_equal(found_root, root);
		assert_string_equal(found, cases[i].selector ? cases[i].selector : "");
	}
}

static void
test_a_selector_that_finds_nothing_names_what_exists(void **state)
{
	struct small_run *r = start(state, 1);
	uint64_t id;

	FAILS(PAWL_ENOTFOUND, "no checkpoint has the step 7; the only one is 100", pawl_find(r->run, "7", &id, err));
	small_save(r, 200, 0.5);
	FAILS(PAWL_ENOTFOUND, "no checkpoint has the step 7; there are 100, 200", pawl_find(r->run, "7", &id, err));
	FAILS(PAWL_ENOTFOUND, "there are 100, 200; to select by id, write id:2", pawl_find(r->run, "2", &id, err));
	FAILS(PAWL_ENOTFOUND, "no checkpoint has the id 7; there are 1, 2", pawl_find(r->run, "id:7", &id, err));
	FAILS(PAWL_ENOTFOUND, "there are checkpoint_000001, checkpoint_000002; or", pawl_find(r->run, "x", &id, err));
	for (int64_t i = 3; i <= 12; i++)
		small_save(r, 100 * i, 0.5);
	FAILS(PAWL_ENOTFOUND, "step 7; the newest of 12 are 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200",
	      pawl_find(r->run, "7", &id, err));
}

static void
test_selectors(void **state)
{
	struct small_run *r = start(state, 3);
	static const struct {
		const char *selector;
		uint64_t id;
		int code;
	} cases[] = {
		{"latest", 3, 0},
		{"best", 0, PAWL_ENOTFOUND},
		{"100", 1, 0}, /* a number is a step */
		{"1", 0, PAWL_ENOTFOUND},
		{"id:2", 2, 0},
		{"step:200", 2, 0},
		{"checkpoint_000001", 1, 0},
		{"7", 0, PAWL_ENOTFOUND},
		{"id:7", 0, PAWL_ENOTFOUND},
		{"step:7", 0, PAWL_ENOTFOUND},
		{"nonsense", 0, PAWL_ENOTFOUND},
		{"", 0, PAWL_EUSAGE},
		{"0", 0, PAWL_ENOTFOUND},
		{"../checkpoints", 0, PAWL_ENOTFOUND},
		{"id:", 0, PAWL_EUSAGE},
		{"id:x", 0, PAWL_EUSAGE},
		{"id:-1", 0, PAWL_EUSAGE},
		{"step:", 0, PAWL_EUSAGE},
		{"step:9223372036854775808", 0, PAWL_EUSAGE},
		{"step:-9223372036854775809", 0, PAWL_EUSAGE},
		{"step:9223372036854775807", 0, PAWL_ENOTFOUND},
		{"id:99999999999999999999999", 0, PAWL_EUSAGE},
		{"99999999999999999999999", 0, PAWL_EUSAGE},
		{"id:18446744073709551615", 0, PAWL_ENOTFOUND},
		{"step:1x", 0, PAWL_EUSAGE},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct pawl_error err = {0};
		uint64_t id = 0;
		int rc = pawl_find(r->run, cases[i].selector, &id, &err);

		if (rc != cases[i].code || id != cases[i].id)
			fail_msg("'%s': %d, id %llu: %s", cases[i].selector, rc, (unsigned long long)id, err.message);
	}
	small_save(r, 200, 0.1); /* the newest of one step counts */
	uint64_t id;
	OK(pawl_find(r->run, "step:200", &id, err));
	assert_int_equal(id, 4);
	FAILS(PAWL_EUSAGE, "NULL", pawl_find(r->run, NULL, &id, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_find(NULL, "1", &id, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_list_open(r->run, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_reload(NULL, err));
}

static void
test_metadata_comes_back_or_is_null(void **state)
{
	struct small_run *r = start(state, 1);
	struct pawl_state *meta, *back, *empty;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	int64_t seed = 0;

	OK(pawl_state_new(&meta, err));
	OK(pawl_state_set_int(meta, "config/seed", 42, err));
	OK(pawl_state_new(&empty, err));
	OK(pawl_state_begin(empty, PAWL_DICT, err));
	OK(pawl_state_end(empty, err));
	save.metadata = meta;
	OK(pawl_save(r->run, &save, empty, NULL, err));
	OK(pawl_wait(r->run, -1, err));
	OK(pawl_metadata(r->run, 2, &back, err));
	OK(pawl_state_get_int(back, "config/seed", &seed, err));
	assert_int_equal(seed, 42);
	pawl_state_free(back);
	OK(pawl_metadata(r->run, 1, &back, err));
	assert_null(back);
	FAILS(PAWL_ENOTFOUND, "id 9", pawl_metadata(r->run, 9, &back, err));
	pawl_state_free(meta);
	pawl_state_free(empty);
}

/* --------------------------------------------------------------------- marks */

static void
test_R155_late_scores_replace_and_add_and_survive(void **state)
{
	struct small_run *r = start(state, 2);
	const struct pawl_metric late[] = {{.name = "accuracy", .value = NAN},
	                                   {.name = "f1", .value = 0.25},
	                                   {.name = "odd \"name\"\n", .value = -INFINITY}};
	struct pawl_metric again = {.name = "f1", .value = 0.5};
	struct pawl_list *list;

	OK(pawl_score(r->run, 1, late, COUNT(late), err));
	OK(pawl_score(r->run, 1, &again, 1, err));
	small_open(r);
	OK(pawl_list_open(r->run, 0, &list, err));
	const struct pawl_info *info = pawl_list_get(list, 0);
	assert_int_equal(info->n_metrics, 3);
	assert_string_equal(info->metrics[0].name, "accuracy");
	assert_true(isnan(info->metrics[0].value));
	assert_true(info->metrics[1].value == 0.5);
	assert_string_equal(info->metrics[2].name, "odd \"name\"\n");
	assert_true(isinf(info->metrics[2].value));
	pawl_list_free(list);
	const struct pawl_metric saved[] = {{.name = "accuracy", .value = 0.2}};
	OK(pawl_score(r->run, 2, saved, 1, err)); /* says nothing new: leaves no mark */
	assert_false(small_exists(r, ".pawl/marks/checkpoint_000002.json"));
	assert_true(small_exists(r, ".pawl/marks/checkpoint_000001.json"));
	const struct pawl_metric ugly[] = {{.name = "\xff\xfe", .value = 1}};
	FAILS(PAWL_EUSAGE, "UTF-8", pawl_score(r->run, 2, ugly, 1, err));
}

static void
test_P6_pins_survive_and_an_unreadable_mark_counts_as_a_pin(void **state)
{
	struct small_run *r = start(state, 4);
	static const char *const garbage[] = {"",
	                                      "{",
	                                      "{\"pinned\":1,\"metrics\":{}}",
	                                      "{\"pinned\":false}",
	                                      "{\"pinned\":false,\"metrics\":{\"a\":\"b\"}}",
	                                      "[]"};
	struct pawl_retention one = PAWL_RETENTION_INIT;

	OK(pawl_pin(r->run, 1, err));
	OK(pawl_pin(r->run, 2, err));
	OK(pawl_unpin(r->run, 2, err));
	assert_false(small_exists(r, ".pawl/marks/checkpoint_000002.json"));
	small_open(r);
	for (size_t i = 0; i < COUNT(garbage); i++) {
		small_write(r, ".pawl/marks/checkpoint_000003.json", garbage[i], strlen(garbage[i]));
		OK(pawl_reload(r->run, err));
		assert_true(catalog_get(r->run->catalog, 3)->pinned);
	}
	one.num_to_keep = 1;
	OK(pawl_prune(r->run, &one, 0, NULL, err));
	ASSERT_IDS("1 3 4", r->run);
	OK(pawl_unpin(r->run, 3, err)); /* writes a sound one */
	OK(pawl_unpin(r->run, 1, err));
	OK(pawl_prune(r->run, &one, 0, NULL, err));
	ASSERT_IDS("4", r->run);
}

/* --------------------------------------------------------------------- holds */

/* Runs fn in a child with its own handle; *ret_pipe delivers what it writes. The child then sleeps
 * until it is killed. */
static pid_t
in_child(const struct small_run *r, void (*fn)(struct pawl *run, int out), int *ret_pipe)
{
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct pawl_open_opts opts = r->opts;
		struct pawl *run;

		close(ends[0]);
		opts.read_only = 1;
		if (pawl_open(&opts, &run, NULL) == 0)
			fn(run, ends[1]);
		close(ends[1]);
		for (;;)
			pause();
	}
	close(ends[1]);
	*ret_pipe = ends[0];
	return pid;
}

static void
end_child(pid_t pid, int in)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(in);
}

static void
child_holds_the_first(struct pawl *run, int out)
{
	struct pawl_hold *hold;

	if (pawl_hold_open(run, 1, &hold, NULL) == 0 && write(out, "y", 1) != 1)
		_exit(1);
}

static void
test_R142_P6_a_hold_of_another_process_protects_until_it_dies(void **state)
{
	struct small_run *r = start(state, 3);
	struct pawl_retention one = PAWL_RETENTION_INIT;
	char answer = 0;
	int in;

	one.num_to_keep = 1;
	one.max_bytes = 1;
	pid_t pid = in_child(r, child_holds_the_first, &in);
	assert_int_equal(read(in, &answer, 1), 1);
	assert_int_equal(answer, 'y');
	OK(pawl_reload(r->run, err));
	assert_true(catalog_get(r->run->catalog, 1)->held);
	FAILS(PAWL_EBUSY, "held", pawl_remove(r->run, 1, 1, err));
	OK(pawl_prune(r->run, &one, 0, NULL, err));
	ASSERT_IDS("1 3", r->run);
	end_child(pid, in);
	assert_int_equal(small_count(r, ".pawl/holds"), 1); /* it could not clean up */
	OK(pawl_prune(r->run, &one, 0, NULL, err));
	ASSERT_IDS("3", r->run);
}

static void
test_R142_holds_in_one_process_are_counted(void **state)
{
	struct small_run *r = start(state, 2);
	struct pawl_hold *a, *b, *none = NULL;

	OK(pawl_hold_open(r->run, 1, &a, err));
	OK(pawl_hold_open(r->run, 1, &b, err));
	assert_true(catalog_get(r->run->catalog, 1)->held);
	assert_false(catalog_get(r->run->catalog, 2)->held);
	pawl_hold_close(a);
	assert_true(catalog_get(r->run->catalog, 1)->held);
	FAILS(PAWL_EBUSY, "held", pawl_remove(r->run, 1, 1, err));
	pawl_hold_close(b);
	assert_false(catalog_get(r->run->catalog, 1)->held);
	assert_int_equal(small_count(r, ".pawl/holds"), 0);
	OK(pawl_remove(r->run, 1, 1, err));
	FAILS(PAWL_ENOTFOUND, "id 1", pawl_hold_open(r->run, 1, &none, err));
	assert_null(none);
	pawl_hold_close(NULL);
}

static void
test_R142_a_checkpoint_deleted_meanwhile_cannot_be_held(void **state)
{
	struct small_run *r = start(state, 2);
	struct pawl *reader = look(r);
	struct pawl_hold *hold = NULL;

	OK(pawl_remove(r->run, 1, 1, err));
	FAILS(PAWL_ENOTFOUND, "deleted",
	      pawl_hold_open(reader, 1, &hold, err)); /* the reader still thinks it is there */
	assert_null(hold);
	assert_int_equal(small_count(r, ".pawl/holds"), 0);
	pawl_close(reader, NULL);
}

static void
test_holds_of_the_dead_and_torn_ones_count_nothing(void **state)
{
	struct small_run *r = start(state, 1);
	struct clock_process self;
	char text[1024];

	OK(clock_this_process(&self, err));
	mkdir(small_path(r, ".pawl").text, 0777);
	mkdir(small_path(r, ".pawl/holds").text, 0777);
	static const char key[] = ".pawl/holds/0123456789abcdef0123456789abcdef.json";
	const struct {
		const char *format;
		bool held;
	} cases[] = {
		{"{\"name\":\"checkpoint_000001\",\"host\":\"%s\",\"boot\":\"%s\",\"pid\":%lld,\"start\":%llu}", true},
		{"{\"name\":\"checkpoint_000001\",\"host\":\"%s\",\"boot\":\"%s\",\"pid\":%lld,\"start\":1%llu}",
	         false},
		{"{\"name\":\"checkpoint_000009\",\"host\":\"%s\",\"boot\":\"%s\",\"pid\":%lld,\"start\":%llu}", false},
		{"{\"name\":\"checkpoint_000001\",\"host\":\"x%s\",\"boot\":\"%s\",\"pid\":%lld,\"start\":%llu}", true},
		{"", false},
		{"{\"name\":\"checkpoint_000001\"}", false},
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		snprintf(text, sizeof(text), cases[i].format, self.host, self.boot, (long long)self.pid,
		         (unsigned long long)self.start_ticks);
#pragma GCC diagnostic pop
		small_write(r, key, text, strlen(text));
		OK(pawl_reload(r->run, err));
		if (catalog_get(r->run->catalog, 1)->held != cases[i].held)
			fail_msg("%s", text);
	}
	/* One of another host, which cannot be checked, counts for a week. */
	snprintf(text, sizeof(text),
	         "{\"name\":\"checkpoint_000001\",\"host\":\"far\",\"boot\":\"b\",\"pid\":1,\"start\":1}");
	small_write(r, key, text, strlen(text));
	small_age(r, key, HOLDS_FOREIGN_SECONDS - 60);
	OK(pawl_reload(r->run, err));
	assert_true(catalog_get(r->run->catalog, 1)->held);
	small_age(r, key, HOLDS_FOREIGN_SECONDS + 60);
	OK(pawl_reload(r->run, err));
	assert_false(catalog_get(r->run->catalog, 1)->held);
}

/* ------------------------------------------------------------------ waiting */

static void
child_waits_for_new(struct pawl *run, int out)
{
	uint64_t id = 0;

	if (write(out, "?", 1) != 1 || pawl_wait_for_new(run, 1, HANG_MS, &id, NULL) < 0 ||
	    write(out, &id, sizeof(id)) != sizeof(id))
		_exit(1);
}

static void
test_R156_a_consumer_in_another_process_waits_for_a_new_checkpoint(void **state)
{
	struct small_run *r = start(state, 1);
	uint64_t id = 0;
	char ready;
	int in;

	pid_t pid = in_child(r, child_waits_for_new, &in);
	assert_int_equal(read(in, &ready, 1), 1);
	small_save(r, 200, 0.2);
	assert_int_equal(read(in, &id, sizeof(id)), sizeof(id));
	assert_int_equal(id, 2);
	end_child(pid, in);
}

static void
test_R156_P16_waiting_ends_at_its_deadline(void **state)
{
	struct small_run *r = start(state, 2);
	uint64_t id = 99;

	FAILS(PAWL_ETIMEOUT, "after id 2", pawl_wait_for_new(r->run, 2, 30, &id, err));
	FAILS(PAWL_ETIMEOUT, "after id 2", pawl_wait_for_new(r->run, 2, 0, &id, err));
	assert_int_equal(id, 99);
	OK(pawl_wait_for_new(r->run, 0, 0, &id, err));
	assert_int_equal(id, 2); /* the newest, not the next */
}

static int
refuse_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	(void)s, (void)fn, (void)arg;
	return err_set(err, PAWL_ETRANSIENT, "%s: the store is down", folder);
}

static void
test_R156_a_wait_that_ends_while_the_store_is_down_reports_the_store_error(void **state)
{
	struct small_run *r = start(state, 1);
	const struct store_ops *straight = r->run->store->ops;
	struct store_ops down = *straight;
	uint64_t id = 99;

	down.list = refuse_list;
	r->run->store->ops = &down;
	FAILS(PAWL_ETIMEOUT, "after id 1 came within 0 ms; waiting for the store, whose last error is: ",
	      pawl_wait_for_new(r->run, 1, 0, &id, err));
	FAILS(PAWL_ETIMEOUT, "the store is down", pawl_wait_for_new(r->run, 1, 0, &id, err));
	assert_int_equal(id, 99);
	r->run->store->ops = straight;
	FAILS(PAWL_ETIMEOUT, "after id 1 came within 0 ms", pawl_wait_for_new(r->run, 1, 0, &id, err));
}

static void
test_everything_works_in_memory_too(void **state)
{
	struct small_run *r = *state;
	struct pawl_hold *hold;
	uint64_t id;

	r->opts.root = "mem:";
	small_open(r);
	small_save(r, 100, 0.1);
	small_save(r, 200, 0.2);
	OK(pawl_pin(r->run, 1, err));
	OK(pawl_hold_open(r->run, 2, &hold, err));
	OK(pawl_reload(r->run, err));
	ASSERT_IDS("1 2", r->run);
	assert_true(catalog_get(r->run->catalog, 1)->pinned);
	assert_true(catalog_get(r->run->catalog, 2)->held);
	pawl_hold_close(hold);
	OK(pawl_wait_for_new(r->run, 1, 0, &id, err));
	assert_int_equal(id, 2);
	struct pawl_list *list;
	OK(pawl_list_open(r->run, 0, &list, err));
	assert_string_equal(pawl_list_get(list, 0)->path, "mem:/" FIRST);
	pawl_list_free(list);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, small_setup, small_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_R139_E7_everything_is_read_back_from_the_manifests),
		IN_FOLDER(test_P9_order_is_that_of_ids_not_of_names_or_times),
		IN_FOLDER(test_P2_only_real_folders_with_safe_names_and_verifying_manifests_count),
		IN_FOLDER(test_P2_a_folder_in_place_of_a_manifest_is_damage),
		IN_FOLDER(test_P2_bad_manifests_are_remembered_with_their_problem),
		IN_FOLDER(test_every_flipped_bit_of_a_manifest_is_noticed),
		IN_FOLDER(test_P8_checkpoints_of_another_run_are_listed_and_never_deleted),
		IN_FOLDER(test_of_two_folders_with_one_id_one_has_it_and_retention_leaves_the_other),
		IN_FOLDER(test_R152_a_run_folder_that_was_moved_lists_and_finds),
		IN_FOLDER(test_single_checkpoint_lists_itself_only),
		IN_FOLDER(test_reload_reads_only_what_is_new_or_has_changed),
		IN_FOLDER(test_listing_costs_grow_in_proportion),
		IN_FOLDER(test_P8_a_reload_that_fails_changes_nothing),
		IN_FOLDER(test_a_manifest_that_cannot_be_read_does_not_hide_the_others),
		IN_FOLDER(test_P13_best_by_score_ignores_bad_and_unscored_ones),
		IN_FOLDER(test_selectors),
		IN_FOLDER(test_an_address_splits_at_the_selector),
		IN_FOLDER(test_a_selector_that_finds_nothing_names_what_exists),
		IN_FOLDER(test_metadata_comes_back_or_is_null),
		IN_FOLDER(test_R155_late_scores_replace_and_add_and_survive),
		IN_FOLDER(test_P6_pins_survive_and_an_unreadable_mark_counts_as_a_pin),
		IN_FOLDER(test_R142_P6_a_hold_of_another_process_protects_until_it_dies),
		IN_FOLDER(test_R142_holds_in_one_process_are_counted),
		IN_FOLDER(test_R142_a_checkpoint_deleted_meanwhile_cannot_be_held),
		IN_FOLDER(test_holds_of_the_dead_and_torn_ones_count_nothing),
		IN_FOLDER(test_R156_a_consumer_in_another_process_waits_for_a_new_checkpoint),
		IN_FOLDER(test_R156_P16_waiting_ends_at_its_deadline),
		IN_FOLDER(test_R156_a_wait_that_ends_while_the_store_is_down_reports_the_store_error),
		IN_FOLDER(test_everything_works_in_memory_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
