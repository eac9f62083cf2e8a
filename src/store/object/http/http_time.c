/* SPDX-License-Identifier: Apache-2.0 */
/* http_time: the two forms in which servers write times. Pure. See http.h. */
#include "store/object/http/http.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/text.h"

static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

int64_t
http_date_time(const char *text)
{
	char month[4] = "";
	struct tm tm = {0};
	const char *comma = text != NULL ? strchr(text, ',') : NULL;
	if (comma == NULL || sscanf(comma + 1, " %2d %3s %4d %2d:%2d:%2d", &tm.tm_mday, month, &tm.tm_year, &tm.tm_hour,
	                            &tm.tm_min, &tm.tm_sec) != 6)
		return -1;
	const char *found = strstr(months, month);
	if (found == NULL || strlen(month) != 3 || (found - months) % 3 != 0)
		return -1;
	tm.tm_mon = (int)(found - months) / 3;
	tm.tm_year -= 1900;
	return (int64_t)timegm(&tm);
}

int64_t
http_iso_time(const char *text)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	if (rest == NULL)
		return -1;
	if (*rest == '.') {
		rest++;
		rest += strspn(rest, "0123456789");
	}
	int hours = 0, minutes = 0;
	if ((*rest == '+' || *rest == '-') && sscanf(rest + 1, "%2d:%2d", &hours, &minutes) == 2) {
		int sign = *rest == '-' ? 1 : -1;
		return (int64_t)timegm(&tm) + sign * (hours * 3600 + minutes * 60);
	}
	return strcmp(rest, "Z") == 0 ? (int64_t)timegm(&tm) : -1;
}

void
http_put_date(int64_t unix_seconds, char out[32])
{
	static const char days[] = "SunMonTueWedThuFriSat";
	time_t seconds = (time_t)unix_seconds;
	struct tm tm;
	if (gmtime_r(&seconds, &tm) == NULL || tm.tm_year < 0 || tm.tm_year > 8099) {
		seconds = 0;
		gmtime_r(&seconds, &tm);
	}
	char text[96];
	snprintf(text, sizeof text, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * tm.tm_wday, tm.tm_mday,
	         months + 3 * tm.tm_mon, tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
	text_copy(out, 32, text);
}
