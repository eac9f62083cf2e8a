/* SPDX-License-Identifier: Apache-2.0 */
/* restore_gone: see restore_gone.h. */
#include "restore/restore_gone.h"

#include "catalog/catalog.h"

static struct catalog_reading
describe_reading(const struct pawl_restore *r)
{
	return (struct catalog_reading){.catalog = r->run->catalog,
	                                .at = r->at,
	                                .name = r->info.name,
	                                .id = r->manifest->id,
	                                .token = r->manifest->token,
	                                .is_held = r->hold != NULL};
}

int
restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err)
{
	const struct catalog_reading reading = describe_reading(r);

	return catalog_judge(&reading, why, tries, err);
}

int
restore_fetch_run(struct pawl_restore *r, struct fetch *fetch, const struct fetch_job *job, struct pawl_error *err)
{
	const struct catalog_reading reading = describe_reading(r);

	return catalog_fetch(&reading, fetch, job, err);
}
