/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_tiers: reads from several stores that hold the same objects under the same keys. An object
 * that is missing, unreadable or damaged in one store is read from the next. Nothing can be
 * written.
 *
 * store_read_copy counts the copies of the first store, then those of the next. The caller compares
 * checksums. An object of the first store that had to be read from another store is a suspect.
 */
#ifndef PAWL_STORE_STORE_TIERS_H
#define PAWL_STORE_STORE_TIERS_H

#include "base/bump.h"
#include "base/mem.h"
#include "store/store.h"

/* Borrows all stores. After `first` there are n empty slots. */
int store_tiers_new(struct store *first, size_t n, struct store **ret, struct pawl_error *err);
/* Fills slot i, once; NULL changes nothing. Thread-safe. */
void store_tiers_set(struct store *tiers, size_t i, struct store *s);
/* Returns the keys of the suspects, each once, and forgets them. The array is NULL-terminated and
 * allocated in memory. */
int store_tiers_take_suspects(struct store *tiers, struct bump *memory, const char ***ret, struct pawl_error *err);

#endif
