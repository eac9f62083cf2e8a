/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of repair.c and pack_header.c: a manifest rebuilt from packs equals the lost one, or repair
 * refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/small_run.h"
#include "base/err.h"
#include "format/safetensors/safetensors.h"
#include "state/manifest.h"
#include "state/pack_name.h"
#include "catalog/catalog.h"
#include "run/run.h"

#define NAME "checkpoint_000001"
#define FOLDER "checkpoints/" NAME
#define MANIFEST FOLDER "/manifest.json"
#define PACK0 FOLDER "/rank00000-00000.safetensors"
#define PACK1 FOLDER "/rank00000-00001.safetensors"

/* One checkpoint of two packs, with everything that a header has to carry: complex numbers,
 * metadata, a NaN metric. */
static struct small_run *
start(void **state)
{
	struct small_run *r = *state;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	const struct pawl_metric metrics[] = {{.name = "accuracy", .value = 0.5}, {.name = "loss", .value = NAN}};
	struct pawl_state *tree, *meta;
	static double complex_data[16];
	static float big[50000];
	char text[6000];

	for (size_t i = 0; i < COUNT(big); i++)
		big[i] = (float)i;
	memset(text, 't', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	r->opts.packs.pack_bytes = 100000;
	small_open(r);
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_new(&meta, err));
	small_add(tree, "model/big", PAWL_F32, COUNT(big), big);
	small_add(tree, "model/waves", PAWL_C128, 8, complex_data);
	small_add(tree, "model/empty", PAWL_F32, 0, NULL);
	OK(pawl_state_set_str(tree, "long", text, err));
	OK(pawl_state_set_int(tree, "seed", 7, err));
	OK(pawl_state_set_str(meta, "who", "me", err));
	save.step = 400;
	save.progress.epoch = 3;
	save.metrics = metrics;
	save.n_metrics = COUNT(metrics);
	save.metadata = meta;
	OK(pawl_save(r->run, &save, tree, NULL, err));
	OK(pawl_wait(r->run, -1, err));
	pawl_state_free(tree);
	pawl_state_free(meta);
	assert_true(small_exists(r, PACK1));
	return r;
}

/* Removes the lines that must differ, in place. */
static void
strip(char *text)
{
	static const char *const drop[] = {"\"blocked_seconds\"", "\"repaired\"", "\"digest\""};
	char *to = text;

	for (char *line = text; *line;) {
		char *end = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line);
		int dropped = 0;

		for (size_t i = 0; i < COUNT(drop); i++)
			dropped |= strncmp(line, drop[i], strlen(drop[i])) == 0;
		if (!dropped) {
			memmove(to, line, (size_t)(end - line));
			to += end - line;
		}
		line = end;
	}
	*to = '\0';
}

static void
assert_repaired(struct small_run *r, char *before)
{
	struct pawl_findings *findings = NULL;
	size_t len;
	char *after = small_read(r, MANIFEST, &len);

	assert_non_null(strstr(after, "\"repaired\":true"));
	strip(before);
	strip(after);
	assert_string_equal(after, before);
	free(after);
	OK(pawl_verify(r->run, 1, NULL, &findings, err));
	pawl_findings_free(findings);
	ASSERT_IDS("1", r->run);
}

static void
test_R138_a_lost_manifest_is_made_anew_and_equals_the_old_one(void **state)
{
	struct small_run *r = start(state);
	size_t len;
	char *before = small_read(r, MANIFEST, &len);

	small_remove(r, MANIFEST);
	OK(pawl_reload(r->run, err));
	ASSERT_IDS(NAME "!", r->run);
	OK(pawl_repair(r->run, NAME, 1, NULL, err));
	assert_false(small_exists(r, MANIFEST)); /* dry */
	OK(pawl_repair(r->run, NAME, 0, NULL, err));
	assert_repaired(r, before);
	assert_false(small_exists(r, MANIFEST ".damaged"));
	free(before);

	struct pawl_restore *restore;
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	int64_t seed = 0;
	OK(pawl_restore_open(r->run, &opts, &restore, err));
	OK(pawl_state_get_int(pawl_restore_state(restore), "seed", &seed, err));
	assert_int_equal(seed, 7);
	assert_int_equal(pawl_restore_info(restore)->step, 400);
	assert_int_equal(pawl_restore_info(restore)->progress.epoch, 3);
	pawl_restore_close(restore);
}

static void
test_a_damaged_manifest_is_kept_aside(void **state)
{
	struct small_run *r = start(state);
	size_t len, aside_len;
	char *before = small_read(r, MANIFEST, &len);

	small_damage(r, MANIFEST, 100);
	char *damaged = small_read(r, MANIFEST, &len);
	OK(pawl_repair(r->run, NAME, 0, NULL, err));
	assert_repaired(r, before);
	char *aside = small_read(r, MANIFEST ".damaged", &aside_len);
	assert_int_equal(aside_len, len);
	assert_memory_equal(aside, damaged, len);
	free(aside);
	free(damaged);
	free(before);
}

static void
test_P15_an_intact_checkpoint_is_left_alone(void **state)
{
	struct small_run *r = start(state);
	struct stat before, after;

	assert_int_equal(stat(small_path(r, MANIFEST).text, &before), 0);
	OK(pawl_repair(r->run, NAME, 0, NULL, err));
	OK(pawl_repair(r->run, NAME, 0, NULL, err));
	assert_int_equal(stat(small_path(r, MANIFEST).text, &after), 0);
	assert_true(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
}

static void
test_missing_or_surplus_packs_are_refused(void **state)
{
	struct small_run *r = start(state);

	small_remove(r, MANIFEST);
	small_rename(r, PACK1, "aside");
	FAILS(PAWL_ECORRUPT, "pack 1 of the 2 of rank 0 is missing", pawl_repair(r->run, NAME, 0, NULL, err));
	small_rename(r, PACK0, PACK1);
	FAILS(PAWL_ECORRUPT, "rank00000-00000.safetensors is missing", pawl_repair(r->run, NAME, 0, NULL, err));
	small_rename(r, PACK1, PACK0);
	small_copy(r, FOLDER, "checkpoints/copy");
	small_rename(r, "checkpoints/copy/rank00000-00000.safetensors", PACK1);
	FAILS(PAWL_ECORRUPT, "",
	      pawl_repair(r->run, NAME, 0, NULL, err)); /* pack 0 twice: its tensors would be there twice */
	small_rename(r, PACK1, FOLDER "/rank00000-00002.safetensors");
	small_rename(r, "aside", PACK1);
	FAILS(PAWL_ECORRUPT, "rank 0 has 2 packs, but rank00000-00002", pawl_repair(r->run, NAME, 0, NULL, err));
	small_rename(r, FOLDER "/rank00000-00002.safetensors", FOLDER "/rank00007-00000.safetensors");
	FAILS(PAWL_ECORRUPT, "belongs to no rank of 1", pawl_repair(r->run, NAME, 0, NULL, err));
	small_remove(r, FOLDER "/rank00007-00000.safetensors");
	OK(pawl_repair(r->run, NAME, 0, NULL, err));
}

static void
test_packs_of_different_runs_are_refused(void **state)
{
	struct small_run *r = start(state);
	size_t len;

	small_remove(r, MANIFEST);
	char *pack = small_read(r, PACK1, &len);
	char *id = memmem(pack, len, pawl_run_id(r->run), 32);
	assert_non_null(id);
	id[5] = id[5] == 'a' ? 'b' : 'a';
	small_write(r, PACK1, pack, len);
	FAILS(PAWL_ECORRUPT, "is of run", pawl_repair(r->run, NAME, 0, NULL, err));
	free(pack);
}

static void
test_a_newer_format_is_refused_and_left_alone(void **state)
{
	struct small_run *r = start(state);
	size_t len;

	small_remove(r, MANIFEST);
	char *pack = small_read(r, PACK1, &len);
	char *format = memmem(pack, len, "\"pawl.format\":\"1\"", 17);
	assert_non_null(format);
	format[15] = '2';
	small_write(r, PACK1, pack, len);
	FAILS(PAWL_EVERSION, "version 2", pawl_repair(r->run, NAME, 0, NULL, err));
	assert_false(small_exists(r, MANIFEST));
	free(pack);
}

static void
test_what_is_no_checkpoint_folder_is_refused(void **state)
{
	struct small_run *r = start(state);
	static const char *const names[] = {"", "..", ".", "a/b", "../checkpoint_000001", "-rf", ".hidden", "a b"};

	for (size_t i = 0; i < COUNT(names); i++)
		FAILS(PAWL_EUSAGE, "not the name", pawl_repair(r->run, names[i], 0, NULL, err));
	FAILS(PAWL_ENOTFOUND, "", pawl_repair(r->run, "checkpoint_000009", 0, NULL, err));
	small_mkdir(r, "checkpoints/empty");
	FAILS(PAWL_ECORRUPT, "no packs", pawl_repair(r->run, "empty", 0, NULL, err));
	small_write(r, "checkpoints/file", "x", 1);
	FAILS(PAWL_EUSAGE, "not a folder", pawl_repair(r->run, "file", 0, NULL, err));
	assert_int_equal(symlink(NAME, small_path(r, "checkpoints/link").text), 0);
	FAILS(PAWL_EUSAGE, "not a folder", pawl_repair(r->run, "link", 0, NULL, err));
	small_remove(r, MANIFEST);
	small_write(r, FOLDER "/.deleting", "", 0);
	FAILS(PAWL_ECONFLICT, "being deleted", pawl_repair(r->run, NAME, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_repair(NULL, NAME, 0, NULL, err));
	FAILS(PAWL_EUSAGE, "NULL", pawl_repair(r->run, NULL, 0, NULL, err));
}

static void
test_readers_may_only_ask(void **state)
{
	struct small_run *r = start(state);
	struct pawl_open_opts opts = r->opts;
	struct pawl *reader;

	small_remove(r, MANIFEST);
	opts.read_only = 1;
	OK(pawl_open(&opts, &reader, err));
	OK(pawl_repair(reader, NAME, 1, NULL, err));
	FAILS(PAWL_EREADONLY, "", pawl_repair(reader, NAME, 0, NULL, err));
	pawl_close(reader, NULL);
}

/* Tries a repair of a pack in some changed form. It must never crash, nor write a manifest that
 * does not verify. */
static int
try_repair(struct small_run *r)
{
	struct pawl_findings *findings = NULL;

	if (pawl_repair(r->run, NAME, 1, NULL, NULL) < 0)
		return 0;
	OK(pawl_repair(r->run, NAME, 0, NULL, err));
	struct pawl_list *list;
	OK(pawl_list_open(r->run, 0, &list, err));
	assert_int_equal(pawl_list_count(list), 1);
	OK(pawl_verify(r->run, pawl_list_get(list, 0)->id, NULL, &findings, err));
	pawl_findings_free(findings);
	pawl_list_free(list);
	small_remove(r, MANIFEST);
	return 1;
}

static void
test_P17_every_flipped_bit_of_a_header_is_survived(void **state)
{
	struct small_run *r = start(state);
	unsigned refused = 0, harmless = 0;
	size_t len, end;

	small_remove(r, MANIFEST);
	char *pack = small_read(r, PACK0, &len);
	for (end = len; end > 0 && pack[end - 1] != ' '; end--) /* header, then padding, then data */
		;
	for (; end > 0 && pack[end - 1] == ' '; end--)
		;
	FILE *f = fopen(small_path(r, PACK0).text, "r+b");
	assert_non_null(f);
	for (size_t i = 0; i < end; i++) {
		fseek(f, (long)i, SEEK_SET);
		fputc(pack[i] ^ (1 << (i % 8)), f);
		fflush(f);
		*(try_repair(r) ? &harmless : &refused) += 1;
		fseek(f, (long)i, SEEK_SET);
		fputc(pack[i], f);
		fflush(f);
	}
	fclose(f);
	free(pack);
	assert_true(refused > end / 4);
	assert_true(harmless > 0); /* a changed digit of a metric is a different, but sound header */
	assert_int_equal(try_repair(r), 1);
}

static void
test_P17_every_truncation_of_a_pack_is_refused(void **state)
{
	struct small_run *r = start(state);
	size_t len;

	small_remove(r, MANIFEST);
	char *pack = small_read(r, PACK0, &len);
	for (size_t cut = 0; cut < len; cut += cut < 64 ? 1 : 97) {
		assert_int_equal(truncate(small_path(r, PACK0).text, (off_t)cut), 0);
		assert_int_equal(try_repair(r), 0);
		small_write(r, PACK0, pack, len);
	}
	small_write(r, PACK0, pack, len);
	assert_int_equal(try_repair(r), 1);
	free(pack);
}

static void
test_P15_a_repair_that_was_cut_off_can_be_repeated(void **state)
{
	struct small_run *r = start(state);
	size_t len;
	unsigned failures = 0;
	char *before = small_read(r, MANIFEST, &len);

	small_damage(r, MANIFEST, 100);
	for (uint64_t nth = 1; nth < 200; nth++) {
		struct pawl_fault *fault;
		struct store *faulty, *plain = r->run->store;

		OK(pawl_fault_new("any", nth, PAWL_EIO, 0, &fault, err));
		OK(store_fault_wrap(plain, fault, &faulty, err));
		r->run->store = faulty;
		int rc = pawl_repair(r->run, NAME, 0, NULL, NULL);
		int done = rc == 0 && pawl_fault_calls(fault) < nth;
		r->run->store = plain;
		/* The wrapper owns the store, which lives longer: only the wrapper's own memory is
		 * freed. */
		mem_free(faulty->root);
		mem_free(faulty);
		pawl_fault_free(fault);
		failures += rc < 0;
		OK(pawl_repair(r->run, NAME, 0, NULL, err));
		if (done)
			break;
		small_damage(r, MANIFEST, 100);
	}
	assert_true(failures > 5);
	assert_repaired(r, before);
	free(before);
}

/* ------------------------------------------------------------ several ranks */

struct shard {
	const char *name;
	uint64_t rows, global_rows,
		offset; /* of a [rows, 2] tensor of pairs of F32, or with `complex` of [rows] C128 */
	int complex;
};

/* Writes pack 0 of a rank, which holds one shard, as the writer of several ranks would. */
static void
put_rank(struct small_run *r, unsigned rank, unsigned world, const char *token, const struct shard *shard)
{
	const uint64_t shape[] = {shard->rows, 2};
	struct st_tensor tensor = {
		.name = shard->name, .dtype = shard->complex ? PAWL_F64 : PAWL_F32, .ndim = 2, .shape = shape};
	struct manifest m = {
		.id = 5, .attempt = 1, .step = 9, .unix_ns = 1, .progress = PAWL_PROGRESS_INIT, .world_size = world};
	struct buf checkpoint = {0}, image = {0};
	char special[256], rank_text[16], path[128], *data;
	uint64_t data_len;

	memset(m.run_id, 'a', 32);
	memset(m.token, token[0], 32);
	OK(manifest_encode_summary(&m, &checkpoint, err));
	snprintf(rank_text, sizeof(rank_text), "%u", rank);
	if (shard->complex)
		snprintf(special, sizeof(special), "{\"%s\":{\"dtype\":\"C128\",\"shape\":[%d],\"offsets\":[%d]}}",
		         shard->name, (int)shard->global_rows, (int)shard->offset);
	else
		snprintf(special, sizeof(special), "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,2],\"offsets\":[%d,0]}}",
		         shard->name, (int)shard->global_rows, (int)shard->offset);
	const char *state_text = "{\"w\":{\"$tensor\":\"w\"}}";
	const struct st_pair pairs[] = {
		{"format", "pt", 2},
		{"pawl.format", "1", 1},
		{"pawl.run", m.run_id, 32},
		{"pawl.tensors", special, strlen(special)},
		{"pawl.rank", rank_text, strlen(rank_text)},
		{"pawl.packs", "1", 1},
		{"pawl.checkpoint", checkpoint.ptr, checkpoint.len},
		{"pawl.state", state_text, strlen(state_text)},
	};
	OK(safetensors_layout(&tensor, 1, &data_len, err));
	OK(safetensors_encode_header(&tensor, 1, pairs, COUNT(pairs), &image, err));
	data = buf_grow(&image, data_len);
	memset(data, (int)rank + 1, data_len);
	snprintf(path, sizeof(path), "checkpoints/five/rank%05u-00000.safetensors", rank);
	small_write(r, path, image.ptr, image.len);
	buf_clear(&checkpoint);
	buf_clear(&image);
}

static struct small_run *
start_ranks(void **state)
{
	struct small_run *r = *state;

	small_open(r);
	mkdir(small_path(r, "checkpoints").text, 0777);
	small_mkdir(r, "checkpoints/five");
	return r;
}

static void
test_shards_of_several_ranks_are_put_together(void **state)
{
	struct small_run *r = start_ranks(state);

	for (int complex = 0; complex < 2; complex++) {
		const struct shard a = {"w", 3, 5, 0, complex}, b = {"w", 2, 5, 3, complex};
		struct manifest *m;

		put_rank(r, 0, 2, "c", &a);
		put_rank(r, 1, 2, "c", &b);
		OK(pawl_repair(r->run, "five", 0, NULL, err));
		struct catalog_entry *e = catalog_get(r->run->catalog, 5);
		assert_non_null(e);
		OK(catalog_manifest(r->run->catalog, e, &m, err));
		assert_int_equal(m->world_size, 2);
		assert_int_equal(m->n_tensors, 1);
		assert_int_equal(m->tensors[0].n_pieces, 2);
		assert_int_equal(m->tensors[0].shape[0], 5);
		assert_int_equal(m->tensors[0].dtype, complex ? PAWL_C128 : PAWL_F32);
		assert_int_equal(m->tensors[0].pieces[1].offsets[0], 3);
		assert_int_equal(m->tensors[0].pieces[1].lengths[0], 2);
		manifest_free(m);
		small_remove(r, "checkpoints/five/manifest.json");
	}
}

static void
test_incomplete_or_mixed_ranks_are_refused(void **state)
{
	struct small_run *r = start_ranks(state);
	const struct shard a = {"w", 3, 5, 0, 0}, b = {"w", 2, 5, 3, 0};
	const struct {
		struct shard second;
		const char *token, *why;
	} cases[] = {
		{{"w", 1, 5, 3, 0}, "c", ""}, /* a row is missing */
		{{"w", 2, 5, 2, 0}, "c", ""}, /* overlap */
		{{"w", 2, 6, 3, 0}, "c", "different dtypes or shapes"},
		{{"w", 2, 5, 3, 1}, "c", "different dtypes or shapes"},
		{{"v", 2, 5, 3, 0}, "c", "not in the state"},
		{{"w", 2, 5, 3, 0}, "d", "not written by the same save"},
	};

	put_rank(r, 0, 2, "c", &a);
	FAILS(PAWL_ECORRUPT, "rank00001-00000.safetensors is missing", pawl_repair(r->run, "five", 0, NULL, err));
	for (size_t i = 0; i < COUNT(cases); i++) {
		put_rank(r, 1, 2, cases[i].token, &cases[i].second);
		FAILS(PAWL_ECORRUPT, cases[i].why, pawl_repair(r->run, "five", 0, NULL, err));
	}
	put_rank(r, 1, 2, "c", &b);
	OK(pawl_repair(r->run, "five", 0, NULL, err));
}

static void
test_pack_names(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",
		"rank",
		"rank0-0.safetensors",
		"rank00000-00000.safetensors.tmp",
		"rank00000-00000",
		"xrank00000-00000.safetensors",
		"rank00000_00000.safetensors",
		"rank000000-00000.safetensors",
		"rank-1000-00000.safetensors",
		"rank00000-0000x.safetensors",
		"rank00000-.safetensors",
		"rank9999999999-00000.safetensors",
	};
	uint32_t rank = 0, index = 0;

	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(pack_parse_name(bad[i], &rank, &index));
	assert_true(pack_parse_name("rank00003-00012.safetensors", &rank, &index));
	assert_true(rank == 3 && index == 12);
	assert_true(pack_parse_name("rank123456-100000.safetensors", &rank, &index));
	assert_true(rank == 123456 && index == 100000);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, small_setup, small_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_R138_a_lost_manifest_is_made_anew_and_equals_the_old_one),
		IN_FOLDER(test_a_damaged_manifest_is_kept_aside),
		IN_FOLDER(test_P15_an_intact_checkpoint_is_left_alone),
		IN_FOLDER(test_missing_or_surplus_packs_are_refused),
		IN_FOLDER(test_packs_of_different_runs_are_refused),
		IN_FOLDER(test_a_newer_format_is_refused_and_left_alone),
		IN_FOLDER(test_what_is_no_checkpoint_folder_is_refused),
		IN_FOLDER(test_readers_may_only_ask),
		IN_FOLDER(test_P17_every_flipped_bit_of_a_header_is_survived),
		IN_FOLDER(test_P17_every_truncation_of_a_pack_is_refused),
		IN_FOLDER(test_P15_a_repair_that_was_cut_off_can_be_repeated),
		IN_FOLDER(test_shards_of_several_ranks_are_put_together),
		IN_FOLDER(test_incomplete_or_mixed_ranks_are_refused),
		cmocka_unit_test(test_pack_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
