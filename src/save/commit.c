/* SPDX-License-Identifier: Apache-2.0 */
/* commit: see commit.h. */
#include "save/commit.h"

#include <stdlib.h>
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ranks/agree.h"
#include "save/compress.h"
#include "save/save.h"

/* The summary of a save as a manifest; borrows everything from the save. */
static void
make_summary(const struct save *s, struct manifest *m)
{
	memcpy(m->run_id, s->run->self.run_id, sizeof(m->run_id));
	memcpy(m->token, s->image.token, sizeof(m->token));
	m->id = s->request.id;
	m->attempt = s->run->self.attempt;
	m->step = s->request.step;
	m->unix_ns = s->request.unix_ns;
	m->progress = s->request.counters;
	m->metrics = s->request.metrics;
	m->n_metrics = s->request.n_metrics;
	m->world_size = s->run->group.world;
	m->metadata = s->request.metadata;
	m->nonfinite = s->request.value_not_finite || atomic_load(&s->progress.not_finite) != SIZE_MAX;
}

int
commit_summary(const struct save *s, struct buf *out, struct pawl_error *err)
{
	struct manifest m = {0};

	make_summary(s, &m);
	return manifest_encode_summary(&m, out, err);
}

void
commit_describe_file(const struct save_pack *p, struct manifest_file *f)
{
	*f = (struct manifest_file){.name = p->name,
	                            .nbytes = p->plan->nbytes,
	                            .block_bytes = p->image->plan->block_bytes,
	                            .n_blocks = p->plan->n_blocks,
	                            .sums = p->sums,
	                            .reused = p->linked};
	if (!p->compress)
		return;
	f->codec = codec_name(p->image->codec);
	f->plain_bytes = f->nbytes;
	f->n_plain_blocks = f->n_blocks;
	f->plain_sums = f->sums;
	f->nbytes = p->linked ? p->before->compressed_bytes : compress_bytes(p->compress);
	f->sums = compress_sums(p->compress, &f->n_blocks);
	if (p->linked) {
		f->sums = p->before->compressed_sums;
		f->n_blocks = p->before->n_compressed_blocks;
	}
}

static int
describe_files(struct save *s, struct manifest *m, struct pawl_error *err)
{
	const struct plan *plan = s->image.plan;
	struct manifest_file *files = bump_array(&s->image.memory, (uint64_t)plan->n_packs, sizeof(*files));

	if (!files)
		return err_nomem(err, "commit");
	for (size_t k = 0; k < plan->n_packs; k++)
		commit_describe_file(&s->image.packs[k], &files[k]);
	m->files = files;
	m->n_files = plan->n_packs;
	m->bytes = m->new_bytes = 0;
	for (size_t k = 0; k < plan->n_packs; k++) {
		m->bytes += files[k].nbytes;
		m->new_bytes += files[k].reused ? 0 : files[k].nbytes;
	}
	m->plain_bytes = s->image.codec ? plan->nbytes : 0;
	s->nbytes = m->bytes;
	return 0;
}

/* The tensor table: names, shapes and boxes were copied at the call. */
static int
describe_tensors(struct save *s, struct manifest *m, struct pawl_error *err)
{
	const struct plan *plan = s->image.plan;
	struct manifest_piece *pieces =
		bump_array(&s->image.memory, (uint64_t)s->request.n_tensors + 1, sizeof(*pieces));

	if (!pieces)
		return err_nomem(err, "commit");
	for (size_t i = 0; i < s->request.n_tensors; i++)
		s->request.tensors[i].n_pieces = 0; /* each of many ranks writes some */
	for (size_t k = 0; k < plan->n_packs; k++) {
		for (size_t i = 0; i < plan->packs[k].n_slots; i++) {
			const struct plan_slot *slot = &plan->packs[k].slots[i];
			struct manifest_tensor *t = &s->request.tensors[slot->tensor];
			struct manifest_piece *p = &pieces[slot->tensor];

			*p = (struct manifest_piece){.file = (uint32_t)k,
			                             .begin = plan->packs[k].header.len + slot->begin,
			                             .nbytes = slot->nbytes,
			                             .offsets = t->pieces->offsets,
			                             .lengths = t->pieces->lengths};
			t->pieces = p;
			t->n_pieces = 1;
		}
	}
	m->tensors = s->request.tensors;
	m->n_tensors = s->request.n_tensors;
	return 0;
}

int
commit_describe(struct save *s, bool part, struct manifest *ret, struct buf *out, struct pawl_error *err)
{
	struct manifest m = {.part = part};

	make_summary(s, &m);
	m.blocked_seconds = save_blocked_seconds(s);
	TRY(describe_files(s, &m, err));
	TRY(describe_tensors(s, &m, err));
	TRY(manifest_encode_with(&m, (struct pawl_slice){s->request.state_json.ptr, s->request.state_json.len}, out,
	                         err));
	if (out->len > MANIFEST_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: the manifest would have %zu bytes, at most %u are allowed",
		               s->name, out->len, MANIFEST_MAX_BYTES);
	if (ret)
		*ret = m;
	return 0;
}

struct wanted {
	const char *name;
	uint64_t nbytes;
	bool seen;
};

struct roll {
	struct wanted *files;
	size_t n;
};

static int
compare_names(const void *a, const void *b)
{
	const struct wanted *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int
call_roll(void *arg, const struct store_entry *entry)
{
	struct roll *roll = arg;
	struct wanted key = {.name = entry->name};
	struct wanted *found = bsearch(&key, roll->files, roll->n, sizeof(key), compare_names);

	if (found && !entry->is_folder && !entry->is_link && entry->nbytes == found->nbytes)
		found->seen = true;
	return 0;
}

/* Checks that all files are in the folder that is published, with their sizes. A process may have
 * created its removed folder again, with the manifest alone (P2). It has lost the lease, or is late
 * to an aborted save. */
int
commit_check_files(struct save *s, const struct manifest_file *files, size_t n, struct pawl_error *err)
{
	PAWL_FREE struct wanted *wanted = mem_zalloc(n, sizeof(*wanted));
	struct roll roll = {.files = wanted, .n = n};

	if (!wanted)
		return err_nomem(err, "save");
	for (size_t i = 0; i < n; i++)
		wanted[i] = (struct wanted){.name = files[i].name, .nbytes = files[i].nbytes};
	qsort(wanted, n, sizeof(*wanted), compare_names);
	TRY(store_list(s->run->store, s->image.partial, call_roll, &roll, err));
	for (size_t i = 0; i < n; i++)
		if (!wanted[i].seen)
			return err_set(err, PAWL_EIO,
			               "%s of %llu bytes is no longer in the folder that it was written to%s",
			               wanted[i].name, (unsigned long long)wanted[i].nbytes,
			               s->run->modes.agree->is_shared && !s->run->modes.commit->is_hidden
			                       ? " (in a bucket all ranks must give the checkpoint the same name)"
			                       : "");
	return 0;
}

int
commit_bytes(struct save *s, struct buf *text, const struct manifest_file *files, size_t n, struct pawl_error *err)
{
	TRY(s->run->modes.commit->publish(s, text, files, n, err));
	s->progress.committed_ns = clock_mono_ns();
	s->manifest = *text;
	*text = (struct buf){0};
	return 0;
}

int
commit_publish(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_error why = {0}, trouble = {0};
	struct manifest m = {0};

	TRY(commit_describe(s, false, &m, &text, err));
	int rc = commit_bytes(s, &text, m.files, (size_t)m.n_files, &why);

	if (rc == 0 || !s->is_publishing)
		return err_give(err, rc, &why);
	const int found = s->run->modes.commit->resolve(s, &trouble);

	if (found < 0)
		return commit_report_unknown(s, found, &why, &trouble, err);
	if (found == 0)
		return err_give(err, rc, &why);
	s->progress.committed_ns = clock_mono_ns();
	return 0;
}

int
commit_report_unknown(struct save *s, int code, const struct pawl_error *why, const struct pawl_error *trouble,
                      struct pawl_error *err)
{
	s->in_doubt = true;
	return err_set(err, code, "%s; whether the save was committed is not known: %s", why->message,
	               trouble->message);
}
