/* SPDX-License-Identifier: Apache-2.0 */
/* Restores into tensors on devices: every byte is checked before it is copied, after the caller's
 * earlier work and before its later work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "device/device_pin.h"
#include "helpers/device_run.h"
#include "helpers/device_nodes.h"

#define ROWS 600u

static bool
holds(const struct device_run *d, int step)
{
	for (int t = 0; t < D_TENSORS; t++)
		for (size_t i = 0; i < d->tensors[t].n; i++)
			if (d->tensors[t].shadow[i] != device_value(step, t, i))
				return false;
	return true;
}

/* ret: keeps its read buffers; NULL is fine. */
static int
restore_to(struct device_run *d, const char *selector, struct pawl_restore **ret, struct pawl_error *err)
{
	struct pawl_state *state = device_state(d);
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;

	opts.selector = selector;
	const int rc = pawl_restore(d->r->run, &opts, state, ret, err);

	pawl_state_free(state);
	return rc;
}

static int
restore(struct device_run *d, const char *selector, struct pawl_error *err)
{
	return restore_to(d, selector, NULL, err);
}

/* A run with a checkpoint of step 1; step 2 is launched. */
static void
begin(struct device_run *d, struct small_run *r, uint64_t seed)
{
	device_make(d, r, seed, ROWS);
	small_open(r);
	device_launch(d, 1, false);
	OK(device_save(d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	device_launch(d, 2, false);
}

static bool
is_torn(struct small_run *r, uint64_t seed, const char *compression)
{
	struct device_run d;

	r->opts.packs.compression = compression;
	begin(&d, r, seed);
	OK(restore(&d, NULL, err));
	fake_run();
	const bool is = !holds(&d, 1);

	device_check(&d);
	return is;
}

static void
test_no_order_of_the_devices_tears_a_restore(void **state)
{
	for (uint64_t seed = 1; seed <= 12; seed++) {
		assert_false(is_torn(*state, seed, NULL));
		assert_false(is_torn(*state, seed, "zst"));
	}
}

/* The controls. Step 2 is held. Without the wait for the caller's work it overwrites what was
 * restored. */
static void
test_each_missing_wait_is_found(void **state)
{
	for (int o = 1; o <= 2; o++) {
		struct device_run d;

		begin(&d, *state, 2);
		fake_hold(d.streams[o], true);
		fake_ignore_wait(o);
		OK(restore(&d, NULL, err));
		fake_hold(d.streams[o], false);
		fake_run();
		assert_false(holds(&d, 1));
		device_check(&d);
	}
}

/* Damage is found before it reaches the device. The next older checkpoint is restored. */
static void
test_damage_falls_back(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	begin(&d, r, 3);
	fake_run();
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	OK(pawl_close(r->run, err));
	r->run = NULL;
	small_damage(r, "checkpoints/checkpoint_000002/rank00000-00000.safetensors", -3000);
	small_open(r);
	FAILS(PAWL_ECORRUPT, "checksum", restore(&d, "id:2", err));
	OK(restore(&d, NULL, err));
	fake_run();
	assert_true(holds(&d, 1));
	device_check(&d);
}

/* A checkpoint of step 1 and one of step 2. A failing device proves nothing about the newer one. */
static bool
fail_nth(struct small_run *r, long nth, int result, int code)
{
	struct device_run d;
	struct pawl_error why = {0};

	r->opts.retention.num_to_keep = 2;
	begin(&d, r, 5);
	fake_run();
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	fake_fail(nth, result);
	const int rc = restore(&d, NULL, &why);
	const bool was_reached = device_end_failing(nth, rc, &why);

	if (rc < 0 && rc != code)
		fail_msg("call %ld, result %d: %s", nth, result, pawl_code_name(rc));
	if (!holds(&d, 2))
		fail_msg("call %ld, result %d: the older checkpoint was restored", nth, result);
	device_drop(&d, nth);
	return was_reached;
}

static void
test_any_call_may_fail(void **state)
{
	static const struct {
		int result, code;
	} rows[] = {{1, PAWL_EDEVICE},   {2, PAWL_ENOMEM},    {3, PAWL_EUNSUPPORTED}, {4, PAWL_ECANCELLED},
	            {100, PAWL_EDEVICE}, {304, PAWL_EDEVICE}, {700, PAWL_EDEVICE},    {802, PAWL_EDEVICE},
	            {906, PAWL_EBUSY},   {999, PAWL_EDEVICE}};

	for (size_t i = 0; i < COUNT(rows); i++) {
		long nth = 1;

		while (fail_nth(*state, nth, rows[i].result, rows[i].code))
			nth++;
		assert_true(nth > 20);
	}
}

static void
test_other_memory_is_restored_too(void **state)
{
	for (int i = 0; i < 3; i++) {
		struct device_run d;

		begin(&d, *state, 6);
		fake_run();
		d.host_is_named = i == 0;
		d.has_no_streams = i == 1;
		if (i == 2) {
			d.tensors[D_OTHER].data = fake_alloc_managed(2, 2 * d.tensors[D_OTHER].n);
			d.tensors[D_OTHER].shadow = fake_shadow(d.tensors[D_OTHER].data);
		}
		device_launch(&d, 3, false);
		OK(restore(&d, NULL, err));
		fake_run();
		assert_true(holds(&d, 1));
		device_check(&d);
	}
}

struct wide {
	const struct device_run *d;
	uint64_t data[D_TENSORS];
	uint32_t *shadow[D_TENSORS];
};

static void
fill_wide(void *arg)
{
	const struct wide *w = arg;

	for (int t = 0; t < D_TENSORS; t++)
		for (size_t i = 0; i < w->d->tensors[t].n; i++)
			w->shadow[t][i] = 77;
}

/* Copies of the tensors in twice as much memory, as float32. */
static struct pawl_state *
make_wide(struct device_run *d, struct wide *ret)
{
	struct pawl_state *state;

	*ret = (struct wide){.d = d};
	OK(pawl_state_new(&state, err));
	for (int t = 0; t < D_TENSORS; t++) {
		struct pawl_tensor tensor = device_tensor(d, t);

		tensor.dtype = PAWL_F32;
		tensor.data = (void *)(uintptr_t)(ret->data[t] = fake_alloc(1, 4 * d->tensors[t].n));
		tensor.device = PAWL_DEVICE_CUDA;
		tensor.stream = d->streams[1];
		ret->shadow[t] = fake_shadow(ret->data[t]);
		OK(pawl_state_set_tensor(state, d->tensors[t].name, &tensor, err));
	}
	return state;
}

/* Without the wait for the caller's work, that overwrites what was converted. A float32 is a
 * bfloat16 with 16 more bits. */
static void
test_a_cast_is_copied_in_the_order_of_the_callers_stream(void **state)
{
	static const char *const cast[] = {"*=F32"};
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;

	opts.cast = cast;
	opts.n_cast = 1;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct device_run d;
		struct wide wide;

		begin(&d, *state, seed);
		fake_run();
		struct pawl_state *live = make_wide(&d, &wide);

		fake_launch(1, d.streams[1], fill_wide, &wide);
		OK(pawl_restore(d.r->run, &opts, live, NULL, err));
		fake_run();
		for (int t = 0; t < D_TENSORS; t++)
			for (size_t i = 0; i < d.tensors[t].n; i++)
				assert_int_equal(wide.shadow[t][i], (uint32_t)device_value(1, t, i) << 16);
		pawl_state_free(live);
		device_check(&d);
	}
}

/* Ends as a device that fails does: no older checkpoint is taken. */
static void
test_a_restore_during_a_capture_is_refused(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	r->opts.retention.num_to_keep = 2;
	begin(&d, r, 7);
	fake_run();
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	device_launch(&d, 3, false);
	fake_run();
	fake_capture(d.streams[1]);
	FAILS(PAWL_EBUSY, "a graph is being captured", restore(&d, NULL, err));
	assert_false(fake_capture_is_broken());
	assert_true(holds(&d, 3));
	fake_capture(0);
	OK(restore(&d, NULL, err));
	fake_run();
	assert_true(holds(&d, 2));
	device_check(&d);
}

static void
test_a_capture_elsewhere_is_not_disturbed(void **state)
{
	struct device_run d;

	begin(&d, *state, 8);
	fake_capture(d.streams[0]);
	OK(restore(&d, NULL, err));
	assert_false(fake_capture_is_broken());
	fake_capture(0);
	fake_run();
	assert_true(holds(&d, 1));
	device_check(&d);
}

/* The driver refuses it: a restore in the child opens it anew. */
static void
test_a_forked_child_is_refused(void **state)
{
	struct small_run *r = *state;
	struct device_run d;
	struct pawl_error why = {0};
	int status;

	begin(&d, r, 9);
	OK(restore(&d, NULL, err));
	fake_run();
	const pid_t child = fork();

	if (child == 0) {
		const int rc = restore(&d, NULL, &why);

		_exit(rc < 0 && strstr(why.message, "a forked child cannot use") ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	device_launch(&d, 3, false);
	OK(restore(&d, NULL, err));
	fake_run();
	assert_true(holds(&d, 1));
	device_check(&d);
}

/* Of a part of a device (MIG) the number is its own; device 0 is perhaps not this process's. */
static void
test_device_0_is_not_used_unless_a_pointer_says_so(void **state)
{
	struct device_run d;

	begin(&d, *state, 10);
	fake_hide_first(true);
	OK(restore(&d, NULL, err));
	fake_run();
	assert_true(holds(&d, 1));
	device_check(&d);
}

/* ---- memory that the kernel cannot use ---- */

static atomic_bool refuses_reads;
static atomic_int n_refused;

ssize_t __real_pread64(int fd, void *ptr, size_t n, off_t offset);
ssize_t __wrap_pread64(int fd, void *ptr, size_t n, off_t offset);

ssize_t
__wrap_pread64(int fd, void *ptr, size_t n, off_t offset)
{
	if (!atomic_load(&refuses_reads) || !fake_is_registered(ptr))
		return __real_pread64(fd, ptr, n, offset);
	atomic_fetch_add(&n_refused, 1);
	errno = EFAULT;
	return -1;
}

static atomic_bool waits_for_pins;

int __real_device_pin_new(struct device *d, int ordinal, const struct device_spans *spans, void *ptr, size_t nbytes,
                          struct device_pin **ret, struct pawl_error *err);
int __wrap_device_pin_new(struct device *d, int ordinal, const struct device_spans *spans, void *ptr, size_t nbytes,
                          struct device_pin **ret, struct pawl_error *err);

/* The buffers are registered before they are used. */
int
__wrap_device_pin_new(struct device *d, int ordinal, const struct device_spans *spans, void *ptr, size_t nbytes,
                      struct device_pin **ret, struct pawl_error *err)
{
	const int rc = __real_device_pin_new(d, ordinal, spans, ptr, nbytes, ret, err);

	return rc == 0 && atomic_load(&waits_for_pins) ? device_pin_wait(*ret, err) : rc;
}

static void
test_registered_memory_that_cannot_be_read_into_works(void **state)
{
	struct device_run d;

	begin(&d, *state, 11);
	atomic_store(&waits_for_pins, true);
	atomic_store(&refuses_reads, true);
	OK(restore(&d, NULL, err));
	atomic_store(&refuses_reads, false);
	atomic_store(&waits_for_pins, false);
	assert_true(atomic_load(&n_refused) > 0);
	fake_run();
	assert_true(holds(&d, 1));
	device_check(&d);
}

/* ---- the end of a restore ---- */

struct seen {
	const struct device_run *d;
	int ordinal;
	bool is_step_1;
};

/* As work of the caller's stream. */
static void
look(void *arg)
{
	struct seen *s = arg;

	s->is_step_1 = true;
	for (int t = 0; t < D_TENSORS; t++)
		for (size_t i = 0; s->d->tensors[t].ordinal == s->ordinal && i < s->d->tensors[t].n; i++)
			if (s->d->tensors[t].shadow[i] != device_value(1, t, i))
				s->is_step_1 = false;
}

/* The driver lets the host go before the copies have ended. Then only the wait of each caller's
 * stream keeps its work from tensors that are not copied yet. Which devices' work sees step 1? */
static void
work_after_restore(struct small_run *r, long ignored, bool *ret_first, bool *ret_second)
{
	struct device_run d;
	struct seen seen[] = {{&d, 1, false}, {&d, 2, false}};
	struct pawl_restore *kept;

	begin(&d, r, 14);
	fake_run();
	atomic_store(&waits_for_pins, true); /* a copy from other memory would hold the call */
	fake_end_early(true);
	fake_ignore_wait(ignored);
	OK(restore_to(&d, NULL, &kept, err));
	atomic_store(&waits_for_pins, false);
	fake_hold(0, true);
	for (size_t i = 0; i < COUNT(seen); i++)
		fake_launch(seen[i].ordinal, d.streams[seen[i].ordinal], look, &seen[i]);
	fake_run();
	fake_hold(0, false);
	fake_run();
	*ret_first = seen[0].is_step_1;
	*ret_second = seen[1].is_step_1;
	fake_end_early(false);
	pawl_restore_close(kept);
	device_check(&d);
}

static void
test_the_callers_streams_wait_for_the_last_copy(void **state)
{
	bool first, second;

	work_after_restore(*state, 0, &first, &second);
	assert_true(first && second);
	assert_int_equal(fake_waits(), 4); /* of two devices, before the copies and after them */
	work_after_restore(*state, 3, &first, &second);
	assert_true(!first && second);
	work_after_restore(*state, 4, &first, &second);
	assert_true(first && !second);
}

/* ---- several devices ---- */

#define MANY_ROWS 6000u  /* of 1,024 bytes, on device 1 */
#define OTHER_ROWS 3000u /* of 2,000 bytes, on device 2 */

/* Two threads read units of 1 MiB. A checkpoint of step 1; step 2 is done. */
static void
begin_large(struct device_run *d, struct small_run *r, uint64_t seed)
{
	device_make(d, r, seed, MANY_ROWS);
	device_resize(d, D_OTHER, OTHER_ROWS);
	device_nodes_reset();
	r->opts.io.threads = 1;
	small_open(r);
	device_launch(d, 1, false);
	OK(device_save(d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	device_launch(d, 2, false);
	fake_run();
}

static void
test_each_device_has_a_buffer_on_its_node(void **state)
{
	struct device_run d;

	begin_large(&d, *state, 12);
	device_wait_registered(&d);
	device_nodes.n = 0; /* those of the save */
	atomic_store(&waits_for_pins, true);
	OK(restore(&d, NULL, err));
	atomic_store(&waits_for_pins, false);
	fake_run();
	assert_true(holds(&d, 1));
	assert_int_equal(device_nodes.n, 2);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(device_nodes.calls[i].node, i);
	assert_ptr_equal(device_nodes.calls[0].ptr + device_nodes.calls[0].n, device_nodes.calls[1].ptr);
	assert_int_equal(device_nodes.calls[0].n, device_nodes.calls[1].n);
	device_check(&d);
}

struct reading {
	struct device_run *d;
	int rc;
	struct pawl_error error;
};

static void *
restore_in_thread(void *arg)
{
	struct reading *r = arg;

	r->rc = restore(r->d, NULL, &r->error);
	return NULL;
}

/* One device does nothing until the other one has all: else the test would hang. */
static void
test_a_slow_device_does_not_hold_up_the_others(void **state)
{
	for (int slow = 1; slow <= 2; slow++) {
		struct device_run d;
		struct reading r = {.d = &d};
		pthread_t thread;

		begin_large(&d, *state, 13);
		device_launch(&d, 3, false);
		fake_hold(d.streams[slow], true);
		assert_int_equal(pthread_create(&thread, NULL, restore_in_thread, &r), 0);
		/* each was copied once by the save */
		fake_wait_copied(3 - slow, 2 * (slow == 1 ? OTHER_ROWS * 2000 : MANY_ROWS * 1024));
		fake_hold(d.streams[slow], false);
		assert_int_equal(pthread_join(thread, NULL), 0);
		OK((*err = r.error, r.rc));
		fake_run();
		assert_true(holds(&d, 1));
		device_check(&d);
	}
}

/* Nothing is added to the captured stream: the host has waited. */
static void
test_a_capture_that_begins_during_a_restore_continues(void **state)
{
	struct device_run d;
	struct reading r = {.d = &d};
	pthread_t thread;

	begin_large(&d, *state, 15);
	device_launch(&d, 3, false);
	fake_hold(d.streams[1], true);
	assert_int_equal(pthread_create(&thread, NULL, restore_in_thread, &r), 0);
	fake_wait_copied(2, 2 * OTHER_ROWS * 2000); /* so the copies are ordered after the caller's work */
	fake_capture(d.streams[1]);
	fake_hold(d.streams[1], false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	OK((*err = r.error, r.rc));
	assert_false(fake_capture_is_broken());
	fake_capture(0);
	assert_true(holds(&d, 1));
	fake_run();
	device_check(&d);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_no_order_of_the_devices_tears_a_restore, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_each_missing_wait_is_found, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_damage_falls_back, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_any_call_may_fail, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_cast_is_copied_in_the_order_of_the_callers_stream, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_restore_during_a_capture_is_refused, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_capture_elsewhere_is_not_disturbed, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_forked_child_is_refused, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_device_0_is_not_used_unless_a_pointer_says_so, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_other_memory_is_restored_too, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_registered_memory_that_cannot_be_read_into_works, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_the_callers_streams_wait_for_the_last_copy, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_capture_that_begins_during_a_restore_continues, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_each_device_has_a_buffer_on_its_node, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_slow_device_does_not_hold_up_the_others, small_setup,
	                                        small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
