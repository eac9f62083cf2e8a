/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: opening by URL, and the checked border between the core and every engine or layer.
 *
 * Called by the core; calls the outermost layer or engine through its table. Keys, ranges and states are
 * checked here and nowhere else, so an engine may take its arguments as given. P5 (a failed write can
 * only be aborted), P17 (no key leaves the root), and half of P1 (an object is finished only when every
 * byte was written).
 */
#include "store/store.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "store/engine.h"
#include "store/registry.h"
#include "store/user/store_user.h"

/* Callers that pad the last piece to a page need not ask how much less would do. */
#define MIN_PAD_BYTES 4096u

#define KNOWN_URLS                                                                                                     \
	"a path, file://path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, ssh://user@host/path or " \
	"mem:"

/* Length of "scheme" in "scheme:", or 0. One letter is no scheme but a name. */
static size_t
scheme_length(const char *url)
{
	size_t len = 0;
	if (!isalpha((unsigned char)url[0]))
		return 0;
	while (isalnum((unsigned char)url[len]) || url[len] == '+' || url[len] == '.' || url[len] == '-')
		len++;
	return url[len] == ':' && len > 1 ? len : 0;
}

int
store_check_slashes(const char *url, struct pawl_error *err)
{
	const size_t scheme = scheme_length(url);
	if (store_kind_of(url) == NULL || strncmp(url + scheme, ":/", 2) != 0 || url[scheme + 2] == '/')
		return 0;
	return err_set(err, PAWL_EUSAGE, "%s: a URL has two slashes, expected %.*s:/%s%s (pathlib.Path removes one)",
	               url, (int)scheme, url, strncmp(url, "file:", 5) == 0 ? "/" : "", url + scheme + 1);
}

/* An engine of this machine. */
static int
open_local(const char *url, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err)
{
	if (strcmp(url, "mem:") == 0)
		return store_mem_open(ret, err);
	if (strncmp(url, "file://", 7) == 0 && url[7] != '\0')
		return store_file_open(url + 7, create, no_direct_io, ret, err);
	size_t scheme = scheme_length(url);
	TRY(store_check_slashes(url, err));
	bool known = store_kind_of(url) != NULL;
	if (known || (scheme > 0 && strncmp(url + scheme, "://", 3) == 0))
		return err_set(err, PAWL_EUSAGE, "%s: %s, expected " KNOWN_URLS, url,
		               known ? "malformed URL" : "unknown kind of store");
	return store_file_open(url, create, no_direct_io, ret, err);
}

/* "hdfs://..", or "simplecache::hdfs://..", that no engine here is for. */
static bool
is_unknown_url(const char *url)
{
	size_t scheme = scheme_length(url);
	return scheme > 0 && store_kind_of(url) == NULL &&
	       (strncmp(url + scheme, "://", 3) == 0 ||
	        (strncmp(url + scheme, "::", 2) == 0 && strstr(url, "://") != NULL));
}

static int
open_users(const struct pawl_stores *stores, const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	struct store *s;
	TRY(store_user_check(stores, err));
	TRY(store_user_open(stores, url, create, &s, err));
	int rc = store_log(&s, err);
	if (rc == 0)
		rc = store_retry_wrap(s, &(struct store_retry){0}, ret, err);
	if (rc < 0)
		store_close(s);
	return rc;
}

int
store_open(const char *url, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err)
{
	return store_open_with(NULL, url, create, no_direct_io, ret, err);
}

int
store_open_with(const struct pawl_stores *stores, const char *url, bool create, bool no_direct_io, struct store **ret,
                struct pawl_error *err)
{
	if (url == NULL || url[0] == '\0')
		return err_set(err, PAWL_EUSAGE, "the store's URL is empty, expected " KNOWN_URLS);
	const struct store_kind *kind = store_kind_of(url);
	bool is_remote = kind != NULL && kind->is_remote && strncmp(url + strlen(kind->scheme), "://", 3) == 0;
	if (is_remote && kind->missing != NULL)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: this build of pawl has no %s:// stores: %s", url,
		               kind->scheme, kind->missing);
	if (is_remote)
		return store_retry_open(kind->open, url, create, &(struct store_retry){0}, ret, err);
	if (stores != NULL && is_unknown_url(url))
		return open_users(stores, url, create, ret, err);
	struct store *s;
	TRY(open_local(url, create, no_direct_io, &s, err));
	int rc = store_log(&s, err);
	if (rc < 0)
		store_close(s);
	else
		*ret = s;
	return rc;
}

void
store_close(struct store *s)
{
	if (s != NULL)
		s->ops->close(s);
}

/* ------------------------------------------------------------------ checks */

static int
check_key(const char *key, struct pawl_error *err)
{
	if (key == NULL || !text_is_key(key))
		return err_set(err, PAWL_EUSAGE, "\"%.200s\" is not a key: expected a relative path of plain names",
		               key == NULL ? "" : key);
	return 0;
}

static int
check_folder(const char *folder, struct pawl_error *err)
{
	return folder != NULL && folder[0] == '\0' ? 0 : check_key(folder, err);
}

/* Two keys, neither equal to nor inside the other. */
static int
check_two_keys(const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_key(from, err));
	TRY(check_key(to, err));
	size_t from_len = strlen(from), to_len = strlen(to);
	size_t len = from_len < to_len ? from_len : to_len;
	char after = from_len < to_len ? to[len] : from[len];
	if (strncmp(from, to, len) == 0 && (after == '\0' || after == '/'))
		return err_set(err, PAWL_EUSAGE, "%s and %s: expected two keys outside each other", from, to);
	return 0;
}

static int
check_write(const struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	uint64_t align = f->offset_align;
	uint64_t pad = align > MIN_PAD_BYTES ? align : MIN_PAD_BYTES;
	uint64_t end, limit = f->nbytes;
	if (f->nbytes <= UINT64_MAX - pad)
		limit = round_up(f->nbytes, pad);
	if (!add_ok(offset, len, &end) || offset > f->nbytes || end > limit)
		return err_set(err, PAWL_EUSAGE, "%s: %zu bytes at %" PRIu64 " do not fit into %" PRIu64, f->key, len,
		               offset, f->nbytes);
	if (len > 0 && ptr == NULL)
		return err_set(err, PAWL_EUSAGE, "%s: no memory given to write from", f->key);
	if (offset % align != 0 || (end < f->nbytes && len % align != 0))
		return err_set(err, PAWL_EUSAGE, "%s: %zu bytes at %" PRIu64 " are not in units of %" PRIu64, f->key,
		               len, offset, align);
	return 0;
}

static int
check_read(const struct store_reader *r, uint64_t offset, const void *dst, size_t n, struct pawl_error *err)
{
	uint64_t end;
	if (n > 0 && dst == NULL)
		return err_set(err, PAWL_EUSAGE, "%s: no memory given to read into", r->key);
	if (!add_ok(offset, n, &end) || end > r->nbytes)
		return err_set(err, PAWL_ECORRUPT, "%s: expected %zu bytes at %" PRIu64 ", but it ends at %" PRIu64,
		               r->key, n, offset, r->nbytes);
	return 0;
}

/* ----------------------------------------------------------------- writing */

void
store_get_caps(struct store *s, struct store_caps *ret)
{
	memset(ret, 0, sizeof *ret);
	ret->offset_align = ret->memory_align = 1;
	s->ops->caps(s, ret);
	if (ret->copies == 0) /* engines keep one and do not say so */
		ret->copies = 1;
}

int
store_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	TRY(check_key(key, err));
	uint64_t total = 0;
	for (size_t i = 0; i < n_parts; i++) {
		if (parts[i].len > 0 && parts[i].ptr == NULL)
			return err_set(err, PAWL_EUSAGE, "%s: part %zu has no memory", key, i);
		if (!add_ok(total, parts[i].len, &total))
			return err_set(err, PAWL_EUSAGE, "%s: the parts are too large", key);
	}
	return s->ops->put(s, key, parts, n_parts, flags, err);
}

int
store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags, struct pawl_error *err)
{
	struct pawl_slice part = {ptr, len};
	return store_put(s, key, &part, 1, flags, err);
}

int
store_create(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	TRY(check_key(key, err));
	if (opts == NULL || opts->nbytes > INT64_MAX)
		return err_set(err, PAWL_EUSAGE, "%s: no sensible size given", key);
	if (opts->recycle_key != NULL)
		TRY(check_two_keys(opts->recycle_key, key, err));
	return s->ops->create(s, key, opts, ret, err);
}

int
store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	if (atomic_load(&f->failed))
		return err_set(err, PAWL_EIO, "%s: an earlier write failed", f->key);
	int rc = check_write(f, offset, ptr, len, err);
	if (rc == 0 && len > 0)
		rc = s->ops->write(s, f, offset, ptr, len, err);
	if (rc < 0) {
		atomic_store(&f->failed, true);
		return rc;
	}
	atomic_fetch_add(&f->written, len < f->nbytes - offset ? len : f->nbytes - offset);
	return 0;
}

int
store_cut(struct store_file *f, uint64_t nbytes, struct pawl_error *err)
{
	if (nbytes > f->nbytes)
		return err_set(err, PAWL_EUSAGE, "%s: cannot be cut to %" PRIu64 " of %" PRIu64 " bytes", f->key,
		               nbytes, f->nbytes);
	f->nbytes = nbytes;
	f->is_cut = true;
	return 0;
}

int
store_finish(struct store *s, struct store_file *f, struct pawl_error *err)
{
	int rc = 0;
	uint64_t written = atomic_load(&f->written);
	if (atomic_load(&f->failed))
		rc = err_set(err, PAWL_EIO, "%s: cannot be finished, because a write failed", f->key);
	else if (written < f->nbytes)
		rc = err_set(err, PAWL_EUSAGE, "%s: only %" PRIu64 " of %" PRIu64 " bytes were written", f->key,
		             written, f->nbytes);
	if (rc == 0)
		return s->ops->finish(s, f, err);
	s->ops->abort(s, f);
	return rc;
}

void
store_abort(struct store *s, struct store_file *f)
{
	if (f != NULL)
		s->ops->abort(s, f);
}

/* ----------------------------------------------------------------- reading */

int
store_open_reader(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                  struct pawl_error *err)
{
	uint64_t nbytes;
	TRY(check_key(key, err));
	TRY(s->ops->open(s, key, ret, &nbytes, err));
	if (ret_nbytes != NULL)
		*ret_nbytes = nbytes;
	return 0;
}

int
store_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	TRY(check_read(r, offset, dst, n, err));
	return n > 0 ? s->ops->read(s, r, offset, dst, n, err) : 0;
}

int
store_read_copy(struct store *s, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
                struct pawl_error *err)
{
	TRY(check_read(r, offset, dst, n, err));
	if (s->ops->read_copy)
		return n > 0 ? s->ops->read_copy(s, r, copy, offset, dst, n, err) : 0;
	if (copy > 0)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is only one copy", r->key);
	return n > 0 ? s->ops->read(s, r, offset, dst, n, err) : 0;
}

int
store_pass_over(struct store *s, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err)
{
	if (s->ops->pass_over == NULL)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no other store that has it", r->key);
	return s->ops->pass_over(s, r, ret_nbytes, err);
}

int
store_view(struct store *s, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret,
           struct pawl_error *err)
{
	TRY(check_read(r, offset, "", n, err));
	return n > 0 ? s->ops->view(s, r, offset, n, ret) : 0;
}

void
store_drop_view(struct store *s, struct store_view *view)
{
	s->ops->drop_view(s, view);
}

void
store_close_reader(struct store *s, struct store_reader *r)
{
	if (r != NULL)
		s->ops->close_reader(s, r);
}

void
store_opened_close(struct store_opened *o)
{
	store_close_reader(o->store, o->reader);
}

/* Appends the n bytes of an open object to out. */
static int
read_whole(struct store *s, struct store_reader *r, size_t n, struct buf *out, struct pawl_error *err)
{
	size_t before = out->len;
	char *dst = buf_grow(out, n);
	if (dst == NULL)
		return buf_check(out, r->key, err);
	int rc = store_read(s, r, 0, dst, n, err);
	if (rc < 0)
		out->len = before;
	return rc;
}

int
store_get(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct store_reader *r;
	uint64_t nbytes;
	TRY(check_key(key, err));
	int whole = s->ops->get != NULL ? s->ops->get(s, key, max, out, err) : PAWL_EUNSUPPORTED;
	if (whole != PAWL_EUNSUPPORTED)
		return whole;
	TRY(store_open_reader(s, key, &r, &nbytes, err));
	int rc = nbytes > max
	                 ? err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found %" PRIu64, key, max, nbytes)
	                 : read_whole(s, r, (size_t)nbytes, out, err);
	store_close_reader(s, r);
	return rc;
}

static int
no_conditions(const struct store *s, const char *key, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED, "%s: a %s store does not tell one version from another", key,
	               s->ops->name);
}

int
store_get_tagged(struct store *s, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
                 struct pawl_error *err)
{
	TRY(check_key(key, err));
	return s->ops->get_tagged ? s->ops->get_tagged(s, key, max, out, tag, err) : no_conditions(s, key, err);
}

int
store_put_if(struct store *s, const char *key, const char *tag, const void *ptr, size_t len, struct pawl_error *err)
{
	struct pawl_slice text = {ptr, len};
	TRY(check_key(key, err));
	return s->ops->put_if ? s->ops->put_if(s, key, tag, &text, err) : no_conditions(s, key, err);
}

/* ------------------------------------------------------------------- names */

int
store_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	TRY(check_key(key, err));
	return s->ops->stat(s, key, ret, err);
}

int
store_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	TRY(check_folder(folder, err));
	return s->ops->list(s, folder, fn, arg, err);
}

int
store_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	TRY(check_folder(folder, err));
	if (!s->ops->list_all)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: a %s store lists one folder at a time", folder,
		               s->ops->name);
	return s->ops->list_all(s, folder, fn, arg, err);
}

int
store_remove(struct store *s, const char *key, struct pawl_error *err)
{
	TRY(check_key(key, err));
	return s->ops->remove(s, key, err);
}

int
store_remove_folder(struct store *s, const char *folder, struct pawl_error *err)
{
	TRY(check_key(folder, err));
	return s->ops->remove_folder(s, folder, err);
}

int
store_link(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_two_keys(from, to, err));
	return s->ops->link(s, from, to, err);
}

int
store_move(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_two_keys(from, to, err));
	return s->ops->move(s, from, to, err);
}

int
store_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_two_keys(from, to, err));
	return s->ops->publish(s, from, to, err);
}

int
store_exchange(struct store *s, const char *a, const char *b, struct pawl_error *err)
{
	TRY(check_two_keys(a, b, err));
	if (!s->ops->exchange)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: folders cannot be exchanged in a %s store", b,
		               s->ops->name);
	return s->ops->exchange(s, a, b, err);
}

int
store_pointer(struct store *s, const char *key, const char *target, struct pawl_error *err)
{
	TRY(check_key(key, err));
	TRY(check_key(target, err));
	return s->ops->pointer(s, key, target, err);
}

int
store_sync(struct store *s, const char *folder, struct pawl_error *err)
{
	TRY(check_folder(folder, err));
	return s->ops->sync(s, folder, err);
}

int
store_space(struct store *s, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	return s->ops->space(s, ret_free_bytes, err);
}

int
store_append(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	TRY(check_key(key, err));
	if (len > 0 && ptr == NULL)
		return err_set(err, PAWL_EUSAGE, "%s: no memory given to append", key);
	return len > 0 ? s->ops->append(s, key, ptr, len, err) : 0;
}

int
store_sweep(struct store *s, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	*ret_n = 0;
	return s->ops->sweep != NULL ? s->ops->sweep(s, before_ns, ret_n, err) : 0;
}

int
store_notes(struct store *s, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	return s->ops->notes != NULL ? s->ops->notes(s, fn, arg, err) : 0;
}
