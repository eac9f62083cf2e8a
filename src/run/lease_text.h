/* SPDX-License-Identifier: Apache-2.0 */
/* lease_text: what the files of a lease hold, and their form as JSON. */
#ifndef PAWL_LEASE_TEXT_H
#define PAWL_LEASE_TEXT_H

#include <stdint.h>

#include "base/buf.h"
#include "base/clock.h"
#include "pawl.h"

#define LEASE_MAX_BYTES 4096u

struct lease_text {
	struct clock_process holder;
	char token[33];
	int64_t renewed_unix_ns;
	int64_t until_mono_ms; /* the holder renews it before this time of its own clock; 0 = not known */
};

int lease_encode(const struct lease_text *t, struct buf *out, struct pawl_error *err);
/* PAWL_ECORRUPT: the text is not a lease. */
int lease_decode(const struct buf *text, struct lease_text *ret, struct pawl_error *err);

#endif
