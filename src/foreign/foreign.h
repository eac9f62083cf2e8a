/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign: files and folders that other programs wrote, opened as checkpoints. Each format turns one into a manifest in
 * memory; from there on matching, resharding, fetching, comparing and exporting know no difference. Such a manifest names
 * its format and has no sums of blocks (manifest_file.sums is NULL); where the format has sums of its own they are its
 * members. Read-only. A further format is one more row of the table in foreign.c.
 */
#ifndef PAWL_FOREIGN_H
#define PAWL_FOREIGN_H

#include "state/manifest.h"
#include "store/store.h"

struct foreign_format;

bool foreign_is_folder(const struct foreign_format *format);

/* The format of the file at key, by the name that the user gave or by its first bytes; that of a folder by what is in it.
 * *ret is NULL for what is neither, for a folder that may be pawl's own, and for what is not there. PAWL_ENOTFOUND for a
 * regular file of no known format. */
int foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
                   struct pawl_error *err);
/* The manifest of the file or folder; hostile ones are refused (PAWL_ECORRUPT, PAWL_ELIMIT), and what it cannot hold
 * (PAWL_EUNSUPPORTED). A file's key is its name; the files of a folder lie in it. */
int foreign_manifest(const struct foreign_format *format, struct store *store, const char *key, struct manifest **ret,
                     struct pawl_error *err);

#endif
