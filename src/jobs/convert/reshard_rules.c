/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_rules: see reshard_rules.h. */
#include "jobs/convert/reshard_rules.h"

#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/finite.h"
#include "base/mem.h"
#include "layout/cast.h"
#include "layout/rename.h"
#include "state/walk.h"

#define CAST_ELEMENTS 65536u

struct naming {
	const struct restore_rules *rules;
	struct manifest *manifest;
};

static int
name_leaf(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	const struct naming *n = arg;
	const size_t i = leaf->node->tensor;
	PAWL_CLEAN(buf_clear) struct buf name = {0};

	if (i == SIZE_MAX || leaf->in_ranks)
		return 0;
	rename_apply(n->rules->rename, n->rules->n_rename, n->manifest->tensors[i].name, &name);
	TRY(buf_check(&name, "rename", err));
	if (strcmp(buf_str(&name), leaf->path) != 0)
		return 0; /* another leaf gave the tensor its name */
	const char *copy = bump_strndup(&n->manifest->memory, leaf->path, strlen(leaf->path));
	if (!copy)
		return err_nomem(err, "rename");
	n->manifest->tensors[i].name = copy;
	n->manifest->state->tensors[i].info.name = copy;
	return 0;
}

int
reshard_rules_apply(const struct restore_rules *rules, struct manifest *m, struct pawl_error *err)
{
	struct naming n = {rules, m};

	TRY(restore_check_rules(rules, err));
	TRY(restore_apply_rules(rules, m, NULL, err));
	return rules->n_rename > 0 ? walk_leaves(m->state->root, name_leaf, &n, err) : 0;
}

void
reshard_rules_clear(struct reshard_rules_casts *casts)
{
	vec_free(&casts->rows);
	bump_clear(&casts->memory);
}

int
reshard_rules_add(struct reshard_rules_casts *casts, int to, struct reshard_binding *b, struct pawl_error *err)
{
	const uint64_t old = pawl_dtype_bits(b->dst.dtype) / 8, new = pawl_dtype_bits(to) / 8;
	const uint64_t first = b->begin / new, last = (b->end + new - 1) / new;
	char *saved = bump_array(&casts->memory, last - first, (size_t)old);
	struct reshard_rules_cast *row = vec_add(&casts->rows);

	if (!saved || !row)
		return err_nomem(err, "reshard");
	*row = (struct reshard_rules_cast){.saved = saved,
	                                   .to = b->dst.data,
	                                   .skip = b->begin - first * new,
	                                   .nbytes = b->end - b->begin,
	                                   .from_dtype = b->dst.dtype,
	                                   .to_dtype = to};
	b->dst.data = saved;
	b->begin = first * old;
	b->end = last * old;
	return 0;
}

/* Returns false if a converted element is NaN or infinite. */
static bool
run_cast(const struct reshard_rules_cast *c, char *room)
{
	const uint64_t old = pawl_dtype_bits(c->from_dtype) / 8, new = pawl_dtype_bits(c->to_dtype) / 8;
	const uint64_t end = c->skip + c->nbytes, n = (end + new - 1) / new;
	bool finite = true;

	for (uint64_t i = 0, step; i < n; i += step) {
		step = n - i < CAST_ELEMENTS ? n - i : CAST_ELEMENTS;
		cast_floats(c->from_dtype, c->saved + i * old, c->to_dtype, room, (size_t)step);
		finite = finite && finite_all(c->to_dtype, room, (size_t)(step * new));
		uint64_t from = i * new > c->skip ? i *new : c->skip;
		uint64_t to = (i + step) * new < end ? (i + step) * new : end;
		memcpy(c->to + (from - c->skip), room + (from - i * new), (size_t)(to - from));
	}
	return finite;
}

int
reshard_rules_run(struct reshard_rules_casts *casts, struct pawl_error *err)
{
	PAWL_FREE char *room = casts->rows.n > 0 ? mem_alloc(CAST_ELEMENTS * sizeof(double)) : NULL;

	if (casts->rows.n > 0 && !room)
		return err_nomem(err, "reshard");
	for (size_t i = 0; i < casts->rows.n; i++)
		if (!run_cast(&casts->rows.items[i], room))
			casts->not_finite = true;
	return 0;
}
