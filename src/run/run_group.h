/* SPDX-License-Identifier: Apache-2.0 */
/* run_group: the ranks that train together, and the counters that are equal on all of them. */
#ifndef PAWL_RUN_GROUP_H
#define PAWL_RUN_GROUP_H

#include <pthread.h>
#include <stdint.h>

#include "pawl.h"

struct rendezvous; /* ranks/rendezvous.h */

struct run_group {
	struct pawl_rank who;
	uint32_t rank, world;          /* 0 of 1 when alone */
	struct rendezvous *rendezvous; /* NULL when alone or read-only */

	/* Rank 0's saver thread only. */
	char *left_behind;   /* hidden folder of a failed save, to which a slow rank may still write */
	uint64_t cleared_id; /* the files by which the ranks met for saves up to this id are removed */

	pthread_mutex_t lock; /* guards below; no other lock is taken while it is held */
	uint64_t n_rounds;    /* how often the ranks have agreed on something: ranks/agree.h */
	uint64_t save_id;     /* of the latest save; the same on all ranks */
};

/* Begins the next round, or the next save. Returns its number. */
uint64_t run_group_next_round(struct run_group *g);
uint64_t run_group_next_save(struct run_group *g);
uint64_t run_group_round(struct run_group *g);
uint64_t run_group_save(struct run_group *g);

#endif
