/* SPDX-License-Identifier: Apache-2.0 */
/* spec_schedulers: the schedulers that a document may name, with their options. To add one, add its
 * row here. */
#include "spec.h"

/* clang-format off */
#define COMMON                                                                \
	KEY("type", TEXT, 0, NULL), KEY("time_attr", TEXT, 0, NULL),          \
	KEY("metric", TEXT, 0, NULL), KEY("mode", TEXT, 0, NULL)
/* clang-format on */

static const struct spec_key fifo_keys[] = {COMMON, KEYS_END};
static const struct spec_key median_keys[] = {
	COMMON,
	OPTION("grace_period", NUMBER, 0, grace),
	OPTION("min_samples_required", WHOLE, 1, min_samples),
	OPTION("hard_stop", FLAG, 0, hard_stop),
	KEYS_END,
};
static const struct spec_key asha_keys[] = {
	COMMON,
	OPTION("max_t", NUMBER, 0, max_time),
	OPTION("grace_period", NUMBER, 0, grace),
	OPTION("reduction_factor", NUMBER, 0, reduction),
	OPTION("brackets", WHOLE, 1, brackets),
	OPTION("synch", FLAG, 0, in_step),
	KEYS_END,
};
static const struct spec_key hyperband_keys[] = {
	COMMON,
	OPTION("max_t", NUMBER, 0, max_time),
	OPTION("reduction_factor", NUMBER, 0, reduction),
	KEYS_END,
};
static const struct spec_key pbt_keys[] = {
	COMMON,
	OPTION("perturbation_interval", NUMBER, 0, interval),
	OPTION("burn_in_period", NUMBER, 0, burn_in),
	KEY("hyperparam_mutations", OBJECT, 0, NULL),
	OPTION("quantile_fraction", NUMBER, 0, quantile),
	OPTION("resample_probability", NUMBER, 0, resample),
	KEY("perturbation_factors", ANY, 0, NULL),
	OPTION("synch", FLAG, 0, synchronous),
	OPTION("custom_explore", FLAG, 0, custom_explore), /* the driver's function explores, too */
	KEYS_END,
};

const struct spec_scheduler spec_schedulers[] = {
	{"fifo", &sched_fifo, fifo_keys, "training_iteration"},
	{"median", &sched_median, median_keys, "time_total_s"},
	{"asha", &sched_asha, asha_keys, "training_iteration"},
	{"hyperband", &sched_hyperband, hyperband_keys, "training_iteration"},
	{"bohb", &sched_hyperband, hyperband_keys, "training_iteration"},
	{"pbt", &sched_pbt, pbt_keys, "time_total_s"},
	{NULL, NULL, NULL, NULL},
};
