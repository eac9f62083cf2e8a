/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of save_progress.c: what the events of a run report of a running save, and which lines
 * count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"

#define WORD "{\"unix_seconds\":12.5,\"what\":\"%s\",\"attempt\":%d,\"id\":%d,\"name\":\"c%d\",\"step\":-4"
#define SAVING WORD ",\"plain_bytes\":1000,\"done_bytes\":600,\"written_bytes\":300}\n"
#define ENDED WORD "}\n"

static void
add(struct small_run *r, const char *format, const char *what, int attempt, int id)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/events.jsonl", r->root);
	FILE *file = fopen(path, "a");
	assert_non_null(file);
	assert_true(fprintf(file, format, what, attempt, id, id) > 0);
	fclose(file);
}

static void
assert_saving(struct small_run *r, uint64_t id)
{
	struct pawl_saving saving = PAWL_SAVING_INIT;
	struct pawl_error err = {0};
	const int rc = pawl_saving(r->run, &saving, &err);

	if (id == 0) {
		assert_int_equal(rc, PAWL_ENOTFOUND);
		assert_non_null(strstr(err.message, "no process reports"));
		return;
	}
	assert_int_equal(rc, 0);
	assert_int_equal(saving.id, id);
	assert_int_equal(saving.step, -4);
	assert_true(saving.plain_bytes == 1000 && saving.done_bytes == 600 && saving.written_bytes == 300);
	assert_true(saving.unix_seconds == 12.5 && saving.name[0] == 'c' && saving.size == sizeof(saving));
}

static void
test_the_last_word_of_the_last_attempt_counts(void **state)
{
	struct small_run *r = *state;

	OK(pawl_open(&r->opts, &r->run, err));
	assert_saving(r, 0); /* no events yet, or none of that kind */
	add(r, SAVING, "saving", 1, 1);
	assert_saving(r, 1);
	add(r, SAVING, "saving", 1, 2);
	add(r, ENDED, "save", 1, 1); /* of the one before */
	assert_saving(r, 2);
	add(r, ENDED, "save failed", 1, 2);
	assert_saving(r, 0);
	add(r, SAVING, "saving", 1, 3);
	add(r, ENDED, "warning", 2, 3); /* of the process that opened the run after that */
	assert_saving(r, 0);
}

static void
test_lines_that_say_nothing_are_passed_over(void **state)
{
	struct small_run *r = *state;
	char long_line[200 * 400];
	size_t used = 0;

	OK(pawl_open(&r->opts, &r->run, err));
	add(r, SAVING, "saving", 1, 1);
	add(r, "no JSON\n", "", 0, 0);
	add(r, "[1, 2]\n\n{\"what\":7}\n", "", 0, 0);
	add(r, "{\"what\":\"saving\",\"attempt\":1,\"id\":9}\n", "", 0, 0); /* without the rest */
	add(r, "{\"what\":\"save\",\"attempt\":1,\"id\":1", "", 0, 0);      /* cut off */
	assert_saving(r, 1);
	pawl_close(r->run, NULL);
	OK(pawl_open(&r->opts, &r->run, err));
	/* More than is read: the line that begins before it is not taken for a complete one. */
	add(r, "\n", "", 0, 0);
	for (int i = 0; i < 200; i++)
		used += (size_t)snprintf(long_line + used, sizeof(long_line) - used, "{\"x\":\"%0380d\"}\n", i);
	add(r, "%s", long_line, 0, 0);
	add(r, SAVING, "saving", 2, 5);
	assert_saving(r, 5);
}

static void
test_of_a_writer_that_is_gone_nothing_is_said(void **state)
{
	struct small_run *r = *state;
	struct pawl_saving saving = PAWL_SAVING_INIT;

	OK(pawl_open(&r->opts, &r->run, err));
	add(r, SAVING, "saving", 1, 1);
	assert_saving(r, 1);
	pawl_close(r->run, NULL); /* gives the lease up */
	r->opts.read_only = 1;
	OK(pawl_open(&r->opts, &r->run, err));
	assert_saving(r, 0);
	saving.size = 0;
	FAILS(PAWL_EUSAGE, "PAWL_SAVING_INIT", pawl_saving(r->run, &saving, err));
	FAILS(PAWL_EUSAGE, "PAWL_SAVING_INIT", pawl_saving(NULL, &saving, err));
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, small_setup, small_teardown)
	const struct CMUnitTest tests[] = {
		T(test_the_last_word_of_the_last_attempt_counts),
		T(test_lines_that_say_nothing_are_passed_over),
		T(test_of_a_writer_that_is_gone_nothing_is_said),
	};
#undef T
	return cmocka_run_group_tests(tests, NULL, NULL);
}
