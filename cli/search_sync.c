/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_sync: see search_sync.h. One thread syncs on request and every period_s. A failed sync
 * does not fail the search: the next sync copies what is missing. If the last sync fails, the
 * failure is reported.
 */
#include "base/value.h"
#include "search_sync.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "target.h"
#include "tune.h"

#define SYNC_REST_MS 1000 /* pause between two syncs */

struct search_sync {
	struct cli *cli;
	const char *folder, *place;
	bool own_way; /* no external command: pawl can tell that the place is empty */
	double period_s;
	struct pawl_syncer *syncer;
	pthread_t thread;
	bool running;

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	bool asked, stop;
	struct pawl_meter meter; /* of the thread's syncs */
	struct pawl_error stays; /* why the last sync left old checkpoints at the place */
};

static const char *
text_of(const struct value *object, const char *key)
{
	return value_text(value_get(object, key));
}

static int
make_sync(struct cli *cli, const struct value *document, struct search_sync **ret, struct pawl_error *err)
{
	const struct value *sync = value_get(document, "sync");
	const char *to = text_of(sync, "upload_dir"), *command = text_of(sync, "syncer");
	struct pawl_syncer_opts opts = PAWL_SYNCER_OPTS_INIT;
	struct search_sync *s;

	*ret = NULL;
	if (to == NULL || command == NULL)
		return 0;
	s = keep_alloc(&cli->keep, 1, sizeof(*s));
	s->cli = cli;
	s->own_way = strcmp(command, "auto") == 0;
	s->period_s = value_number(value_get(sync, "period_s"));
	s->folder = keep_printf(&cli->keep, "%s/%s", text_of(document, "local_dir"), text_of(document, "name"));
	s->place = target_join(cli, to, text_of(document, "name"));
	opts.command = s->own_way ? NULL : keep_printf(&cli->keep, "%s", command);
	TRY(pawl_syncer_open(s->folder, s->place, &opts, &s->syncer, err));
	(void)pthread_mutex_init(&s->lock, NULL);
	(void)pthread_cond_init(&s->changed, NULL);
	*ret = s;
	return 0;
}

int
search_sync_open(struct cli *cli, const char *document, struct search_sync **ret, struct pawl_error *err)
{
	struct value *object = value_from_text(document);
	int rc = make_sync(cli, object, ret, err);

	value_free(object);
	return rc;
}

const char *
search_sync_place(const struct search_sync *s)
{
	return s->place;
}

/* Copies the search to its place, and removes checkpoints there that it does not keep any more. If
 * one cannot be removed, the search does not fail; search_sync_end reports it. */
static int
sync_up(struct search_sync *s, struct pawl_meter *meter, struct pawl_error *err)
{
	struct tune_leftovers *l = NULL;
	const char *const *names;
	struct pawl_error why = {0};
	size_t n;
	(void)tune_leftovers_open(s->folder, &l, NULL);
	int rc = pawl_syncer_up(s->syncer, meter, NULL, err);

	s->stays = (struct pawl_error){0};
	if (rc == 0 && l != NULL &&
	    (tune_leftovers_after(l, &names, &n, &why) < 0 || pawl_syncer_prune(s->syncer, names, n, &why) < 0))
		s->stays = why;
	tune_leftovers_close(l);
	return rc;
}

/* One sync in the foreground, with progress; Ctrl+C may end it. */
static int
sync_now(struct search_sync *s, bool down, struct pawl_error *err)
{
	struct pawl_meter meter = {0};
	int rc;

	work_begin(s->cli->work, down ? "fetching the search" : "syncing", &meter, 0);
	rc = down ? pawl_syncer_down(s->syncer, &meter, NULL, err) : sync_up(s, &meter, err);
	work_end(s->cli->work);
	return rc;
}

static const char *
mark_of(struct search_sync *s)
{
	return keep_printf(&s->cli->keep, "%s/experiment.json", s->folder);
}

static bool
exists_here(struct search_sync *s)
{
	return access(mark_of(s), F_OK) == 0;
}

/* Is it a host that only rsync can reach, so that pawl cannot check it? */
static bool
is_of_rsync(const char *place)
{
	return strstr(place, "://") == NULL && place[strcspn(place, ":/")] == ':';
}

int
search_sync_check(struct search_sync *s, struct pawl_error *err)
{
	if (s == NULL || !s->own_way || exists_here(s) || is_of_rsync(s->place))
		return 0;
	if (pawl_kind_of(s->place, NULL, NULL) <= PAWL_KIND_NOTHING) /* an error will be reported by the sync */
		return 0;
	return err_set(err, PAWL_EEXISTS, "%s already holds something that a new search would overwrite", s->place);
}

int
search_sync_fetch(struct search_sync *s, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc;

	if (s == NULL || exists_here(s))
		return 0;
	rc = sync_now(s, true, &why);
	if (rc < 0 && exists_here(s)) { /* a command has fetched a part, which is not a search yet */
		(void)unlink(mark_of(s));
		return err_set(err, rc, "%s", why.message);
	}
	if (rc == PAWL_ENOTFOUND || (rc < 0 && rc != PAWL_ECANCELLED && !s->own_way)) {
		cli_note(s->cli, "nothing was fetched from %s: %s", s->place, why.message);
		return 0;
	}
	if (rc == 0 && exists_here(s))
		cli_note(s->cli, "fetched from %s", s->place);
	return rc < 0 ? err_set(err, rc, "%s", why.message) : 0;
}

static void
add_ms(struct timespec *t, double ms)
{
	const double whole = (double)(int64_t)(ms / 1e3);

	t->tv_sec += (time_t)whole;
	t->tv_nsec += (long)((ms - whole * 1e3) * 1e6);
	t->tv_sec += t->tv_nsec / 1000000000L;
	t->tv_nsec %= 1000000000L;
}

/* Waits until a request arrives (if may_be_asked), the time is over, or the thread must stop.
 * Called with the lock held. */
static void
rest_for(struct search_sync *s, double ms, bool may_be_asked)
{
	struct timespec until;
	int rc = 0;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	add_ms(&until, ms);
	while (rc != ETIMEDOUT && !s->stop && !(may_be_asked && s->asked))
		rc = pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

static void *
sync_rounds(void *arg)
{
	struct search_sync *s = arg;

	(void)pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		rest_for(s, SYNC_REST_MS, false);
		rest_for(s, s->period_s > 0 && s->period_s < 1e6 ? s->period_s * 1e3 : 1e9, true);
		if (s->stop)
			break;
		s->asked = false;
		(void)pthread_mutex_unlock(&s->lock);
		(void)sync_up(s, &s->meter, NULL); /* the last sync reports what could not be copied */
		(void)pthread_mutex_lock(&s->lock);
	}
	(void)pthread_mutex_unlock(&s->lock);
	return NULL;
}

int
search_sync_begin(struct search_sync *s, struct pawl_error *err)
{
	int rc = s != NULL ? sync_now(s, false, err) : 0;

	if (s == NULL || rc < 0)
		return rc;
	rc = pthread_create(&s->thread, NULL, sync_rounds, s);
	if (rc != 0)
		return err_set(err, PAWL_ENOMEM, "cannot start a thread to sync: %s", strerror(rc));
	s->running = true;
	return 0;
}

void
search_sync_request(struct search_sync *s)
{
	if (s == NULL)
		return;
	(void)pthread_mutex_lock(&s->lock);
	s->asked = true;
	(void)pthread_cond_signal(&s->changed);
	(void)pthread_mutex_unlock(&s->lock);
}

static void
stop_thread(struct search_sync *s, bool at_once)
{
	if (!s->running)
		return;
	(void)pthread_mutex_lock(&s->lock);
	s->stop = true;
	(void)pthread_cond_signal(&s->changed);
	(void)pthread_mutex_unlock(&s->lock);
	if (at_once)
		__atomic_store_n(&s->meter.cancel, 1, __ATOMIC_RELAXED);
	(void)pthread_join(s->thread, NULL);
	s->running = false;
}

int
search_sync_end(struct search_sync *s, struct pawl_error *err)
{
	if (s == NULL)
		return 0;
	stop_thread(s, false);
	int rc = sync_now(s, false, err);

	if (rc == 0 && s->stays.code < 0)
		cli_note(s->cli, "old checkpoints stay at %s: %s", s->place, s->stays.message);
	return rc;
}

void
search_sync_close(struct search_sync **s)
{
	if (*s == NULL)
		return;
	stop_thread(*s, true);
	pawl_syncer_close((*s)->syncer);
	(void)pthread_cond_destroy(&(*s)->changed);
	(void)pthread_mutex_destroy(&(*s)->lock);
	*s = NULL;
}
