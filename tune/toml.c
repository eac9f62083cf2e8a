/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toml: see toml.h. Called by document.c; calls toml_value.c for values, and jansson. A line is a header, a pair or
 * empty; what a table was made by is remembered, because TOML lets nobody add to a table in two ways.
 */
#include "toml.h"

#include <stdlib.h>
#include <string.h>

#include "toml_inner.h"
#include "tune_err.h"

static struct toml_mark *
find_mark(const struct toml *t, const json_t *table)
{
	for (size_t i = 0; i < t->n_marks; i++)
		if (t->marks[i].table == table)
			return &t->marks[i];
	return NULL;
}

int
toml_mark(struct toml *t, const json_t *table, enum toml_made made)
{
	struct toml_mark *more, *known = find_mark(t, table);

	if (known != NULL) {
		known->made = made;
		return 0;
	}
	if (t->n_marks == TOML_MAX_TABLES)
		return tune_fail(t->err, PAWL_ELIMIT, "%s:%u: more than %d tables", t->name, t->line, TOML_MAX_TABLES);
	if (t->n_marks % 64 == 0) {
		more = realloc(t->marks, (t->n_marks + 64) * sizeof(*more));
		if (more == NULL)
			return tune_no_memory(t->err);
		t->marks = more;
	}
	t->marks[t->n_marks++] = (struct toml_mark){table, made};
	return 0;
}

static enum toml_made
made_by(const struct toml *t, const json_t *table)
{
	const struct toml_mark *mark = find_mark(t, table);

	return mark != NULL ? mark->made : TOML_IMPLIED;
}

void
toml_blanks(struct toml *t)
{
	while (t->at < t->end && (*t->at == ' ' || *t->at == '\t'))
		t->at++;
}

/* Past a comment, up to the end of the line. */
static int
comment(struct toml *t)
{
	if (t->at == t->end || *t->at != '#')
		return 0;
	for (; t->at < t->end && *t->at != '\n'; t->at++) {
		unsigned char c = (unsigned char)*t->at;

		if ((c < 0x20 && c != '\t' && !(c == '\r' && t->at + 1 < t->end && t->at[1] == '\n')) || c == 0x7f)
			return toml_expected(t, "a comment without control characters");
	}
	return 0;
}

bool
toml_newline(struct toml *t)
{
	if (t->at < t->end && *t->at == '\r' && t->at + 1 < t->end && t->at[1] == '\n')
		t->at++;
	if (t->at == t->end || *t->at != '\n')
		return false;
	t->at++;
	t->line++;
	return true;
}

int
toml_lines(struct toml *t)
{
	int rc;

	do {
		toml_blanks(t);
		rc = comment(t);
		if (rc < 0)
			return rc;
	} while (toml_newline(t));
	return 0;
}

static int
line_end(struct toml *t)
{
	int rc;

	toml_blanks(t);
	rc = comment(t);
	if (rc < 0)
		return rc;
	return toml_newline(t) || t->at == t->end ? 0 : toml_expected(t, "the end of the line");
}

/* The table `key` of `in`, made if it is not there; the last one of an array of tables. */
static int
enter(struct toml *t, json_t *in, const char *key, enum toml_made made, json_t **ret)
{
	json_t *next = json_object_get(in, key);
	enum toml_made was;

	if (next == NULL) {
		next = json_object();
		if (next == NULL || json_object_set_new(in, key, next) != 0)
			return tune_no_memory(t->err);
		*ret = next;
		return made == TOML_IMPLIED ? 0 : toml_mark(t, next, made);
	}
	was = made_by(t, next);
	if (json_is_array(next) && was == TOML_HEADER && made == TOML_IMPLIED) {
		*ret = json_array_get(next, json_array_size(next) - 1);
		return 0;
	}
	if (!json_is_object(next) || was == TOML_INLINE || (made == TOML_DOTTED && was != TOML_DOTTED))
		return toml_fail(t, "'%s' has a value already", key);
	*ret = next;
	return 0;
}

int
toml_pair(struct toml *t, json_t *table)
{
	struct toml_key key = {0};
	json_t *value = NULL;
	int rc = toml_key(t, &key);

	for (size_t i = 0; rc == 0 && i + 1 < key.n; i++)
		rc = enter(t, table, key.parts[i], TOML_DOTTED, &table);
	if (rc == 0 && json_object_get(table, key.parts[key.n - 1]) != NULL)
		rc = toml_fail(t, "'%s' has a value already", key.parts[key.n - 1]);
	toml_blanks(t);
	if (rc == 0 && (t->at == t->end || *t->at != '='))
		rc = toml_expected(t, "'=' after the key");
	if (rc == 0) {
		t->at++;
		toml_blanks(t);
		rc = toml_value(t, &value);
	}
	if (rc == 0 && json_object_set_new(table, key.parts[key.n - 1], value) != 0)
		rc = tune_no_memory(t->err);
	toml_key_clear(&key);
	return rc;
}

/* [[name]]: one more table of the array. */
static int
array_header(struct toml *t, json_t *in, const char *name)
{
	json_t *list = json_object_get(in, name);
	int rc = 0;

	if (list == NULL) {
		list = json_array();
		if (list == NULL || json_object_set_new(in, name, list) != 0)
			return tune_no_memory(t->err);
		rc = toml_mark(t, list, TOML_HEADER);
	} else if (!json_is_array(list) || made_by(t, list) != TOML_HEADER) {
		return toml_fail(t, "'%s' has a value already", name);
	}
	t->table = json_object();
	if (rc == 0 && (t->table == NULL || json_array_append_new(list, t->table) != 0))
		rc = tune_no_memory(t->err);
	return rc == 0 ? toml_mark(t, t->table, TOML_HEADER) : rc;
}

/* [name]: the pairs below belong to this table. */
static int
table_header(struct toml *t, json_t *in, const char *name)
{
	json_t *table;
	enum toml_made was;
	int rc;

	table = json_object_get(in, name);
	was = table != NULL ? made_by(t, table) : TOML_IMPLIED;
	if (table != NULL && (!json_is_object(table) || was != TOML_IMPLIED))
		return toml_fail(t, was == TOML_HEADER ? "the table '%s' is there already" : "'%s' has a value already",
		                 name);
	rc = enter(t, in, name, TOML_HEADER, &t->table);
	return rc == 0 ? toml_mark(t, t->table, TOML_HEADER) : rc;
}

static int
header(struct toml *t)
{
	struct toml_key key = {0};
	json_t *in = t->root;
	bool array = t->at + 1 < t->end && t->at[1] == '[';
	int rc;

	t->at += array ? 2 : 1;
	toml_blanks(t);
	rc = toml_key(t, &key);
	toml_blanks(t);
	for (int i = 0; rc == 0 && i < (array ? 2 : 1); i++) {
		if (t->at == t->end || *t->at != ']')
			rc = toml_expected(t, array ? "']]'" : "']'");
		else
			t->at++;
	}
	for (size_t i = 0; rc == 0 && i + 1 < key.n; i++)
		rc = enter(t, in, key.parts[i], TOML_IMPLIED, &in);
	if (rc == 0)
		rc = array ? array_header(t, in, key.parts[key.n - 1]) : table_header(t, in, key.parts[key.n - 1]);
	toml_key_clear(&key);
	return rc;
}

static int
document(struct toml *t)
{
	int rc = 0;

	for (rc = toml_lines(t); rc == 0 && t->at < t->end; rc = rc == 0 ? toml_lines(t) : rc) {
		rc = *t->at == '[' ? header(t) : toml_pair(t, t->table);
		if (rc == 0)
			rc = line_end(t);
		if (rc < 0)
			break;
	}
	return rc;
}

int
toml_read(const char *text, size_t len, const char *name, json_t **ret, struct pawl_error *err)
{
	struct toml t = {.at = text, .end = text + len, .name = name, .line = 1, .err = err};
	int rc;

	if (len > TOML_MAX_BYTES)
		return tune_fail(err, PAWL_ELIMIT, "%s: %zu bytes, at most %zu are read", name, len, TOML_MAX_BYTES);
	if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		t.at += 3;
	t.root = t.table = json_object();
	rc = t.root != NULL ? document(&t) : tune_no_memory(err);
	free(t.marks);
	if (rc < 0) {
		json_decref(t.root);
		return rc;
	}
	*ret = t.root;
	return 0;
}
