/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rate: limits bytes per second, for all threads together: a token bucket without a reserve. The
 * caller passes the time and waits, so that a test may use its own clock.
 */
#ifndef PAWL_BASE_RATE_H
#define PAWL_BASE_RATE_H

#include <stdint.h>

struct rate {
	uint64_t bytes_per_second;     /* 0 = no limit */
	_Atomic int64_t paid_until_ns; /* when all bytes taken so far are paid for */
};

/* Takes nbytes at now_ns of a monotonic clock. Returns the nanoseconds to wait before they are
 * moved: until the bytes that any thread took earlier are paid for. Unused time is not saved up.
 * Thread-safe. */
int64_t rate_take(struct rate *r, uint64_t nbytes, int64_t now_ns);

#endif
