/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_begin: starts a saver in a folder. It locks the folder, reads what earlier processes
 * left, and checks that no file of a later point is in the way (R90, E7).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/pool.h"
#include "base/sum.h"
#include "jobs/composer/composer.h"
#include "pawl_jobs.h"

#define HIDDEN ".pawl"

struct name_values
composer_values(const struct pawl_saver *s, const struct pawl_progress *progress)
{
	static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;
	return (struct name_values){.of = NAME_OF_FILE,
	                            .run_name = s->run_name,
	                            .rank = s->rank.rank,
	                            .local_rank = s->rank.local_rank,
	                            .world_size = s->rank.world_size,
	                            .local_world_size = s->rank.local_world_size,
	                            .node_rank = s->rank.node_rank,
	                            .progress = progress ? *progress : unknown};
}

/* Two processes that write the same files would delete each other's. */
static int
take_lock(struct pawl_saver *s, const char *key, struct pawl_error *err)
{
	PAWL_FREE char *path = mem_printf("%s/%s.lock", s->folder, key);
	if (!path)
		return err_nomem(err, "checkpoint saver");
	s->lock_fd = fd_openat(AT_FDCWD, path, O_RDWR | O_CREAT, 0666, err);
	if (s->lock_fd < 0)
		return s->lock_fd;
	s->locked_by = getpid();
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return err_set(err, PAWL_EBUSY, "%s: another saver writes files named \"%s\" here", s->folder,
		               s->filename);
	return 0; /* continues without where the file system has no such locks */
}

/* A child of this process has the same lock by fork(), and holds it after this process has closed
 * the file. */
void
composer_unlock(struct pawl_saver *s)
{
	if (s->lock_fd >= 0 && s->locked_by == getpid())
		flock(s->lock_fd, LOCK_UN);
	fd_clean_close(&s->lock_fd);
}

/* What the names of a rank's own files below .pawl/ begin with; NULL: out of memory. */
static char *
make_key(const struct pawl_saver *s, int32_t rank)
{
	char hex[33] = "";
	PAWL_FREE char *what = mem_printf("%s\n%d", s->filename, (int)rank);
	if (!what)
		return NULL;
	sum_to_hex(sum_bytes(what, strlen(what)), hex);
	return mem_printf(HIDDEN "/saver-%.16s", hex);
}

static int
begin_store(struct pawl_saver *s, struct pawl_error *err)
{
	PAWL_FREE char *key = make_key(s, s->rank.rank);
	PAWL_FREE char *hidden = mem_printf("%s/" HIDDEN, s->folder);
	s->work = key ? mem_printf("%s.work", key) : NULL;
	s->journal = key ? mem_printf("%s.json", key) : NULL;
	if (!s->work || !s->journal || !hidden)
		return err_nomem(err, "checkpoint saver");
	TRY(fd_mkdirs(AT_FDCWD, hidden, err));
	TRY(take_lock(s, key, err));
	TRY(store_file_open(s->folder, true, false, &s->here, err));
	return store_remove_folder(s->here, s->work, err); /* files of a killed process */
}

static int
begin_parts(struct pawl_saver *s, struct pawl_error *err)
{
	TRY(begin_store(s, err));
	TRY(composer_journal_read(s, err));
	TRY(pool_new("pawl-saver", 1, &s->finisher, err));
	return pool_new("pawl-upload", s->n_uploads, &s->uploader, err);
}

static void
clear_rows(struct pawl_saver *s)
{
	while (s->n_rows > 0)
		composer_drop_row(s, s->n_rows - 1);
	mem_free(steal(&s->rows));
	s->cap_rows = 0;
}

/* Without it the next call would find the lock of this one. */
static void
undo_begin(struct pawl_saver *s)
{
	clear_rows(s);
	pool_free(s->finisher);
	s->finisher = NULL;
	store_close(s->here);
	s->here = NULL;
	composer_unlock(s);
	mem_free(steal(&s->work));
	mem_free(steal(&s->journal));
}

/* Only processes that write call this. */
static int
begin_saver(struct pawl_saver *s, struct pawl_error *err)
{
	if (s->begun)
		return 0;
	int rc = begin_parts(s, err);
	if (rc < 0) {
		undo_begin(s);
		return rc;
	}
	s->begun = true;
	return 0;
}

/* R90. */

/* Is there one latest link, which every save replaces? */
static bool
has_link(const struct pawl_saver *s)
{
	return s->latest_filename && s->keep != 0 && !name_excess(s->latest_filename, NAME_OF_FOLDER);
}

/* The seq of the row that the latest link leads to, 0 if it is none. PAWL_ENOTFOUND: there is no
 * link. */
static int
follow_link(const struct pawl_saver *s, bool as_tar, uint64_t *ret, struct pawl_error *err)
{
	const struct name_values values = composer_values(s, NULL);
	char found[PATH_MAX];
	PAWL_FREE char *link = NULL;
	TRY(composer_fill(s->latest_filename, &values, as_tar, &link, err));
	PAWL_FREE char *path = composer_path(s, link);
	if (!path)
		return err_nomem(err, "checkpoint saver");
	ssize_t n = readlink(path, found, sizeof found - 1);
	if (n < 0)
		return PAWL_ENOTFOUND;
	found[n] = '\0';
	uint64_t seq = 0;
	for (size_t i = s->n_rows; i-- > 0 && seq == 0;) {
		PAWL_FREE char *target = composer_relative(link, s->rows[i].name);
		if (!target)
			return err_nomem(err, "checkpoint saver");
		if (strcmp(found, target) == 0)
			seq = s->rows[i].seq;
	}
	*ret = seq;
	return 0;
}

int
composer_linked(const struct pawl_saver *s, uint64_t *ret, struct pawl_error *err)
{
	uint64_t seq = 0;
	for (int as_tar = 0; as_tar < 2 && has_link(s) && seq == 0; as_tar++) {
		int rc = follow_link(s, as_tar, &seq, err);
		if (rc < 0 && rc != PAWL_ENOTFOUND)
			return rc;
	}
	*ret = seq;
	return 0;
}

/* The newest file, if a process was killed after it made the file and before it set the latest
 * link. A run that continues from that link will write this file again. *ret NULL: there is
 * none. */
static int
find_unlinked(const struct pawl_saver *s, bool as_tar, const struct composer_row **ret, struct pawl_error *err)
{
	uint64_t seq = 0;
	*ret = NULL;
	if (s->n_rows == 0 || !has_link(s))
		return 0;
	const struct composer_row *newest = &s->rows[s->n_rows - 1];
	int rc = follow_link(s, as_tar, &seq, err);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	if (rc == PAWL_ENOTFOUND ? s->n_rows == 1 : seq != 0 && seq != newest->seq)
		*ret = newest;
	return 0;
}

struct look {
	struct pawl_saver *saver;
	const struct pawl_progress *now;
	struct name_values values;
	const struct composer_row *unlinked; /* does not conflict; NULL = none */
	const char *folder;                  /* below the saver's, with a slash at the end, or "" */
	unsigned depth;                      /* levels of folders that a name can have below this one */
	bool as_tar;
	struct pawl_error *err;
};

static int check_folder(struct look *look, struct pawl_error *err);

const struct composer_row *
composer_own_row(const struct pawl_saver *s, const char *name)
{
	for (size_t i = 0; i < s->n_rows; i++)
		if (strcmp(s->rows[i].name, name) == 0)
			return &s->rows[i];
	return NULL;
}

static int
check_entry(void *arg, const struct store_entry *entry)
{
	struct look *look = arg;
	struct pawl_progress was;
	PAWL_FREE char *name = mem_printf("%s%s", look->folder, entry->name);
	if (!name)
		return err_nomem(look->err, "checkpoint saver");
	if (entry->is_folder && look->depth > 0 && entry->name[0] != '.') {
		PAWL_FREE char *folder = mem_printf("%s/", name);
		struct look below = *look;
		below.folder = folder;
		below.depth--;
		return folder ? check_folder(&below, look->err) : err_nomem(look->err, "checkpoint saver");
	}
	if (entry->is_folder || entry->is_link)
		return 0;
	const struct composer_row *own = composer_own_row(look->saver, name);
	int rc = composer_parse(look->saver->filename, &look->values, look->as_tar, name, &was, look->err);
	if (rc <= 0 || (own && own == look->unlinked))
		return rc < 0 ? rc : 0;
	if (!composer_conflicts(own ? &own->progress : &was, look->now))
		return 0;
	return err_set(look->err, PAWL_EEXISTS,
	               "%s/%s may conflict with a future checkpoint of this run; "
	               "delete it, choose another folder, or "
	               "set overwrite=True",
	               look->saver->folder, name);
}

static int
check_folder(struct look *look, struct pawl_error *err)
{
	size_t len = strlen(look->folder);
	PAWL_FREE char *folder = mem_strndup(look->folder, len > 0 ? len - 1 : 0);
	return folder ? store_list(look->saver->here, folder, check_entry, look, err)
	              : err_nomem(err, "checkpoint saver");
}

static int
check_conflicts(struct pawl_saver *s, const struct pawl_progress *now, bool as_tar, struct pawl_error *err)
{
	struct look look = {
		.saver = s, .now = now, .values = composer_values(s, now), .folder = "", .as_tar = as_tar, .err = err};
	if (s->overwrite)
		return 0;
	TRY(find_unlinked(s, as_tar, &look.unlinked, err));
	for (const char *at = s->filename + strspn(s->filename, "/"); (at = strchr(at, '/')); at++)
		look.depth++;
	return check_folder(&look, err);
}

/* Intervals continue from the last save before `now`. With several ranks a save at `now` does not
 * count: rank 0 may have just made it, and the others must then save, too. */
static void
set_last(struct pawl_saver *s, const struct composer_row *rows, size_t n, const struct pawl_progress *now)
{
	const struct composer_row *row = s->has_last ? NULL : composer_before(rows, n, now, s->rank.world_size == 1);
	if (!row)
		return;
	s->last = row->progress;
	s->has_last = true;
}

/* A rank that does not write counts from the last save of rank 0, as rank 0 does. Else they would
 * not call for the state together, which may be a collective operation. */
static int
ask_rank_0(struct pawl_saver *s, const struct pawl_progress *now, struct pawl_error *err)
{
	PAWL_CLEAN(clear_rows) struct pawl_saver of_0 = {0};
	PAWL_CLEAN(store_close_clean) struct store *here = NULL;
	PAWL_FREE char *folder = NULL;
	struct name_values values = composer_values(s, NULL);
	struct pawl_error why = {0};
	values.rank = values.local_rank = values.node_rank = 0;
	PAWL_FREE char *key = make_key(s, 0);
	PAWL_FREE char *journal = key ? mem_printf("%s.json", key) : NULL;
	if (!journal)
		return err_nomem(err, "checkpoint saver");
	TRY(composer_fill_folder(s->folder_template, &values, &folder, err));
	int rc = store_file_open(folder, false, false, &here, &why);
	if (rc == 0) {
		of_0.here = here;
		of_0.journal = journal;
		rc = composer_journal_read(&of_0, &why);
	}
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return err_give(err, rc, &why);
	set_last(s, of_0.rows, of_0.n_rows, now);
	s->asked = true;
	return 0;
}

/* Called after the check for conflicts: a run that is refused deletes nothing. The lock is held. */
static int
continue_run(struct pawl_saver *s, const struct pawl_progress *now, struct pawl_error *err)
{
	set_last(s, s->rows, s->n_rows, now);
	composer_begin_uploads(s);
	return composer_drop_spent(s, err);
}

int
composer_start(struct pawl_saver *s, const struct pawl_progress *now, bool writes, bool as_tar, struct pawl_error *err)
{
	const bool appends = as_tar && !composer_is_tar(s->filename);
	if (!writes)
		return s->asked ? 0 : ask_rank_0(s, now, err);
	if (s->started[appends])
		return 0;
	TRY(begin_saver(s, err));
	pthread_mutex_lock(&s->lock);
	int rc = check_conflicts(s, now, as_tar, err);
	if (rc == 0)
		rc = continue_run(s, now, err);
	pthread_mutex_unlock(&s->lock);
	s->started[appends] = rc == 0;
	return rc;
}
