/* SPDX-License-Identifier: Apache-2.0 */
/* err_path: see err_path.h. */
#include "base/err_path.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/text.h"

#define USER_BYTES 4096u /* of an entry of the user database */

bool
err_is_denied(int sys)
{
	return sys == EACCES || sys == EPERM || sys == EROFS;
}

int
err_denied(struct pawl_error *err, int sys, const char *path, bool writes)
{
	char memory[USER_BYTES], number[16];
	struct passwd entry, *user = NULL;
	const uid_t uid = geteuid();

	snprintf(number, sizeof(number), "%lu", (unsigned long)uid);
	if (err && getpwuid_r(uid, &entry, memory, sizeof(memory), &user) != 0)
		user = NULL;
	const char *name = user ? user->pw_name : number;
	int rc;

	if (sys == EROFS)
		rc = err_set(err, PAWL_EREADONLY,
		             "%s: the file system is mounted read-only; mount it for writing, or choose another place",
		             path);
	else if (writes)
		rc = err_set(err, PAWL_EAUTH,
		             "%s: user %s may not write here; ask the owner for permission, or choose another place",
		             path, name);
	else
		rc = err_set(err, PAWL_EAUTH, "%s: user %s may not read this; ask the owner for permission", path,
		             name);
	if (err)
		err->sys = sys;
	return rc;
}

int
err_path(struct pawl_error *err, int sys, const char *path, bool writes, const char *what)
{
	return err_is_denied(sys) ? err_denied(err, sys, path, writes) : err_sys(err, sys, "%s: %s", path, what);
}

int
err_path_new(struct pawl_error *err, int sys, const char *path, const char *what)
{
	char above[PATH_MAX];
	const size_t len = text_parent_len(path);

	if (!err_is_denied(sys))
		return err_path(err, sys, path, true, what);
	if (len > 0)
		snprintf(above, sizeof(above), "%.*s", (int)len, path);
	else if (!getcwd(above, sizeof(above)))
		snprintf(above, sizeof(above), ".");
	return err_denied(err, sys, above, true);
}
