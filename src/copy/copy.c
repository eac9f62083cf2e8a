/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy: see copy.h. Called by mirror.c, restore and public copying; calls copy_work.c, the manifest and the stores.
 * This file decides what is to be done with each file, and makes the checkpoint exist at the end. Promises P1, P2, P14,
 * P15.
 */
#include "copy/copy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "copy/copy_work.h"
#include "ranks/withdraw.h"

#define USUAL_UNIT ((uint64_t)8 << 20) /* of stores that do not say in what pieces they like to be written */
#define REPAIR_FOLDER ".pawl/repair"
#define LATE_SECONDS 600 /* a save that was called off so long ago puts nothing more */

/* One copy_checkpoint. */
struct copying {
	const struct copy_job *job;
	struct copy_work work;
	struct bump memory;
	struct buf text; /* the manifest */
	struct manifest *manifest;
	const char *folder; /* that is written to: hidden, or the final one */
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

static int
no_memory(const struct copying *c, struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory for copying", c->work.name);
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
		return no_memory(c, err);
	int rc = store_get(job->from, key, MANIFEST_MAX_BYTES, &c->text, err);
	if (rc == PAWL_ENOTFOUND)
		return err_set(err, rc, "%s: there is no checkpoint %s (it has no " MANIFEST_NAME ")", job->from->root,
		               job->from_folder);
	TRY(rc);
	return manifest_decode(c->work.name, c->text.ptr, c->text.len, false, &c->manifest, err);
}

/* Where the files go until the checkpoint exists. */
static int
choose_folder(struct copying *c, struct pawl_error *err)
{
	const char *to = c->job->to_folder, *name = last_name(to);
	c->folder = to;
	if (c->work.caps.rename_folder)
		c->folder =
			bump_printf(&c->memory, "%.*s.%s.%s.partial", (int)(name - to), to, name, c->manifest->token);
	c->manifest_key = bump_printf(&c->memory, "%s/" MANIFEST_NAME, to);
	return c->folder && c->manifest_key ? 0 : no_memory(c, err);
}

/* What calls a save off lies where the manifest is to be. An old one is removed: 0, as if nothing had been there. */
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
		               "%s: a save of %s was called off there, and not certainly more than %d minutes ago; "
		               "nothing is copied to its place before that",
		               to->root, c->job->to_folder, LATE_SECONDS / 60);
	/* Read once more: somebody else may have removed it, and have put the manifest, while this one looked. */
	rc = store_get(to, c->manifest_key, MANIFEST_MAX_BYTES, &there, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (!manifest_is_withdrawn(there.ptr, there.len))
		return err_set(err, PAWL_ETRANSIENT, "%s: %s is being written there; try again", to->root,
		               c->job->to_folder);
	return store_remove(to, c->manifest_key, err);
}

/* 1 = the target holds this very manifest; 0 = none; PAWL_EEXISTS = another; PAWL_ETRANSIENT = what has just called a
 * save off. */
static int
look_at_target(struct copying *c, struct pawl_error *err)
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
	if (!c->work.caps.rename_folder && manifest_is_withdrawn(there.ptr, there.len))
		return pass_withdrawn(c, err);
	return err_set(err, PAWL_EEXISTS, "%s: %s is another checkpoint there; choose another name or remove it",
	               c->job->to->root, c->job->to_folder);
}

/* Whole blocks, and as much of them as the target likes to get at a time. */
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
		return no_memory(c, err);
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
see_file(void *arg, const struct store_entry *entry)
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

/* Files that an earlier call has left at the target are looked at before they are sent. */
static int
find_old(struct copying *c, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = store_list(c->job->to, c->folder, see_file, c, &why);
	return rc == PAWL_ENOTFOUND ? 0 : err_give(err, rc, &why);
}

static void
free_manifest(struct manifest **m)
{
	manifest_free(*m);
}

/* Notes which files another checkpoint at the target has already. Where that cannot be told, all are sent. */
static int
find_same(struct copying *c, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0}, key = {0};
	PAWL_CLEAN(free_manifest) struct manifest *like = NULL;
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
			return no_memory(c, err);
	}
	return 0;
}

static int
make_items(struct copying *c, struct pawl_error *err)
{
	const struct manifest *m = c->manifest;
	c->work.items = mem_zalloc((size_t)m->n_files, sizeof *c->work.items);
	if (!c->work.items)
		return no_memory(c, err);
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

/* All files are in the folder that is committed, and as long as they should be. It may have been taken away since they
 * were read back, by whoever has opened the target as a run; the manifest's put has then made it anew, with nothing
 * else in it (P2). *ret_gone: that is so. */
static int
check_files(struct copying *c, bool *ret_gone, struct pawl_error *err)
{
	PAWL_FREE bool *seen = mem_zalloc(c->work.n, sizeof *seen);
	struct pawl_error why = {0};
	if (!seen)
		return no_memory(c, err);
	int rc = store_list(c->job->to, c->folder, call_roll, &(struct roll){c, seen}, &why);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return err_give(err, rc, &why);
	for (size_t i = 0; i < c->work.n; i++) {
		const struct manifest_file *f = c->work.items[i].file;
		if (seen[i])
			continue;
		*ret_gone = true;
		return err_set(err, PAWL_EIO,
		               "%s of %" PRIu64 " bytes is not in the folder %s any more that it was written to in %s",
		               f->name, f->nbytes, c->folder, c->job->to->root);
	}
	return 0;
}

/* The put, and the rename, by which the checkpoint begins to exist. */
static int
put_last(struct copying *c, bool *ret_gone, struct pawl_error *err)
{
	struct store *to = c->job->to;
	PAWL_FREE char *key = mem_printf("%s/" MANIFEST_NAME, c->folder);
	int rc;
	if (!key)
		return no_memory(c, err);
	if (!c->work.caps.rename_folder) {
		int exclusive = c->work.caps.exclusive_put ? STORE_EXCLUSIVE : 0;
		TRY(check_files(c, ret_gone, err));
		return store_put_bytes(to, key, c->text.ptr, c->text.len, STORE_DURABLE | exclusive, err);
	}
	TRY(store_put_bytes(to, key, c->text.ptr, c->text.len, STORE_DURABLE, err));
	TRY(check_files(c, ret_gone, err));
	rc = store_publish(to, c->folder, c->job->to_folder, err);
	if (rc == PAWL_ENOTFOUND) /* not of the source, which callers would take it for */
		return err_set(err, PAWL_EIO, "%s: the folder %s is not there any more", to->root, c->folder);
	return rc;
}

/* The one step by which the checkpoint begins to exist at the target. */
static int
commit(struct copying *c, struct pawl_error *err)
{
	struct pawl_error why = {0}, in_the_way = {0};
	bool gone = false;
	int there, rc = put_last(c, &gone, &why);
	if (rc == 0)
		return 0;
	/* An earlier try, or somebody who copies the same, may have done it (P15). */
	there = look_at_target(c, &in_the_way);
	if (c->work.caps.rename_folder && (there == 1 || gone))
		store_remove_folder(c->job->to, c->folder, NULL);
	if (there == PAWL_EEXISTS || (there < 0 && rc == PAWL_EEXISTS))
		return err_give(err, there, &in_the_way);
	return there == 1 ? 0 : err_give(err, err_prefix(&why, rc, "%s", c->work.name), &why);
}

/* ------------------------------------------------------------------ entrances */

static int
start(struct copying *c, struct pawl_error *err)
{
	const struct copy_job *job = c->job;
	struct store_caps from;
	if (job->n_streams > COPY_MAX_STREAMS)
		return err_set(err, PAWL_EUSAGE, "copy: expected at most %u streams, found %u", COPY_MAX_STREAMS,
		               job->n_streams);
	c->work.job = job;
	c->work.name = last_name(job->from_folder);
	store_get_caps(job->from, &from);
	store_get_caps(job->to, &c->work.caps);
	c->work.from_copies = from.copies;
	return copy_work_may_go_on(&c->work, err);
}

static void
add_total(const struct copy_job *job, uint64_t nbytes)
{
	if (job->meter)
		__atomic_fetch_add(&job->meter->total_bytes, nbytes, __ATOMIC_RELAXED);
}

static int
copy(struct copying *c, struct pawl_error *err)
{
	struct copy_result *result = &c->work.result;
	TRY(start(c, err));
	TRY(read_manifest(c, err));
	TRY(choose_folder(c, err));
	result->id = c->manifest->id;
	result->bytes = c->manifest->bytes;
	add_total(c->job, result->bytes);
	int rc = look_at_target(c, err);
	TRY(rc);
	result->was_there = rc == 1;
	if (rc == 1) {
		if (c->job->meter)
			__atomic_fetch_add(&c->job->meter->done_bytes, result->bytes, __ATOMIC_RELAXED);
		return 0;
	}
	TRY(make_items(c, err));
	TRY(copy_work_run(&c->work, err));
	return commit(c, err);
}

int
copy_checkpoint(const struct copy_job *job, struct copy_result *ret, struct pawl_error *err)
{
	PAWL_CLEAN(copying_clear) struct copying c = {.job = job};
	struct pawl_error own = {0};
	int rc = copy(&c, &own);
	if (rc == 0 && ret)
		*ret = c.work.result;
	return err_give(err, rc, &own);
}

static int
replace(struct copying *c, const struct manifest *m, const uint32_t *files, size_t n, struct pawl_error *err)
{
	char token[33];
	int rc = 0;
	TRY(start(c, err));
	TRY(clock_token(token, err));
	c->work.items = mem_zalloc(n, sizeof *c->work.items);
	if (!c->work.items)
		return no_memory(c, err);
	for (size_t i = 0; i < n; i++) {
		TRY(add_item(c, &m->files[files[i]], bump_printf(&c->memory, REPAIR_FOLDER "/%s-%zu", token, i), err));
		add_total(c->job, m->files[files[i]].nbytes);
	}
	rc = copy_work_run(&c->work, err);
	for (size_t i = 0; i < n; i++) {
		PAWL_FREE char *key = mem_printf("%s/%s", c->job->to_folder, m->files[files[i]].name);
		if (!key && rc == 0)
			rc = no_memory(c, err);
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
	return err_give(err, replace(&c, m, files, n, &own), &own);
}
