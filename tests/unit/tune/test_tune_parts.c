/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the runner that need no process: devices and processors shared out, commands filled in,
 * lines of a channel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "channel.h"
#include "command.h"
#include "slots.h"

static void
test_devices_and_processors_are_shared_out(void **state)
{
	struct slots s;
	struct share a, b, c, none;
	struct pawl_error err = {0};
	char text[256];

	(void)state;
	slots_init(&s, 4, 0, "3, GPU-7,5");
	assert_int_equal(s.n_gpus, 3);
	assert_true(slots_take(&s, 1.5, 2, &a));
	slots_visible(&s, &a, text, sizeof(text));
	assert_string_equal(text, "3,GPU-7");
	assert_true(slots_take(&s, 0.1, 0.4, &b)); /* parts share one device */
	assert_true(slots_take(&s, 0.1, 0.6, &c));
	slots_visible(&s, &c, text, sizeof(text));
	assert_string_equal(text, "5");
	assert_false(slots_take(&s, 0.1, 0.1, &none));
	assert_false(slots_take(&s, 3, 0, &none));
	slots_give(&s, &a);
	assert_true(slots_take(&s, 3.8, 0, &none));
	slots_give(&s, &none);
	slots_give(&s, &b);
	slots_give(&s, &c);
	assert_true(slots_take(&s, 4, 3, &none));
	assert_int_equal(slots_check(&s, 5, 0, &err), PAWL_EUSAGE);
	assert_int_equal(slots_check(&s, 1, 4, &err), PAWL_EUSAGE);
	assert_int_equal(slots_check(&s, 1, 1.5, &err), PAWL_EUSAGE);
	assert_int_equal(slots_check(&s, 4, 0.5, &err), 0);
	slots_init(&s, 1, 0, "0,-1,2");
	assert_int_equal(s.n_gpus, 1);
	slots_init(&s, 1, 0, "");
	assert_int_equal(s.n_gpus, 0);
	slots_init(&s, 1, -1, "0,1");
	assert_int_equal(s.n_gpus, 0);
	slots_init(&s, 1, 2, "");
	assert_int_equal(s.n_gpus, 2);
}

static void
check_command(const char *run, const char *config, const char *expected)
{
	struct value *template = value_from_text(run), *values = value_from_text(config);
	struct strings argv = {0};
	struct pawl_error err = {0};
	int rc = command_fill(template, values, &argv, &err);
	const char *found = rc == 0 ? argv.items[argv.n - 1] : err.message;

	if (strstr(found, expected) == NULL || (rc == 0 && strcmp(found, expected) != 0))
		fail_msg("%s: expected %s, found %s", run, expected, found);
	strings_clear(&argv);
	value_free(template);
	value_free(values);
}

static void
test_a_command_is_filled_in(void **state)
{
	(void)state;
	check_command("[\"a\", \"--lr={lr}\"]", "{\"lr\": 0.1}", "--lr=0.1");
	check_command("[\"{a/b}{c}{d}{e}\"]", "{\"a\": {\"b\": 7}, \"c\": \"x y; $z\", \"d\": true, \"e\": null}",
	              "7x y; $ztruenull");
	check_command("[\"{{lr}} } {l}\"]", "{\"l\": [1, 2]}", "{lr} } [1, 2]");
	check_command("[\"{rate}\"]", "{\"lr\": 1, \"width\": 2}",
	              "run: '{rate}': the space has no 'rate' (known: lr, width; {{");
	check_command("[\"{lr\"]", "{\"lr\": 1}", "a placeholder has no end");
	check_command("[]", "{}", "expected the program of a trial");
	check_command("[\"\"]", "{}", "expected a program, found an empty text");
	check_command("[1]", "{}", "argument 0: expected a text");
}

static void
test_an_environment_is_changed(void **state)
{
	struct value *changes = value_from_text("{\"PAWL_UNIT_A\": \"x\", \"PAWL_UNIT_N\": 3}");
	struct strings env = {0};
	size_t n = 0;

	(void)state;
	assert_int_equal(setenv("PAWL_UNIT_A", "before", 1), 0);
	assert_int_equal(command_environment(changes, &env, NULL), 0);
	assert_true(command_set_variable(&env, "PAWL_UNIT_B", "y=z"));
	assert_true(command_set_variable(&env, "PAWL_UNIT_B", "y"));
	command_unset_variable(&env, "PAWL_UNIT_N");
	for (size_t i = 0; i < env.n; i++) {
		if (strncmp(env.items[i], "PAWL_UNIT_", 10) != 0)
			continue;
		assert_true(strcmp(env.items[i], "PAWL_UNIT_A=x") == 0 || strcmp(env.items[i], "PAWL_UNIT_B=y") == 0);
		n++;
	}
	assert_int_equal(n, 2);
	assert_null(env.items[env.n]);
	strings_clear(&env);
	value_free(changes);
}

/* Sends bytes from the other end, takes in what has arrived. */
static void
feed(struct channel *c, int theirs, const char *bytes, size_t len)
{
	while (len > 0) {
		size_t piece = len < 65536 ? len : 65536;

		assert_int_equal(write(theirs, bytes, piece), piece);
		assert_int_equal(channel_fill(c, NULL), 0);
		bytes += piece;
		len -= piece;
	}
}

static void
test_P16_lines_of_a_channel_are_whole_and_limited(void **state)
{
	struct channel c;
	size_t len = 0, long_len = CHANNEL_MAX_LINE + 70000;
	char *longest = malloc(long_len), *line;
	int theirs;
	bool bad, seen = false;

	(void)state;
	assert_int_equal(channel_open(&c, &theirs, NULL), 0);
	assert_int_equal(channel_fill(&c, NULL), 0);
	assert_null(channel_line(&c, &len, &bad));
	feed(&c, theirs, "on", 2);
	assert_null(channel_line(&c, &len, &bad));
	feed(&c, theirs, "e\n\ntwo\nth", 9);
	assert_string_equal(channel_line(&c, &len, &bad), "one");
	assert_string_equal(channel_line(&c, &len, &bad), "");
	assert_string_equal(channel_line(&c, &len, &bad), "two");
	assert_null(channel_line(&c, &len, &bad));
	assert_false(bad);
	feed(&c, theirs, "ree\n", 4);
	assert_string_equal(channel_line(&c, &len, &bad), "three");
	memset(longest, 'x', long_len);
	for (size_t at = 0; at < long_len; at += 10000) {
		feed(&c, theirs, longest + at, 10000 < long_len - at ? 10000 : long_len - at);
		assert_null(channel_line(&c, &len, &bad));
		assert_false(bad);
	}
	feed(&c, theirs, "\nnext\n", 6);
	for (line = channel_line(&c, &len, &bad); line == NULL && bad; line = channel_line(&c, &len, &bad))
		seen = true;
	assert_true(seen);
	assert_string_equal(line, "next");
	for (int i = 0; i < 100000; i++) /* one that reads nothing loses answers, and delays no other */
		channel_send(&c, "{\"verdict\": \"continue\"}\n");
	assert_int_equal(close(theirs), 0);
	channel_send(&c, "x\n"); /* no signal */
	assert_int_equal(channel_fill(&c, NULL), 0);
	assert_true(c.ended);
	channel_clear(&c);
	free(longest);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_devices_and_processors_are_shared_out),
		cmocka_unit_test(test_a_command_is_filled_in),
		cmocka_unit_test(test_an_environment_is_changed),
		cmocka_unit_test(test_P16_lines_of_a_channel_are_whole_and_limited),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
