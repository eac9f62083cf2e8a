/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest_check: is a manifest consistent in itself? It is checked before writing and after
 * parsing, so that no writer produces what a reader would refuse. Promises P1, P17.
 *
 * Corners decide exactly, for any number of dimensions, whether the pieces of a tensor overlap or
 * leave holes. Give every corner of a box the sign (-1)^(number of upper sides it is on). At every
 * point, add up the signs of all corners there. The boxes tile the tensor if and only if the result
 * is that of the tensor's own corners. The reason: the signed corners are the mixed derivative of a
 * box's indicator function, which determines it. Only divided dimensions count, so a piece usually
 * has 2 corners.
 */
#include "state/manifest_check.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/table.h"
#include "base/text.h"
#include "format/safetensors/safetensors.h"
#include "state/pack_name.h"

#define MIN_BLOCK_BYTES ((uint64_t)512)
#define MAX_BLOCK_BYTES ((uint64_t)1 << 40)

const struct manifest_counter manifest_counters[] = {
#define COUNTER(name, is_float) {#name, offsetof(struct pawl_progress, name), is_float}
	COUNTER(epoch, false),          COUNTER(batch, false),           COUNTER(batch_in_epoch, false),
	COUNTER(sample, false),         COUNTER(sample_in_epoch, false), COUNTER(token, false),
	COUNTER(token_in_epoch, false), COUNTER(iteration, false),       COUNTER(total_wct, true),
	COUNTER(epoch_wct, true),       COUNTER(batch_wct, true),        COUNTER(fraction, true),
#undef COUNTER
};
const size_t manifest_n_counters = sizeof(manifest_counters) / sizeof(manifest_counters[0]);

/* ---------------------------------------------------------------- summary */

static bool
is_hex32(const char text[33])
{
	struct sum128 unused;

	return text[32] == '\0' && memchr(text, '\0', 32) == NULL && sum_from_hex(text, &unused);
}

static int
check_metrics(const struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(table_clear) struct table names = {0};
	uintptr_t same;

	if (m->n_metrics > MANIFEST_MAX_ROWS)
		return err_set(err, PAWL_ELIMIT, "%zu metrics, at most %u are possible", m->n_metrics,
		               MANIFEST_MAX_ROWS);
	for (size_t i = 0; i < m->n_metrics; i++) {
		const char *name = m->metrics[i].name;
		size_t len = strlen(name);
		uint64_t hash = table_hash((uintptr_t)m, name, len);
		if (len > MANIFEST_MAX_NAME_BYTES || !text_is_utf8(name, len))
			return err_set(err, PAWL_ELIMIT, "metric '%.100s': the name must be UTF-8 of at most %u bytes",
			               name, MANIFEST_MAX_NAME_BYTES);
		for (size_t cursor = 0; table_next(&names, hash, &cursor, &same);) {
			if (strcmp(m->metrics[same].name, name) == 0)
				return err_set(err, PAWL_ECORRUPT, "metric '%.200s' appears twice", name);
		}
		if (table_reserve(&names, 1) < 0)
			return err_nomem(err, "manifest");
		table_add(&names, hash, i);
	}
	return 0;
}

int
manifest_check_summary(const struct manifest *m, struct pawl_error *err)
{
	if (m->run_id[0] != '\0' && !is_hex32(m->run_id)) /* a single checkpoint belongs to no run */
		return err_set(err, PAWL_ECORRUPT, "run: expected 32 lower-case hex digits");
	if (!is_hex32(m->token))
		return err_set(err, PAWL_ECORRUPT, "token: expected 32 lower-case hex digits");
	if (m->id == 0)
		return err_set(err, PAWL_ECORRUPT, "id: expected at least 1, found 0");
	if (m->id > INT64_MAX) /* the next one must be possible */
		return err_set(err, PAWL_ECORRUPT, "id: expected less than 2^63, found %llu",
		               (unsigned long long)m->id);
	if (m->world_size == 0)
		return err_set(err, PAWL_ECORRUPT, "world_size: expected at least 1, found 0");
	if (!__builtin_isfinite(m->blocked_seconds) || m->blocked_seconds < 0)
		return err_set(err, PAWL_ECORRUPT, "blocked_seconds: expected a finite number, at least 0");
	for (size_t i = 0; i < manifest_n_counters; i++) {
		double value = 0;
		if (manifest_counters[i].is_float)
			memcpy(&value, (const char *)&m->progress + manifest_counters[i].offset, sizeof(value));
		if (!__builtin_isfinite(value))
			return err_set(err, PAWL_ECORRUPT, "progress: %s is not finite", manifest_counters[i].name);
	}
	if (m->metadata && m->metadata->n_tensors > 0)
		return err_set(err, PAWL_ECORRUPT, "metadata: holds a tensor or a value longer than %d bytes (%.200s)",
		               STATE_LONG_BYTES, m->metadata->tensors[0].info.name);
	return check_metrics(m, err);
}

/* ------------------------------------------------------------------ files */

/* The decompressed size of a file. Its codec must be known, else no process could read it. */
static int
check_packing(const struct manifest_file *f, struct pawl_error *err)
{
	const uint64_t block = f->block_bytes, plain = f->plain_bytes;
	const struct codec *codec = pack_codec(f->name);

	if (!codec || strcmp(codec_name(codec), f->codec) != 0)
		return err_set(err, PAWL_ECORRUPT,
		               "%s: codec '%.16s' is not one of a pack, or the name does not end with it", f->name,
		               f->codec);
	if (plain > INT64_MAX || f->n_plain_blocks != plain / block + (plain % block != 0))
		return err_set(err, PAWL_ECORRUPT, "%s: %zu checksums for %llu plain bytes in blocks of %llu", f->name,
		               f->n_plain_blocks, (unsigned long long)plain, (unsigned long long)block);
	if (plain > MANIFEST_FREE_BYTES && (plain - MANIFEST_FREE_BYTES) / MANIFEST_MAX_RATIO > f->nbytes)
		return err_set(err, PAWL_ELIMIT, "%s: %llu bytes cannot be decompressed from %llu", f->name,
		               (unsigned long long)plain, (unsigned long long)f->nbytes);
	return 0;
}

static int
check_file(const struct manifest_file *f, struct pawl_error *err)
{
	uint64_t block = f->block_bytes;

	if (!text_is_component(f->name))
		return err_set(err, PAWL_ECORRUPT, "file name '%.200s' is not a safe name", f->name);
	if (block < MIN_BLOCK_BYTES || block > MAX_BLOCK_BYTES || (block & (block - 1)) != 0)
		return err_set(err, PAWL_ECORRUPT, "%s: block of %llu bytes, expected a power of two", f->name,
		               (unsigned long long)block);
	if (f->nbytes > INT64_MAX || f->n_blocks != f->nbytes / block + (f->nbytes % block != 0))
		return err_set(err, PAWL_ECORRUPT, "%s: %zu checksums for %llu bytes in blocks of %llu", f->name,
		               f->n_blocks, (unsigned long long)f->nbytes, (unsigned long long)block);
	return f->codec ? check_packing(f, err) : 0;
}

/* Names must stay different on file systems that ignore case, and must not be the manifest's
 * own. */
static int
check_file_names(const struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(table_clear) struct table names = {0};
	uintptr_t same;

	for (size_t i = 0; i < m->n_files; i++) {
		const char *name = m->files[i].name;
		char lower[129] = "";
		for (size_t k = 0; k < sizeof(lower) - 1 && name[k]; k++)
			lower[k] = name[k] >= 'A' && name[k] <= 'Z' ? (char)(name[k] - 'A' + 'a') : name[k];
		uint64_t hash = table_hash((uintptr_t)m, lower, strlen(lower));
		if (strcmp(lower, MANIFEST_NAME) == 0)
			return err_set(err, PAWL_ECORRUPT, "file name '%s' is that of the manifest", name);
		bool is_taken = false;
		for (size_t cursor = 0; !is_taken && table_next(&names, hash, &cursor, &same);)
			is_taken = strcasecmp(m->files[same].name, name) == 0;
		if (is_taken)
			return err_set(err, PAWL_ECORRUPT, "file name '%s' occurs twice (case does not count)", name);
		if (table_reserve(&names, 1) < 0)
			return err_nomem(err, "manifest");
		table_add(&names, hash, i);
	}
	return 0;
}

static int
check_files(const struct manifest *m, struct pawl_error *err)
{
	uint64_t bytes = 0, new_bytes = 0, plain_bytes = 0;
	bool fits = true, is_compressed = false;

	for (size_t i = 0; i < m->n_files; i++) {
		const struct manifest_file *f = &m->files[i];
		TRY(check_file(f, err));
		fits = fits && mem_add_ok(bytes, f->nbytes, &bytes);
		if (!f->reused)
			fits = fits && mem_add_ok(new_bytes, f->nbytes, &new_bytes);
		is_compressed = is_compressed || f->codec;
		fits = fits && mem_add_ok(plain_bytes, manifest_plain_bytes(f), &plain_bytes);
	}
	if (!fits || bytes != m->bytes || new_bytes != m->new_bytes)
		return err_set(err, PAWL_ECORRUPT, "bytes %llu and new_bytes %llu, but the files make %llu and %llu",
		               (unsigned long long)m->bytes, (unsigned long long)m->new_bytes,
		               (unsigned long long)bytes, (unsigned long long)new_bytes);
	if (m->plain_bytes != (is_compressed ? plain_bytes : 0))
		return err_set(err, PAWL_ECORRUPT, "plain_bytes %llu, but the files make %llu",
		               (unsigned long long)m->plain_bytes, (unsigned long long)plain_bytes);
	return check_file_names(m, err);
}

/* ----------------------------------------------------------------- tiling */

struct tiling {
	uint32_t dims[PAWL_MAX_DIMS];  /* the divided ones, outermost first */
	uint64_t steps[PAWL_MAX_DIMS]; /* one step in dims[k] is this much in a point's number */
	uint32_t n;
	uint64_t *points; /* number of a point << 1 | sign is negative */
	size_t n_points;
};

static void
put_corners(struct tiling *t, const uint64_t *offsets, const uint64_t *lengths, bool flip)
{
	for (uint64_t which = 0; which < (uint64_t)1 << t->n; which++) {
		uint64_t point = 0;
		for (uint32_t k = 0; k < t->n; k++) {
			uint64_t begin = offsets ? offsets[t->dims[k]] : 0;
			point += (begin + ((which >> k & 1) ? lengths[t->dims[k]] : 0)) * t->steps[k];
		}
		t->points[t->n_points++] = point << 1 | (((unsigned)__builtin_popcountll(which) & 1) ^ flip);
	}
}

static int
compare_u64(const void *pa, const void *pb)
{
	uint64_t a, b;

	memcpy(&a, pa, sizeof(a));
	memcpy(&b, pb, sizeof(b));
	return a < b ? -1 : a > b;
}

/* Finds the divided dimensions and numbers the points of their grid. false: more points than can be
 * numbered. */
static bool
tiling_init(struct tiling *t, const struct manifest_tensor *tensor)
{
	uint64_t n_points = 1;

	for (uint32_t d = 0; d < tensor->ndim; d++) {
		bool is_divided = false;
		for (size_t i = 0; i < tensor->n_pieces && !is_divided; i++)
			is_divided = tensor->pieces[i].lengths && tensor->pieces[i].lengths[d] != tensor->shape[d];
		if (!is_divided)
			continue;
		t->dims[t->n] = d;
		t->steps[t->n++] = n_points;
		if (!mem_mul_ok(n_points, tensor->shape[d] + 1, &n_points) || n_points > INT64_MAX)
			return false;
	}
	return true;
}

int
manifest_check_tiling(const struct manifest_tensor *tensor, uint64_t *corners_left, struct pawl_error *err)
{
	struct tiling t = {0};
	uint64_t n_corners;

	if (!tiling_init(&t, tensor) || t.n > 22 ||
	    !mem_mul_ok((uint64_t)tensor->n_pieces + 1, (uint64_t)1 << t.n, &n_corners) || n_corners > *corners_left)
		return err_set(err, PAWL_ELIMIT, "tensor '%.200s': divided into too many pieces in %u dimensions",
		               tensor->name, t.n);
	*corners_left -= n_corners;
	PAWL_FREE uint64_t *points = mem_zalloc((size_t)n_corners, sizeof(*points));
	if (!points)
		return err_nomem(err, "manifest");
	t.points = points;
	put_corners(&t, NULL, tensor->shape, true);
	for (size_t i = 0; i < tensor->n_pieces; i++) {
		const struct manifest_piece *p = &tensor->pieces[i];
		put_corners(&t, p->offsets, p->lengths ? p->lengths : tensor->shape, false);
	}
	qsort(points, t.n_points, sizeof(*points), compare_u64);
	int64_t balance = 0;
	for (size_t i = 0; i < t.n_points; i++) {
		balance += points[i] & 1 ? -1 : 1;
		if ((i + 1 == t.n_points || points[i + 1] >> 1 != points[i] >> 1) && balance != 0)
			return err_set(err, PAWL_ECORRUPT, "tensor '%.200s': its %zu pieces overlap or leave a hole",
			               tensor->name, tensor->n_pieces);
	}
	return 0;
}

/* ---------------------------------------------------------------- tensors */

/* Elements of less than a byte can be divided only into complete rows of full bytes. */
static bool
is_in_rows(const struct manifest_tensor *t, const struct manifest_piece *p)
{
	uint64_t row_bits = pawl_dtype_bits(t->dtype);

	if (row_bits % 8 == 0 || !p->lengths)
		return true;
	for (uint32_t d = 1; d < t->ndim; d++) {
		if (p->lengths[d] != t->shape[d])
			return false;
		row_bits = (row_bits * (t->shape[d] % 8)) % 8;
	}
	return t->ndim == 0 || p->lengths[0] == t->shape[0] || row_bits == 0;
}

static int
check_piece(const struct manifest *m, const struct manifest_tensor *t, const struct manifest_piece *p,
            struct pawl_error *err)
{
	uint64_t nbytes, end;

	if (p->file >= m->n_files)
		return err_set(err, PAWL_ECORRUPT, "tensor '%.200s': file %u of %llu", t->name, p->file,
		               (unsigned long long)m->n_files);
	if (!p->offsets != !p->lengths)
		return err_set(err, PAWL_ECORRUPT, "tensor '%.200s': offsets and lengths go together", t->name);
	for (uint32_t d = 0; p->lengths && d < t->ndim; d++) {
		if (p->offsets[d] > t->shape[d] || p->lengths[d] > t->shape[d] - p->offsets[d])
			return err_set(err, PAWL_ECORRUPT, "tensor '%.200s': a piece is outside it in dimension %u",
			               t->name, d);
	}
	TRY(safetensors_nbytes(t->dtype, t->ndim, p->lengths ? p->lengths : t->shape, &nbytes, err));
	if (!is_in_rows(t, p))
		return err_set(err, PAWL_ECORRUPT,
		               "tensor '%.200s': a piece that does not consist of rows of whole bytes", t->name);
	if (nbytes != p->nbytes || (nbytes == 0) != (t->nbytes == 0))
		return err_set(err, PAWL_ECORRUPT, "tensor '%.200s': a piece of %llu bytes has the shape of %llu",
		               t->name, (unsigned long long)p->nbytes, (unsigned long long)nbytes);
	const uint64_t file_bytes = manifest_plain_bytes(&m->files[p->file]);
	if (!mem_add_ok(p->begin, nbytes, &end) || end > file_bytes)
		return err_set(err, PAWL_ECORRUPT,
		               "tensor '%.200s': a piece at byte %llu of %llu bytes reaches beyond "
		               "the %llu bytes of %s",
		               t->name, (unsigned long long)p->begin, (unsigned long long)nbytes,
		               (unsigned long long)file_bytes, m->files[p->file].name);
	return 0;
}

static int
check_tensor(const struct manifest *m, const struct manifest_tensor *t, uint64_t *corners_left, struct pawl_error *err)
{
	uint64_t nbytes, total = 0;

	if (t->ndim > PAWL_MAX_DIMS || strlen(t->name) > MANIFEST_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT,
		               "tensor '%.200s': %u dimensions and %zu bytes of name, at most %d and %u are possible",
		               t->name, t->ndim, strlen(t->name), PAWL_MAX_DIMS, MANIFEST_MAX_NAME_BYTES);
	if (safetensors_nbytes(t->dtype, t->ndim, t->shape, &nbytes, err) < 0)
		return err_prefix(err, PAWL_ECORRUPT, "tensor '%.200s'", t->name);
	if (nbytes != t->nbytes)
		return err_set(err, PAWL_ECORRUPT, "tensor '%.200s': %llu bytes, but its shape makes %llu", t->name,
		               (unsigned long long)t->nbytes, (unsigned long long)nbytes);
	for (size_t i = 0; i < t->n_pieces; i++) {
		TRY(check_piece(m, t, &t->pieces[i], err));
		if (!mem_add_ok(total, t->pieces[i].nbytes, &total))
			total = UINT64_MAX;
	}
	if (m->part) /* the pieces of other ranks are not known here */
		return 0;
	if (total != nbytes)
		return err_set(
			err, PAWL_ECORRUPT,
			"tensor '%.200s': its %zu pieces have %llu of its %llu bytes: together they must fill it",
			t->name, t->n_pieces, (unsigned long long)total, (unsigned long long)nbytes);
	/* one piece inside the tensor and of its size is the tensor */
	return t->n_pieces > 1 && nbytes > 0 ? manifest_check_tiling(t, corners_left, err) : 0;
}

struct range {
	uint64_t begin, end;
	uint32_t file;
	const char *tensor;
};

static int
compare_ranges(const void *pa, const void *pb)
{
	const struct range *a = pa, *b = pb;

	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* No byte of a file belongs to two pieces. */
static int
check_overlaps(const struct manifest *m, struct pawl_error *err)
{
	size_t n = 0, n_pieces = 0;
	bool is_sorted = true;

	for (size_t i = 0; i < m->n_tensors; i++)
		n_pieces += m->tensors[i].n_pieces;
	PAWL_FREE struct range *ranges = mem_zalloc(n_pieces, sizeof(*ranges));
	if (!ranges)
		return err_nomem(err, "manifest");
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		for (size_t k = 0; k < t->n_pieces; k++) {
			const struct manifest_piece *p = &t->pieces[k];
			if (p->nbytes == 0)
				continue;
			ranges[n++] = (struct range){p->begin, p->begin + p->nbytes, p->file, t->name};
			is_sorted = is_sorted && (n < 2 || compare_ranges(&ranges[n - 2], &ranges[n - 1]) < 0);
		}
	}
	if (!is_sorted)
		qsort(ranges, n, sizeof(*ranges), compare_ranges);
	for (size_t i = 1; i < n; i++) {
		if (ranges[i].file == ranges[i - 1].file && ranges[i].begin < ranges[i - 1].end)
			return err_set(err, PAWL_ECORRUPT, "tensors '%.200s' and '%.200s' share bytes of %s",
			               ranges[i - 1].tensor, ranges[i].tensor, m->files[ranges[i].file].name);
	}
	return 0;
}

int
manifest_check_rows(const struct manifest *m, struct pawl_error *err)
{
	uint64_t corners_left = MANIFEST_MAX_CORNERS;

	if (m->n_files > MANIFEST_MAX_ROWS || m->n_tensors > MANIFEST_MAX_ROWS)
		return err_set(err, PAWL_ELIMIT, "%llu files and %llu tensors, at most %u each are possible",
		               (unsigned long long)m->n_files, (unsigned long long)m->n_tensors, MANIFEST_MAX_ROWS);
	TRY(check_files(m, err));
	for (size_t i = 0; i < m->n_tensors; i++)
		TRY(check_tensor(m, &m->tensors[i], &corners_left, err));
	return check_overlaps(m, err);
}
