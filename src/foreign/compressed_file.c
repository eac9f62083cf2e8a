/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_file: see compressed_file.h. At most nine tenths of the free space is used to
 * decompress into the temporary file. Only one member of a tar is read, in place.
 */
#include "foreign/compressed_file.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "format/archive/tar.h"
#include "format/codec/codec.h"
#include "store/layers/plain/store_plain.h"

#define MAX_MEMBERS 1000000u

/* ---- the file as it is stored ---- */

static int
read_compressed(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct compressed_file *f = arg;

	return store_read(f->store, f->reader, offset, dst, n, err);
}

int
compressed_file_open(struct store *store, const char *key, struct compressed_file *f, struct pawl_error *err)
{
	temp_file_init(&f->temp, NULL);
	f->store = store;
	f->name = mem_strdup(key);
	if (!f->name)
		return err_nomem(err, key);
	f->temp.what = f->name;
	f->compressed = (struct source){.what = f->name, .read = read_compressed, .arg = f};
	return store_open_reader(store, key, &f->reader, &f->compressed.nbytes, err);
}

void
compressed_file_close(struct compressed_file *f)
{
	if (f->reader)
		store_close_reader(f->store, f->reader);
	temp_file_clear(&f->temp);
	mem_free(f->name);
}

/* ---- decompressed by a codec, and for a tar its member ---- */

struct opened {
	struct compressed_file file;
	struct codec_source *source; /* NULL = not compressed */
	struct codec_temp put;       /* the temporary file, as the codecs see it */
	const struct source *plain;
	uint64_t begin, nbytes; /* the visible part of plain */
};

static void
close_opened(void *ptr)
{
	struct opened *o = ptr;

	if (!o)
		return;
	codec_source_close(o->source);
	compressed_file_close(&o->file);
	mem_free(o);
}

PAWL_DEFINE_CLEAN(struct opened, close_opened);

static int
open_source(struct opened *o, const struct codec *codec, struct pawl_error *err)
{
	struct codec_limits limits = {0};

	o->plain = &o->file.compressed;
	if (codec) {
		o->put = (struct codec_temp){.put = temp_file_put, .read = temp_file_read, .arg = &o->file.temp};
		limits.temp = &o->put;
		limits.max_temp_bytes = temp_file_room(&o->file.temp);
		TRY(codec_source_open(codec, &o->file.compressed, &limits, &o->source, err));
		o->plain = codec_source_plain(o->source);
	}
	o->nbytes = o->plain->nbytes;
	return 0;
}

struct tar_place {
	const struct source *from;
	uint64_t at;
};

static int
get_next(void *arg, void *dst, size_t n, struct pawl_error *err)
{
	struct tar_place *place = arg;

	TRY(source_read(place->from, place->at, dst, n, err));
	place->at += n;
	return 0;
}

/* Reads the complete archive: of two members of that name the last one counts, and a truncated
 * archive is damaged. */
static int
find_member(struct opened *o, struct pawl_error *err)
{
	struct tar_place place = {.from = o->plain};
	PAWL_FREE struct tar_member *member = mem_alloc(sizeof(*member));
	bool found = false;

	if (!member)
		return err_nomem(err, o->file.name);
	for (size_t i = 0; i < MAX_MEMBERS; i++) {
		uint64_t end, next;
		const int rc = tar_next(get_next, &place, o->file.name, member, err);

		TRY(rc);
		if (rc == 0 && found)
			return 0;
		if (rc == 0)
			return err_set(err, PAWL_ENOTFOUND,
			               "%s: expected " COMPRESSED_FILE_TAR_MEMBER
			               " in it, as Composer writes it, found none; "
			               "unpack other archives with tar",
			               o->file.name);
		if (!mem_add_ok(place.at, member->nbytes, &end) || !mem_add_ok(end, TAR_BLOCK - 1, &next) ||
		    end > o->plain->nbytes)
			return err_set(err, PAWL_ECORRUPT, "%s: member '%.200s' is not in it", o->file.name,
			               member->name);
		if (!member->is_folder && strcmp(member->name, COMPRESSED_FILE_TAR_MEMBER) == 0) {
			if (found)
				return err_set(err, PAWL_ECORRUPT,
				               "%s: expected one " COMPRESSED_FILE_TAR_MEMBER ", found two",
				               o->file.name);
			found = true;
			o->begin = place.at;
			o->nbytes = member->nbytes;
		}
		place.at = next - next % TAR_BLOCK;
	}
	return err_set(err, PAWL_ELIMIT, "%s: more than %u members", o->file.name, MAX_MEMBERS);
}

static int
open_decompressed(struct store *inner, const char *key, void **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(close_opened_clean) struct opened *o = mem_zalloc(1, sizeof(*o));
	const struct codec *codec;
	const bool is_tar = tar_of_name(key, &codec);

	if (!o)
		return err_nomem(err, key);
	TRY(compressed_file_open(inner, key, &o->file, err));
	TRY(open_source(o, is_tar ? codec : codec_of_name(key), err));
	if (is_tar)
		TRY(find_member(o, err));
	*ret_nbytes = o->nbytes;
	*ret = steal(&o);
	return 0;
}

static int
read_decompressed(void *ptr, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct opened *o = ptr;

	if (n > o->nbytes || offset > o->nbytes - n)
		return err_set(err, PAWL_ECORRUPT, "%s: expected %zu bytes at %llu, but there are %llu in all",
		               o->file.name, n, (unsigned long long)offset, (unsigned long long)o->nbytes);
	return source_read(o->plain, o->begin + offset, dst, n, err);
}

int
compressed_file_wrap(struct store **store, const char *key, struct pawl_error *err)
{
	static const struct store_plain_view view = {open_decompressed, read_decompressed, close_opened};
	const struct codec *codec;
	struct store_entry entry;
	struct store *wrapped;

	if (store_stat(*store, key, &entry, NULL) < 0 || entry.is_folder || entry.is_link)
		return 0;
	if (!codec_of_name(key) && !tar_of_name(key, &codec))
		return compressed_file_npz_wrap(store, key, err);
	TRY(store_plain_wrap(*store, key, &view, &wrapped, err));
	*store = wrapped;
	return 0;
}

size_t
compressed_file_name_len(const char *name)
{
	const struct codec *codec = codec_of_name(name);

	return codec ? codec_stem_len(codec, name) : strlen(name);
}
