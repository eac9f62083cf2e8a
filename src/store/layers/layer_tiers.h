/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_tiers: one store for reading, with others behind it that hold the same objects under the same keys: what the first
 * lacks, cannot read or has damaged is read from the next. For reading checkpoints only: nothing can be written through it.
 *
 * Each store's own copies, then those of the next store, are the copies of store_read_copy. Sums are the caller's to compare;
 * what was read from another store than the first while the first was there is remembered as suspect.
 */
#ifndef PAWL_STORE_LAYER_TIERS_H
#define PAWL_STORE_LAYER_TIERS_H

#include "base/mem.h"
#include "store/store.h"

/* All stores are borrowed. Behind `first` there are n places, which are empty. */
int store_tiers_new(struct store *first, size_t n, struct store **ret, struct pawl_error *err);
/* Fills a place, once; NULL changes nothing. Thread-safe. */
void store_tiers_set(struct store *tiers, size_t i, struct store *s);
/* Takes the keys of suspect objects of the first store, each once: NULL-terminated, memory's. */
int store_tiers_take_suspects(struct store *tiers, struct bump *memory, const char ***ret, struct pawl_error *err);

#endif
