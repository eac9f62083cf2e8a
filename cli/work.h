/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work: interrupts and the progress line. During long work with a meter, Ctrl+C, SIGTERM or SIGHUP
 * cancels the work through that meter, so that it ends by itself and cleans up. A second signal
 * ends the process at once. Outside of such work the first signal ends the process: a run folder is
 * consistent at every moment (P2, P4, P7).
 *
 *                 work_begin                 signal                 second signal
 *     idle ──────────────────────> working ──────────> cancelling ───────────────> exit 128+n
 *      │ signal: exit 128+n           └───────┬────────────┘
 *      <──────────────────── work_end ───────┘
 *
 * A thread waits for the signals: the process needs no handler and no global variable.
 */
#ifndef PAWL_CLI_WORK_H
#define PAWL_CLI_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "pawl.h"
#include "term.h"

struct work;

/* Blocks SIGINT and SIGTERM for the process (unless they are ignored) and starts to wait for
 * them. Must be called before any other thread exists. draws: whether a progress line may be
 * drawn on term (borrowed, stderr). Returns NULL if no thread can be made; the other functions
 * accept NULL. */
struct work *work_open(const struct term *term, bool draws);
void work_close(struct work *w);

/* Begins long work: sets the meter (borrowed until work_end) to zero and, if a signal arrived
 * before, cancels it. total_bytes 0: the meter's own total is shown. label: a verb, "verifying";
 * NULL: no line is drawn. */
void work_begin(struct work *w, const char *label, struct pawl_meter *meter, uint64_t total_bytes);
/* Begins the next part of the same work: adds what the meter has counted so far and sets it to
 * 0. */
void work_next(struct work *w);
/* Cancels the work that has begun after so many seconds; for calls that take no time limit of their
 * own. 0 = never. Once in a process. */
void work_limit(struct work *w, double seconds);
void work_end(struct work *w);

/* work_hide removes the progress line and keeps it hidden, so that lines may be printed; work_show
 * allows it again. */
void work_hide(struct work *w);
void work_show(struct work *w);
/* A meter that is cancelled with any work, for what is opened before the work begins. Borrowed. */
const struct pawl_meter *work_meter(const struct work *w);
/* Did the limit alone, and no signal, cancel the work? */
bool work_timed_out(struct work *w);
/* Number of the signal that arrived, or 0. */
int work_signal(struct work *w);

#endif
