/* SPDX-License-Identifier: Apache-2.0 */
/* bytes: corruption at rest. A small checkpoint is damaged bit by bit and length by length; every damage must be found.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"

#define N_VALUES 3000u
#define DATA_SAMPLES 20000

static int
make(const char *root)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_state *s = NULL;
	struct pawl *run = NULL;
	static float values[N_VALUES];
	uint64_t shape[] = {N_VALUES};

	for (unsigned i = 0; i < N_VALUES; i++)
		values[i] = (float)i;
	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = shape;
	t.data = values;
	o.root = root;
	save.step = 1;
	int rc = pawl_open(&o, &run, NULL);

	if (rc == 0)
		rc = pawl_state_new(&s, NULL);
	if (rc == 0)
		rc = pawl_state_set_tensor(s, "model/weight", &t, NULL);
	if (rc == 0)
		rc = pawl_state_set_str(s, "note", "a small state", NULL);
	if (rc == 0)
		rc = pawl_save(run, &save, s, NULL, NULL);
	pawl_state_free(s);
	return pawl_close(run, NULL) < 0 ? -1 : rc;
}

/* 1 if the damage is found: the checkpoint is not listed, cannot be opened, or does not verify (which controls leave
 * out). */
static int
is_found(const char *root, int verify)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_restore_opts ro = PAWL_RESTORE_OPTS_INIT;
	struct pawl_findings *findings = NULL;
	struct pawl_restore *r = NULL;
	struct pawl *run = NULL;
	int found = 1;

	o.root = root;
	o.read_only = 1;
	ro.selector = "id:1";
	if (pawl_open(&o, &run, NULL) == 0 && pawl_restore_open(run, &ro, &r, NULL) == 0)
		found = verify && pawl_verify(run, 1, NULL, &findings, NULL) < 0;
	pawl_findings_free(findings);
	pawl_restore_close(r);
	pawl_close(run, NULL);
	return found;
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
try_flip(const char *root, const struct victim *v, size_t byte, unsigned bit, long *cases, long *bad)
{
	++*cases;
	flip(v, byte, bit);
	if (!is_found(root, 1)) {
		++*bad;
		fprintf(stderr, "  not found: %s, byte %zu, bit %u\n", v->path, byte, bit);
	}
	unflip(v, byte);
}

static const char *const files[] = {"manifest.json", "rank00000-00000.safetensors"};

void
prove_bits(const char *root, long every, long *cases, long *bad)
{
	uint64_t seed = 88172645463325252u;

	if (make(root) < 0 || is_found(root, 1)) { /* the undamaged one must pass */
		++*bad;
		return;
	}
	for (int i = 0; i < 2; i++) {
		struct victim v;

		if (victim_open(&v, root, files[i]) < 0) {
			++*bad;
			continue;
		}
		size_t head = i == 0 ? v.len : 4096;

		for (size_t bit = 0; bit < head * 8; bit += (size_t)every)
			try_flip(root, &v, bit / 8, (unsigned)(bit % 8), cases, bad);
		for (long k = 0; i == 1 && k < DATA_SAMPLES; k += every) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			try_flip(root, &v, head + (size_t)(seed % (v.len - head)), (unsigned)(seed >> 60) % 8, cases,
			         bad);
		}
		free(v.bytes);
	}
	proof_wipe(root);
}

/* A finder that reports everything would pass the sweep, so an undamaged checkpoint must not be reported; and without
 * the sums of the packs a bit of the data must go unseen, or it is not they that the sweep tests. */
int
control_bits(const char *root)
{
	struct victim v;

	if (make(root) < 0 || is_found(root, 1) || victim_open(&v, root, files[1]) < 0)
		return 0;
	flip(&v, v.len - 100, 3);
	int unseen = !is_found(root, 0), seen = is_found(root, 1);

	free(v.bytes);
	proof_wipe(root);
	return unseen && seen;
}

/* Without reading the packs a cut one must go unseen. */
int
control_truncation(const char *root)
{
	struct victim v;

	if (make(root) < 0 || victim_open(&v, root, files[1]) < 0)
		return 0;
	victim_put(&v, v.bytes, v.len / 2);
	int unseen = !is_found(root, 0), seen = is_found(root, 1);

	free(v.bytes);
	proof_wipe(root);
	return unseen && seen;
}

void
prove_truncation(const char *root, long every, long *cases, long *bad)
{
	if (make(root) < 0) {
		++*bad;
		return;
	}
	for (int i = 0; i < 2; i++) {
		struct victim v;

		if (victim_open(&v, root, files[i]) < 0) {
			++*bad;
			continue;
		}
		for (size_t len = 0; len < v.len; len += (size_t)every) {
			++*cases;
			victim_put(&v, v.bytes, len);
			if (!is_found(root, 1)) {
				++*bad;
				fprintf(stderr, "  not found: %s cut to %zu bytes\n", v.path, len);
			}
		}
		v.bytes[v.len] = 'x';
		++*cases;
		victim_put(&v, v.bytes, v.len + 1); /* and one byte too many */
		*bad += !is_found(root, 1);
		victim_put(&v, v.bytes, v.len);
		free(v.bytes);
	}
	proof_wipe(root);
}
