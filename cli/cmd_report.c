/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_report: `pawl report`, for trials of `pawl tune` in any language. It reports metrics, and a
 * checkpoint, which is moved into the trial's folder. The exit status
 * says whether to continue, so that a script needs only `set -e` or `|| exit`.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/value.h"
#include "cli.h"
#include "jsonout.h"
#include "tune.h"

#define REPORT_END_STATUS 8 /* the trial must end now */

struct report_args {
	const char *checkpoint;
	uint64_t step;
};

static const struct operand operands[] = {{"NAME=VALUE", OPERAND_PATH, 1, OPERAND_ANY}, OPERAND_LIST_END};
static const struct option options[] = {
	{"checkpoint", 'c', OPT_TEXT, offsetof(struct report_args, checkpoint), "PATH",
         "file or folder with the state (it is moved)"},
	{"step", 's', OPT_COUNT, offsetof(struct report_args, step), "N",
         "number of the checkpoint (default: the iteration)"},
	OPTION_END,
};
static const struct example examples[] = {
	{"pawl report loss=0.3", "one result"},
	{"pawl report loss=0.3 accuracy=0.9 --checkpoint out || exit",
         "with a checkpoint; exits when the trial is to end"},
	EXAMPLE_END,
};

/* Parses an integer, a real number, true, false, null, or a text. Numbers that are not finite
 * become the strings that stand for them in JSON. */
static struct value *
value_of(const char *text)
{
	struct value *value = value_from_text(text);
	char *end;
	double number;

	if (value != NULL && !value_is(value, JSON_OBJECT) && !value_is(value, JSON_ARRAY) &&
	    !value_is(value, JSON_STRING))
		return value;
	value_free(value);
	number = strtod(text, &end);
	if (end == text || *end != '\0')
		return value_new_text(text);
	return value_new_real(number);
}

/* The operands as an object, to free(). On an error returns NULL and sets *wrong. */
static char *
metrics_of(const struct cli *cli, const char **wrong)
{
	struct value *metrics = value_new_object();
	char *text = NULL;
	bool ok = metrics != NULL;

	*wrong = NULL;
	for (size_t i = 0; ok && i < cli->n_operands; i++) {
		const char *at = strchr(cli->operands[i], '=');
		struct value *value = at != NULL && at != cli->operands[i] ? value_of(at + 1) : NULL;

		ok = value != NULL && value_set_n(metrics, cli->operands[i], (size_t)(at - cli->operands[i]), value);
		if (!ok)
			*wrong = cli->operands[i];
	}
	if (ok)
		text = value_print_as(metrics, VALUE_COMPACT);
	value_free(metrics);
	return text;
}

static const char *
word_of(enum tune_verdict_kind verdict)
{
	static const char *const words[] = {"continue", "pause", "stop", "exploit"};

	return words[verdict];
}

static int
run_report(struct cli *cli, const void *ptr)
{
	const struct report_args *args = ptr;
	struct pawl_error err = {0};
	struct tune_answer answer;
	const char *wrong;
	char *metrics = metrics_of(cli, &wrong);
	struct jsonout j;
	int rc;

	if (metrics == NULL && wrong != NULL)
		return cli_usage(cli, "expected NAME=VALUE in UTF-8, found '%s'", wrong);
	if (metrics == NULL) {
		(void)err_nomem(&err, NULL);
		return cli_fail(cli, &err);
	}
	rc = tune_trial_report(metrics, args->checkpoint, args->step > 0 ? (int64_t)args->step : -1, &answer, &err);
	if (rc == PAWL_ENOTFOUND && getenv("PAWL_TUNE_FD") == NULL)
		cli_note(cli, "not inside a trial, nothing was reported: %s", metrics);
	free(metrics);
	if (rc < 0 && !(rc == PAWL_ENOTFOUND && getenv("PAWL_TUNE_FD") == NULL))
		return cli_fail(cli, &err);
	if (cli->common.json) {
		jsonout_init(&j, stdout);
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "command", "report");
		jsonout_bool(&j, "trial", rc == 0);
		jsonout_text(&j, "verdict", word_of(answer.verdict));
		jsonout_bool(&j, "save", answer.save);
		jsonout_text(&j, "checkpoint", answer.checkpoint[0] != '\0' ? answer.checkpoint : NULL);
		jsonout_end(&j);
	} else if (answer.verdict != TUNE_CONTINUE) {
		(void)printf("%s\n", word_of(answer.verdict));
	}
	return answer.verdict == TUNE_CONTINUE ? 0 : REPORT_END_STATUS;
}

const struct command cmd_report = {
	.name = "report",
	.group = GROUP_SEARCH,
	.summary = "report metrics from inside a trial",
	.about = "For trials of 'pawl tune' that are scripts or programs: sends metrics, and a checkpoint if given, to "
		 "the runner, and waits for its verdict. The file or folder PATH is synced and moved into the trial's "
		 "folder as checkpoint_<iteration>, completely or not at all.\n\n"
		 "Exit status 0: continue. 8: end now (stop, pause or exploit is printed); the trial may be started "
		 "again later, with the checkpoint to start from in PAWL_TUNE_CHECKPOINT. Outside a trial it prints a "
		 "note and succeeds, so that a script also runs by itself.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct report_args),
	.run = run_report,
};
