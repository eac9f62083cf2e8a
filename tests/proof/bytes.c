/* SPDX-License-Identifier: Apache-2.0 */
/* bytes: corruption at rest. A small checkpoint is damaged bit by bit and length by length; every
 * damage must be found. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"

#define N_VALUES 3000u
#define DATA_SAMPLES 100000

static struct pawl_tensor
tensor_of(float *values)
{
	static const uint64_t shape[] = {N_VALUES};
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = shape;
	t.data = values;
	return t;
}

static int
describe(float *values, struct pawl_state **ret)
{
	struct pawl_tensor t = tensor_of(values);
	int rc = pawl_state_new(ret, NULL);

	if (rc == 0)
		rc = pawl_state_set_tensor(*ret, "model/weight", &t, NULL);
	if (rc == 0)
		rc = pawl_state_set_str(*ret, "note", "a small state", NULL);
	return rc;
}

static int
make(const char *root, const char *codec)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *s = NULL;
	struct pawl *run = NULL;
	static float values[N_VALUES];

	for (unsigned i = 0; i < N_VALUES; i++)
		values[i] = (float)i;
	o.root = root;
	o.packs.compression = codec;
	save.step = 1;
	int rc = pawl_open(&o, &run, NULL);

	if (rc == 0)
		rc = describe(values, &s);
	if (rc == 0)
		rc = pawl_save(run, &save, s, NULL, NULL);
	pawl_state_free(s);
	return pawl_close(run, NULL) < 0 ? -1 : rc;
}

static int
is_listed(struct pawl *run)
{
	struct pawl_list *list = NULL;
	int n = pawl_list_open(run, 0, &list, NULL) == 0 ? (int)pawl_list_count(list) : 1;

	pawl_list_free(list);
	return n > 0;
}

/* PAWL_ECORRUPT, 0 if every value came back as it was, else something that must not be. */
static int
restored(struct pawl *run, const struct pawl_restore_opts *ro)
{
	float values[N_VALUES] = {0};
	struct pawl_restore *r = NULL;
	struct pawl_state *s = NULL;
	const char *note = NULL;
	int rc = describe(values, &s);

	if (rc == 0)
		rc = pawl_restore(run, ro, s, &r, NULL);
	if (rc == 0)
		rc = pawl_state_get_str(pawl_restore_state(r), "note", &note, NULL);
	for (unsigned i = 0; rc == 0 && i < N_VALUES; i++)
		rc = values[i] == (float)i ? 0 : 1;
	if (rc == 0 && strcmp(note, "a small state") != 0)
		rc = 1;
	pawl_restore_close(r);
	pawl_state_free(s);
	return rc;
}

/*
 * 1 if the damage is found: the checkpoint is not listed, or verifying prints "corrupt" and
 * restoring either reports it too or gives the right bytes. Restoring gives the right bytes where
 * it need not read the damaged part. Any other error does not count as found. Controls leave out
 * the reading.
 */
static int
is_found(const char *root, int read)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_restore_opts ro = PAWL_RESTORE_OPTS_INIT;
	struct pawl_findings *findings = NULL;
	struct pawl *run = NULL;
	int found = 0;

	o.root = root;
	o.read_only = 1;
	ro.selector = "id:1";
	ro.no_fallback = 1;
	if (pawl_open(&o, &run, NULL) < 0)
		return 0;
	if (!is_listed(run)) {
		found = 1;
	} else if (read && pawl_verify(run, 1, NULL, &findings, NULL) == PAWL_ECORRUPT) {
		int rc = restored(run, &ro);

		found = rc == PAWL_ECORRUPT || rc == 0;
	}
	pawl_findings_free(findings);
	pawl_close(run, NULL);
	return found;
}

/* The undamaged one must come back complete. */
static int
is_whole(const char *root)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_restore_opts ro = PAWL_RESTORE_OPTS_INIT;
	struct pawl_findings *findings = NULL;
	struct pawl *run = NULL;

	o.root = root;
	o.read_only = 1;
	int rc = pawl_open(&o, &run, NULL);

	if (rc == 0)
		rc = pawl_verify(run, 1, NULL, &findings, NULL);
	if (rc == 0)
		rc = restored(run, &ro);
	pawl_findings_free(findings);
	pawl_close(run, NULL);
	return rc == 0;
}

struct victim {
	char path[600];
	unsigned char *bytes;
	size_t len;
};

static int
victim_open(struct victim *v, const char *root, const char *name)
{
	struct stat st;
	FILE *f;

	snprintf(v->path, sizeof(v->path), "%s/checkpoints/checkpoint_000001/%s", root, name);
	if (stat(v->path, &st) < 0 || !(f = fopen(v->path, "rb")))
		return -1;
	v->len = (size_t)st.st_size;
	v->bytes = malloc(v->len + 1);
	size_t n = fread(v->bytes, 1, v->len, f);

	fclose(f);
	return n == v->len ? 0 : -1;
}

static void
victim_put(const struct victim *v, const unsigned char *bytes, size_t len)
{
	FILE *f = fopen(v->path, "wb");

	if (f) {
		fwrite(bytes, 1, len, f);
		fclose(f);
	}
}

static void
flip(const struct victim *v, size_t byte, unsigned bit)
{
	int fd = open(v->path, O_RDWR | O_CLOEXEC);
	unsigned char c = v->bytes[byte] ^ (unsigned char)(1u << bit);

	if (pwrite(fd, &c, 1, (off_t)byte) != 1)
		abort();
	close(fd);
}

static void
unflip(const struct victim *v, size_t byte)
{
	int fd = open(v->path, O_RDWR | O_CLOEXEC);

	if (pwrite(fd, &v->bytes[byte], 1, (off_t)byte) != 1)
		abort();
	close(fd);
}

static void
try_flip(const char *root, const struct victim *v, size_t byte, unsigned bit, struct totals *t)
{
	t->cases++;
	flip(v, byte, bit);
	if (!is_found(root, 1)) {
		t->bad++;
		fprintf(stderr, "  not found: %s, byte %zu, bit %u\n", v->path, byte, bit);
	}
	unflip(v, byte);
}

static const char *const files[] = {"manifest.json", "rank00000-00000.safetensors"};

#define HEAD_BYTES 4096u /* of a pack: its header, with the padding behind it */

void
prove_head_bits(const char *root, long every, struct totals *t)
{
	if (make(root, NULL) < 0 || !is_whole(root)) {
		t->bad++;
		return;
	}
	for (int i = 0; i < 2; i++) {
		struct victim v;

		if (victim_open(&v, root, files[i]) < 0) {
			t->bad++;
			continue;
		}
		for (size_t bit = 0; bit < (i == 0 ? v.len : HEAD_BYTES) * 8; bit += (size_t)every)
			try_flip(root, &v, bit / 8, (unsigned)(bit % 8), t);
		free(v.bytes);
	}
	proof_wipe(root);
}

static const char packed_file[] = "rank00000-00000.safetensors.zst";

/* Of a compressed pack any byte: header, data and table are one. */
static void
flip_samples(const char *root, const char *codec, long every, uint64_t seed, struct totals *t)
{
	const size_t head = codec ? 0 : HEAD_BYTES;
	struct victim v;

	if (make(root, codec) < 0 || !is_whole(root) || victim_open(&v, root, codec ? packed_file : files[1]) < 0) {
		t->bad++;
		return;
	}
	for (long k = 0; k < DATA_SAMPLES / (codec ? 4 : 1); k += every) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		try_flip(root, &v, head + (size_t)(seed % (v.len - head)), (unsigned)(seed >> 60) % 8, t);
	}
	free(v.bytes);
	proof_wipe(root);
}

void
prove_data_bits(const char *root, long every, long pass, struct totals *t)
{
	const uint64_t seed = 88172645463325252u + (uint64_t)pass;

	flip_samples(root, NULL, every, seed, t);
	flip_samples(root, "zst", every, seed, t);
}

/* A finder that reports everything would pass the sweep, so an undamaged checkpoint must not be
 * reported. Without the checksums of the packs a damaged bit of the data must go unseen, else the
 * sweep does not test them. */
static int
control_bits_of(const char *root, const char *codec)
{
	struct victim v;

	if (make(root, codec) < 0 || !is_whole(root) || is_found(root, 1) ||
	    victim_open(&v, root, codec ? packed_file : files[1]) < 0)
		return 0;
	flip(&v, v.len - 100, 3);
	int unseen = !is_found(root, 0), seen = is_found(root, 1);

	free(v.bytes);
	proof_wipe(root);
	return unseen && seen;
}

int
control_bits(const char *root)
{
	return control_bits_of(root, NULL) && control_bits_of(root, "zst");
}

/* Without reading the packs a cut one must go unseen. */
int
control_truncation(const char *root)
{
	struct victim v;

	if (make(root, NULL) < 0 || victim_open(&v, root, files[1]) < 0)
		return 0;
	victim_put(&v, v.bytes, v.len / 2);
	int unseen = !is_found(root, 0), seen = is_found(root, 1);

	free(v.bytes);
	proof_wipe(root);
	return unseen && seen;
}

static void
cut_everywhere(const char *root, const char *codec, const char *name, long every, struct totals *t)
{
	struct victim v;

	if (make(root, codec) < 0 || victim_open(&v, root, name) < 0) {
		t->bad++;
		return;
	}
	for (size_t len = 0; len < v.len; len += (size_t)every) {
		t->cases++;
		victim_put(&v, v.bytes, len);
		if (!is_found(root, 1)) {
			t->bad++;
			fprintf(stderr, "  not found: %s cut to %zu bytes\n", v.path, len);
		}
	}
	v.bytes[v.len] = 'x';
	t->cases++;
	victim_put(&v, v.bytes, v.len + 1); /* and one byte too many */
	t->bad += !is_found(root, 1);
	free(v.bytes);
	proof_wipe(root);
}

void
prove_truncation(const char *root, long every, struct totals *t)
{
	for (int i = 0; i < 2; i++)
		cut_everywhere(root, NULL, files[i], every, t);
	cut_everywhere(root, "zst", packed_file, every, t);
}
