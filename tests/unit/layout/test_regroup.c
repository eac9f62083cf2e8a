/* SPDX-License-Identifier: Apache-2.0 */
/* regroup: which tensors share a pack, over histories of saves. A model of the saves, which is
 * independent of the decider, counts what each save writes. That is pack 0, packs whose set of
 * tensors is new since the save before, and packs in which any tensor has changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/regroup.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define PACK_BYTES (256 * MIB)
#define MAX_TENSORS 2000
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct bed {
	struct regroup_tensor tensors[MAX_TENSORS];
	size_t n;
	uint64_t probes[MAX_TENSORS];
	bool is_probed;               /* else its saves do not know what to expect */
	bool is_sparse[MAX_TENSORS];  /* the probe does not show its changes */
	uint32_t before[MAX_TENSORS]; /* packs of the save before */
	bool changed[MAX_TENSORS];
	bool has_before;
	uint64_t written, ideal; /* of the last save */
	uint64_t all_written, all_ideal;
	unsigned n_saves, n_decided;
};

static struct bed *
new_bed(void **is_probed)
{
	struct bed *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	b->is_probed = *(bool *)*is_probed;
	return b;
}

static void
add(struct bed *b, uint64_t nbytes)
{
	assert_true(b->n < MAX_TENSORS);
	b->probes[b->n] = 100;
	b->tensors[b->n++] = (struct regroup_tensor){.nbytes = nbytes, .pack = REGROUP_NEW};
}

/* Did the same tensors, and only these, share a pack at the save before? */
static bool
was_a_pack(const struct bed *b, uint32_t pack)
{
	uint32_t old = REGROUP_NEW;

	for (size_t i = 0; i < b->n; i++) {
		if (b->tensors[i].pack != pack)
			continue;
		if (old == REGROUP_NEW)
			old = b->before[i];
		if (b->before[i] != old)
			return false;
	}
	for (size_t i = 0; i < b->n; i++)
		if (b->before[i] == old && b->tensors[i].pack != pack)
			return false;
	return b->has_before;
}

/* All have a pack, and the numbers have no gaps. */
static size_t
check_numbers(const struct bed *b)
{
	size_t count = regroup_count(b->tensors, b->n);
	bool *used = calloc(count, sizeof(*used));

	for (size_t i = 0; i < b->n; i++) {
		assert_true(b->tensors[i].pack < count);
		used[b->tensors[i].pack] = true;
	}
	for (size_t k = 1; k < count; k++)
		assert_true(used[k]);
	free(used);
	return count;
}

/* One save at which b->changed has changed; returns what a pack tells. */
static void
save(struct bed *b)
{
	enum regroup_seen seen[MAX_TENSORS] = {0};
	bool decided = false;

	for (size_t i = 0; b->is_probed && i < b->n; i++)
		b->probes[i] += b->changed[i] && !b->is_sparse[i];
	if (b->is_probed)
		assert_int_equal(regroup_expect(b->tensors, b->n, b->probes, PACK_BYTES, &decided, NULL), 0);
	b->n_decided += decided;
	assert_int_equal(regroup_place_new(b->tensors, b->n, NULL, PACK_BYTES, NULL), 0);
	size_t count = check_numbers(b);

	b->written = b->ideal = 0;
	for (uint32_t k = 0; k < count; k++) {
		bool known = was_a_pack(b, k), differs = k == 0 || !known;
		uint64_t nbytes = 0;

		for (size_t i = 0; i < b->n; i++) {
			if (b->tensors[i].pack != k)
				continue;
			nbytes += b->tensors[i].nbytes;
			differs = differs || b->changed[i];
			seen[i] = !known ? REGROUP_UNKNOWN : b->changed[i] ? REGROUP_CHANGED : REGROUP_SAME;
		}
		b->written += differs ? nbytes : 0;
	}
	for (size_t i = 0; i < b->n; i++) {
		b->ideal += b->changed[i] ? b->tensors[i].nbytes : 0;
		b->before[i] = b->tensors[i].pack;
		regroup_note(&b->tensors[i], seen[i], b->is_probed ? b->probes[i] : REGROUP_NO_PROBE);
	}
	b->has_before = true;
	b->all_written += b->written;
	b->all_ideal += b->ideal;
	b->n_saves++;
	assert_int_equal(regroup_decide(b->tensors, b->n, PACK_BYTES, &decided, NULL), 0);
	b->n_decided += decided;
	check_numbers(b);
}

static void
change(struct bed *b, size_t first, size_t n, bool changed)
{
	for (size_t i = first; i < first + n; i++)
		b->changed[i] = changed;
}

/* Within 1.02 times what has changed. */
static void
assert_close(const struct bed *b)
{
	if (b->written * 100 > b->ideal * 102)
		fail_msg("save %u writes %llu bytes of which %llu have changed", b->n_saves,
		         (unsigned long long)b->written, (unsigned long long)b->ideal);
}

static void
test_R140_a_first_layout_keeps_large_tensors_apart(void **state)
{
	static const struct {
		uint64_t sizes[5];
		uint32_t packs[5];
	} rows[] = {
		{{15 * MIB, 128 * KIB, 15 * MIB, 1 * KIB, 128 * KIB}, {1, 0, 2, 0, 0}},
		{{3 * MIB, 3 * MIB, 1 * KIB, 3 * MIB, 1}, {1, 1, 0, 2, 0}},
		{{3 * MIB, 9 * MIB, 3 * MIB, 3 * MIB, 300 * MIB}, {1, 2, 1, 3, 4}},
		{{1 * MIB, 2 * MIB, 3 * MIB, 1 * MIB, 0}, {0, 0, 0, 0, 0}},
		{{8 * MIB, 8 * MIB - 1, 1, 64 * KIB, 64 * KIB - 1}, {1, 2, 0, 3, 0}},
	};

	for (size_t r = 0; r < COUNT(rows); r++) {
		struct bed *b = new_bed(state);

		for (size_t i = 0; i < 5; i++)
			add(b, rows[r].sizes[i]);
		assert_int_equal(regroup_place_new(b->tensors, b->n, NULL, PACK_BYTES, NULL), 0);
		for (size_t i = 0; i < 5; i++)
			assert_int_equal(b->tensors[i].pack, rows[r].packs[i]);
		free(b);
	}
}

static void
test_R140_frozen_tensors_are_written_once(void **state)
{
	struct bed *b = new_bed(state);

	for (size_t i = 0; i < 24; i++)
		add(b, 15 * MIB);
	add(b, 128 * KIB);
	add(b, 128 * KIB);
	change(b, 24, 2, true);
	for (int i = 0; i < 30; i++) {
		save(b);
		if (i > 0)
			assert_int_equal(b->written, 256 * KIB);
	}
	assert_int_equal(b->n_decided, 0);
	free(b);
}

/* Each layer: a large weight, a medium one, a small one, all frozen, and two of an adapter that
 * change. */
static void
test_R140_adapters_among_frozen_tensors_of_all_sizes(void **state)
{
	static const uint64_t scales[] = {1, 16, 256, 4096};

	for (size_t s = 0; s < COUNT(scales); s++) {
		struct bed *b = new_bed(state);

		for (size_t i = 0; i < 5 * 60; i++) {
			static const uint64_t sizes[] = {4096, 1024, 16, 40, 60};

			b->changed[b->n] = i % 5 >= 3;
			add(b, sizes[i % 5] * scales[s]);
		}
		for (int i = 1; i <= 40; i++) {
			save(b);
			if (i >= (b->is_probed ? 3 : 4))
				assert_close(b);
		}
		assert_true(b->n_decided <= 2);
		free(b);
	}
}

static void
test_R140_a_training_of_all_tensors_ends_in_few_packs(void **state)
{
	static const uint64_t sizes[] = {10 * MIB, 3 * MIB, 20 * KIB, 1000};

	for (size_t n = 4; n <= 400; n *= 10) {
		struct bed *b = new_bed(state);
		uint64_t total = 0;

		for (size_t i = 0; i < n; i++) {
			add(b, sizes[i % 4]);
			total += sizes[i % 4];
		}
		change(b, 0, n, true);
		for (int i = 0; i < 20; i++) {
			save(b);
			assert_int_equal(b->written, total);
		}
		assert_true(regroup_count(b->tensors, b->n) <= 1 + (total + PACK_BYTES - 1) / (PACK_BYTES * 9 / 10));
		assert_true(b->n_decided <= 1);
		free(b);
	}
}

/* Averaged weights change at every tenth save, the model at each, and the embedding is frozen. */
static void
test_R140_averaged_weights_at_every_tenth_save(void **state)
{
	static const uint64_t sizes[] = {100, 4 * KIB, 100 * KIB, 1 * MIB, 20 * MIB};

	for (size_t s = 0; s < COUNT(sizes); s++) {
		struct bed *b = new_bed(state);

		for (size_t i = 0; i < 90; i++)
			add(b, sizes[s]);
		change(b, 0, 30, true);
		for (unsigned i = 1; i <= 100; i++) {
			change(b, 30, 30, i % 10 == 0);
			save(b);
			if (i > 30)
				assert_close(b);
		}
		assert_true(b->n_decided <= 5);
		free(b);
	}
}

/* Each begins to change later than the one before. The cost beyond the tensors themselves is
 * bounded. */
static void
test_R140_layers_that_are_unfrozen_one_by_one(void **state)
{
	static const uint64_t sizes[] = {4 * KIB, 500 * KIB, 5 * MIB, 30 * MIB};

	for (size_t s = 0; s < COUNT(sizes); s++) {
		struct bed *b = new_bed(state);
		const size_t n = 40;
		uint64_t before;

		for (size_t i = 0; i < n; i++)
			add(b, sizes[s]);
		for (unsigned round = 0; round < 4 + 5 * n; round++) {
			if (round >= 4 && round % 5 == 0)
				b->changed[n - round / 5] = true; /* the last one first */
			b->changed[n - 1] = true;
			before = b->all_written - b->all_ideal;
			save(b);
			if (round > 4) /* a pack divided, at most, and its rest */
				assert_true(b->all_written - b->all_ideal - before <= 2 * (PACK_BYTES / 32) + sizes[s]);
			if (round > 4 && round % 5 >= (b->is_probed ? 1 : 3))
				assert_close(b);
		}
		free(b);
	}
}

/* Every tensor has a period of its own; in the end each save writes what has changed. */
static void
test_R140_periods_of_all_kinds(void **state)
{
	for (unsigned seed = 1; seed <= 20; seed++) {
		struct bed *b = new_bed(state);
		unsigned periods[200];

		srand(seed);
		for (size_t i = 0; i < COUNT(periods); i++) {
			periods[i] = 1 + (unsigned)rand() % 6;
			add(b, (uint64_t)1 << (10 + rand() % 15));
		}
		for (unsigned i = 1; i <= 400; i++) {
			for (size_t k = 0; k < b->n; k++)
				b->changed[k] = i % periods[k] == 0;
			save(b);
			if (i > 300)
				assert_close(b);
		}
		free(b);
	}
}

/* Nothing to learn: never more than everything, and the packs stay few. */
static void
test_R140_random_changes_do_not_scatter_tensors(void **state)
{
	for (unsigned seed = 1; seed <= 10; seed++) {
		struct bed *b = new_bed(state);
		uint64_t total = 0;

		srand(seed);
		for (size_t i = 0; i < 500; i++) {
			add(b, (uint64_t)1 << (rand() % 22));
			total += b->tensors[i].nbytes;
		}
		for (unsigned i = 1; i <= 100; i++) {
			for (size_t k = 0; k < b->n; k++)
				b->changed[k] = rand() % 100 < (int)(10 * seed);
			save(b);
			assert_true(b->written <= total);
			assert_true(regroup_count(b->tensors, b->n) <= 40 + 4 * total / (PACK_BYTES / 32));
		}
		free(b);
	}
}

/* One that changes for some saves and then rests, again and again: its cost is a fraction of the
 * bytes it is written for. */
static void
test_R140_bursts_do_not_thrash(void **state)
{
	for (unsigned burst = 1; burst <= 40; burst++) {
		struct bed *b = new_bed(state);

		for (size_t i = 0; i < 40; i++)
			add(b, 10 * MIB);
		change(b, 0, 20, true);
		for (unsigned i = 0; i < 50 * burst; i++) {
			change(b, 20, 20, i / burst % 2 == 1);
			save(b);
		}
		assert_true(b->all_written <= b->all_ideal * 115 / 100);
		free(b);
	}
}

/* Groups that change at every twentieth save, each at another one: they stay apart, however small
 * they are. */
static void
test_R140_many_small_groups_stay_apart(void **state)
{
	struct bed *b = new_bed(state);

	for (size_t i = 0; i < 200; i++)
		add(b, 100 * KIB);
	for (unsigned i = 1; i <= 300; i++) {
		for (size_t k = 0; k < b->n; k++)
			b->changed[k] = i % 20 == k % 20;
		save(b);
		if (i > 100)
			assert_close(b);
	}
	free(b);
}

/* Each tensor changes once, one after the other, and then rests: they are put together again. */
static void
test_R140_what_has_rested_for_long_shares_packs_again(void **state)
{
	struct bed *b = new_bed(state);
	size_t most = 0;

	for (size_t i = 0; i < 400; i++)
		add(b, 200 * KIB);
	for (size_t i = 0; i < b->n + 100; i++) {
		for (size_t k = 0; k < b->n; k++)
			b->changed[k] = k == i;
		save(b);
		if (regroup_count(b->tensors, b->n) > most)
			most = regroup_count(b->tensors, b->n);
	}
	assert_true(most < 150);
	assert_true(regroup_count(b->tensors, b->n) < 40);
	free(b);
}

/* Tensors come and go: what stays keeps its pack, and no pack is empty. */
static void
test_R140_what_is_new_disturbs_no_pack(void **state)
{
	struct bed *b = new_bed(state);

	for (size_t i = 0; i < 10; i++)
		add(b, 15 * MIB);
	save(b);
	for (uint64_t i = 1; i < 20; i++) {
		if (i > 1)
			b->n--; /* another shape than before: it is another one */
		b->before[b->n] = REGROUP_NEW;
		b->changed[b->n] = true;
		add(b, i * MIB);
		save(b);
		assert_int_equal(b->written, i * MIB);
	}
	free(b);
}

/* Of every size: the second save writes what has changed. If all would rest, nothing is known. */
static void
test_R140_what_rests_has_packs_of_its_own_from_the_first_save_on(void **state)
{
	static const uint64_t scales[] = {1, 16, 256, 4096};
	unsigned char rests[300];

	for (size_t s = 0; s < COUNT(scales); s++) {
		struct bed *b = new_bed(state);

		for (size_t i = 0; i < COUNT(rests); i++) {
			static const uint64_t sizes[] = {4096, 1024, 16, 40, 60};

			b->changed[b->n] = i % 5 >= 3;
			rests[i] = !b->changed[b->n];
			add(b, sizes[i % 5] * scales[s]);
		}
		assert_int_equal(regroup_place_new(b->tensors, b->n, rests, PACK_BYTES, NULL), 0);
		for (int i = 1; i <= 10; i++) {
			save(b);
			if (i >= 2)
				assert_close(b);
		}
		assert_true(b->n_decided <= 1);
		free(b);
	}
	struct bed *b = new_bed(state), *c = new_bed(state);

	memset(rests, 1, sizeof(rests));
	for (size_t i = 0; i < 40; i++) {
		add(b, i * 100 * KIB);
		add(c, i * 100 * KIB);
	}
	assert_int_equal(regroup_place_new(b->tensors, b->n, rests, PACK_BYTES, NULL), 0);
	assert_int_equal(regroup_place_new(c->tensors, c->n, NULL, PACK_BYTES, NULL), 0);
	for (size_t i = 0; i < 40; i++)
		assert_int_equal(b->tensors[i].pack, c->tensors[i].pack);
	free(b);
	free(c);
}

/* Half of what changes looks unchanged: this costs some saves at the start, and then nothing. */
static void
test_R140_a_probe_that_misses_a_change_is_not_used_again(void **state)
{
	struct bed *b = new_bed(state);

	for (size_t i = 0; i < 200; i++) {
		b->changed[i] = i % 4 == 0;
		b->is_sparse[i] = i % 8 == 0;
		add(b, 100 * KIB);
	}
	for (unsigned i = 1; i <= 30; i++) {
		const unsigned n_decided = b->n_decided;

		save(b);
		if (i > 6) {
			assert_close(b);
			assert_int_equal(b->n_decided, n_decided);
		}
	}
	free(b);
}

/* Only the save at which others begin to change writes more than that. */
static void
test_R140_the_set_of_changing_tensors_changes(void **state)
{
	struct bed *b = new_bed(state);
	const unsigned costs = b->is_probed ? 1 : 2; /* saves */

	for (size_t i = 0; i < 100; i++)
		add(b, 30 * KIB);
	for (unsigned i = 0; i < 40; i++) {
		for (size_t k = 0; k < b->n; k++)
			b->changed[k] = k % 25 == i / 8;
		save(b);
		if (i % 8 > costs || (i > 8 && i % 8 >= costs))
			assert_close(b);
	}
	free(b);
}

int
main(void)
{
	static bool never = false, always = true;
	const struct CMUnitTest tests[] = {
#define T(name)                                                 \
	{#name, name, NULL, NULL, &never},                      \
	{                                                       \
		#name "_with_probes", name, NULL, NULL, &always \
	}
		T(test_R140_a_first_layout_keeps_large_tensors_apart),
		T(test_R140_frozen_tensors_are_written_once),
		T(test_R140_adapters_among_frozen_tensors_of_all_sizes),
		T(test_R140_a_training_of_all_tensors_ends_in_few_packs),
		T(test_R140_averaged_weights_at_every_tenth_save),
		T(test_R140_layers_that_are_unfrozen_one_by_one),
		T(test_R140_periods_of_all_kinds),
		T(test_R140_random_changes_do_not_scatter_tensors),
		T(test_R140_bursts_do_not_thrash),
		T(test_R140_many_small_groups_stay_apart),
		T(test_R140_what_has_rested_for_long_shares_packs_again),
		T(test_R140_what_is_new_disturbs_no_pack),
		T(test_R140_what_rests_has_packs_of_its_own_from_the_first_save_on),
		T(test_R140_a_probe_that_misses_a_change_is_not_used_again),
		T(test_R140_the_set_of_changing_tensors_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
