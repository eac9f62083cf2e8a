/* SPDX-License-Identifier: Apache-2.0 */
/* tar: see tar.h. Promises P16, P17. */
#include "format/archive/tar.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define MAX_OCTAL ((uint64_t)1 << 33) /* of a size in a header */

struct header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
	char magic[6], version[2], owner[32], group[32], major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "a header is one block");

/* ------------------------------------------------------------------ writing */

static unsigned
sum_of(const struct header *h)
{
	const unsigned char *p = (const unsigned char *)h;
	unsigned sum = 0;

	for (size_t i = 0; i < sizeof(*h); i++)
		sum += i >= offsetof(struct header, sum) && i < offsetof(struct header, type) ? ' ' : p[i];
	return sum;
}

static void
put_octal(char *field, size_t n, uint64_t value)
{
	field[n - 1] = 0;
	for (size_t i = n - 1; i > 0; i--, value /= 8)
		field[i - 1] = (char)('0' + value % 8);
}

static void
put_block(struct buf *out, const struct tar_member *m, char type, const char *name, uint64_t nbytes)
{
	struct header h = {.type = type, .magic = "ustar", .version = {'0', '0'}};
	const size_t len = strlen(name);

	memcpy(h.name, name, len < sizeof(h.name) ? len : sizeof(h.name));
	put_octal(h.mode, sizeof(h.mode), m->is_folder || m->executable ? 0755 : 0644);
	put_octal(h.uid, sizeof(h.uid), 0);
	put_octal(h.gid, sizeof(h.gid), 0);
	put_octal(h.size, sizeof(h.size), nbytes < MAX_OCTAL ? nbytes : 0);
	put_octal(h.mtime, sizeof(h.mtime), m->mtime > 0 && (uint64_t)m->mtime < MAX_OCTAL ? (uint64_t)m->mtime : 0);
	put_octal(h.sum, sizeof(h.sum) - 1, sum_of(&h));
	h.sum[sizeof(h.sum) - 1] = ' ';
	buf_put(out, &h, sizeof(h));
}

static void
pad_block(struct buf *out, size_t n)
{
	static const char zeros[TAR_BLOCK];

	buf_put(out, zeros, (TAR_BLOCK - n % TAR_BLOCK) % TAR_BLOCK);
}

/* "<length> key=value\n", where the length counts itself. */
static void
put_record(struct buf *records, const char *key, const char *value)
{
	const size_t rest = strlen(key) + strlen(value) + 3;
	size_t len = rest + 1;

	while (len != rest + (size_t)snprintf(NULL, 0, "%zu", len))
		len = rest + (size_t)snprintf(NULL, 0, "%zu", len);
	buf_printf(records, "%zu %s=%s\n", len, key, value);
}

bool
tar_of_name(const char *name, const struct codec **ret)
{
	const struct codec *codec = codec_of_name(name);
	const size_t len = strlen(name), stem = codec ? codec_stem_len(codec, name) : len;

	*ret = codec;
	if (stem > 4 && memcmp(name + stem - 4, ".tar", 4) == 0)
		return true;
	*ret = codec_of_name("a.gz");
	return len > 4 && strcmp(name + len - 4, ".tgz") == 0;
}

int
tar_put_header(struct buf *out, const struct tar_member *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf records = {0};
	PAWL_FREE char *name = mem_printf("%s%s", m->name, m->is_folder ? "/" : "");
	char number[24];

	if (!name)
		return err_nomem(err, m->name);
	if (strlen(name) > sizeof(((struct header *)0)->name))
		put_record(&records, "path", name);
	if (m->nbytes >= MAX_OCTAL) {
		snprintf(number, sizeof(number), "%llu", (unsigned long long)m->nbytes);
		put_record(&records, "size", number);
	}
	TRY(buf_check(&records, m->name, err));
	if (records.len > 0) {
		const struct tar_member plain = {.mtime = m->mtime};
		put_block(out, &plain, 'x', "pax_header", records.len);
		buf_put(out, records.ptr, records.len);
		pad_block(out, records.len);
	}
	put_block(out, m, m->is_folder ? '5' : '0', name, m->is_folder ? 0 : m->nbytes);
	return buf_check(out, m->name, err);
}

void
tar_put_end(struct buf *out)
{
	static const char zeros[2 * TAR_BLOCK];

	buf_put(out, zeros, sizeof(zeros));
}

/* ------------------------------------------------------------------ reading */

/* What the records give for the member that follows. */
struct saying {
	struct buf path;
	bool has_path, has_size;
	uint64_t nbytes;
};

static void
clear_saying(struct saying *s)
{
	buf_clear(&s->path);
}

static int
refuse_tar(const char *what, const char *why, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT, "%s: a header of tar: %s", what, why);
}

/* Octal digits, with blanks or NULs around them; or GNU tar's number in base 256. */
static bool
get_number(const char *field, size_t n, uint64_t *ret)
{
	const unsigned char *p = (const unsigned char *)field;
	size_t i = 0;

	*ret = 0;
	if (p[0] == 0x80) {
		for (i = 1; i < n; i++)
			if (!mem_mul_ok(*ret, 256, ret) || !mem_add_ok(*ret, p[i], ret))
				return false;
		return true;
	}
	while (i < n && p[i] == ' ')
		i++;
	for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
		if (!mem_mul_ok(*ret, 8, ret) || !mem_add_ok(*ret, p[i] - (uint64_t)'0', ret))
			return false;
	while (i < n && (p[i] == ' ' || p[i] == 0))
		i++;
	return i == n;
}

/* Removes "./" at the start and '/' at the end; the rest must be names below the folder. */
static int
set_name(const char *what, const char *name, size_t len, struct tar_member *m, struct pawl_error *err)
{
	while (len >= 2 && name[0] == '.' && name[1] == '/') {
		name += 2;
		len -= 2;
	}
	while (len > 0 && name[len - 1] == '/')
		len--;
	if (len > TAR_MAX_NAME)
		return err_set(err, PAWL_ELIMIT, "%s: a name of %zu bytes, at most %u are allowed", what, len,
		               TAR_MAX_NAME);
	memcpy(m->name, name, len);
	m->name[len] = 0;
	if (len == 0 || (len == 1 && name[0] == '.')) { /* the folder itself */
		m->name[0] = 0;
		return m->is_folder ? 0 : refuse_tar(what, "a file without a name", err);
	}
	for (size_t begin = 0; begin <= len;) {
		size_t n = 0;

		while (begin + n < len && name[begin + n] != '/') {
			const unsigned char c = (unsigned char)name[begin + n++];
			if (c < 0x20 || c == 0x7f || c == '\\')
				return refuse_tar(what, "a name with a control character or a backslash", err);
		}
		const char *part = name + begin;
		if (n == 0 || n > 255 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
			return err_set(err, PAWL_ECORRUPT, "%s: '%.200s' is not a name below a folder", what, m->name);
		begin += n + 1;
	}
	return 0;
}

/* One record "<length> key=value\n" at *at. */
static int
take_record(const char *what, const char *ptr, size_t len, size_t *at, struct saying *s, struct pawl_error *err)
{
	const char *p = ptr + *at;
	const size_t left = len - *at;
	size_t n = 0, digits = 0;

	while (digits < left && digits < 8 && p[digits] >= '0' && p[digits] <= '9')
		n = n * 10 + (size_t)(p[digits++] - '0');
	if (digits == 0 || n > left || n < digits + 4 || p[digits] != ' ' || p[n - 1] != '\n')
		return refuse_tar(what, "a malformed pax record", err);
	const char *key = p + digits + 1, *end = p + n - 1;
	const char *is = memchr(key, '=', (size_t)(end - key));
	if (!is || memchr(key, 0, (size_t)(end - key)))
		return refuse_tar(what, "a malformed pax record", err);
	const size_t key_len = (size_t)(is - key), value_len = (size_t)(end - is - 1);
	if (key_len == 4 && memcmp(key, "path", 4) == 0) {
		s->path.len = 0;
		buf_put(&s->path, is + 1, value_len);
		s->has_path = true;
	} else if (key_len == 4 && memcmp(key, "size", 4) == 0) {
		s->nbytes = 0;
		for (const char *c = is + 1; c < end; c++)
			if (*c < '0' || *c > '9' || !mem_mul_ok(s->nbytes, 10, &s->nbytes) ||
			    !mem_add_ok(s->nbytes, (uint64_t)(*c - '0'), &s->nbytes))
				return refuse_tar(what, "a pax record with a malformed size", err);
		s->has_size = true;
	} else if (key_len >= 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
		return err_set(err, PAWL_EUNSUPPORTED, "%s: holds a sparse file, which is not read", what);
	}
	*at += n;
	return buf_check(&s->path, what, err);
}

/* The bytes after a header that describes the next member: pax records, or a long name of GNU
 * tar. */
static int
take_records(tar_get_fn *get, void *arg, const char *what, char type, uint64_t nbytes, struct saying *s,
             struct pawl_error *err)
{
	PAWL_FREE char *ptr = NULL;
	size_t at = 0;

	if (nbytes > TAR_MAX_RECORDS)
		return err_set(err, PAWL_ELIMIT, "%s: %llu bytes of records for one member, at most %llu are allowed",
		               what, (unsigned long long)nbytes, (unsigned long long)TAR_MAX_RECORDS);
	const size_t n = (size_t)nbytes, whole = (size_t)mem_round_up(nbytes, TAR_BLOCK);
	ptr = mem_alloc(whole);
	if (!ptr)
		return err_nomem(err, what);
	TRY(get(arg, ptr, whole, err));
	if (type == 'L') {
		s->path.len = 0;
		buf_put(&s->path, ptr, strnlen(ptr, n));
		s->has_path = true;
		return buf_check(&s->path, what, err);
	}
	while (at < n)
		TRY(take_record(what, ptr, n, &at, s, err));
	return 0;
}

static int
set_member(const char *what, const struct header *h, struct saying *s, uint64_t nbytes, struct tar_member *ret,
           struct pawl_error *err)
{
	char name[sizeof(h->prefix) + sizeof(h->name) + 2];
	uint64_t mode, mtime;

	if (h->type != '0' && h->type != 0 && h->type != '5')
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: '%.100s' is neither a file nor a folder (type '%c'), and links and devices are not "
		               "unpacked",
		               what, h->name, h->type >= 0x20 && h->type < 0x7f ? h->type : '?');
	*ret = (struct tar_member){.is_folder = h->type == '5', .nbytes = s->has_size ? s->nbytes : nbytes};
	if (!get_number(h->mode, sizeof(h->mode), &mode) || !get_number(h->mtime, sizeof(h->mtime), &mtime))
		return refuse_tar(what, "a malformed number", err);
	ret->executable = (mode & 0100) != 0;
	ret->mtime = mtime < INT64_MAX ? (int64_t)mtime : 0;
	if (s->has_path) {
		if (s->path.len > 0 && s->path.ptr[s->path.len - 1] == '/')
			ret->is_folder = true;
		TRY(set_name(what, buf_str(&s->path), s->path.len, ret, err));
	} else {
		/* The prefix is ustar's; GNU's own headers use its bytes for other fields. */
		const bool has_prefix = memcmp(h->magic, "ustar", 6) == 0 && h->prefix[0] != 0;
		snprintf(name, sizeof(name), "%.155s%s%.100s", has_prefix ? h->prefix : "", has_prefix ? "/" : "",
		         h->name);
		const size_t len = strlen(name);
		if (len > 0 && name[len - 1] == '/')
			ret->is_folder = true;
		TRY(set_name(what, name, len, ret, err));
	}
	if (ret->is_folder && ret->nbytes > 0)
		return refuse_tar(what, "a folder with content", err);
	return ret->nbytes <= UINT64_MAX - TAR_BLOCK ? 1 : refuse_tar(what, "an impossible size", err);
}

static bool
is_zero(const struct header *h)
{
	static const struct header zero;

	return memcmp(h, &zero, sizeof(zero)) == 0;
}

int
tar_next(tar_get_fn *get, void *arg, const char *what, struct tar_member *ret, struct pawl_error *err)
{
	PAWL_CLEAN(clear_saying) struct saying s = {0};
	struct header h;
	uint64_t nbytes, sum;

	for (;;) {
		TRY(get(arg, &h, sizeof(h), err));
		if (is_zero(&h)) {
			TRY(get(arg, &h, sizeof(h), err));
			return is_zero(&h) && !s.has_path && !s.has_size
			               ? 0
			               : refuse_tar(what, "a single block of zeros", err);
		}
		if (memcmp(h.magic, "ustar", 5) != 0)
			return refuse_tar(what, "expected 'ustar', found other bytes", err);
		if (!get_number(h.sum, sizeof(h.sum), &sum) || sum != sum_of(&h))
			return refuse_tar(what, "its checksum is wrong", err);
		if (!get_number(h.size, sizeof(h.size), &nbytes))
			return refuse_tar(what, "a malformed size", err);
		if (h.type != 'x' && h.type != 'g' && h.type != 'L')
			return set_member(what, &h, &s, nbytes, ret, err);
		struct saying global = {0};
		const int rc = take_records(get, arg, what, h.type, nbytes, h.type == 'g' ? &global : &s, err);
		const bool says_all = global.has_path || global.has_size;
		clear_saying(&global);
		TRY(rc);
		if (says_all)
			return refuse_tar(what, "one name or size for all members", err);
	}
}
