/* SPDX-License-Identifier: Apache-2.0 */
/* composer_keep: decides which checkpoint files stay here. Pure. R94, R95, E2. */
#include "jobs/composer/composer.h"

size_t
composer_spent(const struct composer_row *rows, size_t n, int64_t keep, uint64_t linked)
{
	if (keep < 0 || (uint64_t)keep >= n)
		return SIZE_MAX;
	for (size_t i = 0; i < n - (size_t)keep; i++)
		if (rows[i].seq != linked && !rows[i].uploading && (rows[i].uploaded || !rows[i].remote))
			return i;
	return SIZE_MAX;
}

/* Compares the first counter that both have. */
static bool
is_later(const struct pawl_progress *a, const struct pawl_progress *b)
{
	const int64_t pairs[][2] = {
		{a->batch, b->batch}, {a->sample, b->sample}, {a->token, b->token}, {a->epoch, b->epoch}};
	for (size_t i = 0; i < 4; i++)
		if (pairs[i][0] >= 0 && pairs[i][1] >= 0)
			return pairs[i][0] > pairs[i][1];
	return false;
}

const struct composer_row *
composer_before(const struct composer_row *rows, size_t n, const struct pawl_progress *now, bool or_at)
{
	for (size_t i = n; i-- > 0;)
		if (or_at ? !is_later(&rows[i].progress, now) : is_later(now, &rows[i].progress))
			return &rows[i];
	return NULL;
}
