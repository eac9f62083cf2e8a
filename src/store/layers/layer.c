/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer: see layer.h. Called by the layers that change a few operations, or look at all, and pass them on; calls what
 * they wrap, without the checks of the border, which have been made once already.
 */
#include "store/layers/layer.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

struct store *
layer_inner(struct store *base)
{
	return ((struct layer *)base)->inner;
}

/* ------------------------------------------------------------------ watching */

static struct layer_call
begin(struct store *base, enum layer_op op, const char *verb, const char *what, uint64_t nbytes)
{
	const struct layer *layer = (struct layer *)base;
	return (struct layer_call){op, verb, what, nbytes, layer->leave != NULL ? clock_mono_ns() : 0};
}

static int
enter(struct store *base, const struct layer_call *call, struct pawl_error *err)
{
	struct layer *layer = (struct layer *)base;
	return layer->enter != NULL ? layer->enter(layer, call, err) : 0;
}

static int
leave(struct store *base, const struct layer_call *call, int rc, const struct pawl_error *err)
{
	struct layer *layer = (struct layer *)base;
	if (layer->leave != NULL)
		layer->leave(layer, call, rc, err);
	return rc;
}

static uint64_t
bytes_of(const struct pawl_slice *parts, size_t n)
{
	uint64_t nbytes = 0;
	for (size_t i = 0; i < n; i++)
		nbytes += parts[i].len;
	return nbytes;
}

/* ------------------------------------------------------------------- passing */

static int
pass_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_PUT, "put", key, bytes_of(parts, n_parts));
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->put(inner, key, parts, n_parts, flags, err), err);
}

static int
pass_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
            struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_CREATE, "create", key, opts->nbytes);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->create(inner, key, opts, ret, err), err);
}

static int
pass_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
           struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_WRITE, "write", f->key, len);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->write(inner, f, offset, ptr, len, err), err);
}

static int
pass_seal(struct store *base, struct store_file *f, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "seal", f->key, f->nbytes);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->seal(inner, f, err), err);
}

static void
pass_abort(struct store *base, struct store_file *f)
{
	layer_inner(base)->ops->abort(layer_inner(base), f);
}

/* Frees the file in any case, whose key is wanted afterwards. */
static int
pass_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	PAWL_FREE char *key = mem_strdup(f->key);
	const struct layer_call call = begin(base, LAYER_FINISH, "finish", key != NULL ? key : "", f->nbytes);
	int rc = key != NULL ? enter(base, &call, err) : err_set(err, PAWL_ENOMEM, "%s: out of memory", f->key);
	if (rc == 0)
		return leave(base, &call, inner->ops->finish(inner, f, err), err);
	inner->ops->abort(inner, f);
	return rc;
}

static int
pass_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "open", key, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->open(inner, key, ret, ret_nbytes, err), err);
}

static int
pass_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_READ, "read", r->key, n);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->read(inner, r, offset, dst, n, err), err);
}

static int
pass_read_copy(struct store *base, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
               struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_READ, "read", r->key, n);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->read_copy(inner, r, copy, offset, dst, n, err), err);
}

/* Counts as the two calls that it stands for. */
static int
pass_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call opening = begin(base, LAYER_OTHER, "open", key, 0);
	struct layer_call call = begin(base, LAYER_READ, "read", key, 0);
	size_t before = out->len;
	TRY(enter(base, &opening, err));
	TRY(enter(base, &call, err));
	int rc = inner->ops->get(inner, key, max, out, err);
	call.nbytes = out->len - before;
	return leave(base, &call, rc, err);
}

static int
pass_get_tagged(struct store *base, const char *key, size_t max, struct buf *out, char tag[STORE_TAG_BYTES],
                struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	struct layer_call call = begin(base, LAYER_READ, "read", key, 0);
	size_t before = out->len;
	TRY(enter(base, &call, err));
	int rc = inner->ops->get_tagged(inner, key, max, out, tag, err);
	call.nbytes = out->len - before;
	return leave(base, &call, rc, err);
}

static int
pass_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	return layer_inner(base)->ops->view(layer_inner(base), r, offset, n, ret);
}

static void
pass_drop_view(struct store *base, struct store_view *view)
{
	layer_inner(base)->ops->drop_view(layer_inner(base), view);
}

static void
pass_close_reader(struct store *base, struct store_reader *r)
{
	layer_inner(base)->ops->close_reader(layer_inner(base), r);
}

static int
pass_pass_over(struct store *base, struct store_reader *r, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "pass over", r->key, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->pass_over(inner, r, ret_nbytes, err), err);
}

static int
pass_put_if(struct store *base, const char *key, const char *tag, const struct pawl_slice *text, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_PUT, "replace", key, text->len);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->put_if(inner, key, tag, text, err), err);
}

static int
pass_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_STAT, "stat", key, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->stat(inner, key, ret, err), err);
}

static int
pass_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_LIST, "list", folder, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->list(inner, folder, fn, arg, err), err);
}

static int
pass_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_LIST, "list", folder, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->list_all(inner, folder, fn, arg, err), err);
}

static int
pass_remove(struct store *base, const char *key, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_REMOVE, "remove", key, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->remove(inner, key, err), err);
}

static int
pass_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_REMOVE, "remove", folder, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->remove_folder(inner, folder, err), err);
}

static int
pass_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_LINK, "link", from, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->link(inner, from, to, err), err);
}

static int
pass_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "move", from, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->move(inner, from, to, err), err);
}

static int
pass_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_PUBLISH, "publish", from, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->publish(inner, from, to, err), err);
}

static int
pass_exchange(struct store *base, const char *a, const char *b, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_PUBLISH, "exchange", a, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->exchange(inner, a, b, err), err);
}

static int
pass_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "point", key, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->pointer(inner, key, target, err), err);
}

static int
pass_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "sync", folder, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->sync(inner, folder, err), err);
}

static int
pass_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "measure free space", base->root, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->space(inner, ret_free_bytes, err), err);
}

static int
pass_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "append", key, len);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->append(inner, key, ptr, len, err), err);
}

static int
pass_sweep(struct store *base, int64_t before_ns, uint64_t *ret_n, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "sweep", base->root, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->sweep(inner, before_ns, ret_n, err), err);
}

static int
pass_notes(struct store *base, store_note_fn *fn, void *arg, struct pawl_error *err)
{
	struct store *inner = layer_inner(base);
	const struct layer_call call = begin(base, LAYER_OTHER, "look", base->root, 0);
	TRY(enter(base, &call, err));
	return leave(base, &call, inner->ops->notes(inner, fn, arg, err), err);
}

static void
pass_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(layer_inner(base), ret);
}

void
layer_close(struct store *base)
{
	store_close(layer_inner(base));
	mem_free(base->root);
	mem_free(base);
}

static const struct store_ops pass_ops = {
	.close = layer_close,
	.caps = pass_caps,
	.put = pass_put,
	.create = pass_create,
	.write = pass_write,
	.open = pass_open,
	.read = pass_read,
	.stat = pass_stat,
	.list = pass_list,
	.remove = pass_remove,
	.remove_folder = pass_remove_folder,
	.link = pass_link,
	.move = pass_move,
	.publish = pass_publish,
	.pointer = pass_pointer,
	.sync = pass_sync,
	.space = pass_space,
	.append = pass_append,
	.finish = pass_finish,
	.abort = pass_abort,
	.view = pass_view,
	.drop_view = pass_drop_view,
	.close_reader = pass_close_reader,
};

/* Operations that an engine may lack are lacking here, too. */
static void
pass_what_there_is(struct store_ops *ops, const struct store_ops *inner)
{
	ops->read_copy = inner->read_copy != NULL ? pass_read_copy : NULL;
	ops->pass_over = inner->pass_over != NULL ? pass_pass_over : NULL;
	ops->put_if = inner->put_if != NULL ? pass_put_if : NULL;
	ops->list_all = inner->list_all != NULL ? pass_list_all : NULL;
	ops->exchange = inner->exchange != NULL ? pass_exchange : NULL;
	ops->sweep = inner->sweep != NULL ? pass_sweep : NULL;
	ops->notes = inner->notes != NULL ? pass_notes : NULL;
	ops->seal = inner->seal != NULL ? pass_seal : NULL;
	ops->get = inner->get != NULL ? pass_get : NULL;
	ops->get_tagged = inner->get_tagged != NULL ? pass_get_tagged : NULL;
}

int
layer_init(struct layer *layer, struct store *inner, struct pawl_error *err)
{
	char *root = mem_strdup(inner->root);
	if (root == NULL)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", inner->root);
	layer->ops = pass_ops;
	layer->ops.name = inner->ops->name;
	pass_what_there_is(&layer->ops, inner->ops);
	layer->base = (struct store){&layer->ops, root};
	layer->inner = inner;
	return 0;
}
