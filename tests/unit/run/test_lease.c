/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of lease.c: what happens between two looks of whoever takes a lease. A layer over a store in memory lets
 * another process act just before a request, once.
 */
#include "helpers/store_bed.h"

#include "base/err.h"
#include "run/lease.h"
#include "store/layers/layer.h"

#define TAKEOVER ".lease.takeover"
#define TIMEOUT_MS 120000

/* Before the n-th request of this kind for this key, `act` is called with the store itself. */
struct moment {
	enum layer_op op;
	const char *key;
	unsigned nth;
	void (*act)(struct store *inner);
	unsigned seen;
};

struct watched {
	struct layer layer;
	struct moment moments[3];
};

static int
look(struct layer *layer, const struct layer_call *call, struct pawl_error *err)
{
	struct watched *w = (struct watched *)layer;
	(void)err;
	for (size_t i = 0; i < sizeof w->moments / sizeof w->moments[0]; i++) {
		struct moment *m = &w->moments[i];
		if (m->act != NULL && (call->op & m->op) != 0 && strcmp(call->what, m->key) == 0 && ++m->seen == m->nth)
			m->act(layer->inner);
	}
	return 0;
}

static struct watched *
watch(struct bed *bed)
{
	struct watched *w = mem_zalloc(1, sizeof *w);
	assert_non_null(w);
	OK(bed, layer_init(&w->layer, bed->store, &bed->err));
	w->layer.enter = look;
	bed->store = &w->layer.base;
	return w;
}

/* ---- what others do */

static void
put_lease_of(struct store *s, const char *host, char token_digit)
{
	struct buf text = {0};
	char token[33];
	memset(token, token_digit, 32);
	token[32] = '\0';
	buf_printf(&text,
	           "{\"pawl_lease\":1,\"host\":\"%s\",\"boot\":\"b\",\"pid\":1,\"start\":1,\"token\":\"%s\","
	           "\"renewed_unix_ns\":%lld}\n",
	           host, token, (long long)(token_digit == 'a' ? 0 : clock_unix_ns()));
	assert_int_equal(store_put_bytes(s, LEASE_KEY, text.ptr, text.len, 0, NULL), 0);
	buf_clear(&text);
}

/* Of a host that has not been heard of for long. */
static void
leave_behind(struct store *s)
{
	put_lease_of(s, "silent", 'a');
}

static void
come_first(struct store *s)
{
	put_lease_of(s, "newcomer", 'b');
}

static void
give_up(struct store *s)
{
	assert_int_equal(store_remove(s, LEASE_KEY, NULL), 0);
}

static void
assert_holder(struct bed *bed, const char *host)
{
	struct buf text = {0};
	OK(bed, store_get(bed->store, LEASE_KEY, 4096, &text, &bed->err));
	if (strstr(buf_str(&text), host) == NULL)
		fail_msg("expected a lease of %s, found %s", host, buf_str(&text));
	buf_clear(&text);
}

static void
assert_ours_and_drop(struct bed *bed, struct lease *lease)
{
	struct store_entry entry;
	OK(bed, lease_check(lease, &bed->err));
	assert_int_equal(lease_is(bed->store, lease_token(lease)), 1);
	FAILS(bed, store_stat(bed->store, TAKEOVER, &entry, &bed->err), PAWL_ENOTFOUND, "");
	lease_drop(lease);
	FAILS(bed, store_stat(bed->store, LEASE_KEY, &entry, &bed->err), PAWL_ENOTFOUND, "");
}

/* ---- tests */

static void
test_P10_a_silent_holder_is_succeeded_and_a_living_one_is_not(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	leave_behind(bed->store);
	OK(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err));
	assert_ours_and_drop(bed, lease);
	come_first(bed->store);
	FAILS(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err), PAWL_EBUSY, "on host 'newcomer'");
	assert_holder(bed, "newcomer");
}

static void
test_P10_a_lease_that_is_given_up_between_two_looks_is_free(void **state)
{
	struct bed *bed = *state;
	struct watched *w = watch(bed);
	struct lease *lease = NULL;
	leave_behind(bed->store);
	w->moments[0] = (struct moment){LAYER_READ | LAYER_OTHER, LEASE_KEY, 1, give_up, 0};
	OK(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err));
	assert_true(w->moments[0].seen >= 1);
	assert_ours_and_drop(bed, lease);
}

/* In the middle of a takeover: the exclusive put decides between the two who want what is free now. */
static void
test_P10_what_is_given_up_during_a_takeover_is_taken_as_a_newcomer_would(void **state)
{
	struct bed *bed = *state;
	struct watched *w = watch(bed);
	struct lease *lease = NULL;
	leave_behind(bed->store);
	w->moments[0] = (struct moment){LAYER_PUT, TAKEOVER, 1, give_up, 0};
	OK(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err));
	assert_int_equal(w->moments[0].seen, 1);
	assert_ours_and_drop(bed, lease);
}

static void
test_P10_a_newcomer_who_is_faster_during_a_takeover_keeps_its_lease(void **state)
{
	struct bed *bed = *state;
	struct watched *w = watch(bed);
	struct store_entry entry;
	struct lease *lease = NULL;
	leave_behind(bed->store);
	w->moments[0] = (struct moment){LAYER_PUT, TAKEOVER, 1, give_up, 0};
	w->moments[1] = (struct moment){LAYER_PUT, LEASE_KEY, 2, come_first, 0}; /* refused, and now */
	FAILS(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err), PAWL_EBUSY, "has just taken the run");
	assert_int_equal(w->moments[1].seen, 2);
	assert_holder(bed, "newcomer");
	FAILS(bed, store_stat(bed->store, TAKEOVER, &entry, &bed->err), PAWL_ENOTFOUND, ""); /* for the next one */
}

/* Who has got the lock file after another has finished with it finds a lease that lives. */
static void
test_P10_a_takeover_that_comes_second_leaves_the_first_ones_lease(void **state)
{
	struct bed *bed = *state;
	struct watched *w = watch(bed);
	struct lease *lease = NULL;
	leave_behind(bed->store);
	w->moments[0] = (struct moment){LAYER_PUT, TAKEOVER, 1, come_first, 0};
	FAILS(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err), PAWL_EBUSY, "on host 'newcomer'");
	assert_holder(bed, "newcomer");
}

static void
test_P10_while_another_takes_over_nobody_else_does(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	leave_behind(bed->store);
	OK(bed, store_put_bytes(bed->store, TAKEOVER, "x", 1, STORE_EXCLUSIVE, &bed->err));
	FAILS(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err), PAWL_EBUSY, "taking the run over just now");
	assert_holder(bed, "silent");
}

static void
test_P10_who_has_lost_the_lease_is_told_by_whom(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	OK(bed, lease_take(bed->store, TIMEOUT_MS, &lease, &bed->err));
	come_first(bed->store);
	FAILS(bed, lease_check(lease, &bed->err), PAWL_ECONFLICT, "host 'newcomer'");
	lease_drop(lease);
	assert_holder(bed, "newcomer"); /* it is not ours to remove */
}

static int
setup(void **state)
{
	struct bed *bed = calloc(1, sizeof *bed);
	assert_non_null(bed);
	bed->kind = BED_MEM;
	bed_open(bed);
	*state = bed;
	return 0;
}

static int
teardown(void **state)
{
	struct bed *bed = *state;
	bed_close(bed);
	free(bed);
	return 0;
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_P10_a_silent_holder_is_succeeded_and_a_living_one_is_not),
		CASE(test_P10_a_lease_that_is_given_up_between_two_looks_is_free),
		CASE(test_P10_what_is_given_up_during_a_takeover_is_taken_as_a_newcomer_would),
		CASE(test_P10_a_newcomer_who_is_faster_during_a_takeover_keeps_its_lease),
		CASE(test_P10_a_takeover_that_comes_second_leaves_the_first_ones_lease),
		CASE(test_P10_while_another_takes_over_nobody_else_does),
		CASE(test_P10_who_has_lost_the_lease_is_told_by_whom),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
