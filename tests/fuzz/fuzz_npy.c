/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_npy: any bytes as an array of numpy. They give an array or an error that names it. The
 * contents of the array are within the file, to its end. Its header comes back the same when it is
 * written and read again. Promises P1, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "format/numpy/npy.h"
#include "fuzz.h"

/* Bytes, and zeros behind them: of an array only the header is read. */
struct text {
	const void *ptr;
	size_t n;
};

static int
read_text(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct text *b = arg;

	(void)err;
	memset(dst, 0, n);
	if (offset < b->n)
		memcpy(dst, (const char *)b->ptr + offset, n < b->n - offset ? n : b->n - (size_t)offset);
	return 0;
}

static void
check_again(const struct npy *a, struct bump *memory)
{
	struct buf header = {0};
	struct npy again;

	check(npy_encode_header(a->dtype, a->ndim, a->shape, &header, NULL) == 0 && header.len % 64 == 0);
	struct text b = {header.ptr, header.len};
	const struct source source = {.what = "again", .nbytes = header.len + a->nbytes, .read = read_text, .arg = &b};
	check(npy_open(&source, "again", 0, source.nbytes, memory, &again, NULL) == 0);
	check(again.dtype == a->dtype && again.ndim == a->ndim && again.nbytes == a->nbytes && !again.strides);
	check(a->ndim == 0 || memcmp(again.shape, a->shape, a->ndim * sizeof(*a->shape)) == 0);
	buf_clear(&header);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct text b = {data, size};
	const struct source source = {.what = "array", .nbytes = size, .read = read_text, .arg = &b};
	struct bump memory = {.limit_bytes = (size_t)1 << 24};
	struct pawl_error err = {0};
	struct npy a = {0};

	const int rc = npy_open(&source, "array", 0, size, &memory, &a, &err);
	if (rc == 0) {
		check(a.begin <= size && a.nbytes == size - a.begin && a.ndim <= PAWL_MAX_DIMS);
		check(npy_descr(a.dtype) != NULL);
		check_again(&a, &memory);
	} else {
		check(err.code == rc && strstr(err.message, "array") &&
		      (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED));
	}
	bump_clear(&memory);
	return 0;
}
