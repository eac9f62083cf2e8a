/* SPDX-License-Identifier: Apache-2.0 */
/* clock: time, random tokens, who this process is. Leaf module. */
#ifndef PAWL_BASE_CLOCK_H
#define PAWL_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "pawl.h"

int64_t clock_mono_ns(void);
int64_t clock_mono_ms(void);
int64_t clock_thread_ns(void); /* processor time of the calling thread */
/* When a wait of so long that begins now is over, by clock_mono_ms; -1 = never, for timeout_ms < 0. However long it is. */
int64_t clock_deadline_ms(int64_t timeout_ms);
int64_t clock_unix_ns(void);
void clock_sleep_ms(int64_t ms);
/* 32 hex digits and NUL from 128 random bits of the system. */
int clock_token(char out[33], struct pawl_error *err);

/* A process as others can recognise it: host name, boot id, pid and its start time in clock ticks
 * (so that a reused pid is told apart). */
struct clock_process {
	char host[256];
	char boot[64];
	int64_t pid;
	uint64_t start_ticks;
};
int clock_this_process(struct clock_process *ret, struct pawl_error *err);
/* 1 alive, 0 dead for certain (same host and boot, no such process or other start time; or same host and
 * other boot), -1 cannot be known from here (other host). */
int clock_process_alive(const struct clock_process *p);

#endif
