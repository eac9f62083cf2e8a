/* SPDX-License-Identifier: Apache-2.0 */
/* writer_warm: memory that is faulted in before a save needs it. See writer.h. */
#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "save/from_device.h"
#include "save/role.h"
#include "save/writer.h"

static bool
may_warm(struct writer *w)
{
	pthread_mutex_lock(&w->lock);
	const bool may = !w->closing && !w->active && !w->queued;

	pthread_mutex_unlock(&w->lock);
	return may;
}

/* Job of the idle saver thread. It ends when a save begins. */
static void
warm_arena(void *arg)
{
	struct writer *w = arg;

	for (;;) {
		pthread_mutex_lock(&w->lock);
		const bool is_done = !w->is_cold || w->closing || w->active || w->queued;

		w->is_cold = false;
		if (is_done)
			w->warming = false;
		pthread_mutex_unlock(&w->lock);
		if (is_done)
			return;
		while (may_warm(w) && arena_warm_step(w->run->saves.arena))
			;
	}
}

void
writer_warm(struct writer *w)
{
	if (!arena_is_cold(w->run->saves.arena))
		return;
	pthread_mutex_lock(&w->lock);
	w->is_cold = true;
	if (!w->warming && !w->closing)
		w->warming = pool_add(w->saver, NULL, warm_arena, w, NULL) == 0;
	pthread_mutex_unlock(&w->lock);
}

static bool
is_ring(const struct writer *w, uint64_t nbytes)
{
	const uint64_t limit = w->run->opts.staging.arena_bytes;

	return w->run->opts.staging.mode != PAWL_MODE_SNAPSHOT || (limit && nbytes > limit);
}

/* Memory mapped beyond nbytes, for headers and more packs, stays cold until a save uses it. A
 * running save leaves its own memory to the next one. */
void
writer_prepare(struct writer *w, uint64_t nbytes)
{
	const struct pawl_open_opts *opts = &w->run->opts;
	uint64_t room = nbytes + nbytes / 64 + ((uint64_t)4 << 20), ring = opts->staging.ring_bytes;

	if (opts->staging.arena_bytes && nbytes <= opts->staging.arena_bytes && room > opts->staging.arena_bytes)
		room = opts->staging.arena_bytes;
	if (opts->staging.arena_bytes && nbytes > opts->staging.arena_bytes)
		ring = opts->staging.arena_bytes;
	if (is_ring(w, nbytes))
		nbytes = room = ring < SAVE_UNIT_BYTES ? SAVE_UNIT_BYTES : ring;
	if (nbytes <= SIZE_MAX / 8 && may_warm(w) &&
	    arena_prepare(w->run->saves.arena, (size_t)nbytes, (size_t)room, NULL) == 0)
		writer_warm(w);
}

/* Registers what is prepared with the driver of the tensors. The next save would do it, too. */
static void
pin_memory(struct writer *w, const struct pawl_state *share, uint64_t nbytes)
{
	struct save_image m = {
		.env = &w->env, .share = *share, .mode = is_ring(w, nbytes) ? PAWL_MODE_RING : PAWL_MODE_SNAPSHOT};

	if (from_device_open(&m, NULL) == 0 && m.from_device) {
		if (m.mode == PAWL_MODE_SNAPSHOT && from_device_has_nodes(&m))
			(void)writer_plan(w, share, &m.plan, NULL);
		from_device_register(&m, pawl_arena_bytes(w->run->saves.arena));
	}
	plan_free(m.plan);
	from_device_forget(&m);
	bump_clear(&m.memory);
}

int
writer_prepare_state(struct writer *w, const struct pawl_state *state, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_state share;
	uint64_t nbytes = 0;
	const int rc = w->run->modes.role->share(w->run, state, &memory, &share, err);

	if (rc < 0)
		return rc == PAWL_ENOMEM ? 0 : rc;
	for (size_t i = 0; i < share.n_tensors; i++)
		if (!share.tensors[i].elsewhere && !mem_add_ok(nbytes, share.tensors[i].local_nbytes, &nbytes))
			return 0;
	writer_prepare(w, nbytes);
	pin_memory(w, &share, nbytes);
	return 0;
}
