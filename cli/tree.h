/* SPDX-License-Identifier: Apache-2.0 */
/* tree: prints a state, as a tree for people or in its JSON form (docs/reference/format.md) for
 * programs. */
#ifndef PAWL_CLI_TREE_H
#define PAWL_CLI_TREE_H

#include "cli.h"
#include "jsonout.h"

#define TREE_CHILDREN 24 /* children shown per branch, unless all are requested */

struct tree_opts {
	const char *title; /* of the root */
	uint64_t depth;    /* levels below the root; 0 = all */
	bool all;          /* show every child of a branch */
};

void tree_print(struct cli *cli, const struct pawl_state *state, const struct tree_opts *opts);
/* One row per tensor: name, dtype, shape, bytes. */
void tree_print_tensors(struct cli *cli, const struct pawl_state *state);
void tree_json(struct jsonout *j, const char *key, const struct pawl_state *state);
void tree_tensors_json(struct jsonout *j, const char *key, const struct pawl_state *state);

#endif
