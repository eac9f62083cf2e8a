/* SPDX-License-Identifier: Apache-2.0 */
/* regroup: see regroup.h. */
#include "layout/regroup.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define FINE_PART 32        /* of pack_bytes */
#define WASTE_PART 100      /* packs are divided if the unchanged bytes in them exceed 1/100 of the changed ones */
#define HOT_STREAK 2        /* changes in a row before a tensor is merged that has never rested */
#define HOT_AGAIN_STREAK 64 /* the same for one that has rested */
#define COLD_STREAK (-64)
#define MANY_COLD 16 /* small packs that never change */
#define STREAK_MAX 1000

struct pack {
	uint64_t same_bytes, other_bytes;
	size_t n;
	bool hot, cold; /* all tensors are */
	bool moves;
};

/* The packs by number, and the numbers that are given to new ones. */
struct work {
	struct regroup_tensor *tensors;
	size_t n;
	struct pack *packs;
	size_t n_packs;
	uint64_t pack_bytes, fine_bytes;
	uint32_t next;
	bool changed;
};

static bool
is_placed(const struct regroup_tensor *t)
{
	return t->pack < REGROUP_NONE;
}

static bool
has_probe(const struct regroup_tensor *t)
{
	return t->probe > REGROUP_BAD_PROBE;
}

static bool
is_hot(const struct regroup_tensor *t)
{
	return t->seen == REGROUP_CHANGED && t->streak >= (t->has_rested ? HOT_AGAIN_STREAK : HOT_STREAK);
}

void
regroup_note(struct regroup_tensor *t, enum regroup_seen seen, uint64_t probe)
{
	if (seen == REGROUP_CHANGED && has_probe(t) && t->probe == probe)
		t->probe = REGROUP_BAD_PROBE;
	if (t->probe != REGROUP_BAD_PROBE)
		t->probe = probe;
	t->seen = (uint8_t)seen;
	if (seen == REGROUP_CHANGED)
		t->streak = t->streak < 0 ? 1 : t->streak < STREAK_MAX ? (int16_t)(t->streak + 1) : STREAK_MAX;
	if (seen == REGROUP_SAME) {
		t->streak = t->streak > 0 ? -1 : t->streak > -STREAK_MAX ? (int16_t)(t->streak - 1) : -STREAK_MAX;
		t->has_rested = true;
	}
}

size_t
regroup_count(const struct regroup_tensor *tensors, size_t n)
{
	size_t count = 1;

	for (size_t i = 0; i < n; i++)
		if (is_placed(&tensors[i]) && tensors[i].pack >= count)
			count = (size_t)tensors[i].pack + 1;
	return count;
}

static uint64_t
fine_bytes(uint64_t pack_bytes)
{
	const uint64_t fine = pack_bytes / FINE_PART;

	return fine < REGROUP_SMALL_BYTES ? REGROUP_SMALL_BYTES : fine;
}

uint64_t
regroup_most_packs(uint64_t nbytes, uint64_t pack_bytes)
{
	return 2 * (nbytes / fine_bytes(pack_bytes)) + MANY_COLD;
}

/* ---------------------------------------------------------------------------------- numbers */

/* Moves the last packs into the gaps. */
static int
close_gaps(struct regroup_tensor *tensors, size_t n, struct pawl_error *err)
{
	const size_t end = regroup_count(tensors, n);
	PAWL_FREE uint32_t *to = mem_zalloc(end, sizeof(*to));
	PAWL_FREE bool *taken = mem_zalloc(end, sizeof(*taken));
	size_t n_used = 0, gap = 0;

	if (!to || !taken)
		return err_nomem(err, "save");
	for (size_t i = 0; i < n; i++)
		if (is_placed(&tensors[i]))
			taken[tensors[i].pack] = true;
	taken[0] = true;
	for (size_t k = 0; k < end; k++)
		n_used += taken[k];
	for (size_t k = 0; k < end; k++) {
		to[k] = (uint32_t)k;
		if (!taken[k] || k < n_used)
			continue;
		while (taken[gap])
			gap++;
		taken[gap] = true;
		to[k] = (uint32_t)gap;
	}
	for (size_t i = 0; i < n; i++)
		if (is_placed(&tensors[i]))
			tensors[i].pack = to[tensors[i].pack];
	return 0;
}

/* ---------------------------------------------------------- laying tensors into new packs */

/* Fills packs with tensors in order. A tensor of `limit` bytes or more has its own pack. */
struct filling {
	uint64_t limit, filled;
	uint32_t open; /* number of the pack that is being filled */
	size_t n;      /* packs so far */
};

static uint32_t
choose_pack(struct filling *f, uint64_t nbytes, uint32_t *next)
{
	if (nbytes >= f->limit) {
		f->n++;
		return (*next)++;
	}
	if (f->n == 0 || f->filled == 0 || f->filled + nbytes > f->limit) {
		f->open = (*next)++;
		f->filled = 0;
		f->n++;
	}
	f->filled += nbytes > 0 ? nbytes : 1;
	return f->open;
}

/* If all are expected to rest, nothing is known. */
static bool
rests_alone(const struct regroup_tensor *tensors, size_t n, const unsigned char *rests)
{
	for (size_t i = 0; rests && i < n; i++)
		if (!rests[i] && tensors[i].nbytes > 0 && tensors[i].pack != REGROUP_NONE)
			return true;
	return false;
}

int
regroup_place_new(struct regroup_tensor *tensors, size_t n, const unsigned char *rests, uint64_t pack_bytes,
                  struct pawl_error *err)
{
	const uint64_t fine = fine_bytes(pack_bytes);
	struct filling f = {.limit = fine}, resting = {.limit = fine};
	uint32_t next = (uint32_t)regroup_count(tensors, n);
	uint64_t medium = 0; /* of those that would share packs */

	if (n >= REGROUP_NONE)
		return err_set(err, PAWL_ELIMIT, "save: too many tensors");
	if (!rests_alone(tensors, n, rests))
		rests = NULL;
	for (size_t i = 0; i < n; i++)
		if (tensors[i].pack == REGROUP_NEW && tensors[i].nbytes < fine && !(rests && rests[i]))
			medium += tensors[i].nbytes;
	for (size_t i = 0; i < n; i++) {
		struct regroup_tensor *t = &tensors[i];

		if (t->pack != REGROUP_NEW)
			continue;
		if (rests && rests[i] && t->nbytes > 0)
			t->pack = choose_pack(&resting, t->nbytes, &next);
		else if (t->nbytes < REGROUP_SMALL_BYTES || (t->nbytes < fine && medium <= fine))
			t->pack = 0;
		else
			t->pack = choose_pack(&f, t->nbytes, &next);
	}
	return close_gaps(tensors, n, err);
}

/* -------------------------------------------------------------------------- looking at packs */

static void
inspect_packs(struct work *w)
{
	memset(w->packs, 0, w->n_packs * sizeof(*w->packs));
	for (size_t k = 0; k < w->n_packs; k++)
		w->packs[k].hot = w->packs[k].cold = true;
	for (size_t i = 0; i < w->n; i++) {
		const struct regroup_tensor *t = &w->tensors[i];

		if (!is_placed(t) || t->pack >= w->n_packs)
			continue;
		struct pack *p = &w->packs[t->pack];

		p->n++;
		if (t->nbytes == 0)
			continue;
		*(t->seen == REGROUP_SAME ? &p->same_bytes : &p->other_bytes) += t->nbytes;
		p->hot = p->hot && is_hot(t);
		p->cold = p->cold && t->streak <= COLD_STREAK;
	}
}

/* Pack 0 is always written; another pack when any of its tensors has changed. */
static bool
is_mixed(const struct work *w, size_t k)
{
	return w->packs[k].same_bytes > 0 && (k == 0 || w->packs[k].other_bytes > 0);
}

/* Separates changed from unchanged tensors, if that saves enough. */
static void
divide_packs(struct work *w)
{
	struct filling same = {.limit = w->fine_bytes}, other = {.limit = w->fine_bytes};
	uint64_t waste = 0, useful = 0;

	for (size_t k = 0; k < w->n_packs; k++) {
		useful += w->packs[k].other_bytes;
		waste += is_mixed(w, k) ? w->packs[k].same_bytes : 0;
	}
	if (waste == 0 || waste <= useful / WASTE_PART)
		return;
	for (size_t i = 0; i < w->n; i++) {
		struct regroup_tensor *t = &w->tensors[i];

		if (!is_placed(t) || t->pack >= w->n_packs || !is_mixed(w, t->pack))
			continue;
		if (t->seen == REGROUP_SAME && t->nbytes > 0)
			t->pack = choose_pack(&same, t->nbytes, &w->next);
		else if (t->pack != 0)
			t->pack = choose_pack(&other, t->nbytes, &w->next);
	}
	w->changed = true;
}

/* Moves all tensors of the moving packs into new packs of `limit` bytes, if these are fewer. */
static void
lay_anew(struct work *w, size_t n_moving, uint64_t limit)
{
	struct filling trial = {.limit = limit}, f = {.limit = limit};
	uint32_t unused = 0;

	for (int pass = 0; pass < 2; pass++) {
		if (pass == 1 && trial.n >= n_moving)
			return;
		for (size_t i = 0; i < w->n; i++) {
			struct regroup_tensor *t = &w->tensors[i];

			if (!is_placed(t) || t->pack >= w->n_packs || !w->packs[t->pack].moves)
				continue;
			if (pass == 0)
				choose_pack(&trial, t->nbytes, &unused);
			else
				t->pack = choose_pack(&f, t->nbytes, &w->next);
		}
	}
	w->changed = true;
}

static void
merge_hot(struct work *w)
{
	size_t n_moving = 0;
	uint64_t total = w->packs[0].same_bytes + w->packs[0].other_bytes;

	for (size_t k = 1; k < w->n_packs; k++) {
		struct pack *p = &w->packs[k];

		p->moves = p->n > 0 && p->hot;
		n_moving += p->moves;
		total += p->moves ? p->other_bytes : 0;
	}
	if (n_moving == 0)
		return;
	if (total > w->pack_bytes) {
		lay_anew(w, n_moving, w->pack_bytes);
		return;
	}
	for (size_t i = 0; i < w->n; i++) {
		struct regroup_tensor *t = &w->tensors[i];

		if (is_placed(t) && t->pack < w->n_packs && w->packs[t->pack].moves)
			t->pack = 0;
	}
	w->changed = true;
}

static void
merge_cold(struct work *w)
{
	size_t n_moving = 0;

	for (size_t k = 0; k < w->n_packs; k++) {
		struct pack *p = &w->packs[k];

		p->moves = k > 0 && p->n > 0 && p->cold && p->same_bytes < w->fine_bytes / 2;
		n_moving += p->moves;
	}
	if (n_moving > MANY_COLD)
		lay_anew(w, n_moving, w->fine_bytes);
}

static int
begin_work(struct work *w, struct regroup_tensor *tensors, size_t n, uint64_t pack_bytes, struct pawl_error *err)
{
	const size_t n_packs = regroup_count(tensors, n);

	*w = (struct work){.tensors = tensors,
	                   .n = n,
	                   .packs = mem_zalloc(n_packs, sizeof(*w->packs)),
	                   .n_packs = n_packs,
	                   .pack_bytes = pack_bytes,
	                   .fine_bytes = fine_bytes(pack_bytes),
	                   .next = (uint32_t)n_packs};
	return w->packs ? 0 : err_nomem(err, "save");
}

static int
end_work(struct work *w, bool *ret, struct pawl_error *err)
{
	mem_free(w->packs);
	*ret = w->changed;
	return w->changed ? close_gaps(w->tensors, w->n, err) : 0;
}

int
regroup_decide(struct regroup_tensor *tensors, size_t n, uint64_t pack_bytes, bool *ret, struct pawl_error *err)
{
	struct work w;

	TRY(begin_work(&w, tensors, n, pack_bytes, err));
	inspect_packs(&w);
	divide_packs(&w);
	inspect_packs(&w);
	merge_hot(&w);
	inspect_packs(&w);
	merge_cold(&w);
	return end_work(&w, ret, err);
}

int
regroup_expect(struct regroup_tensor *tensors, size_t n, const uint64_t *probes, uint64_t pack_bytes, bool *ret,
               struct pawl_error *err)
{
	struct work w;
	bool is_known = true;

	*ret = false;
	for (size_t i = 0; i < n; i++) {
		struct regroup_tensor *t = &tensors[i];

		if (!is_placed(t) || t->nbytes == 0)
			continue;
		if (has_probe(t) && probes[i] != REGROUP_NO_PROBE)
			t->seen = t->probe == probes[i] ? REGROUP_SAME : REGROUP_CHANGED;
		is_known = is_known && t->seen != REGROUP_UNKNOWN; /* without a probe: as at the last save */
	}
	if (!is_known)
		return 0;
	TRY(begin_work(&w, tensors, n, pack_bytes, err));
	inspect_packs(&w);
	divide_packs(&w);
	return end_work(&w, ret, err);
}
