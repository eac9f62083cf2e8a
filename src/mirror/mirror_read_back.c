/* SPDX-License-Identifier: Apache-2.0 */
/* mirror_read_back: reads the contents of a mirror again and compares them with the manifest's
 * checksums. Promise P14. */
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "mirror/mirror.h"

static int
read_file_back(struct store *there, const char *key, const struct manifest_file *f, struct pawl_meter *meter,
               int64_t deadline_ms, struct pawl_error *err)
{
	struct store_reader *reader = NULL;
	uint64_t size = 0;
	PAWL_FREE char *bytes = mem_zalloc(f->block_bytes < f->nbytes ? f->block_bytes : f->nbytes + 1, 1);
	if (!bytes)
		return err_nomem(err, "mirror");
	TRY(store_open_reader(there, key, &reader, &size, err));
	int rc = size == f->nbytes ? 0
	                           : err_set(err, PAWL_ECORRUPT, "%s: expected %llu bytes, found %llu", key,
	                                     (unsigned long long)f->nbytes, (unsigned long long)size);
	for (size_t i = 0; i < f->n_blocks && f->sums && rc == 0; i++) {
		uint64_t at = i * f->block_bytes;
		size_t n = (size_t)(f->nbytes - at < f->block_bytes ? f->nbytes - at : f->block_bytes);
		if (meter && __atomic_load_n(&meter->cancel, __ATOMIC_RELAXED))
			rc = err_set(err, PAWL_ECANCELLED, "%s: cancelled while it was read back", key);
		else if (clock_mono_ms() > deadline_ms)
			rc = err_set(err, PAWL_ETIMEOUT, "%s: reading it back takes too long", key);
		else
			rc = store_read(there, reader, at, bytes, n, err);
		if (rc == 0 && !sum_equal(f->sums[i], sum_bytes(bytes, n)))
			rc = err_set(err, PAWL_ECORRUPT, "%s: bytes %llu to %llu are damaged in the mirror", key,
			             (unsigned long long)at, (unsigned long long)(at + n));
	}
	store_close_reader(there, reader);
	return rc;
}

int
mirror_read_back(struct store *there, const char *folder, struct pawl_meter *meter, int64_t deadline_ms,
                 struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = NULL;
	PAWL_FREE char *own = mem_printf("%s/" MANIFEST_NAME, folder);
	if (!own)
		return err_nomem(err, "mirror");
	TRY(store_get(there, own, MANIFEST_MAX_BYTES, &text, err));
	TRY(manifest_decode(folder, text.ptr, text.len, false, &m, err));
	for (size_t i = 0; i < m->n_files; i++) {
		PAWL_FREE char *key = mem_printf("%s/%s", folder, m->files[i].name);
		if (!key)
			return err_nomem(err, "mirror");
		TRY(read_file_back(there, key, &m->files[i], meter, deadline_ms, err));
	}
	return 0;
}
