/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec_replay: the schedule of a pbt_replay. A policy file has a line for each exploit, as other tools write it too:
 * [trial, donor, the trial's iteration, the donor's, the donor's configuration, the new configuration]. From the last
 * line back, the donor of one is the trial of the one before it; what lies between was overwritten. The file is read
 * when the document is checked, and what it says becomes a part of the document, so that the search goes on without it.
 * Called by spec.c; calls trial_files.
 */
#include "spec.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "jsonx.h"
#include "trial_files.h"
#include "tune_err.h"

#define WHOLE_FILE "pbt_global.txt" /* of all trials of a search */

struct policy {
	json_t *lines;    /* all of the file */
	json_t *schedule; /* the latest first */
	json_t *first;    /* configuration before all changes; borrowed */
};

static int
read_line(const char *file, size_t number, const char *text, size_t len, json_t *lines, struct pawl_error *err)
{
	JSONX_CLEAN json_t *line = NULL;
	int r = jsonx_parse(text, len, file, &line, NULL);
	bool good = r == 0 && json_array_size(line) == 6;

	for (size_t i = 0; good && i < 6; i++) {
		const json_t *found = json_array_get(line, i);
		good = i < 2   ? json_is_string(found)
		       : i < 4 ? json_is_number(found) && json_number_value(found) >= 0
		               : json_is_object(found);
	}
	if (!good)
		return tune_fail(
			err, PAWL_EUSAGE,
			"scheduler: policy_file: %s:%zu: expected a list of two trials, two iterations and two "
			"configurations, found '%.*s'",
			file, number, (int)(len < 100 ? len : 100), text);
	return json_array_append(lines, line) < 0 ? tune_no_memory(err) : 0;
}

static int
read_lines(const char *file, json_t *lines, struct pawl_error *err)
{
	JSONX_TEXT char *text = NULL;
	struct pawl_error why = {0};
	size_t number = 0;
	int r = tune_file_text(AT_FDCWD, "", file, &text, &why);

	if (r < 0)
		return tune_fail(err, r, "scheduler: policy_file: %s", why.message);
	for (const char *at = text; r == 0 && *at != '\0';) {
		const size_t len = strcspn(at, "\n");

		number++;
		if (len > 0)
			r = read_line(file, number, at, len, lines, err);
		at += len + (at[len] == '\n');
	}
	return r;
}

/* trial: in a file of all trials, whose way it is; NULL: the last line's, and a line that is not of the way ends it. */
static int
follow(struct policy *p, const char *trial, struct pawl_error *err)
{
	const char *now = trial;

	for (size_t i = json_array_size(p->lines); i-- > 0;) {
		const json_t *line = json_array_get(p->lines, i);
		const char *target = json_string_value(json_array_get(line, 0));
		json_t *change;

		if (now != NULL && strcmp(target, now) != 0) {
			if (trial == NULL)
				return 0;
			continue;
		}
		now = json_string_value(json_array_get(line, 1));
		p->first = json_array_get(line, 4);
		change = json_pack("{s:O, s:O}", "at", json_array_get(line, 3), "config", json_array_get(line, 5));
		if (change == NULL || json_array_insert_new(p->schedule, 0, change) < 0)
			return tune_no_memory(err);
	}
	return 0;
}

static int
check_schedule(const json_t *schedule, struct pawl_error *err)
{
	double before = 0;

	for (size_t i = 0; i < json_array_size(schedule); i++) {
		const json_t *change = json_array_get(schedule, i), *at = json_object_get(change, "at");
		const double time = json_number_value(at);

		if (!json_is_number(at) || !json_is_object(json_object_get(change, "config")) ||
		    json_object_size(change) != 2)
			return tune_fail(
				err, PAWL_EUSAGE,
				"scheduler: schedule: change %zu: expected {\"at\": iteration, \"config\": {values}}",
				i);
		if (!(time >= before))
			return tune_fail(err, PAWL_EUSAGE,
			                 "scheduler: schedule: change %zu is at %g: expected %g or later", i, time,
			                 before);
		before = time;
	}
	return json_array_size(schedule) > 0
	               ? 0
	               : tune_fail(err, PAWL_EUSAGE,
	                           "scheduler: pbt_replay needs a 'policy_file' or a 'schedule' with a change in it");
}

static int
fill_from_file(json_t *doc, json_t *scheduler, const char *file, struct pawl_error *err)
{
	const char *trial = jsonx_text(scheduler, "trial"), *base = strrchr(file, '/');
	JSONX_CLEAN json_t *lines = json_array(), *schedule = json_array();
	struct policy p = {.lines = lines, .schedule = schedule};
	int r;

	if (lines == NULL || schedule == NULL)
		return tune_no_memory(err);
	if (trial == NULL && strcmp(base != NULL ? base + 1 : file, WHOLE_FILE) == 0)
		return tune_fail(err, PAWL_EUSAGE,
		                 "scheduler: policy_file: %s is of all trials: name one as 'trial', or give its "
		                 "pbt_policy file",
		                 file);
	r = read_lines(file, lines, err);
	if (r == 0)
		r = follow(&p, trial, err);
	if (r < 0)
		return r;
	if (p.first == NULL)
		return tune_fail(err, PAWL_EUSAGE, "scheduler: policy_file: %s has no line%s%.100s", file,
		                 trial != NULL ? " of trial " : "", trial != NULL ? trial : "");
	if (json_object_update(json_object_get(doc, "space"), p.first) < 0 ||
	    json_object_set(scheduler, "schedule", schedule) < 0)
		return tune_no_memory(err);
	(void)json_object_del(scheduler, "policy_file");
	(void)json_object_del(scheduler, "trial");
	return 0;
}

int
spec_replay_read(json_t *doc, struct pawl_error *err)
{
	json_t *scheduler = json_object_get(doc, "scheduler");
	const char *type = json_is_string(scheduler) ? json_string_value(scheduler) : jsonx_text(scheduler, "type");
	const char *file = jsonx_text(scheduler, "policy_file");
	int r = 0;

	if (type == NULL || strcmp(type, "pbt_replay") != 0)
		return 0;
	if (file != NULL && json_object_get(scheduler, "schedule") != NULL)
		return tune_fail(err, PAWL_EUSAGE, "scheduler: expected a 'policy_file' or a 'schedule', found both");
	if (file != NULL)
		r = fill_from_file(doc, scheduler, file, err);
	return r < 0 ? r : check_schedule(json_object_get(scheduler, "schedule"), err);
}

int
spec_replay_apply(const struct spec *s, size_t change, json_t *config, struct pawl_error *err)
{
	json_t *values = json_object_get(json_array_get(s->schedule, change), "config");

	if (values == NULL)
		return tune_fail(err, PAWL_ECORRUPT, "scheduler: change %zu of a schedule of %zu", change,
		                 json_array_size(s->schedule));
	return json_object_update(config, values) < 0 ? tune_no_memory(err) : 0;
}
