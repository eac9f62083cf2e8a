/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner: the trials of an experiment as processes of this machine; see tune.h. The experiment
 * makes all decisions; process.c talks to one trial. This file is the loop:
 *
 *     ended processes -> deadlines that passed -> trials to start
 *     -> wait for a message, an end or a deadline
 *
 * P3: a report is in the journal before its answer is sent. P16: a trial that does not end is
 * terminated, then killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "base/value.h"
#include "experiment.h"
#include "memory.h"
#include "runner_own.h"

#define RUNNER_MAX 1000    /* processes at a time */
#define RUNNER_BLIND_MS 20 /* interval of polling for ends where the system does not report them */
#define RUNNER_LOOK_S 1.0  /* interval between two checks of the memory that trials use */
#define RUNNER_NOTE ".runner"
#define RUNNER_SPARE_FILES 32 /* that a report, a clone and the caller may open */

double
runner_now(void)
{
	return (double)clock_mono_ns() * 1e-9;
}

static void
event_clear(struct tune_event *event)
{
	mem_free((char *)(uintptr_t)event->text);
	mem_free((char *)(uintptr_t)event->reason);
	*event = (struct tune_event){0};
}

int
runner_queue(struct tune_runner *r, const struct tune_event *event, struct pawl_error *err)
{
	struct tune_event copy = *event;

	copy.text = event->text != NULL ? mem_strdup(event->text) : NULL;
	copy.reason = mem_strdup(event->reason != NULL ? event->reason : "");
	if ((event->text != NULL && copy.text == NULL) || copy.reason == NULL) {
		event_clear(&copy);
		return err_nomem(err, NULL);
	}
	struct queued *added = vec_add(&r->queue);
	if (added == NULL) {
		event_clear(&copy);
		return err_nomem(err, "events");
	}
	added->event = copy;
	return 0;
}

static double
number_of(const struct value *object, const char *path, double otherwise)
{
	double value;

	return value_get_number(value_at(object, path), &value) ? value : otherwise;
}

/* The arguments of every trial: those given, or the document's. */
static int
set_command(struct tune_runner *r, const char *const *command, const struct value *spec, struct pawl_error *err)
{
	struct value *run = value_get(spec, "run");

	if (command == NULL) {
		if (value_n_items(run) == 0)
			return err_set(err, PAWL_EUSAGE,
			               "run: expected the program of a trial and its arguments, found none");
		r->run = value_ref(run);
		return 0;
	}
	r->run = value_new_array();
	for (size_t i = 0; r->run != NULL && command[i] != NULL; i++)
		if (!value_append(r->run, value_new_text(command[i])))
			return err_nomem(err, NULL);
	return r->run != NULL ? 0 : err_nomem(err, NULL);
}

static int
set_environment(struct tune_runner *r, const char *const *more, const struct value *spec, struct pawl_error *err)
{
	char threads[16];

	TRY(command_environment(value_get(spec, "env"), &r->env, err));
	if (getenv("OMP_NUM_THREADS") == NULL && value_get(value_get(spec, "env"), "OMP_NUM_THREADS") == NULL) {
		/* Trials that run in parallel must not each use all processors. */
		(void)snprintf(threads, sizeof(threads), "%d", r->cpu >= 1 && r->cpu < 1e4 ? (int)r->cpu : 1);
		if (!command_set_variable(&r->env, "OMP_NUM_THREADS", threads))
			return err_nomem(err, NULL);
	}
	for (size_t i = 0; more != NULL && more[i] != NULL; i++) {
		const char *value = strchr(more[i], '=');

		if (value == NULL)
			return err_set(err, PAWL_EUSAGE, "environment: expected NAME=value, found '%.80s'", more[i]);
		PAWL_FREE char *name = mem_strndup(more[i], (size_t)(value - more[i]));
		if (name == NULL || !command_set_variable(&r->env, name, value + 1))
			return err_nomem(err, NULL);
	}
	command_unset_variable(&r->env, "PAWL_TUNE_CHECKPOINT");
	return 0;
}

/* Writes who runs the experiment, for commands that stop it: process, the signal it takes for
 * Ctrl+C, host. */
static int
write_note(struct tune_runner *r, struct pawl_error *err)
{
	struct sigaction action;
	bool deaf = sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
	char text[320], host[256] = "";
	int fd = openat(r->e->dirfd, RUNNER_NOTE, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), len;
	ssize_t n;

	(void)gethostname(host, sizeof(host) - 1);
	len = snprintf(text, sizeof(text), "%ld %d %s\n", (long)getpid(), deaf ? SIGTERM : SIGINT, host);
	n = fd >= 0 ? write(fd, text, (size_t)len) : -1;
	if (fd >= 0)
		(void)close(fd);
	return n == len ? 0
	                : err_set(err, PAWL_EIO, "%s/" RUNNER_NOTE ": %s", tune_experiment_folder(r->e),
	                          strerror(errno));
}

static int
set_up(struct tune_runner *r, const struct tune_runner_opts *opts, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *spec = NULL;

	TRY(value_parse(tune_experiment_spec(r->e), SIZE_MAX, "the document", &spec, err));
	r->cpu = number_of(spec, "resources/cpu", 1);
	r->gpu = number_of(spec, "resources/gpu", 0);
	r->memory_bytes = number_of(spec, "resources/memory_bytes", 0);
	r->grace_s = number_of(spec, "grace_s", 30);
	r->heartbeat_s = number_of(spec, "heartbeat_s", 0);
	r->budget_s = number_of(spec, "time_budget_s", 0);
	slots_init(&r->slots, opts->cpus, opts->gpus, getenv("CUDA_VISIBLE_DEVICES"));
	if (r->memory_bytes > 0) {
		TRY(os_needs_linux("resources/memory_bytes", err));
		cgroups_open(&r->cgroups, CGROUP_ROOT, CGROUP_SELF);
	}
	TRY(slots_check(&r->slots, r->cpu, r->gpu, err));
	TRY(set_command(r, opts->command, spec, err));
	TRY(set_environment(r, opts->env, spec, err));
	TRY(guard_open(&r->guard, r->e->lock, err));
	if (opts->forker != NULL && os_needs_linux("the forker", NULL) == 0) {
		TRY(forker_open(&r->forker, (char *const *)(uintptr_t)opts->forker, r->env.items, err));
		guard_add(&r->guard, r->forker.pid);
	}
	return write_note(r, err);
}

int
tune_runner_new(struct tune_experiment *e, const struct tune_runner_opts *opts, struct tune_runner **ret,
                struct pawl_error *err)
{
	static const struct tune_runner_opts none = {0};
	struct tune_runner *r = mem_zalloc(1, sizeof(*r));
	int rc;

	if (r == NULL)
		return err_nomem(err, NULL);
	r->e = e;
	r->guard = (struct guard)GUARD_INIT;
	r->forker = (struct forker)FORKER_INIT;
	r->cgroups = (struct cgroups)CGROUPS_INIT;
	rc = set_up(r, opts != NULL ? opts : &none, err);
	if (rc < 0)
		tune_runner_free(r);
	else
		*ret = r;
	return rc;
}

void
tune_runner_free(struct tune_runner *r)
{
	if (r == NULL)
		return;
	while (r->n > 0)
		process_drop(r, r->running[--r->n]);
	if (r->guard.pid > 0)
		(void)unlinkat(r->e->dirfd, RUNNER_NOTE, 0);
	if (r->forker.pid > 0)
		guard_remove(&r->guard, r->forker.pid);
	forker_close(&r->forker);
	cgroups_close(&r->cgroups);
	guard_close(&r->guard);
	for (size_t i = 0; i < r->queue.n; i++)
		event_clear(&r->queue.items[i].event);
	event_clear(&r->last);
	vec_free(&r->queue);
	mem_free(r->running);
	strings_clear(&r->env);
	value_free(r->run);
	mem_free(r);
}

uint32_t
tune_runner_count(const struct tune_runner *r)
{
	return (uint32_t)r->n;
}

void
tune_runner_stop(struct tune_runner *r, bool now)
{
	r->stopping = true;
	for (size_t i = 0; i < r->n; i++) {
		struct process *p = r->running[i];

		process_ask(r, p);
		if (now && p->phase < PHASE_TERM) {
			p->lost = p->lost || !p->told;
			p->phase = PHASE_LEAVING;
			process_press(r, p);
		}
	}
}

int
tune_runner_stop_trial(struct tune_runner *r, uint32_t trial, const char *why, struct pawl_error *err)
{
	TRY(tune_experiment_stop_trial(r->e, trial, why, err));
	for (size_t i = 0; i < r->n; i++)
		if (r->running[i]->trial == trial)
			process_ask(r, r->running[i]);
	return 0;
}

/* Handles the processes that have ended, in the order of their start. */
static int
reap_processes(struct tune_runner *r, struct pawl_error *err)
{
	for (size_t i = 0; i < r->n;) {
		struct process *p = r->running[i];

		if (!process_has_gone(r, p)) {
			i++;
			continue;
		}
		memmove(&r->running[i], &r->running[i + 1], (r->n - i - 1) * sizeof(struct process *));
		r->n--;
		r->full = false;
		TRY(process_end(r, p, err));
	}
	return 0;
}

/* Marks the trial as failed and ends it. */
static void
give_up(struct tune_runner *r, struct process *p, const char *why)
{
	mem_free(p->failure);
	p->failure = mem_strdup(why);
	p->phase = PHASE_LEAVING;
	process_press(r, p);
}

static int
check_memory(struct tune_runner *r, struct pawl_error *err)
{
	PAWL_FREE pid_t *groups = mem_zalloc(r->n + 1, sizeof(*groups));
	PAWL_FREE uint64_t *used = mem_zalloc(r->n + 1, sizeof(*used));
	char text[160];

	r->look = runner_now() + RUNNER_LOOK_S;
	if (groups == NULL || used == NULL)
		return err_nomem(err, NULL);
	for (size_t i = 0; i < r->n; i++)
		groups[i] = r->running[i]->pid;
	memory_of_groups(groups, r->n, used);
	for (size_t i = 0; i < r->n; i++)
		if ((double)used[i] > r->memory_bytes && r->running[i]->phase < PHASE_TERM) {
			(void)snprintf(text, sizeof(text), "it uses %.0f MB of memory, it may use %.0f",
			               (double)used[i] / 1e6, r->memory_bytes / 1e6);
			give_up(r, r->running[i], text);
		}
	return 0;
}

/* Is a message of it still unread? The driver may have been busy for longer than a trial may be
 * silent. */
static bool
is_unheard(const struct process *p)
{
	struct pollfd one = {.fd = p->channel.ended ? -1 : p->channel.fd, .events = POLLIN};

	return poll(&one, 1, 0) > 0;
}

static int
check_times(struct tune_runner *r, struct pawl_error *err)
{
	double now = runner_now();
	struct tune_counts counts;
	char text[160];

	for (size_t i = 0; i < r->n; i++) {
		struct process *p = r->running[i];

		if (r->heartbeat_s > 0 && p->phase == PHASE_RUNNING && now - p->heard > r->heartbeat_s &&
		    !is_unheard(p)) {
			(void)snprintf(text, sizeof(text), "no sign of life for %g s", r->heartbeat_s);
			give_up(r, p, text);
		} else if (p->deadline > 0 && now >= p->deadline) {
			process_press(r, p);
		}
	}
	if (r->memory_bytes > 0 && r->n > 0 && now >= r->look)
		TRY(check_memory(r, err));
	if (r->budget_s > 0 && !r->stopping) {
		tune_experiment_counts(r->e, &counts);
		if (counts.time_s >= r->budget_s) {
			(void)snprintf(text, sizeof(text), "the time budget of %g s is spent", r->budget_s);
			tune_runner_stop(r, false);
			return runner_queue(r, &(struct tune_event){.kind = TUNE_EVENT_NOTICE, .text = text}, err);
		}
	}
	return 0;
}

/* Would this process still be able to open files if it started another trial? */
static bool
has_spare_files(const struct tune_runner *r)
{
	int fds[RUNNER_SPARE_FILES], n = 0;

	while (n < RUNNER_SPARE_FILES && (fds[n] = fcntl(r->e->dirfd, F_DUPFD_CLOEXEC, 0)) >= 0)
		n++;
	const bool found = n == RUNNER_SPARE_FILES;
	while (n > 0)
		(void)close(fds[--n]);
	return found;
}

static int
start_some(struct tune_runner *r, struct pawl_error *err)
{
	while (!r->stopping && r->n < RUNNER_MAX && r->queue.n < 64) {
		enum tune_next next;
		struct tune_start start;
		struct share share;
		int rc;

		if (!slots_take(&r->slots, r->cpu, r->gpu, &share))
			return 0;
		if (r->n > 0 && (r->full || !has_spare_files(r))) {
			slots_give(&r->slots, &share);
			return 0; /* until a trial has ended */
		}
		rc = tune_experiment_next(r->e, &next, &start, err);
		if (rc == 0 && next == TUNE_START)
			rc = process_start(r, &start, &share, err);
		else
			slots_give(&r->slots, &share);
		r->started_all = next == TUNE_DONE;
		if (rc < 0 || next != TUNE_START)
			return rc;
	}
	return 0;
}

/* How long to wait before something is due without an event. */
static int
wait_limit_ms(const struct tune_runner *r, double until)
{
	double now = runner_now(), least = until;
	struct tune_counts counts;

	for (size_t i = 0; i < r->n; i++) {
		const struct process *p = r->running[i];

		if (p->deadline > 0)
			least = fmin(least, p->deadline);
		if (r->heartbeat_s > 0 && p->phase == PHASE_RUNNING)
			least = fmin(least, p->heard + r->heartbeat_s);
		if (p->pidfd < 0 && (!p->forked || r->forker.fd < 0))
			least = fmin(least, now + RUNNER_BLIND_MS * 1e-3);
	}
	if (r->memory_bytes > 0 && r->n > 0)
		least = fmin(least, r->look);
	if (r->budget_s > 0 && !r->stopping) {
		tune_experiment_counts(r->e, &counts);
		least = fmin(least, now + fmax(0, r->budget_s - counts.time_s));
	}
	return least - now > 3600 ? 3600 * 1000 : least > now ? (int)ceil((least - now) * 1e3) : 0;
}

static int
listen_all(struct tune_runner *r, int wait_ms, struct pawl_error *err)
{
	PAWL_FREE struct pollfd *fds = mem_zalloc(r->n * 2 + 1, sizeof(*fds));

	if (fds == NULL)
		return err_nomem(err, NULL);
	for (size_t i = 0; i < r->n; i++) {
		const struct process *p = r->running[i];

		/* A closed channel is always readable. A process that closed it is noticed when it
		 * ends. */
		fds[2 * i] = (struct pollfd){.fd = p->channel.ended ? -1 : p->channel.fd, .events = POLLIN};
		/* While a forker runs, it reports ends. */
		fds[2 * i + 1] =
			(struct pollfd){.fd = p->forked && r->forker.fd >= 0 ? -1 : p->pidfd, .events = POLLIN};
	}
	fds[2 * r->n] = (struct pollfd){.fd = r->forker.fd, .events = POLLIN};
	if (poll(fds, (nfds_t)r->n * 2 + 1, wait_ms) < 0 && errno != EINTR)
		return err_set(err, PAWL_EIO, "waiting for the trials: %s", strerror(errno));
	for (size_t i = 0; i < r->n; i++)
		if (fds[2 * i].revents != 0)
			TRY(process_hear(r, r->running[i], err));
	return 0;
}

static bool
give_event(struct tune_runner *r, struct tune_event *ret)
{
	if (r->queue.n == 0)
		return false;
	r->last = r->queue.items[0].event;
	memmove(r->queue.items, r->queue.items + 1, --r->queue.n * sizeof(*r->queue.items));
	*ret = r->last;
	return true;
}

int
tune_runner_poll(struct tune_runner *r, int timeout_ms, struct tune_event *ret, struct pawl_error *err)
{
	double until = timeout_ms < 0 ? INFINITY : runner_now() + timeout_ms * 1e-3;

	event_clear(&r->last);
	*ret = (struct tune_event){.kind = TUNE_EVENT_NONE};
	for (bool waited = false;; waited = true) {
		if (give_event(r, ret))
			return 0;
		TRY(reap_processes(r, err));
		TRY(check_times(r, err));
		TRY(start_some(r, err));
		if (give_event(r, ret))
			return 0;
		if (r->n == 0 && (r->stopping || r->started_all)) {
			ret->kind = TUNE_EVENT_DONE;
			return 0;
		}
		if (waited && runner_now() >= until)
			return 0;
		TRY(listen_all(r, wait_limit_ms(r, until), err));
	}
}
