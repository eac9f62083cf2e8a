/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpacked: compressed files of other programs (model.pt.zst, archives of numpy.savez_compressed), opened as if they were
 * not. unpacked.c has files that a codec compresses, unpacked_npz.c archives whose members are.
 */
#ifndef PAWL_UNPACKED_H
#define PAWL_UNPACKED_H

#include "store/store.h"

/* Where the name says that the file is compressed, *store becomes one in which it is not; any other is left as it is. What
 * does not say where its frames lie is unpacked into a file without a name in $TMPDIR (/var/tmp), when it is first read. */
int unpacked_wrap(struct store **store, const char *key, struct pawl_error *err);
/* For unpacked.c: the same for the archive of arrays that the file may be: seen as one whose members are stored. */
int unpacked_npz_wrap(struct store **store, const char *key, struct pawl_error *err);
/* The length of the name without what says that it is compressed. */
size_t unpacked_name_len(const char *name);

#endif
