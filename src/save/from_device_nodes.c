/* SPDX-License-Identifier: Apache-2.0 */
/*
 * from_device_nodes: which threads and which memory serve which device. See from_device.h.
 *
 *   threads    each begins with the units of one device (device_turns.h)
 *   snapshot   the places of a device's tensors are put on the memory node of that device
 *   ring       slot i is put on the node of device i % devices; a unit takes such a slot if one is
 *              free or new
 */
#include "save/from_device.h"

#include "base/err.h"
#include "base/mem.h"
#include "device/device_spans.h"
#include "save/arena.h"
#include "save/from_device_own.h"

/* 1 + the line of the first tensor of a unit that is on a device; 0 = none is. */
static size_t
line_of(const struct save_image *m, const struct save_unit *u)
{
	const struct plan_pack *p = u->pack->plan;
	const uint64_t data = p->header.len, end = u->offset + u->nbytes;

	for (size_t j = snapshot_slot_at(p, u->offset > data ? u->offset - data : 0);
	     j < p->n_slots && data + p->slots[j].begin < end; j++)
		if (from_device_has(m, p->slots[j].tensor))
			return m->from_device->places[p->slots[j].tensor].line;
	return 0;
}

int
from_device_share_units(struct save_image *m, struct pawl_error *err)
{
	const struct from_device *d = m->from_device;
	const bool is_in_order = m->codec && m->mode != PAWL_MODE_SNAPSHOT;

	/* A compressed pack is written in order. Units of a ring that come early would wait in
	 * memory that nothing bounds. */
	if (!d || d->lines.n < 2 || is_in_order)
		return device_turns_init(&m->turns, m->n_units, 1, NULL, err);
	PAWL_FREE size_t *group_of = mem_zalloc(m->n_units + 1, sizeof(*group_of));

	if (!group_of)
		return err_nomem(err, "save");
	for (size_t i = 0; i < m->n_units; i++) {
		const size_t line = line_of(m, &m->units[i]);

		group_of[i] = line ? line - 1 : 0;
	}
	return device_turns_init(&m->turns, m->n_units, d->lines.n, group_of, err);
}

int
from_device_node(const struct save_image *m, const struct save_unit *u)
{
	const size_t line = m->from_device ? line_of(m, u) : 0;

	return line ? m->from_device->lines.items[line - 1]->node : -1;
}

bool
from_device_is_near(const struct save_image *m, const char *slot, int node)
{
	const struct from_device *d = m->from_device;

	if (!d || !d->lines.n || node < 0)
		return true;
	const size_t i = (size_t)(slot - (const char *)m->region.ptr) / SAVE_UNIT_BYTES;

	return d->lines.items[i % d->lines.n]->node == node;
}

/* Of the places of a snapshot. A part ends where a tensor of another node begins, to the nearest
 * huge page. */
static bool
list_places(const struct save_image *m, struct device_spans *spans)
{
	const struct from_device *d = m->from_device;

	for (size_t k = 0; k < m->plan->n_packs; k++) {
		const struct plan_pack *p = &m->plan->packs[k];

		for (size_t j = 0; j < p->n_slots; j++) {
			const size_t line = d->places[p->slots[j].tensor].line;
			const uint64_t at = p->image_offset + p->header.len + p->slots[j].begin;
			const uint64_t step = (at + ARENA_STEP_BYTES / 2) / ARENA_STEP_BYTES;

			if (line && !device_spans_add(spans, spans->list.n ? (size_t)(step * ARENA_STEP_BYTES) : 0,
			                              d->lines.items[line - 1]->node))
				return false;
		}
	}
	return true;
}

static bool
list_slots(const struct from_device *d, size_t nbytes, struct device_spans *spans)
{
	bool is_listed = true;

	for (size_t at = 0, i = 0; at < nbytes && is_listed; at += SAVE_UNIT_BYTES, i++)
		is_listed = device_spans_add(spans, at, d->lines.items[i % d->lines.n]->node);
	return is_listed;
}

bool
from_device_has_nodes(const struct save_image *m)
{
	const struct from_device *d = m->from_device;

	for (size_t i = 1; d && i < d->lines.n; i++)
		if (d->lines.items[i]->node != d->lines.items[0]->node)
			return true;
	return false;
}

void
from_device_register(const struct save_image *m, size_t nbytes)
{
	const struct from_device *d = m->from_device;
	PAWL_CLEAN(device_spans_clear) struct device_spans spans = {0};

	if (!d || !d->lines.n)
		return;
	const bool is_listed =
		from_device_has_nodes(m) &&
		(m->mode != PAWL_MODE_SNAPSHOT ? list_slots(d, nbytes, &spans) : m->plan && list_places(m, &spans));

	arena_pin(m->env->arena, m->region.ptr ? &m->region : NULL, d->lines.items[0]->device,
	          d->lines.items[0]->ordinal, is_listed ? &spans : NULL);
}
