/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_options: the options of pawl_open. They are copied, completed with the defaults and checked;
 * nothing is opened or written. Constant once the run is open, so no lock guards them.
 */
#ifndef PAWL_RUN_OPTIONS_H
#define PAWL_RUN_OPTIONS_H

#include <stdbool.h>

#include "base/bump.h"
#include "base/mem.h"
#include "pawl.h"
#include "policy/trigger.h"

/* Limits of options, for the rooms that use them. */
#define MIRROR_MAX 8u                       /* mirrors of a run */
#define COPY_MAX_STREAMS 64u                /* pieces of one upload that are sent at a time */
#define SAVE_UNIT_BYTES ((uint64_t)8 << 20) /* of one write, at most; a multiple of every block size up to it */

struct codec; /* format/codec/codec.h */

/* What follows from the options. */
struct run_settings {
	struct pawl_retention retention; /* with the score attributes of the last training where none were given */
	struct triggers triggers;        /* none: every point is due */
	const struct codec *codec;       /* of new packs; NULL = not compressed */
	bool compress_by_rule;           /* "auto": compress_rule decides for each save whether to use the codec */
	struct pawl_stores stores;       /* the caller's own */
	struct bump strings;             /* memory of the copied texts */
};

/* Copies opts into the run, fills in the defaults and checks them. Also finds this process's rank
 * and the world size. */
int run_options_take(struct pawl *run, const struct pawl_open_opts *opts, struct pawl_error *err);
/* Replaces a text with a copy that lives as long as the run; NULL stays NULL. */
int run_options_copy_text(struct pawl *run, const char **field, struct pawl_error *err);

#endif
