/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ssh_names: names of files over SFTP: looking, listing, removing, linking, renaming,
 * pointers. See store_ssh.h.
 *
 * The protocol answers most failures only with "failure". The engine then examines the path to
 * report the reason. A listing is completed before the caller sees its first entry, because the
 * caller may use the store in its callback.
 */
#include <string.h>

#include "base/err.h"
#include "store/ssh/store_ssh.h"
#include "store/store_default.h"

#define MAX_DEPTH 64 /* of folders that are removed */

/* ----------------------------------------------------------------- looking */

static void
ssh_entry(struct store_entry *entry, const char *name, const struct sftp_attrs *attrs)
{
	*entry = (struct store_entry){.name = name,
	                              .is_folder = ssh_is_folder(attrs),
	                              .is_link = ssh_is_link(attrs),
	                              .nbytes = ssh_is_file(attrs) ? attrs->nbytes : 0,
	                              .mtime_ns = (int64_t)attrs->mtime * 1000000000};
}

int
ssh_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	struct sftp_attrs attrs;
	PAWL_FREE char *path = ssh_path(s, key);
	if (path == NULL)
		return err_nomem(err, key);
	TRY(ssh_enter(s, err));
	TRY(ssh_leave(s, key, sftp_lstat(s->sftp, path, &attrs, err), err));
	ssh_entry(ret, NULL, &attrs);
	return 0;
}

struct names {
	struct bump memory;
	struct name {
		const char *name;
		struct sftp_attrs attrs;
		struct name *next;
	} *first, **last;
};

static int
add_name(void *arg, const char *name, const struct sftp_attrs *attrs)
{
	struct names *names = arg;
	struct name *one = bump_alloc(&names->memory, sizeof *one);
	char *copy = bump_strndup(&names->memory, name, strlen(name));
	if (one == NULL || copy == NULL)
		return PAWL_ENOMEM;
	*one = (struct name){.name = copy, .attrs = *attrs};
	*names->last = one;
	names->last = &one->next;
	return 0;
}

static void
clear_names(struct names *names)
{
	bump_clear(&names->memory);
}

/* Called between enter and leave. */
static int
list_names(struct ssh_store *s, const char *path, struct names *ret, struct pawl_error *err)
{
	ret->last = &ret->first;
	return sftp_list(s->sftp, path, add_name, ret, err);
}

static int
list_folder(struct ssh_store *s, const char *path, bool is_root, struct names *ret, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	if (!is_root) {
		TRY(sftp_lstat(s->sftp, path, &attrs, err));
		if (ssh_is_link(&attrs))
			return err_set(err, PAWL_EUNSUPPORTED, "is a symbolic link, which is not followed");
		if (!ssh_is_folder(&attrs))
			return err_set(err, PAWL_ENOTFOUND, "is not a folder");
	}
	return list_names(s, path, ret, err);
}

int
ssh_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	PAWL_CLEAN(clear_names) struct names names = {0};
	PAWL_FREE char *path = ssh_path(s, folder);
	if (path == NULL)
		return err_nomem(err, folder);
	TRY(ssh_enter(s, err));
	TRY(ssh_leave(s, folder, list_folder(s, path, folder[0] == '\0', &names, err), err));
	for (const struct name *n = names.first; n != NULL; n = n->next) {
		struct store_entry entry;
		ssh_entry(&entry, n->name, &n->attrs);
		TRY(fn(arg, &entry));
	}
	return 0;
}

/* ---------------------------------------------------------------- removing */

static int
remove_file(struct ssh_store *s, const char *path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	struct pawl_error why = {0};
	int rc = sftp_remove(s->sftp, path, &why);
	if (rc == 0 || rc == PAWL_ENOTFOUND)
		return 0;
	if (!sftp_is_lost(s->sftp)) {
		int there = ssh_look(s, path, &attrs, NULL);
		if (there == 1)
			return 0;
		if (there == 0 && ssh_is_folder(&attrs))
			return err_set(err, PAWL_EUSAGE, "is a folder, expected a file");
	}
	if (err != NULL)
		*err = why;
	return rc;
}

int
ssh_remove(struct store *base, const char *key, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	PAWL_FREE char *path = ssh_path(s, key);
	if (path == NULL)
		return err_nomem(err, key);
	TRY(ssh_enter(s, err));
	return ssh_leave(s, key, remove_file(s, path, err), err);
}

static int
remove_tree(struct ssh_store *s, const char *path, int depth, struct pawl_error *err)
{
	PAWL_CLEAN(clear_names) struct names names = {0};
	if (depth > MAX_DEPTH)
		return err_set(err, PAWL_ELIMIT, "folders are nested more than %d deep", MAX_DEPTH);
	int rc = list_names(s, path, &names, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	for (const struct name *n = names.first; n != NULL; n = n->next) {
		PAWL_FREE char *below = mem_printf("%s/%s", path, n->name);
		if (below == NULL)
			return err_nomem(err, NULL);
		TRY(ssh_is_folder(&n->attrs) ? remove_tree(s, below, depth + 1, err) : remove_file(s, below, err));
	}
	rc = sftp_rmdir(s->sftp, path, err);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

static int
remove_folder(struct ssh_store *s, const char *path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	int there = ssh_look(s, path, &attrs, err);
	if (there != 0)
		return there < 0 ? there : 0;
	if (!ssh_is_folder(&attrs))
		return err_set(err, PAWL_EUSAGE, "is not a folder");
	return remove_tree(s, path, 0, err);
}

int
ssh_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	PAWL_FREE char *path = ssh_path(s, folder);
	if (path == NULL)
		return err_nomem(err, folder);
	TRY(ssh_enter(s, err));
	return ssh_leave(s, folder, remove_folder(s, path, err), err);
}

/* ------------------------------------------------------- links and renames */

typedef int pair_fn(struct ssh_store *s, const char *from_path, const char *to, const char *to_path,
                    struct pawl_error *err);

/* Checks that from is a folder, or else a file or a pointer. On failure it leaves the store, with
 * from in front of the message. */
static int
find_source(struct ssh_store *s, const char *from, const char *path, bool folder, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	int rc = sftp_lstat(s->sftp, path, &attrs, err);
	if (rc < 0)
		return ssh_leave(s, from, rc, err);
	if (ssh_is_folder(&attrs) != folder)
		return ssh_leave(
			s, from,
			err_set(err, PAWL_ENOTFOUND, folder ? "is not a folder" : "is a folder, expected a file"), err);
	return 0;
}

static int
do_pair(struct store *base, const char *from, const char *to, bool folder, pair_fn *fn, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	PAWL_FREE char *from_path = ssh_path(s, from);
	PAWL_FREE char *to_path = ssh_path(s, to);
	if (from_path == NULL || to_path == NULL)
		return err_nomem(err, to);
	TRY(ssh_enter(s, err));
	TRY(find_source(s, from, from_path, folder, err)); /* on failure this has left */
	int rc = fn(s, from_path, to, to_path, err);
	if (rc == PAWL_ENOTFOUND) { /* the target's folder is missing */
		rc = ssh_make_folders(s, to, err);
		if (rc == 0)
			rc = fn(s, from_path, to, to_path, err);
	}
	return ssh_leave(s, to, rc, err);
}

static int
link_one(struct ssh_store *s, const char *from_path, const char *to, const char *to_path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	(void)to;
	if ((s->features & SFTP_HARDLINK) == 0)
		return err_set(err, PAWL_EUNSUPPORTED, "cannot be linked: the server does not do that");
	int rc = sftp_hardlink(s->sftp, from_path, to_path, err);
	if (rc != PAWL_EIO || sftp_is_lost(s->sftp))
		return rc;
	if (ssh_look(s, to_path, &attrs, NULL) == 0)
		return err_set(err, PAWL_EEXISTS, "already exists");
	return err_set(err, PAWL_EUNSUPPORTED, "cannot be linked to: links do not work there");
}

int
ssh_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	return do_pair(base, from, to, false, link_one, err);
}

static int
move_one(struct ssh_store *s, const char *from_path, const char *to, const char *to_path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	(void)to;
	TRY(ssh_rename(s, from_path, to_path, false, err));
	/* POSIX: a rename between two links of one file does nothing. */
	if (ssh_look(s, from_path, &attrs, NULL) == 0)
		sftp_remove(s->sftp, from_path, NULL);
	return 0;
}

int
ssh_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	return do_pair(base, from, to, false, move_one, err);
}

static int
publish_one(struct ssh_store *s, const char *from_path, const char *to, const char *to_path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	/* Servers look for the target and then rename. A rename replaces only an empty folder, and
	 * our folders are never empty. */
	int rc = sftp_rename(s->sftp, from_path, to_path, false, err);
	if (rc == PAWL_EIO && !sftp_is_lost(s->sftp) && ssh_look(s, to_path, &attrs, NULL) == 0)
		return err_set(err, PAWL_EEXISTS, "already exists");
	TRY(rc);
	rc = ssh_sync_names(s, to, err);
	if (rc < 0 && !sftp_is_lost(s->sftp))
		sftp_rename(s->sftp, to_path, from_path, false, NULL); /* a failed publish shows nothing (P4) */
	return rc;
}

int
ssh_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	return do_pair(base, from, to, true, publish_one, err);
}

/* ---------------------------------------------------------- pointers, syncing */

static int
write_pointer(struct ssh_store *s, const char *key, const char *path, const char *target, struct pawl_error *err)
{
	PAWL_FREE char *temp = NULL;
	TRY(ssh_temp_path(s, key, &temp, err));
	int rc = sftp_symlink(s->sftp, target, temp, err);
	if (rc == PAWL_ENOTFOUND || (rc == PAWL_EIO && !sftp_is_lost(s->sftp))) {
		TRY(ssh_make_folders(s, key, err));
		rc = sftp_symlink(s->sftp, target, temp, err);
	}
	TRY(rc);
	rc = ssh_rename(s, temp, path, false, err);
	if (rc < 0 && !sftp_is_lost(s->sftp))
		sftp_remove(s->sftp, temp, NULL);
	return rc;
}

int
ssh_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	if ((s->features & SFTP_OPENSSH) == 0)
		return store_default_pointer(base, key, target, err);
	PAWL_FREE char *path = ssh_path(s, key);
	if (path == NULL)
		return err_nomem(err, key);
	TRY(ssh_enter(s, err));
	return ssh_leave(s, key, write_pointer(s, key, path, target, err), err);
}

static int
sync_folder(struct ssh_store *s, const char *folder, const char *path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	TRY(folder[0] != '\0' ? sftp_lstat(s->sftp, path, &attrs, err) : sftp_stat(s->sftp, path, &attrs, err));
	if (!ssh_is_folder(&attrs))
		return err_set(err, PAWL_ENOTFOUND, "is not a folder");
	PAWL_FREE char *inside = folder[0] != '\0' ? mem_printf("%s/sync", folder) : mem_strdup("sync");
	if (inside == NULL)
		return err_nomem(err, NULL);
	return ssh_sync_names(s, inside, err);
}

int
ssh_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	PAWL_FREE char *path = ssh_path(s, folder);
	if (path == NULL)
		return err_nomem(err, folder);
	TRY(ssh_enter(s, err));
	return ssh_leave(s, folder, sync_folder(s, folder, path, err), err);
}
