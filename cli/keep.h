/* SPDX-License-Identifier: Apache-2.0 */
/* keep: memory that lives as long as the invocation. If memory is exhausted, the command ends with
 * a message. */
#ifndef PAWL_CLI_KEEP_H
#define PAWL_CLI_KEEP_H

#include "base/bump.h"

struct keep {
	struct bump memory;
};

/* Zeroed memory, aligned for any type; never NULL. */
void *keep_alloc(struct keep *keep, size_t n, size_t size);
/* printf into a new string. */
char *keep_printf(struct keep *keep, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *keep_strndup(struct keep *keep, const char *text, size_t len);
void keep_clear(struct keep *keep);
/* Ends the command, because memory is exhausted. */
_Noreturn void keep_die(void);

#endif
