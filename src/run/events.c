/* SPDX-License-Identifier: Apache-2.0 */
/* events: see events.h. */
#include "run/events.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

#define EVENTS_KEY "events.jsonl"
#define EVENTS_FOLDER "events"
#define EVENTS_FULL ((size_t)64 << 10)
#define LAST_BYTES ((uint64_t)64 << 10)

/* ---- no events */

static void
add_nothing(struct run_events *e, const struct buf *line)
{
	(void)e, (void)line;
}

static int
find_nothing(struct run_events *e, struct buf *ret, struct pawl_error *err)
{
	(void)e, (void)ret, (void)err;
	return 0;
}

static const struct events_ops events_none = {add_nothing, find_nothing};

/* ---- one file that grows */

static void
append_line(struct run_events *e, const struct buf *line)
{
	store_append(e->store, EVENTS_KEY, line->ptr, line->len, NULL);
}

static int
find_file(struct run_events *e, struct buf *ret, struct pawl_error *err)
{
	(void)e;
	buf_puts(ret, EVENTS_KEY);
	return buf_check(ret, "events", err);
}

static const struct events_ops events_in_file = {append_line, find_file};

/* ---- objects of this process */

static void
put_object(struct run_events *e, const struct buf *line)
{
	char token[33];

	pthread_mutex_lock(&e->lock);
	if (!e->key[0] && clock_token(token, NULL) == 0)
		snprintf(e->key, sizeof(e->key), EVENTS_FOLDER "/%013lld-%.8s.jsonl",
		         (long long)(clock_unix_ns() / 1000000), token);
	buf_put(&e->text, line->ptr, line->len);
	if (e->key[0] && !e->text.failed)
		store_put_bytes(e->store, e->key, e->text.ptr, e->text.len, 0, NULL);
	if (e->text.failed || e->text.len >= EVENTS_FULL) { /* also if the put failed: memory stays bounded */
		buf_clear(&e->text);
		e->key[0] = '\0';
	}
	pthread_mutex_unlock(&e->lock);
}

/* The newest object: names order by time. */
static int
keep_newest(void *arg, const struct store_entry *entry)
{
	struct buf *newest = arg;

	if (entry->is_folder || strcmp(entry->name, buf_str(newest)) <= 0)
		return 0;
	newest->len = 0;
	buf_puts(newest, entry->name);
	return newest->failed ? PAWL_ENOMEM : 0;
}

static int
find_object(struct run_events *e, struct buf *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	int rc = store_list(e->store, EVENTS_FOLDER, keep_newest, &name, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (name.len == 0)
		return 0;
	buf_printf(ret, EVENTS_FOLDER "/%s", buf_str(&name));
	return buf_check(ret, "events", err);
}

static const struct events_ops events_in_objects = {put_object, find_object};

/* ---- all kinds */

void
events_open(struct run_events *e, struct store *store, const struct run_identity *self, bool has_events, bool is_writer)
{
	struct store_caps caps;

	store_get_caps(store, &caps);
	e->store = store;
	e->self = self;
	e->reads = !has_events ? &events_none : caps.flat ? &events_in_objects : &events_in_file;
	e->ops = is_writer ? e->reads : &events_none;
}

/* The lock is held, and the queue is not empty. */
static char *
take_oldest(struct run_events *e)
{
	char *line = e->queue[e->first];

	e->first = (e->first + 1) % EVENTS_WAITING;
	e->n--;
	return line;
}

/* The oldest line of a full queue goes. */
static void
queue_line(struct run_events *e, const char *text)
{
	char *line = mem_strdup(text), *oldest = NULL;

	if (!line)
		return;
	pthread_mutex_lock(&e->queue_lock);
	if (e->n == EVENTS_WAITING)
		oldest = take_oldest(e);
	e->queue[(e->first + e->n++) % EVENTS_WAITING] = line;
	pthread_mutex_unlock(&e->queue_lock);
	mem_free(oldest);
}

void
events_add(struct run_events *e, const char *what, const char *fields)
{
	PAWL_CLEAN(buf_clear) struct buf line = {0};

	buf_printf(&line, "{\"unix_seconds\":%.3f", (double)clock_unix_ns() / 1e9);
	json_add_text(&line, "what", what);
	json_add_u64(&line, "attempt", e->self->attempt);
	buf_printf(&line, "%s%s}\n", *fields ? "," : "", fields);
	if (line.failed)
		return;
	e->ops->add(e, &line);
	queue_line(e, buf_str(&line));
}

char *
events_take(struct run_events *e)
{
	char *line = NULL;

	pthread_mutex_lock(&e->queue_lock);
	if (e->n > 0)
		line = take_oldest(e);
	pthread_mutex_unlock(&e->queue_lock);
	return line;
}

void
events_put_error(struct buf *fields, const struct pawl_error *why)
{
	json_add_text(fields, "code", pawl_code_name(why->code));
	json_add_text(fields, "error", why->message);
}

void
events_warn(struct run_events *e, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};

	events_put_error(&fields, why);
	if (!fields.failed)
		events_add(e, "warning", buf_str(&fields));
}

int
events_read_last(struct run_events *e, struct buf *ret, struct pawl_error *err)
{
	PAWL_CLEAN(store_opened_close) struct store_opened f = {.store = e->store};
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	uint64_t nbytes = 0;

	TRY(e->reads->find_last(e, &key, err));
	if (key.len == 0)
		return 0;
	int rc = store_open_reader(e->store, buf_str(&key), &f.reader, &nbytes, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	const uint64_t begin = nbytes > LAST_BYTES ? nbytes - LAST_BYTES : 0;
	char *text = buf_grow(ret, (size_t)(nbytes - begin));

	TRY(buf_check(ret, "events", err));
	TRY(store_read(e->store, f.reader, begin, text, (size_t)(nbytes - begin), err));
	if (begin > 0) { /* the first line is cut */
		const char *end = memchr(text, '\n', ret->len);
		const size_t cut = end ? (size_t)(end + 1 - text) : ret->len;

		memmove(text, text + cut, ret->len - cut);
		ret->len -= cut;
	}
	return 0;
}

void
events_close(struct run_events *e)
{
	char *line;

	while ((line = events_take(e)) != NULL)
		mem_free(line);
	buf_clear(&e->text);
	pthread_mutex_destroy(&e->lock);
	pthread_mutex_destroy(&e->queue_lock);
}
