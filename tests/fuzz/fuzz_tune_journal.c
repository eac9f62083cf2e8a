/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tune_journal: any bytes are a journal with a number of good lines, up to the first that pawl
 * did not write. The good lines stay good when the rest is cut off, and a further line can be
 * appended.
 */
#include <fcntl.h>
#include <unistd.h>

#include "fuzz.h"
#include "journal.h"

static int
count(void *arg, const struct value *entry, struct pawl_error *err)
{
	uint64_t *n = arg;

	(void)err;
	check(value_is(entry, JSON_OBJECT));
	++*n;
	return 0;
}

static void
read_again(int dirfd, const char *name, uint64_t good_bytes, uint64_t n_lines)
{
	struct journal_found found;
	struct journal j;
	uint64_t n = 0;
	struct value *more = VALUE_OBJECT({"e", value_new_text("close")});

	check(more != NULL && journal_open(dirfd, name, good_bytes, &j, NULL) == 0);
	check(journal_put(&j, more, false, NULL) == 0);
	journal_close(&j);
	value_free(more);
	check(journal_read(dirfd, name, count, &n, &found, NULL) == 0);
	check(n == n_lines + 1 && found.n_lines == n && found.torn_bytes == 0 && !found.damaged);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char name[] = "journal";
	char folder[] = "/dev/shm/pawl-fuzz-XXXXXX";
	struct journal_found found;
	uint64_t n = 0;
	int dirfd, fd;

	check(mkdtemp(folder) != NULL);
	dirfd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	close(fd);
	check(journal_read(dirfd, name, count, &n, &found, NULL) == 0);
	check(found.exists && found.n_lines == n && found.good_bytes + found.torn_bytes <= size);
	if (!found.damaged)
		check(found.good_bytes + found.torn_bytes == size);
	read_again(dirfd, name, found.good_bytes, n);
	unlinkat(dirfd, name, 0);
	close(dirfd);
	rmdir(folder);
	return 0;
}
