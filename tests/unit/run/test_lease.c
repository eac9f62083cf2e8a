/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of lease.c: what happens between two checks of a process that takes a lease. A layer over a
 * store in memory lets another process act just before a request, once.
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
	struct store base;
	struct moment moments[3];
};

static int
look(struct store *base, const struct layer_call *call, struct pawl_error *err)
{
	struct watched *w = (struct watched *)base;
	(void)err;
	for (size_t i = 0; i < sizeof w->moments / sizeof w->moments[0]; i++) {
		struct moment *m = &w->moments[i];
		if (m->act != NULL && (call->op & m->op) != 0 && strcmp(call->what, m->key) == 0 && ++m->seen == m->nth)
			m->act(base->inner);
	}
	return 0;
}

static const struct store_ops watched_ops = {.enter = look};

static struct watched *
watch(struct bed *bed)
{
	struct watched *w = mem_zalloc(1, sizeof *w);
	assert_non_null(w);
	OK(bed, layer_init(&w->base, &watched_ops, bed->store, &bed->err));
	bed->store = &w->base;
	return w;
}

/* ---- time, which passes only while a process waits */

struct passing {
	struct bed *bed;
	int64_t now_ms, waited_ms;
	void (*act)(struct bed *bed, int64_t now_ms); /* what others do meanwhile */
	unsigned n_told;
	char told[sizeof((struct pawl_error *)0)->message];
	int answer; /* of on_wait */
};

static int64_t
passing_now(void *arg)
{
	return ((struct passing *)arg)->now_ms;
}

static void
passing_sleep(void *arg, int64_t ms)
{
	struct passing *p = arg;

	assert_true(ms > 0);
	p->now_ms += ms;
	p->waited_ms += ms;
	if (p->act != NULL)
		p->act(p->bed, p->now_ms);
}

static int
passing_tell(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err)
{
	struct passing *p = arg;

	assert_int_equal(waited_ms, p->waited_ms);
	p->n_told++;
	snprintf(p->told, sizeof p->told, "%s", why);
	return p->answer < 0 ? err_set(err, p->answer, "no patience") : 0;
}

static int
take_in(struct passing *p, int64_t wait_ms, struct lease **ret)
{
	const struct lease_opts opts = {.timeout_ms = TIMEOUT_MS,
	                                .wait_ms = wait_ms,
	                                .on_wait = passing_tell,
	                                .on_wait_arg = p,
	                                .now_ms = passing_now,
	                                .sleep_ms = passing_sleep,
	                                .clock_arg = p};

	return lease_take(p->bed->store, &opts, ret, &p->bed->err);
}

/* Waits as long as it takes, in no time. */
static int
take(struct bed *bed, struct lease **ret)
{
	struct passing p = {.bed = bed};

	return take_in(&p, 0, ret);
}

/* ---- what others do */

/* As a version without machine ids wrote it. */
static void
put_text_of(struct store *s, const char *key, const char *host, char token_digit, int64_t renewed_ns)
{
	struct buf text = {0};
	char token[33];
	memset(token, token_digit, 32);
	token[32] = '\0';
	buf_printf(&text,
	           "{\"pawl_lease\":1,\"host\":\"%s\",\"boot\":\"b\",\"pid\":1,\"start\":1,\"token\":\"%s\","
	           "\"renewed_unix_ns\":%lld}\n",
	           host, token, (long long)renewed_ns);
	assert_int_equal(store_put_bytes(s, key, text.ptr, text.len, 0, NULL), 0);
	buf_clear(&text);
}

static void
put_lease_of(struct store *s, const char *host, char token_digit)
{
	put_text_of(s, LEASE_KEY, host, token_digit, token_digit == 'a' ? 0 : clock_unix_ns());
}

/* The holder with the token of a's renews, at this time of its own clock. */
static void
renew_at(struct bed *bed, int64_t renewed_ns)
{
	put_text_of(bed->store, LEASE_KEY ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "far", 'a', renewed_ns);
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
	OK(bed, take(bed, &lease));
	assert_ours_and_drop(bed, lease);
	come_first(bed->store);
	struct passing p = {.bed = bed};
	FAILS(bed, take_in(&p, -1, &lease), PAWL_EBUSY, "on host 'newcomer'");
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
	OK(bed, take(bed, &lease));
	assert_true(w->moments[0].seen >= 1);
	assert_ours_and_drop(bed, lease);
}

/* In the middle of a takeover: the exclusive put decides between two processes that want the free
 * lease. */
static void
test_P10_what_is_given_up_during_a_takeover_is_taken_as_a_newcomer_would(void **state)
{
	struct bed *bed = *state;
	struct watched *w = watch(bed);
	struct lease *lease = NULL;
	leave_behind(bed->store);
	w->moments[0] = (struct moment){LAYER_PUT, TAKEOVER, 1, give_up, 0};
	OK(bed, take(bed, &lease));
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
	FAILS(bed, take(bed, &lease), PAWL_EBUSY, "has just taken the run");
	assert_int_equal(w->moments[1].seen, 2);
	assert_holder(bed, "newcomer");
	FAILS(bed, store_stat(bed->store, TAKEOVER, &entry, &bed->err), PAWL_ENOTFOUND, ""); /* for the next one */
}

/* A process that gets the lock file after another has finished with it finds a lease that lives. */
static void
test_P10_a_takeover_that_comes_second_leaves_the_first_ones_lease(void **state)
{
	struct bed *bed = *state;
	struct watched *w = watch(bed);
	struct lease *lease = NULL;
	leave_behind(bed->store);
	w->moments[0] = (struct moment){LAYER_PUT, TAKEOVER, 1, come_first, 0};
	FAILS(bed, take(bed, &lease), PAWL_EBUSY, "on host 'newcomer'");
	assert_holder(bed, "newcomer");
}

static void
lock_anew(struct bed *bed, int64_t now_ms)
{
	char text[32];
	snprintf(text, sizeof text, "%lld", (long long)now_ms);
	OK(bed, store_put_bytes(bed->store, TAKEOVER, text, strlen(text), 0, &bed->err));
}

static void
test_P10_while_another_takes_over_nobody_else_does(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	struct passing p = {.bed = bed, .act = lock_anew};
	leave_behind(bed->store);
	OK(bed, store_put_bytes(bed->store, TAKEOVER, "x", 1, STORE_EXCLUSIVE, &bed->err));
	FAILS(bed, take_in(&p, 10 * TIMEOUT_MS, &lease), PAWL_EBUSY, "taking over the run");
	assert_holder(bed, "silent");
}

static void
test_P10_who_has_lost_the_lease_is_told_by_whom(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	OK(bed, take(bed, &lease));
	come_first(bed->store);
	FAILS(bed, lease_check(lease, &bed->err), PAWL_ECONFLICT, "host 'newcomer'");
	lease_drop(lease);
	assert_holder(bed, "newcomer"); /* it is not ours to remove */
}

#define HOUR_NS 3600000000000

/* Whatever time the holder's clock showed: an hour ago, now, or in an hour. */
static void
test_P10_a_silent_lease_is_taken_over_after_the_timeout_by_ones_own_clock(void **state)
{
	struct bed *bed = *state;
	static const int64_t shown_ns[] = {-HOUR_NS, 0, HOUR_NS, 1000000 * HOUR_NS / 1000};
	for (size_t i = 0; i < sizeof shown_ns / sizeof shown_ns[0]; i++) {
		struct passing p = {.bed = bed};
		struct lease *lease = NULL;
		put_text_of(bed->store, LEASE_KEY, "far", 'a', clock_unix_ns() + shown_ns[i]);
		OK(bed, take_in(&p, 0, &lease));
		assert_in_range(p.waited_ms, TIMEOUT_MS, TIMEOUT_MS + 2000);
		assert_true(p.n_told > 10);
		assert_non_null(strstr(p.told, "process 1 on host 'far'"));
		assert_non_null(strstr(p.told, "timeouts.lease_wait_ms"));
		assert_ours_and_drop(bed, lease);
	}
}

/* The clock goes back by an hour with each renewal. */
static void
renew_backwards(struct bed *bed, int64_t now_ms)
{
	if (now_ms > 30000)
		renew_at(bed, 1000 * HOUR_NS - now_ms / 30000 * HOUR_NS);
}

static void
test_P10_a_lease_that_is_renewed_is_alive_whatever_its_clock_shows(void **state)
{
	struct bed *bed = *state;
	struct passing p = {.bed = bed, .act = renew_backwards};
	struct lease *lease = NULL;
	put_text_of(bed->store, LEASE_KEY, "far", 'a', 1000 * HOUR_NS);
	FAILS(bed, take_in(&p, 0, &lease), PAWL_EBUSY, "on host 'far', which is alive");
	assert_in_range(p.waited_ms, 30000, 33000);
	p = (struct passing){.bed = bed, .act = renew_backwards};
	FAILS(bed, take_in(&p, 10 * TIMEOUT_MS, &lease), PAWL_EBUSY, "which is alive");
	assert_int_equal(p.waited_ms, 10 * TIMEOUT_MS); /* and not a moment more */
	assert_holder(bed, "far");
}

static void
give_up_at_five(struct bed *bed, int64_t now_ms)
{
	struct store_entry entry;
	if (now_ms >= 5000 && store_stat(bed->store, LEASE_KEY, &entry, NULL) == 0)
		give_up(bed->store);
}

static void
test_P10_a_wait_ends_when_the_lease_is_free_or_the_caller_wants(void **state)
{
	struct bed *bed = *state;
	struct passing p = {.bed = bed, .act = give_up_at_five};
	struct lease *lease = NULL;
	leave_behind(bed->store);
	OK(bed, take_in(&p, 0, &lease));
	assert_in_range(p.waited_ms, 5000, 7000);
	assert_ours_and_drop(bed, lease);

	leave_behind(bed->store);
	p = (struct passing){.bed = bed};
	FAILS(bed, take_in(&p, -1, &lease), PAWL_EBUSY, "delete .lease there if that process is dead");
	assert_int_equal(p.waited_ms, 0);
	FAILS(bed, take_in(&p, 3000, &lease), PAWL_EBUSY, "Wait that long (timeouts.lease_wait_ms)");
	assert_int_equal(p.waited_ms, 3000);
	p = (struct passing){.bed = bed, .answer = PAWL_ECANCELLED};
	FAILS(bed, take_in(&p, 0, &lease), PAWL_ECANCELLED, "no patience");
	assert_int_equal(p.n_told, 1);
	assert_holder(bed, "silent");
}

/* Another machine with this host's name, another boot and a process number that is free here. */
static void
test_P10_a_machine_with_this_ones_name_is_not_taken_for_dead(void **state)
{
	struct bed *bed = *state;
	struct passing p = {.bed = bed};
	struct clock_process self;
	struct lease *lease = NULL;
	OK(bed, clock_this_process(&self, &bed->err));
	put_text_of(bed->store, LEASE_KEY, self.host, 'a', 0);
	FAILS(bed, take_in(&p, -1, &lease), PAWL_EBUSY, self.host);
	OK(bed, take_in(&p, 0, &lease)); /* but silent */
	assert_in_range(p.waited_ms, TIMEOUT_MS, TIMEOUT_MS + 2000);
	assert_ours_and_drop(bed, lease);
}

/* A clone with this machine's ids, booted on its own: that it renews since this machine was booted
 * shows that it is not an earlier boot of this one. */
static void
test_P10_a_clone_of_this_machine_is_not_taken_for_dead(void **state)
{
	struct bed *bed = *state;
	struct passing p = {.bed = bed};
	struct clock_process self;
	struct lease *lease = NULL;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	OK(bed, clock_this_process(&self, &bed->err));
	self.boot[0] = self.boot[0] == '0' ? '1' : '0';
	for (int i = 0; i < 2; i++) {
		text.len = 0;
		buf_printf(&text,
		           "{\"pawl_lease\":1,\"host\":\"%s\",\"boot\":\"%s\",\"machine\":\"%s\",\"pid\":1,\"start\":1,"
		           "\"token\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"renewed_unix_ns\":%lld}\n",
		           self.host, self.boot, self.machine, i == 0 ? (long long)clock_unix_ns() : 0LL);
		OK(bed, store_put_bytes(bed->store, LEASE_KEY, text.ptr, text.len, 0, &bed->err));
		if (i == 0)
			FAILS(bed, take_in(&p, -1, &lease), PAWL_EBUSY, self.host);
	}
	OK(bed, take_in(&p, 0, &lease)); /* as an earlier boot left it */
	struct clock_process own;
	OK(bed, clock_this_process(&own, &bed->err));
	if (clock_process_place(&self, &own) == CLOCK_REBOOTED)
		assert_true(p.waited_ms < TIMEOUT_MS);
	assert_ours_and_drop(bed, lease);
}

static void
test_P10_the_lock_of_a_takeover_that_crashed_goes_after_a_minute(void **state)
{
	struct bed *bed = *state;
	struct passing p = {.bed = bed};
	struct lease *lease = NULL;
	leave_behind(bed->store);
	OK(bed, store_put_bytes(bed->store, TAKEOVER, "x", 1, STORE_EXCLUSIVE, &bed->err));
	OK(bed, take_in(&p, 0, &lease));
	assert_in_range(p.waited_ms, TIMEOUT_MS + 60000, TIMEOUT_MS + 66000);
	assert_non_null(strstr(p.told, "taking over the run"));
	assert_ours_and_drop(bed, lease);
}

/* Another rank reads the lease of rank 0, whose clock is wrong: it counts as held until the watch
 * has seen silence. */
static void
test_P10_a_look_at_the_lease_of_another_needs_no_common_clock(void **state)
{
	struct bed *bed = *state;
	struct lease_watch watch = {0};
	const char *token = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	put_text_of(bed->store, LEASE_KEY, "far", 'a', 0);
	OK(bed, lease_look(bed->store, token, TIMEOUT_MS, &watch, &bed->err));
	watch.since_ms -= TIMEOUT_MS;
	FAILS(bed, lease_look(bed->store, token, TIMEOUT_MS, &watch, &bed->err), PAWL_ECONFLICT, "is gone");
	renew_at(bed, 5);
	OK(bed, lease_look(bed->store, token, TIMEOUT_MS, &watch, &bed->err));
	assert_int_equal(lease_is_held(bed->store, TIMEOUT_MS), 0);
	renew_at(bed, clock_unix_ns());
	assert_int_equal(lease_is_held(bed->store, TIMEOUT_MS), 1);
}

/* ---- a put that takes place, and whose answer is lost */

static struct {
	struct store_ops ops;
	const struct store_ops *straight;
	int answer;
	unsigned n_lost;
	bool is_down; /* after the first put, the store neither reads nor removes */
} lossy;

static int
lossy_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	TRY(lossy.straight->put(s, key, parts, n_parts, flags, err));
	return strcmp(key, LEASE_KEY) == 0 && lossy.n_lost++ == 0 ? err_set(err, lossy.answer, "no answer") : 0;
}

static int
lossy_open(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	return lossy.is_down && lossy.n_lost > 0 ? err_set(err, PAWL_ETRANSIENT, "down")
	                                         : lossy.straight->open(s, key, ret, ret_nbytes, err);
}

static int
lossy_remove(struct store *s, const char *key, struct pawl_error *err)
{
	return lossy.is_down && lossy.n_lost > 0 ? err_set(err, PAWL_ETRANSIENT, "down")
	                                         : lossy.straight->remove(s, key, err);
}

static void
lose_answer(struct bed *bed, int answer)
{
	memset(&lossy, 0, sizeof lossy);
	lossy.straight = bed->store->ops;
	lossy.ops = *lossy.straight;
	lossy.ops.put = lossy_put;
	lossy.ops.open = lossy_open;
	lossy.ops.remove = lossy_remove;
	lossy.answer = answer;
	bed->store->ops = &lossy.ops;
}

static void
test_P10_a_lease_that_was_put_without_an_answer_does_not_lock_its_process_out(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	lose_answer(bed, PAWL_ETRANSIENT);
	FAILS(bed, take(bed, &lease), PAWL_ETRANSIENT, "no answer");
	OK(bed, take(bed, &lease));
	assert_ours_and_drop(bed, lease);
	bed->store->ops = lossy.straight;
}

/* The lease that a store has taken, which was down right after. */
static void
lose_lease(struct bed *bed, int64_t timeout_ms)
{
	const struct lease_opts opts = {.timeout_ms = timeout_ms, .wait_ms = -1};
	struct lease *lease = NULL;

	lose_answer(bed, PAWL_ETRANSIENT);
	lossy.is_down = true;
	FAILS(bed, lease_take(bed->store, &opts, &lease, &bed->err), PAWL_ETRANSIENT, "no answer");
	bed->store->ops = lossy.straight;
	assert_holder(bed, "until_mono_ms");
}

static void
test_P10_a_lease_that_its_own_process_could_not_remove_counts_until_its_timeout(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	lose_lease(bed, 3600000);
	FAILS(bed, take(bed, &lease), PAWL_EBUSY, "this process has the run open already");
	OK(bed, store_remove(bed->store, LEASE_KEY, &bed->err));
	lose_lease(bed, 1);
	for (const int64_t then_ms = clock_mono_ms() + 1; clock_mono_ms() <= then_ms;)
		clock_sleep_ms(1);
	OK(bed, take(bed, &lease));
	assert_ours_and_drop(bed, lease);
}

static void
test_P10_a_lease_that_a_handle_of_this_process_renews_is_not_taken_over(void **state)
{
	const struct lease_opts opts = {.timeout_ms = 3600000, .wait_ms = -1};
	struct bed *bed = *state;
	struct lease *held = NULL, *lease = NULL;
	struct buf text = {0}, old = {0};
	char key[64];
	OK(bed, lease_take(bed->store, &opts, &held, &bed->err));
	OK(bed, store_get(bed->store, LEASE_KEY, 4096, &text, &bed->err));
	buf_printf(&old, "%.*s\"until_mono_ms\":1}\n", (int)(strstr(buf_str(&text), "\"until") - buf_str(&text)),
	           buf_str(&text));
	OK(bed, store_put_bytes(bed->store, LEASE_KEY, old.ptr, old.len, 0, &bed->err));
	snprintf(key, sizeof key, LEASE_KEY ".%s", lease_token(held));
	OK(bed, store_put_bytes(bed->store, key, text.ptr, text.len, 0, &bed->err)); /* as if renewed later */
	FAILS(bed, take(bed, &lease), PAWL_EBUSY, "this process has the run open already");
	OK(bed, store_remove(bed->store, key, &bed->err));
	OK(bed, take(bed, &lease));
	FAILS(bed, lease_check(held, &bed->err), PAWL_ECONFLICT, "");
	lease_drop(held);
	assert_ours_and_drop(bed, lease);
	buf_clear(&text);
	buf_clear(&old);
}

static void
test_P10_a_lease_that_exists_with_our_own_token_is_ours(void **state)
{
	struct bed *bed = *state;
	struct lease *lease = NULL;
	lose_answer(bed, PAWL_EEXISTS);
	OK(bed, take(bed, &lease));
	assert_ours_and_drop(bed, lease);
	bed->store->ops = lossy.straight;
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
		CASE(test_P10_a_silent_lease_is_taken_over_after_the_timeout_by_ones_own_clock),
		CASE(test_P10_a_lease_that_is_renewed_is_alive_whatever_its_clock_shows),
		CASE(test_P10_a_wait_ends_when_the_lease_is_free_or_the_caller_wants),
		CASE(test_P10_a_machine_with_this_ones_name_is_not_taken_for_dead),
		CASE(test_P10_a_clone_of_this_machine_is_not_taken_for_dead),
		CASE(test_P10_the_lock_of_a_takeover_that_crashed_goes_after_a_minute),
		CASE(test_P10_a_look_at_the_lease_of_another_needs_no_common_clock),
		CASE(test_P10_a_lease_that_was_put_without_an_answer_does_not_lock_its_process_out),
		CASE(test_P10_a_lease_that_its_own_process_could_not_remove_counts_until_its_timeout),
		CASE(test_P10_a_lease_that_a_handle_of_this_process_renews_is_not_taken_over),
		CASE(test_P10_a_lease_that_exists_with_our_own_token_is_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
