/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec_scheduler: translates the documented names of a scheduler's options into the scheduler, and
 * a configuration into the values that PBT changes, and back.
 */
#include "spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/value.h"
#include "space.h"

static double
number(const struct value *object, const char *key, double otherwise)
{
	const struct value *found = value_get(object, key);

	return value_is_number(found) ? value_number(found) : otherwise;
}

static const struct value *
choices_of(const struct value *what)
{
	return value_is(what, JSON_ARRAY) ? what : value_get(what, "$choice");
}

static void
make_mutation(const char *name, const struct value *what, struct sched_mutation *ret)
{
	const char *key = value_is(what, JSON_OBJECT) ? value_first_key(what) : NULL;
	const struct value *range = key ? value_get(what, key) : NULL;

	*ret = (struct sched_mutation){.name = name};
	if (choices_of(what)) {
		ret->n_choices = (uint32_t)value_n_items(choices_of(what));
	} else {
		ret->low = value_number(value_item(range, 0));
		ret->high = value_number(value_item(range, 1));
		ret->log_scale = strncmp(key, "$log", 4) == 0;
		ret->whole = strstr(key, "randint") != NULL;
	}
}

static int
take_factors(const struct value *scheduler, struct sched_opts *o, struct pawl_error *err)
{
	const struct value *factors = value_get(scheduler, "perturbation_factors");

	if (!factors)
		return 0;
	if (value_n_items(factors) != 2 || !value_is_number(value_item(factors, 0)) ||
	    !value_is_number(value_item(factors, 1)))
		return err_set(err, PAWL_EUSAGE,
		               "scheduler: 'perturbation_factors' must be a list of two numbers, as [1.2, 0.8]");
	o->factor_up = value_number(value_item(factors, 0));
	o->factor_down = value_number(value_item(factors, 1));
	return 0;
}

static enum sched_kind
kind_of(const char *name)
{
	return strcmp(name, "median") == 0                                   ? SCHED_MEDIAN
	       : strcmp(name, "asha") == 0                                   ? SCHED_ASHA
	       : strcmp(name, "hyperband") == 0 || strcmp(name, "bohb") == 0 ? SCHED_HYPERBAND
	       : strcmp(name, "pbt") == 0                                    ? SCHED_PBT
	                                                                     : SCHED_FIFO;
}

bool
spec_is_in_step(const struct spec *s)
{
	return strcmp(s->scheduler, "asha") == 0 && value_is_true(value_get(value_get(s->doc, "scheduler"), "synch"));
}

int
spec_scheduler(const struct spec *s, struct sched **ret, struct pawl_error *err)
{
	const struct value *from = value_get(s->doc, "scheduler"), *hard = value_get(from, "hard_stop");
	struct sched_mutation *mutations = NULL;
	struct sched_opts o = {
		.kind = spec_is_in_step(s) ? SCHED_HYPERBAND : kind_of(s->scheduler),
		.in_step = spec_is_in_step(s),
		.maximize = s->maximize,
		.max_time = number(from, "max_t", 0),
		.reduction = number(from, "reduction_factor", 0),
		.brackets = (uint32_t)number(from, "brackets", 0),
		.min_samples = (uint32_t)number(from, "min_samples_required", 0),
		.hard_stop = !value_is(hard, JSON_BOOL),
		.interval = number(from, "perturbation_interval", 0),
		.burn_in = number(from, "burn_in_period", 0),
		.quantile = number(from, "quantile_fraction", 0),
		.resample = number(from, "resample_probability", -1),
		.synchronous = value_is_true(value_get(from, "synch")),
		.takes_turns = s->takes_turns,
		.custom_explore = value_is_true(value_get(from, "custom_explore")),
		.n_mutations = value_n_members(s->mutations),
		.seed = s->seed,
	};
	const char *name;
	struct value *item;
	size_t n = 0;
	int r;

	o.grace = number(from, "grace_period", o.kind == SCHED_MEDIAN ? 60 : 0);
	TRY(take_factors(from, &o, err));
	if (o.in_step && o.brackets > 1)
		return err_set(err, PAWL_EUSAGE, "scheduler: asha with 'synch' has one bracket, found %u", o.brackets);
	mutations = calloc(o.n_mutations + 1, sizeof(*mutations));
	if (!mutations)
		return err_nomem(err, "scheduler");
	VALUE_MEMBERS(s->mutations, name, item) {
		make_mutation(name, item, &mutations[n++]);
	}
	o.mutations = mutations;
	r = sched_new(&o, ret, err);
	free(mutations);
	return r;
}

size_t
spec_n_mutations(const struct spec *s)
{
	return value_n_members(s->mutations);
}

int
spec_fill(const struct spec *s, uint64_t trial, struct value *config, struct pawl_error *err)
{
	const char *name;
	struct value *item, *drawn;
	int r;

	VALUE_MEMBERS(s->mutations, name, item) {
		PAWL_CLEAN(value_free_clean) struct value *choice = NULL;
		if (value_at(config, name))
			continue;
		choice = value_is(item, JSON_ARRAY) ? VALUE_OBJECT({"$choice", value_ref(item)}) : value_ref(item);
		r = choice ? space_draw(choice, name, s->seed, trial, &drawn, err) : err_nomem(err, NULL);
		if (r < 0)
			return r;
		if (!value_set_at(config, name, drawn))
			return err_set(err, PAWL_EUSAGE,
			               "scheduler: hyperparam_mutations: '%s' cannot be set: a value is in the way",
			               name);
	}
	return 0;
}

void
spec_values(const struct spec *s, const struct value *config, double *values)
{
	const char *name;
	struct value *item;
	size_t n = 0;

	VALUE_MEMBERS(s->mutations, name, item) {
		const struct value *list = choices_of(item), *value = value_at(config, name);
		double x = 0;
		if (list)
			for (size_t i = 0; i < value_n_items(list); i++) {
				if (value_equal(value_item(list, i), value)) {
					x = (double)i;
					break;
				}
			}
		else if (!value_get_number(value, &x))
			x = 0;
		values[n++] = x;
	}
}

int
spec_apply(const struct spec *s, const double *values, struct value *config, struct pawl_error *err)
{
	const char *name;
	struct value *item;
	size_t n = 0;

	VALUE_MEMBERS(s->mutations, name, item) {
		const struct value *list = choices_of(item), *old = value_at(config, name);
		const double x = values[n++];
		struct value *made;
		if (list)
			made = value_copy_deep(value_item(list, (size_t)x));
		else if (value_is(old, JSON_INT) && fabs(x) < 0x1p53)
			made = value_new_int((int64_t)x); /* an integer stays an integer */
		else
			made = value_new_real(x);
		if (!value_set_at(config, name, made))
			return err_nomem(err, NULL);
	}
	return 0;
}
