/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_checkpoint: writes a checkpoint of several ranks and packs through the store, without the
 * save path. It has packs with tensors split over ranks, and a manifest. Also a fresh run per test,
 * and ways to damage files. For tests; include after cmocka.h.
 */
#ifndef PAWL_TESTS_MAKE_CHECKPOINT_H
#define PAWL_TESTS_MAKE_CHECKPOINT_H

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sum.h"
#include "format/safetensors/safetensors.h"
#include "pawl.h"
#include "run/run.h"
#include "state/manifest.h"
#include "state/state.h"

#define MADE_MAX_DIMS 4
#define MADE_MAX_FILES 32
#define MADE_MAX_PIECES 64

struct made_opts {
	uint64_t id;
	int64_t step;
	uint64_t block_bytes;         /* 0 = 4096 */
	unsigned ranks;               /* 0 = 1 */
	unsigned packs;               /* of each rank; 0 = 1 */
	unsigned grid[MADE_MAX_DIMS]; /* parts that each dimension of every tensor is cut into, as far as it goes; 0 = 1
	                               */
};

/* One file being put together. */
struct made_pack {
	char name[48];
	struct st_tensor tensors[256];
	const char *bytes[256]; /* by name: contents of a tensor */
	size_t n;
};

static inline void
made_check(int rc, const struct pawl_error *err)
{
	if (rc < 0)
		fail_msg("%s: %s", pawl_code_name(rc), err->message);
}

static inline void *
made_alloc(struct bump *memory, uint64_t n, size_t size)
{
	void *ptr = bump_array(memory, n, size);
	assert_non_null(ptr);
	return ptr;
}

/* Copies the box out of a complete tensor given in C order. */
static inline void
made_cut(const struct state_tensor *t, const char *whole, const uint64_t *offsets, const uint64_t *lengths, char *out)
{
	const unsigned item = pawl_dtype_bits(t->info.dtype) / 8;
	uint64_t at[MADE_MAX_DIMS] = {0}, n = 1;
	for (uint32_t d = 0; d < t->info.ndim; d++)
		n *= lengths[d];
	for (uint64_t i = 0; i < n; i++) {
		uint64_t e = 0;
		for (uint32_t d = 0; d < t->info.ndim; d++)
			e = e * t->info.shape[d] + offsets[d] + at[d];
		memcpy(out + i * item, whole + e * item, item);
		for (uint32_t d = t->info.ndim; d-- > 0;) {
			if (++at[d] < lengths[d])
				break;
			at[d] = 0;
		}
	}
}

/* Cuts tensor t into a grid of pieces and deals them out to the packs. */
static inline void
made_split(const struct made_opts *o, struct bump *memory, const struct state_tensor *t, size_t index,
           struct made_pack *packs, size_t n_packs, struct manifest_tensor *row)
{
	char *whole = made_alloc(memory, t->info.nbytes + 1, 1);
	uint64_t grid[MADE_MAX_DIMS], at[MADE_MAX_DIMS] = {0};
	size_t n = 1;
	if (t->info.nbytes > 0)
		tensor_gather(&t->src, 0, t->info.nbytes, whole);
	for (uint32_t d = 0; d < t->info.ndim; d++) {
		grid[d] = o->grid[d] ? o->grid[d] : 1;
		if (grid[d] > t->info.shape[d] || t->is_blob)
			grid[d] = 1;
		n *= grid[d];
	}
	assert_true(n <= MADE_MAX_PIECES);
	row->pieces = made_alloc(memory, n, sizeof *row->pieces);
	for (size_t k = 0; k < n; k++) {
		uint64_t *box = made_alloc(memory, 2 * MADE_MAX_DIMS, sizeof *box), *lengths = box + MADE_MAX_DIMS;
		uint64_t nbytes = pawl_dtype_bits(t->info.dtype) / 8;
		for (uint32_t d = 0; d < t->info.ndim; d++) {
			box[d] = t->info.shape[d] * at[d] / grid[d];
			lengths[d] = t->info.shape[d] * (at[d] + 1) / grid[d] - box[d];
			nbytes *= lengths[d];
		}
		struct made_pack *pack = &packs[(index + k * (o->packs ? o->packs : 1)) % n_packs];
		char *name = bump_printf(memory, n == 1 ? "%s" : "%s#%zu", t->info.name, k);
		char *bytes = made_alloc(memory, nbytes + 1, 1);
		assert_non_null(name);
		made_cut(t, whole, box, lengths, bytes);
		struct st_tensor *st = &pack->tensors[pack->n];
		*st = (struct st_tensor){.name = name, .dtype = t->info.dtype, .ndim = t->info.ndim, .shape = lengths};
		if (st->dtype == PAWL_C128) {
			uint64_t *pairs = made_alloc(memory, (uint64_t)st->ndim + 1, sizeof *pairs);
			memcpy(pairs, lengths, st->ndim * sizeof *pairs);
			pairs[st->ndim++] = 2;
			st->dtype = PAWL_F64;
			st->shape = pairs;
		}
		pack->bytes[pack->n++] = bytes;
		assert_true(pack->n < 256);
		row->pieces[row->n_pieces++] = (struct manifest_piece){
			.file = (uint32_t)(pack - packs), .nbytes = nbytes, .offsets = box, .lengths = lengths};
		for (uint32_t d = t->info.ndim; d-- > 0;) {
			if (++at[d] < grid[d])
				break;
			at[d] = 0;
		}
	}
}

/* Lays a pack out, writes it, and fills its row of the manifest and the places of its pieces. */
static inline void
made_write(struct pawl *run, const struct made_opts *o, struct bump *memory, const char *folder, struct made_pack *pack,
           struct manifest *m, uint32_t file)
{
	const struct st_pair metadata = {.key = "format", .value = "pt", .value_len = 2};
	struct pawl_error err = {0};
	PAWL_CLEAN(buf_clear) struct buf image = {0}, key = {0};
	char *names[256];
	uint64_t data_len;
	for (size_t i = 0; i < pack->n; i++)
		names[i] = (char *)pack->tensors[i].name;
	made_check(safetensors_layout(pack->tensors, pack->n, &data_len, &err), &err);
	made_check(safetensors_encode_header(pack->tensors, pack->n, &metadata, 1, &image, &err), &err);
	const uint64_t data_begin = image.len;
	char *data = buf_grow(&image, data_len);
	for (size_t i = 0; i < pack->n; i++) {
		size_t k = 0;
		while (strcmp(names[k], pack->tensors[i].name) != 0)
			k++;
		memcpy(data + pack->tensors[i].begin, pack->bytes[k], pack->tensors[i].end - pack->tensors[i].begin);
		for (uint64_t t = 0; t < m->n_tensors; t++) {
			for (size_t p = 0; p < m->tensors[t].n_pieces; p++) {
				char *name = bump_printf(memory, m->tensors[t].n_pieces == 1 ? "%s" : "%s#%zu",
				                         m->tensors[t].name, p);
				if (m->tensors[t].pieces[p].file == file && strcmp(name, pack->tensors[i].name) == 0)
					m->tensors[t].pieces[p].begin = data_begin + pack->tensors[i].begin;
			}
		}
	}
	struct manifest_file *f = &m->files[file];
	f->name = pack->name;
	f->nbytes = image.len;
	f->block_bytes = o->block_bytes ? o->block_bytes : 4096;
	f->n_blocks = (size_t)((f->nbytes + f->block_bytes - 1) / f->block_bytes);
	struct sum128 *sums = made_alloc(memory, f->n_blocks, sizeof *sums);
	for (size_t b = 0; b < f->n_blocks; b++) {
		uint64_t begin = b * f->block_bytes, left = f->nbytes - begin;
		sums[b] = sum_bytes(image.ptr + begin, left < f->block_bytes ? left : f->block_bytes);
	}
	f->sums = sums;
	m->bytes += f->nbytes;
	buf_printf(&key, "%s/%s", folder, pack->name);
	made_check(store_put_bytes(run->store, buf_str(&key), image.ptr, image.len, 0, &err), &err);
}

/* Writes checkpoint `o->id` of the run with the state's tensors, which must be full, and reloads
 * the run. */
static inline void
make_checkpoint(struct pawl *run, const struct made_opts *o, struct pawl_state *state)
{
	struct pawl_error err = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};
	const unsigned ranks = o->ranks ? o->ranks : 1, packs_each = o->packs ? o->packs : 1;
	struct made_pack *packs = made_alloc(&memory, (uint64_t)ranks * packs_each, sizeof *packs);
	struct manifest m = {.id = o->id,
	                     .attempt = 1,
	                     .step = o->step,
	                     .unix_ns = clock_unix_ns(),
	                     .progress = PAWL_PROGRESS_INIT,
	                     .world_size = ranks,
	                     .n_files = ranks * packs_each,
	                     .n_tensors = state->n_tensors,
	                     .state = state};
	char folder[64];
	snprintf(folder, sizeof folder, "checkpoints/checkpoint_%06" PRIu64, o->id);
	memcpy(m.run_id, pawl_run_id(run), sizeof m.run_id);
	made_check(clock_token(m.token, &err), &err);
	m.files = made_alloc(&memory, m.n_files, sizeof *m.files);
	m.tensors = made_alloc(&memory, m.n_tensors, sizeof *m.tensors);
	for (unsigned r = 0; r < ranks; r++) {
		for (unsigned p = 0; p < packs_each; p++)
			snprintf(packs[r * packs_each + p].name, sizeof packs->name, "rank%05u-%05u.safetensors", r, p);
	}
	for (size_t t = 0; t < state->n_tensors; t++) {
		const struct pawl_tensor_info *info = &state->tensors[t].info;
		m.tensors[t] = (struct manifest_tensor){.name = info->name,
		                                        .dtype = info->dtype,
		                                        .ndim = info->ndim,
		                                        .shape = info->shape,
		                                        .nbytes = info->nbytes};
		made_split(o, &memory, &state->tensors[t], t, packs, (size_t)m.n_files, &m.tensors[t]);
	}
	for (uint32_t f = 0; f < m.n_files; f++)
		made_write(run, o, &memory, folder, &packs[f], &m, f);
	m.new_bytes = m.bytes;
	made_check(manifest_encode(&m, &text, &err), &err);
	buf_printf(&key, "%s/" MANIFEST_NAME, folder);
	made_check(store_put_bytes(run->store, buf_str(&key), text.ptr, text.len, 0, &err), &err);
	made_check(pawl_reload(run, &err), &err);
}

/* ---- a run per test ---- */

struct made_run {
	char root[64];
	struct pawl *run;
};

static inline void
made_open(struct made_run *r, const struct pawl_open_opts *given)
{
	struct pawl_open_opts opts = given ? *given : (struct pawl_open_opts)PAWL_OPEN_OPTS_INIT;
	struct pawl_error err = {0};
	if (!r->root[0]) {
		snprintf(r->root, sizeof r->root, "/var/tmp/pawl-made-XXXXXX");
		assert_non_null(mkdtemp(r->root));
	}
	opts.root = r->root;
	r->run = NULL;
	made_check(pawl_open(&opts, &r->run, &err), &err);
}

static inline int
made_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static inline void
made_close(struct made_run *r)
{
	pawl_close(r->run, NULL);
	if (r->root[0])
		nftw(r->root, made_remove_one, 16, FTW_DEPTH | FTW_PHYS);
	*r = (struct made_run){0};
}

/* ---- damage ---- */

static inline int
made_open_file(const struct made_run *r, uint64_t id, const char *file, int flags)
{
	char path[256];
	snprintf(path, sizeof path, "%s/checkpoints/checkpoint_%06" PRIu64 "/%s", r->root, id, file);
	int fd = open(path, flags);
	assert_true(fd >= 0);
	return fd;
}

static inline uint64_t
made_size(const struct made_run *r, uint64_t id, const char *file)
{
	struct stat st;
	int fd = made_open_file(r, id, file, O_RDONLY);
	assert_int_equal(fstat(fd, &st), 0);
	close(fd);
	return (uint64_t)st.st_size;
}

/* Changes one byte in place. Twice the same call undoes it. */
static inline void
made_flip(const struct made_run *r, uint64_t id, const char *file, uint64_t offset, unsigned char bits)
{
	unsigned char byte;
	int fd = made_open_file(r, id, file, O_RDWR);
	assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
	byte ^= bits;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
	close(fd);
}

static inline void
made_truncate(const struct made_run *r, uint64_t id, const char *file, uint64_t nbytes)
{
	int fd = made_open_file(r, id, file, O_RDWR);
	assert_int_equal(ftruncate(fd, (off_t)nbytes), 0);
	close(fd);
}

/* So that the next read comes from the disk. */
static inline void
made_evict(const struct made_run *r, uint64_t id, const char *file)
{
	int fd = made_open_file(r, id, file, O_RDONLY);
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
}

#endif
