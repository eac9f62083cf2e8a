/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers while a training run saves and keeps one checkpoint: what is deleted under a reader is
 * neither damaged nor missing (R137, R156). First the training saves at every single call of a
 * reader, then it saves all the time. The suite makes a fifth of the reads; "test_beside 20000"
 * makes as many as it names.
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

#include "helpers/hang.h"
#include "helpers/small_run.h"
#include "base/err.h"
#include "run/run.h"
#include "helpers/user_store.h"

#define READERS 4

static unsigned long n_reads = 4000;

enum kind { RESTORE, OPENED, VERIFY, SHOW, LOAD, LIST, N_KINDS };
static const char *const kind_names[] = {"restore", "restore of an open run", "verify", "show", "load", "list"};

struct readers {
	struct small_run *r;
	atomic_ulong next, n[N_KINDS];
	atomic_ulong deleted; /* a load by path that reports a deletion: the only allowed result other than success */
	atomic_ulong wrong;
	pthread_mutex_t lock;
	char first[800]; /* the first wrong word */
};

struct reader {
	struct readers *all;
	struct pawl *open; /* stays open from read to read */
};

/* The newest is the best, too. */
static void
keep_one(struct small_run *r)
{
	r->opts.retention.num_to_keep = 1;
	r->opts.retention.score_attributes = small_scores;
	r->opts.retention.n_scores = 1;
}

static void
complain(struct readers *all, enum kind kind, const char *what)
{
	if (atomic_fetch_add(&all->wrong, 1) > 0)
		return;
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
	opts.io.stores = all->r->opts.io.stores;
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

/* ---- the training saves while a reader is at one of its calls */

/* The calls of one reader's store. */
static struct {
	const struct store_ops *straight;
	struct store_ops ops;
	struct small_run *r; /* the training */
	atomic_uint calls;
	unsigned at; /* the call before which the training saves */
	int64_t step;
	bool is_read_only; /* no hold can be made */
} stop;

static void
save_next(struct small_run *r)
{
	stop.step++;
	small_save(r, stop.step, (double)stop.step);
}

static void
count_call(void)
{
	if (atomic_fetch_add(&stop.calls, 1) + 1 == stop.at)
		save_next(stop.r);
}

/* The store's own operation, or that of the store it wraps. */
#define STRAIGHT(op, border, s, ...) \
	(stop.straight->op ? stop.straight->op(s, __VA_ARGS__) : border((s)->inner, __VA_ARGS__))

static int
stop_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n, int flags, struct pawl_error *err)
{
	count_call();
	if (stop.is_read_only)
		return err_set(err, PAWL_EREADONLY, "%s: cannot be put", key);
	return STRAIGHT(put, store_put, s, key, parts, n, flags, err);
}

static int
stop_open(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	count_call();
	return STRAIGHT(open, store_open_reader, s, key, ret, ret_nbytes, err);
}

static int
stop_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	count_call();
	return STRAIGHT(read, store_read, s, r, offset, dst, n, err);
}

static int
stop_stat(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	count_call();
	return STRAIGHT(stat, store_stat, s, key, ret, err);
}

static int
stop_list(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	count_call();
	int rc = STRAIGHT(list, store_list, s, folder, fn, arg, err);

	count_call();
	return rc;
}

static void
hook(struct pawl *reader)
{
	stop.straight = reader->store->ops;
	stop.ops = *stop.straight;
	stop.ops.put = stop_put;
	stop.ops.open = stop_open;
	stop.ops.read = stop_read;
	stop.ops.stat = stop_stat;
	stop.ops.list = stop_list;
	stop.ops.get = NULL;
	reader->store->ops = &stop.ops;
	atomic_store(&stop.calls, 0);
}

/* What a reader does from here on is counted and interrupted. */
typedef void stopped_fn(struct readers *all, struct pawl *reader);

static void
stopped_restore(struct readers *all, struct pawl *reader)
{
	restore_one(all, RESTORE, reader, NULL, false);
}

static void
stopped_restore_best(struct readers *all, struct pawl *reader)
{
	restore_one(all, SHOW, reader, "best", false);
}

static void
stopped_reload(struct readers *all, struct pawl *reader)
{
	uint64_t id;
	char ids[400];

	OK(pawl_reload(reader, err));
	OK(pawl_find(reader, "latest", &id, err));
	if (strchr(small_ids(reader, ids, sizeof(ids)), '!'))
		complain(all, LIST, ids);
}

static void
stopped_verify(struct readers *all, struct pawl *reader)
{
	struct pawl_error err = {0};

	(void)all;
	if (pawl_verify(reader, 0, NULL, NULL, &err) < 0)
		fail_msg("call %u: verify: %s", stop.at, err.message);
}

static void
stopped_load(struct readers *all, struct pawl *reader)
{
	restore_one(all, LOAD, reader, NULL, true);
}

/* As often as the reader makes calls. */
static unsigned
stop_everywhere(struct small_run *r, stopped_fn *fn, bool by_path)
{
	struct readers all = {.r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
	char path[512];

	stop.r = r;
	for (stop.at = 1;; stop.at++) {
		snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_%06lld", r->opts.root, (long long)stop.step);
		struct pawl *reader = open_reader(&all, LOAD, by_path ? path : r->opts.root, by_path);

		assert_non_null(reader);
		hook(reader);
		fn(&all, reader);
		if (all.wrong)
			fail_msg("call %u: %s", stop.at, all.first);
		pawl_close(reader, NULL);
		if (atomic_load(&stop.calls) < stop.at)
			return stop.at - 1;
	}
}

static void
stop_all(struct small_run *r)
{
	static const struct {
		const char *name;
		stopped_fn *fn;
		bool by_path;
	} kinds[] = {{"restore", stopped_restore, false},
	             {"restore best", stopped_restore_best, false},
	             {"reload, find", stopped_reload, false},
	             {"verify", stopped_verify, false},
	             {"load", stopped_load, true}};

	keep_one(r);
	r->opts.io.no_direct = 1;
	small_open(r);
	stop.step = 0;
	save_next(r);
	for (size_t i = 0; i < COUNT(kinds); i++) {
		if (kinds[i].by_path && user_shared) /* it shows the same for every URL */
			continue;
		unsigned n = stop_everywhere(r, kinds[i].fn, kinds[i].by_path);

		print_message("# %s: a save at each of %u calls\n", kinds[i].name, n);
		assert_true(n > 2);
	}
}

static void
test_R137_a_save_at_any_call_of_a_reader_is_no_damage(void **state)
{
	stop.is_read_only = false;
	stop_all(*state);
}

static void
test_R137_a_save_at_any_call_of_a_reader_that_cannot_hold_is_no_damage(void **state)
{
	stop.is_read_only = true;
	stop_all(*state);
}

static void
test_R137_a_save_at_any_call_of_a_reader_of_an_object_store_is_no_damage(void **state)
{
	struct small_run *r = *state;

	stop.is_read_only = false;
	OK(store_open("mem:", true, false, &user_shared, err));
	r->opts.root = "user://run";
	r->opts.io.stores = &user_stores;
	stop_all(r);
	pawl_close(r->run, NULL);
	r->run = NULL;
	store_close(user_shared);
	user_shared = NULL;
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
		cmocka_unit_test_setup_teardown(test_R137_a_save_at_any_call_of_a_reader_is_no_damage, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R137_a_save_at_any_call_of_a_reader_that_cannot_hold_is_no_damage,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(
			test_R137_a_save_at_any_call_of_a_reader_of_an_object_store_is_no_damage, small_setup,
			small_teardown),
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
