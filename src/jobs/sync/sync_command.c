/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_command: runs the program that moves files: rsync, or the one in a template. It uses a shell
 * only if asked to. The template is split into words before it is filled in. So a file name cannot
 * become a word or an option of its own (R113, R114, R118).
 *
 * P16: at the deadline the process group gets SIGTERM, and two seconds later SIGKILL. Processes of
 * the group that outlive the program are killed, too. P18: only the last lines of its output are
 * kept, and secrets in them are hidden.
 */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/hide.h"
#include "base/proc.h"
#include "jobs/sync/sync.h"

#define MAX_SAID ((size_t)4096)
#define SHOWN_BYTES 300u
#define GRACE_MS 2000 /* between SIGTERM and SIGKILL */
#define SOURCE "{source}"
#define TARGET "{target}"

/* ---------------------------------------------------------------- templates */

static void
put_quoted(struct buf *out, const char *text)
{
	buf_putc(out, '\'');
	for (; *text != '\0'; text++)
		if (*text == '\'')
			buf_puts(out, "'\\''");
		else
			buf_putc(out, *text);
	buf_putc(out, '\'');
}

/* Fills the fields of one word in; quote: for a shell. */
static int
fill_word(const char *word, bool quote, const char *source, const char *target, struct buf *out, struct pawl_error *err)
{
	while (*word != '\0') {
		bool is_source = strncmp(word, SOURCE, strlen(SOURCE)) == 0;
		const char *value = is_source ? source : target;
		if (!is_source && strncmp(word, TARGET, strlen(TARGET)) != 0) {
			buf_putc(out, *word++);
			continue;
		}
		if (quote)
			put_quoted(out, value);
		else
			buf_puts(out, value);
		word += is_source ? strlen(SOURCE) : strlen(TARGET);
	}
	return buf_check(out, "the command", err);
}

static int
shell_words(const char *line, const char *source, const char *target, struct bump *memory, char ***ret,
            struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	TRY(fill_word(line, true, source, target, &text, err));
	char **argv = bump_array(memory, 4, sizeof *argv);
	if (argv == NULL)
		return err_nomem(err, "the command");
	argv[0] = bump_strndup(memory, "/bin/sh", 7);
	argv[1] = bump_strndup(memory, "-c", 2);
	argv[2] = bump_strndup(memory, text.ptr, text.len);
	argv[3] = NULL;
	*ret = argv;
	return argv[0] && argv[1] && argv[2] ? 0 : err_nomem(err, "the command");
}

int
sync_command_words(const char *line, bool shell, const char *source, const char *target, struct bump *memory,
                   char ***ret, struct pawl_error *err)
{
	char **words;
	if (strstr(line, SOURCE) == NULL || strstr(line, TARGET) == NULL)
		return err_set(err, PAWL_EUSAGE, "the sync command has no %s: expected both " SOURCE " and " TARGET,
		               strstr(line, SOURCE) == NULL ? SOURCE : TARGET);
	if (shell)
		return shell_words(line, source, target, memory, ret, err);
	TRY(proc_split(line, memory, &words, err));
	for (size_t i = 0; words[i] != NULL; i++) {
		PAWL_CLEAN(buf_clear) struct buf filled = {0};
		TRY(fill_word(words[i], false, source, target, &filled, err));
		words[i] = bump_strndup(memory, filled.len > 0 ? filled.ptr : "", filled.len);
		if (words[i] == NULL)
			return err_nomem(err, "the command");
	}
	*ret = words;
	return 0;
}

/* ------------------------------------------------------------------ running */

/* The last lines of the output, on one line, without secrets. */
static void
last_words(struct buf *said, char out[SHOWN_BYTES + 1])
{
	size_t n = 0;
	buf_putc(said, '\0');
	out[0] = '\0';
	if (said->failed != 0)
		return;
	char *text = said->ptr;
	for (char *c = text; c < text + said->len - 1; c++) /* NULs would end it early */
		if (*c == '\0')
			*c = '?';
	hide_secrets(text);
	size_t len = strlen(text);
	while (len > 0 && isspace((unsigned char)text[len - 1]))
		text[--len] = '\0';
	const char *from = len > SHOWN_BYTES ? text + len - SHOWN_BYTES : text;
	for (; *from != '\0' && n < SHOWN_BYTES; from++) {
		if (*from == '\r')
			continue;
		out[n++] = *from == '\n'                                               ? '|'
		           : (unsigned char)*from < ' ' || (unsigned char)*from == 127 ? '?'
		                                                                       : *from;
	}
	out[n] = '\0';
}

int
sync_limit_check(const struct sync_limit *l, const char *what, struct pawl_error *err)
{
	if (l->meter != NULL && l->meter->cancel)
		return err_set(err, PAWL_ECANCELLED, "%.200s: cancelled", what);
	if (clock_mono_ms() >= l->deadline_ms)
		return err_set(err, PAWL_ETIMEOUT, "%.200s: has not ended within %.1f s", what,
		               (double)(l->deadline_ms - l->begin_ms) / 1000);
	return 0;
}

/* Writes its input and reads its output until the program has ended. */
static int
attend_program(struct child *c, const struct buf *feed, struct buf *said, const char *name,
               const struct sync_limit *limit, struct pawl_error *err)
{
	size_t fed = 0;
	bool listening = true;
	while (!child_has_ended(c)) {
		TRY(sync_limit_check(limit, name, err));
		if (c->talk >= 0) {
			ssize_t n = fed < feed->len ? child_send(c->talk, feed->ptr + fed, feed->len - fed) : 0;
			fed += n > 0 ? (size_t)n : 0;
			if (n < 0 || fed == feed->len)
				fd_clean_close(&c->talk);
		}
		struct pollfd fds[2] = {{.fd = listening ? c->said : -1, .events = POLLIN},
		                        {.fd = c->talk, .events = POLLOUT}};
		poll(fds, 2, 20);
		if (listening && fds[0].revents != 0)
			listening = child_listen(c->said, said, MAX_SAID);
	}
	if (listening)
		child_listen(c->said, said, MAX_SAID);
	return 0;
}

int
sync_run(char *const argv[], const struct buf *feed, const struct sync_limit *limit, int *ret_status,
         struct pawl_error *err)
{
	const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];
	struct child c = CHILD_INIT;
	PAWL_CLEAN(buf_clear) struct buf said = {0};
	char words[SHOWN_BYTES + 1];
	*ret_status = -1;
	TRY(sync_limit_check(limit, name, err));
	TRY(child_start(argv, feed != NULL ? CHILD_FEED : CHILD_MERGED, &c, err));
	int rc = attend_program(&c, feed, &said, name, limit, err);
	if (rc < 0)
		kill(-c.pid, SIGTERM);
	int status = child_end(&c, rc < 0 ? GRACE_MS : 0);
	if (rc < 0)
		return rc;
	if (WIFEXITED(status))
		*ret_status = WEXITSTATUS(status);
	if (*ret_status == 0)
		return 0;
	last_words(&said, words);
	if (WIFSIGNALED(status))
		return err_set(err, PAWL_EIO, "%.100s: was ended by signal %d%s%s", name, WTERMSIG(status),
		               words[0] ? ": " : "", words);
	return err_set(err, *ret_status == 127 ? PAWL_ENOTFOUND : PAWL_EIO, "%.100s: ended with status %d%s%s", name,
	               *ret_status, words[0] ? ": " : "", words);
}
