/* SPDX-License-Identifier: Apache-2.0 */
/* experiment_report: turns a report into a result, and a result into a verdict. */
#include "experiment.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/value.h"
#include "trial_checkpoints.h"
#include "trial_files.h"

int
tune_experiment_runs(struct tune_experiment *e, uint32_t trial, int64_t pid, const char *host, struct pawl_error *err)
{
	struct trial *t;

	TRY(experiment_check(e, trial, &t, err));
	t->pid = pid;
	return experiment_set(&t->host, host, err);
}

/* ---- the result ---- */

/* Adds a value, unless the trial has reported that key itself. */
static bool
add_value(struct value *result, const char *key, struct value *value)
{
	if (value_get(result, key)) {
		value_free(value);
		return true;
	}
	return value_set(result, key, value);
}

static double
round_ms(double seconds)
{
	return rint(seconds * 1e6) / 1e6;
}

static bool
add_times(const struct tune_experiment *e, const struct trial *t, struct value *result)
{
	const double now = experiment_now(e), since = t->stamp > 0 && now > t->stamp ? round_ms(now - t->stamp) : 0;
	const time_t seconds = (time_t)now;
	char date[32] = "";
	double step = since;
	struct tm parts;

	if (localtime_r(&seconds, &parts))
		strftime(date, sizeof(date), "%Y-%m-%d_%H-%M-%S", &parts);
	if (value_get_number(value_get(result, "time_this_iter_s"), &step) && !isfinite(step))
		step = since;
	return add_value(result, "time_this_iter_s", value_new_real(since)) &&
	       add_value(result, "time_total_s", value_new_real(round_ms(t->time_s + step))) &&
	       add_value(result, "time_since_restore", value_new_real(round_ms(t->time_s + step - t->from_time_s))) &&
	       add_value(result, "timestamp", value_new_real(round_ms(now))) &&
	       add_value(result, "date", value_new_text(date));
}

/* Adds the keys that every result has to those that the trial reports. */
static int
complete_result(const struct tune_experiment *e, const struct trial *t, const char *checkpoint, struct value *result,
                struct pawl_error *err)
{
	char host[256] = "";
	bool ok = add_value(result, "training_iteration", value_new_int((int64_t)t->iteration + 1)) &&
	          add_times(e, t, result);

	const struct value *iteration = value_get(result, "training_iteration");
	if (ok && (!value_is(iteration, JSON_INT) || value_int(iteration) < 0))
		return err_set(err, PAWL_EUSAGE, "%s: 'training_iteration' must be an integer, 0 or more", t->name);
	gethostname(host, sizeof(host) - 1);
	ok = ok && add_value(result, "trial_id", value_new_text(t->id)) &&
	     add_value(result, "experiment_id", value_new_text(e->token)) &&
	     add_value(result, "pid", value_new_int(t->pid ? t->pid : getpid())) &&
	     add_value(result, "hostname", value_new_text(t->host ? t->host : host)) &&
	     add_value(result, "done", value_new_bool(false)) &&
	     add_value(result, "iterations_since_restore",
	               value_new_int(value_int(iteration) - (int64_t)t->from_iteration));
	if (ok && checkpoint)
		ok = value_set(result, "checkpoint_dir_name", value_new_text(checkpoint));
	return ok ? 0 : err_nomem(err, NULL);
}

/* The names of the metrics in a report, for a message. */
static void
list_names(const struct value *metrics, char *out, size_t size)
{
	const char *name;
	struct value *item;
	size_t len = 0;

	snprintf(out, size, "nothing");
	VALUE_MEMBERS(metrics, name, item) {
		if (len < size)
			len += (size_t)snprintf(out + len, size - len, "%s'%s'", len ? ", " : "", name);
	}
}

/* If no trial reports the metric, a search could run for days and choose nothing. */
static int
check_metric(const struct tune_experiment *e, const struct trial *t, const struct value *metrics,
             struct pawl_error *err)
{
	const struct value *found = e->spec.metric ? value_at(metrics, e->spec.metric) : NULL;
	char keys[300];
	double value;

	if (!e->spec.metric || t->has_metric || value_get_number(found, &value))
		return 0;
	if (found)
		return err_set(err, PAWL_EUSAGE, "%s: its metric '%s' must be a number", t->name, e->spec.metric);
	if (t->n_results > 0)
		return 0;
	list_names(metrics, keys, sizeof(keys));
	return err_set(err, PAWL_EUSAGE, "%s: its first report has no '%s', which the experiment needs (it has %s)",
	               t->name, e->spec.metric, keys);
}

/* The message about a name that the first report lacks. found: its value, if of another type. */
static int
refuse_first(const struct trial *t, const struct value *metrics, const char *name, const char *type,
             const struct value *found, const char *purpose, struct pawl_error *err)
{
	char keys[300];

	list_names(metrics, keys, sizeof(keys));
	return err_set(err, PAWL_EUSAGE,
	               "%s: its first report has no %s '%s', %s; it has %s, and pawl adds 'training_iteration', "
	               "'time_total_s' and others",
	               t->name, found ? type : "metric", name, purpose, keys);
}

/* result: includes the keys that pawl adds to each report; the number may be one of them. */
static int
check_number(const struct trial *t, const struct value *metrics, const struct value *result, const char *name,
             const char *purpose, struct pawl_error *err)
{
	const struct value *found = value_at(result, name);
	double value;

	return value_get_number(found, &value) ? 0 : refuse_first(t, metrics, name, "number", found, purpose, err);
}

/* A number; a flag counts as 0 or 1, as in Ray. */
static bool
number_of(const struct value *v, double *ret)
{
	if (!value_is(v, JSON_BOOL))
		return value_get_number(v, ret);
	*ret = value_is_true(v);
	return true;
}

static int
check_stop(const struct tune_experiment *e, const struct trial *t, const struct value *metrics,
           const struct value *result, struct pawl_error *err)
{
	static const char purpose[] = "by which the trial ends (stop)";
	const char *name;
	struct value *item;
	double value;

	if (value_is_true(value_get(result, "done"))) /* it ends now */
		return 0;
	VALUE_MEMBERS(e->spec.stop, name, item) {
		const struct value *found = value_at(result, name);
		const bool is_flag = value_is(item, JSON_BOOL);
		if (is_flag ? !value_is(found, JSON_BOOL) : !number_of(found, &value))
			return refuse_first(t, metrics, name, is_flag ? "flag" : "number", found, purpose, err);
	}
	return 0;
}

/* A misspelt name would have no effect. Checkpoints without a score are all equal: the first ones
 * would be kept forever (R27, R127). Trials would never end, or never be compared. Later reports
 * may lack a name, e.g. those between two validations. */
static int
check_first(const struct tune_experiment *e, const struct trial *t, const struct value *metrics,
            const struct value *result, struct pawl_error *err)
{
	if (t->n_results > 0)
		return 0;
	TRY(check_number(t, metrics, result, e->spec.score_attr,
	                 "by which checkpoints are kept (checkpoint_score_attr)", err));
	if (e->spec.kind->algorithm != &sched_fifo)
		TRY(check_number(t, metrics, result, e->spec.time_attr,
		                 "by which the scheduler measures time (time_attr)", err));
	return check_stop(e, t, metrics, result, err);
}

static int
check_checkpoint(const struct tune_experiment *e, const struct trial *t, const char *checkpoint, struct pawl_error *err)
{
	if (checkpoint && !trial_checkpoint_is_name(checkpoint))
		return err_set(err, PAWL_EUSAGE,
		               "%s: expected the plain name of a folder as its checkpoint, found '%.100s'", t->name,
		               checkpoint);
	const int rc = checkpoint ? trial_checkpoint_find(e->dirfd, t->name, checkpoint, err) : 0;
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_EUSAGE, "%s: its checkpoint '%s' is not a folder in %s/%s", t->name,
		               checkpoint, e->folder, t->name);
	return rc;
}

/* ---- the verdict ---- */

/* Has a number reached its limit, or is a flag set? */
static bool
is_reached(struct tune_experiment *e, const struct value *result)
{
	const char *name;
	struct value *item;
	double limit, value;

	VALUE_MEMBERS(e->spec.stop, name, item) {
		const struct value *found = value_at(result, name);
		if (value_is(item, JSON_BOOL)) {
			if (!value_is(found, JSON_BOOL) || value_is_true(found) != value_is_true(item))
				continue;
			snprintf(e->reason, sizeof(e->reason), "%.100s", name);
			return true;
		}
		if (value_get_number(item, &limit) && number_of(found, &value) && value >= limit) {
			snprintf(e->reason, sizeof(e->reason), "%.100s >= %g", name, limit);
			return true;
		}
	}
	return false;
}

/* Conditions that end a trial whatever its scheduler decides. */
static bool
is_to_stop(struct tune_experiment *e, const struct trial *t, struct value *result, bool *stop_all)
{
	enum tune_wish wish = TUNE_GO_ON;

	*stop_all = false;
	snprintf(e->reason, sizeof(e->reason), "done");
	if (value_is_true(value_get(result, "done")) || is_reached(e, result))
		return true;
	snprintf(e->reason, sizeof(e->reason), "time_budget_s is spent");
	if (experiment_is_over_time(e))
		return true;
	if (e->opts.judge && value_set(result, "config", value_ref(t->config))) {
		PAWL_FREE char *text = value_print(result);

		if (text)
			wish = e->opts.judge(e->opts.judge_arg, t->number, text);
		value_remove(result, "config");
	}
	*stop_all = wish == TUNE_STOP_ALL;
	snprintf(e->reason, sizeof(e->reason), "%s",
	         wish != TUNE_GO_ON ? "stopped by the program"
	         : t->asked         ? "stopped from outside"
	                            : "");
	return wish != TUNE_GO_ON || t->asked;
}

/* If the donor has no checkpoint, no trial can continue from it: the trial then keeps its
 * values. */
static int
check_donor(struct tune_experiment *e, struct trial *t, struct sched_decision *what, struct pawl_error *err)
{
	if (what->verdict != SCHED_EXPLOIT || e->trials[what->donor].n_checkpoints)
		return 0;
	PAWL_FREE double *values = mem_zalloc(spec_n_mutations(&e->spec) + 1, sizeof(*values));
	if (!values)
		return err_nomem(err, NULL);
	spec_values(&e->spec, t->config, values);
	sched_decline(e->sched, t->number, values);
	*what = (struct sched_decision){.verdict = SCHED_CONTINUE, .save = what->save};
	return 0;
}

static int
decide_trial(struct tune_experiment *e, struct trial *t, struct value *result, const char *checkpoint,
             struct tune_verdict *ret, struct sched_decision *what, struct pawl_error *err)
{
	const uint64_t iteration = (uint64_t)value_int(value_get(result, "training_iteration"));
	const bool stop = is_to_stop(e, t, result, &ret->stop_all);

	TRY(experiment_feed(e, t, result, what, err));
	TRY(check_donor(e, t, what, err));
	if (!stop && what->verdict != SCHED_CONTINUE)
		snprintf(e->reason, sizeof(e->reason), "%s", e->spec.kind->name);
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
	if (ret->kind == TUNE_STOP && !value_set(result, "done", value_new_bool(true)))
		return err_nomem(err, NULL);
	return 0;
}

static int
make_entry(struct tune_experiment *e, const struct trial *t, struct value *result, const char *checkpoint,
           const struct tune_verdict *verdict, const struct sched_decision *what, struct value **ret,
           struct pawl_error *err)
{
	static const char *const names[] = {"continue", "pause", "stop", "exploit"};
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	PAWL_CLEAN(value_free_clean)
	struct value *entry = VALUE_OBJECT({"e", value_new_text("result")}, {"t", value_new_int(t->number)},
	                                   {"r", value_ref(result)});

	entry = value_with_text(entry, "c", checkpoint);
	entry = value_with_text(entry, "v", verdict->kind == TUNE_CONTINUE ? NULL : names[verdict->kind]);
	if (!entry)
		return err_nomem(err, NULL);
	if (verdict->kind == TUNE_EXPLOIT) {
		TRY(experiment_exploit_config(e, what, &config, err));
		if (!value_set(entry, "donor", value_new_int(what->donor)) ||
		    !value_set(entry, "config", value_ref(config)))
			return err_nomem(err, NULL);
	}
	*ret = steal(&entry);
	return 0;
}

/* What follows the entry: the trial's files, and the clone if it continues from a donor. */
static int
follow_result(struct tune_experiment *e, struct trial *t, struct pawl_error *err)
{
	const char *text = experiment_result_text(t);

	if (!text)
		return err_nomem(err, NULL);
	TRY(trial_files_result(e->dirfd, t->name, t->result, text, &t->columns, err));
	return t->owes_exploit ? experiment_exploit(e, t, err) : 0;
}

static int
record_result(struct tune_experiment *e, struct trial *t, struct value *result, const char *checkpoint,
              struct tune_verdict *ret, struct pawl_error *err)
{
	struct tune_verdict verdict = {.reason = e->reason};
	struct sched_decision what;
	struct value *entry = NULL;
	int rc = decide_trial(e, t, result, checkpoint, &verdict, &what, err);

	if (rc == 0)
		rc = make_entry(e, t, result, checkpoint, &verdict, &what, &entry, err);
	e->broken = rc < 0; /* the scheduler has seen it, the journal has not */
	TRY(rc);
	TRY(experiment_put(e, entry, checkpoint != NULL, err));
	t->stamp = experiment_now(e);
	rc = follow_result(e, t, err);
	e->broken = rc < 0; /* opening the experiment again adds what is missing */
	TRY(rc);
	if (verdict.stop_all && !e->closed) { /* also for samples that were not drawn yet */
		TRY(experiment_put(e, VALUE_OBJECT({"e", value_new_text("close")}), true, err));
		rc = experiment_note_state(e, t, err);
		e->broken = rc < 0;
		TRY(rc);
	}
	verdict.result_json = experiment_result_text(t);
	*ret = verdict;
	return 0;
}

int
tune_experiment_report(struct tune_experiment *e, uint32_t trial, const char *metrics_json, const char *checkpoint,
                       struct tune_verdict *ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *metrics = NULL;
	struct trial *t;

	TRY(experiment_check(e, trial, &t, err));
	if (t->state != TUNE_RUNNING)
		return err_set(err, PAWL_EUSAGE, "%s: a report of a trial that does not run (it is %s)", t->name,
		               tune_state_name(t->state));
	if (t->verdict != TUNE_CONTINUE && !t->asked) { /* the trial had a verdict to end and ignored it */
		*ret = (struct tune_verdict){.kind = t->verdict,
		                             .result_json = t->result ? experiment_result_text(t) : "{}",
		                             .reason = "already told to end"};
		return 0;
	}
	TRY(value_parse(metrics_json, SIZE_MAX, "report", &metrics, err));
	if (!value_is(metrics, JSON_OBJECT))
		return err_set(err, PAWL_EUSAGE, "%s: expected an object of metrics as its report", t->name);
	TRY(check_metric(e, t, metrics, err));
	TRY(check_checkpoint(e, t, checkpoint, err));
	PAWL_CLEAN(value_free_clean) struct value *result = value_copy(metrics);
	if (!result)
		return err_nomem(err, NULL);
	TRY(complete_result(e, t, checkpoint, result, err));
	TRY(check_first(e, t, metrics, result, err));
	return record_result(e, t, result, checkpoint, ret, err);
}

int
tune_experiment_checkpoint(struct tune_experiment *e, uint32_t trial, const char *checkpoint, struct pawl_error *err)
{
	struct trial *t;

	TRY(experiment_check(e, trial, &t, err));
	if (!checkpoint || t->state != TUNE_RUNNING)
		return err_set(err, PAWL_EUSAGE, "%s: expected a name, and a trial that runs", t->name);
	if (t->owes_exploit || t->exploited)
		return 0; /* of a state that the exploit replaces */
	TRY(check_checkpoint(e, t, checkpoint, err));
	TRY(experiment_put(e,
	                   VALUE_OBJECT({"e", value_new_text("checkpoint")}, {"t", value_new_int(trial)},
	                                {"c", value_new_text(checkpoint)}),
	                   true, err));
	return experiment_note_state(e, t, err);
}

/* ---- the end ---- */

int
tune_experiment_ended(struct tune_experiment *e, uint32_t trial, enum tune_end how, const char *why, bool *ret_again,
                      struct pawl_error *err)
{
	const char *end = "finished";
	struct trial *t;
	char text[300];

	TRY(experiment_check(e, trial, &t, err));
	if (t->state != TUNE_RUNNING)
		return err_set(err, PAWL_EUSAGE, "%s: the end of a trial that does not run (it is %s)", t->name,
		               tune_state_name(t->state));
	if (how == TUNE_LOST) {
		end = "lost";
	} else if (t->verdict != TUNE_CONTINUE || (how == TUNE_FINISHED && (!e->spec.metric || t->has_metric))) {
		why = NULL;
	} else if (how == TUNE_FINISHED) {
		snprintf(text, sizeof(text), "it ended without a report of '%.100s', which the experiment needs",
		         e->spec.metric);
		end = "error";
		why = text;
	} else {
		const bool again = e->spec.max_failures < 0 || t->failures < (uint64_t)e->spec.max_failures;
		end = again ? "failed" : "error";
		why = why && why[0] ? why : "it failed";
	}
	TRY(experiment_end(e, t, end, why, err));
	if (ret_again)
		*ret_again = t->state == TUNE_PENDING || t->state == TUNE_PAUSED;
	return 0;
}

int
tune_experiment_stop_trial(struct tune_experiment *e, uint32_t trial, const char *why, struct pawl_error *err)
{
	struct trial *t;

	TRY(experiment_check(e, trial, &t, err));
	if (t->state == TUNE_TERMINATED || t->state == TUNE_ERROR)
		return 0;
	struct value *entry = VALUE_OBJECT({"e", value_new_text("stop")}, {"t", value_new_int(trial)});
	TRY(experiment_put(e, value_with_text(entry, "why", why), true, err));
	return t->attempts ? experiment_note_state(e, t, err) : 0;
}
