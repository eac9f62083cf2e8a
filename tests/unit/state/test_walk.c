/* SPDX-License-Identifier: Apache-2.0 */
/* walk: every leaf once, in order, with the path that finds it again; globs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "state/walk.h"

struct seen {
	char path[16][64], exact[16][64];
	int type[16];
	size_t n, stop_at;
	const struct pawl_state *state;
	bool ambiguous; /* paths alone do not find everything */
};

static int
see(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct seen *s = arg;
	(void)err;
	if (s->n == s->stop_at)
		return PAWL_ECANCELLED;
	snprintf(s->path[s->n], sizeof *s->path, "%s", leaf->path);
	snprintf(s->exact[s->n], sizeof *s->exact, "%s", leaf->exact);
	s->type[s->n++] = leaf->node->type;
	if (!s->ambiguous)
		assert_ptr_equal(pawl_state_at(s->state, leaf->path), leaf->node);
	return 0;
}

static struct seen
walk(const struct pawl_state *state, bool ambiguous)
{
	struct seen s = {.stop_at = 16, .state = state, .ambiguous = ambiguous};
	struct pawl_error err = {0};
	assert_int_equal(walk_leaves(pawl_state_root(state), see, &s, &err), 0);
	return s;
}

static void
test_leaves_come_in_order_with_paths_that_find_them(void **state)
{
	(void)state;
	struct pawl_state *s = NULL;
	const struct pawl_scalar one = {.type = PAWL_INT, .i = 1}, text = {.type = PAWL_STR, .ptr = "v", .len = 1},
				 slash = {.type = PAWL_STR, .ptr = "a/b%", .len = 4},
				 list = {.type = PAWL_STR, .ptr = "l", .len = 1},
				 empty = {.type = PAWL_STR, .ptr = "", .len = 0};
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	pawl_state_begin(s, PAWL_DICT, NULL);
	pawl_state_key(s, &slash, NULL);
	pawl_state_add(s, &one, NULL);
	pawl_state_key(s, &empty, NULL);
	pawl_state_begin(s, PAWL_DICT, NULL);
	pawl_state_key(s, &text, NULL);
	pawl_state_add(s, &text, NULL);
	pawl_state_end(s, NULL);
	pawl_state_key(s, &list, NULL);
	pawl_state_begin(s, PAWL_LIST, NULL);
	pawl_state_begin(s, PAWL_TUPLE, NULL);
	pawl_state_end(s, NULL);
	pawl_state_add(s, &one, NULL);
	pawl_state_end(s, NULL);
	assert_int_equal(pawl_state_end(s, NULL), 0);
	struct seen seen = walk(s, false);
	assert_int_equal(seen.n, 4);
	assert_string_equal(seen.path[0], "a%2Fb%25");
	assert_string_equal(seen.path[1], "/v");
	assert_string_equal(seen.path[2], "l/0");
	assert_int_equal(seen.type[2], PAWL_TUPLE);
	assert_string_equal(seen.path[3], "l/1");
	seen.n = 0;
	seen.stop_at = 2;
	assert_int_equal(walk_leaves(pawl_state_root(s), see, &seen, NULL), PAWL_ECANCELLED);
	assert_int_equal(seen.n, 2);
	pawl_state_free(s);
}

static void
test_keys_of_other_types_have_other_exact_paths(void **state)
{
	(void)state;
	static const struct pawl_scalar keys[] = {{.type = PAWL_INT, .i = 1},
	                                          {.type = PAWL_STR, .ptr = "1", .len = 1},
	                                          {.type = PAWL_BYTES, .ptr = "1", .len = 1},
	                                          {.type = PAWL_BOOLEAN, .i = 1},
	                                          {.type = PAWL_STR, .ptr = "true", .len = 4},
	                                          {.type = PAWL_STR, .ptr = "1%t2", .len = 4}};
	const size_t n = sizeof keys / sizeof *keys;
	struct pawl_state *s = NULL;
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	pawl_state_begin(s, PAWL_DICT, NULL);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(pawl_state_key(s, &keys[i], NULL), 0);
		assert_int_equal(pawl_state_add(s, &keys[0], NULL), 0);
	}
	pawl_state_end(s, NULL);
	struct seen seen = walk(s, true);
	assert_int_equal(seen.n, n);
	assert_string_equal(seen.path[0], seen.path[1]);
	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(seen.exact[i], seen.exact[k]);
	}
	pawl_state_free(s);
}

static void
test_roots_without_children(void **state)
{
	(void)state;
	struct pawl_state *s = NULL;
	const struct pawl_scalar one = {.type = PAWL_INT, .i = 1};
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	assert_int_equal(walk(s, true).n, 0);
	assert_int_equal(pawl_state_add(s, &one, NULL), 0);
	struct seen seen = walk(s, false);
	assert_int_equal(seen.n, 1);
	assert_string_equal(seen.path[0], "");
	pawl_state_free(s);
}

static void
test_globs_include(void **state)
{
	(void)state;
	const char *globs[] = {"model", "optimizer/*/step"};
	assert_true(walk_included(NULL, 0, "anything"));
	assert_true(walk_included(globs, 2, "model/layer/weight"));
	assert_true(walk_included(globs, 2, "optimizer/state/0/step"));
	assert_false(walk_included(globs, 2, "optimizer/state/0/exp_avg"));
	assert_false(walk_included(globs, 2, "models/x"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_leaves_come_in_order_with_paths_that_find_them),
		cmocka_unit_test(test_keys_of_other_types_have_other_exact_paths),
		cmocka_unit_test(test_roots_without_children),
		cmocka_unit_test(test_globs_include),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
