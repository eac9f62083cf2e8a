/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_pack: see compressed_pack.h. The first read reads the table of frames, or
 * decompresses the complete file if it has none. Promises P1, P17: the output has exactly the
 * length in the manifest, and one byte more is an error.
 */
#include "read/compressed_pack.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "read/temp_file.h"
#include "state/pack_name.h"

#define NO_COPY UINT32_MAX

/* One copy of the file, or any copy that the store chooses. */
struct view {
	struct store *store;
	struct store_reader *reader;
	unsigned copy; /* NO_COPY = any */
	struct source compressed;
	struct temp_file temp;
	struct codec_temp put; /* the same, in the form the codecs take */
	struct codec_source *source;
};

struct compressed_pack {
	uint64_t nbytes, plain_bytes;
	const char *name;
	struct view view;
	pthread_mutex_t lock; /* guards below */
	bool is_open;
	uint64_t bad_copies;     /* bit k: copy k is too damaged to be opened, and is not tried again */
	struct pawl_error first; /* the same for the copy that the store chooses; code 0 = not damaged */
};

static int
read_view(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct view *v = arg;

	return v->copy == NO_COPY ? store_read(v->store, v->reader, offset, dst, n, err)
	                          : store_read_copy(v->store, v->reader, v->copy, offset, dst, n, err);
}

static void
clear_view(struct view *v)
{
	codec_source_close(v->source);
	v->source = NULL;
	temp_file_clear(&v->temp);
}

/* Our own files fit every limit. One that exceeds a limit is damaged, unless the space for
 * decompression ran out. */
static int
damage_of(const struct compressed_pack *p, const struct view *v, int code, struct pawl_error *err)
{
	const uint64_t room = temp_file_room(&v->temp);

	if (code == PAWL_ELIMIT && room && room <= p->plain_bytes)
		code = PAWL_ENOSPACE;
	else if (code == PAWL_ELIMIT || code == PAWL_EUNSUPPORTED)
		code = PAWL_ECORRUPT;
	if (err)
		err->code = code;
	return code;
}

/* v->store, reader and copy are set. */
static int
open_view(const struct compressed_pack *p, struct view *v, struct pawl_error *err)
{
	const bool is_known = p->plain_bytes != UINT64_MAX;
	struct codec_limits limits = {.max_bytes = is_known ? p->plain_bytes + 1 : 0,
	                              .max_ratio = is_known ? UINT32_MAX : 0};

	v->compressed = (struct source){.what = p->name, .nbytes = p->nbytes, .read = read_view, .arg = v};
	temp_file_init(&v->temp, p->name);
	v->put = (struct codec_temp){.put = temp_file_put, .read = temp_file_read, .arg = &v->temp};
	limits.temp = &v->put;
	limits.max_temp_bytes = temp_file_room(&v->temp);
	const int rc = codec_source_open(pack_codec(p->name), &v->compressed, &limits, &v->source, err);
	if (rc < 0)
		return is_known ? damage_of(p, v, rc, err) : rc;
	const uint64_t found = codec_source_plain(v->source)->nbytes;
	if (!is_known || found == p->plain_bytes)
		return 0;
	clear_view(v);
	return err_set(err, PAWL_ECORRUPT, "%s: expected %" PRIu64 " bytes in it, found %" PRIu64, p->name,
	               p->plain_bytes, found);
}

static int
open_once(struct compressed_pack *p, struct pawl_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	if (p->first.code < 0) {
		rc = err_give(err, p->first.code, &p->first);
	} else if (!p->is_open) {
		struct pawl_error why = {0};

		rc = open_view(p, &p->view, &why);
		if (rc < 0)
			clear_view(&p->view);
		if (rc == PAWL_ECORRUPT) {
			p->first = why;
			p->first.code = rc;
		}
		p->is_open = rc == 0;
		rc = err_give(err, rc, &why);
	}
	pthread_mutex_unlock(&p->lock);
	return rc;
}

static bool
is_bad(struct compressed_pack *p, unsigned copy)
{
	pthread_mutex_lock(&p->lock);
	const bool bad = copy < 64 && (p->bad_copies >> copy & 1);
	pthread_mutex_unlock(&p->lock);
	return bad;
}

static void
note_bad(struct compressed_pack *p, unsigned copy)
{
	pthread_mutex_lock(&p->lock);
	if (copy < 64)
		p->bad_copies |= (uint64_t)1 << copy;
	pthread_mutex_unlock(&p->lock);
}

static int
read_here(struct compressed_pack *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	TRY(open_once(p, err));
	const int rc = source_read(codec_source_plain(p->view.source), offset, dst, n, err);
	return rc < 0 && p->plain_bytes != UINT64_MAX ? damage_of(p, &p->view, rc, err) : rc;
}

int
compressed_pack_read_copy(struct compressed_pack *p, unsigned copy, uint64_t offset, void *dst, size_t n,
                          struct pawl_error *err)
{
	struct view v = {.store = p->view.store, .reader = p->view.reader, .copy = copy};

	if (is_bad(p, copy))
		return err_set(err, PAWL_ECORRUPT, "%s: copy %u cannot be decompressed", p->name, copy);
	int rc = open_view(p, &v, err);
	if (rc == PAWL_ECORRUPT)
		note_bad(p, copy);
	if (rc == 0)
		rc = source_read(codec_source_plain(v.source), offset, dst, n, err);
	clear_view(&v);
	return rc;
}

int
compressed_pack_read(struct compressed_pack *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const int rc = read_here(p, offset, dst, n, err);

	if ((rc != PAWL_ECORRUPT && rc != PAWL_EIO) || p->view.copy != NO_COPY)
		return rc;
	for (unsigned copy = 0;; copy++) {
		const int other = compressed_pack_read_copy(p, copy, offset, dst, n, NULL);

		if (other == 0)
			return 0;
		if (other == PAWL_ENOTFOUND)
			return rc;
	}
}

int
compressed_pack_size(struct compressed_pack *p, uint64_t *ret, struct pawl_error *err)
{
	TRY(open_once(p, err));
	*ret = codec_source_plain(p->view.source)->nbytes;
	return 0;
}

void
compressed_pack_close(struct compressed_pack *p)
{
	if (!p)
		return;
	clear_view(&p->view);
	pthread_mutex_destroy(&p->lock);
	mem_free(p);
}

int
compressed_pack_open(struct store *store, struct store_reader *reader, const char *name, uint64_t nbytes,
                     uint64_t plain_bytes, unsigned only_copy, struct compressed_pack **ret, struct pawl_error *err)
{
	if (nbytes == 0) /* no read would happen, so none could report that there are no more copies */
		return err_set(err, PAWL_ECORRUPT, "%s: expected a compressed file, found 0 bytes", name);
	struct compressed_pack *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_nomem(err, name);
	p->nbytes = nbytes;
	p->plain_bytes = plain_bytes;
	p->name = name;
	temp_file_init(&p->view.temp, name);
	p->view.store = store;
	p->view.reader = reader;
	p->view.copy = only_copy ? only_copy - 1 : NO_COPY;
	pthread_mutex_init(&p->lock, NULL);
	*ret = p;
	return 0;
}

/* ------------------------------------------------------------------- headers */

struct open_pack {
	struct store *store;
	struct store_reader *reader;
	struct compressed_pack *compressed; /* NULL = not compressed */
};

static void
close_pack(struct open_pack *p)
{
	compressed_pack_close(p->compressed);
	store_close_reader(p->store, p->reader);
}

static int
read_pack(const struct open_pack *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	return p->compressed ? compressed_pack_read(p->compressed, offset, dst, n, err)
	                     : store_read(p->store, p->reader, offset, dst, n, err);
}

/* A store may give the plain bytes of a compressed pack. The upper half of a header's length is
 * always 0. */
static bool
is_compressed(const char *key, const unsigned char first8[8])
{
	uint32_t upper;

	memcpy(&upper, first8 + 4, sizeof(upper));
	return pack_codec(key) && (upper || codec_of_bytes(first8, 8));
}

int
compressed_pack_read_header(struct store *store, const char *key, struct bump *memory, struct st_table *ret,
                            uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(close_pack) struct open_pack p = {.store = store};
	unsigned char first8[8];
	uint64_t nbytes, json_len;

	TRY(store_open_reader(store, key, &p.reader, &nbytes, err));
	if (nbytes < sizeof(first8))
		return err_set(err, PAWL_ECORRUPT, "%s: expected a header, found %llu bytes", key,
		               (unsigned long long)nbytes);
	TRY(store_read(store, p.reader, 0, first8, sizeof(first8), err));
	if (is_compressed(key, first8)) {
		TRY(compressed_pack_open(store, p.reader, key, nbytes, UINT64_MAX, 0, &p.compressed, err));
		TRY(compressed_pack_size(p.compressed, &nbytes, err));
		TRY(read_pack(&p, 0, first8, sizeof(first8), err));
	}
	TRY(safetensors_header_len(key, first8, nbytes, &json_len, err));
	PAWL_FREE char *json = mem_alloc((size_t)json_len);
	if (!json)
		return err_nomem(err, key);
	TRY(read_pack(&p, sizeof(first8), json, (size_t)json_len, err));
	TRY(safetensors_decode(key, json, (size_t)json_len, nbytes, memory, ret, err));
	*ret_nbytes = nbytes;
	return 0;
}
