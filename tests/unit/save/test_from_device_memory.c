/* SPDX-License-Identifier: Apache-2.0 */
/* from_device: on which memory nodes the staging memory of several devices is, that a slow device
 * does not hold up the others, and what happens where the kernel cannot use registered memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "helpers/device_run.h"
#include "helpers/device_nodes.h"
#include "layout/plan.h"
#include "save/arena.h"
#include "save/ring.h"
#include "save/save.h"
#include "save/writer.h"

#define ROWS 20000u       /* of 1,024 bytes, on device 1 */
#define OTHER_ROWS 10000u /* of 2,000 bytes, on device 2 */

/* A run without checkpoints. Both tensors are several units long: the more threads write, the
 * more. */
static void
begin_with(struct device_run *d, struct small_run *r, uint64_t seed, uint32_t writing_threads)
{
	static char root[160];
	static unsigned n;

	snprintf(root, sizeof(root), "%s/%u", r->root, ++n);
	r->opts.root = root;
	device_make(d, r, seed, ROWS);
	device_resize(d, D_OTHER, OTHER_ROWS);
	device_nodes_reset();
	r->opts.io.threads = writing_threads;
	r->opts.staging.copy_threads = 2;
	small_open(r);
	device_launch(d, 1, false);
}

static void
begin(struct device_run *d, struct small_run *r, uint64_t seed)
{
	begin_with(d, r, seed, 1);
}

static void
prepare(struct device_run *d)
{
	struct pawl_state *s = device_state(d);

	OK(pawl_prepare(d->r->run, s, err));
	pawl_state_free(s);
}

/* Are all huge pages inside of a tensor's place on the node? */
static size_t
count_on_node(const struct device_run *d, uint64_t nbytes, int node)
{
	const struct plan *plan = d->r->run->saves.writer->plan;
	const char *region = device_nodes.calls[0].ptr;
	size_t n = 0;

	assert_non_null(plan);
	for (size_t k = 0; k < plan->n_packs; k++)
		for (size_t j = 0; j < plan->packs[k].n_slots; j++) {
			const struct plan_pack *p = &plan->packs[k];
			const uint64_t from = p->image_offset + p->header.len + p->slots[j].begin;
			uint64_t at = (from + ARENA_STEP_BYTES - 1) / ARENA_STEP_BYTES * ARENA_STEP_BYTES;

			if (p->slots[j].nbytes != nbytes)
				continue;
			for (; at + ARENA_STEP_BYTES <= from + nbytes; at += ARENA_STEP_BYTES, n++)
				if (device_nodes_of(region + at) != node)
					fail_msg("byte %zu is on node %d, not on %d", (size_t)at,
					         device_nodes_of(region + at), node);
		}
	return n;
}

static void
test_the_memory_of_each_device_is_on_its_node(void **state)
{
	struct small_run *r = *state;

	for (int is_prepared = 0; is_prepared < 2; is_prepared++) {
		struct device_run d;

		begin(&d, r, 1);
		if (is_prepared) {
			prepare(&d);
			device_wait_registered(&d);
		}
		OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
		OK(pawl_wait(r->run, -1, err));
		device_wait_registered(&d);
		assert_true(count_on_node(&d, ROWS * 1024, 0) > 7);
		assert_true(count_on_node(&d, OTHER_ROWS * 2000, 1) > 7);
		assert_int_equal(device_nodes.n, 2);
		assert_true(device_saved_is(&d, 1));
		device_check(&d);
	}
}

static void
test_devices_on_one_node_share_its_memory(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	begin(&d, r, 2);
	device_nodes.are_equal = true;
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	device_wait_registered(&d);
	assert_int_equal(device_nodes.n, 1);
	assert_int_equal(device_nodes.calls[0].n, pawl_arena_bytes(r->run->saves.arena));
	assert_int_equal(device_nodes.calls[0].node, 0);
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

/* ---- rings ---- */

static struct {
	pthread_mutex_t lock;
	struct taken {
		const char *slot;
		int node;
	} slots[64];
	size_t n;
} taken = {.lock = PTHREAD_MUTEX_INITIALIZER};

char *__real_ring_take_slot(struct save_image *m, size_t n, int node);
char *__wrap_ring_take_slot(struct save_image *m, size_t n, int node);

char *
__wrap_ring_take_slot(struct save_image *m, size_t n, int node)
{
	char *slot = __real_ring_take_slot(m, n, node);

	pthread_mutex_lock(&taken.lock);
	if (node >= 0 && taken.n < COUNT(taken.slots))
		taken.slots[taken.n++] = (struct taken){slot, node};
	pthread_mutex_unlock(&taken.lock);
	return slot;
}

/* The ring has four slots on each node, and no device needs more. */
static void
test_a_unit_takes_a_slot_on_the_node_of_its_device(void **state)
{
	struct small_run *r = *state;

	for (int mode = PAWL_MODE_RING; mode <= PAWL_MODE_DIRECT; mode++)
		for (int is_prepared = 0; is_prepared < 2; is_prepared++) {
			struct device_run d;
			size_t n_on[2] = {0, 0};

			r->opts.staging.mode = mode;
			begin(&d, r, 3);
			taken.n = 0;
			if (is_prepared) {
				prepare(&d);
				device_wait_registered(&d);
			}
			OK(device_save(&d, false, mode, err));
			OK(pawl_wait(r->run, -1, err));
			device_wait_registered(&d);
			for (size_t i = 0; i < taken.n; i++) {
				assert_int_equal(device_nodes_of(taken.slots[i].slot), taken.slots[i].node);
				n_on[taken.slots[i].node]++;
			}
			assert_true(n_on[0] >= 3 && n_on[1] >= 3);
			assert_true(device_saved_is(&d, 1));
			device_check(&d);
		}
}

/* With one slot in all there is none to choose. */
static void
test_a_unit_takes_any_slot_if_it_must(void **state)
{
	struct small_run *r = *state;
	struct device_run d;

	r->opts.staging.ring_bytes = SAVE_UNIT_BYTES;
	begin(&d, r, 4);
	OK(device_save(&d, false, PAWL_MODE_RING, err));
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

struct saving {
	struct device_run *d;
	int mode, rc;
	struct pawl_error error;
};

static void *
save_in_thread(void *arg)
{
	struct saving *s = arg;

	s->rc = device_save(s->d, false, s->mode, &s->error);
	return NULL;
}

/* One device does nothing until the other one's tensors are copied: else the test would hang. */
static void
test_a_slow_device_does_not_hold_up_the_others(void **state)
{
	struct small_run *r = *state;

	for (int mode = PAWL_MODE_RING; mode <= PAWL_MODE_DIRECT; mode++)
		for (int slow = 1; slow <= 2; slow++) {
			struct device_run d;
			struct saving s = {.d = &d, .mode = mode};
			pthread_t thread;

			begin(&d, r, 5);
			fake_hold(d.streams[slow], true);
			assert_int_equal(pthread_create(&thread, NULL, save_in_thread, &s), 0);
			fake_wait_copied(3 - slow, slow == 1 ? OTHER_ROWS * 2000 : ROWS * 1024);
			fake_hold(d.streams[slow], false);
			assert_int_equal(pthread_join(thread, NULL), 0);
			OK((*err = s.error, s.rc));
			OK(pawl_wait(r->run, -1, err));
			assert_true(device_saved_is(&d, 1));
			device_check(&d);
		}
}

static atomic_size_t n_groups;

int __real_device_turns_init(struct device_turns *t, size_t n, size_t groups, const size_t *group_of,
                             struct pawl_error *err);
int __wrap_device_turns_init(struct device_turns *t, size_t n, size_t groups, const size_t *group_of,
                             struct pawl_error *err);

int
__wrap_device_turns_init(struct device_turns *t, size_t n, size_t groups, const size_t *group_of,
                         struct pawl_error *err)
{
	atomic_store(&n_groups, groups);
	return __real_device_turns_init(t, n, groups, group_of, err);
}

/* What comes early waits in memory, so units of a ring are taken in the order of the file. */
static void
test_P16_a_compressed_ring_keeps_the_order_of_the_file(void **state)
{
	struct small_run *r = *state;

	r->opts.packs.compression = "zst";
	for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_DIRECT; mode++) {
		struct device_run d;

		begin(&d, r, 8);
		OK(device_save(&d, false, mode, err));
		assert_int_equal(atomic_load(&n_groups), mode == PAWL_MODE_SNAPSHOT ? 2 : 1);
		OK(pawl_wait(r->run, -1, err));
		assert_true(device_saved_is(&d, 1));
		device_check(&d);
	}
}

/* ---- what is written ---- */

static atomic_int refuses; /* 1 = to write from registered memory, 2 = from any */
static atomic_long n_refused;
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	size_t nbytes;
} written = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

ssize_t __real_pwrite64(int fd, const void *ptr, size_t n, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *ptr, size_t n, off_t offset);

ssize_t
__wrap_pwrite64(int fd, const void *ptr, size_t n, off_t offset)
{
	const int mode = atomic_load(&refuses);

	if (!mode || (mode == 1 && !fake_is_registered(ptr))) {
		const ssize_t done = __real_pwrite64(fd, ptr, n, offset);

		pthread_mutex_lock(&written.lock);
		written.nbytes += done > 0 ? (size_t)done : 0;
		pthread_cond_broadcast(&written.changed);
		pthread_mutex_unlock(&written.lock);
		return done;
	}
	atomic_fetch_add(&n_refused, 1);
	errno = EFAULT;
	return -1;
}

/* There are more units than events, so neighbours share one. The devices stop after a 20th of all
 * bytes, until half of these are written. A save that waits for all copies hangs here. */
static void
test_writing_begins_when_the_first_units_are_copied(void **state)
{
	struct small_run *r = *state;
	struct device_run d;
	struct saving s = {.d = &d, .mode = PAWL_MODE_SNAPSHOT};
	pthread_t thread;

	r->opts.packs.block_bytes = 64 << 10;
	begin_with(&d, r, 9, 64);
	prepare(&d);
	device_wait_registered(&d);
	written.nbytes = 0;
	fake_limit_copies(1 << 20);
	assert_int_equal(pthread_create(&thread, NULL, save_in_thread, &s), 0);
	pthread_mutex_lock(&written.lock);
	while (written.nbytes < 512 << 10)
		pthread_cond_wait(&written.changed, &written.lock);
	pthread_mutex_unlock(&written.lock);
	assert_true(r->run->saves.writer->active->image.n_units > r->run->saves.writer->devices.most_units);
	fake_limit_copies(SIZE_MAX);
	assert_int_equal(pthread_join(thread, NULL), 0);
	OK((*err = s.error, s.rc));
	OK(pawl_wait(r->run, -1, err));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

static void
test_registered_memory_that_cannot_be_written_from_works(void **state)
{
	struct small_run *r = *state;

	for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_DIRECT; mode++) {
		struct device_run d;

		begin(&d, r, 6);
		OK(device_save(&d, false, mode, err)); /* takes memory, which is registered then */
		OK(pawl_wait(r->run, -1, err));
		device_wait_registered(&d);
		device_launch(&d, 2, false);
		atomic_store(&n_refused, 0);
		atomic_store(&refuses, 1);
		OK(device_save(&d, false, mode, err));
		OK(pawl_wait(r->run, -1, err));
		atomic_store(&refuses, 0);
		assert_true(atomic_load(&n_refused) > 4);
		assert_true(device_saved_is(&d, 2));
		device_check(&d);
	}
}

/* The control: other memory does not help either. */
static void
test_memory_that_no_call_can_write_from_fails_the_save(void **state)
{
	struct small_run *r = *state;
	struct device_run d;
	struct pawl_error why = {0};

	r->opts.retention.num_to_keep = 1;
	begin(&d, r, 7);
	OK(device_save(&d, false, PAWL_MODE_SNAPSHOT, err));
	OK(pawl_wait(r->run, -1, err));
	fake_run();
	device_launch(&d, 2, false);
	atomic_store(&refuses, 2);
	if (device_save(&d, false, PAWL_MODE_SNAPSHOT, &why) == 0) /* it may fail before it returns */
		(void)pawl_wait(r->run, -1, &why);
	atomic_store(&refuses, 0);
	assert_int_equal(why.code, PAWL_EIO);
	assert_non_null(strstr(why.message, "Bad address"));
	assert_true(device_saved_is(&d, 1));
	device_check(&d);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_memory_of_each_device_is_on_its_node, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_devices_on_one_node_share_its_memory, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_unit_takes_a_slot_on_the_node_of_its_device, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_unit_takes_any_slot_if_it_must, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_a_slow_device_does_not_hold_up_the_others, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_P16_a_compressed_ring_keeps_the_order_of_the_file, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_writing_begins_when_the_first_units_are_copied, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_registered_memory_that_cannot_be_written_from_works, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_memory_that_no_call_can_write_from_fails_the_save, small_setup,
	                                        small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
