/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_rate: limits the bytes per second into and out of a store, for all threads together (R144).
 *
 * The layer wraps the retry layer, so it counts the bytes that were requested. Large calls wait:
 * pieces of streamed objects and ranged reads. They are cut so that no piece takes much longer than
 * a second. Small calls are counted but never wait. Otherwise a lease would expire because its
 * renewal waits behind minutes of packs. A wait ends when the owner of the store cancels: it may be
 * long, since an upload is not cut.
 */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rate.h"
#include "store/layers/layer.h"

#define LOOK_NS INT64_C(100000000)              /* a wait looks this often whether it is cancelled */
#define LEAST_PIECE_BYTES ((uint64_t)256 << 10) /* a multiple of every alignment */

struct rate_store {
	struct store base;
	struct store_rate opts;
	struct rate in, out;
	uint64_t in_piece, out_piece; /* bytes; UINT64_MAX = not cut */
};

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
count_bytes(struct rate_store *s, struct rate *rate, uint64_t nbytes)
{
	(void)rate_take(rate, nbytes, s->opts.now_ns(s->opts.arg));
}

static int
wait_for_bytes(struct rate_store *s, struct rate *rate, uint64_t nbytes, struct pawl_error *err)
{
	const struct pawl_meter *meter = s->opts.meter;
	int64_t ns = rate_take(rate, nbytes, s->opts.now_ns(s->opts.arg));
	while (ns > 0) {
		const int64_t part = meter != NULL && ns > LOOK_NS ? LOOK_NS : ns;
		if (meter != NULL && __atomic_load_n(&meter->cancel, __ATOMIC_RELAXED))
			return err_set(err, PAWL_ECANCELLED, "%s: cancelled while it waited for its rate",
			               s->base.root);
		s->opts.sleep_ns(s->opts.arg, part);
		ns -= part;
	}
	return 0;
}

/* ----------------------------------------------------------------- counting */

static int
rate_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
           struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	for (size_t done = 0; done < len;) {
		size_t n = len - done < s->in_piece ? len - done : (size_t)s->in_piece;
		TRY(wait_for_bytes(s, &s->in, n, err));
		TRY(layer_write(base->inner, f, offset + done, (const char *)ptr + done, n, err));
		done += n;
	}
	return 0;
}

static int
rate_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	for (size_t done = 0; done < n;) {
		size_t len = n - done < s->out_piece ? n - done : (size_t)s->out_piece;
		TRY(wait_for_bytes(s, &s->out, len, err));
		TRY(store_read(base->inner, r, offset + done, (char *)dst + done, len, err));
		done += len;
	}
	return 0;
}

static int
rate_read_copy(struct store *base, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
               struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	TRY(wait_for_bytes(s, &s->out, n, err));
	return store_read_copy(base->inner, r, copy, offset, dst, n, err);
}

/* Reads of what is cached are paced like all others. */
static bool
rate_is_cached(struct store *base, struct store_reader *r, uint64_t offset, size_t n)
{
	return store_is_cached(base->inner, r, offset, n);
}

static int
rate_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	for (size_t i = 0; i < n_parts; i++)
		count_bytes(s, &s->in, parts[i].len);
	return store_put(base->inner, key, parts, n_parts, flags, err);
}

static int
rate_put_if(struct store *base, const char *key, const char *tag, const struct pawl_slice *text, struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	count_bytes(s, &s->in, text->len);
	return store_put_if(base->inner, key, tag, text->ptr, text->len, err);
}

static int
rate_get(struct store *base, const char *key, size_t max, struct buf *out, char *tag, struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	const size_t before = out->len;
	TRY(tag ? store_get_tagged(base->inner, key, max, out, tag, err) : store_get(base->inner, key, max, out, err));
	count_bytes(s, &s->out, out->len - before);
	return 0;
}

static int
rate_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct rate_store *s = (struct rate_store *)base;
	count_bytes(s, &s->in, len);
	return store_append(base->inner, key, ptr, len, err);
}

/* ---------------------------------------------------------------- the layer */

/* The bytes of about one second, as a power of two. */
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

static const struct store_ops rate_ops = {
	.put = rate_put,
	.put_if = rate_put_if,
	.write = rate_write,
	.append = rate_append,
	.read = rate_read,
	.read_copy = rate_read_copy,
	.is_cached = rate_is_cached,
	.get = rate_get,
};

int
store_rate_wrap(struct store *s, const struct store_rate *opts, struct store **ret, struct pawl_error *err)
{
	struct store_caps caps;
	PAWL_FREE struct rate_store *layer = mem_zalloc(1, sizeof *layer);
	if (layer == NULL)
		return err_nomem(err, s->root);
	TRY(layer_init(&layer->base, &rate_ops, s, err));
	layer->opts = *opts;
	if (opts->now_ns == NULL) {
		layer->opts.now_ns = real_now_ns;
		layer->opts.sleep_ns = real_sleep_ns;
	}
	layer->in.bytes_per_second = opts->write_bytes_per_second;
	layer->out.bytes_per_second = opts->read_bytes_per_second;
	layer->out_piece = piece_of(opts->read_bytes_per_second);
	store_get_caps(s, &caps);
	/* An upload is not cut: the engine would gather pieces that are smaller than its unit. */
	layer->in_piece = caps.unit_bytes > 0 ? UINT64_MAX : piece_of(opts->write_bytes_per_second);
	*ret = &steal(&layer)->base;
	return 0;
}

int
store_limit(struct store **s, uint64_t write_bytes_per_second, uint64_t read_bytes_per_second,
            const struct pawl_meter *meter, struct pawl_error *err)
{
	const struct store_rate opts = {.write_bytes_per_second = write_bytes_per_second,
	                                .read_bytes_per_second = read_bytes_per_second,
	                                .meter = meter};
	if (write_bytes_per_second == 0 && read_bytes_per_second == 0)
		return 0;
	struct store *limited;
	TRY(store_rate_wrap(*s, &opts, &limited, err));
	*s = limited;
	return 0;
}
