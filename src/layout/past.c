/* SPDX-License-Identifier: Apache-2.0 */
/* past: see past.h. */
#include "layout/past.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/table.h"
#include "state/pack_name.h"

static void
table_clean(struct table *t)
{
	table_clear(t);
}

/* offsets NULL: the complete tensor. */
static struct sum128
tensor_key(const char *name, int dtype, uint32_t ndim, const uint64_t *shape, const uint64_t *offsets,
           const uint64_t *lengths)
{
	static const uint64_t zeros[PAWL_MAX_DIMS];
	const uint64_t kind[2] = {(uint64_t)dtype, ndim};
	const size_t extent = ndim * sizeof(*shape);
	struct sum_stream s;

	sum_init(&s);
	sum_update(&s, kind, sizeof(kind));
	if (ndim > 0) {
		sum_update(&s, shape, extent);
		sum_update(&s, offsets ? offsets : zeros, extent);
		sum_update(&s, offsets ? lengths : shape, extent);
	}
	sum_update(&s, name, strlen(name));
	return sum_final(&s);
}

static int
past_alloc(size_t n, struct past **ret, struct pawl_error *err)
{
	struct past *p = mem_zalloc(1, sizeof(*p));

	if (!p)
		return err_nomem(err, "save");
	p->tensors = mem_zalloc(n + 1, sizeof(*p->tensors));
	p->n = n;
	if (!p->tensors) {
		past_free(p);
		return err_nomem(err, "save");
	}
	*ret = p;
	return 0;
}

int
past_new(const struct regroup_tensor *tensors, size_t n, struct past **ret, struct pawl_error *err)
{
	TRY(past_alloc(n, ret, err));
	memcpy((*ret)->tensors, tensors, n * sizeof(*tensors));
	return 0;
}

/* For each file, its index among the packs of this rank, or REGROUP_NONE. */
static uint32_t *
index_files(const struct manifest *m, uint32_t rank)
{
	uint32_t *ret = mem_zalloc((size_t)m->n_files + 1, sizeof(*ret));

	for (size_t i = 0; ret && i < m->n_files; i++) {
		uint32_t its_rank, index;
		const bool is_own = pack_parse_name(m->files[i].name, &its_rank, &index) && its_rank == rank;

		ret[i] = is_own && index < m->n_files ? index : REGROUP_NONE;
	}
	return ret;
}

int
past_of_manifest(const struct manifest *m, uint32_t rank, struct past **ret, struct pawl_error *err)
{
	PAWL_CLEAN(past_free_clean) struct past *p = NULL;
	PAWL_FREE uint32_t *index = index_files(m, rank);
	size_t n = 0;

	if (!index)
		return err_nomem(err, "save");
	for (size_t i = 0; i < m->n_tensors; i++)
		for (size_t k = 0; k < m->tensors[i].n_pieces; k++)
			n += index[m->tensors[i].pieces[k].file] != REGROUP_NONE;
	TRY(past_alloc(n, &p, err));
	p->n = 0;
	for (size_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];

		for (size_t k = 0; k < t->n_pieces; k++) {
			const struct manifest_piece *piece = &t->pieces[k];

			if (index[piece->file] == REGROUP_NONE)
				continue;
			p->tensors[p->n++] = (struct regroup_tensor){
				.who = tensor_key(t->name, t->dtype, t->ndim, t->shape, piece->offsets, piece->lengths),
				.nbytes = piece->nbytes,
				.pack = index[piece->file]};
		}
	}
	*ret = steal(&p);
	return 0;
}

static const struct regroup_tensor *
find_tensor(const struct past *past, const struct table *table, struct sum128 key)
{
	size_t cursor = 0;
	uintptr_t i;

	while (table_next(table, key.lo, &cursor, &i))
		if (sum_equal(past->tensors[i].who, key))
			return &past->tensors[i];
	return NULL;
}

int
past_match(const struct past *past, const struct pawl_state *state, struct regroup_tensor *ret, struct pawl_error *err)
{
	PAWL_CLEAN(table_clean) struct table table = {0};

	if (past && table_reserve(&table, past->n) < 0)
		return err_nomem(err, "save");
	for (size_t i = 0; past && i < past->n; i++)
		if (past->tensors[i].pack < REGROUP_NONE)
			table_add(&table, past->tensors[i].who.lo, i);
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		const struct pawl_tensor *box = &t->src;
		const struct regroup_tensor *known = NULL;
		struct regroup_tensor row = {.pack = REGROUP_NONE};

		if (!t->elsewhere) {
			row.who = tensor_key(t->info.name, t->info.dtype, t->info.ndim, t->info.shape, box->offsets,
			                     box->shape);
			row.nbytes = t->local_nbytes;
			row.pack = REGROUP_NEW;
			known = past ? find_tensor(past, &table, row.who) : NULL;
		}
		ret[i] = known ? *known : row;
	}
	return 0;
}

void
past_free(struct past *p)
{
	if (!p)
		return;
	mem_free(p->tensors);
	mem_free(p);
}
