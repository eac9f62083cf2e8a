/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of store_tiers.c: an object is read from the first store that has it, range by range where
 * it must be. What the first store did not give is remembered once, for the process that repairs
 * it.
 */
#include "helpers/store_bed.h"

#include "base/err.h"
#include "store/layers/tiers/store_tiers.h"

#define KEY "checkpoints/a/pack"
#define FAR_READS "read"

struct tiers_bed {
	struct bed near;
	struct store *first, *far[2], *tiers;
	struct pawl_fault *fault; /* of the first store's reads */
	struct pawl_error err;
};

static void
put(struct store *s, const char *key, const char *text)
{
	assert_int_equal(store_put_bytes(s, key, text, strlen(text), 0, NULL), 0);
}

static int
setup(void **state)
{
	struct tiers_bed *b = calloc(1, sizeof *b);
	assert_non_null(b);
	b->near.kind = BED_MEM;
	bed_open(&b->near);
	for (size_t i = 0; i < 2; i++)
		OK(b, store_open("mem:", true, false, &b->far[i], &b->err));
	OK(b, pawl_fault_new(FAR_READS, 1, PAWL_EIO, 1, &b->fault, &b->err));
	*state = b;
	return 0;
}

static int
teardown(void **state)
{
	struct tiers_bed *b = *state;
	store_close(b->tiers);
	bed_close(&b->near);
	for (size_t i = 0; i < 2; i++)
		store_close(b->far[i]);
	pawl_fault_free(b->fault);
	free(b);
	return 0;
}

static void
stack(struct tiers_bed *b)
{
	OK(b, store_tiers_new(b->near.store, 2, &b->tiers, &b->err));
	for (size_t i = 0; i < 2; i++)
		store_tiers_set(b->tiers, i, b->far[i]);
}

/* From here on the first store fails to read, again and again. */
static void
break_reads(struct tiers_bed *b)
{
	struct store *inner = b->near.store;
	OK(b, store_fault_wrap(inner, b->fault, &b->near.store, &b->err));
}

static void
assert_reads(struct tiers_bed *b, const char *key, const char *want)
{
	struct store_reader *r = NULL;
	uint64_t nbytes = 0;
	char got[64] = "";
	OK(b, store_open_reader(b->tiers, key, &r, &nbytes, &b->err));
	assert_int_equal(nbytes, strlen(want));
	OK(b, store_read(b->tiers, r, 0, got, (size_t)nbytes, &b->err));
	store_close_reader(b->tiers, r);
	assert_string_equal(got, want);
}

/* "a b": what is suspected now, in the order in which it was found out. It is forgotten by that. */
static void
assert_suspects(struct tiers_bed *b, const char *want)
{
	struct bump memory = {0};
	const char **keys = NULL;
	char found[256] = "";
	OK(b, store_tiers_take_suspects(b->tiers, &memory, &keys, &b->err));
	for (size_t len = 0; *keys != NULL; keys++)
		len += (size_t)snprintf(found + len, sizeof found - len, "%s%s", len > 0 ? " " : "", *keys);
	assert_string_equal(found, want);
	bump_clear(&memory);
}

static void
test_what_the_first_store_gives_is_nobodys_suspect(void **state)
{
	struct tiers_bed *b = *state;
	put(b->near.store, KEY, "near");
	put(b->far[0], KEY, "far!");
	stack(b);
	assert_reads(b, KEY, "near");
	assert_suspects(b, "");
}

static void
test_what_is_read_elsewhere_is_named_once_and_taken_once(void **state)
{
	struct tiers_bed *b = *state;
	put(b->far[0], KEY, "one");
	put(b->far[1], "checkpoints/a/other", "two");
	stack(b);
	assert_reads(b, KEY, "one");
	assert_reads(b, "checkpoints/a/other", "two");
	assert_reads(b, KEY, "one");
	assert_suspects(b, KEY " checkpoints/a/other");
	assert_suspects(b, "");
	assert_reads(b, KEY, "one"); /* it is still missing here, so it is reported again */
	assert_suspects(b, KEY);
}

static void
test_P1_a_range_that_cannot_be_read_here_is_read_elsewhere_and_suspected(void **state)
{
	struct tiers_bed *b = *state;
	put(b->near.store, KEY, "same");
	put(b->far[0], KEY, "other size");
	put(b->far[1], KEY, "same");
	break_reads(b);
	stack(b);
	assert_reads(b, KEY, "same");
	assert_suspects(b, KEY);
}

static void
test_what_no_store_has_is_not_found_and_no_suspect(void **state)
{
	struct tiers_bed *b = *state;
	struct store_reader *r = NULL;
	uint64_t nbytes = 0;
	stack(b);
	FAILS(b, store_open_reader(b->tiers, KEY, &r, &nbytes, &b->err), PAWL_ENOTFOUND, KEY);
	assert_suspects(b, "");
}

/* Each copy by its number, over all stores; one of another size is not a copy. */
static void
test_copies_are_asked_for_by_number(void **state)
{
	struct tiers_bed *b = *state;
	struct store_reader *r = NULL;
	uint64_t nbytes = 0;
	char got[8] = "";
	put(b->near.store, KEY, "near");
	put(b->far[0], KEY, "too long");
	put(b->far[1], KEY, "far2");
	stack(b);
	OK(b, store_open_reader(b->tiers, KEY, &r, &nbytes, &b->err));
	OK(b, store_read_copy(b->tiers, r, 0, 0, got, 4, &b->err));
	assert_string_equal(got, "near");
	FAILS(b, store_read_copy(b->tiers, r, 1, 0, got, 4, &b->err), PAWL_ECORRUPT, "found 8");
	OK(b, store_read_copy(b->tiers, r, 2, 0, got, 4, &b->err));
	assert_string_equal(got, "far2");
	FAILS(b, store_read_copy(b->tiers, r, 3, 0, got, 4, &b->err), PAWL_ENOTFOUND, "no more copies");
	store_close_reader(b->tiers, r);
	assert_suspects(b, KEY);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_what_the_first_store_gives_is_nobodys_suspect),
		CASE(test_what_is_read_elsewhere_is_named_once_and_taken_once),
		CASE(test_P1_a_range_that_cannot_be_read_here_is_read_elsewhere_and_suspected),
		CASE(test_what_no_store_has_is_not_found_and_no_suspect),
		CASE(test_copies_are_asked_for_by_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
