/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal: lines with checksums. Promises P4 (a failed write changes nothing) and P5 (after a
 * failed fsync nothing more is written).
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/os.h"
#include "base/value.h"

#define SUM_CHARS 9u /* and the blank */
#define MAX_LINE ((size_t)64 << 20)

PAWL_DEFINE_CLEAN(FILE, fclose);

static uint32_t
sum_of(const char *text, size_t len)
{
	return (uint32_t)crc32(0, (const unsigned char *)text, (unsigned)len);
}

/* Parses the object of a line; *ret is NULL if the line is incomplete or invalid. Fails only when
 * memory is exhausted: a line that could not be read is not damaged. */
static int
line_object(const char *line, size_t len, struct value **ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *entry = NULL;
	char sum[SUM_CHARS];

	if (len < SUM_CHARS + 3 || line[--len] != '\n' || len > MAX_LINE || line[SUM_CHARS - 1] != ' ')
		return 0;
	snprintf(sum, sizeof(sum), "%08x", sum_of(line + SUM_CHARS, len - SUM_CHARS));
	if (memcmp(sum, line, SUM_CHARS - 1) != 0)
		return 0;
	const int rc = value_parse(line + SUM_CHARS, len - SUM_CHARS, "journal", &entry, err);
	if (rc == 0 && value_is(entry, JSON_OBJECT))
		*ret = steal(&entry);
	return rc == PAWL_ENOMEM ? rc : 0;
}

static int
read_lines(FILE *file, int (*each)(void *, const struct value *, struct pawl_error *), void *arg,
           struct journal_found *ret, struct pawl_error *err)
{
	PAWL_FREE char *line = NULL;
	size_t cap = 0;
	ssize_t len;

	while ((len = getline(&line, &cap, file)) > 0) {
		PAWL_CLEAN(value_free_clean) struct value *entry = NULL;

		TRY(line_object(line, (size_t)len, &entry, err));
		if (!entry) {
			ret->torn_bytes += (uint64_t)len;
			continue;
		}
		if (ret->torn_bytes) {
			ret->damaged = true;
			return 0;
		}
		ret->n_lines++;
		ret->good_bytes += (uint64_t)len;
		TRY(each(arg, entry, err));
	}
	return feof(file) ? 0 : err_sys(err, errno, "journal: read");
}

int
journal_read(int dirfd, const char *name, int (*each)(void *, const struct value *, struct pawl_error *), void *arg,
             struct journal_found *ret, struct pawl_error *err)
{
	PAWL_FD int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	*ret = (struct journal_found){0};
	if (fd < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s: open", name);
	PAWL_CLEAN(fclose_clean) FILE *file = fdopen(fd, "r");
	if (!file)
		return err_nomem(err, NULL);
	fd = -1; /* file closes it */
	ret->exists = true;
	return read_lines(file, each, arg, ret, err);
}

int
journal_open(int dirfd, const char *name, uint64_t nbytes, struct journal *ret, struct pawl_error *err)
{
	PAWL_FD int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
	struct stat st;

	if (fd < 0)
		return err_sys(err, errno, "%s: open", name);
	if (fstat(fd, &st) < 0 || ((uint64_t)st.st_size > nbytes && ftruncate(fd, (off_t)nbytes) < 0))
		return err_sys(err, errno, "%s: cut off", name);
	*ret = (struct journal){.fd = fd, .nbytes = nbytes};
	fd = -1;
	return 0;
}

void
journal_close(struct journal *j)
{
	fd_clean_close(&j->fd);
}

static int
append_line(struct journal *j, const char *line, size_t len, bool durable, struct pawl_error *err)
{
	size_t done = 0;

	while (done < len) {
		const ssize_t n = write(j->fd, line + done, len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			const int sys = n < 0 ? errno : EIO;
			j->broken = ftruncate(j->fd, (off_t)j->nbytes) < 0;
			return err_sys(err, sys, "journal: write of %zu bytes", len);
		}
		done += (size_t)n;
	}
	if (durable && os_sync_data(j->fd) < 0) {
		j->broken = true; /* the file's content is unknown now */
		return err_sys(err, errno, "journal: fsync");
	}
	j->nbytes += len;
	return 0;
}

int
journal_put(struct journal *j, const struct value *entry, bool durable, struct pawl_error *err)
{
	if (j->broken)
		return err_set(err, PAWL_EIO, "journal: an earlier write has failed; open the experiment again");
	PAWL_FREE char *text = value_print(entry);
	PAWL_FREE char *line = text ? mem_printf("%08x %s\n", sum_of(text, strlen(text)), text) : NULL;
	if (!line)
		return err_nomem(err, NULL);
	const size_t len = strlen(line);
	if (len > MAX_LINE)
		return err_set(err, PAWL_ELIMIT, "journal: an entry of %zu bytes is too long", len);
	return append_line(j, line, len, durable, err);
}
