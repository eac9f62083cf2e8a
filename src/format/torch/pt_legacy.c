/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt_legacy: the form that torch.save had before version 1.6, and has still where it is asked for. Called by pt.c;
 * calls pickle.c.
 *
 *   pickle: a magic number | pickle: version 1001 | pickle: {little_endian, type_sizes, ..} | pickle: the object
 *   pickle: the keys of the storages | for each of these: u64 number of elements, its bytes
 *
 * The order of the keys in the last pickle is that of the bytes. How wide an element is only the tensors say that use
 * the storage: all persistent ids of the object are looked at first. Promises P16, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "format/torch/pt_names.h"

#define FIRST_BYTES ((size_t)1 << 20)
#define MAX_STORAGES 1000000u

/* PROTO 2, LONG1 of ten bytes: 0x1950a86a20f9469cfc6c. */
static const unsigned char magic[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                      0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

bool
pt_legacy_looks(const unsigned char *first, size_t n)
{
	size_t least = n < sizeof(magic) ? n : sizeof(magic);

	return n >= 9 && memcmp(first, magic, least) == 0;
}

struct pickles {
	const struct source *source;
	struct bump *memory;
	char *bytes; /* of the bump */
	size_t len, at;
	struct pawl_error *err;
};

static int
read_more(struct pickles *p)
{
	size_t len = p->len ? 4 * p->len : FIRST_BYTES;

	if (len > PICKLE_MAX_BYTES)
		len = PICKLE_MAX_BYTES;
	if (len > p->source->nbytes)
		len = (size_t)p->source->nbytes;
	p->bytes = bump_alloc(p->memory, len);
	if (!p->bytes)
		return err_set(p->err, PAWL_ENOMEM, "%s: out of memory", p->source->what);
	p->len = len;
	return source_read(p->source, 0, p->bytes, len, p->err);
}

/* The next pickle. How long it is shows only in reading, so one that does not end in what is at hand is tried again
 * with more. */
static int
next_pickle(struct pickles *p, struct pickle_node **ret)
{
	for (;;) {
		size_t end;
		int rc = pickle_decode(p->source->what, p->bytes + p->at, p->len - p->at, pt_globals, pt_n_globals,
		                       p->memory, ret, &end, p->err);

		if (rc == 0) {
			p->at += end;
			return 0;
		}
		if (rc != PAWL_ECORRUPT || p->len == p->source->nbytes || p->len == PICKLE_MAX_BYTES)
			return rc;
		TRY(read_more(p));
	}
}

static int
check_system(const struct source *source, const struct pickle_node *version, const struct pickle_node *system,
             struct pawl_error *err)
{
	const struct pickle_node *little = pickle_get(system, "little_endian");

	if (version->type != PICKLE_INT || version->text || version->i != 1001)
		return err_set(err, PAWL_EVERSION, "%s: expected version 1001 of torch.save's older form",
		               source->what);
	if (!little || little->type != PICKLE_BOOL)
		return err_set(err, PAWL_ECORRUPT, "%s: does not say its byte order", source->what);
	return little->i ? 0 : err_set(err, PAWL_EUNSUPPORTED, "%s was written on a big-endian machine", source->what);
}

/* ------------------------------------------------------------------ storages */

static int
compare_keys(const void *pa, const void *pb)
{
	const struct pt_storage *a = pa, *b = pb;
	size_t least = a->key_len < b->key_len ? a->key_len : b->key_len;
	int c = memcmp(a->key, b->key, least);

	return c ? c : (a->key_len > b->key_len) - (a->key_len < b->key_len);
}

/* Bytes of an element by key: what the first persistent id of it says. Kept in begin until the ranges are known. */
struct widths {
	const struct pt *pt;
	struct pt_storage *rows; /* ascending by key */
	size_t n;
};

static void
note_width(struct widths *w, const struct pickle_node *id)
{
	const struct pickle_node *args = id->args;

	if (args->type != PICKLE_TUPLE || args->len < 5 || args->items[1]->type != PICKLE_GLOBAL ||
	    args->items[2]->type != PICKLE_STR)
		return;
	struct pt_storage wanted = {.key = args->items[2]->text, .key_len = args->items[2]->len};
	struct pt_storage *row = w->n ? bsearch(&wanted, w->rows, w->n, sizeof(wanted), compare_keys) : NULL;
	int tag = args->items[1]->global->tag;
	if (row && row->begin == 0)
		row->begin = tag > PT_STORAGE ? pawl_dtype_bits(tag - PT_STORAGE) / 8 : 1;
}

/* Every node of the object once, whatever circles there are. */
static int
find_widths(struct widths *w, struct pickle_node *root, struct pawl_error *err)
{
	size_t n = 0, cap = 0;
	PAWL_FREE struct pickle_node **stack = NULL;
	struct pickle_node *one[2] = {root, NULL};
	struct pickle_node *const *items = one;
	size_t n_items = 1;

	for (;;) {
		if (n + n_items > cap) {
			size_t bigger = 2 * (n + n_items) + 64;
			struct pickle_node **grown = mem_resize(stack, bigger, sizeof(*grown));
			if (!grown)
				return err_set(err, PAWL_ENOMEM, "out of memory");
			stack = grown;
			cap = bigger;
		}
		for (size_t i = 0; i < n_items; i++) {
			if (!items[i]->seen)
				stack[n++] = items[i];
			items[i]->seen = true;
		}
		if (n == 0)
			return 0;
		struct pickle_node *node = stack[--n];
		n_items = 0;
		if (node->type >= PICKLE_LIST && node->type <= PICKLE_ODICT) {
			items = node->items;
			n_items = node->len;
		} else if (node->type == PICKLE_CALL || node->type == PICKLE_PERSID) {
			if (node->type == PICKLE_PERSID)
				note_width(w, node);
			one[0] = node->args;
			items = one;
			n_items = 1;
		}
	}
}

/* The rows in the order of the file get their ranges. */
static int
find_ranges(struct pt *pt, const struct pickle_node *keys, struct widths *w, uint64_t at, struct pawl_error *err)
{
	for (size_t i = 0; i < keys->len; i++) {
		struct pt_storage wanted = {.key = keys->items[i]->text, .key_len = keys->items[i]->len};
		struct pt_storage *row = bsearch(&wanted, w->rows, w->n, sizeof(wanted), compare_keys);
		unsigned char count[8];
		uint64_t numel = 0;

		TRY(source_read(pt->source, at, count, sizeof(count), err));
		for (unsigned k = 8; k-- > 0;)
			numel = numel << 8 | count[k];
		at += sizeof(count);
		if (row->begin == 0)
			return err_set(err, PAWL_ECORRUPT, "%s: a storage that no tensor uses", pt->source->what);
		if (!mul_ok(numel, row->begin, &row->nbytes) || row->nbytes > pt->source->nbytes - at)
			return err_set(err, PAWL_ECORRUPT, "%s: a storage that reaches beyond the end",
			               pt->source->what);
		row->begin = at;
		at += row->nbytes;
	}
	return at == pt->source->nbytes ? 0
	                                : err_set(err, PAWL_ECORRUPT, "%s: %llu bytes after the last storage",
	                                          pt->source->what, (unsigned long long)(pt->source->nbytes - at));
}

static int
find_storages(struct pt *pt, const struct pickle_node *keys, uint64_t at, struct pawl_error *err)
{
	struct widths w = {.pt = pt};

	if (keys->type != PICKLE_LIST || keys->len > MAX_STORAGES)
		return err_set(err, PAWL_ECORRUPT, "%s: expected a list of storages", pt->source->what);
	w.rows = bump_array(pt->memory, keys->len, sizeof(*w.rows));
	if (!w.rows)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", pt->source->what);
	for (w.n = 0; w.n < keys->len; w.n++) {
		if (keys->items[w.n]->type != PICKLE_STR)
			return err_set(err, PAWL_ECORRUPT, "%s: a storage without a name", pt->source->what);
		w.rows[w.n] = (struct pt_storage){.key = keys->items[w.n]->text, .key_len = keys->items[w.n]->len};
	}
	if (w.n > 0)
		qsort(w.rows, w.n, sizeof(*w.rows), compare_keys);
	for (size_t i = 1; i < w.n; i++) {
		if (compare_keys(&w.rows[i - 1], &w.rows[i]) == 0)
			return err_set(err, PAWL_ECORRUPT, "%s: a storage that is there twice", pt->source->what);
	}
	TRY(find_widths(&w, pt->root, err));
	pt->storages = w.rows;
	pt->n_storages = w.n;
	return find_ranges(pt, keys, &w, at, err);
}

int
pt_legacy_open(struct pt *pt, struct pawl_error *err)
{
	struct pickles p = {.source = pt->source, .memory = pt->memory, .at = sizeof(magic), .err = err};
	struct pickle_node *version, *system, *keys;

	TRY(read_more(&p));
	if (p.len < sizeof(magic) || memcmp(p.bytes, magic, sizeof(magic)) != 0)
		return err_set(err, PAWL_ECORRUPT, "%s: expected what torch.save writes, found something else",
		               pt->source->what);
	TRY(next_pickle(&p, &version));
	TRY(next_pickle(&p, &system));
	TRY(check_system(pt->source, version, system, err));
	TRY(next_pickle(&p, &pt->root));
	TRY(next_pickle(&p, &keys));
	return find_storages(pt, keys, p.at, err);
}
