/* SPDX-License-Identifier: Apache-2.0 */
/* finite: see finite.h. */
#include "base/finite.h"

#include <stdint.h>
#include <string.h>

/* One byte per element. False if (element & mask) == bad for any element. */
static bool
finite_8(const char *ptr, size_t n, unsigned mask, unsigned bad)
{
	unsigned found = 0;

	for (size_t i = 0; i < n; i++)
		found |= ((unsigned char)ptr[i] & mask) == bad;
	return !found;
}

/* Wider elements: false if all bits of the exponent, the mask, are set in any of them. */
#define FINITE(bits)                                                              \
	static bool finite_##bits(const char *ptr, size_t n, uint##bits##_t mask) \
	{                                                                         \
		unsigned bad = 0;                                                 \
                                                                                  \
		for (size_t i = 0; i + bits / 8 <= n; i += bits / 8) {            \
			uint##bits##_t v;                                         \
                                                                                  \
			memcpy(&v, ptr + i, sizeof(v));                           \
			bad |= (v & mask) == mask;                                \
		}                                                                 \
		return !bad;                                                      \
	}
FINITE(16)
FINITE(32)
FINITE(64)

bool
finite_all(int dtype, const void *bytes, size_t n)
{
	const char *ptr = bytes;

	switch (dtype) {
	case PAWL_F8_E5M2:
		return finite_8(ptr, n, 0x7c, 0x7c);
	case PAWL_F8_E4M3: /* this dtype and those below have no infinities */
		return finite_8(ptr, n, 0x7f, 0x7f);
	case PAWL_F8_E4M3FNUZ:
	case PAWL_F8_E5M2FNUZ: /* NaN has the bits of minus zero */
		return finite_8(ptr, n, 0xff, 0x80);
	case PAWL_F8_E8M0:
		return finite_8(ptr, n, 0xff, 0xff);
	case PAWL_F16:
		return finite_16(ptr, n, 0x7c00);
	case PAWL_BF16:
		return finite_16(ptr, n, 0x7f80);
	case PAWL_F32:
	case PAWL_C64:
		return finite_32(ptr, n, 0x7f800000u);
	case PAWL_F64:
	case PAWL_C128:
		return finite_64(ptr, n, 0x7ff0000000000000u);
	default:
		return true;
	}
}
