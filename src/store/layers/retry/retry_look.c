/* SPDX-License-Identifier: Apache-2.0 */
/* retry_look: examines a store for store_retry.c, which passes itself as the store. See
 * retry_look.h. */
#include "store/layers/retry/retry_look.h"

#include <string.h>

#include "base/mem.h"

#define COMPARE_BYTES ((size_t)4 << 20)
#define MAX_APPENDED_LOOK ((uint64_t)1 << 20)

/* True if the n bytes of the object from offset on equal ptr. False also if that cannot be found
 * out. */
static bool
has_bytes(struct store *base, struct store_reader *r, uint64_t offset, const char *ptr, size_t n)
{
	PAWL_FREE char *piece = mem_alloc(COMPARE_BYTES);
	if (piece == NULL)
		return false;
	for (size_t done = 0; done < n;) {
		size_t len = n - done < COMPARE_BYTES ? n - done : COMPARE_BYTES;
		if (store_read(base, r, offset + done, piece, len, NULL) < 0 || memcmp(piece, ptr + done, len) != 0)
			return false;
		done += len;
	}
	return true;
}

bool
retry_look_holds(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts)
{
	struct store_reader *r;
	uint64_t nbytes, total = 0, at = 0;
	for (size_t i = 0; i < n_parts; i++)
		total += parts[i].len;
	if (store_open_reader(base, key, &r, &nbytes, NULL) < 0)
		return false;
	bool same = nbytes == total;
	for (size_t i = 0; same && i < n_parts; at += parts[i++].len)
		if (parts[i].len > 0)
			same = has_bytes(base, r, at, parts[i].ptr, parts[i].len);
	store_close_reader(base, r);
	return same;
}

bool
retry_look_is_same(struct store *base, const char *one, const char *other)
{
	struct store_reader *a, *b;
	uint64_t a_bytes, b_bytes;
	if (store_open_reader(base, one, &a, &a_bytes, NULL) < 0)
		return false;
	if (store_open_reader(base, other, &b, &b_bytes, NULL) < 0) {
		store_close_reader(base, a);
		return false;
	}
	PAWL_FREE char *piece = mem_alloc(COMPARE_BYTES);
	bool same = piece != NULL && a_bytes == b_bytes;
	for (uint64_t at = 0; same && at < a_bytes; at += COMPARE_BYTES) {
		size_t len = a_bytes - at < COMPARE_BYTES ? (size_t)(a_bytes - at) : COMPARE_BYTES;
		same = store_read(base, a, at, piece, len, NULL) == 0 && has_bytes(base, b, at, piece, len);
	}
	store_close_reader(base, a);
	store_close_reader(base, b);
	return same;
}

bool
retry_look_was_appended(struct store *base, const char *key, uint64_t offset, const void *ptr, size_t len)
{
	struct store_reader *r;
	uint64_t nbytes;
	if (store_open_reader(base, key, &r, &nbytes, NULL) < 0)
		return false;
	bool found = false;
	if (nbytes > offset && nbytes - offset >= len && nbytes - offset <= MAX_APPENDED_LOOK + len) {
		size_t n = (size_t)(nbytes - offset);
		PAWL_FREE char *tail = mem_alloc(n);
		found = tail != NULL && store_read(base, r, offset, tail, n, NULL) == 0 &&
		        memmem(tail, n, ptr, len) != NULL;
	}
	store_close_reader(base, r);
	return found;
}
