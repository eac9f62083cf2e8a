/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_store: copies a folder from one store to another: paths, and every URL that pawl knows.
 * Packs are copied before the manifests of their checkpoints, pointers last. A target file of the
 * same size that is not older stays. Nothing is deleted. If a file is a link of one that the target
 * has, it is linked there, or copied by the server, and not sent (R158). An object appears
 * complete: by a put, by finishing an upload, by a link, or by a rename. Also lists folders for
 * sync_rsync.c and sync_clone.c.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hidden.h"
#include "base/json.h"
#include "base/text.h"
#include "base/vec.h"
#include "catalog/catalog.h"
#include "copy/copy_object.h"
#include "jobs/sync/sync.h"
#include "run/lease.h"
#include "run/run.h"
#include "state/manifest.h"
#include "store/store.h"

#define MAX_POINTER_BYTES 1024u
#define TRIES 3                         /* of a file that changes while it is sent */
#define MAX_ID_BYTES ((size_t)16 << 20) /* experiment.json holds the search's space */

/* ------------------------------------------------------------------ listing */

struct walk {
	struct store *store;
	const struct sync_limit *limit;
	struct sync_names *names;
	bool flat;
	size_t n;
	int depth;
};

static int walk_folder(struct walk *w, const char *folder, struct pawl_error *err);

struct step {
	struct walk *walk;
	const char *folder;
	struct bump memory; /* of the folders below */
	char **below;
	size_t n_below, cap_below;
};

static bool
is_passing(const char *name)
{
	if (strncmp(name, LEASE_KEY ".", sizeof LEASE_KEY) == 0)
		return true; /* renewals */
	if (strncmp(name, ".checkpoint_", 12) == 0)
		return true; /* of a trial: being written, cloned or removed */
	return hidden_is(name) || strcmp(name, LEASE_KEY) == 0;
}

/* In stores without symbolic links pointers are objects of one line. */
static bool
is_pointer(const char *name)
{
	return strcmp(name, "latest") == 0 || strcmp(name, "best") == 0;
}

/* What runs a search, holds of readers, files for meeting ranks and files set aside for reuse mean
 * nothing elsewhere. */
static bool
is_of_this_place(const char *folder, const char *name)
{
	size_t len = strlen(folder);
	if (len == 0 && (strcmp(name, ".lock") == 0 || strcmp(name, ".runner") == 0))
		return true;
	bool passing = strcmp(name, "holds") == 0 || strcmp(name, "meet") == 0 || strcmp(name, "recycle") == 0;
	return passing && len >= 5 && strcmp(folder + len - 5, ".pawl") == 0;
}

bool
sync_stays_here(const char *folder, const char *name)
{
	return is_passing(name) || is_of_this_place(folder, name);
}

bool
sync_is_fixed(const struct sync_names *names, const char *key)
{
	static const char folder[] = CATALOG_FOLDER "/";
	const struct buf *runs = &names->runs;
	for (size_t at = 0; at < runs->len; at += strlen(runs->ptr + at) + 1) {
		const size_t len = strlen(runs->ptr + at);
		if (strncmp(key, runs->ptr + at, len) == 0 && strncmp(key + len, folder, sizeof folder - 1) == 0 &&
		    strchr(key + len + sizeof folder - 1, '/') != NULL)
			return true;
	}
	return false;
}

static int
add_entry(void *arg, const struct store_entry *entry)
{
	struct step *step = arg;
	struct walk *w = step->walk;
	const char *slash = step->folder[0] != '\0' ? "/" : "";
	if (sync_stays_here(step->folder, entry->name))
		return 0;
	if (++w->n > SYNC_MAX_FILES)
		return PAWL_ELIMIT;
	if (entry->is_folder) {
		if (!array_reserve(step->below, step->cap_below, step->n_below + 1))
			return PAWL_ENOMEM;
		char *name = bump_printf(&step->memory, "%s%s%s", step->folder, slash, entry->name);
		step->below[step->n_below] = name;
		step->n_below += name != NULL;
		return name != NULL ? 0 : PAWL_ENOMEM;
	}
	bool pointer = entry->is_link || (w->flat && is_pointer(entry->name));
	bool last = strcmp(entry->name, MANIFEST_NAME) == 0 || strcmp(entry->name, SYNC_JOURNAL) == 0;
	struct buf *to = pointer ? &w->names->pointers : last ? &w->names->manifests : &w->names->packs;
	if (strcmp(entry->name, SYNC_SEARCH) == 0)
		to = &w->names->searches;
	if (strcmp(entry->name, RUN_KEY) == 0) {
		buf_printf(&w->names->runs, "%s%s", step->folder, slash);
		buf_putc(&w->names->runs, '\0');
	}
	buf_printf(to, "%s%s%s", step->folder, slash, entry->name);
	buf_putc(to, '\0');
	return to->failed;
}

static void
clear_step(struct step *step)
{
	bump_clear(&step->memory);
	mem_free(step->below);
}

static int
walk_folder(struct walk *w, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(clear_step) struct step step = {.walk = w, .folder = folder};
	TRY(sync_limit_check(w->limit, "listing", err));
	if (w->depth >= SYNC_MAX_DEPTH)
		return err_set(err, PAWL_ELIMIT, "%s: folders are nested more than %d deep", folder, SYNC_MAX_DEPTH);
	struct pawl_error why = {0};
	int rc = store_list(w->store, folder, add_entry, &step, &why);
	if (rc == PAWL_ENOTFOUND && folder[0] != '\0')
		return 0; /* removed meanwhile */
	if (rc < 0)
		return err_set(err, rc, "%s: %s", folder, why.code < 0 ? why.message : "cannot be listed");
	w->depth++;
	for (size_t i = 0; rc == 0 && i < step.n_below; i++)
		rc = walk_folder(w, step.below[i], err);
	w->depth--;
	return rc;
}

int
sync_list(struct store *store, const struct sync_limit *limit, struct sync_names *ret, struct pawl_error *err)
{
	struct store_caps caps;
	store_get_caps(store, &caps);
	struct walk w = {.store = store, .limit = limit, .names = ret, .flat = caps.flat};
	int rc = walk_folder(&w, "", err);
	return rc;
}

void
sync_names_clear(struct sync_names *names)
{
	buf_clear(&names->packs);
	buf_clear(&names->manifests);
	buf_clear(&names->searches);
	buf_clear(&names->pointers);
	buf_clear(&names->runs);
}

/* ------------------------------------------------------------------ copying */

struct copy {
	struct store *from, *to;
	bool local_source; /* from's root is a path */
	bool flat_source;  /* its pointers are objects */
	bool links;        /* `to` can make an object from another one */
	const struct sync_limit *limit;
	struct sync_names names;  /* of from */
	struct sync_links linked; /* of a local source */
	struct sync_sent *sent;   /* or NULL */
};

/* True if the target's file seems the same by size and time. Its contents are verified later. A
 * target's time may be rounded to seconds. */
static bool
is_there(struct copy *c, const char *key, const struct store_entry *source, struct store_entry *ret)
{
	if (store_stat(c->to, key, ret, NULL) < 0 || ret->is_folder || ret->is_link)
		return false;
	const bool is_newer = ret->mtime_ns % 1000000000 != 0
	                              ? ret->mtime_ns > source->mtime_ns
	                              : ret->mtime_ns / 1000000000 >= source->mtime_ns / 1000000000;
	return ret->nbytes == source->nbytes && source->mtime_ns > 0 && is_newer;
}

/* A checkpoint that is complete at the target is never overwritten, least of all by a damaged one.
 * Verification finds what is wrong with it. */
static bool
is_complete_there(struct copy *c, const char *key)
{
	struct store_entry entry;
	if (!sync_is_fixed(&c->names, key))
		return false;
	const char *slash = strrchr(key, '/');
	PAWL_FREE char *manifest = mem_printf("%.*s/" MANIFEST_NAME, (int)(slash - key), key);
	return manifest == NULL || store_stat(c->to, manifest, &entry, NULL) == 0;
}

/* Input of take_step. */
struct step_arg {
	const struct sync_limit *limit;
	const char *key;
};

static int
take_step(void *arg, uint64_t nbytes, struct pawl_error *err)
{
	const struct step_arg *step = arg;
	(void)nbytes;
	return sync_limit_check(step->limit, step->key, err);
}

/* 1 = the source is gone. */
static int
send_file(struct copy *c, const char *key, struct pawl_error *err)
{
	struct step_arg step = {.limit = c->limit, .key = key};
	struct store_entry entry;
	int rc = copy_object(&(struct copy_object){.from = c->from,
	                                           .to = c->to,
	                                           .from_key = key,
	                                           .to_key = key,
	                                           .existing = COPY_REPLACE,
	                                           .step = take_step,
	                                           .arg = &step},
	                     err);
	return rc == PAWL_ENOTFOUND && store_stat(c->from, key, &entry, NULL) == PAWL_ENOTFOUND ? 1 : rc;
}

/* A file that is written to while it is sent is sent again. 1 = the source is gone. */
static int
send_current(struct copy *c, const char *key, struct store_entry *source, struct pawl_error *err)
{
	for (int i = 0; i < TRIES; i++) {
		struct store_entry now;
		int rc = send_file(c, key, err);
		if (rc != 0 || store_stat(c->from, key, &now, NULL) < 0 ||
		    (now.nbytes == source->nbytes && now.mtime_ns == source->mtime_ns))
			return rc;
		*source = now;
	}
	source->mtime_ns = 0; /* it still changes: what was sent is like no other name of it */
	return 0;
}

static void
note_link(struct sync_link *link, bool there, const struct store_entry *source)
{
	link->at_target = there ? SYNC_LINK_THERE : SYNC_LINK_ABSENT;
	link->nbytes = source->nbytes;
	link->mtime_ns = source->mtime_ns;
}

/* Another name of the same file that the target has. source: the local file's state. A name sent
 * before the file was written to is another file by now. */
static const char *
find_twin(struct copy *c, struct sync_link *link, const struct store_entry *source)
{
	size_t n;
	struct store_entry target;
	struct sync_link *twins = sync_links_twins(&c->linked, link, &n);
	for (size_t i = 0; i < n; i++)
		if (twins[i].at_target == SYNC_LINK_THERE && twins[i].nbytes == source->nbytes &&
		    twins[i].mtime_ns == source->mtime_ns)
			return twins[i].key;
	for (size_t i = 0; i < n; i++) {
		if (&twins[i] == link || twins[i].at_target != SYNC_LINK_UNKNOWN)
			continue;
		note_link(&twins[i], is_there(c, twins[i].key, source, &target), source);
		if (twins[i].at_target == SYNC_LINK_THERE)
			return twins[i].key;
	}
	return NULL;
}

/* True: the target has made it from another name of the same file. If that fails, the file is sent.
 * Files of a run's checkpoints are always sent: they must not share what may be damaged there. */
static bool
link_there(struct copy *c, struct sync_link *link, const struct store_entry *source)
{
	const char *twin = c->links && !sync_is_fixed(&c->names, link->key) ? find_twin(c, link, source) : NULL;
	const char *slash = strrchr(link->key, '/');
	PAWL_FREE char *folder = mem_printf("%.*s", slash != NULL ? (int)(slash - link->key) : 0, link->key);
	if (twin == NULL || folder == NULL || store_remove(c->to, link->key, NULL) < 0)
		return false;
	return store_link(c->to, twin, link->key, NULL) == 0 && store_sync(c->to, folder, NULL) == 0;
}

static int
note_sent(struct copy *c, const char *key, const struct store_entry *source, struct pawl_error *err)
{
	return c->sent != NULL ? sync_sent_add(c->sent, key, source->nbytes, err) : 0;
}

/* A file that vanished since it was listed is skipped. */
static int
copy_file(struct copy *c, const char *key, struct pawl_error *err)
{
	struct store_entry source, target = {0};
	struct pawl_error why = {0};
	struct sync_link *link = sync_links_get(&c->linked, c->from->root, key);
	TRY(sync_limit_check(c->limit, key, err));
	int rc = store_stat(c->from, key, &source, &why);
	bool there = rc == 0 && is_there(c, key, &source, &target);
	if (rc == PAWL_ENOTFOUND || (rc == 0 && !there && target.nbytes > 0 && is_complete_there(c, key)))
		return 0;
	bool made = rc == 0 && link != NULL && !there && link_there(c, link, &source);
	if (rc == 0 && link != NULL)
		note_link(link, there || made, &source);
	if (rc < 0)
		return err_give(err, rc, &why);
	if (there || made)
		return made ? note_sent(c, key, &source, err) : 0;
	rc = send_current(c, key, &source, err);
	if (rc == 0 && link != NULL)
		note_link(link, true, &source);
	if (rc == 0)
		return note_sent(c, key, &source, err);
	return rc < 0 ? rc : 0;
}

static int
read_pointer(struct copy *c, const char *key, char text[MAX_POINTER_BYTES], struct pawl_error *err)
{
	if (c->local_source) {
		char path[PATH_MAX];
		PAWL_FREE char *whole = mem_printf("%s/%s", c->from->root, key);
		if (whole == NULL || strlen(whole) >= sizeof path)
			return err_nomem(err, key);
		ssize_t n = readlink(whole, text, MAX_POINTER_BYTES - 1);
		text[n > 0 ? n : 0] = '\0';
		return n > 0;
	}
	PAWL_CLEAN(buf_clear) struct buf line = {0};
	if (store_get(c->from, key, MAX_POINTER_BYTES - 1, &line, NULL) < 0)
		return 0; /* a link that the store cannot read: the next training writes it again */
	const char *found = buf_str(&line);
	size_t len = strcspn(found, "\n");
	memcpy(text, found, len);
	text[len] = '\0';
	return len > 0;
}

static int
find_any(void *arg, const struct store_entry *entry)
{
	(void)arg;
	(void)entry;
	return PAWL_EEXISTS;
}

/* True if the target has what a pointer names; a checkpoint must have its manifest. The training
 * may have saved it after the other files were copied. */
static bool
leads_somewhere(struct copy *c, const char *key, const char *text)
{
	struct store_entry entry;
	const char *slash = strrchr(key, '/');
	PAWL_FREE char *to = mem_printf("%.*s%s", slash != NULL ? (int)(slash + 1 - key) : 0, key, text);
	PAWL_FREE char *manifest = to != NULL ? mem_printf("%s/" MANIFEST_NAME, to) : NULL;
	if (manifest == NULL || !text_is_key(to))
		return false;
	if (sync_is_fixed(&c->names, manifest))
		return store_stat(c->to, manifest, &entry, NULL) == 0;
	return store_stat(c->to, to, &entry, NULL) == 0 || store_list(c->to, to, find_any, NULL, NULL) == PAWL_EEXISTS;
}

static bool
is_in_run(const struct copy *c, const char *key)
{
	const struct buf *runs = &c->names.runs;
	const char *slash = strrchr(key, '/');
	const size_t len = slash != NULL ? (size_t)(slash + 1 - key) : 0;
	for (size_t at = 0; at < runs->len; at += strlen(runs->ptr + at) + 1)
		if (strlen(runs->ptr + at) == len && strncmp(runs->ptr + at, key, len) == 0)
			return true;
	return false;
}

/* Pointers are hints: one that leads out of the folder, or nowhere, is skipped. In a store without
 * links a user's file may have the name of a pointer; it is copied like any other. */
static int
copy_pointer(struct copy *c, const char *key, struct pawl_error *err)
{
	char text[MAX_POINTER_BYTES];
	int found = read_pointer(c, key, text, err);
	if (found < 0)
		return found;
	if (found == 0 || !leads_somewhere(c, key, text))
		return c->flat_source && !is_in_run(c, key) ? copy_file(c, key, err) : 0;
	int rc = store_pointer(c->to, key, text, err);
	return rc == PAWL_EUSAGE ? 0 : rc;
}

static int
copy_all(struct copy *c, const struct buf *names, bool pointers, struct pawl_error *err)
{
	for (size_t at = 0; at < names->len; at += strlen(names->ptr + at) + 1)
		TRY(pointers ? copy_pointer(c, names->ptr + at, err) : copy_file(c, names->ptr + at, err));
	return 0;
}

/* The files that tell runs and searches apart, and the field that does. */
static const struct {
	const char *name, *field, *what;
} identities[] = {{RUN_KEY, "run", "run"}, {SYNC_SEARCH, "token", "search"}};

/* "" = it is missing, or unreadable. */
static int
id_of(struct store *store, const char *key, const char *field, char ret[40], struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error why = {0};
	struct json *root;
	const char *id;
	ret[0] = '\0';
	int rc = store_get(store, key, MAX_ID_BYTES, &text, &why);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0)
		return err_give(err, rc, &why);
	if (json_parse(key, text.ptr, text.len, NULL, &memory, &root, NULL) == 0 &&
	    json_get_str(key, root, field, &id, NULL) == 0)
		snprintf(ret, 40, "%s", id);
	return 0;
}

static int
check_identity(struct copy *c, const char *name, size_t kind, struct pawl_error *err)
{
	char ours[40], theirs[40];
	TRY(id_of(c->from, name, identities[kind].field, ours, err));
	TRY(id_of(c->to, name, identities[kind].field, theirs, err));
	if (ours[0] != '\0' && theirs[0] != '\0' && strcmp(ours, theirs) != 0)
		return err_set(err, PAWL_EEXISTS, "%s/%s is of another %s (%s, here it is %s); choose another place",
		               c->to->root, name, identities[kind].what, theirs, ours);
	return 0;
}

/* Two runs, or two searches of one name, must not be mixed in one folder (P8, P10). */
static int
check_identities(struct copy *c, const struct buf *names, struct pawl_error *err)
{
	for (size_t at = 0; at < names->len; at += strlen(names->ptr + at) + 1) {
		const char *name = names->ptr + at, *slash = strrchr(name, '/');
		for (size_t i = 0; i < sizeof identities / sizeof identities[0]; i++)
			if (strcmp(slash != NULL ? slash + 1 : name, identities[i].name) == 0)
				TRY(check_identity(c, name, i, err));
	}
	return 0;
}

static int
copy_tree(struct copy *c, struct pawl_error *err)
{
	TRY(check_identities(c, &c->names.packs, err));
	TRY(check_identities(c, &c->names.searches, err));
	if (c->local_source)
		TRY(sync_links_find(&c->linked, c->from->root, &c->names.packs, err));
	int rc = copy_all(c, &c->names.packs, false, err);
	sync_links_clear(&c->linked); /* its keys are those of names.packs */
	if (rc < 0)
		return rc;
	TRY(copy_all(c, &c->names.manifests, false, err));
	return copy_all(c, &c->names.searches, false, err);
}

int
sync_store(const struct sync_place *source, const struct sync_place *target, bool pointers_only,
           const struct sync_limit *limit, struct sync_sent *sent, struct pawl_error *err)
{
	struct copy c = {.limit = limit, .sent = sent};
	struct store_caps caps;
	int rc = sync_place_open(source, false, &c.from, err);
	if (rc == 0)
		rc = sync_list(c.from, limit, &c.names, err);
	if (rc == 0 && (!pointers_only || c.names.pointers.len > 0))
		rc = sync_place_open(target, true, &c.to, err);
	if (rc == 0 && c.to != NULL) {
		store_get_caps(c.from, &caps);
		c.local_source = caps.local;
		c.flat_source = caps.flat;
		store_get_caps(c.to, &caps);
		c.links = caps.link;
		rc = pointers_only ? copy_all(&c, &c.names.pointers, true, err) : copy_tree(&c, err);
	}
	sync_names_clear(&c.names);
	store_close(c.to);
	store_close(c.from);
	return rc;
}
