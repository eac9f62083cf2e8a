/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers while a training run saves and keeps one checkpoint: what is deleted under a reader is
 * neither damaged nor missing (R137, R156). The suite makes a fifth of the reads; "test_beside
 * 20000" makes as many as it names. Single calls of a reader are stopped in test_beside_calls.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>

#include "helpers/hang.h"
#include "helpers/readers.h"
#include "base/err.h"
#include "run/run.h"
#include "store/store.h"

#define READERS 4

static unsigned long n_reads = 4000;

struct reader {
	struct readers *all;
	struct pawl *open; /* stays open from read to read */
};

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
	struct pawl_error err = {.message = "no checkpoint is listed"};
	struct pawl_list *list = NULL;
	char path[512] = "";

	if (run && pawl_list_open(run, 0, &list, &err) == 0 && pawl_list_count(list) > 0)
		snprintf(path, sizeof(path), "%s", pawl_list_get(list, pawl_list_count(list) - 1)->path);
	pawl_list_free(list);
	pawl_close(run, NULL);
	if (!*path)
		return complain(me->all, kind, err.message);
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

/* Another process, as a training run is: saves until it is killed. */
static pid_t
start_training(struct small_run *r)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	r->run = NULL; /* the parent's */
	keep_one(r);
	small_open(r);
	for (int64_t step = 1;; step++)
		small_save(r, step, (double)step);
}

static void
test_R137_reads_while_a_training_keeps_one_find_no_damage(void **state)
{
	struct small_run *r = *state;
	struct readers all = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t threads[READERS];
	uint64_t last_id = 0;

	keep_one(r);
	small_open(r);
	small_save(r, 0, 0);
	OK(pawl_close(r->run, err));
	r->run = NULL;
	pid_t training = start_training(r);

	for (size_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_many, &all), 0);
	for (size_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(waitpid(training, NULL, WNOHANG), 0); /* it continued all the time */
	assert_int_equal(kill(training, SIGKILL), 0);
	assert_int_equal(waitpid(training, NULL, 0), training);
	r->opts.read_only = 1;
	small_open(r);
	OK(pawl_find(r->run, "latest", &last_id, err));
	print_message("# %lu reads while %llu checkpoints were saved: %lu wrong, %lu loads of one that was deleted\n",
	              n_reads, (unsigned long long)last_id, atomic_load(&all.wrong), atomic_load(&all.deleted));
	if (atomic_load(&all.wrong) > 0)
		fail_msg("%lu of %lu reads were wrong, the first: %s", atomic_load(&all.wrong), n_reads, all.first);
}

/* ---- the training deletes what a reader has just taken hold of */

/* The training decides to delete, then the reader takes a hold, then the training renames the
 * folder. The training looks for holds only after the reader has looked for the folder in vain. */
static struct {
	const struct store_ops *straight_training, *straight_reader;
	struct store_ops training, reader;
	struct pawl *run; /* the reader's */
	atomic_bool is_decided, is_held, is_renamed, is_done;
	atomic_uint n_looks;
	bool is_open; /* the folder vanishes while tensors are read, not before the manifest is */
	int code;
	struct pawl_error err;
} race;

static void
pause_until(const atomic_bool *what)
{
	for (unsigned i = 0; !atomic_load(what) && i < HANG_MS; i++)
		usleep(1000);
	assert_true(atomic_load(what));
}

static int
race_publish(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	const bool is_deletion = strcmp(from, "checkpoints/checkpoint_000001") == 0;

	if (is_deletion) {
		atomic_store(&race.is_decided, true);
		pause_until(&race.is_held);
	}
	int rc = race.straight_training->publish(s, from, to, err);

	if (!is_deletion)
		return rc;
	atomic_store(&race.is_renamed, true);
	while (atomic_load(&race.n_looks) < 3 && !atomic_load(&race.is_done))
		usleep(1000);
	return rc;
}

static int
race_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	int rc = race.straight_reader->stat(s, key, ret, err);

	if (rc == 0 && !race.is_open && !atomic_load(&race.is_held)) { /* the manifest, after the hold was made */
		atomic_store(&race.is_held, true);
		pause_until(&race.is_renamed);
	}
	if (rc == PAWL_ENOTFOUND)
		atomic_fetch_add(&race.n_looks, 1);
	return rc;
}

static void *
read_held(void *arg)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore = NULL;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	uint64_t n = 64;
	float data[64];

	(void)arg;
	opts.selector = "id:1";
	tensor.dtype = PAWL_F32;
	tensor.ndim = 1;
	tensor.shape = &n;
	tensor.data = data;
	pause_until(&race.is_decided);
	race.code = pawl_restore_open(race.run, &opts, &restore, &race.err);
	if (race.is_open) {
		atomic_store(&race.is_held, true);
		pause_until(&race.is_renamed);
	}
	if (race.code == 0)
		race.code = pawl_restore_bind(restore, 0, &tensor, &race.err);
	if (race.code == 0)
		race.code = pawl_restore_read(restore, &race.err);
	if (race.code == 0 && (data[0] != 1 || data[63] != 64))
		race.code = err_set(&race.err, PAWL_ECORRUPT, "not the values of its step");
	atomic_store(&race.is_done, true);
	atomic_store(&race.is_held, true);
	pawl_restore_close(restore);
	return NULL;
}

static void
delete_while_held(struct small_run *r, bool is_open)
{
	struct readers all = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t thread;

	memset(&race, 0, sizeof(race));
	race.is_open = is_open;
	keep_one(r);
	small_open(r);
	small_save(r, 1, 1);
	race.run = open_reader(&all, RESTORE, r->root, 0);
	assert_non_null(race.run);
	race.straight_reader = race.run->store->ops;
	race.reader = *race.straight_reader;
	race.reader.stat = race_stat;
	race.run->store->ops = &race.reader;
	race.straight_training = r->run->store->ops;
	race.training = *race.straight_training;
	race.training.publish = race_publish;
	r->run->store->ops = &race.training;
	assert_int_equal(pthread_create(&thread, NULL, read_held, NULL), 0);
	small_save(r, 2, 2);
	assert_int_equal(pthread_join(thread, NULL), 0);
	r->run->store->ops = race.straight_training;
	pawl_close(race.run, NULL);
	if (race.code < 0)
		fail_msg("%s: %s", pawl_code_name(race.code), race.err.message);
}

static void
test_P6_a_hold_lasts_while_its_checkpoint_is_renamed_and_put_back(void **state)
{
	delete_while_held(*state, true);
}

static void
test_P6_a_hold_lasts_while_its_checkpoint_is_put_back_before_the_manifest_is_read(void **state)
{
	delete_while_held(*state, false);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_P6_a_hold_lasts_while_its_checkpoint_is_renamed_and_put_back,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(
			test_P6_a_hold_lasts_while_its_checkpoint_is_put_back_before_the_manifest_is_read, small_setup,
			small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_reads_while_a_training_keeps_one_find_no_damage, small_setup,
	                                        small_teardown),
	};

	if (argc > 1)
		n_reads = strtoul(argv[1], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
