/* SPDX-License-Identifier: Apache-2.0 */
/* search: see search.h. */
#include "base/value.h"
#include "search.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "base/fd.h"
#include "copy.h"
#include "human.h"
#include "info.h"
#include "jsonout.h"
#include "target.h"
#include "trials.h"

#define SEARCH_FILE "experiment.json"

void
search_close(struct tune_experiment **e)
{
	if (*e != NULL)
		tune_experiment_close(*e);
	*e = NULL;
}

static bool
is_search(struct cli *cli, const char *path)
{
	return access(keep_printf(&cli->keep, "%s/" SEARCH_FILE, path), F_OK) == 0;
}

/* Brings the files that describe the search at a URL into a new folder; NULL: there is none. */
static const char *
fetch_search(struct cli *cli, const char *url)
{
	static const char *const names[] = {SEARCH_FILE, "journal"};
	char *folder = keep_printf(&cli->keep, "%s/pawl-search-XXXXXX", fd_temp_folder());
	int rc = mkdtemp(folder) != NULL ? 0 : -1;

	for (size_t i = 0; i < 2 && rc == 0; i++)
		rc = pawl_saver_fetch(target_join(cli, url, names[i]),
		                      keep_printf(&cli->keep, "%s/%s", folder, names[i]), NULL);
	if (rc == 0)
		return folder;
	copy_remove(folder);
	return NULL;
}

bool
search_is(struct cli *cli, const char *path)
{
	const char *folder;

	if (!target_is_url(path))
		return is_search(cli, path);
	folder = fetch_search(cli, path);
	if (folder != NULL)
		copy_remove(folder);
	return folder != NULL;
}

static int
open_folder(const char *folder, struct tune_experiment **ret, struct pawl_error *err)
{
	const struct tune_open_opts opts = {.folder = folder, .resume = TUNE_READ};

	return tune_experiment_open(NULL, &opts, ret, err);
}

static uint32_t
count_of(const struct tune_experiment *e)
{
	struct tune_counts counts;

	tune_experiment_counts(e, &counts);
	return counts.trials;
}

static void
print_names(struct cli *cli, const struct tune_experiment *e, uint32_t first)
{
	struct tune_trial t;

	for (uint32_t i = first; tune_trial_info(e, i, &t, NULL) == 0; i++)
		(void)printf("%s\n", term_clean(&cli->keep, keep_printf(&cli->keep, "%s", t.name)));
}

/* names, last: as in search_ls_folder. */
static void
print_search(struct cli *cli, const struct tune_experiment *e, const char *folder, bool names, uint64_t last)
{
	const uint32_t n = count_of(e), first = last > 0 && last < n ? n - (uint32_t)last : 0;
	struct jsonout j;

	if (!cli->common.json && names) {
		print_names(cli, e, first);
		return;
	}
	if (!cli->common.json) {
		ask_page(cli);
		trials_print_from(cli, e, &cli->out, first);
		cli_note(cli, "%s", trials_summary(&cli->keep, e));
		return;
	}
	jsonout_init(&j, stdout);
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", cli->command->name);
	jsonout_text(&j, "folder", folder);
	jsonout_begin_array(&j, "trials");
	for (uint32_t i = first; i < n; i++)
		trials_json(cli, &j, NULL, e, folder, i);
	jsonout_end(&j);
	jsonout_end(&j);
}

int
search_ls(struct cli *cli, const struct tune_args *args)
{
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	struct pawl_error err = {0};

	(void)args;
	if (open_folder(cli->operands[1], &e, &err) < 0)
		return cli_fail(cli, &err);
	print_search(cli, e, tune_experiment_folder(e), false, 0);
	return 0;
}

bool
search_ls_folder(struct cli *cli, const char *path, bool names, uint64_t last, int *ret_status)
{
	const char *fetched = target_is_url(path) ? fetch_search(cli, path) : NULL;
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	struct pawl_error err = {0};

	if (fetched == NULL && (target_is_url(path) || !is_search(cli, path)))
		return false;
	*ret_status = 0;
	if (open_folder(fetched != NULL ? fetched : path, &e, &err) < 0)
		*ret_status = cli_fail(cli, &err);
	else
		print_search(cli, e, fetched != NULL ? path : tune_experiment_folder(e), names, last);
	if (fetched != NULL)
		copy_remove(fetched);
	return true;
}

int
search_summary(struct cli *cli, const char *path, const char **ret, uint32_t *ret_trials, struct pawl_error *err)
{
	const char *fetched = target_is_url(path) ? fetch_search(cli, path) : NULL;
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	int rc = target_is_url(path) && fetched == NULL
	                 ? err_set(err, PAWL_ENOTFOUND, "%s: the search cannot be fetched", path)
	                 : open_folder(fetched != NULL ? fetched : path, &e, err);

	if (rc == 0) {
		*ret = trials_summary(&cli->keep, e);
		*ret_trials = count_of(e);
	}
	if (fetched != NULL)
		copy_remove(fetched);
	return rc;
}

/* Finds a trial by number, name or id. */
static int
find_trial(const struct tune_experiment *e, const char *what, uint32_t *ret, struct pawl_error *err)
{
	struct tune_trial t;
	char *end;
	unsigned long number = strtoul(what, &end, 10);

	if (*what >= '0' && *what <= '9' && *end == '\0' && number < count_of(e)) {
		*ret = (uint32_t)number;
		return 0;
	}
	for (uint32_t i = 0; tune_trial_info(e, i, &t, NULL) == 0; i++)
		if (strcmp(t.name, what) == 0 || strcmp(t.id, what) == 0) {
			*ret = i;
			return 0;
		}
	return err_set(err, PAWL_ENOTFOUND, "%s: there is no trial '%s' (%" PRIu32 " trials, counted from 0)",
	               tune_experiment_folder(e), what, count_of(e));
}

static void
print_line(struct cli *cli, const char *name, const char *text)
{
	if (text != NULL && *text != '\0')
		(void)printf("%-12s%s\n", name, term_clean(&cli->keep, keep_printf(&cli->keep, "%s", text)));
}

static void
print_trial(struct cli *cli, const struct tune_experiment *e, uint32_t trial)
{
	struct keep *keep = &cli->keep;
	struct tune_checkpoint c;
	struct tune_trial t;

	if (tune_trial_info(e, trial, &t, NULL) < 0)
		return;
	print_line(cli, "trial", t.name);
	print_line(cli, "id", t.id);
	print_line(cli, "state", tune_state_name(t.state));
	print_line(cli, "iteration", keep_printf(keep, "%" PRIu64, t.iteration));
	print_line(cli, "time", human_seconds(keep, t.time_s));
	print_line(cli, "metric", isnan(t.metric) ? NULL : human_number(keep, t.metric, 6));
	print_line(cli, "best", isnan(t.best) ? NULL : human_number(keep, t.best, 6));
	print_line(cli, "config", t.config_json);
	print_line(cli, "result", t.result_json);
	print_line(cli, "attempts", keep_printf(keep, "%" PRIu32 ", failures %" PRIu32, t.attempts, t.failures));
	print_line(cli, "error", t.error);
	print_line(cli, "host", t.host);
	print_line(cli, "folder", keep_printf(keep, "%s/%s", tune_experiment_folder(e), t.name));
	for (uint32_t i = 0; tune_trial_checkpoint(e, trial, i, &c, NULL) == 0; i++)
		print_line(cli, i == 0 ? "checkpoints" : "",
		           isnan(c.metric) ? c.name
		                           : keep_printf(keep, "%s  %s", c.name, human_number(keep, c.metric, 6)));
}

static void
print_json(struct cli *cli, const struct tune_experiment *e, uint32_t trial, const char *best_checkpoint)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "tune");
	jsonout_text(&j, "folder", tune_experiment_folder(e));
	trials_json(cli, &j, "trial", e, tune_experiment_folder(e), trial);
	if (best_checkpoint != NULL)
		jsonout_text(&j, "best_checkpoint", best_checkpoint);
	jsonout_end(&j);
}

int
search_show(struct cli *cli, const struct tune_args *args)
{
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	struct pawl_error err = {0};
	uint32_t trial = 0;
	char *text;

	(void)args;
	if (open_folder(cli->operands[1], &e, &err) < 0)
		return cli_fail(cli, &err);
	if (cli->n_operands < 3) {
		struct value *spec = value_from_text(tune_experiment_spec(e));

		text = value_print_as(spec, VALUE_INDENTED);
		value_free(spec);
		(void)printf("%s\n", text != NULL ? text : "");
		free(text);
		return 0;
	}
	if (find_trial(e, cli->operands[2], &trial, &err) < 0)
		return cli_fail(cli, &err);
	if (cli->common.json)
		print_json(cli, e, trial, NULL);
	else
		print_trial(cli, e, trial);
	return 0;
}

int
search_best(struct cli *cli, const struct tune_args *args)
{
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	struct pawl_error err = {0};
	struct tune_trial t;
	const char *name = NULL, *path = "";
	uint32_t best;

	if (open_folder(cli->operands[1], &e, &err) < 0 ||
	    tune_best(e, args->metric, args->mode, args->scope, &best, NULL, &err) < 0 ||
	    tune_trial_info(e, best, &t, &err) < 0)
		return cli_fail(cli, &err);
	if (!cli->common.json) {
		trials_print_best(cli, e, args->metric, args->mode, args->scope);
		return 0;
	}
	if (tune_best_checkpoint(e, best, args->metric, args->mode, &name, NULL) == 0)
		path = keep_printf(&cli->keep, "%s/%s/%s", tune_experiment_folder(e), t.name, name);
	print_json(cli, e, best, path);
	return 0;
}

/* ---- results as a table ---- */

/* Calls `each` for each result of a trial, one per line. */
static void
each_result(const char *folder, const char *trial, void (*each)(void *arg, const struct value *result), void *arg)
{
	char *path = NULL, *text = NULL;
	size_t cap = 0;
	FILE *file;

	if (asprintf(&path, "%s/%s/result.json", folder, trial) < 0)
		return;
	file = fopen(path, "re");
	free(path);
	while (file != NULL && getline(&text, &cap, file) > 0) {
		struct value *result = value_from_text(text);

		if (value_is(result, JSON_OBJECT)) /* skip a line that is still being written */
			each(arg, result);
		value_free(result);
	}
	free(text);
	if (file != NULL)
		(void)fclose(file);
}

static void
take_names(void *arg, const struct value *result)
{
	struct value *names = arg, *value;
	const char *key;

	VALUE_MEMBERS(result, key, value) {
		if (!value_is(value, JSON_OBJECT) && !value_is(value, JSON_ARRAY) && value_get(names, key) == NULL)
			(void)value_set(names, key, value_new_bool(true));
	}
}

static void
put_field(const char *text)
{
	if (strpbrk(text, ",\"\n\r") == NULL) {
		(void)fputs(text, stdout);
		return;
	}
	(void)putchar('"');
	for (; *text != '\0'; text++)
		(void)printf(*text == '"' ? "\"\"" : "%c", *text);
	(void)putchar('"');
}

static void
put_value(const struct value *value)
{
	char *text;

	if (value == NULL || value_is(value, JSON_NULL))
		return;
	if (value_is(value, JSON_STRING)) {
		put_field(value_text(value));
		return;
	}
	text = value_print_as(value, VALUE_COMPACT);
	put_field(text != NULL ? text : "");
	free(text);
}

struct rows {
	struct value *names;
	const char *trial;
	const struct value *config;
};

static void
put_row(void *arg, const struct value *result)
{
	const struct rows *rows = arg;
	struct value *value;
	const char *key;

	put_field(rows->trial);
	VALUE_MEMBERS(rows->names, key, value) {
		(void)putchar(',');
		put_value(strncmp(key, "config/", 7) == 0 ? value_get(rows->config, key + 7) : value_get(result, key));
	}
	(void)putchar('\n');
}

static void
export_rows(const struct tune_experiment *e)
{
	struct rows rows = {.names = value_new_object()};
	struct tune_trial t;
	struct value *value;
	const char *key;

	for (uint32_t i = 0; tune_trial_info(e, i, &t, NULL) == 0; i++)
		each_result(tune_experiment_folder(e), t.name, take_names, rows.names);
	for (uint32_t i = 0; tune_trial_info(e, i, &t, NULL) == 0; i++) {
		struct value *config = value_from_text(t.config_json);

		VALUE_MEMBERS(config, key, value) {
			char *name = NULL;

			if (asprintf(&name, "config/%s", key) >= 0)
				(void)value_set(rows.names, name, value_new_bool(true));
			free(name);
		}
		value_free(config);
	}
	(void)fputs("trial", stdout);
	VALUE_MEMBERS(rows.names, key, value) {
		(void)putchar(',');
		put_field(key);
	}
	(void)putchar('\n');
	for (uint32_t i = 0; tune_trial_info(e, i, &t, NULL) == 0; i++) {
		struct value *config = value_from_text(t.config_json);

		rows.trial = t.name;
		rows.config = config;
		each_result(tune_experiment_folder(e), t.name, put_row, &rows);
		value_free(config);
	}
	value_free(rows.names);
}

struct list {
	struct jsonout j;
};

static void
list_result(void *arg, const struct value *result)
{
	struct list *list = arg;
	char *text = value_print_as(result, VALUE_COMPACT);

	if (text != NULL)
		jsonout_literal(&list->j, NULL, text);
	free(text);
}

int
search_export(struct cli *cli, const struct tune_args *args)
{
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	struct pawl_error err = {0};
	struct tune_trial t;
	struct list list;

	(void)args;
	if (open_folder(cli->operands[1], &e, &err) < 0)
		return cli_fail(cli, &err);
	if (!cli->common.json) {
		export_rows(e);
		return 0;
	}
	jsonout_init(&list.j, stdout);
	jsonout_begin_object(&list.j, NULL);
	jsonout_text(&list.j, "command", "tune");
	jsonout_begin_array(&list.j, "results");
	for (uint32_t i = 0; tune_trial_info(e, i, &t, NULL) == 0; i++)
		each_result(tune_experiment_folder(e), t.name, list_result, &list);
	jsonout_end(&list.j);
	jsonout_end(&list.j);
	return 0;
}

/* ---- stopping ---- */

#define STOP_PAUSE_MS 50

/* Parses the number of a process or a signal. Refuses what kill() would take for another process
 * or for several. */
static bool
parse_number(const char *text, int *ret)
{
	char *end;
	long number;

	errno = 0;
	number = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || number < 2 || number > INT_MAX)
		return false;
	*ret = (int)number;
	return true;
}

/* Reads the runner's note: its process, the signal it takes for Ctrl+C, its host. */
static int
read_note(const char *folder, int *ret_pid, int *ret_signal, struct pawl_error *err)
{
	char *path = NULL, numbers[2][32], host[256] = "", here[256] = "";
	int n, pid, number;
	FILE *file;

	if (asprintf(&path, "%s/.runner", folder) < 0)
		return err_set(err, PAWL_ENOMEM, "out of memory");
	file = fopen(path, "re");
	free(path);
	n = file != NULL ? fscanf(file, "%31s %31s %255s", numbers[0], numbers[1], host) : 0;
	if (file != NULL)
		(void)fclose(file);
	if (n != 3 || !parse_number(numbers[0], &pid) || !parse_number(numbers[1], &number) ||
	    (number != SIGINT && number != SIGTERM))
		return err_set(err, PAWL_ENOTFOUND, "%s: no process runs this search", folder);
	(void)gethostname(here, sizeof(here) - 1);
	if (strcmp(host, here) != 0)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: process %d on host %s runs this search; stop it there",
		               folder, pid, host);
	*ret_pid = pid;
	*ret_signal = number;
	return 0;
}

/* Does a process hold the lock? */
static bool
is_running(const char *folder)
{
	char *path = NULL;
	int fd = asprintf(&path, "%s/.lock", folder) >= 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;

	if (fd >= 0)
		(void)close(fd);
	free(path);
	return held;
}

/* The longest time that its trials may need: to report, and to react to SIGTERM. */
static double
patience_of(const struct tune_experiment *e)
{
	struct value *spec = value_from_text(tune_experiment_spec(e));
	double grace = value_number(value_get(spec, "grace_s"));

	value_free(spec);
	return 2 * grace + 30;
}

/* Sends the runner of a search the signal that it has asked for. */
static int
ask_to_stop(const char *folder, struct tune_experiment **ret, int *ret_pid, struct pawl_error *err)
{
	int number;

	TRY(open_folder(folder, ret, err));
	if (!is_running(folder))
		return err_set(err, PAWL_ENOTFOUND, "%s: no process runs this search", folder);
	TRY(read_note(folder, ret_pid, &number, err));
	if (kill(*ret_pid, number) != 0)
		return err_set(err, errno == EPERM ? PAWL_EAUTH : PAWL_ENOTFOUND, "%s: process %d: %s", folder,
		               *ret_pid, strerror(errno));
	return 0;
}

int
search_stop(struct cli *cli, const struct tune_args *args)
{
	PAWL_CLEAN(search_close) struct tune_experiment *e = NULL;
	const struct timespec pause = {.tv_nsec = STOP_PAUSE_MS * 1000000L};
	struct pawl_error err = {0};
	const char *folder = cli->operands[1];
	struct jsonout j;
	double until;
	int pid = 0;

	(void)args;
	if (ask_to_stop(folder, &e, &pid, &err) < 0)
		return cli_fail(cli, &err);
	for (until = info_now() + patience_of(e); is_running(folder);) {
		if (info_now() >= until) {
			(void)err_set(&err, PAWL_ETIMEOUT, "%s: process %d was asked to stop and still runs", folder,
			              pid);
			return cli_fail(cli, &err);
		}
		(void)nanosleep(&pause, NULL);
	}
	cli_note(cli, "process %d has stopped", pid);
	if (!cli->common.json)
		return 0;
	jsonout_init(&j, stdout);
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "tune");
	jsonout_int(&j, "stopped", pid);
	jsonout_end(&j);
	return 0;
}
