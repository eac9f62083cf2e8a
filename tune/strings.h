/* SPDX-License-Identifier: Apache-2.0 */
/* strings: a list of texts in the form that exec takes. */
#ifndef PAWL_TUNE_STRINGS_H
#define PAWL_TUNE_STRINGS_H

#include <stdbool.h>
#include <stddef.h>

/* Texts, with NULL at the end. The list owns all of them. */
struct strings {
	char **items;
	size_t n, cap;
};
void strings_clear(struct strings *s);
/* Adds a copy. False when out of memory. */
bool strings_add(struct strings *s, const char *text);
/* Takes ownership of the text, which may be NULL: out of memory. */
bool strings_add_owned(struct strings *s, char *text);

#endif
