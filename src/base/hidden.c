/* SPDX-License-Identifier: Apache-2.0 */
/* hidden: names of what is not complete. Pure, but for the random token. */
#include "base/hidden.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

static bool
has_suffix(const char *name, const char *suffix)
{
	size_t len = strlen(name), tail = strlen(suffix);

	return len > tail && strcmp(name + len - tail, suffix) == 0;
}

void
hidden_name_of(const char *name, const char *token, const char *suffix, char ret[HIDDEN_NAME_BYTES])
{
	snprintf(ret, HIDDEN_NAME_BYTES, ".%.90s.%.32s%.32s", name, token, suffix);
}

int
hidden_name(const char *name, const char *suffix, char ret[HIDDEN_NAME_BYTES], struct pawl_error *err)
{
	char token[HIDDEN_TOKEN_LEN + 1];

	TRY(clock_token(token, err));
	hidden_name_of(name, token, suffix, ret);
	return 0;
}

bool
hidden_is_token(const char *text)
{
	return strspn(text, "0123456789abcdef") >= HIDDEN_TOKEN_LEN;
}

const char *
hidden_token(const char *name, const char *suffix)
{
	size_t len = strlen(name), tail = 1 + HIDDEN_TOKEN_LEN + strlen(suffix);

	if (len < 2 + tail || name[0] != '.' || !has_suffix(name, suffix))
		return NULL;
	const char *dot = name + len - tail;
	return *dot == '.' && hidden_is_token(dot + 1) ? dot + 1 : NULL;
}

bool
hidden_is(const char *name)
{
	return name[0] == '.' && (has_suffix(name, HIDDEN_PARTIAL) || has_suffix(name, HIDDEN_TMP));
}
