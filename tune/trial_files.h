/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_files: files in a trial's folder for people and other tools: params.json, result.json (one
 * line per result), progress.csv, trial.json (its number and state), error.txt. They follow the
 * journal: missing parts are written again from it. A lost journal is rebuilt from them.
 */
#ifndef PAWL_TUNE_TRIAL_FILES_H
#define PAWL_TUNE_TRIAL_FILES_H

#include <stdint.h>

#include "base/buf.h"
#include "base/value.h"
#include "pawl.h"

int trial_files_params(int dirfd, const char *trial, const struct value *config, struct pawl_error *err);
/* Replaces trial.json completely. */
int trial_files_state(int dirfd, const char *trial, const struct value *state, struct pawl_error *err);
/* Appends a result. columns: of progress.csv, made with the first result and kept by the caller
 * (free() them). */
int trial_files_result(int dirfd, const char *trial, const struct value *result, const char *line, char **columns,
                       struct pawl_error *err);
int trial_files_error(int dirfd, const char *trial, const char *text, struct pawl_error *err);
/* Appends a line to any file. */
int trial_files_append(int dirfd, const char *folder, const char *name, const char *text, struct pawl_error *err);
/* The number of lines of a file; 0 if it does not exist. UINT64_MAX: the last line is torn, or the
 * file cannot be read. */
uint64_t trial_files_count(int dirfd, const char *trial, const char *name);
/* Empties the files of results: the caller writes all results again. */
int trial_files_clear(int dirfd, const char *trial, struct pawl_error *err);
/* Calls `each` for each complete line of result.json. */
int trial_files_read(int dirfd, const char *trial, int (*each)(void *arg, struct value *result, struct pawl_error *err),
                     void *arg, struct pawl_error *err);
/* Reads a JSON file; *ret is a new reference. PAWL_ENOTFOUND if the file does not exist. */
int trial_file_read(int dirfd, const char *folder, const char *name, struct value **ret, struct pawl_error *err);
/* Appends the text of any file to *out. */
int trial_file_text(int dirfd, const char *folder, const char *name, struct buf *out, struct pawl_error *err);
/* Replaces a file completely. durable: it is on the disk when the call returns. */
int trial_file_write(int dirfd, const char *folder, const char *name, const char *text, int durable,
                     struct pawl_error *err);

#endif
