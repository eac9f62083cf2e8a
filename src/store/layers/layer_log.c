/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_log: a line for each call of a store, with its bytes, its time and how it ended, for whoever wants to know what
 * a store is asked and which answer was slow.
 *
 * Put around the engine, inside of the retry layer, so that each try is a line, if PAWL_STORE_LOG names a
 * file. A line is one write at the file's end, so that many threads and processes may share it; what cannot be written
 * is lost, and the store goes on. Messages of errors never hold secrets (P18), so neither does the log.
 */
#include "store/layers/layer.h"

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

struct log_store {
	struct layer layer;
	int fd;
};

static void
log_leave(struct layer *layer, const struct layer_call *call, int rc, const struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf line = {0};
	int64_t now_us = clock_unix_ns() / 1000;
	buf_printf(&line, "%" PRId64 ".%06" PRId64 " %d %s %s", now_us / 1000000, now_us % 1000000, (int)getpid(),
	           call->verb, layer->base.root);
	if (strcmp(call->what, layer->base.root) != 0)
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
		(void)!write(((struct log_store *)layer)->fd, line.ptr, line.len);
}

static void
log_close(struct store *base)
{
	close(((struct log_store *)base)->fd);
	layer_close(base);
}

int
store_log(struct store **s, struct pawl_error *err)
{
	const char *name = getenv("PAWL_STORE_LOG");
	if (name == NULL || name[0] == '\0')
		return 0;
	PAWL_FREE struct log_store *layer = mem_zalloc(1, sizeof *layer);
	if (layer == NULL)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", (*s)->root);
	layer->fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (layer->fd < 0)
		return err_sys(err, errno, "PAWL_STORE_LOG: cannot open %s", name);
	int rc = layer_init(&layer->layer, *s, err);
	if (rc < 0) {
		close(layer->fd);
		return rc;
	}
	layer->layer.leave = log_leave;
	layer->layer.ops.close = log_close;
	*s = &steal(&layer)->layer.base;
	return 0;
}
