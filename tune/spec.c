/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec: which keys a document has, of what kind, and what they are when they are not given. Called when an experiment
 * is opened; calls space (the space's own checks) and sched (the scheduler's).
 */
#include "spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jsonx.h"
#include "space.h"
#include "tune_err.h"
#include "tune.h"

enum value { TEXT, TEXT_OR_NULL, WHOLE, WHOLE_OR_NULL, NUMBER, FLAG, OBJECT, TEXTS, ANY };

struct key {
	const char *name;
	enum value value;
	double least;
	const char *initial; /* JSON; NULL: left out when it is not given */
};

static const struct key document[] = {
	{"name", TEXT, 0, NULL},
	{"local_dir", TEXT, 0, "\"runs/tune\""},
	{"run", TEXTS, 0, NULL},
	{"env", OBJECT, 0, "{}"},
	{"metric", TEXT_OR_NULL, 0, "null"},
	{"mode", TEXT, 0, "\"min\""},
	{"num_samples", WHOLE, -1, "1"},
	{"seed", WHOLE, 0, "0"},
	{"space", OBJECT, 0, "{}"},
	{"search", TEXT, 0, "\"grid-random\""},
	{"scheduler", ANY, 0, "{\"type\": \"fifo\"}"},
	{"stop", OBJECT, 0, "{}"},
	{"max_failures", WHOLE, -1, "0"},
	{"resources", OBJECT, 0, "{}"},
	{"max_concurrent", WHOLE, 0, "0"},
	{"checkpoint", OBJECT, 0, "{}"},
	{"sync", OBJECT, 0, "{}"},
	{"time_budget_s", NUMBER, 0, "0"},
	{"heartbeat_s", NUMBER, 0, "0"},
	{"grace_s", NUMBER, 0, "30"},
	{"user", OBJECT, 0, NULL},
	{NULL, ANY, 0, NULL},
};
static const struct key resources[] = {
	{"cpu", NUMBER, 0, "1"}, {"gpu", NUMBER, 0, "0"}, {"memory_bytes", WHOLE, 0, "0"}, {NULL, ANY, 0, NULL}};
static const struct key checkpoint[] = {{"keep", WHOLE_OR_NULL, 1, "null"},
                                        {"score_attr", TEXT, 0, "\"training_iteration\""},
                                        {"freq", WHOLE, 0, "0"},
                                        {"at_end", FLAG, 0, "false"},
                                        {NULL, ANY, 0, NULL}};
static const struct key sync_keys[] = {{"upload_dir", TEXT_OR_NULL, 0, "null"},
                                       {"syncer", TEXT_OR_NULL, 0, "\"auto\""},
                                       {"period_s", NUMBER, 0, "300"},
                                       {NULL, ANY, 0, NULL}};

#define COMMON                                                                            \
	{"type", TEXT, 0, NULL}, {"time_attr", TEXT, 0, NULL}, {"metric", TEXT, 0, NULL}, \
	{                                                                                 \
		"mode", TEXT, 0, NULL                                                     \
	}
static const struct key fifo_keys[] = {COMMON, {NULL, ANY, 0, NULL}};
static const struct key median_keys[] = {COMMON,
                                         {"grace_period", NUMBER, 0, NULL},
                                         {"min_samples_required", WHOLE, 1, NULL},
                                         {"hard_stop", FLAG, 0, NULL},
                                         {NULL, ANY, 0, NULL}};
static const struct key asha_keys[] = {COMMON,
                                       {"max_t", NUMBER, 0, NULL},
                                       {"grace_period", NUMBER, 0, NULL},
                                       {"reduction_factor", NUMBER, 0, NULL},
                                       {"brackets", WHOLE, 1, NULL},
                                       {"synch", FLAG, 0, NULL},
                                       {NULL, ANY, 0, NULL}};
static const struct key hyperband_keys[] = {
	COMMON, {"max_t", NUMBER, 0, NULL}, {"reduction_factor", NUMBER, 0, NULL}, {NULL, ANY, 0, NULL}};
static const struct key pbt_keys[] = {COMMON,
                                      {"perturbation_interval", NUMBER, 0, NULL},
                                      {"burn_in_period", NUMBER, 0, NULL},
                                      {"hyperparam_mutations", OBJECT, 0, NULL},
                                      {"quantile_fraction", NUMBER, 0, NULL},
                                      {"resample_probability", NUMBER, 0, NULL},
                                      {"perturbation_factors", ANY, 0, NULL},
                                      {"synch", FLAG, 0, NULL},
                                      {"custom_explore", FLAG, 0, NULL}, /* the driver explores, too */
                                      {NULL, ANY, 0, NULL}};

/* What a document may say; spec_replay.c turns the first two into the last. */
static const struct key replay_keys[] = {COMMON,
                                         {"policy_file", TEXT, 0, NULL},
                                         {"trial", TEXT, 0, NULL},
                                         {"schedule", ANY, 0, NULL},
                                         {NULL, ANY, 0, NULL}};

static const struct {
	const char *name;
	enum sched_kind kind;
	const struct key *keys;
	const char *time_attr;
} schedulers[] = {
	{"fifo", SCHED_FIFO, fifo_keys, "training_iteration"},
	{"median", SCHED_MEDIAN, median_keys, "time_total_s"},
	{"asha", SCHED_ASHA, asha_keys, "training_iteration"},
	{"hyperband", SCHED_HYPERBAND, hyperband_keys, "training_iteration"},
	{"bohb", SCHED_HYPERBAND, hyperband_keys, "training_iteration"},
	{"pbt", SCHED_PBT, pbt_keys, "time_total_s"},
	{"pbt_replay", SCHED_REPLAY, replay_keys, "training_iteration"},
};
#define N_SCHEDULERS (sizeof(schedulers) / sizeof(schedulers[0]))

/* ---- kinds ---- */

static const char *
kind_name(enum value value)
{
	static const char *const names[] = {[TEXT] = "a text",      [TEXT_OR_NULL] = "a text or null",
	                                    [WHOLE] = "an integer", [WHOLE_OR_NULL] = "an integer or null",
	                                    [NUMBER] = "a number",  [FLAG] = "true or false",
	                                    [OBJECT] = "an object", [TEXTS] = "a list of texts",
	                                    [ANY] = "a value"};

	return names[value];
}

static bool
is_of_kind(const json_t *found, enum value value)
{
	json_t *item;
	size_t i;

	if (json_is_null(found))
		return value == TEXT_OR_NULL || value == WHOLE_OR_NULL || value == ANY;
	switch (value) {
	case TEXT:
	case TEXT_OR_NULL:
		return json_is_string(found);
	case WHOLE:
	case WHOLE_OR_NULL:
		return json_is_integer(found);
	case NUMBER:
		return json_is_number(found);
	case FLAG:
		return json_is_boolean(found);
	case OBJECT:
		return json_is_object(found);
	case TEXTS:
		json_array_foreach(found, i, item)
		{
			if (!json_is_string(item))
				return false;
		}
		return json_is_array(found) && json_array_size(found) > 0;
	case ANY:
		break;
	}
	return true;
}

static int
check_known(const json_t *object, const char *what, const struct key *keys, struct pawl_error *err)
{
	char known[600] = "";
	const char *name;
	json_t *item;
	size_t len = 0;

	json_object_foreach((json_t *)object, name, item)
	{
		const struct key *k = keys;
		while (k->name && strcmp(k->name, name) != 0)
			k++;
		if (k->name)
			continue;
		for (k = keys; k->name && len < sizeof(known); k++)
			len += (size_t)snprintf(known + len, sizeof(known) - len, " %s", k->name);
		return tune_fail(err, PAWL_EUSAGE, "%s: key '%s' is not known (known:%s)", what, name, known);
	}
	return 0;
}

/* A copy with the keys in the order of the table and defaults filled in. */
static int
fill(const json_t *object, const char *what, const struct key *keys, json_t **ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *made = json_object();
	int r = check_known(object, what, keys, err);

	if (r < 0)
		return r;
	for (const struct key *k = keys; made && k->name; k++) {
		json_t *found = json_object_get(object, k->name);
		if (!found && !k->initial)
			continue;
		if (!found) {
			r = jsonx_parse(k->initial, SIZE_MAX, k->name, &found, err);
			if (r < 0)
				return r;
			if (json_object_set_new(made, k->name, found) < 0)
				return tune_no_memory(err);
			continue;
		}
		if (!is_of_kind(found, k->value))
			return tune_fail(err, PAWL_EUSAGE, "%s: '%s' must be %s", what, k->name, kind_name(k->value));
		if (json_is_number(found) && !(json_number_value(found) >= k->least))
			return tune_fail(err, PAWL_EUSAGE, "%s: '%s' must be %g or more, found %g", what, k->name,
			                 k->least, json_number_value(found));
		if (json_object_set_new(made, k->name, jsonx_deep_copy(found)) < 0)
			return tune_no_memory(err);
	}
	if (!made)
		return tune_no_memory(err);
	*ret = made;
	made = NULL;
	return 0;
}

static int
fill_inner(json_t *doc, const char *name, const struct key *keys, struct pawl_error *err)
{
	json_t *made = NULL;
	char what[64];
	int r;

	snprintf(what, sizeof(what), "document: %s", name);
	r = fill(json_object_get(doc, name), what, keys, &made, err);
	if (r < 0)
		return r;
	return json_object_set_new(doc, name, made) < 0 ? tune_no_memory(err) : 0;
}

/* ---- parts of the document ---- */

static int
check_name(const char *name, struct pawl_error *err)
{
	if (!name || !name[0] || name[0] == '.' || strchr(name, '/') || strlen(name) > 200)
		return tune_fail(
			err, PAWL_EUSAGE,
			"document: 'name' must be a name of a folder (not empty, no '/', no '.' first), found '%.100s'",
			name ? name : "");
	return 0;
}

static int
check_stop(const json_t *stop, struct pawl_error *err)
{
	const char *name;
	json_t *item;
	double number;

	json_object_foreach((json_t *)stop, name, item)
	{
		if (!jsonx_number(item, &number) && !json_is_boolean(item))
			return tune_fail(err, PAWL_EUSAGE, "document: stop: '%s' must be a number", name);
	}
	return 0;
}

/* What PBT draws anew: a list, $choice, or a range. */
static int
check_mutation(const char *name, const json_t *what, struct pawl_error *err)
{
	const char *key = json_object_iter_key(json_object_iter((json_t *)what));
	const json_t *list = json_is_array(what) ? what : json_object_get(what, "$choice");
	uint64_t n;

	if (list && json_is_array(list) && json_array_size(list) > 0)
		return 0;
	if (json_object_size(what) == 1 && (strcmp(key, "$uniform") == 0 || strcmp(key, "$loguniform") == 0 ||
	                                    strcmp(key, "$randint") == 0 || strcmp(key, "$lograndint") == 0)) {
		JSONX_CLEAN json_t *space = json_pack("{s:O}", name, what);
		return space ? space_check(space, &n, err) : tune_no_memory(err);
	}
	return tune_fail(
		err, PAWL_EUSAGE,
		"scheduler: hyperparam_mutations: '%s' must be a list of values, or $choice, $uniform, $loguniform, "
		"$randint or $lograndint",
		name);
}

static int
take_metric(struct spec *s, const json_t *scheduler, struct pawl_error *err)
{
	const char *metric = jsonx_text(scheduler, "metric"), *mode = jsonx_text(scheduler, "mode");

	s->metric = jsonx_text(s->doc, "metric");
	if (metric && s->metric && strcmp(metric, s->metric) != 0)
		return tune_fail(err, PAWL_EUSAGE, "scheduler: its metric '%s' is not the document's '%s'", metric,
		                 s->metric);
	if (metric && !s->metric) {
		if (json_object_set_new(s->doc, "metric", json_string(metric)) < 0 ||
		    (mode && json_object_set_new(s->doc, "mode", json_string(mode)) < 0))
			return tune_no_memory(err);
		s->metric = jsonx_text(s->doc, "metric");
	}
	mode = jsonx_text(s->doc, "mode");
	s->maximize = strcmp(mode, "max") == 0;
	if (!s->maximize && strcmp(mode, "min") != 0)
		return tune_fail(err, PAWL_EUSAGE, "document: 'mode' must be 'min' or 'max', found '%s'", mode);
	return 0;
}

static int
take_schedule(struct spec *s, const json_t *scheduler, struct pawl_error *err)
{
	if (s->given || s->n_trials != 1)
		return tune_fail(
			err, PAWL_EUSAGE,
			"scheduler: pbt_replay runs one trial: expected a space and a num_samples that make one, "
			"found %s",
			s->given ? "a search that is 'given'" : "more");
	s->schedule = json_object_get(scheduler, "schedule");
	s->synchronous = true;
	return 0;
}

static int
parse_scheduler(struct spec *s, struct pawl_error *err)
{
	json_t *scheduler = json_object_get(s->doc, "scheduler"), *filled;
	const char *type, *name;
	json_t *item;
	size_t i = 0;
	int r;

	if (json_is_string(scheduler)) {
		if (json_object_set_new(s->doc, "scheduler", json_pack("{s:O}", "type", scheduler)) < 0)
			return tune_no_memory(err);
		scheduler = json_object_get(s->doc, "scheduler");
	}
	type = jsonx_text(scheduler, "type");
	while (i < N_SCHEDULERS && (!type || strcmp(schedulers[i].name, type) != 0))
		i++;
	if (i == N_SCHEDULERS)
		return tune_fail(
			err, PAWL_EUSAGE,
			"scheduler: expected fifo, median, asha, hyperband, bohb, pbt or pbt_replay, found '%.100s'",
			type ? type : "nothing");
	r = fill(scheduler, "scheduler", schedulers[i].keys, &filled, err);
	if (r < 0)
		return r;
	if (json_object_set_new(s->doc, "scheduler", filled) < 0)
		return tune_no_memory(err);
	s->scheduler = schedulers[i].name;
	s->time_attr = jsonx_text(filled, "time_attr") ? jsonx_text(filled, "time_attr") : schedulers[i].time_attr;
	r = take_metric(s, filled, err);
	if (r == 0 && schedulers[i].kind == SCHED_REPLAY)
		return take_schedule(s, filled, err);
	if (r == 0 && schedulers[i].kind != SCHED_FIFO && !s->metric)
		r = tune_fail(err, PAWL_EUSAGE, "scheduler: %s needs the document's 'metric', found none",
		              s->scheduler);
	if (r < 0 || schedulers[i].kind != SCHED_PBT)
		return r;
	s->mutations = json_object_get(filled, "hyperparam_mutations");
	s->synchronous = json_is_true(json_object_get(filled, "synch"));
	s->takes_turns = !s->synchronous && (s->given || s->n_trials != UINT64_MAX);
	json_object_foreach((json_t *)s->mutations, name, item)
	{
		r = check_mutation(name, item, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int
parse_search(struct spec *s, struct pawl_error *err)
{
	const char *search = jsonx_text(s->doc, "search");
	const json_int_t samples = json_integer_value(json_object_get(s->doc, "num_samples"));
	uint64_t n_grid;
	int r;

	s->space = json_object_get(s->doc, "space");
	s->given = strcmp(search, "given") == 0;
	if (!s->given && strcmp(search, "grid-random") != 0)
		return tune_fail(err, PAWL_EUSAGE,
		                 "document: 'search' must be 'grid-random' or 'given', found '%.100s'", search);
	if (samples == 0)
		return tune_fail(err, PAWL_EUSAGE,
		                 "document: 'num_samples' must be 1 or more, or -1 (without end), found 0");
	r = s->given ? 0 : space_check(s->space, &n_grid, err);
	if (r < 0)
		return r;
	s->n_trials = UINT64_MAX;
	if (!s->given && samples > 0 &&
	    (__builtin_mul_overflow((uint64_t)samples, n_grid, &s->n_trials) || s->n_trials > SPACE_MAX_TRIALS))
		return tune_fail(err, PAWL_ELIMIT,
		                 "document: num_samples %lld of a grid of %llu points are more than %u trials",
		                 (long long)samples, (unsigned long long)n_grid, SPACE_MAX_TRIALS);
	if (!s->given && samples < 0 && s->time_budget_s == 0)
		return tune_fail(err, PAWL_EUSAGE,
		                 "document: num_samples -1 (without end) needs a 'time_budget_s', found none");
	return 0;
}

static void
parse_checkpoint(struct spec *s)
{
	const json_t *c = json_object_get(s->doc, "checkpoint");

	s->keep = (uint64_t)json_integer_value(json_object_get(c, "keep"));
	s->freq = (uint64_t)json_integer_value(json_object_get(c, "freq"));
	s->at_end = json_is_true(json_object_get(c, "at_end"));
	s->score_attr = jsonx_text(c, "score_attr");
	s->score_least = strncmp(s->score_attr, "min-", 4) == 0;
	if (s->score_least || strncmp(s->score_attr, "max-", 4) == 0)
		s->score_attr += 4;
}

static int
parse(struct spec *s, struct pawl_error *err)
{
	struct sched *sched = NULL;
	int r = check_name(jsonx_text(s->doc, "name"), err);

	if (r == 0)
		r = fill_inner(s->doc, "resources", resources, err);
	if (r == 0)
		r = fill_inner(s->doc, "checkpoint", checkpoint, err);
	if (r == 0)
		r = fill_inner(s->doc, "sync", sync_keys, err);
	if (r < 0)
		return r;
	s->name = jsonx_text(s->doc, "name");
	s->local_dir = jsonx_text(s->doc, "local_dir");
	s->stop = json_object_get(s->doc, "stop");
	s->seed = (uint64_t)json_integer_value(json_object_get(s->doc, "seed"));
	s->max_failures = json_integer_value(json_object_get(s->doc, "max_failures"));
	s->max_concurrent = (uint32_t)json_integer_value(json_object_get(s->doc, "max_concurrent"));
	s->time_budget_s = json_number_value(json_object_get(s->doc, "time_budget_s"));
	parse_checkpoint(s);
	r = check_stop(s->stop, err);
	if (r == 0)
		r = spec_replay_read(s->doc, err);
	if (r == 0)
		r = parse_search(s, err);
	if (r == 0)
		r = parse_scheduler(s, err);
	if (r == 0 && s->n_trials == UINT64_MAX && !s->given && spec_is_in_step(s))
		r = tune_fail(err, PAWL_EUSAGE,
		              "scheduler: asha with 'synch' waits for all trials: expected a number of samples, found "
		              "num_samples -1 (without end)");
	if (r == 0)
		r = spec_scheduler(s, &sched, err);
	sched_free(sched);
	return r;
}

int
spec_parse(const char *text, struct spec *ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *found = NULL;
	struct spec s = {0};
	int r = jsonx_parse(text, SIZE_MAX, "document", &found, err);

	if (r < 0)
		return r;
	if (!json_is_object(found))
		return tune_fail(err, PAWL_EUSAGE, "document: expected an object with 'name', 'space' and others");
	r = fill(found, "document", document, &s.doc, err);
	if (r == 0)
		r = parse(&s, err);
	if (r < 0) {
		spec_clear(&s);
		return r;
	}
	*ret = s;
	return 0;
}

void
spec_clear(struct spec *s)
{
	json_decref(s->doc);
	*s = (struct spec){0};
}

int
spec_check_same(const struct spec *old, const struct spec *now, struct pawl_error *err)
{
	static const char *const keys[] = {"search", "seed", "metric", "mode", "scheduler", "space"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		JSONX_TEXT char *was = NULL, *is = NULL;
		if (json_equal(json_object_get(old->doc, keys[i]), json_object_get(now->doc, keys[i])))
			continue;
		was = jsonx_dump(json_object_get(old->doc, keys[i]));
		is = jsonx_dump(json_object_get(now->doc, keys[i]));
		return tune_fail(
			err, PAWL_EUSAGE,
			"document: '%s' is %.300s, but the experiment was begun with %.300s; take another name for a new "
			"experiment",
			keys[i], is ? is : "", was ? was : "");
	}
	if (now->n_trials < old->n_trials && old->n_trials != UINT64_MAX)
		return tune_fail(
			err, PAWL_EUSAGE,
			"document: 'num_samples' makes %llu trials, but the experiment was begun with %llu: it can only grow",
			(unsigned long long)now->n_trials, (unsigned long long)old->n_trials);
	return 0;
}
