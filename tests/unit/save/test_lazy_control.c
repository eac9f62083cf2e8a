/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that change at the worst moment, and the negative controls of the tests of such changes.
 * Lazy: between the call and the copy. Direct: between the checksum and the write. With the
 * library's check a lazy save fails. With the check replaced by one that sees nothing (linked with
 * --wrap) a mixture is committed. The comparison that the tests use finds it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "helpers/small_run.h"
#include "run/run.h"
#include "save/writer.h"

#define N_BYTES ((size_t)8 << 20)

bool __real_lazy_verify(struct save_image *m);
bool __wrap_lazy_verify(struct save_image *m);

int __real_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                       struct pawl_error *err);
int __wrap_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                       struct pawl_error *err);

int __real_pool_add(struct pool *pool, struct pool_group *g, pool_fn *fn, void *arg, struct pawl_error *err);
int __wrap_pool_add(struct pool *pool, struct pool_group *g, pool_fn *fn, void *arg, struct pawl_error *err);

void __real_sum_copy(struct sum_stream *sum, void *to, const void *from, size_t n);
void __wrap_sum_copy(struct sum_stream *sum, void *to, const void *from, size_t n);

static atomic_bool blind;
static size_t n_changed = N_BYTES; /* of the beginning of the tensor that change_one changes */
static pthread_t caller;
static atomic_uint n_verified_by_caller;
static struct pool *eager;          /* jobs that the caller adds to this pool have ended when pool_add returns */
static unsigned char *during_write; /* a tensor that has other values during every write */
static unsigned char *after_copy;   /* a tensor that changes when it has been copied */
static atomic_uint n_writes;

bool
__wrap_lazy_verify(struct save_image *m)
{
	if (pthread_equal(pthread_self(), caller))
		atomic_fetch_add(&n_verified_by_caller, 1);
	return atomic_load(&blind) ? false : __real_lazy_verify(m);
}

struct eager_job {
	pool_fn *fn;
	void *arg;
};

static void *
run_job(void *arg)
{
	struct eager_job *job = arg;

	job->fn(job->arg);
	return NULL;
}

int
__wrap_pool_add(struct pool *pool, struct pool_group *g, pool_fn *fn, void *arg, struct pawl_error *err)
{
	struct eager_job job = {fn, arg};
	pthread_t thread;

	if (!pthread_equal(pthread_self(), caller) || pool != eager)
		return __real_pool_add(pool, g, fn, arg, err);
	assert_int_equal(pthread_create(&thread, NULL, run_job, &job), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	return 0;
}

/* Its checksum has been made. */
int
__wrap_store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                   struct pawl_error *err)
{
	if (during_write)
		memset(during_write, 2, N_BYTES);
	int rc = __real_store_write(s, f, offset, ptr, len, err);

	if (during_write) {
		memset(during_write, 1, N_BYTES);
		atomic_fetch_add(&n_writes, 1);
	}
	return rc;
}

void
__wrap_sum_copy(struct sum_stream *sum, void *to, const void *from, size_t n)
{
	__real_sum_copy(sum, to, from, n);
	if (after_copy && from == after_copy)
		memset(after_copy, 2, N_BYTES);
}

/* Called at the end of the call, before the copy: changes one of two tensors. A late fence has the
 * same effect, but with a race. It reports no change, like a framework that does not count this
 * write. */
static size_t
change_one(void *arg, int later)
{
	if (!later)
		memset(arg, 2, n_changed);
	return SIZE_MAX;
}

static unsigned n_asked; /* times that count_late was asked about the tensors that are copied later */

/* Torch counts a write when it has ended. One that is under way is not counted at the first
 * question. */
static size_t
count_late(void *arg, int later)
{
	(void)arg;
	return later && ++n_asked > 1 ? 1 : SIZE_MAX;
}

static struct pawl_state *
describe(unsigned char *first, unsigned char *second)
{
	struct pawl_state *s = NULL;

	OK(pawl_state_new(&s, err));
	small_add(s, "first", PAWL_U8, N_BYTES, first);
	small_add(s, "second", PAWL_U8, N_BYTES, second);
	return s;
}

/* Saves a state of ones that is changed; returns the save's own error code. */
static int
save_and_change(struct small_run *r, pawl_changed_fn *changed, struct pawl_error *ret)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	unsigned char *first = malloc(N_BYTES), *second = malloc(N_BYTES);
	struct pawl_ticket *ticket = NULL;

	memset(first, 1, N_BYTES);
	memset(second, 1, N_BYTES);
	struct pawl_state *s = describe(first, second);

	opts.lazy = 1;
	opts.changed = changed;
	opts.changed_arg = second;
	OK(pawl_save(r->run, &opts, s, &ticket, err));
	pawl_state_free(s);
	const int rc = pawl_ticket_wait(ticket, -1, ret);

	pawl_ticket_free(ticket);
	free(first);
	free(second);
	return rc;
}

/* Does the newest checkpoint differ from the state at the call? */
static bool
is_mixed(struct small_run *r)
{
	unsigned char *first = calloc(1, N_BYTES), *second = calloc(1, N_BYTES);
	struct pawl_state *s = describe(first, second);
	bool mixed = false;

	OK(pawl_restore(r->run, NULL, s, NULL, err));
	for (size_t i = 0; i < N_BYTES; i++)
		mixed = mixed || first[i] != 1 || second[i] != 1;
	pawl_state_free(s);
	free(first);
	free(second);
	return mixed;
}

static void
test_negative_control_without_the_check_a_mixture_is_committed_and_found(void **state)
{
	struct small_run *r = *state;
	struct pawl_error err = {0};
	char ids[64];

	small_open(r);
	assert_int_equal(save_and_change(r, change_one, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "tensor 'second' changed before the lazy save"));
	assert_string_equal(small_ids(r->run, ids, sizeof(ids)), "");
	atomic_store(&blind, true);
	assert_int_equal(save_and_change(r, change_one, &err), 0);
	atomic_store(&blind, false);
	assert_string_not_equal(small_ids(r->run, ids, sizeof(ids)), "");
	assert_true(is_mixed(r));
}

/* It is changed like this while an operation that has just begun waits for a processor. */
static void
test_a_change_of_the_first_bytes_alone_is_found(void **state)
{
	struct small_run *r = *state;
	struct pawl_error err = {0};

	n_changed = 4;
	small_open(r);
	for (int i = 0; i < 3; i++) /* the other samples differ from save to save */
		assert_int_equal(save_and_change(r, change_one, &err), PAWL_EUSAGE);
	n_changed = N_BYTES;
}

static void
test_a_write_that_is_counted_after_the_copy_fails_the_save(void **state)
{
	struct small_run *r = *state;
	struct pawl_error err = {0};
	char ids[64];

	small_open(r);
	n_asked = 0;
	assert_int_equal(save_and_change(r, count_late, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "tensor 'second' changed before the lazy save"));
	assert_string_equal(small_ids(r->run, ids, sizeof(ids)), "");
}

/* Another thread may change a tensor at any time. The save writes the bytes that it has
 * checksummed, so no committed file is damaged. */
static void
test_a_direct_save_of_a_tensor_that_changes_and_changes_back_is_not_damaged(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	unsigned char *first = aligned_alloc(4096, N_BYTES), *second = aligned_alloc(4096, N_BYTES);
	struct pawl_findings *findings = NULL;

	memset(first, 1, N_BYTES);
	memset(second, 1, N_BYTES);
	struct pawl_state *s = describe(first, second);

	small_open(r);
	opts.mode = PAWL_MODE_DIRECT + 1;
	during_write = second;
	atomic_store(&n_writes, 0);
	OK(pawl_save(r->run, &opts, s, NULL, err));
	during_write = NULL;
	assert_true(atomic_load(&n_writes) > 0);
	OK(pawl_verify(r->run, 0, NULL, &findings, err));
	pawl_findings_free(findings);
	pawl_state_free(s);
	free(first);
	free(second);
}

/* By a thread, since the caller is in the call. */
static void
test_a_change_while_the_call_copies_fails_the_save(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	unsigned char *first = malloc(N_BYTES), *second = malloc(N_BYTES);
	const unsigned char at_once[] = {1, 0};
	struct pawl_error err = {0};
	char ids[64];

	memset(first, 1, N_BYTES);
	memset(second, 1, N_BYTES);
	struct pawl_state *s = describe(first, second);

	small_open(r);
	opts.lazy = 1;
	opts.at_once = at_once;
	after_copy = first;
	assert_int_equal(pawl_save(r->run, &opts, s, NULL, &err), PAWL_EUSAGE);
	after_copy = NULL;
	assert_int_equal(first[0], 2);
	assert_non_null(strstr(err.message, "tensor 'first' was changed by another thread"));
	assert_string_equal(small_ids(r->run, ids, sizeof(ids)), "");
	pawl_state_free(s);
	free(first);
	free(second);
}

static int
fill_ones(void *arg, void *dst, size_t nbytes, struct pawl_error *err)
{
	(void)arg, (void)err;
	memset(dst, 1, nbytes);
	return 0;
}

/* Its address may be one of a device. */
static void
test_a_lazy_save_does_not_read_a_tensor_that_the_caller_fills_in(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor far_tensor = PAWL_TENSOR_INIT;
	unsigned char *first = malloc(N_BYTES), *second = malloc(N_BYTES);
	const uint64_t n = N_BYTES;

	memset(first, 1, N_BYTES);
	memset(second, 1, N_BYTES);
	struct pawl_state *s = describe(first, second);

	far_tensor.dtype = PAWL_U8;
	far_tensor.ndim = 1;
	far_tensor.shape = &n;
	far_tensor.data = (void *)(uintptr_t)4096;
	far_tensor.fill = fill_ones;
	OK(pawl_state_set_tensor(s, "far", &far_tensor, err));
	small_open(r);
	opts.lazy = 1;
	OK(pawl_save(r->run, &opts, s, NULL, err));
	OK(pawl_wait(r->run, -1, err));
	pawl_state_free(s);
	free(first);
	free(second);
}

/* All other threads have copied before the call of a lazy save continues. The check that follows
 * the copy reads the state again and waits for devices. The caller must not run it. */
static void
test_the_caller_does_not_check_a_lazy_save(void **state)
{
	struct small_run *r = *state;
	unsigned char *first = calloc(1, N_BYTES), *second = calloc(1, N_BYTES);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;

	caller = pthread_self();
	for (uint32_t threads = 1; threads <= 4; threads++) {
		struct pawl_state *s = describe(first, second);

		r->opts.staging.copy_threads = threads;
		small_open(r);
		eager = r->run->saves.writer->copiers;
		atomic_store(&n_verified_by_caller, 0);
		opts.lazy = 1;
		OK(pawl_save(r->run, &opts, s, NULL, err));
		eager = NULL;
		OK(pawl_wait(r->run, -1, err));
		assert_int_equal(atomic_load(&n_verified_by_caller), 0);
		pawl_state_free(s);
	}
	free(first);
	free(second);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_caller_does_not_check_a_lazy_save, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(
			test_negative_control_without_the_check_a_mixture_is_committed_and_found, small_setup,
			small_teardown),
		cmocka_unit_test_setup_teardown(test_a_change_of_the_first_bytes_alone_is_found, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_write_that_is_counted_after_the_copy_fails_the_save, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(
			test_a_direct_save_of_a_tensor_that_changes_and_changes_back_is_not_damaged, small_setup,
			small_teardown),
		cmocka_unit_test_setup_teardown(test_a_change_while_the_call_copies_fails_the_save, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_lazy_save_does_not_read_a_tensor_that_the_caller_fills_in,
	                                        small_setup, small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
