/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_object: copies one object from one key to another, in the same store or in another one. A
 * local file is an object of the store of its folder (copy_open_path).
 *
 * Promises:
 * - The target appears complete or not at all (P2). An object of one piece is put. A larger one is
 *   written under a hidden name and renamed in stores with folders. In object stores the old object
 *   is removed first. The name is durable when the call returns.
 * - Several threads move the pieces, in the memory of copy.h. Checksums are computed of what is
 *   sent.
 * - With read_back everything is read from the target and compared (P14). PAWL_EIO if it differs;
 *   the target is then removed.
 * - The step function is called between pieces. It counts, and ends the copy when it returns an
 *   error.
 * - After a failure nothing incomplete is left.
 */
#ifndef PAWL_COPY_OBJECT_H
#define PAWL_COPY_OBJECT_H

#include "copy/copy.h"

enum copy_existing {
	COPY_REPLACE, /* whatever the target holds, without reading it */
	COPY_UPDATE,  /* replaced, unless it already holds the same bytes */
	COPY_KEEP,    /* PAWL_EEXISTS, unless it already holds the same bytes */
};

/* Everything is borrowed until the call returns. */
struct copy_object {
	struct store *from, *to;
	const char *from_key, *to_key;
	enum copy_existing existing;
	bool read_back;
	copy_step_fn *step; /* NULL = none */
	void *arg;
};

/* PAWL_ENOTFOUND: the source does not exist. */
int copy_object(const struct copy_object *job, struct pawl_error *err);
/* Opens the store that something is copied to; makes its folder. An error names it. If it cannot be
 * found, that is PAWL_EIO: callers read PAWL_ENOTFOUND as a deleted source. */
int copy_open_target(const struct pawl_stores *stores, const char *url, bool no_direct, struct store **ret,
                     struct pawl_error *err);
/* Opens the folder of a local path as a store. *ret_key points into path. */
int copy_open_path(const char *path, struct store **ret, const char **ret_key, struct pawl_error *err);

#endif
