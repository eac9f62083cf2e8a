/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The negative control of the tests of lazy saves: a change between the call and the copy. With the library's check the
 * save fails; with the check replaced by one that sees nothing (linked with --wrap) a mixture is committed, and the
 * comparison that the tests use finds it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "helpers/small_run.h"

#define N_BYTES ((size_t)8 << 20)

struct save_image;
bool __real_lazy_verify(struct save_image *m);
bool __wrap_lazy_verify(struct save_image *m);

static atomic_bool blind;

bool
__wrap_lazy_verify(struct save_image *m)
{
	return atomic_load(&blind) ? false : __real_lazy_verify(m);
}

/* Called at the end of the call, before the copy: changes one of two tensors. What a late fence does, but without a
 * race. It reports no change, as a framework that does not count this write. */
static size_t
change_one(void *arg, int later)
{
	if (!later)
		memset(arg, 2, N_BYTES);
	return SIZE_MAX;
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
save_and_change(struct small_run *r, struct pawl_error *ret)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	unsigned char *first = malloc(N_BYTES), *second = malloc(N_BYTES);
	struct pawl_ticket *ticket = NULL;

	memset(first, 1, N_BYTES);
	memset(second, 1, N_BYTES);
	struct pawl_state *s = describe(first, second);

	opts.lazy = 1;
	opts.changed = change_one;
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
	assert_int_equal(save_and_change(r, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "tensor 'second' changed before the lazy save"));
	assert_string_equal(small_ids(r->run, ids, sizeof(ids)), "");
	atomic_store(&blind, true);
	assert_int_equal(save_and_change(r, &err), 0);
	atomic_store(&blind, false);
	assert_string_not_equal(small_ids(r->run, ids, sizeof(ids)), "");
	assert_true(is_mixed(r));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_negative_control_without_the_check_a_mixture_is_committed_and_found, small_setup,
			small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
