/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_progress: how far a running save is. Its writer reports that in the events of the run. A
 * writer that no longer holds the lease, or has reported the end of its save, is not saving. Lines
 * that cannot be read are ignored.
 */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "run/lease.h"
#include "run/run.h"

/* attempt: of the line. */
struct report {
	struct pawl_saving saving;
	uint64_t attempt;
	bool is_running;
};

static double
get_seconds(const struct json *line)
{
	const struct json *at = json_get(line, "unix_seconds");

	return at && (at->type == JSON_REAL || at->type == JSON_INT) ? at->real : 0;
}

/* A later line replaces an earlier one. The end of a save and another attempt remove it. */
static void
apply_line(struct report *report, const struct json *line)
{
	struct pawl_saving new = PAWL_SAVING_INIT;
	const char *what, *name;
	uint64_t attempt, id;
	const bool has_id = json_get_u64("events", line, "id", &id, NULL) == 0;

	if (json_get_str("events", line, "what", &what, NULL) < 0 ||
	    json_get_u64("events", line, "attempt", &attempt, NULL) < 0)
		return;
	if (report->is_running && attempt != report->attempt)
		report->is_running = false;
	if (report->is_running && has_id && id == report->saving.id &&
	    (strcmp(what, "save") == 0 || strcmp(what, "save failed") == 0))
		report->is_running = false;
	if (strcmp(what, "saving") != 0 || !has_id || json_get_str("events", line, "name", &name, NULL) < 0 ||
	    json_get_i64("events", line, "step", &new.step, NULL) < 0 ||
	    json_get_u64("events", line, "plain_bytes", &new.plain_bytes, NULL) < 0 ||
	    json_get_u64("events", line, "done_bytes", &new.done_bytes, NULL) < 0 ||
	    json_get_u64("events", line, "written_bytes", &new.written_bytes, NULL) < 0)
		return;
	new.id = id;
	new.unix_seconds = get_seconds(line);
	text_copy(new.name, sizeof(new.name), name);
	*report = (struct report){.saving = new, .attempt = attempt, .is_running = true};
}

static void
apply_lines(struct report *report, const struct buf *text)
{
	const char *at = text->ptr, *end = at + text->len;

	while (at < end) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		struct json *line;

		if (!stop)
			return; /* it is being written */
		if (json_parse("events", at, (size_t)(stop - at), NULL, &memory, &line, NULL) == 0)
			apply_line(report, line);
		at = stop + 1;
	}
}

static int
find_progress(struct pawl *run, struct pawl_saving *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct report report = {0};

	if (!run || !ret || !ret->size)
		return err_set(err, PAWL_EUSAGE,
		               "saving: expected a run and a PAWL_SAVING_INIT, found NULL or no size");
	TRY(events_read_last(&run->events, &text, err));
	if (text.len > 0)
		apply_lines(&report, &text);
	if (!report.is_running || !lease_is_held(run->store, run->opts.timeouts.lease_ms))
		return err_set(err, PAWL_ENOTFOUND, "%s: no process reports a running save", run->home.root);
	report.saving.size = ret->size < sizeof(report.saving) ? ret->size : sizeof(report.saving);
	memcpy(ret, &report.saving, report.saving.size);
	return 0;
}

int
pawl_saving(struct pawl *run, struct pawl_saving *ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, find_progress(run, ret, &own), &own);
}

int
pawl_is_open(struct pawl *run)
{
	return run && lease_is_held(run->store, run->opts.timeouts.lease_ms);
}
