/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a file of torch.save, through a store in memory. It is refused with a message that
 * names it, or gives a manifest all of whose pieces are within the file and can be read. If the
 * first byte is odd, the rest is a pickle: a correct zip archive with one storage is put around it.
 * Promises P1, P16, P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc.h"
#include "foreign/foreign.h"
#include "state/state.h"
#include "fuzz.h"

#define STORAGE "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.."

static void
put(struct buf *b, unsigned n, uint64_t value)
{
	for (unsigned i = 0; i < n; i++)
		buf_putc(b, (char)(i < 8 ? value >> (8 * i) : 0));
}

static void
put_fields(struct buf *b, const char *name, const void *ptr, size_t len)
{
	put(b, 8, 0);
	put(b, 4, crc32_bytes(ptr, len));
	put(b, 4, len);
	put(b, 4, len);
	put(b, 2, strlen(name));
	put(b, 2, 0);
}

static void
wrap(struct buf *b, const void *ptr, size_t len)
{
	static const char *const names[] = {"x/data.pkl", "x/data/0"};
	const void *data[] = {ptr, STORAGE};
	const size_t sizes[] = {len, 64};
	size_t at[2];

	for (unsigned i = 0; i < 2; i++) {
		at[i] = b->len;
		put(b, 4, 0x04034b50);
		put(b, 2, 0);
		put_fields(b, names[i], data[i], sizes[i]);
		buf_puts(b, names[i]);
		buf_put(b, data[i], sizes[i]);
	}
	const size_t directory = b->len;
	for (unsigned i = 0; i < 2; i++) {
		put(b, 4, 0x02014b50);
		put(b, 4, 0);
		put_fields(b, names[i], data[i], sizes[i]);
		put(b, 10, 0);
		put(b, 4, at[i]);
		buf_puts(b, names[i]);
	}
	const size_t nbytes = b->len - directory;
	put(b, 4, 0x06054b50);
	put(b, 4, 0);
	put(b, 2, 2);
	put(b, 2, 2);
	put(b, 4, nbytes);
	put(b, 4, directory);
	put(b, 2, 0);
	check(!b->failed);
}

static void
check_manifest(const struct manifest *m, const char *key, size_t size)
{
	check(m->format && m->state && m->n_files >= 1 && strcmp(m->files[0].name, key) == 0);
	check(m->files[0].nbytes == size && m->bytes == size);
	check(m->n_tensors == pawl_state_tensor_count(m->state));
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];

		check(strcmp(t->name, pawl_state_tensor(m->state, i)->name) == 0);
		for (size_t k = 0; k < t->n_pieces; k++) {
			const struct manifest_piece *p = &t->pieces[k];
			check(p->file < m->n_files && p->begin <= m->files[p->file].nbytes);
			check(p->nbytes <= m->files[p->file].nbytes - p->begin);
			check(p->strides || p->nbytes <= t->nbytes);
		}
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct foreign_format *format = NULL;
	struct manifest *m = NULL;
	struct pawl_error err = {0};
	struct store *s = NULL;
	struct buf b = {0};

	if (size == 0)
		return 0;
	if (data[0] & 1)
		wrap(&b, data + 1, size - 1);
	else
		buf_put(&b, data + 1, size - 1);
	check(store_open("mem:", true, false, &s, NULL) == 0);
	check(store_put_bytes(s, "f.pt", b.len ? b.ptr : "", b.len, 0, NULL) == 0);
	check(foreign_detect(s, "f.pt", "f.pt", &format, &err) == 0 && format);
	int rc = foreign_manifest(format, s, "f.pt", &m, &err);
	check((rc == 0) == (m != NULL));
	if (rc < 0)
		check(err.code == rc && strstr(err.message, "f.pt") &&
		      (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED || rc == PAWL_EVERSION));
	else
		check_manifest(m, "f.pt", b.len);
	manifest_free(m);
	store_close(s);
	buf_clear(&b);
	return 0;
}
