/* SPDX-License-Identifier: Apache-2.0 */
/* device_pin: memory is registered in pieces, and works where it cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/mempolicy.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device_own.h"
#include "helpers/device_bed.h"

static void
open_bed(struct bed *b)
{
	bed_make(b, 1, 0, UINT64_MAX);
	OK(device_open(DRIVER_CUDA, false, &b->d, err));
}

static void
close_bed(struct bed *b)
{
	device_close(b->d);
	assert_int_equal(fake_live(), 0);
	bed_check(b);
}

static void
test_memory_is_registered_in_pieces(void **state)
{
	(void)state;
	struct bed b;
	struct device_pin *pin, *again;

	open_bed(&b);
	const long before = fake_live();

	b.d->piece_bytes = 4 * PAGE;
	OK(device_pin_new(b.d, 0, NULL, b.host, 10 * PAGE + 5, &pin, err));
	OK(device_pin_wait(pin, err));
	assert_int_equal(device_pin_ready(pin), 10 * PAGE + 5);
	/* the borders are multiples of 4 pages; and a context */
	const uint64_t skipped = (uint64_t)(uintptr_t)b.host % (4 * PAGE);

	assert_int_equal(fake_live() - before, (long)((skipped + 10 * PAGE + 5 + 4 * PAGE - 1) / (4 * PAGE)) + 1);
	OK(device_pin_new(b.d, 0, NULL, b.host, PAGE, &again, err));
	FAILS(PAWL_EEXISTS, "registered already", device_pin_wait(again, err));
	assert_int_equal(device_pin_ready(again), 0);
	device_pin_free(again);
	device_pin_free(pin);
	device_pin_free(NULL);
	FAILS(PAWL_EINTERNAL, "pages", device_pin_new(b.d, 0, NULL, b.host + 1, PAGE, &pin, err));
	close_bed(&b);
}

static void
test_a_refused_piece_leaves_the_rest_usable(void **state)
{
	(void)state;
	struct bed b;
	struct device_pin *pin;
	struct device_queue *q;
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	open_bed(&b);
	fake_set_registrable(6 * PAGE);
	b.d->piece_bytes = PAGE;
	OK(device_pin_new(b.d, 0, NULL, b.host, b.nbytes, &pin, err));
	FAILS(PAWL_EUNSUPPORTED, "cuMemHostRegister: CUDA_ERROR_NOT_PERMITTED (800)", device_pin_wait(pin, err));
	FAILS(PAWL_EUNSUPPORTED, "CUDA_ERROR_NOT_PERMITTED", device_pin_wait(pin, err));
	assert_int_equal(device_pin_ready(pin), 6 * PAGE);
	OK(device_queue_new(b.d, 0, &q, err));
	bed_copies(&b, DEVICE_TO_HOST, copies);
	bed_launch(&b, 1, bed_train);
	OK(device_queue_after(q, b.stream, err));
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
	OK(device_queue_wait(q, unit, err));
	assert_true(bed_host_is(&b, 1, 0, N_TENSORS));
	device_queue_free(q);
	device_pin_free(pin);
	close_bed(&b);
}

/* Two runs share one arena: the run that copies has not registered it. */
static void
test_copies_stay_within_pieces_of_another_handle(void **state)
{
	(void)state;
	struct bed b;
	struct device *other;
	struct device_pin *pin;
	struct device_queue *q;
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	open_bed(&b);
	OK(device_open(DRIVER_CUDA, false, &other, err));
	b.d->piece_bytes = other->piece_bytes = PAGE;
	OK(device_pin_new(other, 0, NULL, b.host, b.nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	OK(device_queue_new(b.d, 0, &q, err));
	bed_copies(&b, DEVICE_TO_HOST, copies);
	bed_launch(&b, 1, bed_train);
	OK(device_queue_after(q, b.stream, err));
	OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
	OK(device_queue_wait(q, unit, err));
	assert_true(bed_host_is(&b, 1, 0, N_TENSORS));
	device_queue_free(q);
	device_pin_free(pin);
	device_close(other);
	close_bed(&b);
}

/* Registered pages are not in a child; after the end of the registration they are again. */
static void
test_a_forked_child_has_no_registered_pages(void **state)
{
	(void)state;
	struct bed b;
	struct device_pin *pin;

	open_bed(&b);
	memset(b.host, 1, b.nbytes);
	b.d->piece_bytes = PAGE;
	OK(device_pin_new(b.d, 0, NULL, b.host, 2 * PAGE, &pin, err));
	OK(device_pin_wait(pin, err));
	for (int is_pinned = 1; is_pinned >= 0; is_pinned--) {
		const pid_t child = fork();
		unsigned char resident;
		int status;

		assert_true(child >= 0);
		if (child == 0) {
			bool is_there = mincore(b.host, PAGE, &resident) == 0;

			if (is_pinned)
				device_pin_free(pin);
			_exit(is_there == !is_pinned ? 0 : 1);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
		if (is_pinned)
			device_pin_free(pin);
	}
	close_bed(&b);
}

/* A copy under way holds the memory: the fake driver would report the misuse. */
static void
test_freeing_the_queue_first_is_enough(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 50; seed++) {
		struct bed b;
		struct device_pin *pin;
		struct device_queue *q;
		struct device_copy copies[N_TENSORS];
		uint64_t unit;

		bed_make(&b, seed, 0, UINT64_MAX);
		OK(device_open(DRIVER_CUDA, false, &b.d, err));
		OK(device_pin_new(b.d, 0, NULL, b.host, b.nbytes, &pin, err));
		if (seed % 2)
			OK(device_pin_wait(pin, err));
		OK(device_queue_new(b.d, 0, &q, err));
		bed_copies(&b, DEVICE_TO_HOST, copies);
		OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
		device_queue_free(q);
		device_pin_free(pin);
		close_bed(&b);
	}
}

static void
test_the_fake_driver_sees_memory_that_goes_too_early(void **state)
{
	(void)state;
	struct bed b;
	struct device_pin *pin;
	struct device_queue *q;
	struct device_copy copies[N_TENSORS];
	uint64_t unit;

	for (int what = 0; what < 2; what++) {
		open_bed(&b);
		OK(device_pin_new(b.d, 0, NULL, b.host, b.nbytes, &pin, err));
		OK(device_pin_wait(pin, err));
		OK(device_queue_new(b.d, 0, &q, err));
		bed_copies(&b, DEVICE_TO_HOST, copies);
		OK(device_queue_copy(q, DEVICE_TO_HOST, copies, N_TENSORS, &unit, err));
		if (what == 0)
			device_pin_free(pin);
		else
			fake_free(b.tensors[N_TENSORS - 1]);
		assert_non_null(fake_misuse());
		assert_non_null(strstr(fake_misuse(), "while a copy was under way"));
		device_queue_free(q);
		if (what == 1)
			device_pin_free(pin);
		device_close(b.d);
		munmap(b.host, b.nbytes);
	}
}

/* The kernel writes the addresses of devices in lower case, the driver in upper case. */
static void
test_memory_is_put_on_the_node_of_its_device(void **state)
{
	(void)state;
	static const char *const names[] = {"/ffff:01:00.0/numa_node", "/ffff:01:00.0", ""};
	char folder[] = "/tmp/pawl-bus-XXXXXX", path[64];
	struct bed b;
	struct device_pin *pin;
	int mode = -1;

	open_bed(&b);
	assert_non_null(mkdtemp(folder));
	b.d->bus = folder;
	assert_int_equal(device_node(b.d, 1), -1);
	snprintf(path, sizeof(path), "%s%s", folder, names[1]);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s%s", folder, names[0]);
	FILE *file = fopen(path, "w");

	assert_true(file && fputs("0\n", file) >= 0 && fclose(file) == 0);
	assert_int_equal(device_node(b.d, 1), 0);
	OK(device_pin_new(b.d, 1, NULL, b.host, b.nbytes, &pin, err));
	OK(device_pin_wait(pin, err));
	if (syscall(SYS_get_mempolicy, &mode, NULL, 0, b.host, MPOL_F_ADDR) == 0) /* a container may forbid it */
		assert_int_equal(mode, MPOL_PREFERRED);
	device_pin_free(pin);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", folder, names[i]);
		assert_int_equal(remove(path), 0);
	}
	close_bed(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_registered_in_pieces),
		cmocka_unit_test(test_a_refused_piece_leaves_the_rest_usable),
		cmocka_unit_test(test_copies_stay_within_pieces_of_another_handle),
		cmocka_unit_test(test_a_forked_child_has_no_registered_pages),
		cmocka_unit_test(test_freeing_the_queue_first_is_enough),
		cmocka_unit_test(test_the_fake_driver_sees_memory_that_goes_too_early),
		cmocka_unit_test(test_memory_is_put_on_the_node_of_its_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
