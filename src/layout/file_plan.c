/* SPDX-License-Identifier: Apache-2.0 */
/* file_plan: see the header. */
#include "layout/file_plan.h"

#include "base/err.h"
#include "base/mem.h"
#include "layout/plan.h"
#include "state/state.h"

PAWL_DEFINE_CLEAN(struct plan, plan_free);

void
file_plan_clear(struct file_plan *plan)
{
	buf_clear(&plan->bytes);
	mem_free(plan->pieces);
	*plan = (struct file_plan){0};
}

static int
add(struct file_plan *plan, struct file_piece piece, struct pawl_error *err)
{
	if (piece.nbytes == 0)
		return 0;
	if (plan->n == plan->cap) {
		const size_t cap = plan->cap ? 2 * plan->cap : 64;
		struct file_piece *more = mem_resize(plan->pieces, cap, sizeof(*more));

		if (!more)
			return err_nomem(err, "layout of a file");
		plan->pieces = more;
		plan->cap = cap;
	}
	piece.at = plan->nbytes;
	plan->pieces[plan->n++] = piece;
	plan->nbytes += piece.nbytes;
	return 0;
}

int
file_plan_bytes(struct file_plan *plan, size_t bytes_at, struct pawl_error *err)
{
	TRY(buf_check(&plan->bytes, "layout of a file", err));
	return add(plan, (struct file_piece){FILE_BYTES, .nbytes = plan->bytes.len - bytes_at, .bytes_at = bytes_at},
	           err);
}

int
file_plan_tensor(struct file_plan *plan, size_t tensor, uint64_t nbytes, struct pawl_error *err)
{
	return add(plan, (struct file_piece){FILE_TENSOR, .nbytes = nbytes, .tensor = tensor}, err);
}

int
file_plan_crc(struct file_plan *plan, size_t tensor, struct pawl_error *err)
{
	return add(plan, (struct file_piece){FILE_CRC, .nbytes = 4, .tensor = tensor}, err);
}

size_t
file_plan_at(const struct file_plan *plan, uint64_t offset)
{
	size_t low = 0, high = plan->n;

	while (low < high) {
		const size_t mid = low + (high - low) / 2;

		if (plan->pieces[mid].at + plan->pieces[mid].nbytes > offset)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

int
file_plan_safetensors(const struct pawl_state *state, const struct file_plan_opts *opts, struct file_plan *ret,
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
	TRY(file_plan_bytes(ret, 0, err));
	for (size_t i = 0; i < pack->n_slots; i++)
		TRY(file_plan_tensor(ret, pack->slots[i].tensor, pack->slots[i].nbytes, err));
	return 0;
}
