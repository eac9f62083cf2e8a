/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt: see pt.h.
 *
 *   zip: <folder>/data.pkl    the object; tensors refer to storages by number
 *        <folder>/data/<n>    the bytes of a storage
 *        <folder>/byteorder   "little" or "big"; absent before torch 2.1
 *        <folder>/version     and others that do not concern the values
 *
 * Promises P1 (what cannot be held exactly is refused), P17.
 */
#include "format/torch/pt.h"

#include <string.h>

#include "base/err.h"
#include "format/torch/pt_names.h"

#define MAX_NOTE_BYTES 16u

/* ------------------------------------------------------------------- opening */

static int
check_notes(const struct source *source, const struct zip *zip, struct bump *memory, struct pawl_error *err)
{
	const struct zip_member *order = zip_find(zip, "byteorder", 9);
	struct pawl_slice text;

	if (zip_find(zip, "constants.pkl", 13))
		return err_set(err, PAWL_EUNSUPPORTED, "%s holds a TorchScript program, not a checkpoint",
		               source->what);
	TRY(zip_check_stored(source, zip, err));
	if (!order)
		return 0;
	TRY(zip_read(source, order, MAX_NOTE_BYTES, memory, &text, err));
	if (text.len == 6 && memcmp(text.ptr, "little", 6) == 0)
		return 0;
	if (text.len == 3 && memcmp(text.ptr, "big", 3) == 0)
		return err_set(err, PAWL_EUNSUPPORTED, "%s was written on a big-endian machine", source->what);
	return err_set(err, PAWL_ECORRUPT, "%s: its byteorder is neither little nor big", source->what);
}

static int
open_zip(struct pt *pt, struct pawl_error *err)
{
	struct pawl_slice stream;

	TRY(zip_open(pt->source, pt->memory, &pt->zip, err));
	TRY(check_notes(pt->source, &pt->zip, pt->memory, err));
	const struct zip_member *object = zip_find(&pt->zip, "data.pkl", 8);
	if (!object)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s is a zip archive without data.pkl: torch.save did not write it", pt->source->what);
	TRY(zip_read(pt->source, object, PICKLE_MAX_BYTES, pt->memory, &stream, err));
	return pickle_decode(pt->source->what, stream.ptr, stream.len, pt_globals, pt_n_globals, pt->memory, &pt->root,
	                     err);
}

/* The form of torch before 1.6, a row of pickles, begins with this pickled number. */
static bool
looks_old(const unsigned char *first, size_t n)
{
	static const unsigned char magic[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9};

	return n >= sizeof(magic) && memcmp(first, magic, sizeof(magic)) == 0;
}

static bool
looks_zipped(const unsigned char *first, size_t n)
{
	return n >= 4 && memcmp(first, "PK\3\4", 4) == 0;
}

bool
pt_looks(const unsigned char *first, size_t n)
{
	return looks_zipped(first, n) || looks_old(first, n);
}

int
pt_open(const struct source *source, struct bump *memory, struct pt *ret, struct pawl_error *err)
{
	struct pt pt = {.source = source, .memory = memory};
	unsigned char first[16];
	size_t n = source->nbytes < sizeof(first) ? (size_t)source->nbytes : sizeof(first);

	TRY(source_read(source, 0, first, n, err));
	if (looks_old(first, n))
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: torch.save wrote it in the form of before torch 1.6; load it with torch.load and "
		               "save it again with torch.save",
		               source->what);
	if (!looks_zipped(first, n))
		return err_set(err, PAWL_ECORRUPT, "%s: expected a zip archive as torch.save writes it", source->what);
	TRY(open_zip(&pt, err));
	*ret = pt;
	return 0;
}

/* -------------------------------------------------------------------- values */

static void
set_text(struct pt_value *v, int type, const char *text, size_t len)
{
	v->type = type;
	v->text = text;
	v->len = len;
}

static void
set_items(struct pt_value *v, int type, const struct pickle_node *node)
{
	v->type = type;
	v->items = node->items;
	v->n = node->len;
}

/* _codecs.encode(text, 'latin1'): every character is one byte. */
static int
read_encoded(const struct pt *pt, struct pickle_node *node, struct pt_value *v, struct pawl_error *err)
{
	const struct pickle_node *args = node->args;

	if (args->len != 2 || args->items[0]->type != PICKLE_STR || args->items[1]->type != PICKLE_STR ||
	    args->items[1]->len != 6 || memcmp(args->items[1]->text, "latin1", 6) != 0)
		return err_set(err, PAWL_EUNSUPPORTED, "a call of _codecs.encode that does not make bytes by latin1");
	const unsigned char *text = (const unsigned char *)args->items[0]->text;
	const size_t len = args->items[0]->len;
	size_t n = 0;

	if (!node->user) {
		unsigned char *bytes = bump_alloc(pt->memory, len + 1);
		if (!bytes)
			return err_nomem(err, NULL);
		node->user = bytes;
	}
	unsigned char *bytes = node->user;
	for (size_t i = 0; i < len; i++) {
		if (text[i] >= 0x80 && text[i] != 0xc2 && text[i] != 0xc3)
			return err_set(err, PAWL_ECORRUPT, "bytes written as characters that are not bytes");
		bytes[n++] = text[i] < 0x80 ? text[i] : (unsigned char)((unsigned)text[i] << 6 | (text[i + 1] & 0x3f));
		i += text[i] >= 0x80;
	}
	set_text(v, PT_BYTES, (const char *)bytes, n);
	return 0;
}

static int
read_call(const struct pt *pt, struct pickle_node *node, struct pt_value *v, struct pawl_error *err)
{
	const struct pickle_node *args = node->args;

	switch (node->global->tag) {
	case PT_ENCODE:
		return read_encoded(pt, node, v, err);
	case PT_SIZE:
		if (args->len != 1 || args->items[0]->type != PICKLE_TUPLE)
			return err_set(err, PAWL_ECORRUPT, "a torch.Size of a value that is not a tuple");
		set_items(v, PT_TUPLE, args->items[0]);
		return 0;
	default: {
		int plain = pt_read_plain(pt, node, v, err);
		if (plain != 0)
			return plain < 0 ? plain : 0;
		TRY(pt_make_tensor(pt, node, &v->tensor, err));
		v->type = PT_TENSOR;
		return v->tensor ? 0
		                 : err_set(err, PAWL_EUNSUPPORTED, "a call of %s.%s, which is not a plain value",
		                           node->global->module, node->global->name);
	}
	}
}

int
pt_value(const struct pt *pt, struct pickle_node *node, struct pt_value *ret, struct pawl_error *err)
{
	*ret = (struct pt_value){0};
	switch (node->type) {
	case PICKLE_NONE:
		return 0;
	case PICKLE_BOOL:
		ret->type = PT_BOOL;
		ret->i = node->i;
		return 0;
	case PICKLE_INT:
		ret->i = node->i;
		set_text(ret, PT_INT, node->text, node->len);
		return 0;
	case PICKLE_FLOAT:
		ret->type = PT_FLOAT;
		ret->f = node->f;
		return 0;
	case PICKLE_STR:
	case PICKLE_BYTES:
		set_text(ret, node->type == PICKLE_STR ? PT_STR : PT_BYTES, node->text, node->len);
		return 0;
	case PICKLE_LIST:
	case PICKLE_TUPLE:
		set_items(ret, node->type == PICKLE_LIST ? PT_LIST : PT_TUPLE, node);
		return 0;
	case PICKLE_DICT:
	case PICKLE_ODICT:
		set_items(ret, node->type == PICKLE_DICT ? PT_DICT : PT_ODICT, node);
		return 0;
	case PICKLE_GLOBAL:
		return err_set(err, PAWL_EUNSUPPORTED, "%s.%s, which is not a plain value", node->global->module,
		               node->global->name);
	case PICKLE_PERSID:
		return err_set(err, PAWL_EUNSUPPORTED, "a storage without a tensor");
	default:
		return read_call(pt, node, ret, err);
	}
}
