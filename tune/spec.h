/* SPDX-License-Identifier: Apache-2.0 */
/* spec: the document of an experiment, checked once. Later code may rely on it. */
#ifndef PAWL_TUNE_SPEC_H
#define PAWL_TUNE_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/value.h"
#include "pawl.h"
#include "sched.h"

enum spec_expected { TEXT, TEXT_OR_NULL, WHOLE, WHOLE_OR_NULL, NUMBER, FLAG, OBJECT, TEXTS, ANY };

/* A key of an object in the document. */
struct spec_key {
	const char *name;
	enum spec_expected expected;
	double least;
	const char *initial; /* JSON; NULL: omitted by default */
	size_t field;        /* of struct sched_opts: a double, uint32_t or bool for NUMBER, WHOLE or FLAG; 0 = none */
};
#define KEY(name, expected, least, initial) {name, expected, least, initial, 0}
/* An option of the scheduler, which becomes a field of struct sched_opts. */
#define OPTION(name, expected, least, field) {name, expected, least, NULL, offsetof(struct sched_opts, field)}
#define KEYS_END KEY(NULL, ANY, 0, NULL)

/* What a document may have as its scheduler. */
struct spec_scheduler {
	const char *name;
	const struct sched_algorithm *algorithm;
	const struct spec_key *keys;
	const char *time_attr; /* by default */
};
extern const struct spec_scheduler spec_schedulers[]; /* ends with a row without a name */

/* The document owns the texts. */
struct spec {
	struct value *doc; /* with defaults filled in */
	const char *name, *local_dir, *metric, *time_attr;
	bool maximize;
	bool given;        /* the driver adds the configurations */
	uint64_t n_trials; /* in all; UINT64_MAX = unlimited or unknown */
	uint64_t seed;
	const struct value *space, *stop, *mutations; /* mutations: of PBT, else NULL */
	const struct spec_scheduler *kind;
	bool synchronous;        /* PBT: all wait for the slowest */
	bool takes_turns;        /* other PBT, except a search without end, where some trials would always wait */
	int64_t max_failures;    /* < 0 = unlimited */
	uint32_t max_concurrent; /* 0 = no limit of its own */
	uint64_t keep, freq;     /* keep: 0 = all; freq: 0 = saves are never requested */
	bool at_end;
	const char *score_attr; /* without its prefix */
	bool score_least;       /* true for the prefix "min-" */
	double time_budget_s;   /* 0 = none */
};

/* PAWL_EUSAGE names the key, what was expected and what was found. */
int spec_parse(const char *text, struct spec *ret, struct pawl_error *err);
void spec_clear(struct spec *s);
/* Is it asha with trials that wait for each other? */
bool spec_is_in_step(const struct spec *s);
/* May an experiment begun with `old` continue with `now`? PAWL_EUSAGE names the key that has
 * changed. */
int spec_check_same(const struct spec *old, const struct spec *now, struct pawl_error *err);
/* The scheduler of the document. */
int spec_make_scheduler(const struct spec *s, struct sched **ret, struct pawl_error *err);

/* PBT: converts the values of a configuration to the scheduler's numbers (one for each mutation)
 * and back. Values that a configuration lacks are drawn (spec_fill). */
size_t spec_n_mutations(const struct spec *s);
int spec_fill(const struct spec *s, uint64_t trial, struct value *config, struct pawl_error *err);
void spec_values(const struct spec *s, const struct value *config, double *values);
int spec_apply(const struct spec *s, const double *values, struct value *config, struct pawl_error *err);

#endif
