/* SPDX-License-Identifier: Apache-2.0 */
/* Packs in the folders of nodes, in two copies (R159): where they are, the effect of a lost or
 * damaged copy, and what is removed. */
#include "helpers/store_bed.h"

#include <sys/syscall.h>

#include "state/pack_name.h"
#include "store/layers/nodes/nodes_mark.h"

#define RUN "0123456789abcdef0123456789abcdef"
#define TOKEN "00112233445566778899aabbccddeeff"
#define TOKEN_2 "ffeeddccbbaa99887766554433221100"
#define FOLDER "checkpoints/.id000001." TOKEN ".partial"
#define FOLDER_2 "checkpoints/.id000002." TOKEN_2 ".partial"
#define NAME "rank00000-00000.safetensors"
#define FINAL "checkpoints/checkpoint_000001"

/* Folders that got a new folder since the recording began, until they are synced. The system calls
 * are this program's own. */
static struct {
	bool on;
	struct {
		dev_t dev;
		ino_t ino;
	} unsynced[32];
	size_t n_unsynced;
	size_t n_marks, n_early; /* marks that got their final name; those while a folder was not synced */
} record;

static void
forget_folder(const struct stat *st)
{
	for (size_t i = record.n_unsynced; i-- > 0;)
		if (record.unsynced[i].dev == st->st_dev && record.unsynced[i].ino == st->st_ino)
			record.unsynced[i] = record.unsynced[--record.n_unsynced];
}

int
mkdirat(int dir_fd, const char *name, mode_t mode)
{
	struct stat st;
	int rc = (int)syscall(SYS_mkdirat, dir_fd, name, mode);

	if (rc == 0 && record.on) {
		assert_int_equal(fstatat(dir_fd, ".", &st, 0), 0);
		forget_folder(&st);
		assert_true(record.n_unsynced < sizeof record.unsynced / sizeof record.unsynced[0]);
		record.unsynced[record.n_unsynced].dev = st.st_dev;
		record.unsynced[record.n_unsynced++].ino = st.st_ino;
	}
	return rc;
}

int
fsync(int fd)
{
	struct stat st;
	int rc = (int)syscall(SYS_fsync, fd);

	if (rc == 0 && fstat(fd, &st) == 0)
		forget_folder(&st);
	return rc;
}

int
renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	if (record.on && strncmp(from, MARK_BEGUN, strlen(MARK_BEGUN)) == 0) {
		record.n_marks++;
		record.n_early += record.n_unsynced > 0;
	}
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

static int
setup(void **state)
{
	struct bed *bed = calloc(1, sizeof *bed);
	bed->kind = BED_NODES;
	bed_open(bed);
	*state = bed;
	return 0;
}

static int
teardown(void **state)
{
	bed_close(*state);
	free(*state);
	return 0;
}

static const char *
path_on(const struct bed *bed, int node, const char *token, char out[256])
{
	snprintf(out, 256, "%s.node%d/packs/%s/%s%s", bed->dir, node, RUN, token ? token : "",
	         token && token[0] ? "/" NAME : "");
	return out;
}

static bool
is_on(const struct bed *bed, int node, const char *token)
{
	char path[256];
	return access(path_on(bed, node, token, path), F_OK) == 0;
}

static void
lose_node(const struct bed *bed, int node)
{
	char path[256];
	snprintf(path, sizeof path, "%s.node%d", bed->dir, node);
	assert_int_equal(fd_remove_tree(AT_FDCWD, path, NULL), 0);
}

/* The node's disk was replaced: its folder exists, its packs do not. */
static void
lose_packs(const struct bed *bed, int node)
{
	char path[256];
	snprintf(path, sizeof path, "%s.node%d/packs", bed->dir, node);
	assert_int_equal(fd_remove_tree(AT_FDCWD, path, NULL), 0);
}

/* What the inner store holds in a folder: marks have their own names there. */
static void
assert_inner_names(const struct bed *bed, const char *folder, const char *expected)
{
	struct bed inner = {.kind = BED_DISK};
	OK(&inner, store_open(bed->dir, false, false, &inner.store, &inner.err));
	assert_names(&inner, folder, expected);
	store_close(inner.store);
}

static void
spoil(const struct bed *bed, int node, off_t at, off_t length)
{
	char path[256];
	int fd = open(path_on(bed, node, TOKEN, path), O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	if (length >= 0)
		assert_int_equal(ftruncate(fd, length), 0);
	else
		assert_int_equal(pwrite(fd, "spoilt", 6, at), 6);
	close(fd);
}

static void
test_R159_a_pack_goes_to_two_nodes_and_shows_in_its_folder(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(300000, 0, 7);
	struct store_entry entry;
	char path[256];

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	put_text(bed, FOLDER "/manifest.json", "{}");
	assert_true(is_on(bed, 0, TOKEN) && is_on(bed, 1, TOKEN));
	snprintf(path, sizeof path, "%s/" FOLDER "/" NAME, bed->dir);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_names(bed, FOLDER, "manifest.json " NAME);
	OK(bed, store_publish(bed->store, FOLDER, FINAL, &bed->err));
	assert_names(bed, FINAL, "manifest.json " NAME);
	OK(bed, store_stat(bed->store, FINAL "/" NAME, &entry, &bed->err));
	assert_int_equal(entry.nbytes, b.len);
	assert_bytes(bed, FINAL "/" NAME, &b);
	assert_missing(bed, FOLDER "/" NAME);
	free(b.memory);
}

static void
test_R159_a_lost_node_is_replaced_by_its_partner(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);
	struct store_reader *r;

	for (int node = 0; node < 2; node++) {
		write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
		lose_node(bed, node);
		assert_bytes(bed, FOLDER "/" NAME, &b);
		bed_close(bed);
		bed_open(bed);
	}
	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	lose_node(bed, 0);
	lose_node(bed, 1);
	FAILS(bed, store_open_reader(bed->store, FOLDER "/" NAME, &r, NULL, &bed->err), PAWL_ENOTFOUND, "node 0 (");
	free(b.memory);
}

static void
test_R159_every_copy_can_be_read_by_itself(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3), got = bytes_new(5000, 0, 9);
	struct store_reader *r;

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	spoil(bed, 0, 100, -1);
	OK(bed, store_open_reader(bed->store, FOLDER "/" NAME, &r, NULL, &bed->err));
	OK(bed, store_read_copy(bed->store, r, 0, 0, got.ptr, 5000, &bed->err));
	assert_int_not_equal(memcmp(got.ptr, b.ptr, 5000), 0);
	OK(bed, store_read_copy(bed->store, r, 1, 0, got.ptr, 5000, &bed->err));
	assert_int_equal(memcmp(got.ptr, b.ptr, 5000), 0);
	FAILS(bed, store_read_copy(bed->store, r, 2, 0, got.ptr, 5000, &bed->err), PAWL_ENOTFOUND, "only 2 copies");
	store_close_reader(bed->store, r);
	free(b.memory);
	free(got.memory);
}

static void
test_R159_a_copy_of_another_length_is_passed_over(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);
	struct store_reader *r;
	char buffer[8];

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	spoil(bed, 0, 0, 4000);
	assert_bytes(bed, FOLDER "/" NAME, &b);
	OK(bed, store_open_reader(bed->store, FOLDER "/" NAME, &r, NULL, &bed->err));
	FAILS(bed, store_read_copy(bed->store, r, 0, 0, buffer, 8, &bed->err), PAWL_ECORRUPT, "expected 5000 bytes");
	store_close_reader(bed->store, r);
	free(b.memory);
}

/* Nodes over the bed's folder, in which no folder can be listed any more. */
static struct store *
open_unlistable(struct bed *bed, struct pawl_fault **ret_fault)
{
	char url[96];
	struct store *inner, *faulty, *ret;

	snprintf(url, sizeof url, "%s.node" NODES_VARIABLE, bed->dir);
	const struct store_nodes opts = {.template_url = url, .n_nodes = 2, .n_copies = 2};
	OK(bed, pawl_fault_new("list", 1, PAWL_EAUTH, 1, ret_fault, &bed->err));
	OK(bed, store_open(bed->dir, false, false, &inner, &bed->err));
	OK(bed, store_fault_wrap(inner, *ret_fault, &faulty, &bed->err));
	OK(bed, store_nodes_wrap(faulty, &opts, &ret, &bed->err));
	store_nodes_set_run(ret, RUN);
	return ret;
}

static void
test_R159_a_folder_that_cannot_be_listed_does_not_lack_its_packs(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);
	struct store_entry entry;
	struct store_reader *r;
	struct pawl_fault *fault;

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	struct store *s = open_unlistable(bed, &fault);
	FAILS(bed, store_open_reader(s, FOLDER "/" NAME, &r, NULL, &bed->err), PAWL_EAUTH, "");
	FAILS(bed, store_stat(s, FOLDER "/" NAME, &entry, &bed->err), PAWL_EAUTH, "");
	FAILS(bed, store_link(s, FOLDER "/" NAME, FOLDER_2 "/" NAME, &bed->err), PAWL_EAUTH, "");
	FAILS(bed, store_move(s, FOLDER "/" NAME, FOLDER_2 "/" NAME, &bed->err), PAWL_EAUTH, "");
	FAILS(bed, store_remove(s, FOLDER "/" NAME, &bed->err), PAWL_EAUTH, "");
	store_close(s);
	pawl_fault_free(fault);
	assert_bytes(bed, FOLDER "/" NAME, &b);
	free(b.memory);
}

/* A lost copy does not hide that the other one may exist. */
static void
test_R159_a_copy_that_cannot_be_opened_does_not_count_as_missing(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);
	struct store_reader *r;
	char path[256], other[264];

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	lose_packs(bed, 0);
	path_on(bed, 1, TOKEN, path);
	snprintf(other, sizeof other, "%s.aside", path);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(symlink(NAME, path), 0); /* leads to itself: it exists, and cannot be opened */
	int rc = store_open_reader(bed->store, FOLDER "/" NAME, &r, NULL, &bed->err);
	assert_true(rc < 0 && rc != PAWL_ENOTFOUND);
	free(b.memory);
}

static void
test_P4_a_partner_that_cannot_be_written_fails_the_pack(void **state)
{
	struct bed *bed = *state;
	struct store_create opts = {.nbytes = 10};
	struct store_file *f;

	lose_node(bed, 1);
	FAILS(bed, store_create(bed->store, FOLDER "/" NAME, &opts, &f, &bed->err), PAWL_ENOTFOUND, "node 1 (");
	assert_missing(bed, FOLDER "/" NAME);
	assert_false(is_on(bed, 0, TOKEN));
}

static void
test_P3_the_folders_of_a_pack_are_durable_before_its_mark(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);

	memset(&record, 0, sizeof record);
	record.on = true;
	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	OK(bed, store_link(bed->store, FOLDER "/" NAME, FOLDER_2 "/" NAME, &bed->err));
	record.on = false;
	assert_int_equal(record.n_marks, 2);
	assert_int_equal(record.n_early, 0);
	free(b.memory);
}

static void
test_removing_a_folder_removes_its_packs_everywhere(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	OK(bed, store_publish(bed->store, FOLDER, FINAL, &bed->err));
	OK(bed, store_remove_folder(bed->store, FINAL, &bed->err));
	assert_false(is_on(bed, 0, TOKEN) || is_on(bed, 1, TOKEN));
	OK(bed, store_remove_folder(bed->store, FINAL, &bed->err));
	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	OK(bed, store_remove(bed->store, FOLDER "/" NAME, &bed->err));
	assert_false(is_on(bed, 0, TOKEN) || is_on(bed, 1, TOKEN));
	assert_names(bed, FOLDER, "");
	free(b.memory);
}

static void
test_R140_an_unchanged_pack_is_linked_on_both_nodes(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	OK(bed, store_publish(bed->store, FOLDER, FINAL, &bed->err));
	OK(bed, store_link(bed->store, FINAL "/" NAME, FOLDER_2 "/" NAME, &bed->err));
	assert_true(is_on(bed, 0, TOKEN_2) && is_on(bed, 1, TOKEN_2));
	OK(bed, store_remove_folder(bed->store, FINAL, &bed->err));
	assert_bytes(bed, FOLDER_2 "/" NAME, &b);
	free(b.memory);
}

static void
test_P4_a_link_that_a_partner_cannot_make_leaves_nothing(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	OK(bed, store_publish(bed->store, FOLDER, FINAL, &bed->err));
	lose_packs(bed, 1);
	FAILS(bed, store_link(bed->store, FINAL "/" NAME, FOLDER_2 "/" NAME, &bed->err), PAWL_ENOTFOUND, "node 1 (");
	assert_false(is_on(bed, 0, TOKEN_2) || is_on(bed, 1, TOKEN_2));
	assert_inner_names(bed, FOLDER_2, "");
	write_bytes(bed, FOLDER_2 "/" NAME, &b, 65536, NULL);
	assert_true(is_on(bed, 0, TOKEN_2) && is_on(bed, 1, TOKEN_2));
	free(b.memory);
}

static void
test_P10_a_link_to_a_pack_that_exists_leaves_that_pack(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3), other = bytes_new(5000, 0, 4);

	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	write_bytes(bed, FOLDER_2 "/" NAME, &other, 65536, NULL);
	FAILS(bed, store_link(bed->store, FOLDER "/" NAME, FOLDER_2 "/" NAME, &bed->err), PAWL_EEXISTS, "node 0 (");
	assert_inner_names(bed, FOLDER_2, ".at=" TOKEN_2 "=5000=0.1=" NAME);
	assert_bytes(bed, FOLDER_2 "/" NAME, &other);
	lose_node(bed, 0);
	assert_bytes(bed, FOLDER_2 "/" NAME, &other);
	free(other.memory);
	free(b.memory);
}

static bool
spare(void *arg, const char *token)
{
	return arg != NULL && strcmp(arg, token) == 0;
}

/* A pack that nothing in the run's folder speaks of. */
static void
make_orphan(struct bed *bed, const char *run, const char *token)
{
	char path[256];
	struct store *node;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s.node%d", bed->dir, i);
		OK(bed, store_open(path, false, false, &node, &bed->err));
		snprintf(path, sizeof path, "packs/%s/%s/" NAME, run, token);
		OK(bed, store_put_bytes(node, path, "12345", 5, 0, &bed->err));
		store_close(node);
	}
}

static void
test_P8_the_sweep_takes_what_nothing_speaks_of_and_nothing_else(void **state)
{
	struct bed *bed = *state;
	struct bytes b = bytes_new(5000, 0, 3);
	uint64_t count = 9, nbytes = 9;
	char other[256], token[] = TOKEN_2;

	make_orphan(bed, RUN, TOKEN_2);
	make_orphan(bed, "ffffffffffffffffffffffffffffffff", TOKEN_2);
	FAILS(bed, nodes_sweep(bed->store, "checkpoints", spare, NULL, false, &count, &nbytes, &bed->err),
	      PAWL_ENOTFOUND, "checkpoints"); /* a run's folder that is not there, or not mounted */
	put_text(bed, "checkpoints/x", "");
	OK(bed, nodes_sweep(bed->store, "checkpoints", spare, NULL, false, &count, &nbytes, &bed->err));
	assert_int_equal(count, 0); /* nor one without a single checkpoint */
	write_bytes(bed, FOLDER "/" NAME, &b, 65536, NULL);
	OK(bed, store_publish(bed->store, FOLDER, FINAL, &bed->err));
	OK(bed, nodes_sweep(bed->store, "checkpoints", spare, token, false, &count, &nbytes, &bed->err));
	assert_int_equal(count, 0); /* a running save's */
	OK(bed, nodes_sweep(bed->store, "checkpoints", spare, NULL, true, &count, &nbytes, &bed->err));
	assert_int_equal(count, 2);
	assert_int_equal(nbytes, 10);
	assert_true(is_on(bed, 0, TOKEN_2));
	OK(bed, nodes_sweep(bed->store, "checkpoints", spare, NULL, false, &count, &nbytes, &bed->err));
	assert_int_equal(count, 2);
	assert_false(is_on(bed, 0, TOKEN_2) || is_on(bed, 1, TOKEN_2));
	assert_bytes(bed, FINAL "/" NAME, &b);
	snprintf(other, sizeof other, "%s.node1/packs/ffffffffffffffffffffffffffffffff/" TOKEN_2 "/" NAME, bed->dir);
	assert_int_equal(access(other, F_OK), 0);
	free(b.memory);
}

/* What is not a pack here stays in the run's own folder. */
static void
test_R159_packs_of_every_codec_go_to_nodes(void **state)
{
	(void)state;
	size_t n = 0;

	for (const char *name; (name = pack_codec_name(n)) != NULL; n++) {
		struct mark m;
		char pack[64], mark[160];

		snprintf(pack, sizeof pack, NAME ".%s", name);
		snprintf(mark, sizeof mark, ".at=" TOKEN "=5=0=%s", pack);
		assert_non_null(pack_codec(pack));
		if (!nodes_mark_parse(mark, &m))
			fail_msg("%s was not taken for a mark", mark);
		assert_string_equal(m.pack, pack);
	}
	assert_int_equal(n, 2);
}

static void
test_P17_names_that_are_no_marks_are_files(void **state)
{
	(void)state;
	static const char *const bad[] = {
		".at=" TOKEN "=5=0.1=" NAME ".txt",
		".at=" TOKEN "=5=0.1=",
		".at=" TOKEN "=5=0.1=.safetensors",
		".at=" TOKEN "=5=" NAME,
		".at=" TOKEN "=-5=0=" NAME,
		".at=" TOKEN "=05=0=" NAME,
		".at=" TOKEN "=99999999999999999999=0=" NAME,
		".at=" TOKEN "=5=65536=" NAME,
		".at=" TOKEN "=5=0.1.2.3.4.5.6.7.8=" NAME,
		".at=" TOKEN "=5=0..1=" NAME,
		".at=" TOKEN "=5=0.1.=" NAME,
		".at=" TOKEN "0=5=0=" NAME,
		(".at=0011=5=0=" NAME),
		".at=",
		"",
		NAME,
	};
	struct mark m;
	PAWL_CLEAN(buf_clear) struct buf again = {0};

	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (nodes_mark_parse(bad[i], &m))
			fail_msg("%s was taken for a mark", bad[i]);
	assert_true(nodes_mark_parse(".at=" TOKEN "=268439552=3.65535=" NAME, &m));
	assert_int_equal(m.nbytes, 268439552);
	assert_int_equal(m.n_nodes, 2);
	assert_int_equal(m.nodes[1], 65535);
	nodes_mark_format(&m, &again);
	assert_string_equal(buf_str(&again), ".at=" TOKEN "=268439552=3.65535=" NAME);
}

static void
test_options_that_make_no_sense_are_refused(void **state)
{
	(void)state;
	struct bed bed = {.kind = BED_MEM};
	struct store *s;

	bed_open(&bed);
	const struct store_nodes bad[] = {
		{.template_url = "/x", .n_nodes = 2, .n_copies = 1},
		{.template_url = "/{node_rank}/{node_rank}", .n_nodes = 2, .n_copies = 1},
		{.template_url = "/{node_rank}", .n_nodes = 0, .n_copies = 1},
		{.template_url = "/{node_rank}", .n_nodes = 2, .node = 2, .n_copies = 1},
		{.template_url = "/{node_rank}", .n_nodes = 2, .n_copies = 3},
		{.template_url = "/{node_rank}", .n_nodes = 2, .n_copies = 0},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		FAILS(&bed, store_nodes_wrap(bed.store, &bad[i], &s, &bed.err), PAWL_EUSAGE, "expected");
	bed_close(&bed);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_R159_a_pack_goes_to_two_nodes_and_shows_in_its_folder),
		TEST(test_R159_a_lost_node_is_replaced_by_its_partner),
		TEST(test_R159_every_copy_can_be_read_by_itself),
		TEST(test_R159_a_copy_of_another_length_is_passed_over),
		TEST(test_R159_a_folder_that_cannot_be_listed_does_not_lack_its_packs),
		TEST(test_R159_a_copy_that_cannot_be_opened_does_not_count_as_missing),
		TEST(test_P4_a_partner_that_cannot_be_written_fails_the_pack),
		TEST(test_P3_the_folders_of_a_pack_are_durable_before_its_mark),
		TEST(test_removing_a_folder_removes_its_packs_everywhere),
		TEST(test_R140_an_unchanged_pack_is_linked_on_both_nodes),
		TEST(test_P4_a_link_that_a_partner_cannot_make_leaves_nothing),
		TEST(test_P10_a_link_to_a_pack_that_exists_leaves_that_pack),
		TEST(test_P8_the_sweep_takes_what_nothing_speaks_of_and_nothing_else),
		cmocka_unit_test(test_R159_packs_of_every_codec_go_to_nodes),
		cmocka_unit_test(test_P17_names_that_are_no_marks_are_files),
		cmocka_unit_test(test_options_that_make_no_sense_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
