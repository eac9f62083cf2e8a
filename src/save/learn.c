/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn: finds which tensors have changed since the checkpoint before. It compares the checksums of
 * blocks that every save has. Where tensors share a block, the I/O threads also checksum each
 * tensor's part. The result decides which tensors share a pack (regroup.h). It never decides
 * whether a pack is linked.
 *
 * Before that, at the call, a few lines of each tensor in host memory tell what to expect. A save
 * that must write a pack can then divide it at once.
 */
#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "save/save.h"
#include "state/state.h"

#define PROBE_LINE_BYTES ((size_t)64)
#define PROBE_MOST_LINES ((size_t)16)   /* of a tensor */
#define PROBE_ALL_LINES ((size_t)16384) /* of a state, unless it has more than half as many tensors: a millisecond */

/* A slot's place in its file: its blocks, and whether it fills the first and the last alone. */
struct reach {
	uint64_t begin, end;  /* in the file */
	uint64_t first, last; /* blocks */
	bool fills_first, fills_last;
};

static struct reach
reach_of(const struct save_pack *p, const struct plan_slot *slot)
{
	const uint64_t block = p->image->plan->block_bytes, nbytes = p->plan->nbytes;
	struct reach r = {.begin = p->plan->header.len + slot->begin};

	r.end = r.begin + slot->nbytes;
	r.first = r.begin / block;
	r.last = (r.end - 1) / block;
	const uint64_t last_end = (r.last + 1) * block < nbytes ? (r.last + 1) * block : nbytes;

	r.fills_last = r.end == last_end && r.begin <= r.last * block;
	r.fills_first = r.begin == r.first * block && (r.first < r.last || r.fills_last);
	return r;
}

/* ---- before the save ---- */

static void
read_bytes(const struct state_tensor *t, uint64_t at, size_t n, char *to)
{
	if (t->contiguous)
		memcpy(to, (const char *)t->src.data + at, n);
	else
		tensor_gather(&t->src, at, n, to);
}

/* The checksum of lines from the first to the last, or of all bytes of a small tensor. */
static uint64_t
probe_tensor(const struct state_tensor *t, size_t n_lines)
{
	const uint64_t n = t->local_nbytes;
	char bytes[PROBE_MOST_LINES * PROBE_LINE_BYTES];
	const size_t used = n < n_lines * PROBE_LINE_BYTES ? (size_t)n : n_lines * PROBE_LINE_BYTES;

	if (used == n)
		read_bytes(t, 0, used, bytes);
	for (size_t k = 0; used < n && k < n_lines; k++)
		read_bytes(t, (n - PROBE_LINE_BYTES) * k / (n_lines - 1), PROBE_LINE_BYTES,
		           bytes + k * PROBE_LINE_BYTES);
	const uint64_t ret = sum_bytes(bytes, used).lo;

	return ret > REGROUP_BAD_PROBE ? ret : REGROUP_BAD_PROBE + 1;
}

int
learn_probes(struct save_image *m, struct pawl_error *err)
{
	const size_t n = m->share.n_tensors;
	size_t n_lines = PROBE_ALL_LINES / (n ? n : 1);

	n_lines = n_lines < 2 ? 2 : n_lines < PROBE_MOST_LINES ? n_lines : PROBE_MOST_LINES;
	m->probes = bump_array(&m->memory, (uint64_t)n + 1, sizeof(*m->probes));
	if (!m->probes)
		return err_nomem(err, "save");
	for (size_t i = 0; i < n; i++) {
		const struct state_tensor *t = &m->share.tensors[i];

		if (!t->elsewhere && t->local_nbytes > 0 && !t->src.fill && !t->src.device)
			m->probes[i] = probe_tensor(t, n_lines);
	}
	return 0;
}

/* ---- during the save ---- */

/* The first slot that ends beyond an offset of the file. */
static size_t
slot_after(const struct plan_pack *pack, uint64_t offset)
{
	size_t low = 0, high = pack->n_slots;

	while (low < high) {
		const size_t mid = low + (high - low) / 2;

		if (pack->header.len + pack->slots[mid].begin + pack->slots[mid].nbytes > offset)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

void
learn_unit(const struct save_unit *u)
{
	const struct save_pack *p = u->pack;
	const uint64_t block = p->image->plan->block_bytes, end = u->offset + u->nbytes;

	for (size_t i = slot_after(p->plan, u->offset); p->ends && i < p->plan->n_slots; i++) {
		const struct plan_slot *slot = &p->plan->slots[i];
		const struct reach r = reach_of(p, slot);
		const uint64_t stop = r.end < (r.first + 1) * block ? r.end : (r.first + 1) * block;

		if (r.begin >= end)
			break;
		if (slot->nbytes == 0)
			continue;
		if (!r.fills_first && r.begin >= u->offset)
			p->ends[i].first = sum_bytes(u->mem + (r.begin - u->offset), (size_t)(stop - r.begin));
		if (!r.fills_last && r.last > r.first && r.end <= end)
			p->ends[i].last =
				sum_bytes(u->mem + (r.last * block - u->offset), (size_t)(r.end - r.last * block));
	}
}

/* ---- after the commit ---- */

static bool
ends_equal(const struct tensor_ends *a, const struct tensor_ends *b, bool last)
{
	return last ? sum_equal(a->last, b->last) : sum_equal(a->first, b->first);
}

static enum regroup_seen
compare_slot(const struct save_pack *p, size_t i)
{
	const struct reuse_pack *before = p->before;
	const struct plan_slot *slot = &p->plan->slots[i];
	const struct reach r = reach_of(p, slot);
	bool is_known = true, has_own = false;

	if (slot->nbytes == 0)
		return REGROUP_SAME;
	for (uint64_t b = r.first; b <= r.last; b++) {
		const bool own = b == r.first ? r.fills_first : b == r.last ? r.fills_last : true;

		has_own = has_own || own;
		if (sum_equal(p->sums[b], before->sums[b]))
			continue;
		if (own || (before->ends && !ends_equal(&p->ends[i], &before->ends[i], b > r.first)))
			return REGROUP_CHANGED;
		is_known = is_known && before->ends;
	}
	return is_known || has_own ? REGROUP_SAME : REGROUP_UNKNOWN;
}

static void
learn_changes(struct save_image *m)
{
	struct regroup_tensor *tensors = m->plan->tensors;

	for (size_t k = 0; tensors && k < m->plan->n_packs; k++) {
		const struct save_pack *p = &m->packs[k];

		for (size_t i = 0; i < p->plan->n_slots; i++) {
			const size_t tensor = p->plan->slots[i].tensor;

			regroup_note(&tensors[tensor],
			             p->linked   ? REGROUP_SAME
			             : p->before ? compare_slot(p, i)
			                         : REGROUP_UNKNOWN,
			             m->probes[tensor]);
		}
	}
}

bool
learn_packs(struct save_image *m, struct past **ret)
{
	struct plan *plan = m->plan;
	bool changed = true;

	*ret = NULL;
	if (!plan->tensors)
		return false;
	learn_changes(m);
	if (regroup_decide(plan->tensors, plan->n_tensors, plan->pack_bytes, &changed, NULL) < 0 ||
	    past_new(plan->tensors, plan->n_tensors, ret, NULL) < 0)
		return true; /* everything is written once more */
	return changed;
}
