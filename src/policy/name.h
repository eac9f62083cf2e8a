/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: templates of file and folder names. "{variable}" or "{variable:0Nd}" / "{variable:Nd}" /
 * "{variable:d}"; "{{" and "}}" are braces. Variables: the 16 of Composer (run_name rank local_rank
 * world_size local_world_size node_rank epoch batch batch_in_epoch sample sample_in_epoch token
 * token_in_epoch total_wct epoch_wct batch_wct) and id, step.
 */
#ifndef PAWL_NAME_H
#define PAWL_NAME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "pawl.h"

/* What a name is given to. Files of a saver have fewer variables, and their folders the fewest. */
enum name_of { NAME_OF_CHECKPOINT, NAME_OF_FILE, NAME_OF_FOLDER };

struct name_values {
	enum name_of of;
	const char *run_name;                                              /* NULL = unknown */
	int64_t rank, local_rank, world_size, local_world_size, node_rank; /* < 0 = unknown */
	uint64_t id;                                                       /* 0 = unknown */
	int64_t step;
	struct pawl_progress progress; /* unknown counters format as 0 */
};
/* Appends the filled-in template. PAWL_EUSAGE for an unknown variable names it and the known ones
 * of values->of. It fills in the others, too: name_excess finds them.
 * PAWL_EUSAGE also for a result that is absolute, empty, or has "..", control characters or
 * backslashes. partial: variables without a value stay as written, to be filled in later. */
int name_format(const char *template_text, const struct name_values *values, bool partial, struct buf *out,
                struct pawl_error *err);
/* The id in a name that this template has given; 0: the name does not match the template. */
uint64_t name_id(const char *template_text, const char *name);
/* 1 if the template mentions the variable. */
bool name_uses(const char *template_text, const char *variable);
/* A variable of the template that names of that kind do not have; NULL: there is none. */
const char *name_excess(const char *template_text, enum name_of of);

#endif
