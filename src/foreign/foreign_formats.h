/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_formats: the table of formats, and what a row of it is. */
#ifndef PAWL_FOREIGN_FORMATS_H
#define PAWL_FOREIGN_FORMATS_H

#include <stdbool.h>

#include "format/safetensors/safetensors.h"
#include "state/manifest.h"
#include "store/store.h"

struct foreign_format {
	const char *name;
	const char *suffixes[3]; /* of file names */
	const char *mark;        /* of folders: this file is in it, no manifest of pawl; NULL = a file */
	/* Is it a file of this format, judging by its first n bytes (at most 256)? May be NULL. */
	bool (*looks)(const unsigned char *first, size_t n, uint64_t file_nbytes);
	/* Fills in state, metadata, tensors, files, members and their numbers. key: the file, or
	 * the folder. */
	int (*read)(struct store *store, const char *key, struct manifest *m, struct pawl_error *err);
};

extern const struct foreign_format foreign_safetensors, foreign_npz, foreign_npy, foreign_pt;
/* A set of safetensors files: by its index, with its files in the same folder, or by the folder. */
extern const struct foreign_format foreign_index, foreign_shards;
extern const struct foreign_format foreign_dcp, foreign_model_folder;
/* The first one that fits counts; ends with NULL. */
extern const struct foreign_format *const foreign_formats[];

/* The state and the rows of tensors of a .safetensors file that pawl has written. 1 = it is one.
 * 0 = it is not, and nothing has been filled in. PAWL_ECORRUPT: its text about the state is
 * damaged. */
int foreign_own_read(const struct st_table *table, struct manifest *m, struct pawl_error *err);

#define FOREIGN_INDEX_NAME "model.safetensors.index.json"

#endif
