/* SPDX-License-Identifier: Apache-2.0 */
/* tune_err: errors of the search. */
#ifndef PAWL_TUNE_ERR_H
#define PAWL_TUNE_ERR_H

#include "pawl.h"

/* Fills err (NULL is fine) and returns code. */
int tune_fail(struct pawl_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Of a failed system call: the code is chosen from errno value `sys`, its text is appended. */
int tune_fail_sys(struct pawl_error *err, int sys, const char *format, ...) __attribute__((format(printf, 3, 4)));
int tune_no_memory(struct pawl_error *err);

/* What these return, as compilers can see it: a failure is never 0 or more. */
static inline int
tune_negative(int code)
{
	if (code >= 0)
		__builtin_unreachable();
	return code;
}
#define tune_fail(...) tune_negative(tune_fail(__VA_ARGS__))
#define tune_fail_sys(...) tune_negative(tune_fail_sys(__VA_ARGS__))

#endif
