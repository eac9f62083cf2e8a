/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_pt: a file of torch.save as a checkpoint: the complete nested state, with tensors read in
 * place. Promises P1, P17.
 */
#include "foreign/foreign_formats.h"

#include <string.h>

#include "base/err.h"
#include "foreign/foreign_tree.h"

#define MAX_MEMORY ((size_t)2 << 30) /* used while a file is opened */

static bool
looks_like_pt(const unsigned char *first, size_t n, uint64_t file_nbytes)
{
	(void)file_nbytes;
	return pt_looks(first, n);
}

static int
read_object(struct foreign_tree *tree, struct foreign_file *f, struct bump *memory, struct pawl_error *err)
{
	struct pt pt;
	uint32_t file;

	TRY(pt_open(&f->source, memory, &pt, err));
	TRY(foreign_add_file(tree, f->source.what, f->source.nbytes, &file, err));
	TRY(foreign_add_members(tree, file, 0, &pt.zip, err));
	int rc = foreign_add_value(tree, file, 0, &pt, pt.root, err);
	if (rc == 0)
		rc = foreign_tree_finish(tree, err);
	return rc < 0 ? err_prefix(err, rc, "%s", f->source.what) : 0;
}

static int
read_file(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(foreign_tree_clear) struct foreign_tree tree = {0};
	PAWL_CLEAN(foreign_file_close) struct foreign_file f = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {.limit_bytes = MAX_MEMORY};

	TRY(foreign_file_open(&f, store, key, err));
	TRY(foreign_tree_begin(&tree, m, err));
	return read_object(&tree, &f, &memory, err);
}

const struct foreign_format foreign_pt = {"torch.save", {".pt", ".pth"}, NULL, looks_like_pt, read_file};
