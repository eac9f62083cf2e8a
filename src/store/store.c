/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: the checked border between the rooms above and every engine or layer. Keys, ranges and
 * states are checked here and nowhere else, so an engine can trust its arguments. Promises P5 (a
 * failed write can only be aborted), P17 (no key leaves the root), and half of P1. An object is
 * finished only when every byte was written.
 *
 * A call is passed to the outermost store that has the operation (LAYER_HAND_DOWN). If no store has
 * it, the default is applied at the engine, inside all layers.
 */
#include "store/store.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/err_path.h"
#include "base/mem.h"
#include "base/text.h"
#include "store/layers/layer.h"
#include "store/store_default.h"

int
store_init(struct store *s, const struct store_ops *ops, const char *name, const char *root, struct pawl_error *err)
{
	*s = (struct store){.ops = ops, .name = name, .root = mem_strdup(root)};
	if (!s->root)
		return err_nomem(err, root);
	pthread_mutex_init(&s->append_lock, NULL);
	return 0;
}

void
store_close(struct store *s)
{
	while (s) {
		struct store *inner = s->inner;
		if (s->ops->close)
			s->ops->close(s);
		pthread_mutex_destroy(&s->append_lock);
		mem_free(s->root);
		mem_free(s->place);
		mem_free(s);
		s = inner;
	}
}

/* True if a store has the operation and no layer before it has its own `limit`. Such a layer would
 * not call the operation. */
#define FIND(s, op, limit)                                                    \
	__extension__({                                                       \
		const struct store *find_ = (s);                              \
		while (!find_->ops->op && !find_->ops->limit && find_->inner) \
			find_ = find_->inner;                                 \
		find_->ops->op != NULL;                                       \
	})

void
store_get_caps(struct store *s, struct store_caps *ret)
{
	struct store *from = s;
	while (!from->ops->caps && from->inner)
		from = from->inner;
	*ret = (struct store_caps){0};
	if (from->ops->caps)
		from->ops->caps(from, ret);
	ret->lists_all = ret->lists_all && FIND(s, list_all, list);
	ret->offset_align = ret->offset_align ? ret->offset_align : 1;
	ret->copies = ret->copies ? ret->copies : 1;
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

/* Callers that pad the last piece to a page need not ask for the exact alignment. */
#define MIN_PAD_BYTES 4096u

static int
check_write(const struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	uint64_t align = f->offset_align;
	uint64_t pad = align > MIN_PAD_BYTES ? align : MIN_PAD_BYTES;
	uint64_t end, limit = f->nbytes;
	if (f->nbytes <= UINT64_MAX - pad)
		limit = mem_round_up(f->nbytes, pad);
	if (!mem_add_ok(offset, len, &end) || offset > f->nbytes || end > limit)
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
	if (!mem_add_ok(offset, n, &end) || end > r->nbytes)
		return err_set(err, PAWL_ECORRUPT, "%s: expected %zu bytes at %" PRIu64 ", but it ends at %" PRIu64,
		               r->key, n, offset, r->nbytes);
	return 0;
}

/* No permission for an object: the error names its folder, or the one that a hidden one is in. */
static int
refuse_denied(const struct store *s, const char *key, bool writes, struct pawl_error *err)
{
	size_t len = 0;
	for (const char *slash; key[len] != '.' && (slash = strchr(key + len, '/')) != NULL;)
		len = (size_t)(slash - key) + 1;
	PAWL_FREE char *folder = mem_printf("%s/%.*s", s->root, (int)len, key);
	if (folder)
		folder[strlen(folder) - 1] = '\0';
	return err_denied(err, err->sys, s->place ? s->place : folder ? folder : s->root, writes);
}

static int
place_error(struct store *s, const char *key, bool writes, int rc, struct pawl_error *err)
{
	size_t len = strlen(key), root_len = strlen(s->root);
	bool begins = rc < 0 && err && len > 0 && strncmp(err->message, key, len) == 0 &&
	              (err->message[len] == ':' || err->message[len] == '/');
	if (begins && err_is_denied(err->sys)) {
		struct store_caps caps;

		store_get_caps(s, &caps);
		if (caps.local) /* else the user is another machine's */
			return refuse_denied(s, key, writes, err);
	}
	if (!begins || root_len == 0 || (strstr(s->root, "://") && strpbrk(s->root, "@?")))
		return rc;
	size_t nbytes = strlen(err->message) + 1;
	bool needs_slash = !strchr("/:", s->root[root_len - 1]);
	if (nbytes + root_len + needs_slash > sizeof(err->message))
		return rc; /* the reason is worth more than the place */
	memmove(err->message + root_len + needs_slash, err->message, nbytes);
	memcpy(err->message, s->root, root_len);
	if (needs_slash)
		err->message[root_len] = '/';
	return rc;
}

int
store_at_root(struct store *s, const char *key, int rc, struct pawl_error *err)
{
	return place_error(s, key, false, rc, err);
}

static int
write_error(struct store *s, const char *key, int rc, struct pawl_error *err)
{
	return place_error(s, key, true, rc, err);
}

/* ----------------------------------------------------------------- writing */

/* The error of an engine that lacks the required writing operations. */
static int
refuse_write(const struct store *s, const char *key, struct pawl_error *err)
{
	return err_set(err, PAWL_EREADONLY, "%s: %s can only be read", key, s->root);
}

/* The error for a missing operation that has no default. */
static int
refuse_call(const struct store *s, const char *key, const char *what, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED, "%s: %s stores cannot %s", key, s->name, what);
}

static int
refuse_name(const struct store *s, const char *key, const char *what, struct pawl_error *err)
{
	return s->ops->put ? refuse_call(s, key, what, err) : refuse_write(s, key, err);
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
		if (!mem_add_ok(total, parts[i].len, &total))
			return err_set(err, PAWL_EUSAGE, "%s: the parts are too large", key);
	}
	LAYER_HAND_DOWN(s, put, put, LAYER_PUT, "put", key, total, err,
	                store_put(s->inner, key, parts, n_parts, flags, err));
	int rc = s->ops->put ? s->ops->put(s, key, parts, n_parts, flags, err) : refuse_write(s, key, err);
	return write_error(s, key, rc, err);
}

int
store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags, struct pawl_error *err)
{
	struct pawl_slice part = {ptr, len};
	return store_put(s, key, &part, 1, flags, err);
}

int
store_put_if(struct store *s, const char *key, const char *tag, const void *ptr, size_t len, struct pawl_error *err)
{
	struct pawl_slice text = {ptr, len};
	TRY(check_key(key, err));
	if (!FIND(s, put_if, put))
		return refuse_call(s, key, "tell one version from another", err);
	LAYER_HAND_DOWN(s, put_if, put_if, LAYER_PUT, "replace", key, len, err,
	                store_put_if(s->inner, key, tag, ptr, len, err));
	int rc = s->ops->put_if(s, key, tag, &text, err);
	return write_error(s, key, rc, err);
}

int
store_create(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	TRY(check_key(key, err));
	if (opts == NULL || opts->nbytes > INT64_MAX)
		return err_set(err, PAWL_EUSAGE, "%s: the given size is not valid", key);
	if (opts->recycle_key != NULL)
		TRY(check_two_keys(opts->recycle_key, key, err));
	LAYER_HAND_DOWN(s, create, create, LAYER_CREATE, "create", key, opts->nbytes, err,
	                store_create(s->inner, key, opts, ret, err));
	int rc = s->ops->create ? s->ops->create(s, key, opts, ret, err) : refuse_write(s, key, err);
	return write_error(s, key, rc, err);
}

int
store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	if (atomic_load(&f->failed))
		return err_set(err, PAWL_EIO, "%s: an earlier write failed", f->key);
	int rc = check_write(f, offset, ptr, len, err);
	if (rc == 0 && len > 0)
		rc = write_error(s, f->key, layer_write(s, f, offset, ptr, len, err), err);
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
	if (rc == 0) {
		PAWL_FREE char *key = err ? mem_strdup(f->key) : NULL;
		rc = layer_finish(s, f, err);
		return key ? write_error(s, key, rc, err) : rc;
	}
	store_abort(s, f);
	return rc;
}

void
store_abort(struct store *s, struct store_file *f)
{
	if (f == NULL)
		return;
	while (!s->ops->abort)
		s = s->inner;
	s->ops->abort(s, f);
}

int
store_append(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	TRY(check_key(key, err));
	if (len > 0 && ptr == NULL)
		return err_set(err, PAWL_EUSAGE, "%s: no memory given to append", key);
	if (len == 0)
		return 0;
	LAYER_HAND_DOWN(s, append, put, LAYER_OTHER, "append", key, len, err,
	                store_append(s->inner, key, ptr, len, err));
	int rc = s->ops->append ? s->ops->append(s, key, ptr, len, err) : store_default_append(s, key, ptr, len, err);
	return write_error(s, key, rc, err);
}

int
store_pointer(struct store *s, const char *key, const char *target, struct pawl_error *err)
{
	TRY(check_key(key, err));
	TRY(check_key(target, err));
	LAYER_HAND_DOWN(s, pointer, pointer, LAYER_OTHER, "point", key, 0, err,
	                store_pointer(s->inner, key, target, err));
	int rc = s->ops->pointer ? s->ops->pointer(s, key, target, err) : store_default_pointer(s, key, target, err);
	return write_error(s, key, rc, err);
}

/* ----------------------------------------------------------------- reading */

int
store_open_reader(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                  struct pawl_error *err)
{
	uint64_t nbytes;
	TRY(check_key(key, err));
	LAYER_HAND_DOWN(s, open, open, LAYER_OTHER, "open", key, 0, err,
	                store_open_reader(s->inner, key, ret, ret_nbytes, err));
	TRY(store_at_root(s, key, s->ops->open(s, key, ret, &nbytes, err), err));
	if (ret_nbytes != NULL)
		*ret_nbytes = nbytes;
	return 0;
}

int
store_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	TRY(check_read(r, offset, dst, n, err));
	if (n == 0)
		return 0;
	LAYER_HAND_DOWN(s, read, read, LAYER_READ, "read", r->key, n, err,
	                store_read(s->inner, r, offset, dst, n, err));
	int rc = s->ops->read(s, r, offset, dst, n, err);
	return store_at_root(s, r->key, rc, err);
}

int
store_read_copy(struct store *s, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
                struct pawl_error *err)
{
	TRY(check_read(r, offset, dst, n, err));
	if (!FIND(s, read_copy, read))
		return copy > 0 ? err_set(err, PAWL_ENOTFOUND, "%s: there is only one copy", r->key)
		                : store_read(s, r, offset, dst, n, err);
	if (n == 0)
		return 0;
	LAYER_HAND_DOWN(s, read_copy, read_copy, LAYER_READ, "read", r->key, n, err,
	                store_read_copy(s->inner, r, copy, offset, dst, n, err));
	int rc = s->ops->read_copy(s, r, copy, offset, dst, n, err);
	return store_at_root(s, r->key, rc, err);
}

int
store_pass_over(struct store *s, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err)
{
	if (!FIND(s, pass_over, read))
		return err_set(err, PAWL_ENOTFOUND, "%s: no other store has it", r->key);
	LAYER_HAND_DOWN(s, pass_over, pass_over, LAYER_OTHER, "pass over", r->key, 0, err,
	                store_pass_over(s->inner, r, ret_nbytes, err));
	return s->ops->pass_over(s, r, ret_nbytes, err);
}

bool
store_is_cached(struct store *s, struct store_reader *r, uint64_t offset, size_t n)
{
	while (!s->ops->is_cached && !s->ops->read)
		s = s->inner;
	return n > 0 && s->ops->is_cached && check_read(r, offset, "", n, NULL) == 0 &&
	       s->ops->is_cached(s, r, offset, n);
}

int
store_stat_reader(struct store *s, struct store_reader *r, struct store_entry *ret, struct pawl_error *err)
{
	while (!s->ops->stat_reader && !s->ops->read)
		s = s->inner;
	if (!s->ops->stat_reader)
		return refuse_call(s, r->key, "look at what is open", err);
	return store_at_root(s, r->key, s->ops->stat_reader(s, r, ret, err), err);
}

void
store_close_reader(struct store *s, struct store_reader *r)
{
	if (r == NULL)
		return;
	while (!s->ops->close_reader)
		s = s->inner;
	s->ops->close_reader(s, r);
}

void
store_opened_close(struct store_opened *o)
{
	store_close_reader(o->store, o->reader);
}

/* For a layer that watches: a failed call leaves `out` unchanged, and may be repeated. */
static int
count_bytes(int rc, struct buf *out, size_t before, struct layer_call *call)
{
	if (rc < 0)
		out->len = before;
	call->nbytes = out->len - before;
	return rc;
}

int
store_get(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	const size_t before = out->len;
	TRY(check_key(key, err));
	LAYER_HAND_DOWN(s, get, read, LAYER_READ, "read", key, 0, err,
	                count_bytes(store_get(s->inner, key, max, out, err), out, before, &layer_call_));
	int rc = s->ops->get ? s->ops->get(s, key, max, out, NULL, err) : PAWL_EUNSUPPORTED;
	rc = rc == PAWL_EUNSUPPORTED ? store_default_get(s, key, max, out, err) : rc;
	return store_at_root(s, key, rc, err);
}

int
store_get_tagged(struct store *s, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
                 struct pawl_error *err)
{
	const size_t before = out->len;
	TRY(check_key(key, err));
	if (!FIND(s, put_if, put) || !FIND(s, get, read))
		return refuse_call(s, key, "tell one version from another", err);
	LAYER_HAND_DOWN(s, get, read, LAYER_READ, "read", key, 0, err,
	                count_bytes(store_get_tagged(s->inner, key, max, out, tag, err), out, before, &layer_call_));
	int rc = s->ops->get(s, key, max, out, tag, err);
	return store_at_root(s, key, rc, err);
}

/* ------------------------------------------------------------------- names */

int
store_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	TRY(check_key(key, err));
	LAYER_HAND_DOWN(s, stat, stat, LAYER_STAT, "stat", key, 0, err, store_stat(s->inner, key, ret, err));
	int rc = s->ops->stat(s, key, ret, err);
	return store_at_root(s, key, rc, err);
}

int
store_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	TRY(check_folder(folder, err));
	LAYER_HAND_DOWN(s, list, list, LAYER_LIST, "list", folder, 0, err, store_list(s->inner, folder, fn, arg, err));
	int rc = s->ops->list(s, folder, fn, arg, err);
	return store_at_root(s, folder, rc, err);
}

int
store_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	TRY(check_folder(folder, err));
	LAYER_HAND_DOWN(s, list_all, list, LAYER_LIST, "list", folder, 0, err,
	                store_list_all(s->inner, folder, fn, arg, err));
	int rc = s->ops->list_all ? s->ops->list_all(s, folder, fn, arg, err)
	                          : store_default_list_all(s, folder, fn, arg, err);
	return store_at_root(s, folder, rc, err);
}

int
store_remove(struct store *s, const char *key, struct pawl_error *err)
{
	TRY(check_key(key, err));
	LAYER_HAND_DOWN(s, remove, remove, LAYER_REMOVE, "remove", key, 0, err, store_remove(s->inner, key, err));
	int rc = s->ops->remove ? s->ops->remove(s, key, err) : refuse_write(s, key, err);
	return write_error(s, key, rc, err);
}

int
store_remove_folder(struct store *s, const char *folder, struct pawl_error *err)
{
	TRY(check_key(folder, err));
	LAYER_HAND_DOWN(s, remove_folder, remove_folder, LAYER_REMOVE, "remove", folder, 0, err,
	                store_remove_folder(s->inner, folder, err));
	int rc = s->ops->remove_folder ? s->ops->remove_folder(s, folder, err) : refuse_write(s, folder, err);
	return write_error(s, folder, rc, err);
}

int
store_link(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_two_keys(from, to, err));
	LAYER_HAND_DOWN(s, link, link, LAYER_LINK, "link", from, 0, err, store_link(s->inner, from, to, err));
	int rc = s->ops->link ? s->ops->link(s, from, to, err) : refuse_name(s, to, "link objects", err);
	return write_error(s, from, write_error(s, to, rc, err), err);
}

int
store_move(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_two_keys(from, to, err));
	LAYER_HAND_DOWN(s, move, move, LAYER_OTHER, "move", from, 0, err, store_move(s->inner, from, to, err));
	int rc = s->ops->move ? s->ops->move(s, from, to, err) : store_default_move(s, from, to, err);
	return write_error(s, from, write_error(s, to, rc, err), err);
}

int
store_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_two_keys(from, to, err));
	LAYER_HAND_DOWN(s, publish, publish, LAYER_PUBLISH, "publish", from, 0, err,
	                store_publish(s->inner, from, to, err));
	int rc = s->ops->publish ? s->ops->publish(s, from, to, err) : refuse_name(s, to, "rename folders", err);
	return write_error(s, from, write_error(s, to, rc, err), err);
}

int
store_exchange(struct store *s, const char *a, const char *b, struct pawl_error *err)
{
	TRY(check_two_keys(a, b, err));
	if (!FIND(s, exchange, exchange))
		return refuse_call(s, b, "exchange folders", err);
	LAYER_HAND_DOWN(s, exchange, exchange, LAYER_PUBLISH, "exchange", a, 0, err,
	                store_exchange(s->inner, a, b, err));
	int rc = s->ops->exchange(s, a, b, err);
	return write_error(s, a, write_error(s, b, rc, err), err);
}

int
store_sync(struct store *s, const char *folder, struct pawl_error *err)
{
	TRY(check_folder(folder, err));
	LAYER_HAND_DOWN(s, sync, sync, LAYER_OTHER, "sync", folder, 0, err, store_sync(s->inner, folder, err));
	int rc = s->ops->sync ? s->ops->sync(s, folder, err) : 0;
	return write_error(s, folder, rc, err);
}

/* --------------------------------------------------------- the store itself */

int
store_space(struct store *s, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	*ret_free_bytes = UINT64_MAX;
	LAYER_HAND_DOWN(s, space, space, LAYER_OTHER, "measure free space", s->root, 0, err,
	                store_space(s->inner, ret_free_bytes, err));
	return s->ops->space ? s->ops->space(s, ret_free_bytes, err) : 0;
}

int
store_sweep(struct store *s, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	*ret_n = 0;
	if (!FIND(s, sweep, sweep))
		return 0;
	LAYER_HAND_DOWN(s, sweep, sweep, LAYER_OTHER, "sweep", s->root, 0, err,
	                store_sweep(s->inner, before_ns, ret_n, err));
	return s->ops->sweep(s, before_ns, ret_n, err);
}

int
store_notes(struct store *s, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	if (!FIND(s, notes, notes))
		return 0;
	LAYER_HAND_DOWN(s, notes, notes, LAYER_OTHER, "look", s->root, 0, err, store_notes(s->inner, fn, arg, err));
	return s->ops->notes(s, fn, arg, err);
}
