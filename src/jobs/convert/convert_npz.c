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

/* An entry without its header. Checks the dtype and the length of the name. */
static int
make_entry(const struct convert_job *c, size_t item, struct bump *memory, struct zip_entry *ret, struct pawl_error *err)
{
	const struct convert_item *it = &c->items[item];
	const size_t len = strlen(it->name);

	if (!npy_descr(it->dtype))
		return convert_wrong_dtype(it, err);
	if (len + strlen(SUFFIX) > ZIP_MAX_NAME_BYTES)
		return err_set(err, PAWL_ELIMIT,
		               "%.100s..: a name of %zu bytes, in .npz files at most %zu are possible", it->name, len,
		               ZIP_MAX_NAME_BYTES - strlen(SUFFIX));
	*ret = (struct zip_entry){.name = bump_printf(memory, "%s" SUFFIX, it->name)};
	return ret->name ? 0 : err_nomem(err, "convert");
}

static int
add_array(const struct convert_job *c, size_t item, struct bump *memory, struct zip_entry *entry,
          struct piece_plan *plan, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf header = {0};
	const struct convert_item *it = &c->items[item];
	const struct manifest_tensor *t = &c->r->manifest->tensors[it->tensor];

	TRY(make_entry(c, item, memory, entry, err));
	TRY(npy_encode_header(it->dtype, t->ndim, t->shape, &header, err));
	TRY(buf_check(&header, it->name, err));
	entry->nbytes = header.len + it->nbytes;
	zip_begin_member(entry, piece_plan_end(plan), &plan->bytes);
	TRY(piece_plan_add(plan, FILE_BEGIN, item, 0, err));
	buf_put(&plan->bytes, header.ptr, header.len);
	TRY(piece_plan_add(plan, FILE_TENSOR, item, it->nbytes, err));
	TRY(piece_plan_add(plan, FILE_END, item, 0, err));
	return piece_plan_add_crc(plan, item, zip_end_member(entry, &plan->bytes), err);
}

int
convert_npz_plan(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct zip_entry *entries = bump_array(&memory, f->n, sizeof *entries);
	size_t *sums = bump_array(&memory, f->n, sizeof *sums);

	if (!entries || !sums)
		return err_nomem(err, "convert");
	for (size_t i = 0; i < f->n; i++)
		TRY(add_array(c, f->first + i, &memory, &entries[i], plan, err));
	zip_put_directory(entries, f->n, piece_plan_end(plan), &plan->bytes, sums);
	for (size_t i = 0; i < f->n; i++)
		TRY(piece_plan_add_crc(plan, f->first + i, sums[i], err));
	return piece_plan_finish(plan, err);
}
