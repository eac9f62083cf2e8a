/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec: see codec.h. This file has the table of formats; the writer, the reader and the source
 * have their own files.
 */
#include "format/codec/codec.h"

#include <string.h>

#include "base/err.h"
#include "base/vec.h"
#include "format/codec/codec_own.h"

static const struct codec *const rows[] = {&codec_bz2, &codec_gz,     &codec_lz4, &codec_lzma,
                                           &codec_lzo, &codec_planes, &codec_xz,  &codec_zst};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

const struct codec *
codec_of_name(const char *file_name)
{
	const size_t len = strlen(file_name);

	for (size_t i = 0; i < N_ROWS; i++) {
		const size_t n = strlen(rows[i]->suffix);
		if (len > n && strcmp(file_name + len - n, rows[i]->suffix) == 0)
			return rows[i];
	}
	return NULL;
}

size_t
codec_stem_len(const struct codec *codec, const char *file_name)
{
	return strlen(file_name) - strlen(codec->suffix);
}

const struct codec *
codec_of_bytes(const void *ptr, size_t n)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (rows[i]->n_magic > 0 && n >= rows[i]->n_magic && memcmp(ptr, rows[i]->magic, rows[i]->n_magic) == 0)
			return rows[i];
	return NULL;
}

const char *
codec_name(const struct codec *codec)
{
	return codec->name;
}

int
codec_check_level(const struct codec *codec, int level, struct pawl_error *err)
{
	if (level >= 0 && level <= codec->max_level)
		return 0;
	return err_set(err, PAWL_EUSAGE, "%s: expected a level of 1 to %u, or 0 for the default of %u, found %d",
	               codec->name, codec->max_level, codec->default_level, level);
}

int
codec_really(const struct codec **codec, const struct source *compressed, struct pawl_error *err)
{
	unsigned char first[sizeof(codec_xz.magic)];

	if (*codec != &codec_lzma || compressed->nbytes < codec_xz.n_magic)
		return 0;
	TRY(source_read(compressed, 0, first, codec_xz.n_magic, err));
	if (memcmp(first, codec_xz.magic, codec_xz.n_magic) == 0)
		*codec = &codec_xz;
	return 0;
}

/* ------------------------------------------------------------------ tables */

int
codec_table_add(struct codec_table *t, const struct codec_frame *frame, struct pawl_error *err)
{
	if (t->n == CODEC_MAX_FRAMES)
		return err_set(err, PAWL_ELIMIT, "more than %llu frames", (unsigned long long)CODEC_MAX_FRAMES);
	struct codec_frame *added = vec_add_item((void **)&t->frames, &t->n, &t->cap, sizeof(*t->frames));
	if (!added)
		return err_nomem(err, "table of frames");
	*added = *frame;
	return 0;
}

void
codec_table_clear(struct codec_table *t)
{
	mem_free(t->frames);
	*t = (struct codec_table){0};
}
