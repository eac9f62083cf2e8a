/* SPDX-License-Identifier: Apache-2.0 */
/* unpacked: compressed files of other programs (model.pt.zst), opened as if they were not. */
#ifndef PAWL_UNPACKED_H
#define PAWL_UNPACKED_H

#include "store/store.h"

/* Where the name says that the file is compressed, *store becomes one in which it is not; any other is left as it is. What
 * does not say where its frames lie is unpacked into a file without a name in $TMPDIR (/var/tmp), when it is first read. */
int unpacked_wrap(struct store **store, const char *key, struct pawl_error *err);
/* The length of the name without what says that it is compressed. */
size_t unpacked_name_len(const char *name);

#endif
