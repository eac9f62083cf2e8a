/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err: the one table of error codes, and filling of struct pawl_error.
 *
 * Each code has one row in `codes`.
 */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

struct code_row {
	int code;
	const char *name;
	int exit_status;
	bool transient; /* a retry may help */
};

static const struct code_row codes[] = {
	{PAWL_OK, "ok", 0, false},
	{PAWL_EUSAGE, "usage", 2, false},
	{PAWL_ENOMEM, "memory", 1, false},
	{PAWL_ENOTFOUND, "not-found", 3, false},
	{PAWL_EEXISTS, "exists", 7, false},
	{PAWL_EBUSY, "busy", 6, true},
	{PAWL_ECONFLICT, "conflict", 7, false},
	{PAWL_ENOSPACE, "no-space", 1, false},
	{PAWL_EIO, "io", 1, false},
	{PAWL_ETRANSIENT, "transient", 5, true},
	{PAWL_EAUTH, "auth", 1, false},
	{PAWL_ECORRUPT, "corrupt", 4, false},
	{PAWL_EVERSION, "version", 1, false},
	{PAWL_ETIMEOUT, "timeout", 5, true},
	{PAWL_ECANCELLED, "cancelled", 130, false},
	{PAWL_EMISMATCH, "mismatch", 1, false},
	{PAWL_ELIMIT, "limit", 1, false},
	{PAWL_EUNSUPPORTED, "unsupported", 1, false},
	{PAWL_EREADONLY, "read-only", 1, false},
	{PAWL_EINTERNAL, "internal", 1, false},
	{PAWL_EDEVICE, "device", 1, false},
};

static const struct code_row *
code_find(int code)
{
	static const struct code_row unknown = {0, "unknown", 1, false};

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (codes[i].code == code)
			return &codes[i];
	return &unknown;
}

const char *
pawl_version(void)
{
	return PAWL_VERSION;
}

const char *
pawl_code_name(int code)
{
	return code_find(code)->name;
}

int
pawl_code_exit_status(int code)
{
	return code_find(code)->exit_status;
}

bool
err_is_damage(int code)
{
	return code == PAWL_ECORRUPT || code == PAWL_EIO || code == PAWL_ELIMIT || code == PAWL_ENOTFOUND;
}

int
pawl_code_is_transient(int code)
{
	return code_find(code)->transient;
}

int
pawl_code_from_errno(int sys)
{
	switch (sys) {
	case ENOSPC:
	case EDQUOT:
		return PAWL_ENOSPACE;
	case ENOENT:
		return PAWL_ENOTFOUND;
	case EEXIST:
#if ENOTEMPTY != EEXIST
	case ENOTEMPTY:
#endif
		return PAWL_EEXISTS;
	case EACCES:
	case EPERM:
	case EBUSY: /* another program uses it exclusively */
		return PAWL_EAUTH;
	case EROFS:
		return PAWL_EREADONLY;
	case ENOMEM:
		return PAWL_ENOMEM;
	case EAGAIN:
	case EINTR:
	case ESTALE:
	case ETIMEDOUT:
	case EMFILE:
	case ENFILE:
		return PAWL_ETRANSIENT;
	default:
		return PAWL_EIO;
	}
}

/* A message that does not fit is cut; the cut must not leave half a UTF-8 character behind. */
static void
trim_partial_utf8(char *message)
{
	size_t len = strlen(message);
	size_t back = 0;

	while (back < len && back < 3 && ((unsigned char)message[len - 1 - back] & 0xc0) == 0x80)
		back++;
	if (back == len)
		return;
	unsigned char lead = (unsigned char)message[len - 1 - back];
	size_t need = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
	if (back < need)
		message[len - 1 - back] = '\0';
}

/* A control character of ASCII, or one of those that terminals know beyond it (U+0080 to
 * U+009F). */
static bool
is_control(const char *at, size_t len)
{
	unsigned char c = (unsigned char)at[0];

	return len == 1 ? c < 0x20 || c == 0x7f : len == 2 && c == 0xc2 && (unsigned char)at[1] < 0xa0;
}

/* A name in a message may hold any bytes, such as terminal control characters, and "%.200s" may
 * have cut it inside a character. */
static void
replace_unprintable(char *message)
{
	for (char *at = message, *end = message + strlen(message); at < end;) {
		size_t len = text_utf8_char(at, (size_t)(end - at));
		if (len == 0 || is_control(at, len))
			memset(at, '?', len > 0 ? len : 1);
		at += len > 0 ? len : 1;
	}
}

static void
finish_message(struct pawl_error *err, int code, int sys, int wanted)
{
	err->code = code;
	err->sys = sys;
	if (wanted < 0)
		err->message[0] = '\0';
	else if ((size_t)wanted >= sizeof(err->message))
		trim_partial_utf8(err->message);
	replace_unprintable(err->message);
}

/* Format arguments may point into err->message itself (rewording an earlier error), hence the
 * copies through a local buffer. */
static void
set_text(struct pawl_error *err, int code, int sys, const char *format, va_list args)
{
	char message[sizeof(err->message)];

	if (!err)
		return;
	int n = vsnprintf(message, sizeof(message), format, args);
	memcpy(err->message, message, sizeof(message));
	finish_message(err, code, sys, n);
}

int(err_set)(struct pawl_error *err, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_text(err, code, 0, format, args);
	va_end(args);
	return code;
}

int(err_nomem)(struct pawl_error *err, const char *what)
{
	return what ? err_set(err, PAWL_ENOMEM, "%s: out of memory", what) : err_set(err, PAWL_ENOMEM, "out of memory");
}

int(err_waited)(struct pawl_error *err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_text(err, PAWL_ETIMEOUT, PAWL_SYS_WAITED, format, args);
	va_end(args);
	return PAWL_ETIMEOUT;
}

int(err_sys)(struct pawl_error *err, int sys, const char *format, ...)
{
	int code = pawl_code_from_errno(sys);

	if (!err)
		return code;

	char message[sizeof(err->message)];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	if (n < 0) {
		n = 0;
		message[0] = '\0';
	}

	/* strerror_l and friends differ between systems; GNU strerror_r returns the text, XSI an
	 * int. */
	char reason[128];
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
	const char *text = strerror_r(sys, reason, sizeof(reason));
#else
	const char *text = strerror_r(sys, reason, sizeof(reason)) == 0 ? reason : "unknown error";
#endif
	/* Keep room for the reason: it is worth more than the end of a long name. */
	size_t room = sizeof(message) - strlen(text) - 3;
	if ((size_t)n > room) {
		message[room] = '\0';
		trim_partial_utf8(message);
	}
	n = snprintf(err->message, sizeof(err->message), "%s: %s", message, text);
	finish_message(err, code, sys, n);
	return code;
}

int
err_prefix(struct pawl_error *err, int code, const char *format, ...)
{
	if (!err)
		return code;

	char message[sizeof(err->message)];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	if (n < 0)
		return err->code;
	if ((size_t)n < sizeof(message)) {
		size_t used = (size_t)n;
		int more = snprintf(message + used, sizeof(message) - used, ": %s", err->message);
		n = more < 0 ? n : n + more;
	}
	memcpy(err->message, message, sizeof(message));
	finish_message(err, err->code, err->sys, n);
	return err->code;
}

int
err_of_caller(struct pawl_error *err, int rc, const struct pawl_error *why, const char *what)
{
	if (rc >= 0 || !err)
		return rc;
	*err = *why;
	err->code = rc;
	err->message[sizeof(err->message) - 1] = '\0';
	return err->message[0] ? rc : err_set(err, rc, "%s failed and gave no reason", what);
}
