/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object: the core of the engines for object stores (s3, gcs, azure): buckets of objects over HTTP.
 * The differences between servers are in a table, struct object_protocol. Private to src/store.
 *
 *   object_store.c   opening, small objects, capabilities
 *   object_call.c    one signed request, and the meaning of its answer
 *   object_sum.c     the checksum of a body, for the server to check
 *   object_write.c   streamed objects: uploads in parts
 *   object_read.c    ranged reading
 *   object_names.c   listing, removing, copying
 *   object_url.c     URLs and endpoints
 *   object_notes.c   facts about a store, for people
 *   store_s3.c store_gcs.c store_azure.c   the tables
 *   s3_requests.c    requests that S3 and GCS share
 */
#ifndef PAWL_STORE_OBJECT_H
#define PAWL_STORE_OBJECT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bump.h"
#include "base/mem.h"
#include "store/engine.h"
#include "store/object/cred.h"
#include "store/object/http/http.h"

#define OBJECT_PART_BYTES (UINT64_C(8) << 20) /* the usual part, and the unit in which writes should come */
#define OBJECT_PAGE_KEYS 1000u                /* of a list, at most */

/* The checksum of a body that is sent with it. */
enum object_sum { OBJECT_SUM_NONE, OBJECT_SUM_CRC32C, OBJECT_SUM_CRC64NVME, OBJECT_SUM_MD5, OBJECT_SUM_SHA256 };

/* The target of a URL. */
struct object_config {
	struct bump memory;
	const char *root;   /* "s3://bucket/prefix" */
	const char *bucket; /* or container */
	const char *prefix; /* of all keys: "" or "a/b/" */
	bool https;
	const char *host;      /* with port, without bucket */
	const char *base_path; /* of the endpoint: "" or "/x" */
	bool path_style;       /* the bucket is in the path, not in the host name */
	bool sign_bodies;      /* S3: the signature covers a SHA-256 of the body, too */
	enum object_sum sum;   /* checksum of bodies, for the server to check */
	const char *ca_bundle; /* or NULL */
	bool is_aws;           /* S3: the endpoint is derived from the region */
	const char *region;    /* S3, GCS */
	bool region_given;     /* by environment or profile, so that a hint of the server does not replace it */
	const char *account;   /* Azure */
};

/* A copy that lives as long as the configuration. */
int object_keep(struct object_config *c, const char *text, const char **ret, struct pawl_error *err);
/* Reads "NAME://bucket/prefix" into bucket, prefix, root; `begin` points to the bucket in url.
 * `kind`: "bucket" or "container". */
int object_read_url(struct object_config *c, const char *url, const char *begin, const char *kind,
                    struct pawl_error *err);
/* Reads "http(s)://host:port/path" into https, host, base_path. An endpoint that names a user is
 * refused and not shown. */
int object_read_endpoint(struct object_config *c, const char *service, const char *endpoint, struct pawl_error *err);

enum object_known { OBJECT_UNKNOWN, OBJECT_YES, OBJECT_NO };

struct object_store {
	struct store base;
	const struct object_protocol *protocol;
	struct object_config config; /* fixed once it is open */
	struct http *http;
	struct cred *cred;
	_Atomic int64_t skew_s;  /* the server's clock minus ours, where the difference mattered */
	atomic_int exclusive;    /* enum object_known: exclusive puts are honoured */
	atomic_int conditional;  /* enum object_known: a put that replaces a certain object is honoured */
	atomic_int sum;          /* enum object_sum: that of the configuration, until the server refuses it */
	uint64_t max_copy_bytes; /* S3: larger objects are copied in parts */
};

/* ---- requests */

struct object_request {
	const char *what; /* the subject of messages: a key as the caller knows it, or the root */
	const char *verb; /* "put", "read", .. */
	const char *method;
	const char *key;   /* as the caller knows it, below the prefix; NULL = the bucket */
	const char *query; /* sorted and encoded, or NULL */
	struct http_header headers[10];
	size_t n_headers;
	const struct pawl_slice *body;
	size_t n_body;
	void *dst; /* as in struct http_call */
	size_t dst_bytes;
	int dst_status;
	size_t text_max;
	bool slow_answer;
	bool fresh;
	bool sum_body;            /* send its checksum where the server checks that */
	enum object_sum sum_kind; /* its kind; 0 = that of the store, filled in */
	char sum[48];             /* that checksum in base64, or "" */
	uint64_t crc;             /* the same as a number, if it is a CRC */
	struct http_call call;    /* the answer */
};
struct object_head;                                   /* below */
void object_request_clear(struct object_request *rq); /* usable as PAWL_CLEAN(object_request_clear) */
extern const struct pawl_slice object_nothing;        /* a body of no bytes */

/* What one try of one request needs apart from the request itself. The shared code fills in host,
 * path and url. */
struct object_envelope {
	struct buf host, path, url, authorization;
	int64_t now_s; /* by the server's clock */
	char date[40], payload[65], more[64];
};

/* Signs and runs n requests at a time. 0: each has an answer, whatever its status. A skewed clock
 * and expired credentials are corrected once. */
int object_send(struct object_store *s, struct object_request *rqs, size_t n, struct pawl_error *err);
/* The same for one request. An answer is also an error unless it is a success: status 2xx, and no
 * error inside it. */
int object_do(struct object_store *s, struct object_request *rq, struct pawl_error *err);
/* Sends a part of an upload, like object_do, into *rq, which the caller clears. query: names the
 * part. */
int object_send_part(struct object_store *s, const char *key, const char *query, const void *ptr, size_t len,
                     struct object_request *rq, struct pawl_error *err);
/* Makes a copy on the server, like object_send, into *rq. source: the header that names the source;
 * match: the header for its ETag. PAWL_ECONFLICT: head belongs to another version. */
int object_send_copy(struct object_store *s, const char *from, const char *to, const struct object_head *head,
                     const struct http_header *source, const char *match, struct object_request *rq,
                     struct pawl_error *err);
bool object_is_success(const struct object_request *rq); /* by its status */
/* The error that an unsuccessful answer stands for. */
int object_fail(struct object_store *s, const struct object_request *rq, struct pawl_error *err);
/* Code of the error in the answer ("NoSuchKey"), or "". */
void object_error_code(const struct object_request *rq, char code[65]);
void object_add_header(struct object_request *rq, const char *name, const char *value);
/* Value of Content-Length; false if there is none. */
bool object_content_length(const struct object_request *rq, uint64_t *ret);

/* For prepare: adds a header to the call. */
void object_call_add(struct http_call *call, const char *name, const char *value);

/* ---- checksums of bodies */

/* "CRC32C", or "none". */
const char *object_sum_name(enum object_sum sum);
/* Finds a checksum by its name, in any case; -1 = unknown. */
int object_sum_find(const char *name);
/* The header of S3 that carries it, and its element in the list of an upload in parts
 * ("ChecksumCRC32C", or NULL). */
const char *object_sum_header(enum object_sum sum);
const char *object_sum_element(enum object_sum sum);
/* Writes the checksum of the request's body to rq->sum in base64, and to rq->crc. */
int object_sum_body(enum object_sum sum, struct object_request *rq, struct pawl_error *err);
/* A CRC in base64, its highest byte first. */
int object_sum_text(uint64_t crc, size_t n_bytes, char out[48], struct pawl_error *err);

/* ---- lists */

struct object_found {
	char *key; /* complete, in the bucket */
	bool is_folder;
	uint64_t nbytes;
	int64_t mtime_ns;
	char *upload; /* of a list of uploads */
};

struct object_page {
	struct bump memory;
	struct object_found items[OBJECT_PAGE_KEYS + 1];
	size_t n;
	struct object_found next_item; /* its fields, as they are read */
	bool encoded, truncated, complete;
	char *token, *key_marker, *upload_marker;
};
struct object_page *object_page_new(void);
void object_page_free(struct object_page **pp); /* usable as PAWL_CLEAN(object_page_free) */
/* For a protocol that reads a list: take a text, a number, a time, or the item whose fields were
 * read. */
int object_page_keep(struct object_page *p, char **ret, const char *text, size_t len);
int object_page_add(struct object_page *p, const char *key, size_t len, bool is_folder);
/* Reads a page of `query`; `what` "" stands for the root. */
int object_read_page(struct object_store *s, const char *what, const char *verb, const char *query,
                     struct object_page *p, struct pawl_error *err);
/* Takes the page from an answer of status 200. PAWL_ETRANSIENT: it is not a complete list. */
int object_take_page(struct object_store *s, const struct object_request *rq, struct object_page *p,
                     struct pawl_error *err);
/* The part of a complete key that the callers know. */
const char *object_below_prefix(const struct object_store *s, const char *key);
void object_decode(char *text); /* percent-encoding, in place; malformed parts stay as they are */

/* ---- the protocol */

/* One part of an upload that was sent. */
struct object_part_sum {
	char etag[160];
	char sum[48]; /* "" = none was sent */
	uint64_t crc; /* the same as a number */
	uint64_t nbytes;
};

struct object_meaning {
	const char *code; /* of the answer's body */
	int is;
	const char *text; /* for people */
};

struct object_protocol {
	const char *name;             /* "s3" */
	const char *kind;             /* "bucket", "container" */
	const char *token;            /* header for an object's token */
	const char *sum;              /* header for the checksum of a body; NULL = that of object_sum_header */
	struct http_header put;       /* sent with every put of a complete object; name NULL = none */
	struct http_header exclusive; /* sent with an exclusive put */
	const char *match;            /* header of a put that replaces the object with this tag */
	const char *tag;              /* header of an answer that holds the tag */
	const char *wrong_tag;        /* a tag that no object has */
	bool lists_sums;              /* an upload with checksums announces them at its begin, and its end lists them */
	bool completes_exclusively;   /* and with the completion of an upload */
	const char *skew_code;        /* of the error for a wrong clock */
	uint64_t max_object_bytes;
	uint32_t max_parts;
	const struct object_meaning *meanings; /* ended by a NULL code */
	/* Adds the signed headers and the signature to rq->call. */
	int (*prepare)(struct object_store *s, struct object_request *rq, const struct cred_keys *keys,
	               struct object_envelope *e, struct pawl_error *err);
	/* Explains a refusal in more detail, or returns 0. May be NULL. */
	int (*explain)(struct object_store *s, const struct object_request *rq, struct pawl_error *err);
	/* The first answer of a store that is being opened is not a success. 1 = look again. May be
	 * NULL. */
	int (*look_again)(struct object_store *s, const struct object_request *rq, struct pawl_error *err);
	/* Query for keys that begin with prefix, from the token on. children: only direct children.
	 * At most max_keys; 0 = any number. */
	void (*list_query)(struct buf *query, const char *prefix, bool children, unsigned max_keys, const char *token);
	/* An xml_fn on an object_page. */
	int (*take_element)(void *page, const char *path, const char *text, size_t len);
	/* Uploads in parts. `token` may be NULL; end: exclusive only where
	 * completes_exclusively. */
	int (*upload_begin)(struct object_store *s, const char *key, const char *token, bool sums, char **ret_id,
	                    struct pawl_error *err);
	int (*upload_part)(struct object_store *s, const char *key, const char *id, size_t i, const void *ptr,
	                   size_t len, struct object_part_sum *ret, struct pawl_error *err);
	int (*upload_end)(struct object_store *s, const char *key, const char *id, const struct object_part_sum *parts,
	                  size_t n, bool exclusive, struct pawl_error *err);
	/* One that no longer exists is a success. May be NULL. */
	int (*upload_drop)(struct object_store *s, const char *key, const char *id, struct pawl_error *err);
	/* Copies within the bucket. PAWL_ECONFLICT: `from` is no longer the version of head. */
	int (*copy)(struct object_store *s, const char *from, const char *to, const struct object_head *head,
	            struct pawl_error *err);
	/* Removes all keys of a page by one request. PAWL_EUNSUPPORTED: the server has no such
	 * request. May be NULL. */
	int (*remove_batch)(struct object_store *s, const char *folder, const struct object_page *p,
	                    struct pawl_error *err);
	int (*sweep)(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err); /* may be NULL */
};

/* Makes a store of a configuration, which it takes over. Looks at the bucket. create: also tries
 * what may be written. */
int object_open_store(const struct object_protocol *protocol, struct object_config *config, cred_find_fn *find,
                      bool create, struct store **ret, struct pawl_error *err);

/* Shared by S3 and GCS: s3_requests.c. */

#define S3_MIN_PART_BYTES (UINT64_C(5) << 20)
#define S3_MAX_PARTS 10000u
#define S3_MAX_OBJECT_BYTES (UINT64_C(5) << 40)
#define S3_MAX_COPY_BYTES (UINT64_C(5) << 30) /* of one copy request of S3 */
int s3_config_read(const char *url, struct object_config *ret, struct pawl_error *err);
int s3_config_set_region(struct object_config *c, const char *region, struct pawl_error *err);
extern const struct object_meaning s3_meanings[];
void s3_list_query(struct buf *query, const char *prefix, bool children, unsigned max_keys, const char *token);
int s3_take_element(void *page, const char *path, const char *text, size_t len);
int s3_upload_begin(struct object_store *s, const char *key, const char *token, bool sums, char **ret_id,
                    struct pawl_error *err);
int s3_upload_part(struct object_store *s, const char *key, const char *id, size_t i, const void *ptr, size_t len,
                   struct object_part_sum *ret, struct pawl_error *err);
int s3_upload_end(struct object_store *s, const char *key, const char *id, const struct object_part_sum *parts,
                  size_t n, bool exclusive, struct pawl_error *err);
int s3_upload_drop(struct object_store *s, const char *key, const char *id, struct pawl_error *err);
/* PUT with a source, using these headers. */
int s3_copy_whole(struct object_store *s, const char *from, const char *to, const struct object_head *head,
                  const char *source_header, const char *match_header, struct pawl_error *err);
int s3_copy_source(const struct object_store *s, const char *key, struct buf *out, struct pawl_error *err);
int s3_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err);

/* ---- operations, in the files named above */

int object_put_whole(struct object_store *s, const char *key, const struct pawl_slice *parts, size_t n_parts,
                     const char *token, bool exclusive, struct pawl_error *err);
/* Size, ETag (quoted as sent; "" = unknown) and the token from create, if any. PAWL_ENOTFOUND. */
struct object_head {
	uint64_t nbytes;
	int64_t mtime_ns;
	char etag[160];
	char token[40];
};
int object_get_head(struct object_store *s, const char *key, const char *verb, struct object_head *ret,
                    struct pawl_error *err);
int object_probe_exclusive(struct object_store *s, struct pawl_error *err);

int object_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
                  struct pawl_error *err);
int object_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
                 struct pawl_error *err);
int object_seal(struct store *base, struct store_file *f, struct pawl_error *err);
int object_finish(struct store *base, struct store_file *f, struct pawl_error *err);
void object_abort(struct store *base, struct store_file *f);
int object_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                struct pawl_error *err);
int object_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n,
                struct pawl_error *err);
int object_get(struct store *base, const char *key, size_t max, struct buf *out, char *tag /* or NULL */,
               struct pawl_error *err);
void object_close_reader(struct store *base, struct store_reader *r);
int object_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
int object_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
int object_remove(struct store *base, const char *key, struct pawl_error *err);
int object_remove_folder(struct store *base, const char *folder, struct pawl_error *err);
int object_link(struct store *base, const char *from, const char *to, struct pawl_error *err);
int object_move(struct store *base, const char *from, const char *to, struct pawl_error *err);
int object_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err);
int object_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err);
/* true if any object exists below the folder. */
int object_has_any(struct object_store *s, const char *folder, const char *verb, bool *ret, struct pawl_error *err);

#endif
