/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks find and leave in the folder where they meet. P11, P16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "helpers/hang.h"
#include "helpers/scratch.h"
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

/* ---- another rank */

struct joining {
	const char *root;
	struct pawl_fault *fault; /* or NULL */
	int64_t timeout_ms;
	int rc;
	struct pawl_error err;
	atomic_bool has_ended;
};

/* Thread: opens the run as rank 1 of 2. */
static void *
join_run(void *arg)
{
	struct joining *j = arg;
	const struct pawl_rank self = {.rank = 1, .world_size = 2};
	const struct rendezvous_opts opts = {
		.rank = &self, .timeout_ms = j->timeout_ms, .lease_timeout_ms = j->timeout_ms};
	struct store *store = NULL, *layer = NULL;
	struct rendezvous_pass pass = {0};
	struct rendezvous *m = NULL;

	j->rc = store_open(j->root, true, false, &store, &j->err);
	if (j->rc == 0 && j->fault) {
		j->rc = store_fault_wrap(store, j->fault, &layer, &j->err);
		store = layer ? layer : store;
	}
	if (j->rc == 0)
		j->rc = rendezvous_join(store, &opts, &pass, &m, &j->err);
	rendezvous_leave(m);
	store_close(store);
	atomic_store(&j->has_ended, true);
	return NULL;
}

static void
put_left_over(const char *root, const char *text)
{
	struct store *store = NULL;

	assert_int_equal(store_open(root, true, false, &store, NULL), 0);
	assert_int_equal(store_put_bytes(store, RENDEZVOUS_FOLDER "/attempt.json", text, strlen(text), 0, NULL), 0);
	store_close(store);
}

/* Rank 1 joins, although the n-th call of this operation fails. Rank 0 opens the run when rank 1
 * has made so many calls of it. */
static void
expect_joined(const char *root, const char *operation, uint64_t nth, uint64_t n_calls)
{
	const struct pawl_rank self = {.world_size = 2};
	const struct rendezvous_opts opts = {.rank = &self, .timeout_ms = HANG_MS, .lease_timeout_ms = HANG_MS};
	struct joining j = {.root = root, .timeout_ms = HANG_MS};
	struct rendezvous_pass pass = {0};
	struct store *store = NULL;
	struct rendezvous *m = NULL;
	pthread_t thread;

	memset(pass.run_id, 'a', 32);
	assert_int_equal(store_open(root, true, false, &store, NULL), 0);
	assert_int_equal(pawl_fault_new(operation, nth, PAWL_ETRANSIENT, 0, &j.fault, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, join_run, &j), 0);
	while (pawl_fault_calls(j.fault) < n_calls && !atomic_load(&j.has_ended))
		usleep(1000);
	assert_int_equal(rendezvous_host(store, &opts, &pass, &m, NULL), 0);
	pthread_join(thread, NULL);
	if (j.rc < 0)
		fail_msg("call %d of %s: %s", (int)nth, operation, j.err.message);
	rendezvous_leave(m);
	store_close(store);
	pawl_fault_free(j.fault);
}

static const char *const left_over[] = {"", "{\"pawl_attempt\":1,\"token\":\"0123", "{\"pawl_attempt\":2}\n"};

static void
test_P11_a_rank_joins_whatever_attempt_json_an_earlier_start_has_left(void **state)
{
	for (size_t i = 0; i < sizeof(left_over) / sizeof(*left_over); i++) {
		put_left_over(*state, left_over[i]);
		expect_joined(*state, "read", UINT64_MAX, 4);
	}
}

static void
test_P11_a_rank_joins_although_a_call_of_the_store_fails_once(void **state)
{
	put_left_over(*state, left_over[1]);
	expect_joined(*state, "read", 1, 4);
	expect_joined(*state, "put", 1, 2);
}

static void
test_P16_a_rank_that_is_not_admitted_in_time_reports_why_it_could_not_be(void **state)
{
	struct joining j = {.root = *state, .timeout_ms = 1};

	put_left_over(*state, left_over[1]);
	join_run(&j);
	assert_int_equal(j.rc, PAWL_ECORRUPT);
	assert_non_null(strstr(j.err.message, "rank 1 of 2 waited 0.0 s for rank 0 to open the run: "));
	assert_non_null(strstr(j.err.message, "attempt.json"));
}

static void
test_a_rank_that_may_not_write_does_not_wait(void **state)
{
	struct joining j = {.root = *state, .timeout_ms = HANG_MS};

	assert_int_equal(pawl_fault_new("put", 1, PAWL_EAUTH, 1, &j.fault, NULL), 0);
	join_run(&j);
	assert_int_equal(j.rc, PAWL_EAUTH);
	assert_int_equal(pawl_fault_calls(j.fault), 1);
	pawl_fault_free(j.fault);
}

static int
setup(void **state)
{
	char *root = malloc(256);

	*state = root;
	return scratch_make(root, 256, "rendezvous");
}

static int
teardown(void **state)
{
	scratch_remove(*state);
	free(*state);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P11_P16_a_verdict_can_still_be_read_when_rank_0_has_opened_the_run_again),
		cmocka_unit_test(test_P11_files_of_unknown_attempts_are_removed),
		TEST(test_P11_a_rank_joins_whatever_attempt_json_an_earlier_start_has_left),
		TEST(test_P11_a_rank_joins_although_a_call_of_the_store_fails_once),
		TEST(test_P16_a_rank_that_is_not_admitted_in_time_reports_why_it_could_not_be),
		TEST(test_a_rank_that_may_not_write_does_not_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
