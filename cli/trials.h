/* SPDX-License-Identifier: Apache-2.0 */
/* trials: how the trials of a search are shown: a table, a live one on a terminal, JSON. */
#ifndef PAWL_CLI_TRIALS_H
#define PAWL_CLI_TRIALS_H

#include "cli.h"
#include "jsonout.h"
#include "tune.h"

/* The checkpoint of a trial as a path; NULL: it has none. */
const char *trials_checkpoint(struct keep *keep, const struct tune_experiment *e, const struct tune_trial *trial);
/* One object: number, name, id, state, iteration, time_s, metric, best, config, result, checkpoint, attempts, .. */
void trials_json(struct cli *cli, struct jsonout *j, const char *key, const struct tune_experiment *e, uint32_t trial);
/* The table of the n best, in that order, or of all in order of number (n = 0). */
void trials_print(struct cli *cli, const struct tune_experiment *e, const struct term *term, size_t n);
/* "8 of 16 trials: 4 running, .."; valid as long as keep. */
const char *trials_summary(struct keep *keep, const struct tune_experiment *e);
/* The best trial, for people: its metric, configuration and checkpoint. Says when there is none. */
void trials_print_best(struct cli *cli, const struct tune_experiment *e, const char *metric, const char *mode,
                       const char *scope);

/* A table that is drawn over itself on a terminal. */
struct live {
	const struct term *term; /* NULL = nothing is drawn */
	size_t lines;            /* on the screen now */
	double drawn;            /* when */
};
void live_draw(struct live *live, struct cli *cli, const struct tune_experiment *e, bool now);
void live_erase(struct live *live);

#endif
