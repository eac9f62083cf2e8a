/* SPDX-License-Identifier: Apache-2.0 */
/* strings: see strings.h. */
#include "strings.h"

#include "base/mem.h"
#include "base/vec.h"

void
strings_clear(struct strings *s)
{
	for (size_t i = 0; i < s->n; i++)
		mem_free(s->items[i]);
	mem_free(s->items);
	*s = (struct strings){0};
}

bool
strings_add_owned(struct strings *s, char *text)
{
	if (text == NULL || !array_reserve(s->items, s->cap, s->n + 2)) {
		mem_free(text);
		return false;
	}
	s->items[s->n++] = text;
	s->items[s->n] = NULL;
	return true;
}

bool
strings_add(struct strings *s, const char *text)
{
	return strings_add_owned(s, mem_strdup(text));
}
