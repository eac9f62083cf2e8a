/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign: files and folders that other programs wrote, opened as checkpoints, read-only. Each
 * format becomes a manifest in memory, so that matching, resharding, fetching, comparing and
 * exporting treat all formats alike. Such a manifest names its format and has no block checksums
 * (manifest_file.sums is NULL); checksums of the format itself are its members. To add a format,
 * add a row to the table in foreign_formats.c.
 */
#ifndef PAWL_FOREIGN_H
#define PAWL_FOREIGN_H

#include "state/manifest.h"
#include "store/store.h"

struct foreign_format;

bool foreign_is_folder(const struct foreign_format *format);

/* The format of a file, by the name that the user gave or by its first bytes; the format of a
 * folder, by its contents. *ret is NULL if it is neither, if a folder may be pawl's own, and if it
 * does not exist. PAWL_ENOTFOUND for a regular file of no known format. */
int foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
                   struct pawl_error *err);
/* The manifest of the file or folder. Refuses hostile ones (PAWL_ECORRUPT, PAWL_ELIMIT), and
 * contents that a manifest cannot hold (PAWL_EUNSUPPORTED). A file's key is its name; the files of
 * a folder are inside it. */
int foreign_manifest(const struct foreign_format *format, struct store *store, const char *key, struct manifest **ret,
                     struct pawl_error *err);

#endif
