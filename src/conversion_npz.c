/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_npz: see conversion_npz.h. Called by conversion_plan.c; calls npy.c. A member's sum is only known when its
 * bytes have gone by, so it follows them in a descriptor, as archives that are written to pipes have it. Sizes beyond
 * 32 bits, and offsets, get zip64 fields; the same fields are always there in local headers, as numpy writes them.
 */
#include "conversion_npz.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "format/npy.h"
#include "format/zip.h"

#define SUFFIX ".npy"
#define NO_U32 0xffffffffu
#define NO_U16 0xffffu
#define VERSION_64 45u
#define MADE_BY (3u << 8 | VERSION_64) /* the next attributes are Unix's */
#define FLAGS 0x0808u                  /* a descriptor follows; the name is UTF-8 */
#define DOS_DATE 0x0021u               /* 1980-01-01, the first there is */

static void
put(struct buf *out, uint64_t value, unsigned nbytes)
{
	for (unsigned i = 0; i < nbytes; i++)
		buf_putc(out, (char)(value >> (8 * i) & 0xff));
}

static bool
is_large(const struct npz_member *m)
{
	return m->nbytes >= NO_U32;
}

static void
put_name(struct buf *out, const struct npz_member *m)
{
	buf_puts(out, m->name);
	buf_puts(out, SUFFIX);
}

int
npz_add(struct npz_builder *b, const char *name, int dtype, uint32_t ndim, const uint64_t *shape, uint64_t nbytes,
        size_t ends[3], struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	struct npz_member *m = &b->members[b->n++];
	const size_t begin = b->out->len;

	if (strlen(name) + strlen(SUFFIX) > ZIP_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT,
		               "%.100s..: a name of %zu bytes, in .npz files at most %zu are possible", name,
		               strlen(name), ZIP_MAX_NAME_BYTES - strlen(SUFFIX));
	TRY(npy_encode_header(dtype, ndim, shape, &header, err));
	*m = (struct npz_member){.name = name, .header = b->at, .nbytes = header.len + nbytes};
	put(b->out, 0x04034b50u, 4);
	put(b->out, VERSION_64, 2);
	put(b->out, FLAGS, 2);
	put(b->out, 0, 2); /* stored */
	put(b->out, 0, 2); /* time */
	put(b->out, DOS_DATE, 2);
	put(b->out, 0, 4);
	put(b->out, NO_U32, 4);
	put(b->out, NO_U32, 4);
	put(b->out, strlen(name) + strlen(SUFFIX), 2);
	put(b->out, 20, 2);
	put_name(b->out, m);
	put(b->out, 1, 2); /* the zip64 field */
	put(b->out, 16, 2);
	put(b->out, m->nbytes, 8);
	put(b->out, m->nbytes, 8);
	ends[0] = b->out->len;
	buf_put(b->out, header.ptr, header.len);
	ends[1] = b->out->len;
	put(b->out, 0x08074b50u, 4);
	put(b->out, m->nbytes, 8); /* of 8 bytes, since the header has a zip64 field */
	put(b->out, m->nbytes, 8);
	ends[2] = b->out->len;
	b->at += (b->out->len - begin) + nbytes + 4;
	return 0;
}

/* A member of the directory, but for its sum. */
static void
put_central(struct buf *out, const struct npz_member *m, size_t *end)
{
	const bool far = m->header >= NO_U32, large = is_large(m);
	const unsigned extra = (large ? 16u : 0u) + (far ? 8u : 0u);

	put(out, 0x02014b50u, 4);
	put(out, MADE_BY, 2);
	put(out, VERSION_64, 2);
	put(out, FLAGS, 2);
	put(out, 0, 2);
	put(out, 0, 2);
	put(out, DOS_DATE, 2);
	*end = out->len;
	put(out, large ? NO_U32 : m->nbytes, 4);
	put(out, large ? NO_U32 : m->nbytes, 4);
	put(out, strlen(m->name) + strlen(SUFFIX), 2);
	put(out, extra ? extra + 4 : 0, 2);
	put(out, 0, 2); /* comment */
	put(out, 0, 2); /* volume */
	put(out, 0, 2);
	put(out, (uint64_t)0600 << 16, 4);
	put(out, far ? NO_U32 : m->header, 4);
	put_name(out, m);
	if (!extra)
		return;
	put(out, 1, 2);
	put(out, extra, 2);
	if (large) {
		put(out, m->nbytes, 8);
		put(out, m->nbytes, 8);
	}
	if (far)
		put(out, m->header, 8);
}

int
npz_finish(struct npz_builder *b, size_t *ends, struct pawl_error *err)
{
	const uint64_t directory = b->at;
	const size_t begin = b->out->len;

	for (size_t i = 0; i < b->n; i++)
		put_central(b->out, &b->members[i], &ends[i]);
	const uint64_t nbytes = b->out->len - begin + 4 * (uint64_t)b->n;
	const bool is_64 = b->n >= NO_U16 || directory >= NO_U32 || nbytes >= NO_U32;
	if (is_64) {
		put(b->out, 0x06064b50u, 4);
		put(b->out, 44, 8);
		put(b->out, VERSION_64, 2);
		put(b->out, VERSION_64, 2);
		put(b->out, 0, 8); /* volumes */
		put(b->out, b->n, 8);
		put(b->out, b->n, 8);
		put(b->out, nbytes, 8);
		put(b->out, directory, 8);
		put(b->out, 0x07064b50u, 4);
		put(b->out, 0, 4);
		put(b->out, directory + nbytes, 8);
		put(b->out, 1, 4);
	}
	put(b->out, 0x06054b50u, 4);
	put(b->out, 0, 4);
	put(b->out, is_64 ? NO_U16 : b->n, 2);
	put(b->out, is_64 ? NO_U16 : b->n, 2);
	put(b->out, is_64 ? NO_U32 : nbytes, 4);
	put(b->out, is_64 ? NO_U32 : directory, 4);
	put(b->out, 0, 2);
	return buf_check(b->out, "npz", err);
}
