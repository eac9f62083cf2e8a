/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: the one moment at which a checkpoint begins to exist. Promises P2, P3, P4, P10.
 *
 * Every pack is durable before the manifest is put. Then the folder with the manifest is renamed,
 * in one atomic and exclusive step. On stores without renames the manifest is put last and
 * exclusively.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "run/lease.h"
#include "save/compress.h"
#include "save/save.h"
#include "save/writer.h"

/* The summary of a save as a manifest; borrows everything from the save. */
static void
summarize(const struct save *s, struct manifest *m)
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

	summarize(s, &m);
	return manifest_encode_summary(&m, out, err);
}

static void
describe_file(const struct save_pack *p, struct manifest_file *f)
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
	f->nbytes = p->linked ? p->before->packed_bytes : compress_bytes(p->compress);
	f->sums = compress_sums(p->compress, &f->n_blocks);
	if (p->linked) {
		f->sums = p->before->packed_sums;
		f->n_blocks = p->before->n_packed_blocks;
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
		describe_file(&s->image.packs[k], &files[k]);
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

/* In a hidden folder a file may be written under its own name. That saves one journal commit
 * compared with a put. */
static int
write_hidden(struct store *store, const char *key, const struct buf *text, struct pawl_error *err)
{
	struct store_file *file;

	TRY(store_create(store, key, &(struct store_create){.nbytes = text->len, .buffered = true}, &file, err));
	int rc = store_write(store, file, 0, text->ptr, text->len, err);

	if (rc < 0) {
		store_abort(store, file);
		return rc;
	}
	return store_finish(store, file, err);
}

int
commit_describe(struct save *s, bool part, struct manifest *ret, struct buf *out, struct pawl_error *err)
{
	struct manifest m = {.part = part};

	summarize(s, &m);
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

/* For stores that cannot refuse to replace: finds an earlier writer, but not one that puts at the
 * same moment. */
static int
look_first(struct store *store, const char *key, struct pawl_error *err)
{
	struct store_entry there;
	int rc = store_stat(store, key, &there, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	return rc < 0 ? rc : PAWL_EEXISTS;
}

/* This put is the commit. */
static int
put_last(struct save *s, const char *key, const struct buf *text, struct pawl_error *err)
{
	bool exclusive = s->run->home.caps.exclusive_put;
	int flags = STORE_DURABLE | (exclusive ? STORE_EXCLUSIVE : 0);
	int rc = exclusive ? 0 : look_first(s->run->store, key, err);

	s->is_publishing = true;
	if (rc == 0)
		rc = store_put_bytes(s->run->store, key, text->ptr, text->len, flags, err);

	return rc == PAWL_EEXISTS
	               ? err_set(err, PAWL_ECONFLICT, "%s was aborted, or committed by another writer", s->name)
	               : rc;
}

static int
put_manifest(struct save *s, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	bool in_place = !s->run->home.caps.rename_folder;

	buf_printf(&key, "%s/" MANIFEST_NAME, s->image.partial);
	TRY(buf_check(&key, "commit", err));
	if (in_place)
		return put_last(s, buf_str(&key), text, err);
	return write_hidden(s->run->store, buf_str(&key), text, err);
}

/* A single checkpoint replaces the one before it: swapped in one step where possible. Else the old
 * one is moved aside first, and moved back if the new one cannot be published. The old one ends
 * under the partial name and is removed. */
static int
replace_single(struct save *s, struct pawl_error *err)
{
	struct store *store = s->run->store;
	PAWL_CLEAN(buf_clear) struct buf aside = {0};
	int rc = store_exchange(store, s->image.partial, s->folder, err);

	if (rc == 0) {
		store_remove_folder(store, s->image.partial, NULL);
		return 0;
	}
	if (rc != PAWL_EUNSUPPORTED)
		return rc;
	buf_printf(&aside, ".%s.%s.old", s->name, s->image.token);
	TRY(buf_check(&aside, "commit", err));
	TRY(store_publish(store, s->folder, buf_str(&aside), err));
	rc = store_publish(store, s->image.partial, s->folder, err);
	if (rc < 0) {
		store_publish(store, buf_str(&aside), s->folder, NULL);
		return rc;
	}
	store_remove_folder(store, buf_str(&aside), NULL);
	return 0;
}

static int
publish(struct save *s, struct pawl_error *err)
{
	s->is_publishing = true;
	int rc = store_publish(s->run->store, s->image.partial, s->folder, err);

	if (rc == PAWL_EEXISTS && s->run->home.single_name && s->run->opts.overwrite)
		return replace_single(s, err);
	return rc;
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
 * created its removed folder again, with the manifest alone (P2): one that has lost the lease, or
 * one that is late to an aborted save. */
static int
check_files(struct save *s, const struct manifest_file *files, size_t n, struct pawl_error *err)
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
			               s->run->group.rendezvous && !s->run->home.caps.rename_folder
			                       ? " (in a bucket all ranks must give the checkpoint the same name)"
			                       : "");
	return 0;
}

/* check_files, while another thread checks the lease. */
struct roll_job {
	struct save *save;
	const struct manifest_file *files;
	size_t n;
	int rc;
	struct pawl_error error;
};

static void
check_files_job(void *arg)
{
	struct roll_job *job = arg;

	job->rc = check_files(job->save, job->files, job->n, &job->error);
}

/* The conditions for putting the manifest: the run is ours, and the files exist. Their order does
 * not matter, so the two requests are made at the same time. If both fail, the error of the lease
 * explains more. */
static int
check_before_put(struct save *s, const struct manifest_file *files, size_t n, struct pawl_error *err)
{
	struct roll_job job = {.save = s, .files = files, .n = n};
	struct group group;

	if (!s->run->self.lease)
		return check_files(s, files, n, err);
	group_init(&group);
	int rc = pool_add(s->writer->writers, &group, check_files_job, &job, err);

	if (rc == 0)
		rc = lease_check(s->run->self.lease, err);
	group_wait(&group);
	group_clear(&group);
	return rc < 0 ? rc : err_give(err, job.rc, &job.error);
}

int
commit_bytes(struct save *s, struct buf *text, const struct manifest_file *files, size_t n, struct pawl_error *err)
{
	if (!s->run->home.caps.rename_folder) /* the next put is the commit */
		TRY(check_before_put(s, files, n, err));
	else if (s->run->self.lease)
		TRY(lease_check(s->run->self.lease, err));
	TRY(put_manifest(s, text, err));
	if (s->run->home.caps.rename_folder) {
		TRY(check_files(s, files, n, err));
		TRY(publish(s, err));
	}
	s->progress.committed_ns = clock_mono_ns();
	s->manifest = *text;
	*text = (struct buf){0};
	return 0;
}

/* The put of the manifest returned an error, but may have happened. */
static int
settle_put(struct save *s, int code, struct pawl_error *err)
{
	struct pawl_error trouble = {0}, why = {0};

	if (err)
		why = *err;
	int rc = commit_settle(s, &trouble);

	if (rc == 1) {
		s->progress.committed_ns = clock_mono_ns();
		return 0;
	}
	if (rc < 0)
		return err_set(err, rc, "%s; whether the save was committed is not known: %s", why.message,
		               trouble.message);
	return code;
}

int
commit_publish(struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	struct manifest m = {0};

	TRY(commit_describe(s, false, &m, &text, err));
	int rc = commit_bytes(s, &text, m.files, (size_t)m.n_files, err);

	return rc < 0 && s->is_publishing && !s->run->home.caps.rename_folder ? settle_put(s, rc, err) : rc;
}

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

static const struct sum128 *
copy_sums(struct bump *memory, const struct sum128 *sums, size_t n)
{
	struct sum128 *copy = bump_array(memory, (uint64_t)n + 1, sizeof(*copy));

	if (copy)
		memcpy(copy, sums, n * sizeof(*copy));
	return copy;
}

static int
reuse_add(struct reuse *r, size_t i, const struct manifest_file *f)
{
	const size_t n = manifest_plain_blocks(f);
	struct reuse_pack pack = {.name = bump_strndup(&r->memory, f->name, strlen(f->name)),
	                          .nbytes = manifest_plain_bytes(f),
	                          .n_blocks = n,
	                          .sums = copy_sums(&r->memory, manifest_plain_sums(f), n)};

	if (f->codec) {
		pack.packed_bytes = f->nbytes;
		pack.n_packed_blocks = f->n_blocks;
		pack.packed_sums = copy_sums(&r->memory, f->sums, f->n_blocks);
	}
	if (!pack.name || !pack.sums || (f->codec && !pack.packed_sums))
		return PAWL_ENOMEM;
	r->packs[i] = pack;
	return 0;
}

/* What the next save needs to find which tensors of the pack have changed. */
static int
reuse_add_ends(struct reuse *r, size_t i, const struct save_pack *p)
{
	const struct tensor_ends *from = p->linked && (p->before->ends || !p->bytes) ? p->before->ends : p->ends;
	struct tensor_ends *ends;

	r->packs[i].layout = p->plan->layout;
	r->packs[i].n_slots = p->plan->n_slots;
	if (!from)
		return 0;
	ends = bump_array(&r->memory, (uint64_t)p->plan->n_slots + 1, sizeof(*ends));
	if (!ends)
		return PAWL_ENOMEM;
	memcpy(ends, from, p->plan->n_slots * sizeof(*ends));
	r->packs[i].ends = ends;
	return 0;
}

PAWL_DEFINE_CLEAN(struct reuse, reuse_free);

int
reuse_of_save(const struct save *s, struct reuse **ret, struct pawl_error *err)
{
	PAWL_CLEAN(reuse_free_clean) struct reuse *r = NULL;

	TRY(reuse_new(s->image.plan->n_packs, s->image.plan->block_bytes, s->folder, &r, err));
	for (size_t k = 0; k < r->n_packs; k++) {
		struct manifest_file f;

		describe_file(&s->image.packs[k], &f);
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
