/* SPDX-License-Identifier: Apache-2.0 */
/* pointers: see pointers.h. */
#include "keep/pointers.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/catalog.h"

/* A checkpoint that exists only in a mirror has no pointer here. */
static int
point_to(struct pawl *run, const char *pointer, const struct catalog_entry *e, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf target = {0};

	if (!e || e->at)
		return store_remove(run->store, pointer, err);
	catalog_key(run->catalog, e->name, &target);
	TRY(buf_check(&target, pointer, err));
	return store_pointer(run->store, pointer, buf_str(&target), err);
}

int
pointers_update(struct pawl *run, struct pawl_error *err)
{
	if (!run->catalog->kind->is_run)
		return 0;
	run_edit(run);
	int rc = point_to(run, "latest", catalog_latest(run->catalog), err);

	if (rc == 0)
		rc = point_to(run, "best", catalog_best(run->catalog, &run->settings.retention), err);
	run_edited(run);
	return rc;
}
