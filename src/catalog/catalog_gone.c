/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_gone: tells whether an unreadable checkpoint is damaged, or was deleted while it was
 * read. Promises P1 (damage stays damage: only a missing or different manifest means a deletion),
 * P6, P16.
 */
#include "catalog/catalog.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "read/fetch.h"

#define MAX_AGAIN 2u

/* 0 = the manifest is the one that was opened; else why it cannot be read. */
static int
check_manifest(const struct catalog_reading *r)
{
	struct manifest known = {.id = r->id}, *now = NULL;
	const struct catalog_entry e = {.name = (char *)r->name, .id = r->id, .summary = &known, .at = r->at};

	memcpy(known.token, r->token, sizeof(known.token));
	int rc = catalog_summary(r->catalog, &e, &now, NULL);

	manifest_free(now);
	return rc;
}

int
catalog_judge(const struct catalog_reading *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err)
{
	const bool is_missing = why->code == PAWL_ENOTFOUND || why->sys == ENOENT;

	if (!err_is_damage(why->code) && why->code != PAWL_ECONFLICT)
		return 0;
	int rc = check_manifest(r);

	if (rc == PAWL_ENOTFOUND && r->is_held) {
		int back = catalog_wait_put_back(r->catalog, r->at, r->name, NULL);

		if (back != 0)
			rc = back < 0 ? back : check_manifest(r);
	}
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s was deleted while it was read", r->name);
	if (rc == PAWL_ECONFLICT)
		return err_set(err, PAWL_ENOTFOUND, "%s was replaced while it was read", r->name);
	return is_missing && tries < MAX_AGAIN;
}

int
catalog_fetch(const struct catalog_reading *r, struct fetch *fetch, const struct fetch_job *job, struct pawl_error *err)
{
	for (unsigned tries = 0;; tries++) {
		struct pawl_error why = {0};
		int rc = fetch_run(fetch, job, &why);
		int verdict = rc < 0 ? catalog_judge(r, &why, tries, err) : 0;

		if (verdict <= 0)
			return verdict < 0 ? verdict : err_give(err, rc, &why);
	}
}
