/* SPDX-License-Identifier: Apache-2.0 */
/*
 * removal: how a checkpoint ends. First it stops existing in one durable step, then its bytes are
 * deleted (P7):
 *
 *   where folders can be renamed   its folder gets a hidden name, which gc recognises
 *   elsewhere (buckets)            its manifest is removed
 *
 * A run chooses one of the two when it is opened. Promises P2, P6, P7, P10.
 */
#ifndef PAWL_REMOVAL_H
#define PAWL_REMOVAL_H

#include "base/buf.h"
#include "catalog/catalog.h"
#include "run/run.h"

struct removal_ops {
	/* Appends the key of the folder that will hold the bytes once the checkpoint has ended. */
	int (*put_rest)(struct pawl *run, const struct catalog_entry *e, const char *folder, struct buf *ret,
	                struct pawl_error *err);
	/* The step that ends it. PAWL_EBUSY: a reader has just made a hold on it, or it was pinned;
	 * it stays. */
	int (*end)(struct pawl *run, struct catalog_entry *e, const char *folder, const char *rest,
	           struct pawl_error *err);
};

extern const struct removal_ops removal_by_rename, removal_by_manifest;

/* First half: ends the checkpoint and appends its name, the folder of its bytes and the fields of
 * its event to doomed. reason: as retention gives it. Within run_edit. */
int removal_begin(struct pawl *run, struct catalog_entry *e, const char *reason, struct buf *doomed,
                  struct pawl_error *err);
/* Second half: deletes the bytes, which can take long. No lock is held. */
int removal_finish(struct pawl *run, const struct buf *doomed, struct pawl_error *err);

#endif
