/* SPDX-License-Identifier: Apache-2.0 */
/* store_bed: a fresh store per test on any engine, and small helpers, for the tests of
 * src/store. */
#ifndef PAWL_TEST_STORE_BED_H
#define PAWL_TEST_STORE_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "store/layers/nodes/store_nodes.h"
#include "store/store.h"

enum bed_kind {
	BED_MEM,
	BED_DISK,
	BED_DISK_BUFFERED,
	BED_TMPFS,
	BED_NODES,
	BED_S3, /* where PAWL_TEST_S3 says */
	BED_USER,
	BED_OTHER /* by bed.open */
};

struct bed {
	enum bed_kind kind;
	bool wrapped; /* by a fault layer that never fires */
	char dir[64]; /* "" for mem */
	struct store *store;
	struct pawl_fault *fault;
	const struct pawl_stores *stores; /* of BED_USER */
	const char *url;
	int (*open)(struct store **ret, struct pawl_error *err); /* of BED_OTHER */
	struct pawl_error err;
};

static inline const char *
bed_base(enum bed_kind kind)
{
	/* /var/tmp is on a disk where /tmp often is not. */
	return kind == BED_TMPFS ? "/dev/shm" : "/var/tmp";
}

/* A prefix of its own for each test. */
static inline void
bed_open_far(struct bed *bed)
{
	char token[33], url[512];
	assert_int_equal(clock_token(token, &bed->err), 0);
	snprintf(url, sizeof url, "%s/%s", bed->kind == BED_USER ? bed->url : getenv("PAWL_TEST_S3"), token);
	if (store_open_with(bed->stores, url, true, false, &bed->store, &bed->err) < 0)
		fail_msg("%s", bed->err.message);
}

static inline int
bed_remove_one(void *arg, const struct store_entry *entry)
{
	return entry->is_folder ? store_remove_folder(arg, entry->name, NULL) : store_remove(arg, entry->name, NULL);
}

static inline struct store_caps
bed_caps(struct bed *bed)
{
	struct store_caps caps;
	store_get_caps(bed->store, &caps);
	return caps;
}

static inline void
bed_open(struct bed *bed)
{
	if (bed->kind == BED_S3 || bed->kind == BED_USER) {
		bed_open_far(bed);
	} else if (bed->kind == BED_OTHER) {
		assert_int_equal(bed->open(&bed->store, &bed->err), 0);
	} else if (bed->kind == BED_MEM) {
		assert_int_equal(store_open("mem:", true, false, &bed->store, &bed->err), 0);
	} else {
		snprintf(bed->dir, sizeof bed->dir, "%s/pawl-store-XXXXXX", bed_base(bed->kind));
		assert_non_null(mkdtemp(bed->dir));
		assert_int_equal(store_open(bed->dir, true, bed->kind == BED_DISK_BUFFERED, &bed->store, &bed->err), 0);
	}
	if (bed->kind == BED_NODES) { /* two nodes, whose folders are next to the run's */
		struct store *inner = bed->store;
		char url[96];
		snprintf(url, sizeof url, "%s.node" NODES_VARIABLE, bed->dir);
		struct store_nodes opts = {.template_url = url, .n_nodes = 2, .n_copies = 2};
		snprintf(url, sizeof url, "%s.node1", bed->dir);
		assert_int_equal(mkdir(url, 0700), 0);
		snprintf(url, sizeof url, "%s.node" NODES_VARIABLE, bed->dir);
		assert_int_equal(store_nodes_wrap(inner, &opts, &bed->store, &bed->err), 0);
		store_nodes_set_run(bed->store, "0123456789abcdef0123456789abcdef");
	}
	if (bed->wrapped) {
		struct store *inner = bed->store;
		assert_int_equal(pawl_fault_new("publish", UINT64_MAX, PAWL_EIO, 0, &bed->fault, &bed->err), 0);
		assert_int_equal(store_fault_wrap(inner, bed->fault, &bed->store, &bed->err), 0);
	}
}

static inline void
bed_close(struct bed *bed)
{
	if (bed->kind == BED_S3 || bed->kind == BED_USER)
		assert_int_equal(store_list(bed->store, "", bed_remove_one, bed->store, &bed->err), 0);
	store_close(bed->store);
	pawl_fault_free(bed->fault);
	if (bed->dir[0] != '\0')
		assert_int_equal(fd_remove_tree(AT_FDCWD, bed->dir, NULL), 0);
	for (int node = 0; bed->kind == BED_NODES && node < 2; node++) {
		char folder[80];
		snprintf(folder, sizeof folder, "%s.node%d", bed->dir, node);
		fd_remove_tree(AT_FDCWD, folder, NULL); /* a test may have removed it */
	}
	*bed = (struct bed){
		.kind = bed->kind, .wrapped = bed->wrapped, .stores = bed->stores, .url = bed->url, .open = bed->open};
}

/* Success, showing the message if it is none. */
#define OK(bed, expr)                                                  \
	do {                                                           \
		if ((expr) < 0)                                        \
			fail_msg("%s: %s", #expr, (bed)->err.message); \
	} while (0)
/* Failure with this code, and a message that names `part`. */
#define FAILS(bed, expr, want, part)                                                                                  \
	do {                                                                                                          \
		memset(&(bed)->err, 0, sizeof(bed)->err);                                                             \
		int rc_ = (expr);                                                                                     \
		if (rc_ != (want) || (bed)->err.code != (want) || strstr((bed)->err.message, part) == NULL)           \
			fail_msg("%s: %d (%d, \"%s\"), expected %d", #expr, rc_, (bed)->err.code, (bed)->err.message, \
			         want);                                                                               \
	} while (0)

/* Bytes that depend on seed and position, at any alignment from a page border. */
struct bytes {
	void *memory;
	unsigned char *ptr;
	size_t len;
};

static inline struct bytes
bytes_new(size_t len, size_t misalign, unsigned seed)
{
	struct bytes b = {.len = len};
	assert_int_equal(posix_memalign(&b.memory, 4096, len + misalign + 4096), 0);
	b.ptr = (unsigned char *)b.memory + misalign;
	for (size_t i = 0; i < len; i++)
		b.ptr[i] = (unsigned char)(((i + seed) * 2654435761u) >> 24 ^ (i >> 12));
	return b;
}

static inline void
put_text(struct bed *bed, const char *key, const char *text)
{
	OK(bed, store_put_bytes(bed->store, key, text, strlen(text), 0, &bed->err));
}

static inline void
assert_text(struct bed *bed, const char *key, const char *text)
{
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	OK(bed, store_get(bed->store, key, 1 << 20, &out, &bed->err));
	assert_int_equal(out.len, strlen(text));
	assert_string_equal(buf_str(&out), text);
}

/* Writes b as one object, in pieces of `piece` bytes. */
static inline struct store_file *
begin_bytes(struct bed *bed, const char *key, const struct bytes *b, const char *recycle_key)
{
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = b->len, .recycle_key = recycle_key};
	OK(bed, store_create(bed->store, key, &opts, &f, &bed->err));
	return f;
}

static inline void
write_bytes(struct bed *bed, const char *key, const struct bytes *b, size_t piece, const char *recycle_key)
{
	struct store_file *f = begin_bytes(bed, key, b, recycle_key);
	for (size_t at = 0; at < b->len; at += piece)
		OK(bed,
		   store_write(bed->store, f, at, b->ptr + at, b->len - at < piece ? b->len - at : piece, &bed->err));
	OK(bed, store_finish(bed->store, f, &bed->err));
}

static inline void
assert_bytes(struct bed *bed, const char *key, const struct bytes *b)
{
	struct store_reader *r = NULL;
	uint64_t nbytes = 0;
	OK(bed, store_open_reader(bed->store, key, &r, &nbytes, &bed->err));
	assert_int_equal(nbytes, b->len);
	struct bytes got = bytes_new(b->len, 0, 99);
	OK(bed, store_read(bed->store, r, 0, got.ptr, b->len, &bed->err));
	store_close_reader(bed->store, r);
	assert_int_equal(memcmp(got.ptr, b->ptr, b->len), 0);
	free(got.memory);
}

static inline void
assert_missing(struct bed *bed, const char *key)
{
	struct store_entry entry;
	FAILS(bed, store_stat(bed->store, key, &entry, &bed->err), PAWL_ENOTFOUND, key);
}

/* Names in a folder, sorted, joined by ' '; folders end with '/', links with '@'. */
struct names {
	char *list[256];
	size_t n;
};

static inline int
names_add(void *arg, const struct store_entry *entry)
{
	struct names *names = arg;
	assert_true(names->n < 256);
	names->list[names->n++] = mem_printf("%s%s", entry->name, entry->is_folder ? "/" : entry->is_link ? "@" : "");
	return 0;
}

static inline int
names_compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names that a listing gives, sorted. */
static inline void
assert_listed(struct bed *bed,
              int (*list)(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err),
              const char *folder, const char *expected)
{
	struct names names = {0};
	PAWL_CLEAN(buf_clear) struct buf joined = {0};
	OK(bed, list(bed->store, folder, names_add, &names, &bed->err));
	qsort(names.list, names.n, sizeof names.list[0], names_compare);
	for (size_t i = 0; i < names.n; i++) {
		buf_printf(&joined, "%s%s", i > 0 ? " " : "", names.list[i]);
		mem_free(names.list[i]);
	}
	assert_string_equal(buf_str(&joined), expected);
}

static inline void
assert_names(struct bed *bed, const char *folder, const char *expected)
{
	assert_listed(bed, store_list, folder, expected);
}

#endif
