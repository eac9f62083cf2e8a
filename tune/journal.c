/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal: lines with checksums. Promises P4 (a failed write changes nothing) and P5 (after a
 * failed fsync nothing more is written).
 */
#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "base/err.h"
#include "base/os.h"
#include "base/value.h"

#define SUM_CHARS 9u /* and the blank */
#define MAX_LINE ((size_t)64 << 20)

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
	int r;

	if (len < SUM_CHARS + 3 || line[--len] != '\n' || len > MAX_LINE || line[SUM_CHARS - 1] != ' ')
		return 0;
	snprintf(sum, sizeof(sum), "%08x", sum_of(line + SUM_CHARS, len - SUM_CHARS));
	if (memcmp(sum, line, SUM_CHARS - 1) != 0)
		return 0;
	r = value_parse(line + SUM_CHARS, len - SUM_CHARS, "journal", &entry, err);
	if (r == 0 && value_is(entry, JSON_OBJECT))
		*ret = value_ref(entry);
	return r == PAWL_ENOMEM ? r : 0;
}

static int
read_lines(FILE *file, int (*each)(void *, const struct value *, struct pawl_error *), void *arg,
           struct journal_found *ret, struct pawl_error *err)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;
	int r = 0;

	while (r == 0 && (len = getline(&line, &cap, file)) > 0) {
		PAWL_CLEAN(value_free_clean) struct value *entry = NULL;
		r = line_object(line, (size_t)len, &entry, err);
		if (r < 0)
			break;
		if (entry && ret->torn_bytes) {
			ret->damaged = true;
			break;
		}
		if (!entry) {
			ret->torn_bytes += (uint64_t)len;
			continue;
		}
		ret->n_lines++;
		ret->good_bytes += (uint64_t)len;
		r = each ? each(arg, entry, err) : 0;
	}
	if (r == 0 && !ret->damaged && !feof(file))
		r = err_sys(err, errno, "journal: read");
	mem_free(line);
	return r;
}

int
journal_read(int dirfd, const char *name, int (*each)(void *, const struct value *, struct pawl_error *), void *arg,
             struct journal_found *ret, struct pawl_error *err)
{
	const int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	FILE *file;
	int r;

	*ret = (struct journal_found){0};
	if (fd < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s: open", name);
	file = fdopen(fd, "r");
	if (!file) {
		close(fd);
		return err_nomem(err, NULL);
	}
	ret->exists = true;
	r = read_lines(file, each, arg, ret, err);
	fclose(file);
	return r;
}

int
journal_open(int dirfd, const char *name, uint64_t nbytes, struct journal *ret, struct pawl_error *err)
{
	const int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
	struct stat st;

	if (fd < 0)
		return err_sys(err, errno, "%s: open", name);
	if (fstat(fd, &st) < 0 || ((uint64_t)st.st_size > nbytes && ftruncate(fd, (off_t)nbytes) < 0)) {
		const int sys = errno;
		close(fd);
		return err_sys(err, sys, "%s: cut off", name);
	}
	*ret = (struct journal){.fd = fd, .nbytes = nbytes};
	return 0;
}

void
journal_close(struct journal *j)
{
	if (j->fd >= 0)
		close(j->fd);
	j->fd = -1;
}

static int
append(struct journal *j, const char *line, size_t len, bool durable, struct pawl_error *err)
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
	PAWL_FREE char *text = value_print(entry), *line = NULL;
	int n, r;

	if (j->broken)
		return err_set(err, PAWL_EIO, "journal: an earlier write has failed; open the experiment again");
	if (!text)
		return err_nomem(err, NULL);
	n = asprintf(&line, "%08x %s\n", sum_of(text, strlen(text)), text);
	if (n < 0) {
		line = NULL;
		return err_nomem(err, NULL);
	}
	r = (size_t)n > MAX_LINE ? err_set(err, PAWL_ELIMIT, "journal: an entry of %d bytes is too long", n)
	                         : append(j, line, (size_t)n, durable, err);
	return r;
}
