/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of tar (R79, R81): folders packed and unpacked in every compression. GNU tar reads ours and
 * we read GNU tar's, long names and folders included. Hostile archives leave nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "format/archive/tar.h"
#include "helpers/codecs.h"
#include "helpers/scratch.h"
#include "pawl_jobs.h"

/* The last one is our own. */
static const char *const suffixes[] = {".tar",     ".tgz",    ".tar.gz",  ".tar.bz2", ".tar.lzma",
                                       ".tar.lz4", ".tar.xz", ".tar.zst", ".tar.lzo", ".tar.planes"};
#define N_SUFFIXES (sizeof(suffixes) / sizeof(suffixes[0]))
#define N_OF_OTHERS (N_SUFFIXES - 1)
#define LONG \
	"a-name-of-many-bytes-that-does-not-fit-into-the-field-of-a-header-and-so-goes-into-a-record-before-it-as-pax-has-it"

#define DEEP "a-folder-of-sixty-bytes-so-that-two-of-them-do-not-fit-in-one"

struct bed {
	char folder[200], from[256], to[256], archive[256];
};

static void
run(const char *format, ...)
{
	char line[1200];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (system(line) != 0)
		fail_msg("failed: %s", line);
}

static int
set_up(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));

	if (!b || scratch_make(b->folder, sizeof(b->folder), "tar") < 0)
		return -1;
	snprintf(b->from, sizeof(b->from), "%s/from", b->folder);
	snprintf(b->to, sizeof(b->to), "%s/to", b->folder);
	*state = b;
	return 0;
}

static int
tear_down(void **state)
{
	struct bed *b = *state;

	scratch_remove(b->folder);
	free(b);
	return 0;
}

/* As DeepSpeed has them, and what is hard. */
static void
make_files(const struct bed *b)
{
	run("mkdir -p %s/deepspeed/empty %s/" LONG "/" LONG "", b->from, b->from);
	run("cd %s && printf state > composer_states.pt && head -c 300000 /dev/urandom > deepspeed/mp_rank_00_model_states.pt && "
	    ": > deepspeed/nothing && head -c 512 /dev/zero > one-block && printf x > " LONG "/" LONG "/f && "
	    "printf run > run.sh && chmod 755 run.sh",
	    b->from);
}

static void
pack_to(struct bed *b, const char *suffix)
{
	struct pawl_error err = {0};

	snprintf(b->archive, sizeof(b->archive), "%s/x%s", b->folder, suffix);
	if (pawl_tar_pack(b->from, b->archive, NULL, &err) < 0)
		fail_msg("%s: %s", suffix, err.message);
}

/* Nothing hidden is left behind. */
static void
check_tidy(const struct bed *b)
{
	run("test -z \"$(find %s -maxdepth 1 -name '.*partial*')\"", b->folder);
}

static void
test_R81_folders_come_back(void **state)
{
	struct bed *b = *state;
	struct pawl_error err = {0};

	make_files(b);
	for (size_t i = 0; i < N_SUFFIXES; i++) {
		if (!codec_is_built(suffixes[i]))
			continue;
		pack_to(b, suffixes[i]);
		if (pawl_tar_unpack(b->archive, b->to, NULL, &err) < 0)
			fail_msg("%s: %s", suffixes[i], err.message);
		run("diff -r %s %s && test -x %s/run.sh && test ! -x %s/one-block", b->from, b->to, b->to, b->to);
		check_tidy(b);
		run("rm -r %s", b->to);
	}
}

static void
test_folders_of_a_path_may_be_links(void **state)
{
	struct bed *b = *state;
	struct pawl_error err = {0};
	char archive[300], to[300];

	make_files(b);
	run("ln -s . %s/link", b->folder);
	snprintf(archive, sizeof(archive), "%s/link/x.tar", b->folder);
	snprintf(to, sizeof(to), "%s/link/to", b->folder);
	assert_int_equal(pawl_tar_pack(b->from, archive, NULL, &err), 0);
	assert_int_equal(pawl_tar_unpack(archive, to, NULL, &err), 0);
	run("diff -r %s %s", b->from, to);
}

static void
test_gnu_tar_reads_ours(void **state)
{
	struct bed *b = *state;

	make_files(b);
	for (size_t i = 0; i < N_OF_OTHERS; i++) {
		if (!codec_is_built(suffixes[i]))
			continue;
		pack_to(b, suffixes[i]);
		/* By name: it takes the program for the suffix. .lz4 it does not know. */
		if (strcmp(suffixes[i], ".tar.lz4") == 0)
			run("mkdir %s && lz4 -dqc %s | tar -C %s -xf -", b->to, b->archive, b->to);
		else
			run("mkdir %s && tar -C %s -xaf %s", b->to, b->to, b->archive);
		run("diff -r %s %s && rm -r %s", b->from, b->to, b->to);
	}
}

static void
test_we_read_gnu_tars(void **state)
{
	static const char *const formats[] = {"gnu", "pax", "ustar"};
	struct bed *b = *state;
	struct pawl_error err = {0};

	make_files(b);
	snprintf(b->archive, sizeof(b->archive), "%s/x.tar", b->folder);
	for (size_t i = 0; i < 3; i++) {
		/* ustar has no room for the long one, but a prefix for deep paths. */
		const char *without = strcmp(formats[i], "ustar") == 0 ? "a-name-*" : "none";

		run("mkdir -p %s/" DEEP "/" DEEP " && printf x > %s/" DEEP "/" DEEP "/f", b->from, b->from);
		run("tar --format=%s --exclude='%s' -C %s -cf %s .", formats[i], without, b->from, b->archive);
		if (pawl_tar_unpack(b->archive, b->to, NULL, &err) < 0)
			fail_msg("%s: %s", formats[i], err.message);
		run("diff -r -x '%s' %s %s && rm -r %s", without, b->from, b->to, b->to);
	}
	if (!codec_is_built(".tar.lzma"))
		return;
	/* What Composer writes under .tar.lzma is xz. */
	snprintf(b->archive, sizeof(b->archive), "%s/y.tar.lzma", b->folder);
	run("tar -C %s -cJf %s composer_states.pt deepspeed", b->from, b->archive);
	assert_int_equal(pawl_tar_unpack(b->archive, b->to, NULL, &err), 0);
	run("diff -r %s/deepspeed %s/deepspeed", b->from, b->to);
}

static void
test_what_is_there_stays(void **state)
{
	struct bed *b = *state;
	struct pawl_tar_opts opts = PAWL_TAR_OPTS_INIT;
	struct pawl_error err = {0};

	make_files(b);
	pack_to(b, ".tar");
	assert_int_equal(pawl_tar_pack(b->from, b->archive, NULL, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "already exists"));
	opts.overwrite = 1;
	assert_int_equal(pawl_tar_pack(b->from, b->archive, &opts, &err), 0);
	run("mkdir %s && printf mine > %s/f", b->to, b->to);
	assert_int_equal(pawl_tar_unpack(b->archive, b->to, NULL, &err), PAWL_EEXISTS);
	run("test \"$(ls %s)\" = f", b->to);
	check_tidy(b);
	run("rm %s/f", b->to); /* empty: may be used */
	assert_int_equal(pawl_tar_unpack(b->archive, b->to, NULL, &err), 0);
	run("ln -s f %s/link", b->from);
	assert_int_equal(pawl_tar_pack(b->from, b->archive, &opts, &err), PAWL_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "link"));
	snprintf(b->archive, sizeof(b->archive), "%s/x.zip", b->folder);
	assert_int_equal(pawl_tar_pack(b->from, b->archive, NULL, &err), PAWL_EUSAGE);
	check_tidy(b);
}

/* ---------------------------------------------------------------- hostile ones */

/* An archive of one header (and its sum), with one block behind it. */
static void
put_hostile(struct buf *out, const char *name, char type, const char *size)
{
	unsigned char h[TAR_BLOCK] = {0};
	unsigned sum = 0;

	snprintf((char *)h, 100, "%s", name);
	snprintf((char *)h + 100, 8, "0000644");
	snprintf((char *)h + 124, 12, "%s", size);
	snprintf((char *)h + 136, 12, "00000000000");
	memset(h + 148, ' ', 8);
	h[156] = (unsigned char)type;
	snprintf((char *)h + 157, 100, "/etc");
	memcpy(h + 257, "ustar\00000", 8);
	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += h[i];
	snprintf((char *)h + 148, 8, "%06o", sum);
	buf_put(out, h, sizeof(h));
}

static int
unpack_bytes(struct bed *b, const struct buf *bytes, const struct pawl_tar_opts *opts, struct pawl_error *err)
{
	snprintf(b->archive, sizeof(b->archive), "%s/h.tar", b->folder);
	FILE *f = fopen(b->archive, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes->ptr, 1, bytes->len, f), bytes->len);
	assert_int_equal(fclose(f), 0);
	const int rc = pawl_tar_unpack(b->archive, b->to, opts, err);
	if (rc < 0) {
		assert_int_equal(access(b->to, F_OK), -1);
		assert_int_equal(err->code, rc);
		assert_non_null(strstr(err->message, "h.tar"));
		check_tidy(b);
	}
	return rc;
}

static void
test_hostile_archives_leave_nothing(void **state)
{
	static const struct {
		const char *name;
		char type;
		const char *size;
		int code;
	} cases[] = {
		{"../out", '0', "00000000000", PAWL_ECORRUPT},    {"/abs", '0', "00000000000", PAWL_ECORRUPT},
		{"a/../../b", '0', "00000000000", PAWL_ECORRUPT}, {"a//b", '0', "00000000000", PAWL_ECORRUPT},
		{"a/./b", '0', "00000000000", PAWL_ECORRUPT},     {"a\\b", '0', "00000000000", PAWL_ECORRUPT},
		{"a\nb", '0', "00000000000", PAWL_ECORRUPT},      {"", '0', "00000000000", PAWL_ECORRUPT},
		{"l", '1', "00000000000", PAWL_EUNSUPPORTED},     {"l", '2', "00000000000", PAWL_EUNSUPPORTED},
		{"d", '3', "00000000000", PAWL_EUNSUPPORTED},     {"p", '6', "00000000000", PAWL_EUNSUPPORTED},
		{"s", 'S', "00000000000", PAWL_EUNSUPPORTED},     {"f", '0', "00000001000", PAWL_ECORRUPT},
		{"f", '0', "77777777777", PAWL_ECORRUPT},         {"f", '0', "0000000000x", PAWL_ECORRUPT},
		{"d", '5', "00000000001", PAWL_ECORRUPT},         {"x", 'x', "00077777777", PAWL_ELIMIT},
		{"L", 'L', "00077777777", PAWL_ELIMIT},           {"f", '0', "00000000000", 0},
	};
	struct bed *b = *state;
	struct pawl_error err = {0};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct buf bytes = {0};

		put_hostile(&bytes, cases[i].name, cases[i].type, cases[i].size);
		tar_put_end(&bytes);
		err.message[0] = 0;
		const int rc = unpack_bytes(b, &bytes, NULL, &err);
		if (rc != cases[i].code)
			fail_msg("'%s' of type %c: %d: %s", cases[i].name, cases[i].type, rc, err.message);
		buf_clear(&bytes);
	}
	run("test -f %s/f && rm -r %s && test ! -e %s/out", b->to, b->to, b->folder);
	/* The same name twice, and more than is allowed. */
	struct pawl_tar_opts opts = PAWL_TAR_OPTS_INIT;
	struct buf bytes = {0};
	put_hostile(&bytes, "f", '0', "00000000000");
	put_hostile(&bytes, "f", '0', "00000000000");
	tar_put_end(&bytes);
	assert_int_equal(unpack_bytes(b, &bytes, NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "twice"));
	bytes.len = 0;
	put_hostile(&bytes, "f", '0', "00000000777");
	tar_put_end(&bytes);
	opts.max_bytes = 510;
	assert_int_equal(unpack_bytes(b, &bytes, &opts, &err), PAWL_ELIMIT);
	buf_clear(&bytes);
}

static void
test_cut_and_flipped(void **state)
{
	struct bed *b = *state;
	struct pawl_error err = {0};
	struct buf bytes = {0};
	size_t n_refused = 0;

	run("mkdir -p %s/d && printf some-bytes > %s/d/f", b->from, b->from);
	pack_to(b, ".tar");
	assert_int_equal(fd_read_file(-100, b->archive, 1 << 20, &bytes, &err), 0); /* AT_FDCWD */
	for (size_t len = 0; len < bytes.len; len += len % TAR_BLOCK < 2 ? 1 : 170) {
		struct buf cut = {.ptr = bytes.ptr, .len = len};
		assert_int_equal(unpack_bytes(b, &cut, NULL, &err), PAWL_ECORRUPT);
	}
	for (size_t at = 0; at < 2 * TAR_BLOCK; at += 3) { /* headers, which have a sum */
		bytes.ptr[at] ^= 4;
		n_refused += unpack_bytes(b, &bytes, NULL, &err) < 0;
		run("rm -rf %s", b->to);
		bytes.ptr[at] ^= 4;
	}
	assert_int_equal(n_refused, (2 * TAR_BLOCK + 2) / 3);
	assert_int_equal(unpack_bytes(b, &bytes, NULL, &err), 0); /* the control */
	buf_clear(&bytes);
}

static void
test_large_sizes_have_a_record(void **state)
{
	struct tar_member m = {.name = "big", .nbytes = (uint64_t)9 << 30};
	struct pawl_error err = {0};
	struct buf out = {0};

	(void)state;
	assert_int_equal(tar_put_header(&out, &m, &err), 0);
	assert_int_equal(out.len, 3 * TAR_BLOCK);
	assert_string_equal(out.ptr + TAR_BLOCK, "19 size=9663676416\n");
	buf_clear(&out);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_R81_folders_come_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_folders_of_a_path_may_be_links, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_gnu_tar_reads_ours, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_we_read_gnu_tars, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_what_is_there_stays, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hostile_archives_leave_nothing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_cut_and_flipped, set_up, tear_down),
		cmocka_unit_test(test_large_sizes_have_a_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
