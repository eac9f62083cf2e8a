/* SPDX-License-Identifier: Apache-2.0 */
/* copy: a checkpoint from one store to another, in both directions, completely or not at all,
 * continued after any fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/fd.h"
#include "catalog/catalog.h"
#include "copy/copy.h"
#include "helpers/make_checkpoint.h"
#include "ranks/abort_commit.h"

#define N 120000
#define FOLDER "checkpoints/checkpoint_000001"
#define PACK "rank00001-00000.safetensors"

struct fixture {
	struct made_run made;
	float weight[N];
	struct pawl_state *state;
	struct store *from, *disk, *memory;
	char dir[64];
	struct pawl_error err;
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
	made_open(&f->made, NULL);
	make_checkpoint(f->made.run, &(struct made_opts){.id = 1, .ranks = 4, .grid = {4}, .block_bytes = 4096},
	                f->state);
	snprintf(f->dir, sizeof f->dir, "/var/tmp/pawl-copy-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	made_check(store_open(f->made.root, false, false, &f->from, &f->err), &f->err);
	made_check(store_open(f->dir, true, false, &f->disk, &f->err), &f->err);
	made_check(store_open("mem:", true, false, &f->memory, &f->err), &f->err);
	*state = f;
	return 0;
}

static int
teardown(void **state)
{
	struct fixture *f = *state;
	store_close(f->from);
	store_close(f->disk);
	store_close(f->memory);
	assert_int_equal(fd_remove_tree(AT_FDCWD, f->dir, NULL), 0);
	pawl_state_free(f->state);
	made_close(&f->made);
	free(f);
	return 0;
}

static struct copy_job
job_to(struct fixture *f, struct store *to)
{
	return (struct copy_job){.from = f->from, .to = to, .from_folder = FOLDER, .to_folder = FOLDER};
}

static bool
is_there(struct store *s, const char *key)
{
	struct store_entry entry;
	return store_stat(s, key, &entry, NULL) == 0;
}

/* Every file of the checkpoint there is the same as at the source, and nothing else is in the
 * folder. */
struct comparison {
	struct store *a, *b;
	size_t n;
};

static int
compare_file(void *arg, const struct store_entry *entry)
{
	struct comparison *c = arg;
	struct buf a = {0}, b = {0};
	char key[256];
	snprintf(key, sizeof key, FOLDER "/%s", entry->name);
	assert_int_equal(store_get(c->a, key, 1 << 24, &a, NULL), 0);
	assert_int_equal(store_get(c->b, key, 1 << 24, &b, NULL), 0);
	assert_int_equal(a.len, b.len);
	assert_memory_equal(a.ptr, b.ptr, a.len);
	buf_clear(&a);
	buf_clear(&b);
	c->n++;
	return 0;
}

static void
assert_same(struct store *a, struct store *b)
{
	struct comparison c = {a, b, 0}, d = {b, a, 0};
	assert_int_equal(store_list(a, FOLDER, compare_file, &c, NULL), 0);
	assert_int_equal(store_list(b, FOLDER, compare_file, &d, NULL), 0);
	assert_int_equal(c.n, 5);
	assert_int_equal(d.n, 5);
}

static void
spoil(struct store *s, const char *key, size_t at)
{
	struct buf b = {0};
	assert_int_equal(store_get(s, key, 1 << 24, &b, NULL), 0);
	b.ptr[at] = (char)(b.ptr[at] ^ 1);
	assert_int_equal(store_put_bytes(s, key, b.ptr, b.len, 0, NULL), 0);
	buf_clear(&b);
}

static void
test_P14_a_checkpoint_is_copied_up_and_down_and_is_the_same(void **state)
{
	struct fixture *f = *state;
	struct copy_result r = {0};
	struct pawl_meter meter = {0};
	struct copy_job up = job_to(f, f->memory);
	up.meter = &meter;
	made_check(copy_checkpoint(&up, &r, &f->err), &f->err);
	assert_false(r.was_there);
	assert_int_equal(r.id, 1);
	assert_int_equal(r.sent_bytes, r.bytes);
	assert_int_equal(meter.done_bytes, meter.total_bytes);
	assert_int_equal(meter.done_bytes, r.bytes);
	assert_same(f->from, f->memory);
	struct copy_job down = {.from = f->memory, .to = f->disk, .from_folder = FOLDER, .to_folder = FOLDER};
	made_check(copy_checkpoint(&down, &r, &f->err), &f->err);
	assert_same(f->memory, f->disk);
}

static void
test_P15_a_second_copy_does_nothing_and_another_checkpoint_is_in_the_way(void **state)
{
	struct fixture *f = *state;
	struct copy_result r = {0};
	struct copy_job job = job_to(f, f->disk);
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	assert_true(r.was_there);
	assert_int_equal(r.sent_bytes, 0);
	spoil(f->disk, FOLDER "/manifest.json", 5);
	assert_int_equal(copy_checkpoint(&job, &r, &f->err), PAWL_EEXISTS);
	assert_non_null(strstr(f->err.message, "another checkpoint"));
}

static void
test_P1_a_damaged_source_is_named_and_nothing_is_committed(void **state)
{
	struct fixture *f = *state;
	struct copy_job job = job_to(f, f->memory);
	made_flip(&f->made, 1, PACK, 5000, 4);
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ECORRUPT);
	assert_non_null(strstr(f->err.message, "checkpoint_000001: " PACK ": bytes 4096 to 8192"));
	assert_false(is_there(f->memory, FOLDER "/manifest.json"));
	made_flip(&f->made, 1, PACK, 5000, 4);
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	assert_same(f->from, f->memory);
}

/* A store whose operations are those of another one, but for a few. */
static struct store_ops twisted;
static const struct store_ops *straight;

static void
twist(struct store *s)
{
	straight = s->ops;
	twisted = *straight;
	s->ops = &twisted;
}

static int
put_after_others(struct store *s, const char *key, const struct pawl_slice *parts, size_t n, int flags,
                 struct pawl_error *err)
{
	PAWL_FREE char *folder = mem_strdup(key);
	*strrchr(folder, '/') = 0;
	twisted.put = straight->put;
	made_check(straight->remove_folder(s, folder, err), err);
	return straight->put(s, key, parts, n, flags, err);
}

static void
look_flat(struct store *s, struct store_caps *ret)
{
	straight->caps(s, ret);
	ret->rename_folder = false;
}

static int
list_after_others(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	made_check(straight->remove(s, FOLDER "/" PACK, err), err); /* in the first listing it is not there yet */
	return straight->list(s, folder, fn, arg, err);
}

/* Opening the target as a run removes what is not yet a checkpoint. */
static void
test_P2_a_folder_that_was_taken_away_is_not_committed(void **state)
{
	struct fixture *f = *state;
	struct copy_job job = job_to(f, f->memory);
	twist(f->memory);
	twisted.put = put_after_others;
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_EIO);
	assert_non_null(strstr(f->err.message, "rank00000-00000.safetensors of "));
	assert_false(is_there(f->memory, FOLDER "/manifest.json"));
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	assert_same(f->from, f->memory);
}

static void
test_P2_a_prefix_that_lacks_a_file_is_not_committed(void **state)
{
	struct fixture *f = *state;
	struct copy_job job = job_to(f, f->memory);
	twist(f->memory);
	twisted.caps = look_flat;
	twisted.list = list_after_others;
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_EIO);
	assert_non_null(strstr(f->err.message, PACK));
	assert_false(is_there(f->memory, FOLDER "/manifest.json"));
	twisted.list = straight->list;
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	assert_same(f->from, f->memory);
}

static int
stat_old(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	int rc = straight->stat(s, key, ret, err);
	ret->mtime_ns -= (int64_t)86400 * 1000000000;
	return rc;
}

static void
test_what_called_a_save_off_long_ago_is_in_nobodys_way(void **state)
{
	struct fixture *f = *state;
	struct copy_job job = job_to(f, f->memory);
	twist(f->memory);
	twisted.caps = look_flat;
	made_check(abort_commit_put(f->memory, FOLDER, NULL, &f->err), &f->err);
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ETRANSIENT);
	assert_non_null(strstr(f->err.message, "was aborted"));
	twisted.stat = stat_old;
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	assert_same(f->from, f->memory);
}

/* As a copy that was stopped before the end leaves it. */
static void
unpublish(struct fixture *f, struct store *s)
{
	char hidden[128];
	made_check(pawl_reload(f->made.run, &f->err), &f->err);
	const char *token = catalog_get(f->made.run->catalog, 1)->summary->token;
	snprintf(hidden, sizeof hidden, "checkpoints/.checkpoint_000001.%s.partial", token);
	made_check(store_publish(s, FOLDER, hidden, &f->err), &f->err);
}

/* What an earlier call has left is read before it is believed. */
static void
test_P15_what_is_there_is_not_sent_again_unless_it_is_wrong(void **state)
{
	struct fixture *f = *state;
	struct copy_result r = {0};
	struct copy_job job = job_to(f, f->memory);
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	const uint64_t all = r.bytes;
	unpublish(f, f->memory);
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	assert_int_equal(r.sent_bytes, 0);
	assert_int_equal(r.found_bytes, all);
	spoil(f->memory, FOLDER "/" PACK, 7000);
	unpublish(f, f->memory); /* negative control: of the right size, and wrong */
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	assert_true(r.sent_bytes > 0 && r.sent_bytes < all);
	assert_int_equal(r.sent_bytes + r.found_bytes, all);
	assert_same(f->from, f->memory);
}

#ifndef F_FULLFSYNC /* else it is that which is called */
/* The system's, for the library too; files are counted, and folders are not. */
static _Atomic unsigned n_syncs;

int
fsync(int fd)
{
	struct stat st;
	n_syncs += fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
	return (int)syscall(SYS_fsync, fd);
}

static void
test_P3_what_is_found_in_a_folder_is_synced(void **state)
{
	struct fixture *f = *state;
	struct copy_result r = {0};
	struct copy_job job = job_to(f, f->disk);
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	unpublish(f, f->disk);
	unsigned before = n_syncs;
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	assert_int_equal(r.found_bytes, r.bytes);
	assert_int_equal(n_syncs - before, 4 + 1); /* the packs and the manifest */
	assert_same(f->from, f->disk);
}
#endif

/* At every call of the target that fails once: an error and no checkpoint, or success. Then the
 * next call completes it. */
static void
test_P2_P15_after_a_failure_at_any_call_the_next_one_completes_it(void **state)
{
	struct fixture *f = *state;
	static const char *const operations[] = {"create", "write", "finish", "put", "publish", "read", "list", "stat"};
	int failed = 0;
	for (size_t o = 0; o < sizeof operations / sizeof operations[0]; o++) {
		for (uint64_t nth = 1; nth <= 6; nth++) {
			struct pawl_fault *fault = NULL;
			struct store *inner = NULL, *target = NULL;
			char folder[96];
			snprintf(folder, sizeof folder, "c/ckpt_%zu_%d", o, (int)nth);
			made_check(store_open(f->dir, true, false, &inner, &f->err), &f->err);
			made_check(pawl_fault_new(operations[o], nth, PAWL_EIO, 0, &fault, &f->err), &f->err);
			made_check(store_fault_wrap(inner, fault, &target, &f->err), &f->err);
			struct copy_job job = job_to(f, target);
			job.to_folder = folder;
			job.n_streams = 2;
			int rc = copy_checkpoint(&job, NULL, &f->err);
			failed += rc < 0;
			if (rc < 0) {
				char key[128];
				snprintf(key, sizeof key, "%s/manifest.json", folder);
				assert_false(is_there(f->disk, key));
				made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
			}
			store_close(target);
			pawl_fault_free(fault);
		}
	}
	assert_true(failed > 15); /* negative control: the faults did bite */
}

static void
test_R140_files_that_another_checkpoint_there_has_are_linked(void **state)
{
	struct fixture *f = *state;
	struct copy_result r = {0};
	struct copy_job job = job_to(f, f->disk);
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	job.to_folder = "checkpoints/second";
	job.like_folder = FOLDER;
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	assert_int_equal(r.linked_bytes, r.bytes);
	assert_int_equal(r.sent_bytes, 0);
	spoil(f->disk, FOLDER "/" PACK, 9); /* replaces the file, so that the second one keeps the old one */
	job.to_folder = "checkpoints/third";
	made_check(copy_checkpoint(&job, &r, &f->err), &f->err);
	assert_true(r.sent_bytes > 0); /* what is linked is read, too */
	assert_int_equal(r.linked_bytes + r.sent_bytes, r.bytes);
}

static void
test_P16_deadline_cancel_and_memory(void **state)
{
	struct fixture *f = *state;
	struct pawl_meter meter = {.cancel = 1};
	struct copy_job job = job_to(f, f->memory);
	job.meter = &meter;
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ECANCELLED);
	job.meter = NULL;
	job.deadline_ms = clock_mono_ms() - 1;
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ETIMEOUT);
	job.deadline_ms = 0;
	job.n_streams = COPY_MAX_STREAMS + 1;
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_EUSAGE);
	job.n_streams = 0;
	job.memory_bytes = 1000; /* less than a block */
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ELIMIT);
	assert_non_null(strstr(f->err.message, "blocks of 4096 bytes"));
	job.memory_bytes = 4096;
	job.n_streams = 8;
	made_check(copy_checkpoint(&job, NULL, &f->err), &f->err);
	assert_same(f->from, f->memory);
}

static void
test_a_source_that_is_not_there_or_lacks_a_file(void **state)
{
	struct fixture *f = *state;
	struct copy_job job = job_to(f, f->memory);
	job.from_folder = "checkpoints/nothing";
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ENOTFOUND);
	job.from_folder = FOLDER;
	assert_int_equal(store_remove(f->from, FOLDER "/" PACK, NULL), 0);
	assert_int_equal(copy_checkpoint(&job, NULL, &f->err), PAWL_ECORRUPT);
	assert_non_null(strstr(f->err.message, PACK ": the file is missing"));
	assert_false(is_there(f->memory, FOLDER "/manifest.json"));
}

/* pawl_copy: a single checkpoint at a path, which opens. */
static void
test_R144_one_checkpoint_by_hand(void **state)
{
	struct fixture *f = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *copy = NULL;
	char to[128];
	snprintf(to, sizeof to, "%s/alone", f->dir);
	made_check(pawl_reload(f->made.run, &f->err), &f->err);
	made_check(pawl_copy(f->made.run, 0, to, NULL, NULL, NULL, &f->err), &f->err);
	made_check(pawl_copy(f->made.run, 1, to, NULL, NULL, NULL, &f->err), &f->err);
	opts.root = to;
	opts.single = opts.read_only = 1;
	made_check(pawl_open(&opts, &copy, &f->err), &f->err);
	made_check(pawl_verify(copy, 0, NULL, NULL, &f->err), &f->err);
	pawl_close(copy, NULL);
	assert_int_equal(pawl_copy(f->made.run, 9, to, NULL, NULL, NULL, &f->err), PAWL_ENOTFOUND);
	assert_int_equal(pawl_copy(f->made.run, 1, "s3://bucket", NULL, NULL, NULL, &f->err), PAWL_EUSAGE);
	assert_int_equal(pawl_copy(f->made.run, 1, "", NULL, NULL, NULL, &f->err), PAWL_EUSAGE);
}

/* Deletes the checkpoint before its second pack is opened: for good, or until the next look at its
 * manifest finds none. */
static struct {
	bool called_off, gone;
	_Atomic unsigned n_packs;
} removal;
#define HIDDEN_FOLDER "checkpoints/.checkpoint_000001.0123456789abcdef0123456789abcdef.partial"

static int
open_while_deleting(struct store *s, const char *key, struct store_reader **ret, uint64_t *ret_nbytes,
                    struct pawl_error *err)
{
	if (strstr(key, ".safetensors") && ++removal.n_packs == 2) {
		removal.gone = true;
		made_check(straight->publish(s, FOLDER, HIDDEN_FOLDER, err), err);
		if (!removal.called_off)
			made_check(straight->remove_folder(s, HIDDEN_FOLDER, err), err);
	}
	return straight->open(s, key, ret, ret_nbytes, err);
}

static int
stat_and_put_back(struct store *s, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	int rc = straight->stat(s, key, ret, err);
	if (rc == PAWL_ENOTFOUND && removal.gone && removal.called_off) {
		removal.gone = false;
		made_check(straight->publish(s, HIDDEN_FOLDER, FOLDER, NULL), NULL);
	}
	return rc;
}

static void
begin_deleting(struct fixture *f, bool called_off)
{
	removal.called_off = called_off;
	removal.gone = false;
	removal.n_packs = 0;
	made_check(pawl_reload(f->made.run, &f->err), &f->err);
	twist(f->made.run->store);
	twisted.open = open_while_deleting;
	twisted.stat = stat_and_put_back;
}

static void
test_P6_a_checkpoint_that_is_deleted_while_it_is_copied_is_not_damaged(void **state)
{
	struct fixture *f = *state;
	char to[128];
	snprintf(to, sizeof to, "%s/alone", f->dir);
	begin_deleting(f, false);
	assert_int_equal(pawl_copy(f->made.run, 1, to, NULL, NULL, NULL, &f->err), PAWL_ENOTFOUND);
	assert_non_null(strstr(f->err.message, "checkpoint_000001 was deleted while it was read"));
	assert_false(is_there(f->disk, "alone/manifest.json"));
	assert_true(removal.gone);
}

static void
test_P6_a_checkpoint_whose_deletion_is_called_off_meanwhile_is_copied(void **state)
{
	struct fixture *f = *state;
	char to[128];
	snprintf(to, sizeof to, "%s/alone", f->dir);
	begin_deleting(f, true);
	made_check(pawl_copy(f->made.run, 1, to, NULL, NULL, NULL, &f->err), &f->err);
	assert_true(is_there(f->disk, "alone/manifest.json"));
	assert_true(removal.n_packs >= 2 && !removal.gone);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_P14_a_checkpoint_is_copied_up_and_down_and_is_the_same),
		T(test_P15_a_second_copy_does_nothing_and_another_checkpoint_is_in_the_way),
		T(test_P1_a_damaged_source_is_named_and_nothing_is_committed),
		T(test_P15_what_is_there_is_not_sent_again_unless_it_is_wrong),
		T(test_P2_a_folder_that_was_taken_away_is_not_committed),
		T(test_P2_a_prefix_that_lacks_a_file_is_not_committed),
		T(test_what_called_a_save_off_long_ago_is_in_nobodys_way),
#ifndef F_FULLFSYNC
		T(test_P3_what_is_found_in_a_folder_is_synced),
#endif
		T(test_P2_P15_after_a_failure_at_any_call_the_next_one_completes_it),
		T(test_R140_files_that_another_checkpoint_there_has_are_linked),
		T(test_P16_deadline_cancel_and_memory),
		T(test_a_source_that_is_not_there_or_lacks_a_file),
		T(test_R144_one_checkpoint_by_hand),
		T(test_P6_a_checkpoint_that_is_deleted_while_it_is_copied_is_not_damaged),
		T(test_P6_a_checkpoint_whose_deletion_is_called_off_meanwhile_is_copied),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
