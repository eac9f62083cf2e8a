/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events: what has happened in a run, one line of JSON each, for people and tools. Called by whoever has something to
 * tell; calls the store. Failures are ignored: nothing depends on it.
 *
 * In a folder a line is appended to events.jsonl. Objects cannot be appended to, so in a bucket each process has
 * objects of its own, events/<milliseconds>-<8 hex>.jsonl: the lines of the one that it fills are kept in memory, and
 * the whole object is put again with each line, until it has EVENTS_FULL bytes and the next one is begun. No two
 * processes write to one object, and a line whose put fails is in the next. Only who wants to know how far a save is
 * reads any of it.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "run/run.h"

#define EVENTS_KEY "events.jsonl"
#define EVENTS_FOLDER "events"
#define EVENTS_FULL ((size_t)64 << 10)
#define LAST_BYTES ((uint64_t)64 << 10) /* that are looked at */

static void
put_event(struct pawl *run, const struct buf *line)
{
	struct run_events *e = &run->events;
	char token[33];

	pthread_mutex_lock(&e->lock);
	if (!e->key[0] && clock_token(token, NULL) == 0)
		snprintf(e->key, sizeof(e->key), EVENTS_FOLDER "/%013lld-%.8s.jsonl",
		         (long long)(clock_unix_ns() / 1000000), token);
	buf_put(&e->text, line->ptr, line->len);
	int rc = !e->key[0] || e->text.failed ? PAWL_ENOMEM
	                                      : store_put_bytes(run->store, e->key, e->text.ptr, e->text.len, 0, NULL);

	if (e->text.failed || (rc == 0 && e->text.len >= EVENTS_FULL)) {
		buf_clear(&e->text);
		e->key[0] = '\0';
	}
	pthread_mutex_unlock(&e->lock);
}

void
run_event(struct pawl *run, const char *what, const char *fields)
{
	PAWL_CLEAN(buf_clear) struct buf line = {0};

	if (run->opts.read_only || run->single_name || run->rank > 0)
		return;
	buf_printf(&line, "{\"unix_seconds\":%.3f,\"what\":", (double)clock_unix_ns() / 1e9);
	json_put_string(&line, what, strlen(what));
	buf_printf(&line, ",\"attempt\":%llu%s%s}\n", (unsigned long long)run->attempt, *fields ? "," : "", fields);
	if (line.failed)
		return;
	if (run->caps.flat)
		put_event(run, &line);
	else
		store_append(run->store, EVENTS_KEY, line.ptr, line.len, NULL);
}

void
run_warn(struct pawl *run, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};

	buf_printf(&fields, "\"code\":\"%s\",\"error\":", pawl_code_name(why->code));
	json_put_string(&fields, why->message, strlen(why->message));
	if (!fields.failed)
		run_event(run, "warning", buf_str(&fields));
}

/* The newest object: their names order by time. */
static int
see_object(void *arg, const struct store_entry *entry)
{
	struct buf *newest = arg;

	if (entry->is_folder || strcmp(entry->name, buf_str(newest)) <= 0)
		return 0;
	newest->len = 0;
	buf_puts(newest, entry->name);
	return newest->failed ? PAWL_ENOMEM : 0;
}

int
run_last_events(struct pawl *run, struct buf *ret, struct pawl_error *err)
{
	PAWL_CLEAN(store_opened_close) struct store_opened f = {.store = run->store};
	PAWL_CLEAN(buf_clear) struct buf key = {0}, name = {0};
	uint64_t nbytes = 0;
	int rc = run->caps.flat ? store_list(run->store, EVENTS_FOLDER, see_object, &name, err) : 0;

	if (rc == 0 && run->caps.flat)
		buf_printf(&key, EVENTS_FOLDER "/%s", buf_str(&name));
	else
		buf_puts(&key, EVENTS_KEY);
	if (rc == 0 && !key.failed)
		rc = store_open_reader(run->store, buf_str(&key), &f.reader, &nbytes, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	const uint64_t begin = nbytes > LAST_BYTES ? nbytes - LAST_BYTES : 0;
	char *text = buf_grow(ret, (size_t)(nbytes - begin));

	TRY(buf_check(ret, "events", err));
	TRY(store_read(run->store, f.reader, begin, text, (size_t)(nbytes - begin), err));
	if (begin > 0) { /* the first line is cut */
		const char *end = memchr(text, '\n', ret->len);
		const size_t cut = end ? (size_t)(end + 1 - text) : ret->len;

		memmove(text, text + cut, ret->len - cut);
		ret->len -= cut;
	}
	return 0;
}
