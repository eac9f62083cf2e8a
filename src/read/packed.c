/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed: see packed.h. Called by fetch.c and pack.c; calls the codecs, spool.c and the store. The table of frames is
 * read, or the whole unpacked (bz2, lzma), when the first bytes are asked for. Promises P1, P17; T7: what comes out is
 * exactly what the manifest says, one byte more is an error.
 */
#include "read/packed.h"

#include <inttypes.h>
#include <pthread.h>

#include "base/err.h"
#include "read/spool.h"
#include "state/pack_name.h"

#define NO_COPY UINT32_MAX

/* One copy of the file, or whichever the store gives. */
struct view {
	struct store *store;
	struct store_reader *reader;
	unsigned copy; /* NO_COPY = whichever */
	struct source packed;
	struct spool spool;
	struct codec_spool put; /* the same, as the codecs know it */
	struct codec_source *source;
};

struct packed {
	uint64_t nbytes, plain_bytes;
	const char *name;
	struct view view;
	pthread_mutex_t lock; /* guards below */
	bool is_open;
	uint64_t bad_copies;     /* bit k: copy k is damaged so that it cannot be opened; nor is it tried again */
	struct pawl_error first; /* the same of whichever the store gives; code 0 = not so */
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
	spool_clear(&v->spool);
}

/* What has been written by us fits every limit: beyond one it is damaged, unless there is no room to unpack it. */
static int
damage(const struct packed *p, const struct view *v, int code, struct pawl_error *err)
{
	const uint64_t room = spool_room(&v->spool);

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
open_view(const struct packed *p, struct view *v, struct pawl_error *err)
{
	const bool is_known = p->plain_bytes != UINT64_MAX;
	struct codec_limits limits = {.max_bytes = is_known ? p->plain_bytes + 1 : 0,
	                              .max_ratio = is_known ? UINT32_MAX : 0};

	v->packed = (struct source){.what = p->name, .nbytes = p->nbytes, .read = read_view, .arg = v};
	spool_init(&v->spool, p->name);
	v->put = (struct codec_spool){.put = spool_put, .read = spool_read, .arg = &v->spool};
	limits.spool = &v->put;
	limits.max_spooled_bytes = spool_room(&v->spool);
	const int rc = codec_source_open(pack_codec(p->name), &v->packed, &limits, &v->source, err);
	if (rc < 0)
		return is_known ? damage(p, v, rc, err) : rc;
	const uint64_t found = codec_source_plain(v->source)->nbytes;
	if (!is_known || found == p->plain_bytes)
		return 0;
	clear_view(v);
	return err_set(err, PAWL_ECORRUPT, "%s: expected %" PRIu64 " bytes in it, found %" PRIu64, p->name,
	               p->plain_bytes, found);
}

static int
open_once(struct packed *p, struct pawl_error *err)
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
is_bad(struct packed *p, unsigned copy)
{
	pthread_mutex_lock(&p->lock);
	const bool bad = copy < 64 && (p->bad_copies >> copy & 1);
	pthread_mutex_unlock(&p->lock);
	return bad;
}

static void
note_bad(struct packed *p, unsigned copy)
{
	pthread_mutex_lock(&p->lock);
	if (copy < 64)
		p->bad_copies |= (uint64_t)1 << copy;
	pthread_mutex_unlock(&p->lock);
}

static int
read_here(struct packed *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	TRY(open_once(p, err));
	const int rc = source_read(codec_source_plain(p->view.source), offset, dst, n, err);
	return rc < 0 && p->plain_bytes != UINT64_MAX ? damage(p, &p->view, rc, err) : rc;
}

int
packed_read_copy(struct packed *p, unsigned copy, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct view v = {.store = p->view.store, .reader = p->view.reader, .copy = copy};

	if (is_bad(p, copy))
		return err_set(err, PAWL_ECORRUPT, "%s: copy %u cannot be unpacked", p->name, copy);
	int rc = open_view(p, &v, err);
	if (rc == PAWL_ECORRUPT)
		note_bad(p, copy);
	if (rc == 0)
		rc = source_read(codec_source_plain(v.source), offset, dst, n, err);
	clear_view(&v);
	return rc;
}

int
packed_read(struct packed *p, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const int rc = read_here(p, offset, dst, n, err);

	if ((rc != PAWL_ECORRUPT && rc != PAWL_EIO) || p->view.copy != NO_COPY)
		return rc;
	for (unsigned copy = 0;; copy++) {
		const int other = packed_read_copy(p, copy, offset, dst, n, NULL);

		if (other == 0)
			return 0;
		if (other == PAWL_ENOTFOUND)
			return rc;
	}
}

int
packed_size(struct packed *p, uint64_t *ret, struct pawl_error *err)
{
	TRY(open_once(p, err));
	*ret = codec_source_plain(p->view.source)->nbytes;
	return 0;
}

void
packed_close(struct packed *p)
{
	if (!p)
		return;
	clear_view(&p->view);
	pthread_mutex_destroy(&p->lock);
	mem_free(p);
}

int
packed_open(struct store *store, struct store_reader *reader, const char *name, uint64_t nbytes, uint64_t plain_bytes,
            unsigned only_copy, struct packed **ret, struct pawl_error *err)
{
	if (nbytes == 0) /* of which nothing would be read, so that no read would say that there are no more copies */
		return err_set(err, PAWL_ECORRUPT, "%s: expected a compressed file, found 0 bytes", name);
	struct packed *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", name);
	p->nbytes = nbytes;
	p->plain_bytes = plain_bytes;
	p->name = name;
	spool_init(&p->view.spool, name);
	p->view.store = store;
	p->view.reader = reader;
	p->view.copy = only_copy ? only_copy - 1 : NO_COPY;
	pthread_mutex_init(&p->lock, NULL);
	*ret = p;
	return 0;
}
