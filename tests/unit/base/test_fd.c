/* SPDX-License-Identifier: Apache-2.0 */
/* fd: complete reads and writes, folders made and removed, links not followed. Needs a writable
 * /tmp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

struct bed {
	char path[64];
	int dir;
};

static int
setup(void **state)
{
	struct bed *bed = mem_zalloc(1, sizeof(*bed));
	snprintf(bed->path, sizeof(bed->path), "/tmp/pawl-fd-XXXXXX");
	if (!bed || !mkdtemp(bed->path))
		return -1;
	bed->dir = open(bed->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*state = bed;
	return bed->dir < 0 ? -1 : 0;
}

static int
teardown(void **state)
{
	struct bed *bed = *state;
	fd_remove_tree(AT_FDCWD, bed->path, NULL);
	close(bed->dir);
	mem_free(bed);
	return 0;
}

static void
put_file(int dir, const char *path, const char *text)
{
	int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static bool
exists(int dir, const char *path)
{
	struct stat st;
	return fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void
test_written_bytes_are_read_back(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	PAWL_FD int fd = fd_openat(bed->dir, "f", O_RDWR | O_CREAT | O_EXCL, 0600, &err);
	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	char out[3000], back[3000];
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)(i * 7);
	assert_int_equal(fd_pwrite_all(fd, out, sizeof(out), 1000, "f", &err), 0);
	assert_int_equal(fd_pread_all(fd, back, sizeof(back), 1000, "f", &err), 0);
	assert_memory_equal(out, back, sizeof(out));
	assert_int_equal(fd_pread_all(fd, back, 0, 999999, "f", &err), 0);
	assert_int_equal(fd_sync(fd, "f", &err), 0);
	assert_int_equal(fd_close(&fd, "f", &err), 0);
	assert_int_equal(fd, -1);
}

static void
test_P17_a_short_file_is_corrupt(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	char back[10];
	put_file(bed->dir, "f", "12345");
	PAWL_FD int fd = fd_openat(bed->dir, "f", O_RDONLY, 0, &err);
	assert_int_equal(fd_pread_all(fd, back, 6, 0, "f", &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "f: ends at offset 5"));
	assert_int_equal(fd_pread_all(fd, back, 1, UINT64_MAX, "f", &err), PAWL_ELIMIT);
	assert_int_equal(fd_pread_all(fd, back, SIZE_MAX, 1, "f", &err), PAWL_ELIMIT);
}

static void
test_P5_failures_of_write_sync_and_close_are_errors(void **state)
{
	(void)state;
	struct pawl_error err;
	PAWL_FD int fd = open("/dev/full", O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(fd_pwrite_all(fd, "x", 1, 0, "full", &err), PAWL_ENOSPACE);
	assert_int_equal(err.sys, ENOSPC);
	assert_non_null(strstr(err.message, "full: write of 1 bytes at offset 0"));
	int fds[2];
	assert_int_equal(pipe(fds), 0);
	assert_true(fd_sync(fds[1], "pipe", &err) < 0);
	close(fds[0]);
	close(fds[1]);
	int closed = fds[0];
	assert_int_equal(fd_close(&closed, "gone", &err), PAWL_EIO);
	assert_int_equal(err.sys, EBADF);
	assert_int_equal(closed, -1);
}

static void
test_P17_open_does_not_follow_links(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	put_file(bed->dir, "target", "secret");
	assert_int_equal(symlinkat("target", bed->dir, "link"), 0);
	assert_int_equal(fd_openat(bed->dir, "link", O_RDONLY, 0, &err), PAWL_EIO);
	assert_non_null(strstr(err.message, "symbolic link"));
	struct buf out = {0};
	assert_true(fd_read_file(bed->dir, "link", 100, &out, &err) < 0);
	assert_int_equal(out.len, 0);
	buf_clear(&out);
	assert_int_equal(fd_openat(bed->dir, "none", O_RDONLY, 0, &err), PAWL_ENOTFOUND);
}

static void
test_folders_are_made_with_their_parents(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	assert_int_equal(fd_mkdirs(bed->dir, "a/b/c", &err), 0);
	assert_true(exists(bed->dir, "a/b/c"));
	assert_int_equal(fd_mkdirs(bed->dir, "a/b/c", &err), 0);
	assert_int_equal(fd_mkdirs(bed->dir, "a//d///e//", &err), 0);
	assert_true(exists(bed->dir, "a/d/e"));
	char absolute[128];
	snprintf(absolute, sizeof(absolute), "%s/x/y", bed->path);
	assert_int_equal(fd_mkdirs(AT_FDCWD, absolute, &err), 0);
	assert_true(exists(bed->dir, "x/y"));
	assert_int_equal(fd_mkdirs(AT_FDCWD, "/", &err), 0);
	assert_int_equal(fd_sync_dirat(bed->dir, "a/b", &err), 0);
	assert_int_equal(fd_sync_dirat(bed->dir, "a/none", &err), PAWL_ENOTFOUND);
}

static void
test_a_file_in_the_way_of_a_folder_is_an_error(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	put_file(bed->dir, "f", "");
	assert_int_equal(fd_mkdirs(bed->dir, "f", &err), PAWL_EEXISTS);
	assert_true(fd_mkdirs(bed->dir, "f/sub", &err) < 0);
	assert_int_equal(fd_mkdirs(bed->dir, "", &err), PAWL_EUSAGE);
}

static void
test_folders_may_be_reached_through_a_link(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	assert_int_equal(fd_mkdirs(bed->dir, "real", &err), 0);
	assert_int_equal(symlinkat("real", bed->dir, "alias"), 0);
	assert_int_equal(fd_mkdirs(bed->dir, "alias/sub/deep", &err), 0);
	assert_true(exists(bed->dir, "real/sub/deep"));
}

static void
test_P16_whole_files_are_read_up_to_a_limit(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	put_file(bed->dir, "f", "hello");
	put_file(bed->dir, "empty", "");
	struct buf out = {0};
	buf_puts(&out, "> ");
	assert_int_equal(fd_read_file(bed->dir, "f", 5, &out, &err), 0);
	assert_string_equal(buf_str(&out), "> hello");
	assert_int_equal(fd_read_file(bed->dir, "f", 4, &out, &err), PAWL_ELIMIT);
	assert_string_equal(buf_str(&out), "> hello");
	assert_int_equal(fd_read_file(bed->dir, "empty", 0, &out, &err), 0);
	assert_string_equal(buf_str(&out), "> hello");
	assert_int_equal(fd_read_file(bed->dir, "none", 5, &out, &err), PAWL_ENOTFOUND);
	buf_clear(&out);
	/* A file that does not tell its size. */
	assert_int_equal(fd_read_file(AT_FDCWD, "/proc/self/maps", 10, &out, &err), PAWL_ELIMIT);
	assert_int_equal(fd_read_file(AT_FDCWD, "/proc/self/maps", 10 << 20, &out, &err), 0);
	assert_non_null(strstr(buf_str(&out), "[stack]"));
	buf_clear(&out);
}

static void
test_P16_a_pipe_or_folder_is_not_read(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	struct buf out = {0};
	assert_int_equal(mkfifoat(bed->dir, "pipe", 0600), 0);
	assert_int_equal(fd_read_file(bed->dir, "pipe", 10, &out, &err), PAWL_ECORRUPT);
	assert_int_equal(fd_mkdirs(bed->dir, "folder", &err), 0);
	assert_int_equal(fd_read_file(bed->dir, "folder", 10, &out, &err), PAWL_ECORRUPT);
	buf_clear(&out);
}

static void
test_P17_trees_are_removed_without_following_links(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	assert_int_equal(fd_mkdirs(bed->dir, "outside", &err), 0);
	put_file(bed->dir, "outside/kept", "");
	assert_int_equal(fd_mkdirs(bed->dir, "tree/a/b/c", &err), 0);
	assert_int_equal(fd_mkdirs(bed->dir, "tree/.hidden", &err), 0);
	for (int i = 0; i < 500; i++) {
		char name[32];
		snprintf(name, sizeof(name), "tree/a/%d", i);
		put_file(bed->dir, name, "x");
	}
	assert_int_equal(symlinkat("../outside", bed->dir, "tree/link"), 0);
	assert_int_equal(mkfifoat(bed->dir, "tree/pipe", 0600), 0);
	assert_int_equal(fd_remove_tree(bed->dir, "tree", &err), 0);
	assert_false(exists(bed->dir, "tree"));
	assert_true(exists(bed->dir, "outside/kept"));

	assert_int_equal(symlinkat("outside", bed->dir, "link"), 0);
	assert_int_equal(fd_remove_tree(bed->dir, "link", &err), 0);
	assert_true(exists(bed->dir, "outside/kept"));
	assert_false(exists(bed->dir, "link"));
}

static void
test_removing_what_is_not_there_succeeds(void **state)
{
	struct bed *bed = *state;
	assert_int_equal(fd_remove_tree(bed->dir, "none", NULL), 0);
	assert_int_equal(fd_remove_tree(bed->dir, "none/below", NULL), 0);
	put_file(bed->dir, "f", "");
	assert_int_equal(fd_remove_tree(bed->dir, "f", NULL), 0);
	assert_false(exists(bed->dir, "f"));
}

static void
test_P16_endless_nesting_is_refused(void **state)
{
	struct bed *bed = *state;
	struct pawl_error err;
	char path[400] = "deep";
	for (int i = 0; i < 80; i++)
		memcpy(path + 4 + 2 * i, "/d", 3);
	assert_int_equal(fd_mkdirs(bed->dir, path, &err), 0);
	assert_int_equal(fd_remove_tree(bed->dir, "deep", &err), PAWL_ELIMIT);
	path[4 + 2 * 40] = '\0';
	assert_int_equal(fd_remove_tree(bed->dir, path, &err), 0);
	assert_int_equal(fd_remove_tree(bed->dir, "deep", &err), 0);
}

/* ---- memory that the kernel cannot use ---- */

static struct {
	const char *begin, *end; /* calls with this memory fail */
	size_t n_refused, most;  /* the largest call with other memory */
	bool refuses_all;
} kernel;

static bool
is_refused(const void *ptr, size_t n)
{
	const bool is = kernel.refuses_all || ((const char *)ptr >= kernel.begin && (const char *)ptr < kernel.end);

	if (is) {
		kernel.n_refused++;
		errno = EFAULT;
	} else if (kernel.begin) {
		assert_int_equal((uintptr_t)ptr % 4096, 0); /* for direct I/O */
		kernel.most = n > kernel.most ? n : kernel.most;
	}
	return is;
}

ssize_t __real_pwrite64(int fd, const void *ptr, size_t n, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *ptr, size_t n, off_t offset);
ssize_t __real_pread64(int fd, void *ptr, size_t n, off_t offset);
ssize_t __wrap_pread64(int fd, void *ptr, size_t n, off_t offset);
ssize_t __real_send(int fd, const void *ptr, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *ptr, size_t n, int flags);

ssize_t
__wrap_pwrite64(int fd, const void *ptr, size_t n, off_t offset)
{
	return is_refused(ptr, n) ? -1 : __real_pwrite64(fd, ptr, n, offset);
}

ssize_t
__wrap_pread64(int fd, void *ptr, size_t n, off_t offset)
{
	return is_refused(ptr, n) ? -1 : __real_pread64(fd, ptr, n, offset);
}

ssize_t
__wrap_send(int fd, const void *ptr, size_t n, int flags)
{
	return is_refused(ptr, n) ? -1 : __real_send(fd, ptr, n, flags);
}

static void
test_memory_that_the_kernel_cannot_use_is_gone_around(void **state)
{
	struct bed *bed = *state;
	const size_t n = 2 * FD_AROUND_BYTES + 4097;
	PAWL_FREE char *memory = mem_alloc(n), *again = mem_alloc(n);
	PAWL_FD int fd = openat(bed->dir, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct pawl_error err = {0};
	char part[100];
	int pair[2];

	assert_true(memory && again && fd >= 0);
	for (size_t i = 0; i < n; i++)
		memory[i] = (char)(i * 7 + i / 4096);
	kernel.begin = memory;
	kernel.end = memory + n;
	assert_int_equal(fd_pwrite_all(fd, memory + 1, n - 1, 3, "file", &err), 0);
	assert_int_equal(kernel.n_refused, 3); /* pieces of at most FD_AROUND_BYTES */
	assert_int_equal(kernel.most, FD_AROUND_BYTES);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(fd_send(pair[0], memory + 5, sizeof(part), 0), sizeof(part));
	assert_int_equal(read(pair[1], part, sizeof(part)), sizeof(part));
	assert_memory_equal(part, memory + 5, sizeof(part));
	kernel.begin = again;
	kernel.end = again + n;
	assert_int_equal(fd_pread_all(fd, again + 1, n - 1, 3, "file", &err), 0);
	assert_memory_equal(again + 1, memory + 1, n - 1);
	assert_int_equal(fd_pread(fd, again, n, n + 1), 1); /* a short file */
	assert_int_equal(again[0], memory[n - 1]);
	kernel.refuses_all = true; /* the control: other memory does not help either */
	assert_true(fd_pwrite_all(fd, memory, n, 0, "file", &err) < 0 && err.sys == EFAULT);
	assert_true(fd_pread_all(fd, again, n, 0, "file", &err) < 0 && err.sys == EFAULT);
	assert_true(fd_send(pair[0], memory, n, 0) < 0 && errno == EFAULT);
	memset(&kernel, 0, sizeof(kernel));
	close(pair[0]);
	close(pair[1]);
}

static int
refuse_piece(void *arg, const char *what, struct pawl_error *err)
{
	(void)what;
	(void)err;
	return ++*(int *)arg > 2 ? PAWL_ECANCELLED : 0;
}

static void
test_files_are_copied_up_to_a_length_and_a_check(void **state)
{
	const struct bed *bed = *state;
	const size_t nbytes = 2 * FD_AROUND_BYTES + 5;
	PAWL_FD int from = openat(bed->dir, "from", O_RDWR | O_CREAT, 0600);
	PAWL_FD int to = openat(bed->dir, "to", O_RDWR | O_CREAT, 0600);
	char end[4] = "";
	struct stat st;
	int n = 0;

	assert_int_equal(fd_pwrite_all(from, "end!", 4, nbytes - 4, "from", NULL), 0);
	assert_int_equal(fd_copy(from, to, 3, "from", NULL, NULL, NULL), 0);
	assert_true(fstat(to, &st) == 0 && st.st_size == 3);
	assert_int_equal(fd_copy(from, to, UINT64_MAX, "from", NULL, NULL, NULL), 0);
	assert_true(fstat(to, &st) == 0 && (size_t)st.st_size == nbytes);
	assert_int_equal(fd_pread_all(to, end, 4, nbytes - 4, "to", NULL), 0);
	assert_memory_equal(end, "end!", 4);
	assert_int_equal(fd_copy(from, to, nbytes, "from", refuse_piece, &n, NULL), PAWL_ECANCELLED);
	assert_int_equal(n, 3);
}

static void
test_a_link_is_followed_to_the_file_or_to_nothing(void **state)
{
	struct bed *bed = *state;
	PAWL_FREE char *link = mem_printf("%s/link", bed->path);
	PAWL_FREE char *real = NULL;
	struct stat st;
	struct pawl_error err = {0};

	assert_int_equal(symlink("to", link), 0);
	assert_int_equal(fd_follow(link, &real, &st, &err), PAWL_ENOTFOUND);
	assert_null(real);
	assert_int_equal(mkdirat(bed->dir, "to", 0700), 0);
	assert_int_equal(fd_follow(link, &real, &st, &err), 0);
	assert_string_equal(strrchr(real, '/'), "/to");
	assert_true(S_ISDIR(st.st_mode));
	mem_free(steal(&real));
	assert_int_equal(unlink(link), 0);
	assert_int_equal(symlink("link", link), 0); /* to itself */
	assert_true(fd_follow(link, &real, &st, &err) < 0);
	assert_non_null(strstr(err.message, link));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_written_bytes_are_read_back),
		TEST(test_P17_a_short_file_is_corrupt),
		TEST(test_P5_failures_of_write_sync_and_close_are_errors),
		TEST(test_P17_open_does_not_follow_links),
		TEST(test_folders_are_made_with_their_parents),
		TEST(test_a_file_in_the_way_of_a_folder_is_an_error),
		TEST(test_folders_may_be_reached_through_a_link),
		TEST(test_P16_whole_files_are_read_up_to_a_limit),
		TEST(test_P16_a_pipe_or_folder_is_not_read),
		TEST(test_P17_trees_are_removed_without_following_links),
		TEST(test_removing_what_is_not_there_succeeds),
		TEST(test_P16_endless_nesting_is_refused),
		TEST(test_files_are_copied_up_to_a_length_and_a_check),
		TEST(test_a_link_is_followed_to_the_file_or_to_nothing),
		TEST(test_memory_that_the_kernel_cannot_use_is_gone_around),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
