/* SPDX-License-Identifier: Apache-2.0 */
/* store_shelf, store_mask: the engine and the layer of docs/how-to/extending.md. */
#ifndef PAWL_TESTS_STORE_SHELF_H
#define PAWL_TESTS_STORE_SHELF_H

#include "store/store.h"

int store_shelf_open(const char *url, bool create, struct store **ret, struct pawl_error *err);
/* Wraps s; on success the layer owns s. Every stored byte is XORed with the mask. */
int store_mask_wrap(struct store *s, unsigned char mask, struct store **ret, struct pawl_error *err);

#endif
