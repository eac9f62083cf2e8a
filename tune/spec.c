/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec: the keys of a document, their types and their defaults. Parts are checked by space and
 * sched.
 */
#include "spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"
#include "base/value.h"
#include "base/vec.h"
#include "space.h"
#include "tune.h"

static const struct spec_key document[] = {
	KEY("name", TEXT, 0, NULL),
	KEY("local_dir", TEXT, 0, "\"runs/tune\""),
	KEY("run", TEXTS, 0, NULL),
	KEY("env", OBJECT, 0, "{}"),
	KEY("metric", TEXT_OR_NULL, 0, "null"),
	KEY("mode", TEXT, 0, "\"min\""),
	KEY("num_samples", WHOLE, -1, "1"),
	KEY("seed", WHOLE, 0, "0"),
	KEY("space", OBJECT, 0, "{}"),
	KEY("search", TEXT, 0, "\"grid-random\""),
	KEY("scheduler", ANY, 0, "{\"type\": \"fifo\"}"),
	KEY("stop", OBJECT, 0, "{}"),
	KEY("max_failures", WHOLE, -1, "0"),
	KEY("resources", OBJECT, 0, "{}"),
	KEY("max_concurrent", WHOLE, 0, "0"),
	KEY("checkpoint", OBJECT, 0, "{}"),
	KEY("sync", OBJECT, 0, "{}"),
	KEY("time_budget_s", NUMBER, 0, "0"),
	KEY("heartbeat_s", NUMBER, 0, "0"),
	KEY("grace_s", NUMBER, 0, "30"),
	KEY("user", OBJECT, 0, NULL),
	KEYS_END,
};
static const struct spec_key resources[] = {KEY("cpu", NUMBER, 0, "1"), KEY("gpu", NUMBER, 0, "0"),
                                            KEY("memory_bytes", WHOLE, 0, "0"), KEYS_END};
static const struct spec_key checkpoint[] = {KEY("keep", WHOLE_OR_NULL, 1, "null"),
                                             KEY("score_attr", TEXT, 0, "\"training_iteration\""),
                                             KEY("freq", WHOLE, 0, "0"), KEY("at_end", FLAG, 0, "false"), KEYS_END};
static const struct spec_key sync_keys[] = {KEY("upload_dir", TEXT_OR_NULL, 0, "null"),
                                            KEY("syncer", TEXT_OR_NULL, 0, "\"auto\""),
                                            KEY("period_s", NUMBER, 0, "300"), KEYS_END};

/* ---- kinds ---- */

static const char *
kind_name(enum spec_expected expected)
{
	static const char *const names[] = {[TEXT] = "a text",      [TEXT_OR_NULL] = "a text or null",
	                                    [WHOLE] = "an integer", [WHOLE_OR_NULL] = "an integer or null",
	                                    [NUMBER] = "a number",  [FLAG] = "true or false",
	                                    [OBJECT] = "an object", [TEXTS] = "a list of texts",
	                                    [ANY] = "a value"};

	return names[expected];
}

static bool
is_of_kind(const struct value *found, enum spec_expected expected)
{
	if (value_is(found, JSON_NULL))
		return expected == TEXT_OR_NULL || expected == WHOLE_OR_NULL || expected == ANY;
	switch (expected) {
	case TEXT:
	case TEXT_OR_NULL:
		return value_is(found, JSON_STRING);
	case WHOLE:
	case WHOLE_OR_NULL:
		return value_is(found, JSON_INT);
	case NUMBER:
		return value_is_number(found);
	case FLAG:
		return value_is(found, JSON_BOOL);
	case OBJECT:
		return value_is(found, JSON_OBJECT);
	case TEXTS:
		for (size_t i = 0; i < value_n_items(found); i++)
			if (!value_is(value_item(found, i), JSON_STRING))
				return false;
		return value_is(found, JSON_ARRAY) && value_n_items(found) > 0;
	case ANY:
		break;
	}
	return true;
}

static int
refuse_key(const char *what, const char *name, const struct spec_key *keys, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf known = {0};
	VEC(const char *) names = {0};

	for (const struct spec_key *k = keys; k->name; k++) {
		const char **row = vec_add(&names);
		if (row)
			*row = k->name;
	}
	names_put_known(&known, name, names.items, names.n);
	vec_free(&names);
	return err_set(err, PAWL_EUSAGE, "%s: key '%s' is not known%s", what, name, buf_str(&known));
}

static int
check_known(const struct value *object, const char *what, const struct spec_key *keys, struct pawl_error *err)
{
	const char *name;
	struct value *item;

	VALUE_MEMBERS(object, name, item) {
		const struct spec_key *k = keys;
		while (k->name && strcmp(k->name, name) != 0)
			k++;
		if (!k->name)
			return refuse_key(what, name, keys, err);
	}
	return 0;
}

/* A copy with the keys in the order of the table and defaults filled in. */
static int
fill_defaults(const struct value *object, const char *what, const struct spec_key *keys, struct value **ret,
              struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *made = value_new_object();

	TRY(check_known(object, what, keys, err));
	for (const struct spec_key *k = keys; made && k->name; k++) {
		struct value *found = value_get(object, k->name);
		if (!found && !k->initial)
			continue;
		if (!found) {
			TRY(value_parse(k->initial, SIZE_MAX, k->name, &found, err));
			if (!value_set(made, k->name, found))
				return err_nomem(err, NULL);
			continue;
		}
		if (!is_of_kind(found, k->expected))
			return err_set(err, PAWL_EUSAGE, "%s: '%s' must be %s", what, k->name, kind_name(k->expected));
		if (value_is_number(found) && !(value_number(found) >= k->least))
			return err_set(err, PAWL_EUSAGE, "%s: '%s' must be %g or more, found %g", what, k->name,
			               k->least, value_number(found));
		if (!value_set(made, k->name, value_copy_deep(found)))
			return err_nomem(err, NULL);
	}
	if (!made)
		return err_nomem(err, NULL);
	*ret = steal(&made);
	return 0;
}

static int
fill_inner(struct value *doc, const char *name, const struct spec_key *keys, struct pawl_error *err)
{
	struct value *made = NULL;
	char what[64];

	snprintf(what, sizeof(what), "document: %s", name);
	TRY(fill_defaults(value_get(doc, name), what, keys, &made, err));
	return value_set(doc, name, made) ? 0 : err_nomem(err, NULL);
}

/* ---- parts of the document ---- */

static int
check_name(const char *name, struct pawl_error *err)
{
	if (!name || !name[0] || name[0] == '.' || strchr(name, '/') || strlen(name) > 200)
		return err_set(err, PAWL_EUSAGE,
		               "document: 'name' must be the name of a folder (not empty, no '/', no '.' first), found "
		               "'%.100s'",
		               name ? name : "");
	return 0;
}

static int
check_local_dir(const char *dir, struct pawl_error *err)
{
	if (text_begins_as_url(dir))
		return err_set(err, PAWL_EUSAGE,
		               "document: 'local_dir' must be a folder of this machine, found '%.200s'; give a URL as "
		               "upload_dir of 'sync'",
		               dir);
	return 0;
}

static int
check_stop(const struct value *stop, struct pawl_error *err)
{
	const char *name;
	struct value *item;
	double number;

	VALUE_MEMBERS(stop, name, item) {
		if (!value_get_number(item, &number) && !value_is(item, JSON_BOOL))
			return err_set(err, PAWL_EUSAGE, "document: stop: '%s' must be a number", name);
	}
	return 0;
}

/* Checks what PBT draws anew: a list, $choice, or a range. */
static int
check_mutation(const char *name, const struct value *what, struct pawl_error *err)
{
	const char *key = value_first_key(what);
	const struct value *list = value_is(what, JSON_ARRAY) ? what : value_get(what, "$choice");
	uint64_t n;

	if (list && value_is(list, JSON_ARRAY) && value_n_items(list) > 0)
		return 0;
	if (value_n_members(what) == 1 && (strcmp(key, "$uniform") == 0 || strcmp(key, "$loguniform") == 0 ||
	                                   strcmp(key, "$randint") == 0 || strcmp(key, "$lograndint") == 0)) {
		PAWL_CLEAN(value_free_clean) struct value *space = VALUE_OBJECT({name, value_ref(what)});
		return space ? space_check(space, &n, err) : err_nomem(err, NULL);
	}
	return err_set(
		err, PAWL_EUSAGE,
		"scheduler: hyperparam_mutations: '%s' must be a list of values, or $choice, $uniform, $loguniform, "
		"$randint or $lograndint",
		name);
}

static int
parse_metric(struct spec *s, const struct value *scheduler, struct pawl_error *err)
{
	const char *metric = value_get_text(scheduler, "metric"), *mode = value_get_text(scheduler, "mode");

	s->metric = value_get_text(s->doc, "metric");
	if (metric && s->metric && strcmp(metric, s->metric) != 0)
		return err_set(err, PAWL_EUSAGE, "scheduler: its metric '%s' is not the document's '%s'", metric,
		               s->metric);
	if (metric && !s->metric) {
		if (!value_set(s->doc, "metric", value_new_text(metric)) ||
		    (mode && !value_set(s->doc, "mode", value_new_text(mode))))
			return err_nomem(err, NULL);
		s->metric = value_get_text(s->doc, "metric");
	}
	mode = value_get_text(s->doc, "mode");
	s->maximize = strcmp(mode, "max") == 0;
	if (!s->maximize && strcmp(mode, "min") != 0)
		return err_set(err, PAWL_EUSAGE, "document: 'mode' must be 'min' or 'max', found '%s'", mode);
	return 0;
}

static int
refuse_scheduler(const char *type, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf known = {0};

	for (const struct spec_scheduler *k = spec_schedulers; k->name; k++)
		buf_printf(&known, "%s%s", k->name, !k[1].name ? "" : !k[2].name ? " or " : ", ");
	return err_set(err, PAWL_EUSAGE, "scheduler: expected %s, found '%.100s'", buf_str(&known),
	               type ? type : "nothing");
}

static int
parse_scheduler(struct spec *s, struct pawl_error *err)
{
	struct value *scheduler = value_get(s->doc, "scheduler"), *filled;
	const struct spec_scheduler *kind = spec_schedulers;
	const char *name;
	struct value *item;

	if (value_is(scheduler, JSON_STRING)) {
		if (!value_set(s->doc, "scheduler", VALUE_OBJECT({"type", value_ref(scheduler)})))
			return err_nomem(err, NULL);
		scheduler = value_get(s->doc, "scheduler");
	}
	const char *type = value_get_text(scheduler, "type");
	while (kind->name && (!type || strcmp(kind->name, type) != 0))
		kind++;
	if (type && strcmp(type, "pbt_replay") == 0)
		return err_set(
			err, PAWL_EUSAGE,
			"scheduler: pbt_replay is no longer supported; the trial itself can follow the values that "
			"its pbt_policy_<id>.txt lists");
	if (!kind->name)
		return refuse_scheduler(type, err);
	TRY(fill_defaults(scheduler, "scheduler", kind->keys, &filled, err));
	if (!value_set(s->doc, "scheduler", filled))
		return err_nomem(err, NULL);
	s->kind = kind;
	s->time_attr = value_get_text(filled, "time_attr") ? value_get_text(filled, "time_attr") : kind->time_attr;
	TRY(parse_metric(s, filled, err));
	if (kind->algorithm != &sched_fifo && !s->metric)
		return err_set(err, PAWL_EUSAGE, "scheduler: %s needs the document's 'metric', found none", kind->name);
	if (kind->algorithm != &sched_pbt)
		return 0;
	s->mutations = value_get(filled, "hyperparam_mutations");
	s->synchronous = value_is_true(value_get(filled, "synch"));
	s->takes_turns = !s->synchronous && (s->given || s->n_trials != UINT64_MAX);
	VALUE_MEMBERS(s->mutations, name, item) {
		TRY(check_mutation(name, item, err));
	}
	return 0;
}

static int
parse_search(struct spec *s, struct pawl_error *err)
{
	const char *search = value_get_text(s->doc, "search");
	const int64_t samples = value_int(value_get(s->doc, "num_samples"));
	uint64_t n_grid = 1;

	s->space = value_get(s->doc, "space");
	s->given = strcmp(search, "given") == 0;
	if (!s->given && strcmp(search, "grid-random") != 0)
		return err_set(err, PAWL_EUSAGE, "document: 'search' must be 'grid-random' or 'given', found '%.100s'",
		               search);
	if (samples == 0)
		return err_set(err, PAWL_EUSAGE,
		               "document: 'num_samples' must be 1 or more, or -1 (without end), found 0");
	if (!s->given)
		TRY(space_check(s->space, &n_grid, err));
	s->n_trials = UINT64_MAX;
	if (!s->given && samples > 0 &&
	    (__builtin_mul_overflow((uint64_t)samples, n_grid, &s->n_trials) || s->n_trials > SPACE_MAX_TRIALS))
		return err_set(err, PAWL_ELIMIT,
		               "document: num_samples %lld of a grid of %llu points are more than %u trials",
		               (long long)samples, (unsigned long long)n_grid, SPACE_MAX_TRIALS);
	if (!s->given && samples < 0 && s->time_budget_s == 0)
		return err_set(err, PAWL_EUSAGE,
		               "document: num_samples -1 (without end) needs a 'time_budget_s', found none");
	return 0;
}

static void
parse_checkpoint(struct spec *s)
{
	const struct value *c = value_get(s->doc, "checkpoint");

	s->keep = (uint64_t)value_int(value_get(c, "keep"));
	s->freq = (uint64_t)value_int(value_get(c, "freq"));
	s->at_end = value_is_true(value_get(c, "at_end"));
	s->score_attr = value_get_text(c, "score_attr");
	s->score_least = strncmp(s->score_attr, "min-", 4) == 0;
	if (s->score_least || strncmp(s->score_attr, "max-", 4) == 0)
		s->score_attr += 4;
}

static int
parse_spec(struct spec *s, struct pawl_error *err)
{
	struct sched *sched;

	TRY(check_name(value_get_text(s->doc, "name"), err));
	TRY(fill_inner(s->doc, "resources", resources, err));
	TRY(fill_inner(s->doc, "checkpoint", checkpoint, err));
	TRY(fill_inner(s->doc, "sync", sync_keys, err));
	s->name = value_get_text(s->doc, "name");
	s->local_dir = value_get_text(s->doc, "local_dir");
	TRY(check_local_dir(s->local_dir, err));
	s->stop = value_get(s->doc, "stop");
	s->seed = (uint64_t)value_int(value_get(s->doc, "seed"));
	s->max_failures = value_int(value_get(s->doc, "max_failures"));
	s->max_concurrent = (uint32_t)value_int(value_get(s->doc, "max_concurrent"));
	s->time_budget_s = value_number(value_get(s->doc, "time_budget_s"));
	parse_checkpoint(s);
	TRY(check_stop(s->stop, err));
	TRY(parse_search(s, err));
	TRY(parse_scheduler(s, err));
	if (s->n_trials == UINT64_MAX && !s->given && spec_is_in_step(s))
		return err_set(err, PAWL_EUSAGE,
		               "scheduler: asha with 'synch' waits for all trials: expected a number of samples, "
		               "found num_samples -1 (without end)");
	TRY(spec_make_scheduler(s, &sched, err));
	sched_free(sched);
	return 0;
}

int
spec_parse(const char *text, struct spec *ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *found = NULL;
	PAWL_CLEAN(spec_clear) struct spec s = {0};

	TRY(value_parse(text, SIZE_MAX, "document", &found, err));
	if (!value_is(found, JSON_OBJECT))
		return err_set(err, PAWL_EUSAGE, "document: expected an object with 'name', 'space' and others");
	TRY(fill_defaults(found, "document", document, &s.doc, err));
	TRY(parse_spec(&s, err));
	*ret = s;
	s = (struct spec){0};
	return 0;
}

void
spec_clear(struct spec *s)
{
	value_free(s->doc);
	*s = (struct spec){0};
}

int
spec_check_same(const struct spec *old, const struct spec *now, struct pawl_error *err)
{
	static const char *const keys[] = {"search", "seed", "metric", "mode", "scheduler", "space"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (value_equal(value_get(old->doc, keys[i]), value_get(now->doc, keys[i])))
			continue;
		PAWL_FREE char *was = value_print(value_get(old->doc, keys[i]));
		PAWL_FREE char *is = value_print(value_get(now->doc, keys[i]));
		return err_set(
			err, PAWL_EUSAGE,
			"document: '%s' is %.300s, but the experiment was begun with %.300s; choose another name for a "
			"new experiment",
			keys[i], is ? is : "", was ? was : "");
	}
	if (now->n_trials < old->n_trials && old->n_trials != UINT64_MAX)
		return err_set(
			err, PAWL_EUSAGE,
			"document: 'num_samples' makes %llu trials, but the experiment was begun with %llu: it can only grow",
			(unsigned long long)now->n_trials, (unsigned long long)old->n_trials);
	return 0;
}
