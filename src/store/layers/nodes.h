/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes: what the parts of the layer share. Private to layer_nodes*.c:
 *   layer_nodes.c        opening, names
 *   layer_nodes_marks.c  marks: found, made, finished
 *   layer_nodes_io.c     contents: packs written to several nodes, read from any of them
 *   layer_nodes_sweep.c  what is left of saves that came to nothing
 */
#ifndef PAWL_STORE_NODES_H
#define PAWL_STORE_NODES_H

#include <pthread.h>
#include <stdbool.h>

#include "store/engine.h"
#include "store/layers/nodes_mark.h"

struct nodes_store {
	struct store base;
	struct store *inner; /* owned */
	struct store_nodes opts;
	char *template_url; /* owned */
	char run_id[33];
	pthread_mutex_t lock;  /* guards below */
	struct store **nodes;  /* by number, NULL = not opened (yet); once opened they stay */
	uint32_t cap_nodes;
	char *listed; /* the folder whose marks are known, or NULL */
	char **names; /* names of marks in it */
	size_t n_names;
};

/* The store of a node, opened when first needed; make: its folder is made if it is missing. */
int nodes_at(struct nodes_store *s, uint32_t node, bool make, struct store **ret, struct pawl_error *err);
/* The mark of the pack at key: *ret_name holds it and *ret points into it. PAWL_ENOTFOUND if there is none. */
int nodes_find(struct nodes_store *s, const char *key, char **ret_name, struct mark *ret, struct pawl_error *err);
/* The marks of a folder may have changed. */
void nodes_forget(struct nodes_store *s);
/* A pack is about to be written: a mark next to where it would be says so; key: the pack's. */
int nodes_mark_begun(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err);
/* It is there: from here on the mark stands for it. */
int nodes_mark_done(struct nodes_store *s, const char *key, const struct mark *m, struct pawl_error *err);
/* It came to nothing, and nothing of it is left. */
void nodes_unmark(struct nodes_store *s, const char *key, const struct mark *m);
/* The names of the marks of a folder, which may not be there; each and the array are the caller's to free. */
size_t nodes_take_marks(struct nodes_store *s, const char *folder, char ***ret);
/* Appends the key of a mark that stands for the pack at key. */
void nodes_mark_key(const char *key, const char *mark_name, struct buf *out);
/* The nodes that packs written here go to, this one first. */
void nodes_targets(const struct nodes_store *s, struct mark *ret);
/* Makes the names of a token's packs on a node durable. */
int nodes_sync(struct nodes_store *s, struct store *node, const char *token, struct pawl_error *err);
/* "node 3 (/mnt/node3/run)" before an error of that node. */
int nodes_name_error(const struct nodes_store *s, uint32_t node, int rc, struct pawl_error *err);

/* layer_nodes_io.c */
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
int nodes_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret);
void nodes_drop_view(struct store *base, struct store_view *view);
void nodes_close_reader(struct store *base, struct store_reader *r);

#endif
