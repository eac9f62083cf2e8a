/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim: the library's system calls and allocations, interposed by the proof programs (these definitions win over libc's in the
 * program they are linked into). One fault is armed per process; counting starts when it is armed.
 */
#ifndef PROOF_SHIM_H
#define PROOF_SHIM_H

#include <stdbool.h>

enum shim_mode {
	SHIM_COUNT,      /* only counts */
	SHIM_KILL,       /* SIGKILL before the n-th call that changes the file system */
	SHIM_KILL_TORN,  /* SIGKILL in the middle of it: writes get half of their bytes through first, other calls happen */
	SHIM_FAIL_IO,    /* the n-th call (changing or reading) fails with errno `error` */
	SHIM_SHORT_IO,   /* the n-th write moves only one byte */
	SHIM_FAIL_ALLOC, /* the n-th allocation fails */
	SHIM_NO_SYNC     /* fsync and fdatasync do nothing and say they have (negative control of the power cut) */
};

void shim_arm(enum shim_mode mode, long nth, int error, bool forever);
void shim_disarm(void);
long shim_calls(void);  /* file system calls since armed */
long shim_allocs(void); /* allocations since armed */

#endif
