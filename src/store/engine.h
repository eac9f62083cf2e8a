/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine: what the border (store.c) keeps with a store and its open objects. An engine embeds these
 * structs as its first members and fills them in. Layers pass files and readers through unchanged.
 * Private to src/store.
 */
#ifndef PAWL_STORE_ENGINE_H
#define PAWL_STORE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

/* Initialises an engine that mem_zalloc made; root is copied. store_close(s) undoes it: it calls
 * ops->close, then frees root and the engine. On failure the caller still owns the engine. */
int store_init(struct store *s, const struct store_ops *ops, const char *name, const char *root,
               struct pawl_error *err);

struct store_file {
	char *key;                /* owned by the engine */
	uint64_t nbytes;          /* final size */
	uint32_t offset_align;    /* for the writes of this object; at most that of the caps */
	_Atomic uint64_t written; /* bytes written so far, without padding */
	bool is_cut;              /* store_cut has set nbytes */
	atomic_bool failed;       /* a write has failed: only abort is allowed (P5) */
};

struct store_reader {
	char *key;       /* owned by the engine */
	uint64_t nbytes; /* size when it was opened */
};

#endif
