/* SPDX-License-Identifier: Apache-2.0 */
/* names: see names.h. */
#include "base/names.h"

#include <string.h>

#define SHORT 6u /* bytes up to which two changes make another name, unless it begins alike */
#define FAR 3u   /* changes of a character after which a name is another one */

void
names_put(struct buf *out, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n && i < NAMES_SHOWN; i++)
		buf_printf(out, "%s%s", i > 0 ? ", " : "", names[i]);
	if (n > NAMES_SHOWN)
		buf_printf(out, ", ... and %zu more", n - NAMES_SHOWN);
}

/* Edit distance (insert, delete, replace). Names are short. */
static size_t
edit_distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b), row[64];

	if (lb >= 64 || la >= 64)
		return FAR;
	for (size_t j = 0; j <= lb; j++)
		row[j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			size_t best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[lb];
}

const char *
names_nearest(const char *name, const char *const *names, size_t n)
{
	const char *best = NULL;
	size_t least = FAR;

	for (size_t i = 0; i < n; i++) {
		size_t d = edit_distance(name, names[i]);

		if (d > 1 && strlen(name) <= SHORT && name[0] != names[i][0])
			continue;
		if (d < least && d < strlen(name)) {
			least = d;
			best = names[i];
		}
	}
	return best;
}

void
names_put_known(struct buf *out, const char *unknown, const char *const *names, size_t n)
{
	const char *near = names_nearest(unknown, names, n);

	if (near)
		buf_printf(out, "; did you mean '%s'?", near);
	buf_puts(out, " (known: ");
	names_put(out, names, n);
	buf_putc(out, ')');
}
