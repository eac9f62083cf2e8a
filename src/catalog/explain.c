/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain: see explain.h. Called only after a failure, so it may list folders. The message
 * leaves out folders that cannot be listed.
 */
#include "catalog/explain.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/err.h"
#include "base/err_path.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"
#include "base/vec.h"
#include "catalog/places.h"
#include "run/run_file.h"
#include "state/manifest.h"
#include "store/store.h"

#define MAX_NAMES 1000u

/* The length of the parent's part of a path or URL; 0: it has none. */
static size_t
parent_len(const char *path)
{
	const char *sign = strstr(path, "://"), *start = sign ? sign + 3 : path, *slash = strrchr(start, '/');

	return slash ? (size_t)(slash - path) : 0;
}

static bool
exists_in(const char *folder, const char *name)
{
	struct stat st;
	PAWL_FREE char *path = mem_printf("%s/%s", folder, name);

	return path && stat(path, &st) == 0;
}

/* ---- names ---- */

struct listing {
	struct bump memory;
	VEC(const char *) names;
};

static void
listing_clear(struct listing *l)
{
	vec_free(&l->names);
	bump_clear(&l->memory);
}

static int
visit_name(void *arg, const struct store_entry *entry)
{
	struct listing *l = arg;

	if (entry->name[0] == '.')
		return 0;
	if (l->names.n == MAX_NAMES)
		return PAWL_ELIMIT;
	const char **name = vec_add(&l->names);
	if (!name)
		return PAWL_ENOMEM;
	*name = bump_strndup(&l->memory, entry->name, strlen(entry->name));
	return *name ? 0 : PAWL_ENOMEM;
}

/* The existing path that is spelt much like a missing one, for mem_free; NULL: there is none. */
static char *
near_path(const char *path)
{
	PAWL_CLEAN(store_close_clean) struct store *store = NULL;
	PAWL_CLEAN(listing_clear) struct listing l = {0};
	const size_t len = parent_len(path);
	const char *last = len > 0 || path[0] == '/' ? path + len + 1 : path;
	PAWL_FREE char *parent = len > 0 ? mem_strndup(path, len) : mem_strdup(path[0] == '/' ? "/" : ".");

	if (!parent || (text_is_url(path) && len == 0))
		return NULL;
	int rc = store_open(parent, false, true, &store, NULL);
	if (rc == 0)
		rc = store_list(store, "", visit_name, &l, NULL);
	if (rc == PAWL_ENOTFOUND && len > 0) {
		PAWL_FREE char *near = near_path(parent);

		if (near && !text_is_url(near) && exists_in(near, last))
			return mem_printf("%s/%s", near, last);
		return near ? mem_strdup(near) : NULL;
	}
	const char *name = rc == 0 || rc == PAWL_ELIMIT ? names_nearest(last, l.names.items, l.names.n) : NULL;
	if (!name)
		return NULL;
	return last == path ? mem_strdup(name) : mem_printf("%.*s/%s", (int)len, path, name);
}

/* "; below it: a, b", runs and checkpoints, or why a folder cannot be listed. name: "it". */
static void
put_places(struct buf *out, const char *folder, const char *name)
{
	VEC(const char *) names = {0};
	struct pawl_places *places = NULL;
	const char *problem = NULL;

	if (pawl_places_open(folder, 0, &places, NULL) < 0)
		return;
	for (size_t i = 0; i < pawl_places_count(places); i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (place->problem)
			problem = place->problem;
		if (place->kind == PAWL_KIND_OTHER)
			continue;
		const char **row = vec_add(&names);
		if (row)
			*row = place->path;
	}
	if (names.n > 0) {
		buf_printf(out, "; below %s: ", name);
		names_put(out, names.items, names.n);
	} else if (problem) {
		buf_printf(out, "; %s", problem);
	}
	vec_free(&names);
	pawl_places_free(places);
}

/* ---- what is wrong ---- */

/* "; did you mean runs/demo?" of a path that does not exist, or what its folder holds. */
static void
put_meant(struct buf *out, const char *path)
{
	const char *slash = strrchr(path, '/'), *colon = strchr(path, ':'), *first = strchr(path, '/');
	const char *mark = colon && (!slash || colon > slash) ? colon : slash;
	PAWL_FREE char *run = mark ? mem_strndup(path, (size_t)(mark - path)) : NULL;
	PAWL_FREE char *near = NULL;

	if (run && *run && mark[1] && exists_in(run, RUN_KEY)) {
		buf_printf(out, "; did you mean %s@%s?", run, mark + 1);
		return;
	}
	if (colon && !text_is_url(path) && (!first || colon < first)) {
		buf_puts(out, "; a folder of another machine is ssh://USER@HOST/PATH");
		return;
	}
	near = near_path(path);
	if (near) {
		buf_printf(out, "; did you mean %s?", near);
		return;
	}
	const size_t len = parent_len(path);
	PAWL_FREE char *parent = len > 0 ? mem_strndup(path, len) : NULL;

	if (parent)
		put_places(out, parent, parent);
}

static int
refuse_missing(const char *path, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(store_check_slashes(path, err));
	if (strncmp(path, "mem:", 4) == 0)
		return err_set(err, PAWL_EUSAGE, "%s: mem: is lost when it is closed; expected a folder or a URL",
		               path);
	if (!text_is_url(path) || !strchr(path, '?')) /* a URL's options would be missing from its parent's */
		put_meant(&text, path);
	return err_set(err, PAWL_ENOTFOUND, "%s: %s%s", path,
	               text_is_url(path) ? "no run and no checkpoint here (expected " RUN_KEY " or " MANIFEST_NAME ")"
	                                 : "no such file or folder",
	               buf_str(&text));
}

/* A folder that is neither a run nor a checkpoint. */
static int
refuse_folder(const char *path, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_FREE char *parent = text_is_url(path) ? NULL : mem_printf("%s/..", path);
	char above[PATH_MAX], here[PATH_MAX];

	if (parent && exists_in(parent, RUN_KEY) && realpath(parent, above))
		return err_set(err, PAWL_ENOTFOUND, "%s: a part of the run %s; name the run", path, above);
	if (parent && exists_in(parent, SEARCH_KEY) && realpath(parent, above) && realpath(path, here))
		return err_set(err, PAWL_ENOTFOUND, "%s: a trial of the search %s; 'pawl tune show %s %s' shows it",
		               path, above, above, strrchr(here, '/') + 1);
	put_places(&text, path, "it");
	return err_set(err, PAWL_ENOTFOUND, "%s: no run and no checkpoint here (expected %s)%s", path,
	               text_is_url(path) ? RUN_KEY " or " MANIFEST_NAME : RUN_KEY ", " MANIFEST_NAME " or .metadata",
	               buf_str(&text));
}

/* What exists at the path is not what was expected there. selector: "" = none was given. */
static int
refuse_found(int kind, const char *address, const char *path, const char *selector, struct pawl_error *err)
{
	if (kind == PAWL_KIND_RUN && *selector)
		return err_set(err, PAWL_EUSAGE, "%s names a checkpoint, expected a run; name %s", address, path);
	if (kind == PAWL_KIND_RUN)
		return err_set(err, PAWL_ENOTFOUND, "%s is a run; name a checkpoint, such as %s@latest", path, path);
	if (kind == PAWL_KIND_CHECKPOINT && *selector)
		return err_set(err, PAWL_EUSAGE, "%s: %s is one checkpoint, so '@%s' selects nothing in it", address,
		               path, selector);
	if (kind == PAWL_KIND_CHECKPOINT)
		return err_set(err, PAWL_ENOTFOUND, "%s is one checkpoint, expected a run", path);
	return refuse_folder(path, err);
}

/* 0: the path is not a link. sys: of following it. */
static int
refuse_link(const char *path, int sys, struct pawl_error *err)
{
	char to[PATH_MAX];
	ssize_t len = readlink(path, to, sizeof(to) - 1);

	if (len < 0)
		return 0;
	to[len] = '\0';
	return err_set(err, PAWL_ENOTFOUND,
	               sys == ELOOP ? "%s: a link to %s, which leads back to itself"
	                            : "%s: a link to %s, which does not exist",
	               path, to);
}

static int
refuse_path(const char *address, const char *path, const char *selector, struct pawl_error *err)
{
	struct stat st;

	if (stat(path, &st) < 0) {
		if (err_is_denied(errno))
			return err_denied(err, errno, path, false);
		return refuse_link(path, errno, err) < 0 ? PAWL_ENOTFOUND : refuse_missing(path, err);
	}
	if (!S_ISDIR(st.st_mode) && *selector)
		return err_set(err, PAWL_EUSAGE, "%s is a file, so '@%s' selects nothing in it", path, selector);
	if (!S_ISDIR(st.st_mode))
		return err_set(err, PAWL_ENOTFOUND, "%s is a file, but not a checkpoint", path);
	int kind = places_kind_of(path, NULL, err);

	return kind < 0 ? kind : refuse_found(kind, address, path, selector, err);
}

static int
refuse_url(const char *address, const char *url, const char *selector, struct pawl_error *err)
{
	int kind = places_kind_of(url, NULL, err);

	if (kind == PAWL_EUSAGE) /* a store of the caller's own */
		return err_set(err, PAWL_ENOTFOUND, "%s: no run and no checkpoint here", url);
	if (kind < 0)
		return kind;
	return kind == PAWL_KIND_NOTHING ? refuse_missing(url, err) : refuse_found(kind, address, url, selector, err);
}

int
explain_address(const char *address, struct pawl_error *err)
{
	if (!address)
		return err_set(err, PAWL_EUSAGE, "explain: expected an address, found NULL");
	if (!*address)
		return err_set(err, PAWL_EUSAGE, "the address is empty; name a run, a checkpoint or a file");
	PAWL_FREE char *root = mem_alloc(strlen(address) + 2), *selector = mem_alloc(strlen(address) + 2);

	if (!root || !selector)
		return err_nomem(err, address);
	bool selects = pawl_split_address(address, root, selector);
	const char *place = text_skip_file(root);

	if (selects && !*selector)
		return err_set(
			err, PAWL_EUSAGE,
			"%s: nothing after '@' (expected latest, best, good, a step, id:N or a checkpoint's name)",
			address);
	if (address[0] == '@' && places_kind_of(place, NULL, NULL) != PAWL_KIND_RUN)
		return err_set(err, PAWL_ENOTFOUND, "%s: the current folder is not a run; write RUN%s", address,
		               address);
	return text_is_url(place) ? refuse_url(address, place, selector, err)
	                          : refuse_path(address, place, selector, err);
}

int
pawl_explain_address(const char *address, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, explain_address(address, &own), &own);
}
