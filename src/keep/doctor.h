/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the rows that doctor.c (paths), doctor_store.c (stores) and doctor_device.c share. */
#ifndef PAWL_DOCTOR_H
#define PAWL_DOCTOR_H

#include <stdbool.h>

#include "base/bump.h"
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
/* A row for each device of a driver (enum pawl_device), with measured rates. Loads the driver.
 * Without it there is no row, and the result is false. */
bool doctor_try_devices(struct pawl_rows *rows, int kind);
/* A store's own description, and trials with small objects that are removed again. An operation
 * that fails becomes a row. */
int doctor_try_store(struct pawl_rows *rows, struct store *store, struct pawl_error *err);

#endif
