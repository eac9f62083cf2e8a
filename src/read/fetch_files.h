/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_files: the files of one fetch: opened when their first unit is due and closed after their last, so that a checkpoint
 * of thousands of files needs a handful of descriptors. For fetch.c only. */
#ifndef PAWL_FETCH_FILES_H
#define PAWL_FETCH_FILES_H

#include "read/fetch.h"
#include "read/packed.h"

struct fetch_files;

/* store and job must outlive it. */
int fetch_files_new(struct store *store, const struct fetch_job *job, struct fetch_files **ret, struct pawl_error *err);
void fetch_files_free(struct fetch_files *f); /* NULL is fine */
/* Before a unit of a file is read; any thread. *ret_packed is NULL where it is not compressed. An error, of whoever is the
 * first to find it, says what is wrong with the file, and *ret_end where what is there ends; everybody after that gets a
 * NULL reader and 0. */
int fetch_files_enter(struct fetch_files *f, uint32_t file, struct store_reader **ret, struct packed **ret_packed,
		      uint64_t *ret_end, struct pawl_error *err);
/* After it, however it went. */
void fetch_files_leave(struct fetch_files *f, uint32_t file);

#endif
