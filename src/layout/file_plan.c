/* SPDX-License-Identifier: Apache-2.0 */
/* file_plan: see file_plan.h. */
#include "layout/file_plan.h"

#include "base/err.h"
#include "layout/plan.h"
#include "state/state.h"

int
file_plan_safetensors(const struct pawl_state *state, const struct file_plan_opts *opts, struct piece_plan *ret,
                      struct pawl_error *err)
{
	const struct plan_opts one_pack = {.pack_bytes = UINT64_MAX, .block_bytes = 1u << 20, .run_id = ""};
	PAWL_CLEAN(plan_free_clean) struct plan *p = NULL;
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const struct plan_pack *pack;

	(void)opts;
	TRY(state_encode(state, &text, err));
	TRY(plan_make(state, &one_pack, &p, err));
	TRY(plan_refresh(p, &one_pack, (struct pawl_slice){"{}", 2}, (struct pawl_slice){text.ptr, text.len}, err));
	pack = &p->packs[0];
	buf_put(&ret->bytes, pack->header.ptr, pack->header.len);
	for (size_t i = 0; i < pack->n_slots; i++)
		TRY(piece_plan_add(ret, FILE_TENSOR, pack->slots[i].tensor, pack->slots[i].nbytes, err));
	return piece_plan_finish(ret, err);
}
