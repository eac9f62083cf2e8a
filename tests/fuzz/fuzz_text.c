/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a text: globs against a slow matcher, UTF-8 char by char, numbers against the C
 * library, base64 in both directions, keys and names. The first byte chooses where the pattern
 * ends. Promise P17.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fuzz.h"

/* What text_glob promises, by trying everything: matches[p][t] = does pattern + p match text +
 * t? */
static bool
slow_glob(const char *pattern, const char *text)
{
	static bool matches[34][34];
	size_t np = strlen(pattern), nt = strlen(text);

	for (size_t p = np + 1; p-- > 0;) {
		for (size_t t = nt + 1; t-- > 0;) {
			size_t next = t + 1;

			while (next < nt && ((unsigned char)text[next] & 0xc0) == 0x80)
				next++;
			if (p == np)
				matches[p][t] = t == nt || text[t] == '/' || (p > 0 && pattern[p - 1] == '/');
			else if (pattern[p] == '*')
				matches[p][t] = matches[p + 1][t] || (t < nt && matches[p][t + 1]);
			else
				matches[p][t] = t < nt && ((pattern[p] == '?' && matches[p + 1][next]) ||
				                           (pattern[p] == text[t] && matches[p + 1][t + 1]));
		}
	}
	return matches[0][0];
}

static void
check_globs(const char *pattern, const char *text)
{
	bool found = text_glob(pattern, text);

	check(text_glob("*", text));
	if (!strpbrk(text, "*?"))
		check(text_glob(text, text));
	if (strlen(pattern) < 33 && strlen(text) < 33 && text_is_utf8(pattern, strlen(pattern)) &&
	    text_is_utf8(text, strlen(text)))
		check(found == slow_glob(pattern, text));
}

static void
check_utf8(const char *text, size_t len)
{
	size_t at = 0, step = 1;

	for (; at < len && step > 0; at += step) {
		step = text_utf8_char(text + at, len - at);
		check(step <= 4 && step <= len - at);
	}
	check(text_is_utf8(text, len) == (step > 0));
}

static void
check_number(const char *text, size_t len)
{
	double value = NAN;
	size_t used = text_get_number(text, len, &value);

	if (used == 0)
		return;
	check(used <= len && used <= 1024 && isfinite(value));
	char *copy = strndup(text, used), *end;
	check(copy && strtod(copy, &end) == value && *end == '\0');
	free(copy);
}

static void
check_base64(const char *text, size_t len)
{
	struct buf bytes = {0}, again = {0};
	struct pawl_error err = {0};

	text_put_base64(&again, text, len);
	check(again.len == (len + 2) / 3 * 4 && text_get_base64(again.ptr, again.len, &bytes, &err) == 0);
	check(bytes.len == len && (len == 0 || memcmp(bytes.ptr, text, len) == 0));
	bytes.len = again.len = 0;
	int rc = text_get_base64(text, len, &bytes, &err);
	check(rc == 0 || (rc == PAWL_ECORRUPT && err.code == rc && bytes.len == 0));
	if (rc == 0) { /* every value has one spelling */
		text_put_base64(&again, bytes.ptr, bytes.len);
		check(again.len == len && (len == 0 || memcmp(again.ptr, text, len) == 0));
	}
	buf_clear(&bytes);
	buf_clear(&again);
}

static void
check_names(const char *text)
{
	char small[8], figure[32];
	double value = 0;

	if (text_is_component(text))
		check(text_is_key(text) && strlen(text) <= 128 && !strchr(text, '/') && text[0] != '.');
	if (text_is_key(text))
		check(text[0] != '/' && text[0] && strlen(text) <= 1024 && !strstr(text, "//") &&
		      !strstr(text, "/../") && strncmp(text, "../", 3) != 0);
	check(text_copy(small, sizeof(small), text) == (strlen(text) < sizeof(small)));
	check(strncmp(small, text, strlen(small)) == 0);
	memcpy(&value, text, strlen(text) < sizeof(value) ? strlen(text) : sizeof(value));
	text_bytes(value, figure);
	check(strlen(figure) > 2 && strlen(figure) < 20);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	/* Copies of their own, so that a read beyond the end is seen. */
	size_t len = size - 1, cut = data[0] < len ? data[0] : len;
	char *raw = malloc(len ? len : 1), *pattern = strndup((const char *)data + 1, cut);
	char *text = strndup((const char *)data + 1 + cut, len - cut);

	check(raw && pattern && text);
	memcpy(raw, data + 1, len);
	check_utf8(raw, len);
	check_number(raw, len);
	check_base64(raw, len);
	check_globs(pattern, text);
	check_names(text);
	free(raw);
	free(pattern);
	free(text);
	return 0;
}
