/* SPDX-License-Identifier: Apache-2.0 */
/* store_shelf: an engine with only the twelve required operations, for the service of service.h. */
#include "extending/store_shelf.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "extending/service.h"
#include "store/engine.h"

/* The store and its open files and readers begin with the structs of the border. */
struct shelf {
	struct store base;
	struct service *service;
};

struct shelf_file {
	struct store_file base;
	char bytes[]; /* written so far; invisible until finish */
};

struct shelf_reader {
	struct store_reader base;
	uint64_t version; /* a reader never sees the bytes of another one */
};

static struct service *
service_of(struct store *s)
{
	return ((struct shelf *)s)->service;
}

/* Gives what the service answered as an error of pawl. */
static int
report_result(const char *key, enum service_result result, struct pawl_error *err)
{
	static const struct {
		int code;
		const char *why;
	} rows[] = {
		[SERVICE_MISSING] = {PAWL_ENOTFOUND, "there is no such object"},
		[SERVICE_EXISTS] = {PAWL_EEXISTS, "already exists"},
		[SERVICE_CHANGED] = {PAWL_ECONFLICT, "was replaced while it was open"},
		[SERVICE_FULL] = {PAWL_ENOSPACE, "the service is full"},
	};
	return result == SERVICE_DONE ? 0 : err_set(err, rows[result].code, "%s: %s", key, rows[result].why);
}

static int
shelf_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf all = {0};
	for (size_t i = 0; i < n_parts; i++)
		buf_put(&all, parts[i].ptr, parts[i].len);
	TRY(buf_check(&all, key, err));
	return report_result(key, service_put(service_of(s), key, all.ptr, all.len, flags & STORE_EXCLUSIVE), err);
}

static int
shelf_create(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	struct service_info info;
	if (service_look(service_of(s), key, &info) == SERVICE_DONE)
		return report_result(key, SERVICE_EXISTS, err);
	PAWL_FREE struct shelf_file *f = mem_zalloc(1, sizeof(*f) + (size_t)opts->nbytes);
	PAWL_FREE char *name = mem_strdup(key);
	if (!f || !name)
		return err_nomem(err, key);
	f->base = (struct store_file){.key = steal(&name), .nbytes = opts->nbytes, .offset_align = 1};
	*ret = &steal(&f)->base;
	return 0;
}

static int
shelf_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	const uint64_t left = f->nbytes - offset; /* without padding */
	(void)s, (void)err;
	memcpy(((struct shelf_file *)f)->bytes + offset, ptr, len < left ? len : (size_t)left);
	return 0;
}

static void
shelf_abort(struct store *s, struct store_file *f)
{
	(void)s;
	mem_free(f->key);
	mem_free(f);
}

static int
shelf_finish(struct store *s, struct store_file *f, struct pawl_error *err)
{
	const char *bytes = ((struct shelf_file *)f)->bytes;
	int rc = report_result(f->key, service_put(service_of(s), f->key, bytes, (size_t)f->nbytes, true), err);
	shelf_abort(s, f);
	return rc;
}

static int
shelf_remove(struct store *s, const char *key, struct pawl_error *err)
{
	(void)err;
	service_delete(service_of(s), key, false);
	return 0;
}

static int
shelf_remove_folder(struct store *s, const char *folder, struct pawl_error *err)
{
	(void)err;
	service_delete(service_of(s), folder, true);
	return 0;
}

static int
shelf_open(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct service_info info;
	TRY(report_result(key, service_look(service_of(s), key, &info), err));
	if (info.is_folder)
		return report_result(key, SERVICE_MISSING, err);
	PAWL_FREE struct shelf_reader *r = mem_zalloc(1, sizeof(*r));
	PAWL_FREE char *name = mem_strdup(key);
	if (!r || !name)
		return err_nomem(err, key);
	*r = (struct shelf_reader){.base = {steal(&name), info.nbytes}, .version = info.version};
	*ret = &steal(&r)->base;
	*ret_nbytes = info.nbytes;
	return 0;
}

static int
shelf_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const uint64_t version = ((struct shelf_reader *)r)->version;
	return report_result(r->key, service_read(service_of(s), r->key, version, offset, dst, n), err);
}

static void
shelf_close_reader(struct store *s, struct store_reader *r)
{
	(void)s;
	mem_free(r->key);
	mem_free(r);
}

static struct store_entry
entry_of(const struct service_info *info, const char *name)
{
	return (struct store_entry){.name = name,
	                            .is_folder = info->is_folder,
	                            .nbytes = info->nbytes,
	                            .mtime_ns = info->mtime_ns,
	                            .n_links = 1};
}

static int
shelf_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct service_info info;
	TRY(report_result(key, service_look(service_of(s), key, &info), err));
	*ret = entry_of(&info, NULL);
	return 0;
}

static int
shelf_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	char name[SERVICE_NAME_BYTES] = "";
	struct service_info info;
	while (service_next(service_of(s), folder, name, &info)) {
		const struct store_entry entry = entry_of(&info, name);
		TRY(fn(arg, &entry));
	}
	return name[0] || !folder[0] ? 0 : report_result(folder, SERVICE_MISSING, err);
}

static void
shelf_caps(struct store *s, struct store_caps *ret)
{
	(void)s;
	ret->exclusive_put = true;
	ret->flat = true;
}

static void
shelf_close(struct store *s)
{
	service_free(service_of(s));
}

static const struct store_ops shelf_ops = {
	.put = shelf_put,
	.create = shelf_create,
	.write = shelf_write,
	.finish = shelf_finish,
	.abort = shelf_abort,
	.remove = shelf_remove,
	.remove_folder = shelf_remove_folder,
	.open = shelf_open,
	.read = shelf_read,
	.close_reader = shelf_close_reader,
	.stat = shelf_stat,
	.list = shelf_list,
	.close = shelf_close,
	.caps = shelf_caps,
};

int
store_shelf_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)create; /* a shelf has no root to make */
	PAWL_FREE struct shelf *s = mem_zalloc(1, sizeof(*s));
	if (!s || !(s->service = service_new()))
		return err_nomem(err, url);
	int rc = store_init(&s->base, &shelf_ops, "shelf", url, err);
	if (rc < 0)
		service_free(s->service);
	else
		*ret = &steal(&s)->base;
	return rc;
}
