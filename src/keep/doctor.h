/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: what doctor.c (paths) and doctor_store.c (everything else) share: the rows. */
#ifndef PAWL_DOCTOR_H
#define PAWL_DOCTOR_H

#include <stdbool.h>

#include "base/mem.h"
#include "pawl.h"
#include "store/store.h"

#define DOCTOR_MAX_ROWS 48

struct pawl_rows {
	struct bump memory;
	struct {
		const char *key, *value;
	} row[DOCTOR_MAX_ROWS];
	size_t n;
	bool failed; /* out of memory, or of rows */
};

/* Adds a row. value is in the rows' memory; NULL = out of memory. The key is borrowed. */
void doctor_state(struct pawl_rows *rows, const char *key, char *value);
/* A store's own description, and trials with small objects that are removed again. An operation
 * that fails becomes a row. */
int doctor_try_store(struct pawl_rows *rows, struct store *store, struct pawl_error *err);

#endif
