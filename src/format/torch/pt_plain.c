/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt_plain: the calls that make plain values and arrays, which trainers save with torch.save:
 * durations, versions, arrays and scalars of NumPy. Every argument is checked.
 *
 *   __builtin__.bytes()                                                -> b""
 *   datetime.timedelta(days, seconds, microseconds)                    -> seconds
 *   torch.torch_version.TorchVersion(text)                             -> text
 *   numpy.dtype(code, align, copy), with state (version, order, ..)
 *   numpy.core.multiarray.scalar(dtype, bytes)                         -> array, no dimensions
 *   numpy.core.multiarray._reconstruct(numpy.ndarray, (0,), b'b'),
 *       with state (1, shape, dtype, by columns, bytes)
 *
 * Promise P17: an array has as many bytes as its shape needs.
 */
#include <string.h>

#include "base/err.h"
#include "format/numpy/npy.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/pt_names.h"

static int
refuse_plain(const char *what, struct pawl_error *err)
{
	return err_set(err, PAWL_ECORRUPT, "%s that is not in its usual form", what);
}

static bool
is_whole(const struct pickle_node *node)
{
	return node->type == PICKLE_INT && !node->text;
}

static int
read_time(const struct pickle_node *args, struct pt_value *v, struct pawl_error *err)
{
	if (args->len != 3 || !is_whole(args->items[0]) || !is_whole(args->items[1]) || !is_whole(args->items[2]))
		return refuse_plain("a datetime.timedelta", err);
	v->type = PT_FLOAT;
	v->f = (double)args->items[0]->i * 86400.0 + (double)args->items[1]->i + (double)args->items[2]->i / 1e6;
	return 0;
}

static int
read_version(const struct pickle_node *args, struct pt_value *v, struct pawl_error *err)
{
	if (args->len != 1 || args->items[0]->type != PICKLE_STR)
		return refuse_plain("a version of torch", err);
	v->type = PT_STR;
	v->text = args->items[0]->text;
	v->len = args->items[0]->len;
	return 0;
}

/* ------------------------------------------------------------------- arrays */

static int
find_dtype(const char *code, size_t len)
{
	for (int dtype = 1; dtype <= PAWL_C128; dtype++) {
		const char *descr = npy_descr(dtype); /* with its order */

		if (descr && strlen(descr + 1) == len && memcmp(descr + 1, code, len) == 0)
			return dtype;
	}
	return 0;
}

static int
read_dtype(const struct pickle_node *node, int *ret, struct pawl_error *err)
{
	if (node->type != PICKLE_CALL || node->global->tag != PT_NP_DTYPE || node->args->len != 3 ||
	    node->args->items[0]->type != PICKLE_STR)
		return refuse_plain("a numpy.dtype", err);
	const struct pickle_node *code = node->args->items[0], *state = node->call_state;
	if (!state || state->type != PICKLE_TUPLE || state->len < 2 || state->items[1]->type != PICKLE_STR ||
	    state->items[1]->len != 1)
		return refuse_plain("a numpy.dtype", err);
	const char order = state->items[1]->text[0];
	*ret = order == '<' || order == '|' ? find_dtype(code->text, code->len) : 0;
	if (*ret == 0)
		return err_set(err, PAWL_EUNSUPPORTED, "an array of numpy of dtype %c%.*s, which pawl does not read",
		               order, code->len < 20 ? (int)code->len : 20, code->text);
	return 0;
}

static int
take_bytes(const struct pt *pt, struct pickle_node *node, struct pt_tensor *t, struct pawl_error *err)
{
	struct pt_value bytes;

	if (node->type != PICKLE_BYTES &&
	    (node->type != PICKLE_CALL || (node->global->tag != PT_ENCODE && node->global->tag != PT_NO_BYTES)))
		return refuse_plain("an array of numpy", err);
	TRY(pt_value(pt, node, &bytes, err));
	TRY(safetensors_nbytes(t->dtype, t->ndim, t->shape, &t->nbytes, err));
	if (bytes.type != PT_BYTES || bytes.len != t->nbytes)
		return err_set(err, PAWL_ECORRUPT, "a NumPy array: expected %llu bytes, found %zu",
		               (unsigned long long)t->nbytes, bytes.len);
	t->memory = bytes.text;
	return 0;
}

/* Strides of an array that is stored by columns. */
static int
set_columns(const struct pt *pt, struct pt_tensor *t, struct pawl_error *err)
{
	uint64_t *strides = bump_array(pt->memory, t->ndim + 1u, sizeof(*strides)), step = 1;

	if (!strides)
		return err_nomem(err, NULL);
	for (uint32_t d = 0; d < t->ndim; d++) { /* within the bytes that exist */
		strides[d] = step;
		step *= t->shape[d];
	}
	t->strides = t->ndim > 1 && t->nbytes > 0 ? strides : NULL;
	return 0;
}

static int
read_array(const struct pt *pt, struct pickle_node *node, struct pt_tensor *t, struct pawl_error *err)
{
	const struct pickle_node *state = node->call_state;

	if (node->args->len != 3 || !pickle_is(node->args->items[0], PT_NP_ARRAY) || !state ||
	    state->type != PICKLE_TUPLE || state->len != 5 || state->items[3]->type != PICKLE_BOOL)
		return refuse_plain("an array of numpy", err);
	TRY(pt_read_extents(pt, state->items[1], &t->ndim, &t->shape, err));
	TRY(read_dtype(state->items[2], &t->dtype, err));
	TRY(take_bytes(pt, state->items[4], t, err));
	t->kind = "numpy";
	return state->items[3]->i ? set_columns(pt, t, err) : 0;
}

static int
read_scalar(const struct pt *pt, const struct pickle_node *args, struct pt_tensor *t, struct pawl_error *err)
{
	static const uint64_t none[1] = {0};

	if (args->len != 2)
		return refuse_plain("a scalar of numpy", err);
	t->shape = none;
	t->kind = "numpy_scalar";
	TRY(read_dtype(args->items[0], &t->dtype, err));
	return take_bytes(pt, args->items[1], t, err);
}

static int
make_array(const struct pt *pt, struct pickle_node *node, struct pt_value *v, struct pawl_error *err)
{
	if (!node->user) {
		struct pt_tensor *t = bump_alloc(pt->memory, sizeof(*t));
		if (!t)
			return err_nomem(err, NULL);
		*t = (struct pt_tensor){0};
		TRY(node->global->tag == PT_NP_SCALAR ? read_scalar(pt, node->args, t, err)
		                                      : read_array(pt, node, t, err));
		node->user = t;
	}
	v->type = PT_TENSOR;
	v->tensor = node->user;
	return 0;
}

int
pt_read_plain(const struct pt *pt, struct pickle_node *node, struct pt_value *v, struct pawl_error *err)
{
	int rc = 0;

	switch (node->global->tag) {
	case PT_NO_BYTES:
		v->type = PT_BYTES;
		v->text = "";
		rc = node->args->len == 0 ? 0 : refuse_plain("a call of bytes", err);
		break;
	case PT_TIME:
		rc = read_time(node->args, v, err);
		break;
	case PT_VERSION:
		rc = read_version(node->args, v, err);
		break;
	case PT_NP_MAKE:
	case PT_NP_SCALAR:
		rc = make_array(pt, node, v, err);
		break;
	default:
		return 0;
	}
	return rc < 0 ? rc : 1;
}
