/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_s3: what the parts of the S3 engine share. Private to src/store/s3_*.c and store_s3*.c:
 *   s3_config.c       where: URL, endpoint, region, style of addressing
 *   s3_call.c         one signed request and what its answer means
 *   store_s3.c        opening, small objects, capabilities
 *   store_s3_write.c  streamed objects: multipart uploads
 *   store_s3_read.c   ranged reading
 *   store_s3_names.c  listing, removing, copying
 */
#ifndef PAWL_STORE_STORE_S3_H
#define PAWL_STORE_STORE_S3_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "store/engine.h"
#include "store/http.h"
#include "store/s3_cred.h"

#define S3_MIN_PART_BYTES (UINT64_C(5) << 20)
#define S3_PART_BYTES (UINT64_C(8) << 20) /* the usual part, and the unit that writes should come in */
#define S3_MAX_PARTS 10000u
#define S3_MAX_PART_BYTES (UINT64_C(5) << 30)
#define S3_MAX_OBJECT_BYTES (UINT64_C(5) << 40)
#define S3_MAX_COPY_BYTES (UINT64_C(5) << 30) /* of one copy request */

struct s3_config {
	struct bump memory;
	const char *root;      /* "s3://bucket/prefix" */
	const char *bucket;
	const char *prefix;    /* of all keys: "" or "a/b/" */
	bool https;
	const char *host;      /* with port, without bucket */
	const char *base_path; /* of the endpoint: "" or "/x" */
	bool is_aws;           /* the endpoint is made from the region */
	const char *region;
	bool region_given;     /* by environment or profile, so that a hint of the server does not replace it */
	bool path_style;       /* the bucket is in the path, not in the host name */
	bool sums;             /* x-amz-checksum-crc32c is sent */
	const char *ca_bundle; /* or NULL */
};
int s3_config_read(const char *url, struct s3_config *ret, struct pawl_error *err);
int s3_config_set_region(struct s3_config *c, const char *region, struct pawl_error *err);

enum s3_known { S3_UNKNOWN, S3_YES, S3_NO };

struct s3_store {
	struct store base;
	struct s3_config config; /* fixed once it is open */
	struct http *http;
	struct s3_cred *cred;
	_Atomic int64_t skew_s;      /* the server's clock less ours, where that mattered */
	atomic_int exclusive;        /* enum s3_known: If-None-Match is honoured */
	uint64_t max_copy_bytes;     /* above it a copy is made in parts */
	pthread_mutex_t append_lock; /* held over reading and putting back */
};

/* ---- requests */

struct s3_request {
	const char *what;  /* what it is about, in messages: a key as the caller knows it, or the root */
	const char *verb;  /* "put", "read", .. */
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
	bool sum_body;    /* send its CRC32C where the server checks that */
	char crc32c[9];   /* that sum in base64, or "" */
	struct http_call call; /* the answer */
};
void s3_request_clear(struct s3_request *rq); /* usable as PAWL_CLEAN(s3_request_clear) */

/* Signs and runs n requests at a time. 0: each has an answer, whatever its status. A skewed clock and expired credentials
 * are put right once. */
int s3_send(struct s3_store *s, struct s3_request *rqs, size_t n, struct pawl_error *err);
/* The same for one request; an answer that is no success (2xx, and no <Error> inside of it) is an error, too. */
int s3_do(struct s3_store *s, struct s3_request *rq, struct pawl_error *err);
/* The error that an answer without success stands for. */
int s3_fail(struct s3_store *s, const struct s3_request *rq, struct pawl_error *err);
/* Code of the answer's <Error> ("NoSuchKey"), or "". */
void s3_error_code(const struct s3_request *rq, char code[65]);
void s3_add_header(struct s3_request *rq, const char *name, const char *value);
int64_t s3_http_time(const char *text); /* unix seconds of "Fri, 24 May 2013 00:00:00 GMT"; -1 if it is none */
/* Value of Content-Length; false if there is none. */
bool s3_content_length(const struct s3_request *rq, uint64_t *ret);

/* ---- operations, in the files named above */

int s3_put_object(struct s3_store *s, const char *key, const struct pawl_slice *parts, size_t n_parts,
                  const char *token, bool exclusive, struct pawl_error *err);
/* Size, ETag (quoted as sent; "" = unknown) and the token that create gave it, if any. PAWL_ENOTFOUND. */
struct s3_head {
	uint64_t nbytes;
	int64_t mtime_ns;
	char etag[160];
	char token[40];
};
int s3_head_object(struct s3_store *s, const char *key, const char *verb, struct s3_head *ret, struct pawl_error *err);
int s3_probe_exclusive(struct s3_store *s, struct pawl_error *err);
/* Begins, completes and drops an upload in parts. */
struct s3_part_sum {
	char etag[160];
	char crc32c[9];
};
int s3_upload_begin(struct s3_store *s, const char *key, const char *token, bool sums, char **ret_id,
                    struct pawl_error *err);
int s3_upload_end(struct s3_store *s, const char *key, const char *id, const struct s3_part_sum *parts, size_t n,
                  bool exclusive, struct pawl_error *err);
void s3_upload_drop(struct s3_store *s, const char *key, const char *id);

int s3_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
              struct pawl_error *err);
int s3_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
             struct pawl_error *err);
int s3_seal(struct store *base, struct store_file *f, struct pawl_error *err);
int s3_finish(struct store *base, struct store_file *f, struct pawl_error *err);
void s3_abort(struct store *base, struct store_file *f);
int s3_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
            struct pawl_error *err);
int s3_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err);
int s3_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err);
void s3_close_reader(struct store *base, struct store_reader *r);
int s3_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err);
int s3_remove(struct store *base, const char *key, struct pawl_error *err);
int s3_remove_folder(struct store *base, const char *folder, struct pawl_error *err);
int s3_link(struct store *base, const char *from, const char *to, struct pawl_error *err);
int s3_move(struct store *base, const char *from, const char *to, struct pawl_error *err);
int s3_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err);
/* true if anything lies below the folder. */
int s3_has_any(struct s3_store *s, const char *folder, const char *verb, bool *ret, struct pawl_error *err);

#endif
