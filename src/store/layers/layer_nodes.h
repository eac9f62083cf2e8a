/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_nodes: packs in folders of the nodes that wrote them, in one or more copies on different nodes (R159); all that is
 * small, and all that decides whether a checkpoint exists, stays in the store below, which all nodes share.
 *
 * A pack written to   checkpoints/.<..>.<token>.partial/<pack>          is put to
 *                     packs/<run>/<token>/<pack>                        on the node and the next ones, and then
 *                     checkpoints/.<..>.<token>.partial/.at=<..>        in the store below is its *mark*, empty,
 *                     whose name says where the pack is: .at=<token>=<bytes>=<node>.<node>=<pack>
 * Before, while the pack is written, the mark is .to=<..>, so that whoever clears up finds what there is.
 * Marks go with their folder when it is renamed, published, hidden or copied, so what a folder holds is decided as ever
 * by one rename in one place. In a listing, and for stat, a mark shows as the pack it stands for.
 *
 * A pack without a mark is in the store below, as if there were no layer.
 */
#ifndef PAWL_STORE_LAYER_NODES_H
#define PAWL_STORE_LAYER_NODES_H

#include "store/store.h"

#define NODES_MAX_COPIES 8u
#define NODES_MAX_NODES 65536u
#define NODES_VARIABLE "{node_rank}"

struct store_nodes {
	const char *template_url; /* of a node's folder; has NODES_VARIABLE in it. Copied */
	uint32_t node, n_nodes;   /* where this process is, of how many */
	uint32_t n_copies;        /* 1..NODES_MAX_COPIES, at most n_nodes: this node's, and those of the next ones */
	int64_t wait_ms;          /* how long a save waits for the folder of another node, which that makes when it starts */
	bool read_only, no_direct_io;
};

/* Wraps s; on success the layer owns s. The node's own folder is made if it is to be written and missing; other nodes'
 * are opened when they are needed. */
int store_nodes_wrap(struct store *s, const struct store_nodes *opts, struct store **ret, struct pawl_error *err);
/* Whose packs they are: 32 hex digits. Before the first pack is written. */
void store_nodes_set_run(struct store *layer, const char *run_id);

/* May the packs of this token go? What is left of saves that came to nothing. */
typedef bool store_nodes_spare_fn(void *arg, const char *token);
/* Removes packs of the run that no mark and no hidden folder in the store below speaks of, on the nodes that can be reached;
 * *ret_bytes (may be NULL) is what they held. */
int store_nodes_sweep(struct store *layer, const char *folder, store_nodes_spare_fn *spare, void *arg, bool dry_run,
		      uint64_t *ret_count, uint64_t *ret_bytes, struct pawl_error *err);

#endif
