/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor: finds the abilities of the file system of a run by trials, not by its name.
 * Everything is tried in one private folder below the root, which is removed afterwards. A root
 * that cannot be written gets only the rows that need no writing. Each row is "yes", or "no" with
 * the system's reason.
 */
#include "keep/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/uio.h>
#include <sys/vfs.h>
#endif

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/hidden.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/sum.h"
#include "base/text.h"
#include "run/lease.h"

#define BLOCK 4096

void
pawl_rows_free(struct pawl_rows *rows)
{
	if (!rows)
		return;
	bump_clear(&rows->memory);
	mem_free(rows);
}

size_t
pawl_rows_count(const struct pawl_rows *rows)
{
	return rows->n;
}

const char *
pawl_rows_key(const struct pawl_rows *rows, size_t i)
{
	return i < rows->n ? rows->row[i].key : NULL;
}

const char *
pawl_rows_value(const struct pawl_rows *rows, size_t i)
{
	return i < rows->n ? rows->row[i].value : NULL;
}

PAWL_DEFINE_CLEAN(struct pawl_rows, pawl_rows_free);

void
doctor_state(struct pawl_rows *rows, const char *key, char *value)
{
	if (!value || rows->n == DOCTOR_MAX_ROWS)
		rows->failed = true;
	else
		rows->row[rows->n++] = (__typeof__(rows->row[0])){key, value};
}

/* Adds a row with yes or no; a no has a reason. */
static void
add_answer(struct pawl_rows *rows, const char *key, int sys)
{
	char reason[160] = "";

	if (sys) {
		struct pawl_error err = {0};

		err_sys(&err, sys, "no");
		text_copy(reason, sizeof(reason), err.message);
	}
	doctor_state(rows, key, bump_printf(&rows->memory, "%s", sys ? reason : "yes"));
}

/* ----------------------------------------------------------------- reading */

#ifdef __linux__

static const char *
type_name(uint32_t magic)
{
	static const struct {
		uint32_t magic;
		const char *name;
	} types[] = {
		{0xef53, "ext2/ext3/ext4"}, {0x58465342, "xfs"},       {0x9123683e, "btrfs"},    {0x01021994, "tmpfs"},
		{0x858458f6, "ramfs"},      {0x794c7630, "overlayfs"}, {0x6969, "nfs"},          {0xfe534d42, "smb2"},
		{0xff534d42, "cifs"},       {0x65735546, "fuse"},      {0x2fc12fc1, "zfs"},      {0x0bd00bd0, "lustre"},
		{0x47504653, "gpfs"},       {0x19830326, "beegfs"},    {0x00c36400, "ceph"},     {0xf2f52010, "f2fs"},
		{0x01021997, "9p"},         {0xf15f, "ecryptfs"},      {0xca451a4e, "bcachefs"}, {0x5346414f, "afs"},
		{0x73717368, "squashfs"},   {0xe0f5e1e2, "erofs"},     {0x9660, "iso9660"},      {0x4d44, "vfat"},
		{0x2011bab0, "exfat"},      {0x7366746e, "ntfs"},      {0x00c0ffee, "hostfs"},   {0x01161970, "gfs2"},
		{0x7461636f, "ocfs2"},
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (types[i].magic == magic)
			return types[i].name;
	}
	return "unknown";
}

static void
describe_type(struct pawl_rows *rows, int root_fd)
{
	struct statfs fs;

	if (fstatfs(root_fd, &fs) == 0)
		doctor_state(rows, "file system",
		             bump_printf(&rows->memory, "%s (0x%08x)", type_name((uint32_t)fs.f_type),
		                         (unsigned)(uint32_t)fs.f_type));
}

#else

static void
describe_type(struct pawl_rows *rows, int root_fd)
{
	(void)rows, (void)root_fd;
}

#endif

static void
describe_space(struct pawl_rows *rows, int root_fd)
{
	struct statvfs fs;
	char free_text[32], all_text[32];

	if (fstatvfs(root_fd, &fs) < 0)
		return;
	text_bytes((double)fs.f_bavail * (double)fs.f_frsize, free_text);
	text_bytes((double)fs.f_blocks * (double)fs.f_frsize, all_text);
	doctor_state(rows, "free space", bump_printf(&rows->memory, "%s of %s", free_text, all_text));
	if (fs.f_files)
		doctor_state(rows, "free inodes",
		             bump_printf(&rows->memory, "%llu of %llu", (unsigned long long)fs.f_favail,
		                         (unsigned long long)fs.f_files));
	doctor_state(rows, "longest file name", bump_printf(&rows->memory, "%lu bytes", (unsigned long)fs.f_namemax));
}

static void
describe_lease(struct pawl_rows *rows, struct store *store)
{
	struct clock_process holder = {0};
	int64_t renewed_ns = 0;
	int rc = lease_read(store, &holder, &renewed_ns, NULL);

	if (rc == PAWL_ENOTFOUND) {
		doctor_state(rows, "lease", bump_printf(&rows->memory, "free"));
	} else if (rc < 0) {
		doctor_state(rows, "lease", bump_printf(&rows->memory, "unreadable (%s)", pawl_code_name(rc)));
	} else {
		int alive = clock_seen_process_alive(&holder, renewed_ns);

		doctor_state(rows, "lease",
		             bump_printf(&rows->memory, "held by process %lld on host '%s' (%s), renewed %.1f s ago",
		                         (long long)holder.pid, holder.host,
		                         alive == 1   ? "alive"
		                         : alive == 0 ? "dead"
		                                      : "cannot be asked from here",
		                         (double)(clock_unix_ns() - renewed_ns) / 1e9));
	}
}

/* ------------------------------------------------------------------ trying */

/* 0, or the errno of the failure. */
static int
errno_of(int rc)
{
	return rc < 0 ? errno : 0;
}

static int
make_file(int dir_fd, const char *name, int flags)
{
	return openat(dir_fd, name, O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
}

/* The second exclusive create must fail. */
static int
try_exclusive(int dir_fd)
{
	PAWL_FD int first = make_file(dir_fd, "exclusive", O_EXCL);
	if (first < 0)
		return errno;
	PAWL_FD int second = make_file(dir_fd, "exclusive", O_EXCL);
	return second >= 0 ? EEXIST : errno == EEXIST ? 0 : errno;
}

/* Moving a folder onto another one must fail. Moving it to a free name must succeed. */
static int
try_rename_new(int dir_fd)
{
	if (mkdirat(dir_fd, "from", 0700) < 0 || mkdirat(dir_fd, "to", 0700) < 0)
		return errno;
#ifdef __linux__
	if (renameat2(dir_fd, "from", dir_fd, "to", RENAME_NOREPLACE) == 0)
		return EEXIST;
	if (errno != EEXIST)
		return errno;
	return errno_of(renameat2(dir_fd, "from", dir_fd, "new", RENAME_NOREPLACE));
#else
	const int sys = hidden_rename_new(dir_fd, "from", dir_fd, "to");

	if (sys != EEXIST)
		return sys == 0 ? EEXIST : sys;
	return hidden_rename_new(dir_fd, "from", dir_fd, "new");
#endif
}

static int
try_rename(int dir_fd)
{
	if (mkdirat(dir_fd, "old", 0700) < 0)
		return errno;
	return errno_of(renameat(dir_fd, "old", dir_fd, "renamed"));
}

static int
try_fallocate(int dir_fd)
{
#ifdef __linux__
	PAWL_FD int fd = make_file(dir_fd, "fallocate", 0);
	return fd < 0 ? errno : errno_of(fallocate(fd, 0, 0, 1 << 20));
#else
	(void)dir_fd;
	return ENOTSUP;
#endif
}

/* Reads only pages that are in memory. The error for a missing page is a valid answer, too. */
static int
try_nowait(int file_fd)
{
#ifdef __linux__
	char bytes[16];
	struct iovec part = {bytes, sizeof(bytes)};

	return preadv2(file_fd, &part, 1, 0, RWF_NOWAIT) >= 0 || errno == EAGAIN ? 0 : errno;
#else
	(void)file_fd;
	return ENOTSUP;
#endif
}

#ifdef O_DIRECT

/* The smallest of these alignments at which a direct write works; 0 if none does. */
static unsigned
find_align(int fd, char *block, bool of_memory)
{
	static const unsigned aligns[] = {4, 64, 512, 1024, 2048, 4096};

	for (size_t i = 0; i < sizeof(aligns) / sizeof(aligns[0]); i++) {
		unsigned align = aligns[i];
		ssize_t n = of_memory ? pwrite(fd, block + align, BLOCK, 0) : pwrite(fd, block, align, (off_t)align);

		if (n == (of_memory ? (ssize_t)BLOCK : (ssize_t)align))
			return align;
	}
	return 0;
}

static void
describe_direct(struct pawl_rows *rows, int dir_fd)
{
	PAWL_FREE char *memory = mem_zalloc(4, BLOCK);
	PAWL_FD int fd = make_file(dir_fd, "direct", O_DIRECT);

	if (fd < 0) {
		add_answer(rows, "direct I/O", errno);
		return;
	}
	if (!memory) {
		rows->failed = true;
		return;
	}
	char *block = memory + (BLOCK - (uintptr_t)memory % BLOCK) % BLOCK;
	if (pwrite(fd, block, BLOCK, 0) != BLOCK) {
		add_answer(rows, "direct I/O", errno ? errno : EIO);
		return;
	}
	unsigned offset_align = find_align(fd, block, false), memory_align = find_align(fd, block, true);
	doctor_state(rows, "direct I/O",
	             bump_printf(&rows->memory, "yes, offsets in units of %u, memory of %u bytes", offset_align,
	                         memory_align));
}

#else

static void
describe_direct(struct pawl_rows *rows, int dir_fd)
{
	(void)dir_fd;
	add_answer(rows, "direct I/O", ENOTSUP);
}

#endif

/* Compares the time of a file that was just written with this host's clock. The holds of other
 * hosts are judged by that time. */
static void
describe_skew(struct pawl_rows *rows, int file_fd)
{
	struct stat st;
	struct timespec times[2];
	int64_t before_ns = clock_unix_ns();

	if (pwrite(file_fd, "pawl", 4, 0) != 4 || fstat(file_fd, &st) < 0)
		return;
	int64_t middle_ns = before_ns + (clock_unix_ns() - before_ns) / 2;
	os_times(&st, times);
	int64_t mtime_ns = (int64_t)times[1].tv_sec * 1000000000 + times[1].tv_nsec;
	doctor_state(rows, "clock skew",
	             bump_printf(&rows->memory, "%+.2f s (time of a new file against this host)",
	                         (double)(mtime_ns - middle_ns) / 1e9));
}

static void
try_all(struct pawl_rows *rows, int dir_fd)
{
	PAWL_FD int file_fd = make_file(dir_fd, "file", O_EXCL);

	if (file_fd < 0) {
		add_answer(rows, "new files", errno);
		return;
	}
	describe_skew(rows, file_fd);
	add_answer(rows, "fsync of files", errno_of(os_sync(file_fd)));
	add_answer(rows, "fsync of folders", errno_of(os_sync(dir_fd)));
	describe_direct(rows, dir_fd);
	add_answer(rows, "fallocate", try_fallocate(dir_fd));
	add_answer(rows, "reads without waiting", try_nowait(file_fd));
	add_answer(rows, "hard links", errno_of(linkat(dir_fd, "file", dir_fd, "link", 0)));
	add_answer(rows, "symbolic links", errno_of(symlinkat("file", dir_fd, "symlink")));
	add_answer(rows, "exclusive create", try_exclusive(dir_fd));
	add_answer(rows, "rename of folders", try_rename(dir_fd));
	add_answer(rows, "exclusive rename of folders", try_rename_new(dir_fd));
}

static int
try_in_folder(struct pawl_rows *rows, int root_fd, struct pawl_error *err)
{
	char name[HIDDEN_NAME_BYTES];

	TRY(hidden_name("doctor", HIDDEN_TMP, name, err));
	int sys = errno_of(mkdirat(root_fd, name, 0700));
	add_answer(rows, "writable", sys);
	if (sys)
		return 0;
	PAWL_FD int dir_fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir_fd >= 0)
		try_all(rows, dir_fd);
	else
		rows->failed = true;
	return fd_remove_tree(root_fd, name, err);
}

/* ------------------------------------------------------------------- faces */

struct open_store {
	struct store *store;
};

static void
close_store(struct open_store *o)
{
	store_close(o->store);
}

/* A path is opened for reading, since opening it for writing would create the folder. Another store
 * is opened for writing, which tests what it can do; if that is refused, for reading. */
static int
open_root(const char *root, struct store **ret, struct pawl_error *err)
{
	struct pawl_error why = {0};

	if (!text_is_url(root))
		return store_open(root, false, false, ret, err);
	int rc = store_open(root, true, false, ret, &why);

	if (rc < 0 && store_open(root, false, false, ret, NULL) == 0)
		return 0;
	return err_give(err, rc, &why);
}

static int
examine_root(struct pawl_rows *rows, const char *root, struct pawl_error *err)
{
	PAWL_CLEAN(close_store) struct open_store open_store = {0};
	struct store_caps caps;

	TRY(open_root(root, &open_store.store, err));
	store_get_caps(open_store.store, &caps);
	doctor_state(rows, "root", bump_printf(&rows->memory, "%s", open_store.store->root));
	doctor_state(rows, "store", bump_printf(&rows->memory, "%s", open_store.store->name));
	doctor_state(rows, "sums", bump_printf(&rows->memory, "XXH3-128, %s", sum_library()));
	if (!caps.local) {
		describe_lease(rows, open_store.store);
		return doctor_try_store(rows, open_store.store, err);
	}
	PAWL_FD int root_fd = open(open_store.store->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root_fd < 0)
		return err_sys(err, errno, "%s: open", open_store.store->root);
	describe_type(rows, root_fd);
	describe_space(rows, root_fd);
	describe_lease(rows, open_store.store);
	return try_in_folder(rows, root_fd, err);
}

static int
examine_all(const char *root, struct pawl_rows **ret, struct pawl_error *err)
{
	if (!root || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "doctor: expected a root and a pointer that receives the rows, found NULL");
	PAWL_CLEAN(pawl_rows_free_clean) struct pawl_rows *rows = mem_zalloc(1, sizeof(*rows));
	if (!rows)
		return err_nomem(err, "doctor");
	TRY(examine_root(rows, root, err));
	if (!doctor_try_devices(rows, PAWL_DEVICE_CUDA))
		doctor_try_devices(rows, PAWL_DEVICE_HIP);
	if (rows->failed)
		return err_nomem(err, "doctor");
	*ret = steal(&rows);
	return 0;
}

int
pawl_doctor(const char *root, struct pawl_rows **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, examine_all(root, ret, &own), &own);
}
