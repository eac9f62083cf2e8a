/* SPDX-License-Identifier: Apache-2.0 */
/* command: the arguments and the environment of a trial. Pure. */
#ifndef PAWL_TUNE_COMMAND_H
#define PAWL_TUNE_COMMAND_H

#include <stdbool.h>

#include "base/value.h"
#include "pawl.h"
#include "strings.h"

/* template: texts in which {name} stands for the value of that key of the configuration ("a/b" for
 * a nested one), {{ and }} for braces. Texts are inserted as they are, other values as JSON.
 * PAWL_EUSAGE names a placeholder that the configuration lacks. */
int command_fill(const struct value *template, const struct value *config, struct strings *ret, struct pawl_error *err);
/* Sets NAME=value, replacing a variable of that name. */
bool command_set_variable(struct strings *env, const char *name, const char *value);
void command_unset_variable(struct strings *env, const char *name);
/* A copy of this process's environment, changed by an object of texts and numbers (NULL is
 * allowed). */
int command_environment(const struct value *changes, struct strings *ret, struct pawl_error *err);

#endif
