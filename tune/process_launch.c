/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_launch: starts the process of a trial: its environment, its files, then its own program
 * or a fork of the forker; see runner_own.h. docs/reference/tune.md describes what a trial finds.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/spawn.h"
#include "base/value.h"
#include "runner_own.h"

#define TRIAL_FD 3 /* the channel's descriptor in the trial */

/* "<folder>/<name>" as an absolute path, so that a trial may change its folder. To mem_free(). */
static char *
path_of(const char *folder, const char *name)
{
	PAWL_FREE char *absolute = realpath(folder, NULL);

	return absolute != NULL ? mem_printf("%s%s%s", absolute, *name != '\0' ? "/" : "", name) : NULL;
}

static bool
set_path(struct strings *env, const char *variable, const char *folder, const char *name)
{
	PAWL_FREE char *path = path_of(folder, name);

	return path != NULL && command_set_variable(env, variable, path);
}

static int
make_environment(struct tune_runner *r, const struct tune_start *start, const struct share *share, struct strings *ret,
                 struct pawl_error *err)
{
	char devices[SLOTS_MAX_GPUS * 65], number[24];
	struct tune_trial info;
	bool ok = true;

	for (size_t i = 0; ok && i < r->env.n; i++)
		ok = strings_add(ret, r->env.items[i]);
	(void)snprintf(number, sizeof(number), "%d", TRIAL_FD);
	ok = ok && command_set_variable(ret, "PAWL_TUNE_FD", number);
	ok = ok && command_set_variable(ret, "PAWL_TUNE_TRIAL", start->name);
	ok = ok && tune_trial_info(r->e, start->trial, &info, NULL) == 0 &&
	     command_set_variable(ret, "PAWL_TUNE_ID", info.id);
	ok = ok && set_path(ret, "PAWL_TUNE_FOLDER", start->folder, "");
	ok = ok && set_path(ret, "PAWL_TUNE_CONFIG", start->folder, "params.json");
	if (start->checkpoint != NULL)
		ok = ok && set_path(ret, "PAWL_TUNE_CHECKPOINT", start->folder, start->checkpoint);
	(void)snprintf(number, sizeof(number), "%llu", (unsigned long long)start->iteration);
	ok = ok && command_set_variable(ret, "PAWL_TUNE_ITERATION", number);
	if (share->gpus != 0) {
		slots_visible(&r->slots, share, devices, sizeof(devices));
		ok = ok && command_set_variable(ret, "CUDA_VISIBLE_DEVICES", devices);
		ok = ok && command_set_variable(ret, "HIP_VISIBLE_DEVICES", devices);
	}
	return ok ? 0 : err_nomem(err, NULL);
}

/* 0 or an errno value. */
static int
spawn_process(struct process *p, char *const argv[], char *const env[], int theirs, const char *out)
{
	const int flags = O_WRONLY | O_CREAT | O_APPEND;
	const struct spawn_file files[] = {
		{.fd = 0, .path = "/dev/null", .flags = O_RDONLY},
		{.fd = 1, .path = out, .flags = flags},
		{.fd = 2, .path = p->errors, .flags = flags},
		{.fd = TRIAL_FD, .from = theirs},
	};
	const int rc = spawn_program(&p->pid, argv, env, files, 4, SPAWN_GROUP);

	if (rc == 0)
		p->pidfd = spawn_watch(p->pid);
	return rc;
}

/* Lets the forker start the process, without a program of its own. False: the forker cannot. */
static bool
fork_one(struct tune_runner *r, struct process *p, char *const env[], int theirs, const char *out)
{
	const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
	const int fds[3] = {theirs, open(out, flags, 0666), open(p->errors, flags, 0666)};

	p->forked = fds[1] >= 0 && fds[2] >= 0 && forker_start(&r->forker, env, fds, &p->pid, &p->pidfd);
	for (size_t i = 1; i < 3; i++)
		if (fds[i] >= 0)
			(void)close(fds[i]);
	return p->forked;
}

/* Its program and arguments. If the configuration lacks a placeholder, the trial fails. */
int
process_launch(struct tune_runner *r, struct process *p, const struct tune_start *start, struct pawl_error *why)
{
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	PAWL_CLEAN(strings_clear) struct strings argv = {0}, env = {0};
	PAWL_FREE char *out = path_of(start->folder, "stdout");
	PAWL_FD int theirs = -1;
	struct stat st;

	if (out == NULL)
		return err_sys(why, errno, "%s", start->folder);
	p->errors = path_of(start->folder, "stderr");
	if (p->errors == NULL)
		return err_sys(why, errno, "%s", start->folder);
	TRY(value_parse(start->config_json, SIZE_MAX, "the configuration", &config, why));
	TRY(command_fill(r->run, config, &argv, why));
	TRY(make_environment(r, start, &p->share, &env, why));
	TRY(channel_open(&p->channel, &theirs, why));
	p->errors_from = stat(p->errors, &st) == 0 ? (int64_t)st.st_size : 0;
	const int sys =
		fork_one(r, p, env.items, theirs, out) ? 0 : spawn_process(p, argv.items, env.items, theirs, out);

	if (sys == ENOENT)
		return err_set(why, PAWL_ENOTFOUND, "run: %.200s: there is no such program", argv.items[0]);
	if (sys != 0)
		return err_sys(why, sys, "run: %.200s", argv.items[0]);
	if (r->memory_bytes > 0)
		p->group = cgroups_make(&r->cgroups, p->trial, (uint64_t)r->memory_bytes, p->pid);
	return 0;
}
