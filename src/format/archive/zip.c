/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip: see zip.h.
 *
 *   end record -> (zip64 end record) -> central directory -> members in the order of the file:
 *   local header, payload, descriptor -> members in the order of their names
 *
 * torch.save sets bit 3 of the flags and writes a descriptor after every payload that is not empty.
 * The sizes in its local headers are zero, a zip64 end record always exists, and an extra field
 * pads payloads to multiples of 64. Promises P16, P17.
 */
#include "format/archive/zip.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/err.h"
#include "base/text.h"

#define LOCAL_MAGIC 0x04034b50u
#define CENTRAL_MAGIC 0x02014b50u
#define END_MAGIC 0x06054b50u
#define END64_MAGIC 0x06064b50u
#define LOCATOR_MAGIC 0x07064b50u
#define DESCRIPTOR_MAGIC 0x08074b50u
#define LOCAL_BYTES 30u
#define CENTRAL_BYTES 46u
#define END_BYTES 22u
#define END64_BYTES 56u
#define LOCATOR_BYTES 20u
#define MAX_COMMENT 65535u
#define FLAG_DESCRIPTOR 0x8u
#define KNOWN_FLAGS 0x0808u   /* descriptor; names are UTF-8 */
#define DEFLATE_FLAGS 0x0006u /* the effort of the compressor */
#define ZIP64_EXTRA 1u
#define STORED 0u
#define DEFLATED 8u
#define NO_U32 0xffffffffu
#define WINDOW_BYTES 4096u

/* What the directory, and then the local header, gives for a member. */
struct entry {
	struct zip_member member;
	uint64_t header;  /* where the local header begins */
	const char *full; /* the name with its folder */
	size_t full_len;
	uint32_t crc;
	uint64_t plain_nbytes;
	uint16_t flags, method;
};

struct reader {
	const struct source *source;
	struct bump *memory;
	struct entry *entries;
	size_t n;
	uint64_t directory, directory_bytes; /* its offset and size */
	uint64_t window_at;                  /* bytes read ahead, since headers follow each other */
	size_t window_n;
	unsigned char window[WINDOW_BYTES];
	struct pawl_error *err;
};

static uint16_t
get_u16(const unsigned char *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t
get_u32(const unsigned char *p)
{
	return (uint32_t)get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

static uint64_t
get_u64(const unsigned char *p)
{
	return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static int
refuse_zip(const struct reader *r, const char *why)
{
	return err_set(r->err, PAWL_ECORRUPT, "%s: %s", r->source->what, why);
}

static int
wrong_member(const struct reader *r, const struct entry *e, const char *why)
{
	return err_set(r->err, PAWL_ECORRUPT, "%s: member '%.200s': %s", r->source->what, e->full, why);
}

/* n bytes at an offset, at most a window full; valid until the next call. */
static int
read_window(struct reader *r, uint64_t offset, size_t n, const unsigned char **ret)
{
	if (n > WINDOW_BYTES || offset > r->source->nbytes || n > r->source->nbytes - offset)
		return refuse_zip(r, "a header reaches beyond the end");
	if (offset < r->window_at || offset - r->window_at > r->window_n || n > r->window_n - (offset - r->window_at)) {
		uint64_t left = r->source->nbytes - offset;

		r->window_n = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
		r->window_at = offset;
		TRY(source_read(r->source, offset, r->window, r->window_n, r->err));
	}
	*ret = r->window + (offset - r->window_at);
	return 0;
}

/* ------------------------------------------------------------- end records */

/* Where the end record begins: at the very end, or before a comment that ends there. */
static int
find_end(struct reader *r, uint64_t *ret, struct pawl_error *err)
{
	const uint64_t nbytes = r->source->nbytes;
	const unsigned char *p;

	if (nbytes < END_BYTES)
		return err_set(err, PAWL_ECORRUPT, "%s: expected a zip archive, found %llu bytes", r->source->what,
		               (unsigned long long)nbytes);
	TRY(read_window(r, nbytes - END_BYTES, END_BYTES, &p));
	if (get_u32(p) == END_MAGIC && get_u16(p + 20) == 0) {
		*ret = nbytes - END_BYTES;
		return 0;
	}
	size_t n = nbytes < END_BYTES + MAX_COMMENT ? (size_t)nbytes : END_BYTES + MAX_COMMENT;
	PAWL_FREE unsigned char *tail = mem_alloc(n);
	if (!tail)
		return err_nomem(r->err, r->source->what);
	TRY(source_read(r->source, nbytes - n, tail, n, err));
	for (size_t at = n - END_BYTES + 1; at-- > 0;) {
		if (get_u32(tail + at) != END_MAGIC)
			continue;
		if (get_u16(tail + at + 20) != n - at - END_BYTES)
			break;
		*ret = nbytes - n + at;
		return 0;
	}
	return refuse_zip(r, "the end of the zip archive is missing (is the file complete?)");
}

/* The record that torch always writes, and other programs where numbers do not fit. */
static int
read_end64(struct reader *r, uint64_t end, const unsigned char end_record[END_BYTES], uint64_t *ret_n, bool *ret_found)
{
	const unsigned char *p;

	*ret_found = false;
	if (end < LOCATOR_BYTES + END64_BYTES)
		return 0;
	TRY(read_window(r, end - LOCATOR_BYTES, LOCATOR_BYTES, &p));
	if (get_u32(p) != LOCATOR_MAGIC)
		return 0;
	const uint64_t at = end - LOCATOR_BYTES - END64_BYTES;
	if (get_u32(p + 4) != 0 || get_u64(p + 8) != at || get_u32(p + 16) > 1)
		return refuse_zip(r, "the zip64 end record is not where it should be");
	TRY(read_window(r, at, END64_BYTES, &p));
	if (get_u32(p) != END64_MAGIC || get_u64(p + 4) != END64_BYTES - 12 || get_u32(p + 16) != 0 ||
	    get_u32(p + 20) != 0 || get_u64(p + 24) != get_u64(p + 32))
		return refuse_zip(r, "the zip64 end record is damaged");
	*ret_n = get_u64(p + 32);
	r->directory_bytes = get_u64(p + 40);
	r->directory = get_u64(p + 48);
	if ((get_u16(end_record + 10) != 0xffff && get_u16(end_record + 10) != *ret_n) ||
	    (get_u32(end_record + 12) != NO_U32 && get_u32(end_record + 12) != r->directory_bytes) ||
	    (get_u32(end_record + 16) != NO_U32 && get_u32(end_record + 16) != r->directory) || r->directory > at ||
	    r->directory_bytes != at - r->directory)
		return refuse_zip(r, "the two end records do not agree");
	*ret_found = true;
	return 0;
}

static int
read_end(struct reader *r, uint64_t *ret_n)
{
	unsigned char record[END_BYTES];
	const unsigned char *p;
	uint64_t end;
	bool is_64;

	TRY(find_end(r, &end, r->err));
	TRY(read_window(r, end, END_BYTES, &p));
	memcpy(record, p, sizeof(record));
	if (get_u16(record + 4) != 0 || get_u16(record + 6) != 0 || get_u16(record + 8) != get_u16(record + 10))
		return err_set(r->err, PAWL_EUNSUPPORTED, "%s: a zip archive in several volumes", r->source->what);
	TRY(read_end64(r, end, record, ret_n, &is_64));
	if (!is_64) {
		*ret_n = get_u16(record + 10);
		r->directory_bytes = get_u32(record + 12);
		r->directory = get_u32(record + 16);
		if (r->directory > end || r->directory_bytes != end - r->directory)
			return refuse_zip(r, "the directory of the zip archive is not where it should be");
	}
	if (*ret_n > ZIP_MAX_MEMBERS || r->directory_bytes > ZIP_MAX_DIRECTORY)
		return err_set(r->err, PAWL_ELIMIT,
		               "%s: %llu members and a directory of %llu bytes, at most %u and %llu are possible",
		               r->source->what, (unsigned long long)*ret_n, (unsigned long long)r->directory_bytes,
		               ZIP_MAX_MEMBERS, (unsigned long long)ZIP_MAX_DIRECTORY);
	if (*ret_n > r->directory_bytes / CENTRAL_BYTES)
		return refuse_zip(r, "the directory of the zip archive is too short for its members");
	return 0;
}

/* --------------------------------------------------------------- directory */

/* Walks the extra fields. *ret: the zip64 one, its bytes; NULL = there is none. false: they are
 * malformed. */
static bool
find_zip64(const unsigned char *extra, size_t n, const unsigned char **ret, size_t *ret_n)
{
	*ret = NULL;
	*ret_n = 0;
	while (n > 0) {
		if (n < 4 || get_u16(extra + 2) > n - 4)
			return false;
		size_t len = get_u16(extra + 2);
		if (get_u16(extra) == ZIP64_EXTRA) {
			if (*ret)
				return false;
			*ret = extra + 4;
			*ret_n = len;
		}
		extra += 4 + len;
		n -= 4 + len;
	}
	return true;
}

/* A number of 32 bits. If it does not fit, the zip64 field has it. */
static bool
widen_number(uint64_t *value, const unsigned char **zip64, size_t *n)
{
	if (*value != NO_U32)
		return true;
	if (*n < 8)
		return false;
	*value = get_u64(*zip64);
	*zip64 += 8;
	*n -= 8;
	return true;
}

static int
check_name(const struct reader *r, const struct entry *e)
{
	const char *name = e->full;

	if (e->full_len > ZIP_MAX_NAME_BYTES)
		return err_set(r->err, PAWL_ELIMIT, "%s: a member's name of %zu bytes, at most %u are possible",
		               r->source->what, e->full_len, ZIP_MAX_NAME_BYTES);
	if (strlen(name) != e->full_len || !text_is_utf8(name, e->full_len) || strchr(name, '\\') || !text_is_key(name))
		return refuse_zip(r, "a member has no safe name");
	return 0;
}

static int
read_central(struct reader *r, const unsigned char *p, size_t left, struct entry *e, size_t *ret_len)
{
	const unsigned char *zip64;
	size_t n_zip64;

	if (left < CENTRAL_BYTES || get_u32(p) != CENTRAL_MAGIC)
		return refuse_zip(r, "the directory of the zip archive is damaged");
	const size_t n_name = get_u16(p + 28), n_extra = get_u16(p + 30), n_comment = get_u16(p + 32);
	if (n_name + n_extra + n_comment > left - CENTRAL_BYTES)
		return refuse_zip(r, "the directory of the zip archive is damaged");
	e->full_len = n_name;
	e->full = bump_strndup(r->memory, (const char *)p + CENTRAL_BYTES, n_name);
	if (!e->full)
		return err_nomem(r->err, r->source->what);
	TRY(check_name(r, e));
	e->flags = get_u16(p + 8);
	e->method = get_u16(p + 10);
	e->crc = get_u32(p + 16);
	e->member.nbytes = get_u32(p + 20);
	e->plain_nbytes = get_u32(p + 24);
	e->header = get_u32(p + 42);
	const unsigned known = e->method == DEFLATED ? KNOWN_FLAGS | DEFLATE_FLAGS : KNOWN_FLAGS;
	if (get_u16(p + 34) != 0 || (e->flags & ~known) != 0 || (e->method != STORED && e->method != DEFLATED))
		return err_set(r->err, PAWL_EUNSUPPORTED,
		               "%s: member '%.200s' is encrypted, or something else that pawl does not read",
		               r->source->what, e->full);
	if (!find_zip64(p + CENTRAL_BYTES + n_name, n_extra, &zip64, &n_zip64) ||
	    !widen_number(&e->plain_nbytes, &zip64, &n_zip64) || !widen_number(&e->member.nbytes, &zip64, &n_zip64) ||
	    !widen_number(&e->header, &zip64, &n_zip64) || n_zip64 != 0 ||
	    (e->method == STORED && e->plain_nbytes != e->member.nbytes))
		return wrong_member(r, e, "its sizes in the directory are damaged");
	e->member.compressed = e->method != STORED;
	e->member.crc = e->method == STORED ? e->crc : 0;
	e->member.plain_nbytes = e->plain_nbytes;
	e->member.plain_crc = e->crc;
	*ret_len = CENTRAL_BYTES + n_name + n_extra + n_comment;
	return 0;
}

static int
read_directory(struct reader *r, uint64_t n)
{
	PAWL_FREE unsigned char *bytes = mem_alloc((size_t)r->directory_bytes);
	size_t at = 0, len;

	r->entries = mem_zalloc((size_t)n, sizeof(*r->entries));
	if (!bytes || !r->entries)
		return err_nomem(r->err, r->source->what);
	TRY(source_read(r->source, r->directory, bytes, (size_t)r->directory_bytes, r->err));
	for (; r->n < n; r->n++, at += len)
		TRY(read_central(r, bytes + at, (size_t)r->directory_bytes - at, &r->entries[r->n], &len));
	return at == r->directory_bytes ? 0
	                                : refuse_zip(r, "the directory of the zip archive holds more than its members");
}

/* ----------------------------------------------------------------- members */

static bool
sizes_agree(uint64_t local, uint64_t central, bool may_be_zero)
{
	return local == central || (may_be_zero && local == 0);
}

/* The extra fields of a local header must be complete, and their sizes must be the directory's.
 * torch puts the header's own offset there for members that begin beyond 4 GiB, and the sizes of
 * members larger than 4 GiB. */
static int
check_local_extra(struct reader *r, const struct entry *e, uint64_t at, size_t n, bool has_64_sizes)
{
	PAWL_FREE unsigned char *large = NULL; /* padding to pages */
	const unsigned char *extra, *zip64;
	size_t n_zip64;

	if (n <= WINDOW_BYTES) {
		TRY(read_window(r, at, n, &extra));
	} else {
		extra = large = mem_alloc(n);
		if (!large)
			return err_nomem(r->err, r->source->what);
		TRY(source_read(r->source, at, large, n, r->err));
	}
	if (!find_zip64(extra, n, &zip64, &n_zip64))
		return wrong_member(r, e, "the extra fields of its header are damaged");
	if (has_64_sizes &&
	    (n_zip64 < 16 || get_u64(zip64) != e->plain_nbytes || get_u64(zip64 + 8) != e->member.nbytes))
		return wrong_member(r, e, "its header and the directory do not agree");
	return 0;
}

static int
read_local(struct reader *r, struct entry *e)
{
	const unsigned char *p;
	uint64_t end;

	TRY(read_window(r, e->header, LOCAL_BYTES, &p));
	const size_t n_name = get_u16(p + 26), n_extra = get_u16(p + 28);
	const bool later = (e->flags & FLAG_DESCRIPTOR) != 0; /* sizes and checksum may follow the payload */
	const bool is_64 = get_u32(p + 18) == NO_U32 && get_u32(p + 22) == NO_U32;
	if (get_u32(p) != LOCAL_MAGIC || get_u16(p + 6) != e->flags || get_u16(p + 8) != e->method ||
	    n_name != e->full_len || !sizes_agree(get_u32(p + 14), e->crc, later) ||
	    (!is_64 && (!sizes_agree(get_u32(p + 18), e->member.nbytes, later) ||
	                !sizes_agree(get_u32(p + 22), e->plain_nbytes, later))))
		return wrong_member(r, e, "its header and the directory do not agree");
	e->member.begin = e->header + LOCAL_BYTES + n_name + n_extra;
	TRY(read_window(r, e->header + LOCAL_BYTES, n_name, &p));
	if (memcmp(p, e->full, n_name) != 0)
		return wrong_member(r, e, "its header has another name");
	TRY(check_local_extra(r, e, e->header + LOCAL_BYTES + n_name, n_extra, is_64));
	if (!mem_add_ok(e->member.begin, e->member.nbytes, &end) || end > r->directory)
		return wrong_member(r, e, "it reaches into the directory");
	return 0;
}

/* Where the member ends, with the descriptor that may follow it. */
static int
read_descriptor(struct reader *r, const struct entry *e, uint64_t *ret_end)
{
	const uint64_t end = e->member.begin + e->member.nbytes;
	const unsigned char *p;

	*ret_end = end;
	if (!(e->flags & FLAG_DESCRIPTOR))
		return 0;
	TRY(read_window(r, end, 16, &p));
	if (get_u32(p) != DESCRIPTOR_MAGIC || get_u32(p + 4) != e->crc)
		return wrong_member(r, e, "what follows it does not agree with the directory");
	if (get_u32(p + 8) == e->member.nbytes && get_u32(p + 12) == e->plain_nbytes) {
		*ret_end = end + 16;
		return 0;
	}
	TRY(read_window(r, end, 24, &p));
	if (get_u64(p + 8) != e->member.nbytes || get_u64(p + 16) != e->plain_nbytes)
		return wrong_member(r, e, "what follows it does not agree with the directory");
	*ret_end = end + 24;
	return 0;
}

static int
compare_headers(const void *pa, const void *pb)
{
	const struct entry *a = pa, *b = pb;

	return (a->header > b->header) - (a->header < b->header);
}

static int
read_members(struct reader *r)
{
	uint64_t end = 0;

	qsort(r->entries, r->n, sizeof(*r->entries), compare_headers);
	if (r->n > 0 && r->entries[0].header != 0)
		return refuse_zip(r, "the zip archive does not begin with a member");
	for (size_t i = 0; i < r->n; i++) {
		struct entry *e = &r->entries[i];

		if (e->header < end)
			return wrong_member(r, e, "it overlaps the member before it");
		TRY(read_local(r, e));
		TRY(read_descriptor(r, e, &end));
		if (end > r->directory)
			return wrong_member(r, e, "it reaches into the directory");
	}
	return 0;
}

/* ------------------------------------------------------------------- table */

static int
compare_members(const void *pa, const void *pb)
{
	const struct zip_member *a = pa, *b = pb;

	return strcmp(a->name, b->name);
}

static int
make_table(struct reader *r, bool is_flat, struct zip *ret)
{
	struct zip_member *members = bump_array(r->memory, r->n, sizeof(*members));
	const char *first = r->n > 0 ? r->entries[0].full : "", *slash = is_flat ? NULL : strchr(first, '/');
	size_t len = slash ? (size_t)(slash - first) + 1 : 0;

	ret->folder = bump_strndup(r->memory, first, len > 0 ? len - 1 : 0);
	if (!members || !ret->folder)
		return err_nomem(r->err, r->source->what);
	for (size_t i = 0; i < r->n; i++) {
		const struct entry *e = &r->entries[i];

		if (!is_flat && (len == 0 || strncmp(e->full, first, len) != 0))
			return wrong_member(r, e, "it is not in the same folder as the others");
		members[i] = e->member;
		members[i].name = e->full + len;
	}
	if (r->n > 0)
		qsort(members, r->n, sizeof(*members), compare_members);
	for (size_t i = 1; i < r->n; i++) {
		if (strcmp(members[i - 1].name, members[i].name) == 0)
			return err_set(r->err, PAWL_ECORRUPT, "%s: member '%.200s' appears twice", r->source->what,
			               members[i].name);
	}
	ret->members = members;
	ret->n = r->n;
	return 0;
}

static void
clean_reader(struct reader *r)
{
	mem_free(r->entries);
}

static int
open_archive(const struct source *source, struct bump *memory, bool is_flat, struct zip *ret, struct pawl_error *err)
{
	PAWL_CLEAN(clean_reader) struct reader r = {.source = source, .memory = memory, .err = err};
	uint64_t n;

	TRY(read_end(&r, &n));
	TRY(read_directory(&r, n));
	TRY(read_members(&r));
	return make_table(&r, is_flat, ret);
}

int
zip_open(const struct source *source, struct bump *memory, struct zip *ret, struct pawl_error *err)
{
	return open_archive(source, memory, false, ret, err);
}

int
zip_open_flat(const struct source *source, struct bump *memory, struct zip *ret, struct pawl_error *err)
{
	return open_archive(source, memory, true, ret, err);
}

const struct zip_member *
zip_find(const struct zip *z, const char *name, size_t len)
{
	size_t lo = 0, hi = z->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const char *found = z->members[mid].name;
		size_t n = strlen(found);
		int c = memcmp(found, name, n < len ? n : len);

		c = c ? c : (n > len) - (n < len);
		if (c == 0)
			return &z->members[mid];
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

int
zip_check_stored(const struct source *source, const struct zip *z, struct pawl_error *err)
{
	for (size_t i = 0; i < z->n; i++) {
		if (z->members[i].compressed)
			return err_set(err, PAWL_EUNSUPPORTED, "%s: member '%.200s' is compressed; expected it stored",
			               source->what, z->members[i].name);
	}
	return 0;
}

int
zip_read(const struct source *source, const struct zip_member *member, uint64_t most, struct bump *memory,
         struct pawl_slice *ret, struct pawl_error *err)
{
	if (member->nbytes > most)
		return err_set(err, PAWL_ELIMIT, "%s: member '%.200s' of %llu bytes, at most %llu are read",
		               source->what, member->name, (unsigned long long)member->nbytes,
		               (unsigned long long)most);
	void *bytes = bump_alloc(memory, (size_t)member->nbytes);
	if (!bytes)
		return err_nomem(err, source->what);
	TRY(source_read(source, member->begin, bytes, (size_t)member->nbytes, err));
	uint32_t found = crc32_bytes(bytes, (size_t)member->nbytes);
	if (member->crc != 0 && found != member->crc)
		return err_set(err, PAWL_ECORRUPT,
		               "%s: member '%.200s' is not what was written: CRC %08x expected, %08x found",
		               source->what, member->name, member->crc, found);
	*ret = (struct pawl_slice){bytes, (size_t)member->nbytes};
	return 0;
}
