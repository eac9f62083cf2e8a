/* SPDX-License-Identifier: Apache-2.0 */
/* names: what an error says of names: those that exist, and the one that was meant. */
#ifndef PAWL_BASE_NAMES_H
#define PAWL_BASE_NAMES_H

#include <stddef.h>

#include "base/buf.h"

#define NAMES_SHOWN 10u

/* Appends "a, b, c", or of more than NAMES_SHOWN the first ones with a count:
 * "a, ... and 7 more". */
void names_put(struct buf *out, const char *const *names, size_t n);

/* Appends "; did you mean 'lr'? (known: lr, momentum)": what exists instead of an unknown name. */
void names_put_known(struct buf *out, const char *unknown, const char *const *names, size_t n);

/* The name that differs least from `name`: by at most two changes of a character, in a short name
 * not of the first one. NULL = none. */
const char *names_nearest(const char *name, const char *const *names, size_t n);

#endif
