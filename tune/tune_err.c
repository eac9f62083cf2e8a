/* SPDX-License-Identifier: Apache-2.0 */
/* tune_err: fills in the error of a caller. Called by all of tune. */
#include "tune_err.h"

#include <errno.h>
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

static int
code_of(int sys)
{
	switch (sys) {
	case ENOSPC:
	case EDQUOT:
		return PAWL_ENOSPACE;
	case ENOENT:
		return PAWL_ENOTFOUND;
	case EEXIST:
	case ENOTEMPTY:
		return PAWL_EEXISTS;
	case EACCES:
	case EPERM:
		return PAWL_EAUTH;
	case EROFS:
		return PAWL_EREADONLY;
	case ENOMEM:
		return PAWL_ENOMEM;
	default:
		return PAWL_EIO;
	}
}

int(tune_fail_sys)(struct pawl_error *err, int sys, const char *format, ...)
{
	char text[128];
	va_list args;
	size_t n;

	if (!err)
		return code_of(sys);
	err->code = code_of(sys);
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
