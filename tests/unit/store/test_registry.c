/* SPDX-License-Identifier: Apache-2.0 */
/* registry: with its row in the table, the engine of docs/how-to/extending.md is opened by URL, and
 * a run is stored in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "extending/store_shelf.h"
#include "helpers/small_run.h"
#include "store/registry.h"

/* In place of the library's table, which is in an object file of its own. */
const struct store_kind registry_kinds[] = {
	{"file", "file://path", NULL, false, false, NULL},
	{"shelf", "shelf://name", store_shelf_open, true, false, NULL},
	{"gone", "gone://name", NULL, true, false, "it was built without libgone"},
	{"mem", "mem:", NULL, false, false, NULL},
	{NULL, NULL, NULL, false, false, NULL},
};

static void
test_a_store_is_opened_by_its_scheme(void **state)
{
	(void)state;
	PAWL_CLEAN(store_close_clean) struct store *s = NULL;
	PAWL_CLEAN(buf_clear) struct buf out = {0};

	OK(store_open("shelf://top", true, false, &s, err));
	assert_string_equal(s->name, "shelf");
	assert_string_equal(s->root, "shelf://top");
	assert_non_null(s->inner); /* the retry layer of all stores on other machines */
	OK(store_put_bytes(s, "d/a", "abc", 3, 0, err));
	OK(store_get(s, "d/a", 10, &out, err));
	assert_string_equal(buf_str(&out), "abc");
	FAILS(PAWL_ENOTFOUND, "shelf://top/d/b: there is no such object", store_get(s, "d/b", 10, &out, err));
}

static void
test_errors_name_the_schemes_of_the_table(void **state)
{
	(void)state;
	struct store *s = NULL;

	assert_string_equal(pawl_url_scheme(1), "shelf");
	assert_null(pawl_url_scheme(4));
	FAILS(PAWL_EUSAGE, "expected a path, file://path, shelf://name, gone://name or mem:",
	      store_open("s3://bucket", true, false, &s, err));
	FAILS(PAWL_EUSAGE, "expected shelf://top", store_open("shelf:/top", true, false, &s, err));
	FAILS(PAWL_EUNSUPPORTED, "no gone:// stores: it was built without libgone",
	      store_open("gone://top", true, false, &s, err));
	assert_null(s);
}

static void
test_a_run_is_saved_to_a_store_of_the_table_and_restored(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore *restore;
	float data[64] = {0};

	r->opts.root = "shelf://top";
	small_open(r);
	small_save(r, 1, NAN);
	small_save(r, 2, NAN);
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	struct pawl_state *live;
	OK(pawl_state_new(&live, err));
	small_add(live, "model/w", PAWL_F32, COUNT(data), data);
	OK(pawl_state_set_int(live, "step", 0, err));
	OK(pawl_restore_match(restore, live, err));
	OK(pawl_restore_read(restore, err));
	assert_true(data[0] == 2 && data[63] == 65);
	pawl_state_free(live);
	pawl_restore_close(restore);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_store_is_opened_by_its_scheme),
		cmocka_unit_test(test_errors_name_the_schemes_of_the_table),
		cmocka_unit_test_setup_teardown(test_a_run_is_saved_to_a_store_of_the_table_and_restored, small_setup,
	                                        small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
