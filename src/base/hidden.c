/* SPDX-License-Identifier: Apache-2.0 */
/* hidden: names of what is not complete, and the system calls that give it its name. */
#include "base/hidden.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sum.h"
#include "base/text.h"

void
hidden_name_of(const char *name, const char *token, const char *suffix, char ret[HIDDEN_NAME_BYTES])
{
	snprintf(ret, HIDDEN_NAME_BYTES, ".%.90s.%.32s%.32s", name, token, suffix);
}

void
hidden_name_fixed(const char *name, const char *suffix, char ret[HIDDEN_NAME_BYTES])
{
	char token[HIDDEN_TOKEN_LEN + 1] = "";

	sum_to_hex(sum_bytes(name, strlen(name)), token);
	hidden_name_of(name, token, suffix, ret);
}

int
hidden_name(const char *name, const char *suffix, char ret[HIDDEN_NAME_BYTES], struct pawl_error *err)
{
	char token[HIDDEN_TOKEN_LEN + 1];

	TRY(clock_token(token, err));
	hidden_name_of(name, token, suffix, ret);
	return 0;
}

bool
hidden_is_token(const char *text)
{
	return strspn(text, "0123456789abcdef") >= HIDDEN_TOKEN_LEN;
}

const char *
hidden_token(const char *name, const char *suffix)
{
	size_t len = strlen(name), tail = 1 + HIDDEN_TOKEN_LEN + strlen(suffix);

	if (len < 2 + tail || name[0] != '.' || !text_ends_with(name, suffix))
		return NULL;
	const char *dot = name + len - tail;
	return *dot == '.' && hidden_is_token(dot + 1) ? dot + 1 : NULL;
}

bool
hidden_is(const char *name)
{
	return name[0] == '.' && (text_ends_with(name, HIDDEN_PARTIAL) || text_ends_with(name, HIDDEN_TMP));
}

/* ---------------------------------------------------------------- appearing */

/* True if the name is the file that st describes. */
static bool
is_same(int dir_fd, const char *name, const struct stat *st)
{
	struct stat now;

	return fstatat(dir_fd, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st->st_dev &&
	       now.st_ino == st->st_ino;
}

int
hidden_rename_new(int from_fd, const char *from, int to_fd, const char *to)
{
#if defined __linux__
	if (renameat2(from_fd, from, to_fd, to, RENAME_NOREPLACE) == 0)
		return 0;
	return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? ENOTSUP : errno;
#elif defined RENAME_EXCL
	return renameatx_np(from_fd, from, to_fd, to, RENAME_EXCL) == 0 ? 0 : errno;
#else
	(void)from_fd, (void)from, (void)to_fd, (void)to;
	return ENOTSUP;
#endif
}

int
hidden_folder_exchange(int a_fd, const char *a, int b_fd, const char *b)
{
#if defined __linux__
	if (renameat2(a_fd, a, b_fd, b, RENAME_EXCHANGE) == 0)
		return 0;
	return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? ENOTSUP : errno;
#elif defined RENAME_SWAP
	return renameatx_np(a_fd, a, b_fd, b, RENAME_SWAP) == 0 ? 0 : errno;
#else
	(void)a_fd, (void)a, (void)b_fd, (void)b;
	return ENOTSUP;
#endif
}

int
hidden_file_appear(int from_fd, const char *hidden, int to_fd, const char *name, bool replace)
{
	struct stat st;
	int sys;

	if (fstatat(from_fd, hidden, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno;
	if (replace) {
		sys = renameat(from_fd, hidden, to_fd, name) == 0 ? 0 : errno;
	} else { /* a link is exclusive over NFS too */
		sys = linkat(from_fd, hidden, to_fd, name, 0) == 0 ? 0 : errno;
		if (sys == EPERM || sys == EOPNOTSUPP || sys == ENOSYS)
			sys = hidden_rename_new(from_fd, hidden, to_fd, name);
	}
	if (sys != 0 && !is_same(to_fd, name, &st))
		return sys;
	/* after a link, and after a rename between two links of one file, which does nothing */
	if ((!replace || st.st_nlink > 1) && is_same(from_fd, hidden, &st))
		unlinkat(from_fd, hidden, 0);
	return 0;
}

int
hidden_folder_appear(int from_fd, const char *hidden, int to_fd, const char *name, bool replace)
{
	struct stat st, there;
	int sys = ENOTSUP;

	if (fstatat(from_fd, hidden, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno;
	if (!replace)
		sys = hidden_rename_new(from_fd, hidden, to_fd, name);
	/* Still exclusive: rename replaces only an empty folder, and the callers' are not
	 * empty. */
	if (sys == ENOTSUP && !replace && fstatat(to_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0)
		sys = EEXIST;
	else if (sys == ENOTSUP)
		sys = renameat(from_fd, hidden, to_fd, name) == 0 ? 0 : errno;
	if (sys == 0 || is_same(to_fd, name, &st))
		return 0;
	return sys == ENOTEMPTY || sys == ENOTDIR ? EEXIST : sys;
}
