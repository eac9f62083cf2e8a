/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_report: a report becomes a result, a result a verdict. Called by the driver for each message of a trial;
 * calls the scheduler, then the journal, then the trial's files.
 */
#include "experiment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "jsonx.h"
#include "trial_checkpoints.h"
#include "trial_files.h"
#include "tune_err.h"

int
tune_experiment_runs(struct tune_experiment *e, uint32_t trial, int64_t pid, const char *host, struct pawl_error *err)
{
	struct trial *t;
	const int r = experiment_check(e, trial, &t, err);

	if (r < 0)
		return r;
	t->pid = pid;
	return experiment_set(&t->host, host, err);
}

/* ---- the result ---- */

/* Unless the trial says so itself. */
static bool
add(json_t *result, const char *key, json_t *value)
{
	if (json_object_get(result, key)) {
		json_decref(value);
		return true;
	}
	return json_object_set_new(result, key, value) == 0;
}

static double
round_ms(double seconds)
{
	return rint(seconds * 1e6) / 1e6;
}

static bool
add_times(const struct tune_experiment *e, const struct trial *t, json_t *result)
{
	const double now = experiment_now(e), since = t->stamp > 0 && now > t->stamp ? round_ms(now - t->stamp) : 0;
	const time_t seconds = (time_t)now;
	char date[32] = "";
	double step = since;
	struct tm parts;

	if (localtime_r(&seconds, &parts))
		strftime(date, sizeof(date), "%Y-%m-%d_%H-%M-%S", &parts);
	if (jsonx_number(json_object_get(result, "time_this_iter_s"), &step) && !isfinite(step))
		step = since;
	return add(result, "time_this_iter_s", jsonx_real(since)) &&
	       add(result, "time_total_s", jsonx_real(round_ms(t->time_s + step))) &&
	       add(result, "time_since_restore", jsonx_real(round_ms(t->time_s + step - t->from_time_s))) &&
	       add(result, "timestamp", jsonx_real(round_ms(now))) && add(result, "date", json_string(date));
}

/* What every result has, beside what the trial reports. */
static int
complete(const struct tune_experiment *e, const struct trial *t, const char *checkpoint, json_t *result,
         struct pawl_error *err)
{
	char host[256] = "";
	json_t *iteration;
	bool ok = add(result, "training_iteration", json_integer((json_int_t)t->iteration + 1)) &&
	          add_times(e, t, result);

	iteration = json_object_get(result, "training_iteration");
	if (ok && (!json_is_integer(iteration) || json_integer_value(iteration) < 0))
		return tune_fail(err, PAWL_EUSAGE, "%s: 'training_iteration' must be an integer, 0 or more", t->name);
	gethostname(host, sizeof(host) - 1);
	ok = ok && add(result, "trial_id", json_string(t->id)) && add(result, "experiment_id", json_string(e->token)) &&
	     add(result, "pid", json_integer(t->pid ? t->pid : getpid())) &&
	     add(result, "hostname", json_string(t->host ? t->host : host)) && add(result, "done", json_false()) &&
	     add(result, "iterations_since_restore",
	         json_integer(json_integer_value(iteration) - (json_int_t)t->from_iteration));
	if (ok && checkpoint)
		ok = json_object_set_new(result, "checkpoint_dir_name", json_string(checkpoint)) == 0;
	return ok ? 0 : tune_no_memory(err);
}

/* The names of the metrics in a report, as a message shows them. */
static void
list_names(const json_t *metrics, char *out, size_t size)
{
	const char *name;
	json_t *item;
	size_t len = 0;

	snprintf(out, size, "nothing");
	json_object_foreach((json_t *)metrics, name, item)
	{
		if (len < size)
			len += (size_t)snprintf(out + len, size - len, "%s'%s'", len ? ", " : "", name);
	}
}

/* A metric that no trial reports would let a search run for days and choose nothing. */
static int
check_metric(const struct tune_experiment *e, const struct trial *t, const json_t *metrics, struct pawl_error *err)
{
	const json_t *found = e->spec.metric ? jsonx_at(metrics, e->spec.metric) : NULL;
	char keys[300];
	double value;

	if (!e->spec.metric || t->has_metric || jsonx_number(found, &value))
		return 0;
	if (found)
		return tune_fail(err, PAWL_EUSAGE, "%s: its metric '%s' must be a number", t->name, e->spec.metric);
	if (t->n_results > 0)
		return 0;
	list_names(metrics, keys, sizeof(keys));
	return tune_fail(err, PAWL_EUSAGE, "%s: its first report has no '%s', which the experiment goes by (it has %s)",
	                 t->name, e->spec.metric, keys);
}

/* Checkpoints without a score are all equal: the first ones would be kept for ever (R27, R127). result: with what pawl
 * adds to each report, which may be the score, too. */
static int
check_score(const struct tune_experiment *e, const struct trial *t, const json_t *metrics, const json_t *result,
            struct pawl_error *err)
{
	const json_t *found = jsonx_at(result, e->spec.score_attr);
	char keys[300];
	double value;

	if (t->n_results > 0 || jsonx_number(found, &value))
		return 0;
	list_names(metrics, keys, sizeof(keys));
	return tune_fail(err, PAWL_EUSAGE,
	                 "%s: its first report has no %s '%s', by which checkpoints are kept (checkpoint_score_attr); "
	                 "it has %s",
	                 t->name, found ? "number" : "metric", e->spec.score_attr, keys);
}

static int
check_checkpoint(const struct tune_experiment *e, const struct trial *t, const char *checkpoint, struct pawl_error *err)
{
	if (checkpoint && !checkpoint_is_name(checkpoint))
		return tune_fail(err, PAWL_EUSAGE,
		                 "%s: expected the plain name of a folder as its checkpoint, found '%.100s'", t->name,
		                 checkpoint);
	if (checkpoint && !checkpoint_is_there(e->dirfd, t->name, checkpoint))
		return tune_fail(err, PAWL_EUSAGE, "%s: its checkpoint '%s' is no folder in %s/%s", t->name, checkpoint,
		                 e->folder, t->name);
	return 0;
}

/* ---- the verdict ---- */

/* A number that has been reached, or a flag. */
static bool
is_reached(struct tune_experiment *e, const json_t *result)
{
	const char *name;
	json_t *item;
	double limit, value;

	json_object_foreach((json_t *)e->spec.stop, name, item)
	{
		const json_t *found = jsonx_at(result, name);
		if (json_is_boolean(item)
		            ? json_is_boolean(found) && json_is_true(found) == json_is_true(item)
		            : jsonx_number(item, &limit) && jsonx_number(found, &value) && value >= limit) {
			if (json_is_boolean(item))
				snprintf(e->reason, sizeof(e->reason), "%.100s", name);
			else
				snprintf(e->reason, sizeof(e->reason), "%.100s >= %g", name, limit);
			return true;
		}
	}
	return false;
}

/* What ends a trial whatever its scheduler says. */
static bool
is_to_stop(struct tune_experiment *e, const struct trial *t, json_t *result, bool *stop_all)
{
	enum tune_wish wish = TUNE_GO_ON;
	char *text;

	*stop_all = false;
	snprintf(e->reason, sizeof(e->reason), "done");
	if (json_is_true(json_object_get(result, "done")) || is_reached(e, result))
		return true;
	snprintf(e->reason, sizeof(e->reason), "time_budget_s is spent");
	if (experiment_is_over_time(e))
		return true;
	if (e->opts.judge && json_object_set(result, "config", t->config) == 0) {
		text = jsonx_dump(result);
		if (text)
			wish = e->opts.judge(e->opts.judge_arg, t->number, text);
		free(text);
		json_object_del(result, "config");
	}
	*stop_all = wish == TUNE_STOP_ALL;
	snprintf(e->reason, sizeof(e->reason), "%s", wish != TUNE_GO_ON ? "stopped by the program" : "");
	return wish != TUNE_GO_ON;
}

/* Nobody can go on from a donor without a checkpoint: then the trial keeps its values. */
static int
check_donor(struct tune_experiment *e, struct trial *t, struct sched_decision *what, struct pawl_error *err)
{
	const size_t n = spec_n_mutations(&e->spec);
	double *values;

	if (what->verdict != SCHED_EXPLOIT || e->trials[what->donor].n_checkpoints)
		return 0;
	values = calloc(n + 1, sizeof(*values));
	if (!values)
		return tune_no_memory(err);
	spec_values(&e->spec, t->config, values);
	sched_decline(e->sched, t->number, values);
	free(values);
	*what = (struct sched_decision){.verdict = SCHED_CONTINUE, .save = what->save};
	return 0;
}

static int
decide(struct tune_experiment *e, struct trial *t, json_t *result, const char *checkpoint, struct tune_verdict *ret,
       struct sched_decision *what, struct pawl_error *err)
{
	const uint64_t iteration = (uint64_t)json_integer_value(json_object_get(result, "training_iteration"));
	const bool stop = is_to_stop(e, t, result, &ret->stop_all);
	int r = experiment_feed(e, t, result, what, err);

	if (r == 0)
		r = check_donor(e, t, what, err);
	if (r < 0)
		return r;
	if (!stop && what->verdict != SCHED_CONTINUE)
		snprintf(e->reason, sizeof(e->reason), "%s", e->spec.scheduler);
	ret->kind = stop                                      ? TUNE_STOP
	            : t->catch_up && iteration >= t->catch_up ? TUNE_PAUSE
	            : what->verdict == SCHED_STOP             ? TUNE_STOP
	            : what->verdict == SCHED_PAUSE            ? TUNE_PAUSE
	            : what->verdict == SCHED_EXPLOIT          ? TUNE_EXPLOIT
	                                                      : TUNE_CONTINUE;
	if (checkpoint)
		ret->save = false;
	else if (ret->kind == TUNE_CONTINUE)
		ret->save = what->save || (e->spec.freq && iteration % e->spec.freq == 0);
	else
		ret->save = ret->kind == TUNE_PAUSE || (ret->kind == TUNE_STOP && e->spec.at_end);
	if (ret->kind == TUNE_STOP && json_object_set_new(result, "done", json_true()) < 0)
		return tune_no_memory(err);
	return 0;
}

static int
make_entry(struct tune_experiment *e, const struct trial *t, json_t *result, const char *checkpoint,
           const struct tune_verdict *verdict, const struct sched_decision *what, json_t **ret, struct pawl_error *err)
{
	static const char *const names[] = {"continue", "pause", "stop", "exploit"};
	JSONX_CLEAN json_t *config = NULL, *entry = NULL;
	int r = 0;

	entry = json_pack("{s:s, s:i, s:O}", "e", "result", "t", (int)t->number, "r", result);
	entry = jsonx_with(entry, "c", checkpoint);
	entry = jsonx_with(entry, "v", verdict->kind == TUNE_CONTINUE ? NULL : names[verdict->kind]);
	if (!entry)
		return tune_no_memory(err);
	if (verdict->kind == TUNE_EXPLOIT) {
		r = experiment_exploit_config(e, what, &config, err);
		if (r == 0 && (json_object_set_new(entry, "donor", json_integer(what->donor)) < 0 ||
		               json_object_set(entry, "config", config) < 0))
			r = tune_no_memory(err);
	}
	if (r == 0) {
		*ret = entry;
		entry = NULL;
	}
	return r;
}

static int
take(struct tune_experiment *e, struct trial *t, json_t *result, const char *checkpoint, struct tune_verdict *ret,
     struct pawl_error *err)
{
	struct tune_verdict verdict = {.reason = e->reason};
	struct sched_decision what;
	json_t *entry = NULL;
	const char *text;
	int r = decide(e, t, result, checkpoint, &verdict, &what, err);

	if (r == 0)
		r = make_entry(e, t, result, checkpoint, &verdict, &what, &entry, err);
	e->broken = r < 0; /* the scheduler has seen it, the journal has not */
	if (r == 0)
		r = experiment_put(e, entry, checkpoint != NULL, err);
	if (r < 0)
		return r;
	t->stamp = experiment_now(e);
	text = experiment_result_text(t);
	r = text ? trial_files_result(e->dirfd, t->name, t->result, text, &t->columns, err) : tune_no_memory(err);
	if (r == 0 && t->owes_exploit)
		r = experiment_exploit(e, t, err);
	e->broken = r < 0; /* what is missing is mended when it is opened again */
	if (r < 0)
		return r;
	verdict.result_json = experiment_result_text(t);
	*ret = verdict;
	return 0;
}

int
tune_experiment_report(struct tune_experiment *e, uint32_t trial, const char *metrics_json, const char *checkpoint,
                       struct tune_verdict *ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *metrics = NULL, *result = NULL;
	struct trial *t;
	int r = experiment_check(e, trial, &t, err);

	if (r < 0)
		return r;
	if (t->state != TUNE_RUNNING)
		return tune_fail(err, PAWL_EUSAGE, "%s: a report of a trial that does not run (it is %s)", t->name,
		                 tune_state_name(t->state));
	if (t->verdict != TUNE_CONTINUE) { /* it has been told to end, and did not listen */
		*ret = (struct tune_verdict){.kind = t->verdict,
		                             .result_json = t->result ? experiment_result_text(t) : "{}",
		                             .reason = "told before"};
		return 0;
	}
	r = jsonx_parse(metrics_json, SIZE_MAX, "report", &metrics, err);
	if (r == 0 && !json_is_object(metrics))
		r = tune_fail(err, PAWL_EUSAGE, "%s: expected an object of metrics as its report", t->name);
	if (r == 0)
		r = check_metric(e, t, metrics, err);
	if (r == 0)
		r = check_checkpoint(e, t, checkpoint, err);
	if (r == 0 && !(result = jsonx_copy(metrics)))
		r = tune_no_memory(err);
	if (r == 0)
		r = complete(e, t, checkpoint, result, err);
	if (r == 0)
		r = check_score(e, t, metrics, result, err);
	return r < 0 ? r : take(e, t, result, checkpoint, ret, err);
}

int
tune_experiment_checkpoint(struct tune_experiment *e, uint32_t trial, const char *checkpoint, struct pawl_error *err)
{
	struct trial *t;
	int r = experiment_check(e, trial, &t, err);

	if (r == 0 && (!checkpoint || t->state != TUNE_RUNNING))
		r = tune_fail(err, PAWL_EUSAGE, "%s: expected a name, and a trial that runs", t->name);
	if (r == 0 && t->owes_exploit)
		return 0; /* of what it leaves behind */
	if (r == 0)
		r = check_checkpoint(e, t, checkpoint, err);
	if (r < 0)
		return r;
	return experiment_put(e, json_pack("{s:s, s:i, s:s}", "e", "checkpoint", "t", (int)trial, "c", checkpoint),
	                      true, err);
}

/* ---- the end ---- */

int
tune_experiment_ended(struct tune_experiment *e, uint32_t trial, enum tune_end how, const char *why, bool *ret_again,
                      struct pawl_error *err)
{
	struct trial *t;
	char text[300];
	int r = experiment_check(e, trial, &t, err);

	if (r < 0)
		return r;
	if (t->state != TUNE_RUNNING)
		return tune_fail(err, PAWL_EUSAGE, "%s: the end of a trial that does not run (it is %s)", t->name,
		                 tune_state_name(t->state));
	if (how == TUNE_LOST) {
		r = experiment_end(e, t, "lost", why, err);
	} else if (t->verdict != TUNE_CONTINUE) {
		r = experiment_end(e, t, "finished", NULL, err);
	} else if (how == TUNE_FINISHED && e->spec.metric && !t->has_metric) {
		snprintf(text, sizeof(text), "it ended without a report of '%.100s', which the experiment goes by",
		         e->spec.metric);
		r = experiment_end(e, t, "error", text, err);
	} else if (how == TUNE_FINISHED) {
		r = experiment_end(e, t, "finished", NULL, err);
	} else {
		const bool again = e->spec.max_failures < 0 || t->failures < (uint64_t)e->spec.max_failures;
		r = experiment_end(e, t, again ? "failed" : "error", why && why[0] ? why : "it failed", err);
	}
	if (r == 0 && ret_again)
		*ret_again = t->state == TUNE_PENDING || t->state == TUNE_PAUSED;
	return r;
}

int
tune_experiment_stop_trial(struct tune_experiment *e, uint32_t trial, const char *why, struct pawl_error *err)
{
	struct trial *t;
	int r = experiment_check(e, trial, &t, err);

	if (r < 0 || t->state == TUNE_TERMINATED || t->state == TUNE_ERROR)
		return r;
	r = experiment_put(e, jsonx_with(json_pack("{s:s, s:i}", "e", "stop", "t", (int)trial), "why", why), true, err);
	if (r == 0 && t->attempts)
		r = experiment_note_state(e, t, err);
	return r;
}
