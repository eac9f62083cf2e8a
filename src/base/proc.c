/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc: see proc.h. P16: time and output are bounded. P18: nothing of the output gets into a
 * message.
 */
#include "base/proc.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"

static int
read_all(int fd, const char *name, int64_t deadline_ms, size_t max, struct buf *out, struct pawl_error *err)
{
	size_t before = out->len;
	for (;;) {
		int64_t left = deadline_ms - clock_mono_ms();
		struct pollfd waiting = {.fd = fd, .events = POLLIN};
		int ready = left > 0 ? poll(&waiting, 1, (int)(left < 1000 ? left : 1000)) : 0;
		if (left <= 0)
			return err_set(err, PAWL_ETIMEOUT, "%.200s: has not ended in time", name);
		if (ready <= 0)
			continue;
		char piece[4096];
		ssize_t got = read(fd, piece, sizeof piece);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got < 0)
			return err_sys(err, errno, "%.200s: cannot read what it prints", name);
		if (got == 0)
			return 0;
		if ((size_t)got > max - (out->len - before))
			return err_set(err, PAWL_ELIMIT, "%.200s: prints more than %zu bytes", name, max);
		buf_put(out, piece, (size_t)got);
		os_wipe(piece, (size_t)got);
		TRY(buf_check(out, name, err));
	}
}

static int
explain_status(int status, const char *name, struct pawl_error *err)
{
	if (WIFSIGNALED(status))
		return err_set(err, PAWL_EIO, "%.200s: was ended by signal %d", name, WTERMSIG(status));
	if (WEXITSTATUS(status) == 127)
		return err_set(err, PAWL_ENOTFOUND, "%.200s: there is no such program", name);
	if (WEXITSTATUS(status) != 0)
		return err_set(err, PAWL_EIO, "%.200s: ended with status %d", name, WEXITSTATUS(status));
	return 0;
}

int
proc_capture(char *const argv[], int64_t timeout_ms, size_t max, struct buf *out, struct pawl_error *err)
{
	struct child c = CHILD_INIT;
	int64_t deadline_ms = clock_mono_ms() + timeout_ms;
	TRY(child_start(argv, CHILD_CAPTURE, &c, err));
	int rc = read_all(c.said, argv[0], deadline_ms, max, out, err);
	while (rc == 0 && !child_has_ended(&c)) { /* it has closed its output and continues */
		if (clock_mono_ms() >= deadline_ms)
			rc = err_set(err, PAWL_ETIMEOUT, "%.200s: has not ended in time", argv[0]);
		else
			clock_sleep_ms(2);
	}
	int status = child_end(&c, 0);
	return rc < 0 ? rc : explain_status(status, argv[0], err);
}

int
proc_split(const char *line, struct bump *memory, char ***ret, struct pawl_error *err)
{
	size_t len = strlen(line), n = 0;
	char **argv = bump_array(memory, len / 2 + 2, sizeof *argv);
	char *to = bump_alloc(memory, len + 1);
	if (argv == NULL || to == NULL)
		return err_nomem(err, "command line");
	for (const char *c = line; *c != '\0';) {
		if (*c == ' ' || *c == '\t') {
			c++;
			continue;
		}
		argv[n++] = to;
		char quote = '\0';
		for (; *c != '\0' && (quote != '\0' || (*c != ' ' && *c != '\t')); c++) {
			if (quote == '\0' && (*c == '\'' || *c == '"'))
				quote = *c;
			else if (quote != '\0' && *c == quote)
				quote = '\0';
			else if (*c == '\\' && quote != '\'' && c[1] != '\0')
				*to++ = *++c;
			else
				*to++ = *c;
		}
		if (quote != '\0')
			return err_set(err, PAWL_EUSAGE, "command line: a quote is not closed");
		*to++ = '\0';
	}
	if (n == 0)
		return err_set(err, PAWL_EUSAGE, "command line: is empty");
	argv[n] = NULL;
	*ret = argv;
	return 0;
}
