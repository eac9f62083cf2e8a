/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_npz: files of NumPy as checkpoints. numpy.savez gives a flat dict of arrays, numpy.save
 * one array. Arrays in Fortran order are read in place. Promises P1 (an archive's checksums are
 * verified when its arrays are read), P17.
 */
#include <string.h>

#include "base/err.h"
#include "foreign/foreign_formats.h"
#include "foreign/foreign_tree.h"
#include "format/archive/zip.h"
#include "format/numpy/npy.h"

#define MAX_MEMORY ((size_t)1 << 30) /* used while a file is opened */
#define SUFFIX ".npy"
#define LOCAL_HEADER_BYTES 30u /* of a zip archive; the first member's name follows */

struct reader {
	struct foreign_tree tree;
	struct foreign_file file;
	struct bump memory;
	uint32_t number; /* of the file in the manifest */
};

static void
clean_reader(struct reader *r)
{
	foreign_tree_clear(&r->tree);
	foreign_file_close(&r->file);
	bump_clear(&r->memory);
}

static int
begin_reading(struct reader *r, struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	r->memory.limit_bytes = MAX_MEMORY;
	TRY(foreign_file_open(&r->file, store, key, err));
	TRY(foreign_tree_begin(&r->tree, m, err));
	return foreign_add_file(&r->tree, key, r->file.source.nbytes, &r->number, err);
}

/* Adds the array in these bytes of the file as the next value of the state. */
static int
add_array(struct reader *r, const char *what, uint64_t begin, uint64_t nbytes, struct pawl_error *err)
{
	struct foreign_pieces *pieces = bump_alloc(&r->tree.m->memory, sizeof(*pieces));
	struct npy array;

	if (!pieces)
		return err_nomem(err, what);
	TRY(npy_open(&r->file.source, what, begin, nbytes, &r->memory, &array, err));
	const struct pt_tensor view = {.dtype = array.dtype,
	                               .ndim = array.ndim,
	                               .shape = array.shape,
	                               .strides = array.strides,
	                               .begin = array.begin,
	                               .nbytes = array.nbytes};
	TRY(foreign_add_pieces(&r->tree, r->number, 0, &view, NULL, pieces, err));
	return foreign_add_tensor(&r->tree, array.dtype, array.ndim, array.shape, "numpy", pieces, err);
}

static bool
looks_npy(const unsigned char *first, size_t n, uint64_t file_nbytes)
{
	(void)file_nbytes;
	return npy_looks(first, n);
}

static int
read_npy(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(clean_reader) struct reader r = {0};

	TRY(begin_reading(&r, store, key, m, err));
	TRY(add_array(&r, key, 0, r.file.source.nbytes, err));
	return foreign_tree_finish(&r.tree, err);
}

static bool
looks_npz(const unsigned char *first, size_t n, uint64_t file_nbytes)
{
	(void)file_nbytes;
	if (n < LOCAL_HEADER_BYTES || memcmp(first, "PK\x03\x04", 4) != 0)
		return false;
	const size_t len = (size_t)first[26] | (size_t)first[27] << 8;
	return len > strlen(SUFFIX) && len <= n - LOCAL_HEADER_BYTES &&
	       memcmp(first + LOCAL_HEADER_BYTES + len - strlen(SUFFIX), SUFFIX, strlen(SUFFIX)) == 0;
}

static int
check_member(const struct reader *r, const struct zip_member *member, struct pawl_error *err)
{
	const char *what = r->file.source.what;
	const size_t len = strlen(member->name), n = strlen(SUFFIX);

	if (len <= n || strcmp(member->name + len - n, SUFFIX) != 0)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: member '%.200s' is not an array (its name does not end with " SUFFIX ")", what,
		               member->name);
	if (member->compressed)
		return err_set(
			err, PAWL_EUNSUPPORTED,
			"%s: member '%.200s' is compressed, and so is the file; expected only one of them compressed",
			what, member->name);
	return 0;
}

static int
add_members(struct reader *r, const struct zip *zip, struct pawl_error *err)
{
	struct pawl_state *state = r->tree.m->state;

	TRY(pawl_state_begin(state, PAWL_DICT, err));
	for (size_t i = 0; i < zip->n; i++) {
		const struct zip_member *member = &zip->members[i];
		PAWL_FREE char *what = mem_printf("%s: %.200s", r->file.source.what, member->name);
		const struct pawl_scalar key = {
			.type = PAWL_STR, .ptr = member->name, .len = strlen(member->name) - strlen(SUFFIX)};

		if (!what)
			return err_nomem(err, member->name);
		TRY(pawl_state_key(state, &key, err));
		TRY(add_array(r, what, member->begin, member->nbytes, err));
	}
	return pawl_state_end(state, err);
}

static int
read_npz(struct store *store, const char *key, struct manifest *m, struct pawl_error *err)
{
	PAWL_CLEAN(clean_reader) struct reader r = {0};
	struct zip zip;

	TRY(begin_reading(&r, store, key, m, err));
	TRY(zip_open_flat(&r.file.source, &r.memory, &zip, err));
	for (size_t i = 0; i < zip.n; i++)
		TRY(check_member(&r, &zip.members[i], err));
	TRY(foreign_add_members(&r.tree, r.number, 0, &zip, err));
	TRY(add_members(&r, &zip, err));
	return foreign_tree_finish(&r.tree, err);
}

const struct foreign_format foreign_npy = {"numpy.save", {".npy"}, NULL, looks_npy, read_npy};
const struct foreign_format foreign_npz = {"numpy.savez", {".npz"}, NULL, looks_npz, read_npz};
