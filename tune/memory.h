/* SPDX-License-Identifier: Apache-2.0 */
/* memory: how much memory process groups use. */
#ifndef PAWL_TUNE_MEMORY_H
#define PAWL_TUNE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes that the processes of each group use privately at this moment; shared memory and files do
 * not count. All 0 where the system does not report them. */
void memory_of_groups(const pid_t *groups, size_t n, uint64_t *ret);

#endif
