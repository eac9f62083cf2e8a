/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_nodes: stores packs in folders of the nodes that wrote them, in one or more copies on
 * different nodes (R159). Small objects stay in the inner store, which all nodes share. So does
 * everything that decides whether a checkpoint exists.
 *
 *   a pack written to  checkpoints/.<..>.<token>.partial/<pack>
 *   is put to          packs/<run>/<token>/<pack>  on this node and the next ones;
 *   its mark is        checkpoints/.<..>.<token>.partial/.at=<..>  in the inner store.
 *
 * The mark is an empty object whose name records where the pack is:
 *
 *   .at=<token>=<bytes>=<node>.<node>=<pack>
 *
 * While the pack is written, the mark is .to=<..>, so that a cleanup finds its bytes. Marks move
 * with their folder when it is renamed, published, hidden or copied. So one rename in one place
 * decides the contents of a folder. In a listing, and for stat, a mark appears as its pack. A pack
 * without a mark is in the inner store.
 */
#ifndef PAWL_STORE_STORE_NODES_H
#define PAWL_STORE_STORE_NODES_H

#include "store/store.h"

#define NODES_MAX_COPIES 8u
#define NODES_MAX_NODES 65536u
#define NODES_VARIABLE "{node_rank}"

struct store_nodes {
	const char *template_url; /* of a node's folder; contains NODES_VARIABLE. Copied */
	uint32_t node, n_nodes;   /* the node of this process, and the number of nodes */
	uint32_t n_copies;        /* 1..NODES_MAX_COPIES, at most n_nodes: on this node and the next ones */
	int64_t wait_ms;          /* how long a save waits until another node has made its folder */
	bool read_only, no_direct_io;
};

/* Wraps s; on success the layer owns s. Makes this node's own folder unless read_only. Opens the
 * folders of other nodes on first use. */
int store_nodes_wrap(struct store *s, const struct store_nodes *opts, struct store **ret, struct pawl_error *err);
/* The run that owns the packs: 32 hex digits. Call it before the first pack is written. */
void store_nodes_set_run(struct store *layer, const char *run_id);

/* true = keep the packs of this token. */
typedef bool store_nodes_spare_fn(void *arg, const char *token);
/* Removes packs of the run that no mark and no hidden folder in the inner store names. It does so
 * on all nodes that can be reached. *ret_bytes is their size. */
int nodes_sweep(struct store *layer, const char *folder, store_nodes_spare_fn *spare, void *arg, bool dry_run,
                uint64_t *ret_count, uint64_t *ret_bytes, struct pawl_error *err);

#endif
