/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine and the layer of docs/how-to/extending.md, and what the border does for stores that
 * have only the required operations. test_store.c is linked in: its suite runs over the examples.
 */
#include "helpers/store_bed.h"

#include "base/err.h"
#include "extending/store_shelf.h"
#include "store/registry.h"

int conformance_open(const char *name, int (*open)(struct store **ret, struct pawl_error *err));

static int
open_shelf(struct store **ret, struct pawl_error *err)
{
	return store_shelf_open("shelf:", true, ret, err);
}

static int
open_masked_shelf(struct store **ret, struct pawl_error *err)
{
	struct store *s;
	TRY(open_shelf(&s, err));
	return store_mask_wrap(s, 0x5a, ret, err);
}

/* Below a retry layer and a rate layer. */
static int
open_wrapped_shelf(struct store **ret, struct pawl_error *err)
{
	struct store *s;
	TRY(open_masked_shelf(&s, err));
	TRY(store_retry_wrap(s, &(struct store_retry){0}, &s, err));
	return store_rate_wrap(s, &(struct store_rate){.write_bytes_per_second = UINT64_C(1) << 40}, ret, err);
}

/* A layer that changes bytes changes all of them: nothing passes it by. */
static void
test_a_layer_with_its_own_bytes_is_never_passed_by(void **state)
{
	(void)state;
	struct bed bed = {.kind = BED_OTHER, .open = open_masked_shelf};
	struct store_reader *r;
	PAWL_CLEAN(buf_clear) struct buf inner = {0};
	char tag[STORE_TAG_BYTES];

	bed_open(&bed);
	put_text(&bed, "a", "abc");
	OK(&bed, store_append(bed.store, "a", "def", 3, &bed.err));
	OK(&bed, store_pointer(bed.store, "p", "a", &bed.err));
	assert_text(&bed, "a", "abcdef");
	assert_text(&bed, "p", "a\n");
	OK(&bed, store_get(bed.store->inner, "a", 10, &inner, &bed.err));
	assert_memory_equal(inner.ptr, "\x3b\x38\x39\x3e\x3f\x3c", 6);
	OK(&bed, store_open_reader(bed.store, "a", &r, NULL, &bed.err));
	assert_false(store_is_cached(bed.store, r, 0, 6));
	store_close_reader(bed.store, r);
	FAILS(&bed, store_get_tagged(bed.store, "a", 10, &inner, tag, &bed.err), PAWL_EUNSUPPORTED, "one version");
	FAILS(&bed, store_put_if(bed.store, "a", "tag", "x", 1, &bed.err), PAWL_EUNSUPPORTED, "one version");
	bed_close(&bed);
}

/* An object too large for memory is moved in pieces. */
static void
test_move_without_an_engine_s_own_copies_a_large_object(void **state)
{
	(void)state;
	struct bed bed = {.kind = BED_OTHER, .open = open_shelf};
	struct bytes b = bytes_new(((size_t)8 << 20) + 5, 0, 3);

	bed_open(&bed);
	put_text(&bed, "to", "old");
	write_bytes(&bed, "from", &b, b.len, NULL);
	OK(&bed, store_move(bed.store, "from", "to", &bed.err));
	assert_bytes(&bed, "to", &b);
	assert_missing(&bed, "from");
	free(b.memory);
	bed_close(&bed);
}

/* A store without the writing calls. */
static void
test_a_store_that_only_reads_refuses_each_change(void **state)
{
	(void)state;
	struct bed bed = {.kind = BED_MEM};
	struct store_file *f;
	const struct store_create opts = {.nbytes = 1};

	bed_open(&bed);
	put_text(&bed, "a", "1");
	const struct store_ops *all = bed.store->ops;
	const struct store_ops reads = {.open = all->open,
	                                .read = all->read,
	                                .close_reader = all->close_reader,
	                                .stat = all->stat,
	                                .list = all->list};
	bed.store->ops = &reads;
	FAILS(&bed, store_put_bytes(bed.store, "b", "2", 1, 0, &bed.err), PAWL_EREADONLY, "b: mem: can only be read");
	FAILS(&bed, store_create(bed.store, "b", &opts, &f, &bed.err), PAWL_EREADONLY, "b");
	FAILS(&bed, store_append(bed.store, "a", "2", 1, &bed.err), PAWL_EREADONLY, "a");
	FAILS(&bed, store_pointer(bed.store, "b", "a", &bed.err), PAWL_EREADONLY, "b");
	FAILS(&bed, store_link(bed.store, "a", "b", &bed.err), PAWL_EREADONLY, "b");
	FAILS(&bed, store_move(bed.store, "a", "b", &bed.err), PAWL_EREADONLY, "b");
	FAILS(&bed, store_publish(bed.store, "a", "b", &bed.err), PAWL_EREADONLY, "b");
	FAILS(&bed, store_remove(bed.store, "a", &bed.err), PAWL_EREADONLY, "a");
	FAILS(&bed, store_remove_folder(bed.store, "a", &bed.err), PAWL_EREADONLY, "a");
	assert_text(&bed, "a", "1");
	bed.store->ops = all;
	bed_close(&bed);
}

static void
test_the_library_lists_its_schemes(void **state)
{
	(void)state;
	size_t n = 0;

	for (; pawl_url_scheme(n); n++) {
		char url[40];
		snprintf(url, sizeof url, "%s:", pawl_url_scheme(n));
		assert_non_null(registry_find(url));
	}
	assert_true(n >= 6);
	assert_null(pawl_url_scheme(n));
	assert_null(registry_find("/a/path"));
}

/* All groups, or the one that is named: a program of several cannot be read as TAP. */
int
main(int argc, char **argv)
{
	const struct CMUnitTest border[] = {
		cmocka_unit_test(test_a_layer_with_its_own_bytes_is_never_passed_by),
		cmocka_unit_test(test_move_without_an_engine_s_own_copies_a_large_object),
		cmocka_unit_test(test_a_store_that_only_reads_refuses_each_change),
		cmocka_unit_test(test_the_library_lists_its_schemes),
	};
	static const struct {
		const char *name;
		int (*open)(struct store **ret, struct pawl_error *err);
	} stores[] = {
		{"engine", open_shelf},
		{"engine and layer", open_masked_shelf},
		{"engine and layer, retry and rate layers", open_wrapped_shelf},
	};
	int failed = argc < 2 || strcmp(argv[1], "border") == 0 ? cmocka_run_group_tests(border, NULL, NULL) : 0;

	for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++)
		if (argc < 2 || strcmp(argv[1], stores[i].name) == 0)
			failed += conformance_open(stores[i].name, stores[i].open);
	return failed;
}
