/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment: opening and closing. Promises P10 (one process runs an experiment) and P12: the
 * journal is the authority. Trial files are made from it, or it is rebuilt from them. P17:
 * documents and journals are read with limits.
 */
#include "experiment.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/err_path.h"
#include "base/fd.h"
#include "base/text.h"
#include "base/value.h"
#include "space.h"
#include "trial_checkpoints.h"
#include "trial_files.h"

#define LOCK_SLICE_MS 20
#define LOCK_MS 3000
#define LOCK_LEFT_MS 60000
#define HOLDER_BYTES 320

PAWL_DEFINE_CLEAN(struct tune_experiment, tune_experiment_close);

static int
make_folders(const char *path, struct pawl_error *err)
{
	PAWL_FREE char *part = mem_strdup(path);

	if (!part)
		return err_nomem(err, NULL);
	for (char *c = part + (part[0] == '/'); c; c = c ? c + 1 : NULL) {
		c = strchr(c, '/');
		if (c)
			*c = '\0';
		if (part[0] && mkdir(part, 0777) < 0 && errno != EEXIST)
			return err_path(err, errno, part, true, "make folder");
		if (!c)
			break;
		*c = '/';
	}
	return 0;
}

static bool
is_there(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The line in the lock file: a process of this machine. */
static void
print_holder(long pid, char ret[HOLDER_BYTES])
{
	char host[256] = "";

	gethostname(host, sizeof(host) - 1);
	snprintf(ret, HOLDER_BYTES, "process %ld on %s\n", pid, host);
}

/* Is the holder a process of this machine that has ended? Then its guard still holds the lock. */
static bool
is_left(const char *holder)
{
	const long pid = strncmp(holder, "process ", 8) == 0 ? strtol(holder + 8, NULL, 10) : 0;
	char here[HOLDER_BYTES];

	print_holder(pid, here);
	return pid > 0 && strcmp(holder, here) == 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

/* Waits for the lock when resuming; a new experiment does not wait. After a killed runner, waits
 * until the guard has ended its trials. For a live runner, waits only as long as a runner needs to
 * shut down. */
static int
wait_for_lock(struct tune_experiment *e, struct pawl_error *err)
{
	const struct timespec slice = {.tv_nsec = LOCK_SLICE_MS * 1000000};
	char holder[HOLDER_BYTES];

	for (int waited_ms = 0; flock(e->lock, LOCK_EX | LOCK_NB) < 0; waited_ms += LOCK_SLICE_MS) {
		const int sys = errno;
		const ssize_t n = pread(e->lock, holder, sizeof(holder) - 1, 0);

		if (sys != EWOULDBLOCK)
			return err_sys(err, sys, "%s/.lock: lock", e->folder);
		holder[n > 0 ? n : 0] = '\0';
		const bool left = is_left(holder);
		holder[strcspn(holder, "\n")] = '\0';
		if (e->opts.resume == TUNE_NEW || waited_ms >= (left ? LOCK_LEFT_MS : LOCK_MS))
			return err_set(err, PAWL_EBUSY, "%s: %s (%s)", e->folder,
			               left ? "trials of a process that has ended still run"
			                    : "another process runs this experiment",
			               holder[0] ? holder : "it has not written its name yet");
		(void)nanosleep(&slice, NULL);
	}
	return 0;
}

static int
lock_folder(struct tune_experiment *e, struct pawl_error *err)
{
	char holder[HOLDER_BYTES];

	e->lock = openat(e->dirfd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (e->lock < 0)
		return err_sys(err, errno, "%s/.lock: open", e->folder);
	TRY(wait_for_lock(e, err));
	print_holder((long)getpid(), holder);
	if (ftruncate(e->lock, 0) < 0 || pwrite(e->lock, holder, strlen(holder), 0) < 0)
		return err_sys(err, errno, "%s/.lock: write", e->folder);
	return 0;
}

/* ---- experiment.json ---- */

static int
write_document(struct tune_experiment *e, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean)
	struct value *file = VALUE_OBJECT({"format", value_new_int(TUNE_FORMAT)}, {"token", value_new_text(e->token)},
	                                  {"document", value_ref(e->spec.doc)});
	PAWL_FREE char *text = file ? value_print(file) : NULL;

	return text ? trial_file_write(e->dirfd, "", "experiment.json", text, true, err) : err_nomem(err, NULL);
}

static int
make_token(char token[17], struct pawl_error *err)
{
	uint64_t bits;

	if (getentropy(&bits, sizeof(bits)) < 0)
		return err_sys(err, errno, "random numbers of the system");
	snprintf(token, 17, "%016llx", (unsigned long long)bits);
	return 0;
}

/* Reads the document in the folder, and the caller's, if one was given. */
static int
read_document(struct tune_experiment *e, bool is_given, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *file = NULL;
	PAWL_CLEAN(spec_clear) struct spec old = {0};
	struct pawl_error why = {0};
	const int rc = trial_file_read(e->dirfd, "", "experiment.json", &file, &why);

	if (rc == PAWL_EUSAGE)
		return err_set(err, PAWL_ECORRUPT, "%s: the experiment cannot be continued: %s", e->folder,
		               why.message);
	if (rc < 0)
		return err_set(err, rc, "%s: %s", e->folder, why.message);
	const char *token = value_get_text(file, "token");
	if (value_int(value_get(file, "format")) > TUNE_FORMAT)
		return err_set(err, PAWL_EVERSION, "%s/experiment.json: written in a newer format", e->folder);
	if (!token || strlen(token) != 16 || !value_is(value_get(file, "document"), JSON_OBJECT))
		return err_set(err, PAWL_ECORRUPT, "%s/experiment.json: expected a token and a document", e->folder);
	memcpy(e->token, token, sizeof(e->token));
	PAWL_FREE char *text = value_print(value_get(file, "document"));
	if (!text)
		return err_nomem(err, NULL);
	TRY(spec_parse(text, &old, err));
	if (!is_given) {
		e->spec = old;
		old = (struct spec){0};
		return 0;
	}
	TRY(spec_check_same(&old, &e->spec, err));
	return e->read_only || value_equal(old.doc, e->spec.doc) ? 0 : write_document(e, err);
}

/* ---- the journal ---- */

static int
replay_entry(void *arg, const struct value *entry, struct pawl_error *err)
{
	struct tune_experiment *e = arg;
	const struct value *trial = value_get(entry, "t");

	if (trial)
		e->last = value_int(trial);
	return experiment_apply(e, entry, true, err);
}

static void
add_notice(struct tune_experiment *e, const char *text)
{
	char *joined = mem_printf("%s%s%s", e->notice ? e->notice : "", e->notice ? "; " : "", text);

	if (!joined)
		return;
	mem_free(e->notice);
	e->notice = joined;
}

static int
rebuild_journal(struct tune_experiment *e, const struct journal_found *found, uint64_t *nbytes, struct pawl_error *err)
{
	struct journal_found made;
	char text[200];
	uint64_t n = 0;

	const bool is_empty = found->n_lines == 0 && found->torn_bytes == 0; /* no entry exists, or all are lost */

	if (found->exists && !is_empty && renameat(e->dirfd, "journal", e->dirfd, "journal.damaged") < 0)
		return err_sys(err, errno, "%s/journal: rename", e->folder);
	experiment_free_trials(e);
	sched_free(e->sched);
	e->sched = NULL;
	TRY(experiment_rebuild(e, &n, err));
	TRY(spec_make_scheduler(&e->spec, &e->sched, err));
	TRY(journal_read(e->dirfd, "journal", replay_entry, e, &made, err));
	snprintf(text, sizeof(text), "the journal was %s; it was rebuilt from the folders of %llu trials%s",
	         !found->exists ? "missing"
	         : is_empty     ? "empty"
	                        : "damaged",
	         (unsigned long long)n, is_empty ? "" : " (the old one is journal.damaged)");
	if (n || !is_empty)
		add_notice(e, text);
	*nbytes = made.good_bytes;
	return 0;
}

static int
read_journal(struct tune_experiment *e, bool existed, struct pawl_error *err)
{
	struct journal_found found;
	char text[200];

	TRY(spec_make_scheduler(&e->spec, &e->sched, err));
	int rc = journal_read(e->dirfd, "journal", replay_entry, e, &found, err);

	if (rc < 0)
		return err_prefix(err, rc, "%s", e->folder);
	uint64_t nbytes = found.good_bytes;
	if (e->read_only && found.damaged)
		return err_set(err, PAWL_ECORRUPT,
		               "%s/journal: damaged after %llu entries; resume the search to rebuild it from its "
		               "trials' folders",
		               e->folder, (unsigned long long)found.n_lines);
	if (e->read_only)
		return 0;
	if (existed && (found.damaged || !found.exists || found.n_lines == 0)) {
		TRY(rebuild_journal(e, &found, &nbytes, err));
	} else if (found.torn_bytes) {
		snprintf(text, sizeof(text), "the journal's last line was torn (%llu bytes were cut off)",
		         (unsigned long long)found.torn_bytes);
		add_notice(e, text);
	}
	rc = journal_open(e->dirfd, "journal", nbytes, &e->journal, err);
	return rc < 0 ? err_prefix(err, rc, "%s", e->folder) : 0;
}

/* Only the journal's last entry may be missing from the files of its trial: a crash came between
 * the two writes. */
static int
note_last(struct tune_experiment *e, struct pawl_error *err)
{
	struct trial *t = e->last >= 0 && (uint64_t)e->last < e->n_trials ? &e->trials[e->last] : NULL;

	if (!t || !t->attempts || !is_there(e->dirfd, t->name))
		return 0;
	TRY(experiment_repair(e, t, err));
	return experiment_note_state(e, t, err);
}

/* Starts trials again that were running when the experiment was left, and failed trials if
 * requested. */
static int
restart_trials(struct tune_experiment *e, bool existed, struct pawl_error *err)
{
	char text[200];
	const size_t n = e->n_running;

	TRY(experiment_put(e,
	                   VALUE_OBJECT({"e", value_new_text("open")}, {"format", value_new_int(TUNE_FORMAT)},
	                                {"token", value_new_text(e->token)}),
	                   true, err));
	experiment_remove_left(e);
	TRY(note_last(e, err));
	for (size_t i = 0; i < e->n_trials; i++)
		if (e->opts.resume == TUNE_ERRORED_ONLY && e->trials[i].state == TUNE_ERROR)
			TRY(experiment_put(
				e, VALUE_OBJECT({"e", value_new_text("retry")}, {"t", value_new_int((int64_t)i)}),
				false, err));
	if (existed && n) {
		snprintf(text, sizeof(text), "%zu trial%s that ran start%s again from the last checkpoint", n,
		         n > 1 ? "s" : "", n > 1 ? "" : "s");
		add_notice(e, text);
	}
	return 0;
}

/* ---- opening ---- */

static int
find_folder(struct tune_experiment *e, struct pawl_error *err)
{
	const char *dir = e->spec.local_dir;
	const bool may_make = e->opts.resume == TUNE_NEW || e->opts.resume == TUNE_AUTO;

	if (!e->opts.folder && !e->spec.doc)
		return err_set(err, PAWL_EUSAGE, "expected a document or the folder of an experiment, found neither");
	e->folder = e->opts.folder
	                    ? mem_strdup(e->opts.folder)
	                    : mem_printf("%s%s%s", dir, dir[0] && dir[strlen(dir) - 1] != '/' ? "/" : "", e->spec.name);
	if (!e->folder)
		return err_nomem(err, NULL);
	if (may_make && e->spec.doc)
		TRY(make_folders(e->folder, err));
	e->dirfd = open(e->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (e->dirfd < 0 && errno == ENOENT && text_begins_as_url(e->folder))
		return err_set(
			err, PAWL_EUSAGE,
			"%s: expected a folder of this machine, found a URL; 'pawl ls' shows a search in a store",
			e->folder);
	if (e->dirfd < 0 && errno == ENOENT)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no experiment here", e->folder);
	return e->dirfd < 0 ? err_sys(err, errno, "%s: open", e->folder) : 0;
}

static int
open_it(struct tune_experiment *e, const char *spec_json, struct pawl_error *err)
{
	const bool must_exist = e->opts.resume != TUNE_NEW && e->opts.resume != TUNE_AUTO;

	if (spec_json)
		TRY(spec_parse(spec_json, &e->spec, err));
	TRY(find_folder(e, err));
	if (!e->read_only)
		TRY(lock_folder(e, err));
	bool exists = is_there(e->dirfd, "experiment.json");
	if (exists && e->opts.resume == TUNE_NEW)
		return err_set(err, PAWL_EEXISTS,
		               "%s: an experiment already exists here; continue it (resume), or choose another name",
		               e->folder);
	if (!exists && (must_exist || !spec_json))
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no experiment here", e->folder);
	if (!exists && e->opts.restore) {
		TRY(experiment_import(e, e->opts.restore, err));
		exists = true;
	}
	if (exists) {
		TRY(read_document(e, spec_json != NULL, err));
	} else {
		TRY(make_token(e->token, err));
		TRY(write_document(e, err));
	}
	e->spec_text = value_print(e->spec.doc);
	if (!e->spec_text)
		return err_nomem(err, NULL);
	TRY(read_journal(e, exists, err));
	if (!e->read_only)
		TRY(restart_trials(e, exists, err));
	e->opened_s = experiment_now(e);
	return 0;
}

int
tune_experiment_open(const char *spec_json, const struct tune_open_opts *opts, struct tune_experiment **ret,
                     struct pawl_error *err)
{
	PAWL_CLEAN(tune_experiment_close_clean) struct tune_experiment *e = mem_zalloc(1, sizeof(*e));

	if (!e)
		return err_nomem(err, NULL);
	e->opts = *opts;
	e->read_only = opts->resume == TUNE_READ;
	e->dirfd = e->lock = e->journal.fd = -1;
	e->last = -1;
	const int rc = open_it(e, spec_json, err);
	e->opts.folder = e->opts.restore = NULL; /* they belong to the caller and are no longer needed */
	TRY(rc);
	*ret = steal(&e);
	return 0;
}

void
tune_experiment_close(struct tune_experiment *e)
{
	if (!e)
		return;
	journal_close(&e->journal);
	experiment_free_trials(e);
	sched_free(e->sched);
	spec_clear(&e->spec);
	mem_free(e->folder);
	mem_free(e->spec_text);
	mem_free(e->notice);
	mem_free(e->path);
	fd_clean_close(&e->dirfd);
	fd_clean_close(&e->lock);
	mem_free(e);
}

const char *
tune_experiment_spec(const struct tune_experiment *e)
{
	return e->spec_text;
}

const char *
tune_experiment_folder(const struct tune_experiment *e)
{
	return e->folder;
}

const char *
tune_experiment_notice(const struct tune_experiment *e)
{
	return e->notice ? e->notice : "";
}

/* ---- a document without a folder ---- */

int
tune_spec_check(const char *spec_json, char **ret_canonical, uint64_t *ret_n_trials, struct pawl_error *err)
{
	PAWL_CLEAN(spec_clear) struct spec spec = {0};

	TRY(spec_parse(spec_json, &spec, err));
	char *text = value_print(spec.doc);
	if (!text)
		return err_nomem(err, NULL);
	*ret_canonical = text;
	*ret_n_trials = spec.n_trials == UINT64_MAX ? 0 : spec.n_trials;
	return 0;
}

int
tune_spec_config(const char *spec_json, uint64_t sample, char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	PAWL_CLEAN(spec_clear) struct spec spec = {0};

	TRY(spec_parse(spec_json, &spec, err));
	if (spec.given || sample >= spec.n_trials)
		return err_set(err, PAWL_ENOTFOUND, "configuration %llu is not made by this document",
		               (unsigned long long)sample);
	TRY(space_config(spec.space, spec.seed, sample, &config, err));
	TRY(spec_fill(&spec, sample, config, err));
	char *text = value_print(config);
	if (!text)
		return err_nomem(err, NULL);
	*ret = text;
	return 0;
}
