/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ssh: what the parts of the ssh engine share. Private to ssh_config.c and store_ssh*.c:
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
	struct sftp *sftp;    /* NULL = there is no connection */
	uint64_t generation;  /* of the connection: what was open on an earlier one is not on this */
};

/* Takes the lock and sees to it that there is a connection; on failure the lock is not held. */
int ssh_enter(struct ssh_store *s, struct pawl_error *err);
/* Gives a lost connection up, and the lock back. Returns rc, with the key in front of the message. */
int ssh_leave(struct ssh_store *s, const char *key, int rc, struct pawl_error *err);
/* Path of a key ("" = the root) on the server; NULL = out of memory. To be freed. */
char *ssh_path(const struct ssh_store *s, const char *key);
/* A passing name beside the key's, which is a key itself; and its path. */
int ssh_temp_path(const struct ssh_store *s, const char *key, char **ret, struct pawl_error *err);

/* The rest is called between enter and leave; messages are without the key. */

/* Makes the folders above the key's name. PAWL_EEXISTS, if one is a file, names it. */
int ssh_make_folders(struct ssh_store *s, const char *key, struct pawl_error *err);
/* Opens for writing a file that must not be there, making its folders. */
int ssh_create_file(struct ssh_store *s, const char *key, const char *path, struct sftp_handle *ret,
                    struct pawl_error *err);
/* Why a call on what lies at path has failed with rc: a folder or a link in the way, or a folder above that is none. */
int ssh_explain(struct ssh_store *s, const char *key, const char *path, int rc, struct pawl_error *err);
/* What there is at path: 1 = nothing. Links are not followed. */
int ssh_look(struct ssh_store *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err);
/* Gives from the name `to`, in place of what has it, or (exclusive) only if nothing has it: PAWL_EEXISTS. */
int ssh_rename(struct ssh_store *s, const char *from, const char *to, bool exclusive, struct pawl_error *err);
/* Makes what has been done to names of the folder above the key durable, as far as that can be had from here. */
int ssh_sync_names(struct ssh_store *s, const char *key, struct pawl_error *err);
void ssh_entry(struct store_entry *entry, const char *name, const struct sftp_attrs *attrs);
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
