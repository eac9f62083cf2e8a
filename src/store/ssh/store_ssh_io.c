/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ssh_io: contents of files over SFTP: streamed writing and ranged reading. See store_ssh.h.
 *
 * An object is written under a temporary name and renamed when it is durable. Handles end with
 * their connection; on the next one the file is opened again by its name. A written file must then
 * be at least as long as the server has acknowledged. Otherwise the server has lost it, which is
 * final (P5). A file being read must have the same size and time. Otherwise it was replaced.
 *
 *   create ──> temporary name ── write* ──> seal: size, fsync, close, rename ──> object
 */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "store/ssh/store_ssh.h"

struct ssh_file {
	struct store_file base;
	char *path, *temp;
	struct sftp_handle handle; /* the store's lock guards this and all below */
	uint64_t generation;       /* of the connection on which handle is open; 0 = not open */
	uint64_t reached;          /* how many bytes the server has acknowledged */
	bool renaming, sealed;
};

struct ssh_reader {
	struct store_reader base;
	char *path;
	struct sftp_handle handle;
	uint64_t generation;
	uint32_t mtime;
};

/* ----------------------------------------------------------------- writing */

static void
free_file(struct ssh_file *f)
{
	mem_free(f->path);
	mem_free(f->temp);
	mem_free(f->base.key);
	mem_free(f);
}

static int
check_absent(struct ssh_store *s, const char *path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	int there = ssh_look(s, path, &attrs, err);
	if (there != 0)
		return there < 0 ? there : 0;
	return err_set(err, PAWL_EEXISTS, ssh_is_folder(&attrs) ? "is a folder, expected nothing" : "already exists");
}

static int
begin_file(struct ssh_store *s, struct ssh_file *f, struct pawl_error *err)
{
	TRY(check_absent(s, f->path, err));
	TRY(ssh_create_file(s, f->base.key, f->temp, &f->handle, err));
	f->generation = s->generation;
	return 0;
}

int
ssh_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
           struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	struct ssh_file *f = mem_zalloc(1, sizeof *f);
	if (f == NULL)
		return err_nomem(err, key);
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	f->base.key = mem_strdup(key);
	f->path = ssh_path(s, key);
	int rc = f->base.key == NULL || f->path == NULL ? err_nomem(err, key) : ssh_temp_path(s, key, &f->temp, err);
	if (rc == 0)
		rc = ssh_enter(s, err);
	if (rc == 0)
		rc = ssh_leave(s, key, begin_file(s, f, err), err);
	if (rc < 0) {
		free_file(f);
		return rc;
	}
	*ret = &f->base;
	return 0;
}

/* Opens the file again on a new connection. */
static int
open_again(struct ssh_store *s, struct ssh_file *f, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	if (f->generation == s->generation)
		return 0;
	int rc = sftp_open(s->sftp, f->temp, SFTP_WRITE, &f->handle, err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_EIO, "the server has lost what was written");
	TRY(rc);
	rc = sftp_fstat(s->sftp, &f->handle, &attrs, err);
	if (rc == 0 && attrs.nbytes < f->reached)
		rc = err_set(err, PAWL_EIO,
		             "the server has lost what was written: %" PRIu64 " of %" PRIu64 " bytes are there",
		             attrs.nbytes, f->reached);
	if (rc < 0) /* the next try compares again */
		sftp_close(s->sftp, &f->handle, NULL);
	else
		f->generation = s->generation;
	return rc;
}

static int
write_piece(struct ssh_store *s, struct ssh_file *f, uint64_t offset, const void *ptr, size_t n, struct pawl_error *err)
{
	TRY(open_again(s, f, err));
	int rc = sftp_write(s->sftp, &f->handle, offset, ptr, n, err);
	if (rc == 0 && offset + n > f->reached)
		f->reached = offset + n;
	return rc < 0 ? ssh_explain(s, f->base.key, f->temp, rc, err) : 0;
}

int
ssh_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
          struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	uint64_t left = bf->nbytes - offset;
	size_t n = len < left ? len : (size_t)left; /* without the padding */
	if (n == 0)
		return 0;
	TRY(ssh_enter(s, err));
	return ssh_leave(s, bf->key, write_piece(s, (struct ssh_file *)bf, offset, ptr, n, err), err);
}

/* True if an earlier try, whose answer was lost, has given the file its name. */
static bool
was_renamed(struct ssh_store *s, const struct ssh_file *f)
{
	struct sftp_attrs now, temp;
	if (!f->renaming || ssh_look(s, f->path, &now, NULL) != 0 || !ssh_is_file(&now) || now.nbytes != f->base.nbytes)
		return false;
	int there = ssh_look(s, f->temp, &temp, NULL);
	/* Gone: it was renamed. Still there with the same size and time: it was linked. */
	return there == 1 || (there == 0 && temp.nbytes == now.nbytes && temp.mtime == now.mtime);
}

static int
seal_file(struct ssh_store *s, struct ssh_file *f, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	if (was_renamed(s, f)) {
		sftp_remove(s->sftp, f->temp, NULL);
		return 0;
	}
	TRY(open_again(s, f, err));
	TRY(sftp_fstat(s->sftp, &f->handle, &attrs, err));
	if (attrs.nbytes != f->base.nbytes)
		return err_set(err, PAWL_EIO, "expected a size of %" PRIu64 ", found %" PRIu64, f->base.nbytes,
		               attrs.nbytes);
	if (s->features & SFTP_FSYNC)
		TRY(sftp_fsync(s->sftp, &f->handle, err));
	f->generation = 0;
	TRY(sftp_close(s->sftp, &f->handle, err));
	f->renaming = true;
	return ssh_rename(s, f->temp, f->path, true, err);
}

int
ssh_seal(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	struct ssh_file *f = (struct ssh_file *)bf;
	if (f->sealed)
		return 0;
	TRY(ssh_enter(s, err));
	int rc = ssh_leave(s, bf->key, seal_file(s, f, err), err);
	f->sealed = rc == 0;
	return rc;
}

int
ssh_finish(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	int rc = ssh_seal(base, bf, err);
	if (rc < 0)
		ssh_abort(base, bf);
	else
		free_file((struct ssh_file *)bf);
	return rc;
}

void
ssh_abort(struct store *base, struct store_file *bf)
{
	struct ssh_store *s = (struct ssh_store *)base;
	struct ssh_file *f = (struct ssh_file *)bf;
	if (ssh_enter(s, NULL) == 0) {
		if (f->generation == s->generation)
			sftp_close(s->sftp, &f->handle, NULL);
		if (!sftp_is_lost(s->sftp))
			sftp_remove(s->sftp, f->temp, NULL);
		ssh_leave(s, bf->key, 0, NULL);
	}
	free_file(f);
}

/* ----------------------------------------------------------------- reading */

static int
open_file(struct ssh_store *s, struct ssh_reader *r, struct sftp_attrs *ret, struct pawl_error *err)
{
	TRY(sftp_lstat(s->sftp, r->path, ret, err));
	if (ssh_is_folder(ret))
		return err_set(err, PAWL_ENOTFOUND, "is a folder, expected a file");
	if (!ssh_is_file(ret))
		return err_set(err, PAWL_EUNSUPPORTED, "is %s",
		               ssh_is_link(ret) ? "a symbolic link, which is not followed" : "not a regular file");
	TRY(sftp_open(s->sftp, r->path, SFTP_READ, &r->handle, err));
	r->generation = s->generation;
	return sftp_fstat(s->sftp, &r->handle, ret, err);
}

static void
free_reader(struct ssh_reader *r)
{
	mem_free(r->path);
	mem_free(r->base.key);
	mem_free(r);
}

int
ssh_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	struct sftp_attrs attrs;
	struct ssh_reader *r = mem_zalloc(1, sizeof *r);
	if (r == NULL)
		return err_nomem(err, key);
	r->base.key = mem_strdup(key);
	r->path = ssh_path(s, key);
	int rc = r->base.key == NULL || r->path == NULL ? err_nomem(err, key) : ssh_enter(s, err);
	if (rc == 0)
		rc = ssh_leave(s, key, open_file(s, r, &attrs, err), err);
	if (rc < 0) {
		ssh_close_reader(base, &r->base);
		return rc;
	}
	*ret_nbytes = r->base.nbytes = attrs.nbytes;
	r->mtime = attrs.mtime;
	*ret = &r->base;
	return 0;
}

/* Opens the file on a new connection. Unless it is still the same, it is not open: the next read
 * compares again. */
static int
open_same(struct ssh_store *s, struct ssh_reader *r, struct pawl_error *err)
{
	struct sftp_attrs now;
	int rc = open_file(s, r, &now, err);
	if (rc == 0 && (now.nbytes != r->base.nbytes || now.mtime != r->mtime))
		rc = err_set(err, PAWL_ECONFLICT, "has been replaced while it was read");
	if (rc < 0 && r->generation == s->generation) {
		r->generation = 0;
		sftp_close(s->sftp, &r->handle, NULL);
	}
	return rc;
}

static int
read_piece(struct ssh_store *s, struct ssh_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	if (r->generation != s->generation)
		TRY(open_same(s, r, err));
	return sftp_read(s->sftp, &r->handle, offset, dst, n, err);
}

int
ssh_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	TRY(ssh_enter(s, err));
	return ssh_leave(s, r->key, read_piece(s, (struct ssh_reader *)r, offset, dst, n, err), err);
}

void
ssh_close_reader(struct store *base, struct store_reader *br)
{
	struct ssh_store *s = (struct ssh_store *)base;
	struct ssh_reader *r = (struct ssh_reader *)br;
	pthread_mutex_lock(&s->lock); /* does not connect for this */
	if (s->sftp != NULL && !sftp_is_lost(s->sftp) && r->generation == s->generation && r->generation > 0)
		sftp_close(s->sftp, &r->handle, NULL);
	pthread_mutex_unlock(&s->lock);
	free_reader(r);
}
