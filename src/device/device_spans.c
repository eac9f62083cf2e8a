/* SPDX-License-Identifier: Apache-2.0 */
/* device_spans: see device_spans.h. */
#include "device/device_spans.h"

bool
device_spans_add(struct device_spans *s, size_t begin, int node)
{
	if (s->list.n && s->list.items[s->list.n - 1].begin == begin) /* the last one is empty */
		s->list.n--;
	if (s->list.n && s->list.items[s->list.n - 1].node == node)
		return true;
	struct device_span *span = vec_add(&s->list);

	if (!span)
		return false;
	*span = (struct device_span){begin, node};
	return true;
}

void
device_spans_clear(struct device_spans *s)
{
	vec_free(&s->list);
}
