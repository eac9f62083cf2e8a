/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_tree: the values of a file of another program -> the state, the tensor table and the
 * files of a manifest.
 *
 *   begin -> add files -> add values by pawl_state_* and the functions below -> finish
 */
#ifndef PAWL_FOREIGN_TREE_H
#define PAWL_FOREIGN_TREE_H

#include "base/table.h"
#include "format/torch/pt.h"
#include "state/manifest.h"
#include "store/store.h"

#define FOREIGN_MAX_PIECES 1000000u             /* of all tensors that are not in C order */
#define FOREIGN_MAX_STATE ((size_t)512 << 20)   /* bytes of values */
#define FOREIGN_BLOCK_BYTES ((uint64_t)1 << 20) /* of reading; nothing is checksummed */

struct foreign_tree {
	struct manifest *m; /* state: being built */
	size_t cap_files, cap_members;
	struct table views; /* of tensors that occurred before; tied ones are one */
	size_t n_pieces;
};

/* Where a tensor is in the files. Memory is the manifest's. */
struct foreign_pieces {
	struct manifest_piece *rows;
	size_t n, cap;
};

int foreign_tree_begin(struct foreign_tree *tree, struct manifest *m, struct pawl_error *err);
void foreign_tree_clear(struct foreign_tree *tree);
/* *ret: its number. */
int foreign_add_file(struct foreign_tree *tree, const char *name, uint64_t nbytes, uint32_t *ret,
                     struct pawl_error *err);
/* The members of an archive that begins at `at` in a file, so that reads check their checksums. */
int foreign_add_members(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct zip *zip,
                        struct pawl_error *err);
/* Adds the value of a node, with everything in it, as the next value of the state. The source of pt
 * begins at `at` in a file. Messages name the place in the state. */
int foreign_add_value(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct pt *pt,
                      struct pickle_node *node, struct pawl_error *err);
/* Appends the pieces of a view that fills the box at `offsets` (NULL = the origin) of a tensor. */
int foreign_add_pieces(struct foreign_tree *tree, uint32_t file, uint64_t at, const struct pt_tensor *view,
                       const uint64_t *offsets, struct foreign_pieces *pieces, struct pawl_error *err);
/* A tensor with these pieces, which must stay, as the next value of the state. */
int foreign_add_tensor(struct foreign_tree *tree, int dtype, uint32_t ndim, const uint64_t *shape, const char *kind,
                       const struct foreign_pieces *pieces, struct pawl_error *err);
/* Rows for all tensors; texts too long for a node get a file of their own, in memory. */
int foreign_tree_finish(struct foreign_tree *tree, struct pawl_error *err);

/* A file of the store as a source. */
struct foreign_file {
	struct store *store;
	struct store_reader *reader;
	struct source source;
	uint64_t base; /* the source begins here */
};
/* The source is the complete file; key must stay. */
int foreign_file_open(struct foreign_file *f, struct store *store, const char *key, struct pawl_error *err);
void foreign_file_close(struct foreign_file *f);

#endif
