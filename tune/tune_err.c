/* SPDX-License-Identifier: Apache-2.0 */
/* tune_err: fills in the error of a caller. Called by all of tune. */
#include "tune_err.h"

#include <stdarg.h>
#include <stdio.h>

int
tune_fail(struct pawl_error *err, int code, const char *format, ...)
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

int
tune_no_memory(struct pawl_error *err)
{
	return tune_fail(err, PAWL_ENOMEM, "out of memory");
}
