/* SPDX-License-Identifier: Apache-2.0 */
/* rate: a token bucket (P16: no wait is longer than RATE_LONGEST_NS). */
#include "base/rate.h"

#include <stdatomic.h>

#define RATE_LONGEST_NS (INT64_MAX / 4)

int64_t
rate_take(struct rate *r, uint64_t nbytes, int64_t now_ns)
{
	if (r->bytes_per_second == 0)
		return 0;
	double exact = (double)nbytes / (double)r->bytes_per_second * 1e9;
	int64_t price = exact < (double)RATE_LONGEST_NS ? (int64_t)exact : RATE_LONGEST_NS;
	int64_t old = atomic_load(&r->paid_until_ns), from, until;
	do {
		from = old > now_ns ? old : now_ns;
		until = from - now_ns < RATE_LONGEST_NS ? from + price : from;
	} while (!atomic_compare_exchange_weak(&r->paid_until_ns, &old, until));
	return from - now_ns;
}
