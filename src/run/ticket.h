/* SPDX-License-Identifier: Apache-2.0 */
/* ticket: the caller's handle of a save. Reference-counted; thread-safe. */
#ifndef PAWL_TICKET_H
#define PAWL_TICKET_H

#include <pthread.h>
#include <stdbool.h>

#include "pawl.h"

#define TICKET_WAITS "; waiting for "

struct pawl_ticket {
	pthread_mutex_t lock; /* guards all */
	pthread_cond_t changed;
	unsigned refs;
	int stage;
	int code; /* of a failed save */
	struct pawl_error error;
	bool seen;           /* a caller has got the error */
	char waits_for[200]; /* what the save itself waits for; "" = nothing known */
	struct pawl_save_stats stats;
	struct pawl_ticket *next_failed; /* of run_saves, guarded by its lock */
};

int ticket_new(struct pawl_ticket **ret, struct pawl_error *err);
struct pawl_ticket *ticket_ref(struct pawl_ticket *t);
void ticket_stage(struct pawl_ticket *t, int stage);
/* What the save waits for, for the errors of callers whose wait ends first. */
void ticket_note(struct pawl_ticket *t, const char *waits_for);
/* "; waiting for ..." as it ends the errors of such waits, or "". */
void ticket_waits_for(struct pawl_ticket *t, char *ret, size_t cap);
/* Keeps the error; the caller then moves the stage to PAWL_STAGE_FAILED. */
void ticket_fail(struct pawl_ticket *t, int code, const struct pawl_error *err);
/* True, with *err filled, if the save failed and no caller has got the error yet. */
bool ticket_take_error(struct pawl_ticket *t, struct pawl_error *err);

#endif
