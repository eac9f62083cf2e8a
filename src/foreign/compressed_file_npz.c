/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_file_npz: see compressed_file.h. An archive with compressed members is copied into the
 * temporary file with the same members stored. There arrays can be read at any offset, with the
 * checksums of the original archive.
 *
 *   table -> are its sizes within the limits? -> each member: decompress, check size and checksum
 *         -> table
 *
 * Limits are checked before anything is decompressed. Above 64 MiB, all members together have at
 * most 200 times the size of the file, and nine tenths of the free space there. Promises P1, P16,
 * P17.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/crc.h"
#include "base/err.h"
#include "base/mem.h"
#include "foreign/compressed_file.h"
#include "foreign/foreign_formats.h"
#include "format/archive/zip.h"
#include "format/archive/zip_write.h"
#include "format/codec/codec.h"
#include "store/layers/plain/store_plain.h"

#define MAX_MEMORY ((size_t)1 << 30) /* of the table */
#define MAX_RATIO 200u
#define FREE_BYTES ((uint64_t)64 << 20) /* the ratio is not limited up to here */
#define STEP_BYTES ((size_t)1 << 20)
#define SNIFF_BYTES 256u

static void
close_opened(void *ptr)
{
	struct compressed_file *o = ptr;

	if (!o)
		return;
	compressed_file_close(o);
	mem_free(o);
}

PAWL_DEFINE_CLEAN(struct compressed_file, close_opened);

static int
open_compressed(struct store *inner, const char *key, struct compressed_file **ret, struct pawl_error *err)
{
	PAWL_CLEAN(close_opened_clean) struct compressed_file *o = mem_zalloc(1, sizeof(*o));

	if (!o)
		return err_nomem(err, key);
	TRY(compressed_file_open(inner, key, o, err));
	*ret = steal(&o);
	return 0;
}

/* ---- from the archive to the temporary file ---- */

static int
check_sizes(const struct compressed_file *o, const struct zip *zip, struct pawl_error *err)
{
	const uint64_t room = temp_file_room(&o->temp);
	uint64_t total = 0, most;

	for (size_t i = 0; i < zip->n; i++)
		if (!mem_add_ok(total, zip->members[i].plain_nbytes, &total))
			return err_set(err, PAWL_ECORRUPT,
			               "%s: its members say that they decompress to more than 2^64 bytes", o->name);
	if (total > FREE_BYTES && mem_mul_ok(o->compressed.nbytes, MAX_RATIO, &most) && total > most)
		return err_set(err, PAWL_ELIMIT,
		               "%s: decompresses to %" PRIu64 " bytes, more than %u times its %" PRIu64
		               ", like a decompression bomb; if it is not one, save it with numpy.savez",
		               o->name, total, MAX_RATIO, o->compressed.nbytes);
	if (room > 0 && total > room)
		return err_set(err, PAWL_ENOSPACE,
		               "%s: decompresses to %" PRIu64 " bytes, but %s (set by TMPDIR) has room for %" PRIu64,
		               o->name, total, o->temp.folder, room);
	return 0;
}

static int
wrong_member(const struct compressed_file *o, const struct zip_member *m, const char *why, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT, "%s: member '%.200s': %s", o->name, m->name, why);
}

/* The bytes of a member as a source. */
struct member_source {
	const struct compressed_file *o;
	uint64_t begin;
	char what[300];
};

static int
read_member(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct member_source *m = arg;

	return source_read(&m->o->compressed, m->begin + offset, dst, n, err);
}

static int
copy_compressed(struct compressed_file *o, const struct zip_member *m, char *step, uint32_t *ret_parts,
                struct pawl_error *err)
{
	struct member_source from = {.o = o, .begin = m->begin};
	const struct source source = {.what = from.what, .nbytes = m->nbytes, .read = read_member, .arg = &from};
	const struct codec_limits limits = {.max_bytes = UINT64_MAX, .max_ratio = UINT32_MAX};
	PAWL_CLEAN(codec_reader_free_clean) struct codec_reader *reader = NULL;
	uint64_t left = m->plain_nbytes;
	size_t n;

	snprintf(from.what, sizeof(from.what), "%.90s: member '%.190s'", o->name, m->name);
	TRY(codec_reader_new(codec_of_zip(), &source, &limits, &reader, err));
	do {
		TRY(codec_reader_get(reader, step, STEP_BYTES, &n, err));
		if (n > left)
			return wrong_member(o, m, "decompresses to more than the directory says", err);
		left -= n;
		*ret_parts ^= crc32_part(step, n, left);
		TRY(temp_file_put(&o->temp, step, n, err));
	} while (n == STEP_BYTES);
	return left == 0 ? 0 : wrong_member(o, m, "decompresses to less than the directory says", err);
}

static int
copy_stored(struct compressed_file *o, const struct zip_member *m, char *step, uint32_t *ret_parts,
            struct pawl_error *err)
{
	for (uint64_t at = 0; at < m->nbytes;) {
		const size_t n = m->nbytes - at < STEP_BYTES ? (size_t)(m->nbytes - at) : STEP_BYTES;

		TRY(source_read(&o->compressed, m->begin + at, step, n, err));
		at += n;
		*ret_parts ^= crc32_part(step, n, m->nbytes - at);
		TRY(temp_file_put(&o->temp, step, n, err));
	}
	return 0;
}

static int
put_bytes(struct compressed_file *o, struct buf *bytes, struct pawl_error *err)
{
	TRY(buf_check(bytes, o->name, err));
	TRY(temp_file_put(&o->temp, bytes->ptr, bytes->len, err));
	bytes->len = 0;
	return 0;
}

static int
copy_member(struct compressed_file *o, const struct zip_member *m, char *step, struct zip_entry *entry,
            struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf bytes = {0};
	uint32_t parts = 0;

	*entry = (struct zip_entry){.name = m->name, .nbytes = m->plain_nbytes, .crc = m->plain_crc};
	zip_begin_member(entry, o->temp.nbytes, &bytes);
	TRY(put_bytes(o, &bytes, err));
	TRY(m->compressed ? copy_compressed(o, m, step, &parts, err) : copy_stored(o, m, step, &parts, err));
	if (m->plain_nbytes > 0 && crc32_whole(parts, m->plain_nbytes) != m->plain_crc)
		return wrong_member(o, m, "it is not what was written: its CRC differs", err);
	if (m->plain_nbytes == 0)
		return 0;
	zip_end_member(entry, &bytes);
	return put_bytes(o, &bytes, err);
}

static int
copy_archive(struct compressed_file *o, const struct zip *zip, struct bump *memory, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf bytes = {0};
	PAWL_FREE char *step = mem_alloc(STEP_BYTES);
	struct zip_entry *entries = bump_array(memory, zip->n, sizeof(*entries));
	size_t *sums = bump_array(memory, zip->n, sizeof(*sums));

	if (!step || !entries || !sums)
		return err_nomem(err, o->name);
	for (size_t i = 0; i < zip->n; i++)
		TRY(copy_member(o, &zip->members[i], step, &entries[i], err));
	zip_put_directory(entries, zip->n, o->temp.nbytes, &bytes, sums);
	return put_bytes(o, &bytes, err);
}

/* ---- the view ---- */

static int
open_decompressed(struct store *inner, const char *key, void **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {.limit_bytes = MAX_MEMORY};
	PAWL_CLEAN(close_opened_clean) struct compressed_file *o = NULL;
	struct zip zip;

	TRY(open_compressed(inner, key, &o, err));
	TRY(zip_open_flat(&o->compressed, &memory, &zip, err));
	TRY(check_sizes(o, &zip, err));
	TRY(copy_archive(o, &zip, &memory, err));
	*ret_nbytes = o->temp.nbytes;
	*ret = steal(&o);
	return 0;
}

static int
read_decompressed(void *ptr, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct compressed_file *o = ptr;

	return temp_file_read(&o->temp, offset, dst, n, err);
}

/* Leaves an archive that cannot be read alone; its reader reports why. */
static bool
has_compressed(struct store *store, const char *key)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {.limit_bytes = MAX_MEMORY};
	PAWL_CLEAN(close_opened_clean) struct compressed_file *o = NULL;
	unsigned char first[SNIFF_BYTES];
	struct zip zip;

	if (open_compressed(store, key, &o, NULL) < 0)
		return false;
	const size_t n = o->compressed.nbytes < SNIFF_BYTES ? (size_t)o->compressed.nbytes : SNIFF_BYTES;
	if (source_read(&o->compressed, 0, first, n, NULL) < 0 || !foreign_npz.looks(first, n, o->compressed.nbytes) ||
	    zip_open_flat(&o->compressed, &memory, &zip, NULL) < 0)
		return false;
	for (size_t i = 0; i < zip.n; i++)
		if (zip.members[i].compressed)
			return true;
	return false;
}

int
compressed_file_npz_wrap(struct store **store, const char *key, struct pawl_error *err)
{
	static const struct store_plain_view view = {open_decompressed, read_decompressed, close_opened};
	struct store *wrapped;

	if (!has_compressed(*store, key))
		return 0;
	TRY(store_plain_wrap(*store, key, &view, &wrapped, err));
	*store = wrapped;
	return 0;
}
