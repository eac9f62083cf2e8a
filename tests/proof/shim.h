/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim: the library's system calls and allocations, interposed by the proof programs. These
 * definitions take precedence over libc's in the program they are linked into. One fault is armed
 * per process; counting starts when it is armed.
 */
#ifndef PROOF_SHIM_H
#define PROOF_SHIM_H

#include <stdbool.h>

enum shim_mode {
	SHIM_COUNT,     /* only counts */
	SHIM_KILL,      /* SIGKILL before the n-th call that changes the file system */
	SHIM_KILL_TORN, /* SIGKILL in the middle of it: writes get half of their bytes through first, other calls happen
	                 */
	SHIM_STOP,      /* SIGSTOP before it; it happens when another process continues this one */
	SHIM_FAIL_IO,   /* the n-th call (changing or reading) fails with errno `error` */
	SHIM_SHORT_IO,  /* the n-th write moves only one byte */
	SHIM_FAIL_ALLOC, /* the n-th allocation fails */
	SHIM_FAIL_SYNC,  /* the n-th fsync fails with EIO, and what it was to make durable is gone: see shim.c */
	SHIM_BLIND,      /* the file system says that it has plenty of room */
	/* Negative controls: what a library without the check would do. */
	SHIM_NO_SYNC,   /* fsync and fdatasync do nothing and say they have */
	SHIM_LOSE_SYNC, /* the same, but it reports success: an error of fsync that the library did not check */
	SHIM_LIE,       /* the n-th call, if it is a write, does nothing and says it has: a lost error */
	SHIM_LIE_SHORT, /* the n-th call, if it is a write, moves one byte and says all: a lost rest */
	SHIM_LIE_FULL,  /* there is plenty of room, and writing and reserving never fail: a full disk goes unnoticed */
	SHIM_BAD_ALLOC  /* the n-th allocation gives an invalid address: a result that the library did not check */
};

void shim_arm(enum shim_mode mode, long nth, int error, bool forever);
void shim_disarm(void);
long shim_calls(void);  /* file system calls since armed */
long shim_syncs(void);  /* fsyncs since armed */
long shim_allocs(void); /* allocations since armed */

#endif
