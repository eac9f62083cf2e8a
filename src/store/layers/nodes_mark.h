/* SPDX-License-Identifier: Apache-2.0 */
/* nodes_mark: names of marks and of what they stand for. Pure. See layer_nodes.h. */
#ifndef PAWL_STORE_NODES_MARK_H
#define PAWL_STORE_NODES_MARK_H

#include "base/buf.h"
#include "store/layers/layer_nodes.h"

#define MARK_BEGUN ".to=" /* being written: there may be something on the nodes */
#define MARK_DONE ".at="  /* all copies are there, and durable */
#define MARK_TOKEN_LEN 32u

struct mark {
	char token[MARK_TOKEN_LEN + 1];
	uint64_t nbytes;
	uint32_t nodes[NODES_MAX_COPIES];
	uint32_t n_nodes;
	bool is_done;
	const char *pack; /* points into the name */
};

/* false for a name that is no (sound) mark. */
bool mark_parse(const char *name, struct mark *ret);
void mark_format(const struct mark *m, struct buf *out);
/* Is this the key of a pack that is being written? Then its folder's length, its token and its name. */
bool mark_pack_key(const char *key, size_t *ret_folder_len, char token[MARK_TOKEN_LEN + 1], const char **ret_pack);
/* The token in the name of a hidden folder, ".<..>.<token>.partial"; false if there is none. */
bool mark_folder_token(const char *name, size_t len, char token[MARK_TOKEN_LEN + 1]);
/* "packs/<run>/<token>[/<pack>]" */
void mark_node_key(const char *run_id, const char *token, const char *pack, struct buf *out);

#endif
