/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_user: see store_user.h. It calls the caller's functions from any thread, several at a time.
 *
 * The store has no conditional puts, no renamed folders and no versions. So it cannot keep two
 * writers apart, and the rooms above refuse jobs of many ranks. A reader does not notice that its
 * object was replaced. An object that is written in pieces is gathered in a nameless file in
 * $TMPDIR and passed on when it is complete. So pieces may come in any order, a try can be repeated
 * from the start (P15), and memory stays bounded. Results of the functions are not trusted: names
 * that are not keys are skipped, and an unknown code becomes PAWL_EIO.
 */
#include "store/user/store_user.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/hide.h"
#include "base/mem.h"
#include "base/text.h"
#include "store/engine.h"

struct user_store {
	struct store base;
	struct pawl_stores calls;
	void *handle;
	bool can_copy;
};

struct user_file {
	struct store_file base;
	int fd; /* nameless */
	bool sealed;
};

/* Turns the result of the caller's function into one of our codes and a message that names the key.
 * The function's own message may hold a secret (P18). */
static int
judge_result(const char *key, const char *verb, int rc, struct pawl_error *why, struct pawl_error *err)
{
	if (rc >= 0)
		return 0;
	bool known = (why->code == rc || why->code == 0) && strcmp(pawl_code_name(rc), pawl_code_name(INT32_MIN)) != 0;
	hide_secrets(why->message);
	return err_set(err, known ? rc : PAWL_EIO, "%s: cannot %s: %s", key, verb,
	               why->message[0] != '\0' ? why->message : "its function gave no reason");
}

/* Calls one function of the table. Its last argument is a struct pawl_error *. */
#define CALL(s, key, verb, err, call)                         \
	do {                                                  \
		struct pawl_error why = {0};                  \
		int rc_ = (s)->calls.call;                    \
		TRY(judge_result(key, verb, rc_, &why, err)); \
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

/* ----------------------------------------------------------------------- writing */

static int
check_absent(struct store *base, const char *key, struct pawl_error *err)
{
	struct store_entry entry;
	struct pawl_error why = {0};
	int rc = user_stat(base, key, &entry, &why);
	if (rc == 0)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	return rc == PAWL_ENOTFOUND ? 0 : err_give(err, rc, &why);
}

static void
free_file(struct user_file *f)
{
	fd_clean_close(&f->fd);
	mem_free(f->base.key);
	mem_free(f);
}
PAWL_DEFINE_CLEAN(struct user_file, free_file);

static int
user_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
            struct pawl_error *err)
{
	if (!opts->own_name)
		TRY(check_absent(base, key, err));
	PAWL_CLEAN(free_file_clean) struct user_file *f = mem_zalloc(1, sizeof *f);
	if (f == NULL)
		return err_nomem(err, key);
	f->fd = -1;
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	f->base.key = mem_strdup(key);
	if (f->base.key == NULL)
		return err_nomem(err, key);
	TRY(fd_temp_file(&f->fd, key, err));
	*ret = &steal(&f)->base;
	return 0;
}

static int
user_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
           struct pawl_error *err)
{
	(void)base;
	uint64_t left = bf->nbytes - offset; /* without padding */
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
	PAWL_CLEAN(free_file_clean) struct user_file *f = (struct user_file *)bf;
	return user_seal(base, &f->base, err);
}

static void
user_abort(struct store *base, struct store_file *bf)
{
	(void)base;
	free_file((struct user_file *)bf);
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
		return err_nomem(err, key);
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

struct collected {
	struct buf *out;
	size_t max;
};

static int
collect_bytes(void *arg, const void *ptr, size_t nbytes)
{
	struct collected *t = arg;
	if (nbytes > t->max)
		return PAWL_ELIMIT;
	buf_put(t->out, ptr, nbytes);
	return t->out->failed ? PAWL_ENOMEM : 0;
}

static int
user_get(struct store *base, const char *key, size_t max, struct buf *out, char *tag, struct pawl_error *err)
{
	(void)tag; /* these stores have no put_if */
	struct user_store *s = (struct user_store *)base;
	struct collected t = {out, max};
	struct pawl_error why = {0};
	int rc = s->calls.get(s->handle, key, max, collect_bytes, &t, &why);
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, "%s: expected at most %zu bytes, found more", key, max);
	TRY(rc == PAWL_ENOMEM ? err_nomem(err, key) : judge_result(key, "read", rc, &why, err));
	return buf_check(out, key, err);
}

/* ------------------------------------------------------------------------- names */

struct listing {
	store_list_fn *fn;
	void *arg;
	int rc; /* result of fn; a negative one ends the list */
};

static int
pass_entry(void *arg, const struct pawl_store_entry *found)
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
	int rc = s->calls.list(s->handle, folder, pass_entry, &l, &why);
	if (l.rc < 0)
		return l.rc;
	if (rc == PAWL_ENOTFOUND && folder[0] == '\0')
		return 0;
	return judge_result(folder[0] != '\0' ? folder : s->base.root, "list", rc, &why, err);
}

static int
remove_any(struct store *base, const char *key, bool folder, struct pawl_error *err)
{
	struct user_store *s = (struct user_store *)base;
	struct pawl_error why = {0};
	int rc = s->calls.remove(s->handle, key, folder, &why);
	return rc == PAWL_ENOTFOUND ? 0 : judge_result(key, "remove", rc, &why, err);
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
copy_key(struct store *base, const char *from, const char *to, struct pawl_error *err)
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
	return copy_key(base, from, to, err);
}

static int
user_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(copy_key(base, from, to, err));
	return user_remove(base, from, err);
}

/* --------------------------------------------------------------------- the store */

static void
user_caps(struct store *base, struct store_caps *ret)
{
	*ret = (struct store_caps){.link = ((struct user_store *)base)->can_copy, .flat = true};
}

static void
user_close(struct store *base)
{
	struct user_store *s = (struct user_store *)base;
	s->calls.close(s->handle);
}

static const struct store_ops user_ops = {
	.put = user_put,
	.create = user_create,
	.write = user_write,
	.finish = user_finish,
	.abort = user_abort,
	.remove = user_remove,
	.remove_folder = user_remove_folder,
	.open = user_open,
	.read = user_read,
	.close_reader = user_close_reader,
	.stat = user_stat,
	.list = user_list,
	.close = user_close,
	.caps = user_caps,
	.seal = user_seal,
	.link = user_link,
	.move = user_move,
	.get = user_get,
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

/* P18: a URL is shown, stored and logged, so it must not hold a password. */
static int
refuse_password(const char *url, struct pawl_error *err)
{
	const char *begin = strstr(url, "://");
	begin = begin != NULL ? begin + 3 : url;
	const char *colon = memchr(begin, ':', strcspn(begin, "/@"));
	/* The text after the colon is a port, or a password, which may hold any character. */
	if (colon == NULL || strchr(colon, '@') == NULL ||
	    strchr("/", colon[1 + strspn(colon + 1, "0123456789")]) != NULL)
		return 0;
	return err_set(
		err, PAWL_EUSAGE,
		"%.*s..: a password in a URL is shown and logged; give it in the configuration of the file system",
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
	if (s == NULL)
		return err_nomem(err, url);
	int rc = calls->open(calls->arg, url, create, &s->handle, &can_copy, &why);
	TRY(judge_result(url, "open", rc, &why, err));
	s->calls = *calls;
	s->can_copy = can_copy != 0;
	rc = store_init(&s->base, &user_ops, calls->name, url, err);
	if (rc < 0) {
		calls->close(s->handle);
		return rc;
	}
	*ret = &steal(&s)->base;
	return 0;
}
