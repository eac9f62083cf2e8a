/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror_journal: the file that records which checkpoints and marks a mirror has (format in
 * mirrors.h). It may be lost at any time: the mirror is listed, and marks are put again (P2, P12).
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/sum.h"
#include "base/vec.h"
#include "catalog/mirrors.h"

#define JOURNAL_MAX_BYTES (64u << 20)

char *
mirror_journal_key(const char *url)
{
	char hex[33] = "";
	sum_to_hex(sum_bytes(url, strlen(url)), hex);
	return mem_printf(MIRROR_FOLDER "/%.16s.json", hex);
}

static int
take_row(struct mirror *m, const struct json *row, struct pawl_error *err)
{
	const struct json *token = row->type == JSON_ARRAY && row->len >= 2 ? row->first->next : NULL;
	bool good = token && (row->first->type == JSON_INT || row->first->type == JSON_UINT) &&
	            token->type == JSON_STRING && token->len == 32;
	if (!good)
		return err_set(err, PAWL_ECORRUPT, "%s: a row is not [id, token]", m->journal_key);
	TRY(mirror_note_done(m, row->first->u, token->str, row->len > 2, err));
	mirror_find_done(m, row->first->u)->verified = row->len == 2; /* no other value is written */
	return 0;
}

static int
take_marks(struct mirror *m, const struct json *row, struct pawl_error *err)
{
	const struct json *sum = row->type == JSON_ARRAY && row->len >= 2 ? row->first->next : NULL;
	struct sum128 marks;
	bool good = sum && (row->first->type == JSON_INT || row->first->type == JSON_UINT) &&
	            sum->type == JSON_STRING && sum->len == 32 && sum_from_hex(sum->str, &marks);
	if (!good)
		return err_set(err, PAWL_ECORRUPT, "%s: marks are not [id, checksum]", m->journal_key);
	struct mirror_done *done = mirror_find_done(m, row->first->u);
	if (done && !done->retired)
		done->marks = marks;
	return 0;
}

/* A training run has its own; maintenance takes that of the last training. */
static int
take_every(struct mirror *m, const struct json *every, struct pawl_error *err)
{
	if (!every || every->type != JSON_STRING || m->every_text || (m->given && !m->run->opts.maintenance))
		return 0;
	TRY(triggers_parse(every->str, &m->every, err));
	m->every_text = mem_strdup(every->str);
	return m->every_text ? 0 : err_nomem(err, "mirror");
}

static int
read_rows(struct mirror *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const struct json *done, *marks;
	struct json *root;
	TRY(store_get(m->run->store, m->journal_key, JOURNAL_MAX_BYTES, &text, err));
	TRY(json_parse(m->journal_key, text.ptr, text.len, NULL, &memory, &root, err));
	TRY(take_every(m, json_get(root, "every"), err));
	TRY(json_get_type(m->journal_key, root, "done", JSON_ARRAY, &done, err));
	for (const struct json *row = done->first; row; row = row->next)
		TRY(take_row(m, row, err));
	if (!json_get(root, "marks"))
		return 0; /* as it was written before it had marks */
	TRY(json_get_type(m->journal_key, root, "marks", JSON_ARRAY, &marks, err));
	for (const struct json *row = marks->first; row; row = row->next)
		TRY(take_marks(m, row, err));
	return 0;
}

void
mirror_journal_read(struct mirror *m)
{
	struct pawl_error ignored = {0};
	if (read_rows(m, &ignored) < 0)
		m->n_done = 0;
}

/* The run's lock is held. */
static void
put_marks(const struct mirror *m, struct buf *text)
{
	const struct catalog *c = m->run->catalog;
	const char *comma = "";
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];
		if (!e->summary || e->at || !mirror_has_verified(m, e->id, e->summary->token))
			continue;
		const struct sum128 marks = mirror_find_done(m, e->id)->marks;
		char hex[33] = "";
		if (sum_equal(marks, (struct sum128){0, 0}))
			continue;
		sum_to_hex(marks, hex);
		buf_printf(text, "%s\n[%llu,\"%s\"]", comma, (unsigned long long)e->id, hex);
		comma = ",";
	}
}

int
mirror_journal_write(struct mirror *m, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const struct catalog *c = m->run->catalog;
	const char *comma = "";
	buf_puts(&text, "{\"pawl_mirror\":1");
	json_add_text(&text, "url", m->url);
	if (m->every_text)
		json_add_text(&text, "every", m->every_text);
	buf_puts(&text, ",\"done\":[");
	run_lock(m->run);
	m->n_written = m->n_changes;
	for (size_t i = 0; i < c->n; i++) {
		const struct catalog_entry *e = &c->entries[i];
		if (!e->summary || e->at || mirror_lacks(m, e->id, e->summary->token))
			continue;
		buf_printf(&text, "%s\n[%llu,\"%s\"%s]", comma, (unsigned long long)e->id, e->summary->token,
		           mirror_has(m, e->id, e->summary->token) ? "" : ",\"retired\"");
		comma = ",";
	}
	buf_puts(&text, "],\"marks\":[");
	put_marks(m, &text);
	run_unlock(m->run);
	buf_puts(&text, "]}\n");
	TRY(buf_check(&text, m->journal_key, err));
	return store_put_bytes(m->run->store, m->journal_key, text.ptr, text.len, STORE_DURABLE, err);
}

/* ------------------------------------------------------------------ listing */

struct names {
	struct bump *memory;
	VEC(const char *) rows;
};

static int
add_journal(void *arg, const struct store_entry *entry)
{
	struct names *names = arg;
	size_t len = strlen(entry->name);
	if (entry->is_folder || entry->is_link || len != 16 + 5 || strcmp(entry->name + 16, ".json") != 0)
		return 0;
	const char **name = vec_add(&names->rows);
	if (name)
		*name = bump_printf(names->memory, MIRROR_FOLDER "/%s", entry->name);
	return name && *name ? 0 : PAWL_ENOMEM;
}

static void
names_clear(struct names *names)
{
	vec_free(&names->rows);
}

static int
list_journals(struct store *store, struct names *names, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = store_list(store, MIRROR_FOLDER, add_journal, names, &why);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc == PAWL_ENOMEM)
		return err_nomem(err, "mirror");
	return err_give(err, rc, &why);
}

/* *ret NULL: the journal has been removed since it was listed. */
static int
read_url(struct store *store, const char *key, struct bump *memory, const char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump own = {0};
	struct json *root;
	const char *url;
	int rc = store_get(store, key, JOURNAL_MAX_BYTES, &text, err);
	*ret = NULL;
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	TRY(json_parse(key, text.ptr, text.len, NULL, &own, &root, err));
	TRY(json_get_str(key, root, "url", &url, err));
	*ret = bump_strndup(memory, url, strlen(url));
	return *ret ? 0 : err_nomem(err, key);
}

int
mirror_journal_urls(struct store *store, bool skips_bad, struct bump *memory, const char ***ret, size_t *ret_n,
                    struct pawl_error *err)
{
	PAWL_CLEAN(names_clear) struct names names = {.memory = memory};
	const char **urls;
	size_t n = 0;
	TRY(list_journals(store, &names, err));
	urls = bump_array(memory, names.rows.n + 1, sizeof *urls);
	if (!urls)
		return err_nomem(err, "mirror");
	for (size_t i = 0; i < names.rows.n; i++) {
		struct pawl_error why = {0};
		int rc = read_url(store, names.rows.items[i], memory, &urls[n], &why);
		if (rc < 0 && !skips_bad)
			return err_set(err, rc,
			               "%s; it names a mirror, which may lack checkpoints: open the run with its "
			               "mirrors to write the file again, or remove the file",
			               why.message);
		n += urls[n] != NULL;
	}
	*ret = urls;
	*ret_n = n;
	return 0;
}

int
mirror_journal_tidy(struct mirrors *ms, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(names_clear) struct names names = {.memory = &memory};
	TRY(list_journals(ms->run->store, &names, err));
	for (size_t i = 0; i < names.rows.n; i++) {
		bool wanted = false;
		for (size_t k = 0; k < ms->n && !wanted; k++)
			wanted = strcmp(ms->list[k].journal_key, names.rows.items[i]) == 0;
		if (!wanted)
			TRY(store_remove(ms->run->store, names.rows.items[i], err));
	}
	return 0;
}
