/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pins: the pin and late scores that a checkpoint got after it was committed. One small file for
 * each checkpoint that has any, replaced atomically:
 *
 *   .pawl/marks/<name>.json   {"pinned":true,
 *                             "metrics":{"accuracy":0.9,"loss":{"$float":"7ff8000000000000"}}}
 *
 * While a process changes it, .pawl/marks/.<name>.<32 hex>.tmp exists (pins_lock).
 * A metric whose value was not a number is null. In a mirror, "pin_copied":true after "pinned"
 * means that the pin came from the run. Without it the pin was made in the mirror.
 */
#ifndef PAWL_PINS_H
#define PAWL_PINS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"
#include "pawl.h"
#include "store/store.h"

#define PINS_FOLDER ".pawl/marks"

struct pin_mark {
	const char *name; /* of the checkpoint's folder */
	bool pinned;
	bool pin_copied;             /* from the run of which the store is a mirror */
	struct pawl_metric *metrics; /* late scores */
	size_t n_metrics;
};

/* Reads the marks of `names` (n of them, sorted by strcmp). *ret has those that exist, sorted
 * likewise; memory is the bump's. A failing listing is an error (P8). A mark that does not parse
 * counts as a pin, since it may have been one. */
int pins_read(struct store *store, const char *const *names, size_t n, struct bump *memory, struct pin_mark **ret,
              size_t *ret_n, struct pawl_error *err);
/* The right to change one mark: to read it, and to write it with the change. It keeps out all other
 * processes, whose change would be lost. One that died with it is waited for, 10 s. Stores without
 * exclusive puts, or where nothing may be removed, keep none out. Zero: not held. */
struct pins_lock {
	struct store *store; /* borrowed */
	struct buf key;      /* of its file; empty if it is not held */
	int64_t begin_ms;
};
/* PAWL_EBUSY: other processes had it all the time. */
int pins_lock(struct store *store, const char *name, struct pins_lock *ret, struct pawl_error *err);
void pins_unlock(struct pins_lock *lock);
/* Writes a mark durably. An empty one is removed. */
int pins_write(struct store *store, const struct pin_mark *mark, struct pawl_error *err);

/* The saved metrics with late ones put over them, in one block that holds the names too; mem_free
 * it. NULL when out of memory. */
struct pawl_metric *pins_overlay(const struct pawl_metric *saved, size_t n_saved, const struct pawl_metric *late,
                                 size_t n_late, size_t *ret_n);
/* Those of `all` that are not saved, or saved with another value; ret has room for n_all. Returns
 * how many. */
size_t pins_late(const struct pawl_metric *saved, size_t n_saved, const struct pawl_metric *all, size_t n_all,
                 struct pawl_metric *ret);

#endif
