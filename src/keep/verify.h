/* SPDX-License-Identifier: Apache-2.0 */
/* verify: pawl_verify with a deadline. */
#ifndef PAWL_VERIFY_H
#define PAWL_VERIFY_H

#include "pawl.h"

/* deadline_ms: by clock_mono_ms; 0 = none. PAWL_ETIMEOUT after that; checked between reads. */
int verify_until(struct pawl *run, uint64_t id, struct pawl_meter *meter, int64_t deadline_ms,
                 struct pawl_findings **ret, struct pawl_error *err);

#endif
