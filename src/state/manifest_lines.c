/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_lines: see manifest_lines.h. */
#include "state/manifest_lines.h"

#include <string.h>

#include "base/err.h"

int
manifest_count_lines(struct manifest_lines *l, struct pawl_error *err)
{
	const char *at = l->at;

	for (l->n = 0; at && at < l->end && *at == '\n'; l->n++) {
		if (at + 1 < l->end && at[1] == ']')
			return 0;
		at = memchr(at + 1, '\n', (size_t)(l->end - at - 1));
	}
	return err_set(err, PAWL_ECORRUPT, "expected a row in each line, and then ']'");
}

int
manifest_next_line(struct manifest_lines *l, size_t i, struct pawl_slice *ret, struct pawl_error *err)
{
	const char *row = l->at + 1, *end = memchr(row, '\n', (size_t)(l->end - row));
	bool is_last = i + 1 == l->n;

	if (!end || end == row || (!is_last && end[-1] != ','))
		return err_set(err, PAWL_ECORRUPT, "expected a row, and a comma before the next one");
	l->at = end;
	*ret = (struct pawl_slice){row, (size_t)(end - row) - !is_last};
	return 0;
}

int
manifest_skip(struct manifest_lines *l, const char *text, struct pawl_error *err)
{
	size_t len = strlen(text);

	if ((size_t)(l->end - l->at) < len || memcmp(l->at, text, len) != 0)
		return err_set(err, PAWL_ECORRUPT, "expected the end of the rows and the next member");
	l->at += len;
	return 0;
}
