/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readers: what a reader of a small run does while its training saves, and what it must never find.
 * Include after cmocka.h.
 */
#ifndef PAWL_TESTS_READERS_H
#define PAWL_TESTS_READERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "helpers/small_run.h"

enum kind { RESTORE, OPENED, VERIFY, SHOW, LOAD, LIST, N_KINDS };
static const char *const kind_names[] = {"restore", "restore of an open run", "verify", "show", "load", "list"};

struct readers {
	struct small_run *r;
	atomic_ulong next, n[N_KINDS];
	atomic_ulong deleted; /* a load by path that reports a deletion: the only allowed result other than success */
	atomic_ulong wrong;
	pthread_mutex_t lock;
	char first[1100]; /* the first wrong word */
};

/* The newest is the best, too. */
static inline void
keep_one(struct small_run *r)
{
	r->opts.retention.num_to_keep = 1;
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
}

static inline void
complain(struct readers *all, enum kind kind, const char *what)
{
	if (atomic_fetch_add(&all->wrong, 1) > 0)
		return;
	pthread_mutex_lock(&all->lock);
	snprintf(all->first, sizeof(all->first), "%s: %s", kind_names[kind], what);
	pthread_mutex_unlock(&all->lock);
}

static inline struct pawl *
open_reader(struct readers *all, enum kind kind, const char *root, int single)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	opts.root = root;
	opts.io.stores = all->r->opts.io.stores;
	opts.read_only = 1;
	opts.single = single;
	if (pawl_open(&opts, &run, &err) < 0)
		complain(all, kind, err.message);
	return run;
}

/* May the checkpoint be gone? Then that is the only error there is. */
static inline void
restore_one(struct readers *all, enum kind kind, struct pawl *run, const char *selector, bool may_go)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore = NULL;
	struct pawl_error err = {0};
	struct pawl_state *live;
	float data[64] = {0};
	int64_t step = -1;

	if (pawl_state_new(&live, &err) < 0)
		return complain(all, kind, err.message);
	small_add(live, "model/w", PAWL_F32, COUNT(data), data);
	opts.selector = selector;
	opts.non_strict = 1;
	int rc = pawl_restore(run, &opts, live, &restore, &err);

	if (rc == PAWL_ENOTFOUND && may_go)
		atomic_fetch_add(&all->deleted, 1);
	else if (rc < 0)
		complain(all, kind, err.message);
	else if (pawl_restore_fallback_count(restore) > 0)
		complain(all, kind, pawl_restore_fallback_get(restore, 0));
	else if (step = pawl_restore_info(restore)->step, data[0] != (float)step || data[63] != (float)step + 63)
		complain(all, kind, "not the values of its step");
	pawl_restore_close(restore);
	pawl_state_free(live);
}

#endif
