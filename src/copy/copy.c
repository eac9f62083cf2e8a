/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy: see copy.h. This file decides what to do with each file, and creates the checkpoint at the
 * end. Promises P1, P2, P14, P15.
 */
#include "copy/copy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "copy/copy_work.h"
#include "ranks/abort_commit.h"

#define USUAL_UNIT ((uint64_t)8 << 20) /* of stores that state no preferred size */
#define REPAIR_FOLDER ".pawl/repair"
#define LATE_SECONDS 600 /* after this long, a withdrawn save writes nothing more */

struct copying;

/* How the checkpoint begins to exist at the target. Chosen once for a copy. */
struct ending {
	bool is_hidden; /* until then the files are in a hidden folder */
	int (*commit)(struct copying *c, bool *ret_gone, struct pawl_error *err);
};

/* One copy_checkpoint. */
struct copying {
	const struct ending *ending;
	const struct copy_job *job;
	struct copy_work work;
	struct bump memory;
	struct buf text; /* the manifest */
	struct manifest *manifest;
	const char *folder; /* to write to: hidden, or the final one */
	const char *manifest_key;
};

static void
copying_clear(struct copying *c)
{
	mem_free(c->work.items);
	buf_clear(&c->text);
	manifest_free(c->manifest);
	bump_clear(&c->memory);
}

static const char *
last_name(const char *key)
{
	const char *slash = strrchr(key, '/');
	return slash ? slash + 1 : key;
}

/* ---------------------------------------------------------------- preparing */

static int
read_manifest(struct copying *c, struct pawl_error *err)
{
	const struct copy_job *job = c->job;
	PAWL_FREE char *key = mem_printf("%s/" MANIFEST_NAME, job->from_folder);
	if (!key)
		return err_nomem(err, c->work.name);
	int rc = store_get(job->from, key, MANIFEST_MAX_BYTES, &c->text, err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s: there is no checkpoint %s (it has no " MANIFEST_NAME ")", job->from->root,
		               job->from_folder);
	TRY(rc);
	return manifest_decode(c->work.name, c->text.ptr, c->text.len, false, &c->manifest, err);
}

/* Where the files are written until the checkpoint exists. */
static int
choose_folder(struct copying *c, struct pawl_error *err)
{
	const char *to = c->job->to_folder, *name = last_name(to);
	char hidden[HIDDEN_NAME_BYTES];

	c->folder = to;
	hidden_name_of(name, c->manifest->token, HIDDEN_PARTIAL, hidden);
	if (c->ending->is_hidden)
		c->folder = bump_printf(&c->memory, "%.*s%s", (int)(name - to), to, hidden);
	c->manifest_key = bump_printf(&c->memory, "%s/" MANIFEST_NAME, to);
	return c->folder && c->manifest_key ? 0 : err_nomem(err, c->work.name);
}

/* The mark of a withdrawn save is stored under the manifest's key. Removes an old one. 0 = the key
 * is free. */
static int
pass_withdrawn(const struct copying *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf there = {0};
	struct store *to = c->job->to;
	struct store_entry entry = {0};
	int rc = store_stat(to, c->manifest_key, &entry, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (entry.mtime_ns <= 0 || (clock_unix_ns() - entry.mtime_ns) / 1000000000 < LATE_SECONDS)
		return err_set(err, PAWL_ETRANSIENT,
		               "%s: a save of %s was aborted there, perhaps less than %d minutes ago; copy to this "
		               "name later",
		               to->root, c->job->to_folder, LATE_SECONDS / 60);
	/* Read it again: another process may have removed it and written the manifest since
	 * store_stat. */
	rc = store_get(to, c->manifest_key, MANIFEST_MAX_BYTES, &there, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (!manifest_is_withdrawn(there.ptr, there.len))
		return err_set(err, PAWL_ETRANSIENT, "%s: %s is being written there; try again", to->root,
		               c->job->to_folder);
	return store_remove(to, c->manifest_key, err);
}

/* 1 = the target holds the same manifest; 0 = none; PAWL_EEXISTS = another one; PAWL_ETRANSIENT = a
 * save was withdrawn there recently. */
static int
compare_target(struct copying *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf there = {0};
	struct pawl_error why = {0};
	int rc = store_get(c->job->to, c->manifest_key, MANIFEST_MAX_BYTES, &there, &why);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0)
		return err_give(err, rc, &why);
	if (there.len == c->text.len && memcmp(there.ptr, c->text.ptr, there.len) == 0)
		return 1;
	if (!c->ending->is_hidden && manifest_is_withdrawn(there.ptr, there.len))
		return pass_withdrawn(c, err);
	return err_set(err, PAWL_EEXISTS, "%s: %s is another checkpoint there; choose another name or remove it",
	               c->job->to->root, c->job->to_folder);
}

/* Complete blocks, about as many bytes as the target prefers to get at a time. */
static int
choose_unit(const struct copying *c, const struct manifest_file *f, uint64_t *ret, struct pawl_error *err)
{
	const uint64_t memory = c->job->memory_bytes ? c->job->memory_bytes : COPY_MEMORY;
	const uint64_t liked = c->work.caps.unit_bytes ? c->work.caps.unit_bytes : USUAL_UNIT;
	uint64_t block = f->block_bytes;
	uint64_t unit = block >= liked ? block : (liked + block - 1) / block * block;
	if (unit > memory)
		unit = block >= memory ? block : memory / block * block;
	if (unit > memory && f->nbytes > memory)
		return err_set(err, PAWL_ELIMIT,
		               "%s: %s: blocks of %" PRIu64 " bytes do not fit into the %" PRIu64 " bytes for copying",
		               c->work.name, f->name, block, memory);
	*ret = unit > f->nbytes && f->nbytes ? f->nbytes : unit;
	return 0;
}

static int
add_item(struct copying *c, const struct manifest_file *f, const char *to_key, struct pawl_error *err)
{
	struct copy_item *it = &c->work.items[c->work.n];
	*it = (struct copy_item){.file = f, .phase = COPY_SEND, .to_key = to_key};
	it->from_key = bump_printf(&c->memory, "%s/%s", c->job->from_folder, f->name);
	if (!it->from_key || !to_key)
		return err_nomem(err, c->work.name);
	TRY(choose_unit(c, f, &it->unit_bytes, err));
	c->work.n++;
	return 0;
}

static int
compare_items(const void *a, const void *b)
{
	const struct copy_item *x = a, *y = b;
	return strcmp(x->file->name, y->file->name);
}

static struct copy_item *
find_item(struct copying *c, const char *name)
{
	struct copy_item key = {.file = &(struct manifest_file){.name = name}};
	return c->work.n ? bsearch(&key, c->work.items, c->work.n, sizeof key, compare_items) : NULL;
}

static int
visit_file(void *arg, const struct store_entry *entry)
{
	struct copy_item *it = find_item(arg, entry->name);
	if (!it)
		return 0;
	if (!entry->is_folder && !entry->is_link && entry->nbytes == it->file->nbytes)
		it->phase = COPY_OLD;
	else
		it->stale = true;
	return 0;
}

/* Files that an earlier call left at the target are read back before anything is sent. */
static int
find_old(struct copying *c, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = store_list(c->job->to, c->folder, visit_file, c, &why);
	return rc == PAWL_ENOTFOUND ? 0 : err_give(err, rc, &why);
}

/* Notes which files another checkpoint at the target already has. If that cannot be determined, all
 * are sent. */
static int
find_same(struct copying *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};
	PAWL_CLEAN(manifest_free_clean) struct manifest *like = NULL;
	const char *folder = c->job->like_folder;
	if (!folder || !c->work.caps.link)
		return 0;
	buf_printf(&key, "%s/" MANIFEST_NAME, folder);
	TRY(buf_check(&key, folder, err));
	if (store_get(c->job->to, buf_str(&key), MANIFEST_MAX_BYTES, &text, NULL) < 0 ||
	    manifest_decode(folder, text.ptr, text.len, false, &like, NULL) < 0)
		return 0;
	for (size_t i = 0; i < like->n_files; i++) {
		const struct manifest_file *f = &like->files[i];
		struct copy_item *it = find_item(c, f->name);
		if (!it || it->phase != COPY_SEND || f->nbytes != it->file->nbytes ||
		    f->n_blocks != it->file->n_blocks || f->block_bytes != it->file->block_bytes ||
		    memcmp(f->sums, it->file->sums, f->n_blocks * sizeof *f->sums) != 0)
			continue;
		it->link_key = bump_printf(&c->memory, "%s/%s", folder, f->name);
		if (!it->link_key)
			return err_nomem(err, c->work.name);
	}
	return 0;
}

static int
make_items(struct copying *c, struct pawl_error *err)
{
	const struct manifest *m = c->manifest;
	c->work.items = mem_zalloc((size_t)m->n_files, sizeof *c->work.items);
	if (!c->work.items)
		return err_nomem(err, c->work.name);
	for (size_t i = 0; i < m->n_files; i++)
		TRY(add_item(c, &m->files[i], bump_printf(&c->memory, "%s/%s", c->folder, m->files[i].name), err));
	if (c->work.n)
		qsort(c->work.items, c->work.n, sizeof *c->work.items, compare_items);
	TRY(find_old(c, err));
	return find_same(c, err);
}

/* --------------------------------------------------------------- committing */

struct roll {
	struct copying *c;
	bool *seen; /* one per item */
};

static int
call_roll(void *arg, const struct store_entry *entry)
{
	const struct roll *roll = arg;
	const struct copy_item *it = find_item(roll->c, entry->name);
	if (it && !entry->is_folder && !entry->is_link && entry->nbytes == it->file->nbytes)
		roll->seen[it - roll->c->work.items] = true;
	return 0;
}

/* Checks that all files are in the folder to commit, with their sizes. A process that opened the
 * target as a run may have removed the folder since they were read back. The manifest's put then
 * created it again, with nothing else in it (P2). *ret_gone: a file is missing. */
static int
check_files(struct copying *c, bool *ret_gone, struct pawl_error *err)
{
	PAWL_FREE bool *seen = mem_zalloc(c->work.n, sizeof *seen);
	struct pawl_error why = {0};
	if (!seen)
		return err_nomem(err, c->work.name);
	int rc = store_list(c->job->to, c->folder, call_roll, &(struct roll){c, seen}, &why);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return err_give(err, rc, &why);
	for (size_t i = 0; i < c->work.n; i++) {
		const struct manifest_file *f = c->work.items[i].file;
		if (seen[i])
			continue;
		*ret_gone = true;
		return err_set(err, PAWL_EIO,
		               "%s of %" PRIu64 " bytes is no longer in the folder %s, to which it was written in %s",
		               f->name, f->nbytes, c->folder, c->job->to->root);
	}
	return 0;
}

static int
put_manifest(struct copying *c, int flags, struct pawl_error *err)
{
	struct store *to = c->job->to;
	PAWL_FREE char *key = mem_printf("%s/" MANIFEST_NAME, c->folder);
	if (!key)
		return err_nomem(err, c->work.name);
	const int rc = store_put_bytes(to, key, c->text.ptr, c->text.len, STORE_DURABLE | flags, err);
	return rc == PAWL_ENOTFOUND ? err_prefix(err, PAWL_EIO, "cannot be written to %s", to->root) : rc;
}

static int
commit_by_put(struct copying *c, bool *ret_gone, struct pawl_error *err)
{
	TRY(check_files(c, ret_gone, err));
	return put_manifest(c, c->work.caps.exclusive_put ? STORE_EXCLUSIVE : 0, err);
}

static int
commit_by_rename(struct copying *c, bool *ret_gone, struct pawl_error *err)
{
	struct store *to = c->job->to;
	TRY(put_manifest(c, 0, err));
	TRY(check_files(c, ret_gone, err));
	const int rc = store_publish(to, c->folder, c->job->to_folder, err);
	if (rc == PAWL_ENOTFOUND) /* not the source's code: callers would read that as "no such checkpoint" */
		return err_set(err, PAWL_EIO, "%s: the folder %s no longer exists", to->root, c->folder);
	return rc;
}

static const struct ending by_put = {.commit = commit_by_put};
static const struct ending by_rename = {.is_hidden = true, .commit = commit_by_rename};

/* The single step that makes the checkpoint exist at the target. */
static int
commit_copy(struct copying *c, struct pawl_error *err)
{
	struct pawl_error why = {0}, in_the_way = {0};
	bool gone = false;
	int there, rc = c->ending->commit(c, &gone, &why);
	if (rc == 0)
		return 0;
	/* An earlier try, or another process that copies the same checkpoint, may have done it
	 * (P15). */
	there = compare_target(c, &in_the_way);
	if (c->ending->is_hidden && (there == 1 || gone))
		store_remove_folder(c->job->to, c->folder, NULL);
	if (there == PAWL_EEXISTS || (there < 0 && rc == PAWL_EEXISTS))
		return err_give(err, there, &in_the_way);
	return there == 1 ? 0 : err_give(err, err_prefix(&why, rc, "%s", c->work.name), &why);
}

/* ------------------------------------------------------------------ entrances */

static int
take_step(void *arg, uint64_t nbytes, struct pawl_error *err)
{
	const struct copying *c = arg;
	struct pawl_meter *meter = c->job->meter;
	if (meter)
		__atomic_fetch_add(&meter->done_bytes, nbytes, __ATOMIC_RELAXED);
	if (meter && __atomic_load_n(&meter->cancel, __ATOMIC_RELAXED))
		return err_set(err, PAWL_ECANCELLED, "%s: copying was cancelled", c->work.name);
	if (c->job->deadline_ms && clock_mono_ms() >= c->job->deadline_ms)
		return err_set(err, PAWL_ETIMEOUT, "%s: copying to %s exceeded its time limit", c->work.name,
		               c->job->to->root);
	return 0;
}

static int
start_copy(struct copying *c, struct pawl_error *err)
{
	const struct copy_job *job = c->job;
	struct store_caps from;
	if (job->n_streams > COPY_MAX_STREAMS)
		return err_set(err, PAWL_EUSAGE, "copy: expected at most %u streams, found %u", COPY_MAX_STREAMS,
		               job->n_streams);
	c->work.from = job->from;
	c->work.to = job->to;
	c->work.step = take_step;
	c->work.step_arg = c;
	c->work.n_streams = job->n_streams;
	c->work.memory_bytes = job->memory_bytes;
	c->work.name = last_name(job->from_folder);
	store_get_caps(job->from, &from);
	store_get_caps(job->to, &c->work.caps);
	c->ending = c->work.caps.rename_folder ? &by_rename : &by_put;
	c->work.from_copies = from.copies;
	return take_step(c, 0, err);
}

static void
add_total(const struct copy_job *job, uint64_t nbytes)
{
	if (job->meter)
		__atomic_fetch_add(&job->meter->total_bytes, nbytes, __ATOMIC_RELAXED);
}

static int
copy_and_commit(struct copying *c, struct pawl_error *err)
{
	struct copy_result *result = &c->work.result;
	TRY(start_copy(c, err));
	TRY(read_manifest(c, err));
	TRY(choose_folder(c, err));
	result->id = c->manifest->id;
	result->bytes = c->manifest->bytes;
	add_total(c->job, result->bytes);
	int rc = compare_target(c, err);
	TRY(rc);
	result->was_there = rc == 1;
	if (rc == 1) {
		if (c->job->meter)
			__atomic_fetch_add(&c->job->meter->done_bytes, result->bytes, __ATOMIC_RELAXED);
		return 0;
	}
	TRY(make_items(c, err));
	TRY(copy_work_run(&c->work, err));
	return commit_copy(c, err);
}

int
copy_checkpoint(const struct copy_job *job, struct copy_result *ret, struct pawl_error *err)
{
	PAWL_CLEAN(copying_clear) struct copying c = {.job = job};
	struct pawl_error own = {0};
	int rc = copy_and_commit(&c, &own);
	if (rc == 0 && ret)
		*ret = c.work.result;
	return err_give(err, rc, &own);
}

int
copy_from_run(const struct catalog_reading *from, const struct copy_job *job, struct copy_result *ret,
              struct pawl_error *err)
{
	for (unsigned tries = 0;; tries++) {
		struct pawl_error why = {0};
		int rc = copy_checkpoint(job, ret, &why);
		int verdict = rc < 0 ? catalog_judge(from, &why, tries, err) : 0;
		if (verdict <= 0)
			return verdict < 0 ? verdict : err_give(err, rc, &why);
	}
}

static int
replace_files(struct copying *c, const struct manifest *m, const uint32_t *files, size_t n, struct pawl_error *err)
{
	char token[33];
	int rc = 0;
	TRY(start_copy(c, err));
	TRY(clock_token(token, err));
	c->work.items = mem_zalloc(n, sizeof *c->work.items);
	if (!c->work.items)
		return err_nomem(err, c->work.name);
	for (size_t i = 0; i < n; i++) {
		TRY(add_item(c, &m->files[files[i]], bump_printf(&c->memory, REPAIR_FOLDER "/%s-%zu", token, i), err));
		add_total(c->job, m->files[files[i]].nbytes);
	}
	rc = copy_work_run(&c->work, err);
	for (size_t i = 0; i < n; i++) {
		PAWL_FREE char *key = mem_printf("%s/%s", c->job->to_folder, m->files[files[i]].name);
		if (!key && rc == 0)
			rc = err_nomem(err, c->work.name);
		if (rc == 0)
			rc = store_move(c->job->to, c->work.items[i].to_key, key, err);
		if (rc < 0)
			store_remove(c->job->to, c->work.items[i].to_key, NULL);
	}
	return rc == 0 ? store_sync(c->job->to, c->job->to_folder, err) : rc;
}

int
copy_files(const struct copy_job *job, const struct manifest *m, const uint32_t *files, size_t n,
           struct pawl_error *err)
{
	PAWL_CLEAN(copying_clear) struct copying c = {.job = job};
	struct pawl_error own = {0};
	return err_give(err, replace_files(&c, m, files, n, &own), &own);
}
