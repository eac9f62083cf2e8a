/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saving: how far a save that goes on is, by what its writer has told (save.c) in the events of the run. Called by
 * users; calls events.c and lease. Who tells of a save and holds no lease any more, or has told of its end, saves no
 * longer. Lines that cannot be read say nothing.
 */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "run/lease.h"
#include "run/run.h"

/* The attempt is that of the line. */
struct told {
	struct pawl_saving saving;
	uint64_t attempt;
	bool is_there;
};

static double
get_seconds(const struct json *line)
{
	const struct json *at = json_get(line, "unix_seconds");

	return at && (at->type == JSON_REAL || at->type == JSON_INT) ? at->real : 0;
}

/* A later word takes the place of an earlier one; the end of a save, and another attempt, take it away. */
static void
see_line(struct told *told, const struct json *line)
{
	struct pawl_saving new = PAWL_SAVING_INIT;
	const char *what, *name;
	uint64_t attempt, id;
	const bool has_id = json_get_u64("events", line, "id", &id, NULL) == 0;

	if (json_get_str("events", line, "what", &what, NULL) < 0 ||
	    json_get_u64("events", line, "attempt", &attempt, NULL) < 0)
		return;
	if (told->is_there && attempt != told->attempt)
		told->is_there = false;
	if (told->is_there && has_id && id == told->saving.id &&
	    (strcmp(what, "save") == 0 || strcmp(what, "save failed") == 0))
		told->is_there = false;
	if (strcmp(what, "saving") != 0 || !has_id || json_get_str("events", line, "name", &name, NULL) < 0 ||
	    json_get_i64("events", line, "step", &new.step, NULL) < 0 ||
	    json_get_u64("events", line, "plain_bytes", &new.plain_bytes, NULL) < 0 ||
	    json_get_u64("events", line, "done_bytes", &new.done_bytes, NULL) < 0 ||
	    json_get_u64("events", line, "written_bytes", &new.written_bytes, NULL) < 0)
		return;
	new.id = id;
	new.unix_seconds = get_seconds(line);
	text_copy(new.name, sizeof(new.name), name);
	*told = (struct told){.saving = new, .attempt = attempt, .is_there = true};
}

static void
see_lines(struct told *told, const struct buf *text)
{
	const char *at = text->ptr, *end = at + text->len;

	while (at < end) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		struct json *line;

		if (!stop)
			return; /* it is being written */
		if (json_parse("events", at, (size_t)(stop - at), NULL, &memory, &line, NULL) == 0)
			see_line(told, line);
		at = stop + 1;
	}
}

static int
look(struct pawl *run, struct pawl_saving *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct told told = {0};

	if (!run || !ret || !ret->size)
		return err_set(err, PAWL_EUSAGE,
		               "saving: expected a run and a PAWL_SAVING_INIT, found NULL or no size");
	if (!run->single_name)
		TRY(run_last_events(run, &text, err));
	if (text.len > 0)
		see_lines(&told, &text);
	if (!told.is_there || !lease_is_held(run->store, run->opts.lease_timeout_ms))
		return err_set(err, PAWL_ENOTFOUND, "%s: nobody says that a save goes on", run->root);
	told.saving.size = ret->size < sizeof(told.saving) ? ret->size : sizeof(told.saving);
	memcpy(ret, &told.saving, told.saving.size);
	return 0;
}

int
pawl_saving(struct pawl *run, struct pawl_saving *ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, look(run, ret, &own), &own);
}
