/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks: what is said of a checkpoint after it was committed: its pin and late scores. One small file per checkpoint
 * that has any, atomically replaced:
 *
 *   .pawl/marks/<name>.json   {"pinned":true,"metrics":{"accuracy":0.9,"loss":{"$float":"7ff8000000000000"}}}
 *
 * A metric whose value was no number is null. Called by catalog.c.
 */
#ifndef PAWL_MARKS_H
#define PAWL_MARKS_H

#include <stdbool.h>

#include "base/mem.h"
#include "pawl.h"
#include "store/store.h"

#define MARKS_FOLDER ".pawl/marks"

struct mark {
	const char *name; /* of the checkpoint's folder */
	bool pinned;
	struct pawl_metric *metrics; /* late scores */
	size_t n_metrics;
};

/* Reads the marks of all `names` (n of them, sorted by strcmp) that have one; *ret is sorted likewise, memory is the
 * bump's. A failing listing is an error (P8). A mark that does not parse counts as a pin: what it said may have been
 * one. */
int marks_read(struct store *store, const char *const *names, size_t n, struct bump *memory, struct mark **ret,
               size_t *ret_n, struct pawl_error *err);
/* Writes a mark durably; one that says nothing is removed. */
int marks_write(struct store *store, const struct mark *mark, struct pawl_error *err);

/* The saved metrics with late ones put over them, in one block that holds the names too; mem_free it. NULL when out of
 * memory. */
struct pawl_metric *marks_overlay(const struct pawl_metric *saved, size_t n_saved, const struct pawl_metric *late,
                                  size_t n_late, size_t *ret_n);
/* Those of `all` that are not saved, or saved with another value; ret has room for n_all. Returns how many. */
size_t marks_late(const struct pawl_metric *saved, size_t n_saved, const struct pawl_metric *all, size_t n_all,
                  struct pawl_metric *ret);

#endif
