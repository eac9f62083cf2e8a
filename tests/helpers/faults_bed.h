/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults_bed: calls of pawl.h with every allocation of them failing, one at a time and from one on.
 * Each returns PAWL_ENOMEM or succeeds, leaves its out-parameters alone when it fails, leaks
 * nothing, and the run stays intact (P4).
 *
 * The allocations are intercepted in the program that includes this: failing_malloc.h.
 */
#ifndef PAWL_TESTS_FAULTS_BED_H
#define PAWL_TESTS_FAULTS_BED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "helpers/failing_malloc.h"
#include "helpers/small_run.h"

#define N_WEIGHT 20000u /* 80 KB: a pack of its own */
#define N_BIAS 10u

struct bed {
	struct small_run files;
	struct pawl *run;
	struct pawl_state *state, *metadata; /* describe the arrays below */
	float weight[N_WEIGHT], frozen[N_WEIGHT], bias[N_BIAS];
	int64_t step;
	/* what a call is about */
	struct pawl_open_opts opts;
	struct pawl_save_opts save;
	const char *selector;
	int flag;
};

#define UNTOUCHED ((void *)(uintptr_t)0x5a5a)

/* The controls at the end look at the exit status of a child. */
static bool is_control;
#define COMPLAIN(...)                  \
	do {                           \
		disarm();              \
		if (is_control)        \
			_exit(1);      \
		fail_msg(__VA_ARGS__); \
	} while (0)

static inline void
change(struct bed *b)
{
	b->step++;
	for (size_t i = 0; i < N_WEIGHT; i++)
		b->weight[i] = (float)(b->step * 3 + (int64_t)i);
	for (size_t i = 0; i < N_BIAS; i++)
		b->bias[i] = (float)b->step;
}

static inline void
make_state(struct bed *b)
{
	OK(pawl_state_new(&b->state, err));
	small_add(b->state, "model/weight", PAWL_F32, N_WEIGHT, b->weight);
	small_add(b->state, "model/frozen", PAWL_F32, N_WEIGHT, b->frozen);
	small_add(b->state, "model/bias", PAWL_F32, N_BIAS, b->bias);
	OK(pawl_state_set_int(b->state, "epoch", 3, err));
	OK(pawl_state_set_str(b->state, "note", "a text", err));
	OK(pawl_state_new(&b->metadata, err));
	OK(pawl_state_set_str(b->metadata, "author", "nobody", err));
}

static inline void
reopen(struct bed *b)
{
	pawl_close(b->run, NULL);
	b->run = NULL;
	OK(pawl_open(&b->opts, &b->run, err));
}

static inline int
save_now(struct bed *b, struct pawl_error *err)
{
	struct pawl_metric metrics[] = {{"accuracy", (double)(b->step % 5), 0}, {"loss", 0.5, 0}};
	struct pawl_ticket *ticket = UNTOUCHED;

	b->save.metrics = metrics;
	b->save.n_metrics = COUNT(metrics);
	b->save.metadata = b->metadata;
	b->save.step = b->step;
	int rc = pawl_save(b->run, &b->save, b->state, &ticket, err);
	if (rc < 0) {
		assert_ptr_equal(ticket, UNTOUCHED);
		return rc;
	}
	rc = pawl_fence(b->run, -1, err);
	assert_int_equal(rc, 0);
	rc = pawl_ticket_wait(ticket, -1, err);
	pawl_ticket_free(ticket);
	int other = pawl_wait(b->run, -1, rc < 0 ? NULL : err);
	return rc < 0 ? rc : other;
}

/* Clears away what earlier attempts left; else each attempt would have more to do than the one
 * before. */
static inline void
clear_and_change(struct bed *b)
{
	OK(pawl_gc(b->run, 0, NULL, NULL, NULL, err));
	change(b);
}

static inline void
save_one(struct bed *b)
{
	change(b);
	OK(save_now(b, err));
}

static inline int
setup(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));
	void *files;

	assert_non_null(b);
	small_setup(&files);
	b->files = *(struct small_run *)files;
	free(files);
	make_state(b);
	b->opts = (struct pawl_open_opts)PAWL_OPEN_OPTS_INIT;
	b->opts.root = b->files.root;
	b->opts.packs.pack_bytes = 64 << 10;
	b->opts.packs.block_bytes = 64 << 10;
	b->opts.staging.ring_bytes = 8 << 20;
	b->opts.staging.copy_threads = 2;
	b->opts.io.threads = 1;
	b->save = (struct pawl_save_opts)PAWL_SAVE_OPTS_INIT;
	reopen(b);
	for (int i = 0; i < 3; i++)
		save_one(b);
	*state = b;
	return 0;
}

static inline int
teardown(void **state)
{
	struct bed *b = *state;

	pawl_close(b->run, NULL);
	pawl_state_free(b->state);
	pawl_state_free(b->metadata);
	nftw(b->files.root, small_remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(b);
	return 0;
}

static inline size_t
count_checkpoints(struct bed *b)
{
	struct pawl_list *list;

	OK(pawl_list_open(b->run, 0, &list, err));
	size_t n = pawl_list_count(list);
	pawl_list_free(list);
	return n;
}

/* What a save or a removal that failed leaves, until the next open. */
static inline size_t
count_hidden(struct bed *b)
{
	DIR *dir = opendir(small_path(&b->files, "checkpoints").text);
	size_t n = 0;

	assert_non_null(dir);
	for (struct dirent *d; (d = readdir(dir));)
		n += d->d_name[0] == '.' && strlen(d->d_name) > 2;
	closedir(dir);
	return n;
}

/* The newest checkpoint is intact (all: every one), and none is lost; returns how many there are. A
 * folder that has lost its manifest does not count: a deletion that was cut short leaves such
 * folders. */
static inline size_t
check_intact(struct bed *b, const char *what, long nth, size_t least, bool all)
{
	struct pawl_list *list = NULL;
	struct pawl_error err = {0};
	size_t n = 0;

	if (pawl_list_open(b->run, 1, &list, &err) < 0)
		COMPLAIN("%s, allocation %ld: afterwards: %s", what, nth, err.message);
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);
		struct pawl_findings *findings = NULL;

		if (info->marks & PAWL_MARK_BAD) {
			if (strcmp(info->problem, "manifest.json is missing") != 0)
				COMPLAIN("%s, allocation %ld: afterwards: %s: %s", what, nth, info->name,
				         info->problem);
			continue;
		}
		n++;
		if (!all && !(info->marks & PAWL_MARK_LATEST))
			continue;
		if (pawl_verify(b->run, info->id, NULL, &findings, &err) < 0)
			COMPLAIN("%s, allocation %ld: afterwards: %s", what, nth, err.message);
		pawl_findings_free(findings);
	}
	pawl_list_free(list);
	if (n < least)
		COMPLAIN("%s, allocation %ld: %zu checkpoints are left of %zu", what, nth, n, least);
	return n;
}

typedef int call_fn(struct bed *b, struct pawl_error *err);
typedef void prepare_fn(struct bed *b);

struct sweep {
	const char *what;
	prepare_fn *prepare; /* before every attempt, undisturbed; or NULL */
	call_fn *call;
	size_t keeps; /* so many checkpoints must always be there; 0 = as many as before the sweep */
};

/* One attempt; returns whether the n-th allocation was reached. */
static inline bool
attempt(struct bed *b, const struct sweep *s, long nth, bool forever)
{
	struct pawl_error err = {0};

	if (s->prepare)
		s->prepare(b);
	size_t blocks = count_live();
	bool had_run = b->run != NULL;
	arm(nth, forever);
	int rc = s->call(b, &err);
	bool reached = atomic_load(&fault.seen) >= nth;
	disarm();
	/* A thread that cannot be started is EAGAIN to the system. */
	if (rc < 0 && rc != PAWL_ENOMEM && !(rc == PAWL_ETRANSIENT && err.sys == EAGAIN))
		COMPLAIN("%s, allocation %ld%s: %s: %s", s->what, nth, forever ? " and on" : "", pawl_code_name(rc),
		         err.message);
	if (rc < 0 && (err.code != rc || !err.message[0]))
		COMPLAIN("%s, allocation %ld: returned %d, but the error says %d \"%s\"", s->what, nth, rc, err.code,
		         err.message);
	if (rc < 0 && !reached)
		COMPLAIN("%s: fails undisturbed: %s", s->what, err.message);
	if (had_run && b->run)
		check_intact(b, s->what, nth, s->keeps, false);
	else if (count_live() != blocks)
		COMPLAIN("%s, allocation %ld%s: %zu blocks are left", s->what, nth, forever ? " and on" : "",
		         count_live() - blocks);
	return reached;
}

/* Blocks that a call leaves behind are found when the run is closed. */
static inline void
sweep(struct bed *b, const struct sweep *given)
{
	struct sweep one = *given, *s = &one;

	if (!s->keeps)
		s->keeps = count_checkpoints(b);
	for (int forever = 0; forever <= 1; forever++) {
		pawl_close(b->run, NULL);
		b->run = NULL;
		size_t blocks = count_live();
		reopen(b);
		long nth = 1;
		while (attempt(b, s, nth, forever != 0))
			assert_true(++nth < 5000);
		size_t n = b->run ? check_intact(b, s->what, nth, 0, true) : 0;
		pawl_close(b->run, NULL);
		b->run = NULL;
		if (count_live() != blocks)
			COMPLAIN("%s%s: %zd blocks are left", s->what, forever ? ", from one on" : "",
			         (ssize_t)count_live() - (ssize_t)blocks);
		reopen(b);
		if (n)
			check_intact(b, s->what, nth, n, true);
		if (count_hidden(b))
			COMPLAIN("%s: %zu hidden folders are left", s->what, count_hidden(b));
	}
}

#define SWEEP(b, ...) sweep((b), &(const struct sweep){__VA_ARGS__})

#endif
