/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_rate: limits the bytes a second that go into a store and that come out of it, for all threads together (R144).
 *
 * Put around a store by store_rate_wrap, for whoever asks for a limit; outside of the retry layer, so that it is what
 * was asked for that counts. What is large waits: the pieces of streamed objects and ranged reads, cut so that no piece
 * takes much longer than a second. What is small is counted but never waits: a lease that is renewed behind minutes of
 * packs would be lost.
 */
#include "store/layers/layer.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rate.h"

#define LEAST_PIECE_BYTES ((uint64_t)256 << 10) /* a multiple of every alignment */

struct rate_store {
	struct layer layer;
	struct store_rate opts;
	struct rate in, out;
	uint64_t in_piece, out_piece; /* bytes; UINT64_MAX = not cut */
};

static struct rate_store *
self_of(struct store *base)
{
	return (struct rate_store *)base;
}

static int64_t
real_now_ns(void *arg)
{
	(void)arg;
	return clock_mono_ns();
}

static void
real_sleep_ns(void *arg, int64_t ns)
{
	(void)arg;
	clock_sleep_ms(ns / 1000000);
}

static void
pay(struct rate_store *s, struct rate *rate, uint64_t nbytes, bool waits)
{
	int64_t ns = rate_take(rate, nbytes, s->opts.now_ns(s->opts.arg));
	if (waits && ns > 0)
		s->opts.sleep_ns(s->opts.arg, ns);
}

/* ------------------------------------------------------------ what is counted */

static int
rate_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
           struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	for (size_t done = 0; done < len;) {
		size_t n = len - done < s->in_piece ? len - done : (size_t)s->in_piece;
		pay(s, &s->in, n, true);
		TRY(s->layer.inner->ops->write(s->layer.inner, f, offset + done, (const char *)ptr + done, n, err));
		done += n;
	}
	return 0;
}

static int
rate_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	for (size_t done = 0; done < n;) {
		size_t len = n - done < s->out_piece ? n - done : (size_t)s->out_piece;
		pay(s, &s->out, len, true);
		TRY(s->layer.inner->ops->read(s->layer.inner, r, offset + done, (char *)dst + done, len, err));
		done += len;
	}
	return 0;
}

static int
rate_read_copy(struct store *base, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
               struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	pay(s, &s->out, n, true);
	return s->layer.inner->ops->read_copy(s->layer.inner, r, copy, offset, dst, n, err);
}

/* What is seen without being read would not be counted. */
static int
rate_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	struct rate_store *s = self_of(base);
	return s->out.bytes_per_second > 0 ? 0 : s->layer.inner->ops->view(s->layer.inner, r, offset, n, ret);
}

static int
rate_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	for (size_t i = 0; i < n_parts; i++)
		pay(s, &s->in, parts[i].len, false);
	return s->layer.inner->ops->put(s->layer.inner, key, parts, n_parts, flags, err);
}

static int
rate_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	size_t before = out->len;
	TRY(s->layer.inner->ops->get(s->layer.inner, key, max, out, err));
	pay(s, &s->out, out->len - before, false);
	return 0;
}

static int
rate_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	pay(self_of(base), &self_of(base)->in, len, false);
	return layer_inner(base)->ops->append(layer_inner(base), key, ptr, len, err);
}

/* ---------------------------------------------------------------- the layer */

/* About a second's worth, a power of two. */
static uint64_t
piece_of(uint64_t bytes_per_second)
{
	uint64_t piece = LEAST_PIECE_BYTES;
	if (bytes_per_second == 0)
		return UINT64_MAX;
	while (piece < bytes_per_second / 2)
		piece *= 2;
	return piece;
}

int
store_rate_wrap(struct store *s, const struct store_rate *opts, struct store **ret, struct pawl_error *err)
{
	struct store_caps caps;
	PAWL_FREE struct rate_store *layer = mem_zalloc(1, sizeof *layer);
	if (layer == NULL)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", s->root);
	TRY(layer_init(&layer->layer, s, err));
	struct store_ops *ops = &layer->layer.ops;
	ops->put = rate_put;
	ops->write = rate_write;
	ops->read = rate_read;
	ops->view = rate_view;
	ops->append = rate_append;
	if (ops->read_copy != NULL)
		ops->read_copy = rate_read_copy;
	if (ops->get != NULL)
		ops->get = rate_get;
	layer->opts = *opts;
	if (opts->now_ns == NULL) {
		layer->opts.now_ns = real_now_ns;
		layer->opts.sleep_ns = real_sleep_ns;
	}
	layer->in.bytes_per_second = opts->write_bytes_per_second;
	layer->out.bytes_per_second = opts->read_bytes_per_second;
	layer->out_piece = piece_of(opts->read_bytes_per_second);
	store_get_caps(s, &caps);
	/* Cut smaller than its unit, a piece of an upload would only be gathered again. */
	layer->in_piece = caps.unit_bytes > 0 ? UINT64_MAX : piece_of(opts->write_bytes_per_second);
	*ret = &steal(&layer)->layer.base;
	return 0;
}

int
store_limit(struct store **s, uint64_t write_bytes_per_second, uint64_t read_bytes_per_second, struct pawl_error *err)
{
	const struct store_rate opts = {.write_bytes_per_second = write_bytes_per_second,
	                                .read_bytes_per_second = read_bytes_per_second};
	if (write_bytes_per_second == 0 && read_bytes_per_second == 0)
		return 0;
	struct store *limited;
	TRY(store_rate_wrap(*s, &opts, &limited, err));
	*s = limited;
	return 0;
}
