/* SPDX-License-Identifier: Apache-2.0 */
/* err: the one table of codes, and how every module reports a failure. Leaf module. */
#ifndef PAWL_BASE_ERR_H
#define PAWL_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

#include "pawl.h"

/* Fills *err (may be NULL) and returns code. Message: lower case, no full stop, names the object,
 * what was expected and what was found. */
int err_set(struct pawl_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same for a failed system call. pawl_code_from_errno chooses the code for errno value `sys`,
 * and ": <strerror>" is appended. */
int err_sys(struct pawl_error *err, int sys, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* PAWL_ENOMEM: "<what>: out of memory", or "out of memory" if what is NULL. */
int err_nomem(struct pawl_error *err, const char *what);

/* PAWL_ETIMEOUT of a call whose own timeout has passed: sys is PAWL_SYS_WAITED. */
int err_waited(struct pawl_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before an existing message; returns err->code (or code when err is NULL). */
int err_prefix(struct pawl_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A function of the caller has returned rc, and perhaps filled *why. Returns rc. A failure fills
 * *err with rc and its message, or with one that names `what` if it gave none. */
int err_of_caller(struct pawl_error *err, int rc, const struct pawl_error *why, const char *what);

/* Is the checkpoint itself damaged, so that an older one may be restored? */
bool err_is_damage(int code);

/* Shows compilers and analysers that a failure is always negative. */
static inline int
err_negative(int code)
{
	if (code >= 0)
		__builtin_unreachable();
	return code;
}
#define err_set(...) err_negative(err_set(__VA_ARGS__))
#define err_sys(...) err_negative(err_sys(__VA_ARGS__))
#define err_waited(...) err_negative(err_waited(__VA_ARGS__))
#define err_nomem(...) err_negative(err_nomem(__VA_ARGS__))

/* For public functions, which change the caller's error only when they fail: copies their own error
 * and returns rc. Steps that may fail without failing the call write to the own error only. */
static inline int
err_give(struct pawl_error *err, int rc, const struct pawl_error *own)
{
	if (rc < 0 && err)
		*err = *own;
	return rc;
}

/* Returns from the calling function with the value of expr if that is negative. */
#define TRY(expr)                       \
	do {                            \
		int try_rc_ = (expr);   \
		if (try_rc_ < 0)        \
			return try_rc_; \
	} while (0)

#endif
