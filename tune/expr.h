/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expr: arithmetic over the values of a configuration, for sample_from: numbers, paths ("config.model.width" or
 * "model.width"), + - * / // % ** and parentheses, min max abs floor ceil round sqrt exp log log2 log10 pow, pi, e. Pure; no
 * memory, no calls to anything else; nested at most 64 deep.
 */
#ifndef PAWL_TUNE_EXPR_H
#define PAWL_TUNE_EXPR_H

#include <stdbool.h>
#include <stddef.h>

#include "pawl.h"

/* The number at a path (dots became slashes); false where there is none. */
typedef bool expr_lookup_fn(void *arg, const char *path, double *ret);

/* PAWL_EUSAGE names the text, the place and what was expected. */
int expr_value(const char *text, expr_lookup_fn *lookup, void *arg, double *ret, struct pawl_error *err);

#endif
