/* SPDX-License-Identifier: Apache-2.0 */
/* command: the arguments and the environment of a trial. Pure. */
#ifndef PAWL_TUNE_COMMAND_H
#define PAWL_TUNE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/value.h"
#include "pawl.h"

/* Texts, with NULL at the end. The list owns all of them. */
struct strings {
	char **items;
	size_t n, cap;
};
void strings_clear(struct strings *s);
/* Adds a copy. False when out of memory. */
bool strings_add(struct strings *s, const char *text);

/* template: texts in which {name} stands for the value of that key of the configuration ("a/b" for
 * a nested one), {{ and }} for braces. Texts are inserted as they are, other values as JSON.
 * PAWL_EUSAGE names a placeholder that the configuration lacks. */
int command_fill(const struct value *template, const struct value *config, struct strings *ret, struct pawl_error *err);
/* Sets NAME=value, replacing a variable of that name. */
bool environment_set(struct strings *env, const char *name, const char *value);
void environment_unset(struct strings *env, const char *name);
/* A copy of this process's environment, changed by an object of texts and numbers (NULL is
 * allowed). */
int environment_make(const struct value *changes, struct strings *ret, struct pawl_error *err);

#endif
