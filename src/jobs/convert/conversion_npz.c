/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_npz: see conversion.h. Called by conversion_plan.c; calls npy.c and zip_write.c. A file as numpy.savez
 * writes it: an archive of arrays, each with its own header. A member's sum is only known when its bytes have gone by:
 * it is a piece of its own, behind the array and in the directory. Pure.
 */
#include <string.h>

#include "base/err.h"
#include "format/archive/zip.h"
#include "format/archive/zip_write.h"
#include "format/numpy/npy.h"
#include "jobs/convert/conversion.h"

#define SUFFIX ".npy"

/* Pieces one behind the other. Constant ones lie so in the plan's bytes, but for the sums, which are left out. */
struct emitter {
	struct conversion_plan *plan;
	size_t at;       /* of the plan's bytes: up to here they are pieces */
	uint64_t nbytes; /* of the file so far */
	bool failed;
};

static void
add_piece(struct emitter *e, const struct conversion_piece piece)
{
	e->failed = e->failed || conversion_plan_add(e->plan, piece) < 0;
	e->nbytes += piece.nbytes;
}

/* What has come into the plan's bytes, up to `end`. */
static void
add_constant(struct emitter *e, size_t end)
{
	if (end > e->at) /* where they lie is known when there will be no more */
		add_piece(e, (struct conversion_piece){.kind = CONVERSION_BYTES, .item = e->at, .nbytes = end - e->at});
	e->at = end;
}

static void
add_special(struct emitter *e, enum conversion_kind kind, size_t item, uint64_t nbytes)
{
	add_piece(e, (struct conversion_piece){.kind = kind, .item = item, .nbytes = nbytes});
}

static void
add_sum(struct emitter *e, size_t item, size_t sum)
{
	add_constant(e, sum);
	add_special(e, CONVERSION_CRC, item, 4);
	e->at = sum + 4; /* zeros stand there */
}

/* An entry without its header: of a name of its own, and of a dtype that numpy has. */
static int
make_entry(const struct conversion *c, size_t item, struct conversion_plan *plan, struct zip_entry *ret,
           struct pawl_error *err)
{
	const struct conversion_item *it = &c->items[item];
	const size_t len = strlen(it->name);

	if (!npy_descr(it->dtype))
		return conversion_wrong_dtype(c, it, err);
	if (len + strlen(SUFFIX) > ZIP_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT,
		               "%s: %.100s..: a name of %zu bytes, in .npz files at most %zu are possible", c->what,
		               it->name, len, ZIP_MAX_NAME_BYTES - strlen(SUFFIX));
	*ret = (struct zip_entry){.name = bump_printf(&plan->memory, "%s" SUFFIX, it->name)};
	return ret->name ? 0 : conversion_no_memory(c, err);
}

static int
add_array(const struct conversion *c, size_t item, struct zip_entry *entry, struct emitter *e, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	struct buf *bytes = &e->plan->bytes;
	const struct conversion_item *it = &c->items[item];
	const struct manifest_tensor *t = &c->r->manifest->tensors[it->tensor];

	TRY(make_entry(c, item, e->plan, entry, err));
	TRY(npy_encode_header(it->dtype, t->ndim, t->shape, &header, err));
	TRY(buf_check(&header, it->name, err));
	entry->nbytes = header.len + it->nbytes;
	zip_begin_member(entry, e->nbytes, bytes);
	add_constant(e, bytes->len);
	add_special(e, CONVERSION_BEGIN, item, 0);
	buf_put(bytes, header.ptr, header.len);
	add_constant(e, bytes->len);
	add_special(e, CONVERSION_TENSOR, item, it->nbytes);
	add_special(e, CONVERSION_END, item, 0);
	add_sum(e, item, zip_end_member(entry, bytes));
	add_constant(e, bytes->len);
	return 0;
}

int
conversion_plan_npz(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan,
                    struct pawl_error *err)
{
	struct zip_entry *entries = bump_array(&plan->memory, f->n, sizeof *entries);
	size_t *sums = bump_array(&plan->memory, f->n, sizeof *sums);
	struct emitter e = {.plan = plan};

	if (!entries || !sums)
		return conversion_no_memory(c, err);
	for (size_t i = 0; i < f->n; i++)
		TRY(add_array(c, f->first + i, &entries[i], &e, err));
	zip_put_directory(entries, f->n, e.nbytes, &plan->bytes, sums);
	TRY(buf_check(&plan->bytes, f->name, err));
	for (size_t i = 0; i < f->n; i++)
		add_sum(&e, f->first + i, sums[i]);
	add_constant(&e, plan->bytes.len);
	for (size_t i = 0; i < plan->n && !e.failed; i++)
		if (plan->pieces[i].kind == CONVERSION_BYTES)
			plan->pieces[i].ptr = plan->bytes.ptr + plan->pieces[i].item;
	return e.failed ? conversion_no_memory(c, err) : 0;
}
