/* SPDX-License-Identifier: Apache-2.0 */
/* keep: see keep.h. */
#include "keep.h"

#include <stdio.h>
#include <stdlib.h>

void
keep_die(void)
{
	(void)fputs("pawl: out of memory\n", stderr);
	exit(1);
}

static void *
check_memory(void *ptr)
{
	if (ptr == NULL)
		keep_die();
	return ptr;
}

void *
keep_alloc(struct keep *keep, size_t n, size_t size)
{
	return check_memory(bump_array(&keep->memory, n, size));
}

char *
keep_strndup(struct keep *keep, const char *text, size_t len)
{
	return check_memory(bump_strndup(&keep->memory, text, len));
}

char *
keep_printf(struct keep *keep, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	char *text = bump_vprintf(&keep->memory, format, args);
	va_end(args);
	return check_memory(text);
}

void
keep_clear(struct keep *keep)
{
	bump_clear(&keep->memory);
}
