/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sftp: see sftp.h. The greeting, and single requests with their answers. sftp_data.c keeps many
 * requests under way; sftp_wire.c handles packets. After an impossible answer, nothing more from
 * the connection is trusted: it is lost.
 */
#include "store/ssh/sftp.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/ssh/sftp_wire.h"

#define VERSION 3
#define MAX_REQUEST_BYTES 16384u
#define MAX_LISTED 1000000u
#define MAX_IDLE_PAGES 200u /* of a listing, that bring no new entries */

/* ---------------------------------------------------------------- requests */

static void
put_u32(struct buf *b, uint32_t value)
{
	unsigned char bytes[4];
	sftp_set_u32(bytes, value);
	buf_put(b, bytes, sizeof bytes);
}

static void
put_string(struct buf *b, const void *ptr, size_t len)
{
	put_u32(b, (uint32_t)len);
	buf_put(b, ptr, len);
}

static void
begin_request(struct sftp *s, struct buf *b, uint8_t type)
{
	put_u32(b, 0); /* the length, set when it is sent */
	buf_putc(b, (char)type);
	put_u32(b, ++s->last_id);
}

static void
begin_extended(struct sftp *s, struct buf *b, const char *name)
{
	begin_request(s, b, SSH_FXP_EXTENDED);
	put_string(b, name, strlen(name));
}

/* Sends the request and receives its answer, without type and id. */
static int
send_request(struct sftp *s, struct buf *request, struct wire *ret, struct pawl_error *err)
{
	if (s->lost)
		return err_set(err, PAWL_ETRANSIENT, "the connection is lost");
	if (request->failed)
		return err_nomem(err, NULL);
	if (request->len > MAX_REQUEST_BYTES)
		return err_set(err, PAWL_ELIMIT, "the path is too long");
	sftp_set_u32((unsigned char *)request->ptr, (uint32_t)(request->len - 4));
	TRY(sftp_send(s, request->ptr, request->len, err));
	TRY(sftp_receive(s, ret, err));
	if (sftp_get_u32(ret) != s->last_id)
		return sftp_mistrust(s, "is for another request", err);
	return 0;
}

/* Copies a text of the server for a message: at most 80 characters, unprintable ones as '?'. */
static void
clean_text(const unsigned char *text, uint32_t len, char out[81])
{
	size_t n = 0;
	for (uint32_t i = 0; i < len && n < 80; i++)
		out[n++] = text[i] < ' ' || text[i] > '~' ? '?' : (char)text[i];
	out[n] = '\0';
}

int
sftp_status(struct sftp *s, struct wire *w, const char *verb, struct pawl_error *err)
{
	uint32_t status = sftp_get_u32(w), len;
	if (w->failed)
		return sftp_mistrust(s, "is cut off", err);
	const unsigned char *text = sftp_get_string(w, &len);
	char shown[81];
	clean_text(text, len, shown);
	switch (status) {
	case SSH_FX_OK:
		return 0;
	case SSH_FX_EOF:
		return err_set(err, PAWL_ECORRUPT, "cannot %s: it ends early", verb);
	case SSH_FX_NO_SUCH_FILE:
		return err_set(err, PAWL_ENOTFOUND, "cannot %s: there is no such file", verb);
	case SSH_FX_PERMISSION_DENIED:
		return err_set(err, PAWL_EAUTH, "cannot %s: permission denied", verb);
	case SSH_FX_OP_UNSUPPORTED:
		return err_set(err, PAWL_EUNSUPPORTED, "cannot %s: the server does not do that", verb);
	case SSH_FX_NO_CONNECTION:
	case SSH_FX_CONNECTION_LOST:
		return err_set(err, PAWL_ETRANSIENT, "cannot %s: the server has lost its connection", verb);
	default:
		return err_set(err, PAWL_EIO, "cannot %s: status %" PRIu32 " (%s)", verb, status, shown);
	}
}

/* Sends a request whose answer is only a status. */
static int
ask_status(struct sftp *s, struct buf *request, const char *verb, struct pawl_error *err)
{
	struct wire w;
	TRY(send_request(s, request, &w, err));
	if (w.type != SSH_FXP_STATUS)
		return sftp_mistrust(s, "is of another kind", err);
	return sftp_status(s, &w, verb, err);
}

/* Expects an answer of this type; a status is a failure. */
static int
ask_for(struct sftp *s, struct buf *request, uint8_t type, const char *verb, struct wire *ret, struct pawl_error *err)
{
	TRY(send_request(s, request, ret, err));
	if (ret->type == SSH_FXP_STATUS) {
		TRY(sftp_status(s, ret, verb, err));
		return sftp_mistrust(s, "is of another kind", err);
	}
	return ret->type == type ? 0 : sftp_mistrust(s, "is of another kind", err);
}

static void
get_attrs(struct wire *w, struct sftp_attrs *ret)
{
	uint32_t flags = sftp_get_u32(w), len;
	*ret = (struct sftp_attrs){.mode = 0100644};
	if (flags & 1)
		ret->nbytes = sftp_get_u64(w);
	if (flags & 2) {
		sftp_get_u32(w); /* owner */
		sftp_get_u32(w); /* group */
	}
	if (flags & 4)
		ret->mode = sftp_get_u32(w);
	if (flags & 8) {
		sftp_get_u32(w); /* last read */
		ret->mtime = sftp_get_u32(w);
	}
	if (flags & UINT32_C(0x80000000)) {
		uint32_t n = sftp_get_u32(w);
		for (uint32_t i = 0; i < n && !w->failed; i++) {
			sftp_get_string(w, &len);
			sftp_get_string(w, &len);
		}
	}
	if (ret->nbytes > INT64_MAX)
		w->failed = true;
}

static int
ask_attrs(struct sftp *s, uint8_t type, const void *ptr, size_t len, struct sftp_attrs *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	struct wire w;
	begin_request(s, &b, type);
	put_string(&b, ptr, len);
	TRY(ask_for(s, &b, SSH_FXP_ATTRS, "stat", &w, err));
	get_attrs(&w, ret);
	return w.failed ? sftp_mistrust(s, "is cut off", err) : 0;
}

int
sftp_lstat(struct sftp *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err)
{
	return ask_attrs(s, SSH_FXP_LSTAT, path, strlen(path), ret, err);
}

int
sftp_stat(struct sftp *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err)
{
	return ask_attrs(s, SSH_FXP_STAT, path, strlen(path), ret, err);
}

int
sftp_fstat(struct sftp *s, const struct sftp_handle *h, struct sftp_attrs *ret, struct pawl_error *err)
{
	return ask_attrs(s, SSH_FXP_FSTAT, h->bytes, h->len, ret, err);
}

static int
ask_handle(struct sftp *s, struct buf *request, const char *verb, struct sftp_handle *ret, struct pawl_error *err)
{
	struct wire w;
	uint32_t len;
	TRY(ask_for(s, request, SSH_FXP_HANDLE, verb, &w, err));
	const unsigned char *bytes = sftp_get_string(&w, &len);
	if (w.failed || len > sizeof ret->bytes)
		return sftp_mistrust(s, "has an impossible handle", err);
	ret->len = len;
	memcpy(ret->bytes, bytes, len);
	return 0;
}

int
sftp_open(struct sftp *s, const char *path, unsigned flags, struct sftp_handle *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	begin_request(s, &b, SSH_FXP_OPEN);
	put_string(&b, path, strlen(path));
	put_u32(&b, flags);
	put_u32(&b, 0); /* no attributes: the server's umask decides */
	return ask_handle(s, &b, flags & SFTP_CREATE ? "create" : "open", ret, err);
}

static int
ask_of_handle(struct sftp *s, uint8_t type, const char *extension, const struct sftp_handle *h, const char *verb,
              struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	if (extension != NULL)
		begin_extended(s, &b, extension);
	else
		begin_request(s, &b, type);
	put_string(&b, h->bytes, h->len);
	return ask_status(s, &b, verb, err);
}

int
sftp_close(struct sftp *s, const struct sftp_handle *h, struct pawl_error *err)
{
	return ask_of_handle(s, SSH_FXP_CLOSE, NULL, h, "close", err);
}

int
sftp_fsync(struct sftp *s, const struct sftp_handle *h, struct pawl_error *err)
{
	return ask_of_handle(s, 0, "fsync@openssh.com", h, "sync", err);
}

int
sftp_mkdir(struct sftp *s, const char *path, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	begin_request(s, &b, SSH_FXP_MKDIR);
	put_string(&b, path, strlen(path));
	put_u32(&b, 0);
	return ask_status(s, &b, "make the folder", err);
}

static int
ask_of_path(struct sftp *s, uint8_t type, const char *path, const char *verb, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	begin_request(s, &b, type);
	put_string(&b, path, strlen(path));
	return ask_status(s, &b, verb, err);
}

int
sftp_rmdir(struct sftp *s, const char *path, struct pawl_error *err)
{
	return ask_of_path(s, SSH_FXP_RMDIR, path, "remove the folder", err);
}

int
sftp_remove(struct sftp *s, const char *path, struct pawl_error *err)
{
	return ask_of_path(s, SSH_FXP_REMOVE, path, "remove", err);
}

static int
ask_of_two(struct sftp *s, uint8_t type, const char *extension, const char *one, const char *two, const char *verb,
           struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	if (extension != NULL)
		begin_extended(s, &b, extension);
	else
		begin_request(s, &b, type);
	put_string(&b, one, strlen(one));
	put_string(&b, two, strlen(two));
	return ask_status(s, &b, verb, err);
}

int
sftp_rename(struct sftp *s, const char *from, const char *to, bool replace, struct pawl_error *err)
{
	return ask_of_two(s, SSH_FXP_RENAME, replace ? "posix-rename@openssh.com" : NULL, from, to, "rename", err);
}

int
sftp_hardlink(struct sftp *s, const char *from, const char *to, struct pawl_error *err)
{
	return ask_of_two(s, 0, "hardlink@openssh.com", from, to, "link", err);
}

int
sftp_symlink(struct sftp *s, const char *target, const char *path, struct pawl_error *err)
{
	return ask_of_two(s, SSH_FXP_SYMLINK, NULL, target, path, "make a symbolic link", err);
}

int
sftp_free_bytes(struct sftp *s, const char *path, uint64_t *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	struct wire w;
	begin_extended(s, &b, "statvfs@openssh.com");
	put_string(&b, path, strlen(path));
	TRY(ask_for(s, &b, SSH_FXP_EXTENDED_REPLY, "measure free space", &w, err));
	sftp_get_u64(&w); /* size of blocks */
	uint64_t unit = sftp_get_u64(&w), total = sftp_get_u64(&w);
	sftp_get_u64(&w); /* free */
	uint64_t available = sftp_get_u64(&w);
	if (w.failed)
		return sftp_mistrust(s, "is cut off", err);
	if (total == 0 || !mem_mul_ok(available, unit, ret))
		*ret = UINT64_MAX;
	return 0;
}

/* ------------------------------------------------------------------- lists */

struct listing {
	sftp_list_fn *fn;
	void *arg;
	size_t seen;
	int stopped; /* by fn; the remaining names are read and ignored */
};

static int
get_names(struct sftp *s, struct wire *w, struct listing *l, struct pawl_error *err)
{
	uint32_t n = sftp_get_u32(w), len;
	for (uint32_t i = 0; i < n; i++) {
		struct sftp_attrs attrs;
		char name[256];
		const unsigned char *bytes = sftp_get_string(w, &len);
		uint32_t ignored;
		sftp_get_string(w, &ignored); /* as ls shows it */
		get_attrs(w, &attrs);
		if (w->failed)
			return sftp_mistrust(s, "is cut off", err);
		if (len == 0 || len >= sizeof name || memchr(bytes, '\0', len) != NULL ||
		    memchr(bytes, '/', len) != NULL)
			return sftp_mistrust(s, "has a name that no file can have", err);
		memcpy(name, bytes, len);
		name[len] = '\0';
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
			continue;
		if (++l->seen > MAX_LISTED)
			return sftp_mistrust(s, "has more than a million names", err);
		if (l->stopped == 0)
			l->stopped = l->fn(l->arg, name, &attrs);
	}
	return 0;
}

static int
read_names(struct sftp *s, const struct sftp_handle *h, struct listing *l, struct pawl_error *err)
{
	size_t before = 0;
	for (unsigned idle = 0; l->stopped == 0; idle = l->seen > before ? 0 : idle + 1, before = l->seen) {
		PAWL_CLEAN(buf_clear) struct buf b = {0};
		struct wire w;
		if (idle > MAX_IDLE_PAGES)
			return sftp_mistrust(s, "never comes to an end", err);
		begin_request(s, &b, SSH_FXP_READDIR);
		put_string(&b, h->bytes, h->len);
		TRY(send_request(s, &b, &w, err));
		if (w.type == SSH_FXP_STATUS && w.end - w.at >= 4 && sftp_u32(w.at) == SSH_FX_EOF)
			return 0;
		if (w.type == SSH_FXP_STATUS) {
			TRY(sftp_status(s, &w, "list", err));
			return sftp_mistrust(s, "is of another kind", err);
		}
		if (w.type != SSH_FXP_NAME)
			return sftp_mistrust(s, "is of another kind", err);
		TRY(get_names(s, &w, l, err));
	}
	return 0;
}

int
sftp_list(struct sftp *s, const char *path, sftp_list_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	struct sftp_handle h;
	struct listing l = {.fn = fn, .arg = arg};
	begin_request(s, &b, SSH_FXP_OPENDIR);
	put_string(&b, path, strlen(path));
	TRY(ask_handle(s, &b, "list", &h, err));
	int rc = read_names(s, &h, &l, err);
	if (!s->lost)
		sftp_close(s, &h, NULL);
	if (rc == 0 && l.stopped < 0)
		return err_set(err, l.stopped, "cannot list: stopped");
	return rc;
}

/* ---------------------------------------------------------------- greeting */

static unsigned
feature_of(const unsigned char *name, uint32_t len)
{
	static const struct {
		const char *name;
		unsigned feature;
	} known[] = {{"posix-rename@openssh.com", SFTP_POSIX_RENAME},
	             {"hardlink@openssh.com", SFTP_HARDLINK},
	             {"fsync@openssh.com", SFTP_FSYNC},
	             {"statvfs@openssh.com", SFTP_STATVFS},
	             {"limits@openssh.com", SFTP_LIMITS}};
	static const char maker[] = "@openssh.com";
	unsigned found = 0;
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strlen(known[i].name) == len && memcmp(known[i].name, name, len) == 0)
			found |= known[i].feature;
	if (len >= strlen(maker) && memcmp(name + len - strlen(maker), maker, strlen(maker)) == 0)
		found |= SFTP_OPENSSH;
	return found;
}

/* Gets the server's limits for one read and write. Unreasonable values are not trusted. */
static int
get_limits(struct sftp *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf b = {0};
	struct wire w;
	begin_extended(s, &b, "limits@openssh.com");
	TRY(ask_for(s, &b, SSH_FXP_EXTENDED_REPLY, "ask for its limits", &w, err));
	sftp_get_u64(&w); /* packet */
	uint64_t read = sftp_get_u64(&w), write = sftp_get_u64(&w);
	if (w.failed)
		return sftp_mistrust(s, "is cut off", err);
	if (read >= WIRE_CHUNK_BYTES)
		s->read_bytes = read < WIRE_MAX_CHUNK_BYTES ? (uint32_t)read : WIRE_MAX_CHUNK_BYTES;
	if (write >= WIRE_CHUNK_BYTES)
		s->write_bytes = write < WIRE_MAX_CHUNK_BYTES ? (uint32_t)write : WIRE_MAX_CHUNK_BYTES;
	return 0;
}

static int
greet_server(struct sftp *s, struct pawl_error *err)
{
	unsigned char hello[9];
	struct wire w;
	sftp_set_u32(hello, 5);
	hello[4] = SSH_FXP_INIT;
	sftp_set_u32(hello + 5, VERSION);
	TRY(sftp_send(s, hello, sizeof hello, err));
	TRY(sftp_receive(s, &w, err));
	uint32_t version = sftp_get_u32(&w), len, ignored;
	if (w.type != SSH_FXP_VERSION || w.failed)
		return sftp_mistrust(s, "does not follow the protocol (does its shell print something?)", err);
	if (version != VERSION)
		return err_set(err, PAWL_EUNSUPPORTED, "the server speaks version %" PRIu32 " of SFTP, expected %d",
		               version, VERSION);
	while (w.at < w.end) {
		const unsigned char *name = sftp_get_string(&w, &len);
		sftp_get_string(&w, &ignored);
		if (w.failed)
			return sftp_mistrust(s, "is cut off", err);
		s->features |= feature_of(name, len);
	}
	s->greeted = true;
	return s->features & SFTP_LIMITS ? get_limits(s, err) : 0;
}

int
sftp_new(int fd, int said, int64_t timeout_ms, struct sftp **ret, struct pawl_error *err)
{
	struct sftp *s = mem_zalloc(1, sizeof *s);
	if (s == NULL)
		return err_nomem(err, NULL);
	*s = (struct sftp){.fd = fd, .said = said, .timeout_ms = timeout_ms};
	s->read_bytes = s->write_bytes = WIRE_CHUNK_BYTES;
	s->in = mem_alloc(WIRE_BUFFER_BYTES);
	int rc = s->in == NULL ? err_nomem(err, NULL) : greet_server(s, err);
	if (rc < 0) {
		sftp_free(s);
		return rc;
	}
	*ret = s;
	return 0;
}

void
sftp_free(struct sftp *s)
{
	if (s == NULL)
		return;
	buf_clear(&s->tail);
	mem_free(s->in);
	mem_free(s);
}

void
sftp_listen(struct sftp *s, int said)
{
	s->said = said;
}

unsigned
sftp_features(const struct sftp *s)
{
	return s->features;
}

bool
sftp_is_lost(const struct sftp *s)
{
	return s->lost;
}
