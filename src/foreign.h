/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign: files that other programs wrote, opened as checkpoints. Each format turns a file into a manifest in memory;
 * from there on matching, resharding, fetching, comparing and exporting know no difference. Such a manifest names its
 * format, holds one flat dict and has no sums (manifest_file.sums is NULL), so that nothing is verified but structure.
 * Read-only. A further format is one more row of the table in foreign.c.
 */
#ifndef PAWL_FOREIGN_H
#define PAWL_FOREIGN_H

#include "manifest.h"
#include "store/store.h"

struct foreign_format;

/* The format of the file at key, by the name that the user gave or by its first bytes. *ret is NULL for what is no
 * regular file (or is not there). PAWL_ENOTFOUND for a regular file of no known format. */
int foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
                   struct pawl_error *err);
/* The manifest of the file; hostile ones are refused (PAWL_ECORRUPT, PAWL_ELIMIT). The file's key is its name. */
int foreign_manifest(const struct foreign_format *format, struct store *store, const char *key, struct manifest **ret,
                     struct pawl_error *err);

#endif
