/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_apply: the state of an experiment as a fold over the entries of its journal. Uses no
 * file and no clock. The only decision here is which checkpoints a trial keeps. Every entry is
 * applied, whether it was read or just written.
 *
 *   open  {format}            a process opened it: trials that ran then do not run any more
 *   add   {t, name, config}   a trial
 *   close {}                  no further trial: the search is complete, or the judge stopped all
 *   start {t, from}           an attempt, from a checkpoint or from the beginning
 *   result {t, r, c, v, ..}   a result, its checkpoint, the verdict
 *   checkpoint {t, c}         a checkpoint saved later than its result; in a rebuilt journal with
 *                             {iteration, time_s, score, metric, at, of: [trial, number of result]}
 *   exploit {t, as}           the clone exists: the trial has new values
 *   decline {t}               the clone could not be made: the trial continues unchanged
 *   stop  {t, why}            requested from outside: the trial's next report is its last one
 *   end   {t, how, why}       finished, failed, lost, stopped, dropped
 *   retry {t}                 a failed trial is tried again
 */
#include "experiment.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/value.h"
#include "base/vec.h"

/* Takes ownership of the name of a checkpoint that retention has given up. */
static void
note_dropped(struct trial *t, char *name)
{
	if (!array_reserve(t->dropped, t->cap_dropped, t->n_dropped + 1)) { /* then this checkpoint stays */
		mem_free(name);
		return;
	}
	t->dropped[t->n_dropped++] = name;
}

int
experiment_set(char **text, const char *value, struct pawl_error *err)
{
	char *copy = value ? mem_strdup(value) : NULL;

	if (value && !copy)
		return err_nomem(err, NULL);
	mem_free(*text);
	*text = copy;
	return 0;
}

static void
free_checkpoint(struct checkpoint *c)
{
	mem_free(c->name);
}

static void
free_trial(struct trial *t)
{
	for (size_t i = 0; i < t->n_checkpoints; i++)
		free_checkpoint(&t->checkpoints[i]);
	mem_free(t->checkpoints);
	for (size_t i = 0; i < t->n_dropped; i++)
		mem_free(t->dropped[i]);
	mem_free(t->dropped);
	mem_free(t->name);
	mem_free(t->id);
	mem_free(t->config_text);
	mem_free(t->result_text);
	mem_free(t->columns);
	mem_free(t->error);
	mem_free(t->host);
	value_free(t->config);
	value_free(t->new_config);
	value_free(t->result);
}

const char *
experiment_result_text(struct trial *t)
{
	if (t->result && !t->result_text)
		t->result_text = value_print(t->result);
	return t->result_text;
}

void
experiment_free_trials(struct tune_experiment *e)
{
	for (size_t i = 0; i < e->n_trials; i++)
		free_trial(&e->trials[i]);
	mem_free(e->trials);
	e->trials = NULL;
	e->n_trials = e->cap_trials = e->n_running = 0;
	e->n_reports = 0;
	e->closed = false;
}

static void
set_state(struct tune_experiment *e, struct trial *t, enum tune_state state)
{
	e->n_running -= t->state == TUNE_RUNNING;
	e->n_running += state == TUNE_RUNNING;
	t->state = state;
	t->asked = false;
}

/* ---- trials ---- */

static int
add_to_scheduler(struct tune_experiment *e, const struct trial *t, struct pawl_error *err)
{
	const size_t n = spec_n_mutations(&e->spec);
	PAWL_FREE double *values = mem_zalloc(n + 1, sizeof(*values));

	if (!values)
		return err_nomem(err, NULL);
	spec_values(&e->spec, t->config, values);
	return sched_add(e->sched, t->number, n ? values : NULL, err);
}

static int
set_config(struct trial *t, struct value *config, struct pawl_error *err)
{
	char *text = value_print(config);

	if (!text)
		return err_nomem(err, NULL);
	mem_free(t->config_text);
	t->config_text = text;
	value_ref(config);
	value_free(t->config);
	t->config = config;
	return 0;
}

static void
close_search(struct tune_experiment *e)
{
	if (!e->closed)
		sched_close(e->sched);
	e->closed = true;
}

static int
fill_trial(struct tune_experiment *e, struct trial *t, const char *name, struct value *config, struct pawl_error *err)
{
	char id[40];

	snprintf(id, sizeof(id), "%.5s_%05u", e->token, t->number);
	TRY(experiment_set(&t->name, name, err));
	TRY(experiment_set(&t->id, id, err));
	TRY(set_config(t, config, err));
	return add_to_scheduler(e, t, err);
}

static int
apply_add(struct tune_experiment *e, const struct value *entry, struct pawl_error *err)
{
	struct value *config = value_get(entry, "config");
	const char *name = value_get_text(entry, "name");

	if (!value_is(config, JSON_OBJECT) || !name)
		return err_set(err, PAWL_ECORRUPT, "journal: a trial without a name or a configuration");
	if (!array_reserve(e->trials, e->cap_trials, e->n_trials + 1))
		return err_nomem(err, NULL);
	struct trial *t = &e->trials[e->n_trials];
	*t = (struct trial){.number = (uint32_t)e->n_trials, .metric = NAN, .best = NAN};
	const int rc = fill_trial(e, t, name, config, err);
	if (rc < 0) {
		free_trial(t);
		return rc;
	}
	e->n_trials++;
	if (e->n_trials >= e->spec.n_trials)
		close_search(e);
	return 0;
}

/* ---- checkpoints ---- */

/* NaN is worse than any other value (P13). */
static bool
is_better(double a, double b)
{
	return isfinite(a) && (!isfinite(b) || a > b);
}

/* Keeps the best `keep` checkpoints and the newest; among equal ones the older stays (E3). */
static void
retain_checkpoints(struct tune_experiment *e, struct trial *t)
{
	while (e->spec.keep && t->n_checkpoints > e->spec.keep) {
		size_t worst = 0, n_better;
		const size_t newest = t->n_checkpoints - 1;
		for (size_t i = 1; i < t->n_checkpoints; i++)
			if (!is_better(t->checkpoints[i].score, t->checkpoints[worst].score))
				worst = i;
		n_better = t->n_checkpoints - 1;
		if (worst == newest) { /* the newest is kept in addition; drop the worst of the others */
			if (n_better <= e->spec.keep)
				return;
			worst = 0;
			for (size_t i = 1; i < newest; i++)
				if (!is_better(t->checkpoints[i].score, t->checkpoints[worst].score))
					worst = i;
		}
		note_dropped(t, t->checkpoints[worst].name);
		memmove(&t->checkpoints[worst], &t->checkpoints[worst + 1],
		        (newest - worst) * sizeof(t->checkpoints[0]));
		t->n_checkpoints--;
	}
}

/* Removes the trial's record of this checkpoint: a folder of the same name has replaced it. */
static void
forget_checkpoint(struct trial *t, const char *name)
{
	for (size_t i = 0; i < t->n_checkpoints; i++) {
		if (strcmp(t->checkpoints[i].name, name) != 0)
			continue;
		free_checkpoint(&t->checkpoints[i]);
		memmove(&t->checkpoints[i], &t->checkpoints[i + 1],
		        (t->n_checkpoints - i - 1) * sizeof(t->checkpoints[0]));
		t->n_checkpoints--;
		return;
	}
}

static int
add_checkpoint(struct tune_experiment *e, struct trial *t, const char *name, const struct checkpoint *like,
               struct pawl_error *err)
{
	PAWL_FREE char *copy = mem_strdup(name);

	if (!copy)
		return err_nomem(err, NULL);
	forget_checkpoint(t, name);
	if (!array_reserve(t->checkpoints, t->cap_checkpoints, t->n_checkpoints + 1))
		return err_nomem(err, NULL);
	t->checkpoints[t->n_checkpoints] = *like;
	t->checkpoints[t->n_checkpoints++].name = steal(&copy);
	retain_checkpoints(e, t);
	return 0;
}

/* Adds a checkpoint of the trial's last result. */
static int
add_own_checkpoint(struct tune_experiment *e, struct trial *t, const char *name, const struct value *result,
                   struct pawl_error *err)
{
	struct checkpoint like = {
		.iteration = t->iteration, .time_s = t->time_s, .score = NAN, .metric = t->metric, .of = t->of};

	if (value_get_number(value_at(result, e->spec.score_attr), &like.score) && e->spec.score_least)
		like.score = -like.score;
	value_get_number(value_at(result, e->spec.time_attr), &like.at);
	return add_checkpoint(e, t, name, &like, err);
}

/* ---- results ---- */

/* Are there more trials than places? A trial without a checkpoint to resume from keeps its place:
 * otherwise it would restart from the beginning at each turn. */
static bool
others_wait(const struct tune_experiment *e, const struct trial *t)
{
	if (t->attempts > 1 && t->n_checkpoints == 0)
		return false;
	for (size_t i = 0; i < e->n_trials; i++)
		if (e->trials[i].state == TUNE_PENDING || e->trials[i].state == TUNE_PAUSED)
			return true;
	return !e->spec.given && !e->closed && e->n_trials < e->spec.n_trials;
}

int
experiment_feed(struct tune_experiment *e, struct trial *t, const struct value *result, struct sched_decision *ret,
                struct pawl_error *err)
{
	double time, metric;

	*ret = (struct sched_decision){.verdict = SCHED_CONTINUE};
	if (!e->spec.metric || !value_get_number(value_at(result, e->spec.metric), &metric))
		return 0; /* e.g. a report between two validations */
	if (!value_get_number(value_at(result, e->spec.time_attr), &time))
		return 0;
	return sched_report(e->sched, t->number, time, metric, e->spec.takes_turns && others_wait(e, t), ret, err);
}

bool
experiment_improves(double value, double best, bool maximize)
{
	return isfinite(value) && (isnan(best) || (maximize ? value > best : value < best));
}

static void
note_metric(struct tune_experiment *e, struct trial *t, const struct value *result)
{
	double value;

	if (!e->spec.metric || !value_get_number(value_at(result, e->spec.metric), &value))
		return;
	t->has_metric = true;
	t->metric = value;
	if (experiment_improves(value, t->best, e->spec.maximize))
		t->best = value;
}

static enum tune_verdict_kind
verdict_of(const char *text)
{
	return !text                          ? TUNE_CONTINUE
	       : strcmp(text, "pause") == 0   ? TUNE_PAUSE
	       : strcmp(text, "stop") == 0    ? TUNE_STOP
	       : strcmp(text, "exploit") == 0 ? TUNE_EXPLOIT
	                                      : TUNE_CONTINUE;
}

static int
set_exploit(struct tune_experiment *e, struct trial *t, const struct value *entry, struct pawl_error *err)
{
	const int64_t donor = value_int(value_get(entry, "donor"));
	struct value *config = value_get(entry, "config");

	if (donor < 0 || (size_t)donor >= e->n_trials || !value_is(config, JSON_OBJECT))
		return err_set(err, PAWL_ECORRUPT, "journal: %s continues from trial %lld, which does not exist",
		               t->name, (long long)donor);
	t->owes_exploit = true;
	t->donor = (uint32_t)donor;
	value_ref(config);
	value_free(t->new_config);
	t->new_config = config;
	return 0;
}

/* The scheduler gets the values of the trial's configuration. */
static void
restore_values(struct tune_experiment *e, struct trial *t)
{
	double values[256];

	if (spec_n_mutations(&e->spec) <= 256) {
		spec_values(&e->spec, t->config, values);
		sched_decline(e->sched, t->number, values);
	}
}

static int
apply_result(struct tune_experiment *e, struct trial *t, const struct value *entry, bool replay, struct pawl_error *err)
{
	const struct value *result = value_get(entry, "r");
	const char *checkpoint = value_get_text(entry, "c");
	struct sched_decision what = {.verdict = SCHED_CONTINUE};
	PAWL_CLEAN(value_free_clean) struct value *line = value_copy(result);

	if (!value_is(result, JSON_OBJECT))
		return err_set(err, PAWL_ECORRUPT, "journal: %s has a result that is not an object", t->name);
	if (!line)
		return err_nomem(err, NULL);
	if (replay)
		TRY(experiment_feed(e, t, result, &what, err));
	t->verdict = verdict_of(value_get_text(entry, "v"));
	t->asked = false;
	if (t->verdict != TUNE_CONTINUE)
		t->catch_up = 0;
	if (what.verdict == SCHED_EXPLOIT && t->verdict != TUNE_EXPLOIT)
		restore_values(e, t);
	if (!value_set(line, "config", value_ref(t->config)))
		return err_nomem(err, NULL);
	value_free(t->result);
	t->result = steal(&line);
	mem_free(t->result_text);
	t->result_text = NULL;
	t->of = (struct result_place){t->number, ++t->n_results};
	e->n_reports++;
	t->iteration = (uint64_t)value_int(value_get(result, "training_iteration"));
	value_get_number(value_get(result, "time_total_s"), &t->time_s);
	note_metric(e, t, result);
	if (t->verdict == TUNE_EXPLOIT)
		TRY(set_exploit(e, t, entry, err));
	return checkpoint ? add_own_checkpoint(e, t, checkpoint, result, err) : 0;
}

static int
apply_checkpoint(struct tune_experiment *e, struct trial *t, const struct value *entry, struct pawl_error *err)
{
	const char *checkpoint = value_get_text(entry, "c");

	if (!checkpoint)
		return err_set(err, PAWL_ECORRUPT, "journal: a checkpoint of %s without a name", t->name);
	if (!value_get(entry, "iteration"))
		return add_own_checkpoint(e, t, checkpoint, t->result, err);
	const struct value *of = value_get(entry, "of");
	struct checkpoint like = {
		.iteration = (uint64_t)value_int(value_get(entry, "iteration")), .score = NAN, .metric = NAN};
	like.of = (struct result_place){(uint32_t)value_int(value_item(of, 0)), (uint64_t)value_int(value_item(of, 1))};
	value_get_number(value_get(entry, "time_s"), &like.time_s);
	value_get_number(value_get(entry, "score"), &like.score);
	value_get_number(value_get(entry, "metric"), &like.metric);
	value_get_number(value_get(entry, "at"), &like.at);
	return add_checkpoint(e, t, checkpoint, &like, err);
}

/* ---- attempts ---- */

static void
apply_start(struct tune_experiment *e, struct trial *t, const struct value *entry)
{
	const char *from = value_get_text(entry, "from");
	size_t n = t->n_checkpoints;

	while (n > 0 && (!from || strcmp(t->checkpoints[n - 1].name, from) != 0))
		n--; /* newer ones do not exist any more */
	for (size_t i = n; i < t->n_checkpoints; i++)
		free_checkpoint(&t->checkpoints[i]);
	t->n_checkpoints = n;
	t->from_iteration = t->iteration = n ? t->checkpoints[n - 1].iteration : 0;
	t->from_time_s = t->time_s = n ? t->checkpoints[n - 1].time_s : 0;
	t->of = n ? t->checkpoints[n - 1].of : (struct result_place){t->number, 0};
	t->verdict = TUNE_CONTINUE;
	t->exploited = false;
	t->n_dropped_before = t->n_dropped;
	t->attempts++;
	set_state(e, t, TUNE_RUNNING);
}

static int
apply_exploit(struct tune_experiment *e, struct trial *t, const struct value *entry, struct pawl_error *err)
{
	const char *as = value_get_text(entry, "as"), *from = value_get_text(entry, "from");

	if (!t->owes_exploit) /* resumed paused trials: this entry carries the complete exploit */
		TRY(set_exploit(e, t, entry, err));
	t->owes_exploit = false;
	t->exploited = true;
	const struct trial *donor = &e->trials[t->donor];
	for (size_t i = 0; as && from && i < donor->n_checkpoints; i++) {
		if (strcmp(donor->checkpoints[i].name, from) != 0)
			continue;
		sched_exploited(e->sched, t->number, t->donor, donor->checkpoints[i].at);
		TRY(add_checkpoint(e, t, as, &donor->checkpoints[i], err));
		break;
	}
	TRY(set_config(t, t->new_config, err));
	restore_values(e, t); /* from the configuration, which explore may have changed */
	return 0;
}

/* Is its newest checkpoint older than its last result? */
static bool
is_behind(const struct trial *t)
{
	return t->n_checkpoints == 0 || t->checkpoints[t->n_checkpoints - 1].iteration < t->iteration;
}

/* Sets the state of a trial whose process has ended. */
static void
set_end_state(struct tune_experiment *e, struct trial *t, bool by_itself)
{
	if (t->verdict == TUNE_STOP) {
		set_state(e, t, TUNE_TERMINATED);
		sched_end(e->sched, t->number);
	} else if (t->verdict == TUNE_PAUSE && !by_itself && e->spec.synchronous && is_behind(t)) {
		t->catch_up = t->iteration; /* others may resume from its checkpoint there */
		set_state(e, t, TUNE_PENDING);
	} else {
		set_state(e, t, t->verdict == TUNE_PAUSE ? TUNE_PAUSED : TUNE_PENDING);
	}
	t->verdict = TUNE_CONTINUE;
}

static int
apply_end(struct tune_experiment *e, struct trial *t, const struct value *entry, struct pawl_error *err)
{
	const char *how = value_get_text(entry, "how"), *why = value_get_text(entry, "why");

	if (!how)
		return err_set(err, PAWL_ECORRUPT, "journal: an end of %s without a reason", t->name);
	if (strcmp(how, "lost") == 0 || (t->verdict != TUNE_CONTINUE && strcmp(how, "error") != 0)) {
		set_end_state(e, t, strcmp(how, "lost") != 0);
	} else if (strcmp(how, "failed") == 0) { /* and will be tried again */
		t->failures++;
		set_state(e, t, TUNE_PENDING);
		return experiment_set(&t->error, why, err);
	} else if (strcmp(how, "error") == 0) {
		t->failures++;
		set_state(e, t, TUNE_ERROR);
		sched_end(e->sched, t->number);
		return experiment_set(&t->error, why, err);
	} else {
		set_state(e, t, TUNE_TERMINATED);
		sched_end(e->sched, t->number);
	}
	return 0;
}

static int
apply_to_trial(struct tune_experiment *e, struct trial *t, const char *kind, const struct value *entry, bool replay,
               struct pawl_error *err)
{
	if (strcmp(kind, "start") == 0)
		return apply_start(e, t, entry), 0;
	if (strcmp(kind, "result") == 0)
		return apply_result(e, t, entry, replay, err);
	if (strcmp(kind, "checkpoint") == 0)
		return apply_checkpoint(e, t, entry, err);
	if (strcmp(kind, "exploit") == 0)
		return apply_exploit(e, t, entry, err);
	if (strcmp(kind, "end") == 0)
		return apply_end(e, t, entry, err);
	if (strcmp(kind, "stop") == 0) {
		t->asked = t->state == TUNE_RUNNING && (t->asked || t->verdict == TUNE_CONTINUE);
		t->verdict = TUNE_STOP;
		if (t->state != TUNE_RUNNING)
			set_end_state(e, t, true);
	} else if (strcmp(kind, "decline") == 0) {
		t->owes_exploit = false;
		restore_values(e, t);
	} else if (strcmp(kind, "retry") == 0) {
		t->failures = 0;
		set_state(e, t, TUNE_PENDING);
		sched_revive(e->sched, t->number);
	} else {
		return err_set(err, PAWL_EVERSION, "journal: an entry '%.40s', which this version does not know", kind);
	}
	return 0;
}

static int
apply_open(struct tune_experiment *e, const struct value *entry, struct pawl_error *err)
{
	const int64_t format = value_int(value_get(entry, "format"));

	if (format > TUNE_FORMAT)
		return err_set(err, PAWL_EVERSION, "journal: written in format %lld, expected at most %d",
		               (long long)format, TUNE_FORMAT);
	for (size_t i = 0; i < e->n_trials; i++)
		if (e->trials[i].state == TUNE_RUNNING)
			set_end_state(e, &e->trials[i], false);
	return 0;
}

int
experiment_apply(struct tune_experiment *e, const struct value *entry, bool replay, struct pawl_error *err)
{
	const char *kind = value_get_text(entry, "e");
	const struct value *number = value_get(entry, "t");

	if (!kind)
		return err_set(err, PAWL_ECORRUPT, "journal: an entry without a kind");
	if (strcmp(kind, "open") == 0)
		return apply_open(e, entry, err);
	if (strcmp(kind, "add") == 0)
		return apply_add(e, entry, err);
	if (strcmp(kind, "close") == 0) {
		close_search(e);
		return 0;
	}
	if (!value_is(number, JSON_INT) || value_int(number) < 0 || (uint64_t)value_int(number) >= e->n_trials)
		return err_set(err, PAWL_ECORRUPT, "journal: '%.40s' of a trial that was not made", kind);
	return apply_to_trial(e, &e->trials[value_int(number)], kind, entry, replay, err);
}
