/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gc: removes what crashes left behind, and nothing else (P4, P8; R138). It removes these, since
 * they are this run's and not in use:
 *
 *   checkpoints/.<name>.<token>.partial   we hold the lease: only our own running save is alive;
 *                                         its token is spared
 *   checkpoints/<name> without manifest   on request: it holds only packs that name this run and
 *                                         that repair cannot use, or nothing at all under a name
 *                                         that our template makes
 *   .pawl/holds/<token>.json              the process is dead
 *   .<name>.<token>.tmp                   older than the lease timeout; at once while the run is
 *                                         being opened: we hold the lease and have written nothing,
 *                                         so only readers are running
 *   .lease.<token>                        the token is not that of the lease that we hold
 *   .probe.<token>.tmp, .doctor...        a trial of the store, older than the lease timeout
 *   .pawl/recycle/<bytes>-<token>         the run does not recycle (any more)
 *
 * Links are never followed. The only link that is removed is the temporary one of a pointer. A
 * listing that fails stops everything. It can be repeated without harm (P15).
 */
#ifndef PAWL_GC_H
#define PAWL_GC_H

#include <stdbool.h>

#include "base/buf.h"
#include "run/run.h"

/* The remains of an unfinished save, and how to take them from a writer that may be alive. Chosen
 * when the run is opened. */
struct gc_ops {
	/* Takes all unfinished saves from an earlier holder of the lease, which may have passed all
	 * its checks. It then cannot publish them. Called before the checkpoints are listed;
	 * nothing is deleted. */
	int (*hide_unfinished)(struct pawl *run, struct pawl_error *err);
	/* Takes one away and appends its new key to ret. PAWL_ENOTFOUND: another process was
	 * faster. */
	int (*take_unfinished)(struct store *store, const char *folder, struct buf *ret, struct pawl_error *err);
	/* Deletes one. PAWL_EEXISTS: it has become a checkpoint. */
	int (*drop_unfinished)(struct store *store, const char *folder, struct pawl_error *err);
	/* A killed save leaves a folder without a manifest under the checkpoint's own name. */
	bool leaves_orphans;
};

/* gc_unfinished.c: where folders can be renamed, and elsewhere. */
extern const struct gc_ops gc_by_rename, gc_by_manifest;

/* Was this hidden folder taken from its writer? Then only the process that took it knows its
 * name. */
bool gc_is_withdrawn(const char *name);

#endif
