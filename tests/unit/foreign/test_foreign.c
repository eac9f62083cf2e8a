/* SPDX-License-Identifier: Apache-2.0 */
/* foreign: a safetensors file of another program opens as a checkpoint: state, metadata, tensors,
 * differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/model_file.h"
#include "base/buf.h"
#include "format/safetensors/safetensors.h"
#include "pawl_jobs.h"
#include "state/manifest.h"
#include "run/run.h"

static void
test_a_file_is_a_flat_dict_with_its_metadata(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore *restore;
	struct pawl_state *metadata;
	const char *who;
	uint64_t id;

	write_model(r, "my model (1).safetensors");
	open_file(r, "my model (1).safetensors");
	OK(pawl_find(r->run, "latest", &id, err));
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	const struct pawl_state *saved = pawl_restore_state(restore);
	const struct pawl_info *info = pawl_restore_info(restore);
	assert_string_equal(info->name, "my model (1).safetensors");
	assert_string_equal(info->format, "safetensors");
	assert_string_equal(info->run_id, "");
	assert_int_equal(info->n_tensors, 4);
	assert_int_equal(info->n_files, 1);
	assert_true(info->unix_seconds > 1e9 && info->progress.batch == -1);
	assert_int_equal(pawl_node_count(pawl_state_root(saved)), 4);
	const struct pawl_node *leaf = pawl_state_at(saved, "layer%2Fw.0");
	assert_non_null(leaf);
	assert_string_equal(pawl_node_key(leaf)->ptr, "layer/w.0");
	assert_string_equal(pawl_node_kind(leaf), "");
	const struct pawl_tensor_info *t = pawl_state_tensor(saved, pawl_node_tensor(leaf));
	assert_string_equal(t->name, "layer%2Fw.0");
	assert_true(t->dtype == PAWL_F32 && t->ndim == 2 && t->shape[0] == 100 && t->shape[1] == 3000);
	OK(pawl_metadata(r->run, id, &metadata, err));
	OK(pawl_state_get_str(metadata, "who", &who, err));
	assert_string_equal(who, "caf\xc3\xa9");
	pawl_state_free(metadata);
	pawl_restore_close(restore);
}

/* All of one tensor, and a box of it, which a rank of several would read. */
static void
test_live_tensors_and_parts_are_filled(void **state)
{
	struct small_run *r = *state;
	const float *data = write_model(r, "m.safetensors");
	struct pawl_tensor whole = PAWL_TENSOR_INIT, part = PAWL_TENSOR_INIT, one = PAWL_TENSOR_INIT;
	const uint64_t shape[] = {100, 3000}, box[] = {10, 7}, offsets[] = {90, 2993};
	PAWL_FREE float *out = mem_zalloc(N, sizeof(*out));
	float small[70] = {0}, scalar = 0;
	struct pawl_restore *restore;
	struct pawl_state *live;

	assert_non_null(out);
	whole.dtype = part.dtype = one.dtype = PAWL_F32;
	whole.ndim = part.ndim = 2;
	whole.shape = part.global_shape = shape;
	part.shape = box;
	part.offsets = offsets;
	whole.data = out;
	part.data = small;
	one.data = &scalar;
	open_file(r, "m.safetensors");
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	size_t index = pawl_node_tensor(pawl_state_at(pawl_restore_state(restore), "layer%2Fw.0"));
	OK(pawl_restore_bind(restore, index, &whole, err));
	OK(pawl_restore_bind(restore, index, &part, err));
	OK(pawl_restore_read(restore, err));
	assert_memory_equal(out, data, N * sizeof(*out));
	for (size_t i = 0; i < 70; i++)
		assert_true(small[i] == data[(90 + i / 7) * 3000 + 2993 + i % 7]);
	pawl_restore_close(restore);
	OK(pawl_state_new(&live, err));
	OK(pawl_state_set_tensor(live, "one", &one, err));
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	opts.non_strict = 1;
	OK(pawl_restore(r->run, &opts, live, NULL, err));
	assert_true(scalar == data[N + 2]);
	FAILS(PAWL_EMISMATCH, "unexpected", pawl_restore(r->run, NULL, live, NULL, err));
	pawl_state_free(live);
}

static void
test_a_pack_of_a_checkpoint_is_a_file_too(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore *restore;
	struct pawl_state *metadata;
	const char *text;
	uint64_t id;

	small_open(r);
	small_save(r, 5, 0.5);
	open_file(r, "checkpoints/checkpoint_000001/rank00000-00000.safetensors");
	OK(pawl_find(r->run, "latest", &id, err));
	OK(pawl_metadata(r->run, id, &metadata, err));
	OK(pawl_state_get_str(metadata, "pawl.packs", &text, err));
	assert_string_equal(text, "1");
	pawl_state_free(metadata);
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	assert_non_null(pawl_state_at(pawl_restore_state(restore), "model%2Fw"));
	pawl_restore_close(restore);
}

static void
test_a_file_without_the_suffix_is_known_by_its_first_bytes(void **state)
{
	struct small_run *r = *state;
	struct pawl *other = NULL;
	char target[256], link_path[256];

	write_model(r, "0123456789abcdef");
	open_file(r, "0123456789abcdef");
	assert_non_null(r->run->home.foreign);
	snprintf(target, sizeof(target), "%s/0123456789abcdef", r->root);
	snprintf(link_path, sizeof(link_path), "%s/link.safetensors", r->root);
	assert_int_equal(symlink(target, link_path), 0);
	open_file(r, "link.safetensors");
	assert_non_null(r->run->home.foreign);
	write_file(r, "notes.txt", "just text", "and more", 8);
	FAILS(PAWL_ENOTFOUND, "is not a checkpoint", open_named(r, "notes.txt", &other, err));
	assert_null(other);
}

static void
expect_bad(struct small_run *r, int code, const char *why)
{
	struct pawl_findings *findings = NULL;
	struct pawl_restore *restore = NULL;
	uint64_t id;

	open_file(r, "bad.safetensors");
	FAILS(code, why, pawl_restore_open(r->run, NULL, &restore, err));
	assert_null(restore);
	FAILS(code, why, pawl_find(r->run, "bad.safetensors", &id, err));
	FAILS(PAWL_ECORRUPT, why, pawl_verify(r->run, 0, NULL, &findings, err));
	assert_int_equal(pawl_findings_count(findings), 1);
	pawl_findings_free(findings);
}

static void
test_P17_hostile_files_are_refused(void **state)
{
	struct small_run *r = *state;
	char path[256];

	write_file(r, "bad.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abc", 3);
	expect_bad(r, PAWL_ECORRUPT, "bytes 0 to 4 of 3");
	write_file(r, "bad.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcde", 5);
	expect_bad(r, PAWL_ECORRUPT, "tensors end at byte 4, the data at 5");
	write_file(r, "bad.safetensors", "{\"a\":{\"dtype\":\"U9\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd", 4);
	expect_bad(r, PAWL_ECORRUPT, "a known dtype");
	write_file(r, "bad.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":1}",
	           "abcd", 4);
	expect_bad(r, PAWL_ECORRUPT, "a");
	snprintf(path, sizeof(path), "%s/bad.safetensors", r->root);
	assert_int_equal(truncate(path, 6), 0);
	expect_bad(r, PAWL_ECORRUPT, "6 bytes");
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	for (int i = 0; i < 4096; i++)
		fputc(0x7b, f);
	fclose(f);
	expect_bad(r, PAWL_ELIMIT, "at most 100000000");
}

static void
test_R150_verify_reads_all_of_a_file_and_finds_that_it_was_cut(void **state)
{
	struct small_run *r = *state;
	struct pawl_findings *findings = NULL;
	struct pawl_restore *restore;
	char path[256];

	write_model(r, "m.safetensors");
	open_file(r, "m.safetensors");
	struct pawl_meter meter = {0};
	OK(pawl_verify(r->run, 1, &meter, &findings, err));
	assert_int_equal(pawl_findings_count(findings), 0);
	assert_true(meter.done_bytes > N * sizeof(float));
	pawl_findings_free(findings);
	/* cut after the header was read: the size is compared again */
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	float *out = calloc(N, sizeof(float));
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	const uint64_t shape[] = {100, 3000};
	t.dtype = PAWL_F32;
	t.ndim = 2;
	t.shape = shape;
	t.data = out;
	snprintf(path, sizeof(path), "%s/m.safetensors", r->root);
	assert_int_equal(truncate(path, 1000000), 0);
	size_t index = pawl_node_tensor(pawl_state_at(pawl_restore_state(restore), "layer%2Fw.0"));
	OK(pawl_restore_bind(restore, index, &t, err));
	FAILS(PAWL_ECORRUPT, "1000000 found", pawl_restore_read(restore, err));
	pawl_restore_close(restore);
	free(out);
}

static void
test_nothing_is_written_to_a_file(void **state)
{
	struct small_run *r = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_hold *hold;
	struct pawl_state *tree;
	struct pawl *other = NULL;
	char path[256];

	write_model(r, "m.safetensors");
	open_file(r, "m.safetensors");
	OK(pawl_hold_open(r->run, 1, &hold, err));
	pawl_hold_close(hold);
	OK(pawl_state_new(&tree, err));
	OK(pawl_state_set_int(tree, "a", 1, err));
	FAILS(PAWL_EREADONLY, "read-only", pawl_save(r->run, &save, tree, NULL, err));
	pawl_state_free(tree);
	FAILS(PAWL_EUSAGE, "another program", pawl_repair(r->run, "m.safetensors", 1, NULL, err));
	snprintf(path, sizeof(path), "%s/m.safetensors", r->root);
	opts.root = path;
	opts.single = 1;
	FAILS(PAWL_EEXISTS, "m.safetensors", pawl_open(&opts, &other, err));
}

static void
test_a_file_exchanged_in_between_is_noticed(void **state)
{
	struct small_run *r = *state;
	struct pawl_restore *restore = NULL;

	write_model(r, "m.safetensors");
	open_file(r, "m.safetensors");
	write_file(r, "m.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd", 4);
	FAILS(PAWL_ECONFLICT, "replaced by another checkpoint", pawl_restore_open(r->run, NULL, &restore, err));
	OK(pawl_reload(r->run, err));
	OK(pawl_restore_open(r->run, NULL, &restore, err));
	assert_int_equal(pawl_restore_info(restore)->n_tensors, 1);
	pawl_restore_close(restore);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, small_setup, small_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_file_is_a_flat_dict_with_its_metadata),
		TEST(test_live_tensors_and_parts_are_filled),
		TEST(test_a_pack_of_a_checkpoint_is_a_file_too),
		TEST(test_a_file_without_the_suffix_is_known_by_its_first_bytes),
		TEST(test_P17_hostile_files_are_refused),
		TEST(test_R150_verify_reads_all_of_a_file_and_finds_that_it_was_cut),
		TEST(test_nothing_is_written_to_a_file),
		TEST(test_a_file_exchanged_in_between_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
