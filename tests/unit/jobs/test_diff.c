/* SPDX-License-Identifier: Apache-2.0 */
/* diff: added, removed and changed leaves, with the largest differences of tensors, in bounded
 * memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdatomic.h>

#include "helpers/make_checkpoint.h"
#include "pawl_jobs.h"

#define ROWS 50
#define COLUMNS 40
#define LONG_BYTES 6000

struct fixture {
	struct made_run made;
	float weight[ROWS][COLUMNS];
	uint16_t half[70];
	unsigned char packed[12];
	char text[LONG_BYTES + 1];
};

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	for (size_t i = 0; i < ROWS * COLUMNS; i++)
		f->weight[i / COLUMNS][i % COLUMNS] = (float)i;
	for (size_t i = 0; i < 70; i++)
		f->half[i] = 0x3c00;
	memset(f->text, 'a', LONG_BYTES);
	made_open(&f->made, NULL);
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;
	made_close(&f->made);
	free(f);
	return 0;
}

static void
set(struct pawl_state *s, const char *path, int dtype, uint32_t ndim, const uint64_t *shape, void *data)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_error err = {0};
	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.data = data;
	made_check(pawl_state_set_tensor(s, path, &t, &err), &err);
}

static struct pawl_state *
common(struct fixture *f)
{
	struct pawl_state *s = NULL;
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	set(s, "model/weight", PAWL_F32, 2, (uint64_t[]){ROWS, COLUMNS}, f->weight);
	set(s, "model/half", PAWL_F16, 1, (uint64_t[]){70}, f->half);
	assert_int_equal(pawl_state_set_str(s, "notes", f->text, NULL), 0);
	return s;
}

static void
save(struct fixture *f, uint64_t id, struct pawl_state *s, const struct made_opts *given)
{
	struct made_opts o = given ? *given : (struct made_opts){.block_bytes = 512};
	o.id = id;
	make_checkpoint(f->made.run, &o, s);
	pawl_state_free(s);
}

static struct pawl_diff *
diff(struct fixture *f, uint64_t a, uint64_t b)
{
	struct pawl_diff *d = NULL;
	struct pawl_error err = {0};
	made_check(pawl_diff_open(f->made.run, a, f->made.run, b, NULL, &d, &err), &err);
	return d;
}

static const struct pawl_diff_row *
row_of(const struct pawl_diff *d, const char *path)
{
	for (size_t i = 0; i < pawl_diff_count(d); i++) {
		if (strcmp(pawl_diff_get(d, i)->path, path) == 0)
			return pawl_diff_get(d, i);
	}
	fail_msg("%s is not listed", path);
	return NULL;
}

static void
test_equal_checkpoints_have_no_rows(void **state)
{
	struct fixture *f = *state;
	save(f, 1, common(f), NULL);
	save(f, 2, common(f), NULL);
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), 0);
	assert_null(pawl_diff_get(d, 0));
	pawl_diff_free(d);
	pawl_diff_free(NULL);
}

/* What has equal sums is not read: damage in it goes unnoticed, which is verify's business. */
static void
test_blocks_with_equal_sums_are_not_read(void **state)
{
	struct fixture *f = *state;
	const char *file = "rank00000-00000.safetensors";
	save(f, 1, common(f), NULL);
	save(f, 2, common(f), NULL);
	made_flip(&f->made, 2, file, made_size(&f->made, 2, file) - 1, 1);
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), 0);
	pawl_diff_free(d);
	assert_int_equal(pawl_verify(f->made.run, 2, NULL, NULL, NULL), PAWL_ECORRUPT);
}

/* Cut into other pieces, packs and blocks, they are read; still nothing differs. */
static void
test_the_way_of_cutting_does_not_matter(void **state)
{
	struct fixture *f = *state;
	save(f, 1, common(f), &(struct made_opts){.ranks = 3, .grid = {3, 2}, .block_bytes = 512});
	save(f, 2, common(f), &(struct made_opts){.ranks = 2, .grid = {1, 5}, .block_bytes = 4096});
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), 0);
	pawl_diff_free(d);
	f->weight[49][39] += 7;
	save(f, 3, common(f), &(struct made_opts){.ranks = 2, .grid = {1, 5}, .block_bytes = 4096});
	d = diff(f, 1, 3);
	assert_int_equal(pawl_diff_count(d), 1);
	assert_true(row_of(d, "model/weight")->max_abs == 7);
	pawl_diff_free(d);
}

static void
test_changed_tensors_show_their_largest_difference(void **state)
{
	struct fixture *f = *state;
	save(f, 1, common(f), NULL);
	f->weight[20][3] += 4;
	f->weight[0][1] = 3;
	f->half[69] = 0x4000;
	f->text[5000] = 'b';
	save(f, 2, common(f), NULL);
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), 3);
	const struct pawl_diff_row *row = row_of(d, "model/weight");
	assert_int_equal(row->change, PAWL_CHANGED);
	assert_int_equal(row->is_tensor, 1);
	assert_string_equal(row->was, "F32 [50, 40]");
	assert_string_equal(row->is, "F32 [50, 40]");
	assert_true(row->max_abs == 4);
	assert_true(fabs(row->max_rel - 2.0 / 3) < 1e-9);
	row = row_of(d, "model/half");
	assert_true(row->max_abs == 1 && row->max_rel == 0.5);
	row = row_of(d, "notes");
	assert_int_equal(row->is_tensor, 0);
	assert_string_equal(row->was, "str of 6000 bytes");
	assert_true(isnan(row->max_abs));
	pawl_diff_free(d);
}

static void
test_nan_for_nan_is_no_change(void **state)
{
	struct fixture *f = *state;
	f->half[3] = 0x7e00;
	save(f, 1, common(f), NULL);
	f->half[3] = 0xfe01;
	save(f, 2, common(f), NULL);
	f->half[3] = 0x3c00;
	save(f, 3, common(f), NULL);
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), 0);
	pawl_diff_free(d);
	d = diff(f, 2, 3);
	assert_int_equal(pawl_diff_count(d), 1);
	assert_true(isinf(pawl_diff_get(d, 0)->max_abs));
	pawl_diff_free(d);
}

static void
test_leaves_come_go_and_change_their_type(void **state)
{
	struct fixture *f = *state;
	struct pawl_state *a = common(f), *b = common(f);
	set(a, "gone", PAWL_U8, 1, (uint64_t[]){3}, f->packed);
	set(a, "shape", PAWL_U8, 1, (uint64_t[]){3}, f->packed + 3);
	set(b, "shape", PAWL_U8, 2, (uint64_t[]){3, 1}, f->packed + 3);
	set(a, "type", PAWL_U8, 1, (uint64_t[]){3}, f->packed + 6);
	assert_int_equal(pawl_state_set_none(b, "type", NULL), 0);
	assert_int_equal(pawl_state_set_int(a, "epoch", 3, NULL), 0);
	assert_int_equal(pawl_state_set_int(b, "epoch", 4, NULL), 0);
	assert_int_equal(pawl_state_set_float(a, "lr", 0.1, NULL), 0);
	assert_int_equal(pawl_state_set_float(b, "lr", NAN, NULL), 0);
	assert_int_equal(pawl_state_set_bool(b, "new/flag", 1, NULL), 0);
	assert_int_equal(pawl_state_set_str(a, "name", "old \"one\"", NULL), 0);
	assert_int_equal(pawl_state_set_str(b, "name", f->text, NULL), 0);
	assert_int_equal(pawl_state_set_bytes(a, "blob", "123", 3, NULL), 0);
	assert_int_equal(pawl_state_set_bytes(b, "blob", "1234", 4, NULL), 0);
	assert_int_equal(pawl_state_set_float(a, "same", NAN, NULL), 0);
	assert_int_equal(pawl_state_set_float(b, "same", NAN, NULL), 0);
	save(f, 1, a, NULL);
	save(f, 2, b, NULL);
	static const struct pawl_diff_row want[] = {
		/* in order of paths */
		{"blob", PAWL_CHANGED, 0, "3 bytes", "4 bytes", 0, 0},
		{"epoch", PAWL_CHANGED, 0, "3", "4", 0, 0},
		{"gone", PAWL_REMOVED, 1, "U8 [3]", "", 0, 0},
		{"lr", PAWL_CHANGED, 0, "0.1", "nan", 0, 0},
		{"name", PAWL_CHANGED, 0, "\"old \\\"one\\\"\"", "str of 6000 bytes", 0, 0},
		{"new/flag", PAWL_ADDED, 0, "", "true", 0, 0},
		{"shape", PAWL_CHANGED, 1, "U8 [3]", "U8 [3, 1]", 0, 0},
		{"type", PAWL_CHANGED, 1, "U8 [3]", "none", 0, 0},
	};
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), sizeof want / sizeof *want);
	for (size_t i = 0; i < pawl_diff_count(d); i++) {
		const struct pawl_diff_row *row = pawl_diff_get(d, i);
		assert_string_equal(row->path, want[i].path);
		assert_int_equal(row->change, want[i].change);
		assert_int_equal(row->is_tensor, want[i].is_tensor);
		assert_string_equal(row->was, want[i].was);
		assert_string_equal(row->is, want[i].is);
		assert_true(isnan(row->max_abs) && isnan(row->max_rel));
	}
	pawl_diff_free(d);
}

/* A text, and a container of one element, as a type and kind. */
static struct pawl_state *
kinds(const char *text_kind, int type, const char *kind)
{
	struct pawl_error err = {0};
	struct pawl_state *s = NULL;
	static const struct pawl_scalar text = {.type = PAWL_STR, .ptr = "text", .len = 4},
					list = {.type = PAWL_STR, .ptr = "list", .len = 4},
					one = {.type = PAWL_STR, .ptr = "1", .len = 1};

	made_check(pawl_state_new(&s, &err), &err);
	made_check(pawl_state_begin(s, PAWL_DICT, &err), &err);
	made_check(pawl_state_key(s, &text, &err), &err);
	made_check(pawl_state_kind(s, text_kind, &err), &err);
	made_check(pawl_state_add(s, &one, &err), &err);
	made_check(pawl_state_key(s, &list, &err), &err);
	made_check(pawl_state_kind(s, kind, &err), &err);
	made_check(pawl_state_begin(s, type, &err), &err);
	made_check(pawl_state_add(s, &one, &err), &err);
	made_check(pawl_state_end(s, &err), &err);
	made_check(pawl_state_end(s, &err), &err);
	return s;
}

static void
test_types_and_kinds_of_equal_contents_are_changes(void **state)
{
	struct fixture *f = *state;
	static const struct pawl_diff_row want[] = {
		{"list", PAWL_CHANGED, 0, "list (deque)", "tuple", 0, 0},
		{"text", PAWL_CHANGED, 0, "\"1\" (decimal)", "\"1\"", 0, 0},
	};

	save(f, 1, kinds("decimal", PAWL_LIST, "deque"), NULL);
	save(f, 2, kinds("", PAWL_TUPLE, ""), NULL);
	save(f, 3, kinds("", PAWL_TUPLE, ""), NULL);
	struct pawl_diff *d = diff(f, 1, 2);
	assert_int_equal(pawl_diff_count(d), 2);
	for (size_t i = 0; i < 2; i++) {
		const struct pawl_diff_row *row = pawl_diff_get(d, i);
		assert_string_equal(row->path, want[i].path);
		assert_int_equal(row->change, want[i].change);
		assert_string_equal(row->was, want[i].was);
		assert_string_equal(row->is, want[i].is);
	}
	pawl_diff_free(d);
	d = diff(f, 2, 3);
	assert_int_equal(pawl_diff_count(d), 0);
	pawl_diff_free(d);
}

/* More than a slab, with tensors that cross its border at odd places. */
static void
test_P16_tensors_larger_than_the_memory_used_are_compared_in_a_stream(void **state)
{
	struct fixture *f = *state;
	const uint64_t n = 3000001, small = 7;
	double *big = calloc(n, sizeof *big);
	struct pawl_meter meter = {0};
	struct pawl_error err = {0};
	struct pawl_diff *d = NULL;
	for (uint64_t id = 1; id <= 2; id++) {
		struct pawl_state *s = NULL;
		assert_int_equal(pawl_state_new(&s, NULL), 0);
		set(s, "a", PAWL_U8, 1, &small, f->packed);
		set(s, "b", PAWL_F64, 1, &n, big);
		set(s, "c", PAWL_U8, 1, &small, f->packed + 1);
		save(f, id, s, &(struct made_opts){.block_bytes = 65536});
		big[2100000] = 5;
		big[n - 1] = 6;
		f->packed[0] = 1;
		f->packed[7] = 9;
	}
	made_check(pawl_diff_open(f->made.run, 1, f->made.run, 2, &meter, &d, &err), &err);
	assert_int_equal(pawl_diff_count(d), 3);
	assert_true(row_of(d, "a")->max_abs == 1);
	assert_true(row_of(d, "b")->max_abs == 6);
	assert_true(row_of(d, "c")->max_abs == 9);
	assert_int_equal(meter.total_bytes, 2 * (8 * n + 14));
	assert_int_equal(meter.done_bytes, meter.total_bytes);
	pawl_diff_free(d);
	d = NULL;
	meter.cancel = 1;
	assert_int_equal(pawl_diff_open(f->made.run, 1, f->made.run, 2, &meter, &d, &err), PAWL_ECANCELLED);
	assert_null(d);
	free(big);
}

static void
test_P1_damage_is_an_error_not_a_difference(void **state)
{
	struct fixture *f = *state;
	struct pawl_diff *d = NULL;
	struct pawl_error err = {0};
	save(f, 1, common(f), NULL);
	f->weight[0][0] = 9;
	save(f, 2, common(f), NULL);
	made_flip(&f->made, 2, "rank00000-00000.safetensors", 4096, 1);
	assert_int_equal(pawl_diff_open(f->made.run, 1, f->made.run, 2, NULL, &d, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "checkpoint_000002"));
	assert_int_equal(pawl_diff_open(f->made.run, 1, f->made.run, 3, NULL, &d, &err), PAWL_ENOTFOUND);
	assert_int_equal(pawl_diff_open(f->made.run, 1, NULL, 3, NULL, &d, &err), PAWL_EUSAGE);
	assert_null(d);
}

/* The store of the run, whose checkpoint 2 is deleted when its first pack is opened. */
static struct store_ops deleting;
static const struct store_ops *straight;
static atomic_bool is_deleted;

static int
open_after_deletion(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                    struct pawl_error *err)
{
	if (strstr(key, "checkpoint_000002/rank") && !atomic_exchange(&is_deleted, true))
		assert_int_equal(straight->remove_folder(s, "checkpoints/checkpoint_000002", err), 0);
	return straight->open(s, key, ret, ret_nbytes, err);
}

static void
test_P6_a_checkpoint_that_is_deleted_meanwhile_is_not_damaged(void **state)
{
	struct fixture *f = *state;
	struct pawl_diff *d = NULL;
	struct pawl_error err = {0};
	save(f, 1, common(f), NULL);
	f->weight[0][0] = 9;
	save(f, 2, common(f), NULL);
	straight = f->made.run->store->ops;
	deleting = *straight;
	deleting.open = open_after_deletion;
	f->made.run->store->ops = &deleting;
	assert_int_equal(pawl_diff_open(f->made.run, 1, f->made.run, 2, NULL, &d, &err), PAWL_ENOTFOUND);
	f->made.run->store->ops = straight;
	assert_non_null(strstr(err.message, "checkpoint_000002 was deleted while it was read"));
	assert_null(d);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_equal_checkpoints_have_no_rows),
		T(test_blocks_with_equal_sums_are_not_read),
		T(test_the_way_of_cutting_does_not_matter),
		T(test_changed_tensors_show_their_largest_difference),
		T(test_nan_for_nan_is_no_change),
		T(test_leaves_come_go_and_change_their_type),
		T(test_types_and_kinds_of_equal_contents_are_changes),
		T(test_P16_tensors_larger_than_the_memory_used_are_compared_in_a_stream),
		T(test_P1_damage_is_an_error_not_a_difference),
		T(test_P6_a_checkpoint_that_is_deleted_meanwhile_is_not_damaged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
