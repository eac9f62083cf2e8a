/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum: picks the variant for this processor, and the text form of sums. Called by snapshot, write,
 * restore, verify, manifest; calls the sum_<variant> files. Promise P1.
 *
 * The choice is made anew at every call: the processor's features are a table that the compiler's
 * run-time library filled in at start, so it costs a load and needs no state of ours. Streams may be
 * continued by any variant; their state is the same.
 */
#include "base/sum.h"

#include "base/sum_ops.h"

static const struct sum_ops *
ops(void)
{
#if defined(__x86_64__)
	const struct sum_ops *found = NULL;

	if (__builtin_cpu_supports("avx512f") && (found = sum_ops_avx512()) != NULL)
		return found;
	if (__builtin_cpu_supports("avx2") && (found = sum_ops_avx2()) != NULL)
		return found;
#endif
	return sum_ops_generic();
}

struct sum128
sum_bytes(const void *ptr, size_t len)
{
	return ops()->bytes(ptr, len);
}

void
sum_init(struct sum_stream *s)
{
	ops()->init(s);
}

void
sum_update(struct sum_stream *s, const void *ptr, size_t len)
{
	ops()->update(s, ptr, len);
}

struct sum128
sum_final(const struct sum_stream *s)
{
	return ops()->final(s);
}

void
sum_copy(struct sum_stream *s, void *dst, const void *src, size_t len)
{
	ops()->copy(s, dst, src, len);
}

const char *
sum_variant(void)
{
	return ops()->name;
}

static void
put_hex(uint64_t half, char out[16])
{
	for (int i = 0; i < 16; i++)
		out[i] = "0123456789abcdef"[half >> (60 - 4 * i) & 15];
}

void
sum_to_hex(struct sum128 sum, char out[32])
{
	put_hex(sum.hi, out);
	put_hex(sum.lo, out + 16);
}

bool
sum_from_hex(const char text[32], struct sum128 *ret)
{
	uint64_t halves[2] = {0, 0};

	for (int i = 0; i < 32; i++) {
		char c = text[i];
		unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
		                 : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
		                                        : 16;
		if (digit == 16)
			return false;
		halves[i / 16] = halves[i / 16] << 4 | digit;
	}
	*ret = (struct sum128){.hi = halves[0], .lo = halves[1]};
	return true;
}
