/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_npz: see convert.h. A file as numpy.savez writes it: an archive of arrays, each with its
 * own header. A member's CRC is known only after its bytes were written. So it is a piece of its
 * own, after the array and in the directory. Pure.
 */
#include <string.h>

#include "base/err.h"
#include "format/archive/zip.h"
#include "format/archive/zip_write.h"
#include "format/numpy/npy.h"
#include "jobs/convert/convert.h"

#define SUFFIX ".npy"

/* Adds pieces in order. Constant ones are in the plan's bytes in the same order; the CRCs are left
 * out. */
struct emitter {
	struct convert_plan *plan;
	size_t at;       /* up to this offset, the plan's bytes are in pieces */
	uint64_t nbytes; /* of the file so far */
	bool failed;
};

static void
add_piece(struct emitter *e, const struct convert_piece piece)
{
	e->failed = e->failed || convert_plan_add(e->plan, piece) < 0;
	e->nbytes += piece.nbytes;
}

/* Adds the plan's new bytes, up to `end`, as a piece. */
static void
add_constant(struct emitter *e, size_t end)
{
	if (end > e->at) /* the pointer is set when the plan's bytes are complete */
		add_piece(e, (struct convert_piece){.kind = CONVERT_BYTES, .item = e->at, .nbytes = end - e->at});
	e->at = end;
}

static void
add_special(struct emitter *e, enum convert_kind kind, size_t item, uint64_t nbytes)
{
	add_piece(e, (struct convert_piece){.kind = kind, .item = item, .nbytes = nbytes});
}

static void
add_sum(struct emitter *e, size_t item, size_t sum)
{
	add_constant(e, sum);
	add_special(e, CONVERT_CRC, item, 4);
	e->at = sum + 4; /* the bytes there are zero */
}

/* An entry without its header. Checks the dtype and the length of the name. */
static int
make_entry(const struct convert_job *c, size_t item, struct convert_plan *plan, struct zip_entry *ret,
           struct pawl_error *err)
{
	const struct convert_item *it = &c->items[item];
	const size_t len = strlen(it->name);

	if (!npy_descr(it->dtype))
		return convert_wrong_dtype(c, it, err);
	if (len + strlen(SUFFIX) > ZIP_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT,
		               "%s: %.100s..: a name of %zu bytes, in .npz files at most %zu are possible", c->what,
		               it->name, len, ZIP_MAX_NAME_BYTES - strlen(SUFFIX));
	*ret = (struct zip_entry){.name = bump_printf(&plan->memory, "%s" SUFFIX, it->name)};
	return ret->name ? 0 : err_nomem(err, c->what);
}

static int
add_array(const struct convert_job *c, size_t item, struct zip_entry *entry, struct emitter *e, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	struct buf *bytes = &e->plan->bytes;
	const struct convert_item *it = &c->items[item];
	const struct manifest_tensor *t = &c->r->manifest->tensors[it->tensor];

	TRY(make_entry(c, item, e->plan, entry, err));
	TRY(npy_encode_header(it->dtype, t->ndim, t->shape, &header, err));
	TRY(buf_check(&header, it->name, err));
	entry->nbytes = header.len + it->nbytes;
	zip_begin_member(entry, e->nbytes, bytes);
	add_constant(e, bytes->len);
	add_special(e, CONVERT_BEGIN, item, 0);
	buf_put(bytes, header.ptr, header.len);
	add_constant(e, bytes->len);
	add_special(e, CONVERT_TENSOR, item, it->nbytes);
	add_special(e, CONVERT_END, item, 0);
	add_sum(e, item, zip_end_member(entry, bytes));
	add_constant(e, bytes->len);
	return 0;
}

int
convert_npz_plan(struct convert_job *c, const struct convert_file *f, struct convert_plan *plan, struct pawl_error *err)
{
	struct zip_entry *entries = bump_array(&plan->memory, f->n, sizeof *entries);
	size_t *sums = bump_array(&plan->memory, f->n, sizeof *sums);
	struct emitter e = {.plan = plan};

	if (!entries || !sums)
		return err_nomem(err, c->what);
	for (size_t i = 0; i < f->n; i++)
		TRY(add_array(c, f->first + i, &entries[i], &e, err));
	zip_put_directory(entries, f->n, e.nbytes, &plan->bytes, sums);
	TRY(buf_check(&plan->bytes, f->name, err));
	for (size_t i = 0; i < f->n; i++)
		add_sum(&e, f->first + i, sums[i]);
	add_constant(&e, plan->bytes.len);
	for (size_t i = 0; i < plan->n && !e.failed; i++)
		if (plan->pieces[i].kind == CONVERT_BYTES)
			plan->pieces[i].ptr = plan->bytes.ptr + plan->pieces[i].item;
	return e.failed ? err_nomem(err, c->what) : 0;
}
