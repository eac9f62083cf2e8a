/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes: shared by the files of the layer.
 *
 *   store_nodes.c  opening, names
 *   nodes_marks.c  marks: finds, makes and finishes them
 *   nodes_io.c     contents: packs written to several nodes, read from any of them
 *   nodes_sweep.c  removes packs that no save and no checkpoint needs
 */
#ifndef PAWL_STORE_NODES_H
#define PAWL_STORE_NODES_H

#include <pthread.h>
#include <stdbool.h>

#include "base/vec.h"
#include "store/layers/layer.h"
#include "store/layers/nodes/nodes_mark.h"

struct nodes_store {
	struct store base;
	struct store_nodes opts;
	char *template_url; /* owned */
	char run_id[33];
	pthread_mutex_t lock;      /* guards all below */
	VEC(struct store *) nodes; /* by number, NULL = not opened; once opened they stay open */
	char *listed;              /* the folder whose marks are known, or NULL */
	VEC(char *) names;         /* of the marks in it */
};

/* Returns the store of a node, opened on first use. make: makes a missing folder. */
int nodes_at(struct nodes_store *s, uint32_t node, bool make, struct store **ret, struct pawl_error *err);
/* Finds the mark of the pack at key. *ret_name holds its name and *ret points into it.
 * PAWL_ENOTFOUND if the pack has no mark. */
int nodes_find(struct nodes_store *s, const char *key, char **ret_name, struct mark *ret, struct pawl_error *err);
/* Call this when the marks of a folder may have changed. */
void nodes_forget(struct nodes_store *s);
/* Call this before a pack is written. Puts a mark where the pack would be; key is that of the
 * pack. */
int nodes_mark_begun(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err);
/* Call this when the pack is written. From now on the mark stands for it. */
int nodes_mark_done(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err);
/* Call this when the pack failed and nothing of it is left. */
void nodes_unmark(struct nodes_store *s, const char *key, const struct mark *m);
/* Returns the names of the marks of a folder, which may be missing. The caller frees each name and
 * the array. */
size_t nodes_take_marks(struct nodes_store *s, const char *folder, char ***ret);
/* Appends the key of a mark that stands for the pack at key. */
void nodes_mark_key(const char *key, const char *mark_name, struct buf *out);
/* The nodes to which this process writes packs, this node first. */
void nodes_targets(const struct nodes_store *s, struct mark *ret);
/* Makes the names of a token's packs on a node durable, and that of their folder. */
int nodes_sync(struct nodes_store *s, struct store *node, const char *token, struct pawl_error *err);
/* Puts "node 3 (/mnt/node3/run)" in front of an error of that node. */
int nodes_name_error(const struct nodes_store *s, uint32_t node, int rc, struct pawl_error *err);

/* nodes_io.c */
int nodes_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
                 struct pawl_error *err);
int nodes_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                struct pawl_error *err);
int nodes_finish(struct store *base, struct store_file *f, struct pawl_error *err);
void nodes_abort(struct store *base, struct store_file *f);
int nodes_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
               struct pawl_error *err);
int nodes_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n,
               struct pawl_error *err);
int nodes_read_copy(struct store *base, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
                    struct pawl_error *err);
bool nodes_is_cached(struct store *base, struct store_reader *r, uint64_t offset, size_t n);
void nodes_close_reader(struct store *base, struct store_reader *r);

#endif
