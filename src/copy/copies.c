/* SPDX-License-Identifier: Apache-2.0 */
/* copies: see copies.h. */
#include "copy/copies.h"

#include "base/vec.h"

size_t
pawl_copies_count(const struct pawl_copies *c)
{
	return c->n;
}

const struct pawl_copied *
pawl_copies_get(const struct pawl_copies *c, size_t i)
{
	return i < c->n ? &c->rows[i] : NULL;
}

void
pawl_copies_free(struct pawl_copies *c)
{
	if (!c)
		return;
	mem_free(c->rows);
	bump_clear(&c->memory);
	mem_free(c);
}

struct pawl_copied *
copies_add(struct pawl_copies *c, uint64_t id, const char *name, const char *problem)
{
	name = bump_printf(&c->memory, "%s", name);
	problem = bump_printf(&c->memory, "%s", problem);
	if (!name || !problem || !array_reserve(c->rows, c->cap, c->n + 1))
		return NULL;
	c->rows[c->n] = (struct pawl_copied){.id = id, .name = name, .problem = problem};
	return &c->rows[c->n++];
}

void
copies_set(struct pawl_copied *row, const struct copy_result *result)
{
	row->bytes = result->bytes;
	row->was_there = result->was_there;
	row->sent_bytes = result->sent_bytes;
	row->found_bytes = result->found_bytes;
	row->linked_bytes = result->linked_bytes;
}
