/* SPDX-License-Identifier: Apache-2.0 */
/* restore_gone: see restore_gone.h. */
#include "restore/restore_gone.h"

#include "catalog/catalog.h"

int
restore_judge(struct pawl_restore *r, const struct pawl_error *why, unsigned tries, struct pawl_error *err)
{
	const struct catalog_reading reading = {.catalog = r->run->catalog,
	                                        .at = r->at,
	                                        .name = r->info.name,
	                                        .id = r->manifest->id,
	                                        .token = r->manifest->token,
	                                        .is_held = r->hold != NULL};

	return catalog_judge(&reading, why, tries, err);
}
