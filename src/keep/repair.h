/* SPDX-License-Identifier: Apache-2.0 */
/* repair: one repair of a checkpoint's folder, shared by repair.c and repair_files.c. */
#ifndef PAWL_REPAIR_H
#define PAWL_REPAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/vec.h"
#include "format/safetensors/safetensors.h"
#include "pawl.h"
#include "state/manifest.h"

struct repair_pack { /* one pack */
	const char *name;
	uint32_t rank, index;
	uint64_t nbytes;
	struct st_table table;
};

struct repair {
	struct pawl *run;
	const char *name;  /* of the folder */
	struct buf folder; /* its key */
	struct bump memory;
	VEC(struct repair_pack) parts;
	bool deleting, with_sums;
	struct manifest *m; /* under construction */
	struct pawl_state *state;
	struct buf state_json;
	struct pawl_meter *meter; /* or NULL */
};

/* "<folder>/<name>" */
int repair_key(struct repair *r, const char *name, struct buf *out, struct pawl_error *err);
/* Fills the manifest's files: name, size and checksums of each pack. Sets nonfinite. */
int repair_describe_files(struct repair *r, struct pawl_error *err);

#endif
