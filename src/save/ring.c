/* SPDX-License-Identifier: Apache-2.0 */
/* ring: see ring.h. */
#include "save/ring.h"

#include <pthread.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/from_device.h"
#include "save/save.h"

int
ring_make(struct save_image *m, uint64_t ring, struct pawl_error *err)
{
	const size_t n_warm = m->region.warm_bytes / ARENA_STEP_BYTES;

	if (ring > m->region.nbytes)
		ring = m->region.nbytes;
	m->mode = PAWL_MODE_RING;
	m->ring.n_steps = (size_t)(ring / ARENA_STEP_BYTES);
	m->ring.next_step = m->ring.n_ready = n_warm < m->ring.n_steps ? n_warm : m->ring.n_steps;
	m->ring.is_ready = bump_array(&m->memory, m->ring.n_steps, sizeof(*m->ring.is_ready));
	m->ring.free_slots = bump_array(&m->memory, ring / m->unit_bytes + 1, sizeof(*m->ring.free_slots));
	if (!m->ring.free_slots || !m->ring.is_ready)
		return err_nomem(err, "save");
	return 0;
}

/* Faults in the next part of the ring. The lock is held, and released meanwhile. */
static void
ring_grow(struct save_image *m)
{
	const size_t step = m->ring.next_step++;

	pthread_mutex_unlock(&m->progress->lock);
	arena_fault_in((char *)m->region.ptr + step * ARENA_STEP_BYTES, ARENA_STEP_BYTES);
	pthread_mutex_lock(&m->progress->lock);
	m->ring.is_ready[step] = 1;
	while (m->ring.n_ready < m->ring.next_step && m->ring.is_ready[m->ring.n_ready])
		m->ring.n_ready++;
	pthread_cond_broadcast(&m->progress->changed);
}

/* Bytes of a new slot. In ring mode every slot can hold any unit. A snapshot has room for all
 * units, each of its own size, so that it never waits for the store. */
static size_t
slot_bytes(const struct save_image *m, size_t nbytes)
{
	return m->passes_through ? (size_t)mem_round_up(nbytes, IMAGE_ALIGN) : (size_t)SAVE_UNIT_BYTES;
}

/* The lock is held. */
static void
put_free(struct save_image *m, char *slot)
{
	m->ring.free_slots[m->ring.n_free_slots++] = slot;
	pthread_cond_broadcast(&m->progress->changed);
}

/* Of those on the node the one that was freed last, or NULL. The lock is held. */
static char *
take_free(struct save_image *m, int node)
{
	char **slots = m->ring.free_slots, *slot;

	for (size_t i = m->ring.n_free_slots; i-- > 0;)
		if (from_device_is_near(m, slots[i], node)) {
			slot = slots[i];
			slots[i] = slots[--m->ring.n_free_slots];
			return slot;
		}
	return NULL;
}

char *
ring_take_slot(struct save_image *m, size_t nbytes, int node)
{
	const size_t n = slot_bytes(m, nbytes);
	char *slot = NULL;

	pthread_mutex_lock(&m->progress->lock);
	while (!slot && !m->progress->failed) {
		const size_t end = m->ring.fresh + n;

		slot = take_free(m, node);
		if (slot)
			break;
		if (end <= m->ring.n_ready * ARENA_STEP_BYTES) {
			slot = (char *)m->region.ptr + m->ring.fresh;
			m->ring.fresh = end;
			if (!from_device_is_near(m, slot, node))
				put_free(m, steal(&slot));
		} else if (end <= m->ring.n_steps * ARENA_STEP_BYTES && m->ring.next_step < m->ring.n_steps) {
			ring_grow(m);
		} else { /* another thread may still fault in the last parts */
			slot = end > m->ring.n_steps * ARENA_STEP_BYTES ? take_free(m, -1) : NULL;
			if (!slot)
				pool_cond_wait_until(&m->progress->changed, &m->progress->lock, -1);
		}
	}
	pthread_mutex_unlock(&m->progress->lock);
	return slot;
}

/* A slot that is too small for other units is not used again. */
void
ring_give_slot(struct save_image *m, const struct save_unit *u)
{
	if (!u->slot || (m->passes_through && slot_bytes(m, u->nbytes) < m->unit_bytes))
		return;
	pthread_mutex_lock(&m->progress->lock);
	put_free(m, u->slot);
	pthread_mutex_unlock(&m->progress->lock);
}
