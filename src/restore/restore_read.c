/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore_read: fills the destinations, and the long texts of the saved state. Promises P1, P16;
 * R136 (every block that is touched is checked), R145 (memory: the read buffers).
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "restore/restore.h"
#include "restore/restore_gone.h"
#include "restore/broadcast_reads.h"
#include "state/walk.h"

/* Long str and bytes leaves whose bytes will be read now. */
struct blobs {
	struct pawl_restore *r;
	struct pawl_node **nodes;
	size_t n, cap;
};

static void
blobs_clear(struct blobs *b)
{
	mem_free(b->nodes);
}

static int
err_missing(const struct pawl_restore *r, const struct manifest_file *f, struct pawl_error *err)
{
	int rc = err_set(err, PAWL_ECORRUPT, "%s: %s is missing", r->info.name, f->name);

	if (err)
		err->sys = ENOENT; /* or the checkpoint was deleted: catalog_judge */
	return rc;
}

/* The manifest states how long a blob is. Memory is allocated only if its files have the right
 * size. */
static int
check_files(struct pawl_restore *r, const struct manifest_tensor *t, struct pawl_error *err)
{
	for (size_t k = 0; k < t->n_pieces; k++) {
		const struct manifest_file *f = &r->manifest->files[t->pieces[k].file];
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		struct store_entry entry;
		buf_printf(&key, "%s/%s", r->folder, f->name);
		TRY(buf_check(&key, f->name, err));
		int rc = store_stat(r->run->home.reads, buf_str(&key), &entry, err);
		if (rc < 0)
			return rc == PAWL_ENOTFOUND ? err_missing(r, f, err) : rc;
		if (entry.nbytes != f->nbytes &&
		    r->run->home.reads == r->run->store) /* else a mirror may have it complete */
			return err_set(err, PAWL_ECORRUPT,
			               "%s: %s (tensor %s): %" PRIu64 " bytes expected, %" PRIu64 " found",
			               r->info.name, f->name, t->name, f->nbytes, entry.nbytes);
	}
	return 0;
}

static int
bind_blob(struct pawl_restore *r, size_t index, struct pawl_error *err)
{
	struct pawl_state *state = r->manifest->state;
	struct state_tensor *t = &state->tensors[index];
	const struct manifest_tensor *saved = &r->manifest->tensors[index];
	struct pawl_tensor dst = PAWL_TENSOR_INIT;
	if (t->src.data)
		return 0; /* another leaf has the same text */
	if (saved->dtype != PAWL_U8 || saved->ndim != 1)
		return err_set(err, PAWL_ECORRUPT, "%s: the text %s is not a list of bytes", r->info.name, saved->name);
	if (!r->run->home.foreign) /* a foreign manifest is the file's own header */
		TRY(check_files(r, saved, err));
	if (saved->nbytes >= SIZE_MAX)
		return err_set(err, PAWL_ELIMIT, "%s: the text %s is too long", r->info.name, saved->name);
	t->src.data = bump_alloc(&state->memory, (size_t)saved->nbytes + 1);
	if (!t->src.data)
		return err_set(err, PAWL_ENOMEM, "%s: out of memory for %" PRIu64 " bytes of %s", r->info.name,
		               saved->nbytes, saved->name);
	dst.dtype = PAWL_U8;
	dst.ndim = 1;
	dst.shape = saved->shape;
	dst.data = t->src.data;
	return pawl_restore_bind(r, index, &dst, err);
}

static int
visit_blob(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct blobs *b = arg;
	const int type = leaf->node->type;
	if ((type != PAWL_STR && type != PAWL_BYTES) || leaf->node->tensor == SIZE_MAX || leaf->node->scalar.ptr ||
	    !walk_included(b->r->include, b->r->n_include, leaf->path))
		return 0;
	if (!array_reserve(b->nodes, b->cap, b->n + 1))
		return err_nomem(err, b->r->info.name);
	b->nodes[b->n++] = (struct pawl_node *)leaf->node; /* the state is ours */
	return bind_blob(b->r, leaf->node->tensor, err);
}

/* Makes what was read visible to readers of the state; after a failure, discards it. */
static int
finish_blobs(struct blobs *b, bool good, struct pawl_error *err)
{
	const struct manifest *m = b->r->manifest;
	for (size_t i = 0; i < b->n && good; i++) {
		const struct manifest_tensor *t = &m->tensors[b->nodes[i]->tensor];
		if (b->nodes[i]->type == PAWL_STR &&
		    !text_is_utf8(m->state->tensors[b->nodes[i]->tensor].src.data, (size_t)t->nbytes))
			return err_set(err, PAWL_ECORRUPT, "%s: the text %s is not UTF-8", b->r->info.name, t->name);
	}
	for (size_t i = 0; i < b->n; i++) {
		struct state_tensor *t = &m->state->tensors[b->nodes[i]->tensor];
		if (good) {
			b->nodes[i]->scalar.ptr = t->src.data;
			b->nodes[i]->scalar.len = (size_t)m->tensors[b->nodes[i]->tensor].nbytes;
		} else {
			t->src.data = NULL;
		}
	}
	return 0;
}

uint64_t
restore_wanted_bytes(const struct reshard_binding *bindings, size_t n)
{
	uint64_t total = 0, nbytes;
	for (size_t i = 0; i < n; i++) {
		if (tensor_nbytes(&bindings[i].dst, &nbytes, NULL) < 0 || !mem_add_ok(total, nbytes, &total))
			return UINT64_MAX;
	}
	return total;
}

/* The ring, less the memory for messages of shared reads. */
static uint64_t
ring_bytes(const struct pawl_restore *r)
{
	const uint64_t chunk = r->share_fn ? broadcast_reads_chunk(r->ring_bytes) : 0;
	const uint64_t ring = r->ring_bytes ? r->ring_bytes : FETCH_RING;
	return ring > 2 * chunk ? ring - chunk : ring;
}

int
restore_fetch(struct pawl_restore *r, const struct reshard_binding *bindings, size_t n, uint64_t *ret_nbytes,
              struct pawl_error *err)
{
	PAWL_CLEAN(reshard_free_clean) struct reshard_plan *plan = NULL;
	if (!r->fetch)
		TRY(fetch_new(r->run->home.reads, r->run->opts.io.threads, ring_bytes(r), &r->fetch, err));
	TRY(reshard_plan(r->manifest, bindings, n, fetch_unit_bytes(r->fetch, restore_wanted_bytes(bindings, n)), &plan,
	                 err));
	struct fetch_job job = {.name = r->info.name,
	                        .folder = r->folder,
	                        .manifest = r->manifest,
	                        .plan = plan,
	                        .bindings = bindings,
	                        .ret_healed_bytes = &r->healed_bytes};
	TRY(fetch_run(r->fetch, &job, err));
	*ret_nbytes = plan->nbytes;
	return 0;
}

void
restore_read_event(const struct pawl_restore *r, uint64_t nbytes)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	if (run_check_writable(r->run, NULL) < 0)
		return;
	buf_printf(&fields,
	           "\"id\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"read_bytes\":%" PRIu64
	           ",\"seconds\":%.6f,\"fallbacks\":%zu",
	           r->info.id, r->read_bytes, nbytes, r->read_seconds, r->fallbacks.n);
	if (r->healed_bytes)
		buf_printf(&fields, ",\"other_copy_bytes\":%" PRIu64, r->healed_bytes);
	if (!fields.failed)
		events_add(&r->run->events, "restore", buf_str(&fields));
}

/* One try. n: the destinations that are not blobs. */
static int
read_once(struct pawl_restore *r, size_t n, uint64_t *ret_nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(blobs_clear) struct blobs blobs = {.r = r};
	int rc = walk_leaves(r->manifest->state->root, visit_blob, &blobs, err);
	if (r->owes_word && r->share_fn)
		rc = broadcast_reads(r, rc, ret_nbytes, err);
	else if (rc == 0)
		rc = restore_fetch(r, r->bindings, r->n_bindings, ret_nbytes, err);
	if (rc == 0)
		rc = finish_blobs(&blobs, true, err);
	if (rc < 0)
		finish_blobs(&blobs, false, NULL);
	restore_cut_bindings(r, n);
	return rc;
}

int
restore_read_own(struct pawl_restore *r, struct pawl_error *err)
{
	const int64_t begin_ns = clock_mono_ns();
	const size_t n = r->n_bindings;
	uint64_t nbytes = 0;
	struct pawl_error why;
	int rc, verdict;
	for (unsigned tries = 0;; tries++) {
		why = (struct pawl_error){0};
		rc = read_once(r, n, &nbytes, &why);
		verdict = rc < 0 ? restore_judge(r, &why, tries, &why) : 0;
		if (verdict > 0 && r->owes_word && r->share_fn) /* the others must read again, too */
			verdict = err_set(&why, PAWL_ENOTFOUND, "%s was missing while it was read", r->info.name);
		if (verdict <= 0)
			break;
	}
	if (verdict == 0 && rc == 0)
		rc = restore_run_casts(r, &why);
	rc = err_give(err, verdict < 0 ? verdict : rc, &why);
	restore_cut_bindings(r, 0);
	r->read_bytes = nbytes;
	r->read_seconds = (double)(clock_mono_ns() - begin_ns) / 1e9;
	return rc;
}
