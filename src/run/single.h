/* SPDX-License-Identifier: Apache-2.0 */
/* single: the store of a single checkpoint: a folder of pawl, or a file of another program. */
#ifndef PAWL_SINGLE_H
#define PAWL_SINGLE_H

#include "run/run.h"

/* Sets run->store and run->home.single_name. A reader follows a link (RUN/latest), since a store
 * follows none. It is followed again if what it led to was removed in the meantime. A file is kept
 * open. A missing checkpoint is reported by the catalog, not here. */
int single_open_store(struct pawl *run, const char *root, struct pawl_error *err);

#endif
