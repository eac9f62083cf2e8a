/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment_import: a new experiment that begins with the trials of another one (restore=). The
 * journal and small files are copied; checkpoints are cloned by links. The other experiment is not
 * changed. experiment.json is written last: a folder without it does not count as an experiment
 * yet, and is imported again after a crash.
 */
#include "experiment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/folder.h"
#include "base/os.h"
#include "trial_checkpoints.h"

#define FOLDER (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

/* Imports one entry of a trial's folder: a checkpoint or a file. */
static int
import_entry(struct tune_experiment *e, int from, int trial_fd, const char *trial, const char *name,
             struct pawl_error *err)
{
	struct stat st;

	if (fstatat(trial_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : err_sys(err, errno, "%s/%s", trial, name);
	if (S_ISDIR(st.st_mode) && trial_checkpoint_is_name(name)) {
		TRY(trial_checkpoint_remove(e->dirfd, trial, name, err));
		return trial_checkpoint_clone(from, trial, name, e->dirfd, trial, name, err);
	}
	if (!S_ISREG(st.st_mode))
		return 0;
	PAWL_FD int to = openat(e->dirfd, trial, FOLDER);
	if (to < 0)
		return err_sys(err, errno, "%s/%s: open", e->folder, trial);
	return trial_checkpoint_copy_file(trial_fd, to, name, err);
}

static int
import_trial(struct tune_experiment *e, int from, const char *trial, struct pawl_error *err)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	PAWL_FD int fd = openat(from, trial, FOLDER);

	if (fd < 0)
		return err_sys(err, errno, "%s: open", trial);
	TRY(folder_list(fd, ".", trial, &names, err));
	if (mkdirat(e->dirfd, trial, 0777) < 0 && errno != EEXIST)
		return err_sys(err, errno, "%s/%s: make folder", e->folder, trial);
	for (size_t i = 0; i < names.n; i++)
		if (names.items[i][0] != '.')
			TRY(import_entry(e, from, fd, trial, names.items[i], err));
	return 0;
}

static int
import_trials(struct tune_experiment *e, int from, struct pawl_error *err)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	struct stat st;
	char state[600];

	TRY(folder_list(from, ".", "restore", &names, err));
	for (size_t i = 0; i < names.n; i++) {
		const char *name = names.items[i];

		snprintf(state, sizeof(state), "%s/trial.json", name);
		if (name[0] != '.' && fstatat(from, state, &st, AT_SYMLINK_NOFOLLOW) == 0)
			TRY(import_trial(e, from, name, err));
		else if (strncmp(name, "pbt_policy_", 11) == 0)
			TRY(trial_checkpoint_copy_file(from, e->dirfd, name, err));
	}
	return 0;
}

int
experiment_import(struct tune_experiment *e, const char *folder, struct pawl_error *err)
{
	static const char *const files[] = {"journal", "pbt_global.txt", "experiment.json"};
	PAWL_FD int from = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (from < 0 || fstatat(from, "experiment.json", &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_set(err, PAWL_ENOTFOUND, "restore: there is no experiment in %s", folder);
	PAWL_FD int lock = openat(from, ".lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) < 0)
		return err_set(err, PAWL_EBUSY, "restore: another process runs the experiment in %s", folder);
	TRY(import_trials(e, from, err));
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (fstatat(from, files[i], &st, AT_SYMLINK_NOFOLLOW) == 0)
			TRY(trial_checkpoint_copy_file(from, e->dirfd, files[i], err));
	return os_sync(e->dirfd) < 0 ? err_sys(err, errno, "%s: fsync", e->folder) : 0;
}
