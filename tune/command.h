/* SPDX-License-Identifier: Apache-2.0 */
/* command: the arguments and the environment of a trial. Pure. */
#ifndef PAWL_TUNE_COMMAND_H
#define PAWL_TUNE_COMMAND_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

/* Texts, NULL at the end; all of it belongs to the list. */
struct strings {
	char **items;
	size_t n;
};
void strings_clear(struct strings *s);
/* Adds a copy. False when out of memory. */
bool strings_add(struct strings *s, const char *text);

/* template: texts in which {name} stands for the value of that key of the configuration ("a/b" for a nested one), {{ and }} for
 * braces. Texts are put in as they are, all else as JSON. PAWL_EUSAGE names a placeholder that the configuration lacks. */
int command_fill(const json_t *template, const json_t *config, struct strings *ret, struct pawl_error *err);
/* NAME=value, in place of what has that name. */
bool environment_set(struct strings *env, const char *name, const char *value);
void environment_unset(struct strings *env, const char *name);
/* A copy of that of this process, changed by an object of texts and numbers (NULL is fine). */
int environment_make(const json_t *changes, struct strings *ret, struct pawl_error *err);

#endif
