/* SPDX-License-Identifier: Apache-2.0 */
/* document_yaml: YAML as JSON values. */
#ifndef PAWL_TUNE_DOCUMENT_YAML_H
#define PAWL_TUNE_DOCUMENT_YAML_H

#include "base/value.h"

#define DOCUMENT_YAML_MAX_BYTES ((size_t)4 << 20)
#define DOCUMENT_YAML_MAX_DEPTH 64
#define DOCUMENT_YAML_MAX_KEYS 4096 /* keys of one mapping */

/* Reads one YAML document whose top level is a mapping. A missing document counts as an empty
 * mapping. Scalars follow the core schema of YAML 1.2: 1e-4 is a number, "yes" is a string.
 * Infinity and NaN become the strings of value_new_real. Anchors, aliases, tags, merge keys and
 * further documents are refused. Errors: PAWL_EUSAGE "NAME:LINE: what is wrong"; PAWL_ELIMIT. */
int document_yaml_read(const char *text, size_t len, const char *name, struct value **ret, struct pawl_error *err);

#endif
