/* SPDX-License-Identifier: Apache-2.0 */
/* npy: see npy.h. Promises P16, P17. */
#include "format/numpy/npy.h"

#include <string.h>

#include "base/err.h"
#include "format/safetensors/safetensors.h"

#define MAGIC "\x93NUMPY"
#define MAGIC_LEN 6u
#define ALIGN 64u
#define MAX_DESCR 64u

static const struct {
	int dtype;
	const char *descr;
} names[] = {
	{PAWL_BOOL, "|b1"}, {PAWL_I8, "|i1"},  {PAWL_U8, "|u1"},  {PAWL_I16, "<i2"},   {PAWL_U16, "<u2"},
	{PAWL_I32, "<i4"},  {PAWL_U32, "<u4"}, {PAWL_I64, "<i8"}, {PAWL_U64, "<u8"},   {PAWL_F16, "<f2"},
	{PAWL_F32, "<f4"},  {PAWL_F64, "<f8"}, {PAWL_C64, "<c8"}, {PAWL_C128, "<c16"},
};
#define N_NAMES (sizeof(names) / sizeof(names[0]))

/* The literal as it is read. */
struct literal {
	const char *what;
	const char *at, *end;
	char descr[MAX_DESCR];
	bool has_descr, has_order, has_shape, is_fortran, is_structured;
	uint64_t shape[PAWL_MAX_DIMS];
	uint32_t ndim;
	struct pawl_error *err;
};

const char *
npy_descr(int dtype)
{
	for (size_t i = 0; i < N_NAMES; i++) {
		if (names[i].dtype == dtype)
			return names[i].descr;
	}
	return NULL;
}

bool
npy_looks(const unsigned char *first, size_t n)
{
	return n >= MAGIC_LEN && memcmp(first, MAGIC, MAGIC_LEN) == 0;
}

/* -------------------------------------------------------------- the literal */

static int
refuse_literal(const struct literal *l, const char *why)
{
	return err_set(l->err, PAWL_ECORRUPT, "%s: its header is damaged: %s", l->what, why);
}

static void
skip_space(struct literal *l)
{
	while (l->at < l->end && (*l->at == ' ' || *l->at == '\n'))
		l->at++;
}

static bool
skip_char(struct literal *l, char c)
{
	skip_space(l);
	if (l->at == l->end || *l->at != c)
		return false;
	l->at++;
	return true;
}

static bool
take_word(struct literal *l, const char *word)
{
	const size_t n = strlen(word);

	skip_space(l);
	if ((size_t)(l->end - l->at) < n || memcmp(l->at, word, n) != 0)
		return false;
	l->at += n;
	return true;
}

/* A text in quotes, which never holds escapes here. */
static int
read_text(struct literal *l, char *out, size_t cap)
{
	size_t n = 0;

	skip_space(l);
	if (l->at == l->end || (*l->at != '\'' && *l->at != '"'))
		return refuse_literal(l, "expected a text in quotes");
	const char quote = *l->at++;
	for (; l->at < l->end && *l->at != quote; l->at++) {
		if (*l->at < ' ' || *l->at > '~' || *l->at == '\\' || n + 1 == cap)
			return refuse_literal(l, "a text that is not a NumPy name");
		out[n++] = *l->at;
	}
	if (l->at == l->end)
		return refuse_literal(l, "a text without an end");
	l->at++;
	out[n] = '\0';
	return 0;
}

static int
read_extent(struct literal *l)
{
	uint64_t value = 0;
	const char *begin;

	skip_space(l);
	begin = l->at;
	for (; l->at < l->end && *l->at >= '0' && *l->at <= '9'; l->at++) {
		if (!mem_mul_ok(value, 10, &value) || !mem_add_ok(value, (uint64_t)(*l->at - '0'), &value))
			return refuse_literal(l, "an extent beyond 64 bits");
	}
	if (l->at == begin)
		return refuse_literal(l, "expected an extent of the shape");
	if (l->at < l->end && *l->at == 'L') /* as Python 2 wrote them */
		l->at++;
	if (l->ndim == PAWL_MAX_DIMS)
		return err_set(l->err, PAWL_ELIMIT, "%s: more than %d dimensions", l->what, PAWL_MAX_DIMS);
	l->shape[l->ndim++] = value;
	return 0;
}

static int
read_shape(struct literal *l)
{
	if (l->has_shape || !skip_char(l, '('))
		return refuse_literal(l, "expected one shape, a tuple");
	l->has_shape = true;
	while (!skip_char(l, ')')) {
		bool comma;

		TRY(read_extent(l));
		comma = skip_char(l, ',');
		if (comma)
			continue;
		if (l->ndim == 1 || !skip_char(l, ')'))
			return refuse_literal(l, "the shape is not a tuple");
		return 0;
	}
	return 0;
}

static int
read_descr(struct literal *l)
{
	if (l->has_descr)
		return refuse_literal(l, "'descr' appears twice");
	l->has_descr = true;
	skip_space(l);
	if (l->at < l->end && (*l->at == '[' || *l->at == '(' || *l->at == '{'))
		return err_set(l->err, PAWL_EUNSUPPORTED,
		               "%s: a structured array (its elements have fields); save each field as an array",
		               l->what);
	return read_text(l, l->descr, sizeof(l->descr));
}

static int
read_order(struct literal *l)
{
	if (l->has_order)
		return refuse_literal(l, "'fortran_order' appears twice");
	l->has_order = true;
	if (take_word(l, "True"))
		l->is_fortran = true;
	else if (!take_word(l, "False"))
		return refuse_literal(l, "'fortran_order': expected True or False");
	return 0;
}

static int
read_literal(struct literal *l)
{
	char key[16];

	if (!skip_char(l, '{'))
		return refuse_literal(l, "expected a dict");
	while (!skip_char(l, '}')) {
		TRY(read_text(l, key, sizeof(key)));
		if (!skip_char(l, ':'))
			return refuse_literal(l, "expected ':' after a key");
		if (strcmp(key, "descr") == 0)
			TRY(read_descr(l));
		else if (strcmp(key, "fortran_order") == 0)
			TRY(read_order(l));
		else if (strcmp(key, "shape") == 0)
			TRY(read_shape(l));
		else
			return refuse_literal(l, "a key other than descr, fortran_order and shape");
		if (skip_char(l, ','))
			continue;
		if (!skip_char(l, '}'))
			return refuse_literal(l, "expected ',' or '}'");
		break;
	}
	skip_space(l);
	if (l->at != l->end)
		return refuse_literal(l, "bytes follow it");
	return l->has_descr && l->has_order && l->has_shape
	               ? 0
	               : refuse_literal(l, "descr, fortran_order or shape is missing");
}

/* ---------------------------------------------------------------- the dtype */

static int
refuse_descr(const struct literal *l)
{
	const char *descr = l->descr, *rest = descr + (strchr("<>|=", descr[0]) && descr[0] ? 1 : 0);

	if (rest[0] == 'O')
		return err_set(l->err, PAWL_EUNSUPPORTED,
		               "%s: an array of objects, which is a pickle; pawl runs no pickles: save plain arrays",
		               l->what);
	if (rest[0] == 'S' || rest[0] == 'U' || rest[0] == 'a')
		return err_set(l->err, PAWL_EUNSUPPORTED, "%s: arrays of text ('%s') are not read", l->what, descr);
	if (rest[0] == 'M' || rest[0] == 'm')
		return err_set(l->err, PAWL_EUNSUPPORTED, "%s: arrays of dates or times ('%s') are not read", l->what,
		               descr);
	if (rest[0] == 'V')
		return err_set(l->err, PAWL_EUNSUPPORTED,
		               "%s: an array of raw bytes ('%s'); numpy keeps no dtype of bfloat16 and the like",
		               l->what, descr);
	if (descr[0] == '>')
		return err_set(l->err, PAWL_EUNSUPPORTED, "%s: big-endian numbers ('%s'); expected little-endian ones",
		               l->what, descr);
	return err_set(l->err, PAWL_EUNSUPPORTED, "%s: dtype '%s', which pawl does not have", l->what, descr);
}

static int
find_dtype(const struct literal *l, int *ret)
{
	const char *descr = l->descr;

	for (size_t i = 0; i < N_NAMES; i++) {
		const char *known = names[i].descr;

		if (strcmp(known + 1, descr + (descr[0] ? 1 : 0)) != 0)
			continue;
		/* Of one byte each, they have no order. */
		if (descr[0] == known[0] || descr[0] == '=' || (known[0] == '|' && strchr("<>", descr[0]))) {
			*ret = names[i].dtype;
			return 0;
		}
	}
	return refuse_descr(l);
}

/* ------------------------------------------------------------------- reading */

/* Reads the bytes before the literal. */
static int
read_prefix(const struct source *source, const char *what, uint64_t begin, uint64_t nbytes, size_t *ret_prefix,
            size_t *ret_len, struct pawl_error *err)
{
	unsigned char p[MAGIC_LEN + 6] = {0};
	const size_t n = nbytes < sizeof(p) ? (size_t)nbytes : sizeof(p);

	TRY(source_read(source, begin, p, n, err));
	if (n < MAGIC_LEN + 4 || !npy_looks(p, n))
		return err_set(err, PAWL_ECORRUPT, "%s: expected an array of numpy.save, found something else", what);
	if (p[6] < 1 || p[6] > 3 || p[7] != 0)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: version %d.%d of the npy format, 1.0 to 3.0 are read", what,
		               p[6], p[7]);
	*ret_prefix = MAGIC_LEN + (p[6] == 1 ? 4u : 6u);
	*ret_len = (size_t)p[8] | (size_t)p[9] << 8;
	if (p[6] > 1)
		*ret_len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
	if (*ret_prefix > nbytes || *ret_len > nbytes - *ret_prefix)
		return err_set(err, PAWL_ECORRUPT, "%s: its header reaches beyond its end (is the file complete?)",
		               what);
	if (*ret_len > NPY_MAX_HEADER)
		return err_set(err, PAWL_ELIMIT, "%s: a header of %zu bytes, at most %u are read", what, *ret_len,
		               NPY_MAX_HEADER);
	return 0;
}

/* Copies the extents; the strides of Fortran order: the first dimension is the innermost. */
static int
keep_shape(const struct literal *l, struct bump *memory, struct npy *ret)
{
	uint64_t *shape = bump_array(memory, l->ndim + 1u, sizeof(*shape)), step = 1;
	uint64_t *strides = bump_array(memory, l->ndim + 1u, sizeof(*strides));

	if (!shape || !strides)
		return err_nomem(l->err, l->what);
	for (uint32_t d = 0; d < l->ndim; d++) {
		shape[d] = l->shape[d];
		strides[d] = step;
		step *= l->shape[d]; /* the product has been checked */
	}
	ret->ndim = l->ndim;
	ret->shape = shape;
	ret->strides = l->is_fortran && l->ndim > 1 && ret->nbytes > 0 ? strides : NULL;
	return 0;
}

int
npy_open(const struct source *source, const char *what, uint64_t begin, uint64_t nbytes, struct bump *memory,
         struct npy *ret, struct pawl_error *err)
{
	PAWL_FREE char *text = NULL;
	PAWL_FREE struct literal *l = mem_zalloc(1, sizeof(*l));
	size_t prefix, len;

	TRY(read_prefix(source, what, begin, nbytes, &prefix, &len, err));
	text = mem_alloc(len + 1);
	if (!l || !text)
		return err_nomem(err, what);
	TRY(source_read(source, begin + prefix, text, len, err));
	l->what = what;
	l->at = text;
	l->end = text + len;
	l->err = err;
	TRY(read_literal(l));
	TRY(find_dtype(l, &ret->dtype));
	int rc = safetensors_nbytes(ret->dtype, l->ndim, l->shape, &ret->nbytes, err);
	if (rc < 0)
		return err_prefix(err, rc, "%s", what);
	ret->begin = begin + prefix + len;
	if (ret->nbytes != nbytes - prefix - len)
		return err_set(err, PAWL_ECORRUPT, "%s: an array of %llu bytes, but the file has %llu", what,
		               (unsigned long long)ret->nbytes, (unsigned long long)(nbytes - prefix - len));
	return keep_shape(l, memory, ret);
}

/* ------------------------------------------------------------------- writing */

int
npy_encode_header(int dtype, uint32_t ndim, const uint64_t *shape, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const char *descr = npy_descr(dtype);

	if (!descr)
		return err_set(err, PAWL_EUNSUPPORTED, "numpy has no dtype %s", pawl_dtype_name(dtype));
	buf_printf(&text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
	for (uint32_t d = 0; d < ndim; d++)
		buf_printf(&text, "%s%llu", d > 0 ? ", " : "", (unsigned long long)shape[d]);
	buf_puts(&text, ndim == 1 ? ",), }" : "), }");
	while ((MAGIC_LEN + 4 + text.len + 1) % ALIGN != 0)
		buf_putc(&text, ' ');
	buf_putc(&text, '\n');
	TRY(buf_check(&text, "npy", err));
	buf_put(out, MAGIC "\x01\x00", MAGIC_LEN + 2); /* 64 extents of 20 digits fit version 1.0 */
	buf_putc(out, (char)(text.len & 0xff));
	buf_putc(out, (char)(text.len >> 8));
	buf_put(out, text.ptr, text.len);
	return buf_check(out, "npy", err);
}
