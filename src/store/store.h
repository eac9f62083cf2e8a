/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: where bytes live. Engines (file, mem, s3, gcs, azure, ssh) and layers (retry, rate, nodes, tiers, fault)
 * fill the same table of operations; store.c is the checked border: every call of the core goes through
 * store_*(), which checks keys (text_is_key), ranges and states once, so that engines stay small.
 *
 * Keys are relative paths with '/'. Objects are immutable once finished. "Folder" is a key prefix.
 * Everything is thread-safe unless said otherwise. Errors name the key. An engine never retries.
 *
 * Object stores: create/write/finish = multipart upload (writes should come in caps.unit_bytes pieces; others are
 * gathered), publish = nothing (caps.rename_folder == 0: the core writes under the final prefix and puts the
 * manifest last, exclusively), link = server-side copy, pointer = one-line object.
 */
#ifndef PAWL_STORE_STORE_H
#define PAWL_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "pawl.h"

struct store_caps {
	bool rename_folder;    /* publish is atomic and exclusive */
	bool exclusive_put;    /* STORE_EXCLUSIVE is honoured */
	bool link;             /* link() works */
	bool symlink;          /* pointers are symlinks */
	bool direct_io;        /* writes and reads bypass the page cache when aligned */
	bool local;            /* root is a real path */
	bool is_private;       /* nobody else can reach what is in it */
	uint32_t offset_align; /* of writes and direct reads: file offset and length (power of two, >= 1) */
	uint32_t memory_align; /* of the memory (power of two, >= 1) */
	uint64_t unit_bytes;   /* writes should come in multiples of this; 0 = any */
	uint64_t max_object_bytes; /* 0 = no limit */
	bool flat;                 /* an object store: a folder is but a prefix and may have the name of an object, links are
	                              copies, a reader whose object is replaced gets PAWL_ECONFLICT, nothing can be viewed */
	bool can_cut;              /* store_cut is to be had */
	uint32_t copies;           /* of each pack, that are written and can be read one by one (>= 1) */
};

#define STORE_TAG_BYTES 160

enum { STORE_EXCLUSIVE = 1 /* put: PAWL_EEXISTS if the key exists */, STORE_DURABLE = 2 /* put: fsync file and folder */ };

struct store_entry {
	const char *name; /* last component; valid during the callback */
	bool is_folder;
	bool is_link;     /* a symlink (then neither folder nor file) */
	uint64_t nbytes;
	int64_t mtime_ns;
	uint64_t n_links;
};
/* Called on the calling thread; return a negative code to stop the listing with that code. */
typedef int store_list_fn(void *arg, const struct store_entry *entry);
/* The same for one row of notes; key and value are valid during the callback. */
typedef int store_note_fn(void *arg, const char *key, const char *value);

struct store;
struct store_file;   /* an object being written */
struct store_reader; /* an object being read */

/* Bytes of an object where they lie in memory. */
struct store_view {
	const char *ptr;
	void *map; /* the engine's own */
	size_t map_bytes;
	struct store *owner; /* a layer's own */
};

struct store_create {
	uint64_t nbytes;         /* exact final size */
	const char *recycle_key; /* NULL, or an old object that is not needed any more. File engine: its file is
	                            overwritten if it has this size and no process has it open, else removed. Kept
	                            when it has other links; ignored by the other engines */
	bool buffered;           /* no direct I/O for this one */
	bool own_name;           /* nobody else can have chosen this key (it holds a random token): stores that would have to ask
	                            whether there is such an object do not */
};

struct store_ops {
	const char *name;
	void (*close)(struct store *s);
	void (*caps)(struct store *s, struct store_caps *ret);
	/* Small whole object, atomically replaced (or exclusive): never seen half-written. */
	int (*put)(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags, struct pawl_error *err);
	/* Streamed object: create, write pieces in any order from any thread, then finish (whole and durable,
	 * name durable once the folder is published or synced) or abort (nothing stays). Parent folders are
	 * made. write: offset a multiple of offset_align; len too, except that the last piece may be padded
	 * beyond nbytes up to the next multiple (the engine cuts the object to nbytes in finish). Memory that
	 * is not aligned is accepted (the engine falls back to buffered for that piece or bounces it).
	 * After a failed write or finish the object is lost: abort it (P5). */
	int (*create)(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret, struct pawl_error *err);
	int (*write)(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err);
	int (*finish)(struct store *s, struct store_file *f, struct pawl_error *err); /* frees f in any case */
	void (*abort)(struct store *s, struct store_file *f);                          /* frees f */
	/* NULL, or all of finish that another try may mend: f stays as it is, and finish has only to free it. */
	int (*seal)(struct store *s, struct store_file *f, struct pawl_error *err);
	/* Reading: exactly n bytes or an error; PAWL_ECORRUPT when the object ends early. */
	int (*open)(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err);
	int (*read)(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	/* The same from one certain copy, 0 .. caps.copies - 1. PAWL_ENOTFOUND: the object should not have so many. NULL where
	 * there is one copy of everything. */
	int (*read_copy)(struct store *s, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
	/* NULL, or: what is open is not what it should be (its size, say): goes on to the next store that has the object, before
	 * anybody reads. PAWL_ENOTFOUND: there is none. */
	int (*pass_over)(struct store *s, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err);
	/* Bytes that are in memory already, where they lie: 1 = *ret shows all n of them until drop_view; 0 = they are not
	 * (all) there, or the engine does not show them. Starts no input. */
	int (*view)(struct store *s, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret);
	void (*drop_view)(struct store *s, struct store_view *view);
	void (*close_reader)(struct store *s, struct store_reader *r);
	/* NULL, or a whole object of at most max bytes (PAWL_ELIMIT) in one go. */
	int (*get)(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err);
	/* NULL, or get that also tells which version of the object it is, and a put that replaces that one only (PAWL_ECONFLICT:
	 * it is another by now, or gone; PAWL_EUNSUPPORTED: that cannot be had here). */
	int (*get_tagged)(struct store *s, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES], struct pawl_error *err);
	int (*put_if)(struct store *s, const char *key, const char *tag, const struct pawl_slice *text, struct pawl_error *err);
	/* PAWL_ENOTFOUND if there is none. Folders: is_folder set. */
	int (*stat)(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err);
	/* Direct children of a folder ("" = root), any order; a missing folder is PAWL_ENOTFOUND. */
	int (*list)(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
	/* NULL, or: everything below a folder at any depth, by its path from there ("a/b"), as one list of an object store. A
	 * missing folder has nothing in it. */
	int (*list_all)(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
	int (*remove)(struct store *s, const char *key, struct pawl_error *err);          /* one object or pointer; missing is success */
	int (*remove_folder)(struct store *s, const char *folder, struct pawl_error *err); /* with all in it; missing is success */
	int (*link)(struct store *s, const char *from, const char *to, struct pawl_error *err); /* same content under a second key */
	int (*move)(struct store *s, const char *from, const char *to, struct pawl_error *err); /* one object, replaces */
	/* Folder from -> to, exclusive (PAWL_EEXISTS), atomic, durable: fsync from, rename, fsync parent. */
	int (*publish)(struct store *s, const char *from, const char *to, struct pawl_error *err);
	/* Swaps two folders in one atomic, durable step. NULL or PAWL_EUNSUPPORTED where that is not to be had. */
	int (*exchange)(struct store *s, const char *a, const char *b, struct pawl_error *err);
	int (*pointer)(struct store *s, const char *key, const char *target, struct pawl_error *err); /* atomically replaced */
	int (*sync)(struct store *s, const char *folder, struct pawl_error *err); /* makes names in a folder durable */
	int (*space)(struct store *s, uint64_t *ret_free_bytes, struct pawl_error *err); /* UINT64_MAX = unknown */
	int (*append)(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err); /* event lines; O_APPEND, one write */
	/* NULL, or: takes away what writers that have died left and no listing shows (uploads begun before that time). */
	int (*sweep)(struct store *s, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err);
	/* NULL, or: what people should know of this store and no capability says, found by asking it now: the endpoint, where
	 * credentials come from (never a secret), clock skew, round trip. */
	int (*notes)(struct store *s, store_note_fn *fn, void *arg, struct pawl_error *err);
};

/* An engine embeds this first. */
struct store {
	const struct store_ops *ops;
	char *root; /* as shown to people; the engine's path for file */
};

/* Opens an engine by URL: a path or file://path, mem:, s3://bucket/prefix, gs:// and az:// (with the retry layer around them). create: makes
 * a missing root folder, else PAWL_ENOTFOUND. Unknown scheme: PAWL_EUSAGE naming the known ones. */
int store_open(const char *url, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err);
/* The same; URLs that nothing here knows are left to the caller's own stores, with the retry layer around them (NULL =
 * there are none). */
int store_open_with(const struct pawl_stores *stores, const char *url, bool create, bool no_direct_io, struct store **ret,
		    struct pawl_error *err);
/* PAWL_EUSAGE for "s3:/bucket", which would be a folder of that name. */
int store_check_slashes(const char *url, struct pawl_error *err);
void store_close(struct store *s); /* NULL is fine; closes layers outer to inner */
/* Wraps s; on success the layer owns s. `fault` is borrowed. */
int store_fault_wrap(struct store *s, struct pawl_fault *fault, struct store **ret, struct pawl_error *err);

/* Wraps *s if PAWL_STORE_LOG names a file: each call is a line at its end. */
int store_log(struct store **s, struct pawl_error *err);

/* What the retry layer does; a zero means its default. */
struct store_retry {
	unsigned max_tries;     /* of one operation; 8 */
	unsigned base_ms;       /* the first wait is a random time up to this, each further one up to twice as much; 100 */
	unsigned max_ms;        /* no wait is longer; 20,000 */
	unsigned total_seconds; /* no operation is begun again after this time; 3,600 */
	unsigned budget;        /* repetitions in reserve for all operations together; ten calls that succeed give one back; 500 */
};
/* Wraps s; on success the layer owns s. */
int store_retry_wrap(struct store *s, const struct store_retry *opts, struct store **ret, struct pawl_error *err);
typedef int store_open_fn(const char *url, bool create, struct store **ret, struct pawl_error *err);
/* Opens by fn, which may take a few tries of its own, and wraps what it gives. */
int store_retry_open(store_open_fn *fn, const char *url, bool create, const struct store_retry *opts, struct store **ret,
                     struct pawl_error *err);

/* What the rate layer does. The clock is for tests; NULL = the real one. */
struct store_rate {
	uint64_t write_bytes_per_second; /* into the store, of all threads together; 0 = no limit */
	uint64_t read_bytes_per_second;  /* out of it */
	int64_t (*now_ns)(void *arg);
	void (*sleep_ns)(void *arg, int64_t ns);
	void *arg;
};
/* Wraps s; on success the layer owns s. Pieces and ranged reads wait; small objects are counted and do not. */
int store_rate_wrap(struct store *s, const struct store_rate *opts, struct store **ret, struct pawl_error *err);
/* The same where there is a limit; else nothing. */
int store_limit(struct store **s, uint64_t write_bytes_per_second, uint64_t read_bytes_per_second, struct pawl_error *err);

/* The border: same names as the operations. */
void store_get_caps(struct store *s, struct store_caps *ret);
int store_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags, struct pawl_error *err);
int store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags, struct pawl_error *err);
int store_create(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret, struct pawl_error *err);
int store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err);
/* Before finish, after the last write: the object is but nbytes long, less than create was told. Only where caps.can_cut;
 * there create's size is the most that it may be. */
int store_cut(struct store_file *f, uint64_t nbytes, struct pawl_error *err);
int store_finish(struct store *s, struct store_file *f, struct pawl_error *err);
void store_abort(struct store *s, struct store_file *f);
int store_open_reader(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err);
int store_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
int store_read_copy(struct store *s, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
		    struct pawl_error *err);
int store_pass_over(struct store *s, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err);
int store_view(struct store *s, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret,
	       struct pawl_error *err);
void store_drop_view(struct store *s, struct store_view *view);
void store_close_reader(struct store *s, struct store_reader *r);
/* For one function that reads an object and leaves where it likes: PAWL_CLEAN(store_opened_close). */
struct store_opened {
	struct store *store;         /* borrowed */
	struct store_reader *reader; /* owned; NULL until it is open */
};
void store_opened_close(struct store_opened *o);
int store_get(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err); /* whole small object; PAWL_ELIMIT above max */
/* Both PAWL_EUNSUPPORTED where there are no such conditions. */
int store_get_tagged(struct store *s, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
		     struct pawl_error *err);
int store_put_if(struct store *s, const char *key, const char *tag, const void *ptr, size_t len, struct pawl_error *err);
int store_stat(struct store *s, const char *key, struct store_entry *ret /* name = NULL */, struct pawl_error *err);
int store_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
/* PAWL_EUNSUPPORTED where there is no such list. */
int store_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
int store_remove(struct store *s, const char *key, struct pawl_error *err);
int store_remove_folder(struct store *s, const char *folder, struct pawl_error *err);
int store_link(struct store *s, const char *from, const char *to, struct pawl_error *err);
int store_move(struct store *s, const char *from, const char *to, struct pawl_error *err);
int store_publish(struct store *s, const char *from, const char *to, struct pawl_error *err);
int store_exchange(struct store *s, const char *a, const char *b, struct pawl_error *err);
int store_pointer(struct store *s, const char *key, const char *target, struct pawl_error *err);
int store_sync(struct store *s, const char *folder, struct pawl_error *err);
int store_space(struct store *s, uint64_t *ret_free_bytes, struct pawl_error *err);
int store_append(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err);
int store_sweep(struct store *s, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err);
int store_notes(struct store *s, store_note_fn *fn, void *arg, struct pawl_error *err); /* none: no call of fn */

/* Engines. */
/* ssh://user@host:port/path, over the user's ssh. Connects and looks at the folder. */
int store_ssh_open(const char *url, bool create, struct store **ret, struct pawl_error *err);
int store_file_open(const char *path, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err);
int store_mem_open(struct store **ret, struct pawl_error *err);
/* PAWL_EUNSUPPORTED where pawl was built without S3. Looks at the bucket; create: tries also what may be written. */
int store_s3_open(const char *url, bool create, struct store **ret, struct pawl_error *err);
int store_gcs_open(const char *url, bool create, struct store **ret, struct pawl_error *err);   /* the same for gs:// */
int store_azure_open(const char *url, bool create, struct store **ret, struct pawl_error *err); /* and az:// */

#endif
