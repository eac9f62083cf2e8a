/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_file: compressed files and archives of other programs (model.pt.zst, archives of
 * numpy.savez_compressed, Composer's ep1-ba2.tar.gz), opened as if they were the one plain file in
 * them.
 */
#ifndef PAWL_COMPRESSED_FILE_H
#define PAWL_COMPRESSED_FILE_H

#include "format/source.h"
#include "read/temp_file.h"
#include "store/store.h"

#define COMPRESSED_FILE_TAR_MEMBER "composer_states.pt" /* the one member of a tar that is read */

/* If the name has the suffix of a compressed file or a tar, *store becomes one that shows the plain
 * file. Any other store stays as it is. A file without a table of its frames is decompressed at the
 * first read, into a file without a name in $TMPDIR (/var/tmp). */
int compressed_file_wrap(struct store **store, const char *key, struct pawl_error *err);
/* The length of the name without the suffix of compression. */
size_t compressed_file_name_len(const char *name);

/* For compressed_file.c: the same for an archive of arrays, which is shown as one whose members are
 * stored. */
int compressed_file_npz_wrap(struct store **store, const char *key, struct pawl_error *err);

/* For both: the file as it is stored, and where to decompress it. It must not be moved. */
struct compressed_file {
	struct store *store;
	struct store_reader *reader;
	char *name;
	struct source compressed;
	struct temp_file temp;
};
/* Call close on failure, too. */
int compressed_file_open(struct store *store, const char *key, struct compressed_file *ret, struct pawl_error *err);
void compressed_file_close(struct compressed_file *f);

#endif
