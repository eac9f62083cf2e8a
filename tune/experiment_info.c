/* SPDX-License-Identifier: Apache-2.0 */
/* experiment_info: queries for tables and for choosing the best trial or checkpoint. */
#include "experiment.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/value.h"
#include "trial_files.h"

const char *
tune_state_name(enum tune_state state)
{
	static const char *const names[] = {"PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"};

	return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "UNKNOWN";
}

void
tune_experiment_counts(const struct tune_experiment *e, struct tune_counts *ret)
{
	*ret = (struct tune_counts){
		.trials = (uint32_t)e->n_trials,
		.expected = e->closed                        ? e->n_trials
	                    : e->spec.n_trials == UINT64_MAX ? 0
	                                                     : e->spec.n_trials,
		.reports = e->n_reports,
		.time_s = experiment_now(e) - e->opened_s,
	};
	for (size_t i = 0; i < e->n_trials; i++)
		ret->state[e->trials[i].state]++;
}

int
experiment_find(const struct tune_experiment *e, uint32_t trial, struct trial **ret, struct pawl_error *err)
{
	if (trial >= e->n_trials)
		return err_set(err, PAWL_ENOTFOUND, "trial %u does not exist; there are %zu", trial, e->n_trials);
	*ret = &e->trials[trial];
	return 0;
}

int
tune_trial_info(const struct tune_experiment *e, uint32_t trial, struct tune_trial *ret, struct pawl_error *err)
{
	struct trial *t;

	TRY(experiment_find(e, trial, &t, err));
	*ret = (struct tune_trial){
		.number = t->number,
		.name = t->name,
		.id = t->id,
		.state = t->state,
		.iteration = t->iteration,
		.time_s = t->time_s,
		.metric = t->metric,
		.best = t->best,
		.config_json = t->config_text,
		.result_json = experiment_result_text(t),
		.checkpoint = t->n_checkpoints ? t->checkpoints[t->n_checkpoints - 1].name : NULL,
		.n_checkpoints = (uint32_t)t->n_checkpoints,
		.attempts = t->attempts,
		.failures = t->failures,
		.error = t->error,
		.host = t->host,
	};
	return 0;
}

int
tune_trial_checkpoint(const struct tune_experiment *e, uint32_t trial, uint32_t i, struct tune_checkpoint *ret,
                      struct pawl_error *err)
{
	struct trial *t;

	TRY(experiment_find(e, trial, &t, err));
	if (i >= t->n_checkpoints)
		return err_set(err, PAWL_ENOTFOUND, "%s: checkpoint %u does not exist; there are %zu", t->name, i,
		               t->n_checkpoints);
	*ret = (struct tune_checkpoint){
		.name = t->checkpoints[i].name,
		.iteration = t->checkpoints[i].iteration,
		.score = e->spec.score_least ? -t->checkpoints[i].score : t->checkpoints[i].score,
		.metric = t->checkpoints[i].metric,
		.of_trial = t->checkpoints[i].of.trial,
		.of_result = t->checkpoints[i].of.n,
	};
	return 0;
}

/* ---- the best ---- */

#define MAX_LAST 10

struct series {
	const char *metric;
	bool maximize;
	double last[MAX_LAST], sum, best;
	size_t n;
	/* value of each checkpoint: the metric in its result */
	const struct trial *trial;
	struct result_place read; /* the result that was read last */
	double *of_checkpoint;
};

static int
add_number(void *arg, struct value *result, struct pawl_error *err)
{
	struct series *s = arg;
	double value;

	(void)err;
	s->read.n++;
	if (!value_get_number(value_at(result, s->metric), &value))
		return 0;
	s->last[s->n++ % MAX_LAST] = value;
	s->sum += value;
	if (experiment_improves(value, s->best, s->maximize))
		s->best = value;
	for (size_t i = 0; s->of_checkpoint && i < s->trial->n_checkpoints; i++)
		if (s->trial->checkpoints[i].of.trial == s->read.trial && s->trial->checkpoints[i].of.n == s->read.n)
			s->of_checkpoint[i] = value;
	return 0;
}

static double
mean_of_last(const struct series *s, size_t wanted)
{
	const size_t n = s->n < wanted ? s->n : wanted;
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += s->last[(s->n - 1 - i) % MAX_LAST];
	return n ? sum / (double)n : NAN;
}

static int
set_goal(const struct tune_experiment *e, const char *metric, const char *mode, struct series *ret,
         struct pawl_error *err)
{
	*ret = (struct series){.metric = metric ? metric : e->spec.metric, .maximize = e->spec.maximize, .best = NAN};
	if (!ret->metric)
		return err_set(err, PAWL_EUSAGE, "expected a metric to choose by; the document has none");
	if (mode && strcmp(mode, "min") != 0 && strcmp(mode, "max") != 0)
		return err_set(err, PAWL_EUSAGE, "mode must be 'min' or 'max', found '%.100s'", mode);
	if (mode)
		ret->maximize = strcmp(mode, "max") == 0;
	return 0;
}

/* *ret: NaN = none. */
static int
value_of(const struct tune_experiment *e, const struct trial *t, struct series goal, const char *scope, double *ret,
         struct pawl_error *err)
{
	*ret = NAN;
	if (strcmp(scope, "last") == 0) {
		if (!value_get_number(value_at(t->result, goal.metric), ret))
			*ret = NAN;
		return 0;
	}
	TRY(trial_files_read(e->dirfd, t->name, add_number, &goal, err));
	if (strcmp(scope, "all") == 0)
		*ret = goal.best;
	else if (strcmp(scope, "avg") == 0)
		*ret = goal.n ? goal.sum / (double)goal.n : NAN;
	else
		*ret = mean_of_last(&goal, strcmp(scope, "last-5-avg") == 0 ? 5 : 10);
	return 0;
}

int
tune_best(const struct tune_experiment *e, const char *metric, const char *mode, const char *scope, uint32_t *ret_trial,
          double *ret_value, struct pawl_error *err)
{
	static const char *const scopes[] = {"last", "last-5-avg", "last-10-avg", "avg", "all"};
	double best = NAN, value;
	struct series goal;
	size_t known = 0;

	TRY(set_goal(e, metric, mode, &goal, err));
	scope = scope ? scope : "last";
	while (known < 5 && strcmp(scopes[known], scope) != 0)
		known++;
	if (known == 5)
		return err_set(err, PAWL_EUSAGE,
		               "scope must be last, last-5-avg, last-10-avg, avg or all, found '%.100s'", scope);
	for (size_t i = 0; i < e->n_trials; i++) {
		TRY(value_of(e, &e->trials[i], goal, scope, &value, err));
		if (!experiment_improves(value, best, goal.maximize))
			continue;
		best = value;
		*ret_trial = (uint32_t)i;
	}
	if (isnan(best))
		return err_set(err, PAWL_ENOTFOUND, "%s: no trial has reported a finite '%.100s'", e->folder,
		               goal.metric);
	if (ret_value)
		*ret_value = best;
	return 0;
}

/* Reads the results of the trial's checkpoints. Those of clones are results of other trials. */
static int
read_values(const struct tune_experiment *e, const struct trial *t, struct series goal, struct pawl_error *err)
{
	for (size_t i = 0; i < t->n_checkpoints; i++) {
		const uint32_t owner = t->checkpoints[i].of.trial;
		size_t first = 0;

		while (t->checkpoints[first].of.trial != owner)
			first++;
		if (first < i || owner >= e->n_trials)
			continue; /* they were read, or do not exist */
		goal.read = (struct result_place){owner, 0};
		TRY(trial_files_read(e->dirfd, e->trials[owner].name, add_number, &goal, err));
	}
	return 0;
}

int
tune_best_checkpoint(const struct tune_experiment *e, uint32_t trial, const char *metric, const char *mode,
                     const char **ret, struct pawl_error *err)
{
	struct trial *t;
	struct series goal;
	double best = NAN;
	const char *name = NULL;

	TRY(experiment_find(e, trial, &t, err));
	TRY(set_goal(e, metric, mode, &goal, err));
	PAWL_FREE double *values = mem_zalloc(t->n_checkpoints + 1, sizeof(*values));
	if (!values)
		return err_nomem(err, NULL);
	for (size_t i = 0; i < t->n_checkpoints; i++)
		values[i] = NAN;
	goal.trial = t;
	goal.of_checkpoint = values;
	TRY(read_values(e, t, goal, err));
	for (size_t i = 0; i < t->n_checkpoints; i++)
		if (experiment_improves(values[i], best, goal.maximize)) {
			best = values[i];
			name = t->checkpoints[i].name;
		}
	if (!name)
		return err_set(err, PAWL_ENOTFOUND, "%s: no checkpoint has a finite '%.100s'", t->name, goal.metric);
	*ret = name;
	return 0;
}
