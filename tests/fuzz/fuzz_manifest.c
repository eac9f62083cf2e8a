/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a manifest without its last line. That line is appended with a good digest, so that
 * the fuzzer gets past it. The manifest is refused, or comes back the same. Promises P1, P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "state/manifest.h"
#include "fuzz.h"

static struct manifest *
decode(const struct buf *text, bool summary)
{
	struct manifest *m = NULL;
	struct pawl_error err = {0};
	int rc = manifest_decode("fuzz", text->ptr, text->len, summary, &m, &err);

	if ((rc == 0) != (m != NULL) || (rc < 0 && (err.code != rc || strncmp(err.message, "fuzz: ", 6) != 0)))
		abort();
	return m;
}

/* What the rest of the library relies on. */
static void
check_tables(const struct manifest *m)
{
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		if (!t->name || strcmp(t->name, pawl_state_tensor(m->state, i)->name) != 0 ||
		    t->nbytes != pawl_state_tensor(m->state, i)->nbytes)
			abort();
		for (size_t k = 0; k < t->n_pieces; k++) {
			const struct manifest_piece *p = &t->pieces[k];
			const uint64_t end = p->file < m->n_files ? manifest_plain_bytes(&m->files[p->file]) : 0;
			if (p->file >= m->n_files || p->begin > end || p->nbytes > end - p->begin || !p->offsets ||
			    !p->lengths)
				abort();
			for (uint32_t d = 0; d < t->ndim; d++) {
				if (p->offsets[d] > t->shape[d] || p->lengths[d] > t->shape[d] - p->offsets[d])
					abort();
			}
		}
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char hex[32];
	struct buf text = {0}, again = {0}, third = {0};

	buf_put(&text, data, size);
	sum_to_hex(sum_bytes(data, size), hex);
	buf_puts(&text, "\n\"digest\":\"");
	buf_put(&text, hex, sizeof(hex));
	buf_puts(&text, "\"}\n");
	struct manifest *summary = decode(&text, true), *m = decode(&text, false);
	if (m && (!summary || summary->id != m->id || summary->n_metrics != m->n_metrics))
		abort();
	if (m) {
		check_tables(m);
		if (manifest_encode(m, &again, NULL) < 0)
			abort();
		manifest_free(m);
		m = decode(&again, false);
		if (!m || manifest_encode(m, &third, NULL) < 0)
			abort();
		if (again.len != third.len || memcmp(again.ptr, third.ptr, again.len) != 0)
			abort();
	}
	manifest_free(m);
	manifest_free(summary);
	buf_clear(&text);
	buf_clear(&again);
	buf_clear(&third);
	return 0;
}
