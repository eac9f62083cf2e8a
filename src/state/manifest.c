/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest: writes the commit record. Promises P1, P2: what is written here decides that a
 * checkpoint exists. manifest_decode.c reads it.
 */
#include "state/manifest.h"

#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/table.h"
#include "state/manifest_check.h"

void
manifest_free(struct manifest *m)
{
	if (!m)
		return;
	pawl_state_free(m->metadata);
	pawl_state_free(m->state);
	bump_clear(&m->memory);
	mem_free(m);
}

/* ---------------------------------------------------------------- writing */

static struct buf *
put_separator(struct buf *out, const char *separator)
{
	buf_puts(out, separator);
	return out;
}

void
manifest_put_progress(const struct pawl_progress *progress, struct buf *out)
{
	buf_putc(out, '{');
	for (size_t i = 0; i < manifest_n_counters; i++) {
		const struct manifest_counter *c = &manifest_counters[i];
		const char *field = (const char *)progress + c->offset;
		int64_t number = 0;
		double real = 0;
		memcpy(c->is_float ? (void *)&real : (void *)&number, field, sizeof(number));
		if (number < 0 || real < 0)
			continue;
		json_add_key(out, c->name);
		if (c->is_float)
			json_put_double(out, real);
		else
			json_put_i64(out, number);
	}
	buf_putc(out, '}');
}

void
manifest_put_metrics(const struct pawl_metric *metrics, size_t n, struct buf *out)
{
	buf_putc(out, '{');
	for (size_t i = 0; i < n; i++) {
		json_add_key(out, metrics[i].name);
		if (metrics[i].not_a_number)
			buf_puts(out, "null");
		else
			state_put_float(out, metrics[i].value);
	}
	buf_putc(out, '}');
}

/* The members from "run" to "metadata". */
static int
put_summary(const struct manifest *m, const char *separator, struct buf *out, struct pawl_error *err)
{
	json_add_text(out, "run", m->run_id);
	json_add_u64(put_separator(out, separator), "id", m->id);
	json_add_u64(put_separator(out, separator), "attempt", m->attempt);
	json_add_text(put_separator(out, separator), "token", m->token);
	json_add_i64(put_separator(out, separator), "step", m->step);
	json_add_i64(put_separator(out, separator), "unix_ns", m->unix_ns);
	json_add_key(put_separator(out, separator), "progress");
	manifest_put_progress(&m->progress, out);
	json_add_key(put_separator(out, separator), "metrics");
	manifest_put_metrics(m->metrics, m->n_metrics, out);
	json_add_u64(put_separator(out, separator), "world_size", m->world_size);
	json_add_u64(put_separator(out, separator), "bytes", m->bytes);
	json_add_u64(put_separator(out, separator), "new_bytes", m->new_bytes);
	if (m->plain_bytes)
		json_add_u64(put_separator(out, separator), "plain_bytes", m->plain_bytes);
	json_add_u64(put_separator(out, separator), "n_tensors", m->n_tensors);
	json_add_u64(put_separator(out, separator), "n_files", m->n_files);
	json_add_key(put_separator(out, separator), "blocked_seconds");
	json_put_double(out, m->blocked_seconds);
	json_add_bool(put_separator(out, separator), "nonfinite", m->nonfinite);
	json_add_bool(put_separator(out, separator), "repaired", m->repaired);
	json_add_key(put_separator(out, separator), "metadata");
	if (m->metadata)
		return state_encode(m->metadata, out, err);
	buf_puts(out, "null");
	return 0;
}

static void
put_piece(struct buf *out, const struct manifest_tensor *t, const struct manifest_piece *p)
{
	bool is_whole = !p->lengths || tensor_same_extents(p->lengths, t->shape, t->ndim);

	buf_putc(out, '{');
	json_add_u64(out, "file", p->file);
	json_add_u64(out, "begin", p->begin);
	if (!is_whole) {
		json_add_u64s(out, "offsets", p->offsets, t->ndim);
		json_add_u64s(out, "lengths", p->lengths, t->ndim);
	}
	buf_putc(out, '}');
}

static void
put_sums(struct buf *out, const char *key, const struct sum128 *sums, size_t n)
{
	json_add_key(out, key);
	buf_putc(out, '"');
	for (size_t k = 0; k < n; k++) {
		char *hex = buf_grow(out, 32);
		if (hex)
			sum_to_hex(sums[k], hex);
	}
	buf_putc(out, '"');
}

static void
put_tensors(const struct manifest *m, struct buf *out)
{
	json_add_key(put_separator(out, ",\n"), "tensors");
	buf_putc(out, '[');
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		json_add_text(put_separator(out, i > 0 ? ",\n{" : "\n{"), "name", t->name);
		json_add_text(out, "dtype", pawl_dtype_name(t->dtype));
		json_add_u64s(out, "shape", t->shape, t->ndim);
		json_add_key(out, "pieces");
		buf_putc(out, '[');
		for (size_t k = 0; k < t->n_pieces; k++) {
			if (k > 0)
				buf_putc(out, ',');
			put_piece(out, t, &t->pieces[k]);
		}
		buf_putc(out, ']');
		if (m->part && t->whole)
			json_add_bool(out, "whole", true);
		if (m->part && t->sum)
			put_sums(out, "sum", t->sum, 1);
		buf_putc(out, '}');
	}
	buf_puts(out, "\n]");
}

static void
put_files(const struct manifest *m, struct buf *out)
{
	json_add_key(put_separator(out, ",\n"), "files");
	buf_putc(out, '[');
	for (size_t i = 0; i < m->n_files; i++) {
		const struct manifest_file *f = &m->files[i];
		json_add_text(put_separator(out, i > 0 ? ",\n{" : "\n{"), "name", f->name);
		json_add_u64(out, "size", f->nbytes);
		json_add_u64(out, "block", f->block_bytes);
		json_add_bool(out, "reused", f->reused);
		put_sums(out, "sums", f->sums, f->n_blocks);
		if (f->codec) {
			json_add_text(out, "codec", f->codec);
			json_add_u64(out, "plain_size", f->plain_bytes);
			put_sums(out, "plain_sums", f->plain_sums, f->n_plain_blocks);
		}
		buf_putc(out, '}');
	}
	buf_puts(out, "\n]");
}

static void
put_digest(struct buf *out, size_t begin)
{
	char hex[32];

	buf_putc(out, ',');
	sum_to_hex(sum_bytes(out->ptr ? out->ptr + begin : "", out->len - begin), hex);
	buf_puts(out, MANIFEST_DIGEST);
	buf_put(out, hex, sizeof(hex));
	buf_puts(out, MANIFEST_END);
}

/* ------------------------------------------------------------------ faces */

/* What the decoder would call corrupt is the caller's mistake here. */
static int
as_usage(int rc, struct pawl_error *err)
{
	if (rc == PAWL_ECORRUPT) {
		rc = PAWL_EUSAGE;
		if (err)
			err->code = rc;
	}
	return rc < 0 ? err_prefix(err, rc, "manifest") : 0;
}

static int
check_names(const struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(table_clear) struct table names = {0};
	uintptr_t same;

	for (size_t i = 0; i < m->n_tensors; i++) {
		const char *name = m->tensors[i].name;
		uint64_t hash = table_hash((uintptr_t)m, name, strlen(name));
		for (size_t cursor = 0; table_next(&names, hash, &cursor, &same);) {
			if (strcmp(m->tensors[same].name, name) == 0)
				return err_set(err, PAWL_ECORRUPT, "tensor '%.200s' appears twice", name);
		}
		if (table_reserve(&names, 1) < 0)
			return err_nomem(err, NULL);
		table_add(&names, hash, i);
	}
	return 0;
}

static int
check_manifest(const struct manifest *m, struct pawl_error *err)
{
	TRY(manifest_check_summary(m, err));
	TRY(manifest_check_rows(m, err));
	return check_names(m, err);
}

static int
version_of(const struct manifest *m)
{
	for (size_t i = 0; i < m->n_files; i++)
		if (m->files[i].codec)
			return MANIFEST_VERSION;
	return 1;
}

int
manifest_encode_with(const struct manifest *m, struct pawl_slice state_json, struct buf *out, struct pawl_error *err)
{
	size_t begin = out->len;

	TRY(as_usage(check_manifest(m, err), err));
	buf_printf(out, "{\"%s\":%d,\n", m->part ? "pawl_part" : "pawl_manifest", version_of(m));
	TRY(put_summary(m, ",\n", out, err));
	json_add_key(put_separator(out, ",\n"), "state");
	buf_put(out, state_json.ptr, state_json.len);
	put_tensors(m, out);
	put_files(m, out);
	put_digest(out, begin);
	TRY(buf_check(out, "manifest", err));
	if (out->len - begin > MANIFEST_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT,
		               "manifest: %zu bytes, at most %u are possible; keep large lists of numbers in tensors",
		               out->len - begin, MANIFEST_MAX_BYTES);
	return 0;
}

/* Rows and the state's table must be the same tensors. */
static int
check_state(const struct manifest *m, struct pawl_error *err)
{
	if (m->state->n_tensors != m->n_tensors)
		return err_set(err, PAWL_EUSAGE, "manifest: %llu tensors, but the state has %zu",
		               (unsigned long long)m->n_tensors, m->state->n_tensors);
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		const struct state_tensor *s = state_find_tensor(m->state, t->name);
		if (!s)
			return err_set(err, PAWL_EUSAGE, "manifest: tensor '%.200s' is not in the state", t->name);
		if (s->is_blob && (t->dtype != PAWL_U8 || t->ndim != 1))
			return err_set(err, PAWL_EUSAGE, "manifest: tensor '%.200s' holds a long value, expected U8",
			               t->name);
	}
	return 0;
}

int
manifest_encode(const struct manifest *m, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf state = {0};

	if (!m->state)
		return err_set(err, PAWL_EUSAGE, "manifest: no state");
	TRY(check_state(m, err));
	TRY(state_encode(m->state, &state, err));
	return manifest_encode_with(m, (struct pawl_slice){state.ptr, state.len}, out, err);
}

int
manifest_encode_summary(const struct manifest *m, struct buf *out, struct pawl_error *err)
{
	TRY(as_usage(manifest_check_summary(m, err), err));
	buf_putc(out, '{');
	TRY(put_summary(m, ",", out, err));
	buf_putc(out, '}');
	return buf_check(out, "manifest", err);
}

/* ----------------------------------------------------------------- members */

size_t
manifest_find_member(const struct manifest *m, uint32_t file, uint64_t at)
{
	size_t lo = 0, hi = m->n_members;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct manifest_member *member = &m->members[mid];

		if (member->file < file || (member->file == file && member->begin + member->nbytes <= at))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}
