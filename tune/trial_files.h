/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_files: what people and other tools read in a trial's folder: params.json, result.json (a line each), progress.csv,
 * trial.json (its number and state), error.txt. They follow the journal: what they lack is written again from it; where the
 * journal is lost, it is made again from them.
 */
#ifndef PAWL_TUNE_TRIAL_FILES_H
#define PAWL_TUNE_TRIAL_FILES_H

#include <stdint.h>

#include <jansson.h>

#include "pawl.h"

int trial_files_params(int dirfd, const char *trial, const json_t *config, struct pawl_error *err);
/* trial.json: replaced as a whole. */
int trial_files_state(int dirfd, const char *trial, const json_t *state, struct pawl_error *err);
/* Appends a result. columns: of progress.csv, made with the first result and kept by the caller (free() it). */
int trial_files_result(int dirfd, const char *trial, const json_t *result, const char *line, char **columns,
                       struct pawl_error *err);
int trial_files_error(int dirfd, const char *trial, const char *text, struct pawl_error *err);
/* Appends a line to any file. */
int trial_files_append(int dirfd, const char *folder, const char *name, const char *text, struct pawl_error *err);
/* Lines of a file; 0 if there is none. UINT64_MAX: the last one is torn, or it cannot be read. */
uint64_t trial_files_count(int dirfd, const char *trial, const char *name);
/* Begins them anew: the caller writes all results again. */
int trial_files_clear(int dirfd, const char *trial, struct pawl_error *err);
/* Each line of result.json that is whole. */
int trial_files_read(int dirfd, const char *trial, int (*each)(void *arg, json_t *result, struct pawl_error *err), void *arg,
                     struct pawl_error *err);
/* A JSON file as a whole; a new reference. PAWL_ENOTFOUND if there is none. */
int tune_file_read(int dirfd, const char *folder, const char *name, json_t **ret, struct pawl_error *err);
/* The same of any text, to free(). */
int tune_file_text(int dirfd, const char *folder, const char *name, char **ret, struct pawl_error *err);
/* Replaced as a whole. durable: on the disk when it returns. */
int tune_file_write(int dirfd, const char *folder, const char *name, const char *text, int durable, struct pawl_error *err);

#endif
