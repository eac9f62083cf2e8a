/* SPDX-License-Identifier: Apache-2.0 */
/* dtype: names and sizes of element types. The names are those of safetensors. */
#include <string.h>

#include "pawl.h"

struct dtype {
	const char *name;
	unsigned bits;
};

static const struct dtype dtypes[] = {
	[PAWL_BOOL] = {"BOOL", 8},
	[PAWL_F4] = {"F4", 4},
	[PAWL_F6_E2M3] = {"F6_E2M3", 6},
	[PAWL_F6_E3M2] = {"F6_E3M2", 6},
	[PAWL_U8] = {"U8", 8},
	[PAWL_I8] = {"I8", 8},
	[PAWL_F8_E5M2] = {"F8_E5M2", 8},
	[PAWL_F8_E4M3] = {"F8_E4M3", 8},
	[PAWL_F8_E8M0] = {"F8_E8M0", 8},
	[PAWL_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
	[PAWL_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
	[PAWL_I16] = {"I16", 16},
	[PAWL_U16] = {"U16", 16},
	[PAWL_F16] = {"F16", 16},
	[PAWL_BF16] = {"BF16", 16},
	[PAWL_I32] = {"I32", 32},
	[PAWL_U32] = {"U32", 32},
	[PAWL_F32] = {"F32", 32},
	[PAWL_C64] = {"C64", 64},
	[PAWL_F64] = {"F64", 64},
	[PAWL_I64] = {"I64", 64},
	[PAWL_U64] = {"U64", 64},
	[PAWL_C128] = {"C128", 128},
};

#define N_DTYPES ((int)(sizeof(dtypes) / sizeof(dtypes[0])))

const char *
pawl_dtype_name(int dtype)
{
	return dtype > 0 && dtype < N_DTYPES ? dtypes[dtype].name : NULL;
}

unsigned
pawl_dtype_bits(int dtype)
{
	return dtype > 0 && dtype < N_DTYPES ? dtypes[dtype].bits : 0;
}

int
pawl_dtype_from_name(const char *name)
{
	if (!name || !name[0])
		return 0;
	for (int i = 1; i < N_DTYPES; i++) {
		const char *known = dtypes[i].name; /* at least two characters, which nearly tell them apart */
		if (known[0] == name[0] && known[1] == name[1] && strcmp(known, name) == 0)
			return i;
	}
	return 0;
}
