/* SPDX-License-Identifier: Apache-2.0 */
/* trigger: decides when a save is due. Pure functions of their arguments: no clock, no state. */
#include "policy/trigger.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"

#define FIXED_UNITS "1ep, 5it, 10ba, 500 steps, 5000sp, 1000000tok, 30sec, 5min, 0.25dur"

struct unit {
	const char *suffix;
	enum trigger_unit unit;
	const char *counter; /* its name in struct pawl_progress */
	size_t offset;
};

static const struct unit units[] = {
	{"ep", TRIGGER_EPOCH, "epoch", offsetof(struct pawl_progress, epoch)},
	{"it", TRIGGER_ITERATION, "iteration", offsetof(struct pawl_progress, iteration)},
	{"iter", TRIGGER_ITERATION, "iteration", offsetof(struct pawl_progress, iteration)}, /* as Composer writes it */
	{"ba", TRIGGER_BATCH, "batch", offsetof(struct pawl_progress, batch)},
	{"steps", TRIGGER_BATCH, "batch", offsetof(struct pawl_progress, batch)},
	{" steps", TRIGGER_BATCH, "batch", offsetof(struct pawl_progress, batch)},
	{"sp", TRIGGER_SAMPLE, "sample", offsetof(struct pawl_progress, sample)},
	{"tok", TRIGGER_TOKEN, "token", offsetof(struct pawl_progress, token)},
	{"sec", TRIGGER_SECOND, "total_wct", offsetof(struct pawl_progress, total_wct)},
	{"dur", TRIGGER_DURATION, "fraction", offsetof(struct pawl_progress, fraction)},
	{"auto", TRIGGER_AUTO, "total_wct", offsetof(struct pawl_progress, total_wct)},
};
#define N_UNITS (sizeof(units) / sizeof(units[0]))

static bool
is_real(enum trigger_unit unit)
{
	return unit == TRIGGER_SECOND || unit == TRIGGER_DURATION || unit == TRIGGER_AUTO;
}

static int
parse_one(const char *text, bool may_be_auto, struct trigger *ret, struct pawl_error *err)
{
	struct trigger t = {.unit = TRIGGER_AUTO};

	if (may_be_auto && strcmp(text, "auto") == 0) {
		*ret = t;
		return 0;
	}
	const size_t used = text_get_number(text, strlen(text), &t.every);
	const char *suffix = text + used;
	size_t unit = 0;

	if (used > 0 && *suffix && pawl_parse_seconds(text, &t.every, NULL) == 0)
		suffix = "sec";
	while (*suffix && unit < N_UNITS &&
	       (strcmp(suffix, units[unit].suffix) != 0 || units[unit].unit == TRIGGER_AUTO))
		unit++;
	if (used == 0 || unit == N_UNITS)
		return err_set(err, PAWL_EUSAGE, "interval \"%.64s\": expected " FIXED_UNITS "%s or first", text,
		               may_be_auto ? ", auto" : "");
	t.unit = units[unit].unit;
	if (!(t.every > 0))
		return err_set(err, PAWL_EUSAGE, "interval \"%.64s\": expected a number above 0", text);
	if (!is_real(t.unit) && (t.every != floor(t.every) || t.every > 0x1p53))
		return err_set(err, PAWL_EUSAGE, "interval \"%.64s\": expected a whole number of %s", text,
		               units[unit].suffix);
	if (t.unit == TRIGGER_DURATION && t.every > 1)
		return err_set(err, PAWL_EUSAGE,
		               "interval \"%.64s\": expected a fraction of the training, at most 1dur", text);
	*ret = t;
	return 0;
}

int
trigger_parse(const char *text, struct trigger *ret, struct pawl_error *err)
{
	return parse_one(text, true, ret, err);
}

/* Times that the interval fits into a counter; < 0 = the counter is unknown. */
static double
times_passed(const struct unit *u, double every, const struct pawl_progress *p)
{
	const char *place = (const char *)p + u->offset;
	int64_t count;
	double value;

	if (is_real(u->unit)) {
		memcpy(&value, place, sizeof(value));
		/* 0.3 / 0.1 is a little less than 3: a value this close to the threshold has
		 * reached it. */
		return value >= 0 ? floor(value / every + 1e-9) : -1;
	}
	memcpy(&count, place, sizeof(count));
	if (count < 0)
		return -1;
	count /= (int64_t)every;
	return (double)count;
}

static int
auto_due(double last_wct, double now_wct, double auto_seconds)
{
	double since = now_wct - (last_wct > 0 ? last_wct : 0);

	/* Without a known interval every point is due: the first save measures the cost that it
	 * depends on. */
	return !(auto_seconds > 0) || since >= auto_seconds;
}

int
trigger_due(const struct trigger *t, const struct pawl_progress *last, const struct pawl_progress *now,
            double auto_seconds, struct pawl_error *err)
{
	static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;
	const struct unit *u = units;

	if (!last)
		last = &unknown;
	while (u->unit != t->unit)
		u++;
	double every = t->unit == TRIGGER_AUTO ? 1 : t->every;
	double now_passed = times_passed(u, every, now), last_passed = times_passed(u, every, last);
	if (now_passed < 0)
		return err_set(err, PAWL_EUSAGE, "interval in %s: the progress given has no %s", u->suffix, u->counter);
	if (now->fraction >= 1 && !(last->fraction >= 1))
		return 1;
	if (t->unit == TRIGGER_AUTO)
		return auto_due(last->total_wct, now->total_wct, auto_seconds);
	return now_passed > (last_passed > 0 ? last_passed : 0);
}

static int
parse_all(const char *text, bool may_be_auto, struct triggers *ret, struct pawl_error *err)
{
	struct triggers t = {.n = 0};
	char one[80];

	for (const char *at = text; at; at = strchr(at, ',')) {
		at += *at == ',';
		size_t len = strcspn(at, ",");

		if (t.n == TRIGGER_MAX || len >= sizeof(one))
			return err_set(err, PAWL_EUSAGE,
			               "interval \"%.64s\": expected at most %d time strings, found more", text,
			               TRIGGER_MAX);
		memcpy(one, at, len);
		one[len] = '\0';
		if (strcmp(one, "first") == 0)
			t.rows[t.n++] = (struct trigger){.unit = TRIGGER_FIRST};
		else
			TRY(parse_one(one, may_be_auto, &t.rows[t.n++], err));
	}
	*ret = t;
	return 0;
}

int
triggers_parse(const char *text, struct triggers *ret, struct pawl_error *err)
{
	return parse_all(text, true, ret, err);
}

int
triggers_parse_fixed(const char *text, struct triggers *ret, struct pawl_error *err)
{
	return parse_all(text, false, ret, err);
}

int
triggers_due(const struct triggers *t, const struct pawl_progress *last, const struct pawl_progress *now,
             double auto_seconds, struct pawl_error *err)
{
	int due = 0;

	for (size_t i = 0; i < t->n; i++) {
		int one = t->rows[i].unit == TRIGGER_FIRST ? !last
		                                           : trigger_due(&t->rows[i], last, now, auto_seconds, err);

		TRY(one);
		due |= one;
	}
	return due;
}

int
pawl_interval_due(const char *interval, const struct pawl_progress *last, const struct pawl_progress *now,
                  struct pawl_error *err)
{
	struct triggers t;

	if (!interval || !now)
		return err_set(err, PAWL_EUSAGE, "interval: expected a time string and the progress, found none");
	TRY(triggers_parse_fixed(interval, &t, err));
	return triggers_due(&t, last, now, 0, err);
}

/*
 * Young: sqrt(2 d M) for a cost d per save and a mean time M between failures. Daly adds two terms
 * of the series and subtracts the cost, and for d >= 2 M gives M. The result is the time of work
 * between the end of a save and the beginning of the next one.
 */
double
pawl_optimal_interval_seconds(double save_cost_seconds, double mtbf_seconds)
{
	if (!(save_cost_seconds > 0) || !(mtbf_seconds > 0))
		return 0;
	if (isinf(mtbf_seconds) || save_cost_seconds >= 2 * mtbf_seconds)
		return mtbf_seconds;
	double ratio = save_cost_seconds / (2 * mtbf_seconds);
	return sqrt(2 * save_cost_seconds * mtbf_seconds) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_cost_seconds;
}

bool
triggers_use_clock(const struct triggers *t)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->rows[i].unit == TRIGGER_SECOND || t->rows[i].unit == TRIGGER_DURATION ||
		    t->rows[i].unit == TRIGGER_AUTO)
			return true;
	return false;
}
