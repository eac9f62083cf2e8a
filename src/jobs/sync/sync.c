/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync: copies a folder to another place, or back. See pawl_jobs.h, "syncing",
 * and docs/how-to/sync.md.
 *
 * The order is always: files, manifests, verification (P14), pointers. Every sync may be
 * repeated, and resumes where the last one ended (P15). One deadline covers all of it (P16). A
 * password in a place is refused, since the command line would show it (P18).
 */
#include "jobs/sync/sync.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/hide.h"
#include "base/text.h"
#include "pawl_jobs.h"
#include "store/registry.h"
#include "store/store.h"

#define DEFAULT_TIMEOUT_MS (INT64_C(1800) * 1000)
#define LONGEST_TIMEOUT_MS INT64_C(1000000000000) /* as of pawl_open_opts: can be added to any time */

struct pawl_syncer {
	struct sync_place local, remote;
	char *command; /* or NULL */
	bool shell, verify;
	int64_t timeout_ms;
	struct pawl_stores stores;              /* of the caller, for remote */
	pthread_mutex_t lock;                   /* held over a sync; guards all below */
	struct sync_seen seen_here, seen_there; /* checkpoints that were verified */
	struct sync_view view;                  /* for a caller that moves the files itself */
	struct sync_sent sent;                  /* of the last sync up */
};

/* ------------------------------------------------------------------- places */

void
sync_place_clear(struct sync_place *p)
{
	mem_free(p->text);
	mem_free(p->store);
	*p = (struct sync_place){0};
}

static int
has_password(const char *url)
{
	const char *begin = strstr(url, "://");
	if (begin == NULL)
		return false;
	begin += 3;
	size_t len = strcspn(begin, "/");
	const char *sign = memchr(begin, '@', len),
		   *colon = sign != NULL ? memchr(begin, ':', (size_t)(sign - begin)) : NULL;
	return colon != NULL;
}

/* "user@host:path": length up to the colon, or 0. */
static size_t
host_length(const char *text)
{
	size_t len = strcspn(text, ":/[");
	if (text[len] == '[') {
		const char *end = strchr(text + len, ']');
		if (end == NULL || end[1] != ':')
			return 0;
		return (size_t)(end + 1 - text);
	}
	return text[len] == ':' ? len : 0;
}

static int
read_host(const char *text, size_t len, struct sync_place *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf url = {0};
	for (size_t i = 0; i < len; i++)
		if (text[0] == '-' || (!isalnum((unsigned char)text[i]) && strchr("._-+@[]:%", text[i]) == NULL))
			return err_set(err, PAWL_EUSAGE, "%.200s: the host name is malformed, expected user@host:path",
			               text);
	buf_puts(&url, "ssh://");
	buf_put(&url, text, len);
	buf_puts(&url, text[len + 1] == '/' ? "" : "/~/");
	for (const char *c = text + len + 1; *c != '\0'; c++)
		if (*c == '%' || *c == '?')
			buf_printf(&url, "%%%02X", (unsigned)*c);
		else
			buf_putc(&url, *c);
	TRY(buf_check(&url, "sync", err));
	ret->kind = SYNC_HOST;
	ret->text = mem_strdup(text);
	ret->store = mem_strdup(buf_str(&url));
	return 0;
}

/* Made absolute: commands may run in another folder. */
static int
read_path(const char *path, struct sync_place *ret, struct pawl_error *err)
{
	char here[PATH_MAX];
	if (path[0] != '/' && getcwd(here, sizeof here) == NULL)
		return err_set(err, PAWL_EIO, "%.200s: the working folder is unknown", path);
	ret->kind = SYNC_LOCAL;
	ret->text = path[0] == '/' ? mem_strdup(path) : mem_printf("%s/%s", here, path);
	for (size_t n = ret->text != NULL ? strlen(ret->text) : 0; n > 1 && ret->text[n - 1] == '/'; n--)
		ret->text[n - 1] = '\0';
	ret->store = ret->text != NULL ? mem_strdup(ret->text) : NULL;
	return 0;
}

int
sync_place_read(const char *given, struct sync_place *ret, struct pawl_error *err)
{
	*ret = (struct sync_place){0};
	if (given == NULL || given[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "sync: expected a path or a URL, found nothing");
	if (has_password(given))
		return err_set(err, PAWL_EUSAGE,
		               "sync: a URL has a password in it; expected a key, an agent or a configuration");
	size_t host = host_length(given);
	const char *path = text_skip_file(given);
	bool is_url = text_is_url(given);
	if (path != given) {
		TRY(read_path(path, ret, err));
	} else if (!is_url && host > 0) {
		TRY(read_host(given, host, ret, err));
	} else if (!is_url) {
		TRY(read_path(given, ret, err));
	} else {
		const struct store_kind *kind = registry_find(given);
		ret->kind = kind != NULL && kind->is_remote ? SYNC_STORE : SYNC_OTHER;
		ret->text = mem_strdup(given);
		ret->store = ret->kind == SYNC_STORE ? mem_strdup(given) : NULL;
	}
	if (ret->text == NULL || (ret->kind != SYNC_OTHER && ret->store == NULL)) {
		sync_place_clear(ret);
		return err_nomem(err, "sync");
	}
	return 0;
}

int
sync_place_open(const struct sync_place *p, bool create, struct store **ret, struct pawl_error *err)
{
	return store_open_with(p->stores, p->store, create, !create, ret, err);
}

/* ------------------------------------------------------------------- handle */

void
pawl_syncer_close(struct pawl_syncer *s)
{
	if (s == NULL)
		return;
	sync_seen_clear(&s->seen_here);
	sync_seen_clear(&s->seen_there);
	sync_view_clear(&s->view);
	sync_sent_clear(&s->sent);
	sync_place_clear(&s->local);
	sync_place_clear(&s->remote);
	pthread_mutex_destroy(&s->lock);
	mem_free(s->command);
	mem_free(s);
}

/* A template without a required field, or with an open quote, is refused before anything is
 * synced. */
static int
check_command(const struct pawl_syncer *s, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	char **words;
	return sync_command_words(s->command, s->shell, "a", "b", &memory, &words, err);
}

static int
refuse_remote(const struct pawl_syncer *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf known = {0};
	registry_describe(&known, true);
	return err_set(err, PAWL_EUSAGE,
	               "%.300s: pawl cannot copy there by itself; expected a command, user@host:path, %s",
	               s->remote.text, buf_str(&known));
}

static int
read_options(struct pawl_syncer *s, const char *local, const char *remote, const struct pawl_syncer_opts *o,
             struct pawl_error *err)
{
	TRY(sync_place_read(local, &s->local, err));
	TRY(sync_place_read(remote, &s->remote, err));
	if (s->local.kind != SYNC_LOCAL)
		return err_set(err, PAWL_EUSAGE, "%s: expected a path of this machine", s->local.text);
	if (o->timeout_ms < 0 || o->timeout_ms > LONGEST_TIMEOUT_MS)
		return err_set(err, PAWL_EUSAGE, "sync: expected a timeout of 0 to %lld ms, found %lld",
		               (long long)LONGEST_TIMEOUT_MS, (long long)o->timeout_ms);
	s->shell = o->shell != 0;
	s->verify = !o->no_verify;
	s->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
	if (o->command != NULL) {
		s->command = mem_strdup(o->command);
		return s->command == NULL ? err_nomem(err, "sync") : check_command(s, err);
	}
	if (s->remote.kind == SYNC_HOST && strstr(s->remote.text, ":/") == strchr(s->remote.text, ':'))
		TRY(store_check_slashes(s->remote.text, err)); /* s3:/x names a bucket badly, not a host */
	if (s->remote.kind == SYNC_OTHER && o->stores != NULL) {
		s->stores = *o->stores;
		s->remote.stores = &s->stores;
		s->remote.kind = SYNC_STORE;
		s->remote.store = mem_strdup(s->remote.text);
		return s->remote.store == NULL ? err_nomem(err, "sync") : 0;
	}
	return s->remote.kind == SYNC_OTHER ? refuse_remote(s, err) : 0;
}

int
pawl_syncer_open(const char *local, const char *remote, const struct pawl_syncer_opts *opts, struct pawl_syncer **ret,
                 struct pawl_error *err)
{
	struct pawl_syncer_opts o = PAWL_SYNCER_OPTS_INIT;
	struct pawl_error own = {0};
	if (ret == NULL)
		return err_set(err, PAWL_EUSAGE, "sync: expected a pointer that receives the handle, found NULL");
	if (opts != NULL && opts->size == 0)
		return err_set(err, PAWL_EUSAGE, "sync: the options have no size; start from PAWL_SYNCER_OPTS_INIT");
	if (opts != NULL)
		memcpy(&o, opts, opts->size < sizeof o ? opts->size : sizeof o);
	struct pawl_syncer *s = mem_zalloc(1, sizeof *s);
	if (s == NULL)
		return err_nomem(err, "sync");
	pthread_mutex_init(&s->lock, NULL);
	s->view.fd = -1;
	int rc = read_options(s, local, remote, &o, &own);
	if (rc < 0) {
		pawl_syncer_close(s);
		return err_give(err, rc, &own);
	}
	*ret = s;
	return 0;
}

/* ------------------------------------------------------------------ syncing */

enum what { BOTH, MOVE_ONLY, VERIFY_ONLY };

/* A place as a command gets it. Folders end with '/', as rsync wants them for their contents. */
static char *
shown_place(const struct sync_place *p)
{
	size_t len = strlen(p->text);
	bool folder = p->kind == SYNC_LOCAL || p->kind == SYNC_HOST;
	return mem_printf("%s%s", p->text, folder && len > 0 && p->text[len - 1] != '/' ? "/" : "");
}

static int
run_command(struct pawl_syncer *s, const struct sync_place *source, const struct sync_place *target,
            const struct sync_limit *limit, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_FREE char *from = shown_place(source);
	PAWL_FREE char *to = shown_place(target);
	char **words;
	int status;
	if (from == NULL || to == NULL)
		return err_nomem(err, "sync");
	TRY(sync_command_words(s->command, s->shell, from, to, &memory, &words, err));
	return sync_run(words, NULL, limit, &status, err);
}

static int
transfer_files(struct pawl_syncer *s, const struct sync_place *source, const struct sync_place *target,
               bool pointers_only, const struct sync_limit *limit, struct pawl_error *err)
{
	if (s->command != NULL)
		return pointers_only ? 0 : run_command(s, source, target, limit, err);
	/* pawl's own store sends no pointer to a checkpoint that was saved meanwhile. */
	if (pointers_only && target->kind == SYNC_HOST && sync_store(source, target, true, limit, NULL, NULL) == 0)
		return 0;
	if (s->remote.kind == SYNC_HOST)
		return sync_rsync(source, target, pointers_only, limit, err);
	return sync_store(source, target, pointers_only, limit, target == &s->remote ? &s->sent : NULL, err);
}

static int
list_here(struct pawl_syncer *s, const struct sync_limit *limit, struct sync_names *ret, struct pawl_error *err)
{
	struct store *store;
	TRY(sync_place_open(&s->local, false, &store, err));
	int rc = sync_list(store, limit, ret, err);
	store_close(store);
	return rc;
}

/* A transfer ended with success, but the place does not exist. The template may hold secrets, so
 * only its program is named. */
static int
left_nothing(const struct pawl_syncer *s, enum what what, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	char **words;
	if (what == VERIFY_ONLY || s->command == NULL)
		return err_set(err, PAWL_ENOTFOUND, "%s: the sync left nothing there", s->remote.text);
	TRY(sync_command_words(s->command, s->shell, "a", "b", &memory, &words, err));
	return err_set(err, PAWL_ENOTFOUND, "%s: the sync command '%.100s' ended with success, but left nothing there",
	               s->remote.text, words[0]);
}

/* Verifies the far side, if pawl can read it. 0 with a note: it cannot. */
static int
verify_there(struct pawl_syncer *s, enum what what, const struct sync_names *before, const struct sync_limit *limit,
             struct pawl_syncer_report *report, struct pawl_error *err)
{
	struct pawl_error why = {0};
	struct store *store;
	if (s->remote.store == NULL) {
		text_copy(report->note, sizeof report->note, "sent, but not verified: pawl cannot read there");
		return 0;
	}
	int rc = sync_place_open(&s->remote, false, &store, &why);
	/* If nothing is there, nothing was copied. If a command can reach a place that pawl cannot,
	 * the sync has not failed. */
	bool missing =
		rc == PAWL_ENOTFOUND && (s->remote.kind == SYNC_LOCAL || strstr(why.message, "cannot stat") != NULL);
	if (rc < 0 && !missing && (s->command != NULL || rc == PAWL_EUNSUPPORTED)) {
		char note[sizeof report->note + sizeof why.message];
		snprintf(note, sizeof note, "sent, but not verified: %s", why.message);
		text_copy(report->note, sizeof report->note, note);
		return 0;
	}
	if (missing)
		return left_nothing(s, what, err);
	if (rc < 0)
		return err_give(err, rc, &why);
	store_close(store);
	TRY(sync_check(&s->remote, s->local.store, before, &s->seen_there, limit, &report->n_checkpoints, err));
	report->verified = 1;
	return 0;
}

static int
verify_here(struct pawl_syncer *s, const struct sync_limit *limit, struct pawl_syncer_report *report,
            struct pawl_error *err)
{
	TRY(sync_check(&s->local, NULL, NULL, &s->seen_here, limit, &report->n_checkpoints, err));
	report->verified = 1;
	return 0;
}

/* Makes the folders above the target: few programs do. On a host that only the command can enter,
 * it must. */
static int
make_parents(const struct sync_place *target, struct pawl_error *err)
{
	const char *place = target->kind == SYNC_LOCAL || target->kind == SYNC_HOST ? target->store : "";
	const char *slash = strrchr(place, '/');
	PAWL_FREE char *above = mem_printf("%.*s", slash != NULL ? (int)(slash - place) : 0, place);
	struct store *store;
	if (above == NULL)
		return err_nomem(err, "sync");
	if (target->kind == SYNC_LOCAL)
		return above[0] != '\0' ? fd_mkdirs(AT_FDCWD, above, err) : 0;
	const char *host = strstr(above, "://");
	if (host != NULL && strchr(host + 3, '/') != NULL && store_open(above, true, true, &store, NULL) == 0)
		store_close(store);
	return 0;
}

/* A run may remove a checkpoint of which a part was sent. The journal of a search names
 * checkpoints: it must be sent with those that existed when it was written. */
static bool
changes_meanwhile(const struct pawl_syncer *s, const struct sync_names *names)
{
	PAWL_FREE char *journal = mem_printf("%s/" SYNC_JOURNAL, s->local.text);

	return (names->runs.len > 0 || (journal != NULL && access(journal, F_OK) == 0)) &&
	       access(s->local.text, W_OK) == 0;
}

static int
send_from_view(struct pawl_syncer *s, enum what what, const struct sync_limit *limit, struct pawl_syncer_report *report,
               struct pawl_error *err)
{
	PAWL_CLEAN(sync_view_clear) struct sync_view view = {.fd = -1};
	if (s->command != NULL)
		TRY(make_parents(&s->remote, err));
	TRY(sync_view_make(s->local.text, limit, &view, err));
	const struct sync_place source = {SYNC_LOCAL, view.path, view.path, NULL};
	int rc = transfer_files(s, &source, &s->remote, false, limit, err);
	if (rc >= 0 && what != MOVE_ONLY)
		rc = verify_there(s, what, &view.names, limit, report, err);
	if (rc >= 0)
		rc = transfer_files(s, &source, &s->remote, true, limit, err);
	if (rc < 0)
		sync_view_name_source(&view, s->local.text, err);
	return rc;
}

static int
send_files(struct pawl_syncer *s, enum what what, const struct sync_limit *limit, struct pawl_syncer_report *report,
           struct pawl_error *err)
{
	PAWL_CLEAN(sync_names_clear) struct sync_names before = {0};
	if (what != VERIFY_ONLY && s->command != NULL) /* which does not know what files are temporary */
		return send_from_view(s, what, limit, report, err);
	if (s->view.path != NULL)
		return verify_there(s, what, &s->view.names, limit, report, err);
	TRY(list_here(s, limit, &before, err));
	if (what != VERIFY_ONLY && changes_meanwhile(s, &before))
		return send_from_view(s, what, limit, report, err);
	if (what != VERIFY_ONLY)
		TRY(transfer_files(s, &s->local, &s->remote, false, limit, err));
	if (what != MOVE_ONLY)
		TRY(verify_there(s, what, &before, limit, report, err));
	return what != VERIFY_ONLY ? transfer_files(s, &s->local, &s->remote, true, limit, err) : 0;
}

static int
receive_files(struct pawl_syncer *s, enum what what, const struct sync_limit *limit, struct pawl_syncer_report *report,
              struct pawl_error *err)
{
	TRY(fd_mkdirs(AT_FDCWD, s->local.text, err));
	if (what != VERIFY_ONLY)
		TRY(transfer_files(s, &s->remote, &s->local, false, limit, err));
	if (what != MOVE_ONLY)
		TRY(verify_here(s, limit, report, err));
	return what != VERIFY_ONLY ? transfer_files(s, &s->remote, &s->local, true, limit, err) : 0;
}

/* One call at a time; the caller unlocks. */
static int
begin_sync(struct pawl_syncer *s, struct pawl_error *err)
{
	if (s == NULL)
		return err_set(err, PAWL_EUSAGE, "sync: expected a handle, found NULL");
	if (pthread_mutex_trylock(&s->lock) != 0)
		return err_set(err, PAWL_EBUSY, "%s: is already being synced", s->local.text);
	return 0;
}

static int
run_transfer(struct pawl_syncer *s, bool down, enum what what, struct pawl_meter *meter, struct pawl_syncer_report *ret,
             struct pawl_error *err)
{
	struct pawl_syncer_report report = PAWL_SYNCER_REPORT_INIT;
	struct pawl_error own = {0};
	struct sync_limit limit = {.begin_ms = clock_mono_ms(), .meter = meter};
	TRY(begin_sync(s, err));
	limit.deadline_ms = limit.begin_ms + s->timeout_ms;
	sync_sent_clear(&s->sent);
	int rc = (down ? receive_files : send_files)(s, what, &limit, &report, &own);
	pthread_mutex_unlock(&s->lock);
	report.seconds = (double)(clock_mono_ms() - limit.begin_ms) / 1000;
	if (rc == 0 && ret != NULL) {
		size_t size = ret->size < sizeof report ? ret->size : sizeof report;
		report.size = ret->size;
		memcpy(ret, &report, size);
	}
	if (rc == PAWL_ETIMEOUT)
		own.sys = 0;
	return err_give(err, rc, &own);
}

int
pawl_syncer_up(struct pawl_syncer *s, struct pawl_meter *meter, struct pawl_syncer_report *ret, struct pawl_error *err)
{
	return run_transfer(s, false, s && !s->verify ? MOVE_ONLY : BOTH, meter, ret, err);
}

int
pawl_syncer_down(struct pawl_syncer *s, struct pawl_meter *meter, struct pawl_syncer_report *ret,
                 struct pawl_error *err)
{
	return run_transfer(s, true, s && !s->verify ? MOVE_ONLY : BOTH, meter, ret, err);
}

int
pawl_syncer_verify(struct pawl_syncer *s, int down, struct pawl_meter *meter, struct pawl_syncer_report *ret,
                   struct pawl_error *err)
{
	return run_transfer(s, down != 0, VERIFY_ONLY, meter, ret, err);
}

static int
freeze_view(struct pawl_syncer *s, struct pawl_meter *meter, struct pawl_error *err)
{
	struct sync_limit limit = {.begin_ms = clock_mono_ms(), .meter = meter};
	limit.deadline_ms = limit.begin_ms + s->timeout_ms;
	sync_view_clear(&s->view);
	TRY(make_parents(&s->remote, err));
	return sync_view_make(s->local.text, &limit, &s->view, err);
}

int
pawl_syncer_freeze(struct pawl_syncer *s, struct pawl_meter *meter, const char **ret_path, struct pawl_error *err)
{
	struct pawl_error own = {0};
	if (ret_path == NULL)
		return err_set(err, PAWL_EUSAGE, "sync: expected a pointer that receives the path, found NULL");
	TRY(begin_sync(s, err));
	int rc = freeze_view(s, meter, &own);
	if (rc == 0)
		*ret_path = s->view.path;
	pthread_mutex_unlock(&s->lock);
	return err_give(err, rc, &own);
}

void
pawl_syncer_thaw(struct pawl_syncer *s)
{
	pthread_mutex_lock(&s->lock);
	sync_view_clear(&s->view);
	pthread_mutex_unlock(&s->lock);
}

static int
prune_folders(struct pawl_syncer *s, const char *const *folders, size_t n, struct pawl_error *err)
{
	const struct sync_limit limit = {.begin_ms = clock_mono_ms(), .deadline_ms = clock_mono_ms() + s->timeout_ms};
	struct store *store;
	if (s->remote.store == NULL)
		return 0;
	TRY(text_check_list("sync: folders", folders, n, err));
	for (size_t i = 0; i < n; i++)
		if (!text_is_key(folders[i]))
			return err_set(err, PAWL_EUSAGE, "%.200s: expected the path of a folder below the target",
			               folders[i]);
	int rc = sync_place_open(&s->remote, false, &store, err);
	if (rc < 0)
		return s->command != NULL || rc == PAWL_EUNSUPPORTED ? 0 : rc;
	rc = sync_prune(store, folders, n, &s->sent, &limit, err);
	store_close(store);
	return rc;
}

int
pawl_syncer_prune(struct pawl_syncer *s, const char *const *folders, size_t n, struct pawl_error *err)
{
	struct pawl_error own = {0};
	TRY(begin_sync(s, err));
	int rc = prune_folders(s, folders, n, &own);
	pthread_mutex_unlock(&s->lock);
	return err_give(err, rc, &own);
}
