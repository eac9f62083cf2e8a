/* SPDX-License-Identifier: Apache-2.0 */
/* run_home: the place of an open run. Set while the run is opened and constant afterwards, so no
 * lock guards it. */
#ifndef PAWL_RUN_HOME_H
#define PAWL_RUN_HOME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/store.h"

struct foreign_format; /* foreign/foreign_formats.h */

struct run_home {
	char *root;             /* absolute path, URL or "mem:" */
	char *single_name;      /* of a single checkpoint; the store's root is then its parent folder. NULL = a run */
	struct store_caps caps; /* of the run's store */
	struct store *reads;    /* for reading checkpoints: the run's store, with the mirrors behind it */
	struct store *nodes;    /* the layer of node folders in the store, borrowed; NULL = none */
	uint32_t node;          /* the node of this process */
	const struct foreign_format *foreign; /* of what another program wrote; NULL = pawl's own */
	char *warning;                        /* see pawl_warning; NULL = none */

	/* A single checkpoint that is read from inside a run is held there: catalog/hold_root.h. */
	struct store *hold_store; /* of that run; NULL = nothing is held */
	struct buf hold_key;
};

#endif
