/* SPDX-License-Identifier: Apache-2.0 */
/* What a save writes if only a part of the state has changed, and that all of the state is there
 * (R140). Through pawl.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include "helpers/ranks.h"
#include "helpers/small_run.h"
#include "store/store.h"

#define MAX_TENSORS 400
#define FIXED_BYTES 8192 /* the header of pack 0, which holds the state's tree as the manifest does, and one more */

static uint64_t free_bytes; /* of the disk; 0 = as it is */

int __real_store_space(struct store *s, uint64_t *ret, struct pawl_error *err);
int __wrap_store_space(struct store *s, uint64_t *ret, struct pawl_error *err);

int
__wrap_store_space(struct store *s, uint64_t *ret, struct pawl_error *err)
{
	*ret = free_bytes;
	return free_bytes ? 0 : __real_store_space(s, ret, err);
}

struct bed {
	struct small_run *r;
	size_t n, sizes[MAX_TENSORS];
	unsigned char *data[MAX_TENSORS];
	uint64_t random;
	int64_t step;
	uint64_t changed; /* bytes since the last save */
};

static uint64_t
draw(struct bed *b)
{
	b->random ^= b->random << 13;
	b->random ^= b->random >> 7;
	b->random ^= b->random << 17;
	return b->random;
}

static void
change(struct bed *b, size_t i)
{
	for (size_t k = 0; k < b->sizes[i]; k += 8) {
		const uint64_t value = draw(b);

		memcpy(b->data[i] + k, &value, b->sizes[i] - k < 8 ? b->sizes[i] - k : 8);
	}
	b->changed += b->sizes[i];
}

static void
add(struct bed *b, size_t n, size_t nbytes)
{
	while (n-- > 0) {
		assert_true(b->n < MAX_TENSORS);
		b->sizes[b->n] = nbytes;
		b->data[b->n] = malloc(nbytes + 8);
		change(b, b->n++);
	}
}

static struct bed *
start(void **state, uint64_t pack_bytes)
{
	struct bed *b = calloc(1, sizeof(*b));

	b->r = *state;
	b->random = 88172645463325252u;
	b->r->opts.packs.pack_bytes = pack_bytes;
	b->r->opts.packs.block_bytes = 1 << 16;
	b->r->opts.retention.num_to_keep = 2;
	return b;
}

static void
finish(struct bed *b)
{
	for (size_t i = 0; i < b->n; i++)
		free(b->data[i]);
	free(b);
}

static struct pawl_state *
describe(struct bed *b, unsigned char *const *data)
{
	struct pawl_state *s = NULL;
	char name[32];

	OK(pawl_state_new(&s, err));
	for (size_t i = 0; i < b->n; i++) {
		snprintf(name, sizeof(name), "t%zu", i);
		small_add(s, name, PAWL_U8, b->sizes[i], data[i]);
	}
	return s;
}

static struct pawl_save_stats
save_with(struct bed *b, struct pawl_save_opts opts)
{
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	struct pawl_state *s = describe(b, b->data);
	struct pawl_ticket *ticket;

	opts.step = ++b->step;
	OK(pawl_save(b->r->run, &opts, s, &ticket, err));
	OK(pawl_ticket_wait(ticket, -1, err));
	pawl_ticket_stats(ticket, &stats);
	pawl_ticket_free(ticket);
	pawl_state_free(s);
	return stats;
}

/* Returns what was written; `*ret_changed` had changed. */
static uint64_t
save(struct bed *b, uint64_t *ret_changed)
{
	const uint64_t changed = b->changed;

	b->changed = 0;
	*ret_changed = changed;
	return save_with(b, (struct pawl_save_opts)PAWL_SAVE_OPTS_INIT).written_bytes;
}

static void
assert_restores(struct bed *b)
{
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	unsigned char *got[MAX_TENSORS];
	struct pawl_restore *restore;

	for (size_t i = 0; i < b->n; i++)
		got[i] = calloc(1, b->sizes[i] + 1);
	struct pawl_state *s = describe(b, got);

	OK(pawl_restore(b->r->run, &opts, s, &restore, err));
	assert_int_equal(pawl_restore_info(restore)->step, b->step);
	pawl_restore_close(restore);
	pawl_state_free(s);
	for (size_t i = 0; i < b->n; i++) {
		assert_memory_equal(got[i], b->data[i], b->sizes[i]);
		free(got[i]);
	}
}

static void
assert_within(uint64_t written, uint64_t changed, unsigned save_number)
{
	if (written > changed + changed / 50 + FIXED_BYTES)
		fail_msg("save %u has written %llu bytes where %llu had changed", save_number,
		         (unsigned long long)written, (unsigned long long)changed);
}

/* 24 large tensors and two small ones that change, in a state that fits one pack. */
static void
test_R140_the_second_save_writes_only_what_has_changed(void **state)
{
	struct bed *b = start(state, 16 << 20);
	uint64_t changed, written;

	b->r->opts.packs.pack_bytes = 32 << 20;
	add(b, 12, 1 << 20);
	add(b, 2, 128 << 10);
	add(b, 12, 1 << 20);
	small_open(b->r);
	for (unsigned i = 1; i <= 6; i++) {
		if (i == 4) /* also by another process, from its first save on */
			small_open(b->r);
		change(b, 12);
		change(b, 13);
		written = save(b, &changed);
		if (i > 1)
			assert_true(written <= changed + changed / 50);
		assert_restores(b);
	}
	OK(pawl_verify(b->r->run, 0, NULL, NULL, err));
	finish(b);
}

/* Frozen and changing tensors of every size share packs at first. The second save finds that, and
 * the third writes only what has changed. */
static void
adapters(void **state, int mode, const char *codec, bool lazy, size_t unit)
{
	struct bed *b = start(state, 8 << 20);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;

	b->r->opts.staging.mode = mode;
	b->r->opts.packs.compression = codec;
	opts.lazy = lazy;
	for (int layer = 0; layer < 12; layer++) {
		add(b, 1, 1000 * unit);
		add(b, 2, 3 * unit);
		add(b, 2, 50 * unit);
	}
	small_open(b->r);
	for (unsigned i = 1; i <= 8; i++) {
		for (size_t k = 0; k < b->n; k++)
			if (k % 5 == 1 || k % 5 == 3)
				change(b, k);
		const uint64_t changed = b->changed;

		b->changed = 0;
		const uint64_t written = save_with(b, opts).written_bytes;

		if (i >= 3)
			assert_within(written, changed, i);
		assert_restores(b);
		if (i == 5)
			small_open(b->r);
	}
	OK(pawl_verify(b->r->run, 0, NULL, NULL, err));
	finish(b);
}

static void
test_R140_adapters_in_a_small_state(void **state)
{
	adapters(state, PAWL_MODE_SNAPSHOT, NULL, false, 10);
}

static void
test_R140_adapters_in_a_larger_state(void **state)
{
	adapters(state, PAWL_MODE_SNAPSHOT, NULL, false, 1000);
}

static void
test_R140_adapters_by_a_lazy_save(void **state)
{
	adapters(state, PAWL_MODE_SNAPSHOT, NULL, true, 100);
}

static void
test_R140_adapters_through_a_ring(void **state)
{
	adapters(state, PAWL_MODE_RING, NULL, false, 1000);
}

static void
test_R140_adapters_from_live_memory(void **state)
{
	adapters(state, PAWL_MODE_DIRECT, NULL, false, 1000);
}

static void
test_R140_adapters_compressed(void **state)
{
	adapters(state, PAWL_MODE_SNAPSHOT, "zst", false, 500);
}

/* 4 of 100 small tensors change, then 4 others: each change of the set costs one save. With the
 * caller's hint even the second save writes only what has changed. */
static void
changing_set(void **state, bool hint)
{
	struct bed *b = start(state, 256 << 20);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	unsigned char rests[100];

	add(b, 100, 30 << 10);
	for (size_t k = 0; k < b->n; k++)
		rests[k] = k % 25 != 3;
	if (hint)
		opts.rests = rests;
	small_open(b->r);
	for (unsigned i = 1; i <= 16; i++) {
		for (size_t k = 0; k < b->n; k++)
			if (k % 25 == (i < 6 ? 3 : i < 12 ? 4 : 9))
				change(b, k);
		const uint64_t changed = b->changed;

		b->changed = 0;
		const uint64_t written = save_with(b, opts).written_bytes;

		if ((i > 2 || (hint && i == 2)) && i != 6 && i != 12)
			assert_within(written, changed, i);
		assert_restores(b);
		if (i == 8) /* another process knows the packs, too */
			small_open(b->r);
	}
	OK(pawl_verify(b->r->run, 0, NULL, NULL, err));
	finish(b);
}

static void
test_R140_other_tensors_begin_to_change(void **state)
{
	changing_set(state, false);
}

static void
test_R140_what_rests_has_a_pack_of_its_own_from_the_first_save_on(void **state)
{
	changing_set(state, true);
}

/* Averaged weights at every fifth save, and a layer more that trains at every seventh. */
static void
test_R140_averages_and_layers_that_are_unfrozen(void **state)
{
	struct bed *b = start(state, 8 << 20);
	uint64_t all_written = 0, all_changed = 0, total = 0;

	add(b, 10, 300 << 10); /* trained from the last one on */
	add(b, 10, 90 << 10);  /* the averages */
	add(b, 10, 5000);      /* and small ones of each kind */
	add(b, 10, 5000);
	for (size_t i = 0; i < b->n; i++)
		total += b->sizes[i];
	small_open(b->r);
	for (unsigned i = 1; i <= 60; i++) {
		uint64_t changed, written;

		for (size_t k = 0; i > 1 && k < 10; k++) {
			if (10 - k <= 1 + i / 7) {
				change(b, k);
				change(b, 20 + k);
			}
			if (i % 5 == 0) {
				change(b, 10 + k);
				change(b, 30 + k);
			}
		}
		written = save(b, &changed);
		all_written += written;
		all_changed += changed;
		if (i % 10 == 0)
			assert_restores(b);
	}
	/* 9 layers were unfrozen: at most two fine packs (256 KiB) each, and the first division. */
	assert_true(all_written <= all_changed + all_changed / 50 + 60 * 2 * FIXED_BYTES + 18 * (256 << 10) + total);
	OK(pawl_verify(b->r->run, 0, NULL, NULL, err));
	finish(b);
}

/* Random changes, modes, processes and losses of manifests: what is restored is what was saved, and
 * each checkpoint is complete in itself. */
static void
test_R140_P1_random_histories(void **state)
{
	struct bed *b = start(state, 2 << 20);
	static const size_t sizes[] = {1, 700, 5000, 66000, 131072, 200000, 65536};

	for (size_t i = 0; i < 60; i++)
		add(b, 1, sizes[i % COUNT(sizes)]);
	small_open(b->r);
	for (unsigned i = 1; i <= 60; i++) {
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
		const uint64_t part = 1 + draw(b) % 40;
		unsigned char rests[MAX_TENSORS];
		char key[100];

		for (size_t k = 0; k < b->n; k++) {
			rests[k] = draw(b) % 2 == 0;
			if (draw(b) % 40 < part && k % 4 == i % 4)
				change(b, k);
			else if (draw(b) % 40 == 0) /* a byte that few probes see */
				b->data[k][draw(b) % b->sizes[k]] ^= 1;
		}
		opts.rests = draw(b) % 3 == 0 ? rests : NULL;
		opts.mode = 1 + (int)(draw(b) % 3);
		opts.lazy = draw(b) % 2 == 0 && opts.mode != 1 + PAWL_MODE_DIRECT;
		save_with(b, opts);
		if (i % 9 == 0) {
			pawl_close(b->r->run, NULL);
			b->r->run = NULL;
			snprintf(key, sizeof(key), "checkpoints/checkpoint_%06lld/manifest.json", (long long)b->step);
			small_remove(b->r, key);
			small_open(b->r);
			snprintf(key, sizeof(key), "checkpoint_%06lld", (long long)b->step);
			OK(pawl_repair(b->r->run, key, 0, NULL, err));
		}
		assert_restores(b);
		if (i % 7 == 0)
			small_open(b->r);
	}
	OK(pawl_verify(b->r->run, 0, NULL, NULL, err));
	finish(b);
}

/* All changes at every save: the packs become few again. */
static void
test_R140_R143_a_pack_that_will_be_linked_needs_no_space(void **state)
{
	struct bed *b = start(state, (uint64_t)64 << 20);
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_error why = {0};
	uint64_t changed;

	small_open(b->r);
	add(b, 1, (size_t)8 << 20);
	add(b, 1, 1000);
	save(b, &changed);
	free_bytes = (uint64_t)4 << 20; /* less than the large tensor, more than the rest and the reserve */
	for (int i = 0; i < 2; i++) {
		change(b, 1);
		assert_true(save(b, &changed) < (uint64_t)1 << 20);
	}
	change(b, 0);
	struct pawl_state *s = describe(b, b->data);
	assert_int_equal(pawl_save(b->r->run, &opts, s, NULL, &why), PAWL_ENOSPACE);
	pawl_state_free(s);
	free_bytes = 0;
	save(b, &changed);
	assert_restores(b);
	finish(b);
}

static void
test_R140_a_training_of_all_tensors_has_few_files(void **state)
{
	struct bed *b = start(state, 2 << 20);
	uint64_t changed;

	add(b, 30, 100000);
	small_open(b->r);
	for (unsigned i = 1; i <= 6; i++) {
		for (size_t k = 0; k < b->n; k++)
			change(b, k);
		assert_true(save(b, &changed) >= 3000000);
	}
	assert_true(small_exists(b->r, "checkpoints/checkpoint_000006/rank00000-00001.safetensors"));
	assert_false(small_exists(b->r, "checkpoints/checkpoint_000006/rank00000-00003.safetensors"));
	assert_restores(b);
	finish(b);
}

/* ---- each of many ranks has its own packs */

#define FROZEN_BYTES (300 << 10)
#define MOVING_BYTES (100 << 10)

static int
save_as_rank(const struct rank_job *job)
{
	static unsigned char frozen[6][FROZEN_BYTES], moving[2][MOVING_BYTES];
	const uint64_t frozen_shape[1] = {FROZEN_BYTES}, moving_shape[1] = {MOVING_BYTES};
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	RANK_TRY(rank_open(job, &run, &err));
	for (int step = 1; step <= 5; step++) {
		struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
		struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
		struct pawl_state *s = NULL;
		struct pawl_ticket *ticket;
		struct pawl_tensor t = PAWL_TENSOR_INIT;
		char name[16];

		memset(moving, step, sizeof(moving));
		RANK_TRY(pawl_state_new(&s, &err));
		t.dtype = PAWL_U8;
		t.ndim = 1;
		for (int i = 0; i < 8; i++) {
			snprintf(name, sizeof(name), "t%d", i * 3 % 8);
			t.data = i < 6 ? frozen[i] : moving[i - 6];
			t.shape = i < 6 ? frozen_shape : moving_shape;
			RANK_TRY(pawl_state_set_tensor(s, name, &t, &err));
		}
		opts.step = step;
		RANK_TRY(pawl_save(run, &opts, s, &ticket, &err));
		pawl_state_free(s);
		RANK_TRY(pawl_ticket_wait(ticket, -1, &err));
		pawl_ticket_stats(ticket, &stats);
		pawl_ticket_free(ticket);
		if (step >= 2 && stats.written_bytes > (uint64_t)2 * MOVING_BYTES + 2 * FIXED_BYTES)
			return 2;
	}
	RANK_TRY(pawl_close(run, &err));
	return 0;
}

static void
test_R140_each_rank_writes_only_what_has_changed(void **state)
{
	struct small_run *r = *state;
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;

	assert_int_equal(ranks_run(r->root, 2, 600000, save_as_rank, NULL), 0);
	opts.root = r->root;
	opts.read_only = 1;
	r->opts = opts;
	small_open(r);
	OK(pawl_verify(r->run, 0, NULL, NULL, err));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, small_setup, small_teardown)
		T(test_R140_the_second_save_writes_only_what_has_changed),
		T(test_R140_adapters_in_a_small_state),
		T(test_R140_adapters_in_a_larger_state),
		T(test_R140_adapters_by_a_lazy_save),
		T(test_R140_adapters_through_a_ring),
		T(test_R140_adapters_from_live_memory),
		T(test_R140_adapters_compressed),
		T(test_R140_other_tensors_begin_to_change),
		T(test_R140_what_rests_has_a_pack_of_its_own_from_the_first_save_on),
		T(test_R140_averages_and_layers_that_are_unfrozen),
		T(test_R140_P1_random_histories),
		T(test_R140_R143_a_pack_that_will_be_linked_needs_no_space),
		T(test_R140_a_training_of_all_tensors_has_few_files),
		T(test_R140_each_rank_writes_only_what_has_changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
