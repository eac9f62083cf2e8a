/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comma_locale: sets a locale whose decimal point is a comma, for tests that numbers do not depend
 * on it. Systems for tests have no such locale installed, so with glibc an LC_NUMERIC file of our
 * own is loaded. Elsewhere de_DE is part of the system.
 */
#ifndef PAWL_TESTS_COMMA_LOCALE_H
#define PAWL_TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __GLIBC__
/* The head of the file, its six offsets, then: decimal point, thousands separator, grouping, both
 * characters as numbers, codeset. In the byte order of the machine. */
static inline bool
comma_locale_write(const char *path)
{
	const uint32_t head[] = {0x20031114, 6, 32, 34, 36, 40, 44, 48};
	const char texts[] = {',', 0, '.', 0, 3, 3, 0, 0};
	const uint32_t characters[] = {',', '.'};
	const char codeset[16] = "ANSI_X3.4-1968";
	FILE *file = fopen(path, "wb");

	if (!file)
		return false;
	bool ok = fwrite(head, sizeof(head), 1, file) == 1 && fwrite(texts, sizeof(texts), 1, file) == 1 &&
	          fwrite(characters, sizeof(characters), 1, file) == 1 &&
	          fwrite(codeset, sizeof(codeset), 1, file) == 1;
	return fclose(file) == 0 && ok;
}

static inline bool
comma_locale_set(void)
{
	char root[] = "/tmp/pawl-locale-XXXXXX", folder[64], path[80];

	if (!mkdtemp(root))
		return false;
	snprintf(folder, sizeof(folder), "%s/comma", root);
	snprintf(path, sizeof(path), "%s/LC_NUMERIC", folder);
	bool set = mkdir(folder, 0700) == 0 && comma_locale_write(path) && setenv("LOCPATH", root, 1) == 0 &&
	           setlocale(LC_NUMERIC, "comma") != NULL;
	unsetenv("LOCPATH");
	unlink(path);
	rmdir(folder);
	rmdir(root);
	return set && strcmp(localeconv()->decimal_point, ",") == 0;
}
#else
static inline bool
comma_locale_set(void)
{
	return setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
}
#endif

static inline void
comma_locale_reset(void)
{
	setlocale(LC_NUMERIC, "C");
}

#endif
