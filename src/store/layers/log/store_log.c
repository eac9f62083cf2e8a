/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_log: writes a line for each call of a store, with its bytes, its time and its result.
 *
 * The layer wraps the engine, inside the retry layer, so each try is a line. A line is one write at
 * the end of the file, so many threads and processes can share the file. A line that cannot be
 * written is lost; the call is not affected. Error messages never hold secrets (P18), so the log
 * does not either.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/layers/layer.h"

struct log_store {
	struct store base;
	int fd;
};

static bool
log_leave(struct store *base, struct layer_call *call, int rc, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf line = {0};
	int64_t now_us = clock_unix_ns() / 1000;
	buf_printf(&line, "%" PRId64 ".%06" PRId64 " %d %s %s", now_us / 1000000, now_us % 1000000, (int)getpid(),
	           call->verb, base->root);
	if (strcmp(call->what, base->root) != 0)
		buf_printf(&line, " %s", call->what[0] != '\0' ? call->what : ".");
	if (call->nbytes > 0)
		buf_printf(&line, " %" PRIu64 " bytes", call->nbytes);
	buf_printf(&line, " %.3f ms ", (double)(clock_mono_ns() - call->begin_ns) / 1e6);
	if (rc == 0)
		buf_puts(&line, "ok");
	else
		buf_printf(&line, "%s: %s", pawl_code_name(rc), err != NULL ? err->message : "");
	buf_putc(&line, '\n');
	if (buf_check(&line, "log", NULL) == 0)
		(void)!write(((struct log_store *)base)->fd, line.ptr, line.len);
	return false;
}

static void
log_close(struct store *base)
{
	close(((struct log_store *)base)->fd);
}

static const struct store_ops log_ops = {.close = log_close, .leave = log_leave};

int
store_log(struct store **s, struct pawl_error *err)
{
	const char *name = getenv("PAWL_STORE_LOG");
	if (name == NULL || name[0] == '\0')
		return 0;
	PAWL_FREE struct log_store *layer = mem_zalloc(1, sizeof *layer);
	if (layer == NULL)
		return err_nomem(err, (*s)->root);
	layer->fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (layer->fd < 0)
		return err_sys(err, errno, "PAWL_STORE_LOG: cannot open %s", name);
	int rc = layer_init(&layer->base, &log_ops, *s, err);
	if (rc < 0) {
		close(layer->fd);
		return rc;
	}
	*s = &steal(&layer)->base;
	return 0;
}
