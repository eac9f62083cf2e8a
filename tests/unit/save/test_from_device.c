/* SPDX-License-Identifier: Apache-2.0 */
/* from_device: saves of tensors on devices are never torn, in any order that the device chooses.
 * They hold what the caller's streams had computed at the call. The fake driver may leave out a
 * wait: the tests must detect that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include "helpers/device_run.h"
#include "run/run.h"
#include "save/writer.h"

#define SEEDS 12u
#define LAZY_ROWS 5000u /* 5 MB: less is never lazy */

/* One save between steps 1 and 2. Is it of step 1? */
static bool
saves_step_1(struct small_run *r, uint64_t seed, bool lazy, int mode, long ignored)
{
	struct device_run d;

	device_make(&d, r, seed, lazy ? LAZY_ROWS : 40);
	small_open(r);
	device_launch(&d, 1, false);
	fake_ignore_wait(ignored);
	OK(device_save(&d, lazy, mode, err));
	if (lazy) {
		device_launch(&d, 2, true);
		OK(pawl_fence(r->run, -1, err));
	}
	device_launch(&d, 2, false);
	if (seed % 2)
		fake_run();
	OK(pawl_wait(r->run, -1, err));
	const bool is = device_saved_is(&d, 1);

	device_check(&d);
	return is;
}

static void
test_no_order_of_the_devices_tears_a_save(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_DIRECT; mode++)
			assert_true(saves_step_1(*state, seed, false, mode, 0));
}

static void
test_no_order_of_the_devices_tears_a_lazy_save(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_true(saves_step_1(*state, seed, true, PAWL_MODE_SNAPSHOT, 0));
	assert_true(saves_step_1(*state, 1, true, PAWL_MODE_RING, 0));
}

/* The memory of the run is registered, step 1 is launched. */
static void
begin(struct device_run *d, struct small_run *r, uint64_t seed)
{
	device_make(d, r, seed, LAZY_ROWS);
	small_open(r);
	device_launch(d, 0, false);
	OK(device_save(d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	device_wait_registered(d);
	fake_run();
	device_launch(d, 1, false);
}

/* pawl_prepare registers the memory, so that the first save need not wait on the host either. */
static void
test_the_first_save_of_a_prepared_run_does_not_wait(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	device_make(&d, r, 14, LAZY_ROWS);
	small_open(r);
	struct pawl_state *s = device_state(&d);

	OK(pawl_prepare(r->run, s, err));
	pawl_state_free(s);
	device_wait_registered(&d);
	device_launch(&d, 1, false);
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], true);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_fence(r->run, -1, err));
	device_launch(&d, 2, false);
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], false);
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* One row of a tensor, as a kernel that has only begun. */
static void
write_row(void *arg)
{
	struct device_run *d = arg;

	for (size_t i = 512 * 700; i < 512 * 701; i++)
		d->tensors[D_WEIGHT].shadow[i] = device_value(2, D_WEIGHT, i);
}

static void
do_nothing(void *arg)
{
	(void)arg;
}

enum outcome { OF_STEP_1, REFUSED, TORN };

/* Waits for the save, and closes the run. */
static enum outcome
end_save(struct device_run *d)
{
	struct pawl_error why = {0};
	const int rc = pawl_wait(d->r->run, -1, &why);

	if (rc < 0 && (rc != PAWL_EUSAGE || !strstr(why.message, "changed before the lazy save")))
		fail_msg("%s", why.message);
	fake_run();
	const bool is_whole = device_saved_is(d, rc < 0 ? 0 : 1);

	device_check(d);
	return !is_whole ? TORN : rc < 0 ? REFUSED : OF_STEP_1;
}

/* The waits of a lazy save on two devices, in order. The samples are read twice. */
enum {
	AFTER_CALLER = 1,         /* the copies wait for the caller's work */
	BEFORE_RETURN = 3,        /* the caller's streams wait for the copies during the call */
	SAMPLES_AFTER_CALLER = 5, /* the second reading waits for the caller's work before the fence */
	FENCE = 7                 /* the caller's streams wait for everything */
};
#define N_WAITS 8

/* The controls. A wait of a lazy save is left out. Is that found in what was saved? */
static bool
is_found_without(struct small_run *r, uint64_t seed, long ignored)
{
	struct device_run d;
	const bool late =
		ignored == AFTER_CALLER || ignored == AFTER_CALLER + 1; /* the caller's work, else the copies */

	begin(&d, r, seed);
	if (!late)
		fake_run();
	fake_hold(late ? d.streams[ignored] : 0, true);
	fake_ignore_wait(ignored);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	device_launch(&d, 2, true);
	OK(pawl_fence(r->run, -1, err));
	device_launch(&d, 2, false);
	fake_run();
	fake_hold(late ? d.streams[ignored] : 0, false);
	return end_save(&d) != OF_STEP_1;
}

static void
test_each_missing_wait_is_found(void **state)
{
	static const long needed[] = {AFTER_CALLER, AFTER_CALLER + 1, BEFORE_RETURN, FENCE, FENCE + 1};

	assert_false(is_found_without(*state, 3, 0));
	assert_int_equal(fake_waits(), N_WAITS);
	for (size_t i = 0; i < COUNT(needed); i++) {
		uint64_t seed = 1;

		while (seed <= SEEDS && !is_found_without(*state, seed, needed[i]))
			seed++;
		if (seed > SEEDS)
			fail_msg("without wait %ld no save was torn", needed[i]);
	}
}

/* A write before the fence that nothing counts, on one device: of the buffers and all else, or
 * first of one row. */
static enum outcome
write_uncounted(struct small_run *r, uint64_t seed, int ordinal, bool row_first, bool fences, long ignored)
{
	struct device_run d;

	begin(&d, r, seed);
	fake_ignore_wait(ignored);
	fake_hold(0, true); /* the write is launched before the copies have ended */
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	if (row_first)
		fake_launch(1, d.streams[1], write_row, &d);
	for (int i = 0; row_first && i < 6000; i++)
		fake_launch(1, d.streams[1], do_nothing, NULL);
	device_launch_on(&d, ordinal, 2, false);
	if (fences)
		OK(pawl_fence(r->run, -1, err));
	fake_hold(0, false);
	return end_save(&d);
}

static void
test_a_write_before_the_fence_that_nothing_counts_is_refused(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS / 2; seed++)
		for (int ordinal = 1; ordinal <= 2; ordinal++) {
			assert_int_equal(write_uncounted(*state, seed, ordinal, seed % 2, true, 0), REFUSED);
			assert_int_equal(write_uncounted(*state, seed, ordinal, seed % 2, false, 0), REFUSED);
		}
}

/* The controls: each wait that orders a reading of the samples is needed. The second reading must
 * not be too early for a write that has begun. */
static void
test_without_the_order_of_the_samples_a_torn_save_is_committed(void **state)
{
	static const struct {
		int ordinal;
		bool row_first;
		long ignored;
	} rows[] = {{1, false, BEFORE_RETURN}, {2, false, BEFORE_RETURN + 1}, {1, true, SAMPLES_AFTER_CALLER}};

	for (size_t i = 0; i < COUNT(rows); i++) {
		uint64_t seed = 1;

		while (seed <= 100 &&
		       write_uncounted(*state, seed, rows[i].ordinal, rows[i].row_first, true, rows[i].ignored) != TORN)
			seed++;
		if (seed > 100)
			fail_msg("without wait %ld every write was found", rows[i].ignored);
	}
}

/* The caller's streams are held: a host thread that waited for the device would never return. */
static void
test_a_lazy_save_and_its_fence_never_wait_on_the_host(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	for (uint32_t threads = 1; threads <= 2; threads++) {
		r->opts.staging.copy_threads = threads;
		begin(&d, r, 3);
		for (int o = 0; o < FAKE_DEVICES; o++)
			fake_hold(d.streams[o], true);
		OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
		device_launch(&d, 2, true); /* the buffers change before the fence */
		OK(pawl_fence(r->run, -1, err));
		device_launch(&d, 2, false);
		assert_int_equal(d.tensors[D_WEIGHT].shadow[0], device_value(0, D_WEIGHT, 0));
		for (int o = 0; o < FAKE_DEVICES; o++)
			fake_hold(d.streams[o], false);
		OK(pawl_wait(r->run, -1, err));
		fake_run();
		assert_int_equal(d.tensors[D_WEIGHT].shadow[0], device_value(2, D_WEIGHT, 0));
		assert_true(device_saved_is(&d, 1));
		device_check(&d);
	}
}

/* A save that ends late, after the next one has begun: what still is on its way is not its own. */
static void
test_the_end_of_a_save_does_not_wait_for_the_next_one(void **state)
{
	struct device_run d;

	begin(&d, *state, 22);
	fake_hold(0, true);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	struct save *first = d.r->run->saves.writer->active;

	atomic_fetch_add(&first->refs, 1);
	fake_hold(0, false);
	OK(pawl_wait(d.r->run, -1, err));
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], true);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	save_unref(first);
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], false);
	assert_int_equal(end_save(&d), OF_STEP_1);
}

/* Samples that follow each other in one tensor are separate copies: those of a batch have no
 * order. */
static void
test_samples_of_one_small_tensor_do_not_overlap(void **state)
{
	struct device_run d;

	begin(&d, *state, 6);
	d.tensors[D_OTHER].shape[0] = 1;
	d.tensors[D_OTHER].shape[1] = d.tensors[D_OTHER].n = 64; /* two samples long, alone on its device */
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_fence(d.r->run, -1, err));
	device_launch(&d, 2, false);
	assert_int_equal(end_save(&d), OF_STEP_1);
}

static void
test_an_empty_tensor_has_no_samples(void **state)
{
	struct device_run d;

	begin(&d, *state, 7);
	d.tensors[D_OTHER].shape[0] = d.tensors[D_OTHER].n = 0;
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_fence(d.r->run, -1, err));
	device_launch(&d, 2, false);
	assert_int_equal(end_save(&d), OF_STEP_1);
}

/* How many operations a lazy save gives to the driver at once. */
static size_t
most_operations(struct small_run *r, size_t most_units)
{
	struct device_run d;

	r->opts.io.threads = 32; /* so there are many units */
	begin(&d, r, 3);
	r->run->saves.writer->devices.most_units = most_units;
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], true);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_fence(r->run, -1, err));
	device_launch(&d, 2, false);
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], false);
	assert_int_equal(end_save(&d), OF_STEP_1);
	return fake_longest();
}

static void
test_units_share_events_and_copies(void **state)
{
	const size_t joined = most_operations(*state, 1), apart = most_operations(*state, 1u << 20);

	assert_true(joined + 4 < apart); /* of each unit but the first: a copy and an event */
}

/* The driver takes what the call adds, but not all copies: the call would hang, since the streams
 * are held. Then the fence waits for the driver, as long as it may. */
static void
test_a_fence_waits_for_a_driver_that_is_full(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	r->opts.io.threads = 64; /* about 80 units, each a copy and an event */
	r->opts.packs.block_bytes = 64 << 10;
	begin(&d, r, 4);
	fake_set_queue(300); /* the call adds fewer than 200, all copies are more than 400 */
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], true);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	fake_wait_full();
	FAILS(PAWL_ETIMEOUT, "", pawl_fence(r->run, 0, err));
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], false);
	OK(pawl_fence(r->run, -1, err));
	device_launch(&d, 2, false);
	assert_int_equal(end_save(&d), OF_STEP_1);
}

/* A lazy save that has no room for its samples on the device is none: the tensors may change when
 * the call returns. */
static void
test_a_lazy_save_without_room_for_samples_copies_at_once(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	begin(&d, r, 5);
	fake_set_memory(1000);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	device_launch(&d, 2, false);
	assert_int_equal(end_save(&d), OF_STEP_1);
}

/* The waits of a staged save on each of two devices: for copies from the staging memory, which have
 * all ended here, and that of the bus for the copies within the device. */
#define STAGED_WAITS 2

/* A save that is not lazy, with a copy within the device. Neither the call nor the caller's next
 * work waits for the bus. Without that wait of device `ignored` (0 = none) it is torn. */
static bool
is_torn_staged(struct small_run *r, int ignored)
{
	struct device_run d;

	r->opts.staging.device = 1;
	begin(&d, r, 3);
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], !ignored || o == ignored);
	fake_ignore_wait(STAGED_WAITS * ignored);
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	device_launch(&d, 2, false);
	OK(pawl_fence(r->run, -1, err));
	if (ignored) /* the copy of the other device does not hold it up */
		OK(pawl_wait(r->run, -1, err));
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_hold(d.streams[o], false);
	OK(pawl_wait(r->run, -1, err));
	fake_run();
	const bool is_torn = !device_saved_is(&d, 1);

	device_check(&d);
	return is_torn;
}

static void
test_a_staged_save_never_waits_on_the_host(void **state)
{
	assert_false(is_torn_staged(*state, 0));
	assert_int_equal(fake_waits(), 2 * STAGED_WAITS);
	for (int ignored = 1; ignored <= 2; ignored++)
		assert_true(is_torn_staged(*state, ignored));
}

static void
test_no_order_of_the_devices_tears_a_staged_save(void **state)
{
	struct small_run *r = *state;

	r->opts.staging.device = 1;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		assert_true(saves_step_1(r, seed, false, PAWL_MODE_SNAPSHOT, 0));
		assert_true(saves_step_1(r, seed, true, PAWL_MODE_SNAPSHOT, 0));
	}
}

static void
test_a_device_without_room_is_not_used_for_staging(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	r->opts.staging.device = 1;
	device_make(&d, r, 13, LAZY_ROWS);
	fake_set_memory(LAZY_ROWS * 1024);
	small_open(r);
	device_launch(&d, 1, false);
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	device_launch(&d, 2, false);
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* The second save is staged while the first is written. The memory on the device belongs to one of
 * them. */
static void
test_two_saves_do_not_share_the_staging_memory(void **state)
{
	struct small_run *r = *state;

	r->opts.staging.device = 1;
	r->opts.on_busy = PAWL_BUSY_REPLACE;
	for (uint64_t seed = 20; seed < 30; seed++) {
		struct device_run d;

		device_make(&d, r, seed, 40);
		small_open(r);
		for (int step = 1; step <= 3; step++) {
			device_launch(&d, step, false);
			OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
		}
		device_launch(&d, 4, false);
		(void)pawl_wait(r->run, -1, NULL); /* a save may have been replaced */
		assert_true(device_saved_is(&d, 3));
		device_check(&d);
	}
}

static void
test_unchanged_tensors_are_linked(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_DIRECT; mode++) {
		device_make(&d, r, 4, 40);
		small_open(r);
		device_launch(&d, 1, false);
		for (int i = 0; i < 2; i++) {
			OK(device_save(&d, false, mode, err));
			OK(pawl_wait(r->run, -1, err));
			assert_true(device_saved_is(&d, 1));
		}
		device_check(&d);
	}
}

/* Any call of the driver may fail: then the save fails with the name of the call, and the last
 * checkpoint remains. */
static bool
fail_nth(struct small_run *r, long nth, int result, bool lazy)
{
	struct device_run d;
	struct pawl_error why = {0};

	r->opts.retention.num_to_keep = 1;
	device_make(&d, r, 5, lazy ? LAZY_ROWS : 40);
	small_open(r);
	device_launch(&d, 1, false);
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	device_wait_registered(&d);
	fake_run();
	device_launch(&d, 2, false);
	fake_fail(nth, result);
	int rc = device_save(&d, lazy, PAWL_MODE_SNAPSHOT, &why);

	if (rc == 0)
		rc = pawl_fence(r->run, -1, &why);
	if (rc == 0)
		rc = pawl_wait(r->run, -1, &why);
	const bool was_reached = device_end_failing(nth, rc, &why);
	const int step = rc < 0 ? 1 : 2;
	const bool is = device_saved_is(&d, step);

	if (!is)
		fail_msg("call %ld: the last checkpoint is not of step %d", nth, step);
	device_drop(&d, nth);
	return was_reached;
}

static void
test_any_call_may_fail(void **state)
{
	static const int results[] = {2, 700};

	for (size_t i = 0; i < 2 * COUNT(results); i++) {
		long nth = 1;

		while (fail_nth(*state, nth, results[i / 2], i % 2))
			nth++;
		assert_true(nth > 20);
	}
}

static void
test_pointers_are_checked(void **state)
{
	struct small_run *r = *state;
	struct device_run d;
	struct pawl_state *s;
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;

	device_make(&d, r, 6, 40);
	small_open(r);
	OK(pawl_state_new(&s, err));
	struct pawl_tensor t = device_tensor(&d, D_WEIGHT);

	t.device = 3;
	FAILS(PAWL_EUSAGE, "device: expected 0 to 2, found 3", pawl_state_set_tensor(s, "w", &t, err));
	t.device = PAWL_DEVICE_CUDA;
	t.device_id = 2;
	OK(pawl_state_set_tensor(s, "w", &t, err));
	FAILS(PAWL_EUSAGE, "tensor 'w': device_id is 2, but the memory is on device 1",
	      pawl_save(r->run, &opts, s, NULL, err));
	pawl_state_free(s);
	device_check(&d);
}

/* Managed memory, host memory with a device's name, and no stream: slower, and as good. */
static void
test_other_memory_is_saved_too(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	for (int i = 0; i < 3; i++) {
		device_make(&d, r, 7 + (uint64_t)i, 40);
		small_open(r);
		if (i < 2) {
			d.tensors[D_OTHER].data = fake_alloc_managed(2, 2 * d.tensors[D_OTHER].n);
			d.tensors[D_OTHER].shadow = fake_shadow(d.tensors[D_OTHER].data);
		}
		d.host_is_named = i == 1;
		d.has_no_streams = i == 2;
		device_launch(&d, 1, false);
		OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
		device_launch(&d, 2, false);
		OK(pawl_wait(r->run, -1, err));
		assert_true(device_saved_is(&d, 1));
		device_check(&d);
	}
}

static void
test_a_captured_stream_is_refused(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	device_make(&d, r, 10, 40);
	small_open(r);
	fake_capture(d.streams[1]);
	FAILS(PAWL_EBUSY, "a graph is being captured", device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	assert_false(fake_capture_is_broken());
	fake_capture(0);
	device_launch(&d, 1, false);
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* A graph is captured from a stream that no tensor names: the save registers memory and copies, and
 * the capture continues. */
static void
test_a_capture_elsewhere_is_not_disturbed(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	r->opts.staging.device = 1;
	device_make(&d, r, 15, LAZY_ROWS);
	small_open(r);
	device_launch(&d, 1, false);
	fake_capture(d.streams[0]);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_fence(r->run, -1, err));
	device_launch(&d, 2, false);
	OK(pawl_wait(r->run, -1, err));
	assert_false(fake_capture_is_broken());
	fake_capture(0);
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* A forked child has no devices: its save fails by name, and that of the parent does not notice. */
static void
test_a_forked_child_is_refused(void **state)
{
	struct small_run *r = *state;
	struct device_run d;
	struct pawl_error why = {0};
	int status;

	device_make(&d, r, 16, 40);
	small_open(r);
	device_launch(&d, 1, false);
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	const pid_t child = fork();

	if (child == 0) {
		const int rc = device_save(&d, false, PAWL_MODE_SNAPSHOT, &why);

		_exit(rc < 0 && strstr(why.message, "a forked child cannot use it") ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* The fence cannot add to a captured stream: it waits on the host. */
static void
test_a_fence_during_a_capture_waits(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	device_make(&d, r, 11, LAZY_ROWS);
	small_open(r);
	device_launch(&d, 1, false);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	fake_capture(d.streams[1]);
	OK(pawl_fence(r->run, -1, err));
	assert_false(fake_capture_is_broken());
	fake_capture(0);
	device_launch(&d, 2, false);
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* Of a lazy save. */
static uint64_t
registered_bytes(struct device_run *d)
{
	struct pawl_state *s = device_state(d);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	struct pawl_ticket *ticket;

	opts.lazy = 1;
	OK(pawl_save(d->r->run, &opts, s, &ticket, err));
	pawl_state_free(s);
	OK(pawl_fence(d->r->run, -1, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	return stats.registered_bytes;
}

static void
test_memory_that_cannot_be_registered_works(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	device_make(&d, r, 12, LAZY_ROWS);
	fake_set_registrable(0);
	small_open(r);
	device_launch(&d, 1, false);
	assert_int_equal(registered_bytes(&d), 0);
	device_launch(&d, 2, false);
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* The driver knows of the memory a moment before it is counted. */
static void
wait_until_counted(const struct device_run *d)
{
	struct pawl_arena *arena = d->r->run->saves.arena;
	struct arena_region region;

	OK(arena_take_cold(arena, 1, &region, err));
	while (arena_registered(arena, &region) < region.nbytes)
		usleep(1000);
	arena_give(arena, &region);
}

static void
test_the_registered_bytes_of_a_save_are_counted(void **state)
{
	struct device_run d;

	begin(&d, *state, 24);
	wait_until_counted(&d);
	assert_true(registered_bytes(&d) >= 1024 * LAZY_ROWS);
	device_check(&d);
}

/* The host memory that a save takes is the ring, whatever the state's size. */
static void
test_ring_and_direct_bound_the_host_memory(void **state)
{
	struct small_run *r = *state;
	const size_t ring = 8 << 20;

	r->opts.staging.ring_bytes = ring;
	for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_DIRECT; mode++) {
		struct device_run d;

		device_make(&d, r, 17, 5 * LAZY_ROWS); /* 25 MB */
		small_open(r);
		device_launch(&d, 1, false);
		OK(device_save(&d, false, mode, err));
		OK(pawl_wait(r->run, -1, err));
		const size_t taken = pawl_arena_bytes(r->run->saves.arena);

		assert_true((mode == PAWL_MODE_SNAPSHOT) == (taken > 2 * ring));
		assert_true(fake_registered() <= taken);
		assert_true(device_saved_is(&d, 1));
		device_check(&d);
	}
}

/* Of a part of a device (MIG) the number is its own; device 0 is perhaps not this process's. */
static void
test_device_0_is_not_used_unless_a_pointer_says_so(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	device_make(&d, r, 18, LAZY_ROWS);
	fake_hide_first(true);
	small_open(r);
	device_launch(&d, 1, false);
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_fence(r->run, -1, err));
	device_launch(&d, 2, false);
	OK(pawl_wait(r->run, -1, err));
	device_wait_registered(&d);
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* After the fence of a lazy save, and after any other save, the caller may end its streams. */
static void
test_a_stream_may_end_after_the_fence(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	for (int lazy = 0; lazy < 2; lazy++) {
		begin(&d, r, 19);
		fake_hold(0, lazy); /* any other save waits for the copies */
		OK(device_save(&d, lazy, lazy ? PAWL_MODE_SNAPSHOT : PAWL_MODE_RING, err));
		OK(pawl_fence(r->run, -1, err));
		for (int o = 0; o < FAKE_DEVICES; o++)
			fake_stream_end(d.streams[o]);
		fake_hold(0, false);
		assert_int_equal(end_save(&d), OF_STEP_1);
	}
}

/* The driver ends before the run is closed, as at the end of a program. What is not copied yet is
 * not saved. */
static void
test_closing_after_the_driver_has_gone_is_no_error(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	for (int is_saving = 0; is_saving < 2; is_saving++) {
		begin(&d, r, 23);
		if (is_saving) {
			fake_hold(0, true);
			OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
		}
		fake_shut_down();
		if (is_saving)
			FAILS(PAWL_ECANCELLED, "CUDA_ERROR_DEINITIALIZED (4): the driver has been shut down",
			      pawl_wait(r->run, -1, err));
		assert_true(device_saved_is(&d, 0));
		device_check(&d);
	}
}

/* The control. */
static void
test_the_fake_driver_sees_a_stream_that_ends_too_early(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	begin(&d, r, 21);
	fake_hold(0, true); /* the fence has something to wait for */
	OK(device_save(&d, true, PAWL_MODE_SNAPSHOT, err));
	for (int o = 0; o < FAKE_DEVICES; o++)
		fake_stream_end(d.streams[o]);
	while (!fake_misuse()) /* the copies may not be added yet */
		(void)pawl_fence(r->run, 1, NULL);
	fake_hold(0, false);
	(void)pawl_close(r->run, NULL);
	r->run = NULL;
	assert_non_null(strstr(fake_misuse(), "the stream does not exist any more"));
	fake_reset(0, true);
	device_end(&d);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_no_order_of_the_devices_tears_a_save, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_no_order_of_the_devices_tears_a_lazy_save, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_first_save_of_a_prepared_run_does_not_wait, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_each_missing_wait_is_found, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_write_before_the_fence_that_nothing_counts_is_refused,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_without_the_order_of_the_samples_a_torn_save_is_committed,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_lazy_save_and_its_fence_never_wait_on_the_host, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_end_of_a_save_does_not_wait_for_the_next_one, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_samples_of_one_small_tensor_do_not_overlap, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_an_empty_tensor_has_no_samples, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_units_share_events_and_copies, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_fence_waits_for_a_driver_that_is_full, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_lazy_save_without_room_for_samples_copies_at_once, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_staged_save_never_waits_on_the_host, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_no_order_of_the_devices_tears_a_staged_save, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_device_without_room_is_not_used_for_staging, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_two_saves_do_not_share_the_staging_memory, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_unchanged_tensors_are_linked, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_any_call_may_fail, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_pointers_are_checked, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_other_memory_is_saved_too, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_captured_stream_is_refused, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_capture_elsewhere_is_not_disturbed, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_forked_child_is_refused, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_fence_during_a_capture_waits, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_ring_and_direct_bound_the_host_memory, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_device_0_is_not_used_unless_a_pointer_says_so, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_stream_may_end_after_the_fence, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_closing_after_the_driver_has_gone_is_no_error, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_fake_driver_sees_a_stream_that_ends_too_early, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_registered_bytes_of_a_save_are_counted, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_memory_that_cannot_be_registered_works, small_setup,
	                                        small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
