/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_journal: the rows of a saver, in memory and in its file (composer.h):
 *
 *   {"pawl_saver":1,"next":13,"pointed":12,"rows":[{"seq":12,"name":"ep1-ba42-rank0.pt",
 *     "remote":"r/ep1-ba42-rank0.pt","pointer":"r/latest-rank0.pt.symlink","uploaded":true,
 *     "progress":{"epoch":1,"batch":42}},..]}
 *
 * E7: the kept files are known again after a restart.
 */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/vec.h"
#include "jobs/composer/composer.h"
#include "pawl_jobs.h"
#include "state/manifest.h"

#define JOURNAL_MAX_BYTES (64u << 20)

void
composer_row_clear(struct composer_row *row)
{
	mem_free(row->name);
	mem_free(row->remote);
	mem_free(row->pointer);
	row->name = row->remote = row->pointer = NULL;
}

int
composer_add_row(struct pawl_saver *s, const struct composer_row *row, struct pawl_error *err)
{
	if (!array_reserve(s->rows, s->cap_rows, s->n_rows + 1))
		return err_nomem(err, "checkpoint saver");
	s->rows[s->n_rows++] = *row;
	return 0;
}

void
composer_drop_row(struct pawl_saver *s, size_t i)
{
	composer_row_clear(&s->rows[i]);
	memmove(&s->rows[i], &s->rows[i + 1], (s->n_rows - i - 1) * sizeof *s->rows);
	s->n_rows--;
}

/* ------------------------------------------------------------------ writing */

int
composer_journal_write(struct pawl_saver *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const char *comma = "";
	buf_printf(&text, "{\"pawl_saver\":1,\"next\":%llu,\"pointed\":%llu,\"rows\":[",
	           (unsigned long long)s->next_seq, (unsigned long long)s->pointed_seq);
	for (size_t i = 0; i < s->n_rows; i++) {
		const struct composer_row *row = &s->rows[i];
		if (row->replaced)
			continue;
		buf_printf(&text, "%s\n{\"seq\":%llu", comma, (unsigned long long)row->seq);
		comma = ",";
		if (row->name)
			json_add_text(&text, "name", row->name);
		if (row->remote)
			json_add_text(&text, "remote", row->remote);
		if (row->pointer)
			json_add_text(&text, "pointer", row->pointer);
		if (row->uploaded)
			json_add_bool(&text, "uploaded", true);
		json_add_key(&text, "progress");
		manifest_put_progress(&row->progress, &text);
		buf_putc(&text, '}');
	}
	buf_puts(&text, "]}\n");
	TRY(buf_check(&text, s->journal, err));
	return store_put_bytes(s->here, s->journal, text.ptr, text.len, STORE_DURABLE, err);
}

/* ------------------------------------------------------------------ reading */

static char *
take_text(const struct json *object, const char *key)
{
	const struct json *value = json_get(object, key);
	return value && value->type == JSON_STRING ? mem_strdup(value->str) : NULL;
}

/* Rows without a file are dropped: it was never made, or was removed. */
static int
take_row(struct pawl_saver *s, const struct json *object, struct pawl_error *err)
{
	static const struct pawl_progress unknown = PAWL_PROGRESS_INIT;
	struct composer_row row = {.progress = unknown};
	struct store_entry there;
	const struct json *uploaded, *progress;
	if (object->type != JSON_OBJECT)
		return err_set(err, PAWL_ECORRUPT, "%s: a row is not an object", s->journal);
	TRY(json_get_u64(s->journal, object, "seq", &row.seq, err));
	row.name = take_text(object, "name");
	row.remote = take_text(object, "remote");
	row.pointer = take_text(object, "pointer");
	uploaded = json_get(object, "uploaded");
	progress = json_get(object, "progress");
	row.uploaded = uploaded && uploaded->type == JSON_BOOL && uploaded->boolean;
	int rc = progress && progress->type == JSON_OBJECT ? manifest_read_progress(progress, &row.progress, err) : 0;
	bool is_here = rc == 0 && row.name && store_stat(s->here, row.name, &there, NULL) == 0 && !there.is_folder;
	if (is_here)
		rc = composer_add_row(s, &row, err);
	if (!is_here || rc < 0)
		composer_row_clear(&row);
	return rc;
}

static int
take_rows(struct pawl_saver *s, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *root;
	const struct json *rows;
	TRY(json_parse(s->journal, text->ptr, text->len, NULL, &memory, &root, err));
	TRY(json_get_u64(s->journal, root, "next", &s->next_seq, err));
	TRY(json_get_u64(s->journal, root, "pointed", &s->pointed_seq, err));
	TRY(json_get_type(s->journal, root, "rows", JSON_ARRAY, &rows, err));
	for (const struct json *row = rows->first; row; row = row->next)
		TRY(take_row(s, row, err));
	return 0;
}

int
composer_journal_read(struct pawl_saver *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_error why = {0};
	int rc = store_get(s->here, s->journal, JOURNAL_MAX_BYTES, &text, &why);
	if (rc == 0)
		rc = take_rows(s, &text, &why);
	if (rc == PAWL_ECORRUPT || rc == PAWL_ENOTFOUND) {
		while (s->n_rows > 0)
			composer_drop_row(s, s->n_rows - 1);
		rc = 0;
	}
	for (size_t i = 0; i < s->n_rows; i++)
		if (s->rows[i].seq >= s->next_seq)
			s->next_seq = s->rows[i].seq + 1;
	if (s->next_seq == 0)
		s->next_seq = 1;
	return err_give(err, rc, &why);
}
