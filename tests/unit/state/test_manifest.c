/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the commit record: round trips, its digest, and consistent false contents with a good
 * digest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "state/manifest.h"
#include "helpers/trees.h"

#define RUN "0123456789abcdef0123456789abcdef"
#define TOKEN "fedcba9876543210fedcba9876543210"
#define TAIL_BYTES 46 /* the digest's line */

/* Puts a good digest to whatever stands before its line. */
static void
reseal(struct buf *text)
{
	sum_to_hex(sum_bytes(text->ptr, text->len - TAIL_BYTES), text->ptr + text->len - TAIL_BYTES + 11);
}

static void
fill_summary(struct manifest *m)
{
	*m = (struct manifest){.run_id = RUN,
	                       .token = TOKEN,
	                       .id = 7,
	                       .attempt = 2,
	                       .step = -400,
	                       .world_size = 2,
	                       .unix_ns = 1790000000000000123,
	                       .blocked_seconds = 0.25,
	                       .progress = PAWL_PROGRESS_INIT};
	m->progress.epoch = 3;
	m->progress.batch = 9007199254740993;
	m->progress.fraction = 0.5;
}

/* The sample: "w" in one piece, "s" in two pieces of two rows, "e" empty, "t" a long str; two
 * files. */
struct sample {
	struct manifest m;
	struct manifest_tensor tensors[4];
	struct manifest_piece pieces[5];
	struct manifest_file files[2];
	struct sum128 sums[5];
	struct pawl_metric metrics[4];
};

static const uint64_t shape_w[2] = {4, 2}, shape_s[2] = {4, 4}, shape_e[1] = {0}, shape_t[1] = {5000};
static const uint64_t begin_s[2][2] = {{0, 0}, {2, 0}}, half_s[2] = {2, 4};

static struct pawl_state *
sample_state(void)
{
	static float data[16];
	static char text[5001];
	struct pawl_state *s = NULL;
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	memset(text, 'x', 5000);
	assert_int_equal(pawl_state_new(&s, NULL), 0);
	t.dtype = PAWL_F32;
	t.ndim = 2;
	t.shape = shape_w;
	t.data = data;
	t.kind = "torch";
	assert_int_equal(pawl_state_set_tensor(s, "model/w", &t, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(s, "model/tied", &t, NULL), 0);
	assert_int_equal(pawl_state_set_int(s, "step", 400, NULL), 0);
	assert_int_equal(pawl_state_set_str(s, "t", text, NULL), 0);
	t.shape = shape_s;
	assert_int_equal(pawl_state_set_tensor(s, "model/s", &t, NULL), 0);
	t.ndim = 1;
	t.shape = shape_e;
	assert_int_equal(pawl_state_set_tensor(s, "e", &t, NULL), 0);
	return s;
}

static void
sample_init(struct sample *x)
{
	memset(x, 0, sizeof(*x));
	fill_summary(&x->m);
	x->m.state = sample_state(); /* rows: model/w, t, model/s, e: not in the order of the document */
	x->pieces[0] = (struct manifest_piece){0, 4096, 32, NULL, NULL, NULL};
	x->pieces[1] = (struct manifest_piece){1, 4128, 5000, NULL, NULL, NULL};
	x->pieces[2] = (struct manifest_piece){0, 4128, 32, begin_s[0], half_s, NULL};
	x->pieces[3] = (struct manifest_piece){1, 4096, 32, begin_s[1], half_s, NULL};
	x->pieces[4] = (struct manifest_piece){1, 4096, 0, NULL, NULL, NULL};
	x->tensors[0] = (struct manifest_tensor){"model/w", PAWL_F32, 2, shape_w, 32, 1, &x->pieces[0], false, NULL};
	x->tensors[1] = (struct manifest_tensor){"t", PAWL_U8, 1, shape_t, 5000, 1, &x->pieces[1], false, NULL};
	x->tensors[2] = (struct manifest_tensor){"model/s", PAWL_F32, 2, shape_s, 64, 2, &x->pieces[2], false, NULL};
	x->tensors[3] = (struct manifest_tensor){"e", PAWL_F32, 1, shape_e, 0, 1, &x->pieces[4], false, NULL};
	for (size_t i = 0; i < 5; i++)
		x->sums[i] = (struct sum128){i, ~i};
	x->files[0] = (struct manifest_file){
		"rank00000-00000.safetensors", 4160, 4096, 2, x->sums, false, NULL, NULL, 0, 0, NULL};
	x->files[1] = (struct manifest_file){
		"rank00001-00000.safetensors", 9128, 4096, 3, x->sums + 2, true, NULL, NULL, 0, 0, NULL};
	x->metrics[0] = (struct pawl_metric){"accuracy", 0.91, 0};
	x->metrics[1] = (struct pawl_metric){"loss \"\xc3\xa9\"", (double)NAN, 0};
	x->metrics[2] = (struct pawl_metric){"$worst", (double)-INFINITY, 0};
	x->metrics[3] = (struct pawl_metric){"note", 0, 1};
	x->m.metrics = x->metrics;
	x->m.n_metrics = 4;
	x->m.tensors = x->tensors;
	x->m.n_tensors = 4;
	x->m.files = x->files;
	x->m.n_files = 2;
	x->m.bytes = 4160 + 9128;
	x->m.new_bytes = 4160;
	assert_int_equal(pawl_state_new(&x->m.metadata, NULL), 0);
	assert_int_equal(pawl_state_set_str(x->m.metadata, "git/commit", "abc", NULL), 0);
}

static void
sample_clear(struct sample *x)
{
	pawl_state_free(x->m.state);
	pawl_state_free(x->m.metadata);
}

static void
sample_text(struct buf *text)
{
	struct sample x;
	struct pawl_error err = {0};

	sample_init(&x);
	if (manifest_encode(&x.m, text, &err) < 0)
		fail_msg("%s", err.message);
	sample_clear(&x);
}

static int
decode(const struct buf *text, bool summary, struct pawl_error *err)
{
	struct manifest *m = NULL;
	int rc = manifest_decode("checkpoint_000007", text->ptr, text->len, summary, &m, err);

	if ((rc == 0) != (m != NULL))
		fail_msg("rc %d", rc);
	manifest_free(m);
	return rc;
}

/* -------------------------------------------------------------- round trips */

static void
assert_summary(const struct manifest *m)
{
	struct pawl_progress progress = PAWL_PROGRESS_INIT;

	progress.epoch = 3;
	progress.batch = 9007199254740993;
	progress.fraction = 0.5;
	assert_string_equal(m->run_id, RUN);
	assert_string_equal(m->token, TOKEN);
	assert_true(m->id == 7 && m->attempt == 2 && m->step == -400 && m->unix_ns == 1790000000000000123);
	assert_memory_equal(&m->progress, &progress, sizeof(progress));
	assert_true(m->world_size == 2 && m->blocked_seconds == 0.25 && !m->nonfinite && !m->repaired);
	assert_int_equal(m->n_metrics, 4);
	assert_string_equal(m->metrics[0].name, "accuracy");
	assert_true(m->metrics[0].value == 0.91 && !m->metrics[0].not_a_number);
	assert_string_equal(m->metrics[1].name, "loss \"\xc3\xa9\"");
	assert_true(isnan(m->metrics[1].value) && !m->metrics[1].not_a_number);
	assert_true(m->metrics[2].value == (double)-INFINITY);
	assert_true(m->metrics[3].not_a_number);
	assert_non_null(pawl_state_at(m->metadata, "git/commit"));
}

static void
test_P1_a_manifest_comes_back_equal(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0}, again = {0};
	struct pawl_error err = {0};
	struct manifest *m = NULL;

	sample_text(&text);
	if (manifest_decode("m", text.ptr, text.len, false, &m, &err) < 0)
		fail_msg("%s", err.message);
	assert_summary(m);
	assert_true(m->bytes == 13288 && m->new_bytes == 4160 && m->n_tensors == 4 && m->n_files == 2);
	/* rows are in the order of the decoded state's table: that of the document */
	static const char *const names[] = {"model/w", "model/s", "t", "e"};
	for (size_t i = 0; i < 4; i++) {
		assert_string_equal(m->tensors[i].name, names[i]);
		assert_string_equal(pawl_state_tensor(m->state, i)->name, names[i]);
		assert_true(pawl_state_tensor(m->state, i)->nbytes == m->tensors[i].nbytes);
	}
	assert_int_equal(pawl_node_tensor(pawl_state_at(m->state, "model/tied")), 0);
	assert_string_equal(pawl_node_kind(pawl_state_at(m->state, "model/w")), "torch");
	assert_int_equal(pawl_node_type(pawl_state_at(m->state, "t")), PAWL_STR);
	const struct manifest_piece *p = m->tensors[0].pieces;
	assert_true(p->file == 0 && p->begin == 4096 && p->nbytes == 32);
	assert_memory_equal(p->lengths, shape_w, sizeof(shape_w));
	assert_true(p->offsets[0] == 0 && p->offsets[1] == 0);
	assert_int_equal(m->tensors[1].n_pieces, 2);
	assert_memory_equal(m->tensors[1].pieces[1].offsets, begin_s[1], sizeof(begin_s[1]));
	assert_memory_equal(m->tensors[1].pieces[1].lengths, half_s, sizeof(half_s));
	assert_int_equal(m->tensors[1].pieces[1].nbytes, 32);
	assert_true(m->files[1].nbytes == 9128 && m->files[1].n_blocks == 3 && m->files[1].reused);
	assert_true(sum_equal(m->files[1].sums[2], (struct sum128){4, ~4ull}));
	assert_int_equal(manifest_encode(m, &again, &err), 0);
	manifest_free(m);
	m = NULL;
	assert_int_equal(manifest_decode("m", again.ptr, again.len, false, &m, &err), 0);
	manifest_free(m);
}

static void
test_a_summary_is_read_without_the_rest(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct manifest *m = NULL;

	sample_text(&text);
	assert_int_equal(manifest_decode("m", text.ptr, text.len, true, &m, NULL), 0);
	assert_summary(m);
	assert_true(m->n_tensors == 4 && m->n_files == 2 && m->bytes == 13288);
	assert_true(!m->state && !m->tensors && !m->files);
	manifest_free(m);
	manifest_free(NULL);
}

static void
test_the_summary_that_packs_carry_comes_back(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct manifest *m = NULL;
	struct sample x;

	sample_init(&x);
	assert_int_equal(manifest_encode_summary(&x.m, &text, NULL), 0);
	sample_clear(&x);
	assert_null(memchr(text.ptr, '\n', text.len));
	assert_int_equal(manifest_decode_summary("pack", text.ptr, text.len, &m, NULL), 0);
	assert_summary(m);
	manifest_free(m);
	for (size_t len = 0; len < text.len; len++) {
		struct pawl_error err = {0};
		assert_int_equal(manifest_decode_summary("pack", text.ptr, len, &m, &err), PAWL_ECORRUPT);
		assert_int_equal(strncmp(err.message, "pack: ", 6), 0);
	}
	static const char *const bad[] = {"[]", "{}", "{\"run\":\"x\"}", "null"};
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(manifest_decode_summary("pack", bad[i], strlen(bad[i]), &m, NULL), PAWL_ECORRUPT);
}

/* The bytes of version 1 are pinned. */
static void
test_R148_the_text_of_version_1(void **unused)
{
	(void)unused;
	static const char expected[] =
		"{\"pawl_manifest\":1,\n\"run\":\"" RUN "\",\n\"id\":7,\n\"attempt\":2,\n\"token\":\"" TOKEN
		"\",\n\"step\":-400,\n"
		"\"unix_ns\":1790000000000000123,\n\"progress\":{\"epoch\":3,\"batch\":9007199254740993,\"fraction\":0.5},\n"
		"\"metrics\":{},\n\"world_size\":2,\n\"bytes\":4100,\n\"new_bytes\":4100,\n\"n_tensors\":1,\n\"n_files\":1,\n"
		"\"blocked_seconds\":0.25,\n\"nonfinite\":false,\n\"repaired\":false,\n\"metadata\":null,\n"
		"\"state\":{\"b\":{\"$tensor\":\"b\"}},\n\"tensors\":[\n"
		"{\"name\":\"b\",\"dtype\":\"F32\",\"shape\":[],\"pieces\":[{\"file\":0,\"begin\":4096}]}\n],\n\"files\":[\n"
		"{\"name\":\"rank00000-00000.safetensors\",\"size\":4100,\"block\":1048576,\"reused\":false,"
		"\"sums\":\"0000000000000001ffffffffffffffff\"}\n],\n\"digest\":\"";
	float b = 1;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct sum128 sum = {UINT64_MAX, 1};
	struct manifest_piece piece = {0, 4096, 4, NULL, NULL, NULL};
	struct manifest_tensor tensor = {"b", PAWL_F32, 0, NULL, 4, 1, &piece, false, NULL};
	struct manifest_file file = {
		"rank00000-00000.safetensors", 4100, 1 << 20, 1, &sum, false, NULL, NULL, 0, 0, NULL};
	struct manifest m;

	fill_summary(&m);
	t.dtype = PAWL_F32;
	t.data = &b;
	assert_int_equal(pawl_state_new(&m.state, NULL), 0);
	assert_int_equal(pawl_state_set_tensor(m.state, "b", &t, NULL), 0);
	m.tensors = &tensor;
	m.files = &file;
	m.n_tensors = m.n_files = 1;
	m.bytes = m.new_bytes = 4100;
	buf_puts(&text, "before"); /* appended to, not overwritten; the digest covers the manifest alone */
	assert_int_equal(manifest_encode(&m, &text, NULL), 0);
	pawl_state_free(m.state);
	assert_int_equal(text.len, 6 + sizeof(expected) - 1 + 35);
	assert_memory_equal(text.ptr + 6, expected, sizeof(expected) - 1);
	assert_memory_equal(text.ptr + text.len - 35, "36f2d968af7f28d10ba7759317125865\"}\n", 35);
}

/* A manifest for any state: every tensor behind the one before, in one file. */
static void
encode_whole(struct pawl_state *s, struct buf *out)
{
	struct manifest m;
	struct manifest_piece *pieces = calloc(s->n_tensors + 1, sizeof(*pieces));
	struct manifest_tensor *tensors = calloc(s->n_tensors + 1, sizeof(*tensors));
	struct manifest_file file = {.name = "a.safetensors", .nbytes = 4096, .block_bytes = 65536};
	struct sum128 sums[64] = {{0}};
	struct pawl_error err = {0};

	fill_summary(&m);
	for (size_t i = 0; i < s->n_tensors; i++) {
		const struct pawl_tensor_info *t = &s->tensors[i].info;
		pieces[i] = (struct manifest_piece){0, file.nbytes, t->nbytes, NULL, NULL, NULL};
		tensors[i] = (struct manifest_tensor){t->name, t->dtype,   t->ndim, t->shape, t->nbytes,
		                                      1,       &pieces[i], false,   NULL};
		file.nbytes += t->nbytes;
	}
	file.n_blocks = (file.nbytes + 65535) / 65536;
	file.sums = sums;
	assert_in_range(file.n_blocks, 1, 64);
	m.state = s;
	m.tensors = tensors;
	m.n_tensors = s->n_tensors;
	m.files = &file;
	m.n_files = 1;
	m.bytes = m.new_bytes = file.nbytes;
	if (manifest_encode(&m, out, &err) < 0)
		fail_msg("%s", err.message);
	free(pieces);
	free(tensors);
}

static void
test_P1_manifests_of_random_states_come_back_equal(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		PAWL_CLEAN(buf_clear) struct buf text = {0};
		struct pawl_state *s = tree_new(seed);
		struct manifest *m = NULL;
		struct pawl_error err = {0};
		encode_whole(s, &text);
		if (manifest_decode("m", text.ptr, text.len, false, &m, &err) < 0)
			fail_msg("seed %llu: %s", (unsigned long long)seed, err.message);
		assert_true(tree_equal(s, m->state));
		for (size_t i = 0; i < s->n_tensors; i++) {
			const struct state_tensor *t = state_find_tensor(m->state, s->tensors[i].info.name);
			assert_int_equal(t->info.dtype, s->tensors[i].info.dtype);
			assert_int_equal(t->info.ndim, s->tensors[i].info.ndim);
			assert_int_equal(t->info.nbytes, s->tensors[i].info.nbytes);
			if (t->info.ndim)
				assert_memory_equal(t->info.shape, s->tensors[i].info.shape, 8 * t->info.ndim);
		}
		manifest_free(m);
		pawl_state_free(s);
	}
}

/* ------------------------------------------------------------------- damage */

static void
test_P1_every_bit_flip_is_refused(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	sample_text(&text);
	for (size_t i = 0; i < text.len * 8; i++) {
		struct pawl_error err = {0};
		text.ptr[i / 8] = (char)(text.ptr[i / 8] ^ 1 << i % 8);
		for (int summary = 0; summary < 2; summary++) {
			int rc = decode(&text, summary, &err);
			if (rc != PAWL_ECORRUPT || !strstr(err.message, "checkpoint_000007"))
				fail_msg("bit %zu: %d (%s)", i, rc, err.message);
		}
		text.ptr[i / 8] = (char)(text.ptr[i / 8] ^ 1 << i % 8);
	}
	assert_int_equal(decode(&text, false, NULL), 0);
}

static void
test_P1_every_truncation_and_any_addition_is_refused(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	sample_text(&text);
	for (size_t len = 0; len < text.len; len++) {
		struct buf exact = {.ptr = malloc(len + 1), .len = len};
		memcpy(exact.ptr, text.ptr, len);
		assert_int_equal(decode(&exact, false, NULL), PAWL_ECORRUPT);
		assert_int_equal(decode(&exact, true, NULL), PAWL_ECORRUPT);
		free(exact.ptr);
	}
	for (int c = 0; c < 256; c++) {
		buf_putc(&text, (char)c);
		assert_int_equal(decode(&text, false, NULL), PAWL_ECORRUPT);
		text.len--;
	}
	for (size_t cut = 0; cut < text.len; cut += 7) { /* a lost middle */
		PAWL_CLEAN(buf_clear) struct buf torn = {0};
		buf_put(&torn, text.ptr, cut);
		buf_put(&torn, text.ptr + cut + 1, text.len - cut - 1);
		assert_int_equal(decode(&torn, false, NULL), PAWL_ECORRUPT);
	}
}

static void
test_P16_too_large_a_manifest_is_refused_unread(void **unused)
{
	(void)unused;
	struct manifest *m = NULL;

	assert_int_equal(manifest_decode("m", "x", MANIFEST_MAX_BYTES + 1, false, &m, NULL), PAWL_ELIMIT);
	assert_int_equal(manifest_decode("m", "", 0, false, &m, NULL), PAWL_ECORRUPT);
}

/* ------------------------------------------------------------ consistent false contents */

/* Replaces the first `from` by `to` and seals the result. */
static void
edit(struct buf *text, const char *from, const char *to)
{
	struct buf out = {0};
	buf_str(text);
	const char *at = strstr(text->ptr, from);

	if (!at)
		fail_msg("nothing to replace: %s", from);
	buf_put(&out, text->ptr, (size_t)(at - text->ptr));
	buf_puts(&out, to);
	buf_puts(&out, at + strlen(from));
	buf_clear(text);
	*text = out;
	reseal(text);
}

static void
test_a_newer_version_is_told_apart_from_damage(void **unused)
{
	(void)unused;
	static const char *const newer[] = {"{\"pawl_manifest\":3,", "{\"pawl_manifest\":99999999999999999999,",
	                                    "{\"pawl_manifest\":3}"};
	static const char *const wrong[] = {"{\"pawl_manifest\":0,",     "{\"pawl_manifest\":-1,",
	                                    "{\"pawl_manifest\":\"1\",", "{\"pawl_manifest\":1.0,",
	                                    "{\"pawl_manifest\":01,",    " {\"pawl_manifest\":1,"};

	for (size_t i = 0; i < sizeof(newer) / sizeof(newer[0]); i++) {
		PAWL_CLEAN(buf_clear) struct buf text = {0};
		struct pawl_error err = {0};
		sample_text(&text);
		edit(&text, "{\"pawl_manifest\":1,", newer[i]);
		assert_int_equal(decode(&text, false, &err), PAWL_EVERSION);
		assert_int_equal(decode(&text, true, &err), PAWL_EVERSION);
		assert_non_null(strstr(err.message, "up to 2"));
		text.ptr[text.len - 4] = '?'; /* without a good digest it is just damage */
		assert_int_equal(decode(&text, true, &err), PAWL_ECORRUPT);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		PAWL_CLEAN(buf_clear) struct buf text = {0};
		sample_text(&text);
		edit(&text, "{\"pawl_manifest\":1,", wrong[i]);
		assert_int_equal(decode(&text, false, NULL), PAWL_ECORRUPT);
	}
}

struct lie {
	const char *from, *to;
	int code; /* 0 = PAWL_ECORRUPT */
};

/* Members of the summary: also seen when only the summary is read. */
static const struct lie summary_lies[] = {
	{"\"run\":\"" RUN "\"", "\"run\":\"" RUN "0\"", 0},
	{"\"run\":\"" RUN "\"", "\"run\":\"0123\"", 0},
	{"\"run\":\"" RUN "\"", "\"run\":\"0123456789ABCDEF0123456789ABCDEF\"", 0},
	{"\"run\":\"" RUN "\"", "\"run\":7", 0},
	{"\"token\":\"" TOKEN "\"", "\"token\":\"\"", 0},
	{"\"token\":\"" TOKEN "\"", "\"token\":\"../../../../../../../../../../etc\"", 0},
	{"\"id\":7", "\"id\":0", 0},
	{"\"id\":7", "\"id\":-7", 0},
	{"\"id\":7", "\"id\":7.0", 0},
	{"\"id\":7", "\"id\":9223372036854775808", 0},
	{"\"id\":7", "\"id\":18446744073709551615", 0},
	{"\"id\":7", "\"id\":99999999999999999999", PAWL_ELIMIT},
	{"\"id\":7", "\"id\":7,\n\"id\":7", 0},
	{"\"id\":7", "\"id\":7,\n\"unknown\":7", 0},
	{"\"id\":7,\n", "", 0},
	{"\"id\":7,\n\"attempt\":2", "\"attempt\":2,\n\"id\":7", 0},
	{"\"step\":-400", "\"step\":9223372036854775808", 0},
	{"\"step\":-400", "\"step\":\"-400\"", 0},
	{"\"unix_ns\":1790000000000000123", "\"unix_ns\":1.79e18", 0},
	{"\"epoch\":3", "\"epoch\":-3", 0},
	{"\"epoch\":3", "\"epoch\":3.0", 0},
	{"\"epoch\":3", "\"period\":3", 0},
	{"\"epoch\":3", "\"batch\":3", 0},
	{"\"fraction\":0.5", "\"fraction\":\"0.5\"", 0},
	{"\"fraction\":0.5", "\"fraction\":-0.5", 0},
	{"\"fraction\":0.5", "\"fraction\":1e999", PAWL_ELIMIT},
	{"\"accuracy\":0.91", "\"accuracy\":\"0.91\"", 0},
	{"\"accuracy\":0.91", "\"accuracy\":{\"$float\":\"7ff8\"}", 0},
	{"\"accuracy\":0.91", "\"accuracy\":{\"$int\":\"7\"}", 0},
	{"\"accuracy\":0.91", "\"accuracy\":[]", 0},
	{"\"accuracy\":0.91", "\"note\":0.91", 0},
	{"\"world_size\":2", "\"world_size\":0", 0},
	{"\"world_size\":2", "\"world_size\":4294967296", 0},
	{"\"blocked_seconds\":0.25", "\"blocked_seconds\":-0.25", 0},
	{"\"blocked_seconds\":0.25", "\"blocked_seconds\":null", 0},
	{"\"nonfinite\":false", "\"nonfinite\":0", 0},
	{"\"metadata\":{", "\"metadata\":{\"t\":{\"$tensor\":\"model/w\"},", 0},
	{"\"metadata\":{", "\"metadata\":{\"t\":{\"$bytes_in\":\"t\"},", 0},
	{"\"metadata\":{", "\"metadata\":{\"$what\":1,", 0},
	{"\"state\":{", "\"unknown\":1,\n\"state\":{", 0},
};

static const struct lie lies[] = {
	/* counts and sums of sizes */
	{"\"n_tensors\":4", "\"n_tensors\":5", 0},
	{"\"n_tensors\":4", "\"n_tensors\":18446744073709551615", 0},
	{"\"n_files\":2", "\"n_files\":1", 0},
	{"\"n_files\":2", "\"n_files\":1000000000000", 0},
	{"\"bytes\":13288", "\"bytes\":13289", 0},
	{"\"new_bytes\":4160", "\"new_bytes\":13288", 0},
	/* state against rows */
	{"\"tied\":{\"$tensor\":\"model/w\"", "\"tied\":{\"$tensor\":\"model/none\"", 0},
	{"\"tied\":{\"$tensor\":\"model/w\"", "\"tied\":{\"$tensor\":\"t\"", 0},
	{"\"e\":{\"$tensor\":\"e\",\"as\":\"torch\"}", "\"e\":5", 0},
	{"{\"name\":\"e\"", "{\"name\":\"model/w\"", 0},
	{"{\"name\":\"e\"", "{\"name\":\"f\"", 0},
	{"{\"name\":\"e\"", "{\"name\":5", 0},
	{"{\"name\":\"t\",\"dtype\":\"U8\"", "{\"name\":\"t\",\"dtype\":\"I8\"", 0},
	{"{\"name\":\"t\",\"dtype\":\"U8\",\"shape\":[5000]", "{\"name\":\"t\",\"dtype\":\"U8\",\"shape\":[50,100]", 0},
	{"\"step\":400,", "\"step\":400,\"x\":{\"$tensor\":\"\"},", 0},
	{"\"t\":{\"$str_in\":\"t\"}", "\"t\":{\"$tensor\":\"t\"},\"u\":{\"$str_in\":\"t\"}", 0},
	{"\"state\":{", "\"state\":null,\n\"state\":{", 0},
	/* shapes */
	{"\"shape\":[4,2]", "\"shape\":[4,3]", 0},
	{"\"shape\":[4,2]", "\"shape\":[4294967296,4294967296]", 0},
	{"\"shape\":[4,2]", "\"shape\":[4611686018427387904,4]", 0},
	{"\"shape\":[4,2]", "\"shape\":[-4,-2]", 0},
	{"\"shape\":[4,2]", "\"shape\":[4,2.0]", 0},
	{"\"shape\":[4,2]", "\"shape\":8", 0},
	{"\"shape\":[4,2]", "\"shape\":[4,2],\"shape\":[4,2]", 0},
	{"\"shape\":[4,2]",
         "\"shape\":[8,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
         "1,1,1,1,1,1,1,1,1,1,1]",
         PAWL_ELIMIT},
	{"\"dtype\":\"F32\",\"shape\":[4,2]", "\"dtype\":\"F33\",\"shape\":[4,2]", 0},
	{"\"dtype\":\"F32\",\"shape\":[4,2]", "\"dtype\":18,\"shape\":[4,2]", 0},
	{"\"dtype\":\"F32\",\"shape\":[4,2]", "\"dtype\":\"F64\",\"shape\":[4,2]", 0},
	/* pieces */
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":{}", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":2,\"begin\":4096}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":4294967296,\"begin\":4096}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":-1,\"begin\":4096}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":0,\"begin\":4129}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":0,\"begin\":18446744073709551600}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":0,\"begin\":4097}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":1,\"begin\":9100}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":1,\"begin\":4096}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]",
         "\"pieces\":[{\"file\":0,\"begin\":4096},{\"file\":0,\"begin\":0}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":0,\"begin\":4096,\"end\":4128}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"begin\":4096,\"file\":0}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":0,\"begin\":4096,\"offsets\":[0,0]}]", 0},
	{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[[0,4096]]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[1,0],\"lengths\":[2,4]", 0}, /* overlap and hole */
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[0,0],\"lengths\":[2,4]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[3,0],\"lengths\":[2,4]", 0}, /* outside */
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[18446744073709551615,0],\"lengths\":[2,4]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[2,0],\"lengths\":[1,4]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[0,2],\"lengths\":[4,2]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[2,0],\"lengths\":[18446744073709551615,4]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[2],\"lengths\":[2]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"offsets\":[2,0,0],\"lengths\":[2,4,1]", 0},
	{"\"offsets\":[2,0],\"lengths\":[2,4]", "\"lengths\":[2,4],\"offsets\":[2,0]", 0},
	{"{\"file\":1,\"begin\":4096,\"offsets\"", "{\"file\":0,\"begin\":4100,\"offsets\"", 0}, /* bytes of model/w */
	{"{\"file\":1,\"begin\":4096,\"offsets\"", "{\"file\":0,\"begin\":4128,\"offsets\"",
         0}, /* of its own other piece */
	{"{\"file\":1,\"begin\":4096,\"offsets\"", "{\"file\":1,\"begin\":4097,\"offsets\"", 0}, /* of t */
	{"{\"file\":1,\"begin\":4096}]", "{\"file\":1,\"begin\":9129}]", 0}, /* empty, behind the end */
	/* files */
	{"\"rank00001-00000.safetensors\"", "\"../rank00001-00000.safetensors\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"a/b.safetensors\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"/etc/passwd\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"..\"", 0},
	{"\"rank00001-00000.safetensors\"", "\".hidden\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"-rf\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"a\\\\b\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"a b\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"a\\nb\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"rank00000-00000.safetensors\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"RANK00000-00000.safetensors\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"manifest.json\"", 0},
	{"\"rank00001-00000.safetensors\"", "\"Manifest.JSON\"", 0},
	{"\"rank00001-00000.safetensors\"", "5", 0},
	{"\"size\":4160", "\"size\":4161", 0},
	{"\"size\":4160", "\"size\":-1", 0},
	{"\"size\":4160", "\"size\":18446744073709551615", 0},
	{"\"block\":4096", "\"block\":0", 0},
	{"\"block\":4096", "\"block\":1", 0},
	{"\"block\":4096", "\"block\":4097", 0},
	{"\"block\":4096", "\"block\":8192", 0},
	{"\"block\":4096", "\"block\":9223372036854775808", 0},
	{"\"reused\":true", "\"reused\":false", 0},
	{"\"reused\":true", "\"reused\":1", 0},
	{"\"sums\":\"", "\"sums\":\"00000000000000000000000000000000", 0},
	{"\"sums\":\"ffffffffffffffff0000000000000000", "\"sums\":\"", 0},
	{"\"sums\":\"f", "\"sums\":\"F", 0},
	{"\"sums\":\"f", "\"sums\":\"", 0},
	{"\"sums\":\"f", "\"sums\":\"0f", 0},
	{"\"sums\":\"f", "\"sums\":\"g", 0},
	{"\"tensors\":[\n", "\"tensors\":[\n5,", 0},
	{"\"files\":[\n", "\"files\":[\nnull,", 0},
	{"\"files\":[", "\"extra\":1,\n\"files\":[", 0},
	{"\"digest\"", "\"Digest\"", 0},
};

static void
assert_refused(const struct lie *lie, bool summary)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_error err = {0};
	int expected = lie->code ? lie->code : PAWL_ECORRUPT;

	sample_text(&text);
	edit(&text, lie->from, lie->to);
	int rc = decode(&text, summary, &err);
	if (rc != expected || err.code != rc || !strstr(err.message, "checkpoint_000007"))
		fail_msg("%s -> %s: %d (%s)", lie->from, lie->to, rc, err.message);
}

static void
test_P17_lies_with_a_good_digest_are_refused(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
		assert_refused(&lies[i], false);
	for (size_t i = 0; i < sizeof(summary_lies) / sizeof(summary_lies[0]); i++) {
		assert_refused(&summary_lies[i], false);
		assert_refused(&summary_lies[i], true);
	}
}

static void
test_harmless_differences_are_accepted(void **unused)
{
	(void)unused;
	static const struct lie fine[] = {
		{"\"run\":\"" RUN "\"", "\"run\":\"\"", 0}, /* a single checkpoint */
		{"\"pieces\":[{\"file\":0,\"begin\":4096}]",
	         "\"pieces\":[{\"file\":0,\"begin\":4096,\"offsets\":[0,0],\"lengths\":[4,2]}]", 0},
		{"\"pieces\":[{\"file\":0,\"begin\":4096}]", "\"pieces\":[{\"file\":0,\"begin\":0}]",
	         0},                                                                /* holes in files may be */
		{",\"pieces\":[{\"file\":1,\"begin\":4096}]", ",\"pieces\":[]", 0}, /* of the empty tensor */
		{"{\"file\":1,\"begin\":4096}]", "{\"file\":1,\"begin\":9128}]", 0},
		{"\"id\":7", "\"id\": 7 ", 0},
	};

	for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++) {
		PAWL_CLEAN(buf_clear) struct buf text = {0};
		struct pawl_error err = {0};
		sample_text(&text);
		edit(&text, fine[i].from, fine[i].to);
		if (decode(&text, false, &err) < 0)
			fail_msg("%s -> %s: %s", fine[i].from, fine[i].to, err.message);
	}
}

/* ------------------------------------------------------------------- tilings */

#define MAX_BOXES 64

/* A tensor cut at random into boxes, and one file that holds them one behind the other. */
struct cut {
	uint32_t ndim;
	uint64_t shape[4], offsets[MAX_BOXES][4], lengths[MAX_BOXES][4];
	size_t n;
};

static void
cut_random(struct cut *c, struct tree_random *r)
{
	c->ndim = 1 + tree_below(r, 4);
	c->n = 1;
	for (uint32_t d = 0; d < c->ndim; d++) {
		c->shape[d] = c->lengths[0][d] = 1 + tree_below(r, 5);
		c->offsets[0][d] = 0;
	}
	for (unsigned cuts = tree_below(r, 12); cuts > 0; cuts--) {
		size_t box = tree_below(r, (unsigned)c->n);
		uint32_t d = tree_below(r, c->ndim);
		if (c->lengths[box][d] < 2)
			continue;
		uint64_t at = 1 + tree_below(r, (unsigned)c->lengths[box][d] - 1);
		memcpy(c->offsets[c->n], c->offsets[box], sizeof(c->offsets[0]));
		memcpy(c->lengths[c->n], c->lengths[box], sizeof(c->lengths[0]));
		c->offsets[c->n][d] += at;
		c->lengths[c->n][d] -= at;
		c->lengths[box][d] = at;
		c->n++;
	}
}

/* Counts how often each element is covered: the slow and obvious way. */
static bool
cut_is_tiling(const struct cut *c)
{
	uint64_t total = 1;

	for (uint32_t d = 0; d < c->ndim; d++)
		total *= c->shape[d];
	for (uint64_t e = 0; e < total; e++) {
		unsigned covered = 0;
		for (size_t b = 0; b < c->n; b++) {
			uint64_t rest = e;
			bool inside = true;
			for (uint32_t d = c->ndim; d-- > 0; rest /= c->shape[d])
				inside = inside && rest % c->shape[d] - c->offsets[b][d] < c->lengths[b][d];
			covered += inside;
		}
		if (covered != 1)
			return false;
	}
	return true;
}

static int
encode_cut(const struct cut *c, struct pawl_error *err)
{
	static struct sum128 sums[1];
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct manifest_piece pieces[MAX_BOXES];
	struct manifest_file file = {.name = "a", .block_bytes = 1 << 30, .n_blocks = 1, .sums = sums};
	struct manifest_tensor t = {"t", PAWL_U8, c->ndim, c->shape, 1, c->n, pieces, false, NULL};
	struct manifest m;

	fill_summary(&m);
	for (uint32_t d = 0; d < c->ndim; d++)
		t.nbytes *= c->shape[d];
	for (size_t i = 0; i < c->n; i++) {
		uint64_t nbytes = 1;
		for (uint32_t d = 0; d < c->ndim; d++)
			nbytes *= c->lengths[i][d];
		pieces[i] = (struct manifest_piece){0, file.nbytes, nbytes, c->offsets[i], c->lengths[i], NULL};
		file.nbytes += nbytes;
	}
	m.tensors = &t;
	m.n_tensors = 1;
	m.files = &file;
	m.n_files = 1;
	m.bytes = m.new_bytes = file.nbytes;
	return manifest_encode_with(&m, (struct pawl_slice){"null", 4}, &out, err);
}

static void
test_P1_pieces_tile_their_tensor_exactly_or_are_refused(void **unused)
{
	(void)unused;
	struct tree_random r = {4711};
	size_t good = 0, bad = 0;

	for (int round = 0; round < 3000; round++) {
		struct cut c;
		struct pawl_error err = {0};
		cut_random(&c, &r);
		assert_true(cut_is_tiling(&c));
		if (encode_cut(&c, &err) < 0)
			fail_msg("round %d: %s", round, err.message);
		/* move or resize a box, or two, keeping the sum of their sizes now and then */
		for (unsigned n = 1 + tree_below(&r, 2); n > 0; n--) {
			size_t box = tree_below(&r, (unsigned)c.n);
			uint32_t d = tree_below(&r, c.ndim);
			c.offsets[box][d] = tree_below(&r, (unsigned)c.shape[d]);
			if (tree_below(&r, 3) == 0 || c.offsets[box][d] + c.lengths[box][d] > c.shape[d])
				c.lengths[box][d] = 1 + tree_below(&r, (unsigned)(c.shape[d] - c.offsets[box][d]));
		}
		bool expected = cut_is_tiling(&c);
		int rc = encode_cut(&c, &err);
		if ((rc == 0) != expected || (rc < 0 && rc != PAWL_EUSAGE))
			fail_msg("round %d: %d (%s)", round, rc, err.message);
		good += expected;
		bad += !expected;
	}
	assert_true(good > 300 && bad > 1000);
}

/* Cut into single elements in 13 dimensions: each has 2^13 corners. */
static void
test_P16_too_many_corners_are_refused(void **unused)
{
	(void)unused;
	enum { NDIM = 13, COUNT = 1 << NDIM };
	static uint64_t offsets[COUNT][NDIM];
	static struct manifest_piece pieces[COUNT];
	static struct sum128 sums[1];
	uint64_t shape[NDIM], ones[NDIM];
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct manifest_file file = {.name = "a", .nbytes = COUNT, .block_bytes = 1 << 30, .n_blocks = 1, .sums = sums};
	struct manifest_tensor t = {"t", PAWL_U8, NDIM, shape, COUNT, COUNT, pieces, false, NULL};
	struct manifest m;

	for (size_t d = 0; d < NDIM; d++) {
		shape[d] = 2;
		ones[d] = 1;
	}
	for (size_t i = 0; i < COUNT; i++) {
		for (size_t d = 0; d < NDIM; d++)
			offsets[i][d] = i >> d & 1;
		pieces[i] = (struct manifest_piece){0, i, 1, offsets[i], ones, NULL};
	}
	fill_summary(&m);
	m.tensors = &t;
	m.n_tensors = 1;
	m.files = &file;
	m.n_files = 1;
	m.bytes = m.new_bytes = COUNT;
	assert_int_equal(manifest_encode_with(&m, (struct pawl_slice){"null", 4}, &out, NULL), PAWL_ELIMIT);
	for (size_t i = 0; i < 2; i++) /* the same cut once */
		pieces[i] = (struct manifest_piece){0, i * COUNT / 2, COUNT / 2, offsets[i], ones, NULL};
	t.n_pieces = 2;
	for (size_t d = 1; d < NDIM; d++)
		ones[d] = 2;
	assert_int_equal(manifest_encode_with(&m, (struct pawl_slice){"null", 4}, &out, NULL), 0);
}

/* ------------------------------------------------------------------- encoding */

static void
test_what_would_not_be_read_is_not_written(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf out = {0};

	for (int i = 0; i < 14; i++) {
		struct sample x;
		struct pawl_error err = {0};
		sample_init(&x);
		switch (i) {
		case 0:
			x.m.id = 0;
			break;
		case 1:
			x.m.token[0] = 'X';
			break;
		case 2:
			x.metrics[1].name = "accuracy";
			break;
		case 3:
			x.m.bytes++;
			break;
		case 4:
			x.files[0].name = "../x";
			break;
		case 5:
			x.files[0].n_blocks++;
			break;
		case 6:
			x.tensors[3].name = "model/w";
			break;
		case 7:
			x.tensors[3].name = "other";
			break;
		case 8:
			x.tensors[0].nbytes++;
			break;
		case 9:
			x.m.n_tensors--;
			break;
		case 10:
			x.pieces[0].file = 2;
			break;
		case 11:
			x.pieces[3].offsets = begin_s[0];
			break;
		case 12:
			x.m.blocked_seconds = (double)NAN;
			break;
		default:
			x.m.progress.total_wct = (double)INFINITY;
		}
		int rc = manifest_encode(&x.m, &out, &err);
		if (rc != PAWL_EUSAGE || err.code != rc)
			fail_msg("case %d: %d (%s)", i, rc, err.message);
		assert_int_equal(out.len, 0);
		sample_clear(&x);
	}
}

static void
test_metadata_with_a_tensor_is_refused(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	static char text[5000];
	struct sample x;
	struct pawl_error err = {0};

	sample_init(&x);
	memset(text, 'x', sizeof(text) - 1);
	assert_int_equal(pawl_state_set_str(x.m.metadata, "notes/long", text, NULL), 0);
	assert_int_equal(manifest_encode(&x.m, &out, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "notes/long"));
	assert_int_equal(manifest_encode_summary(&x.m, &out, &err), PAWL_EUSAGE);
	sample_clear(&x);
}

static void
test_a_message_stays_UTF_8_whatever_the_name_is(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	char name[400] = "x";
	struct sample x;

	for (size_t i = 1; i < 391; i += 3)
		memcpy(name + i, "\xe2\x82\xac", 4);
	sample_init(&x);
	x.metrics[0].name = x.metrics[1].name = name;
	assert_int_equal(manifest_encode(&x.m, &out, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "appears twice"));
	assert_true(text_is_utf8(err.message, strlen(err.message)));
	sample_clear(&x);
}

static void
test_P16_a_state_too_large_for_the_manifest_is_refused(void **unused)
{
	(void)unused;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	struct manifest m;
	char *json = malloc(MANIFEST_MAX_BYTES);

	memset(json, ' ', MANIFEST_MAX_BYTES);
	json[0] = '5';
	fill_summary(&m);
	assert_int_equal(manifest_encode_with(&m, (struct pawl_slice){json, MANIFEST_MAX_BYTES}, &out, &err),
	                 PAWL_ELIMIT);
	out.len = 0;
	assert_int_equal(manifest_encode_with(&m, (struct pawl_slice){json, MANIFEST_MAX_BYTES - 1000}, &out, &err), 0);
	struct manifest *back = NULL;
	assert_int_equal(manifest_decode("m", out.ptr, out.len, false, &back, &err), 0);
	assert_int_equal(pawl_node_scalar(pawl_state_root(back->state))->i, 5);
	manifest_free(back);
	free(json);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_P1_a_manifest_comes_back_equal),
		cmocka_unit_test(test_a_summary_is_read_without_the_rest),
		cmocka_unit_test(test_the_summary_that_packs_carry_comes_back),
		cmocka_unit_test(test_R148_the_text_of_version_1),
		cmocka_unit_test(test_P1_manifests_of_random_states_come_back_equal),
		cmocka_unit_test(test_P1_every_bit_flip_is_refused),
		cmocka_unit_test(test_P1_every_truncation_and_any_addition_is_refused),
		cmocka_unit_test(test_P16_too_large_a_manifest_is_refused_unread),
		cmocka_unit_test(test_a_newer_version_is_told_apart_from_damage),
		cmocka_unit_test(test_P17_lies_with_a_good_digest_are_refused),
		cmocka_unit_test(test_harmless_differences_are_accepted),
		cmocka_unit_test(test_P1_pieces_tile_their_tensor_exactly_or_are_refused),
		cmocka_unit_test(test_P16_too_many_corners_are_refused),
		cmocka_unit_test(test_what_would_not_be_read_is_not_written),
		cmocka_unit_test(test_metadata_with_a_tensor_is_refused),
		cmocka_unit_test(test_a_message_stays_UTF_8_whatever_the_name_is),
		cmocka_unit_test(test_P16_a_state_too_large_for_the_manifest_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
