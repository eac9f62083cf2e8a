/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the zip reader: archives as torch.save writes them, every rule broken once, cut
 * and flipped everywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc.h"
#include "format/archive/zip.h"

#define MAX_MEMBERS 8

struct member {
	const char *name, *data;
};

/* An archive, and where its records are. */
struct archive {
	struct buf bytes;
	size_t n;
	size_t local[MAX_MEMBERS], payload[MAX_MEMBERS], descriptor[MAX_MEMBERS], central[MAX_MEMBERS];
	size_t directory, end64, locator, end;
	bool without_64, without_descriptors, without_crc, wide_descriptors;
};

static void
archive_clear(struct archive *a)
{
	buf_clear(&a->bytes);
}

static void
put(struct buf *b, unsigned n, uint64_t value)
{
	for (unsigned i = 0; i < n; i++)
		buf_putc(b, (char)(i < 8 ? value >> (8 * i) : 0));
}

/* The header of torch.save: padded by an extra field so that the payload begins at a multiple of
 * 64. */
static void
put_local(struct archive *a, size_t i, const struct member *m, uint32_t crc)
{
	struct buf *b = &a->bytes;
	const size_t len = strlen(m->data), name_len = strlen(m->name);
	const bool later = !a->without_descriptors && len > 0;
	const size_t pad = (64 - (b->len + 30 + name_len + 4) % 64) % 64;

	a->local[i] = b->len;
	put(b, 4, 0x04034b50);
	put(b, 2, 0);
	put(b, 2, later ? 0x808 : 0x800);
	put(b, 6, 0);
	put(b, 4, later ? 0 : crc);
	put(b, 4, later ? 0 : len);
	put(b, 4, later ? 0 : len);
	put(b, 2, name_len);
	put(b, 2, pad + 4);
	buf_puts(b, m->name);
	buf_puts(b, "FB");
	put(b, 2, pad);
	for (size_t k = 0; k < pad; k++)
		buf_putc(b, 'Z');
	a->payload[i] = b->len;
	buf_put(b, m->data, len);
	a->descriptor[i] = b->len;
	if (!later)
		return;
	put(b, 4, 0x08074b50);
	put(b, 4, crc);
	put(b, a->wide_descriptors ? 8 : 4, len);
	put(b, a->wide_descriptors ? 8 : 4, len);
}

static void
put_central(struct archive *a, size_t i, const struct member *m, uint32_t crc)
{
	struct buf *b = &a->bytes;
	const size_t len = strlen(m->data);

	a->central[i] = b->len;
	put(b, 4, 0x02014b50);
	put(b, 4, 0);
	put(b, 2, !a->without_descriptors && len > 0 ? 0x808 : 0x800);
	put(b, 6, 0);
	put(b, 4, crc);
	put(b, 4, len);
	put(b, 4, len);
	put(b, 2, strlen(m->name));
	put(b, 12, 0);
	put(b, 4, a->local[i]);
	buf_puts(b, m->name);
}

static void
make(struct archive *a, const struct member *members, size_t n)
{
	struct buf *b = &a->bytes;
	uint32_t sums[MAX_MEMBERS];

	b->len = 0;
	a->n = n;
	for (size_t i = 0; i < n; i++) {
		sums[i] = a->without_crc ? 0 : crc32_bytes(members[i].data, strlen(members[i].data));
		put_local(a, i, &members[i], sums[i]);
	}
	a->directory = b->len;
	for (size_t i = 0; i < n; i++)
		put_central(a, i, &members[i], sums[i]);
	const size_t nbytes = b->len - a->directory;
	a->end64 = b->len;
	if (!a->without_64) {
		put(b, 4, 0x06064b50);
		put(b, 8, 44);
		put(b, 4, 0);
		put(b, 8, 0);
		put(b, 8, n);
		put(b, 8, n);
		put(b, 8, nbytes);
		put(b, 8, a->directory);
		a->locator = b->len;
		put(b, 4, 0x07064b50);
		put(b, 4, 0);
		put(b, 8, a->end64);
		put(b, 4, 1);
	}
	a->end = b->len;
	put(b, 4, 0x06054b50);
	put(b, 4, 0);
	put(b, 2, n);
	put(b, 2, n);
	put(b, 4, nbytes);
	put(b, 4, a->directory);
	put(b, 2, 0);
	assert_false(b->failed);
}

static const struct member standard[] = {
	{"x/data.pkl", "pickle"}, {"x/byteorder", "little"}, {"x/data/0", "0123456789"},
	{"x/data/1", ""},         {"x/version", "3\n"},
};
#define N_STANDARD (sizeof(standard) / sizeof(standard[0]))

static int
read_bytes(void *arg, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	const struct buf *b = arg;

	(void)err;
	assert_true(offset <= b->len && n <= b->len - offset);
	memcpy(dst, b->ptr + offset, n);
	return 0;
}

/* From a block of its own, so that the sanitizer sees a byte too many. */
static int
open_bytes(const char *bytes, size_t len, struct bump *memory, struct zip *ret, struct pawl_error *err)
{
	PAWL_FREE char *copy = mem_alloc(len);
	struct buf b = {.ptr = copy, .len = len};
	struct source source = {.what = "file", .nbytes = len, .read = read_bytes, .arg = &b};

	memcpy(copy, bytes, len);
	int rc = zip_open(&source, memory, ret, err);
	if (rc < 0) {
		assert_int_equal(err->code, rc);
		assert_non_null(strstr(err->message, "file: "));
	}
	return rc;
}

static int
open_archive(struct archive *a, struct bump *memory, struct zip *ret, struct pawl_error *err)
{
	return open_bytes(a->bytes.ptr, a->bytes.len, memory, ret, err);
}

static void
test_members_are_found_with_their_ranges(void **state)
{
	(void)state;
	for (unsigned form = 0; form < 16; form++) {
		PAWL_CLEAN(archive_clear)
		struct archive a = {.without_64 = form & 1,
		                    .without_descriptors = form & 2,
		                    .without_crc = form & 4,
		                    .wide_descriptors = form & 8};
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		struct pawl_error err;
		struct zip z;

		make(&a, standard, N_STANDARD);
		assert_int_equal(open_archive(&a, &memory, &z, &err), 0);
		assert_string_equal(z.folder, "x");
		assert_int_equal(z.n, N_STANDARD);
		for (size_t i = 0; i < N_STANDARD; i++) {
			const char *name = standard[i].name + 2;
			const struct zip_member *m = zip_find(&z, name, strlen(name));
			assert_non_null(m);
			assert_int_equal(m->begin, a.payload[i]);
			assert_int_equal(m->begin % 64, 0);
			assert_int_equal(m->nbytes, strlen(standard[i].data));
		}
		assert_null(zip_find(&z, "data", 4));
		assert_null(zip_find(&z, "data/00", 7));
		assert_null(zip_find(&z, "", 0));
		assert_null(zip_find(&z, "data/0\0x", 8));
	}
}

static void
test_a_member_is_read_and_checked(void **state)
{
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct source source = {.what = "file", .read = read_bytes, .arg = &a.bytes};
	struct pawl_slice slice;
	struct pawl_error err;
	struct zip z;

	(void)state;
	make(&a, standard, N_STANDARD);
	source.nbytes = a.bytes.len;
	assert_int_equal(zip_open(&source, &memory, &z, &err), 0);
	const struct zip_member *m = zip_find(&z, "data/0", 6);
	assert_int_equal(zip_read(&source, m, 10, &memory, &slice, &err), 0);
	assert_int_equal(slice.len, 10);
	assert_memory_equal(slice.ptr, "0123456789", 10);
	assert_int_equal(zip_read(&source, m, 9, &memory, &slice, &err), PAWL_ELIMIT);
	a.bytes.ptr[a.payload[2] + 3] ^= 1;
	assert_int_equal(zip_read(&source, m, 10, &memory, &slice, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "data/0"));
	struct zip_member without = *m;
	without.crc = 0; /* absent */
	assert_int_equal(zip_read(&source, &without, 10, &memory, &slice, &err), 0);
}

/* One field of one record changed. */
struct fault {
	const char *name;
	enum { LOCAL, DESCRIPTOR, CENTRAL, END64, LOCATOR, END } record;
	unsigned index, offset, n;
	uint64_t value;
	int code;
};

static const struct fault faults[] = {
	{"local: no magic", LOCAL, 0, 0, 4, 1, PAWL_ECORRUPT},
	{"local: other flags", LOCAL, 0, 6, 2, 0x800, PAWL_ECORRUPT},
	{"local: compressed", LOCAL, 0, 8, 2, 8, PAWL_ECORRUPT},
	{"local: another sum", LOCAL, 0, 14, 4, 7, PAWL_ECORRUPT},
	{"local: another packed size", LOCAL, 0, 18, 4, 7, PAWL_ECORRUPT},
	{"local: another size", LOCAL, 0, 22, 4, 7, PAWL_ECORRUPT},
	{"local: a size of an empty member", LOCAL, 3, 22, 4, 7, PAWL_ECORRUPT},
	{"local: sizes said to be in a field that is not there", LOCAL, 0, 18, 8, UINT64_MAX, PAWL_ECORRUPT},
	{"local: a longer name", LOCAL, 0, 26, 2, 11, PAWL_ECORRUPT},
	{"local: another name", LOCAL, 0, 31, 1, 'y', PAWL_ECORRUPT},
	{"local: shorter extra fields", LOCAL, 0, 28, 2, 3, PAWL_ECORRUPT},
	{"local: longer extra fields", LOCAL, 0, 28, 2, 60000, PAWL_ECORRUPT},
	{"local: an extra field beyond the others", LOCAL, 0, 42, 2, 1000, PAWL_ECORRUPT},
	{"descriptor: no magic", DESCRIPTOR, 0, 0, 4, 1, PAWL_ECORRUPT},
	{"descriptor: another sum", DESCRIPTOR, 0, 4, 4, 1, PAWL_ECORRUPT},
	{"descriptor: another packed size", DESCRIPTOR, 0, 8, 4, 1, PAWL_ECORRUPT},
	{"descriptor: another size", DESCRIPTOR, 0, 12, 4, 1, PAWL_ECORRUPT},
	{"central: no magic", CENTRAL, 0, 0, 4, 1, PAWL_ECORRUPT},
	{"central: encrypted", CENTRAL, 0, 8, 2, 0x809, PAWL_EUNSUPPORTED},
	{"central: strongly encrypted", CENTRAL, 0, 8, 2, 0x848, PAWL_EUNSUPPORTED},
	{"central: masked headers", CENTRAL, 0, 8, 2, 0x2808, PAWL_EUNSUPPORTED},
	{"central: compressed", CENTRAL, 0, 10, 2, 8, PAWL_ECORRUPT},
	{"central: compressed in another way", CENTRAL, 0, 10, 2, 9, PAWL_EUNSUPPORTED},
	{"central: another sum", CENTRAL, 0, 16, 4, 7, PAWL_ECORRUPT},
	{"central: another packed size", CENTRAL, 0, 20, 4, 7, PAWL_ECORRUPT},
	{"central: another size", CENTRAL, 0, 24, 4, 7, PAWL_ECORRUPT},
	{"central: both sizes longer", CENTRAL, 2, 20, 8, 0x0000000b0000000b, PAWL_ECORRUPT},
	{"central: sizes of 4 GiB", CENTRAL, 2, 20, 8, 0xfffffff0fffffff0, PAWL_ECORRUPT},
	{"central: sizes said to be in a field that is not there", CENTRAL, 2, 20, 8, UINT64_MAX, PAWL_ECORRUPT},
	{"central: a longer name", CENTRAL, 0, 28, 2, 11, PAWL_ECORRUPT},
	{"central: an empty name", CENTRAL, 0, 28, 2, 0, PAWL_ECORRUPT},
	{"central: extra fields that are not there", CENTRAL, 0, 30, 2, 4, PAWL_ECORRUPT},
	{"central: a comment beyond the directory", CENTRAL, 4, 32, 2, 40, PAWL_ECORRUPT},
	{"central: in another volume", CENTRAL, 0, 34, 2, 1, PAWL_EUNSUPPORTED},
	{"central: the header of another member", CENTRAL, 1, 42, 4, 0, PAWL_ECORRUPT},
	{"central: a header inside a member", CENTRAL, 1, 42, 4, 70, PAWL_ECORRUPT},
	{"central: a header beyond the end", CENTRAL, 4, 42, 4, 0x7fffffff, PAWL_ECORRUPT},
	{"central: the first header not at the beginning", CENTRAL, 0, 42, 4, 1, PAWL_ECORRUPT},
	{"central: an absolute name", CENTRAL, 0, 46, 1, '/', PAWL_ECORRUPT},
	{"central: a backslash", CENTRAL, 0, 47, 1, '\\', PAWL_ECORRUPT},
	{"central: a name of two dots", CENTRAL, 0, 48, 3, 0x2f2e2e, PAWL_ECORRUPT},
	{"central: a NUL in the name", CENTRAL, 0, 50, 1, 0, PAWL_ECORRUPT},
	{"central: a control character in the name", CENTRAL, 0, 50, 1, 7, PAWL_ECORRUPT},
	{"central: a name that is not UTF-8", CENTRAL, 0, 50, 1, 0xff, PAWL_ECORRUPT},
	{"end64: no magic", END64, 0, 0, 4, 1, PAWL_ECORRUPT},
	{"end64: longer", END64, 0, 4, 8, 45, PAWL_ECORRUPT},
	{"end64: another volume", END64, 0, 16, 4, 1, PAWL_ECORRUPT},
	{"end64: the directory in another volume", END64, 0, 20, 4, 1, PAWL_ECORRUPT},
	{"end64: members in this volume", END64, 0, 24, 8, 4, PAWL_ECORRUPT},
	{"end64: more members", END64, 0, 32, 8, 6, PAWL_ECORRUPT},
	{"end64: a directory of another size", END64, 0, 40, 8, 100, PAWL_ECORRUPT},
	{"end64: a directory elsewhere", END64, 0, 48, 8, 3, PAWL_ECORRUPT},
	{"locator: another volume", LOCATOR, 0, 4, 4, 1, PAWL_ECORRUPT},
	{"locator: elsewhere", LOCATOR, 0, 8, 8, 1, PAWL_ECORRUPT},
	{"locator: beyond the end", LOCATOR, 0, 8, 8, UINT64_MAX - 3, PAWL_ECORRUPT},
	{"locator: many volumes", LOCATOR, 0, 16, 4, 2, PAWL_ECORRUPT},
	{"end: no magic", END, 0, 0, 4, 1, PAWL_ECORRUPT},
	{"end: another volume", END, 0, 4, 2, 1, PAWL_EUNSUPPORTED},
	{"end: the directory in another volume", END, 0, 6, 2, 1, PAWL_EUNSUPPORTED},
	{"end: members in this volume", END, 0, 8, 2, 4, PAWL_EUNSUPPORTED},
	{"end: more members", END, 0, 8, 4, 0x60006, PAWL_ECORRUPT},
	{"end: a directory of another size", END, 0, 12, 4, 100, PAWL_ECORRUPT},
	{"end: a directory elsewhere", END, 0, 16, 4, 3, PAWL_ECORRUPT},
	{"end: a comment that is not there", END, 0, 20, 2, 1, PAWL_ECORRUPT},
};

static size_t
place_of(const struct archive *a, const struct fault *f)
{
	switch (f->record) {
	case LOCAL:
		return a->local[f->index] + f->offset;
	case DESCRIPTOR:
		return a->descriptor[f->index] + f->offset;
	case CENTRAL:
		return a->central[f->index] + f->offset;
	case END64:
		return a->end64 + f->offset;
	case LOCATOR:
		return a->locator + f->offset;
	default:
		return a->end + f->offset;
	}
}

static void
test_P17_every_rule_broken_once_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		const struct fault *f = &faults[i];
		PAWL_CLEAN(archive_clear) struct archive a = {0};
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		struct pawl_error err = {0};
		struct zip z;

		make(&a, standard, N_STANDARD);
		for (unsigned k = 0; k < f->n; k++)
			a.bytes.ptr[place_of(&a, f) + k] = (char)(f->value >> (8 * k));
		int rc = open_archive(&a, &memory, &z, &err);
		if (rc != f->code)
			fail_msg("%s: expected %d, found %d: %s", f->name, f->code, rc, err.message);
	}
}

static void
expect_names(const char *first, const char *second, int code)
{
	const struct member members[] = {{first, "1"}, {second, "2"}};
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error err = {0};
	struct zip z;

	make(&a, members, 2);
	int rc = open_archive(&a, &memory, &z, &err);
	if (rc != code)
		fail_msg("%s, %s: expected %d, found %d: %s", first, second, code, rc, err.message);
}

static void
test_P17_names_are_one_folder_s_and_each_is_there_once(void **state)
{
	(void)state;
	expect_names("x/a", "x/b", 0);
	expect_names("x/a", "x/a", PAWL_ECORRUPT);
	expect_names("x/a", "y/b", PAWL_ECORRUPT);
	expect_names("x/a", "xx/b", PAWL_ECORRUPT);
	expect_names("a", "b", PAWL_ECORRUPT);
	expect_names("x/a", "x/../b", PAWL_ECORRUPT);
	expect_names("x/a", "x//b", PAWL_ECORRUPT);
	expect_names("x/a", "x/b/", PAWL_ECORRUPT);
	expect_names("x/a", "x/.", PAWL_ECORRUPT);
	expect_names("../a", "../b", PAWL_ECORRUPT);
}

/* Nothing is decompressed. */
static void
test_P17_a_compressed_member_is_listed_but_not_read(void **state)
{
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct source source = {.what = "file", .read = read_bytes, .arg = &a.bytes};
	struct pawl_error err;
	struct zip z;

	(void)state;
	make(&a, standard, N_STANDARD);
	source.nbytes = a.bytes.len;
	assert_int_equal(zip_open(&source, &memory, &z, &err), 0);
	assert_int_equal(zip_check_stored(&source, &z, &err), 0);
	a.bytes.ptr[a.local[2] + 8] = a.bytes.ptr[a.central[2] + 10] = 8;
	a.bytes.ptr[a.central[2] + 24] = a.bytes.ptr[a.descriptor[2] + 12] = 99; /* its plain size */
	assert_int_equal(zip_open(&source, &memory, &z, &err), 0);
	const struct zip_member *m = zip_find(&z, "data/0", 6);
	assert_true(m->compressed && m->nbytes == 10 && m->crc == 0);
	assert_int_equal(zip_check_stored(&source, &z, &err), PAWL_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "data/0"));
	a.bytes.ptr[a.descriptor[2] + 12] = 98;
	assert_int_equal(zip_open(&source, &memory, &z, &err), PAWL_ECORRUPT);
}

static void
test_the_end_may_carry_a_comment(void **state)
{
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error err;
	struct zip z;

	(void)state;
	make(&a, standard, N_STANDARD);
	a.bytes.ptr[a.end + 20] = 5;
	buf_puts(&a.bytes, "hello");
	assert_int_equal(open_archive(&a, &memory, &z, &err), 0);
	buf_putc(&a.bytes, '!');
	assert_int_equal(open_archive(&a, &memory, &z, &err), PAWL_ECORRUPT);
}

static void
test_P17_cut_anywhere_it_is_refused(void **state)
{
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	struct pawl_error err;
	struct zip z;

	(void)state;
	make(&a, standard, N_STANDARD);
	for (size_t n = 0; n < a.bytes.len; n++) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		assert_true(open_bytes(a.bytes.ptr, n, &memory, &z, &err) < 0);
	}
	for (size_t n = 1; n < a.bytes.len; n++) { /* and without its beginning */
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		assert_true(open_bytes(a.bytes.ptr + n, a.bytes.len - n, &memory, &z, &err) < 0);
	}
}

/* Every byte with every value: if it is still accepted, it must show the same members. */
static void
test_P17_flipped_anywhere_it_is_refused_or_the_same(void **state)
{
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	size_t taken = 0;

	(void)state;
	make(&a, standard, N_STANDARD);
	for (size_t at = 0; at < a.bytes.len; at++) {
		const char was = a.bytes.ptr[at];
		for (unsigned bit = 0; bit < 8; bit++) {
			PAWL_CLEAN(bump_clear) struct bump memory = {0};
			struct pawl_error err;
			struct zip z;
			a.bytes.ptr[at] = (char)(was ^ (1 << bit));
			if (open_archive(&a, &memory, &z, &err) < 0)
				continue;
			taken++;
			assert_int_equal(z.n, N_STANDARD);
			for (size_t i = 0; i < z.n; i++)
				assert_true(z.members[i].begin + z.members[i].nbytes <= a.directory);
		}
		a.bytes.ptr[at] = was;
	}
	assert_true(taken > 0); /* payloads, padding and times are not checked */
}

static void
test_more_members_or_a_longer_directory_than_there_may_be(void **state)
{
	PAWL_CLEAN(archive_clear) struct archive a = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error err;
	struct zip z;

	(void)state;
	make(&a, standard, N_STANDARD);
	for (unsigned k = 0; k < 2; k++) {
		for (unsigned i = 0; i < 4; i++)
			a.bytes.ptr[a.end64 + 24 + 8 * k + i] = (char)((ZIP_MAX_MEMBERS + 1) >> (8 * i));
	}
	memset(a.bytes.ptr + a.end + 8, 0xff, 4);
	assert_int_equal(open_archive(&a, &memory, &z, &err), PAWL_ELIMIT);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_members_are_found_with_their_ranges),
		cmocka_unit_test(test_a_member_is_read_and_checked),
		cmocka_unit_test(test_P17_every_rule_broken_once_is_refused),
		cmocka_unit_test(test_P17_names_are_one_folder_s_and_each_is_there_once),
		cmocka_unit_test(test_P17_a_compressed_member_is_listed_but_not_read),
		cmocka_unit_test(test_the_end_may_carry_a_comment),
		cmocka_unit_test(test_P17_cut_anywhere_it_is_refused),
		cmocka_unit_test(test_P17_flipped_anywhere_it_is_refused_or_the_same),
		cmocka_unit_test(test_more_members_or_a_longer_directory_than_there_may_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
