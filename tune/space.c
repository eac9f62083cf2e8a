/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space: grids and draws.
 *
 * Random numbers are SplitMix64's finisher over a key of seed, trial and path. They have no state,
 * so nothing has to be restored.
 */
#include "space.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/mix.h"
#include "base/names.h"
#include "base/value.h"

#define MAX_PATH 1024
#define TWO_PI 6.283185307179586476925

enum draw { UNIFORM, LOG, NORMAL };

/* Parameters of a numeric draw: [low, high] or [mean, deviation], and a step if it is quantised. */
struct kind {
	const char *name;
	enum draw draw;
	bool quantised, whole;
	bool high_included; /* of integers */
};

static const struct kind kinds[] = {
	{"$uniform", UNIFORM, false, false, false}, {"$quniform", UNIFORM, true, false, false},
	{"$loguniform", LOG, false, false, false},  {"$qloguniform", LOG, true, false, false},
	{"$randn", NORMAL, false, false, false},    {"$qrandn", NORMAL, true, false, false},
	{"$randint", UNIFORM, false, true, false},  {"$qrandint", UNIFORM, true, true, true},
	{"$lograndint", LOG, false, true, false},   {"$qlograndint", LOG, true, true, true},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct walk {
	uint64_t seed, trial, grid_left; /* grid_left: the trial's number, divided down for keys further right */
	const struct value *space;
	struct pawl_error *err;
};

/* A number in [0, 1) of the sequence that belongs to (seed, trial, path). */
static double
space_unit(uint64_t seed, uint64_t trial, const char *path, uint32_t n)
{
	uint64_t z = mix_bits(seed + MIX_STEP);

	z = mix_bits(z ^ (trial * MIX_STEP + 1));
	for (const char *c = path; *c; c++)
		z = mix_bits(z ^ (unsigned char)*c) + MIX_STEP;
	return mix_unit(mix_bits(z + n));
}

/* ---- checking ---- */

static const struct kind *
find_kind(const char *name)
{
	for (size_t i = 0; i < N_KINDS; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	return NULL;
}

/* The one key of an object that describes a draw, else NULL. */
static const char *
key_of(const struct value *value)
{
	const char *key = value_n_members(value) == 1 ? value_first_key(value) : NULL;

	return key && key[0] == '$' ? key : NULL;
}

static int
check_numbers(const struct kind *kind, const struct value *args, const char *path, struct pawl_error *err)
{
	const size_t expected = kind->quantised ? 3 : 2;
	double v[3] = {0};

	if (value_n_items(args) != expected || !value_is(args, JSON_ARRAY))
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes a list of %zu numbers, found %s", path,
		               kind->name, expected, value_is(args, JSON_ARRAY) ? "another length" : "no list");
	for (size_t i = 0; i < expected; i++) {
		const struct value *item = value_item(args, i);
		if (!value_is_number(item) || (kind->whole && !value_is(item, JSON_INT)))
			return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes a list of %zu %s, found something else",
			               path, kind->name, expected, kind->whole ? "integers" : "numbers");
		v[i] = value_number(item);
	}
	if (kind->draw == NORMAL && !(v[1] >= 0))
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes a deviation of 0 or more, found %g", path,
		               kind->name, v[1]);
	if (kind->draw != NORMAL && !(v[0] < v[1]))
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes the lower end first, found %g and %g", path,
		               kind->name, v[0], v[1]);
	if (kind->draw == LOG && !(v[0] > 0))
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes a lower end above 0, found %g", path,
		               kind->name, v[0]);
	if (kind->quantised && !(v[2] > 0))
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes a step above 0, found %g", path, kind->name,
		               v[2]);
	if (kind->whole && (fabs(v[0]) > 0x1p53 || fabs(v[1]) > 0x1p53))
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes integers up to 2^53", path, kind->name);
	return 0;
}

static int check_space(const struct value *value, const char *path, bool in_choice, uint64_t *n_grid,
                       struct pawl_error *err);

static int
check_list(const char *key, const struct value *list, const char *path, bool in_choice, uint64_t *n_grid,
           struct pawl_error *err)
{
	const bool is_grid = strcmp(key, "$grid") == 0;

	if (!value_is(list, JSON_ARRAY) || value_n_items(list) == 0)
		return err_set(err, PAWL_EUSAGE, "space: '%s': %s takes a list of one value or more", path, key);
	if (is_grid && in_choice)
		return err_set(err, PAWL_EUSAGE, "space: '%s': a $grid cannot stand inside of a $choice or a $grid",
		               path);
	for (size_t i = 0; i < value_n_items(list); i++)
		TRY(check_space(value_item(list, i), path, true, n_grid, err));
	if (is_grid && __builtin_mul_overflow(*n_grid, (uint64_t)value_n_items(list), n_grid))
		*n_grid = UINT64_MAX;
	if (*n_grid > SPACE_MAX_TRIALS)
		return err_set(err, PAWL_ELIMIT, "space: the grid has more than %u points", SPACE_MAX_TRIALS);
	return 0;
}

static int
refuse_draw(const char *key, const char *path, struct pawl_error *err)
{
	const char *names[N_KINDS + 3];
	PAWL_CLEAN(buf_clear) struct buf known = {0};
	size_t n = 0;

	for (; n < N_KINDS; n++)
		names[n] = kinds[n].name;
	names[n++] = "$choice";
	names[n++] = "$grid";
	names[n++] = "$value";
	names_put_known(&known, key, names, n);
	return err_set(err, PAWL_EUSAGE, "space: '%s': '%s' is not known%s", path, key, buf_str(&known));
}

static int
check_draw(const char *key, const struct value *args, const char *path, bool in_choice, uint64_t *n_grid,
           struct pawl_error *err)
{
	const struct kind *kind = find_kind(key);

	if (kind)
		return check_numbers(kind, args, path, err);
	if (strcmp(key, "$choice") == 0 || strcmp(key, "$grid") == 0)
		return check_list(key, args, path, in_choice, n_grid, err);
	if (strcmp(key, "$value") == 0)
		return 0;
	return refuse_draw(key, path, err);
}

static int
check_space(const struct value *value, const char *path, bool in_choice, uint64_t *n_grid, struct pawl_error *err)
{
	const char *key = key_of(value), *name;
	char inner[MAX_PATH];
	struct value *item;

	if (key)
		return check_draw(key, value_get(value, key), path, in_choice, n_grid, err);
	VALUE_MEMBERS(value, name, item) {
		if (name[0] == '$')
			return err_set(err, PAWL_EUSAGE,
			               "space: '%s': expected '%s' to stand alone, found other keys next to it", path,
			               name);
		if ((size_t)snprintf(inner, sizeof(inner), "%s%s%s", path, path[0] ? "/" : "", name) >= sizeof(inner))
			return err_set(err, PAWL_ELIMIT, "space: '%.100s..': the path is too long", path);
		TRY(check_space(item, inner, in_choice, n_grid, err));
	}
	for (size_t i = 0; i < value_n_items(value); i++) {
		snprintf(inner, sizeof(inner), "%.1000s/%zu", path, i);
		TRY(check_space(value_item(value, i), inner, in_choice, n_grid, err));
	}
	return 0;
}

int
space_check(const struct value *space, uint64_t *ret_n_grid, struct pawl_error *err)
{
	*ret_n_grid = 1;
	if (!value_is(space, JSON_OBJECT) || key_of(space))
		return err_set(err, PAWL_EUSAGE, "space: expected an object of names and values");
	return check_space(space, "", false, ret_n_grid, err);
}

/* ---- drawing ---- */

/* Rounds to multiples of the step; by division where 1 / step is an integer, so that 0.3 is exactly
 * 0.3. */
static double
quantise_value(double value, double low, double high, double step, bool bounded)
{
	const double inverse = rint(1 / step);
	double n = rint(value / step);

	if (bounded && n * step > high)
		n = floor(high / step + 1e-9);
	if (bounded && n * step < low)
		n = ceil(low / step - 1e-9);
	return step < 1 && fabs(inverse * step - 1) < 1e-12 ? n / inverse : n * step;
}

static struct value *
draw_number(const struct kind *kind, const struct value *args, const char *path, uint64_t seed, uint64_t trial)
{
	const double a = value_number(value_item(args, 0)), b = value_number(value_item(args, 1));
	const double step = value_number(value_item(args, 2)), x = space_unit(seed, trial, path, 0);
	const double high = kind->high_included ? b + 1 : b;
	double value;

	if (kind->draw == NORMAL)
		value = a + b * sqrt(-2 * log(1 - x)) * cos(TWO_PI * space_unit(seed, trial, path, 1));
	else if (kind->draw == LOG)
		value = exp(log(a) + x * (log(high) - log(a)));
	else
		value = a + x * (high - a);
	if (kind->whole)
		value = fmax(a, fmin(floor(value), high - 1));
	else if (kind->draw == LOG)
		value = fmax(a, fmin(value, b)); /* rounding in exp and log may leave the range */
	if (kind->quantised)
		value = quantise_value(value, a, b, step, kind->draw != NORMAL);
	return kind->whole ? value_new_int((int64_t)llrint(value)) : value_new_real(value);
}

static bool
is_list_of(const char *key)
{
	return key && (strcmp(key, "$choice") == 0 || strcmp(key, "$grid") == 0);
}

static int resolve_value(struct walk *w, const struct value *value, const char *path, struct value **ret);

static int
resolve_draw(struct walk *w, const char *key, const struct value *args, const char *path, struct value **ret)
{
	const struct kind *kind = find_kind(key);
	char inner[MAX_PATH];

	if (kind) {
		*ret = draw_number(kind, args, path, w->seed, w->trial);
	} else if (is_list_of(key)) {
		const size_t n = value_n_items(args);
		size_t at;

		if (strcmp(key, "$grid") == 0) {
			at = (size_t)(w->grid_left % n);
			w->grid_left /= n;
		} else {
			at = (size_t)(space_unit(w->seed, w->trial, path, 0) * (double)n);
		}
		snprintf(inner, sizeof(inner), "%.1000s/%zu", path, at); /* draws inside have sequences of their own */
		return resolve_value(w, value_item(args, at), inner, ret);
	} else { /* $value */
		*ret = value_copy_deep(args);
	}
	return *ret ? 0 : err_nomem(w->err, NULL);
}

/* Visits the keys of an object from last to first: the last grid changes fastest. */
static int
resolve_object(struct walk *w, const struct value *value, const char *path, struct value **ret)
{
	PAWL_CLEAN(value_free_clean) struct value *made = value_copy(value); /* keeps the order of the keys */
	const char *names[1024], *name;
	char inner[MAX_PATH];
	struct value *item;
	size_t n = 0;

	if (!made)
		return err_nomem(w->err, NULL);
	VALUE_MEMBERS(value, name, item) {
		if (n == sizeof(names) / sizeof(names[0]))
			return err_set(w->err, PAWL_ELIMIT, "space: '%s': more than %zu keys", path, n);
		names[n++] = name;
	}
	while (n-- > 0) {
		struct value *resolved = NULL;
		snprintf(inner, sizeof(inner), "%s%s%s", path, path[0] ? "/" : "", names[n]);
		TRY(resolve_value(w, value_get(value, names[n]), inner, &resolved));
		if (!value_set(made, names[n], resolved))
			return err_nomem(w->err, NULL);
	}
	*ret = steal(&made);
	return 0;
}

static int
resolve_array(struct walk *w, const struct value *value, const char *path, struct value **ret)
{
	PAWL_CLEAN(value_free_clean) struct value *made = value_copy(value);
	char inner[MAX_PATH];

	for (size_t i = value_n_items(value); made && i-- > 0;) {
		struct value *resolved = NULL;
		snprintf(inner, sizeof(inner), "%.1000s/%zu", path, i);
		TRY(resolve_value(w, value_item(value, i), inner, &resolved));
		if (!value_set_item(made, i, resolved))
			return err_nomem(w->err, NULL);
	}
	*ret = steal(&made);
	return *ret ? 0 : err_nomem(w->err, NULL);
}

static int
resolve_value(struct walk *w, const struct value *value, const char *path, struct value **ret)
{
	const char *key = key_of(value);

	if (key)
		return resolve_draw(w, key, value_get(value, key), path, ret);
	if (value_is(value, JSON_OBJECT))
		return resolve_object(w, value, path, ret);
	if (value_is(value, JSON_ARRAY))
		return resolve_array(w, value, path, ret);
	*ret = value_copy_deep(value);
	return *ret ? 0 : err_nomem(w->err, NULL);
}

int
space_config(const struct value *space, uint64_t seed, uint64_t trial, struct value **ret, struct pawl_error *err)
{
	struct walk w = {.seed = seed, .trial = trial, .grid_left = trial, .space = space, .err = err};

	return resolve_value(&w, space, "", ret);
}

int
space_draw(const struct value *what, const char *path, uint64_t seed, uint64_t trial, struct value **ret,
           struct pawl_error *err)
{
	struct walk w = {.seed = seed, .trial = trial, .err = err};

	return resolve_value(&w, what, path, ret);
}

/* ---- names ---- */

struct tag {
	char *text;
	size_t len, nbytes;
};

static void
tag_put(struct tag *tag, const char *name, const struct value *value)
{
	char item[64], number[32];
	const size_t shown = strcspn(name, "/");

	if (value_is(value, JSON_REAL))
		snprintf(number, sizeof(number), "%.4g", value_number(value));
	else if (value_is(value, JSON_INT))
		snprintf(number, sizeof(number), "%" PRId64, value_int(value));
	else if (value_is(value, JSON_STRING))
		snprintf(number, sizeof(number), "%.20s", value_text(value));
	else
		snprintf(number, sizeof(number), "%s",
		         value_is_true(value)         ? "True"
		         : value_is(value, JSON_BOOL) ? "False"
		                                      : "-");
	const size_t n = (size_t)snprintf(item, sizeof(item), "%s%.*s=%s", tag->len ? "," : "",
	                                  (int)(shown > 24 ? 24 : shown), name, number);
	if (n >= sizeof(item) || tag->len + n + 1 > tag->nbytes)
		return;
	for (char *c = item; *c; c++)
		if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
		      strchr("._=,+-", *c)))
			*c = '-';
	memcpy(tag->text + tag->len, item, n + 1);
	tag->len += n;
}

static void
tag_walk(struct tag *tag, const struct value *space, const struct value *config, const char *last)
{
	const char *name;
	struct value *item;

	if (space && key_of(space)) {
		if (strcmp(key_of(space), "$value") != 0)
			tag_put(tag, last, config);
		return;
	}
	if (!space && !value_is(config, JSON_OBJECT) && !value_is(config, JSON_ARRAY)) {
		tag_put(tag, last, config);
		return;
	}
	VALUE_MEMBERS(config, name, item) {
		const struct value *inner = space ? value_get(space, name) : NULL;
		if (!space || inner)
			tag_walk(tag, inner, item, name);
	}
}

void
space_tag(const struct value *space, const struct value *config, char *text, size_t nbytes)
{
	struct tag tag = {text, 0, nbytes};

	text[0] = '\0';
	tag_walk(&tag, space, config, "");
}
