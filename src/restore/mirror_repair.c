/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror_repair: manifests that are damaged or gone here are read from a mirror; files of a checkpoint that turned out
 * to be so while it was restored are fetched anew from a mirror that has them. Called by restore.c, which has read and
 * verified everything by then, and find.c; calls copy.c. Promise P1: what is put in the place of a file has been
 * compared with the manifest first.
 */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "copy/copy.h"
#include "mirror/mirror.h"
#include "restore/restore.h"
#include "store/layers/layer_tiers.h"

/* An entry, as it was when the run's lock was held, and the stores that have it: here first. */
struct known {
	struct catalog_entry entry;
	struct manifest summary; /* its id and token, where the entry has a summary */
	struct store *stores[1 + MIRROR_MAX];
	size_t n;
};

static void
known_clear(struct known *k)
{
	mem_free(k->entry.name);
}

static int
known_fill(struct pawl *run, uint64_t id, struct known *k, struct pawl_error *err)
{
	const struct catalog_entry *e = catalog_get(&run->catalog, id);
	if (!e)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoint with id %" PRIu64, run->root, id);
	k->entry = (struct catalog_entry){.name = mem_strdup(e->name), .id = e->id};
	k->stores[k->n++] = e->at; /* NULL = the run's own */
	if (e->summary) {
		k->summary.id = e->summary->id;
		memcpy(k->summary.token, e->summary->token, sizeof k->summary.token);
		k->entry.summary = &k->summary;
	}
	if (!k->entry.name)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", run->root);
	for (size_t i = 0; run->mirrors && i < run->mirrors->n; i++) {
		struct store *store = mirrors_store(run->mirrors, i, e);
		if (store)
			k->stores[k->n++] = store;
	}
	return 0;
}

int
mirrors_manifest(struct pawl *run, uint64_t id, bool summary, struct manifest **ret, struct pawl_error *err)
{
	PAWL_CLEAN(known_clear) struct known k = {0};
	struct pawl_error first = {0}, own;
	run_lock(run);
	int rc = known_fill(run, id, &k, err);
	run_unlock(run);
	TRY(rc);
	for (size_t i = 0; i < k.n; i++) {
		own = (struct pawl_error){0};
		k.entry.at = k.stores[i];
		rc = (summary ? catalog_summary : catalog_manifest)(&run->catalog, &k.entry, ret, &own);
		if (rc == 0)
			return 0;
		if (i == 0)
			first = own;
		if (i == 0 && !restore_is_damage(rc))
			break;
	}
	return err_give(err, first.code, &first);
}

/* ---------------------------------------------------------------- reading back */

static int
read_file_back(struct store *there, const char *key, const struct manifest_file *f, struct pawl_meter *meter,
               int64_t deadline_ms, struct pawl_error *err)
{
	struct store_reader *reader = NULL;
	uint64_t size = 0;
	PAWL_FREE char *bytes = mem_zalloc(f->block_bytes < f->nbytes ? f->block_bytes : f->nbytes + 1, 1);
	if (!bytes)
		return err_set(err, PAWL_ENOMEM, "mirror: out of memory");
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

static void
free_manifest(struct manifest **m)
{
	manifest_free(*m);
}

int
mirror_read_back(struct store *there, const char *folder, struct pawl_meter *meter, int64_t deadline_ms,
                 struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(free_manifest) struct manifest *m = NULL;
	PAWL_FREE char *own = mem_printf("%s/" MANIFEST_NAME, folder);
	if (!own)
		return err_set(err, PAWL_ENOMEM, "mirror: out of memory");
	TRY(store_get(there, own, MANIFEST_MAX_BYTES, &text, err));
	TRY(manifest_decode(folder, text.ptr, text.len, false, &m, err));
	for (size_t i = 0; i < m->n_files; i++) {
		PAWL_FREE char *key = mem_printf("%s/%s", folder, m->files[i].name);
		if (!key)
			return err_set(err, PAWL_ENOMEM, "mirror: out of memory");
		TRY(read_file_back(there, key, &m->files[i], meter, deadline_ms, err));
	}
	return 0;
}

/* ------------------------------------------------------------------ repairing */

/* Which files of the checkpoint at hand were read from elsewhere. */
static int
list_bad(const struct pawl_restore *r, const char *const *suspects, struct bump *memory, uint32_t **ret, size_t *ret_n,
         struct pawl_error *err)
{
	const struct manifest *m = r->manifest;
	size_t len = strlen(r->folder);
	uint32_t *files = bump_array(memory, m->n_files + 1, sizeof *files);
	if (!files)
		return err_set(err, PAWL_ENOMEM, "repair: out of memory");
	for (; *suspects; suspects++) {
		if (strncmp(*suspects, r->folder, len) != 0 || (*suspects)[len] != '/')
			continue;
		for (uint32_t i = 0; i < m->n_files; i++) {
			if (strcmp(m->files[i].name, *suspects + len + 1) == 0)
				files[(*ret_n)++] = i;
		}
	}
	*ret = files;
	return 0;
}

static void
tell(struct pawl_restore *r, const uint32_t *files, size_t n, const char *from, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	buf_printf(&fields, "\"id\":%llu,\"from\":", (unsigned long long)r->manifest->id);
	json_put_string(&fields, from, strlen(from));
	buf_puts(&fields, ",\"files\":[");
	for (size_t i = 0; i < n; i++)
		buf_printf(&fields, "%s\"%s\"", i ? "," : "", r->manifest->files[files[i]].name);
	buf_puts(&fields, "]");
	if (why) {
		buf_printf(&fields, ",\"code\":\"%s\",\"error\":", pawl_code_name(why->code));
		json_put_string(&fields, why->message, strlen(why->message));
	}
	if (!fields.failed)
		run_event(r->run, why ? "repair failed" : "repair", buf_str(&fields));
	for (size_t i = 0; i < n; i++)
		restore_add_row(&r->report,
		                mem_printf("%s: %s/%s from %s", why ? "read elsewhere" : "repaired", r->info.name,
		                           r->manifest->files[files[i]].name, from),
		                NULL);
}

static struct store *
find_source(struct pawl_restore *r)
{
	struct store *found = NULL;
	run_lock(r->run);
	for (size_t i = 0; i < r->run->mirrors->n && !found; i++) {
		const struct mirror *m = &r->run->mirrors->list[i];
		if (mirror_has(m, r->manifest->id, r->manifest->token))
			found = atomic_load(&m->store);
	}
	run_unlock(r->run);
	return found;
}

void
mirrors_repair(struct pawl_restore *r)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl *run = r->run;
	struct pawl_error err = {0};
	const char **suspects;
	uint32_t *files;
	size_t n = 0;
	if (run->reads == run->store || store_tiers_take_suspects(run->reads, &memory, &suspects, NULL) < 0 || r->at ||
	    list_bad(r, suspects, &memory, &files, &n, NULL) < 0 || n == 0)
		return;
	struct store *from = find_source(r);
	if (!from)
		return;
	if (run_check_keeper(run, NULL) < 0 || run->nodes) { /* said, and left to who may write here */
		err_set(&err, PAWL_EREADONLY, "this handle does not repair");
		tell(r, files, n, from->root, &err);
		return;
	}
	const struct copy_job job = {.from = from,
	                             .to = run->store,
	                             .from_folder = r->folder,
	                             .to_folder = r->folder,
	                             .memory_bytes = run->opts.upload_memory_bytes,
	                             .deadline_ms = clock_mono_ms() + run->opts.upload_timeout_ms};
	int rc = copy_files(&job, r->manifest, files, n, &err);
	tell(r, files, n, from->root, rc < 0 ? &err : NULL);
}
