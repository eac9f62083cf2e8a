/* SPDX-License-Identifier: Apache-2.0 */
/* walk: visits every leaf of a state with its path, in document order. Pure. */
#ifndef PAWL_WALK_H
#define PAWL_WALK_H

#include <stdbool.h>

#include "pawl.h"
#include "state/state.h"

struct walk_leaf {
	const char *path;
	const char *exact; /* the path with marks that distinguish keys of equal text but different type (1 and "1") */
	const struct pawl_node *node; /* a leaf, or a container without children */
	bool in_ranks; /* belongs to values of several ranks (unresolved PAWL_PER_RANK), which begin at: */
	size_t ranks_len, ranks_exact_len; /* so many bytes of path and exact */
};

/* Return a negative code to stop. The strings are valid during the call. */
typedef int walk_fn(void *arg, const struct walk_leaf *leaf, struct pawl_error *err);
/* root NULL = no leaves. */
int walk_leaves(const struct pawl_node *root, walk_fn *fn, void *arg, struct pawl_error *err);
/* The same, and every container before its children. */
int walk_nodes(const struct pawl_node *root, walk_fn *fn, void *arg, struct pawl_error *err);
/* true if a path matches one of the globs, or there are none. */
bool walk_included(const char *const *globs, size_t n_globs, const char *path);

#endif
