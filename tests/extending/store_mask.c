/* SPDX-License-Identifier: Apache-2.0 */
/* store_mask: a layer that changes the bytes on their way into a store and out of it. */
#include "extending/store_shelf.h"

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/layer.h"
#include "store/store_default.h"

struct mask {
	struct store base; /* base.inner is the store that it wraps */
	unsigned char mask;
};

/* XORs n bytes, from src to dst. */
static void
mask_bytes(struct store *s, void *dst, const void *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)dst)[i] = ((const unsigned char *)src)[i] ^ ((struct mask *)s)->mask;
}

static int
mask_put(struct store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
         struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	for (size_t i = 0; i < n_parts; i++)
		buf_put(&whole, parts[i].ptr, parts[i].len);
	TRY(buf_check(&whole, key, err));
	if (whole.len > 0)
		mask_bytes(s, whole.ptr, whole.ptr, whole.len);
	return store_put_bytes(s->inner, key, whole.ptr, whole.len, flags, err);
}

/* The file belongs to the inner store, so layer_write. */
static int
mask_write(struct store *s, struct store_file *f, uint64_t offset, const void *ptr, size_t len, struct pawl_error *err)
{
	PAWL_FREE char *masked = mem_alloc(len);
	if (!masked)
		return err_nomem(err, f->key);
	mask_bytes(s, masked, ptr, len);
	return layer_write(s->inner, f, offset, masked, len, err);
}

static int
mask_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	TRY(store_read(s->inner, r, offset, dst, n, err));
	mask_bytes(s, dst, dst, n);
	return 0;
}

/* append and get follow put and read by themselves. A pointer must become an object that is
 * put here. */
static const struct store_ops mask_ops = {
	.put = mask_put,
	.write = mask_write,
	.read = mask_read,
	.pointer = store_default_pointer,
};

int
store_mask_wrap(struct store *s, unsigned char mask, struct store **ret, struct pawl_error *err)
{
	PAWL_FREE struct mask *layer = mem_zalloc(1, sizeof(*layer));
	if (!layer)
		return err_nomem(err, s->root);
	TRY(layer_init(&layer->base, &mask_ops, s, err));
	layer->mask = mask;
	*ret = &steal(&layer)->base;
	return 0;
}
