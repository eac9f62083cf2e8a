/* SPDX-License-Identifier: Apache-2.0 */
/* amount: sizes and durations as text, for options of the command and of the bindings. Pure. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/text.h"

struct unit {
	const char *name;
	double factor;
};

/* The case of a unit does not matter. */
static const struct unit sizes[] = {
	{"", 1},       {"B", 1},      {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"K", 0x1p10},
	{"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
};
static const struct unit times[] = {
	{"", 1},         {"ms", 1e-3},   {"s", 1},         {"sec", 1},        {"second", 1},
	{"seconds", 1},  {"m", 60},      {"min", 60},      {"minute", 60},    {"minutes", 60},
	{"h", 3600},     {"hour", 3600}, {"hours", 3600},  {"d", 86400},      {"day", 86400},
	{"days", 86400}, {"w", 604800},  {"week", 604800}, {"weeks", 604800},
};
#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* A decimal number without a sign, one blank at most, and a unit of len bytes. */
static bool
read_amount(const char *text, size_t len, const struct unit *units, size_t n, double *ret)
{
	size_t used = *text >= '0' && *text <= '9' ? text_get_number(text, len, ret) : 0;

	if (used == 0)
		return false;
	used += used < len && text[used] == ' ';
	for (size_t i = 0; i < n; i++) {
		if (strlen(units[i].name) == len - used && strncasecmp(text + used, units[i].name, len - used) == 0) {
			*ret *= units[i].factor;
			return isfinite(*ret) && *ret >= 0;
		}
	}
	return false;
}

int
pawl_parse_bytes(const char *text, uint64_t *ret, struct pawl_error *err)
{
	size_t len = text ? strlen(text) : 0;
	double value = 0;

	if (!ret)
		return err_set(err, PAWL_EUSAGE, "size: expected a pointer that receives the number, found NULL");
	if (len > 2 && strcmp(text + len - 2, "/s") == 0)
		len -= text[len - 3] == 'b' ? 0 : 2; /* "Mb/s" often stands for bits */
	if (len == 0 || !read_amount(text, len, sizes, COUNT(sizes), &value) || value >= 0x1p63 ||
	    (value > 0 && value < 1))
		return err_set(err, PAWL_EUSAGE, "expected a size such as 500MB, 2GiB or 2G, found '%.64s'",
		               text ? text : "");
	*ret = (uint64_t)value;
	return 0;
}

int
pawl_parse_seconds(const char *text, double *ret, struct pawl_error *err)
{
	double value = 0;

	if (!ret)
		return err_set(err, PAWL_EUSAGE, "time: expected a pointer that receives the number, found NULL");
	if (!text || !read_amount(text, strlen(text), times, COUNT(times), &value))
		return err_set(err, PAWL_EUSAGE, "expected a time such as 90s, 30min, 12h or 7d, found '%.64s'",
		               text ? text : "");
	*ret = value;
	return 0;
}
