/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_formats: the readers of foreign.c's table that have a file of their own. */
#ifndef PAWL_FOREIGN_FORMATS_H
#define PAWL_FOREIGN_FORMATS_H

#include <stdbool.h>

#include "format/safetensors/safetensors.h"
#include "state/manifest.h"
#include "store/store.h"

/* Each fills in state, tensors, files, members and their numbers. key: the file, or the folder. */
bool foreign_pt_looks(const unsigned char *first, size_t n, uint64_t file_nbytes);
int foreign_pt_read(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
int foreign_dcp_read(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
bool foreign_npy_looks(const unsigned char *first, size_t n, uint64_t file_nbytes);
int foreign_npy_read(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
bool foreign_npz_looks(const unsigned char *first, size_t n, uint64_t file_nbytes);
int foreign_npz_read(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
/* A set of safetensors files and its index. key: the index, with its files in the same folder, or
 * the folder. */
int foreign_index_read(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
int foreign_shards_read(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);

/* The state and the rows of tensors of a .safetensors file that pawl has written. 1 = it is one.
 * 0 = it is not, and nothing has been filled in. PAWL_ECORRUPT: its text about the state is
 * damaged. */
int foreign_own_read(const struct st_table *table, struct manifest *m, struct pawl_error *err);

#define FOREIGN_INDEX_NAME "model.safetensors.index.json"

#endif
