/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_entry: one row of the catalog, read from its folder. */
#ifndef PAWL_CATALOG_ENTRY_H
#define PAWL_CATALOG_ENTRY_H

#include "catalog/catalog.h"

void catalog_entry_clear(struct catalog_entry *e);
/* metrics: one block that the entry frees, or the summary's. */
void catalog_entry_set_metrics(struct catalog_entry *e, struct pawl_metric *metrics, size_t n);
/* Takes over problem. */
void catalog_entry_turn_bad(struct catalog_entry *e, char *problem);

/* The entry of a folder without manifest. */
int catalog_entry_empty(const struct catalog *c, const char *name, struct catalog_entry *ret, struct pawl_error *err);
/* Reads one checkpoint. A fault of the checkpoint becomes its problem; any other fault is an error.
 * is_read: its manifest is in scratch already. */
int catalog_entry_read(const struct catalog *c, const char *name, int64_t mtime_ns, struct buf *scratch, bool is_read,
                       struct catalog_entry *ret, struct pawl_error *err);

#endif
