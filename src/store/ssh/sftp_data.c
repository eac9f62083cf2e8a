/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sftp_data: reading and writing with many requests under way. See sftp.h and sftp_wire.h.
 *
 * Requests use a window of slots. The id of a request names its slot (id modulo WINDOW). So answers
 * may arrive in any order, and an unexpected answer is detected at once. After a refusal no more
 * requests are sent, but all pending answers are read, so that the connection stays usable.
 */
#include "store/ssh/sftp_wire.h"

#include <string.h>

#include "base/err.h"

#define WINDOW 64u

struct slot {
	uint32_t id;
	uint32_t len; /* 0 = free */
	size_t at;    /* in the caller's memory */
};
struct transfer {
	struct sftp *s;
	const struct sftp_handle *handle;
	uint64_t offset;
	char *memory; /* read into, or written from (then it is not changed) */
	size_t n, asked;
	struct slot slots[WINDOW];
	unsigned under_way;
	int refused; /* first refusal */
};

/* The slot of the next id, or NULL if it is in use. */
static struct slot *
next_slot(struct transfer *t)
{
	struct slot *slot = &t->slots[(t->s->last_id + 1) % WINDOW];
	return slot->len == 0 ? slot : NULL;
}

static int
send_request(struct transfer *t, struct slot *slot, uint8_t type, size_t at, uint32_t len, struct pawl_error *err)
{
	struct sftp *s = t->s;
	unsigned char head[4 + 1 + 4 + 4 + sizeof t->handle->bytes + 8 + 4], *p = head + 4;
	bool writes = type == SSH_FXP_WRITE;
	*slot = (struct slot){.id = ++s->last_id, .len = len, .at = at};
	*p++ = type;
	sftp_set_u32(p, slot->id);
	sftp_set_u32(p + 4, t->handle->len);
	memcpy(p + 8, t->handle->bytes, t->handle->len);
	p += 8 + t->handle->len;
	sftp_set_u64(p, t->offset + at);
	sftp_set_u32(p + 8, len);
	p += 12;
	size_t n_head = (size_t)(p - head);
	sftp_set_u32(head, (uint32_t)(n_head - 4) + (writes ? len : 0));
	t->under_way++;
	TRY(sftp_send(s, head, n_head, err));
	return writes ? sftp_send(s, t->memory + at, len, err) : 0;
}

/* Returns the slot whose answer has arrived. */
static int
receive_answer(struct transfer *t, struct wire *w, struct slot **ret, struct pawl_error *err)
{
	TRY(sftp_receive(t->s, w, err));
	uint32_t id = sftp_get_u32(w);
	struct slot *slot = &t->slots[id % WINDOW];
	if (w->failed || slot->len == 0 || slot->id != id)
		return sftp_mistrust(t->s, "is for another request", err);
	*ret = slot;
	return 0;
}

/* Records the first refusal. The connection stays usable. */
static void
note_refusal(struct transfer *t, int code, const struct pawl_error *why, struct pawl_error *err)
{
	if (t->refused == 0) {
		t->refused = code;
		if (err != NULL)
			*err = *why;
	}
}

static int
take_data(struct transfer *t, struct wire *w, struct slot *slot, struct pawl_error *err)
{
	uint32_t len;
	const unsigned char *bytes = sftp_get_string(w, &len);
	if (w->failed || len == 0 || len > slot->len)
		return sftp_mistrust(t->s, "has another length than was asked for", err);
	memcpy(t->memory + slot->at, bytes, len);
	struct slot rest = {.len = slot->len - len, .at = slot->at + len};
	slot->len = 0;
	t->under_way--;
	if (rest.len == 0 || t->refused < 0)
		return 0;
	/* The server may return fewer bytes: request the rest. If the slot of the next id is in
	 * use, take a later id. */
	while (next_slot(t) == NULL)
		t->s->last_id++;
	return send_request(t, next_slot(t), SSH_FXP_READ, rest.at, rest.len, err);
}

static int
take_answer(struct transfer *t, uint8_t type, struct pawl_error *err)
{
	struct wire w;
	struct slot *slot = NULL;
	TRY(receive_answer(t, &w, &slot, err));
	if (type == SSH_FXP_READ && w.type == SSH_FXP_DATA)
		return take_data(t, &w, slot, err);
	if (w.type != SSH_FXP_STATUS)
		return sftp_mistrust(t->s, "is of another kind", err);
	struct pawl_error why = {0};
	int rc = sftp_status(t->s, &w, type == SSH_FXP_READ ? "read" : "write", &why);
	slot->len = 0;
	t->under_way--;
	if (t->s->lost || (rc == 0 && type == SSH_FXP_READ)) {
		if (err != NULL)
			*err = why;
		return rc < 0 ? rc : sftp_mistrust(t->s, "is of another kind", err);
	}
	if (rc < 0)
		note_refusal(t, rc, &why, err);
	return 0;
}

static int
run_transfer(struct transfer *t, uint8_t type, uint32_t chunk, struct pawl_error *err)
{
	if (t->s->lost)
		return err_set(err, PAWL_ETRANSIENT, "the connection is lost");
	while (t->under_way > 0 || (t->asked < t->n && t->refused == 0)) {
		struct slot *slot = t->asked < t->n && t->refused == 0 ? next_slot(t) : NULL;
		if (slot != NULL) {
			size_t left = t->n - t->asked;
			uint32_t len = left < chunk ? (uint32_t)left : chunk;
			TRY(send_request(t, slot, type, t->asked, len, err));
			t->asked += len;
		} else {
			TRY(take_answer(t, type, err));
		}
	}
	return t->refused;
}

int
sftp_read(struct sftp *s, const struct sftp_handle *h, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct transfer t = {.s = s, .handle = h, .offset = offset, .memory = dst, .n = n};
	return run_transfer(&t, SSH_FXP_READ, s->read_bytes, err);
}

int
sftp_write(struct sftp *s, const struct sftp_handle *h, uint64_t offset, const void *ptr, size_t n,
           struct pawl_error *err)
{
	struct transfer t = {.s = s, .handle = h, .offset = offset, .memory = (char *)ptr, .n = n};
	return run_transfer(&t, SSH_FXP_WRITE, s->write_bytes, err);
}
