/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_rate: limits the bytes a second that go into a store and that come out of it, for all threads together (R144).
 *
 * Put around a store by store_rate_wrap, for whoever asks for a limit; outside of the retry layer, so that it is what
 * was asked for that counts. What is large waits: the pieces of streamed objects and ranged reads, cut so that no piece
 * takes much longer than a second. What is small is counted but never waits: a lease that is renewed behind minutes of
 * packs would be lost.
 */
#include "store/engine.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rate.h"

#define LEAST_PIECE_BYTES ((uint64_t)256 << 10) /* a multiple of every alignment */

struct rate_store {
	struct store base;
	struct store *inner;
	struct store_ops ops; /* ours, under the engine's name and with the holes that it has */
	struct store_rate opts;
	struct rate in, out;
	uint64_t in_piece, out_piece; /* bytes; UINT64_MAX = not cut */
};

static struct rate_store *
self_of(struct store *base)
{
	return (struct rate_store *)base;
}

static struct store *
inner_of(struct store *base)
{
	return self_of(base)->inner;
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
		TRY(s->inner->ops->write(s->inner, f, offset + done, (const char *)ptr + done, n, err));
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
		TRY(s->inner->ops->read(s->inner, r, offset + done, (char *)dst + done, len, err));
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
	return s->inner->ops->read_copy(s->inner, r, copy, offset, dst, n, err);
}

/* What is seen without being read would not be counted. */
static int
rate_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	struct rate_store *s = self_of(base);
	return s->out.bytes_per_second > 0 ? 0 : s->inner->ops->view(s->inner, r, offset, n, ret);
}

static int
rate_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	for (size_t i = 0; i < n_parts; i++)
		pay(s, &s->in, parts[i].len, false);
	return s->inner->ops->put(s->inner, key, parts, n_parts, flags, err);
}

static int
rate_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct rate_store *s = self_of(base);
	size_t before = out->len;
	TRY(s->inner->ops->get(s->inner, key, max, out, err));
	pay(s, &s->out, out->len - before, false);
	return 0;
}

static int
rate_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	pay(self_of(base), &self_of(base)->in, len, false);
	return inner_of(base)->ops->append(inner_of(base), key, ptr, len, err);
}

/* -------------------------------------------------------------- what is not */

static int
rate_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
            struct pawl_error *err)
{
	return inner_of(base)->ops->create(inner_of(base), key, opts, ret, err);
}

static int
rate_seal(struct store *base, struct store_file *f, struct pawl_error *err)
{
	return inner_of(base)->ops->seal(inner_of(base), f, err);
}

static int
rate_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	return inner_of(base)->ops->finish(inner_of(base), f, err);
}

static void
rate_abort(struct store *base, struct store_file *f)
{
	inner_of(base)->ops->abort(inner_of(base), f);
}

static int
rate_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	return inner_of(base)->ops->open(inner_of(base), key, ret, ret_nbytes, err);
}

static void
rate_drop_view(struct store *base, struct store_view *view)
{
	inner_of(base)->ops->drop_view(inner_of(base), view);
}

static void
rate_close_reader(struct store *base, struct store_reader *r)
{
	inner_of(base)->ops->close_reader(inner_of(base), r);
}

static int
rate_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	return inner_of(base)->ops->stat(inner_of(base), key, ret, err);
}

static int
rate_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return store_list_all(inner_of(base), folder, fn, arg, err);
}

static int
rate_get_tagged(struct store *base, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
                struct pawl_error *err)
{
	return store_get_tagged(inner_of(base), key, max, out, tag, err);
}

static int
rate_put_if(struct store *base, const char *key, const char *tag, const struct pawl_slice *text, struct pawl_error *err)
{
	return store_put_if(inner_of(base), key, tag, text->ptr, text->len, err);
}

static int
rate_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	return inner_of(base)->ops->list(inner_of(base), folder, fn, arg, err);
}

static int
rate_remove(struct store *base, const char *key, struct pawl_error *err)
{
	return inner_of(base)->ops->remove(inner_of(base), key, err);
}

static int
rate_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	return inner_of(base)->ops->remove_folder(inner_of(base), folder, err);
}

static int
rate_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	return inner_of(base)->ops->link(inner_of(base), from, to, err);
}

static int
rate_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	return inner_of(base)->ops->move(inner_of(base), from, to, err);
}

static int
rate_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	return inner_of(base)->ops->publish(inner_of(base), from, to, err);
}

static int
rate_exchange(struct store *base, const char *a, const char *b, struct pawl_error *err)
{
	return inner_of(base)->ops->exchange(inner_of(base), a, b, err);
}

static int
rate_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	return inner_of(base)->ops->pointer(inner_of(base), key, target, err);
}

static int
rate_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	return inner_of(base)->ops->sync(inner_of(base), folder, err);
}

static int
rate_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	return inner_of(base)->ops->space(inner_of(base), ret_free_bytes, err);
}

static int
rate_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	return inner_of(base)->ops->sweep(inner_of(base), before_ns, ret_n, err);
}

static int
rate_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	return inner_of(base)->ops->notes(inner_of(base), fn, arg, err);
}

static void
rate_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(inner_of(base), ret);
}

static void
rate_close(struct store *base)
{
	store_close(inner_of(base));
	mem_free(base->root);
	mem_free(base);
}

/* ---------------------------------------------------------------- the layer */

static const struct store_ops rate_ops = {
	.close = rate_close,
	.caps = rate_caps,
	.put = rate_put,
	.create = rate_create,
	.write = rate_write,
	.finish = rate_finish,
	.abort = rate_abort,
	.open = rate_open,
	.read = rate_read,
	.view = rate_view,
	.drop_view = rate_drop_view,
	.close_reader = rate_close_reader,
	.stat = rate_stat,
	.list = rate_list,
	.list_all = rate_list_all,
	.get_tagged = rate_get_tagged,
	.put_if = rate_put_if,
	.remove = rate_remove,
	.remove_folder = rate_remove_folder,
	.link = rate_link,
	.move = rate_move,
	.publish = rate_publish,
	.pointer = rate_pointer,
	.sync = rate_sync,
	.space = rate_space,
	.append = rate_append,
};

/* Operations that an engine may lack are lacking here, too. */
static struct store_ops
ops_around(const struct store_ops *inner)
{
	struct store_ops ops = rate_ops;
	ops.name = inner->name;
	ops.seal = inner->seal != NULL ? rate_seal : NULL;
	ops.read_copy = inner->read_copy != NULL ? rate_read_copy : NULL;
	ops.get = inner->get != NULL ? rate_get : NULL;
	ops.exchange = inner->exchange != NULL ? rate_exchange : NULL;
	ops.sweep = inner->sweep != NULL ? rate_sweep : NULL;
	ops.notes = inner->notes != NULL ? rate_notes : NULL;
	return ops;
}

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
	PAWL_FREE char *root = mem_strdup(s->root);
	struct rate_store *layer = mem_zalloc(1, sizeof *layer);
	if (root == NULL || layer == NULL) {
		mem_free(layer);
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", s->root);
	}
	layer->ops = ops_around(s->ops);
	layer->base = (struct store){&layer->ops, steal(&root)};
	layer->inner = s;
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
	*ret = &layer->base;
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
