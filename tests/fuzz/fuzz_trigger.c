/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as an interval: refused with a message that quotes it, or at most TRIGGER_MAX rows that
 * the rest of the library relies on. The first bytes are the progress then and now. Promise P17.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "policy/trigger.h"
#include "fuzz.h"

#define PROGRESS_BYTES 33u

static void
check_row(const struct trigger *t)
{
	if (t->unit == TRIGGER_AUTO || t->unit == TRIGGER_FIRST)
		return;
	check(t->every > 0 && isfinite(t->every));
	if (t->unit == TRIGGER_DURATION)
		check(t->every <= 1);
	else if (t->unit != TRIGGER_SECOND)
		check(t->every == floor(t->every) && t->every >= 1 && t->every <= 0x1p53);
}

/* The counters that the first byte names; the others stay unknown. */
static struct pawl_progress
read_progress(const uint8_t *data, const uint8_t *values)
{
	struct pawl_progress p = PAWL_PROGRESS_INIT;

	if (data[0] & 1)
		memcpy(&p.epoch, values, 8);
	if (data[0] & 2)
		memcpy(&p.total_wct, values, 8);
	if (data[0] & 4)
		memcpy(&p.token, values + 8, 8);
	if (data[0] & 8)
		memcpy(&p.fraction, values + 8, 8);
	if (data[0] & 16)
		p.batch = p.sample = p.iteration = values[0];
	return p;
}

static void
check_due(const char *text, const struct triggers *t, const struct pawl_progress *last, const struct pawl_progress *now)
{
	struct pawl_error err = {0};
	bool timed = false;
	int due = triggers_due(t, last, now, 60, &err);

	check(due == 0 || due == 1 || (due == PAWL_EUSAGE && err.code == due));
	for (size_t i = 0; i < t->n; i++)
		timed |= t->rows[i].unit == TRIGGER_AUTO;
	/* Nothing has happened since. */
	int again = triggers_due(t, now, now, 60, NULL);
	check(again <= 0);
	int simple = pawl_interval_due(text, last, now, &err);
	check(timed ? simple == PAWL_EUSAGE : simple == triggers_due(t, last, now, 0, NULL));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct triggers t = {0};
	struct pawl_error err = {0};

	if (size < PROGRESS_BYTES)
		return 0;
	struct pawl_progress last = read_progress(data, data + 1), now = read_progress(data, data + 17);
	char *text = strndup((const char *)data + PROGRESS_BYTES, size - PROGRESS_BYTES);
	check(text != NULL);
	int rc = triggers_parse(text, &t, &err);
	if (rc < 0) {
		check(rc == PAWL_EUSAGE && err.code == rc && strstr(err.message, "interval \"") && t.n == 0);
	} else {
		check(rc == 0 && t.n > 0 && t.n <= TRIGGER_MAX);
		for (size_t i = 0; i < t.n; i++)
			check_row(&t.rows[i]);
		check_due(text, &t, data[0] & 128 ? NULL : &last, &now);
	}
	free(text);
	return 0;
}
