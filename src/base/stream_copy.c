/* SPDX-License-Identifier: Apache-2.0 */
/* stream_copy: see stream_copy.h. */
#include "base/stream_copy.h"

#include <stdint.h>
#include <string.h>

/* The unit in which copying and checksumming alternate. It is small so that the loads of one piece
 * overlap with the stores of the piece before. */
#define PIECE_BYTES ((size_t)1024)
/* Shorter copies use the cache, because their reader usually follows at once. */
#define SMALL_BYTES ((size_t)4096)
#define PREFETCH_BYTES ((size_t)2048)
#define LINE_BYTES ((size_t)64)

/* The compiler must checksum the copy; it must not read the source a second time instead. */
#define KEEP_COPY() __asm__ volatile("" ::: "memory")

#if defined(__SSE2__)
#include <emmintrin.h>

/* Reads n_bytes, a multiple of 64, once. Stores them in `keep` and, past the cache, in `to`; both
 * are aligned to 64. */
static void
copy_piece(char *to, char *keep, const char *from, size_t n_bytes)
{
	for (size_t at = 0; at < n_bytes; at += LINE_BYTES) {
		_mm_prefetch(from + at + PREFETCH_BYTES, _MM_HINT_T0);
		const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + at));
		const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + at + 16));
		const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + at + 32));
		const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + at + 48));
		_mm_store_si128((__m128i *)(void *)(keep + at), a);
		_mm_store_si128((__m128i *)(void *)(keep + at + 16), b);
		_mm_store_si128((__m128i *)(void *)(keep + at + 32), c);
		_mm_store_si128((__m128i *)(void *)(keep + at + 48), d);
		_mm_stream_si128((__m128i *)(void *)(to + at), a);
		_mm_stream_si128((__m128i *)(void *)(to + at + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + at + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + at + 48), d);
	}
}

static void
fence_stores(void)
{
	_mm_sfence();
}

#else

static void
copy_piece(char *to, char *keep, const char *from, size_t n_bytes)
{
	memcpy(keep, from, n_bytes);
	KEEP_COPY();
	memcpy(to, keep, n_bytes);
}

static void
fence_stores(void)
{
}

#endif

static void
copy_small(char *to, const char *from, size_t len, stream_copy_add *add, void *checksum)
{
	if (len == 0)
		return;
	memcpy(to, from, len);
	KEEP_COPY();
	if (add)
		add(checksum, to, len);
}

void
stream_copy(void *dst, const void *src, size_t len, stream_copy_add *add, void *checksum)
{
	_Alignas(64) char piece[PIECE_BYTES];
	char *to = dst;
	const char *from = src;
	const size_t head = len < SMALL_BYTES ? len : (size_t)(-(uintptr_t)to & (LINE_BYTES - 1));
	const size_t end = head + ((len - head) & ~(LINE_BYTES - 1));

	copy_small(to, from, head, add, checksum);
	for (size_t at = head; at < end;) {
		const size_t n = end - at < PIECE_BYTES ? end - at : PIECE_BYTES;

		copy_piece(to + at, piece, from + at, n);
		KEEP_COPY();
		if (add)
			add(checksum, piece, n);
		at += n;
	}
	copy_small(to + end, from + end, len - end, add, checksum);
	if (end > head)
		fence_stores();
}
