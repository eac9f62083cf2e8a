/* SPDX-License-Identifier: Apache-2.0 */
/* user_store: a struct pawl_stores of the tests, over the engine that keeps everything in
 * memory. */
#ifndef PAWL_TEST_USER_STORE_H
#define PAWL_TEST_USER_STORE_H

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "store/store.h"

static struct store *user_shared; /* not NULL: what every opening shows; the test closes it */

static int
user_open(void *arg, const char *url, int create, void **ret, int *ret_can_copy, struct pawl_error *err)
{
	struct store *s = NULL;
	(void)arg, (void)create;
	if (strncmp(url, "user://", 7) != 0)
		return err_set(err, PAWL_EUSAGE, "expected user://");
	int rc = user_shared ? 0 : store_open("mem:", true, false, &s, err);
	*ret = user_shared ? user_shared : s;
	*ret_can_copy = 1;
	return rc;
}

static void
user_close(void *store)
{
	if (store != user_shared)
		store_close(store);
}

static int
user_put(void *store, const char *key, const void *ptr, size_t nbytes, struct pawl_error *err)
{
	return store_put_bytes(store, key, ptr, nbytes, 0, err);
}

static int
user_upload(void *store, const char *key, const char *path, uint64_t nbytes, struct pawl_error *err)
{
	PAWL_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	PAWL_FREE char *whole = mem_alloc(nbytes > 0 ? (size_t)nbytes : 1);
	if (fd < 0 || whole == NULL)
		return err_set(err, PAWL_ENOMEM, "%s: cannot be read", path);
	TRY(fd_pread_all(fd, whole, (size_t)nbytes, 0, path, err));
	return store_put_bytes(store, key, whole, (size_t)nbytes, 0, err);
}

static int
user_get(void *store, const char *key, size_t max, pawl_store_bytes_fn *take, void *take_arg, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	TRY(store_get(store, key, max, &whole, err));
	return take(take_arg, whole.len > 0 ? whole.ptr : "", whole.len);
}

static int
user_read(void *store, const char *key, uint64_t offset, void *dst, size_t nbytes, struct pawl_error *err)
{
	struct store_reader *r;
	uint64_t all;
	TRY(store_open_reader(store, key, &r, &all, err));
	int rc = store_read(store, r, offset, dst, nbytes, err);
	store_close_reader(store, r);
	return rc;
}

static int
user_stat(void *store, const char *key, struct pawl_store_entry *ret, struct pawl_error *err)
{
	struct store_entry entry;
	TRY(store_stat(store, key, &entry, err));
	*ret = (struct pawl_store_entry){
		.nbytes = entry.nbytes, .mtime_ns = entry.mtime_ns, .is_folder = entry.is_folder};
	return 0;
}

struct user_see {
	pawl_store_entry_fn *see;
	void *arg;
};

static int
user_see_one(void *arg, const struct store_entry *entry)
{
	const struct user_see *u = arg;
	const struct pawl_store_entry shown = {.name = entry->name,
	                                       .nbytes = entry->nbytes,
	                                       .mtime_ns = entry->mtime_ns,
	                                       .is_folder = entry->is_folder};
	return u->see(u->arg, &shown);
}

static int
user_list(void *store, const char *folder, pawl_store_entry_fn *see, void *see_arg, struct pawl_error *err)
{
	struct user_see u = {see, see_arg};
	/* what a careless function might show */
	const char *const others[] = {NULL, "", ".", "..", "a/b", "/a", "a\nb"};
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		TRY(see(see_arg, &(struct pawl_store_entry){.name = others[i]}));
	return store_list(store, folder, user_see_one, &u, err);
}

static int
user_remove(void *store, const char *key, int is_folder, struct pawl_error *err)
{
	return is_folder ? store_remove_folder(store, key, err) : store_remove(store, key, err);
}

static int
user_copy(void *store, const char *from, const char *to, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	TRY(store_get(store, from, SIZE_MAX, &whole, err));
	return store_put_bytes(store, to, whole.len > 0 ? whole.ptr : "", whole.len, 0, err);
}

static const struct pawl_stores user_stores = {.size = sizeof(struct pawl_stores),
                                               .name = "user",
                                               .open = user_open,
                                               .close = user_close,
                                               .put = user_put,
                                               .upload = user_upload,
                                               .get = user_get,
                                               .read = user_read,
                                               .stat = user_stat,
                                               .list = user_list,
                                               .remove = user_remove,
                                               .copy = user_copy};

#endif
