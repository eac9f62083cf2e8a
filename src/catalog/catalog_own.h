/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_own: what catalog.c and catalog_reload.c share. */
#ifndef PAWL_CATALOG_OWN_H
#define PAWL_CATALOG_OWN_H

#include "catalog/catalog.h"

/* Around every change of the table: takes the guard, if there is one. */
void catalog_begin_change(const struct catalog *c);
void catalog_end_change(const struct catalog *c);
/* Sorts the entries. Of several valid ones with one id, all but the first become bad; without
 * memory they are dropped. */
int catalog_order(struct catalog *c, struct pawl_error *err);

#endif
