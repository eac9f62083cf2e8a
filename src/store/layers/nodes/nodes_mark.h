/* SPDX-License-Identifier: Apache-2.0 */
/* nodes_mark: names of marks and of the packs they stand for. Pure. See store_nodes.h. */
#ifndef PAWL_STORE_NODES_MARK_H
#define PAWL_STORE_NODES_MARK_H

#include "base/buf.h"
#include "base/hidden.h"
#include "store/layers/nodes/store_nodes.h"

#define MARK_BEGUN ".to=" /* being written: the nodes may hold parts of it */
#define MARK_DONE ".at="  /* all copies are complete and durable */
#define MARK_TOKEN_LEN HIDDEN_TOKEN_LEN

struct mark {
	char token[MARK_TOKEN_LEN + 1];
	uint64_t nbytes;
	uint32_t nodes[NODES_MAX_COPIES];
	uint32_t n_nodes;
	bool is_done;
	const char *pack; /* points into the name */
};

/* Returns false for a name that is not a valid mark. */
bool nodes_mark_parse(const char *name, struct mark *ret);
void nodes_mark_format(const struct mark *m, struct buf *out);
/* True if this is the key of a pack that is being written. Then returns the length of its folder,
 * its token and its name. */
bool nodes_mark_pack_key(const char *key, size_t *ret_folder_len, char token[MARK_TOKEN_LEN + 1],
                         const char **ret_pack);
/* Finds the token in the name of a hidden folder, ".<..>.<token>.partial"; false if there is
 * none. */
bool nodes_mark_folder_token(const char *name, size_t len, char token[MARK_TOKEN_LEN + 1]);
/* Appends "packs/<run>/<token>[/<pack>]". */
void nodes_mark_node_key(const char *run_id, const char *token, const char *pack, struct buf *out);

#endif
