/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore_gone: see restore_gone.h. Promises P1 (damage stays damage: only a missing or different
 * manifest means a deletion), P6, P16.
 */
#include "restore/restore_gone.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "catalog/catalog.h"

#define MAX_AGAIN 2u

/* 0 = the manifest is the one that was opened; else why it cannot be read. */
static int
check_manifest(struct pawl_restore *r)
{
	struct manifest known = {.id = r->manifest->id}, *now = NULL;
	const struct catalog_entry e = {
		.name = (char *)r->info.name, .id = r->manifest->id, .summary = &known, .at = r->at};

	memcpy(known.token, r->manifest->token, sizeof(known.token));
	int rc = catalog_summary(r->run->catalog, &e, &now, NULL);

	manifest_free(now);
	return rc;
}

int
restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err)
{
	const bool is_missing = why->code == PAWL_ENOTFOUND || why->sys == ENOENT;

	if (!err_is_damage(why->code) && why->code != PAWL_ECONFLICT)
		return 0;
	int rc = check_manifest(r);

	if (rc == PAWL_ENOTFOUND && r->hold) {
		int back = catalog_wait_put_back(r->run->catalog, r->at, r->info.name, NULL);

		if (back != 0)
			rc = back < 0 ? back : check_manifest(r);
	}
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s was deleted while it was read", r->info.name);
	if (rc == PAWL_ECONFLICT)
		return err_set(err, PAWL_ENOTFOUND, "%s was replaced while it was read", r->info.name);
	return is_missing && tries < MAX_AGAIN;
}
