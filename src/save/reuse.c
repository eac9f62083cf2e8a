/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: the packs of the last checkpoint, as the next save needs them to link those that have not
 * changed. */
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/commit.h"
#include "save/save.h"

static int
reuse_new(size_t n_packs, uint64_t block_bytes, const char *folder, struct reuse **ret, struct pawl_error *err)
{
	struct reuse *r = mem_zalloc(1, sizeof(*r));

	if (!r)
		return err_nomem(err, "save");
	r->folder = bump_strndup(&r->memory, folder, strlen(folder));
	r->packs = bump_array(&r->memory, (uint64_t)n_packs + 1, sizeof(*r->packs));
	r->n_packs = n_packs;
	r->block_bytes = block_bytes;
	if (!r->folder || !r->packs) {
		reuse_free(r);
		return err_nomem(err, "save");
	}
	*ret = r;
	return 0;
}

static int
reuse_add(struct reuse *r, size_t i, const struct manifest_file *f)
{
	const size_t n = manifest_plain_blocks(f);
	struct reuse_pack pack = {.name = bump_strndup(&r->memory, f->name, strlen(f->name)),
	                          .nbytes = manifest_plain_bytes(f),
	                          .n_blocks = n,
	                          .sums = bump_copy(&r->memory, manifest_plain_sums(f), n, sizeof(struct sum128))};

	if (f->codec) {
		pack.compressed_bytes = f->nbytes;
		pack.n_compressed_blocks = f->n_blocks;
		pack.compressed_sums = bump_copy(&r->memory, f->sums, f->n_blocks, sizeof(struct sum128));
	}
	if (!pack.name || !pack.sums || (f->codec && !pack.compressed_sums))
		return PAWL_ENOMEM;
	r->packs[i] = pack;
	return 0;
}

/* What the next save needs to find which tensors of the pack have changed. */
static int
reuse_add_ends(struct reuse *r, size_t i, const struct save_pack *p)
{
	const struct tensor_ends *from = p->linked && (p->before->ends || !p->bytes) ? p->before->ends : p->ends;

	r->packs[i].layout = p->plan->layout;
	r->packs[i].n_slots = p->plan->n_slots;
	if (!from)
		return 0;
	r->packs[i].ends = bump_copy(&r->memory, from, p->plan->n_slots, sizeof(*from));
	return r->packs[i].ends ? 0 : PAWL_ENOMEM;
}

PAWL_DEFINE_CLEAN(struct reuse, reuse_free);

int
reuse_of_save(const struct save *s, struct reuse **ret, struct pawl_error *err)
{
	PAWL_CLEAN(reuse_free_clean) struct reuse *r = NULL;

	TRY(reuse_new(s->image.plan->n_packs, s->image.plan->block_bytes, s->folder, &r, err));
	for (size_t k = 0; k < r->n_packs; k++) {
		struct manifest_file f;

		commit_describe_file(&s->image.packs[k], &f);
		if (reuse_add(r, k, &f) < 0 || reuse_add_ends(r, k, &s->image.packs[k]) < 0)
			return err_nomem(err, "save");
	}
	*ret = steal(&r);
	return 0;
}

int
reuse_of_manifest(const struct manifest *m, const char *folder, struct reuse **ret, struct pawl_error *err)
{
	PAWL_CLEAN(reuse_free_clean) struct reuse *r = NULL;

	TRY(reuse_new((size_t)m->n_files, m->n_files ? m->files[0].block_bytes : 0, folder, &r, err));
	for (size_t k = 0; k < r->n_packs; k++)
		if (reuse_add(r, k, &m->files[k]) < 0)
			return err_nomem(err, "save");
	*ret = steal(&r);
	return 0;
}

void
reuse_free(struct reuse *r)
{
	if (!r)
		return;
	bump_clear(&r->memory);
	mem_free(r);
}
