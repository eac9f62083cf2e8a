/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpacked: compressed files and archives of other programs (model.pt.zst, archives of numpy.savez_compressed, Composer's
 * ep1-ba2.tar.gz), opened as if they were the one plain file in them. unpacked.c has files that a codec compresses and
 * tars, unpacked_npz.c archives whose members are compressed.
 */
#ifndef PAWL_UNPACKED_H
#define PAWL_UNPACKED_H

#include "format/source.h"
#include "read/spool.h"
#include "store/store.h"

#define UNPACKED_TAR_MEMBER "composer_states.pt" /* of a tar this is what is looked at */

/* Where the name says that the file is compressed or a tar, *store becomes one in which it is not; any other is left as it
 * is. What does not say where its frames lie is unpacked into a file without a name in $TMPDIR (/var/tmp), when it is
 * first read. */
int unpacked_wrap(struct store **store, const char *key, struct pawl_error *err);
/* The length of the name without what says that it is compressed. */
size_t unpacked_name_len(const char *name);

/* For unpacked.c: the same for the archive of arrays that the file may be: seen as one whose members are stored. */
int unpacked_npz_wrap(struct store **store, const char *key, struct pawl_error *err);

/* For both: the file as it lies there, and where to unpack it. It must not be moved. */
struct unpacked_file {
	struct store *store;
	struct store_reader *reader;
	char *name;
	struct source packed;
	struct spool spool;
};
/* On failure, too, close is to be called. */
int unpacked_file_open(struct store *store, const char *key, struct unpacked_file *ret, struct pawl_error *err);
void unpacked_file_close(struct unpacked_file *f);

#endif
