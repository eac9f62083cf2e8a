/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec_scheduler: from the names that people use for a scheduler's options to the scheduler, and between a
 * configuration and the values that PBT changes. Called by spec.c (to check) and experiment.c; calls sched and space.
 */
#include "spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jsonx.h"
#include "space.h"
#include "tune_err.h"

static double
number(const json_t *object, const char *key, double otherwise)
{
	const json_t *found = json_object_get(object, key);

	return json_is_number(found) ? json_number_value(found) : otherwise;
}

static const json_t *
choices_of(const json_t *what)
{
	return json_is_array(what) ? what : json_object_get(what, "$choice");
}

static void
make_mutation(const char *name, const json_t *what, struct sched_mutation *ret)
{
	const char *key = json_is_object(what) ? json_object_iter_key(json_object_iter((json_t *)what)) : NULL;
	const json_t *range = key ? json_object_get(what, key) : NULL;

	*ret = (struct sched_mutation){.name = name};
	if (choices_of(what)) {
		ret->n_choices = (uint32_t)json_array_size(choices_of(what));
	} else {
		ret->low = json_number_value(json_array_get(range, 0));
		ret->high = json_number_value(json_array_get(range, 1));
		ret->log_scale = strncmp(key, "$log", 4) == 0;
		ret->whole = strstr(key, "randint") != NULL;
	}
}

static int
take_factors(const json_t *scheduler, struct sched_opts *o, struct pawl_error *err)
{
	const json_t *factors = json_object_get(scheduler, "perturbation_factors");

	if (!factors)
		return 0;
	if (json_array_size(factors) != 2 || !json_is_number(json_array_get(factors, 0)) ||
	    !json_is_number(json_array_get(factors, 1)))
		return tune_fail(err, PAWL_EUSAGE,
		                 "scheduler: 'perturbation_factors' must be a list of two numbers, as [1.2, 0.8]");
	o->factor_up = json_number_value(json_array_get(factors, 0));
	o->factor_down = json_number_value(json_array_get(factors, 1));
	return 0;
}

static enum sched_kind
kind_of(const char *name)
{
	return strcmp(name, "median") == 0                                   ? SCHED_MEDIAN
	       : strcmp(name, "asha") == 0                                   ? SCHED_ASHA
	       : strcmp(name, "hyperband") == 0 || strcmp(name, "bohb") == 0 ? SCHED_HYPERBAND
	       : strcmp(name, "pbt") == 0                                    ? SCHED_PBT
	       : strcmp(name, "pbt_replay") == 0                             ? SCHED_REPLAY
	                                                                     : SCHED_FIFO;
}

bool
spec_is_in_step(const struct spec *s)
{
	return strcmp(s->scheduler, "asha") == 0 &&
	       json_is_true(json_object_get(json_object_get(s->doc, "scheduler"), "synch"));
}

/* To free(); NULL: no memory. */
static double *
changes_of(const json_t *schedule)
{
	double *times = calloc(json_array_size(schedule) + 1, sizeof(*times));

	for (size_t i = 0; times && i < json_array_size(schedule); i++)
		times[i] = json_number_value(json_object_get(json_array_get(schedule, i), "at"));
	return times;
}

int
spec_scheduler(const struct spec *s, struct sched **ret, struct pawl_error *err)
{
	const json_t *from = json_object_get(s->doc, "scheduler"), *hard = json_object_get(from, "hard_stop");
	struct sched_mutation *mutations = NULL;
	double *changes = NULL;
	struct sched_opts o = {
		.kind = spec_is_in_step(s) ? SCHED_HYPERBAND : kind_of(s->scheduler),
		.in_step = spec_is_in_step(s),
		.maximize = s->maximize,
		.max_time = number(from, "max_t", 0),
		.reduction = number(from, "reduction_factor", 0),
		.brackets = (uint32_t)number(from, "brackets", 0),
		.min_samples = (uint32_t)number(from, "min_samples_required", 0),
		.hard_stop = !json_is_false(hard),
		.interval = number(from, "perturbation_interval", 0),
		.burn_in = number(from, "burn_in_period", 0),
		.quantile = number(from, "quantile_fraction", 0),
		.resample = number(from, "resample_probability", -1),
		.synchronous = json_is_true(json_object_get(from, "synch")),
		.takes_turns = s->takes_turns,
		.custom_explore = json_is_true(json_object_get(from, "custom_explore")),
		.n_mutations = json_object_size(s->mutations),
		.n_changes = json_array_size(s->schedule),
		.seed = s->seed,
	};
	const char *name;
	json_t *item;
	size_t n = 0;
	int r;

	o.grace = number(from, "grace_period", o.kind == SCHED_MEDIAN ? 60 : 0);
	r = take_factors(from, &o, err);
	if (r < 0)
		return r;
	if (o.in_step && o.brackets > 1)
		return tune_fail(err, PAWL_EUSAGE, "scheduler: asha with 'synch' has one bracket, found %u",
		                 o.brackets);
	mutations = calloc(o.n_mutations + 1, sizeof(*mutations));
	changes = changes_of(s->schedule);
	if (!mutations || !changes) {
		free(mutations);
		free(changes);
		return tune_no_memory(err);
	}
	json_object_foreach((json_t *)s->mutations, name, item)
	{
		make_mutation(name, item, &mutations[n++]);
	}
	o.mutations = mutations;
	o.changes = changes;
	r = sched_new(&o, ret, err);
	free(changes);
	free(mutations);
	return r;
}

size_t
spec_n_mutations(const struct spec *s)
{
	return json_object_size(s->mutations);
}

int
spec_fill(const struct spec *s, uint64_t trial, json_t *config, struct pawl_error *err)
{
	const char *name;
	json_t *item, *drawn;
	int r;

	json_object_foreach((json_t *)s->mutations, name, item)
	{
		JSONX_CLEAN json_t *choice = NULL;
		if (jsonx_at(config, name))
			continue;
		choice = json_is_array(item) ? json_pack("{s:O}", "$choice", item) : json_incref(item);
		r = choice ? space_draw(choice, name, s->seed, trial, &drawn, err) : tune_no_memory(err);
		if (r < 0)
			return r;
		if (!jsonx_put(config, name, drawn))
			return tune_fail(err, PAWL_EUSAGE,
			                 "scheduler: hyperparam_mutations: '%s' cannot be set: a value is in the way",
			                 name);
	}
	return 0;
}

void
spec_values(const struct spec *s, const json_t *config, double *values)
{
	const char *name;
	json_t *item;
	size_t n = 0;

	json_object_foreach((json_t *)s->mutations, name, item)
	{
		const json_t *list = choices_of(item), *value = jsonx_at(config, name);
		double x = 0;
		if (list)
			for (size_t i = 0; i < json_array_size(list); i++) {
				if (json_equal(json_array_get(list, i), value)) {
					x = (double)i;
					break;
				}
			}
		else if (!jsonx_number(value, &x))
			x = 0;
		values[n++] = x;
	}
}

int
spec_apply(const struct spec *s, const double *values, json_t *config, struct pawl_error *err)
{
	const char *name;
	json_t *item;
	size_t n = 0;

	json_object_foreach((json_t *)s->mutations, name, item)
	{
		const json_t *list = choices_of(item), *old = jsonx_at(config, name);
		const double x = values[n++];
		json_t *made;
		if (list)
			made = jsonx_deep_copy(json_array_get(list, (size_t)x));
		else if (json_is_integer(old) && fabs(x) < 0x1p53)
			made = json_integer((json_int_t)x); /* what was an integer stays one */
		else
			made = jsonx_real(x);
		if (!jsonx_put(config, name, made))
			return tune_no_memory(err);
	}
	return 0;
}
