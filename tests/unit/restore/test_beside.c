/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers while a training saves and keeps one checkpoint: what is deleted under a reader is neither damaged nor missing
 * (R139, R156). The suite makes a tenth of the reads; "test_beside 20000" makes as many as it names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "helpers/small_run.h"

#define READERS 4

static unsigned long n_reads = 2000;

enum kind { RESTORE, OPENED, VERIFY, SHOW, LOAD, LIST, N_KINDS };
static const char *const kind_names[] = {"restore", "restore of an open run", "verify", "show", "load", "list"};

struct readers {
	struct small_run *r;
	atomic_ulong next, n[N_KINDS];
	atomic_ulong deleted; /* a load by path that says so: the only word besides success */
	atomic_ulong wrong;
	pthread_mutex_t lock;
	char first[800]; /* the first wrong word */
};

struct reader {
	struct readers *all;
	struct pawl *open; /* stays open from read to read */
};

static void
complain(struct readers *all, enum kind kind, const char *what)
{
	if (atomic_fetch_add(&all->wrong, 1) > 60)
		return;
	print_message("%s: %s\n", kind_names[kind], what);
	pthread_mutex_lock(&all->lock);
	snprintf(all->first, sizeof(all->first), "%s: %s", kind_names[kind], what);
	pthread_mutex_unlock(&all->lock);
}

static struct pawl *
open_reader(struct readers *all, enum kind kind, const char *root, int single)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	opts.root = root;
	opts.read_only = 1;
	opts.single = single;
	if (pawl_open(&opts, &run, &err) < 0)
		complain(all, kind, err.message);
	return run;
}

/* May the checkpoint be gone? Then that is the only error there is. */
static void
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

static void
read_restore(struct reader *me, enum kind kind)
{
	struct pawl *run = open_reader(me->all, kind, me->all->r->root, 0);

	if (run)
		restore_one(me->all, kind, run, NULL, false);
	pawl_close(run, NULL);
}

static void
read_opened(struct reader *me, enum kind kind)
{
	if (!me->open)
		me->open = open_reader(me->all, kind, me->all->r->root, 0);
	if (me->open)
		restore_one(me->all, kind, me->open, NULL, false);
}

static void
read_verify(struct reader *me, enum kind kind)
{
	struct pawl *run = open_reader(me->all, kind, me->all->r->root, 0);
	struct pawl_error err = {0};

	if (run && pawl_verify(run, 0, NULL, NULL, &err) < 0)
		complain(me->all, kind, err.message);
	pawl_close(run, NULL);
}

/* As the command shows the latest. */
static void
read_show(struct reader *me, enum kind kind)
{
	struct pawl *run = open_reader(me->all, kind, me->all->r->root, 0);

	if (run)
		restore_one(me->all, kind, run, "best", false);
	pawl_close(run, NULL);
}

static void
read_list(struct reader *me, enum kind kind)
{
	struct pawl *run = open_reader(me->all, kind, me->all->r->root, 0);
	struct pawl_error err = {0};
	struct pawl_list *list = NULL;

	if (run && pawl_list_open(run, 1, &list, &err) < 0)
		complain(me->all, kind, err.message);
	if (list && pawl_list_count(list) == 0)
		complain(me->all, kind, "no checkpoint");
	for (size_t i = 0; list && i < pawl_list_count(list); i++)
		if (pawl_list_get(list, i)->marks & PAWL_MARK_BAD)
			complain(me->all, kind, pawl_list_get(list, i)->problem);
	pawl_list_free(list);
	pawl_close(run, NULL);
}

/* By the path of the newest one that is listed. */
static void
read_load(struct reader *me, enum kind kind)
{
	struct pawl *run = open_reader(me->all, kind, me->all->r->root, 0);
	struct pawl_list *list = NULL;
	char path[512] = "";

	if (run && pawl_list_open(run, 0, &list, NULL) == 0 && pawl_list_count(list) > 0)
		snprintf(path, sizeof(path), "%s", pawl_list_get(list, pawl_list_count(list) - 1)->path);
	pawl_list_free(list);
	pawl_close(run, NULL);
	if (!*path)
		return complain(me->all, kind, "no checkpoint is listed");
	run = open_reader(me->all, kind, path, 1);
	if (run)
		restore_one(me->all, kind, run, NULL, true);
	pawl_close(run, NULL);
}

static void *
read_many(void *arg)
{
	static void (*const reads[])(struct reader *, enum kind) = {read_restore, read_opened, read_verify,
	                                                            read_show,    read_load,   read_list};
	struct readers *all = arg;
	struct reader me = {.all = all};

	for (unsigned long i; (i = atomic_fetch_add(&all->next, 1)) < n_reads;) {
		enum kind kind = (enum kind)(i % N_KINDS);

		reads[kind](&me, kind);
		atomic_fetch_add(&all->n[kind], 1);
	}
	pawl_close(me.open, NULL);
	return NULL;
}

/* Another process, as a training is: saves until it is killed. */
static pid_t
start_training(struct small_run *r)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	r->run = NULL; /* the parent's */
	r->opts.retention.num_to_keep = 1;
	small_open(r);
	for (int64_t step = 1;; step++)
		small_save(r, step, NAN);
}

static void
test_R139_reads_while_a_training_keeps_one_find_no_damage(void **state)
{
	struct small_run *r = *state;
	struct readers all = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t threads[READERS];
	uint64_t last_id = 0;

	r->opts.retention.num_to_keep = 1;
	small_open(r);
	small_save(r, 0, NAN);
	OK(pawl_close(r->run, err));
	r->run = NULL;
	pid_t training = start_training(r);

	for (size_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_many, &all), 0);
	for (size_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(waitpid(training, NULL, WNOHANG), 0); /* it went on all the time */
	assert_int_equal(kill(training, SIGKILL), 0);
	assert_int_equal(waitpid(training, NULL, 0), training);
	r->opts.read_only = 1;
	small_open(r);
	OK(pawl_find(r->run, "latest", &last_id, err));
	print_message("%lu reads while %llu checkpoints were saved: %lu wrong, %lu loads of one that was deleted\n",
	              n_reads, (unsigned long long)last_id, atomic_load(&all.wrong), atomic_load(&all.deleted));
	if (atomic_load(&all.wrong) > 0)
		fail_msg("%lu of %lu reads were wrong, the first: %s", atomic_load(&all.wrong), n_reads, all.first);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R139_reads_while_a_training_keeps_one_find_no_damage, small_setup,
	                                        small_teardown),
	};

	if (argc > 1)
		n_reads = strtoul(argv[1], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
