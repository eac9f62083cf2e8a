/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem: the only file of the library that calls malloc, realloc and free. A test wraps these three
 * at link time and makes the n-th allocation fail.
 */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

void *
mem_alloc(size_t nbytes)
{
	return malloc(nbytes > 0 ? nbytes : 1);
}

void *
mem_zalloc(size_t n, size_t size)
{
	size_t nbytes;

	if (__builtin_mul_overflow(n, size, &nbytes))
		return NULL;
	void *ptr = mem_alloc(nbytes);
	if (ptr)
		memset(ptr, 0, nbytes);
	return ptr;
}

void *
mem_resize(void *ptr, size_t n, size_t size)
{
	size_t nbytes;

	if (__builtin_mul_overflow(n, size, &nbytes))
		return NULL;
	return realloc(ptr, nbytes > 0 ? nbytes : 1);
}

void
mem_free(void *ptr)
{
	free(ptr);
}

void
mem_clean_free(void *pointer_to_pointer)
{
	void *ptr;

	memcpy(&ptr, pointer_to_pointer, sizeof(ptr));
	free(ptr);
}

char *
mem_strndup(const char *text, size_t len)
{
	if (len == SIZE_MAX)
		return NULL;
	char *copy = mem_alloc(len + 1);
	if (!copy)
		return NULL;
	memcpy(copy, text, len);
	copy[len] = '\0';
	return copy;
}

char *
mem_strdup(const char *text)
{
	return mem_strndup(text, strlen(text));
}

char *
mem_printf(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int len = vsnprintf(NULL, 0, format, args);
	va_end(args);
	if (len < 0)
		return NULL;
	char *text = mem_alloc((size_t)len + 1);
	if (!text)
		return NULL;
	va_start(args, format);
	vsnprintf(text, (size_t)len + 1, format, args);
	va_end(args);
	return text;
}

void
mem_prefer_node(void *ptr, size_t nbytes, int node)
{
#ifdef SYS_mbind
	unsigned long nodes[16] = {0}; /* the kernel has at most 1,024 */
	const unsigned bits = 8 * sizeof(nodes[0]), n_bits = 16 * bits;

	if (node < 0 || (unsigned)node >= n_bits)
		return;
	nodes[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
	(void)syscall(SYS_mbind, ptr, nbytes, MPOL_PREFERRED, nodes, n_bits + 1, MPOL_MF_MOVE);
#else
	(void)ptr, (void)nbytes, (void)node;
#endif
}
