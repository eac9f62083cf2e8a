/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_sum: the checksum of a body, which is sent with it for the server to check. See object.h.
 */
#include "store/object/object.h"

#include <string.h>
#include <strings.h>

#include "base/crc.h"
#include "base/err.h"
#include "base/text.h"
#include "store/object/digest.h"

static const struct {
	const char *name, *header, *element;
} kinds[] = {
	[OBJECT_SUM_NONE] = {"none", NULL, NULL},
	[OBJECT_SUM_CRC32C] = {"CRC32C", "x-amz-checksum-crc32c", "ChecksumCRC32C"},
	[OBJECT_SUM_CRC64NVME] = {"CRC64NVME", "x-amz-checksum-crc64nvme", "ChecksumCRC64NVME"},
	[OBJECT_SUM_MD5] = {"MD5", "Content-MD5", NULL},
	[OBJECT_SUM_SHA256] = {"SHA256", "x-amz-checksum-sha256", "ChecksumSHA256"},
};

const char *
object_sum_name(enum object_sum sum)
{
	return kinds[sum].name;
}

const char *
object_sum_header(enum object_sum sum)
{
	return kinds[sum].header;
}

const char *
object_sum_element(enum object_sum sum)
{
	return kinds[sum].element;
}

int
object_sum_find(const char *name)
{
	for (int i = OBJECT_SUM_CRC32C; i <= OBJECT_SUM_SHA256; i++)
		if (strcasecmp(name, kinds[i].name) == 0)
			return i == OBJECT_SUM_CRC64NVME && !crc64nvme_exists() ? OBJECT_SUM_CRC32C : i;
	return -1;
}

static int
put_base64(const void *bytes, size_t n, char out[48], struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	text_put_base64(&text, bytes, n);
	TRY(buf_check(&text, "sum of a body", err));
	text_copy(out, 48, buf_str(&text));
	return 0;
}

int
object_sum_text(uint64_t crc, size_t n_bytes, char out[48], struct pawl_error *err)
{
	unsigned char bytes[8];
	for (size_t i = 0; i < n_bytes; i++)
		bytes[i] = (unsigned char)(crc >> (8 * (n_bytes - 1 - i)));
	return put_base64(bytes, n_bytes, out, err);
}

static uint64_t
crc_of(enum object_sum sum, const struct object_request *rq)
{
	uint64_t crc = 0;
	for (size_t i = 0; i < rq->n_body; i++) {
		const struct pawl_slice *s = &rq->body[i];
		crc = sum == OBJECT_SUM_CRC32C ? crc32c((uint32_t)crc, s->ptr, s->len) : crc64nvme(crc, s->ptr, s->len);
	}
	return crc;
}

int
object_sum_body(enum object_sum sum, struct object_request *rq, struct pawl_error *err)
{
	unsigned char hash[32];
	switch (sum) {
	case OBJECT_SUM_NONE:
		return 0;
	case OBJECT_SUM_CRC32C:
	case OBJECT_SUM_CRC64NVME:
		rq->crc = crc_of(sum, rq);
		return object_sum_text(rq->crc, sum == OBJECT_SUM_CRC32C ? 4 : 8, rq->sum, err);
	case OBJECT_SUM_MD5:
		TRY(digest_md5(rq->body, rq->n_body, hash, err));
		return put_base64(hash, 16, rq->sum, err);
	case OBJECT_SUM_SHA256:
		TRY(digest_sha256(rq->body, rq->n_body, hash, err));
		return put_base64(hash, 32, rq->sum, err);
	}
	return 0;
}
