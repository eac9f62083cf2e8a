/* SPDX-License-Identifier: Apache-2.0 */
/* registry_find: questions to the table of URL schemes, which is in a file of its own. */
#include <string.h>

#include "store/registry.h"

const struct store_kind *
registry_find(const char *url)
{
	const size_t len = strcspn(url, ":");

	for (const struct store_kind *kind = registry_kinds; kind->scheme; kind++)
		if (strlen(kind->scheme) == len && strncmp(url, kind->scheme, len) == 0 && url[len] == ':')
			return kind;
	return NULL;
}

void
registry_describe(struct buf *out, bool remote)
{
	const char *before = "", *last = "a path";

	for (const struct store_kind *kind = registry_kinds; kind->scheme; kind++)
		if (kind->is_remote || !remote) {
			buf_printf(out, "%s%s", before, last);
			before = ", ";
			last = kind->example;
		}
	buf_printf(out, " or %s", last);
}

const char *
pawl_url_scheme(size_t i)
{
	for (const struct store_kind *kind = registry_kinds; kind->scheme; kind++)
		if (i-- == 0)
			return kind->scheme;
	return NULL;
}
