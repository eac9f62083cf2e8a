/* SPDX-License-Identifier: Apache-2.0 */
/* device_spans: which parts of host memory belong on which memory node: that of the device which
 * copies from or to them. Pure. */
#ifndef PAWL_DEVICE_DEVICE_SPANS_H
#define PAWL_DEVICE_DEVICE_SPANS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/vec.h"

struct device_span {
	size_t begin; /* it ends where the next one begins, the last one at the end of the memory */
	int node;     /* -1 = unknown */
};
struct device_spans {
	VEC(struct device_span) list;
};

/* From `begin` on the memory belongs to the node. Call with ascending begins. False: out of
 * memory. */
bool device_spans_add(struct device_spans *s, size_t begin, int node);
void device_spans_clear(struct device_spans *s);

#endif
