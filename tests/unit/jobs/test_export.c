/* SPDX-License-Identifier: Apache-2.0 */
/* export: one file and shard sets, names, durability of what was there before, damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdatomic.h>

#include "base/fd.h"
#include "base/json.h"
#include "helpers/make_checkpoint.h"
#include "pawl_jobs.h"

struct fixture {
	struct made_run made;
	char out[128]; /* a folder for targets */
	float weight[40][30];
	uint16_t half[100];
	double pairs[3][2];
	float tied[8];
};

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

static void
save(struct fixture *f)
{
	struct pawl_state *s = NULL;
	char text[5000] = {'x'};
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	set(s, "model/a.weight", PAWL_F32, 2, (uint64_t[]){40, 30}, f->weight);
	set(s, "model/layer/half", PAWL_F16, 1, (uint64_t[]){100}, f->half);
	set(s, "model/embed", PAWL_F32, 1, (uint64_t[]){8}, f->tied);
	set(s, "model/head", PAWL_F32, 1, (uint64_t[]){8}, f->tied);
	set(s, "model/with%2Fslash", PAWL_C128, 1, (uint64_t[]){3}, f->pairs);
	set(s, "optimizer/empty", PAWL_F32, 2, (uint64_t[]){0, 4}, NULL);
	assert_int_equal(pawl_state_set_int(s, "epoch", 1, NULL), 0);
	assert_int_equal(pawl_state_set_bytes(s, "blob", text, sizeof text, NULL), 0);
	make_checkpoint(f->made.run, &(struct made_opts){.id = 1, .ranks = 3, .grid = {2, 3}, .block_bytes = 512}, s);
	pawl_state_free(s);
}

static int
setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	unsigned char *bytes = (unsigned char *)f->weight;
	for (size_t i = 0; i < sizeof f->weight + sizeof f->half + sizeof f->pairs + sizeof f->tied; i++)
		bytes[i] = (unsigned char)(i * 37 + i / 256);
	made_open(&f->made, NULL);
	snprintf(f->out, sizeof f->out, "%s/out", f->made.root);
	assert_int_equal(mkdir(f->out, 0777), 0);
	save(f);
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

/* A safetensors file in memory. */
struct file {
	struct buf bytes;
	struct bump memory;
	struct st_table table;
};

static void
file_clear(struct file *file)
{
	buf_clear(&file->bytes);
	bump_clear(&file->memory);
}

static void
load(const struct fixture *f, const char *name, struct file *ret)
{
	char path[256];
	uint64_t json_len = 0;
	struct pawl_error err = {0};
	snprintf(path, sizeof path, "%s/%s", f->out, name);
	made_check(fd_read_file(AT_FDCWD, path, 1 << 24, &ret->bytes, &err), &err);
	made_check(safetensors_header_len(name, (unsigned char *)ret->bytes.ptr, ret->bytes.len, &json_len, &err),
	           &err);
	made_check(
		safetensors_decode(name, ret->bytes.ptr + 8, json_len, ret->bytes.len, &ret->memory, &ret->table, &err),
		&err);
	assert_int_equal(ret->table.data_begin % 4096, 0);
	assert_string_equal(safetensors_metadata(&ret->table, "format")->value, "pt");
}

static void
check_tensor(const struct file *file, const char *name, int dtype, const void *data, size_t nbytes)
{
	for (size_t i = 0; i < file->table.n_tensors; i++) {
		const struct st_tensor *t = &file->table.tensors[i];
		if (strcmp(t->name, name) != 0)
			continue;
		assert_int_equal(t->dtype, dtype);
		assert_int_equal(t->end - t->begin, nbytes);
		if (nbytes)
			assert_memory_equal(file->bytes.ptr + file->table.data_begin + t->begin, data, nbytes);
		return;
	}
	fail_msg("%s is not in the file", name);
}

static int
export_to(struct fixture *f, const char *name, const struct pawl_convert_opts *opts, struct pawl_error *err)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", f->out, name);
	return pawl_convert(f->made.run, 1, path, opts, NULL, NULL, err);
}

static size_t
count_files(const char *folder)
{
	size_t n = 0;
	DIR *dir = opendir(folder);
	assert_non_null(dir);
	for (struct dirent *e; (e = readdir(dir));)
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(dir);
	return n;
}

static void
test_everything_in_one_file_tied_tensors_once(void **state)
{
	struct fixture *f = *state;
	PAWL_CLEAN(file_clear) struct file file = {0};
	struct pawl_error err = {0};
	struct pawl_meter meter = {0};
	char path[256];
	snprintf(path, sizeof path, "%s/model.safetensors", f->out);
	made_check(pawl_convert(f->made.run, 1, path, NULL, &meter, NULL, &err), &err);
	load(f, "model.safetensors", &file);
	assert_int_equal(file.table.n_tensors, 5);
	check_tensor(&file, "model/a.weight", PAWL_F32, f->weight, sizeof f->weight);
	check_tensor(&file, "model/layer/half", PAWL_F16, f->half, sizeof f->half);
	check_tensor(&file, "model/embed", PAWL_F32, f->tied, sizeof f->tied);
	check_tensor(&file, "model/with/slash", PAWL_F64, f->pairs, sizeof f->pairs);
	check_tensor(&file, "optimizer/empty", PAWL_F32, NULL, 0);
	assert_int_equal(meter.done_bytes, meter.total_bytes);
	assert_int_equal(meter.total_bytes, sizeof f->weight + sizeof f->half + sizeof f->tied + sizeof f->pairs);
	assert_int_equal(count_files(f->out), 1);
}

static void
test_names_are_selected_stripped_and_dotted(void **state)
{
	struct fixture *f = *state;
	PAWL_CLEAN(file_clear) struct file file = {0};
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	const char *globs[] = {"model/layer", "model/head"};
	struct pawl_error err = {0};
	opts.include = globs;
	opts.n_include = 2;
	opts.strip_prefix = "model/";
	opts.dots = 1;
	made_check(export_to(f, "part.safetensors", &opts, &err), &err);
	load(f, "part.safetensors", &file);
	assert_int_equal(file.table.n_tensors, 2);
	check_tensor(&file, "layer.half", PAWL_F16, f->half, sizeof f->half);
	check_tensor(&file, "head", PAWL_F32, f->tied, sizeof f->tied);
	globs[0] = globs[1] = "nothing";
	assert_int_equal(export_to(f, "none.safetensors", &opts, &err), PAWL_ENOTFOUND);
	opts.n_include = 0;
	opts.strip_prefix = "model/embed";
	assert_int_equal(export_to(f, "none.safetensors", &opts, &err), PAWL_EUSAGE);
	assert_int_equal(count_files(f->out), 1);
}

static void
test_a_shard_set_has_an_index_of_the_usual_form(void **state)
{
	struct fixture *f = *state;
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	struct pawl_error err = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char path[256];
	struct json *root = NULL;
	uint64_t total = 0;
	opts.max_shard_bytes = 240; /* the weight alone is larger */
	made_check(export_to(f, "set/", &opts, &err), &err);
	snprintf(path, sizeof path, "%s/set/model.safetensors.index.json", f->out);
	made_check(fd_read_file(AT_FDCWD, path, 1 << 20, &text, &err), &err);
	made_check(json_parse("index", text.ptr, text.len, NULL, &memory, &root, &err), &err);
	made_check(json_get_u64("index", json_get(root, "metadata"), "total_size", &total, &err), &err);
	assert_int_equal(total, sizeof f->weight + sizeof f->half + sizeof f->tied + sizeof f->pairs);
	const struct json *map = json_get(root, "weight_map");
	assert_int_equal(map->len, 5);
	assert_string_equal(json_get(map, "model/a.weight")->str, "model-00001-of-00003.safetensors");
	size_t n_tensors = 0;
	for (int i = 1; i <= 3; i++) {
		PAWL_CLEAN(file_clear) struct file file = {0};
		snprintf(path, sizeof path, "set/model-%05d-of-00003.safetensors", i);
		load(f, path, &file);
		for (size_t t = 0; t < file.table.n_tensors; t++)
			assert_string_equal(json_get(map, file.table.tensors[t].name)->str, path + 4);
		n_tensors += file.table.n_tensors;
		if (i == 1)
			check_tensor(&file, "model/a.weight", PAWL_F32, f->weight, sizeof f->weight);
	}
	assert_int_equal(n_tensors, 5);
	snprintf(path, sizeof path, "%s/set", f->out);
	assert_int_equal(count_files(path), 4);
	/* What fits into one file has no index. */
	opts.max_shard_bytes = 1 << 20;
	made_check(export_to(f, "one", &opts, &err), &err);
	snprintf(path, sizeof path, "%s/one/model.safetensors", f->out);
	assert_int_equal(access(path, R_OK), 0);
	snprintf(path, sizeof path, "%s/one", f->out);
	assert_int_equal(count_files(path), 1);
}

static void
test_nothing_is_replaced_unless_asked_for(void **state)
{
	struct fixture *f = *state;
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	struct pawl_error err = {0};
	char path[256], byte = 0;
	PAWL_CLEAN(file_clear) struct file file = {0};
	snprintf(path, sizeof path, "%s/model.safetensors", f->out);
	int fd = open(path, O_CREAT | O_WRONLY, 0666);
	assert_int_equal(write(fd, "x", 1), 1);
	close(fd);
	assert_int_equal(export_to(f, "model.safetensors", &opts, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "model.safetensors"));
	fd = open(path, O_RDONLY);
	assert_int_equal(read(fd, &byte, 1), 1);
	assert_int_equal(byte, 'x');
	close(fd);
	opts.overwrite = 1;
	made_check(export_to(f, "model.safetensors", &opts, &err), &err);
	load(f, "model.safetensors", &file);
	opts.overwrite = 0;
	opts.max_shard_bytes = 240;
	made_check(export_to(f, "set", &opts, &err), &err);
	assert_int_equal(export_to(f, "set", &opts, &err), PAWL_EEXISTS);
	opts.overwrite = 1;
	made_check(export_to(f, "set", &opts, &err), &err);
	snprintf(path, sizeof path, "%s/set", f->out);
	assert_int_equal(count_files(path), 4);
}

static bool
has_file(const struct fixture *f, const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/set/%s", f->out, name);
	return access(path, F_OK) == 0;
}

static void
test_an_old_model_in_another_form_hides_no_new_one(void **state)
{
	struct fixture *f = *state;
	struct pawl_convert_opts whole = PAWL_CONVERT_OPTS_INIT, shards = whole;
	struct pawl_error err = {0};
	shards.max_shard_bytes = 240;
	made_check(export_to(f, "set/", &shards, &err), &err);
	assert_int_equal(export_to(f, "set/", &whole, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "model.safetensors.index.json"));
	whole.overwrite = shards.overwrite = 1;
	made_check(export_to(f, "set/", &whole, &err), &err);
	assert_true(has_file(f, "model.safetensors") && !has_file(f, "model.safetensors.index.json"));
	shards.overwrite = 0;
	assert_int_equal(export_to(f, "set/", &shards, &err), PAWL_EEXISTS);
	shards.overwrite = 1;
	made_check(export_to(f, "set/", &shards, &err), &err);
	assert_true(!has_file(f, "model.safetensors") && has_file(f, "model.safetensors.index.json"));
}

static void
test_P1_damage_leaves_no_file(void **state)
{
	struct fixture *f = *state;
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	struct pawl_meter meter = {.cancel = 1};
	struct pawl_error err = {0};
	char path[256];
	snprintf(path, sizeof path, "%s/c.safetensors", f->out);
	assert_int_equal(pawl_convert(f->made.run, 1, path, NULL, &meter, NULL, &err), PAWL_ECANCELLED);
	made_flip(&f->made, 1, "rank00001-00000.safetensors", 4100, 1);
	assert_int_equal(export_to(f, "a.safetensors", NULL, &err), PAWL_ECORRUPT);
	assert_non_null(strstr(err.message, "checkpoint_000001"));
	opts.max_shard_bytes = 240;
	assert_int_equal(export_to(f, "set", &opts, &err), PAWL_ECORRUPT);
	snprintf(path, sizeof path, "%s/set", f->out);
	assert_int_not_equal(access(path, F_OK), 0); /* not even an empty folder */
	assert_int_equal(count_files(f->out), 0);
	assert_int_equal(mkdir(path, 0777), 0);
	assert_int_equal(export_to(f, "set", &opts, &err), PAWL_ECORRUPT);
	assert_int_equal(access(path, F_OK), 0); /* it was there before */
	assert_int_equal(count_files(path), 0);
}

static void
test_targets_that_cannot_be_written_are_refused(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	made_check(export_to(f, "file.safetensors", NULL, &err), &err);
	assert_true(export_to(f, "file.safetensors/below.safetensors", NULL, &err) < 0);
	assert_non_null(strstr(err.message, "file.safetensors"));
	assert_int_equal(pawl_convert(f->made.run, 1, "", NULL, NULL, NULL, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_convert(f->made.run, 9, "x.safetensors", NULL, NULL, NULL, &err), PAWL_ENOTFOUND);
	assert_int_equal(pawl_convert(NULL, 1, "x.safetensors", NULL, NULL, NULL, &err), PAWL_EUSAGE);
	/* A folder takes the usual name. */
	made_check(export_to(f, "", NULL, &err), &err);
	char path[256];
	snprintf(path, sizeof path, "%s/model.safetensors", f->out);
	assert_int_equal(access(path, R_OK), 0);
}

static void
test_two_tensors_never_get_one_name(void **state)
{
	struct fixture *f = *state;
	struct pawl_convert_opts opts = PAWL_CONVERT_OPTS_INIT;
	struct pawl_error err = {0};
	struct pawl_state *s = NULL;
	char path[256];
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	set(s, "a/b", PAWL_F32, 1, (uint64_t[]){8}, f->tied);
	set(s, "a.b", PAWL_F16, 1, (uint64_t[]){100}, f->half);
	make_checkpoint(f->made.run, &(struct made_opts){.id = 2}, s);
	pawl_state_free(s);
	opts.dots = 1;
	snprintf(path, sizeof path, "%s/x.safetensors", f->out);
	assert_int_equal(pawl_convert(f->made.run, 2, path, &opts, NULL, NULL, &err), PAWL_EEXISTS);
	assert_non_null(strstr(err.message, "a.b"));
	assert_int_equal(count_files(f->out), 0);
}

/* More than a slab: tensors are carried over in several reads. */
static void
test_P16_tensors_larger_than_the_memory_used(void **state)
{
	struct fixture *f = *state;
	const uint64_t n = 9000001;
	float *big = malloc(n * sizeof *big);
	struct pawl_state *s = NULL;
	struct pawl_error err = {0};
	PAWL_CLEAN(file_clear) struct file file = {0};
	char path[256];
	for (uint64_t i = 0; i < n; i++)
		big[i] = (float)(i * 2654435761u);
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	set(s, "big", PAWL_F32, 1, &n, big);
	set(s, "half", PAWL_F16, 1, (uint64_t[]){100}, f->half);
	make_checkpoint(f->made.run, &(struct made_opts){.id = 2, .block_bytes = 1 << 20, .ranks = 2, .grid = {3}}, s);
	pawl_state_free(s);
	snprintf(path, sizeof path, "%s/big.safetensors", f->out);
	made_check(pawl_convert(f->made.run, 2, path, NULL, NULL, NULL, &err), &err);
	file.bytes.max = 0;
	made_check(fd_read_file(AT_FDCWD, path, 1 << 28, &file.bytes, &err), &err);
	assert_int_equal(file.bytes.len, 4096 + n * 4 + 200);
	assert_memory_equal(file.bytes.ptr + 4096, big, n * 4);
	assert_memory_equal(file.bytes.ptr + 4096 + n * 4, f->half, 200);
	free(big);
}

/* The store of the run, whose checkpoint 1 is deleted when its first pack is opened. */
static struct store_ops deleting;
static const struct store_ops *straight;
static atomic_bool is_deleted;

static int
open_after_deletion(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                    struct pawl_error *err)
{
	if (strstr(key, "checkpoint_000001/rank") && !atomic_exchange(&is_deleted, true))
		assert_int_equal(straight->remove_folder(s, "checkpoints/checkpoint_000001", err), 0);
	return straight->open(s, key, ret, ret_nbytes, err);
}

static void
test_P6_a_checkpoint_that_is_deleted_meanwhile_is_not_damaged(void **state)
{
	struct fixture *f = *state;
	struct pawl_error err = {0};
	straight = f->made.run->store->ops;
	deleting = *straight;
	deleting.open = open_after_deletion;
	f->made.run->store->ops = &deleting;
	assert_int_equal(export_to(f, "a.safetensors", NULL, &err), PAWL_ENOTFOUND);
	f->made.run->store->ops = straight;
	assert_non_null(strstr(err.message, "checkpoint_000001 was deleted while it was read"));
	assert_int_equal(count_files(f->out), 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_everything_in_one_file_tied_tensors_once),
		T(test_names_are_selected_stripped_and_dotted),
		T(test_a_shard_set_has_an_index_of_the_usual_form),
		T(test_nothing_is_replaced_unless_asked_for),
		T(test_an_old_model_in_another_form_hides_no_new_one),
		T(test_P1_damage_leaves_no_file),
		T(test_P6_a_checkpoint_that_is_deleted_meanwhile_is_not_damaged),
		T(test_targets_that_cannot_be_written_are_refused),
		T(test_two_tensors_never_get_one_name),
		T(test_P16_tensors_larger_than_the_memory_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
