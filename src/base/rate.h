/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rate: so many bytes a second, for all threads together: a token bucket without a reserve. The caller brings the time
 * and does the waiting, so that a test may bring a clock of its own.
 */
#ifndef PAWL_BASE_RATE_H
#define PAWL_BASE_RATE_H

#include <stdint.h>

struct rate {
	uint64_t bytes_per_second;     /* 0 = no limit */
	_Atomic int64_t paid_until_ns; /* when all that was taken so far has been paid for */
};

/* Takes nbytes at a time of a clock that never goes back. Returns the nanoseconds to wait before they are moved: until
 * what was taken earlier, by any thread, is paid for. What was not used is not saved up. Thread-safe. */
int64_t rate_take(struct rate *r, uint64_t nbytes, int64_t now_ns);

#endif
