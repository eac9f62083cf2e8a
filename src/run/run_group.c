/* SPDX-License-Identifier: Apache-2.0 */
/* run_group: see run_group.h. */
#include "run/run_group.h"

static uint64_t
add_count(struct run_group *g, uint64_t *counter, uint64_t n)
{
	pthread_mutex_lock(&g->lock);
	const uint64_t value = *counter += n;

	pthread_mutex_unlock(&g->lock);
	return value;
}

uint64_t
run_group_next_round(struct run_group *g)
{
	return add_count(g, &g->n_rounds, 1);
}

uint64_t
run_group_next_save(struct run_group *g)
{
	return add_count(g, &g->save_id, 1);
}

uint64_t
run_group_round(struct run_group *g)
{
	return add_count(g, &g->n_rounds, 0);
}

uint64_t
run_group_save(struct run_group *g)
{
	return add_count(g, &g->save_id, 0);
}
