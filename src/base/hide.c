/* SPDX-License-Identifier: Apache-2.0 */
/* hide: finds secrets by the environment, by URLs and by the words before them (P18). */
#include "base/hide.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "pawl.h"

extern char **environ;

#define MIN_SECRET 6u

/* Replaces n bytes by stars. */
static void
cover_bytes(char *at, size_t n)
{
	memset(at, '*', n);
}

static bool
has_word(const char *name, size_t len, const char *const *words)
{
	for (; *words != NULL; words++)
		for (size_t i = 0; i + strlen(*words) <= len; i++)
			if (strncasecmp(name + i, *words, strlen(*words)) == 0)
				return true;
	return false;
}

static void
hide_environment(char *text)
{
	static const char *const words[] = {"KEY",  "SECRET", "TOKEN", "PASS", "CREDENTIAL",
	                                    "AUTH", "PWD_",   "SAS",   NULL};
	for (char **e = environ; e != NULL && *e != NULL; e++) {
		const char *equals = strchr(*e, '=');
		if (equals == NULL || strlen(equals + 1) < MIN_SECRET || !has_word(*e, (size_t)(equals - *e), words))
			continue;
		for (char *found = text; (found = strstr(found, equals + 1)) != NULL; found += strlen(equals + 1))
			cover_bytes(found, strlen(equals + 1));
	}
}

/* scheme://user:password@host */
static void
hide_urls(char *text)
{
	for (char *at = text; (at = strstr(at, "://")) != NULL;) {
		at += 3;
		size_t len = strcspn(at, "/ \t\n'\"");
		char *sign = memchr(at, '@', len), *colon = sign != NULL ? memchr(at, ':', (size_t)(sign - at)) : NULL;
		if (colon != NULL)
			cover_bytes(colon + 1, (size_t)(sign - colon - 1));
	}
}

static void
hide_named(char *text)
{
	static const char *const words[] = {"password",      "passwd",    "secret", "token",
	                                    "authorization", "signature", NULL};
	for (const char *const *word = words; *word != NULL; word++)
		for (char *at = text; (at = strcasestr(at, *word)) != NULL;) {
			at += strlen(*word);
			size_t line = strcspn(at, "\n");
			size_t sign = strcspn(at, "=:");
			if (sign < line && sign <= 12)
				cover_bytes(at + sign + 1, line - sign - 1);
			at += line;
		}
}

void
hide_secrets(char *text)
{
	hide_environment(text);
	hide_urls(text);
	hide_named(text);
}

void
pawl_hide_secrets(char *text)
{
	if (text != NULL)
		hide_secrets(text);
}
