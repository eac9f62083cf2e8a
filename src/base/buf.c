/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buf: a growable byte buffer whose failures stick. One byte beyond len is always allocated, so
 * that buf_str can end the text without failing.
 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

void
buf_clear(struct buf *b)
{
	mem_free(b->ptr);
	*b = (struct buf){.max = b->max};
}

/* Makes room for len more bytes and the NUL. */
static bool
buf_reserve(struct buf *b, size_t len)
{
	if (b->failed)
		return false;
	if (len < b->cap - b->len)
		return true;
	size_t need;
	if (__builtin_add_overflow(b->len, len, &need) || need == SIZE_MAX || (b->max > 0 && need > b->max)) {
		b->failed = PAWL_ELIMIT;
		return false;
	}
	need++;
	size_t cap = b->cap < 32 ? 64 : b->cap <= SIZE_MAX / 2 ? b->cap * 2 : SIZE_MAX;
	if (b->max > 0 && cap > b->max)
		cap = b->max + 1;
	if (cap < need)
		cap = need;
	char *ptr = mem_resize(b->ptr, cap, 1);
	if (!ptr) {
		b->failed = PAWL_ENOMEM;
		return false;
	}
	b->ptr = ptr;
	b->cap = cap;
	return true;
}

void
buf_put(struct buf *b, const void *ptr, size_t len)
{
	if (len == 0 || !buf_reserve(b, len))
		return;
	memcpy(b->ptr + b->len, ptr, len);
	b->len += len;
}

void
buf_puts(struct buf *b, const char *text)
{
	buf_put(b, text, strlen(text));
}

void
buf_putc(struct buf *b, char c)
{
	if (!buf_reserve(b, 1))
		return;
	b->ptr[b->len++] = c;
}

void
buf_printf(struct buf *b, const char *format, ...)
{
	va_list args;

	if (b->failed)
		return;
	va_start(args, format);
	int len = vsnprintf(b->ptr ? b->ptr + b->len : NULL, b->cap - b->len, format, args);
	va_end(args);
	if (len < 0) {
		b->failed = PAWL_ELIMIT;
		return;
	}
	if ((size_t)len >= b->cap - b->len) {
		if (!buf_reserve(b, (size_t)len))
			return;
		va_start(args, format);
		vsnprintf(b->ptr + b->len, b->cap - b->len, format, args);
		va_end(args);
	}
	b->len += (size_t)len;
}

char *
buf_grow(struct buf *b, size_t len)
{
	if (!buf_reserve(b, len))
		return NULL;
	char *ptr = b->ptr + b->len;
	b->len += len;
	return ptr;
}

const char *
buf_str(struct buf *b)
{
	if (!b->ptr)
		return "";
	b->ptr[b->len] = '\0';
	return b->ptr;
}

int
buf_check(const struct buf *b, const char *what, struct pawl_error *err)
{
	switch (b->failed) {
	case 0:
		return 0;
	case PAWL_ENOMEM:
		return err_set(err, PAWL_ENOMEM, "%s: out of memory after %zu bytes", what, b->len);
	case PAWL_ELIMIT:
		return err_set(err, PAWL_ELIMIT, "%s: longer than the limit of %zu bytes", what, b->max);
	default:
		return err_set(err, b->failed, "%s: holds a value that cannot be written", what);
	}
}
