/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 finds and leaves in the folder where ranks meet. P11, P16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ranks/gather.h"
#include "ranks/rendezvous.h"

/* One attempt of a rank 0 without others, which is over when this returns. *ret_token is that of
 * its first save. */
static void
run_attempt(struct store *store, char ret_token[33])
{
	const struct pawl_rank self = {.world_size = 1};
	const struct rendezvous_opts opts = {.rank = &self, .timeout_ms = 1000, .lease_timeout_ms = 1000};
	struct rendezvous_pass pass = {0};
	struct pawl_error err = {0};
	struct rendezvous *m = NULL;

	memset(pass.run_id, 'a', 32);
	assert_int_equal(rendezvous_host(store, &opts, &pass, &m, &err), 0);
	rendezvous_save_token(m, 1, ret_token);
	rendezvous_leave(m);
}

static int
read_verdict(struct store *store, const char *token)
{
	char *name = NULL;
	struct pawl_error err = {0};

	return gather_read_verdict(store, token, &name, &err);
}

static void
test_P11_P16_a_verdict_can_still_be_read_when_rank_0_has_opened_the_run_again(void **state)
{
	const struct pawl_error why = {.code = PAWL_EMISMATCH, .message = "kept per rank by 3 ranks"};
	struct store *store = NULL;
	char first[33], second[33], third[33];

	(void)state;
	assert_int_equal(store_mem_open(&store, NULL), 0);
	run_attempt(store, first);
	gather_put_verdict(store, first, why.code, NULL, &why);
	run_attempt(store, second);
	assert_int_equal(read_verdict(store, first), PAWL_EMISMATCH);
	assert_int_equal(read_verdict(store, second), 0);
	run_attempt(store, third);
	assert_int_equal(read_verdict(store, first), 0);
	assert_string_not_equal(first, second);
	store_close(store);
}

static void
test_P11_files_of_unknown_attempts_are_removed(void **state)
{
	const struct pawl_error why = {.code = PAWL_EMISMATCH, .message = "old"};
	const char *join = RENDEZVOUS_FOLDER "/join-00001-0123456789abcdef0123456789abcdef.json";
	struct store *store = NULL;
	struct store_entry entry;
	char token[33] = "0123456789abcdef0123456789abcdef", first[33];

	(void)state;
	assert_int_equal(store_mem_open(&store, NULL), 0);
	gather_put_verdict(store, token, why.code, NULL, &why);
	assert_int_equal(store_put_bytes(store, join, "{}", 2, 0, NULL), 0);
	run_attempt(store, first);
	assert_int_equal(read_verdict(store, token), 0);
	assert_int_equal(store_stat(store, join, &entry, NULL), PAWL_ENOTFOUND);
	store_close(store);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P11_P16_a_verdict_can_still_be_read_when_rank_0_has_opened_the_run_again),
		cmocka_unit_test(test_P11_files_of_unknown_attempts_are_removed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
