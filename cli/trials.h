/* SPDX-License-Identifier: Apache-2.0 */
/* trials: prints the trials of a search: as a table, as a live table on a terminal, as JSON. */
#ifndef PAWL_CLI_TRIALS_H
#define PAWL_CLI_TRIALS_H

#include "cli.h"
#include "jsonout.h"
#include "tune.h"

/* One object: number, name, id, state, iteration, time_s, metric, best, config, result, checkpoint,
 * attempts, .. folder: the path or URL of the search. */
void trials_json(struct cli *cli, struct jsonout *j, const char *key, const struct tune_experiment *e,
                 const char *folder, uint32_t trial);
/* Prints a table of the n best, best first. */
void trials_print(struct cli *cli, const struct tune_experiment *e, const struct term *term, size_t n);
/* Prints a table of the trials by number, beginning with number `first`. */
void trials_print_from(struct cli *cli, const struct tune_experiment *e, const struct term *term, uint32_t first);
/* "8 of 16 trials: 4 running, .."; valid as long as keep. */
const char *trials_summary(struct keep *keep, const struct tune_experiment *e);
/* Prints the best trial for people: its metric, configuration and checkpoint, or that none
 * exists. */
void trials_print_best(struct cli *cli, const struct tune_experiment *e, const char *metric, const char *mode,
                       const char *scope);

/* A table on a terminal that is redrawn in place. */
struct live {
	const struct term *term; /* NULL = nothing is drawn */
	size_t lines;            /* on the screen now */
	int64_t drawn_ms;        /* clock_mono_ms of the last drawing */
};
void trials_draw(struct live *live, struct cli *cli, const struct tune_experiment *e, bool now);
void trials_erase(struct live *live);

#endif
