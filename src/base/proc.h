/* SPDX-License-Identifier: Apache-2.0 */
/* proc: running another program and taking what it prints. No shell. Leaf module. */
#ifndef PAWL_BASE_PROC_H
#define PAWL_BASE_PROC_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"

/* Runs argv (NULL at its end, the program looked for in PATH) in a process group of its own. Its
 * stdin is empty, its stderr is thrown away, and its stdout is appended to *out. The group is
 * killed after timeout_ms (PAWL_ETIMEOUT) or above max bytes (PAWL_ELIMIT). PAWL_ENOTFOUND: there
 * is no such program; PAWL_EIO: it ended with another status than 0. Messages name argv[0] only:
 * arguments and output may be secret. */
int proc_capture(char *const argv[], int64_t timeout_ms, size_t max, struct buf *out, struct pawl_error *err);

/* Splits a command line at blanks; '...' and "..." quote, a backslash quotes one character outside
 * of '...'. *ret is in `memory`, NULL at its end. PAWL_EUSAGE: an open quote, or nothing at all. */
int proc_split(const char *line, struct bump *memory, char ***ret, struct pawl_error *err);

#endif
