/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign: see foreign.h. Finds the format of a path and has its reader build the manifest:
 *
 *   stat -> format by name or first bytes -> its reader: header -> state, tensor table, files
 *        -> manifest
 */
#include "foreign/foreign.h"

#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "base/text.h"
#include "foreign/foreign_formats.h"
#include "foreign/compressed_file.h"

#define SNIFF_BYTES 256u

static int
sniff_format(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
             struct pawl_error *err)
{
	PAWL_CLEAN(store_opened_close) struct store_opened f = {.store = store};
	unsigned char first[SNIFF_BYTES];
	uint64_t nbytes;

	TRY(store_open_reader(store, key, &f.reader, &nbytes, err));
	size_t n = nbytes < sizeof(first) ? (size_t)nbytes : sizeof(first);
	if (n > 0)
		TRY(store_read(store, f.reader, 0, first, n, err));
	for (size_t i = 0; foreign_formats[i]; i++) {
		if (foreign_formats[i]->looks && foreign_formats[i]->looks(first, n, nbytes)) {
			*ret = foreign_formats[i];
			return 0;
		}
	}
	return err_set(
		err, PAWL_ENOTFOUND,
		"%s is not a checkpoint: expected a checkpoint's folder, or a file of safetensors, torch.save or numpy",
		given);
}

/* Does the folder have this file? */
static int
holds_file(struct store *store, const char *folder, const char *name, bool *ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store_entry entry;

	buf_printf(&key, "%s/%s", folder, name);
	TRY(buf_check(&key, folder, err));
	int rc = store_stat(store, buf_str(&key), &entry, err);
	*ret = rc == 0 && !entry.is_folder;
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

static int
detect_folder(struct store *store, const char *key, const struct foreign_format **ret, struct pawl_error *err)
{
	bool found;

	*ret = NULL;
	TRY(holds_file(store, key, MANIFEST_NAME, &found, err));
	for (size_t i = 0; foreign_formats[i] && !found; i++) {
		if (!foreign_formats[i]->mark) /* the first one found counts */
			continue;
		TRY(holds_file(store, key, foreign_formats[i]->mark, &found, err));
		if (found)
			*ret = foreign_formats[i];
	}
	return 0;
}

const char *
pawl_foreign_name(size_t i, int *ret_is_mark)
{
	for (const struct foreign_format *const *f = foreign_formats; *f; f++) {
		*ret_is_mark = (*f)->mark != NULL;
		if (*ret_is_mark && i-- == 0)
			return (*f)->mark;
		for (size_t k = 0; k < 3 && (*f)->suffixes[k]; k++)
			if (i-- == 0)
				return (*f)->suffixes[k];
	}
	return NULL;
}

bool
foreign_is_folder(const struct foreign_format *format)
{
	return format->mark != NULL;
}

int
foreign_detect(struct store *store, const char *key, const char *given, const struct foreign_format **ret,
               struct pawl_error *err)
{
	struct store_entry entry;
	int rc = store_stat(store, key, &entry, err);

	*ret = NULL;
	if (rc == PAWL_ENOTFOUND || (rc == 0 && entry.is_link))
		return 0;
	TRY(rc);
	if (entry.is_folder)
		return detect_folder(store, key, ret, err);
	PAWL_FREE char *name = mem_strndup(given, compressed_file_name_len(given)); /* "m.pt.zst" is a .pt */
	if (!name)
		return err_nomem(err, given);
	for (size_t i = 0; foreign_formats[i]; i++) {
		for (size_t k = 0; k < 3 && foreign_formats[i]->suffixes[k]; k++) {
			if (text_ends_with(name, foreign_formats[i]->suffixes[k])) {
				*ret = foreign_formats[i];
				return 0;
			}
		}
	}
	return sniff_format(store, key, given, ret, err);
}

int
foreign_manifest(const struct foreign_format *format, struct store *store, const char *key, struct manifest **ret,
                 struct pawl_error *err)
{
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = mem_zalloc(1, sizeof(*m));
	PAWL_CLEAN(buf_clear) struct buf self_key = {0};
	struct store_entry entry;

	buf_printf(&self_key, "%s%s%s", key, format->mark ? "/" : "", format->mark ? format->mark : "");
	if (!m || self_key.failed)
		return err_nomem(err, key);
	TRY(store_stat(store, buf_str(&self_key), &entry, err));
	m->format = format->name;
	m->id = 1;
	m->world_size = 1;
	m->unix_ns = entry.mtime_ns;
	m->progress = (struct pawl_progress)PAWL_PROGRESS_INIT;
	/* Identifies this very file, so that a replacement is noticed. */
	const uint64_t self[2] = {entry.nbytes, (uint64_t)entry.mtime_ns};
	sum_to_hex(sum_bytes(self, sizeof(self)), m->token);
	TRY(format->read(store, key, m, err));
	*ret = steal(&m);
	return 0;
}
