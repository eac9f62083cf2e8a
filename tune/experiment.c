/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experiment: opening and closing. Called by drivers (the command, the Python extension); calls spec, journal and the
 * fold. Promises P10 (one process runs an experiment), P12 (the journal is the truth; the trials' files are made from
 * it, or it from them), P17 (a document and a journal are read with limits).
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

#include "jsonx.h"
#include "space.h"
#include "trial_checkpoints.h"
#include "trial_files.h"
#include "tune_err.h"

#define LOCK_SLICE_MS 20
#define LOCK_MS 3000
#define LOCK_LEFT_MS 60000

static int
make_folders(const char *path, struct pawl_error *err)
{
	JSONX_TEXT char *part = strdup(path);

	if (!part)
		return tune_no_memory(err);
	for (char *c = part + (part[0] == '/'); c; c = c ? c + 1 : NULL) {
		c = strchr(c, '/');
		if (c)
			*c = '\0';
		if (part[0] && mkdir(part, 0777) < 0 && errno != EEXIST)
			return tune_fail_sys(err, errno, "%s: make folder", part);
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

/* Is the holder, as take_lock writes it, a process of this machine that has gone? Then its guard holds the lock. */
static bool
is_left(const char *holder)
{
	char host[256] = "", its[256];
	long pid;

	gethostname(host, sizeof(host) - 1);
	return sscanf(holder, "process %ld on %255s", &pid, its) == 2 && pid > 0 && strcmp(its, host) == 0 &&
	       kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

/* Going on waits for the trials of a runner that was killed, which are being ended; for another one only as long as one
 * may take that is ending itself. */
static int
wait_for_lock(struct tune_experiment *e, struct pawl_error *err)
{
	const struct timespec slice = {.tv_nsec = LOCK_SLICE_MS * 1000000};
	char holder[320];

	for (int waited_ms = 0; flock(e->lock, LOCK_EX | LOCK_NB) < 0; waited_ms += LOCK_SLICE_MS) {
		const int sys = errno;
		const ssize_t n = pread(e->lock, holder, sizeof(holder) - 1, 0);
		bool left;

		if (sys != EWOULDBLOCK)
			return tune_fail_sys(err, sys, "%s/.lock: lock", e->folder);
		holder[n > 0 ? n : 0] = '\0';
		holder[strcspn(holder, "\n")] = '\0';
		left = is_left(holder);
		if (e->opts.resume == TUNE_NEW || waited_ms >= (left ? LOCK_LEFT_MS : LOCK_MS))
			return tune_fail(err, PAWL_EBUSY, "%s: %s (%s)", e->folder,
			                 left ? "the trials of a process that has gone still run"
			                      : "another process runs this experiment",
			                 holder[0] ? holder : "it has not written its name yet");
		(void)nanosleep(&slice, NULL);
	}
	return 0;
}

static int
take_lock(struct tune_experiment *e, struct pawl_error *err)
{
	char holder[320], host[256] = "";
	int n, r;

	e->lock = openat(e->dirfd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (e->lock < 0)
		return tune_fail_sys(err, errno, "%s/.lock: open", e->folder);
	r = wait_for_lock(e, err);
	if (r < 0)
		return r;
	gethostname(host, sizeof(host) - 1);
	n = snprintf(holder, sizeof(holder), "process %ld on %s\n", (long)getpid(), host);
	if (ftruncate(e->lock, 0) < 0 || pwrite(e->lock, holder, (size_t)n, 0) < 0)
		return tune_fail_sys(err, errno, "%s/.lock: write", e->folder);
	return 0;
}

/* ---- experiment.json ---- */

static int
write_document(struct tune_experiment *e, struct pawl_error *err)
{
	JSONX_CLEAN json_t *file =
		json_pack("{s:i, s:s, s:O}", "format", TUNE_FORMAT, "token", e->token, "document", e->spec.doc);
	JSONX_TEXT char *text = file ? jsonx_dump(file) : NULL;

	return text ? tune_file_write(e->dirfd, "", "experiment.json", text, true, err) : tune_no_memory(err);
}

static int
make_token(char token[17], struct pawl_error *err)
{
	uint64_t bits;

	if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
		return tune_fail_sys(err, errno, "random numbers of the system");
	snprintf(token, 17, "%016llx", (unsigned long long)bits);
	return 0;
}

/* The document of the folder, and what the caller brought, if he did. */
static int
take_document(struct tune_experiment *e, bool is_given, struct pawl_error *err)
{
	JSONX_CLEAN json_t *file = NULL;
	JSONX_TEXT char *text = NULL;
	struct spec old = {0};
	const char *token;
	bool same;
	struct pawl_error why = {0};
	int r = tune_file_read(e->dirfd, "", "experiment.json", &file, &why);

	if (r == PAWL_EUSAGE)
		return tune_fail(err, PAWL_ECORRUPT, "%s: the experiment cannot be gone on with: %s", e->folder,
		                 why.message);
	if (r < 0)
		return tune_fail(err, r, "%s: %s", e->folder, why.message);
	token = jsonx_text(file, "token");
	if (json_integer_value(json_object_get(file, "format")) > TUNE_FORMAT)
		return tune_fail(err, PAWL_EVERSION, "%s/experiment.json: written in a newer format", e->folder);
	if (!token || strlen(token) != 16 || !json_is_object(json_object_get(file, "document")))
		return tune_fail(err, PAWL_ECORRUPT, "%s/experiment.json: expected a token and a document", e->folder);
	memcpy(e->token, token, sizeof(e->token));
	text = jsonx_dump(json_object_get(file, "document"));
	r = text ? spec_parse(text, &old, err) : tune_no_memory(err);
	if (r < 0)
		return r;
	if (!is_given) {
		e->spec = old;
		return 0;
	}
	r = spec_check_same(&old, &e->spec, err);
	same = json_equal(old.doc, e->spec.doc);
	spec_clear(&old);
	return r < 0 || same || e->read_only ? r : write_document(e, err);
}

/* ---- the journal ---- */

static int
replay(void *arg, const json_t *entry, struct pawl_error *err)
{
	struct tune_experiment *e = arg;
	const json_t *trial = json_object_get(entry, "t");

	if (trial)
		e->last = json_integer_value(trial);
	return experiment_apply(e, entry, true, err);
}

static void
notice(struct tune_experiment *e, const char *text)
{
	char *joined = NULL;

	if (asprintf(&joined, "%s%s%s", e->notice ? e->notice : "", e->notice ? "; " : "", text) < 0)
		return;
	free(e->notice);
	e->notice = joined;
}

static int
rebuild(struct tune_experiment *e, const struct journal_found *found, uint64_t *nbytes, struct pawl_error *err)
{
	struct journal_found made;
	char text[200];
	uint64_t n = 0;
	int r;

	const bool is_empty = found->n_lines == 0 && found->torn_bytes == 0; /* nothing had begun, or all is lost */

	if (found->exists && !is_empty && renameat(e->dirfd, "journal", e->dirfd, "journal.damaged") < 0)
		return tune_fail_sys(err, errno, "%s/journal: rename", e->folder);
	experiment_free_trials(e);
	sched_free(e->sched);
	e->sched = NULL;
	r = experiment_rebuild(e, &n, err);
	if (r == 0)
		r = spec_scheduler(&e->spec, &e->sched, err);
	if (r == 0)
		r = journal_read(e->dirfd, "journal", replay, e, &made, err);
	if (r < 0)
		return r;
	snprintf(text, sizeof(text), "the journal was %s; it was made again from the folders of %llu trials%s",
	         !found->exists ? "missing"
	         : is_empty     ? "empty"
	                        : "damaged",
	         (unsigned long long)n, is_empty ? "" : " (the old one is journal.damaged)");
	if (n || !is_empty)
		notice(e, text);
	*nbytes = made.good_bytes;
	return 0;
}

static int
read_journal(struct tune_experiment *e, bool existed, struct pawl_error *err)
{
	struct journal_found found;
	uint64_t nbytes;
	char text[200];
	int r = spec_scheduler(&e->spec, &e->sched, err);

	if (r == 0)
		r = journal_read(e->dirfd, "journal", replay, e, &found, err);
	if (r < 0)
		return r;
	nbytes = found.good_bytes;
	if (e->read_only)
		return 0;
	if (existed && (found.damaged || !found.exists || found.n_lines == 0))
		r = rebuild(e, &found, &nbytes, err);
	else if (found.torn_bytes) {
		snprintf(text, sizeof(text), "the journal's last line was torn (%llu bytes were cut off)",
		         (unsigned long long)found.torn_bytes);
		notice(e, text);
	}
	if (r == 0)
		r = journal_open(e->dirfd, "journal", nbytes, &e->journal, err);
	return r;
}

/* Only the last entry of a trial may lack its trace in the trial's folder: a crash came between. */
static int
note_last(struct tune_experiment *e, struct pawl_error *err)
{
	struct trial *t = e->last >= 0 && (uint64_t)e->last < e->n_trials ? &e->trials[e->last] : NULL;
	int r;

	if (!t || !t->attempts || !is_there(e->dirfd, t->name))
		return 0;
	r = experiment_mend(e, t, err);
	return r < 0 ? r : experiment_note_state(e, t, err);
}

/* What ran when it was left starts again; trials that had failed do, when that is wanted. */
static int
go_on(struct tune_experiment *e, bool existed, struct pawl_error *err)
{
	char text[200];
	const size_t n = e->n_running;
	int r = experiment_put(e, json_pack("{s:s, s:i, s:s}", "e", "open", "format", TUNE_FORMAT, "token", e->token),
	                       true, err);

	if (r == 0)
		r = note_last(e, err);
	for (size_t i = 0; r == 0 && i < e->n_trials; i++)
		if (e->opts.resume == TUNE_ERRORED_ONLY && e->trials[i].state == TUNE_ERROR)
			r = experiment_put(e, json_pack("{s:s, s:i}", "e", "retry", "t", (int)i), false, err);
	if (r == 0 && existed && n) {
		snprintf(text, sizeof(text), "%zu trial%s that ran start%s again from the last checkpoint", n,
		         n > 1 ? "s" : "", n > 1 ? "" : "s");
		notice(e, text);
	}
	return r;
}

/* ---- opening ---- */

static int
find_folder(struct tune_experiment *e, struct pawl_error *err)
{
	const char *dir = e->spec.local_dir;
	bool may_make = e->opts.resume == TUNE_NEW || e->opts.resume == TUNE_AUTO;
	int r;

	if (e->opts.folder)
		r = experiment_set(&e->folder, e->opts.folder, err);
	else if (!e->spec.doc)
		r = tune_fail(err, PAWL_EUSAGE, "expected a document or the folder of an experiment, found neither");
	else
		r = asprintf(&e->folder, "%s%s%s", dir, dir[0] && dir[strlen(dir) - 1] != '/' ? "/" : "",
		             e->spec.name) < 0
		            ? tune_no_memory(err)
		            : 0;
	if (r < 0)
		return r;
	if (may_make && e->spec.doc)
		r = make_folders(e->folder, err);
	if (r < 0)
		return r;
	e->dirfd = open(e->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (e->dirfd < 0 && errno == ENOENT)
		return tune_fail(err, PAWL_ENOTFOUND, "%s: no experiment lies here", e->folder);
	return e->dirfd < 0 ? tune_fail_sys(err, errno, "%s: open", e->folder) : 0;
}

static int
open_it(struct tune_experiment *e, const char *spec_json, struct pawl_error *err)
{
	const bool must_exist = e->opts.resume != TUNE_NEW && e->opts.resume != TUNE_AUTO;
	bool exists;
	int r = spec_json ? spec_parse(spec_json, &e->spec, err) : 0;

	if (r == 0)
		r = find_folder(e, err);
	if (r == 0 && !e->read_only)
		r = take_lock(e, err);
	if (r < 0)
		return r;
	exists = is_there(e->dirfd, "experiment.json");
	if (exists && e->opts.resume == TUNE_NEW)
		return tune_fail(err, PAWL_EEXISTS,
		                 "%s: an experiment lies here already; go on with it (resume), or take another name",
		                 e->folder);
	if (!exists && (must_exist || !spec_json))
		return tune_fail(err, PAWL_ENOTFOUND, "%s: no experiment lies here", e->folder);
	if (!exists && e->opts.restore) {
		r = experiment_import(e, e->opts.restore, err);
		exists = true;
	}
	if (r < 0)
		return r;
	if (exists) {
		r = take_document(e, spec_json != NULL, err);
	} else {
		r = make_token(e->token, err);
		if (r == 0)
			r = write_document(e, err);
	}
	e->spec_text = r < 0 ? NULL : jsonx_dump(e->spec.doc);
	if (r == 0 && !e->spec_text)
		r = tune_no_memory(err);
	if (r == 0)
		r = read_journal(e, exists, err);
	if (r == 0 && !e->read_only)
		r = go_on(e, exists, err);
	e->opened_s = experiment_now(e);
	return r;
}

int
tune_experiment_open(const char *spec_json, const struct tune_open_opts *opts, struct tune_experiment **ret,
                     struct pawl_error *err)
{
	struct tune_experiment *e = calloc(1, sizeof(*e));
	int r;

	if (!e)
		return tune_no_memory(err);
	e->opts = *opts;
	e->read_only = opts->resume == TUNE_READ;
	e->dirfd = e->lock = e->journal.fd = -1;
	e->last = -1;
	r = open_it(e, spec_json, err);
	e->opts.folder = e->opts.restore = NULL; /* the caller's, and used */
	if (r < 0) {
		tune_experiment_close(e);
		return r;
	}
	*ret = e;
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
	free(e->folder);
	free(e->spec_text);
	free(e->notice);
	free(e->path);
	if (e->dirfd >= 0)
		close(e->dirfd);
	if (e->lock >= 0)
		close(e->lock);
	free(e);
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
	struct spec spec;
	char *text;
	int r = spec_parse(spec_json, &spec, err);

	if (r < 0)
		return r;
	text = jsonx_dump(spec.doc);
	if (text) {
		*ret_canonical = text;
		*ret_n_trials = spec.n_trials == UINT64_MAX ? 0 : spec.n_trials;
	}
	spec_clear(&spec);
	return text ? 0 : tune_no_memory(err);
}

int
tune_spec_config(const char *spec_json, uint64_t sample, char **ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *config = NULL;
	struct spec spec;
	char *text = NULL;
	int r = spec_parse(spec_json, &spec, err);

	if (r < 0)
		return r;
	if (spec.given || sample >= spec.n_trials)
		r = tune_fail(err, PAWL_ENOTFOUND, "configuration %llu is not made by this document",
		              (unsigned long long)sample);
	if (r == 0)
		r = space_config(spec.space, spec.seed, sample, &config, err);
	if (r == 0)
		r = spec_fill(&spec, sample, config, err);
	if (r == 0 && !(text = jsonx_dump(config)))
		r = tune_no_memory(err);
	spec_clear(&spec);
	if (r == 0)
		*ret = text;
	return r;
}
