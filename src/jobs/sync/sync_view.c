/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_view: a frozen copy of a folder, for commands and functions that copy it without knowing
 * pawl (R113, R119). Of a search's folder all get one. The training continues meanwhile: it saves,
 * and removes old checkpoints. The view has what is complete, and does not change.
 *
 * - Files of checkpoints are hard links. No bytes are copied, and a checkpoint that is removed
 *   meanwhile stays in the view.
 * - Other files are copies with their times, so that data appended later is not in them. Large ones
 *   are linked.
 * - Symbolic links of checkpoints stay as they are. Others are kept only if they lead to something
 *   in the view.
 *
 * Not in it: saves that are not committed, checkpoints that are being removed, leases, locks,
 * readers' holds, temporary files. If the file system cannot link, files of checkpoints are
 * copied, too.
 *
 * It is made next to the folder, as .NAME.<token>.sync.tmp/NAME. If the parent belongs to another
 * file system or is not writable, it is made inside the folder. A lock shows that its maker is
 * alive. The next view removes what dead makers left.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/folder.h"
#include "base/os.h"
#include "catalog/catalog.h"
#include "jobs/sync/sync.h"
#include "run/run.h"
#include "state/manifest.h"
#include "store/store.h"

#define SUFFIX ".sync.tmp"
#define TRIES 5                        /* while the journal changes under the view */
#define LINK_BYTES ((int64_t)64 << 20) /* larger files are linked wherever they are */
#define FOLDER (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
#define GONE 1 /* the entry has vanished */

struct making {
	const struct sync_limit *limit;
	bool changed; /* a journal has changed since it was copied */
	int depth;
};

/* --------------------------------------------------------------- one file */

/* Is called before each piece of a file. */
static int
check_limit(void *arg, const char *name, struct pawl_error *err)
{
	return sync_limit_check(((const struct making *)arg)->limit, name, err);
}

/* Copies as many bytes as it has now, with its mode and time. GONE: the file does not exist. */
static int
copy_file(struct making *m, int from_fd, int to_fd, const char *name, struct pawl_error *err)
{
	PAWL_FD int from = openat(from_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	if (from < 0 && errno == ENOENT)
		return GONE;
	if (from < 0 || fstat(from, &st) < 0)
		return err_sys(err, errno, "%s: open", name);
	PAWL_FD int to = fd_openat(to_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600, err);
	if (to < 0)
		return to;
	TRY(fd_copy(from, to, (uint64_t)st.st_size, name, check_limit, m, err));
	struct timespec times[2];
	os_times(&st, times);
	if (fchmod(to, st.st_mode & 0777) < 0 || futimens(to, times) < 0)
		return err_sys(err, errno, "%s: copy", name);
	return fd_close(&to, name, err);
}

static int
link_file(struct making *m, int from_fd, int to_fd, const char *name, struct pawl_error *err)
{
	if (linkat(from_fd, name, to_fd, name, 0) == 0)
		return 0;
	if (errno == ENOENT)
		return GONE;
	if (fd_can_copy_instead(errno))
		return copy_file(m, from_fd, to_fd, name, err);
	return err_sys(err, errno, "%s: link", name);
}

/* in: inside a checkpoint; its links stay as they are. Other links are pointers: only relative ones
 * into the view are kept. */
static int
copy_link(int from_fd, int to_fd, const char *name, bool in, struct pawl_error *err)
{
	char text[4096];
	struct stat st;
	const ssize_t n = readlinkat(from_fd, name, text, sizeof text - 1);
	if (n < 0)
		return errno == ENOENT ? GONE : err_sys(err, errno, "%s: read the link", name);
	text[n] = '\0';
	if (!in && (text[0] == '/' || strstr(text, "..") != NULL || fstatat(to_fd, text, &st, 0) < 0))
		return 0;
	return symlinkat(text, to_fd, name) < 0 ? err_sys(err, errno, "%s: link", name) : 0;
}

/* ----------------------------------------------------------------- folders */

static int make_folder(struct making *m, int from_fd, int to_fd, const char *name, const char *path, bool in,
                       struct pawl_error *err);

/* True for the folder of a run's checkpoints. Users may have folders of that name. */
static bool
is_catalog(int fd, const char *path)
{
	struct stat st;
	const char *slash = strrchr(path, '/');
	return strcmp(slash != NULL ? slash + 1 : path, CATALOG_FOLDER) == 0 && fstatat(fd, "../" RUN_KEY, &st, 0) == 0;
}

/* Adds a checkpoint of a run or of a trial; its folder gets its name when it is complete. All of
 * its files are in the view or none: after they are linked, the folder must still have its name. */
static int
make_checkpoint(struct making *m, int from_fd, int to_fd, const char *name, const char *path, bool of_run,
                struct pawl_error *err)
{
	struct stat before, after;
	int rc = fstatat(from_fd, name, &before, AT_SYMLINK_NOFOLLOW) < 0
	                 ? GONE
	                 : make_folder(m, from_fd, to_fd, name, path, true, err);
	if (rc == 0 && (fstatat(from_fd, name, &after, AT_SYMLINK_NOFOLLOW) < 0 || before.st_ino != after.st_ino))
		rc = GONE;
	if (rc == 0 && of_run) {
		PAWL_FREE char *manifest = mem_printf("%s/" MANIFEST_NAME, name);
		if (manifest == NULL)
			return err_nomem(err, path);
		rc = fstatat(to_fd, manifest, &after, AT_SYMLINK_NOFOLLOW) < 0 ? GONE : 0;
	}
	return rc == GONE ? fd_remove_tree(to_fd, name, err) : rc;
}

/* links: adds only symbolic links of a folder; else only other entries. */
static int
make_entry(struct making *m, int from_fd, int to_fd, const char *above, const char *name, bool in, bool links,
           struct pawl_error *err)
{
	struct stat st;
	if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? GONE : err_sys(err, errno, "%s: stat", name);
	if (S_ISLNK(st.st_mode) != links)
		return 0;
	if (links)
		return copy_link(from_fd, to_fd, name, in, err);
	if (S_ISREG(st.st_mode))
		return in || st.st_size > LINK_BYTES ? link_file(m, from_fd, to_fd, name, err)
		                                     : copy_file(m, from_fd, to_fd, name, err);
	if (!S_ISDIR(st.st_mode))
		return 0;
	PAWL_FREE char *path = mem_printf("%s%s%s", above, above[0] != '\0' ? "/" : "", name);
	if (path == NULL)
		return err_nomem(err, name);
	const bool of_run = !in && is_catalog(from_fd, above);
	return of_run || (!in && strncmp(name, "checkpoint_", 11) == 0)
	               ? make_checkpoint(m, from_fd, to_fd, name, path, of_run, err)
	               : make_folder(m, from_fd, to_fd, name, path, in, err);
}

/* Folders and links of users may have the same name. */
static bool
is_journal(int fd, const char *name)
{
	struct stat st;
	return strcmp(name, SYNC_JOURNAL) == 0 && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISREG(st.st_mode);
}

static int
make_entries(struct making *m, int from_fd, int to_fd, const char *path, bool in, struct pawl_error *err)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	TRY(folder_list(from_fd, ".", path, &names, err));
	for (int links = 0; links < 2; links++)
		for (size_t i = 0; i < names.n; i++) {
			const char *name = names.items[i];
			if (!in && (sync_stays_here(path, name) || is_journal(from_fd, name)))
				continue;
			int rc = make_entry(m, from_fd, to_fd, path, name, in, links, err);
			if (rc < 0 || (rc == GONE && in))
				return rc;
		}
	return 0;
}

static bool
is_same_file(int a_fd, int b_fd, const char *name)
{
	struct stat a, b;
	return fstatat(a_fd, name, &a, AT_SYMLINK_NOFOLLOW) == 0 && fstatat(b_fd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
	       a.st_size == b.st_size;
}

/* The journal is copied first: the checkpoints that it names existed after that, unless it has
 * changed at the end. */
static int
make_contents(struct making *m, int from_fd, int to_fd, const char *path, bool in, struct pawl_error *err)
{
	int journal = in || !is_journal(from_fd, SYNC_JOURNAL) ? GONE : copy_file(m, from_fd, to_fd, SYNC_JOURNAL, err);
	if (journal < 0)
		return journal;
	TRY(sync_limit_check(m->limit, path, err));
	int rc = make_entries(m, from_fd, to_fd, path, in, err);
	m->changed = m->changed || (journal == 0 && !is_same_file(from_fd, to_fd, SYNC_JOURNAL));
	return rc;
}

/* GONE: a checkpoint vanished while it was linked. Another folder that vanished is left out. */
static int
make_folder(struct making *m, int from_fd, int to_fd, const char *name, const char *path, bool in,
            struct pawl_error *err)
{
	PAWL_FD int from = openat(from_fd, name, FOLDER);
	if (from < 0)
		return errno == ENOENT ? GONE : err_sys(err, errno, "%s: open", path);
	if (m->depth >= SYNC_MAX_DEPTH)
		return err_set(err, PAWL_ELIMIT, "%s: folders are nested more than %d deep", path, SYNC_MAX_DEPTH);
	if (mkdirat(to_fd, name, 0777) < 0)
		return err_sys(err, errno, "%s: create", path);
	PAWL_FD int to = fd_openat(to_fd, name, O_RDONLY | O_DIRECTORY, 0, err);
	if (to < 0)
		return to;
	m->depth++;
	int rc = make_contents(m, from, to, path, in, err);
	m->depth--;
	return rc;
}

/* -------------------------------------------------------------- the holder */

/* Removes views of this folder that dead makers left. */
static void
sweep_views(int above, const char *prefix)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	if (folder_list(above, ".", "", &names, NULL) < 0)
		return;
	for (size_t i = 0; i < names.n; i++) {
		const char *name = names.items[i];
		const size_t len = strlen(name), end = sizeof SUFFIX - 1;
		if (strncmp(name, prefix, strlen(prefix)) != 0 || len < end || strcmp(name + len - end, SUFFIX) != 0)
			continue;
		PAWL_FD int fd = openat(above, name, FOLDER);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			(void)fd_remove_tree(above, name, NULL);
	}
}

/* Makes a folder in `above`, and locks it. Before it is locked, another maker may take it for a
 * dead one's. */
static int
make_holder(const char *above, const char *base, struct sync_view *v, struct pawl_error *err)
{
	PAWL_FD int above_fd = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	PAWL_FREE char *prefix = mem_printf(".%.180s.", base);
	if (above_fd < 0)
		return err_sys(err, errno, "%s: open", above);
	if (prefix == NULL)
		return err_nomem(err, "sync");
	sweep_views(above_fd, prefix);
	for (int i = 0; i < 100; i++) {
		uint32_t token = 0;
		struct stat ours, named;
		(void)getentropy(&token, sizeof token);
		PAWL_FREE char *name = mem_printf("%s%08x" SUFFIX, prefix, (unsigned)token);
		if (name == NULL)
			return err_nomem(err, "sync");
		if (mkdirat(above_fd, name, 0700) < 0) {
			if (errno == EEXIST)
				continue;
			return err_sys(err, errno, "%s/%s: create", above, name);
		}
		PAWL_FD int fd = openat(above_fd, name, FOLDER);
		if (fd < 0 || (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) || fstat(fd, &ours) < 0 ||
		    fstatat(above_fd, name, &named, AT_SYMLINK_NOFOLLOW) < 0 || ours.st_ino != named.st_ino)
			continue;
		v->holder = mem_printf("%s/%s", above, name);
		v->path = mem_printf("%s/%s/%s", above, name, base);
		if (v->holder == NULL || v->path == NULL)
			return err_nomem(err, "sync");
		v->fd = fd;
		fd = -1;
		return 0;
	}
	return err_set(err, PAWL_EBUSY, "%s: no folder for a view could be made", above);
}

/* Next to the folder, if that is the same file system and writable; else inside it. */
static int
find_holder(const char *folder, const char *above, const char *base, struct sync_view *v, struct pawl_error *err)
{
	struct stat one, other;
	if (stat(folder, &one) < 0)
		return err_sys(err, errno, "%s: stat", folder);
	if (stat(above, &other) == 0 && one.st_dev == other.st_dev && access(above, W_OK | X_OK) == 0)
		return make_holder(above, base, v, err);
	return make_holder(folder, base, v, err);
}

static int
fill_view(struct making *m, const char *folder, const char *base, struct sync_view *v, struct pawl_error *err)
{
	for (int i = 0; i < TRIES; i++) {
		m->changed = false;
		TRY(fd_remove_tree(v->fd, base, err));
		if (mkdirat(v->fd, base, 0777) < 0)
			return err_sys(err, errno, "%s: create a folder", v->holder);
		PAWL_FD int from = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (from < 0)
			return err_sys(err, errno, "%s: open", folder);
		PAWL_FD int to = fd_openat(v->fd, base, O_RDONLY | O_DIRECTORY, 0, err);
		if (to < 0)
			return to;
		TRY(make_contents(m, from, to, "", false, err));
		if (!m->changed)
			return 0;
	}
	return 0; /* checkpoints that the journal names and the view lacks come with the next sync */
}

static int
list_view(struct sync_view *v, const struct sync_limit *limit, struct pawl_error *err)
{
	struct store *store;
	TRY(store_open(v->path, false, true, &store, err));
	int rc = sync_list(store, limit, &v->names, err);
	store_close(store);
	return rc;
}

int
sync_view_make(const char *folder, const struct sync_limit *limit, struct sync_view *ret, struct pawl_error *err)
{
	struct making m = {.limit = limit};
	struct sync_view v = {.fd = -1};
	const char *slash = strrchr(folder, '/'), *base = slash[1] != '\0' ? slash + 1 : "root";
	PAWL_FREE char *above = mem_printf("%.*s", slash > folder ? (int)(slash - folder) : 1, folder);
	int rc = above == NULL ? err_nomem(err, "sync") : find_holder(folder, above, base, &v, err);
	if (rc == 0)
		rc = fill_view(&m, folder, base, &v, err);
	if (rc == 0)
		rc = list_view(&v, limit, err);
	if (rc < 0) {
		sync_view_name_source(&v, folder, err);
		sync_view_clear(&v);
	} else {
		*ret = v;
	}
	return rc;
}

void
sync_view_name_source(const struct sync_view *v, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	if (v->path == NULL || err == NULL)
		return;
	const char *rest = err->message;
	for (const char *at; (at = strstr(rest, v->path)) != NULL; rest = at + strlen(v->path)) {
		buf_put(&text, rest, (size_t)(at - rest));
		buf_puts(&text, folder);
	}
	buf_puts(&text, rest);
	if (text.failed == 0)
		snprintf(err->message, sizeof err->message, "%.*s", (int)text.len, text.ptr);
}

void
sync_view_clear(struct sync_view *v)
{
	if (v->holder != NULL) { /* removed before the lock is released */
		(void)fd_remove_tree(AT_FDCWD, v->holder, NULL);
		fd_clean_close(&v->fd);
	}
	mem_free(v->holder);
	mem_free(v->path);
	sync_names_clear(&v->names);
	*v = (struct sync_view){.fd = -1};
}
