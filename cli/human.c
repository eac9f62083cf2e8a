/* SPDX-License-Identifier: Apache-2.0 */
/* human: see human.h. */
#include "human.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/text.h"

/* Three significant digits: 1.23, 12.3, 123, 1023. */
static const char *
three_digits(struct keep *keep, double value, const char *unit)
{
	int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;

	return keep_printf(keep, "%.*f %s", decimals, value, unit);
}

const char *
human_bytes(struct keep *keep, double nbytes)
{
	char text[32];

	text_bytes(nbytes, text);
	return keep_printf(keep, "%s", text);
}

const char *
human_rate(struct keep *keep, double bytes_per_second)
{
	static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
	size_t unit = 0;

	if (!isfinite(bytes_per_second) || bytes_per_second < 0)
		return "-";
	while (bytes_per_second >= 999.5 && unit < 4) {
		bytes_per_second /= 1000;
		unit++;
	}
	return three_digits(keep, bytes_per_second, units[unit]);
}

const char *
human_seconds(struct keep *keep, double seconds)
{
	if (!isfinite(seconds) || seconds < 0)
		return "-";
	if (seconds < 0.00995)
		return keep_printf(keep, "%.1f ms", seconds * 1e3);
	if (seconds < 0.9995)
		return keep_printf(keep, "%.0f ms", seconds * 1e3);
	if (seconds < 99.5)
		return three_digits(keep, seconds, "s");
	if (seconds < 3600)
		return keep_printf(keep, "%.0f min %.0f s", floor(seconds / 60), floor(fmod(seconds, 60)));
	return keep_printf(keep, "%.0f h %.0f min", floor(seconds / 3600), floor(fmod(seconds, 3600) / 60));
}

const char *
human_age(struct keep *keep, double seconds)
{
	static const struct {
		double below, unit;
		const char *name;
	} steps[] = {
		{100, 1, "s"},
		{100 * 60, 60, "m"},
		{48 * 3600, 3600, "h"},
		{60 * 86400.0, 86400, "d"},
		{104 * 604800.0, 604800, "w"},
		{INFINITY, 31557600, "y"},
	};
	size_t i = 0;

	if (!(seconds >= 0))
		return seconds > -5 ? "0s" : "future";
	while (seconds >= steps[i].below)
		i++;
	return keep_printf(keep, "%.0f%s", floor(seconds / steps[i].unit), steps[i].name);
}

const char *
human_time(struct keep *keep, double unix_seconds)
{
	time_t when = (time_t)unix_seconds;
	struct tm tm;

	if (!(fabs(unix_seconds) < 1e11) || localtime_r(&when, &tm) == NULL)
		return "-";
	return keep_printf(keep, "%04d-%02d-%02d %02d:%02d:%02d", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
	                   tm.tm_hour, tm.tm_min, tm.tm_sec);
}

const char *
human_number(struct keep *keep, double value, int digits)
{
	if (isnan(value))
		return "NaN";
	if (isinf(value))
		return value > 0 ? "inf" : "-inf";
	return keep_printf(keep, "%.*g", digits, value);
}

const char *
human_count(struct keep *keep, uint64_t n, const char *one, const char *many)
{
	char digits[32], out[48];
	int len = snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;

	for (int i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			out[at++] = ',';
		out[at++] = digits[i];
	}
	out[at] = '\0';
	if (one[0] == '\0')
		return keep_printf(keep, "%s", out);
	return keep_printf(keep, "%s %s", out, n == 1 ? one : many);
}
