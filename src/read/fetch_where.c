/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_where: names the tensors that have bytes in a range of a file, for messages (fetch.h).
 * Pure. */
#include "read/fetch.h"

#include <inttypes.h>

#include "base/err.h"
#include "base/err_path.h"

#define NAMED_TENSORS 4u /* of a damaged range; further ones are only counted */

/* The piece in the range with the smallest begin at or after `from`, and the name of its tensor. */
static const struct manifest_piece *
next_piece(const struct manifest *m, uint32_t file, uint64_t from, uint64_t begin, uint64_t end, const char **ret_name)
{
	const struct manifest_piece *next = NULL;
	for (uint64_t t = 0; t < m->n_tensors; t++) {
		for (size_t k = 0; k < m->tensors[t].n_pieces; k++) {
			const struct manifest_piece *p = &m->tensors[t].pieces[k];
			if (p->file == file && p->nbytes > 0 && p->begin >= from && p->begin < end &&
			    p->begin + p->nbytes > begin && (!next || p->begin < next->begin)) {
				next = p;
				*ret_name = m->tensors[t].name;
			}
		}
	}
	return next;
}

void
fetch_tensors_at(const struct manifest *m, uint32_t file, uint64_t begin, uint64_t end, struct buf *out)
{
	const struct manifest_piece *p;
	const char *name = "";
	uint64_t from = 0;
	for (unsigned n = 0; (p = next_piece(m, file, from, begin, end, &name)); n++) {
		if (n == NAMED_TENSORS) {
			buf_puts(out, " and more");
			return;
		}
		buf_printf(out, "%s%s", n ? ", " : "", name);
		from = p->begin + 1;
	}
}

void
fetch_locate(const struct fetch_job *job, uint32_t file, uint64_t begin, uint64_t end, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf tensors = {0};
	if (err_is_denied(err->sys))
		return; /* nothing is wrong with these bytes */
	fetch_tensors_at(job->manifest, file, begin, end, &tensors);
	err_prefix(err, err->code, "%s: %s: bytes %" PRIu64 " to %" PRIu64 "%s%s%s", job->name,
	           job->manifest->files[file].name, begin, end, tensors.len ? " (tensor " : "",
	           tensors.len && !tensors.failed ? buf_str(&tensors) : "", tensors.len ? ")" : "");
}
