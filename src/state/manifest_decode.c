/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest_decode: bytes -> manifest. Promises P1, P2, P17.
 *
 *   size -> digest -> version -> parse -> members in their fixed order -> state -> rows
 *        -> manifest_check
 *
 * A large manifest, of many ranks, is parsed row by row, since each row has a line. So memory grows
 * with what it describes and not with its JSON.
 *
 * Nothing is parsed before the digest has verified the bytes. Everything is checked afterwards all
 * the same, because anyone can compute a digest.
 */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "format/safetensors/safetensors.h"
#include "state/manifest_check.h"
#include "state/manifest_lines.h"
#include "state/members.h"

#define MAX_JSON_DEPTH (4 * 256 + 8) /* a level of a state is at most four of JSON */
#define LARGE_BYTES ((size_t)8 << 20)

/* ---------------------------------------------------------------- summary */

int
manifest_read_progress(const struct json *object, struct pawl_progress *ret, struct pawl_error *err)
{
	struct pawl_progress progress = PAWL_PROGRESS_INIT;

	for (const struct json *member = object->first; member; member = member->next) {
		const struct manifest_counter *c = NULL;
		for (size_t i = 0; i < manifest_n_counters && !c; i++)
			c = strcmp(member->key, manifest_counters[i].name) == 0 ? &manifest_counters[i] : NULL;
		bool is_number = member->type == JSON_INT || (c && c->is_float && member->type == JSON_REAL);
		if (!c || !is_number || member->real < 0)
			return err_set(err, PAWL_ECORRUPT, "progress: '%.60s' is not a known counter of at least 0",
			               member->key);
		memcpy((char *)&progress + c->offset,
		       c->is_float ? (const void *)&member->real : (const void *)&member->i, 8);
	}
	*ret = progress;
	return 0;
}

static int
read_metrics(struct members *r)
{
	struct manifest *m = r->m;
	const struct json *object = NULL;

	TRY(members_type(r, "metrics", JSON_OBJECT, &object));
	if (object->len > MANIFEST_MAX_ROWS)
		return err_set(r->err, PAWL_ELIMIT, "%zu metrics, at most %u are possible", object->len,
		               MANIFEST_MAX_ROWS);
	m->metrics = bump_array(&m->memory, object->len, sizeof(*m->metrics));
	if (!m->metrics)
		return err_nomem(r->err, NULL);
	for (const struct json *member = object->first; member; member = member->next) {
		struct pawl_metric *metric = &m->metrics[m->n_metrics];
		metric->not_a_number = member->type == JSON_NULL;
		if (!metric->not_a_number && !state_get_float(member, &metric->value))
			return err_set(r->err, PAWL_ECORRUPT, "metric '%.60s': expected a number", member->key);
		metric->name = bump_strndup(&m->memory, member->key, member->key_len);
		if (!metric->name)
			return err_nomem(r->err, NULL);
		m->n_metrics++;
	}
	return 0;
}

/* The members from "run" to "metadata". */
static int
read_summary(struct members *r)
{
	struct manifest *m = r->m;
	const struct json *value = NULL;
	uint64_t world_size = 0;

	TRY(members_hex32(r, "run", m->run_id));
	TRY(members_u64(r, "id", &m->id));
	TRY(members_u64(r, "attempt", &m->attempt));
	TRY(members_hex32(r, "token", m->token));
	TRY(members_i64(r, "step", &m->step));
	TRY(members_i64(r, "unix_ns", &m->unix_ns));
	TRY(members_type(r, "progress", JSON_OBJECT, &value));
	TRY(manifest_read_progress(value, &m->progress, r->err));
	TRY(read_metrics(r));
	TRY(members_u64(r, "world_size", &world_size));
	if (world_size > UINT32_MAX)
		return err_set(r->err, PAWL_ECORRUPT, "world_size: %llu is too large", (unsigned long long)world_size);
	m->world_size = (uint32_t)world_size;
	TRY(members_u64(r, "bytes", &m->bytes));
	TRY(members_u64(r, "new_bytes", &m->new_bytes));
	if (r->version > 1 && r->next && strcmp(r->next->key, "plain_bytes") == 0)
		TRY(members_u64(r, "plain_bytes", &m->plain_bytes));
	TRY(members_u64(r, "n_tensors", &m->n_tensors));
	TRY(members_u64(r, "n_files", &m->n_files));
	TRY(members_type(r, "blocked_seconds", JSON_REAL, &value));
	m->blocked_seconds = value->real;
	TRY(members_bool(r, "nonfinite", &m->nonfinite));
	TRY(members_bool(r, "repaired", &m->repaired));
	TRY(members_take(r, "metadata", &value));
	if (value->type != JSON_NULL)
		TRY(state_decode("metadata", value, &m->metadata, r->err));
	return manifest_check_summary(m, r->err);
}

/* ------------------------------------------------------------------- rows */

static int
read_piece(struct members *r, const struct json *row, const struct manifest_tensor *t, const uint64_t *zeros,
           struct manifest_piece *p)
{
	uint32_t ndim = t->ndim, n_lengths = t->ndim;
	uint64_t file = 0;

	TRY(members_open_row(r, row));
	TRY(members_u64(r, "file", &file));
	TRY(members_u64(r, "begin", &p->begin));
	p->offsets = zeros;
	p->lengths = t->shape;
	if (r->next) {
		TRY(members_extents(r, "offsets", &ndim, &p->offsets));
		TRY(members_extents(r, "lengths", &n_lengths, &p->lengths));
	}
	if (file > UINT32_MAX || ndim != t->ndim || n_lengths != t->ndim)
		return err_set(r->err, PAWL_ECORRUPT,
		               "a piece of a tensor of %u dimensions has %u offsets, %u lengths, file %llu", t->ndim,
		               ndim, n_lengths, (unsigned long long)file);
	p->file = (uint32_t)file;
	TRY(safetensors_nbytes(t->dtype, ndim, p->lengths, &p->nbytes, r->err));
	return members_close(r);
}

static int
read_pieces(struct members *r, const struct json *array, struct manifest_tensor *t)
{
	const uint64_t *zeros = bump_array(&r->m->memory, t->ndim, sizeof(*zeros));

	t->pieces = bump_array(&r->m->memory, array->len, sizeof(*t->pieces));
	if (!zeros || !t->pieces)
		return err_nomem(r->err, NULL);
	for (const struct json *row = array->first; row; row = row->next)
		TRY(read_piece(r, row, t, zeros, &t->pieces[t->n_pieces++]));
	return 0;
}

/* The checksum of a long value that all ranks must have. */
static int
read_value_sum(struct members *r, struct manifest_tensor *t)
{
	struct sum128 *sum = bump_alloc(&r->m->memory, sizeof(*sum));
	const struct json *hex = NULL;

	if (!sum)
		return err_nomem(r->err, NULL);
	TRY(members_type(r, "sum", JSON_STRING, &hex));
	if (hex->len != 32 || !sum_from_hex(hex->str, sum))
		return err_set(r->err, PAWL_ECORRUPT, "sum: expected 32 lower-case hex digits");
	t->sum = sum;
	return 0;
}

/* Reads a row into the place that the state's table assigns to it. */
static int
read_tensor(struct members *r, const struct json *row)
{
	struct manifest *m = r->m;
	const struct json *name = NULL, *dtype = NULL, *pieces = NULL;
	const uint64_t *shape = NULL;
	uint32_t ndim = 0;

	TRY(members_open_row(r, row));
	TRY(members_type(r, "name", JSON_STRING, &name));
	struct state_tensor *s = state_find_tensor(m->state, name->str);
	if (!s)
		return err_set(r->err, PAWL_ECORRUPT, "tensor '%.200s' is not in the state", name->str);
	struct manifest_tensor *t = &m->tensors[s - m->state->tensors];
	if (t->name)
		return err_set(r->err, PAWL_ECORRUPT, "tensor '%.200s' appears twice", name->str);
	TRY(members_type(r, "dtype", JSON_STRING, &dtype));
	TRY(members_extents(r, "shape", &ndim, &shape));
	TRY(state_describe_tensor(m->state, s, pawl_dtype_from_name(dtype->str), ndim, shape, r->err));
	*t = (struct manifest_tensor){.name = s->info.name,
	                              .dtype = s->info.dtype,
	                              .ndim = ndim,
	                              .shape = s->info.shape,
	                              .nbytes = s->info.nbytes};
	TRY(members_type(r, "pieces", JSON_ARRAY, &pieces));
	if (m->part && r->next)
		TRY(members_bool(r, "whole", &t->whole));
	if (m->part && r->next)
		TRY(read_value_sum(r, t));
	TRY(members_close(r));
	int rc = read_pieces(r, pieces, t);
	return rc < 0 ? err_prefix(r->err, rc, "tensor '%.200s'", t->name) : 0;
}

static int
begin_tensors(struct members *r, size_t n)
{
	struct manifest *m = r->m;

	if (n != m->n_tensors || n != m->state->n_tensors)
		return err_set(r->err, PAWL_ECORRUPT,
		               "%zu rows of tensors, but n_tensors is %llu and the state has %zu", n,
		               (unsigned long long)m->n_tensors, m->state->n_tensors);
	m->tensors = bump_array(&m->memory, n, sizeof(*m->tensors));
	return m->tensors ? 0 : err_nomem(r->err, NULL);
}

static int
read_tensors(struct members *r)
{
	const struct json *array = NULL;

	TRY(members_type(r, "tensors", JSON_ARRAY, &array));
	const struct json *rest = r->next;
	TRY(begin_tensors(r, array->len));
	for (const struct json *row = array->first; row; row = row->next)
		TRY(read_tensor(r, row));
	r->next = rest;
	return 0;
}

static int
read_sums(struct members *r, const char *key, const struct manifest_file *f, const struct sum128 **ret, size_t *ret_n)
{
	const struct json *hex = NULL;

	TRY(members_type(r, key, JSON_STRING, &hex));
	const size_t n = hex->len / 32;
	struct sum128 *sums = bump_array(&r->m->memory, n, sizeof(*sums));
	if (!sums)
		return err_nomem(r->err, NULL);
	for (size_t i = 0; i < n; i++) {
		if (!sum_from_hex(hex->str + 32 * i, &sums[i]))
			return err_set(r->err, PAWL_ECORRUPT, "%s: checksum %zu is not 32 lower-case hex digits",
			               f->name, i);
	}
	if (hex->len % 32 != 0)
		return err_set(r->err, PAWL_ECORRUPT, "%s: checksums are not 32 hex digits each", f->name);
	*ret = sums;
	*ret_n = n;
	return 0;
}

/* The members that only the row of a compressed file has. */
static int
read_packing(struct members *r, struct manifest_file *f)
{
	if (r->version < 2)
		return members_close(r); /* which reports members that it did not expect */
	TRY(members_name(r, "codec", 16, &f->codec));
	TRY(members_u64(r, "plain_size", &f->plain_bytes));
	TRY(read_sums(r, "plain_sums", f, &f->plain_sums, &f->n_plain_blocks));
	return members_close(r);
}

static int
read_file(struct members *r, const struct json *row, struct manifest_file *f)
{
	TRY(members_open_row(r, row));
	TRY(members_name(r, "name", 128, &f->name));
	TRY(members_u64(r, "size", &f->nbytes));
	TRY(members_u64(r, "block", &f->block_bytes));
	TRY(members_bool(r, "reused", &f->reused));
	TRY(read_sums(r, "sums", f, &f->sums, &f->n_blocks));
	return r->next ? read_packing(r, f) : 0;
}

static int
begin_files(struct members *r, size_t n)
{
	struct manifest *m = r->m;

	if (n != m->n_files)
		return err_set(r->err, PAWL_ECORRUPT, "%zu rows of files, but n_files is %llu", n,
		               (unsigned long long)m->n_files);
	m->files = bump_array(&m->memory, n, sizeof(*m->files));
	return m->files ? 0 : err_nomem(r->err, NULL);
}

static int
read_files(struct members *r)
{
	const struct json *array = NULL;

	TRY(members_type(r, "files", JSON_ARRAY, &array));
	const struct json *rest = r->next;
	TRY(begin_files(r, array->len));
	struct manifest_file *f = r->m->files;
	for (const struct json *row = array->first; row; row = row->next, f++)
		TRY(read_file(r, row, f));
	r->next = rest;
	return 0;
}

/* -------------------------------------------------------------- all of it */

static int
read_all(struct members *r, bool summary)
{
	const struct json *value = NULL;

	TRY(members_u64(r, r->m->part ? "pawl_part" : "pawl_manifest", &r->version)); /* its value: check_version */
	TRY(read_summary(r));
	if (summary)
		return members_close(r);
	TRY(members_take(r, "state", &value));
	TRY(state_decode("state", value, &r->m->state, r->err));
	TRY(read_tensors(r));
	TRY(read_files(r));
	TRY(members_type(r, "digest", JSON_STRING, &value));
	TRY(members_close(r));
	return manifest_check_rows(r->m, r->err);
}

static int
check_digest(const char *text, size_t len, struct pawl_error *err)
{
	struct sum128 sum;

	if (len > MANIFEST_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "its manifest has %zu bytes, at most %u are possible", len,
		               MANIFEST_MAX_BYTES);
	if (len < MANIFEST_TAIL_BYTES)
		return err_set(err, PAWL_ECORRUPT, "its manifest has only %zu bytes", len);
	size_t body_len = len - MANIFEST_TAIL_BYTES;
	const char *hex = text + body_len + sizeof(MANIFEST_DIGEST) - 1;
	if (memcmp(text + body_len, MANIFEST_DIGEST, sizeof(MANIFEST_DIGEST) - 1) != 0 ||
	    memcmp(hex + 32, MANIFEST_END, sizeof(MANIFEST_END) - 1) != 0 || !sum_from_hex(hex, &sum))
		return err_set(err, PAWL_ECORRUPT, "its manifest does not end with a digest");
	if (!sum_equal(sum, sum_bytes(text, body_len)))
		return err_set(err, PAWL_ECORRUPT, "its manifest does not match its own digest");
	return 0;
}

/* Comes first, because the rest of a newer version is unknown. len covers at least the tail. */
static int
check_version(const char *text, size_t len, bool part, struct pawl_error *err)
{
	const char *beginning = part ? "{\"pawl_part\":" : "{\"pawl_manifest\":";
	const size_t prefix = strlen(beginning);
	unsigned version = 0;

	if (len < prefix || memcmp(text, beginning, prefix) != 0)
		return err_set(err, PAWL_ECORRUPT, "its manifest does not begin with %s", beginning);
	for (size_t i = prefix; i < len && text[i] >= '0' && text[i] <= '9' && version < 1000000; i++)
		version = version * 10 + (unsigned)(text[i] - '0');
	if (version > MANIFEST_VERSION)
		return err_set(err, PAWL_EVERSION, "written in format version %u, this library reads up to %d", version,
		               MANIFEST_VERSION);
	if (version == 0)
		return err_set(err, PAWL_ECORRUPT, "its manifest has no version");
	return 0;
}

static int
parse_json(const char *what, const char *text, size_t len, const char *stop_key, struct bump *memory, struct json **ret,
           struct pawl_error *err)
{
	struct json_limits limits = {.max_bytes = MANIFEST_MAX_BYTES,
	                             .max_depth = MAX_JSON_DEPTH,
	                             .max_string = MANIFEST_MAX_BYTES,
	                             .stop_key = stop_key};

	TRY(json_parse(what, text, len, &limits, memory, ret, err));
	if ((*ret)->type != JSON_OBJECT)
		return err_set(err, PAWL_ECORRUPT, "%s: expected an object", what);
	return 0;
}

/* ---- a large one */

/* Parses row i; scratch holds it alone. */
static int
parse_line(struct manifest_lines *l, size_t i, struct bump *scratch, struct json **ret, struct pawl_error *err)
{
	struct pawl_slice row;

	TRY(manifest_next_line(l, i, &row, err));
	bump_clear(scratch);
	return parse_json(l->what, row.ptr, row.len, NULL, scratch, ret, err);
}

static int
read_lines(struct members *r, struct manifest_lines *l)
{
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	struct json *row;

	TRY(manifest_count_lines(l, r->err));
	TRY(begin_tensors(r, l->n));
	for (size_t i = 0; i < l->n; i++) {
		TRY(parse_line(l, i, &scratch, &row, r->err));
		TRY(read_tensor(r, row));
	}
	TRY(manifest_skip(l, "\n],\n\"files\":[", r->err));
	TRY(manifest_count_lines(l, r->err));
	TRY(begin_files(r, l->n));
	for (size_t i = 0; i < l->n; i++) {
		TRY(parse_line(l, i, &scratch, &row, r->err));
		TRY(read_file(r, row, &r->m->files[i]));
	}
	TRY(manifest_skip(l, "\n],", r->err));
	if (l->at != l->end)
		return err_set(r->err, PAWL_ECORRUPT, "expected the digest after the rows of files");
	return manifest_check_rows(r->m, r->err);
}

/* Everything before the rows is one object, which ends early at "tensors". */
static int
decode_large(const char *what, const char *text, size_t len, struct manifest *m, struct pawl_error *err)
{
	static const char begin[] = "\n\"tensors\":[";
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	const char *end = text + len - MANIFEST_TAIL_BYTES, *at = memmem(text, len, begin, sizeof(begin) - 1);
	const struct json *value;
	struct json *root;

	if (!at || at > end)
		return err_set(err, PAWL_ECORRUPT, "expected member 'tensors' on a line of its own");
	at += sizeof(begin) - 1;
	TRY(parse_json(what, text, (size_t)(at - text), "tensors", &scratch, &root, err));
	struct members r = {m, root->first, err, 0};

	TRY(members_u64(&r, m->part ? "pawl_part" : "pawl_manifest", &r.version));
	TRY(read_summary(&r));
	TRY(members_take(&r, "state", &value));
	TRY(members_close(&r));
	TRY(state_decode("state", value, &m->state, err));
	bump_clear(&scratch);
	return read_lines(&r, &(struct manifest_lines){.what = what, .at = at, .end = end});
}

static int
decode_manifest(const char *what, const char *text, size_t len, bool summary, struct manifest *m,
                struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	struct json *root;

	int rc = check_digest(text, len, err);
	if (rc == 0)
		rc = check_version(text, len, m->part, err);
	if (rc == 0 && !summary && len > LARGE_BYTES) {
		rc = decode_large(what, text, len, m, err);
	} else if (rc == 0) {
		TRY(parse_json(what, text, len, summary ? "state" : NULL, &scratch, &root, err));
		rc = read_all(&(struct members){m, root->first, err, 0}, summary);
	}
	return rc < 0 ? err_prefix(err, rc, "%s", what) : 0;
}

static int
decode_new(const char *what, const void *ptr, size_t len, bool summary, bool part, struct manifest **ret,
           struct pawl_error *err)
{
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = mem_zalloc(1, sizeof(*m));

	if (!m)
		return err_nomem(err, NULL);
	m->part = part;
	TRY(decode_manifest(what, ptr, len, summary, m, err));
	*ret = steal(&m);
	return 0;
}

int
manifest_decode(const char *what, const void *ptr, size_t len, bool summary, struct manifest **ret,
                struct pawl_error *err)
{
	return decode_new(what, ptr, len, summary, false, ret, err);
}

int
manifest_decode_part(const char *what, const void *ptr, size_t len, struct manifest **ret, struct pawl_error *err)
{
	return decode_new(what, ptr, len, false, true, ret, err);
}

int
manifest_decode_summary(const char *what, const void *ptr, size_t len, struct manifest **ret, struct pawl_error *err)
{
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = mem_zalloc(1, sizeof(*m));
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	struct json *root;

	if (!m)
		return err_nomem(err, NULL);
	TRY(parse_json(what, ptr, len, NULL, &scratch, &root, err));
	struct members r = {m, root->first, err, 0};
	int rc = read_summary(&r);
	if (rc == 0)
		rc = members_close(&r);
	if (rc < 0)
		return err_prefix(err, rc, "%s", what);
	*ret = steal(&m);
	return 0;
}

bool
manifest_is_withdrawn(const char *text, size_t len)
{
	const size_t begin_len = strlen(MANIFEST_WITHDRAWN_BEGIN);

	return len >= begin_len && memcmp(text, MANIFEST_WITHDRAWN_BEGIN, begin_len) == 0;
}
