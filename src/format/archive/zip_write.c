/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip_write: see zip_write.h. Fields follow PKWARE's APPNOTE.TXT 6.3.9, sections 4.3 and 4.5.3.
 * Fields that torch leaves at 0 (versions, times) stay 0.
 */
#include "format/archive/zip_write.h"

#include <string.h>

#define LOCAL_BYTES 30u
#define FLAGS_EMPTY 0x0800u      /* the name is UTF-8 */
#define FLAGS_DESCRIPTOR 0x0808u /* and checksum and sizes follow the contents */
#define ALIGN_TAG 0x4246u        /* "FB" */

static void
put_le(struct buf *b, uint64_t value, unsigned nbytes)
{
	for (unsigned i = 0; i < nbytes; i++)
		buf_putc(b, (char)(value >> (8 * i)));
}

static void
put_zeros(struct buf *b, unsigned nbytes)
{
	for (unsigned i = 0; i < nbytes; i++)
		buf_putc(b, '\0');
}

static unsigned
flags_of(const struct zip_entry *entry)
{
	return entry->nbytes > 0 ? FLAGS_DESCRIPTOR : FLAGS_EMPTY;
}

/* Bytes of an extra field of 64-bit sizes and place, with its own header; 0 = neither needs it. */
static unsigned
wide_bytes(const struct zip_entry *entry)
{
	const unsigned n = (entry->nbytes >= UINT32_MAX ? 16u : 0u) + (entry->header >= UINT32_MAX ? 8u : 0u);

	return n > 0 ? n + 4 : 0;
}

static void
put_wide(const struct zip_entry *entry, struct buf *out)
{
	const unsigned n = wide_bytes(entry);

	if (n == 0)
		return;
	put_le(out, 1, 2);
	put_le(out, n - 4, 2);
	if (entry->nbytes >= UINT32_MAX) {
		put_le(out, entry->nbytes, 8);
		put_le(out, entry->nbytes, 8);
	}
	if (entry->header >= UINT32_MAX)
		put_le(out, entry->header, 8);
}

void
zip_begin_member(struct zip_entry *entry, uint64_t at, struct buf *out)
{
	const size_t name_len = strlen(entry->name);
	unsigned wide, pad;

	entry->header = at;
	wide = wide_bytes(entry);
	pad = (unsigned)(-(at + LOCAL_BYTES + name_len + wide + 4) % ZIP_ALIGN);
	put_le(out, 0x04034b50, 4);
	put_zeros(out, 2); /* version */
	put_le(out, flags_of(entry), 2);
	put_zeros(out, 2 + 4 + 4 + 4 + 4); /* method, time, checksum, sizes */
	put_le(out, name_len, 2);
	put_le(out, wide + 4 + pad, 2);
	buf_put(out, entry->name, name_len);
	put_wide(entry, out);
	put_le(out, ALIGN_TAG, 2);
	put_le(out, pad, 2);
	for (unsigned i = 0; i < pad; i++)
		buf_putc(out, 'Z');
}

size_t
zip_end_member(const struct zip_entry *entry, struct buf *out)
{
	const unsigned width = wide_bytes(entry) > 0 ? 8 : 4;
	size_t sum;

	if (entry->nbytes == 0)
		return SIZE_MAX;
	put_le(out, 0x08074b50, 4);
	sum = out->len;
	put_le(out, entry->crc, 4);
	put_le(out, entry->nbytes, width);
	put_le(out, entry->nbytes, width);
	return sum;
}

static uint64_t
at_most(uint64_t value, uint64_t most)
{
	return value < most ? value : most;
}

static size_t
put_entry(const struct zip_entry *entry, struct buf *out)
{
	const size_t name_len = strlen(entry->name);
	size_t sum;

	put_le(out, 0x02014b50, 4);
	put_zeros(out, 4); /* versions */
	put_le(out, flags_of(entry), 2);
	put_zeros(out, 2 + 4); /* method, time */
	sum = out->len;
	put_le(out, entry->crc, 4);
	put_le(out, at_most(entry->nbytes, UINT32_MAX), 4);
	put_le(out, at_most(entry->nbytes, UINT32_MAX), 4);
	put_le(out, name_len, 2);
	put_le(out, wide_bytes(entry), 2);
	put_zeros(out, 2 + 2 + 2 + 4); /* comment, disk, attributes */
	put_le(out, at_most(entry->header, UINT32_MAX), 4);
	buf_put(out, entry->name, name_len);
	put_wide(entry, out);
	return sum;
}

void
zip_put_directory(const struct zip_entry *entries, size_t n, uint64_t at, struct buf *out, size_t *sums)
{
	const size_t begin = out->len;
	uint64_t nbytes;

	for (size_t i = 0; i < n; i++)
		sums[i] = put_entry(&entries[i], out);
	nbytes = out->len - begin;
	put_le(out, 0x06064b50, 4); /* end record of 64 bits */
	put_le(out, 44, 8);
	put_le(out, 0x2d001e, 4); /* versions */
	put_zeros(out, 4 + 4);    /* disks */
	put_le(out, n, 8);
	put_le(out, n, 8);
	put_le(out, nbytes, 8);
	put_le(out, at, 8);
	put_le(out, 0x07064b50, 4); /* its locator */
	put_le(out, 0, 4);
	put_le(out, at + nbytes, 8);
	put_le(out, 1, 4);
	put_le(out, 0x06054b50, 4);
	put_zeros(out, 2 + 2);
	put_le(out, at_most(n, UINT16_MAX), 2);
	put_le(out, at_most(n, UINT16_MAX), 2);
	put_le(out, at_most(nbytes, UINT32_MAX), 4);
	put_le(out, at_most(at, UINT32_MAX), 4);
	put_zeros(out, 2); /* comment */
}
