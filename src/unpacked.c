/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpacked: see unpacked.h. Called by run.c and foreign.c; calls the codecs and the store. T7: what is unpacked into
 * the spool is at most nine tenths of what is free there.
 */
#include "unpacked.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "format/codec.h"
#include "spool.h"
#include "store/plain.h"

struct opened {
	struct store *store;
	struct store_reader *reader;
	char *name;
	struct source packed;
	struct codec_source *source;
	struct spool spool;
	struct codec_spool put; /* the same, as the codecs know it */
};

static int
read_packed(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct opened *o = arg;

	return store_read(o->store, o->reader, offset, dst, n, err);
}

static void
close_opened(void *ptr)
{
	struct opened *o = ptr;

	if (!o)
		return;
	codec_source_close(o->source);
	if (o->reader)
		store_close_reader(o->store, o->reader);
	spool_clear(&o->spool);
	mem_free(o->name);
	mem_free(o);
}

static void
clean_opened(struct opened **o)
{
	close_opened(*o);
}

static int
open_unpacked(struct store *inner, const char *key, void **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(clean_opened) struct opened *o = mem_zalloc(1, sizeof(*o));
	struct codec_limits limits = {0};

	if (!o)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	spool_init(&o->spool, NULL);
	o->store = inner;
	o->name = mem_strdup(key);
	if (!o->name)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", key);
	o->packed = (struct source){.what = o->name, .read = read_packed, .arg = o};
	TRY(store_open_reader(inner, key, &o->reader, &o->packed.nbytes, err));
	o->spool.what = o->name;
	o->put = (struct codec_spool){.put = spool_put, .read = spool_read, .arg = &o->spool};
	limits.spool = &o->put;
	limits.max_spooled_bytes = spool_room(&o->spool);
	TRY(codec_source_open(codec_of_name(key), &o->packed, &limits, &o->source, err));
	*ret_nbytes = codec_source_plain(o->source)->nbytes;
	*ret = steal(&o);
	return 0;
}

static int
read_unpacked(void *ptr, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct opened *o = ptr;

	return source_read(codec_source_plain(o->source), offset, dst, n, err);
}

int
unpacked_wrap(struct store **store, const char *key, struct pawl_error *err)
{
	static const struct store_plain_view view = {open_unpacked, read_unpacked, close_opened};
	struct store_entry entry;
	struct store *wrapped;

	if (store_stat(*store, key, &entry, NULL) < 0 || entry.is_folder || entry.is_link)
		return 0;
	if (!codec_of_name(key))
		return unpacked_npz_wrap(store, key, err);
	TRY(store_plain_wrap(*store, key, &view, &wrapped, err));
	*store = wrapped;
	return 0;
}

size_t
unpacked_name_len(const char *name)
{
	const struct codec *codec = codec_of_name(name);

	return codec ? codec_stem_len(codec, name) : strlen(name);
}
