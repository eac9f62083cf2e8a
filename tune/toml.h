/* SPDX-License-Identifier: Apache-2.0 */
/* toml: a reader of TOML 1.0, without dates and times. Pure. */
#ifndef PAWL_TUNE_TOML_H
#define PAWL_TUNE_TOML_H

#include <jansson.h>
#include <stddef.h>

#include "pawl.h"

#define TOML_MAX_BYTES ((size_t)4 << 20)
#define TOML_MAX_DEPTH 64 /* of arrays, tables and dotted keys in each other */

/* text as an object (the caller's reference). Numbers that are not finite become the strings "NaN", "Infinity",
 * "-Infinity". PAWL_EUSAGE: "NAME:LINE: what was expected, what was found"; PAWL_ELIMIT. */
int toml_read(const char *text, size_t len, const char *name, json_t **ret, struct pawl_error *err);

#endif
