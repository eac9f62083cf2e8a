/* SPDX-License-Identifier: Apache-2.0 */
/* verify: every kind of damage in packs and manifests is found and named. Good checkpoints are not
 * reported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helpers/make_checkpoint.h"

#define N 6000

struct fixture {
	struct made_run made;
	float weight[N];
	unsigned char mask[300];
	struct pawl_state *state;
};

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	for (size_t i = 0; i < N; i++)
		f->weight[i] = (float)i;
	assert_int_equal(pawl_state_new(&f->state, NULL), 0);
	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = (uint64_t[]){N};
	t.data = f->weight;
	assert_int_equal(pawl_state_set_tensor(f->state, "weight", &t, NULL), 0);
	t.dtype = PAWL_BOOL;
	t.shape = (uint64_t[]){300};
	t.data = f->mask;
	assert_int_equal(pawl_state_set_tensor(f->state, "mask", &t, NULL), 0);
	made_open(&f->made, NULL);
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;
	pawl_state_free(f->state);
	made_close(&f->made);
	free(f);
	return 0;
}

static void
save(struct fixture *f, uint64_t id, uint64_t block)
{
	make_checkpoint(f->made.run, &(struct made_opts){.id = id, .ranks = 2, .grid = {2}, .block_bytes = block},
	                f->state);
}

/* The only finding of a verification, which the caller frees. */
static struct pawl_findings *
only_finding(struct fixture *f, uint64_t id, struct pawl_finding *ret)
{
	struct pawl_findings *findings = NULL;
	struct pawl_error err = {0};
	assert_int_equal(pawl_verify(f->made.run, id, NULL, &findings, &err), PAWL_ECORRUPT);
	assert_non_null(findings);
	assert_int_equal(pawl_findings_count(findings), 1);
	assert_non_null(strstr(err.message, "1 damaged range, "));
	*ret = *pawl_findings_get(findings, 0);
	assert_null(pawl_findings_get(findings, 1));
	assert_non_null(strstr(err.message, ret->file));
	return findings;
}

static void
test_good_checkpoints_have_no_findings(void **state)
{
	struct fixture *f = *state;
	struct pawl_findings *findings = NULL;
	struct pawl_meter meter = {0};
	struct pawl_error err = {0};
	made_check(pawl_verify(f->made.run, 0, NULL, &findings, &err), &err);
	assert_int_equal(pawl_findings_count(findings), 0);
	pawl_findings_free(findings);
	save(f, 1, 512);
	save(f, 2, 65536);
	made_check(pawl_verify(f->made.run, 0, &meter, &findings, &err), &err);
	assert_int_equal(pawl_findings_count(findings), 0);
	pawl_findings_free(findings);
	assert_true(meter.total_bytes > 4 * N * 2);
	assert_int_equal(meter.done_bytes, meter.total_bytes);
	made_check(pawl_verify(f->made.run, 1, NULL, NULL, &err), &err);
	pawl_findings_free(NULL);
}

static void
test_R136_every_sampled_byte_of_every_pack_counts(void **state)
{
	struct fixture *f = *state;
	static const char *const files[] = {"rank00000-00000.safetensors", "rank00001-00000.safetensors"};
	save(f, 1, 512);
	for (int i = 0; i < 2; i++) {
		uint64_t size = made_size(&f->made, 1, files[i]);
		for (uint64_t at = 0; at < size; at = at < size - 1 && at + 173 >= size ? size - 1 : at + 173) {
			struct pawl_finding row;
			made_flip(&f->made, 1, files[i], at, (unsigned char)(1u << (at % 8)));
			struct pawl_findings *findings = only_finding(f, 1, &row);
			assert_int_equal(row.id, 1);
			assert_string_equal(row.file, files[i]);
			assert_int_equal(row.begin, at / 512 * 512);
			assert_int_equal(row.end, row.begin + 512 < size ? row.begin + 512 : size);
			/* The headers are damaged, too, but belong to no tensor. */
			if (at >= 4096)
				assert_true(row.tensor[0]);
			else
				assert_string_equal(row.tensor, "");
			assert_non_null(strstr(row.message, "not what was written"));
			pawl_findings_free(findings);
			made_flip(&f->made, 1, files[i], at, (unsigned char)(1u << (at % 8)));
		}
	}
	assert_int_equal(pawl_verify(f->made.run, 1, NULL, NULL, NULL), 0);
}

static void
test_neighbouring_blocks_are_one_finding_and_others_are_not(void **state)
{
	struct fixture *f = *state;
	struct pawl_findings *findings = NULL;
	const char *file = "rank00001-00000.safetensors";
	save(f, 1, 512);
	made_flip(&f->made, 1, file, 5000, 1);
	made_flip(&f->made, 1, file, 5200, 1);
	made_flip(&f->made, 1, file, 9000, 1);
	made_flip(&f->made, 1, "rank00000-00000.safetensors", 5000, 1);
	assert_int_equal(pawl_verify(f->made.run, 0, NULL, &findings, NULL), PAWL_ECORRUPT);
	assert_int_equal(pawl_findings_count(findings), 3);
	assert_string_equal(pawl_findings_get(findings, 0)->file, "rank00000-00000.safetensors");
	assert_int_equal(pawl_findings_get(findings, 1)->begin, 4608);
	assert_int_equal(pawl_findings_get(findings, 1)->end, 5632);
	assert_int_equal(pawl_findings_get(findings, 2)->begin, 8704);
	pawl_findings_free(findings);
}

static void
test_R136_wrong_lengths_and_missing_files(void **state)
{
	struct fixture *f = *state;
	const char *file = "rank00000-00000.safetensors";
	struct pawl_finding row;
	char path[256];
	save(f, 1, 512);
	const uint64_t size = made_size(&f->made, 1, file);
	made_truncate(&f->made, 1, file, size - 100);
	struct pawl_findings *findings = only_finding(f, 1, &row);
	assert_int_equal(row.begin, size - 100);
	assert_int_equal(row.end, size);
	assert_true(row.tensor[0]);
	pawl_findings_free(findings);
	made_truncate(&f->made, 1, file, size + 7);
	findings = only_finding(f, 1, &row);
	assert_int_equal(row.begin, size);
	assert_int_equal(row.end, size + 7);
	pawl_findings_free(findings);
	snprintf(path, sizeof path, "%s/checkpoints/checkpoint_000001/%s", f->made.root, file);
	assert_int_equal(unlink(path), 0);
	findings = only_finding(f, 1, &row);
	assert_int_equal(row.begin, 0);
	assert_int_equal(row.end, size);
	assert_string_equal(row.message, "the file is missing");
	pawl_findings_free(findings);
}

static void
test_R136_every_byte_of_a_manifest_counts(void **state)
{
	struct fixture *f = *state;
	save(f, 1, 4096);
	const uint64_t size = made_size(&f->made, 1, "manifest.json");
	for (uint64_t at = 0; at < size; at += 7) {
		struct pawl_finding row;
		made_flip(&f->made, 1, "manifest.json", at, (unsigned char)(1u << (at % 8)));
		struct pawl_findings *findings = only_finding(f, 1, &row);
		assert_string_equal(row.file, "manifest.json");
		pawl_findings_free(findings);
		made_flip(&f->made, 1, "manifest.json", at, (unsigned char)(1u << (at % 8)));
	}
	for (uint64_t cut = size - 1; cut > 0; cut = cut > 97 ? cut - 97 : 0) {
		struct pawl_finding row;
		made_truncate(&f->made, 1, "manifest.json", cut);
		pawl_findings_free(only_finding(f, 0, &row));
	}
}

static void
test_a_lost_manifest_is_found_among_all(void **state)
{
	struct fixture *f = *state;
	struct pawl_finding row;
	char path[256];
	save(f, 1, 4096);
	save(f, 2, 4096);
	snprintf(path, sizeof path, "%s/checkpoints/checkpoint_000001/manifest.json", f->made.root);
	assert_int_equal(unlink(path), 0);
	struct pawl_findings *findings = only_finding(f, 0, &row);
	assert_int_equal(row.id, 1);
	assert_non_null(strstr(row.message, "missing"));
	pawl_findings_free(findings);
}

static void
test_unknown_ids_and_cancelling(void **state)
{
	struct fixture *f = *state;
	struct pawl_findings *findings = NULL;
	struct pawl_meter meter = {.cancel = 1};
	struct pawl_error err = {0};
	save(f, 1, 512);
	assert_int_equal(pawl_verify(f->made.run, 7, NULL, &findings, &err), PAWL_ENOTFOUND);
	assert_null(findings);
	assert_int_equal(pawl_verify(f->made.run, 1, &meter, &findings, &err), PAWL_ECANCELLED);
	assert_null(findings);
	assert_int_equal(pawl_verify(NULL, 1, NULL, &findings, &err), PAWL_EUSAGE);
}

static void
test_what_cannot_be_read_is_a_finding_too(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	int in_packs = 0;
	save(f, 1, 65536);
	opts.root = f->made.root;
	opts.read_only = 1;
	for (uint64_t nth = 1; nth <= 8; nth++) {
		struct pawl_findings *findings = NULL;
		struct pawl *run = NULL;
		made_evict(&f->made, 1, "rank00000-00000.safetensors");
		made_evict(&f->made, 1, "rank00001-00000.safetensors");
		assert_int_equal(pawl_fault_new("read", nth, PAWL_EIO, 0, &opts.io.fault, NULL), 0);
		if (pawl_open(&opts, &run, NULL) == 0) {
			int rc = pawl_verify(run, 0, NULL, &findings, NULL);
			assert_true(rc == 0 || rc == PAWL_ECORRUPT);
			assert_int_equal(pawl_findings_count(findings), rc == 0 ? 0 : 1);
			if (rc < 0)
				in_packs += strncmp(pawl_findings_get(findings, 0)->file, "rank", 4) == 0;
			pawl_findings_free(findings);
		}
		pawl_close(run, NULL);
		pawl_fault_free(opts.io.fault);
	}
	assert_true(in_packs >= 1);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_good_checkpoints_have_no_findings),
		T(test_R136_every_sampled_byte_of_every_pack_counts),
		T(test_neighbouring_blocks_are_one_finding_and_others_are_not),
		T(test_R136_wrong_lengths_and_missing_files),
		T(test_R136_every_byte_of_a_manifest_counts),
		T(test_a_lost_manifest_is_found_among_all),
		T(test_unknown_ids_and_cancelling),
		T(test_what_cannot_be_read_is_a_finding_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
