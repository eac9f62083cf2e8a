/* SPDX-License-Identifier: Apache-2.0 */
/* value_own: what value.c and value_text.c share. */
#ifndef PAWL_BASE_VALUE_OWN_H
#define PAWL_BASE_VALUE_OWN_H

#include "base/value.h"
#include "base/vec.h"

struct value_part {
	char *key; /* NULL in an array */
	size_t key_len;
	struct value *value;
};

struct value {
	enum json_type type; /* never JSON_UINT */
	unsigned n_refs;
	int64_t integer; /* and boolean */
	double real;
	VEC(struct value_part) parts;
	size_t text_bytes;
	char text[];
};

bool value_add_part(struct value *v, char *key, size_t key_len, struct value *part);

#endif
