/* SPDX-License-Identifier: Apache-2.0 */
/* memory: how much of it process groups use. */
#ifndef PAWL_TUNE_MEMORY_H
#define PAWL_TUNE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes that the processes of each group have for themselves (what they share with others, and files, do not count), as of now.
 * All 0 where the system does not say. */
void memory_of_groups(const pid_t *groups, size_t n, uint64_t *ret);

#endif
