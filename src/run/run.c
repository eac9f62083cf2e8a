/* SPDX-License-Identifier: Apache-2.0 */
/* run: see run.h. The locks of an open run, and what its handle may do. */
#include "run/run.h"

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"

struct pawl *
run_new(void)
{
	struct pawl *run = mem_zalloc(1, sizeof(*run));

	if (!run)
		return NULL;
	pthread_mutex_init(&run->guard.edit, NULL);
	pthread_mutex_init(&run->guard.lock, NULL);
	pthread_mutex_init(&run->self.lock, NULL);
	pthread_mutex_init(&run->group.lock, NULL);
	pthread_mutex_init(&run->saves.lock, NULL);
	pthread_mutex_init(&run->saves.recycle.lock, NULL);
	pthread_mutex_init(&run->interval.lock, NULL);
	pthread_mutex_init(&run->events.lock, NULL);
	pthread_mutex_init(&run->events.queue_lock, NULL);
	return run;
}

void
run_delete(struct pawl *run)
{
	recycle_clear(&run->saves.recycle);
	run_saves_drop_failed(&run->saves);
	mem_free(run->home.root);
	mem_free(run->home.single_name);
	mem_free(run->home.warning);
	mem_free(run->self.file_damage);
	mem_free(run->group.left_behind);
	bump_clear(&run->settings.strings);
	events_close(&run->events);
	pthread_mutex_destroy(&run->guard.edit);
	pthread_mutex_destroy(&run->guard.lock);
	pthread_mutex_destroy(&run->self.lock);
	pthread_mutex_destroy(&run->group.lock);
	pthread_mutex_destroy(&run->saves.lock);
	pthread_mutex_destroy(&run->interval.lock);
	mem_free(run);
}

int
run_open_store(struct pawl *run, const char *url, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;

	return store_open_with(o->io.stores, url, !o->read_only && !o->maintenance, o->io.no_direct, &run->store, err);
}

void
run_lock(struct pawl *run)
{
	pthread_mutex_lock(&run->guard.lock);
}

void
run_unlock(struct pawl *run)
{
	pthread_mutex_unlock(&run->guard.lock);
}

void
run_edit(struct pawl *run)
{
	pthread_mutex_lock(&run->guard.edit);
	run_lock(run);
	run->guard.editor = pthread_self();
	run->guard.is_edited = true;
	run_unlock(run);
}

void
run_edited(struct pawl *run)
{
	run_lock(run);
	run->guard.is_edited = false;
	run_unlock(run);
	pthread_mutex_unlock(&run->guard.edit);
}

int
run_wait_committed(struct pawl *run, int64_t deadline_ms)
{
	run_lock(run);
	const bool is_editor = run->guard.is_edited && pthread_equal(run->guard.editor, pthread_self());
	run_unlock(run);

	return is_editor || !run->saves.writer ? 0
	                                       : run->saves.queue_ops->wait_committed(run->saves.writer, deadline_ms);
}

int
run_check_writable(const struct pawl *run, struct pawl_error *err)
{
	if (run->opts.read_only)
		return err_set(err, PAWL_EREADONLY, "%s was opened read-only", run->home.root);
	return 0;
}

int
run_check_keeper(const struct pawl *run, struct pawl_error *err)
{
	TRY(run_check_writable(run, err));
	if (run->group.rank > 0)
		return err_set(err, PAWL_EUSAGE, "rank %u of %u may not delete or repair checkpoints; rank 0 may",
		               run->group.rank, run->group.world);
	return 0;
}

const char *
pawl_root(const struct pawl *run)
{
	return run->home.root;
}

const char *
pawl_warning(const struct pawl *run)
{
	return run->home.warning;
}

uint32_t
pawl_my_rank(const struct pawl *run)
{
	return run->group.rank;
}

uint32_t
pawl_world_size(const struct pawl *run)
{
	return run->group.world;
}

const char *
pawl_run_id(const struct pawl *run)
{
	return run->self.run_id;
}

int
pawl_event_take(struct pawl *run, char **ret, struct pawl_error *err)
{
	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "event: expected a run and a pointer that receives the text, found NULL");
	*ret = events_take(&run->events);
	return *ret != NULL;
}

void
pawl_event_free(char *text)
{
	mem_free(text);
}
