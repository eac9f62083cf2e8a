/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_tune: `pawl tune FILE` runs a search over hyperparameters, whose trials are programs of any
 * kind. `pawl tune VERB DIR` shows a search, also while it runs, or stops it. Ctrl+C lets the
 * trials save; the same call with --resume continues the search.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/value.h"
#include "base/text.h"
#include "cli.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "jsonout.h"
#include "search.h"
#include "search_sync.h"
#include "trials.h"
#include "tune.h"

#define TUNE_MAX_BYTES ((size_t)4 << 20)
#define TUNE_POLL_MS 100
#define TUNE_SHOWN 20 /* trials in the final table, samples of a dry run */

static const struct operand operands[] = {
	{"FILE|ls|show|best|export|stop", OPERAND_PATH, 1, 1}, {"DIR", OPERAND_FOLDER, 0, 2}, OPERAND_LIST_END};
static const struct option options[] = {
	{"resume", 'r', OPT_FLAG, offsetof(struct tune_args, resume), NULL,
         "continue the search, or begin it if there is none"},
	{"retry-failed", 0, OPT_FLAG, offsetof(struct tune_args, retry_failed), NULL,
         "continue the search, and try failed trials again"},
	{"dry-run", 'n', OPT_FLAG, offsetof(struct tune_args, dry_run), NULL,
         "print what would be tried; change nothing"},
	{"cpus", 0, OPT_COUNT, offsetof(struct tune_args, cpus), "N", "number of processors to use (default: all)"},
	{"gpus", 0, OPT_COUNT, offsetof(struct tune_args, gpus), "N", "number of devices to use (default: all)"},
	{"metric", 'm', OPT_TEXT, offsetof(struct tune_args, metric), "NAME",
         "best: rank by this metric (default: the search's)"},
	{"mode", 0, OPT_TEXT, offsetof(struct tune_args, mode), "max|min",
         "best: take the largest or the smallest value"},
	{"scope", 0, OPT_TEXT, offsetof(struct tune_args, scope), "last|avg|last-5-avg|last-10-avg|all",
         "best: results of a trial to use (default: last)"},
	OPTION_END,
};
static const struct example examples[] = {
	{"pawl tune sweep.yaml", "run the search"},
	{"pawl tune sweep.yaml --resume", "continue it, or begin it"},
	{"pawl tune sweep.yaml --dry-run", "what would be tried?"},
	{"pawl tune ls runs/tune/sweep", "its trials"},
	{"pawl tune show runs/tune/sweep 3", "all about one of them"},
	{"pawl tune best runs/tune/sweep", "the best one and its checkpoint"},
	EXAMPLE_END,
};

static void
close_runner(struct tune_runner **r)
{
	tune_runner_free(*r);
	*r = NULL;
}

static int
read_text(struct cli *cli, const char *path, char **ret, size_t *ret_len, struct pawl_error *err)
{
	FILE *file = fopen(path, "re");
	char *text = keep_alloc(&cli->keep, TUNE_MAX_BYTES + 2, 1);
	size_t len;

	if (file == NULL)
		return err_set(err, errno == ENOENT ? PAWL_ENOTFOUND : PAWL_EIO, "%s: %s", path, strerror(errno));
	errno = 0;
	len = fread(text, 1, TUNE_MAX_BYTES + 1, file);
	if (ferror(file) != 0) {
		(void)fclose(file);
		return err_set(err, PAWL_EIO, "%s: %s", path, strerror(errno));
	}
	(void)fclose(file);
	if (len > TUNE_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: more than %zu bytes", path, TUNE_MAX_BYTES);
	*ret = text;
	*ret_len = len;
	return 0;
}

/* The file's name without folder and suffix. */
static const char *
base_of(struct cli *cli, const char *path)
{
	const char *base = strrchr(path, '/'), *dot;

	base = base != NULL ? base + 1 : path;
	dot = strrchr(base, '.');
	return keep_strndup(&cli->keep, base, dot != NULL && dot != base ? (size_t)(dot - base) : strlen(base));
}

/* Reads a document from a file, as JSON. The file's name is the default for the document's name. */
static int
read_document(struct cli *cli, const char *path, const char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *object = NULL;
	PAWL_FREE char *json = NULL, *done = NULL;
	char *text = NULL;
	size_t len = 0;

	if (text_ends_with(path, ".toml"))
		return err_set(err, PAWL_EUSAGE,
		               "%s: TOML is not supported; write the document as YAML (sweep.yaml): "
		               "\"name = value\" becomes \"name: value\", and a table becomes a key with indented keys",
		               path);
	TRY(read_text(cli, path, &text, &len, err));
	if (!text_ends_with(path, ".json")) {
		TRY(tune_yaml_to_json(text, len, path, &json, err));
		text = json;
		len = strlen(json);
	}
	TRY(value_parse(text, len, path, &object, err));
	if (value_is(object, JSON_OBJECT) && value_get(object, "name") == NULL)
		(void)value_set(object, "name", value_new_text(base_of(cli, path)));
	done = value_print(object);
	if (done == NULL)
		return err_nomem(err, path);
	*ret = keep_printf(&cli->keep, "%s", done);
	return 0;
}

/* ---- dry runs ---- */

/* What a dry run shows. */
struct dry {
	char *spec, *configs[TUNE_SHOWN];
	uint64_t n; /* of all trials */
	size_t shown;
};

static void
clear_dry(struct dry *d)
{
	for (size_t i = 0; i < d->shown; i++)
		free(d->configs[i]);
	free(d->spec);
}

static void
dry_json(const struct dry *d)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "tune");
	jsonout_bool(&j, "dry_run", true);
	jsonout_literal(&j, "document", d->spec);
	jsonout_uint(&j, "trials", d->n);
	jsonout_begin_array(&j, "configs");
	for (size_t i = 0; i < d->shown; i++)
		jsonout_literal(&j, NULL, d->configs[i]);
	jsonout_end(&j);
	jsonout_end(&j);
}

/* A command as a person would type it, without quotes. */
static int
command_line(struct cli *cli, const char *spec, const char *config, const char **ret, struct pawl_error *err)
{
	char *text = NULL;

	TRY(tune_command_text(spec, config, &text, err));
	for (char *at = text; *at != '\0'; at++)
		*at = *at == '\n' ? ' ' : *at;
	*ret = keep_printf(&cli->keep, "%s", text);
	free(text);
	return 0;
}

static int
list_configs(struct cli *cli, const char *document, struct dry *d, struct grid *grid, struct pawl_error *err)
{
	TRY(tune_spec_check(document, &d->spec, &d->n, err));
	while (d->shown < d->n && d->shown < TUNE_SHOWN) {
		struct cell *cells = grid_row(grid);
		const char *line = "";

		cells[0].text = keep_printf(&cli->keep, "%zu", d->shown);
		TRY(tune_spec_config(document, d->shown, &d->configs[d->shown], err));
		TRY(command_line(cli, document, d->configs[d->shown++], &line, err));
		cells[1].text = term_clean(&cli->keep, line);
	}
	return 0;
}

static int
dry_run(struct cli *cli, const char *document)
{
	static const struct column columns[] = {{"trial", true, RIGID, 0}, {"command", false, RUN_OVER, 0}};
	struct grid *grid = grid_new(&cli->keep, columns, 2);
	PAWL_CLEAN(clear_dry) struct dry dry = {0};
	struct pawl_error err = {0};

	if (list_configs(cli, document, &dry, grid, &err) < 0)
		return cli_fail(cli, &err);
	if (cli->common.json)
		dry_json(&dry);
	else
		grid_print(grid, &cli->out);
	if (dry.n > dry.shown)
		cli_note(cli, "and %" PRIu64 " more", dry.n - dry.shown);
	return 0;
}

/* ---- the search ---- */

static int
open_search(const char *document, const struct tune_args *args, struct tune_experiment **ret, struct pawl_error *err)
{
	const struct tune_open_opts opts = {.resume = args->retry_failed ? TUNE_ERRORED_ONLY
	                                              : args->resume     ? TUNE_AUTO
	                                                                 : TUNE_NEW};

	return tune_experiment_open(document, &opts, ret, err);
}

static const char *
name_of(struct cli *cli, const struct tune_experiment *e, uint32_t trial)
{
	struct tune_trial t;

	return tune_trial_info(e, trial, &t, NULL) == 0 ? term_clean(&cli->keep, keep_printf(&cli->keep, "%s", t.name))
	                                                : "?";
}

/* Prints one event as a line. */
static void
print_event(struct cli *cli, const struct tune_experiment *e, const struct tune_event *event)
{
	static const char *const verdicts[] = {"", ", paused", ", stopped", ", continues from a better one"};
	const char *name = event->kind == TUNE_EVENT_NOTICE ? "" : name_of(cli, e, event->trial);
	struct tune_trial t;

	switch (event->kind) {
	case TUNE_EVENT_STARTED:
		cli_note(cli, "%s  started%s%s", name, event->text != NULL ? " from " : "",
		         event->text != NULL ? event->text : "");
		break;
	case TUNE_EVENT_REPORT:
		if ((cli->common.verbose || event->verdict != TUNE_CONTINUE) &&
		    tune_trial_info(e, event->trial, &t, NULL) == 0)
			cli_note(cli, "%s  iteration %" PRIu64 "%s%s%s%s%s", name, t.iteration,
			         isnan(t.metric) ? "" : ": ",
			         isnan(t.metric) ? "" : human_number(&cli->keep, t.metric, 5), verdicts[event->verdict],
			         *event->reason != '\0' ? ": " : "", event->reason);
		break;
	case TUNE_EVENT_CHECKPOINT:
		if (cli->common.verbose)
			cli_note(cli, "%s  saved %s", name, event->text);
		break;
	case TUNE_EVENT_ENDED:
		if (event->how == TUNE_FAILED)
			cli_warn(cli, "%s  failed%s: %s", name, event->again ? ", will be tried again" : "",
			         event->text);
		else
			cli_note(cli, "%s  %s", name,
			         event->how == TUNE_LOST ? "set aside"
			         : event->again          ? "paused"
			                                 : "ended");
		break;
	case TUNE_EVENT_NOTICE:
		cli_note(cli, "%s", event->text);
		break;
	case TUNE_EVENT_NONE:
	case TUNE_EVENT_DONE:
		break;
	}
}

/* Is the event worth a sync soon: a checkpoint or the end of a trial? */
static bool
is_worth_a_sync(const struct tune_event *event)
{
	return event->kind == TUNE_EVENT_CHECKPOINT || event->kind == TUNE_EVENT_ENDED ||
	       (event->kind == TUNE_EVENT_REPORT && strstr(event->text, "\"checkpoint_dir_name\"") != NULL);
}

/* Runs until all trials have ended, or a signal arrived and the trials have saved. */
static int
run_trials(struct cli *cli, struct tune_experiment *e, struct tune_runner *runner, struct search_sync *sync,
           struct pawl_error *err)
{
	struct live live = {.term = cli->err.tty && !cli->common.quiet && !cli->common.no_progress ? &cli->err : NULL};
	struct pawl_meter meter = {0};
	struct tune_event event;
	bool stopping = false;
	int rc;

	work_begin(cli->work, NULL, &meter, 0);
	do {
		rc = tune_runner_poll(runner, TUNE_POLL_MS, &event, err);
		if (rc < 0)
			break;
		if (is_worth_a_sync(&event))
			search_sync_request(sync);
		if (!stopping && __atomic_load_n(&meter.cancel, __ATOMIC_RELAXED)) {
			stopping = true;
			trials_erase(&live);
			cli_warn(cli, "stopping: %s may report and save first; a second signal ends them now",
			         human_count(&cli->keep, tune_runner_count(runner), "trial", "trials"));
			tune_runner_stop(runner, false);
		}
		if (event.kind != TUNE_EVENT_NONE && (live.term == NULL || event.kind == TUNE_EVENT_NOTICE ||
		                                      (event.kind == TUNE_EVENT_ENDED && event.how == TUNE_FAILED))) {
			trials_erase(&live);
			print_event(cli, e, &event);
		}
		trials_draw(&live, cli, e, false);
	} while (event.kind != TUNE_EVENT_DONE);
	trials_erase(&live);
	work_end(cli->work);
	if (rc == 0 && stopping)
		return err_set(err, PAWL_ECANCELLED, "interrupted");
	return rc;
}

static void
result_json(struct cli *cli, const struct tune_experiment *e, bool interrupted)
{
	struct tune_counts counts;
	struct jsonout j;
	uint32_t best;

	tune_experiment_counts(e, &counts);
	jsonout_init(&j, stdout);
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "tune");
	jsonout_text(&j, "folder", tune_experiment_folder(e));
	jsonout_bool(&j, "interrupted", interrupted);
	if (tune_best(e, NULL, NULL, NULL, &best, NULL, NULL) == 0)
		trials_json(cli, &j, "best", e, tune_experiment_folder(e), best);
	else
		jsonout_null(&j, "best");
	jsonout_begin_array(&j, "trials");
	for (uint32_t i = 0; i < counts.trials; i++)
		trials_json(cli, &j, NULL, e, tune_experiment_folder(e), i);
	jsonout_end(&j);
	jsonout_end(&j);
	cli->wrote_json = true;
}

static void
result_print(struct cli *cli, const struct tune_experiment *e)
{
	struct tune_counts counts;

	tune_experiment_counts(e, &counts);
	trials_print(cli, e, &cli->out, TUNE_SHOWN);
	if (counts.trials > TUNE_SHOWN)
		cli_note(cli, "and %" PRIu32 " more: pawl tune ls %s", counts.trials - TUNE_SHOWN,
		         tune_experiment_folder(e));
	(void)putchar('\n');
	trials_print_best(cli, e, NULL, NULL, NULL);
	cli_note(cli, "%s; all files are in %s", trials_summary(&cli->keep, e), tune_experiment_folder(e));
}

/* Tries to make the first trial's command: an error in it affects all trials. ret_spec: the
 * document with defaults, to free(). */
static int
check_document(const char *document, char **ret_spec, struct pawl_error *err)
{
	PAWL_FREE char *spec = NULL, *config = NULL, *text = NULL;
	uint64_t n = 0;

	TRY(tune_spec_check(document, &spec, &n, err));
	if (n == 0)
		return err_set(err, PAWL_EUSAGE, "document: search: expected 'grid-random', found 'given'");
	TRY(tune_spec_config(document, 0, &config, err));
	TRY(tune_command_text(document, config, &text, err));
	*ret_spec = steal(&spec);
	return 0;
}

/* Does the command contain a placeholder or a single brace? Errors in it were reported before. */
static bool
has_placeholder(const struct value *run)
{
	const char *at;
	struct value *item;
	size_t i;

	for (i = 0; (item = value_item(run, i)) != NULL; i++) {
		for (at = value_text(item); at != NULL && (at = strchr(at, '{')) != NULL; at += 2)
			if (at[1] != '{')
				return true;
	}
	return false;
}

/* Warns if all trials would get the same command. That is a mistake, unless they read the file of
 * their values. */
static void
note_command(struct cli *cli, const char *document)
{
	struct value *object = value_from_text(document), *space = value_get(object, "space");

	if (value_n_members(space) > 0 && !has_placeholder(value_get(object, "run")))
		cli_note(cli,
		         "run: no argument names a value of the space, such as {%s}; a trial finds the values only in "
		         "the file $PAWL_TUNE_CONFIG",
		         value_first_key(space));
	value_free(object);
}

/* Opens the place that the document names. Fetches the search from there, if requested and none
 * exists here. */
static int
open_sync(struct cli *cli, const char *document, const struct tune_args *args, struct search_sync **ret,
          struct pawl_error *err)
{
	PAWL_FREE char *spec = NULL;

	TRY(check_document(document, &spec, err));
	TRY(search_sync_open(cli, spec, ret, err));
	return args->resume || args->retry_failed ? search_sync_fetch(*ret, err) : search_sync_check(*ret, err);
}

/* Runs the trials and prints their events; prints last what could not be synced. */
static int
run_and_report(struct cli *cli, struct tune_experiment *e, struct tune_runner *runner, struct search_sync *sync,
               struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = search_sync_begin(sync, err), synced = 0;

	if (rc < 0)
		return rc;
	if (*tune_experiment_notice(e) != '\0')
		cli_note(cli, "%s", tune_experiment_notice(e));
	rc = run_trials(cli, e, runner, sync, err);
	if (rc == 0 || rc == PAWL_ECANCELLED) {
		synced = search_sync_end(sync, &why);
		if (cli->common.json)
			result_json(cli, e, rc != 0);
		else
			result_print(cli, e);
	}
	if (rc < 0 && synced < 0)
		cli_warn(cli, "the search was not synced completely: %s", why.message);
	else if (sync != NULL && rc == 0 && synced == 0)
		cli_note(cli, "and in %s", search_sync_place(sync));
	if (rc == PAWL_ECANCELLED)
		cli_note(cli, "continue with: pawl tune %s --resume", cli->operands[0]);
	return rc == 0 && synced < 0 ? err_set(err, synced, "the search was not synced completely: %s", why.message)
	                             : rc;
}

/* Returns the exit status, or a negative code. */
static int
run_document(struct cli *cli, const char *document, const struct tune_args *args, struct pawl_error *err)
{
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	PAWL_CLEAN(search_sync_close) struct search_sync *sync = NULL;
	PAWL_CLEAN(close_runner) struct tune_runner *runner = NULL;
	struct tune_runner_opts opts = {.cpus = (double)args->cpus, .gpus = (int64_t)args->gpus};
	struct tune_counts counts;

	int rc = open_sync(cli, document, args, &sync, err);
	if (rc == 0)
		rc = open_search(document, args, &e, err);
	if (rc == PAWL_EEXISTS)
		cli_note(cli, "--resume continues it");
	TRY(rc);
	TRY(tune_runner_new(e, &opts, &runner, err));
	TRY(run_and_report(cli, e, runner, sync, err));
	tune_experiment_counts(e, &counts);
	return counts.state[TUNE_ERROR] > 0 ? 1 : 0;
}

static int
run_search(struct cli *cli, const struct tune_args *args)
{
	struct pawl_error err = {0};
	const char *document = NULL;

	if (read_document(cli, cli->operands[0], &document, &err) < 0)
		return cli_fail(cli, &err);
	note_command(cli, document);
	if (args->dry_run)
		return dry_run(cli, document);
	const int rc = run_document(cli, document, args, &err);
	return rc < 0 ? cli_fail(cli, &err) : rc;
}

static int
run_tune(struct cli *cli, const void *ptr)
{
	static const struct {
		const char *name;
		int (*run)(struct cli *cli, const struct tune_args *args);
	} verbs[] = {{"ls", search_ls},
	             {"show", search_show},
	             {"best", search_best},
	             {"export", search_export},
	             {"stop", search_stop}};
	const struct tune_args *args = ptr;

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(cli->operands[0], verbs[i].name) != 0)
			continue;
		if (cli->n_operands < 2)
			return cli_usage(cli, "DIR is missing (usage: pawl tune %s DIR)", verbs[i].name);
		if (cli->n_operands > 2 && strcmp(verbs[i].name, "show") != 0)
			return cli_usage(cli, "unexpected argument '%s'", cli->operands[2]);
		return verbs[i].run(cli, args);
	}
	if (cli->n_operands > 1)
		return cli_usage(
			cli,
			"unexpected argument '%s' (usage: pawl tune FILE, or pawl tune ls|show|best|export|stop DIR)",
			cli->operands[1]);
	return run_search(cli, args);
}

const struct command cmd_tune = {
	.name = "tune",
	.group = GROUP_SEARCH,
	.summary = "search for good hyperparameters, with trials in any language",
	.about =
		"FILE (YAML or JSON) describes what to run and what to try. Each trial is a process that reports its metrics "
		"and checkpoints (scripts use 'pawl report'). A scheduler stops, pauses or clones trials by these. "
		"A trial that fails starts again from its last checkpoint, at most max_failures times.\n\n"
		"If 'sync' in the document names an upload_dir, the folder of the search is copied there while it runs. "
		"--resume looks there if the search does not exist locally.\n\n"
		"Ctrl+C lets every trial report and save once more; a second one ends all at once. Afterwards, "
		"the same call with --resume continues the search; finished trials stay finished.\n\n"
		"ls, show, best and export read the folder of a search, also while it runs. ls prints the trials, show one "
		"of them (by name or number), best the best one and its checkpoint. export prints all results as CSV. "
		"stop ends a running search like Ctrl+C.\n\n"
		"Exit status 0: all trials have ended; 1: some have failed.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct tune_args),
	.run = run_tune,
};
