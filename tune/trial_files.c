/* SPDX-License-Identifier: Apache-2.0 */
/* trial_files: small files, appended to or replaced by rename. */
#include "trial_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/value.h"

#define MAX_FILE ((size_t)256 << 20)

static int
path_of(char *path, size_t nbytes, const char *folder, const char *name, struct pawl_error *err)
{
	if ((size_t)snprintf(path, nbytes, "%s%s%s", folder, folder[0] ? "/" : "", name) >= nbytes)
		return err_set(err, PAWL_ELIMIT, "%.100s: the name is too long", folder);
	return 0;
}

static int
write_all(int fd, const char *text, size_t len)
{
	while (len) {
		const ssize_t n = write(fd, text, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		text += n;
		len -= (size_t)n;
	}
	return 0;
}

static int
append_text(int dirfd, const char *folder, const char *name, const char *text, struct pawl_error *err)
{
	char path[600];

	TRY(path_of(path, sizeof(path), folder, name, err));
	const int fd = openat(dirfd, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
	int r = fd < 0 ? -errno : write_all(fd, text, strlen(text));
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? err_sys(err, -r, "%s: write", path) : 0;
}

int
trial_file_write(int dirfd, const char *folder, const char *name, const char *text, int durable, struct pawl_error *err)
{
	char path[600], hidden[600], temporary[HIDDEN_NAME_BYTES];

	TRY(path_of(path, sizeof(path), folder, name, err));
	hidden_name_fixed(name, HIDDEN_TMP, temporary);
	TRY(path_of(hidden, sizeof(hidden), folder, temporary, err));
	const int fd = openat(dirfd, hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
	int r = fd < 0 ? -errno : write_all(fd, text, strlen(text));
	if (r == 0 && durable && os_sync(fd) < 0)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0)
		r = -hidden_file_appear(dirfd, hidden, dirfd, path, true);
	if (r < 0)
		(void)unlinkat(dirfd, hidden, 0);
	if (r == 0 && durable && !folder[0] && os_sync(dirfd) < 0)
		r = -errno;
	return r < 0 ? err_sys(err, -r, "%s: write", path) : 0;
}

int
trial_file_text(int dirfd, const char *folder, const char *name, struct buf *out, struct pawl_error *err)
{
	char path[600];

	TRY(path_of(path, sizeof(path), folder, name, err));
	return fd_read_file(dirfd, path, MAX_FILE, out, err);
}

int
trial_file_read(int dirfd, const char *folder, const char *name, struct value **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char path[600];

	TRY(trial_file_text(dirfd, folder, name, &text, err));
	TRY(path_of(path, sizeof(path), folder, name, err));
	return value_parse(buf_str(&text), text.len, path, ret, err);
}

static int
write_json(int dirfd, const char *folder, const char *name, const struct value *value, struct pawl_error *err)
{
	PAWL_FREE char *text = value_print(value);
	PAWL_FREE char *line = text ? mem_printf("%s\n", text) : NULL;

	return line ? trial_file_write(dirfd, folder, name, line, false, err) : err_nomem(err, NULL);
}

int
trial_files_params(int dirfd, const char *trial, const struct value *config, struct pawl_error *err)
{
	return write_json(dirfd, trial, "params.json", config, err);
}

int
trial_files_state(int dirfd, const char *trial, const struct value *state, struct pawl_error *err)
{
	return write_json(dirfd, trial, "trial.json", state, err);
}

int
trial_files_append(int dirfd, const char *folder, const char *name, const char *text, struct pawl_error *err)
{
	PAWL_FREE char *line = mem_printf("%s\n", text);

	return line ? append_text(dirfd, folder, name, line, err) : err_nomem(err, NULL);
}

int
trial_files_error(int dirfd, const char *trial, const char *text, struct pawl_error *err)
{
	if (mkdirat(dirfd, trial, 0777) < 0 && errno != EEXIST)
		return err_sys(err, errno, "%s: make folder", trial);
	return trial_files_append(dirfd, trial, "error.txt", text, err);
}

/* ---- progress.csv ---- */

static void
put_cell(struct buf *row, const char *text)
{
	const bool quoted = strpbrk(text, ",\"\r\n") != NULL;

	if (quoted)
		buf_putc(row, '"');
	for (const char *c = text; *c; c++) {
		if (*c == '"')
			buf_putc(row, '"');
		buf_putc(row, *c);
	}
	if (quoted)
		buf_putc(row, '"');
}

/* Lists the paths of all values that are not objects, one a line. */
static int
list_columns(struct buf *columns, const struct value *object, const char *prefix, struct pawl_error *err)
{
	const char *name;
	struct value *item;

	VALUE_MEMBERS(object, name, item) {
		PAWL_FREE char *path = mem_printf("%s%s%s", prefix, prefix[0] ? "/" : "", name);
		if (!path)
			return err_nomem(err, NULL);
		if (value_is(item, JSON_OBJECT))
			TRY(list_columns(columns, item, path, err));
		else if (!strchr(path, '\n'))
			buf_printf(columns, "%s\n", path);
	}
	return buf_check(columns, "progress.csv", err);
}

/* Adds a row of the table: of column names if result is NULL, else of values. */
static int
put_row(struct buf *out, const char *columns, const struct value *result, struct pawl_error *err)
{
	for (const char *at = columns; *at;) {
		const size_t n = strcspn(at, "\n");
		PAWL_FREE char *path = mem_strndup(at, n), *shown = NULL;
		if (!path)
			return err_nomem(err, NULL);
		const struct value *value = result ? value_at(result, path) : NULL;
		if (value && !value_is(value, JSON_STRING) && !value_is(value, JSON_NULL))
			shown = value_print(value);
		if (at != columns)
			buf_putc(out, ',');
		put_cell(out, !result ? path : shown ? shown : value_is(value, JSON_STRING) ? value_text(value) : "");
		at += n + (at[n] == '\n');
	}
	buf_putc(out, '\n');
	return buf_check(out, "progress.csv", err);
}

/* Takes the columns of a table that an earlier run began: they are the keys of the first result. */
static int
take_first(void *arg, struct value *result, struct pawl_error *err)
{
	struct buf *columns = arg;

	return columns->len ? 0 : list_columns(columns, result, "", err);
}

static int
find_columns(int dirfd, const char *trial, const struct value *result, char **ret, bool *ret_new,
             struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf columns = {0};
	char path[600];
	struct stat st;

	TRY(path_of(path, sizeof(path), trial, "progress.csv", err));
	*ret_new = fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_size == 0;
	if (!*ret_new)
		TRY(trial_files_read(dirfd, trial, take_first, &columns, err));
	if (!columns.len)
		TRY(list_columns(&columns, result, "", err));
	*ret = mem_strdup(buf_str(&columns));
	return *ret ? 0 : err_nomem(err, NULL);
}

int
trial_files_result(int dirfd, const char *trial, const struct value *result, const char *line, char **columns,
                   struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf rows = {0};
	PAWL_FREE char *text = mem_printf("%s\n", line);
	bool is_new = false;

	if (!text)
		return err_nomem(err, NULL);
	if (!*columns)
		TRY(find_columns(dirfd, trial, result, columns, &is_new, err));
	if (is_new)
		TRY(put_row(&rows, *columns, NULL, err));
	TRY(put_row(&rows, *columns, result, err));
	TRY(append_text(dirfd, trial, "result.json", text, err));
	return append_text(dirfd, trial, "progress.csv", buf_str(&rows), err);
}

/* ---- reading them back ---- */

/* *ret: NULL if there is none. */
static int
open_lines(int dirfd, const char *trial, const char *name, FILE **ret, struct pawl_error *err)
{
	char path[600];
	int fd, r = path_of(path, sizeof(path), trial, name, err);

	*ret = NULL;
	if (r < 0)
		return r;
	fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s: open", path);
	*ret = fdopen(fd, "r");
	if (!*ret)
		close(fd);
	return *ret ? 0 : err_nomem(err, NULL);
}

uint64_t
trial_files_count(int dirfd, const char *trial, const char *name)
{
	char block[16384], last = '\n';
	uint64_t lines = 0;
	FILE *file;
	size_t n;

	if (open_lines(dirfd, trial, name, &file, NULL) < 0)
		return UINT64_MAX;
	if (!file)
		return 0;
	while ((n = fread(block, 1, sizeof(block), file)) > 0) {
		for (size_t i = 0; i < n; i++)
			lines += block[i] == '\n';
		last = block[n - 1];
	}
	fclose(file);
	return last == '\n' ? lines : UINT64_MAX;
}

int
trial_files_clear(int dirfd, const char *trial, struct pawl_error *err)
{
	static const char *const names[] = {"result.json", "progress.csv"};
	char path[600];

	for (size_t i = 0; i < 2; i++) {
		TRY(path_of(path, sizeof(path), trial, names[i], err));
		if (unlinkat(dirfd, path, 0) < 0 && errno != ENOENT)
			return err_sys(err, errno, "%s: remove", path);
	}
	return 0;
}

int
trial_files_read(int dirfd, const char *trial, int (*each)(void *, struct value *, struct pawl_error *), void *arg,
                 struct pawl_error *err)
{
	char *line = NULL;
	size_t cap = 0;
	FILE *file;
	ssize_t len;
	int r = open_lines(dirfd, trial, "result.json", &file, err);

	if (!file)
		return r;
	while (r == 0 && (len = getline(&line, &cap, file)) > 0) {
		PAWL_CLEAN(value_free_clean) struct value *result = NULL;
		if (line[len - 1] == '\n' && value_parse(line, (size_t)len, "result.json", &result, err) == PAWL_ENOMEM)
			r = PAWL_ENOMEM;
		else if (value_is(result, JSON_OBJECT))
			r = each(arg, result, err);
	}
	if (r == 0 && !feof(file))
		r = err_sys(err, errno, "%s/result.json: read", trial);
	mem_free(line);
	fclose(file);
	return r;
}
