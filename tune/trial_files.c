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

#include "base/err.h"
#include "base/hidden.h"
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
append(int dirfd, const char *folder, const char *name, const char *text, struct pawl_error *err)
{
	char path[600];
	int fd, r = path_of(path, sizeof(path), folder, name, err);

	if (r < 0)
		return r;
	fd = openat(dirfd, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
	r = fd < 0 ? -errno : write_all(fd, text, strlen(text));
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? err_sys(err, -r, "%s: write", path) : 0;
}

int
tune_file_write(int dirfd, const char *folder, const char *name, const char *text, int durable, struct pawl_error *err)
{
	char path[600], hidden[600], temporary[HIDDEN_NAME_BYTES];
	int fd, r = path_of(path, sizeof(path), folder, name, err);

	hidden_name_fixed(name, HIDDEN_TMP, temporary);
	if (r == 0)
		r = path_of(hidden, sizeof(hidden), folder, temporary, err);
	if (r < 0)
		return r;
	fd = openat(dirfd, hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
	r = fd < 0 ? -errno : write_all(fd, text, strlen(text));
	if (r == 0 && durable && os_sync(fd) < 0)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0)
		r = -file_appear(dirfd, hidden, dirfd, path, true);
	if (r < 0)
		(void)unlinkat(dirfd, hidden, 0);
	if (r == 0 && durable && !folder[0] && os_sync(dirfd) < 0)
		r = -errno;
	return r < 0 ? err_sys(err, -r, "%s: write", path) : 0;
}

static int
read_whole(int fd, char **ret, size_t *ret_len, struct pawl_error *err)
{
	struct stat st;
	size_t len = 0;
	ssize_t n = 1;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > MAX_FILE)
		return err_set(err, PAWL_ECORRUPT, "expected a regular file of at most %zu bytes", MAX_FILE);
	*ret = mem_alloc((size_t)st.st_size + 1);
	if (!*ret)
		return err_nomem(err, NULL);
	while (len < (size_t)st.st_size && n > 0) {
		n = read(fd, *ret + len, (size_t)st.st_size - len);
		if (n > 0)
			len += (size_t)n;
	}
	(*ret)[len] = '\0';
	*ret_len = len;
	return n < 0 ? err_sys(err, errno, "read") : 0;
}

static int
read_text(int dirfd, const char *folder, const char *name, char **ret, size_t *ret_len, struct pawl_error *err)
{
	char path[600];
	int fd, r = path_of(path, sizeof(path), folder, name, err);

	if (r < 0)
		return r;
	fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_sys(err, errno, "%s: open", path);
	r = read_whole(fd, ret, ret_len, err);
	close(fd);
	return r;
}

int
tune_file_text(int dirfd, const char *folder, const char *name, char **ret, struct pawl_error *err)
{
	size_t len = 0;

	return read_text(dirfd, folder, name, ret, &len, err);
}

int
tune_file_read(int dirfd, const char *folder, const char *name, struct value **ret, struct pawl_error *err)
{
	PAWL_FREE char *text = NULL;
	char path[600];
	size_t len = 0;
	int r = read_text(dirfd, folder, name, &text, &len, err);

	if (r == 0)
		r = path_of(path, sizeof(path), folder, name, err);
	return r < 0 ? r : value_parse(text, len, path, ret, err);
}

static int
write_json(int dirfd, const char *folder, const char *name, const struct value *value, struct pawl_error *err)
{
	PAWL_FREE char *text = value_print(value), *line = NULL;

	if (!text || asprintf(&line, "%s\n", text) < 0) {
		line = NULL;
		return err_nomem(err, NULL);
	}
	return tune_file_write(dirfd, folder, name, line, false, err);
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
	PAWL_FREE char *line = NULL;

	if (asprintf(&line, "%s\n", text) < 0) {
		line = NULL;
		return err_nomem(err, NULL);
	}
	return append(dirfd, folder, name, line, err);
}

int
trial_files_error(int dirfd, const char *trial, const char *text, struct pawl_error *err)
{
	if (mkdirat(dirfd, trial, 0777) < 0 && errno != EEXIST)
		return err_sys(err, errno, "%s: make folder", trial);
	return trial_files_append(dirfd, trial, "error.txt", text, err);
}

/* ---- progress.csv ---- */

struct row {
	char *text;
	size_t len;
	bool failed;
};

static void
row_put(struct row *row, const char *text, bool first)
{
	const bool quoted = strpbrk(text, ",\"\r\n") != NULL;
	char *more = realloc(row->text, row->len + 2 * strlen(text) + 4);

	if (!more) {
		row->failed = true;
		return;
	}
	row->text = more;
	if (!first)
		more[row->len++] = ',';
	if (quoted)
		more[row->len++] = '"';
	for (const char *c = text; *c; c++) {
		if (*c == '"')
			more[row->len++] = '"';
		more[row->len++] = *c;
	}
	if (quoted)
		more[row->len++] = '"';
	more[row->len] = '\0';
}

/* Lists the paths of all values that are not objects, one a line. */
static void
list_columns(struct row *columns, const struct value *object, const char *prefix)
{
	const char *name;
	struct value *item;

	VALUE_MEMBERS(object, name, item) {
		PAWL_FREE char *path = NULL;
		char *more;
		size_t n;
		if (asprintf(&path, "%s%s%s", prefix, prefix[0] ? "/" : "", name) < 0) {
			path = NULL;
			columns->failed = true;
			return;
		}
		if (value_is(item, JSON_OBJECT)) {
			list_columns(columns, item, path);
			continue;
		}
		n = strlen(path);
		if (strchr(path, '\n'))
			continue;
		more = realloc(columns->text, columns->len + n + 2);
		if (!more) {
			columns->failed = true;
			return;
		}
		columns->text = more;
		memcpy(more + columns->len, path, n);
		memcpy(more + columns->len + n, "\n", 2);
		columns->len += n + 1;
	}
}

/* One row of the table: of column names if result is NULL, else of values. */
static char *
make_row(const char *columns, const struct value *result)
{
	struct row row = {0};
	bool first = true;

	for (const char *at = columns; *at && !row.failed; first = false) {
		const size_t n = strcspn(at, "\n");
		PAWL_FREE char *path = mem_strndup(at, n), *shown = NULL;
		const struct value *value = result && path ? value_at(result, path) : NULL;
		at += n + (at[n] == '\n');
		if (value && !value_is(value, JSON_STRING) && !value_is(value, JSON_NULL))
			shown = value_print(value);
		row.failed |= !path;
		if (path)
			row_put(&row,
			        !result                        ? path
			        : shown                        ? shown
			        : value_is(value, JSON_STRING) ? value_text(value)
			                                       : "",
			        first);
	}
	if (!row.failed && row.text) {
		char *more = realloc(row.text, row.len + 2);
		if (more) {
			memcpy(more + row.len, "\n", 2);
			return more;
		}
	}
	mem_free(row.text);
	return NULL;
}

/* Takes the columns of a table that an earlier run began: they are the keys of the first result. */
static int
take_first(void *arg, struct value *result, struct pawl_error *err)
{
	struct row *columns = arg;

	(void)err;
	if (!columns->text)
		list_columns(columns, result, "");
	return 0;
}

static int
find_columns(int dirfd, const char *trial, const struct value *result, char **ret, bool *ret_new,
             struct pawl_error *err)
{
	struct row columns = {0};
	char path[600];
	struct stat st;
	int r = path_of(path, sizeof(path), trial, "progress.csv", err);

	if (r < 0)
		return r;
	*ret_new = fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_size == 0;
	if (!*ret_new)
		r = trial_files_read(dirfd, trial, take_first, &columns, err);
	if (r == 0 && !columns.text)
		list_columns(&columns, result, "");
	if (r == 0 && (columns.failed || !columns.text))
		r = err_nomem(err, NULL);
	if (r < 0)
		mem_free(columns.text);
	else
		*ret = columns.text;
	return r;
}

int
trial_files_result(int dirfd, const char *trial, const struct value *result, const char *line, char **columns,
                   struct pawl_error *err)
{
	PAWL_FREE char *text = NULL, *row = NULL, *names = NULL;
	bool is_new = false;
	int r = 0;

	if (!*columns)
		r = find_columns(dirfd, trial, result, columns, &is_new, err);
	if (r < 0)
		return r;
	if (asprintf(&text, "%s\n", line) < 0) {
		text = NULL;
		return err_nomem(err, NULL);
	}
	row = make_row(*columns, result);
	names = is_new ? make_row(*columns, NULL) : NULL;
	if (!row || (is_new && !names))
		return err_nomem(err, NULL);
	r = append(dirfd, trial, "result.json", text, err);
	if (r == 0 && is_new)
		r = append(dirfd, trial, "progress.csv", names, err);
	return r < 0 ? r : append(dirfd, trial, "progress.csv", row, err);
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
