/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holds: readers that do not want a checkpoint deleted while they use it (P6, R142, R156). One small file per hold; it
 * counts while the process that made it lives:
 *
 *   .pawl/holds/<32 hex>.json   {"name":"checkpoint_000007","host":"..","boot":"..","machine":"..","pid":12,"start":345,
 *                               "made":1760000000}
 *
 * A process of another host cannot be asked, so its hold counts for HOLDS_FOREIGN_SECONDS after it was made: by the
 * store's clock, or by its maker's (seconds since 1970) where files have no times. A file that does not parse is what a
 * power cut left: its process is gone. Called by catalog.c, find.c, gc.c, place.c.
 */
#ifndef PAWL_HOLDS_H
#define PAWL_HOLDS_H

#include <stdbool.h>

#include "base/buf.h"
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
