/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner_trial: one trial as a process: what it says, how it ends; see runner_inner.h. Called by runner.c; calls
 * runner_start.c, the experiment, channel, guard, forker. The messages are described in docs/tune.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jsonx.h"
#include "runner_inner.h"
#include "tune_err.h"

#define TRIAL_TAIL 2000     /* bytes of its standard error that a failure quotes from */
#define TRIAL_DROP_MS 10000 /* until a killed process is gone */
#define TRIAL_IGNORES 2     /* reports after the verdict; one may have been on its way */

static void
process_free(struct process *p)
{
	if (p == NULL)
		return;
	if (p->pidfd >= 0)
		(void)close(p->pidfd);
	channel_clear(&p->channel);
	free(p->failure);
	free(p->errors);
	free(p);
}

static int
add(struct tune_runner *r, struct process *p, struct pawl_error *err)
{
	if (r->n == r->cap) {
		size_t cap = r->cap * 2 + 8;
		struct process **more = realloc(r->running, cap * sizeof(struct process *));

		if (more == NULL)
			return tune_no_memory(err);
		r->running = more;
		r->cap = cap;
	}
	r->running[r->n++] = p;
	return 0;
}

/* The trial's end, for the experiment and for whoever watches. */
static int
tell_end(struct tune_runner *r, uint32_t trial, enum tune_end how, const char *why, struct pawl_error *err)
{
	struct tune_event event = {.kind = TUNE_EVENT_ENDED, .trial = trial, .how = how, .text = why};
	struct tune_trial info;
	int rc = tune_experiment_ended(r->e, trial, how, why, &event.again, err);

	if (rc == 0)
		rc = tune_trial_info(r->e, trial, &info, err);
	if (rc < 0)
		return rc;
	if (how == TUNE_FINISHED && info.state == TUNE_ERROR) { /* the experiment has something against how it ended */
		event.how = TUNE_FAILED;
		event.text = info.error;
	}
	return runner_queue(r, &event, err);
}

int
process_start(struct tune_runner *r, const struct tune_start *start, const struct share *share, struct pawl_error *err)
{
	struct process *p = calloc(1, sizeof(*p));
	struct tune_event event = {.kind = TUNE_EVENT_STARTED, .trial = start->trial, .text = start->checkpoint};
	struct pawl_error why = {0};
	char host[256] = "";
	int rc;

	if (p == NULL || add(r, p, err) < 0) {
		free(p);
		return tune_no_memory(err);
	}
	p->trial = start->trial;
	p->share = *share;
	p->pidfd = p->group = -1;
	p->channel = (struct channel)CHANNEL_INIT;
	p->iteration = start->iteration;
	rc = process_launch(r, p, start, &why);
	p->heard = runner_now(); /* what the trials have in common may have had to be loaded before */
	if (rc < 0) {
		r->n--;
		slots_give(&r->slots, &p->share);
		process_free(p);
		if (rc != PAWL_ENOTFOUND && rc != PAWL_ENOMEM)
			return tell_end(r, start->trial, TUNE_FAILED, why.message, err);
		/* No trial has this program, or there is no memory for one: that is no failure of this one. */
		(void)tune_experiment_ended(r->e, start->trial, TUNE_LOST, why.message, NULL, NULL);
		return tune_fail(err, rc, "%s", why.message);
	}
	guard_add(&r->guard, p->pid);
	rc = runner_queue(r, &event, err);
	(void)gethostname(host, sizeof(host) - 1);
	return rc == 0 ? tune_experiment_runs(r->e, p->trial, p->pid, host, err) : rc;
}

/* Nobody else's: the number of a process that we, or the forker, have not waited for is not given away. */
static void
signal_group(struct tune_runner *r, const struct process *p, int number)
{
	if (p->forked && !forker_has_group(&r->forker, p->pid))
		return;
	if (kill(-p->pid, number) != 0)
		(void)kill(p->pid, number);
}

void
process_press(struct tune_runner *r, struct process *p)
{
	p->lost = p->lost || (p->asked && !p->told && p->failure == NULL);
	if (p->phase <= PHASE_LEAVING) {
		signal_group(r, p, SIGTERM);
		p->phase = PHASE_TERM;
		p->deadline = runner_now() + r->grace_s;
	} else {
		signal_group(r, p, SIGKILL);
		p->phase = PHASE_KILL;
		p->deadline = 0;
	}
}

void
process_ask(struct tune_runner *r, struct process *p)
{
	p->asked = true;
	if (p->phase == PHASE_RUNNING) {
		p->phase = PHASE_LEAVING;
		p->deadline = runner_now() + r->grace_s;
	}
}

void
process_drop(struct tune_runner *r, struct process *p)
{
	signal_group(r, p, SIGKILL);
	guard_remove(&r->guard, p->pid);
	if (p->forked) {
		forker_wait(&r->forker, p->pid, p->pidfd, TRIAL_DROP_MS);
		forker_reap(&r->forker, p->pid);
	}
	while (!p->forked && waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	cgroups_remove(&r->cgroups, p->trial, p->group);
	process_free(p);
}

/* ---- what it says ---- */

static const char *
verdict_name(enum tune_verdict_kind verdict)
{
	switch (verdict) {
	case TUNE_PAUSE:
		return "pause";
	case TUNE_STOP:
		return "stop";
	case TUNE_EXPLOIT:
		return "exploit";
	case TUNE_CONTINUE:
		break;
	}
	return "continue";
}

static void
answer(struct process *p, enum tune_verdict_kind verdict, bool save)
{
	char line[96];

	(void)snprintf(line, sizeof(line), "{\"verdict\": \"%s\", \"save\": %s}\n", verdict_name(verdict),
	               save ? "true" : "false");
	channel_send(&p->channel, line);
}

static void
answer_error(struct process *p, const char *text)
{
	JSONX_CLEAN json_t *object = json_pack("{s:s}", "error", text);
	char *line = object != NULL ? jsonx_dump(object) : NULL, *whole = NULL;

	if (line != NULL && asprintf(&whole, "%s\n", line) >= 0)
		channel_send(&p->channel, whole);
	else
		channel_send(&p->channel, "{\"error\": \"out of memory\"}\n"); /* it waits for an answer */
	free(whole);
	free(line);
}

/* It has done what a trial must not do: it fails, and is ended. */
static void
fail_trial(struct tune_runner *r, struct process *p, const char *why)
{
	answer_error(p, why);
	if (p->failure == NULL)
		p->failure = strdup(why);
	if (p->phase < PHASE_TERM) {
		p->phase = PHASE_LEAVING;
		process_press(r, p);
	}
}

/* A message that cannot be taken; the trial may go on. */
static int
refuse(struct tune_runner *r, struct process *p, const char *why, struct pawl_error *err)
{
	struct tune_event event = {.kind = TUNE_EVENT_NOTICE, .trial = p->trial, .text = why};

	answer_error(p, why);
	return runner_queue(r, &event, err);
}

static void
stop_others(struct tune_runner *r)
{
	struct tune_trial info;

	for (uint32_t i = 0; tune_trial_info(r->e, i, &info, NULL) == 0; i++)
		if (info.state != TUNE_TERMINATED && info.state != TUNE_ERROR)
			(void)tune_runner_stop_trial(r, i, "the experiment is stopped", NULL);
}

/* After the verdict, whoever gave it. */
static void
tell_verdict(struct tune_runner *r, struct process *p, enum tune_verdict_kind verdict, bool save)
{
	answer(p, verdict, save);
	if (verdict == TUNE_CONTINUE)
		return;
	p->told = true;
	p->verdict = verdict;
	if (p->phase <= PHASE_LEAVING) {
		p->phase = PHASE_LEAVING;
		p->deadline = runner_now() + r->grace_s;
	}
}

static int
on_report(struct tune_runner *r, struct process *p, const json_t *metrics, const char *checkpoint,
          struct pawl_error *err)
{
	struct tune_event event = {.kind = TUNE_EVENT_REPORT, .trial = p->trial};
	struct tune_verdict verdict = {0};
	struct pawl_error why = {0};
	double iteration;
	char *text;
	int rc;

	if (p->told || p->failure != NULL) {
		if (++p->ignored >= TRIAL_IGNORES && p->phase < PHASE_TERM)
			process_press(r, p);
		else
			answer(p, p->told ? p->verdict : TUNE_STOP, false);
		return 0;
	}
	text = jsonx_dump(metrics);
	if (text == NULL)
		return tune_no_memory(err);
	rc = tune_experiment_report(r->e, p->trial, text, checkpoint, &verdict, &why);
	free(text);
	if (rc == PAWL_EUSAGE) {
		fail_trial(r, p, why.message);
		return 0;
	}
	if (rc < 0) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	event.text = verdict.result_json;
	event.reason = verdict.reason;
	event.verdict = verdict.kind;
	rc = runner_queue(r, &event, err);
	if (rc < 0)
		return rc;
	{
		JSONX_CLEAN json_t *result = NULL;

		if (jsonx_parse(verdict.result_json, SIZE_MAX, "a result", &result, NULL) == 0 &&
		    jsonx_number(json_object_get(result, "training_iteration"), &iteration) && iteration >= 0 &&
		    iteration < 1e15)
			p->iteration = (uint64_t)iteration;
	}
	if (verdict.kind == TUNE_CONTINUE && p->asked) {
		p->lost = true;
		tell_verdict(r, p, TUNE_PAUSE, true);
	} else {
		tell_verdict(r, p, verdict.kind, verdict.save);
	}
	if (verdict.stop_all)
		stop_others(r);
	return 0;
}

static int
on_checkpoint(struct tune_runner *r, struct process *p, const char *name, struct pawl_error *err)
{
	struct tune_event event = {.kind = TUNE_EVENT_CHECKPOINT, .trial = p->trial, .text = name};
	struct pawl_error why = {0};
	int rc = tune_experiment_checkpoint(r->e, p->trial, name, &why);

	if (rc == PAWL_EUSAGE)
		return refuse(r, p, why.message, err);
	if (rc < 0) {
		if (err != NULL)
			*err = why;
		return rc;
	}
	return runner_queue(r, &event, err);
}

static void
on_question(struct process *p)
{
	char line[64];

	(void)snprintf(line, sizeof(line), "{\"iteration\": %llu}\n", (unsigned long long)p->iteration);
	channel_send(&p->channel, line);
}

static int
on_message(struct tune_runner *r, struct process *p, const char *line, size_t len, struct pawl_error *err)
{
	JSONX_CLEAN json_t *message = NULL;
	struct pawl_error why = {0};
	const json_t *metrics, *checkpoint;
	const char *text;
	const int rc = jsonx_parse(line, len, "a message of the trial", &message, &why);

	if (rc == PAWL_ENOMEM)
		return tune_no_memory(err);
	if (rc < 0)
		return refuse(r, p, why.message, err);
	metrics = json_object_get(message, "report");
	checkpoint = json_object_get(message, "checkpoint");
	if (checkpoint != NULL && !json_is_null(checkpoint) && !json_is_string(checkpoint))
		return refuse(r, p, "a message of the trial: \"checkpoint\": expected a name or null", err);
	if (metrics != NULL)
		return on_report(r, p, metrics, json_string_value(checkpoint), err);
	if (json_is_string(checkpoint))
		return on_checkpoint(r, p, json_string_value(checkpoint), err);
	if (json_object_get(message, "ask") != NULL) {
		on_question(p);
		return 0;
	}
	text = json_string_value(json_object_get(message, "error"));
	if (text != NULL) {
		free(p->failure);
		p->failure = strdup(text);
		return p->failure != NULL ? 0 : tune_no_memory(err);
	}
	if (json_object_get(message, "done") != NULL) {
		p->done = true;
		return 0;
	}
	if (json_object_get(message, "heartbeat") != NULL)
		return 0;
	return refuse(
		r, p,
		"a message of the trial: expected an object with report, checkpoint, ask, heartbeat, error or done",
		err);
}

int
process_hear(struct tune_runner *r, struct process *p, struct pawl_error *err)
{
	size_t len = 0;
	bool bad;
	int rc = channel_fill(&p->channel, err);

	while (rc == 0) {
		char *line = channel_line(&p->channel, &len, &bad);

		if (line == NULL && !bad)
			return 0;
		rc = bad ? refuse(r, p, "a message of the trial: a line of more than 1 MiB", err)
		         : on_message(r, p, line, len, err);
		p->heard = runner_now(); /* after its answer, for which the program may take its time */
	}
	return rc;
}

/* ---- how it ends ---- */

bool
process_has_gone(struct tune_runner *r, const struct process *p)
{
	siginfo_t info = {0};
	int status;

	if (p->forked)
		return forker_has_ended(&r->forker, p->pid, p->pidfd, &status);
	return waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ? info.si_pid != 0
	                                                                            : errno == ECHILD;
}

/* The last line that is not empty of what this attempt wrote to standard error. */
static void
last_words(const struct process *p, char *text, size_t nbytes)
{
	char tail[TRIAL_TAIL + 1];
	int fd = open(p->errors, O_RDONLY | O_CLOEXEC);
	off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, from = size > TRIAL_TAIL ? size - TRIAL_TAIL : 0;
	ssize_t n;
	size_t end, begin;

	text[0] = '\0';
	if (from < (off_t)p->errors_from)
		from = (off_t)p->errors_from;
	n = fd >= 0 && size > from ? pread(fd, tail, TRIAL_TAIL, from) : 0;
	if (fd >= 0)
		(void)close(fd);
	end = n > 0 ? (size_t)n : 0;
	while (end > 0 && (tail[end - 1] == '\n' || tail[end - 1] == ' ' || tail[end - 1] == '\r'))
		end--;
	begin = end;
	while (begin > 0 && tail[begin - 1] != '\n')
		begin--;
	if (end > begin)
		(void)snprintf(text, nbytes, ": %.*s", (int)(end - begin < 300 ? end - begin : 300), tail + begin);
}

static enum tune_end
judge_end(const struct process *p, int status, char *why, size_t nbytes)
{
	char words[320];

	why[0] = '\0';
	if (p->failure != NULL) {
		(void)snprintf(why, nbytes, "%s", p->failure);
		return TUNE_FAILED;
	}
	if (p->lost && p->told)
		return TUNE_LOST;
	if (p->told || p->done || (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 0))
		return TUNE_FINISHED;
	if (p->lost)
		return TUNE_LOST;
	if (status == -1) {
		(void)snprintf(why, nbytes, "the process that had forked it is gone, and so is it");
		return TUNE_FAILED;
	}
	last_words(p, words, sizeof(words));
	if (WIFSIGNALED(status))
		(void)snprintf(why, nbytes, "killed by signal %d (%s)%s", WTERMSIG(status), strsignal(WTERMSIG(status)),
		               words);
	else
		(void)snprintf(why, nbytes, "exit status %d%s", WEXITSTATUS(status), words);
	return TUNE_FAILED;
}

/* The system has ended it for its memory, and says so there only. */
static void
note_memory(const struct tune_runner *r, struct process *p, int status)
{
	char text[120];

	if (p->failure != NULL || p->told || (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
	    !cgroups_was_too_large(p->group))
		return;
	(void)snprintf(text, sizeof(text), "it used more memory than the %.0f MB that it may use",
	               r->memory_bytes / 1e6);
	p->failure = strdup(text);
}

int
process_end(struct tune_runner *r, struct process *p, struct pawl_error *err)
{
	char why[1024];
	int status = 0, rc = 0;

	/* What it said last; a channel that somebody else still holds open gives up what there is. */
	for (int turn = 0; rc == 0 && !p->channel.ended && turn < 16; turn++)
		rc = process_hear(r, p, err);
	signal_group(r, p, SIGKILL); /* what it has left behind; before it is taken away, which frees its number */
	guard_remove(&r->guard, p->pid);
	if (p->forked) {
		(void)forker_has_ended(&r->forker, p->pid, p->pidfd, &status);
		forker_reap(&r->forker, p->pid);
	}
	while (!p->forked && waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
		continue;
	note_memory(r, p, status);
	cgroups_remove(&r->cgroups, p->trial, p->group);
	slots_give(&r->slots, &p->share);
	if (rc == 0) {
		enum tune_end how = judge_end(p, status, why, sizeof(why));

		rc = tell_end(r, p->trial, how, why, err);
	}
	process_free(p);
	return rc;
}
