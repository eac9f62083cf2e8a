/* SPDX-License-Identifier: Apache-2.0 */
/* spec: the document of an experiment, checked once; everything behind it may trust it. */
#ifndef PAWL_TUNE_SPEC_H
#define PAWL_TUNE_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "pawl.h"
#include "sched.h"

/* Texts are the document's. */
struct spec {
	json_t *doc; /* with defaults filled in */
	const char *name, *local_dir, *metric, *time_attr;
	bool maximize;
	bool given;         /* the driver adds the configurations */
	uint64_t n_trials;  /* in all; UINT64_MAX = without end or not known */
	uint64_t seed;
	const json_t *space, *stop, *mutations; /* mutations: of PBT, else NULL */
	const char *scheduler;
	bool synchronous; /* PBT: all wait for the slowest; a replay */
	bool takes_turns; /* PBT otherwise, but for a search without end, where some would always wait */
	const json_t *schedule; /* pbt_replay, else NULL: a list of {"at": time, "config": {..}} */
	int64_t max_failures; /* < 0 = for ever */
	uint32_t max_concurrent; /* 0 = no limit of its own */
	uint64_t keep, freq; /* 0 = all; 0 = never asked for */
	bool at_end;
	const char *score_attr; /* without its prefix */
	bool score_least;       /* "min-" */
	double time_budget_s;   /* 0 = none */
};

/* PAWL_EUSAGE names the key, what was expected and what was found. */
int spec_parse(const char *text, struct spec *ret, struct pawl_error *err);
void spec_clear(struct spec *s);
/* May an experiment begun with `old` go on with `now`? PAWL_EUSAGE names the key that has changed. */
int spec_check_same(const struct spec *old, const struct spec *now, struct pawl_error *err);
/* asha whose trials wait for each other. */
bool spec_is_in_step(const struct spec *s);
/* The scheduler of the document. */
int spec_scheduler(const struct spec *s, struct sched **ret, struct pawl_error *err);

/* pbt_replay: puts what "policy_file" says in its place ("schedule"), and its first values into the space. */
int spec_replay_read(json_t *doc, struct pawl_error *err);
/* The configuration of a change of the schedule, over one that is there. */
int spec_replay_apply(const struct spec *s, size_t change, json_t *config, struct pawl_error *err);

/* PBT: the values of a configuration as the scheduler counts them (one for each mutation), and back into a configuration.
 * What a configuration lacks is drawn (spec_fill). */
size_t spec_n_mutations(const struct spec *s);
int spec_fill(const struct spec *s, uint64_t trial, json_t *config, struct pawl_error *err);
void spec_values(const struct spec *s, const json_t *config, double *values);
int spec_apply(const struct spec *s, const double *values, json_t *config, struct pawl_error *err);

#endif
