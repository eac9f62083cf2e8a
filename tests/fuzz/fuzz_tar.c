/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tar: any bytes as an archive of tar. They give members or an error that names the archive.
 * The names of members stay below a folder. Each member comes back the same when its header is
 * written and read again. Promises P16, P17.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "format/archive/tar.h"
#include "fuzz.h"

#define MAX_MEMBERS 200u

struct text {
	const char *ptr;
	size_t at, n;
};

static int
get(void *arg, void *dst, size_t n, struct pawl_error *err)
{
	struct text *b = arg;

	if (n > b->n - b->at)
		return err_set(err, PAWL_ECORRUPT, "archive: ends too early");
	memcpy(dst, b->ptr + b->at, n);
	b->at += n;
	return 0;
}

static void
check_name(const struct tar_member *m)
{
	const size_t len = strnlen(m->name, sizeof(m->name));

	check(len <= TAR_MAX_NAME && (len > 0 || m->is_folder));
	check(len == 0 || (m->name[0] != '/' && m->name[len - 1] != '/'));
	for (const char *part = m->name; len > 0 && part;) {
		const char *slash = strchr(part, '/');
		const size_t n = slash ? (size_t)(slash - part) : strlen(part);

		check(n > 0 && n <= 255 && strncmp(part, "..", n > 2 ? n : 2) != 0 && !(n == 1 && part[0] == '.'));
		part = slash ? slash + 1 : NULL;
	}
}

static void
check_again(const struct tar_member *m)
{
	struct tar_member again;
	struct buf out = {0};

	if (m->name[0] == '\0')
		return;
	check(tar_put_header(&out, m, NULL) == 0 && out.len % TAR_BLOCK == 0);
	tar_put_end(&out);
	struct text b = {.ptr = out.ptr, .n = out.len};
	check(tar_next(get, &b, "again", &again, NULL) == 1);
	check(strcmp(again.name, m->name) == 0 && again.is_folder == m->is_folder && again.nbytes == m->nbytes);
	check(m->is_folder || again.executable == m->executable);
	check(tar_next(get, &b, "again", &again, NULL) == 0 && b.at == b.n);
	buf_clear(&out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct text b = {.ptr = (const char *)data, .n = size};
	struct pawl_error err = {0};
	struct tar_member m;
	int rc = 1;

	for (unsigned i = 0; i < MAX_MEMBERS && rc == 1; i++) {
		rc = tar_next(get, &b, "archive", &m, &err);
		if (rc != 1)
			break;
		check_name(&m);
		check_again(&m);
		const uint64_t left = b.n - b.at, whole = mem_round_up(m.nbytes, TAR_BLOCK);
		check(whole >= m.nbytes);
		if (whole > left)
			return 0;
		b.at += (size_t)whole;
	}
	check(rc >= 0 || (err.code == rc && strstr(err.message, "archive") &&
	                  (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED)));
	return 0;
}
