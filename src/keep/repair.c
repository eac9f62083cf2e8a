/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repair: builds a lost or damaged manifest from the packs of a checkpoint folder.
 *
 *   list packs -> read headers -> complete, of one save? -> tensor table -> checksum all bytes
 *              -> manifest, put exclusively
 *
 * It refuses rather than guesses: a missing pack or part of a tensor, packs of different saves, an
 * unknown format. The checksums are those of the bytes as they are now, so the manifest records
 * that it was repaired. Never automatic. Promises P1, P2 (the put is the commit), P15 (an intact
 * checkpoint is left alone), P17.
 */
#include "keep/repair.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "catalog/catalog.h"
#include "keep/pointers.h"
#include "layout/merge_trees.h"
#include "layout/pack_header.h"
#include "read/compressed_pack.h"
#include "run/lease.h"
#include "run/run.h"
#include "state/pack_name.h"

#define DAMAGED_NAME MANIFEST_NAME ".damaged"
#define MAX_PACKS 1000000u

static void
repair_clear(struct repair *r)
{
	buf_clear(&r->folder);
	vec_free(&r->parts);
	bump_clear(&r->memory);
	manifest_free(r->m);
	pawl_state_free(r->state);
	buf_clear(&r->state_json);
}

int
repair_key(struct repair *r, const char *name, struct buf *out, struct pawl_error *err)
{
	buf_printf(out, "%s/%s", buf_str(&r->folder), name);
	return buf_check(out, r->name, err);
}

/* ------------------------------------------------------------------- packs */

static int
add_pack(void *arg, const struct store_entry *entry)
{
	struct repair *r = arg;
	uint32_t rank, index;

	if (strcmp(entry->name, CATALOG_DELETING) == 0)
		r->deleting = true;
	if (entry->is_folder || entry->is_link || !pack_parse_name(entry->name, &rank, &index))
		return 0;
	if (r->parts.n == MAX_PACKS)
		return PAWL_ELIMIT;
	char *name = bump_strndup(&r->memory, entry->name, strlen(entry->name));
	if (!name)
		return PAWL_ENOMEM;
	struct repair_pack *part = vec_add(&r->parts);
	if (!part)
		return PAWL_ENOMEM;
	*part = (struct repair_pack){.name = name, .rank = rank, .index = index};
	return 0;
}

static int
compare_parts(const void *pa, const void *pb)
{
	const struct repair_pack *a = pa, *b = pb;

	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return (a->index > b->index) - (a->index < b->index);
}

static int
list_packs(struct repair *r, struct pawl_error *err)
{
	int rc = store_list(r->run->store, buf_str(&r->folder), add_pack, r, err);

	if (rc == PAWL_ENOMEM)
		return err_nomem(err, r->name);
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, "%s: expected at most %u packs, found more", r->name, MAX_PACKS);
	TRY(rc);
	if (r->deleting)
		return err_set(err, PAWL_ECONFLICT, "%s is being deleted: it holds %s", r->name, CATALOG_DELETING);
	if (r->parts.n == 0)
		return err_set(err, PAWL_ECORRUPT, "%s holds no packs, there is nothing to repair from", r->name);
	qsort(r->parts.items, r->parts.n, sizeof(*r->parts.items), compare_parts);
	return 0;
}

/* A metadata value as text; a missing one is corrupt. Values are NUL-terminated like all strings
 * read from JSON. */
static int
get_text(const struct repair *r, const struct repair_pack *p, const char *key, const struct st_pair **ret,
         struct pawl_error *err)
{
	const struct st_pair *pair = safetensors_metadata(&p->table, key);

	if (!pair)
		return err_set(err, PAWL_ECORRUPT, "%s/%s: its header has no '%s', expected a pack that pawl wrote",
		               r->name, p->name, key);
	*ret = pair;
	return 0;
}

static int
get_number(const struct repair *r, const struct repair_pack *p, const char *key, uint64_t *ret, struct pawl_error *err)
{
	const struct st_pair *pair = NULL;
	char *end;

	TRY(get_text(r, p, key, &pair, err));
	unsigned long long value = strtoull(pair->value, &end, 10);
	if (pair->value_len == 0 || pair->value[0] < '0' || pair->value[0] > '9' || *end || value > UINT32_MAX)
		return err_set(err, PAWL_ECORRUPT, "%s/%s: '%s' is not a number", r->name, p->name, key);
	*ret = value;
	return 0;
}

static int
read_headers(struct repair *r, struct pawl_error *err)
{
	const struct st_pair *first_run = NULL, *run_id = NULL;
	uint64_t format;

	for (size_t i = 0; i < r->parts.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		struct repair_pack *p = &r->parts.items[i];

		TRY(repair_key(r, p->name, &key, err));
		TRY(compressed_pack_read_header(r->run->store, buf_str(&key), &r->memory, &p->table, &p->nbytes, err));
		TRY(get_number(r, p, "pawl.format", &format, err));
		if (format > PAWL_FORMAT_VERSION)
			return err_set(err, PAWL_EVERSION,
			               "%s/%s: written in format version %llu, this library reads up to %d", r->name,
			               p->name, (unsigned long long)format, PAWL_FORMAT_VERSION);
		TRY(get_text(r, p, "pawl.run", &run_id, err));
		if (!first_run)
			first_run = run_id;
		if (strcmp(run_id->value, first_run->value) != 0)
			return err_set(err, PAWL_ECORRUPT, "%s/%s is of run %.40s, but %s of run %.40s", r->name,
			               p->name, run_id->value, r->parts.items[0].name, first_run->value);
	}
	return 0;
}

/* The packs of one rank, from r->parts.items[*at] on: 0 .. "pawl.packs" - 1, none missing and none
 * too many. */
static int
check_rank(struct repair *r, uint32_t rank, size_t *at, struct pawl_error *err)
{
	const struct repair_pack *first = *at < r->parts.n ? &r->parts.items[*at] : NULL;
	uint64_t n = 0;

	if (!first || first->rank != rank || first->index != 0)
		return err_set(err, PAWL_ECORRUPT, "%s: pack rank%05u-00000.safetensors is missing", r->name, rank);
	TRY(get_number(r, first, "pawl.packs", &n, err));
	for (uint64_t i = 0; i < n; i++, (*at)++) {
		if (*at == r->parts.n || r->parts.items[*at].rank != rank || r->parts.items[*at].index != i)
			return err_set(err, PAWL_ECORRUPT, "%s: pack %llu of the %llu of rank %u is missing", r->name,
			               (unsigned long long)i, (unsigned long long)n, rank);
	}
	if (*at < r->parts.n && r->parts.items[*at].rank == rank)
		return err_set(err, PAWL_ECORRUPT, "%s: rank %u has %llu packs, but %s exists too", r->name, rank,
		               (unsigned long long)n, r->parts.items[*at].name);
	return 0;
}

/* The summaries in pack 0 of each rank must agree; rank 0's becomes the manifest's summary. */
static int
read_summaries(struct repair *r, struct pawl_error *err)
{
	const struct st_pair *text = NULL;

	for (size_t i = 0; i < r->parts.n; i++) {
		PAWL_CLEAN(manifest_free_clean) struct manifest *m = NULL;
		const struct repair_pack *p = &r->parts.items[i];

		if (p->index != 0)
			continue;
		TRY(get_text(r, p, "pawl.checkpoint", &text, err));
		TRY(manifest_decode_summary(p->name, text->value, text->value_len, &m, err));
		if (!r->m)
			r->m = steal(&m);
		else if (m->id != r->m->id || strcmp(m->token, r->m->token) != 0)
			return err_set(err, PAWL_ECORRUPT, "%s: %s and %s were not written by the same save", r->name,
			               r->parts.items[0].name, p->name);
	}
	return 0;
}

static int
check_packs(struct repair *r, struct pawl_error *err)
{
	size_t at = 0;

	TRY(check_rank(r, 0, &at, err)); /* before the number of ranks is read from its pack 0 */
	TRY(read_summaries(r, err));
	for (uint32_t rank = 1; rank < r->m->world_size; rank++)
		TRY(check_rank(r, rank, &at, err));
	if (at < r->parts.n)
		return err_set(err, PAWL_ECORRUPT, "%s: %s belongs to no rank of %u", r->name, r->parts.items[at].name,
		               r->m->world_size);
	return 0;
}

/* ----------------------------------------------------------------- tensors */

/* Merges the trees of all ranks, as the save does. */
static int
read_state(struct repair *r, struct pawl_error *err)
{
	PAWL_FREE struct merge_text *trees = mem_zalloc(r->m->world_size, sizeof(*trees));

	if (!trees)
		return err_nomem(err, r->name);
	for (size_t i = 0; i < r->parts.n; i++) {
		const struct st_pair *text = NULL;

		if (r->parts.items[i].index != 0)
			continue;
		TRY(get_text(r, &r->parts.items[i], "pawl.state", &text, err));
		trees[r->parts.items[i].rank] =
			(struct merge_text){r->parts.items[i].name, {text->value, text->value_len}};
	}
	TRY(merge_texts(trees, r->m->world_size, &r->state, err));
	TRY(state_encode(r->state, &r->state_json, err));
	r->m->n_tensors = r->state->n_tensors;
	r->m->tensors = bump_array(&r->m->memory, r->state->n_tensors, sizeof(*r->m->tensors));
	return r->m->tensors ? 0 : err_nomem(err, r->name);
}

/* The row of a pack's tensor. */
static int
find_row(const struct repair *r, const struct repair_pack *p, const char *name, size_t *ret, struct pawl_error *err)
{
	const struct state_tensor *t = state_find_tensor(r->state, name);

	if (!t)
		return err_set(err, PAWL_ECORRUPT, "%s/%s: tensor '%.200s' is not in the state", r->name, p->name,
		               name);
	*ret = (size_t)(t - r->state->tensors);
	return 0;
}

static int
count_pieces(struct repair *r, struct pawl_error *err)
{
	size_t row = 0;

	for (size_t i = 0; i < r->parts.n; i++) {
		for (size_t k = 0; k < r->parts.items[i].table.n_tensors; k++) {
			TRY(find_row(r, &r->parts.items[i], r->parts.items[i].table.tensors[k].name, &row, err));
			r->m->tensors[row].n_pieces++;
		}
	}
	for (row = 0; row < r->state->n_tensors; row++) {
		struct manifest_tensor *t = &r->m->tensors[row];

		t->name = r->state->tensors[row].info.name;
		if (!t->n_pieces)
			return err_set(err, PAWL_ECORRUPT, "%s: tensor '%.200s' is in no pack", r->name, t->name);
		t->pieces = bump_array(&r->m->memory, t->n_pieces, sizeof(*t->pieces));
		if (!t->pieces)
			return err_nomem(err, r->name);
		t->n_pieces = 0;
	}
	return 0;
}

static int
add_piece(struct repair *r, size_t part, const struct st_tensor *st, const struct json *special, size_t row,
          struct pawl_error *err)
{
	struct manifest_tensor *t = &r->m->tensors[row];
	struct pack_header_box box;

	TRY(pack_header_read_box(st, special, &r->m->memory, &box, err));
	if (t->n_pieces == 0) {
		t->dtype = box.dtype;
		t->ndim = box.ndim;
		t->shape = box.shape;
		TRY(safetensors_nbytes(t->dtype, t->ndim, t->shape, &t->nbytes, err));
	} else if (t->dtype != box.dtype || t->ndim != box.ndim ||
	           !tensor_same_extents(t->shape, box.shape, box.ndim)) {
		return err_set(err, PAWL_ECORRUPT,
		               "%s: the pieces of tensor '%.200s' are of different dtypes or shapes", r->name, t->name);
	}
	t->pieces[t->n_pieces++] = (struct manifest_piece){.file = (uint32_t)part,
	                                                   .begin = r->parts.items[part].table.data_begin + st->begin,
	                                                   .nbytes = st->end - st->begin,
	                                                   .offsets = box.offsets,
	                                                   .lengths = box.lengths};
	return 0;
}

static int
add_pieces(struct repair *r, size_t part, struct pawl_error *err)
{
	const struct repair_pack *p = &r->parts.items[part];
	const struct st_pair *text = safetensors_metadata(&p->table, "pawl.tensors");
	PAWL_CLEAN(bump_clear) struct bump scratch = {0};
	PAWL_FREE const struct json **special = mem_zalloc(r->state->n_tensors, sizeof(*special)); /* by row */
	struct json *root = NULL;
	size_t row = 0;

	if (!special)
		return err_nomem(err, r->name);
	if (text)
		TRY(json_parse(p->name, text->value, text->value_len, NULL, &scratch, &root, err));
	for (const struct json *one = root && root->type == JSON_OBJECT ? root->first : NULL; one; one = one->next) {
		TRY(find_row(r, p, one->key, &row, err));
		special[row] = one;
	}
	for (size_t k = 0; k < p->table.n_tensors; k++) {
		TRY(find_row(r, p, p->table.tensors[k].name, &row, err));
		TRY(add_piece(r, part, &p->table.tensors[k], special[row], row, err));
	}
	return 0;
}

/* ----------------------------------------------------------- all together */

/* 1 if the manifest verifies, 0 if it is missing or damaged (*ret_exists distinguishes them). */
static int
is_intact(struct repair *r, const char *key, bool *ret_exists, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(manifest_free_clean) struct manifest *m = NULL;
	int rc = store_get(r->run->store, key, MANIFEST_MAX_BYTES, &text, err);

	*ret_exists = rc != PAWL_ENOTFOUND;
	if (rc == 0)
		rc = manifest_decode(r->name, text.ptr, text.len, false, &m, err);
	if (rc == PAWL_ENOTFOUND || rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT)
		return 0;
	return rc < 0 ? rc : 1;
}

static int
rebuild_manifest(struct repair *r, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(manifest_free_clean) struct manifest *check = NULL;

	TRY(list_packs(r, err));
	TRY(read_headers(r, err));
	TRY(check_packs(r, err));
	TRY(read_state(r, err));
	TRY(count_pieces(r, err));
	for (size_t i = 0; i < r->parts.n; i++)
		TRY(add_pieces(r, i, err));
	TRY(repair_describe_files(r, err));
	r->m->repaired = true;
	int rc = manifest_encode_with(r->m, (struct pawl_slice){r->state_json.ptr, r->state_json.len}, out, err);
	if (rc == PAWL_EUSAGE) /* the packs are wrong, not the caller */
		rc = err ? err_set(err, PAWL_ECORRUPT, "%s: %s", r->name, err->message) : PAWL_ECORRUPT;
	TRY(rc);
	return manifest_decode(r->name, out->ptr, out->len, false, &check, err);
}

static int
write_manifest(struct repair *r, const char *key, bool exists, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf aside = {0};

	if (r->run->self.lease)
		TRY(lease_check(r->run->self.lease, err));
	if (exists) {
		TRY(repair_key(r, DAMAGED_NAME, &aside, err));
		TRY(store_move(r->run->store, key, buf_str(&aside), err));
	}
	return store_put_bytes(r->run->store, key, text->ptr, text->len, STORE_EXCLUSIVE | STORE_DURABLE, err);
}

/* The folder has become a checkpoint again. */
static int
report_repair(struct repair *r, struct pawl_error *err)
{
	struct pawl *run = r->run;
	PAWL_CLEAN(buf_clear) struct buf fields = {0};

	run_edit(run);
	int rc = catalog_reload(run->catalog, err);
	run_edited(run);
	TRY(rc);
	buf_printf(&fields, "\"id\":%llu,\"name\":\"%s\"", (unsigned long long)r->m->id, r->name);
	events_add(&run->events, "repair", buf_str(&fields));
	return pointers_update(run, err);
}

static int
check_folder(struct repair *r, struct pawl_error *err)
{
	struct store_entry entry;

	if (r->run->home.foreign)
		return err_set(err, PAWL_EUSAGE, "repair: %s is a file of another program", r->name);
	if (r->run->home.single_name ? strcmp(r->name, r->run->home.single_name) != 0 : !text_is_component(r->name))
		return err_set(err, PAWL_EUSAGE, "repair: '%.200s' is not the name of a checkpoint's folder", r->name);
	catalog_key(r->run->catalog, r->name, &r->folder);
	TRY(buf_check(&r->folder, r->name, err));
	TRY(store_stat(r->run->store, buf_str(&r->folder), &entry, err));
	if (!entry.is_folder || entry.is_link)
		return err_set(err, PAWL_EUSAGE, "repair: %s is not a folder", r->name);
	return 0;
}

static int
repair_checkpoint(struct pawl *run, const char *name, bool dry_run, struct pawl_meter *meter, struct pawl_error *err)
{
	PAWL_CLEAN(repair_clear)
	struct repair r = {.run = run, .name = name, .with_sums = !dry_run, .meter = dry_run ? NULL : meter};
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};
	bool exists;

	TRY(dry_run ? 0 : run_check_keeper(run, err));
	TRY(check_folder(&r, err));
	TRY(repair_key(&r, MANIFEST_NAME, &key, err));
	int intact = is_intact(&r, buf_str(&key), &exists, err);
	if (intact != 0)
		return intact < 0 ? intact : 0;
	int rc = rebuild_manifest(&r, &text, err);
	if (rc < 0 || dry_run)
		return rc < 0 ? err_prefix(err, rc, "cannot be repaired") : 0;
	TRY(write_manifest(&r, buf_str(&key), exists, &text, err));
	return report_repair(&r, err);
}

int
pawl_repair(struct pawl *run, const char *name, int dry_run, struct pawl_meter *meter, struct pawl_error *err)
{
	struct pawl_error own = {0};

	if (!run || !name)
		return err_set(err, PAWL_EUSAGE, "repair: expected a run and a folder name, found NULL");
	return err_give(err, repair_checkpoint(run, name, dry_run != 0, meter, &own), &own);
}
