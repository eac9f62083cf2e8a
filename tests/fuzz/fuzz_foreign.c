/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a file that another program wrote, by its name or by its first bytes, through a
 * store in memory. It is refused with a message that names it, or gives a manifest whose pieces are
 * within the file. The first byte chooses the name. Promises P1, P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "foreign/foreign.h"
#include "state/state.h"
#include "fuzz.h"

static void
check_manifest(const struct manifest *m, const char *key, size_t size)
{
	uint64_t bytes = 0;

	if (strncmp(m->format, "torch", 5) == 0) /* fuzz_pt.c */
		return;
	check(m->format && m->state && m->n_tensors == pawl_state_tensor_count(m->state));
	if (strcmp(m->format, "safetensors shards") == 0) {
		check(m->n_files == 0 && m->n_tensors == 0); /* there are no shards next to it */
		return;
	}
	check(m->n_files == 1 && strcmp(m->files[0].name, key) == 0);
	check(m->files[0].nbytes == size && m->bytes == size);
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];

		check(t->n_pieces == 1 && t->pieces[0].file == 0 && t->pieces[0].nbytes == t->nbytes);
		check(t->pieces[0].begin >= 8 && t->pieces[0].begin <= size && t->nbytes <= size - t->pieces[0].begin);
		check(strcmp(t->name, pawl_state_tensor(m->state, i)->name) == 0);
		bytes += t->nbytes;
	}
	check(bytes <= size);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct foreign_format *format = NULL;
	struct manifest *m = NULL;
	struct pawl_error err = {0};
	struct store *s = NULL;

	if (size == 0)
		return 0;
	static const char *const keys[] = {"f.bin", "f.safetensors", "f.npy", "f.npz", "f.safetensors.index.json"};
	const char *key = keys[data[0] % 5];
	data++;
	size--;
	check(store_open("mem:", true, false, &s, NULL) == 0);
	check(store_put_bytes(s, key, data, size, 0, NULL) == 0);
	int rc = foreign_detect(s, key, key, &format, &err);
	check(rc == 0 ? format != NULL : rc == PAWL_ENOTFOUND && !format && err.code == rc);
	if (rc == 0)
		rc = foreign_manifest(format, s, key, &m, &err);
	check((rc == 0) == (m != NULL));
	if (rc < 0)
		check(err.code == rc && strstr(err.message, key) &&
		      (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED || rc == PAWL_EVERSION ||
		       !format));
	else
		check_manifest(m, key, size);
	manifest_free(m);
	store_close(s);
	return 0;
}
