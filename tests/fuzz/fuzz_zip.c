/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_zip: any bytes as a zip archive. They give members or an error that names the archive.
 * Members are in order of their names, none twice, none over another; they can be found, and read
 * if they are stored. Promises P1, P16, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "format/archive/zip.h"
#include "fuzz.h"

static int
compare_places(const void *a, const void *b)
{
	const struct zip_member *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void
check_places(const struct zip *z, size_t size)
{
	struct zip_member *sorted = calloc(z->n + 1, sizeof(*sorted));

	check(sorted != NULL);
	memcpy(sorted, z->members, z->n * sizeof(*sorted));
	qsort(sorted, z->n, sizeof(*sorted), compare_places);
	for (size_t i = 0; i < z->n; i++) {
		const struct zip_member *m = &sorted[i];

		check(m->begin <= size && m->nbytes <= size - m->begin);
		check(i == 0 || m->begin >= sorted[i - 1].begin + sorted[i - 1].nbytes);
	}
	free(sorted);
}

static void
check_members(const struct source *source, const struct zip *z, struct bump *memory)
{
	struct pawl_error err = {0};

	for (size_t i = 0; i < z->n; i++) {
		const struct zip_member *m = &z->members[i];
		struct pawl_slice read;

		check(i == 0 || strcmp(z->members[i - 1].name, m->name) < 0);
		check(zip_find(z, m->name, strlen(m->name)) == m);
		if (m->compressed)
			continue;
		const int rc = zip_read(source, m, 1u << 20, memory, &read, &err);
		check(rc == 0 ? read.len == m->nbytes : err.code == rc && rc == PAWL_ECORRUPT);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = {.ptr = (uint8_t *)data, .n = size};
	const struct source source = {.what = "archive", .nbytes = size, .read = read_bytes, .arg = &b};
	struct bump memory = {.limit_bytes = (size_t)1 << 28};

	for (int flat = 0; flat < 2; flat++) {
		struct pawl_error err = {0};
		struct zip z = {0};
		const int rc = flat ? zip_open_flat(&source, &memory, &z, &err) : zip_open(&source, &memory, &z, &err);

		if (rc == 0) {
			check_places(&z, size);
			check_members(&source, &z, &memory);
		} else {
			check(err.code == rc && strstr(err.message, "archive") &&
			      (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED));
		}
		bump_clear(&memory);
		memory.limit_bytes = (size_t)1 << 28;
	}
	return 0;
}
