/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holds: readers that need a checkpoint while they use it (P6, R142, R156). One small file for each
 * hold; it counts while the process that made it lives:
 *
 *   .pawl/holds/<32 hex>.json   {"name":"checkpoint_000007","host":"..","boot":"..","machine":"..",
 *                               "pid":12,"start":345,"made":1760000000}
 *
 * No process can check whether a process of another host lives. So its hold counts for
 * HOLDS_FOREIGN_SECONDS after it was made, by the store's clock. Where files have no times, its
 * maker's clock counts (seconds since 1970). A file that does not parse remains from a power cut,
 * which also ended its process.
 */
#ifndef PAWL_HOLDS_H
#define PAWL_HOLDS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/mem.h"
#include "pawl.h"
#include "store/store.h"

#define HOLDS_FOLDER ".pawl/holds"
#define HOLDS_FOREIGN_SECONDS (7 * 24 * 3600)

struct hold {
	const char *key;  /* of the file */
	const char *name; /* of the checkpoint's folder; "" when the file does not parse */
	bool alive;
	uint64_t nbytes;
};

/* All holds; memory is the bump's. A failing listing is an error (P8). */
int holds_read(struct store *store, struct bump *memory, struct hold **ret, size_t *ret_n, struct pawl_error *err);
/* Makes a hold of this process and appends its key to key. */
int holds_make(struct store *store, const char *name, struct buf *key, struct pawl_error *err);

#endif
