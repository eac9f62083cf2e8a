/* SPDX-License-Identifier: Apache-2.0 */
/* Which compressed formats this build has: by the end of a file name. */
#ifndef PAWL_TEST_CODECS_H
#define PAWL_TEST_CODECS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/parts.h"

#ifdef PAWL_WITHOUT_BZ2
#define ABSENT_BZ2 ".bz2"
#else
#define ABSENT_BZ2 NULL
#endif
#ifdef PAWL_WITHOUT_LZ4
#define ABSENT_LZ4 ".lz4"
#else
#define ABSENT_LZ4 NULL
#endif
#ifdef PAWL_WITHOUT_XZ
#define ABSENT_XZ ".xz"
#define ABSENT_LZMA ".lzma"
#else
#define ABSENT_XZ NULL
#define ABSENT_LZMA NULL
#endif

static inline bool
codec_is_built(const char *name)
{
	static const char *const absent[] = {ABSENT_BZ2, ABSENT_LZ4, ABSENT_XZ, ABSENT_LZMA};
	const char *suffix = strrchr(name, '.');
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
		if (suffix && absent[i] && strcmp(suffix, absent[i]) == 0)
			return false;
	return true;
}

#endif
