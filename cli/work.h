/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work: interrupts and the progress line. While a command does long work under a meter, Ctrl+C and SIGTERM cancel it
 * through that meter, so that it ends by itself and cleans up; a second one ends the process at once. Outside of such
 * work the process ends at the first one: at every moment a run folder is whole (P2, P4, P7).
 *
 *                 work_begin                 signal                 second signal
 *     idle ──────────────────────> working ──────────> cancelling ───────────────> exit 128+n
 *      │ signal: exit 128+n           └───────┬────────────┘
 *      <──────────────────── work_end ───────┘
 *
 * Signals are taken by a thread that waits for them: there is no handler and no global.
 */
#ifndef PAWL_CLI_WORK_H
#define PAWL_CLI_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "pawl.h"
#include "term.h"

struct work;

/* Blocks SIGINT and SIGTERM for the process (unless they are ignored) and starts to wait for them. Must be called
 * before any other thread exists. draws: whether a progress line may be drawn on term (borrowed, stderr). Returns NULL
 * when no thread can be made; the other functions accept that. */
struct work *work_open(const struct term *term, bool draws);
void work_close(struct work *w);

/* Long work begins: the meter (borrowed until work_end) is zeroed and, if a signal has come already, cancelled.
 * total_bytes 0: the meter's own total is shown. label: a verb, "verifying"; NULL: no line is drawn. */
void work_begin(struct work *w, const char *label, struct pawl_meter *meter, uint64_t total_bytes);
/* The next piece of the same work: what the meter counted so far is added up and the meter starts again at 0. */
void work_next(struct work *w);
/* Renames the work in progress. */
void work_label(struct work *w, const char *label);
void work_end(struct work *w);

/* Takes the progress line away and keeps it away, so that lines may be printed; and lets it come back. */
void work_hide(struct work *w);
void work_show(struct work *w);
/* Number of the signal that came, or 0. */
int work_signal(struct work *w);

#endif
