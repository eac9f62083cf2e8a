/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_user: see store_user.h. Called through the table by store.c and layers; calls the caller's functions, from any
 * thread and several at a time.
 *
 * An object store without conditional puts, without folders that can be renamed, and without versions: nothing keeps
 * two writers apart (the core says so, and refuses jobs of many ranks), and a reader of an object that is replaced is
 * not told. Objects that are written in pieces are gathered in a file without a name on this machine ($TMPDIR) and
 * handed over whole, so that pieces may come in any order and a try can be repeated from the start (P15); memory stays
 * bounded. What the functions say is not trusted: names that are no keys are passed over, a code that is none is
 * PAWL_EIO.
 */
#include "store/user/store_user.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/fileio.h"
#include "base/hide.h"
#include "base/mem.h"
#include "base/text.h"
#include "store/engine.h"

#define MAX_APPEND_BYTES ((size_t)8 << 20)

struct user_store {
	struct store base;
	struct store_ops ops; /* the same for all, but for the name */
	struct pawl_stores calls;
	void *handle;
	bool can_copy;
	pthread_mutex_t append_lock; /* held over reading and putting back */
};

struct user_file {
	struct store_file base;
	int fd; /* without a name */
	bool sealed;
};

static int
no_memory(struct pawl_error *err, const char *key)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
}

/* What a function of the caller's came to: a code of ours, and a message that names the key. What it says is others'
 * text, and may hold a secret (P18). */
static int
judge(const char *key, const char *verb, int rc, struct pawl_error *why, struct pawl_error *err)
{
	if (rc >= 0)
		return 0;
	bool known = (why->code == rc || why->code == 0) && strcmp(pawl_code_name(rc), pawl_code_name(INT32_MIN)) != 0;
	hide_secrets(why->message);
	return err_set(err, known ? rc : PAWL_EIO, "%s: cannot %s: %s", key, verb,
	               why->message[0] != '\0' ? why->message : "its function says no more");
}

/* One call of a function of the table, whose last argument is a struct pawl_error *. */
#define CALL(s, key, verb, err, call)                  \
	do {                                           \
		struct pawl_error why = {0};           \
		int rc_ = (s)->calls.call;             \
		TRY(judge(key, verb, rc_, &why, err)); \
	} while (0)

/* ----------------------------------------------------------------- small objects */

static int
user_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct pawl_store_entry entry = {0};
	CALL(s, key, "look", err, stat(s->handle, key, &entry, &why));
	*ret = (struct store_entry){.is_folder = entry.is_folder != 0,
	                            .nbytes = entry.is_folder ? 0 : entry.nbytes,
	                            .mtime_ns = entry.mtime_ns,
	                            .n_links = 1};
	return 0;
}

static int
user_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	if (flags & STORE_EXCLUSIVE)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: cannot be put exclusively: %s has no conditional puts for pawl", key, s->base.root);
	for (size_t i = 0; i < n_parts; i++)
		buf_put(&whole, parts[i].ptr, parts[i].len);
	TRY(buf_check(&whole, key, err));
	CALL(s, key, "put", err, put(s->handle, key, whole.len > 0 ? whole.ptr : "", whole.len, &why));
	return 0;
}

static int
user_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	const struct pawl_slice line[] = {{target, strlen(target)}, {"\n", 1}};
	return user_put(base, key, line, 2, 0, err);
}

/* ----------------------------------------------------------------------- writing */

static int
check_absent(struct store *base, const char *key, struct pawl_error *err)
{
	struct store_entry entry;
	struct pawl_error why = {0};
	int rc = user_stat(base, key, &entry, &why);
	if (rc == 0)
		return err_set(err, PAWL_EEXISTS, "%s: exists already", key);
	return rc == PAWL_ENOTFOUND ? 0 : err_give(err, rc, &why);
}

static void
free_file(struct user_file **pf)
{
	if (*pf == NULL)
		return;
	fd_clean_close(&(*pf)->fd);
	mem_free((*pf)->base.key);
	mem_free(*pf);
}

static int
user_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
            struct pawl_error *err)
{
	if (!opts->own_name)
		TRY(check_absent(base, key, err));
	PAWL_CLEAN(free_file) struct user_file *f = mem_zalloc(1, sizeof *f);
	if (f == NULL)
		return no_memory(err, key);
	f->fd = -1;
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	f->base.key = mem_strdup(key);
	if (f->base.key == NULL)
		return no_memory(err, key);
	TRY(fd_spool(&f->fd, key, err));
	*ret = &steal(&f)->base;
	return 0;
}

static int
user_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
           struct pawl_error *err)
{
	(void)base;
	uint64_t left = bf->nbytes - offset; /* less the padding */
	return fd_pwrite_all(((struct user_file *)bf)->fd, ptr, len < left ? len : (size_t)left, offset, bf->key, err);
}

static int
user_seal(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct user_file *f = (struct user_file *)bf;
	char path[32];
	if (f->sealed)
		return 0;
	snprintf(path, sizeof path, "/dev/fd/%d", f->fd);
	CALL(s, bf->key, "put", err, upload(s->handle, bf->key, path, bf->nbytes, &why));
	f->sealed = true;
	return 0;
}

static int
user_finish(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	PAWL_CLEAN(free_file) struct user_file *f = (struct user_file *)bf;
	return user_seal(base, &f->base, err);
}

static void
user_abort(struct store *base, struct store_file *bf)
{
	(void)base;
	struct user_file *f = (struct user_file *)bf;
	free_file(&f);
}

/* ----------------------------------------------------------------------- reading */

static void
user_close_reader(struct store *base, struct store_reader *r)
{
	(void)base;
	mem_free(r->key);
	mem_free(r);
}

static int
user_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct store_entry entry;
	TRY(user_stat(base, key, &entry, err));
	if (entry.is_folder)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", key);
	PAWL_FREE struct store_reader *r = mem_zalloc(1, sizeof *r);
	if (r == NULL || (r->key = mem_strdup(key)) == NULL)
		return no_memory(err, key);
	r->nbytes = *ret_nbytes = entry.nbytes;
	*ret = steal(&r);
	return 0;
}

static int
user_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	if (n > 0)
		CALL(s, r->key, "read", err, read(s->handle, r->key, offset, dst, n, &why));
	return 0;
}

struct taking {
	struct buf *out;
	size_t max;
};

static int
take_bytes(void *arg, const void *ptr, size_t nbytes)
{
	struct taking *t = arg;
	if (nbytes > t->max)
		return PAWL_ELIMIT;
	buf_put(t->out, ptr, nbytes);
	return t->out->failed ? PAWL_ENOMEM : 0;
}

static int
user_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct taking t = {out, max};
	struct pawl_error why = {0};
	int rc = s->calls.get(s->handle, key, max, take_bytes, &t, &why);
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, "%s: expected at most %zu bytes, found more", key, max);
	TRY(rc == PAWL_ENOMEM ? no_memory(err, key) : judge(key, "read", rc, &why, err));
	return buf_check(out, key, err);
}

static int
user_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	(void)base, (void)r, (void)offset, (void)n, (void)ret;
	return 0;
}

static void
user_drop_view(struct store *base, struct store_view *view)
{
	(void)base, (void)view;
}

static int
user_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	PAWL_CLEAN(buf_clear) struct buf old = {0};
	pthread_mutex_lock(&s->append_lock);
	int rc = store_get(base, key, MAX_APPEND_BYTES, &old, err);
	if (rc == PAWL_ENOTFOUND)
		rc = 0;
	if (rc == 0 && len > MAX_APPEND_BYTES - old.len)
		rc = err_set(err, PAWL_ELIMIT, "%s: cannot append: it would be larger than %zu bytes", key,
		             MAX_APPEND_BYTES);
	const struct pawl_slice both[] = {{old.ptr, old.len}, {ptr, len}};
	if (rc == 0)
		rc = user_put(base, key, both, 2, 0, err);
	pthread_mutex_unlock(&s->append_lock);
	return rc;
}

/* ------------------------------------------------------------------------- names */

struct listing {
	store_list_fn *fn;
	void *arg;
	int rc; /* what fn has ended the list with */
};

static int
see_entry(void *arg, const struct pawl_store_entry *found)
{
	struct listing *l = arg;
	if (found->name == NULL || strchr(found->name, '/') != NULL || !text_is_key(found->name))
		return 0;
	const struct store_entry entry = {.name = found->name,
	                                  .is_folder = found->is_folder != 0,
	                                  .nbytes = found->is_folder ? 0 : found->nbytes,
	                                  .mtime_ns = found->mtime_ns,
	                                  .n_links = 1};
	if (l->rc == 0)
		l->rc = l->fn(l->arg, &entry);
	return l->rc;
}

static int
user_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct listing l = {.fn = fn, .arg = arg};
	struct pawl_error why = {0};
	int rc = s->calls.list(s->handle, folder, see_entry, &l, &why);
	if (l.rc < 0)
		return l.rc;
	if (rc == PAWL_ENOTFOUND && folder[0] == '\0')
		return 0;
	return judge(folder[0] != '\0' ? folder : s->base.root, "list", rc, &why, err);
}

static int
remove_any(struct store *base, const char *key, bool folder, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct pawl_error why = {0};
	int rc = s->calls.remove(s->handle, key, folder, &why);
	return rc == PAWL_ENOTFOUND ? 0 : judge(key, "remove", rc, &why, err);
}

static int
user_remove(struct store *base, const char *key, struct pawl_error *err)
{
	return remove_any(base, key, false, err);
}

static int
user_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	return remove_any(base, folder, true, err);
}

static int
copy(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct store_entry entry;
	TRY(user_stat(base, from, &entry, err));
	if (entry.is_folder)
		return err_set(err, PAWL_ENOTFOUND, "%s: there is no such object", from);
	CALL(s, from, "copy", err, copy(s->handle, from, to, &why));
	return 0;
}

static int
user_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(check_absent(base, to, err));
	return copy(base, from, to, err);
}

static int
user_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(copy(base, from, to, err));
	return user_remove(base, from, err);
}

static int
user_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	(void)base, (void)from;
	return err_set(err, PAWL_EUNSUPPORTED, "%s: folders cannot be renamed in a %s store", to, base->ops->name);
}

static int
user_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	(void)base, (void)folder, (void)err;
	return 0;
}

static int
user_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	(void)base, (void)err;
	*ret_free_bytes = UINT64_MAX;
	return 0;
}

/* --------------------------------------------------------------------- the store */

static void
user_caps(struct store *base, struct store_caps *ret)
{
	*ret = (struct store_caps){
		.link = ((struct user_store *)base)->can_copy, .flat = true, .offset_align = 1, .memory_align = 1};
}

static void
user_close(struct store *base)
{
	struct user_store *s = (struct user_store *)base;
	s->calls.close(s->handle);
	pthread_mutex_destroy(&s->append_lock);
	mem_free(s->base.root);
	mem_free(s);
}

static const struct store_ops user_ops = {
	.close = user_close,
	.caps = user_caps,
	.put = user_put,
	.create = user_create,
	.write = user_write,
	.seal = user_seal,
	.finish = user_finish,
	.abort = user_abort,
	.open = user_open,
	.read = user_read,
	.get = user_get,
	.view = user_view,
	.drop_view = user_drop_view,
	.close_reader = user_close_reader,
	.stat = user_stat,
	.list = user_list,
	.remove = user_remove,
	.remove_folder = user_remove_folder,
	.link = user_link,
	.move = user_move,
	.publish = user_publish,
	.pointer = user_pointer,
	.sync = user_sync,
	.space = user_space,
	.append = user_append,
};

int
store_user_check(const struct pawl_stores *c, struct pawl_error *err)
{
	if (c->size < sizeof *c || c->name == NULL || c->open == NULL || c->close == NULL || c->put == NULL ||
	    c->upload == NULL || c->get == NULL || c->read == NULL || c->stat == NULL || c->list == NULL ||
	    c->remove == NULL || c->copy == NULL)
		return err_set(err, PAWL_EUSAGE,
		               "stores: expected a table made by PAWL_STORES_INIT with a name and all functions");
	return 0;
}

/* P18: what is in a URL is shown, kept and logged. */
static int
refuse_password(const char *url, struct pawl_error *err)
{
	const char *begin = strstr(url, "://");
	begin = begin != NULL ? begin + 3 : url;
	const char *colon = memchr(begin, ':', strcspn(begin, "/@"));
	/* what follows a colon is a port, or a password, which may have anything in it */
	if (colon == NULL || strchr(colon, '@') == NULL ||
	    strchr("/", colon[1 + strspn(colon + 1, "0123456789")]) != NULL)
		return 0;
	return err_set(err, PAWL_EUSAGE,
	               "%.*s..: a password in a URL is seen by many; give it by the configuration of what opens it",
	               (int)(begin - url), url);
}

int
store_user_open(const struct pawl_stores *calls, const char *url, bool create, struct store **ret,
                struct pawl_error *err)
{
	struct pawl_error why = {0};
	int can_copy = 0;
	TRY(refuse_password(url, err));
	PAWL_FREE struct user_store *s = mem_zalloc(1, sizeof *s);
	PAWL_FREE char *root = mem_strdup(url);
	if (s == NULL || root == NULL)
		return no_memory(err, url);
	s->calls = *calls;
	int rc = calls->open(calls->arg, url, create, &s->handle, &can_copy, &why);
	TRY(judge(url, "open", rc, &why, err));
	s->can_copy = can_copy != 0;
	s->ops = user_ops;
	s->ops.name = calls->name;
	s->base.ops = &s->ops;
	s->base.root = steal(&root);
	pthread_mutex_init(&s->append_lock, NULL);
	*ret = &steal(&s)->base;
	return 0;
}
