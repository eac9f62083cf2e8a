/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of compress.c and compressed_pack.c: compressed packs are written, restored, reused,
 * verified and repaired as others are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"
#include "base/err.h"
#include "base/sum.h"
#include "state/manifest.h"
#include "state/pack_name.h"
#include "read/compressed_pack.h"
#include "run/run.h"
#include "store/engine.h"
#include "store/store.h"

#define FOLDER "checkpoints/checkpoint_000001"
#define N ((size_t)400000)

/* Noise in the lower bits, as weights have it, and a tensor that never changes. */
struct model {
	uint32_t noise[N];
	uint64_t same[20000];
};

static struct model *
fill(uint32_t seed)
{
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	for (size_t i = 0; i < N; i++)
		m->noise[i] = 0x3f000000u | ((uint32_t)(i * 2654435761u + seed * 40503u) >> 12);
	for (size_t i = 0; i < COUNT(m->same); i++)
		m->same[i] = i * 3;
	return m;
}

static struct pawl_state *
describe(struct model *m)
{
	static char text[5000];
	struct pawl_state *s;

	memset(text, 'x', sizeof(text) - 1);
	OK(pawl_state_new(&s, err));
	small_add(s, "noise", PAWL_F32, N, m->noise);
	small_add(s, "same", PAWL_I64, COUNT(m->same), m->same);
	OK(pawl_state_set_str(s, "long", text, err));
	return s;
}

static struct pawl_save_stats
save(struct small_run *r, uint32_t seed)
{
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	struct pawl_ticket *ticket;
	struct model *m = fill(seed);
	struct pawl_state *s = describe(m);

	opts.step = seed;
	OK(pawl_save(r->run, &opts, s, &ticket, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	pawl_state_free(s);
	free(m);
	return stats;
}

/* Restores into fresh memory and compares; with one tensor alone the other stays as it is. */
static void
assert_restores(struct small_run *r, uint32_t seed)
{
	struct model *want = fill(seed), *got = calloc(1, sizeof(*got));
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_state *s = describe(got);
	struct pawl_restore *restore;

	OK(pawl_restore_open(r->run, &opts, &restore, err));
	OK(pawl_restore_match(restore, s, err));
	OK(pawl_restore_read(restore, err));
	assert_int_equal(pawl_restore_info(restore)->step, seed);
	pawl_restore_close(restore);
	assert_memory_equal(got, want, sizeof(*got));
	pawl_state_free(s);
	free(got);
	free(want);
}

static void
open_with(struct small_run *r, const char *codec, int mode)
{
	r->opts.packs.compression = codec;
	r->opts.staging.mode = mode;
	r->opts.packs.pack_bytes = 1 << 20;
	r->opts.packs.block_bytes = 1 << 16;
	small_open(r);
}

static void
assert_verifies(struct small_run *r)
{
	OK(pawl_verify(r->run, 0, NULL, NULL, err));
}

static void
test_E11_every_codec_and_mode_gives_back_what_was_saved(void **state)
{
	static const char *const codecs[] = {"zst", "planes"};
	struct small_run *r = *state;
	uint32_t seed = 0;

	for (size_t i = 0; i < COUNT(codecs); i++) {
		for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_DIRECT; mode++) {
			if (i > 0 && mode != PAWL_MODE_SNAPSHOT)
				continue;
			open_with(r, codecs[i], mode);
			struct pawl_save_stats stats = save(r, ++seed);
			assert_true(stats.bytes < stats.plain_bytes);
			assert_restores(r, seed);
		}
	}
	assert_verifies(r);
}

static void
assert_is_good_file(const char *path)
{
	struct pawl_open_opts file = PAWL_OPEN_OPTS_INIT;
	struct pawl *one;

	file.root = path;
	file.single = file.read_only = 1;
	OK(pawl_open(&file, &one, err));
	OK(pawl_verify(one, 0, NULL, NULL, err));
	OK(pawl_close(one, err));
}

static void
test_E11_the_standard_tools_read_packs(void **state)
{
	static const char name[] = FOLDER "/rank00000-00001.safetensors.zst";
	struct small_run *r = *state;
	char line[2400];

	open_with(r, "zst", PAWL_MODE_SNAPSHOT);
	save(r, 1);
	snprintf(line, sizeof(line), "zstd -qdc %s/%s > %s/plain.safetensors", r->root, name, r->root);
	assert_int_equal(system(line), 0); /* NOLINT(cert-env33-c) */
	assert_is_good_file(small_path(r, "plain.safetensors").text);
	assert_is_good_file(small_path(r, name).text); /* and pawl reads it alone, as any compressed file */
}

static void
test_R140_an_unchanged_pack_is_linked_also_when_compressed(void **state)
{
	struct small_run *r = *state;

	for (int mode = PAWL_MODE_SNAPSHOT; mode <= PAWL_MODE_RING; mode++) {
		open_with(r, "zst", mode);
		save(r, 1);
		struct pawl_save_stats stats = save(r, 1);
		assert_true(stats.reused_bytes > stats.bytes / 2);
		assert_true(stats.written_bytes + stats.reused_bytes == stats.bytes);
		assert_restores(r, 1);
		open_with(r, "zst", mode); /* the packs of the manifest that is found */
		stats = save(r, 1);
		assert_true(stats.reused_bytes > stats.bytes / 2);
		open_with(r, "planes", mode); /* others under that name */
		stats = save(r, 1);
		assert_true(stats.reused_bytes == 0);
		open_with(r, NULL, mode);
		stats = save(r, 1);
		assert_true(stats.reused_bytes == 0 && stats.bytes == stats.plain_bytes);
		assert_restores(r, 1);
	}
	assert_verifies(r);
}

static void
test_packs_come_whole_where_a_size_must_be_known_first(void **state)
{
	struct small_run *r = *state;

	r->opts.root = "mem:"; /* cannot cut */
	open_with(r, "zst", PAWL_MODE_SNAPSHOT);
	save(r, 3);
	assert_restores(r, 3);
	assert_verifies(r);
}

static void
find_damage(struct small_run *r, const char *codec)
{
	struct pawl_findings *findings = NULL;
	char pack[100];
	size_t n_bytes;

	snprintf(pack, sizeof(pack), FOLDER "/rank00000-00001.safetensors.%s", codec);
	const char *name = strrchr(pack, '/') + 1;
	open_with(r, codec, PAWL_MODE_SNAPSHOT);
	save(r, 1);
	free(small_read(r, pack, &n_bytes));
	const long middle = (long)n_bytes / 2, offsets[] = {0, 5, 12, middle / 5, middle, -1, -8, -20};
	assert_verifies(r);
	for (size_t i = 0; i < COUNT(offsets); i++) {
		small_damage(r, pack, offsets[i]);
		FAILS(PAWL_ECORRUPT, "damaged range", pawl_verify(r->run, 1, NULL, &findings, err));
		assert_string_equal(pawl_findings_get(findings, 0)->file, name);
		pawl_findings_free(findings);
		small_damage(r, pack, offsets[i]); /* the same bit again */
		assert_verifies(r);                /* negative control */
	}
	small_damage(r, pack, middle);
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *restore;
	struct model *got = calloc(1, sizeof(*got));
	struct pawl_state *s = describe(got);
	OK(pawl_restore_open(r->run, &opts, &restore, err));
	OK(pawl_restore_match(restore, s, err));
	FAILS(PAWL_ECORRUPT, name, pawl_restore_read(restore, err));
	pawl_restore_close(restore);
	pawl_state_free(s);
	free(got);
}

static void
test_P1_damage_anywhere_in_a_compressed_pack_is_found(void **state)
{
	find_damage(*state, "zst");
}

static void
test_P1_damage_anywhere_in_a_pack_of_planes_is_found(void **state)
{
	find_damage(*state, "planes");
}

static void
repair(struct small_run *r, const char *codec)
{
	open_with(r, codec, PAWL_MODE_SNAPSHOT);
	save(r, 1);
	small_remove(r, FOLDER "/manifest.json");
	OK(pawl_reload(r->run, err));
	OK(pawl_repair(r->run, "checkpoint_000001", 0, NULL, err));
	ASSERT_IDS("1", r->run);
	assert_verifies(r);
	assert_restores(r, 1);
}

static void
test_R138_a_manifest_is_made_anew_from_compressed_packs(void **state)
{
	repair(*state, "zst");
}

static void
test_R138_a_manifest_is_made_anew_from_packs_of_planes(void **state)
{
	repair(*state, "planes");
}

static void
test_a_compressed_checkpoint_is_of_version_2_and_others_stay_of_1(void **state)
{
	struct small_run *r = *state;
	size_t len;

	open_with(r, "planes", PAWL_MODE_SNAPSHOT);
	save(r, 1);
	open_with(r, NULL, PAWL_MODE_SNAPSHOT);
	save(r, 2);
	char *text = small_read(r, FOLDER "/manifest.json", &len);
	assert_int_equal(strncmp(text, "{\"pawl_manifest\":2,", 19), 0);
	assert_non_null(strstr(text, "\"plain_bytes\":"));
	assert_non_null(strstr(text, "\"codec\":\"planes\",\"plain_size\":"));
	free(text);
	text = small_read(r, "checkpoints/checkpoint_000002/manifest.json", &len);
	assert_int_equal(strncmp(text, "{\"pawl_manifest\":1,", 19), 0);
	assert_null(strstr(text, "plain"));
	free(text);
}

static void
test_what_cannot_be_compressed_by_is_refused_at_open(void **state)
{
	struct small_run *r = *state;

	r->opts.packs.compression = "gz"; /* for files of other programs only */
	FAILS(PAWL_EUSAGE, "compression: expected zst, planes, none", pawl_open(&r->opts, &r->run, err));
	r->opts.packs.compression = "zstd";
	FAILS(PAWL_EUSAGE, "found 'zstd'", pawl_open(&r->opts, &r->run, err));
	r->opts.packs.compression = "zst";
	r->opts.packs.compression_level = 40;
	FAILS(PAWL_EUSAGE, "level", pawl_open(&r->opts, &r->run, err));
	r->opts.packs.compression = NULL;
	FAILS(PAWL_EUSAGE, "compression_level", pawl_open(&r->opts, &r->run, err));
	r->opts.packs.compression = "none";
	r->opts.packs.compression_level = 0;
	small_open(r);
}

/* "auto": a store of this host is not a link. One behind a limit is, after the first bytes were
 * sent over it. */
static void
test_E11_auto_compresses_behind_a_slow_link_alone(void **state)
{
	struct small_run *r = *state;

	for (int slow = 0; slow < 2; slow++) {
		r->opts.root = slow ? "mem:" : r->root;
		r->opts.io.write_bytes_per_second = slow ? 20 << 20 : 0;
		open_with(r, "auto", PAWL_MODE_SNAPSHOT);
		struct pawl_save_stats first = save(r, 1), second = save(r, 2);
		assert_true(first.bytes == first.plain_bytes);
		assert_true(slow ? second.bytes < second.plain_bytes : second.bytes == second.plain_bytes);
		assert_restores(r, 2);
		assert_verifies(r);
	}
}

/* A pack that is named as compressed, but is not by its row of version 1, is never the target of a
 * link of a compressed pack. */
static void
test_R140_a_name_alone_makes_no_pack_a_compressed_one(void **state)
{
	struct small_run *r = *state;
	struct manifest *m = NULL;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char from[1000], to[1000], names[8][80];
	size_t len;

	open_with(r, NULL, PAWL_MODE_SNAPSHOT);
	save(r, 1);
	char *bytes = small_read(r, FOLDER "/manifest.json", &len);
	OK(manifest_decode("m", bytes, len, false, &m, err));
	free(bytes);
	assert_true(m->n_files <= COUNT(names));
	for (size_t i = 0; i < m->n_files; i++) {
		snprintf(names[i], sizeof(names[i]), "%s.zst", m->files[i].name);
		snprintf(from, sizeof(from), "%s/" FOLDER "/%s", r->root, m->files[i].name);
		snprintf(to, sizeof(to), "%s/" FOLDER "/%s", r->root, names[i]);
		assert_int_equal(rename(from, to), 0);
		((struct manifest_file *)m->files)[i].name = names[i];
	}
	OK(manifest_encode(m, &text, err));
	manifest_free(m);
	assert_int_equal(strncmp(text.ptr, "{\"pawl_manifest\":1,", 19), 0);
	small_write(r, FOLDER "/manifest.json", text.ptr, text.len);
	open_with(r, "zst", PAWL_MODE_SNAPSHOT);
	assert_restores(r, 1);
	struct pawl_save_stats stats = save(r, 1);
	assert_true(stats.reused_bytes == 0 && stats.bytes < stats.plain_bytes);
	assert_restores(r, 1);
	assert_verifies(r);
	stats = save(r, 1); /* control: what is compressed is linked */
	assert_true(stats.reused_bytes > stats.bytes / 2);
}

/* What a hostile manifest says that a file is unpacked. */
static void
test_P16_sizes_that_no_codec_can_make_are_refused(void **state)
{
	struct small_run *r = *state;
	struct manifest *m = NULL;
	PAWL_CLEAN(buf_clear) struct buf text = {0}, out = {0};
	size_t len;

	open_with(r, "zst", PAWL_MODE_SNAPSHOT);
	save(r, 1);
	char *bytes = small_read(r, FOLDER "/manifest.json", &len);
	OK(manifest_decode("m", bytes, len, false, &m, err));
	free(bytes);
	OK(manifest_encode(m, &text, err)); /* control: as it is */
	struct manifest_file *f = &m->files[0];
	struct sum128 *sums = calloc(1 << 18, sizeof(*sums));
	const uint64_t before = f->plain_bytes;
	f->plain_bytes = (uint64_t)1 << 34;
	f->block_bytes = 1 << 16;
	f->n_plain_blocks = (size_t)(f->plain_bytes >> 16);
	f->plain_sums = sums;
	f->nbytes = 60000;
	f->n_blocks = 1;
	m->plain_bytes += f->plain_bytes - before;
	FAILS(PAWL_ELIMIT, "cannot be decompressed from", manifest_encode(m, &out, err));
	f->codec = "planes";
	FAILS(PAWL_EUSAGE, "does not end with it", manifest_encode(m, &out, err));
	free(sums);
	manifest_free(m);
}

/* Nothing is read of a file of 0 bytes, so no read reports that there is no further copy of it. */
static void
test_P16_files_too_short_for_a_codec_are_damaged(void **state)
{
	static const char *const codecs[] = {"zst", "planes"};
	struct store *store;
	char byte;

	(void)state;
	OK(store_open("mem:", true, false, &store, err));
	for (size_t i = 0; i < COUNT(codecs); i++) {
		struct store_reader *reader;
		struct compressed_pack *packed;
		char name[64];
		uint64_t nbytes;

		snprintf(name, sizeof(name), "rank00000-00000.safetensors.%s", codecs[i]);
		OK(store_put_bytes(store, name, "", 0, 0, err));
		OK(store_open_reader(store, name, &reader, &nbytes, err));
		FAILS(PAWL_ECORRUPT, name, compressed_pack_open(store, reader, name, nbytes, 100, 0, &packed, err));
		store_close_reader(store, reader);
		OK(store_put_bytes(store, name, "?", 1, 0, err)); /* the least that is read */
		OK(store_open_reader(store, name, &reader, &nbytes, err));
		OK(compressed_pack_open(store, reader, name, nbytes, 100, 0, &packed, err));
		FAILS(PAWL_ECORRUPT, name, compressed_pack_read(packed, 0, &byte, 1, err));
		FAILS(PAWL_ENOTFOUND, name, compressed_pack_read_copy(packed, 1, 0, &byte, 1, err));
		compressed_pack_close(packed);
		store_close_reader(store, reader);
	}
	store_close(store);
}

static struct {
	const struct store_ops *real;
	size_t n;
} reads;

static int
count_read(struct store *s, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	reads.n++;
	return reads.real->read(s, r, offset, dst, n, err);
}

/* A file without a table is unpacked completely to be read. That happens once, not for every block
 * that yields nothing. */
static void
test_P17_a_damaged_stream_is_unpacked_once_and_not_for_every_block(void **state)
{
	static const char name[] = "rank00000-00000.safetensors.zst", bytes[2000] = "\x28\xb5\x2f\xfd no zstd at all";
	struct store_reader *reader;
	struct compressed_pack *packed;
	struct store *store;
	uint64_t nbytes;
	size_t first;
	char byte;

	(void)state;
	OK(store_open("mem:", true, false, &store, err));
	OK(store_put_bytes(store, name, bytes, sizeof(bytes), 0, err));
	OK(store_open_reader(store, name, &reader, &nbytes, err));
	reads.real = store->ops;
	reads.n = 0;
	struct store_ops counting = *store->ops;
	counting.read = count_read;
	store->ops = &counting;
	OK(compressed_pack_open(store, reader, name, nbytes, 100, 0, &packed, err));
	FAILS(PAWL_ECORRUPT, name, compressed_pack_read(packed, 0, &byte, 1, err));
	first = reads.n;
	assert_true(first > 0);
	for (int i = 1; i < 100; i++) {
		FAILS(PAWL_ECORRUPT, name, compressed_pack_read(packed, (uint64_t)i, &byte, 1, err));
		FAILS(PAWL_ECORRUPT, name, compressed_pack_read_copy(packed, 0, (uint64_t)i, &byte, 1, err));
	}
	assert_true(reads.n <= 2 * first); /* no further copy is said by a read not done */
	compressed_pack_close(packed);
	store->ops = reads.real;
	store_close_reader(store, reader);
	store_close(store);
}

/* The first moments of an optimizer, say: nearly nothing is left of them. */
static void
test_E11_zeros_are_not_taken_for_a_lie(void **state)
{
	const uint64_t n = (uint64_t)160 << 20;
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct small_run *r = *state;
	struct pawl_ticket *ticket;
	struct pawl_state *s;
	char *zeros = calloc(1, n);

	assert_non_null(zeros);
	r->opts.packs.compression = "zst";
	small_open(r);
	OK(pawl_state_new(&s, err));
	small_add(s, "zeros", PAWL_U8, n, zeros);
	OK(pawl_save(r->run, &opts, s, &ticket, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_free(ticket);
	pawl_state_free(s);
	free(zeros);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_E11_every_codec_and_mode_gives_back_what_was_saved, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_E11_the_standard_tools_read_packs, small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_R140_an_unchanged_pack_is_linked_also_when_compressed, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_packs_come_whole_where_a_size_must_be_known_first, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_E11_auto_compresses_behind_a_slow_link_alone, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R140_a_name_alone_makes_no_pack_a_compressed_one, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_P1_damage_anywhere_in_a_pack_of_planes_is_found, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_P1_damage_anywhere_in_a_compressed_pack_is_found, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R138_a_manifest_is_made_anew_from_packs_of_planes, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_R138_a_manifest_is_made_anew_from_compressed_packs, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_a_compressed_checkpoint_is_of_version_2_and_others_stay_of_1,
	                                        small_setup, small_teardown),
		cmocka_unit_test_setup_teardown(test_what_cannot_be_compressed_by_is_refused_at_open, small_setup,
	                                        small_teardown),
		cmocka_unit_test_setup_teardown(test_P16_sizes_that_no_codec_can_make_are_refused, small_setup,
	                                        small_teardown),
		cmocka_unit_test(test_P16_files_too_short_for_a_codec_are_damaged),
		cmocka_unit_test(test_P17_a_damaged_stream_is_unpacked_once_and_not_for_every_block),
		cmocka_unit_test_setup_teardown(test_E11_zeros_are_not_taken_for_a_lie, small_setup, small_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
