/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One conformance suite over every engine and every stack of layers: what the core may rely on.
 * What only the file engine has (modes, links, full disks) is in test_store_file.c.
 */
#include "helpers/store_bed.h"
#include "helpers/user_store.h"

#include <pthread.h>
#include <stdatomic.h>

#define PIECE 65536u

/* ---------------------------------------------------------- small objects */

static void
test_put_is_got_back_and_replaced(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "a", "one");
	assert_text(bed, "a", "one");
	put_text(bed, "a", "a longer one");
	assert_text(bed, "a", "a longer one");
	put_text(bed, "a", "");
	assert_text(bed, "a", "");
	assert_names(bed, "", "a");
}

static void
test_put_joins_its_parts_and_makes_folders(void **state)
{
	struct bed *bed = *state;
	struct pawl_slice parts[] = {{"ab", 2}, {NULL, 0}, {"cde", 3}};
	OK(bed, store_put(bed->store, "x/y/z", parts, 3, STORE_DURABLE, &bed->err));
	assert_text(bed, "x/y/z", "abcde");
	assert_names(bed, "x/y", "z");
}

static void
test_exclusive_put_refuses_an_existing_key(void **state)
{
	struct bed *bed = *state;
	if (!bed_caps(bed).exclusive_put)
		skip();
	OK(bed, store_put_bytes(bed->store, "d/a", "one", 3, STORE_EXCLUSIVE | STORE_DURABLE, &bed->err));
	FAILS(bed, store_put_bytes(bed->store, "d/a", "two", 3, STORE_EXCLUSIVE, &bed->err), PAWL_EEXISTS, "d/a");
	assert_text(bed, "d/a", "one");
	assert_names(bed, "d", "a");
}

static void
test_get_above_its_maximum_is_refused(void **state)
{
	struct bed *bed = *state;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	put_text(bed, "a", "12345");
	FAILS(bed, store_get(bed->store, "a", 4, &out, &bed->err), PAWL_ELIMIT, "a: expected at most 4");
	assert_int_equal(out.len, 0);
	OK(bed, store_get(bed->store, "a", 5, &out, &bed->err));
	assert_int_equal(out.len, 5);
}

struct race {
	struct store *store;
	pthread_barrier_t barrier;
	atomic_uint winners, losers, others;
	atomic_char winner;
	char key[64];
};

struct racer {
	struct race *race;
	char name;
	void (*run)(struct race *race, char name);
};

static void *
race_main(void *arg)
{
	struct racer *racer = arg;
	pthread_barrier_wait(&racer->race->barrier);
	racer->run(racer->race, racer->name);
	return NULL;
}

static void
race_count(struct race *race, char name, int rc)
{
	if (rc == 0)
		atomic_store(&race->winner, name);
	atomic_fetch_add(rc == 0 ? &race->winners : rc == PAWL_EEXISTS ? &race->losers : &race->others, 1);
}

/* Both at once; exactly one may win. Returns the winner. */
static char
race(struct race *race, void (*run)(struct race *, char))
{
	pthread_t threads[2];
	struct racer racers[2] = {{race, 'A', run}, {race, 'B', run}};
	atomic_store(&race->winners, 0);
	atomic_store(&race->losers, 0);
	atomic_store(&race->others, 0);
	pthread_barrier_init(&race->barrier, NULL, 2);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, race_main, &racers[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&race->barrier);
	assert_int_equal(atomic_load(&race->winners), 1);
	assert_int_equal(atomic_load(&race->losers), 1);
	return atomic_load(&race->winner);
}

static void
race_put(struct race *race, char name)
{
	char text[4096];
	memset(text, name, sizeof text);
	race_count(race, name, store_put_bytes(race->store, race->key, text, sizeof text, STORE_EXCLUSIVE, NULL));
}

static void
test_P10_of_two_racing_exclusive_puts_exactly_one_wins(void **state)
{
	struct bed *bed = *state;
	struct race r = {.store = bed->store};
	if (!bed_caps(bed).exclusive_put)
		skip();
	for (int round = 0; round < 100; round++) {
		char expected[4097] = {0};
		snprintf(r.key, sizeof r.key, "race/%d", round);
		memset(expected, race(&r, race_put), 4096);
		assert_text(bed, r.key, expected);
	}
}

struct swap {
	struct store *store;
	atomic_bool stop;
};

static void *
swap_main(void *arg)
{
	struct swap *swap = arg;
	char text[3000];
	for (int i = 0; !atomic_load(&swap->stop); i++) {
		memset(text, 'a' + i % 26, sizeof text);
		store_put_bytes(swap->store, "swapped", text, i % 2 ? sizeof text : sizeof text / 2, 0, NULL);
	}
	return NULL;
}

static void
test_P2_a_replaced_object_is_never_seen_half_written(void **state)
{
	struct bed *bed = *state;
	struct swap swap = {.store = bed->store};
	pthread_t thread;
	put_text(bed, "swapped", "");
	assert_int_equal(pthread_create(&thread, NULL, swap_main, &swap), 0);
	for (int i = 0; i < 300; i++) {
		PAWL_CLEAN(buf_clear) struct buf out = {0};
		OK(bed, store_get(bed->store, "swapped", 4096, &out, &bed->err));
		assert_true(out.len == 0 || out.len == 1500 || out.len == 3000);
		for (size_t j = 1; j < out.len; j++)
			assert_int_equal(out.ptr[j], out.ptr[0]);
	}
	atomic_store(&swap.stop, true);
	pthread_join(thread, NULL);
}

static void
test_append_adds_at_the_end_and_creates(void **state)
{
	struct bed *bed = *state;
	char expected[1001] = {0};
	for (int i = 0; i < 100; i++) {
		OK(bed, store_append(bed->store, "log/events", "0123456789", 10, &bed->err));
		memcpy(expected + i * 10, "0123456789", 10);
	}
	assert_text(bed, "log/events", expected);
}

static void *
append_main(void *arg)
{
	struct store *s = arg;
	for (int i = 0; i < 200; i++)
		store_append(s, "events", "a line of events\n", 17, NULL);
	return NULL;
}

static void
test_appended_lines_of_two_threads_stay_whole(void **state)
{
	struct bed *bed = *state;
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, append_main, bed->store), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	OK(bed, store_get(bed->store, "events", 1 << 20, &out, &bed->err));
	assert_int_equal(out.len, 400 * 17);
	for (size_t i = 0; i < 400; i++)
		assert_int_equal(memcmp(out.ptr + i * 17, "a line of events\n", 17), 0);
}

/* --------------------------------------------------------- streamed objects */

static void
test_written_pieces_are_read_back(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5 * PIECE + 777, 0, 1);
	write_bytes(bed, "f/pack", &b, PIECE, NULL);
	assert_bytes(bed, "f/pack", &b);
	struct store_entry entry;
	OK(bed, store_stat(bed->store, "f/pack", &entry, &bed->err));
	assert_int_equal(entry.nbytes, b.len);
	assert_false(entry.is_folder);
	free(b.memory);
}

static void
test_objects_of_every_small_size_come_back(void **state)
{
	struct bed *bed = *state;
	static const size_t sizes[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, PIECE - 1, PIECE, PIECE + 1};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		char key[32];
		snprintf(key, sizeof key, "sizes/%zu", sizes[i]);
		struct bytes b = bytes_new(sizes[i], 0, (unsigned)i);
		write_bytes(bed, key, &b, PIECE, NULL);
		assert_bytes(bed, key, &b);
		free(b.memory);
	}
}

static void
test_a_padded_last_piece_is_cut(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(3 * PIECE, 0, 2);
	b.len = 2 * PIECE + 5000;
	struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
	OK(bed, store_write(bed->store, f, 2 * PIECE, b.ptr + 2 * PIECE, 8192, &bed->err));
	OK(bed, store_write(bed->store, f, 0, b.ptr, 2 * PIECE, &bed->err));
	OK(bed, store_finish(bed->store, f, &bed->err));
	assert_bytes(bed, "pack", &b);
	free(b.memory);
}

static void
test_unaligned_memory_is_written_and_read(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(4 * PIECE + 100, 3, 3);
	write_bytes(bed, "pack", &b, PIECE, NULL);
	assert_bytes(bed, "pack", &b);

	struct store_reader *r = NULL;
	struct bytes got = bytes_new(b.len, 1, 0);
	OK(bed, store_open_reader(bed->store, "pack", &r, NULL, &bed->err));
	OK(bed, store_read(bed->store, r, 0, got.ptr, b.len, &bed->err));
	assert_int_equal(memcmp(got.ptr, b.ptr, b.len), 0);
	store_close_reader(bed->store, r);
	free(got.memory);
	free(b.memory);
}

static void
test_ranges_are_read_exactly(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(6 * PIECE + 1234, 0, 4);
	struct bytes got = bytes_new(b.len, 0, 5);
	struct store_reader *r = NULL;
	write_bytes(bed, "pack", &b, PIECE, NULL);
	OK(bed, store_open_reader(bed->store, "pack", &r, NULL, &bed->err));
	/* Offset, length and place in memory: aligned or not, congruent or not, at the end,
	 * empty. */
	const struct {
		size_t offset, len, at;
	} ranges[] = {{0, 1, 0},
	              {0, 2 * PIECE, 0},
	              {4096, 2 * PIECE, 0},
	              {1, 3 * PIECE, 1},
	              {100, 3 * PIECE + 17, 612},
	              {513, 2 * PIECE, 7},
	              {PIECE - 1, 2, 4095},
	              {4 * PIECE, 2 * PIECE + 1234, 0},
	              {b.len - 1, 1, 0},
	              {b.len - PIECE, PIECE, 0},
	              {b.len, 0, 0}};
	for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
		size_t at = ranges[i].at, end = at + ranges[i].len;
		memset(got.ptr, 0xee, b.len);
		OK(bed, store_read(bed->store, r, ranges[i].offset, got.ptr + at, ranges[i].len, &bed->err));
		assert_int_equal(memcmp(got.ptr + at, b.ptr + ranges[i].offset, ranges[i].len), 0);
		assert_true(at == 0 || got.ptr[at - 1] == 0xee);
		assert_true(end == b.len || got.ptr[end] == 0xee);
	}
	store_close_reader(bed->store, r);
	free(got.memory);
	free(b.memory);
}

static void
test_P1_reading_past_the_end_is_corrupt(void **state)
{
	struct bed *bed = *state;
	struct store_reader *r = NULL;
	char got[64];
	put_text(bed, "short", "0123456789");
	OK(bed, store_open_reader(bed->store, "short", &r, NULL, &bed->err));
	FAILS(bed, store_read(bed->store, r, 0, got, 11, &bed->err), PAWL_ECORRUPT, "short: expected 11 bytes at 0");
	FAILS(bed, store_read(bed->store, r, 11, got, 1, &bed->err), PAWL_ECORRUPT, "short");
	FAILS(bed, store_read(bed->store, r, UINT64_MAX, got, 2, &bed->err), PAWL_ECORRUPT, "short");
	assert_false(store_is_cached(bed->store, r, 5, 6));
	OK(bed, store_read(bed->store, r, 10, NULL, 0, &bed->err));
	store_close_reader(bed->store, r);
}

static void
test_what_was_put_is_cached_where_a_cache_is_known(void **state)
{
	struct bed *bed = *state;
	if (bed_caps(bed).flat || bed->kind == BED_S3)
		skip();
	struct bytes b = bytes_new(3 * PIECE + 55, 0, 6);
	struct store_reader *r = NULL;
	/* put goes through the cache of every engine. */
	OK(bed, store_put_bytes(bed->store, "pack", b.ptr, b.len, 0, &bed->err));
	OK(bed, store_open_reader(bed->store, "pack", &r, NULL, &bed->err));
	assert_true(store_is_cached(bed->store, r, 0, b.len));
	assert_true(store_is_cached(bed->store, r, 4097, 100));
	assert_false(store_is_cached(bed->store, r, 5, 0));
	store_close_reader(bed->store, r);
	free(b.memory);
}

struct writer {
	struct store *store;
	struct store_file *f;
	const struct bytes *b;
	size_t first, step;
	int rc;
};

static void *
writer_main(void *arg)
{
	struct writer *w = arg;
	for (size_t at = w->first; w->rc == 0 && at < w->b->len; at += w->step) {
		size_t left = w->b->len - at;
		w->rc = store_write(w->store, w->f, at, w->b->ptr + at, left < PIECE ? left : PIECE, NULL);
	}
	return NULL;
}

static void
test_four_threads_write_one_object(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(64 * PIECE + 4321, 0, 8);
	struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
	pthread_t threads[4];
	struct writer writers[4];
	for (size_t i = 0; i < 4; i++) {
		writers[i] = (struct writer){bed->store, f, &b, i * PIECE, 4 * PIECE, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, writer_main, &writers[i]), 0);
	}
	for (size_t i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(writers[i].rc, 0);
	}
	OK(bed, store_finish(bed->store, f, &bed->err));
	assert_bytes(bed, "pack", &b);
	free(b.memory);
}

static void
test_P4_an_aborted_object_leaves_nothing(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(2 * PIECE, 0, 9);
	put_text(bed, "d/other", "x");
	struct store_file *f = begin_bytes(bed, "d/pack", &b, NULL);
	OK(bed, store_write(bed->store, f, 0, b.ptr, PIECE, &bed->err));
	store_abort(bed->store, f);
	store_abort(bed->store, NULL);
	assert_missing(bed, "d/pack");
	assert_names(bed, "d", "other");
	write_bytes(bed, "d/pack", &b, PIECE, NULL);
	assert_bytes(bed, "d/pack", &b);
	free(b.memory);
}

static void
test_P1_an_object_with_a_gap_cannot_be_finished(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(3 * PIECE, 0, 10);
	struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
	OK(bed, store_write(bed->store, f, 0, b.ptr, PIECE, &bed->err));
	OK(bed, store_write(bed->store, f, 2 * PIECE, b.ptr, PIECE, &bed->err));
	FAILS(bed, store_finish(bed->store, f, &bed->err), PAWL_EUSAGE, "pack: only 131072 of 196608");
	assert_missing(bed, "pack");
	free(b.memory);
}

static void
test_P5_after_a_failed_write_only_abort_is_left(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(2 * PIECE, 0, 11);
	struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
	FAILS(bed, store_write(bed->store, f, 2 * PIECE, b.ptr, PIECE, &bed->err), PAWL_EUSAGE, "pack");
	FAILS(bed, store_write(bed->store, f, 0, b.ptr, 2 * PIECE, &bed->err), PAWL_EIO, "pack: an earlier write");
	FAILS(bed, store_finish(bed->store, f, &bed->err), PAWL_EIO, "pack: cannot be finished");
	assert_missing(bed, "pack");
	free(b.memory);
}

static void
test_create_refuses_an_existing_key(void **state)
{
	struct bed *bed = *state;
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = 10};
	put_text(bed, "pack", "old");
	FAILS(bed, store_create(bed->store, "pack", &opts, &f, &bed->err), PAWL_EEXISTS, "pack");
	assert_null(f);
	assert_text(bed, "pack", "old");
}

static void
test_misplaced_pieces_are_refused(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(4 * PIECE, 0, 12);
	struct store_caps caps;
	store_get_caps(bed->store, &caps);
	const struct {
		uint64_t offset;
		size_t len;
	} pieces[] = {
		{4 * PIECE, 1}, {0, 4 * PIECE + 4097}, {3 * PIECE, 2 * PIECE}, {UINT64_MAX, 2}, {UINT64_MAX - 1, 1}};
	for (size_t i = 0; i < sizeof pieces / sizeof pieces[0] + (caps.offset_align > 1 ? 2 : 0); i++) {
		struct store_file *f = begin_bytes(bed, "pack", &b, NULL);
		if (i < sizeof pieces / sizeof pieces[0])
			FAILS(bed, store_write(bed->store, f, pieces[i].offset, b.ptr, pieces[i].len, &bed->err),
			      PAWL_EUSAGE, "pack");
		else
			FAILS(bed, store_write(bed->store, f, i % 2, b.ptr, 4095, &bed->err), PAWL_EUSAGE, "units");
		store_abort(bed->store, f);
	}
	free(b.memory);
}

static void
test_a_buffered_object_takes_any_offset(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(10000, 0, 13);
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = b.len, .buffered = true};
	OK(bed, store_create(bed->store, "pack", &opts, &f, &bed->err));
	for (size_t at = 0; at < b.len; at += 7)
		OK(bed, store_write(bed->store, f, at, b.ptr + at, b.len - at < 7 ? b.len - at : 7, &bed->err));
	OK(bed, store_finish(bed->store, f, &bed->err));
	assert_bytes(bed, "pack", &b);
	free(b.memory);
}

static void
test_a_missing_or_linked_recycle_key_means_a_fresh_object(void **state)
{
	struct bed *bed = *state;
	struct bytes old = bytes_new(2 * PIECE, 0, 14), b = bytes_new(2 * PIECE, 0, 15);
	write_bytes(bed, "one", &b, PIECE, "nothing-there");
	assert_bytes(bed, "one", &b);

	write_bytes(bed, "old", &old, PIECE, NULL);
	if (bed_caps(bed).link) {
		OK(bed, store_link(bed->store, "old", "linked", &bed->err));
		write_bytes(bed, "two", &b, PIECE, "old");
		assert_bytes(bed, "two", &b);
		assert_bytes(bed, "linked", &old);
		assert_bytes(bed, "old", &old);
	}
	free(b.memory);
	free(old.memory);
}

static void
test_recycled_objects_of_any_size_hold_only_the_new_bytes(void **state)
{
	struct bed *bed = *state;
	static const size_t sizes[] = {PIECE, 3 * PIECE + 17, 3 * PIECE + 17, 2 * PIECE, 100, 5 * PIECE + 4095};
	struct bytes old = bytes_new(4 * PIECE + 3, 0, 16);
	write_bytes(bed, ".recycle/0", &old, PIECE, NULL);
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		char from[32], to[32];
		snprintf(from, sizeof from, ".recycle/%zu", i);
		snprintf(to, sizeof to, ".recycle/%zu", i + 1);
		struct bytes b = bytes_new(sizes[i], 0, (unsigned)i + 17);
		write_bytes(bed, to, &b, PIECE, from);
		assert_bytes(bed, to, &b);
		free(b.memory);
	}
	free(old.memory);
}

/* --------------------------------------------------------------------- names */

static void
test_P17_keys_that_leave_the_root_are_refused(void **state)
{
	struct bed *bed = *state;
	static const char *const bad[] = {"", "../x", "/x", "a//b", "a/../b", "./a", "a/", "..", ".", "a\nb", "a\x7f"};
	struct store_reader *r = NULL;
	struct store_file *f = NULL;
	struct store_entry entry;
	struct store_create opts = {.nbytes = 1}, recycle = {.nbytes = 1, .recycle_key = "../x"};
	struct store *s = bed->store;
	struct pawl_error *err = &bed->err;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *key = bad[i];
		FAILS(bed, store_put_bytes(s, key, "x", 1, 0, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_create(s, key, &opts, &f, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_open_reader(s, key, &r, NULL, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_stat(s, key, &entry, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_remove(s, key, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_remove_folder(s, key, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_link(s, "a", key, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_move(s, key, "a", err), PAWL_EUSAGE, "key");
		FAILS(bed, store_publish(s, "a", key, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_pointer(s, key, "a", err), PAWL_EUSAGE, "key");
		FAILS(bed, store_pointer(s, "a", key, err), PAWL_EUSAGE, "key");
		FAILS(bed, store_append(s, key, "x", 1, err), PAWL_EUSAGE, "key");
		if (key[0] != '\0') {
			FAILS(bed, store_list(s, key, names_add, NULL, err), PAWL_EUSAGE, "key");
			FAILS(bed, store_sync(s, key, err), PAWL_EUSAGE, "key");
		}
	}
	FAILS(bed, store_create(s, "a", &recycle, &f, err), PAWL_EUSAGE, "key");
	assert_names(bed, "", "");
}

static void
test_missing_things_are_not_found(void **state)
{
	struct bed *bed = *state;
	struct store_reader *r = NULL;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	const bool flat = bed_caps(bed).flat;
	put_text(bed, "file", "x");
	static const char *const keys[] = {"nothing", "no/thing", "file/below"};
	for (size_t i = 0; i < 3; i++) {
		assert_missing(bed, keys[i]);
		FAILS(bed, store_open_reader(bed->store, keys[i], &r, NULL, &bed->err), PAWL_ENOTFOUND, keys[i]);
		FAILS(bed, store_get(bed->store, keys[i], 10, &out, &bed->err), PAWL_ENOTFOUND, keys[i]);
		FAILS(bed, store_list(bed->store, keys[i], names_add, NULL, &bed->err), PAWL_ENOTFOUND, keys[i]);
		if (!flat)
			FAILS(bed, store_sync(bed->store, keys[i], &bed->err), PAWL_ENOTFOUND, keys[i]);
		const bool link = bed_caps(bed).link;
		FAILS(bed, store_link(bed->store, keys[i], "to", &bed->err), link ? PAWL_ENOTFOUND : PAWL_EUNSUPPORTED,
		      link ? keys[i] : "to");
		FAILS(bed, store_move(bed->store, keys[i], "to", &bed->err), PAWL_ENOTFOUND, keys[i]);
		FAILS(bed, store_publish(bed->store, keys[i], "to", &bed->err),
		      flat ? PAWL_EUNSUPPORTED : PAWL_ENOTFOUND, flat ? "to" : keys[i]);
		OK(bed, store_remove(bed->store, keys[i], &bed->err));
		OK(bed, store_remove_folder(bed->store, keys[i], &bed->err));
	}
	assert_null(r);
	assert_names(bed, "", "file");
}

static void
test_a_folder_is_no_object_and_an_object_no_folder(void **state)
{
	struct bed *bed = *state;
	struct store_reader *r = NULL;
	struct store_file *f = NULL;
	struct store_create opts = {.nbytes = 1};
	if (bed_caps(bed).flat)
		skip();
	put_text(bed, "d/a", "x");
	FAILS(bed, store_open_reader(bed->store, "d", &r, NULL, &bed->err), PAWL_ENOTFOUND, "d");
	FAILS(bed, store_put_bytes(bed->store, "d", "x", 1, 0, &bed->err), PAWL_EEXISTS, "d");
	FAILS(bed, store_put_bytes(bed->store, "d", "x", 1, STORE_EXCLUSIVE, &bed->err), PAWL_EEXISTS, "d");
	FAILS(bed, store_create(bed->store, "d", &opts, &f, &bed->err), PAWL_EEXISTS, "d");
	FAILS(bed, store_put_bytes(bed->store, "d/a/b", "x", 1, 0, &bed->err), PAWL_EEXISTS, "d/a/b");
	FAILS(bed, store_create(bed->store, "d/a/b", &opts, &f, &bed->err), PAWL_EEXISTS, "d/a/b");
	FAILS(bed, store_append(bed->store, "d", "x", 1, &bed->err), PAWL_EEXISTS, "d");
	FAILS(bed, store_remove(bed->store, "d", &bed->err), PAWL_EUSAGE, "d: is a folder");
	FAILS(bed, store_remove_folder(bed->store, "d/a", &bed->err), PAWL_EUSAGE, "d/a: is not a folder");
	assert_names(bed, "", "d/");
	assert_names(bed, "d", "a");
}

static void
test_listing_tells_kinds_and_sizes(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "d/file", "12345");
	put_text(bed, "d/sub/x", "1");
	put_text(bed, "d/sub/y", "1");
	put_text(bed, "d/sub-z", "1");
	put_text(bed, "d/.hidden", "1");
	put_text(bed, "d.x", "1");
	assert_names(bed, "d", ".hidden file sub-z sub/");
	assert_names(bed, "d/sub", "x y");
	assert_names(bed, "", "d.x d/");
	struct store_entry entry;
	OK(bed, store_stat(bed->store, "d/file", &entry, &bed->err));
	assert_int_equal(entry.nbytes, 5);
	assert_true(entry.n_links <= 1);
	assert_null(entry.name);
	assert_true(entry.mtime_ns > INT64_C(1600000000) * 1000000000);
	OK(bed, store_stat(bed->store, "d/sub", &entry, &bed->err));
	assert_true(entry.is_folder);
}

static int
refuse_entry(void *arg, const struct store_entry *entry)
{
	(void)entry;
	++*(int *)arg;
	return PAWL_ENOTFOUND;
}

static void
test_a_listing_of_all_depths_gives_objects_by_their_paths(void **state)
{
	struct bed *bed = *state;
	int seen = 0;
	put_text(bed, "d/file", "1");
	put_text(bed, "d/sub/x", "1");
	put_text(bed, "d/sub/deep/z", "1");
	put_text(bed, "d-other", "1");
	assert_listed(bed, store_list_all, "d", "file sub/deep/z sub/x");
	assert_listed(bed, store_list_all, "d/sub/deep", "z");
	assert_listed(bed, store_list_all, "", "d-other d/file d/sub/deep/z d/sub/x");
	assert_listed(bed, store_list_all, "nothing", "");
	assert_int_equal(store_list_all(bed->store, "d", refuse_entry, &seen, &bed->err), PAWL_ENOTFOUND);
	assert_int_equal(seen, 1);
	put_text(bed, "e/f/g/h", "1"); /* stopped from a folder in a folder */
	assert_int_equal(store_list_all(bed->store, "e", refuse_entry, &seen, &bed->err), PAWL_ENOTFOUND);
	assert_int_equal(seen, 2);
}

static int
stop_at_b(void *arg, const struct store_entry *entry)
{
	(*(int *)arg)++;
	return strcmp(entry->name, "b") == 0 ? PAWL_ECANCELLED : 0;
}

static void
test_a_listing_can_be_stopped_and_may_remove(void **state)
{
	struct bed *bed = *state;
	int seen = 0;
	put_text(bed, "d/b", "1");
	assert_int_equal(store_list(bed->store, "d", stop_at_b, &seen, &bed->err), PAWL_ECANCELLED);
	assert_int_equal(seen, 1);
	assert_int_equal(store_list(bed->store, "", stop_at_b, &seen, &bed->err), 0);
}

static int
remove_listed(void *arg, const struct store_entry *entry)
{
	char key[300];
	snprintf(key, sizeof key, "d/%s", entry->name);
	return store_remove(arg, key, NULL);
}

static void
test_objects_may_be_removed_while_they_are_listed(void **state)
{
	struct bed *bed = *state;
	for (int i = 0; i < 50; i++) {
		char key[32];
		snprintf(key, sizeof key, "d/%d", i);
		put_text(bed, key, "x");
	}
	OK(bed, store_list(bed->store, "d", remove_listed, bed->store, &bed->err));
	struct store_entry entry;
	int rc = store_stat(bed->store, "d", &entry, &bed->err);
	if (rc == 0)
		assert_names(bed, "d", "");
	else
		assert_int_equal(rc, PAWL_ENOTFOUND);
}

static void
test_P15_removing_twice_is_success(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "d/a", "1");
	put_text(bed, "d/e/f/g", "1");
	put_text(bed, "d-other", "1");
	for (int i = 0; i < 2; i++) {
		OK(bed, store_remove(bed->store, "d/a", &bed->err));
		assert_missing(bed, "d/a");
	}
	for (int i = 0; i < 2; i++) {
		OK(bed, store_remove_folder(bed->store, "d", &bed->err));
		assert_missing(bed, "d");
	}
	assert_names(bed, "", "d-other");
}

static void
test_links_share_contents_and_are_counted(void **state)
{
	struct bed *bed = *state;
	struct store_entry entry;
	if (!bed_caps(bed).link) {
		FAILS(bed, store_link(bed->store, "a", "b", &bed->err), PAWL_EUNSUPPORTED, "");
		return;
	}
	put_text(bed, "a/pack", "shared");
	OK(bed, store_link(bed->store, "a/pack", "b/pack", &bed->err));
	assert_text(bed, "b/pack", "shared");
	OK(bed, store_stat(bed->store, "a/pack", &entry, &bed->err));
	if (entry.n_links != 0) /* 0: the engine cannot know */
		assert_int_equal(entry.n_links, bed_caps(bed).flat ? 1 : 2);
	FAILS(bed, store_link(bed->store, "a/pack", "b/pack", &bed->err), PAWL_EEXISTS, "b/pack");
	OK(bed, store_remove_folder(bed->store, "a", &bed->err));
	assert_text(bed, "b/pack", "shared");
	OK(bed, store_stat(bed->store, "b/pack", &entry, &bed->err));
	assert_true(entry.n_links <= 1);
}

static void
test_replacing_one_link_leaves_the_other(void **state)
{
	struct bed *bed = *state;
	if (!bed_caps(bed).link) {
		FAILS(bed, store_link(bed->store, "a", "b", &bed->err), PAWL_EUNSUPPORTED, "");
		return;
	}
	put_text(bed, "a", "old");
	OK(bed, store_link(bed->store, "a", "b", &bed->err));
	put_text(bed, "a", "new");
	assert_text(bed, "a", "new");
	assert_text(bed, "b", "old");
}

static void
test_move_replaces_and_takes_the_source_away(void **state)
{
	struct bed *bed = *state;
	put_text(bed, "d/a", "moved");
	put_text(bed, "e/b", "replaced");
	OK(bed, store_move(bed->store, "d/a", "e/b", &bed->err));
	assert_text(bed, "e/b", "moved");
	assert_missing(bed, "d/a");
	OK(bed, store_move(bed->store, "e/b", "new/c", &bed->err));
	assert_text(bed, "new/c", "moved");

	/* Between two links of one file, rename itself would do nothing. */
	if (bed_caps(bed).link)
		OK(bed, store_link(bed->store, "new/c", "new/d", &bed->err));
	OK(bed, store_move(bed->store, "new/c", "new/d", &bed->err));
	assert_names(bed, "new", "d");
	FAILS(bed, store_move(bed->store, "new", "other", &bed->err), PAWL_ENOTFOUND, "new");
}

static void
test_P19_a_reader_keeps_what_it_opened(void **state)
{
	struct bed *bed = *state;
	struct store_reader *r = NULL;
	char got[8] = {0};
	put_text(bed, "d/a", "before");
	OK(bed, store_open_reader(bed->store, "d/a", &r, NULL, &bed->err));
	put_text(bed, "d/a", "after it");
	OK(bed, store_remove_folder(bed->store, "d", &bed->err));
	if (bed_caps(bed).flat) { /* or refuses to show anything else */
		int rc = store_read(bed->store, r, 0, got, 6, &bed->err);
		assert_true(rc == PAWL_ECONFLICT || rc == PAWL_ENOTFOUND || (rc == 0 && strcmp(got, "before") == 0));
	} else {
		OK(bed, store_read(bed->store, r, 0, got, 6, &bed->err));
		assert_string_equal(got, "before");
	}
	store_close_reader(bed->store, r);
}

/* ------------------------------------------------------------------ publishing */

static void
test_publish_moves_a_folder_whole(void **state)
{
	struct bed *bed = *state;
	if (!bed_caps(bed).rename_folder)
		skip();
	struct bytes b = bytes_new(PIECE + 9, 0, 20);
	write_bytes(bed, "checkpoints/.c1.partial/pack", &b, PIECE, NULL);
	put_text(bed, "checkpoints/.c1.partial/manifest.json", "{}");
	OK(bed, store_publish(bed->store, "checkpoints/.c1.partial", "checkpoints/c1", &bed->err));
	assert_names(bed, "checkpoints", "c1/");
	assert_names(bed, "checkpoints/c1", "manifest.json pack");
	assert_bytes(bed, "checkpoints/c1/pack", &b);
	put_text(bed, "other/x", "1");
	OK(bed, store_publish(bed->store, "other", "deep/er/y", &bed->err));
	assert_text(bed, "deep/er/y/x", "1");
	assert_missing(bed, "other");
	free(b.memory);
}

static void
test_exchange_swaps_two_folders_or_says_that_it_cannot(void **state)
{
	struct bed *bed = *state;
	put_text(bed, ".new.partial/x", "new");
	put_text(bed, "final/x", "old");
	int rc = store_exchange(bed->store, ".new.partial", "final", &bed->err);
	bool swapped = rc == 0;
	assert_true(swapped || rc == PAWL_EUNSUPPORTED);
	if (bed->kind == BED_DISK || bed->kind == BED_TMPFS)
		assert_true(swapped);
	assert_text(bed, "final/x", swapped ? "new" : "old");
	assert_text(bed, ".new.partial/x", swapped ? "old" : "new");
	assert_true(store_exchange(bed->store, ".new.partial", "nowhere", &bed->err) < 0);
	assert_text(bed, "final/x", swapped ? "new" : "old");
}

static void
test_P10_publish_never_replaces(void **state)
{
	struct bed *bed = *state;
	if (!bed_caps(bed).rename_folder)
		skip();
	put_text(bed, "a/x", "a");
	put_text(bed, "b/x", "b");
	put_text(bed, "file", "f");
	FAILS(bed, store_publish(bed->store, "a", "b", &bed->err), PAWL_EEXISTS, "b");
	FAILS(bed, store_publish(bed->store, "a", "file", &bed->err), PAWL_EEXISTS, "file");
	FAILS(bed, store_publish(bed->store, "file", "c", &bed->err), PAWL_ENOTFOUND, "file");
	FAILS(bed, store_publish(bed->store, "a", "a/b", &bed->err), PAWL_EUSAGE, "a");
	FAILS(bed, store_publish(bed->store, "a", "a", &bed->err), PAWL_EUSAGE, "a");
	assert_text(bed, "a/x", "a");
	assert_text(bed, "b/x", "b");
	assert_text(bed, "file", "f");
}

static void
race_publish(struct race *race, char name)
{
	char from[80];
	snprintf(from, sizeof from, "%s-%c", race->key, name);
	race_count(race, name, store_publish(race->store, from, race->key, NULL));
}

static void
test_P10_of_two_racing_publishes_exactly_one_wins(void **state)
{
	struct bed *bed = *state;
	struct race r = {.store = bed->store};
	if (!bed_caps(bed).rename_folder)
		skip();
	for (int round = 0; round < 20; round++) {
		char key[100];
		snprintf(r.key, sizeof r.key, "c%d", round);
		for (char name = 'A'; name <= 'B'; name++) {
			snprintf(key, sizeof key, "%s-%c/who", r.key, name);
			put_text(bed, key, (char[]){name, '\0'});
		}
		char winner = race(&r, race_publish);
		snprintf(key, sizeof key, "%s/who", r.key);
		assert_text(bed, key, (char[]){winner, '\0'});
		snprintf(key, sizeof key, "%s-%c/who", r.key, winner == 'A' ? 'B' : 'A');
		assert_text(bed, key, (char[]){winner == 'A' ? 'B' : 'A', '\0'});
	}
}

static void
test_E12_pointers_are_replaced_atomically_and_removed(void **state)
{
	struct bed *bed = *state;
	struct store_caps caps;
	store_get_caps(bed->store, &caps);
	OK(bed, store_pointer(bed->store, "latest", "checkpoints/checkpoint_000001", &bed->err));
	OK(bed, store_pointer(bed->store, "latest", "checkpoints/checkpoint_000002", &bed->err));
	assert_names(bed, "", caps.symlink ? "latest@" : "latest");
	if (!caps.symlink)
		assert_text(bed, "latest", "checkpoints/checkpoint_000002\n");
	struct store_entry entry;
	OK(bed, store_stat(bed->store, "latest", &entry, &bed->err));
	assert_int_equal(entry.is_link, caps.symlink);
	OK(bed, store_remove(bed->store, "latest", &bed->err));
	assert_names(bed, "", "");
}

static void
test_space_sync_and_caps_make_sense(void **state)
{
	struct bed *bed = *state;
	uint64_t free_bytes = 0;
	struct store_caps caps;
	put_text(bed, "d/a", "1");
	OK(bed, store_space(bed->store, &free_bytes, &bed->err));
	assert_true(free_bytes > 0);
	OK(bed, store_sync(bed->store, "", &bed->err));
	OK(bed, store_sync(bed->store, "d", &bed->err));
	store_get_caps(bed->store, &caps);
	if (bed->kind == BED_S3 && caps.flat)
		assert_true(caps.flat && !caps.rename_folder && caps.link && caps.unit_bytes > 0);
	else if (bed->kind == BED_OTHER)
		assert_true(caps.flat && !caps.rename_folder && !caps.link && caps.exclusive_put && !caps.symlink);
	else if (bed->kind == BED_USER) /* nothing that keeps two writers apart */
		assert_true(caps.flat && !caps.rename_folder && caps.link && !caps.exclusive_put && !caps.symlink);
	else
		assert_true(caps.rename_folder && caps.exclusive_put && caps.link && !caps.flat);
	assert_true(caps.offset_align > 0 && (caps.offset_align & (caps.offset_align - 1)) == 0);
	const bool has_folder =
		bed->kind != BED_MEM && bed->kind != BED_S3 && bed->kind != BED_USER && bed->kind != BED_OTHER;
	assert_int_equal(caps.local, has_folder);
	if (bed->kind != BED_DISK && bed->kind != BED_NODES)
		assert_false(caps.direct_io);
	assert_int_equal(caps.copies, bed->kind == BED_NODES ? 2 : 1);
	if (has_folder || bed->kind == BED_MEM)
		assert_string_equal(bed->store->root, has_folder ? bed->dir : "mem:");
}

/* ----------------------------------------------------------------------- runs */

static int
setup(void **state)
{
	bed_open(*state);
	return 0;
}

static int
teardown(void **state)
{
	bed_close(*state);
	return 0;
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
static const struct CMUnitTest suite[] = {
	CASE(test_put_is_got_back_and_replaced),
	CASE(test_put_joins_its_parts_and_makes_folders),
	CASE(test_exclusive_put_refuses_an_existing_key),
	CASE(test_get_above_its_maximum_is_refused),
	CASE(test_P10_of_two_racing_exclusive_puts_exactly_one_wins),
	CASE(test_P2_a_replaced_object_is_never_seen_half_written),
	CASE(test_append_adds_at_the_end_and_creates),
	CASE(test_appended_lines_of_two_threads_stay_whole),
	CASE(test_written_pieces_are_read_back),
	CASE(test_objects_of_every_small_size_come_back),
	CASE(test_a_padded_last_piece_is_cut),
	CASE(test_unaligned_memory_is_written_and_read),
	CASE(test_ranges_are_read_exactly),
	CASE(test_P1_reading_past_the_end_is_corrupt),
	CASE(test_what_was_put_is_cached_where_a_cache_is_known),
	CASE(test_four_threads_write_one_object),
	CASE(test_P4_an_aborted_object_leaves_nothing),
	CASE(test_P1_an_object_with_a_gap_cannot_be_finished),
	CASE(test_P5_after_a_failed_write_only_abort_is_left),
	CASE(test_create_refuses_an_existing_key),
	CASE(test_misplaced_pieces_are_refused),
	CASE(test_a_buffered_object_takes_any_offset),
	CASE(test_a_missing_or_linked_recycle_key_means_a_fresh_object),
	CASE(test_recycled_objects_of_any_size_hold_only_the_new_bytes),
	CASE(test_P17_keys_that_leave_the_root_are_refused),
	CASE(test_missing_things_are_not_found),
	CASE(test_a_folder_is_no_object_and_an_object_no_folder),
	CASE(test_listing_tells_kinds_and_sizes),
	CASE(test_a_listing_of_all_depths_gives_objects_by_their_paths),
	CASE(test_a_listing_can_be_stopped_and_may_remove),
	CASE(test_objects_may_be_removed_while_they_are_listed),
	CASE(test_P15_removing_twice_is_success),
	CASE(test_links_share_contents_and_are_counted),
	CASE(test_replacing_one_link_leaves_the_other),
	CASE(test_move_replaces_and_takes_the_source_away),
	CASE(test_P19_a_reader_keeps_what_it_opened),
	CASE(test_publish_moves_a_folder_whole),
	CASE(test_exchange_swaps_two_folders_or_says_that_it_cannot),
	CASE(test_P10_publish_never_replaces),
	CASE(test_P10_of_two_racing_publishes_exactly_one_wins),
	CASE(test_E12_pointers_are_replaced_atomically_and_removed),
	CASE(test_space_sync_and_caps_make_sense),
};

static int
group(void **state, enum bed_kind kind, bool wrapped)
{
	struct bed *bed = mem_zalloc(1, sizeof *bed);
	assert_non_null(bed);
	*bed = (struct bed){.kind = kind, .wrapped = wrapped};
	*state = bed;
	return 0;
}

static int
group_end(void **state)
{
	mem_free(*state);
	return 0;
}

static int
group_user(void **state, const struct pawl_stores *stores, const char *url)
{
	group(state, BED_USER, false);
	((struct bed *)*state)->stores = stores;
	((struct bed *)*state)->url = url;
	return 0;
}

/* Cases that an object store without conditions cannot meet: exclusive puts, folders to rename,
 * a cache of pages. */
static int
run_flat_suite(const char *name, CMFixtureFunction open)
{
	static const char *const beyond[] = {
		"test_exclusive_put_refuses_an_existing_key",
		"test_P10_of_two_racing_exclusive_puts_exactly_one_wins",
		"test_what_was_put_is_cached_where_a_cache_is_known",
		"test_a_folder_is_no_object_and_an_object_no_folder",
		"test_publish_moves_a_folder_whole",
		"test_P10_publish_never_replaces",
		"test_P10_of_two_racing_publishes_exactly_one_wins",
	};
	struct CMUnitTest within[sizeof suite / sizeof *suite];
	size_t n = 0;

	for (size_t i = 0; i < sizeof suite / sizeof *suite; i++) {
		bool is_beyond = false;

		for (size_t k = 0; k < sizeof beyond / sizeof *beyond; k++)
			is_beyond |= strcmp(suite[i].name, beyond[k]) == 0;
		if (!is_beyond)
			within[n++] = suite[i];
	}
	return _cmocka_run_group_tests(name, within, n, open, group_end);
}

#ifdef CONFORMANCE_LIBRARY
/* For programs that bring stores of their own: tests/py/conformance.py. One run at a time. */
static const struct pawl_stores *given_stores;
static const char *given_url;
typedef int open_other_fn(struct store **ret, struct pawl_error *err);
int conformance_open(const char *name, open_other_fn *open); /* for test_extending.c */
__attribute__((visibility("default"))) int conformance(const struct pawl_stores *stores, const char *url);

static int
given(void **state)
{
	return group_user(state, given_stores, given_url);
}

int
conformance(const struct pawl_stores *stores, const char *url)
{
	given_stores = stores;
	given_url = url;
	return cmocka_run_group_tests_name(url, suite, given, group_end);
}

static open_other_fn *given_open;

static int
given_other(void **state)
{
	group(state, BED_OTHER, true);
	((struct bed *)*state)->open = given_open;
	return 0;
}

int
conformance_open(const char *name, open_other_fn *open)
{
	given_open = open;
	return run_flat_suite(name, given_other);
}
#else
static int
user_plain(void **state)
{
	return group_user(state, &user_stores, "user://x");
}

#define GROUP(name, kind, wrapped)                  \
	static int name(void **state)               \
	{                                           \
		return group(state, kind, wrapped); \
	}
GROUP(mem_plain, BED_MEM, false)
GROUP(mem_fault, BED_MEM, true)
GROUP(disk_plain, BED_DISK, false)
GROUP(disk_fault, BED_DISK, true)
GROUP(buffered_plain, BED_DISK_BUFFERED, false)
GROUP(buffered_fault, BED_DISK_BUFFERED, true)
GROUP(tmpfs_plain, BED_TMPFS, false)
GROUP(tmpfs_fault, BED_TMPFS, true)
GROUP(nodes_plain, BED_NODES, false)
GROUP(nodes_fault, BED_NODES, true)
GROUP(s3_plain, BED_S3, false)
GROUP(s3_fault, BED_S3, true)

/* The other engines need no server; tests/py/test_s3.py brings one. */
static int
run_on_server(void)
{
	if (getenv("PAWL_TEST_S3_FAULT") != NULL)
		return cmocka_run_group_tests_name("s3, fault layer", suite, s3_fault, group_end);
	return cmocka_run_group_tests_name("s3", suite, s3_plain, group_end);
}

static void
test_urls_name_engines(void **state)
{
	(void)state;
	struct bed bed = {0};
	struct store *s = NULL;
	char dir[] = "/var/tmp/pawl-store-XXXXXX", url[80];
	assert_non_null(mkdtemp(dir));
	snprintf(url, sizeof url, "file://%s/a/b", dir);
	FAILS(&bed, store_open(url, false, false, &s, &bed.err), PAWL_ENOTFOUND, "/a/b: there is no such folder");
	OK(&bed, store_open(url, true, false, &s, &bed.err));
	assert_string_equal(s->root, url + 7);
	assert_string_equal(s->name, "file");
	store_close(s);
	OK(&bed, store_open(url + 7, false, false, &s, &bed.err));
	store_close(s);
	OK(&bed, store_open("mem:", false, false, &s, &bed.err));
	assert_string_equal(s->name, "mem");
	store_close(s);
	store_close(NULL);
	static const char *const bad[] = {"", "s4://bucket/x", "http://x", "mem:x", "mem://", "file://"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		FAILS(&bed, store_open(bad[i], true, false, &s, &bed.err), PAWL_EUSAGE, "mem:");
	FAILS(&bed, store_open("file:/x", true, false, &s, &bed.err), PAWL_EUSAGE, "expected file:///x");
	FAILS(&bed, store_open(NULL, true, false, &s, &bed.err), PAWL_EUSAGE, "expected a path");
	snprintf(url, sizeof url, "%s/file", dir);
	int fd = open(url, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
	FAILS(&bed, store_open(url, false, false, &s, &bed.err), PAWL_EUSAGE, "is not a folder");
	assert_int_equal(fd_remove_tree(AT_FDCWD, dir, NULL), 0);
}

static int
stat_bare(void *store, const char *key, struct pawl_store_entry *ret, struct pawl_error *err)
{
	(void)store, (void)ret;
	if (strcmp(key, "other") == 0)
		err->code = PAWL_EAUTH;
	return strcmp(key, "odd") == 0 ? -77 : PAWL_ENOTFOUND;
}

/* What is promised of them is the code that they return. */
static void
test_functions_of_the_callers_need_not_say_more_than_their_code(void **state)
{
	(void)state;
	struct pawl_stores bare = user_stores;
	struct bed bed = {0};
	struct store *s = NULL;
	struct store_entry entry;

	bare.stat = stat_bare;
	OK(&bed, store_open_with(&bare, "user://x", true, false, &s, &bed.err));
	FAILS(&bed, store_stat(s, "none", &entry, &bed.err), PAWL_ENOTFOUND, "none: cannot look");
	FAILS(&bed, store_stat(s, "odd", &entry, &bed.err), PAWL_EIO, "odd: cannot look");
	FAILS(&bed, store_stat(s, "other", &entry, &bed.err), PAWL_EIO, "other: cannot look");
	store_close(s);
}

/* All groups, or the one that is named: a program of several cannot be read as TAP. */
int
main(int argc, char **argv)
{
	const struct CMUnitTest alone[] = {
		cmocka_unit_test(test_urls_name_engines),
		cmocka_unit_test(test_functions_of_the_callers_need_not_say_more_than_their_code),
	};
	if (getenv("PAWL_TEST_S3") != NULL)
		return run_on_server();
#define IS_WANTED(name) (argc < 2 || strcmp(argv[1], name) == 0)
#define SUITE(name, setup) (IS_WANTED(name) ? cmocka_run_group_tests_name(name, suite, setup, group_end) : 0)
	int failed = IS_WANTED("store") ? cmocka_run_group_tests_name("store", alone, NULL, NULL) : 0;
	failed += SUITE("mem", mem_plain);
	failed += SUITE("mem, fault layer", mem_fault);
	failed += SUITE("disk", disk_plain);
	failed += SUITE("disk, fault layer", disk_fault);
	failed += SUITE("disk, buffered", buffered_plain);
	failed += SUITE("disk, buffered, fault layer", buffered_fault);
	failed += SUITE("tmpfs", tmpfs_plain);
	failed += SUITE("tmpfs, fault layer", tmpfs_fault);
	failed += SUITE("node folders", nodes_plain);
	failed += SUITE("node folders, fault layer", nodes_fault);
	failed += IS_WANTED("callers") ? run_flat_suite("the caller's functions", user_plain) : 0;
	return failed;
}
#endif
