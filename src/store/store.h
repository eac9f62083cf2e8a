/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: where bytes live. An engine (file, mem, s3, gcs, azure, ssh, the caller's own) fills one
 * table of operations, struct store_ops. A layer (retry, rate, nodes, kept, log, fault) wraps a
 * store and fills in only the operations that it changes. The rooms above call store_*(): the
 * border, which checks keys (text_is_key), ranges and states. So an engine can trust its arguments.
 *
 * Twelve operations are required of an engine:
 *	put create write finish abort	open read close_reader	stat list	remove remove_folder
 * An engine that only reads leaves out the writing ones. The border then returns PAWL_EREADONLY.
 * All other operations may be NULL; the comment of each one states what the border does then.
 * docs/how-to/extending.md shows an engine and a layer.
 *
 * Keys are relative paths with '/'. Objects never change once they are finished. A folder is a
 * prefix of keys. All calls are thread-safe unless a comment says otherwise. Errors name the key.
 * An engine never repeats a call; the retry layer does.
 *
 * In an object store, create/write/finish are a multipart upload, in pieces of caps.unit_bytes; the
 * engine gathers smaller ones. link copies on the server, and a pointer is an object of one line.
 * Without caps.rename_folder, rooms above write under the final prefix and put the manifest last,
 * exclusively.
 */
#ifndef PAWL_STORE_STORE_H
#define PAWL_STORE_STORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"
#include "pawl.h"

/* What a store can do. An engine without a caps call has none of these abilities. */
struct store_caps {
	bool rename_folder;        /* publish works: atomic and exclusive */
	bool exclusive_put;        /* STORE_EXCLUSIVE is honoured */
	bool link;                 /* link works */
	bool symlink;              /* pointers are symlinks */
	bool direct_io;            /* aligned writes and reads bypass the page cache */
	bool local;                /* root is a path of this machine */
	bool is_private;           /* no other process can reach it */
	uint32_t offset_align;     /* of offset and length of writes and direct reads (power of two) */
	uint64_t unit_bytes;       /* writes should come in multiples of this; 0 = any size */
	uint64_t max_object_bytes; /* 0 = no limit */
	bool flat;                 /* an object store: a folder may have the name of an object, links are copies,
	                            * a reader of a replaced object gets PAWL_ECONFLICT */
	bool can_cut;              /* store_cut works */
	bool lists_all;            /* list_all is one listing of the engine, not one for each folder */
	uint32_t copies;           /* of each pack that can be read one by one; 0 counts as 1 */
};

#define STORE_TAG_BYTES 160

enum {
	STORE_EXCLUSIVE = 1 /* put: PAWL_EEXISTS if the key exists */,
	STORE_DURABLE = 2 /* put: fsync the file and its folder */
};

struct store_entry {
	const char *name; /* last component; valid during the callback */
	bool is_folder;
	bool is_link; /* a symlink (then neither folder nor file) */
	uint64_t nbytes;
	int64_t mtime_ns;
	uint64_t n_links;
	uint64_t file_id; /* another file has another one; 0: unknown */
};
/* Called on the calling thread. A negative result stops the listing, which returns it. */
typedef int store_list_fn(void *arg, const struct store_entry *entry);
/* The same for one row of notes; key and value are valid during the callback. */
typedef int store_note_fn(void *arg, const char *key, const char *value);

struct store;
struct store_file;   /* an object being written */
struct store_reader; /* an object being read */
struct layer_call;   /* store/layers/layer.h */

struct store_create {
	uint64_t nbytes; /* exact final size */
	/* NULL, or an old object that is no longer needed. The file engine overwrites its file if
	 * the size is the same and no process has it open. Else it removes it, unless it has other
	 * links. Other engines ignore it. */
	const char *recycle_key;
	bool buffered; /* no direct I/O for this object */
	bool at_most;  /* nbytes is only a limit, and the object is cut: no space is reserved */
	bool own_name; /* the key holds a random token, so the engine need not ask whether it exists */
};

struct store_ops {
	/* ---- required: writing (all NULL in a store that only reads) */

	/* Small object in one call; replaces atomically (or is exclusive). Never seen
	 * half-written. */
	int (*put)(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
	           struct pawl_error *err);
	/* Large object: create, write pieces in any order from any thread, then finish or abort.
	 * create makes parent folders. finish makes the object complete and durable; its name is
	 * durable once the folder is published or synced. abort leaves nothing. write: offset is a
	 * multiple of offset_align. len too, except that the last piece may be padded beyond nbytes
	 * to the next multiple; finish cuts the object to nbytes. Memory need not be aligned. After
	 * a failed write or finish the object is lost: abort it (P5). */
	int (*create)(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret,
	              struct pawl_error *err);
	int (*write)(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
	             struct pawl_error *err);
	int (*finish)(struct store *s, struct store_file *f, struct pawl_error *err); /* always frees f */
	void (*abort)(struct store *s, struct store_file *f);                         /* frees f */
	int (*remove)(struct store *s, const char *key, struct pawl_error *err);      /* missing is success */
	/* Removes a folder and all of its contents; a missing folder is success. */
	int (*remove_folder)(struct store *s, const char *folder, struct pawl_error *err);

	/* ---- required: reading */

	int (*open)(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
	            struct pawl_error *err);
	/* Exactly n bytes, or an error; PAWL_ECORRUPT when the object ends early. */
	int (*read)(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n,
	            struct pawl_error *err);
	void (*close_reader)(struct store *s, struct store_reader *r);
	/* PAWL_ENOTFOUND if the key does not exist. Folders: is_folder is set. */
	int (*stat)(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err);
	/* Direct children of a folder ("" = root), any order; a missing folder is
	 * PAWL_ENOTFOUND. */
	int (*list)(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);

	/* ---- optional: the store itself */

	/* NULL: frees nothing. Frees what the store holds; store_close frees the struct and
	 * root. */
	void (*close)(struct store *s);
	/* NULL: no abilities, no alignment. */
	void (*caps)(struct store *s, struct store_caps *ret);
	/* Free bytes. NULL: UINT64_MAX (unknown). */
	int (*space)(struct store *s, uint64_t *ret_free_bytes, struct pawl_error *err);
	/* Removes uploads that began before that time and whose writers died; no listing shows
	 * them. *ret_n counts the removed ones, also after an error. NULL: there are none. */
	int (*sweep)(struct store *s, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err);
	/* Facts for people that no capability states, asked now: the endpoint, the source of the
	 * credentials (never a secret), clock skew, round trip. NULL: no facts. */
	int (*notes)(struct store *s, store_note_fn *fn, void *arg, struct pawl_error *err);

	/* ---- optional: writing */

	/* The part of finish that may be repeated; finish then only frees f. NULL: nothing. */
	int (*seal)(struct store *s, struct store_file *f, struct pawl_error *err);
	/* Adds bytes at the end of an object, in one write; creates a missing object. NULL: get and
	 * put, up to 8 MiB, safe only between the threads of one process. */
	int (*append)(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err);
	/* Points to another key; replaces atomically. NULL: puts one line. */
	int (*pointer)(struct store *s, const char *key, const char *target, struct pawl_error *err);
	/* Makes the names in a folder durable. NULL: success, names are durable with their
	 * objects. */
	int (*sync)(struct store *s, const char *folder, struct pawl_error *err);
	/* Same content under a second key; PAWL_EEXISTS if it exists. NULL: PAWL_EUNSUPPORTED. */
	int (*link)(struct store *s, const char *from, const char *to, struct pawl_error *err);
	/* One object; replaces. NULL: copies it through this process and removes the old key. */
	int (*move)(struct store *s, const char *from, const char *to, struct pawl_error *err);
	/* Renames a folder: exclusive (PAWL_EEXISTS), atomic, durable (fsync from, rename, fsync
	 * parent). NULL: PAWL_EUNSUPPORTED. */
	int (*publish)(struct store *s, const char *from, const char *to, struct pawl_error *err);
	/* Swaps two folders in one atomic, durable step. NULL: PAWL_EUNSUPPORTED. */
	int (*exchange)(struct store *s, const char *a, const char *b, struct pawl_error *err);
	/* Replaces exactly the version with this tag (of get). PAWL_ECONFLICT: it has
	 * another version by now, or is gone. NULL: PAWL_EUNSUPPORTED. */
	int (*put_if)(struct store *s, const char *key, const char *tag, const struct pawl_slice *text,
	              struct pawl_error *err);

	/* ---- optional: reading */

	/* Complete object of at most max bytes (PAWL_ELIMIT). tag: NULL, or gets the tag of the
	 * version, which only an engine with put_if is asked for. NULL: open, read, close_reader;
	 * there are no tags. */
	int (*get)(struct store *s, const char *key, size_t max, struct buf *out, char *tag, struct pawl_error *err);
	/* Reads one of the copies 0 .. caps.copies - 1. PAWL_ENOTFOUND: the object should not have
	 * that many. NULL: there is one copy. */
	int (*read_copy)(struct store *s, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
	                 struct pawl_error *err);
	/* The open object is wrong (its size, say): continue with the next store that has it,
	 * before any read. NULL: PAWL_ENOTFOUND, because only one store exists. */
	int (*pass_over)(struct store *s, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err);
	/* True if a read of these bytes is now a copy from memory, so that small reads cost no more
	 * than large ones. Starts no input. NULL: always false. */
	bool (*is_cached)(struct store *s, struct store_reader *r, uint64_t offset, size_t n);
	/* The state of the open object, also if it was removed since. name = NULL. NULL:
	 * PAWL_EUNSUPPORTED. */
	int (*stat_reader)(struct store *s, struct store_reader *r, struct store_entry *ret, struct pawl_error *err);
	/* All objects below a folder at any depth, by their paths from there ("a/b"). All that is
	 * below one folder follows each other. A missing folder is empty. NULL: lists folder by
	 * folder. */
	int (*list_all)(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);

	/* ---- only in layers: see store/layers/layer.h */

	int (*enter)(struct store *s, const struct layer_call *call, struct pawl_error *err);
	bool (*leave)(struct store *s, struct layer_call *call, int rc, struct pawl_error *err);
};

/* An engine or a layer embeds this first: see store_init (engine.h) and layer_init (layer.h). */
struct store {
	const struct store_ops *ops;
	const char *name;            /* "s3", for people; borrowed. A layer has the name of its inner store */
	char *root;                  /* for people; the path of a file store */
	char *place;                 /* what an error of permission names; NULL = the folder of the key */
	struct store *inner;         /* of a layer: the store that it wraps, owned. NULL in an engine */
	pthread_mutex_t append_lock; /* held by the border's own append */
};

/* Opens a store by URL (registry.h lists the schemes) or path. create: makes a missing root folder;
 * otherwise that is PAWL_ENOTFOUND. PAWL_EUSAGE for an unknown scheme names the known ones. A store
 * on another machine is wrapped in the retry layer. */
int store_open(const char *url, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err);
/* The same; URLs of an unknown scheme go to the caller's own stores (NULL = there are none). */
int store_open_with(const struct pawl_stores *stores, const char *url, bool create, bool no_direct_io,
                    struct store **ret, struct pawl_error *err);
/* PAWL_EUSAGE for "s3:/bucket", which would be a folder of that name. */
int store_check_slashes(const char *url, struct pawl_error *err);
/* PAWL_EUSAGE for a target of copies that ends with the process: "mem:". */
int store_check_target(const char *url, struct pawl_error *err);
void store_close(struct store *s); /* NULL is fine; closes layers from the outermost to the engine */
PAWL_DEFINE_CLEAN(struct store, store_close);

/* ---- layers: each wraps a store and owns it on success */

/* Makes calls fail (pawl_fault_new). `fault` is borrowed. */
int store_fault_wrap(struct store *s, struct pawl_fault *fault, struct store **ret, struct pawl_error *err);
/* If PAWL_STORE_LOG names a file, wraps *s; each call appends a line to the file. */
int store_log(struct store **s, struct pawl_error *err);

/* Limits of the retry layer; 0 = the default. */
struct store_retry {
	unsigned max_tries;     /* of one call; 8 */
	unsigned base_ms;       /* upper bound of the first random wait; doubles each time; 100 */
	unsigned max_ms;        /* upper bound of every wait; 20,000 */
	unsigned total_seconds; /* after this time no call is repeated; 3,600 */
	unsigned budget;        /* repetitions for all calls together; ten successes return one; 500 */
};
int store_retry_wrap(struct store *s, const struct store_retry *opts, struct store **ret, struct pawl_error *err);
typedef int store_open_fn(const char *url, bool create, struct store **ret, struct pawl_error *err);
typedef int store_open_by_fn(const void *arg, const char *url, bool create, struct store **ret, struct pawl_error *err);
/* Opens by fn, repeating it a few times, and wraps the result. */
int store_retry_open(store_open_by_fn *fn, const void *arg, const char *url, bool create,
                     const struct store_retry *opts, struct store **ret, struct pawl_error *err);

/* Limits of the rate layer. The clock is for tests; NULL = the real one. */
struct store_rate {
	uint64_t write_bytes_per_second; /* of all threads together; 0 = no limit */
	uint64_t read_bytes_per_second;  /* the same for reads */
	int64_t (*now_ns)(void *arg);
	void (*sleep_ns)(void *arg, int64_t ns);
	void *arg;
	const struct pawl_meter *meter; /* its cancel ends waits with PAWL_ECANCELLED; NULL = nothing does. Borrowed */
};
/* Pieces and ranged reads wait; small objects count but do not wait. */
int store_rate_wrap(struct store *s, const struct store_rate *opts, struct store **ret, struct pawl_error *err);
/* The same if there is a limit; otherwise changes nothing. */
int store_limit(struct store **s, uint64_t write_bytes_per_second, uint64_t read_bytes_per_second,
                const struct pawl_meter *meter, struct pawl_error *err);

/* ---- the border: the operations, with checked arguments and with defaults for what is NULL */

/* The border adds the place of a store to errors: "KEY: why" becomes "ROOT/KEY: why". Callers need
 * this only for errors of their own about a key. A URL that may hold a password stays out (P18). */
int store_at_root(struct store *s, const char *key, int rc, struct pawl_error *err);
/* All that the store holds is one object for people: errors of missing permission name it. */
int store_set_place(struct store *s, const char *place, struct pawl_error *err);

void store_get_caps(struct store *s, struct store_caps *ret);
int store_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
              struct pawl_error *err);
int store_put_bytes(struct store *s, const char *key, const void *ptr, size_t len, int flags, struct pawl_error *err);
int store_create(struct store *s, const char *key, const struct store_create *opts, struct store_file **ret,
                 struct pawl_error *err);
int store_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                struct pawl_error *err);
/* Call this after the last write and before finish. The object has only nbytes, fewer than create
 * was given. Needs caps.can_cut. */
int store_cut(struct store_file *f, uint64_t nbytes, struct pawl_error *err);
int store_finish(struct store *s, struct store_file *f, struct pawl_error *err);
void store_abort(struct store *s, struct store_file *f);
int store_open_reader(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                      struct pawl_error *err);
int store_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
int store_read_copy(struct store *s, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
                    struct pawl_error *err);
int store_pass_over(struct store *s, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err);
bool store_is_cached(struct store *s, struct store_reader *r, uint64_t offset, size_t n);
void store_close_reader(struct store *s, struct store_reader *r);
/* An open object that is closed at the end of a scope: PAWL_CLEAN(store_opened_close). */
struct store_opened {
	struct store *store;         /* borrowed */
	struct store_reader *reader; /* owned; NULL until it is open */
};
void store_opened_close(struct store_opened *o);
int store_get(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err);
int store_get_tagged(struct store *s, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
                     struct pawl_error *err);
int store_put_if(struct store *s, const char *key, const char *tag, const void *ptr, size_t len,
                 struct pawl_error *err);
int store_stat(struct store *s, const char *key, struct store_entry *ret /* name = NULL */, struct pawl_error *err);
int store_stat_reader(struct store *s, struct store_reader *r, struct store_entry *ret, struct pawl_error *err);
int store_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
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
int store_notes(struct store *s, store_note_fn *fn, void *arg, struct pawl_error *err);

/* ---- engines; those of other machines are opened through the registry */

int store_file_open(const char *path, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err);
int store_mem_open(struct store **ret, struct pawl_error *err);
/* Each asks the server whether the root exists. create: also which operations it allows. */
int store_ssh_open(const char *url, bool create, struct store **ret, struct pawl_error *err);
int store_s3_open(const char *url, bool create, struct store **ret, struct pawl_error *err);
int store_gcs_open(const char *url, bool create, struct store **ret, struct pawl_error *err);
int store_azure_open(const char *url, bool create, struct store **ret, struct pawl_error *err);

#endif
