/* SPDX-License-Identifier: Apache-2.0 */
/* tune_err: errors of the trial runner. */
#ifndef PAWL_TUNE_ERR_H
#define PAWL_TUNE_ERR_H

#include "pawl.h"

/* Fills err (NULL is fine) and returns code. */
int tune_fail(struct pawl_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int tune_no_memory(struct pawl_error *err);

#endif
