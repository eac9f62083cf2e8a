/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_rsync: copies a folder to or from another machine, by rsync over ssh (R116, R121).
 *
 * A push lists its files first. Packs are sent before the manifests of their checkpoints, so an
 * aborted sync leaves no manifest without its packs. A search's document is sent after its journal.
 * Pointers are sent last. A pull uses the same order by patterns; a checkpoint that is saved
 * meanwhile may arrive with its manifest first. Files of checkpoints never change, so none is
 * overwritten, least of all by a damaged one. A pattern also matches folders of users with the name
 * of the checkpoints' folder. When all files are here, a pull compares those once more, by name.
 * Nothing is deleted on the other side. Folders of saves in progress, the lease, and records of
 * running processes are not copied.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hidden.h"
#include "catalog/catalog.h"
#include "jobs/sync/sync.h"
#include "state/manifest.h"
#include "store/store.h"

#define MAX_WORDS 48
#define SSH_OPTIONS                                                                              \
	" -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15 -oServerAliveCountMax=4 " \
	"-oClearAllForwardings=yes -oForwardAgent=no"
#define STATUS_VANISHED 24 /* files vanished since they were listed: old checkpoints */
#define STATUS_PARTIAL 23  /* something was missing, unreadable or not writable */

/* ------------------------------------------------------------------ running */

struct line {
	struct bump memory;
	char *words[MAX_WORDS];
	size_t n;
	bool failed;
};

static void
add_word(struct line *l, const char *word)
{
	l->words[l->n] = bump_strndup(&l->memory, word, strlen(word));
	l->failed = l->failed || l->words[l->n] == NULL;
	l->n++;
}

static void
clear_line(struct line *l)
{
	bump_clear(&l->memory);
}

/* The words at the start of all passes. */
static void
begin_line(struct line *l)
{
	static const char *const always[] = {"rsync",
	                                     "-rlpt",
	                                     "-s",
	                                     "--partial-dir=.rsync.partial", /* incomplete files have no name yet */
	                                     "--timeout=60",
	                                     "--exclude=.*" HIDDEN_PARTIAL,
	                                     "--exclude=.*" HIDDEN_TMP,
	                                     "--exclude=.checkpoint_*",
	                                     "--exclude=.lease",
	                                     "--exclude=.lease.*",
	                                     "--exclude=.pawl/holds",
	                                     "--exclude=.pawl/meet",
	                                     "--exclude=.pawl/recycle",
	                                     "--exclude=/.lock",
	                                     "--exclude=/.runner",
	                                     "-e"};
	const char *given = getenv("PAWL_SSH");
	for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
		add_word(l, always[i]);
	char *ssh = bump_printf(&l->memory, "%s" SSH_OPTIONS, given != NULL && given[0] != '\0' ? given : "ssh");
	l->failed = l->failed || ssh == NULL;
	l->words[l->n++] = ssh;
}

static void
add_folder(struct line *l, const struct sync_place *p)
{
	size_t len = strlen(p->text);
	char *text = bump_printf(&l->memory, "%s%s", p->text, len > 0 && p->text[len - 1] == '/' ? "" : "/");
	l->failed = l->failed || text == NULL;
	l->words[l->n++] = text;
}

static int
run_line(struct line *l, const struct buf *feed, const struct sync_place *source, const struct sync_place *target,
         const struct sync_limit *limit, struct pawl_error *err)
{
	int status;
	struct pawl_error why = {0};
	add_word(l, "--");
	add_folder(l, source);
	add_folder(l, target);
	l->words[l->n] = NULL;
	if (l->failed)
		return err_nomem(err, "rsync");
	int rc = sync_run(l->words, feed, limit, &status, &why);
	if (rc == PAWL_EIO && status == STATUS_VANISHED)
		return 0;
	/* 255 is ssh's. 10 to 14, 30 and 35 mean a connection that was refused or cut. */
	if (rc == PAWL_EIO && (status == 255 || (status >= 10 && status <= 14) || status == 30 || status == 35))
		rc = strstr(why.message, "ermission denied") != NULL || strstr(why.message, "Host key") != NULL
		             ? PAWL_EAUTH
		             : PAWL_ETRANSIENT;
	if (rc == PAWL_EIO && status == STATUS_PARTIAL && source->kind == SYNC_HOST &&
	    strstr(why.message, "change_dir") != NULL && strstr(why.message, "No such file") != NULL)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such folder", source->text);
	return rc < 0 ? err_set(err, rc, "%s", why.message) : 0;
}

/* Selects the names of checkpoints' files, or the others, of those that have `part` in them. */
static void
choose_names(const struct sync_names *all, const struct buf *names, bool fixed, const char *part, struct buf *ret)
{
	for (size_t at = 0; at < names->len; at += strlen(names->ptr + at) + 1)
		if (sync_is_fixed(all, names->ptr + at) == fixed && strstr(names->ptr + at, part) != NULL)
			buf_put(ret, names->ptr + at, strlen(names->ptr + at) + 1);
}

static int
list_folder(const char *folder, const struct sync_limit *limit, struct sync_names *ret, struct pawl_error *err)
{
	PAWL_CLEAN(store_close_clean) struct store *store = NULL;
	TRY(store_open(folder, false, true, &store, err));
	return sync_list(store, limit, ret, err);
}

static int
push_some(const struct sync_names *all, const struct buf *names, bool fixed, const struct sync_place *source,
          const struct sync_place *target, const struct sync_limit *limit, struct pawl_error *err)
{
	PAWL_CLEAN(clear_line) struct line l = {0};
	PAWL_CLEAN(buf_clear) struct buf some = {0};
	choose_names(all, names, fixed, "", &some);
	TRY(buf_check(&some, "rsync", err));
	if (some.len == 0)
		return 0;
	begin_line(&l);
	if (fixed)
		add_word(&l, "--ignore-existing");
	add_word(&l, "--files-from=-");
	add_word(&l, "--from0");
	add_word(&l, "--ignore-missing-args");
	add_word(&l, "--mkpath");
	return run_line(&l, &some, source, target, limit, err);
}

static int
push_names(const struct sync_names *all, const struct buf *names, const struct sync_place *source,
           const struct sync_place *target, const struct sync_limit *limit, struct pawl_error *err)
{
	TRY(push_some(all, names, true, source, target, limit, err));
	return push_some(all, names, false, source, target, limit, err);
}

static int
pull_patterns(const char *const *patterns, const struct sync_place *source, const struct sync_place *target,
              const struct sync_limit *limit, struct pawl_error *err)
{
	PAWL_CLEAN(clear_line) struct line l = {0};
	begin_line(&l);
	for (; *patterns != NULL; patterns++)
		add_word(&l, *patterns);
	return run_line(&l, NULL, source, target, limit, err);
}

/* Files that the patterns took for files of checkpoints, and that are not. */
static int
pull_changed(const struct sync_place *source, const struct sync_place *target, const struct sync_limit *limit,
             struct pawl_error *err)
{
	static const char *const words[] = {"--no-links", "--files-from=-", "--from0", "--ignore-missing-args"};
	PAWL_CLEAN(sync_names_clear) struct sync_names names = {0};
	PAWL_CLEAN(clear_line) struct line l = {0};
	PAWL_CLEAN(buf_clear) struct buf some = {0};
	TRY(list_folder(target->text, limit, &names, err));
	const struct buf *const all[] = {&names.packs, &names.manifests, &names.searches};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		choose_names(&names, all[i], false, CATALOG_FOLDER "/", &some);
	TRY(buf_check(&some, "rsync", err));
	if (some.len == 0)
		return 0;
	begin_line(&l);
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		add_word(&l, words[i]);
	return run_line(&l, &some, source, target, limit, err);
}

/* A pointer may name a checkpoint that was saved there after the others were copied. The next
 * training writes it again. */
static int
drop_dangling(const char *folder, const struct sync_limit *limit, struct pawl_error *err)
{
	PAWL_CLEAN(sync_names_clear) struct sync_names names = {0};
	PAWL_CLEAN(store_close_clean) struct store *store = NULL;
	TRY(store_open(folder, false, true, &store, err));
	TRY(sync_list(store, limit, &names, err));
	const struct buf *all = &names.pointers;
	for (size_t at = 0; at < all->len; at += strlen(all->ptr + at) + 1) {
		PAWL_FREE char *path = mem_printf("%s/%s", folder, all->ptr + at);
		if (path == NULL)
			return err_nomem(err, folder);
		const char *slash = strrchr(path, '/');
		const bool ours = strcmp(slash, "/latest") == 0 || strcmp(slash, "/best") == 0;
		if (ours && access(path, F_OK) < 0 && errno == ENOENT)
			TRY(store_remove(store, all->ptr + at, err));
	}
	return 0;
}

int
sync_rsync(const struct sync_place *source, const struct sync_place *target, bool pointers_only,
           const struct sync_limit *limit, struct pawl_error *err)
{
	static const char *const passes[][8] = {
		{"-m", "--no-links", "--ignore-existing", "--exclude=" MANIFEST_NAME, "--include=*/",
	         "--include=" CATALOG_FOLDER "/*/**", "--exclude=*", NULL},
		{"-m", "--no-links", "--ignore-existing", "--include=*/",
	         "--include=" CATALOG_FOLDER "/*/" MANIFEST_NAME, "--exclude=*", NULL},
		{"-m", "--no-links", "--exclude=" CATALOG_FOLDER "/*/**", "--exclude=" MANIFEST_NAME,
	         "--exclude=" SYNC_SEARCH, NULL},
		{"-m", "--no-links", "--exclude=" CATALOG_FOLDER "/*/**", "--exclude=" SYNC_SEARCH, NULL},
		{"-m", "--no-links", "--exclude=" CATALOG_FOLDER "/*/**", NULL},
	};
	static const char *const pointers[] = {
		"-m", "--safe-links", "--include=*/", "--include=latest", "--include=best", "--exclude=*", NULL};
	PAWL_CLEAN(sync_names_clear) struct sync_names names = {0};
	if (source->kind == SYNC_HOST) {
		if (pointers_only) {
			TRY(pull_patterns(pointers, source, target, limit, err));
			return drop_dangling(target->text, limit, err);
		}
		for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++)
			TRY(pull_patterns(passes[i], source, target, limit, err));
		return pull_changed(source, target, limit, err);
	}
	TRY(list_folder(source->text, limit, &names, err));
	if (pointers_only)
		return push_names(&names, &names.pointers, source, target, limit, err);
	TRY(push_names(&names, &names.packs, source, target, limit, err));
	TRY(push_names(&names, &names.manifests, source, target, limit, err));
	return push_names(&names, &names.searches, source, target, limit, err);
}
