/* SPDX-License-Identifier: Apache-2.0 */
/* human: numbers formatted for people. Sizes use powers of 1024 (KiB), rates powers of 1000
 * (GB/s). */
#ifndef PAWL_CLI_HUMAN_H
#define PAWL_CLI_HUMAN_H

#include <stdint.h>

#include "keep.h"

const char *human_bytes(struct keep *keep, double nbytes);          /* "310 MiB", "2.48 GiB", "512 B" */
const char *human_rate(struct keep *keep, double bytes_per_second); /* "3.10 GB/s" */
const char *human_seconds(struct keep *keep,
                          double seconds);                /* "0.4 ms", "38 ms", "1.24 s", "3 min 12 s", "2 h 5 min" */
const char *human_age(struct keep *keep, double seconds); /* "12s", "3m", "5h", "2d", "9w", "3y" */
const char *human_time(struct keep *keep, double unix_seconds);        /* local "2026-11-21 11:58:03" */
const char *human_number(struct keep *keep, double value, int digits); /* digits: significant; "NaN", "inf", "-inf" */
const char *human_count(struct keep *keep, uint64_t n, const char *one, const char *many); /* "1 file", "1,204 files" */

#endif
