/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_pgm: a grey image as a checkpoint whose state is one tensor. */
#include "extending/pgm.h"
#include "foreign/foreign_formats.h"
#include "foreign/foreign_tree.h"

static bool
is_pgm(const unsigned char *first, size_t n, uint64_t file_nbytes)
{
	(void)file_nbytes;
	return pgm_looks(first, n);
}

static int
read_image(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(foreign_tree_clear) struct foreign_tree tree = {0};
	PAWL_CLEAN(foreign_file_close) struct foreign_file f = {0};
	struct foreign_pieces pieces = {0};
	struct pgm image;
	uint32_t file;

	TRY(foreign_file_open(&f, store, key, err));
	TRY(pgm_open(&f.source, &image, err));
	TRY(foreign_tree_begin(&tree, m, err));
	TRY(foreign_add_file(&tree, key, f.source.nbytes, &file, err));
	const struct pt_tensor view = {.dtype = PAWL_U8,
	                               .ndim = 2,
	                               .shape = image.shape,
	                               .begin = image.begin,
	                               .nbytes = f.source.nbytes - image.begin};
	TRY(foreign_add_pieces(&tree, file, 0, &view, NULL, &pieces, err));
	TRY(foreign_add_tensor(&tree, view.dtype, view.ndim, view.shape, "numpy", &pieces, err));
	return foreign_tree_finish(&tree, err);
}

const struct foreign_format foreign_pgm = {"pgm", {".pgm"}, NULL, is_pgm, read_image};
