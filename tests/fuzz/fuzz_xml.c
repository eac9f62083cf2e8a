/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_xml: any bytes as the answer of an S3 server. They end in an error that is filled in, or in
 * calls with a path within its limits and text that is UTF-8.
 */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "store/object/xml.h"
#include "fuzz.h"

static int
see(void *arg, const char *path, const char *text, size_t len)
{
	size_t depth = 1;
	for (const char *c = path; *c != '\0'; c++)
		depth += *c == '/';
	check(path[0] != '\0' && depth <= XML_MAX_DEPTH);
	check(text_is_utf8(text, len) && strlen(text) == len);
	++*(size_t *)arg;
	return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pawl_error err = {0};
	struct buf out = {0};
	size_t n = 0;
	int rc = xml_read("answer", data, size, see, &n, &err);
	check(rc <= 0 && (rc == 0) == (err.code == 0));
	check(rc < 0 ? strstr(err.message, "answer") != NULL : n > 0);
	xml_get("answer", data, size, "Error/Code", &out, NULL);
	buf_clear(&out);
	return 0;
}
