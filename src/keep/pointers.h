/* SPDX-License-Identifier: Apache-2.0 */
/* pointers: "latest" and "best" in the run's folder, for people and shell scripts. The catalog
 * never reads them. */
#ifndef PAWL_POINTERS_H
#define PAWL_POINTERS_H

#include "run/run.h"

/* Rewrites the pointers that changed. A single checkpoint has none. */
int pointers_update(struct pawl *run, struct pawl_error *err);

#endif
