/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tune_faults: in a search, the n-th allocation fails, or the n-th call that writes, or all from
 * the n-th on (no memory, a full disk). Allocations are intercepted in the complete program
 * (failing_malloc.h), so that those of libc count. Calls that write are intercepted where the
 * library and the test make them (--wrap, tests/meson.build). Armed only around calls of the
 * library. Included by one file of a program, after tune_bed.h.
 */
#ifndef PAWL_TESTS_TUNE_FAULTS_H
#define PAWL_TESTS_TUNE_FAULTS_H

#include <ftw.h>
#include <stdarg.h>

#include "../helpers/failing_malloc.h"
#include "tune_bed.h"

/* ---- writes ---- */

static struct {
	bool armed, forever, cuts; /* cuts: the write that fails leaves half of its bytes */
	long nth, seen;
} write_fault;

/* needs_room: a full disk refuses it, too. */
static bool
write_fails(bool needs_room)
{
	long count;

	if (!write_fault.armed)
		return false;
	count = ++write_fault.seen;
	if (count == write_fault.nth) {
		errno = write_fault.forever ? ENOSPC : EIO;
		return true;
	}
	if (!write_fault.forever || write_fault.nth == 0 || count < write_fault.nth || !needs_room)
		return false;
	errno = ENOSPC;
	return true;
}

ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t
__wrap_write(int fd, const void *bytes, size_t n)
{
	const bool fails = write_fails(true);

	if (fails && write_fault.cuts && n > 1 && write_fault.seen == write_fault.nth) {
		write_fault.nth++; /* the rest of it is what fails */
		return __real_write(fd, bytes, n / 2);
	}
	return fails ? -1 : __real_write(fd, bytes, n);
}

ssize_t __real_pwrite64(int fd, const void *bytes, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t n, off_t at);
ssize_t
__wrap_pwrite64(int fd, const void *bytes, size_t n, off_t at)
{
	return write_fails(true) ? -1 : __real_pwrite64(fd, bytes, n, at);
}

int __real_openat64(int dirfd, const char *path, int flags, ...);
int __wrap_openat64(int dirfd, const char *path, int flags, ...);
int
__wrap_openat64(int dirfd, const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list args;

	if (!(flags & O_CREAT))
		return __real_openat64(dirfd, path, flags);
	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return write_fails(true) ? -1 : __real_openat64(dirfd, path, flags, mode);
}

#define ONE_OF(name, needs_room, declared, given)                          \
	int __real_##name declared;                                        \
	int __wrap_##name declared;                                        \
	int __wrap_##name declared                                         \
	{                                                                  \
		return write_fails(needs_room) ? -1 : __real_##name given; \
	}
ONE_OF(fsync, false, (int fd), (fd))
ONE_OF(fdatasync, false, (int fd), (fd))
ONE_OF(ftruncate64, false, (int fd, off_t n), (fd, n))
ONE_OF(mkdir, true, (const char *path, mode_t mode), (path, mode))
ONE_OF(mkdirat, true, (int dirfd, const char *path, mode_t mode), (dirfd, path, mode))
ONE_OF(linkat, true, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
ONE_OF(renameat, false, (int a, const char *from, int b, const char *to), (a, from, b, to))
ONE_OF(unlinkat, false, (int dirfd, const char *path, int flags), (dirfd, path, flags))
#undef ONE_OF

/* ---- faults ---- */

static bool is_whole; /* every point; else some of them */

/* The controls look at the exit status of a child. */
static bool is_control;
#define COMPLAIN(...)                  \
	do {                           \
		quiet();               \
		if (is_control)        \
			_exit(1);      \
		fail_msg(__VA_ARGS__); \
	} while (0)

enum fault_kind { FAULT_MEMORY, FAULT_WRITE, FAULT_SHORT, N_FAULTS };

struct fault {
	enum fault_kind kind;
	long nth;
	bool forever;
};

/* From one point to the next. */
static long
faults_step(enum fault_kind kind)
{
	return is_whole ? 1 : kind == FAULT_MEMORY ? 97 : 13;
}

static void
around(bool begins)
{
	atomic_store(&fault.armed, begins);
	write_fault.armed = begins;
}

static void
quiet(void)
{
	around(false);
}

static void
set_fault(const struct fault *f)
{
	arm(f->kind == FAULT_MEMORY ? f->nth : 0, f->kind == FAULT_MEMORY && f->forever);
	disarm();
	write_fault.seen = 0;
	write_fault.nth = f->kind == FAULT_MEMORY ? 0 : f->nth;
	write_fault.forever = f->kind != FAULT_MEMORY && f->forever;
	write_fault.cuts = f->kind == FAULT_SHORT;
}

static bool
was_reached(const struct fault *f)
{
	return (f->kind == FAULT_MEMORY ? atomic_load(&fault.seen) : write_fault.seen) >= f->nth;
}

static bool
is_expected(const struct fault *f, int rc)
{
	return f->kind == FAULT_MEMORY ? rc == PAWL_ENOMEM : rc == PAWL_EIO || rc == PAWL_ENOSPACE;
}

static const char *
describe(const struct fault *f)
{
	static char text[80];

	snprintf(text, sizeof(text), "%s %ld%s",
	         f->kind == FAULT_MEMORY  ? "allocation"
	         : f->kind == FAULT_WRITE ? "write"
	                                  : "write cut short",
	         f->nth, f->forever ? " and on" : "");
	return text;
}

static void
faults_setup(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--whole") == 0)
		is_whole = true;
}

/* ---- what must hold ---- */

static size_t
count(const char *path, const char *word, const char *and_word)
{
	FILE *file = fopen(path, "r");
	char *line = NULL;
	size_t cap = 0, n = 0;

	while (file && getline(&line, &cap, file) > 0)
		n += strstr(line, word) && strstr(line, and_word);
	free(line);
	if (file)
		fclose(file);
	return n;
}

/* Each trial's files have the results that the journal has, and nothing is left over. */
static void
check_files(struct tune_bed *bed, const char *folder, const char *what)
{
	struct tune_experiment *e = bed_open(bed, NULL, folder, TUNE_READ);
	struct pawl_error err = {0};
	struct tune_trial info;
	struct dirent *entry;

	for (uint32_t i = 0; tune_trial_info(e, i, &info, &err) == 0; i++) {
		char path[400], number[40];
		size_t n, n_results, n_rows;
		DIR *dir;

		snprintf(number, sizeof(number), "\"t\": %u,", i);
		snprintf(path, sizeof(path), "%s/%s/journal", bed->root, folder);
		n = count(path, "\"e\": \"result\"", number);
		snprintf(path, sizeof(path), "%s/%s/%s/result.json", bed->root, folder, info.name);
		n_results = count(path, "", "");
		snprintf(path, sizeof(path), "%s/%s/%s/progress.csv", bed->root, folder, info.name);
		n_rows = count(path, "", "");
		if (n_results != n || n_rows != n + 1)
			COMPLAIN("%s: %s has %zu results in the journal, %zu lines and %zu rows in its files", what,
			         info.name, n, n_results, n_rows);
		snprintf(path, sizeof(path), "%s/%s/%s", bed->root, folder, info.name);
		dir = opendir(path);
		assert_non_null(dir);
		while ((entry = readdir(dir)))
			if (entry->d_name[0] == '.' && strlen(entry->d_name) > 2)
				COMPLAIN("%s: %s/%s is left", what, info.name, entry->d_name);
		closedir(dir);
	}
	tune_experiment_close(e);
}

static int
remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static void
clear(struct tune_bed *bed, const char *folder)
{
	char path[400];

	snprintf(path, sizeof(path), "%s/%s", bed->root, folder);
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
