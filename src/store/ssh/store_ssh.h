/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ssh: shared by the parts of the ssh engine. Private to ssh_config.c and store_ssh*.c.
 *
 *   ssh_config.c       the URL, and the command line of ssh
 *   store_ssh.c        opening, the connection, small objects, capabilities
 *   store_ssh_io.c     streamed objects and ranged reading
 *   store_ssh_names.c  listing, removing, linking, renaming
 */
#ifndef PAWL_STORE_STORE_SSH_H
#define PAWL_STORE_STORE_SSH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bump.h"
#include "base/child.h"
#include "base/mem.h"
#include "store/engine.h"
#include "store/ssh/sftp.h"

struct ssh_config {
	struct bump memory;
	const char *root; /* the URL without its query, as shown */
	const char *path; /* on the server: absolute, or relative to the user's home ("." = that) */
	char **argv;      /* of ssh */
	int64_t timeout_ms;
};
int ssh_config_read(const char *url, struct ssh_config *ret, struct pawl_error *err);

struct ssh_store {
	struct store base;
	struct ssh_config config;
	bool create;
	unsigned features;    /* of the server, when the store was opened */
	pthread_mutex_t lock; /* held over an exchange; guards all below */
	struct child ssh;
	struct sftp *sftp;   /* NULL = not connected */
	uint64_t generation; /* of the connection: handles of an earlier one are invalid on this one */
};

/* Takes the lock and connects if needed. On failure the lock is not held. */
int ssh_enter(struct ssh_store *s, struct pawl_error *err);
/* Gives up a lost connection, and releases the lock. Returns rc, with the key in front of the
 * message. */
int ssh_leave(struct ssh_store *s, const char *key, int rc, struct pawl_error *err);
/* Path of a key ("" = the root) on the server; NULL = out of memory. To be freed. */
char *ssh_path(const struct ssh_store *s, const char *key);
/* A temporary name in the key's folder, which is a valid key itself, and its path. */
int ssh_temp_path(const struct ssh_store *s, const char *key, char **ret, struct pawl_error *err);

/* The following are called between enter and leave; their messages do not name the key. */

/* Makes the folders above the key's name. PAWL_EEXISTS if one is a file; the message names it. */
int ssh_make_folders(struct ssh_store *s, const char *key, struct pawl_error *err);
/* Opens for writing a file that must not exist, and makes its folders. */
int ssh_create_file(struct ssh_store *s, const char *key, const char *path, struct sftp_handle *ret,
                    struct pawl_error *err);
/* Explains why a call on path failed with rc. A folder or a link may be in the way, or a component
 * above is not a folder. */
int ssh_explain(struct ssh_store *s, const char *key, const char *path, int rc, struct pawl_error *err);
/* Looks up the object at path: 1 = none. Links are not followed. */
int ssh_look(struct ssh_store *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err);
/* Renames from to `to`. Replaces an existing `to`, or, if exclusive, returns PAWL_EEXISTS. */
int ssh_rename(struct ssh_store *s, const char *from, const char *to, bool exclusive, struct pawl_error *err);
/* Makes changes to the names in the folder above the key durable, as far as a client can. */
int ssh_sync_names(struct ssh_store *s, const char *key, struct pawl_error *err);
static inline bool
ssh_is_folder(const struct sftp_attrs *attrs)
{
	return (attrs->mode & 0170000) == 0040000;
}
static inline bool
ssh_is_link(const struct sftp_attrs *attrs)
{
	return (attrs->mode & 0170000) == 0120000;
}
static inline bool
ssh_is_file(const struct sftp_attrs *attrs)
{
	return (attrs->mode & 0170000) == 0100000;
}

/* Operations, in the files named above. */
int ssh_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
               struct pawl_error *err);
int ssh_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
              struct pawl_error *err);
int ssh_seal(struct store *base, struct store_file *f, struct pawl_error *err);
int ssh_finish(struct store *base, struct store_file *f, struct pawl_error *err);
void ssh_abort(struct store *base, struct store_file *f);
int ssh_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
             struct pawl_error *err);
int ssh_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
void ssh_close_reader(struct store *base, struct store_reader *r);
int ssh_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err);
int ssh_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
int ssh_remove(struct store *base, const char *key, struct pawl_error *err);
int ssh_remove_folder(struct store *base, const char *folder, struct pawl_error *err);
int ssh_link(struct store *base, const char *from, const char *to, struct pawl_error *err);
int ssh_move(struct store *base, const char *from, const char *to, struct pawl_error *err);
int ssh_publish(struct store *base, const char *from, const char *to, struct pawl_error *err);
int ssh_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err);
int ssh_sync(struct store *base, const char *folder, struct pawl_error *err);

#endif
