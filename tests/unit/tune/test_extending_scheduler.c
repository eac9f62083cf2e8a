/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of docs/how-to/extending.md, as a document names it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "helpers/sched_bed.h"
#include "spec.h"

extern const struct sched_algorithm sched_top;

static const struct spec_key top_keys[] = {
	KEY("type", TEXT, 0, NULL),
	OPTION("grace_period", NUMBER, 0, grace),
	OPTION("keep", WHOLE, 1, min_samples),
	KEYS_END,
};

/* In place of the library's table, which is in an object file of its own. */
const struct spec_scheduler spec_schedulers[] = {
	{"fifo", &sched_fifo, top_keys, "training_iteration"},
	{"top", &sched_top, top_keys, "training_iteration"},
	{NULL, NULL, NULL, NULL},
};

#define DOCUMENT(scheduler) \
	"{\"name\": \"a\", \"run\": [\"true\"], \"metric\": \"loss\", \"mode\": \"max\", \"scheduler\": " scheduler "}"

static void
test_a_document_names_it_and_its_options(void **state)
{
	struct pawl_error err = {0};
	struct sched_opts opts = {.algorithm = &sched_top, .maximize = true, .grace = 2, .min_samples = 2};
	struct sched *direct = make(opts, 3), *s;
	struct spec spec;

	(void)state;
	if (spec_parse(DOCUMENT("{\"type\": \"top\", \"grace_period\": 2, \"keep\": 2}"), &spec, &err) < 0 ||
	    spec_make_scheduler(&spec, &s, &err) < 0)
		fail_msg("%s", err.message);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(sched_add(s, i, NULL, &err), 0);
	for (unsigned time = 1; time <= 3; time++)
		for (unsigned i = 3; i-- > 0;) {
			const enum sched_verdict verdict = decide(s, i, time, i).verdict;
			assert_int_equal(verdict, i == 0 && time >= 2 ? SCHED_STOP : SCHED_CONTINUE);
			assert_int_equal(verdict, decide(direct, i, time, i).verdict);
		}
	sched_free(direct);
	sched_free(s);
	spec_clear(&spec);
}

static void
test_wrong_documents_are_refused(void **state)
{
	static const struct {
		const char *document, *why;
	} rows[] = {
		{DOCUMENT("\"asha\""), "scheduler: expected fifo or top, found 'asha'"},
		{DOCUMENT("{\"type\": \"top\", \"keep\": 0}"), "'keep' must be 1 or more, found 0"},
		{DOCUMENT("{\"type\": \"top\", \"kept\": 1}"),
	         "key 'kept' is not known; did you mean 'keep'? (known: type, grace_period, keep)"},
	};
	struct spec spec;

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		struct pawl_error err = {0};
		assert_int_equal(spec_parse(rows[i].document, &spec, &err), PAWL_EUSAGE);
		if (!strstr(err.message, rows[i].why))
			fail_msg("'%s' is not in '%s'", rows[i].why, err.message);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_document_names_it_and_its_options),
		cmocka_unit_test(test_wrong_documents_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
