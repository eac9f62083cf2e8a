/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space: the values to try. A tree of plain values and of draws: {"$uniform": [lo, hi]} and the
 * like (docs/reference/tune.md). Pure: a trial's configuration is a function of the tree, the seed
 * and the trial's number. A draw depends only on its own path: another key, or more samples, change
 * no other value.
 */
#ifndef PAWL_TUNE_SPACE_H
#define PAWL_TUNE_SPACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/value.h"
#include "pawl.h"

#define SPACE_MAX_TRIALS 10000000u

/* PAWL_EUSAGE names the path, what was expected and what was found. ret_n_grid: the product of all
 * {"$grid": [..]}. */
int space_check(const struct value *space, uint64_t *ret_n_grid, struct pawl_error *err);
/* The configuration of a trial: samples x grid, the grid's last key fastest. A new reference. */
int space_config(const struct value *space, uint64_t seed, uint64_t trial, struct value **ret, struct pawl_error *err);
/* Draws one value of a description (a plain value gives itself), keyed by path as above. *ret is a
 * new reference. */
int space_draw(const struct value *what, const char *path, uint64_t seed, uint64_t trial, struct value **ret,
               struct pawl_error *err);
/* "lr=0.01,width=32": the values of a configuration that the space varies (all of them if space is
 * NULL). Uses only characters allowed in file names; writes at most nbytes. */
void space_tag(const struct value *space, const struct value *config, char *text, size_t nbytes);

#endif
