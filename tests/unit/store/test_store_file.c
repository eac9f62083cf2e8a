/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file engine beyond the common suite: modes, links, pipes, recycling, full disks, and system
 * calls that fail or whose outcome is unknown. Those calls are this program's own (below) and can
 * be made to fail.
 */
#include "helpers/store_bed.h"

#include <errno.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/text.h"
#include "store/file/store_file.h"

#define PIECE 65536u

/* ------------------------------------------------- system calls that fail */

enum call { CALL_FSYNC, CALL_CLOSE, CALL_RENAME, CALL_RENAME_NEW, CALL_LINK, CALL_SYMLINK, CALL_RESERVE, CALL_DIRECT };

static struct {
	enum call call;
	int sys;    /* errno to report, 0 = never */
	int skip;   /* so many go well first */
	bool done;  /* the call does its work before it reports */
	int broken; /* >= 0: only this many fail */
} plan;

static void
break_call(enum call call, int sys, int skip, bool done, int times)
{
	plan.call = call;
	plan.sys = sys;
	plan.skip = skip;
	plan.done = done;
	plan.broken = times;
}

static void
mend(void)
{
	plan.sys = 0;
}

static bool
breaks(enum call call)
{
	if (plan.sys == 0 || plan.call != call)
		return false;
	if (plan.skip > 0) {
		plan.skip--;
		return false;
	}
	return plan.broken < 0 || plan.broken-- > 0;
}

/* The real call, unless it is to fail without having done anything. */
#define BREAKABLE(call, real)                                  \
	do {                                                   \
		bool broken_ = breaks(call);                   \
		long rc_ = broken_ && !plan.done ? 0 : (real); \
		if (broken_)                                   \
			errno = plan.sys;                      \
		return broken_ ? -1 : (int)rc_;                \
	} while (0)

int
fsync(int fd)
{
	BREAKABLE(CALL_FSYNC, syscall(SYS_fsync, fd));
}

int
close(int fd)
{
	/* The descriptor is gone even if an error is reported. */
	long rc = syscall(SYS_close, fd);
	BREAKABLE(CALL_CLOSE, rc);
}

int
renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	BREAKABLE(CALL_RENAME, syscall(SYS_renameat2, from_fd, from, to_fd, to, 0));
}

int
renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
	BREAKABLE(CALL_RENAME_NEW, syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

int
linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
	BREAKABLE(CALL_LINK, syscall(SYS_linkat, from_fd, from, to_fd, to, flags));
}

int
symlinkat(const char *target, int fd, const char *name)
{
	BREAKABLE(CALL_SYMLINK, syscall(SYS_symlinkat, target, fd, name));
}

int
fallocate(int fd, int mode, off_t offset, off_t len)
{
	BREAKABLE(CALL_RESERVE, syscall(SYS_fallocate, fd, mode, offset, len));
}

static bool
is_direct(int fd)
{
	return (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

ssize_t
pwrite(int fd, const void *ptr, size_t len, off_t offset)
{
	if (is_direct(fd) && breaks(CALL_DIRECT)) {
		errno = plan.sys;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, ptr, len, offset);
}

ssize_t
pread(int fd, void *ptr, size_t len, off_t offset)
{
	if (is_direct(fd) && breaks(CALL_DIRECT)) {
		errno = plan.sys;
		return -1;
	}
	return syscall(SYS_pread64, fd, ptr, len, offset);
}

/* ------------------------------------------------------------------ helpers */

static const char *
path_of(const struct bed *bed, const char *key)
{
	static char path[300];
	snprintf(path, sizeof path, "%s/%s", bed->dir, key);
	return path;
}

static struct stat
stat_of(const struct bed *bed, const char *key)
{
	struct stat st;
	assert_int_equal(lstat(path_of(bed, key), &st), 0);
	return st;
}

/* Where the first block of a file is on the disk; 0 where the filesystem does not tell. */
static uint64_t
first_block(const struct bed *bed, const char *key)
{
	_Alignas(struct fiemap) unsigned char memory[sizeof(struct fiemap) + sizeof(struct fiemap_extent)] = {0};
	struct fiemap *map = (struct fiemap *)(void *)memory;
	map->fm_length = UINT64_MAX;
	map->fm_flags = FIEMAP_FLAG_SYNC;
	map->fm_extent_count = 1;
	PAWL_FD int fd = open(path_of(bed, key), O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return ioctl(fd, FS_IOC_FIEMAP, map) == 0 && map->fm_mapped_extents > 0 ? map->fm_extents[0].fe_physical : 0;
}

static int
setup(void **state)
{
	struct bed *bed = mem_zalloc(1, sizeof *bed);
	assert_non_null(bed);
	bed->kind = BED_DISK;
	bed_open(bed);
	*state = bed;
	return 0;
}

static int
teardown(void **state)
{
	mend();
	bed_close(*state);
	mem_free(*state);
	return 0;
}

/* -------------------------------------------------------- modes and places */

static void
test_umask_is_respected(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(PIECE, 0, 1);
	mode_t before = umask(027);
	put_text(bed, "d/put", "x");
	write_bytes(bed, "d/e/pack", &b, PIECE, NULL);
	OK(bed, store_append(bed->store, "events", "x", 1, &bed->err));
	umask(before);
	assert_int_equal(stat_of(bed, "d/put").st_mode & 07777, 0640);
	assert_int_equal(stat_of(bed, "d/e/pack").st_mode & 07777, 0640);
	assert_int_equal(stat_of(bed, "events").st_mode & 07777, 0640);
	assert_int_equal(stat_of(bed, "d").st_mode & 07777, 0750);
	assert_int_equal(stat_of(bed, "d/e").st_mode & 07777, 0750);
	free(b.memory);
}

static void
test_P17_a_link_as_last_component_is_not_followed(void **state)
{
	struct bed *bed = *state;
	struct store *s = bed->store;
	struct store_reader *r = NULL;
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = 1};
	struct store_entry entry;
	put_text(bed, "victim", "untouched");
	put_text(bed, "folder/x", "untouched");
	OK(bed, store_pointer(s, "link", "victim", &bed->err));
	OK(bed, store_pointer(s, "to-folder", "folder", &bed->err));

	FAILS(bed, store_open_reader(s, "link", &r, NULL, &bed->err), PAWL_EUNSUPPORTED, "link: is a symbolic link");
	FAILS(bed, store_append(s, "link", "x", 1, &bed->err), PAWL_EUNSUPPORTED, "link: is a symbolic link");
	FAILS(bed, store_link(s, "link", "second", &bed->err), PAWL_EUNSUPPORTED, "link");
	FAILS(bed, store_create(s, "link", &opts, &f, &bed->err), PAWL_EEXISTS, "link");
	FAILS(bed, store_list(s, "to-folder", names_add, NULL, &bed->err), PAWL_EUNSUPPORTED, "to-folder");
	FAILS(bed, store_sync(s, "to-folder", &bed->err), PAWL_EUNSUPPORTED, "to-folder");
	FAILS(bed, store_remove_folder(s, "to-folder", &bed->err), PAWL_EUSAGE, "to-folder");
	FAILS(bed, store_publish(s, "to-folder", "c", &bed->err), PAWL_ENOTFOUND, "to-folder");
	FAILS(bed, store_publish(s, "folder", "link", &bed->err), PAWL_EEXISTS, "link");
	OK(bed, store_stat(s, "link", &entry, &bed->err));
	assert_true(entry.is_link && !entry.is_folder);

	put_text(bed, "link", "now a file");
	assert_text(bed, "link", "now a file");
	OK(bed, store_remove(s, "to-folder", &bed->err));
	assert_text(bed, "victim", "untouched");
	assert_text(bed, "folder/x", "untouched");
}

static void
test_P17_a_link_on_the_way_is_not_followed(void **state)
{
	struct bed *bed = *state;
	struct store *s = bed->store;
	struct store_reader *r = NULL;
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = 1};
	struct store_entry entry;
	put_text(bed, "folder/x", "untouched");
	OK(bed, store_pointer(s, "way", "folder", &bed->err));
	const char *said = "way is a symbolic link";
	FAILS(bed, store_put_bytes(s, "way/x", "y", 1, 0, &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_create(s, "way/y", &opts, &f, &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_open_reader(s, "way/x", &r, NULL, &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_stat(s, "way/x", &entry, &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_remove(s, "way/x", &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_remove_folder(s, "way/x", &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_link(s, "folder/x", "way/y", &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_move(s, "folder/x", "way/y", &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_publish(s, "folder", "way/y", &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_pointer(s, "way/y", "x", &bed->err), PAWL_EUNSUPPORTED, said);
	FAILS(bed, store_append(s, "way/x", "y", 1, &bed->err), PAWL_EUNSUPPORTED, said);
	assert_names(bed, "folder", "x");
	assert_text(bed, "folder/x", "untouched");
}

static int
ignore_entry(void *arg, const struct store_entry *entry)
{
	(void)arg, (void)entry;
	return 0;
}

static void
test_P16_a_pipe_in_place_of_an_object_is_not_waited_for(void **state)
{
	struct bed *bed = *state;
	struct store_reader *r = NULL;
	struct bytes b = bytes_new(PIECE, 0, 2);
	assert_int_equal(mkfifo(path_of(bed, "pipe"), 0600), 0);
	FAILS(bed, store_open_reader(bed->store, "pipe", &r, NULL, &bed->err), PAWL_EUNSUPPORTED, "pipe");
	assert_true(store_append(bed->store, "pipe", "x", 1, &bed->err) < 0);
	write_bytes(bed, "pack", &b, PIECE, "pipe");
	assert_bytes(bed, "pack", &b);
	free(b.memory);
}

static void
test_P16_a_listing_of_all_depths_passes_over_strange_names_and_ends_in_a_deep_tree(void **state)
{
	struct bed *bed = *state;
	PAWL_CLEAN(buf_clear) struct buf deep = {0};
	put_text(bed, "d/sub/x", "1");
	assert_int_equal(mkdir(path_of(bed, "d/a\tb"), 0700), 0);
	assert_int_equal(mkdir(path_of(bed, "d/a\tb/in"), 0700), 0);
	assert_listed(bed, store_list_all, "d", "sub/x");
	buf_puts(&deep, "d");
	for (int i = 0; i < 70; i++)
		buf_puts(&deep, "/f");
	put_text(bed, buf_str(&deep), "1");
	assert_listed(bed, store_list_all, "d/sub", "x");
	FAILS(bed, store_list_all(bed->store, "d", ignore_entry, NULL, &bed->err), PAWL_ELIMIT,
	      "f: folders nest deeper than 64");
	assert_int_equal(unlink(path_of(bed, buf_str(&deep))), 0); /* the teardown has a limit, too */
	for (char *end; (end = strrchr(deep.ptr, '/')) && strchr(deep.ptr, '/') != end;) {
		*end = '\0';
		assert_int_equal(rmdir(path_of(bed, deep.ptr)), 0);
	}
}

static void
test_opening_leaves_nothing_behind(void **state)
{
	struct bed *bed = *state;
	struct store *again = NULL;
	assert_names(bed, "", "");
	struct stat before = stat_of(bed, ".");
	OK(bed, store_open(bed->dir, false, false, &again, &bed->err));
	store_close(again);
	struct stat after = stat_of(bed, ".");
	assert_int_equal(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
	assert_int_equal(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
}

static void
test_what_a_crash_leaves_of_a_put_has_a_key(void **state)
{
	struct bed *bed = *state;
	char key[129], memory[4096] __attribute__((aligned(8)));
	memset(key, 'k', 128);
	key[128] = '\0';
	PAWL_FD int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	assert_true(watch >= 0 && inotify_add_watch(watch, bed->dir, IN_CREATE) >= 0);
	put_text(bed, key, "x");
	OK(bed, store_pointer(bed->store, key, "x", &bed->err));
	ssize_t len = read(watch, memory, sizeof memory);
	int seen = 0;
	for (ssize_t at = 0; at < len;) {
		const struct inotify_event *event = (const struct inotify_event *)(memory + at);
		assert_true(event->name[0] == '.' && text_is_key(event->name));
		at += (ssize_t)(sizeof *event + event->len);
		seen++;
	}
	assert_int_equal(seen, 2);
	snprintf(memory, sizeof memory, "%s@", key);
	assert_names(bed, "", memory);
}

/* ------------------------------------------------------------- direct I/O */

static void
check_cache_is_bypassed(struct bed *bed, const char *key, size_t misalign)
{
	struct store_caps caps;
	struct store_reader *r = NULL;
	struct bytes b = bytes_new(40 * PIECE + 100, misalign, 3), got = bytes_new(b.len, 0, 4);
	store_get_caps(bed->store, &caps);
	write_bytes(bed, key, &b, 20 * PIECE, NULL);
	OK(bed, store_open_reader(bed->store, key, &r, NULL, &bed->err));
	assert_true(store_is_cached(bed->store, r, 0, 4096) != caps.direct_io);
	assert_true(store_is_cached(bed->store, r, 0, b.len) != caps.direct_io);
	/* Asking has fetched nothing, and reading goes past the cache as well. */
	OK(bed, store_read(bed->store, r, 0, got.ptr, 40 * PIECE, &bed->err));
	assert_true(store_is_cached(bed->store, r, 0, 4096) != caps.direct_io);
	store_close_reader(bed->store, r);
	assert_bytes(bed, key, &b);
	free(got.memory);
	free(b.memory);
}

static void
test_direct_io_bypasses_the_cache(void **state)
{
	check_cache_is_bypassed(*state, "aligned", 0);
	check_cache_is_bypassed(*state, "unaligned", 1);
}

static void
test_a_refused_alignment_falls_back_to_the_cache(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(4 * PIECE + 100, 0, 5);
	break_call(CALL_DIRECT, EINVAL, 1, false, -1);
	write_bytes(bed, "pack", &b, PIECE, NULL);
	plan.skip = 0;
	assert_bytes(bed, "pack", &b);
	mend();
	assert_bytes(bed, "pack", &b);
	free(b.memory);
}

static void
test_P5_an_error_of_a_direct_write_is_final(void **state)
{
	struct bed *bed = *state;
	struct store_caps caps;
	struct bytes b = bytes_new(4 * PIECE, 0, 6);
	store_get_caps(bed->store, &caps);
	if (caps.direct_io) {
		struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
		break_call(CALL_DIRECT, EIO, 0, false, 1);
		FAILS(bed, store_write(bed->store, f, 0, b.ptr, PIECE, &bed->err), PAWL_EIO, "pack");
		assert_int_equal(bed->err.sys, EIO);
		FAILS(bed, store_finish(bed->store, f, &bed->err), PAWL_EIO, "pack");
	}
	assert_names(bed, "", "");
	free(b.memory);
}

static void
check_cut_object(struct bed *bed, const char *dir, bool buffered)
{
	struct store *s = NULL;
	struct store_reader *r = NULL;
	struct bytes b = bytes_new(8 * PIECE, 0, 7);
	OK(bed, store_open(dir, true, buffered, &s, &bed->err));
	OK(bed, store_put_bytes(s, "pack", b.ptr, b.len, STORE_DURABLE, &bed->err));
	OK(bed, store_open_reader(s, "pack", &r, NULL, &bed->err));
	assert_int_equal(truncate(path_of(bed, "pack"), 3 * PIECE + 100), 0);
	FAILS(bed, store_read(s, r, 0, b.ptr, b.len, &bed->err), PAWL_ECORRUPT, "pack: ends");
	FAILS(bed, store_read(s, r, 4 * PIECE, b.ptr, 4 * PIECE, &bed->err), PAWL_ECORRUPT, "pack: ends");
	FAILS(bed, store_read(s, r, 3 * PIECE + 99, b.ptr, 2, &bed->err), PAWL_ECORRUPT, "pack: ends");
	OK(bed, store_read(s, r, 0, b.ptr, 3 * PIECE + 100, &bed->err));
	assert_false(store_is_cached(s, r, 0, b.len));
	store_close_reader(s, r);
	store_close(s);
	free(b.memory);
}

static void
test_P1_a_file_cut_while_it_is_read_is_corrupt(void **state)
{
	struct bed *bed = *state;
	check_cut_object(bed, bed->dir, false);
	check_cut_object(bed, bed->dir, true);
}

/* --------------------------------------------------------------- recycling */

static void
test_recycling_keeps_the_blocks(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(16 * PIECE + 5, 0, 8);
	write_bytes(bed, ".recycle/old", &b, PIECE, NULL);
	struct stat old = stat_of(bed, ".recycle/old");
	uint64_t block = first_block(bed, ".recycle/old");

	struct bytes next = bytes_new(b.len, 0, 9);
	write_bytes(bed, "c/pack", &next, PIECE, ".recycle/old");
	assert_bytes(bed, "c/pack", &next);
	assert_int_equal(stat_of(bed, "c/pack").st_ino, old.st_ino);
	assert_int_equal(first_block(bed, "c/pack"), block);
	assert_names(bed, ".recycle", "");
	free(next.memory);
	free(b.memory);
}

/* A process that has read-only access to a file, by a descriptor or only by a map, and reads it on
 * request. */
struct looker {
	pid_t pid;
	int ask, hear;
};

static void
looker_run(const char *path, bool maps, const struct bytes *b, int ask, int hear)
{
	char c = 0, *seen = malloc(b->len);
	signal(SIGBUS, SIG_DFL); /* a sanitizer catches it */
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *map = maps ? mmap(NULL, b->len, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	if (fd < 0 || map == MAP_FAILED || (maps && close(fd) < 0) || write(hear, &c, 1) != 1 || read(ask, &c, 1) != 1)
		_exit(9);
	if (maps)
		memcpy(seen, map, b->len);
	else if (pread(fd, seen, b->len, 0) != (ssize_t)b->len)
		_exit(2);
	_exit(memcmp(seen, b->ptr, b->len) != 0);
}

static struct looker
looker_start(struct bed *bed, const char *key, bool maps, const struct bytes *b)
{
	struct looker l;
	int ask[2], hear[2];
	char c;
	assert_true(pipe(ask) == 0 && pipe(hear) == 0);
	l.pid = fork();
	assert_true(l.pid >= 0);
	if (l.pid == 0) {
		close(ask[1]);
		close(hear[0]);
		looker_run(path_of(bed, key), maps, b, ask[0], hear[1]);
	}
	l.ask = ask[1];
	l.hear = hear[0];
	assert_int_equal(read(l.hear, &c, 1), 1);
	close(ask[0]);
	close(hear[1]);
	return l;
}

/* How the process ends that now reads the file: 0 = it saw the old bytes. */
static int
looker_end(struct looker *l)
{
	int status;
	assert_int_equal(write(l->ask, "", 1), 1);
	assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
	close(l->ask);
	close(l->hear);
	return status;
}

static void
test_a_file_that_a_process_has_open_or_mapped_is_never_overwritten(void **state)
{
	struct bed *bed = *state;
	static const size_t sizes[] = {4 * PIECE, PIECE, 9 * PIECE};
	for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
		struct bytes old = bytes_new(4 * PIECE, 0, 10), next = bytes_new(sizes[i / 2], 0, 11);
		write_bytes(bed, ".recycle/old", &old, PIECE, NULL);
		ino_t inode = stat_of(bed, ".recycle/old").st_ino;
		struct looker l = looker_start(bed, ".recycle/old", i % 2 == 0, &old);
		write_bytes(bed, "pack", &next, PIECE, ".recycle/old");
		assert_bytes(bed, "pack", &next);
		assert_int_not_equal(stat_of(bed, "pack").st_ino, inode);
		assert_names(bed, ".recycle", "");
		assert_int_equal(looker_end(&l), 0);
		OK(bed, store_remove(bed->store, "pack", &bed->err));
		free(next.memory);
		free(old.memory);
	}
}

/* That the process above notices a file that is cut or overwritten. */
static void
test_the_process_that_looks_notices(void **state)
{
	struct bed *bed = *state;
	struct bytes old = bytes_new(4 * PIECE, 0, 10);
	for (int i = 0; i < 4; i++) {
		write_bytes(bed, "old", &old, PIECE, NULL);
		struct looker l = looker_start(bed, "old", i % 2 == 0, &old);
		PAWL_FD int fd = open(path_of(bed, "old"), O_WRONLY | O_CLOEXEC);
		assert_true(i < 2 ? ftruncate(fd, PIECE) == 0 : pwrite(fd, "x", 1, 3 * PIECE) == 1);
		int status = looker_end(&l);
		if (i == 0)
			assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
		else
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == (i == 1 ? 2 : 1));
		OK(bed, store_remove(bed->store, "old", &bed->err));
	}
	free(old.memory);
}

static void
test_what_others_hold_is_not_recycled(void **state)
{
	struct bed *bed = *state;
	struct bytes old = bytes_new(2 * PIECE, 0, 10), b = bytes_new(2 * PIECE, 0, 11);
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = PIECE, .recycle_key = "old"};
	write_bytes(bed, "old", &old, PIECE, NULL);
	OK(bed, store_link(bed->store, "old", "kept", &bed->err));
	write_bytes(bed, "one", &b, PIECE, "old");
	assert_int_not_equal(stat_of(bed, "one").st_ino, stat_of(bed, "old").st_ino);
	assert_bytes(bed, "kept", &old);
	OK(bed, store_remove(bed->store, "kept", &bed->err));

	OK(bed, store_pointer(bed->store, "link", "old", &bed->err));
	write_bytes(bed, "two", &b, PIECE, "link");
	assert_bytes(bed, "old", &old);
	put_text(bed, "folder/x", "1");
	write_bytes(bed, "three", &b, PIECE, "folder");
	assert_text(bed, "folder/x", "1");

	FAILS(bed, store_create(bed->store, "one", &opts, &f, &bed->err), PAWL_EEXISTS, "one");
	assert_bytes(bed, "old", &old);
	free(b.memory);
	free(old.memory);
}

static void
test_an_aborted_recycled_object_is_gone(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(2 * PIECE, 0, 12);
	write_bytes(bed, "old", &b, PIECE, NULL);
	struct store_file *f = begin_bytes(bed, "new", &b, "old");
	store_abort(bed->store, f);
	assert_names(bed, "", "");
	free(b.memory);
}

/* ----------------------------------------------------- failing system calls */

static void
test_P5_a_failed_fsync_or_close_takes_the_object_with_it(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(2 * PIECE + 1, 0, 13);
	static const struct {
		enum call call;
		int sys, skip, code;
	} faults[] = {{CALL_FSYNC, EIO, 0, PAWL_EIO},
	              {CALL_FSYNC, ENOSPC, 0, PAWL_ENOSPACE},
	              {CALL_CLOSE, EIO, 0, PAWL_EIO},
	              {CALL_CLOSE, EDQUOT, 1, PAWL_ENOSPACE}};
	struct store_caps caps;
	store_get_caps(bed->store, &caps);
	for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
		struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
		OK(bed, store_write(bed->store, f, 0, b.ptr, b.len, &bed->err));
		break_call(faults[i].call, faults[i].sys, caps.direct_io ? faults[i].skip : 0, false, 1);
		FAILS(bed, store_finish(bed->store, f, &bed->err), faults[i].code, "pack");
		mend();
		assert_names(bed, "", "");
	}
	free(b.memory);
}

static void
test_P4_a_failed_put_leaves_the_old_object(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "d/a", "old");
	static const struct {
		enum call call;
		int flags;
	} faults[] = {{CALL_FSYNC, STORE_DURABLE}, {CALL_CLOSE, 0}, {CALL_RENAME, 0}};
	for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
		break_call(faults[i].call, EIO, 0, false, 1);
		FAILS(bed, store_put_bytes(bed->store, "d/a", "new", 3, faults[i].flags, &bed->err), PAWL_EIO, "d/a");
		mend();
		assert_text(bed, "d/a", "old");
		assert_names(bed, "d", "a");
	}
}

static void
test_P4_an_exclusive_put_that_is_not_durable_is_withdrawn(void **state)
{
	struct bed *bed = *state;
	const int flags = STORE_EXCLUSIVE | STORE_DURABLE;
	break_call(CALL_FSYNC, EIO, 1, false, 1); /* the file's goes well, the folder's does not */
	FAILS(bed, store_put_bytes(bed->store, "a", "new", 3, flags, &bed->err), PAWL_EIO, "a");
	mend();
	assert_names(bed, "", "");
	OK(bed, store_put_bytes(bed->store, "a", "new", 3, flags, &bed->err));
}

static void
test_P4_a_publish_that_is_not_durable_is_withdrawn(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "a/x", "1");
	for (int skip = 0; skip < 2; skip++) {
		break_call(CALL_FSYNC, EIO, skip, false, 1);
		FAILS(bed, store_publish(bed->store, "a", "b", &bed->err), PAWL_EIO, skip == 0 ? "a" : "b");
		mend();
		assert_names(bed, "", "a/");
	}
	OK(bed, store_publish(bed->store, "a", "b", &bed->err));
	assert_names(bed, "", "b/");
}

static void
test_P15_an_error_after_the_deed_is_success(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "a/x", "1");
	break_call(CALL_RENAME, ETIMEDOUT, 0, true, 1);
	put_text(bed, "put", "new");
	assert_text(bed, "put", "new");
	break_call(CALL_LINK, EEXIST, 0, true, 1);
	OK(bed, store_put_bytes(bed->store, "exclusive", "mine", 4, STORE_EXCLUSIVE, &bed->err));
	assert_text(bed, "exclusive", "mine");
	break_call(CALL_RENAME, EIO, 0, true, 1);
	OK(bed, store_move(bed->store, "put", "moved", &bed->err));
	assert_text(bed, "moved", "new");
	break_call(CALL_RENAME_NEW, EEXIST, 0, true, 1);
	OK(bed, store_publish(bed->store, "a", "b", &bed->err));
	mend();
	assert_names(bed, "", "b/ exclusive moved");
}

/* As over NFS: the link is made, the answer is lost, and the client's second try finds the link. */
static void
test_P15_an_error_of_a_link_that_was_made_is_success(void **state)
{
	struct bed *bed = *state;
	static const int errors[] = {EEXIST, ETIMEDOUT, EPERM};
	put_text(bed, "pack", "1");
	for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
		break_call(CALL_LINK, errors[i], 0, true, 1);
		OK(bed, store_link(bed->store, "pack", "link", &bed->err));
		mend();
		assert_text(bed, "link", "1");
		FAILS(bed, store_link(bed->store, "pack", "link", &bed->err), PAWL_EEXISTS, "link");
		OK(bed, store_remove(bed->store, "link", &bed->err));
	}
	break_call(CALL_LINK, ETIMEDOUT, 0, false, 1);
	assert_true(store_link(bed->store, "pack", "link", &bed->err) < 0);
	mend();
	assert_names(bed, "", "pack");
}

static void
test_publish_without_exclusive_rename_is_exclusive_still(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "a/x", "a");
	put_text(bed, "b/x", "b");
	put_text(bed, "file", "1");
	break_call(CALL_RENAME_NEW, EINVAL, 0, false, -1); /* as NFS has it */
	FAILS(bed, store_publish(bed->store, "a", "b", &bed->err), PAWL_EEXISTS, "b");
	FAILS(bed, store_publish(bed->store, "a", "file", &bed->err), PAWL_EEXISTS, "file");
	OK(bed, store_publish(bed->store, "a", "c", &bed->err));
	mend();
	assert_text(bed, "b/x", "b");
	assert_text(bed, "c/x", "a");
}

static void
test_P20_what_a_filesystem_lacks_is_found_out_and_done_without(void **state)
{
	struct bed *bed = *state;
	struct store *s = NULL;
	struct store_caps caps;
	break_call(CALL_LINK, EPERM, 0, false, -1);
	OK(bed, store_open(bed->dir, true, false, &s, &bed->err));
	store_get_caps(s, &caps);
	assert_true(!caps.link && caps.exclusive_put && caps.symlink);
	OK(bed, store_put_bytes(s, "a", "1", 1, STORE_EXCLUSIVE, &bed->err));
	FAILS(bed, store_put_bytes(s, "a", "2", 1, STORE_EXCLUSIVE, &bed->err), PAWL_EEXISTS, "a");
	FAILS(bed, store_link(s, "a", "b", &bed->err), PAWL_EUNSUPPORTED, "a: cannot be linked to b");
	store_close(s);

	break_call(CALL_SYMLINK, EPERM, 0, false, -1);
	OK(bed, store_open(bed->dir, true, false, &s, &bed->err));
	store_get_caps(s, &caps);
	assert_true(!caps.symlink && caps.link);
	OK(bed, store_pointer(s, "latest", "checkpoints/c1", &bed->err));
	OK(bed, store_pointer(s, "latest", "checkpoints/c2", &bed->err));
	assert_text(bed, "latest", "checkpoints/c2\n");
	store_close(s);

	break_call(CALL_RENAME, EXDEV, 0, false, -1);
	OK(bed, store_open(bed->dir, true, false, &s, &bed->err));
	store_get_caps(s, &caps);
	assert_false(caps.rename_folder);
	store_close(s);
	mend();
	assert_names(bed, "", "a latest");
}

static void
test_files_are_written_where_nothing_can_be_reserved(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(3 * PIECE + 7, 0, 14);
	break_call(CALL_RESERVE, EOPNOTSUPP, 0, false, -1);
	write_bytes(bed, "pack", &b, PIECE, NULL);
	write_bytes(bed, "next", &b, PIECE, "pack");
	mend();
	assert_bytes(bed, "next", &b);
	break_call(CALL_RESERVE, ENOSPC, 0, false, 1);
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = b.len};
	FAILS(bed, store_create(bed->store, "full", &opts, &f, &bed->err), PAWL_ENOSPACE,
	      "full: cannot reserve 196615");
	mend();
	assert_names(bed, "", "next");
	free(b.memory);
}

/* ---------------------------------------------------------------- full disks */

/* A private filesystem of 1 MiB and 16 names, or, without the right to mount one, a limit on the
 * size of files. */
struct small {
	bool mounted;
	struct rlimit before;
};

static struct small
small_begin(const char *dir)
{
	struct small small = {0};
	small.mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	                mount("tmpfs", dir, "tmpfs", 0, "size=1m,nr_inodes=16") == 0;
	if (!small.mounted) {
		assert_int_equal(getrlimit(RLIMIT_FSIZE, &small.before), 0);
		struct rlimit limit = {1 << 20, small.before.rlim_max};
		signal(SIGXFSZ, SIG_IGN);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	}
	return small;
}

static void
small_end(const struct small *small, const char *dir)
{
	if (small->mounted)
		assert_int_equal(umount2(dir, MNT_DETACH), 0);
	else
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &small->before), 0);
}

static void
test_P4_a_full_disk_leaves_what_was_there(void **state)
{
	struct bed *bed = *state;
	char dir[320];
	put_text(bed, "small/x", "1");
	snprintf(dir, sizeof dir, "%s", path_of(bed, "small"));
	struct small small = small_begin(dir);
	struct bed full = {.kind = BED_TMPFS};
	struct store_file *f = NULL;
	struct bytes b = bytes_new(2 << 20, 0, 15);
	const int code = small.mounted ? PAWL_ENOSPACE : PAWL_EIO;
	OK(&full, store_open(dir, false, false, &full.store, &full.err));
	put_text(&full, "old", "untouched");
	OK(&full, store_link(full.store, "old", "old2", &full.err));

	struct store_create opts = {.nbytes = b.len};
	FAILS(&full, store_create(full.store, "pack", &opts, &f, &full.err), code, "pack");
	FAILS(&full, store_put_bytes(full.store, "old", b.ptr, b.len, 0, &full.err), code, "old");
	FAILS(&full, store_put_bytes(full.store, "new", b.ptr, b.len, STORE_EXCLUSIVE, &full.err), code, "new");
	FAILS(&full, store_append(full.store, "old2", b.ptr, b.len, &full.err), PAWL_ENOSPACE, "old2: only");
	OK(&full, store_remove(full.store, "old2", &full.err));
	OK(&full, store_remove(full.store, "x", &full.err));
	assert_names(&full, "", "old");

	int rc = 0;
	for (int i = 0; small.mounted && rc == 0 && i < 100; i++) {
		char key[16];
		snprintf(key, sizeof key, "n%d", i);
		rc = store_put_bytes(full.store, key, "x", 1, 0, &full.err);
	}
	assert_int_equal(rc, small.mounted ? PAWL_ENOSPACE : 0);
	store_close(full.store);
	small_end(&small, dir);
	free(b.memory);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

static void
test_P17_any_time_of_a_file_is_a_number(void **state)
{
	(void)state;
	static const struct {
		int64_t seconds, mtime_ns;
	} rows[] = {{-1, 0},
	            {INT64_MIN, 0},
	            {0, 7},
	            {1700000000, 1700000000000000007},
	            {INT64_MAX / 1000000000 - 1, (INT64_MAX / 1000000000 - 1) * 1000000000 + 7},
	            {INT64_MAX / 1000000000, INT64_MAX},
	            {INT64_MAX, INT64_MAX}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct stat st = {.st_mtim = {.tv_sec = rows[i].seconds, .tv_nsec = 7}};
		assert_int_equal(file_sys_mtime_ns(&st), rows[i].mtime_ns);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_umask_is_respected),
		CASE(test_P17_a_link_as_last_component_is_not_followed),
		CASE(test_P17_a_link_on_the_way_is_not_followed),
		CASE(test_P16_a_pipe_in_place_of_an_object_is_not_waited_for),
		CASE(test_P16_a_listing_of_all_depths_passes_over_strange_names_and_ends_in_a_deep_tree),
		CASE(test_opening_leaves_nothing_behind),
		CASE(test_what_a_crash_leaves_of_a_put_has_a_key),
		CASE(test_direct_io_bypasses_the_cache),
		CASE(test_a_refused_alignment_falls_back_to_the_cache),
		CASE(test_P5_an_error_of_a_direct_write_is_final),
		CASE(test_P1_a_file_cut_while_it_is_read_is_corrupt),
		CASE(test_recycling_keeps_the_blocks),
		CASE(test_a_file_that_a_process_has_open_or_mapped_is_never_overwritten),
		CASE(test_the_process_that_looks_notices),
		CASE(test_what_others_hold_is_not_recycled),
		CASE(test_an_aborted_recycled_object_is_gone),
		CASE(test_P5_a_failed_fsync_or_close_takes_the_object_with_it),
		CASE(test_P4_a_failed_put_leaves_the_old_object),
		CASE(test_P4_an_exclusive_put_that_is_not_durable_is_withdrawn),
		CASE(test_P4_a_publish_that_is_not_durable_is_withdrawn),
		CASE(test_P15_an_error_after_the_deed_is_success),
		CASE(test_P15_an_error_of_a_link_that_was_made_is_success),
		CASE(test_publish_without_exclusive_rename_is_exclusive_still),
		CASE(test_P20_what_a_filesystem_lacks_is_found_out_and_done_without),
		CASE(test_files_are_written_where_nothing_can_be_reserved),
		CASE(test_P4_a_full_disk_leaves_what_was_there),
		CASE(test_P17_any_time_of_a_file_is_a_number),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
