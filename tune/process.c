/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process: one trial as a process: its messages and its end; see runner_own.h.
 * docs/reference/tune.md describes the messages.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/value.h"
#include "base/vec.h"
#include "runner_own.h"

#define TRIAL_TAIL 2000     /* bytes at the end of its standard error, searched for its last line */
#define TRIAL_DROP_MS 10000 /* time for a killed process to disappear */
#define TRIAL_IGNORES 2     /* reports after the verdict; one may have been sent before it */

static void
process_free(struct process *p)
{
	if (p == NULL)
		return;
	if (p->pidfd >= 0)
		(void)close(p->pidfd);
	channel_clear(&p->channel);
	mem_free(p->failure);
	mem_free(p->errors);
	mem_free(p);
}

static int
add_process(struct tune_runner *r, struct process *p, struct pawl_error *err)
{
	if (!array_reserve(r->running, r->cap, r->n + 1))
		return err_nomem(err, NULL);
	r->running[r->n++] = p;
	return 0;
}

/* Passes the trial's end to the experiment and to the caller of the runner. */
static int
report_end(struct tune_runner *r, uint32_t trial, enum tune_end how, const char *why, struct pawl_error *err)
{
	struct tune_event event = {.kind = TUNE_EVENT_ENDED, .trial = trial, .how = how, .text = why};
	struct tune_trial info;

	TRY(tune_experiment_ended(r->e, trial, how, why, &event.again, err));
	TRY(tune_trial_info(r->e, trial, &info, err));
	if (how == TUNE_FINISHED && info.state == TUNE_ERROR) { /* the experiment did not accept it as finished */
		event.how = TUNE_FAILED;
		event.text = info.error;
	}
	return runner_queue(r, &event, err);
}

int
process_start(struct tune_runner *r, const struct tune_start *start, const struct share *share, struct pawl_error *err)
{
	struct process *p = mem_zalloc(1, sizeof(*p));
	struct tune_event event = {.kind = TUNE_EVENT_STARTED, .trial = start->trial, .text = start->checkpoint};
	struct pawl_error why = {0};
	char host[256] = "";
	int rc;

	if (p == NULL || add_process(r, p, err) < 0) {
		mem_free(p);
		return err_nomem(err, NULL);
	}
	p->trial = start->trial;
	p->share = *share;
	p->pidfd = p->group = -1;
	p->channel = (struct channel)CHANNEL_INIT;
	p->iteration = start->iteration;
	rc = process_launch(r, p, start, &why);
	p->heard = runner_now(); /* the forker may have had to load first */
	if (rc < 0) {
		r->n--;
		slots_give(&r->slots, &p->share);
		process_free(p);
		r->full = rc == PAWL_ETRANSIENT && r->n > 0;
		if (r->full)
			return report_end(r, start->trial, TUNE_LOST, why.message, err);
		if (rc != PAWL_ENOTFOUND && rc != PAWL_ENOMEM && rc != PAWL_ETRANSIENT)
			return report_end(r, start->trial, TUNE_FAILED, why.message, err);
		/* No trial can run this program, or memory or processes are exhausted. This trial
		 * has not failed. */
		(void)tune_experiment_ended(r->e, start->trial, TUNE_LOST, why.message, NULL, NULL);
		return err_set(err, rc, "%s", why.message);
	}
	guard_add(&r->guard, p->pid);
	rc = runner_queue(r, &event, err);
	(void)gethostname(host, sizeof(host) - 1);
	return rc == 0 ? tune_experiment_runs(r->e, p->trial, p->pid, host, err) : rc;
}

/* Signals no foreign process: the number of a process is not reused before we, or the forker, have
 * waited for it. */
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
send_answer(struct process *p, enum tune_verdict_kind verdict, bool save)
{
	char line[96];

	(void)snprintf(line, sizeof(line), "{\"verdict\": \"%s\", \"save\": %s}\n", verdict_name(verdict),
	               save ? "true" : "false");
	channel_send(&p->channel, line);
}

static void
answer_error(struct process *p, const char *text)
{
	PAWL_CLEAN(value_free_clean) struct value *object = VALUE_OBJECT({"error", value_new_text(text)});
	char *line = object != NULL ? value_print(object) : NULL, *whole = NULL;

	if (line != NULL && asprintf(&whole, "%s\n", line) >= 0)
		channel_send(&p->channel, whole);
	else
		channel_send(&p->channel, "{\"error\": \"out of memory\"}\n"); /* it waits for an answer */
	mem_free(whole);
	mem_free(line);
}

/* Fails and ends a trial that broke the rules for trials. */
static void
fail_trial(struct tune_runner *r, struct process *p, const char *why)
{
	answer_error(p, why);
	if (p->failure == NULL)
		p->failure = mem_strdup(why);
	if (p->phase < PHASE_TERM) {
		p->phase = PHASE_LEAVING;
		process_press(r, p);
	}
}

/* Rejects a message; the trial may continue. */
static int
reject_message(struct tune_runner *r, struct process *p, const char *why, struct pawl_error *err)
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

/* Sends a verdict, of the experiment or of the runner. */
static void
send_verdict(struct tune_runner *r, struct process *p, enum tune_verdict_kind verdict, bool save)
{
	send_answer(p, verdict, save);
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
on_report(struct tune_runner *r, struct process *p, const struct value *metrics, const char *checkpoint,
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
			send_answer(p, p->told ? p->verdict : TUNE_STOP, false);
		return 0;
	}
	text = value_print(metrics);
	if (text == NULL)
		return err_nomem(err, NULL);
	rc = tune_experiment_report(r->e, p->trial, text, checkpoint, &verdict, &why);
	mem_free(text);
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
	TRY(runner_queue(r, &event, err));
	{
		PAWL_CLEAN(value_free_clean) struct value *result = NULL;

		if (value_parse(verdict.result_json, SIZE_MAX, "a result", &result, NULL) == 0 &&
		    value_get_number(value_get(result, "training_iteration"), &iteration) && iteration >= 0 &&
		    iteration < 1e15)
			p->iteration = (uint64_t)iteration;
	}
	if (verdict.kind == TUNE_CONTINUE && p->asked) {
		p->lost = true;
		send_verdict(r, p, TUNE_PAUSE, true);
	} else {
		send_verdict(r, p, verdict.kind, verdict.save);
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
		return reject_message(r, p, why.message, err);
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
	PAWL_CLEAN(value_free_clean) struct value *message = NULL;
	struct pawl_error why = {0};
	const struct value *metrics, *checkpoint;
	const char *text;
	const int rc = value_parse(line, len, "a message of the trial", &message, &why);

	if (rc == PAWL_ENOMEM)
		return err_nomem(err, NULL);
	if (rc < 0)
		return reject_message(r, p, why.message, err);
	metrics = value_get(message, "report");
	checkpoint = value_get(message, "checkpoint");
	if (checkpoint != NULL && !value_is(checkpoint, JSON_NULL) && !value_is(checkpoint, JSON_STRING))
		return reject_message(r, p, "a message of the trial: \"checkpoint\": expected a name or null", err);
	if (metrics != NULL)
		return on_report(r, p, metrics, value_text(checkpoint), err);
	if (value_is(checkpoint, JSON_STRING))
		return on_checkpoint(r, p, value_text(checkpoint), err);
	if (value_get(message, "ask") != NULL) {
		on_question(p);
		return 0;
	}
	text = value_text(value_get(message, "error"));
	if (text != NULL) {
		mem_free(p->failure);
		p->failure = mem_strdup(text);
		return p->failure != NULL ? 0 : err_nomem(err, NULL);
	}
	if (value_get(message, "done") != NULL) {
		p->done = true;
		return 0;
	}
	if (value_get(message, "heartbeat") != NULL)
		return 0;
	return reject_message(
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
		rc = bad ? reject_message(r, p, "a message of the trial: a line of more than 1 MiB", err)
		         : on_message(r, p, line, len, err);
		p->heard = runner_now(); /* counted from the answer, which may have taken long to prepare */
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

/* Bytes of the first characters of the text that fit into max bytes. */
static size_t
fit_text(const char *text, size_t len, size_t max)
{
	if (len <= max)
		return len;
	while (max > 0 && ((unsigned char)text[max] & 0xc0) == 0x80)
		max--;
	return max;
}

/* The last line, not empty, that this attempt wrote to standard error. */
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
		(void)snprintf(text, nbytes, ": %.*s", (int)fit_text(tail + begin, end - begin, 300), tail + begin);
}

static enum tune_end
judge_end(const struct process *p, int status, char *why, size_t nbytes)
{
	char words[320];

	why[0] = '\0';
	if (p->failure != NULL) {
		(void)snprintf(why, nbytes, "%.*s", (int)fit_text(p->failure, strlen(p->failure), nbytes - 1),
		               p->failure);
		return TUNE_FAILED;
	}
	if (p->lost && p->told)
		return TUNE_LOST;
	if (p->told || p->done || (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 0))
		return TUNE_FINISHED;
	if (p->lost)
		return TUNE_LOST;
	if (status == -1) {
		(void)snprintf(why, nbytes, "the process that forked it has ended, and the trial with it");
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

/* Notes that the system ended it for its memory; only the control group shows that. */
static void
note_memory(const struct tune_runner *r, struct process *p, int status)
{
	char text[120];

	if (p->failure != NULL || p->told || (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
	    !cgroups_was_too_large(p->group))
		return;
	(void)snprintf(text, sizeof(text), "it used more memory than the %.0f MB that it may use",
	               r->memory_bytes / 1e6);
	p->failure = mem_strdup(text);
}

int
process_end(struct tune_runner *r, struct process *p, struct pawl_error *err)
{
	char why[1024];
	int status = 0, rc = 0;

	/* Its last messages. If another process still holds the channel open, only what is
	 * available is read. */
	for (int turn = 0; rc == 0 && !p->channel.ended && turn < 16; turn++)
		rc = process_hear(r, p, err);
	signal_group(r, p, SIGKILL); /* its remaining processes; before the wait below frees its number */
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

		rc = report_end(r, p->trial, how, why, err);
	}
	process_free(p);
	return rc;
}
