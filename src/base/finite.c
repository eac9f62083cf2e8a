/* SPDX-License-Identifier: Apache-2.0 */
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

static bool
finite_16(const char *ptr, size_t n, uint16_t mask)
{
	unsigned bad = 0;

	for (size_t i = 0; i + 2 <= n; i += 2) {
		uint16_t v;

		memcpy(&v, ptr + i, 2);
		bad |= (v & mask) == mask;
	}
	return !bad;
}

static bool
finite_32(const char *ptr, size_t n)
{
	unsigned bad = 0;

	for (size_t i = 0; i + 4 <= n; i += 4) {
		uint32_t v;

		memcpy(&v, ptr + i, 4);
		bad |= (v & 0x7f800000u) == 0x7f800000u;
	}
	return !bad;
}

static bool
finite_64(const char *ptr, size_t n)
{
	unsigned bad = 0;

	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t v;

		memcpy(&v, ptr + i, 8);
		bad |= (v & 0x7ff0000000000000u) == 0x7ff0000000000000u;
	}
	return !bad;
}

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
		return finite_32(ptr, n);
	case PAWL_F64:
	case PAWL_C128:
		return finite_64(ptr, n);
	default:
		return true;
	}
}
