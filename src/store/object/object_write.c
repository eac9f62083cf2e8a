/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_write: objects that are written in pieces, as uploads in parts. See object.h.
 *
 * An object of more than one part begins an upload. Each part is sent when its last byte was
 * written. A piece that is a complete part is sent at once, straight from the caller's memory.
 * Other pieces are gathered in a buffer. An object of one part is gathered and put in one request.
 * Nothing is visible before seal (P2).
 *
 *   create -> [upload begun] -> write ... -> seal: completed -> finish: freed
 *                                  abort: the upload is dropped
 *
 * Each object carries a random token in its metadata. If a seal is repeated after an unknown
 * outcome, the token tells its own object from that of another writer (P15).
 */
#include "store/object/object.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"

struct part {
	char *gathered; /* NULL until its first piece */
	uint64_t n_gathered;
	uint64_t
		*begins; /* of the pieces in it: one that comes again, since its write was repeated, is there already */
	size_t n_begins;
	bool sending, sent;
	struct object_part_sum sum;
};

struct object_file {
	struct store_file base;
	uint64_t part_bytes;
	size_t n_parts;
	char *upload; /* NULL: the object is put in one request */
	char token[33];
	bool sealed;
	pthread_mutex_t lock; /* guards the fields of the parts except sum, which belongs to the sender */
	struct part parts[];
};

/* ------------------------------------------------------------------- writing */

static void
drop_gathered(struct part *p)
{
	mem_free(steal(&p->gathered));
	mem_free(steal(&p->begins));
}

static void
free_file(struct object_file *f)
{
	for (size_t i = 0; i < f->n_parts; i++)
		drop_gathered(&f->parts[i]);
	pthread_mutex_destroy(&f->lock);
	mem_free(f->upload);
	mem_free(f->base.key);
	mem_free(f);
}

/* The usual part size, or as much more as keeps the number of parts within the limit. */
static uint64_t
part_bytes_for(uint64_t nbytes, uint32_t max_parts)
{
	const uint64_t mib = UINT64_C(1) << 20;
	uint64_t least = (nbytes + max_parts - 1) / max_parts;
	return least <= OBJECT_PART_BYTES ? OBJECT_PART_BYTES : (least + mib - 1) / mib * mib;
}

static int
check_absent(struct object_store *s, const char *key, struct pawl_error *err)
{
	struct object_head head;
	struct pawl_error why = {0};
	int rc = object_get_head(s, key, "create", &head, &why);
	if (rc == 0)
		return err_set(err, PAWL_EEXISTS, "%s: already exists", key);
	if (rc != PAWL_ENOTFOUND && err != NULL)
		*err = why;
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

int
object_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
              struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	if (opts->nbytes > s->protocol->max_object_bytes)
		return err_set(err, PAWL_ELIMIT, "%s: %" PRIu64 " bytes are more than an object may have", key,
		               opts->nbytes);
	if (!opts->own_name)
		TRY(check_absent(s, key, err));
	uint64_t part_bytes = part_bytes_for(opts->nbytes, s->protocol->max_parts);
	size_t n = opts->nbytes == 0 ? 1 : (size_t)((opts->nbytes + part_bytes - 1) / part_bytes);
	struct object_file *f = mem_zalloc(1, sizeof *f + n * sizeof f->parts[0]);
	if (f == NULL)
		return err_nomem(err, key);
	pthread_mutex_init(&f->lock, NULL);
	f->n_parts = n;
	f->part_bytes = part_bytes;
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	f->base.key = mem_strdup(key);
	int rc = f->base.key == NULL ? err_nomem(err, key) : clock_token(f->token, err);
	if (rc == 0 && n > 1)
		rc = s->protocol->upload_begin(s, key, f->token, true, &f->upload, err);
	if (rc < 0) {
		free_file(f);
		return rc;
	}
	*ret = &f->base;
	return 0;
}

static uint64_t
length_of(const struct object_file *f, size_t i)
{
	uint64_t begin = (uint64_t)i * f->part_bytes;
	return f->base.nbytes - begin < f->part_bytes ? f->base.nbytes - begin : f->part_bytes;
}

enum turn { TURN_DONE, TURN_SEND_GATHERED, TURN_SEND_STRAIGHT };

/* Copies a piece to the part's buffer, unless it is there already. Called with the lock held. */
static int
add_piece(struct object_file *f, struct part *p, uint64_t whole, uint64_t at, const void *ptr, size_t len,
          struct pawl_error *err)
{
	for (size_t k = p->n_begins; k-- > 0;)
		if (p->begins[k] == at)
			return 0;
	if (p->gathered == NULL)
		p->gathered = mem_alloc((size_t)whole);
	uint64_t *grown = p->gathered != NULL ? mem_resize(p->begins, p->n_begins + 1, sizeof *grown) : NULL;
	if (grown == NULL)
		return err_nomem(err, f->base.key);
	p->begins = grown;
	p->begins[p->n_begins++] = at;
	memcpy(p->gathered + at, ptr, len);
	p->n_gathered += len;
	return 0;
}

/* Handles a piece of part i that is neither sent nor being sent. The caller that brings the last
 * piece sends the part, straight from its memory if the piece is the complete part. */
static int
gather_part(struct object_file *f, size_t i, uint64_t at, const void *ptr, size_t len, enum turn *ret,
            struct pawl_error *err)
{
	struct part *p = &f->parts[i];
	uint64_t whole = length_of(f, i);
	int rc = 0;
	*ret = TURN_DONE;
	pthread_mutex_lock(&f->lock);
	if (!p->sent && !p->sending) {
		bool straight = len == whole && f->upload != NULL && p->gathered == NULL;
		if (!straight)
			rc = add_piece(f, p, whole, at, ptr, len, err);
		if (straight)
			*ret = TURN_SEND_STRAIGHT;
		else if (rc == 0 && p->n_gathered == whole && f->upload != NULL)
			*ret = TURN_SEND_GATHERED;
		p->sending = *ret != TURN_DONE;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

static int
write_part(struct object_store *s, struct object_file *f, size_t i, uint64_t at, const void *ptr, size_t len,
           struct pawl_error *err)
{
	enum turn turn;
	struct part *p = &f->parts[i];
	TRY(gather_part(f, i, at, ptr, len, &turn, err));
	if (turn == TURN_DONE)
		return 0;
	int rc = s->protocol->upload_part(s, f->base.key, f->upload, i, turn == TURN_SEND_STRAIGHT ? ptr : p->gathered,
	                                  (size_t)length_of(f, i), &p->sum, err);
	pthread_mutex_lock(&f->lock);
	p->sending = false; /* after a failure the piece comes again and sends the part, or nothing does */
	p->sent = rc == 0;
	if (rc == 0)
		drop_gathered(p);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

int
object_write(struct store *base, struct store_file *bf, uint64_t offset, const void *ptr, size_t len,
             struct pawl_error *err)
{
	struct object_file *f = (struct object_file *)bf;
	uint64_t left = bf->nbytes - offset;
	size_t todo = len < left ? len : (size_t)left; /* without the padding */
	for (size_t done = 0; done < todo;) {
		size_t i = (size_t)((offset + done) / f->part_bytes);
		uint64_t at = offset + done - (uint64_t)i * f->part_bytes;
		size_t room = (size_t)(length_of(f, i) - at), n = todo - done < room ? todo - done : room;
		TRY(write_part((struct object_store *)base, f, i, at, (const char *)ptr + done, n, err));
		done += n;
	}
	return 0;
}

/* ------------------------------------------------------------------ finishing */

static int
put_only_part(struct object_store *s, struct object_file *f, bool exclusive, struct pawl_error *err)
{
	struct pawl_slice whole = {f->parts[0].gathered, (size_t)f->base.nbytes};
	struct pawl_error why = {0};
	int rc = object_put_whole(s, f->base.key, &whole, f->base.nbytes > 0, f->token, exclusive, &why);
	if (rc != PAWL_EEXISTS)
		return err_give(err, rc, &why);
	/* Something invisible may be in the way: blocks that a dead writer never committed. */
	TRY(check_absent(s, f->base.key, err));
	return object_put_whole(s, f->base.key, &whole, f->base.nbytes > 0, f->token, false, err);
}

static int
complete_upload(struct object_store *s, struct object_file *f, struct pawl_error *err)
{
	bool exclusive = atomic_load(&s->exclusive) == OBJECT_YES;
	if (f->upload == NULL)
		return put_only_part(s, f, exclusive, err);
	PAWL_FREE struct object_part_sum *sums = mem_zalloc(f->n_parts, sizeof *sums);
	if (sums == NULL)
		return err_nomem(err, f->base.key);
	for (size_t i = 0; i < f->n_parts; i++)
		sums[i] = f->parts[i].sum;
	return s->protocol->upload_end(s, f->base.key, f->upload, sums, f->n_parts,
	                               exclusive && s->protocol->completes_exclusively, err);
}

/* After a refusal: an earlier try, whose answer was lost, may have made the object. *ret: it did.
 * If the look fails, the outcome is unknown. Its error is the result, so the seal is repeated. */
static int
look_for_own(struct object_store *s, const struct object_file *f, bool *ret, struct pawl_error *err)
{
	struct object_head head;
	struct pawl_error why = {0};
	int rc = object_get_head(s, f->base.key, "finish", &head, &why);
	*ret = rc == 0 && strcmp(head.token, f->token) == 0 && head.nbytes == f->base.nbytes;
	return rc == PAWL_ENOTFOUND ? 0 : err_give(err, rc, &why);
}

int
object_seal(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	struct object_store *s = (struct object_store *)base;
	struct object_file *f = (struct object_file *)bf;
	struct pawl_error why = {0};
	if (f->sealed)
		return 0;
	int rc = complete_upload(s, f, &why);
	if (rc == PAWL_EEXISTS || rc == PAWL_ENOTFOUND || rc == PAWL_EIO) {
		bool is_own;
		TRY(look_for_own(s, f, &is_own, err));
		if (is_own)
			rc = 0;
	}
	f->sealed = rc == 0;
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, PAWL_EIO, "%s: the upload was removed by another client", bf->key);
	if (rc < 0 && err != NULL)
		*err = why;
	return rc;
}

int
object_finish(struct store *base, struct store_file *bf, struct pawl_error *err)
{
	int rc = object_seal(base, bf, err);
	if (rc < 0)
		object_abort(base, bf);
	else
		free_file((struct object_file *)bf);
	return rc;
}

void
object_abort(struct store *base, struct store_file *bf)
{
	struct object_file *f = (struct object_file *)bf;
	const struct object_protocol *protocol = ((struct object_store *)base)->protocol;
	if (f->upload != NULL && protocol->upload_drop != NULL)
		protocol->upload_drop((struct object_store *)base, bf->key, f->upload, NULL);
	free_file(f);
}
