/* SPDX-License-Identifier: Apache-2.0 */
/* relayout_file: a pack of a checkpoint that is written anew: from its beginning to its end, as it is or compressed, summed
 * on the way. One thread at a time. */
#ifndef PAWL_RELAYOUT_FILE_H
#define PAWL_RELAYOUT_FILE_H

#include "base/mem.h"
#include "format/codec/codec.h"
#include "state/manifest.h"
#include "store/store.h"

struct relayout_file_opts {
	struct store *store;
	const char *folder; /* key of the one it lies in */
	uint64_t block_bytes;
	const struct codec *codec; /* NULL = as it is */
	int level;                 /* of compression */
	unsigned threads;          /* of compression; 0 = as many as there are cores */
};

struct relayout_file;
/* name: without a codec's suffix. nbytes: of what will be put, exactly. The options' texts and the bump must stay. */
int relayout_file_new(const struct relayout_file_opts *opts, const char *name, uint64_t nbytes, struct bump *memory,
                      struct relayout_file **ret, struct pawl_error *err);
/* The next bytes: whole blocks, but for the last ones. */
int relayout_file_put(struct relayout_file *f, const void *ptr, size_t n, struct pawl_error *err);
/* Durable; *ret is its row, in the bump's memory. */
int relayout_file_finish(struct relayout_file *f, struct manifest_file *ret, struct pawl_error *err);
void relayout_file_free(struct relayout_file *f); /* what is not finished goes; NULL is fine */

#endif
