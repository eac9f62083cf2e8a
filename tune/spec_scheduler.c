/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec_scheduler: translates the documented names of a scheduler's options into the scheduler, and
 * a configuration into the values that PBT changes, and back.
 */
#include "spec.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/value.h"
#include "space.h"

static const struct value *
choices_of(const struct value *what)
{
	return value_is(what, JSON_ARRAY) ? what : value_get(what, "$choice");
}

static void
make_mutation(const char *name, const struct value *what, struct sched_mutation *ret)
{
	const struct value *choices = choices_of(what);
	const char *key = value_first_key(what);
	const struct value *range = key ? value_get(what, key) : NULL;

	*ret = (struct sched_mutation){.name = name};
	if (choices) {
		ret->n_choices = (uint32_t)value_n_items(choices);
	} else if (key) {
		ret->low = value_number(value_item(range, 0));
		ret->high = value_number(value_item(range, 1));
		ret->log_scale = strncmp(key, "$log", 4) == 0;
		ret->whole = strstr(key, "randint") != NULL;
	}
}

static int
parse_factors(const struct value *scheduler, struct sched_opts *o, struct pawl_error *err)
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

/* The options that the document gives. */
static void
set_options(const struct value *scheduler, const struct spec_key *keys, struct sched_opts *o)
{
	for (const struct spec_key *k = keys; k->name; k++) {
		const struct value *found = k->field ? value_get(scheduler, k->name) : NULL;
		void *field = (char *)o + k->field;
		if (!found)
			continue;
		if (k->expected == FLAG)
			*(bool *)field = value_is_true(found);
		else if (k->expected == WHOLE)
			*(uint32_t *)field = (uint32_t)value_number(found);
		else
			*(double *)field = value_number(found);
	}
}

bool
spec_is_in_step(const struct spec *s)
{
	return s->kind->algorithm == &sched_asha && value_is_true(value_get(value_get(s->doc, "scheduler"), "synch"));
}

int
spec_make_scheduler(const struct spec *s, struct sched **ret, struct pawl_error *err)
{
	const struct value *from = value_get(s->doc, "scheduler");
	struct sched_opts o = {
		.algorithm = spec_is_in_step(s) ? &sched_hyperband : s->kind->algorithm,
		.maximize = s->maximize,
		.grace = s->kind->algorithm == &sched_median ? 60 : 0,
		.hard_stop = true,
		.resample = -1,
		.in_step = spec_is_in_step(s),
		.takes_turns = s->takes_turns,
		.n_mutations = value_n_members(s->mutations),
		.seed = s->seed,
	};
	const char *name;
	struct value *item;
	size_t n = 0;

	sched_set_defaults(&o);
	set_options(from, s->kind->keys, &o);
	TRY(parse_factors(from, &o, err));
	if (o.in_step && o.brackets > 1)
		return err_set(err, PAWL_EUSAGE, "scheduler: asha with 'synch' has one bracket, found %u", o.brackets);
	PAWL_FREE struct sched_mutation *mutations = mem_zalloc(o.n_mutations + 1, sizeof(*mutations));
	if (!mutations)
		return err_nomem(err, "scheduler");
	VALUE_MEMBERS(s->mutations, name, item) {
		make_mutation(name, item, &mutations[n++]);
	}
	o.mutations = mutations;
	return sched_new(&o, ret, err);
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

	VALUE_MEMBERS(s->mutations, name, item) {
		if (value_at(config, name))
			continue;
		PAWL_CLEAN(value_free_clean)
		struct value *choice =
			value_is(item, JSON_ARRAY) ? VALUE_OBJECT({"$choice", value_ref(item)}) : value_ref(item);
		if (!choice)
			return err_nomem(err, NULL);
		TRY(space_draw(choice, name, s->seed, trial, &drawn, err));
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
