/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial_side: a report from inside a trial, as made by `pawl report`; see tune.h. Each call may be
 * a process of its own, so that no state is kept here: the number of a checkpoint is requested.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/value.h"
#include "tree.h"
#include "tune.h"

#define SIDE_MAX_ANSWER 65536

struct side {
	int fd, lock;
	const char *folder;
	struct pawl_error *err;
};

static int
open_side(struct side *s)
{
	const char *text = getenv("PAWL_TUNE_FD"), *config = getenv("PAWL_TUNE_CONFIG");
	char *end = NULL;
	long fd = text != NULL ? strtol(text, &end, 10) : -1;
	struct stat st;

	s->folder = getenv("PAWL_TUNE_FOLDER");
	if (text == NULL)
		return err_set(s->err, PAWL_ENOTFOUND, "this is not a trial: PAWL_TUNE_FD is not set");
	if (end == text || *end != '\0' || fd < 0 || fd > 1 << 20 || fstat((int)fd, &st) != 0 || !S_ISSOCK(st.st_mode))
		return err_set(
			s->err, PAWL_EUSAGE,
			"PAWL_TUNE_FD: expected the number of the channel to the runner, found '%.40s' (it is inherited: "
			"what starts this program must leave it open)",
			text);
	if (s->folder == NULL || *s->folder == '\0')
		return err_set(s->err, PAWL_EUSAGE,
		               "PAWL_TUNE_FOLDER: expected the folder of the trial, found nothing");
	s->fd = (int)fd;
	/* Two concurrent reports would receive each other's answers. */
	if (config != NULL)
		s->lock = open(config, O_RDONLY | O_CLOEXEC);
	while (s->lock >= 0 && flock(s->lock, LOCK_EX) != 0 && errno == EINTR)
		continue;
	return 0;
}

static int
send_line(struct side *s, const char *text)
{
	size_t len = strlen(text);

	while (len > 0) {
		ssize_t n = send(s->fd, text, len, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			return err_set(s->err, PAWL_ECANCELLED, "the runner of this trial has ended");
		text += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* Receives one answer. It is short, and nothing follows it before the next request. */
static int
receive_answer(struct side *s, struct value **ret)
{
	PAWL_FREE char *line = mem_zalloc(1, SIDE_MAX_ANSWER);
	PAWL_CLEAN(value_free_clean) struct value *answer = NULL;
	size_t len = 0;

	if (line == NULL)
		return err_nomem(s->err, NULL);
	while (len == 0 || line[len - 1] != '\n') {
		ssize_t n = recv(s->fd, line + len, SIDE_MAX_ANSWER - 1 - len, 0);

		if (n == 0 || (n < 0 && errno != EINTR))
			return len + 1 == SIDE_MAX_ANSWER
			               ? err_set(s->err, PAWL_ELIMIT, "the runner: an incomplete answer")
			               : err_set(s->err, PAWL_ECANCELLED, "the runner of this trial has ended");
		len += n > 0 ? (size_t)n : 0;
	}
	TRY(value_parse(line, len, "the runner's answer", &answer, s->err));
	if (value_get(answer, "error") != NULL)
		return err_set(s->err, PAWL_EUSAGE, "%s", value_text(value_get(answer, "error")));
	*ret = steal(&answer);
	return 0;
}

static int
ask_step(struct side *s, int64_t *ret)
{
	PAWL_CLEAN(value_free_clean) struct value *answer = NULL;

	TRY(send_line(s, "{\"ask\": \"iteration\"}\n"));
	TRY(receive_answer(s, &answer));
	*ret = (int64_t)value_int(value_get(answer, "iteration")) + 1;
	return 0;
}

/* Is it a checkpoint that is already in its place? */
static bool
is_in_place(struct side *s, const char *path)
{
	PAWL_FREE char *folder = realpath(s->folder, NULL);
	PAWL_FREE char *real = realpath(path, NULL);
	char *slash = real != NULL ? strrchr(real, '/') : NULL;

	if (slash == NULL || folder == NULL)
		return false;
	*slash = '\0';
	return strcmp(real, folder) == 0 && strncmp(slash + 1, "checkpoint_", 11) == 0;
}

static int
hand_in(struct side *s, const struct value *metrics, const char *path, int64_t step, struct tune_answer *ret)
{
	PAWL_FREE char *clean = mem_strdup(path);

	if (clean == NULL)
		return err_nomem(s->err, NULL);
	for (size_t len = strlen(clean); len > 1 && clean[len - 1] == '/'; len--)
		clean[len - 1] = '\0';
	if (is_in_place(s, clean)) {
		const char *slash = strrchr(clean, '/');

		(void)snprintf(ret->checkpoint, sizeof(ret->checkpoint), "%s", slash != NULL ? slash + 1 : clean);
		return tree_sync(clean, s->err);
	}
	if (step < 0 && value_is(value_get(metrics, "training_iteration"), JSON_INT))
		step = (int64_t)value_int(value_get(metrics, "training_iteration"));
	if (step < 0)
		TRY(ask_step(s, &step));
	(void)snprintf(ret->checkpoint, sizeof(ret->checkpoint), "checkpoint_%06lld", (long long)step);
	return tree_move_in(clean, s->folder, ret->checkpoint, s->err);
}

static int
report_metrics(struct side *s, struct value *metrics, struct tune_answer *ret)
{
	PAWL_CLEAN(value_free_clean) struct value *message = VALUE_OBJECT({"report", value_ref(metrics)});
	PAWL_CLEAN(value_free_clean) struct value *answer = NULL;
	const char *verdict;

	if (message != NULL && ret->checkpoint[0] != '\0')
		(void)value_set(message, "checkpoint", value_new_text(ret->checkpoint));
	PAWL_FREE char *text = message != NULL ? value_print(message) : NULL;
	PAWL_FREE char *line = text != NULL ? mem_printf("%s\n", text) : NULL;

	if (line == NULL)
		return err_nomem(s->err, NULL);
	TRY(send_line(s, line));
	TRY(receive_answer(s, &answer));
	verdict = value_get_text(answer, "verdict");
	ret->save = value_is_true(value_get(answer, "save"));
	if (verdict == NULL)
		return err_set(s->err, PAWL_ECORRUPT, "the runner's answer: expected a verdict, found none");
	ret->verdict = strcmp(verdict, "pause") == 0     ? TUNE_PAUSE
	               : strcmp(verdict, "stop") == 0    ? TUNE_STOP
	               : strcmp(verdict, "exploit") == 0 ? TUNE_EXPLOIT
	                                                 : TUNE_CONTINUE;
	return 0;
}

static int
report_to_runner(struct side *s, const char *metrics_json, const char *checkpoint, int64_t step,
                 struct tune_answer *ret)
{
	PAWL_CLEAN(value_free_clean) struct value *metrics = NULL;

	TRY(open_side(s));
	TRY(value_parse(metrics_json, SIZE_MAX, "the metrics", &metrics, s->err));
	if (checkpoint != NULL)
		TRY(hand_in(s, metrics, checkpoint, step, ret));
	return report_metrics(s, metrics, ret);
}

int
tune_trial_report(const char *metrics_json, const char *checkpoint, int64_t step, struct tune_answer *ret,
                  struct pawl_error *err)
{
	struct side s = {.fd = -1, .lock = -1, .err = err};

	*ret = (struct tune_answer){.verdict = TUNE_CONTINUE};
	const int rc = report_to_runner(&s, metrics_json, checkpoint, step, ret);
	if (s.lock >= 0)
		(void)close(s.lock);
	return rc;
}
