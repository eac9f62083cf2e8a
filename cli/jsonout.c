/* SPDX-License-Identifier: Apache-2.0 */
/* jsonout: base/json formats numbers and texts. */
#include "jsonout.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "keep.h"

void
jsonout_init(struct jsonout *j, FILE *file)
{
	memset(j, 0, sizeof(*j));
	j->file = file;
}

static void
put_string(struct jsonout *j, const char *text, size_t len)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};

	json_put_printable(&out, text, len);
	if (out.failed)
		keep_die();
	(void)fwrite(out.ptr, 1, out.len, j->file);
}

static void
new_line(struct jsonout *j)
{
	(void)fputc('\n', j->file);
	for (size_t i = 0; i < j->depth; i++)
		(void)fputs("  ", j->file);
}

/* Prints what precedes a value: comma, indentation, key. */
static void
put_key(struct jsonout *j, const char *key)
{
	if (j->depth > 0) {
		if (j->wrote[j->depth - 1])
			(void)fputs(j->flat ? ", " : ",", j->file);
		j->wrote[j->depth - 1] = true;
		if (!j->flat)
			new_line(j);
	}
	if (key != NULL) {
		put_string(j, key, strlen(key));
		(void)fputs(": ", j->file);
	}
}

static void
begin_container(struct jsonout *j, const char *key, bool array)
{
	put_key(j, key);
	(void)fputc(array ? '[' : '{', j->file);
	if (j->depth >= JSONOUT_MAX_DEPTH)
		abort(); /* callers stay far below: states have at most 256 levels */
	j->wrote[j->depth] = false;
	j->array[j->depth] = array;
	j->depth++;
}

void
jsonout_begin_object(struct jsonout *j, const char *key)
{
	begin_container(j, key, false);
}

void
jsonout_begin_array(struct jsonout *j, const char *key)
{
	begin_container(j, key, true);
}

void
jsonout_begin_flat_array(struct jsonout *j, const char *key)
{
	begin_container(j, key, true);
	if (!j->flat) {
		j->flat = true;
		j->flat_depth = j->depth;
	}
}

void
jsonout_end(struct jsonout *j)
{
	bool flat = j->flat;

	if (flat && j->flat_depth == j->depth)
		j->flat = false;
	j->depth--;
	if (j->wrote[j->depth] && !flat)
		new_line(j);
	(void)fputc(j->array[j->depth] ? ']' : '}', j->file);
	if (j->depth == 0)
		(void)fputc('\n', j->file);
}

void
jsonout_text_n(struct jsonout *j, const char *key, const char *value, size_t len)
{
	put_key(j, key);
	put_string(j, value, len);
}

void
jsonout_text(struct jsonout *j, const char *key, const char *value)
{
	if (value == NULL)
		jsonout_null(j, key);
	else
		jsonout_text_n(j, key, value, strlen(value));
}

void
jsonout_literal(struct jsonout *j, const char *key, const char *digits)
{
	put_key(j, key);
	(void)fputs(digits, j->file);
}

void
jsonout_uint(struct jsonout *j, const char *key, uint64_t value)
{
	put_key(j, key);
	(void)fprintf(j->file, "%" PRIu64, value);
}

void
jsonout_int(struct jsonout *j, const char *key, int64_t value)
{
	put_key(j, key);
	(void)fprintf(j->file, "%" PRId64, value);
}

void
jsonout_real(struct jsonout *j, const char *key, double value)
{
	PAWL_CLEAN(buf_clear) struct buf digits = {0};

	if (isnan(value)) {
		jsonout_text(j, key, "NaN");
		return;
	}
	if (isinf(value)) {
		jsonout_text(j, key, value > 0 ? "Infinity" : "-Infinity");
		return;
	}
	json_put_double(&digits, value);
	jsonout_literal(j, key, buf_str(&digits));
}

void
jsonout_bool(struct jsonout *j, const char *key, bool value)
{
	put_key(j, key);
	(void)fputs(value ? "true" : "false", j->file);
}

void
jsonout_null(struct jsonout *j, const char *key)
{
	put_key(j, key);
	(void)fputs("null", j->file);
}
