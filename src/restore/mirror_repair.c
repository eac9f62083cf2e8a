/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror_repair: replaces files that a restore found damaged or missing by copies from a mirror
 * that has them. Promise P1: a file is compared with the manifest before it replaces another.
 */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "catalog/mirrors.h"
#include "copy/copy.h"
#include "restore/restore.h"
#include "store/layers/tiers/store_tiers.h"

/* Lists the files of the current checkpoint that were read from elsewhere. */
static int
list_bad(const struct pawl_restore *r, const char *const *suspects, struct bump *memory, uint32_t **ret, size_t *ret_n,
         struct pawl_error *err)
{
	const struct manifest *m = r->manifest;
	size_t len = strlen(r->folder);
	uint32_t *files = bump_array(memory, m->n_files + 1, sizeof *files);
	if (!files)
		return err_nomem(err, "repair");
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
report_repair(struct pawl_restore *r, const uint32_t *files, size_t n, const char *from, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	json_add_u64(&fields, "id", r->manifest->id);
	json_add_text(&fields, "from", from);
	buf_puts(&fields, ",\"files\":[");
	for (size_t i = 0; i < n; i++)
		buf_printf(&fields, "%s\"%s\"", i ? "," : "", r->manifest->files[files[i]].name);
	buf_puts(&fields, "]");
	if (why)
		events_put_error(&fields, why);
	if (!fields.failed)
		events_add(&r->run->events, why ? "repair failed" : "repair", buf_str(&fields));
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
mirror_repair(struct pawl_restore *r)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl *run = r->run;
	struct pawl_error err = {0};
	const char **suspects;
	uint32_t *files;
	size_t n = 0;
	if (run->home.reads == run->store || store_tiers_take_suspects(run->home.reads, &memory, &suspects, NULL) < 0 ||
	    r->at || list_bad(r, suspects, &memory, &files, &n, NULL) < 0 || n == 0)
		return;
	struct store *from = find_source(r);
	if (!from)
		return;
	if (run_check_keeper(run, NULL) < 0 || run->home.nodes) { /* reported; a process that may write repairs */
		err_set(&err, PAWL_EREADONLY, "this handle does not repair");
		report_repair(r, files, n, from->root, &err);
		return;
	}
	const struct copy_job job = {.from = from,
	                             .to = run->store,
	                             .from_folder = r->folder,
	                             .to_folder = r->folder,
	                             .memory_bytes = run->opts.uploads.memory_bytes,
	                             .deadline_ms = clock_mono_ms() + run->opts.timeouts.upload_ms};
	int rc = copy_files(&job, r->manifest, files, n, &err);
	report_repair(r, files, n, from->root, rc < 0 ? &err : NULL);
}
