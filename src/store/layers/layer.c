/* SPDX-License-Identifier: Apache-2.0 */
/* layer: see layer.h. */
#include "store/layers/layer.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

int
layer_init(struct store *s, const struct store_ops *ops, struct store *inner, struct pawl_error *err)
{
	TRY(store_init(s, ops, inner->name, inner->root, err));
	s->inner = inner;
	return 0;
}

/* ------------------------------------------------------------------ watching */

struct layer_call
layer_call_of(const struct store *s, enum layer_op op, const char *verb, const char *what, uint64_t nbytes)
{
	const int64_t begin_ns = s->ops->leave ? clock_mono_ns() : 0;
	return (struct layer_call){.op = op, .verb = verb, .what = what, .nbytes = nbytes, .begin_ns = begin_ns};
}

int
layer_enter(struct store *s, const struct layer_call *call, struct pawl_error *err)
{
	return s->ops->enter ? s->ops->enter(s, call, err) : 0;
}

bool
layer_leave(struct store *s, struct layer_call *call, int rc, struct pawl_error *err)
{
	return s->ops->leave && s->ops->leave(s, call, rc, err);
}

/* --------------------------------------------- files, without the border's checks */

int
layer_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	LAYER_HAND_DOWN(s, write, write, LAYER_WRITE, "write", f->key, len, err,
	                layer_write(s->inner, f, offset, ptr, len, err));
	return s->ops->write(s, f, offset, ptr, len, err);
}

int
layer_seal(struct store *s, struct store_file *f, struct pawl_error *err)
{
	LAYER_HAND_DOWN(s, seal, create, LAYER_OTHER, "seal", f->key, f->nbytes, err, layer_seal(s->inner, f, err));
	return s->ops->seal ? s->ops->seal(s, f, err) : 0;
}

/* The inner store always frees the file, but its key is needed afterwards. */
static int
finish_watched(struct store *s, struct store_file *f, struct pawl_error *err)
{
	PAWL_FREE char *key = mem_strdup(f->key);
	struct layer_call call = layer_call_of(s, LAYER_FINISH, "finish", key ? key : "", f->nbytes);
	int rc = key ? layer_enter(s, &call, err) : err_nomem(err, f->key);
	if (rc < 0) {
		store_abort(s->inner, f);
		return rc;
	}
	rc = layer_finish(s->inner, f, err);
	layer_leave(s, &call, rc, err);
	return rc;
}

int
layer_finish(struct store *s, struct store_file *f, struct pawl_error *err)
{
	for (; !s->ops->finish; s = s->inner)
		if (s->ops->enter || s->ops->leave)
			return finish_watched(s, f, err);
	return s->ops->finish(s, f, err);
}
