/* SPDX-License-Identifier: Apache-2.0 */
#include "extending/pgm.h"

#include <stdio.h>
#include <string.h>

#define MAX_HEADER 32u

bool
pgm_looks(const unsigned char *first, size_t n)
{
	return n > 3 && memcmp(first, "P5\n", 3) == 0;
}

int
pgm_open(const struct source *source, struct pgm *ret, struct pawl_error *err)
{
	char header[MAX_HEADER + 1] = "";
	uint32_t width = 0, height = 0;
	int len = 0;

	TRY(source_read(source, 0, header, source->nbytes < MAX_HEADER ? (size_t)source->nbytes : MAX_HEADER, err));
	if (sscanf(header, "P5\n%9u %9u\n255%n", &width, &height, &len) != 2 || len == 0 || header[len] != '\n')
		return err_set(err, PAWL_ECORRUPT, "%s: not the header of a grey image", source->what);
	*ret = (struct pgm){.shape = {height, width}, .begin = (uint64_t)len + 1};
	if (source->nbytes - ret->begin != (uint64_t)width * height)
		return err_set(err, PAWL_ECORRUPT, "%s: expected %llu bytes after the header, found %llu", source->what,
		               (unsigned long long)width * height, (unsigned long long)(source->nbytes - ret->begin));
	return 0;
}
