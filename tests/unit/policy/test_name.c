/* SPDX-License-Identifier: Apache-2.0 */
/* name: templates filled in completely and in part, and names that must not become paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "policy/name.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static struct name_values
example(void)
{
	return (struct name_values){
		.run_name = "awesome-training-run",
		.rank = 3,
		.local_rank = 1,
		.world_size = 8,
		.local_world_size = 2,
		.node_rank = 4,
		.id = 7,
		.step = 400,
		.progress = {.epoch = 1,
	                     .batch = 42,
	                     .batch_in_epoch = 12,
	                     .sample = 4200,
	                     .sample_in_epoch = 1200,
	                     .token = 100000,
	                     .token_in_epoch = 5000,
	                     .iteration = -1,
	                     .total_wct = 3600.5,
	                     .epoch_wct = 60,
	                     .batch_wct = 0.25,
	                     .fraction = -1},
	};
}

static struct name_values
nothing(void)
{
	return (struct name_values){
		.rank = -1,
		.local_rank = -1,
		.world_size = -1,
		.local_world_size = -1,
		.node_rank = -1,
		.progress = PAWL_PROGRESS_INIT,
	};
}

static void
assert_name(const struct name_values *values, bool partial, const char *template_text, const char *expected)
{
	struct buf out = {0};
	struct pawl_error err = {0};
	buf_puts(&out, "> ");
	if (name_format(template_text, values, partial, &out, &err) < 0)
		fail_msg("\"%s\": %s", template_text, err.message);
	assert_string_equal(buf_str(&out) + 2, expected);
	buf_clear(&out);
}

static void
assert_refused(const struct name_values *values, const char *template_text, const char *reason)
{
	struct buf out = {0};
	struct pawl_error err = {0};
	buf_puts(&out, "kept");
	if (name_format(template_text, values, false, &out, &err) != PAWL_EUSAGE)
		fail_msg("\"%s\" was accepted as \"%s\"", template_text, buf_str(&out));
	if (!strstr(err.message, reason))
		fail_msg("\"%s\": expected \"%s\" in \"%s\"", template_text, reason, err.message);
	assert_string_equal(buf_str(&out), "kept");
	buf_clear(&out);
}

static void
test_R73_folder_variables(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_name(&v, false, "{run_name}/checkpoints", "awesome-training-run/checkpoints");
	assert_name(&v, false, "{rank}-{local_rank}-{world_size}-{local_world_size}-{node_rank}", "3-1-8-2-4");
}

static void
test_R74_file_variables(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_name(&v, false, "ep{epoch}-ba{batch}-rank{rank}.pt", "ep1-ba42-rank3.pt");
	assert_name(&v, false, "{batch_in_epoch} {sample} {sample_in_epoch} {token} {token_in_epoch}",
	            "12 4200 1200 100000 5000");
}

static void
test_R75_wall_clock_variables(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_name(&v, false, "{total_wct}-{epoch_wct}-{batch_wct}", "3600.5-60.0-0.25");
	assert_name(&v, false, "{total_wct:d}-{epoch_wct:06d}", "3600-000060");
}

static void
test_ids_and_steps(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_name(&v, false, "checkpoint_{id:06d}", "checkpoint_000007");
	assert_name(&v, false, "{step:d}-{step:8d}-{step:02d}", "400-     400-400");
	v.id = 12345678;
	v.step = -3;
	assert_name(&v, false, "checkpoint_{id:06d}_{step:05d}", "checkpoint_12345678_-0003");
}

static void
test_braces_are_escaped_by_doubling(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_name(&v, false, "{{{rank}}}-{{rank}}", "{3}-{rank}");
	assert_name(&v, true, "{{{rank}}}-{{rank}}", "{{3}}-{{rank}}");
}

static void
test_unknown_counters_are_zero(void **state)
{
	(void)state;
	struct name_values v = nothing();
	assert_name(&v, false, "ep{epoch}-ba{batch:03d}-{total_wct}-{step}", "ep0-ba000-0.0-0");
}

static void
test_R76_a_missing_rank_is_an_error_and_not_a_shared_file(void **state)
{
	(void)state;
	struct name_values v = nothing();
	const char *missing[] = {"run_name", "rank", "local_rank", "world_size", "local_world_size", "node_rank", "id"};
	for (size_t i = 0; i < COUNT(missing); i++) {
		char template_text[40], reason[60];
		snprintf(template_text, sizeof(template_text), "x{%s}", missing[i]);
		snprintf(reason, sizeof(reason), "{%s} has no value here", missing[i]);
		assert_refused(&v, template_text, reason);
	}
}

static void
test_R76_whether_a_template_tells_ranks_apart_can_be_asked(void **state)
{
	(void)state;
	assert_true(name_uses("ep{epoch}-rank{rank}.pt", "rank"));
	assert_true(name_uses("rank{rank:05d}", "rank"));
	assert_false(name_uses("ep{epoch}-rank.pt", "rank"));
	assert_false(name_uses("{local_rank}", "rank"));
	assert_false(name_uses("{{rank}}", "rank"));
	assert_true(name_uses("{{{rank}}}", "rank"));
	assert_false(name_uses("{rank", "rank"));
	assert_false(name_uses("", "rank"));
}

static void
test_partial_filling_leaves_the_rest_for_later(void **state)
{
	(void)state;
	struct name_values v = nothing();
	v.run_name = "run{1}";
	v.rank = 2;
	assert_name(&v, true, "{run_name}/ep{epoch:03d}-{{x}}-rank{rank}-{id}-{total_wct}",
	            "run{{1}}/ep{epoch:03d}-{{x}}-rank2-{id}-{total_wct}");
	/* Filling in what is left gives what filling in at once gives. */
	struct name_values all = example();
	all.run_name = v.run_name;
	all.rank = v.rank;
	struct buf part = {0};
	assert_int_equal(name_format("{run_name}/ep{epoch:03d}-{{x}}-rank{rank}-{id}", &v, true, &part, NULL), 0);
	assert_name(&all, false, buf_str(&part), "run{1}/ep001-{x}-rank2-7");
	buf_clear(&part);
}

static void
test_the_id_of_a_name_is_read_back(void **state)
{
	(void)state;
	static const struct {
		const char *template_text, *name;
		uint64_t id;
	} cases[] = {
		{"checkpoint_{id:06d}", "checkpoint_000003", 3},
		{"checkpoint_{id:06d}", "checkpoint_1234567", 1234567},
		{"checkpoint_{id:06d}", "checkpoint_", 0},
		{"checkpoint_{id:06d}", "checkpoint_12x", 0},
		{"checkpoint_{id:06d}", "xcheckpoint_12", 0},
		{"c{id}_step_{step}", "c3_step_2", 3},
		{"c{id}_step_{step}", "c3_step_-2", 3},
		{"{run_name}-{id}-ep{epoch}", "my-7-run-12-ep3", 12},
		{"{run_name}-{id}-ep{epoch}", "-5-ep0", 5},
		{"t{total_wct}_{id}", "t1.5e+20_8", 8},
		{"{{{id}}}", "{4}", 4},
		{"{id}", "0", 0},
		{"{id}", "99999999999999999999", 0},
		{"a{nothing}{id}", "a5", 0},
		{"a{id", "a5", 0},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(name_id(cases[i].template_text, cases[i].name), cases[i].id);
	/* A process that makes a folder with such a name no longer waits for it. */
	char digits[129];
	memset(digits, '1', 128);
	digits[128] = '\0';
	assert_int_equal(name_id("{step}{epoch}{batch}{sample}{token}{rank}{id}x", digits), 0);
}

static void
test_unknown_variables_are_named_with_the_known_ones(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_refused(&v, "ep{epch}", "unknown variable {epch}");
	assert_refused(&v, "ep{epch}", "run_name, rank, local_rank");
	assert_refused(&v, "ep{epch}", "id, step");
	assert_refused(&v, "{Rank}", "expected {variable}");
}

static void
test_files_and_folders_have_fewer_variables(void **state)
{
	(void)state;
	struct name_values v = example();
	v.of = NAME_OF_FILE;
	assert_refused(&v, "{epch}", "token_in_epoch, total_wct, epoch_wct, batch_wct");
	assert_string_equal(name_excess("{rank}{epoch}-{step}", NAME_OF_FILE), "step");
	assert_null(name_excess("{rank}{epoch}-{{id}}", NAME_OF_FILE));
	v.of = NAME_OF_FOLDER;
	assert_refused(&v, "{epch}", "known are run_name, rank, local_rank, world_size, local_world_size, node_rank");
	assert_string_equal(name_excess("{rank}/{epoch:03d}", NAME_OF_FOLDER), "epoch");
	assert_null(name_excess("{run_name}/{node_rank}", NAME_OF_FOLDER));
	assert_null(name_excess("{id}-{step}-{epoch}", NAME_OF_CHECKPOINT));
}

static void
test_malformed_templates_are_refused(void **state)
{
	(void)state;
	struct name_values v = example();
	const char *bad[] = {"{",
	                     "}",
	                     "{}",
	                     "{rank",
	                     "rank}",
	                     "{rank:}",
	                     "{rank:x}",
	                     "{rank:06}",
	                     "{rank:-6d}",
	                     "{rank:+d}",
	                     "{rank:6.2d}",
	                     "{rank:33d}",
	                     "{rank:99999999999d}",
	                     "{rank!r}",
	                     "{0}",
	                     "{rank.real}",
	                     "{rank }",
	                     "{ rank}",
	                     "{{rank}",
	                     "a}b"};
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_refused(&v, bad[i], "name template: ");
	assert_refused(&v, "{run_name:06d}", "takes no number format");
}

static void
test_P17_names_stay_in_their_folder(void **state)
{
	(void)state;
	struct name_values v = example();
	assert_refused(&v, "", "empty");
	assert_refused(&v, "/etc/passwd", "relative");
	assert_refused(&v, "a/../b", "..");
	assert_refused(&v, "..", "..");
	assert_refused(&v, "a/..", "..");
	assert_refused(&v, "a\\b", "backslash");
	assert_refused(&v, "a\nb", "control character");
	assert_refused(&v, "a\x7f", "control character");
	const char *bad[] = {"", "/abs", "..", "../x", "x/../..", "a\tb", "a\\b"};
	for (size_t i = 0; i < COUNT(bad); i++) {
		v.run_name = bad[i];
		assert_refused(&v, "{run_name}", "name template: ");
	}
	v.run_name = "exp/1";
	assert_name(&v, false, "{run_name}/a..b/..c", "exp/1/a..b/..c");
	v.run_name = "{rank}";
	assert_name(&v, false, "{run_name}", "{rank}");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R73_folder_variables),
		cmocka_unit_test(test_R74_file_variables),
		cmocka_unit_test(test_R75_wall_clock_variables),
		cmocka_unit_test(test_ids_and_steps),
		cmocka_unit_test(test_braces_are_escaped_by_doubling),
		cmocka_unit_test(test_unknown_counters_are_zero),
		cmocka_unit_test(test_R76_a_missing_rank_is_an_error_and_not_a_shared_file),
		cmocka_unit_test(test_R76_whether_a_template_tells_ranks_apart_can_be_asked),
		cmocka_unit_test(test_partial_filling_leaves_the_rest_for_later),
		cmocka_unit_test(test_unknown_variables_are_named_with_the_known_ones),
		cmocka_unit_test(test_files_and_folders_have_fewer_variables),
		cmocka_unit_test(test_the_id_of_a_name_is_read_back),
		cmocka_unit_test(test_malformed_templates_are_refused),
		cmocka_unit_test(test_P17_names_stay_in_their_folder),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
