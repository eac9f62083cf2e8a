/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_files: the files of one fetch. Each is opened for its first unit and closed after its last.
 * So a checkpoint of thousands of files needs only a few descriptors. */
#ifndef PAWL_FETCH_FILES_H
#define PAWL_FETCH_FILES_H

#include "read/fetch.h"
#include "read/compressed_pack.h"

struct fetch_files;

/* store and job must outlive it. */
int fetch_files_new(struct store *store, const struct fetch_job *job, struct fetch_files **ret, struct pawl_error *err);
void fetch_files_free(struct fetch_files *f); /* NULL is fine */
/* Call before reading a unit of a file; any thread. *ret_compressed is NULL if the file is not
 * compressed. The first caller to find a bad file gets the error and, in *ret_end, the size found.
 * Later callers get a NULL reader and 0. */
int fetch_files_enter(struct fetch_files *f, uint32_t file, struct store_reader **ret,
                      struct compressed_pack **ret_compressed, uint64_t *ret_end, struct pawl_error *err);
/* Call after the unit, also after an error. */
void fetch_files_leave(struct fetch_files *f, uint32_t file);

#endif
