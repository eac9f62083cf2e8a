/* SPDX-License-Identifier: Apache-2.0 */
/* tune_err: fills in the error of a caller. Called by all of tune. */
#include "tune_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int(tune_fail)(struct pawl_error *err, int code, const char *format, ...)
{
	va_list args;

	if (!err)
		return code;
	err->code = code;
	err->sys = 0;
	va_start(args, format);
	vsnprintf(err->message, sizeof(err->message), format, args);
	va_end(args);
	return code;
}

int(tune_fail_sys)(struct pawl_error *err, int sys, const char *format, ...)
{
	char text[128];
	va_list args;
	size_t n;

	if (!err)
		return pawl_code_from_errno(sys);
	err->code = pawl_code_from_errno(sys);
	err->sys = sys;
	va_start(args, format);
	vsnprintf(err->message, sizeof(err->message), format, args);
	va_end(args);
	n = strlen(err->message);
	snprintf(err->message + n, sizeof(err->message) - n, ": %s", strerror_r(sys, text, sizeof(text)));
	return err->code;
}

int
tune_no_memory(struct pawl_error *err)
{
	return tune_fail(err, PAWL_ENOMEM, "out of memory");
}
