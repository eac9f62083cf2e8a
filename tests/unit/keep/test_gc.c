/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of gc.c: everything that a crash can leave is removed (R138, P4), and nothing else is
 * (P8). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sys/wait.h>

#include "helpers/small_run.h"
#include "catalog/catalog.h"
#include "run/run.h"
#include "save/writer.h"

#define FIRST "checkpoints/checkpoint_000001"
#define TOKEN "0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210"
#define PARTIAL "checkpoints/.checkpoint_000009." TOKEN ".partial"

static bool collects_ahead; /* while a save has linked packs and is not handed over yet */
static struct {
	int is_saving, rc;
	uint64_t count;
} ahead;

int __real_write_link_ahead(struct save_image *m, struct pawl_error *err);
int __wrap_write_link_ahead(struct save_image *m, struct pawl_error *err);

int
__wrap_write_link_ahead(struct save_image *m, struct pawl_error *err)
{
	int rc = __real_write_link_ahead(m, err);

	if (collects_ahead) { /* a failed assertion here would leave the save unfinished for ever */
		ahead.is_saving = pawl_is_saving(m->env->writer->run);
		ahead.rc = pawl_gc(m->env->writer->run, 0, NULL, &ahead.count, NULL, NULL);
	}
	return rc;
}

static struct small_run *
start(void **state, int64_t n_saves)
{
	struct small_run *r = *state;

	small_open(r);
	for (int64_t i = 1; i <= n_saves; i++)
		small_save(r, 100 * i, 0.5);
	return r;
}

static uint64_t
collect(struct small_run *r, int dry_run, uint64_t *ret_bytes)
{
	uint64_t count = 0, bytes = 0;

	OK(pawl_gc(r->run, dry_run, NULL, &count, &bytes, err));
	if (ret_bytes)
		*ret_bytes = bytes;
	return count;
}

/* Collecting finds nothing, and everything is still there. */
static void
assert_clean(struct small_run *r, const char *ids)
{
	assert_int_equal(collect(r, 0, NULL), 0);
	ASSERT_IDS(ids, r->run);
}

static void
test_P8_a_sound_run_has_nothing_to_collect(void **state)
{
	struct small_run *r = start(state, 3);
	struct pawl_hold *hold;

	OK(pawl_pin(r->run, 1, err));
	OK(pawl_hold_open(r->run, 2, &hold, err));
	assert_clean(r, "1 2 3");
	assert_int_equal(small_count(r, ".pawl/holds"), 1);
	assert_int_equal(small_count(r, ".pawl/marks"), 1);
	pawl_hold_close(hold);
}

static void
test_R138_partial_folders_of_dead_saves_are_taken(void **state)
{
	struct small_run *r = start(state, 1);
	uint64_t bytes;

	small_copy(r, FIRST, PARTIAL); /* even with a manifest: it was never published */
	small_mkdir(r, "checkpoints/.ep1-ba42." OTHER ".partial");
	OK(pawl_reload(r->run, err));
	ASSERT_IDS("1", r->run);
	assert_int_equal(collect(r, 1, &bytes), 2);
	assert_true(bytes > 256);
	assert_true(small_exists(r, PARTIAL "/manifest.json")); /* dry */
	uint64_t dry_bytes = bytes;
	assert_int_equal(collect(r, 0, &bytes), 2);
	assert_int_equal(bytes, dry_bytes);
	assert_int_equal(small_count(r, "checkpoints"), 1);
	assert_clean(r, "1"); /* repeating is harmless */
}

static void
test_R138_the_next_opening_collects_what_a_crash_left(void **state)
{
	struct small_run *r = start(state, 2);

	small_copy(r, FIRST, PARTIAL);
	small_rename(r, "checkpoints/checkpoint_000002",
	             "checkpoints/.checkpoint_000002." OTHER ".partial"); /* a deletion */
	small_open(r);
	assert_int_equal(small_count(r, "checkpoints"), 1);
	ASSERT_IDS("1", r->run);
}

static void
test_P4_the_partial_folder_of_the_running_save_is_spared(void **state)
{
	struct small_run *r = start(state, 1);
	struct save *save = calloc(1, sizeof(*save));

	assert_non_null(save);
	small_copy(r, FIRST, PARTIAL);
	memcpy(save->image.token, TOKEN, 33);
	pthread_mutex_lock(&r->run->saves.writer->lock);
	r->run->saves.writer->active = save;
	pthread_mutex_unlock(&r->run->saves.writer->lock);
	assert_int_equal(collect(r, 0, NULL), 0);
	pthread_mutex_lock(&r->run->saves.writer->lock);
	r->run->saves.writer->active = NULL;
	r->run->saves.writer->queued = save;
	pthread_mutex_unlock(&r->run->saves.writer->lock);
	assert_int_equal(collect(r, 0, NULL), 0);
	pthread_mutex_lock(&r->run->saves.writer->lock);
	r->run->saves.writer->queued = NULL;
	pthread_mutex_unlock(&r->run->saves.writer->lock);
	assert_int_equal(collect(r, 0, NULL), 1);
	free(save);
}

static void
test_P4_the_partial_folder_of_a_save_that_is_being_prepared_is_spared(void **state)
{
	struct small_run *r = *state;
	static float fixed[1 << 14], step[64];

	r->opts.staging.mode = PAWL_MODE_RING;
	r->opts.packs.pack_bytes = 1 << 16;
	small_open(r);
	for (int i = 1; i <= 2; i++) {
		struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
		struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
		struct pawl_ticket *ticket;
		struct pawl_state *s;

		collects_ahead = i == 2; /* the fixed tensor is linked */
		save.step = i;
		step[0] = (float)i;
		OK(pawl_state_new(&s, err));
		small_add(s, "fixed", PAWL_F32, COUNT(fixed), fixed);
		small_add(s, "step", PAWL_F32, COUNT(step), step);
		OK(pawl_save(r->run, &save, s, &ticket, err));
		OK(pawl_ticket_wait(ticket, -1, err));
		pawl_ticket_stats(ticket, &stats);
		assert_int_equal(ahead.is_saving, collects_ahead);
		assert_int_equal(ahead.rc, 0);
		assert_int_equal(ahead.count, 0);
		assert_true((stats.reused_bytes > 0) == collects_ahead);
		pawl_ticket_free(ticket);
		pawl_state_free(s);
	}
	collects_ahead = false;
	OK(pawl_wait(r->run, -1, err));
	assert_false(pawl_is_saving(r->run));
	assert_clean(r, "1 2");
}

static void
test_names_that_only_look_like_leftovers_are_left(void **state)
{
	struct small_run *r = start(state, 1);
	static const char *const folders[] = {
		"checkpoints/.checkpoint_000009.partial",
		"checkpoints/.checkpoint_000009.0123.partial",
		"checkpoints/checkpoint_000009." TOKEN ".partial",
		"checkpoints/.." TOKEN ".partial",
		"checkpoints/.checkpoint_000009." TOKEN ".partial.bak",
		"checkpoints/.checkpoint_000009-" TOKEN ".partial",
		"checkpoints/." TOKEN ".partial",
		"checkpoints/.X.0123456789ABCDEF0123456789ABCDEF.partial",
		".mine." TOKEN ".tmp",
		".probe.txt",
		".probe.mine.tmp",
		"checkpoints/.probe." TOKEN ".tmp",
	};
	static const char *const files[] = {
		"checkpoints/.a." TOKEN ".partial",
		".x." TOKEN ".tmp.old",
		"x." TOKEN ".tmp",
		".x.tmp",
		"checkpoints/notes.txt",
		".pawl/holds/notes",
		".pawl/holds/" TOKEN ".json.bak",
		".pawl/recycle/keep-me",
		".pawl/recycle/12-0123",
	};

	for (size_t i = 0; i < COUNT(folders); i++) {
		small_mkdir(r, folders[i]);
		small_age(r, folders[i], 100000);
	}
	mkdir(small_path(r, ".pawl").text, 0777);
	mkdir(small_path(r, ".pawl/holds").text, 0777);
	mkdir(small_path(r, ".pawl/recycle").text, 0777);
	for (size_t i = 0; i < COUNT(files); i++) {
		small_write(r, files[i], "x", 1);
		small_age(r, files[i], 100000);
	}
	assert_int_equal(collect(r, 0, NULL), 0);
	for (size_t i = 0; i < COUNT(folders); i++)
		assert_true(small_exists(r, folders[i]));
	for (size_t i = 0; i < COUNT(files); i++)
		assert_true(small_exists(r, files[i]));
}

static void
test_P17_links_are_neither_followed_nor_removed(void **state)
{
	struct small_run *r = start(state, 2);

	small_mkdir(r, "outside");
	small_write(r, "outside/precious", "x", 1);
	assert_int_equal(symlink("../outside", small_path(r, PARTIAL).text), 0);
	assert_int_equal(symlink("outside/precious", small_path(r, ".x." TOKEN ".tmp").text), 0);
	small_remove(r, FIRST "/manifest.json");
	assert_int_equal(symlink("../../outside/precious", small_path(r, FIRST "/rank00000-00007.safetensors").text),
	                 0);
	small_age(r, ".x." TOKEN ".tmp", 100000);
	assert_int_equal(collect(r, 0, NULL), 0);
	assert_true(small_exists(r, "outside/precious"));
	assert_true(small_exists(r, PARTIAL));
	assert_true(small_exists(r, FIRST "/rank00000-00000.safetensors"));
	assert_true(small_exists(r, ".x." TOKEN ".tmp"));
	/* But a pointer that a crash kept from its name. */
	assert_int_equal(symlink(FIRST, small_path(r, ".latest." TOKEN ".tmp").text), 0);
	small_age(r, ".latest." TOKEN ".tmp", 100000);
	assert_int_equal(collect(r, 0, NULL), 1);
	/* A link inside a folder that does go is removed itself, never what it points to. */
	unlink(small_path(r, PARTIAL).text);
	small_mkdir(r, PARTIAL);
	assert_int_equal(symlink("../../outside", small_path(r, PARTIAL "/link").text), 0);
	assert_int_equal(collect(r, 0, NULL), 1);
	assert_true(small_exists(r, "outside/precious"));
}

static void
test_P7_what_is_left_of_deleted_checkpoints_is_taken(void **state)
{
	struct small_run *r = start(state, 4);

	/* 1: one pack of two is deleted already. 2: all are. 3: all exist, but a deletion had
	 * begun. */
	small_remove(r, FIRST "/manifest.json");
	small_rename(r, FIRST "/rank00000-00000.safetensors", FIRST "/rank00000-00001.safetensors");
	small_remove(r, "checkpoints/checkpoint_000002");
	small_mkdir(r, "checkpoints/checkpoint_000002");
	small_write(r, "checkpoints/checkpoint_000003/.deleting", "", 0);
	small_damage(r, "checkpoints/checkpoint_000003/manifest.json", 50);
	small_age(r, "checkpoints/checkpoint_000003", 1); /* it may have changed within a tick of the clock */
	assert_int_equal(collect(r, 0, NULL), 3);
	assert_clean(r, "4");
}

static void
test_a_checkpoint_that_can_be_repaired_is_left(void **state)
{
	struct small_run *r = start(state, 2);

	small_remove(r, FIRST "/manifest.json");
	assert_int_equal(collect(r, 0, NULL), 0);
	OK(pawl_repair(r->run, "checkpoint_000001", 0, NULL, err));
	assert_clean(r, "1 2");
}

static void
test_P8_folders_without_manifest_that_are_not_surely_ours_are_left(void **state)
{
	struct small_run *r = start(state, 6);
	size_t len;

	/* 1: damaged, but not being deleted. 2: with a foreign file. 3: with a folder. 4: packs of
	 * another run. 5: a file named like a pack that is not one. 7: empty, but the run has never
	 * given out that number. x: empty, and not our name. */
	small_damage(r, FIRST "/manifest.json", 50);
	small_age(r, FIRST, 1);
	small_remove(r, "checkpoints/checkpoint_000002/manifest.json");
	small_write(r, "checkpoints/checkpoint_000002/notes.txt", "keep", 4);
	small_remove(r, "checkpoints/checkpoint_000003/manifest.json");
	small_mkdir(r, "checkpoints/checkpoint_000003/more");
	small_remove(r, "checkpoints/checkpoint_000004/manifest.json");
	char *pack = small_read(r, "checkpoints/checkpoint_000004/rank00000-00000.safetensors", &len);
	char *id = memmem(pack, len, pawl_run_id(r->run), 32);
	assert_non_null(id);
	id[0] = id[0] == 'a' ? 'b' : 'a';
	small_write(r, "checkpoints/checkpoint_000004/rank00000-00000.safetensors", pack, len);
	free(pack);
	small_remove(r, "checkpoints/checkpoint_000005/manifest.json");
	small_write(r, "checkpoints/checkpoint_000005/rank00000-00000.safetensors", "short", 5);
	for (int i = 2; i <= 5; i++) { /* they may have changed within a tick of the clock */
		char name[64];

		snprintf(name, sizeof(name), "checkpoints/checkpoint_%06d", i);
		small_age(r, name, i);
	}
	small_mkdir(r, "checkpoints/checkpoint_000077");
	small_mkdir(r, "checkpoints/x3");
	r->run->self.last_id = 6;
	assert_int_equal(collect(r, 0, NULL), 0);
	assert_int_equal(small_count(r, "checkpoints"), 8);
	ASSERT_IDS(
		"checkpoint_000001! checkpoint_000002! x3! checkpoint_000003! checkpoint_000004! checkpoint_000005! 6 "
		"checkpoint_000077!",
		r->run);
}

static void
test_holds_of_dead_processes_are_taken(void **state)
{
	struct small_run *r = start(state, 1);
	struct pawl_hold *mine;

	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct pawl_open_opts opts = r->opts;
		struct pawl_hold *hold;
		struct pawl *run;

		opts.read_only = 1;
		_exit(pawl_open(&opts, &run, NULL) < 0 || pawl_hold_open(run, 1, &hold, NULL) < 0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	OK(pawl_hold_open(r->run, 1, &mine, err));
	assert_int_equal(small_count(r, ".pawl/holds"), 2);
	assert_int_equal(collect(r, 1, NULL), 1);
	assert_int_equal(collect(r, 0, NULL), 1);
	assert_int_equal(small_count(r, ".pawl/holds"), 1);
	assert_true(catalog_get(r->run->catalog, 1)->held);
	pawl_hold_close(mine);
}

static void
test_temporary_files_are_taken_when_they_are_old(void **state)
{
	struct small_run *r = start(state, 1);
	static const char *const files[] = {".run.json." TOKEN ".tmp", "checkpoints/.x." TOKEN ".tmp",
	                                    ".pawl/.y." TOKEN ".tmp", ".pawl/holds/.z." TOKEN ".tmp"};
	static const char *const folders[] = {".probe." TOKEN ".tmp", ".probe." TOKEN ".renamed.tmp",
	                                      ".doctor." TOKEN ".tmp"};

	mkdir(small_path(r, ".pawl").text, 0777);
	mkdir(small_path(r, ".pawl/holds").text, 0777);
	for (size_t i = 0; i < COUNT(files); i++)
		small_write(r, files[i], "x", 1);
	for (size_t i = 0; i < COUNT(folders); i++)
		small_mkdir(r, folders[i]);
	assert_int_equal(collect(r, 0, NULL), 0); /* another process may be about to rename them */
	for (size_t i = 0; i < COUNT(files); i++)
		small_age(r, files[i], 60);
	assert_int_equal(collect(r, 0, NULL), 0);
	for (size_t i = 0; i < COUNT(files); i++)
		small_age(r, files[i], 121);
	for (size_t i = 0; i < COUNT(folders); i++)
		small_age(r, folders[i], 121);
	assert_int_equal(collect(r, 0, NULL), COUNT(files) + COUNT(folders));
	for (size_t i = 0; i < COUNT(files); i++)
		assert_false(small_exists(r, files[i]));
}

/* In a bucket a probe of the store is an object. Opening the run makes one, and must find it
 * again. Readers that hold, pin or score a checkpoint need no lease. */
static void
test_P10_opening_takes_nothing_from_others_that_open_or_read_it(void **state)
{
	struct small_run *r = start(state, 1);
	static const char *const theirs[] = {".probe." TOKEN ".tmp", ".doctor." TOKEN ".tmp", "..lease." TOKEN ".tmp",
	                                     ".pawl/holds/.x." TOKEN ".tmp", ".pawl/marks/.x." TOKEN ".tmp"};

	mkdir(small_path(r, ".pawl").text, 0777);
	mkdir(small_path(r, ".pawl/holds").text, 0777);
	mkdir(small_path(r, ".pawl/marks").text, 0777);
	for (size_t i = 0; i < COUNT(theirs); i++)
		small_write(r, theirs[i], "x", 1);
	small_write(r, ".run.json." TOKEN ".tmp", "x", 1);
	small_open(r);
	for (size_t i = 0; i < COUNT(theirs); i++)
		assert_true(small_exists(r, theirs[i]));
	assert_false(small_exists(r, ".run.json." TOKEN ".tmp")); /* of a process that has died */
	for (size_t i = 0; i < COUNT(theirs); i++)
		small_age(r, theirs[i], 121);
	small_open(r);
	for (size_t i = 0; i < COUNT(theirs); i++)
		assert_false(small_exists(r, theirs[i]));
}

static void
test_recycled_files_go_when_the_run_does_not_recycle(void **state)
{
	struct small_run *r = start(state, 1);
	uint64_t bytes;

	mkdir(small_path(r, ".pawl").text, 0777);
	mkdir(small_path(r, ".pawl/recycle").text, 0777);
	small_write(r, ".pawl/recycle/5-" TOKEN, "12345", 5);
	r->run->opts.packs.recycle = 2;
	assert_int_equal(collect(r, 0, NULL), 0);
	r->run->opts.packs.recycle = 0;
	assert_int_equal(collect(r, 0, &bytes), 1);
	assert_int_equal(bytes, 5);
	assert_int_equal(small_count(r, ".pawl/recycle"), 0);
}

static void
test_linked_packs_count_as_freeing_nothing(void **state)
{
	struct small_run *r = start(state, 1);
	uint64_t bytes;

	small_mkdir(r, PARTIAL);
	assert_int_equal(link(small_path(r, FIRST "/rank00000-00000.safetensors").text,
	                      small_path(r, PARTIAL "/rank00000-00000.safetensors").text),
	                 0);
	assert_int_equal(collect(r, 0, &bytes), 1);
	assert_int_equal(bytes, 0);
	assert_clean(r, "1");
}

static void
test_readers_may_only_look(void **state)
{
	struct small_run *r = start(state, 1);
	struct pawl_open_opts opts = r->opts;
	struct pawl *reader;
	uint64_t count = 0;

	small_mkdir(r, PARTIAL);
	opts.read_only = 1;
	OK(pawl_open(&opts, &reader, err));
	OK(pawl_gc(reader, 1, NULL, &count, NULL, err));
	assert_int_equal(count, 1);
	FAILS(PAWL_EREADONLY, "", pawl_gc(reader, 0, NULL, NULL, NULL, err));
	assert_true(small_exists(r, PARTIAL));
	FAILS(PAWL_EUSAGE, "NULL", pawl_gc(NULL, 0, NULL, NULL, NULL, err));
	pawl_close(reader, NULL);
}

static void
test_P10_a_writer_that_lost_its_lease_deletes_nothing(void **state)
{
	struct small_run *r = start(state, 1);
	size_t len;

	small_mkdir(r, PARTIAL);
	char *lease = small_read(r, ".lease", &len);
	char *token = strstr(lease, "\"token\":\"");
	assert_non_null(token);
	token[9] = token[9] == 'a' ? 'b' : 'a';
	small_write(r, ".lease", lease, len);
	free(lease);
	FAILS(PAWL_ECONFLICT, "", pawl_gc(r->run, 0, NULL, NULL, NULL, err));
	assert_true(small_exists(r, PARTIAL));
}

static void
test_P8_a_failing_listing_stops_and_repeating_finishes(void **state)
{
	struct small_run *r = *state;
	unsigned failures = 0;

	for (uint64_t nth = 1; nth < 200; nth++) {
		r->opts.io.fault = NULL;
		small_open(r);
		if (!small_exists(r, FIRST))
			small_save(r, 1, 0.5);
		small_mkdir(r, PARTIAL);
		small_write(r, PARTIAL "/rank00000-00000.safetensors", "x", 1);
		pawl_close(r->run, NULL);
		r->run = NULL;
		/* Opening collects by itself and ignores a failure. What counts is that nothing
		 * good is removed. */
		OK(pawl_fault_new("any", nth, PAWL_EIO, 1, &r->opts.io.fault, err));
		int opened = pawl_open(&r->opts, &r->run, NULL);
		int rc = opened < 0 ? opened : pawl_gc(r->run, 0, NULL, NULL, NULL, NULL);
		pawl_close(r->run, NULL);
		r->run = NULL;
		pawl_fault_free(r->opts.io.fault);
		r->opts.io.fault = NULL;
		if (rc < 0)
			failures++;
		else
			nth = 200;         /* the fault came too late to matter */
		small_remove(r, ".lease"); /* which a failing store cannot give back */
		small_open(r);
		assert_clean(r, "1");
		assert_false(small_exists(r, PARTIAL));
	}
	assert_true(failures > 5);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, small_setup, small_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_P8_a_sound_run_has_nothing_to_collect),
		IN_FOLDER(test_R138_partial_folders_of_dead_saves_are_taken),
		IN_FOLDER(test_R138_the_next_opening_collects_what_a_crash_left),
		IN_FOLDER(test_P4_the_partial_folder_of_the_running_save_is_spared),
		IN_FOLDER(test_P4_the_partial_folder_of_a_save_that_is_being_prepared_is_spared),
		IN_FOLDER(test_names_that_only_look_like_leftovers_are_left),
		IN_FOLDER(test_P17_links_are_neither_followed_nor_removed),
		IN_FOLDER(test_P7_what_is_left_of_deleted_checkpoints_is_taken),
		IN_FOLDER(test_a_checkpoint_that_can_be_repaired_is_left),
		IN_FOLDER(test_P8_folders_without_manifest_that_are_not_surely_ours_are_left),
		IN_FOLDER(test_holds_of_dead_processes_are_taken),
		IN_FOLDER(test_temporary_files_are_taken_when_they_are_old),
		IN_FOLDER(test_P10_opening_takes_nothing_from_others_that_open_or_read_it),
		IN_FOLDER(test_recycled_files_go_when_the_run_does_not_recycle),
		IN_FOLDER(test_linked_packs_count_as_freeing_nothing),
		IN_FOLDER(test_readers_may_only_look),
		IN_FOLDER(test_P10_a_writer_that_lost_its_lease_deletes_nothing),
		IN_FOLDER(test_P8_a_failing_listing_stops_and_repeating_finishes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
