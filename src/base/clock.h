/* SPDX-License-Identifier: Apache-2.0 */
/* clock: time, random tokens, who this process is. Leaf module. */
#ifndef PAWL_BASE_CLOCK_H
#define PAWL_BASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

int64_t clock_mono_ns(void);
int64_t clock_mono_ms(void);
int64_t clock_thread_ns(void); /* processor time of the calling thread */
/* When a wait of timeout_ms that begins now ends, by clock_mono_ms; -1 = never, for timeout_ms < 0.
 * Never overflows. */
int64_t clock_deadline_ms(int64_t timeout_ms);
int64_t clock_unix_ns(void);
void clock_sleep_ms(int64_t ms);
/* 32 hex digits and NUL from 128 random bits of the system. */
int clock_token(char out[33], struct pawl_error *err);

/* A process as another process can recognise it. The start time in clock ticks distinguishes it
 * from a later process with the same pid. machine: a checksum of the system's machine id, 32 hex
 * digits; "" = not known. */
struct clock_process {
	char host[256];
	char machine[33];
	char boot[64];
	int64_t pid;
	uint64_t start_ticks;
};
int clock_this_process(struct clock_process *ret, struct pawl_error *err);

enum clock_place {
	CLOCK_ELSEWHERE, /* or not known: another machine or container may have the same host name */
	CLOCK_HERE,      /* same host, machine, boot and pid namespace: its pid can be looked up */
	CLOCK_REBOOTED   /* the same machine, not a container, before its last boot */
};
/* Where p ran, as seen by self. Pure. */
enum clock_place clock_process_place(const struct clock_process *p, const struct clock_process *self);
/* 1 alive, 0 provably dead (its machine was rebooted, or no such process here, or one with another
 * start time), -1 not known. */
int clock_process_alive(const struct clock_process *p);
/* The same of a process that was seen to live then. -1 if this machine was booted before that. The
 * process then runs on a clone of this machine, which has the same ids. */
int clock_seen_process_alive(const struct clock_process *p, int64_t seen_unix_ns);
/* Are they one process of one host and boot? */
bool clock_is_same_process(const struct clock_process *a, const struct clock_process *b);

#endif
