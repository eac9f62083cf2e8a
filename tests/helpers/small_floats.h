/* SPDX-License-Identifier: Apache-2.0 */
/* small_floats: a thread whose processor takes floats below the normal range as zero. */
#ifndef PAWL_TESTS_SMALL_FLOATS_H
#define PAWL_TESTS_SMALL_FLOATS_H

#include <stdbool.h>
#include <stdint.h>

/* As torch.set_flush_denormal does. False where this processor has no such mode. */
static inline bool
flush_small_floats(bool on)
{
#if defined(__x86_64__)
	const unsigned bits = 0x8040; /* of results and of operands */

	__builtin_ia32_ldmxcsr(on ? __builtin_ia32_stmxcsr() | bits : __builtin_ia32_stmxcsr() & ~bits);
	return true;
#elif defined(__aarch64__)
	uint64_t control;

	__asm__ volatile("mrs %0, fpcr" : "=r"(control));
	control = on ? control | 1u << 24 : control & ~(uint64_t)(1u << 24);
	__asm__ volatile("msr fpcr, %0" : : "r"(control));
	return true;
#else
	(void)on;
	return false;
#endif
}

#endif
