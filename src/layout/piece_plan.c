/* SPDX-License-Identifier: Apache-2.0 */
/* piece_plan: see piece_plan.h. */
#include "layout/piece_plan.h"

#include "base/err.h"

#define WHAT "layout of a file"

void
piece_plan_clear(struct piece_plan *plan)
{
	buf_clear(&plan->bytes);
	vec_free(&plan->pieces);
	*plan = (struct piece_plan){0};
}

uint64_t
piece_plan_end(const struct piece_plan *plan)
{
	return plan->nbytes + (plan->bytes.len - plan->n_placed);
}

static int
add_piece(struct piece_plan *plan, struct file_piece piece, struct pawl_error *err)
{
	struct file_piece *row = vec_add(&plan->pieces);

	if (!row)
		return err_nomem(err, WHAT);
	piece.at = plan->nbytes;
	plan->nbytes += piece.nbytes;
	*row = piece;
	return 0;
}

/* The bytes up to `end` become a piece. */
static int
place_bytes(struct piece_plan *plan, size_t end, struct pawl_error *err)
{
	const struct file_piece piece = {FILE_BYTES, .nbytes = end - plan->n_placed, .bytes_at = plan->n_placed};

	TRY(buf_check(&plan->bytes, WHAT, err));
	plan->n_placed = end;
	return piece.nbytes > 0 ? add_piece(plan, piece, err) : 0;
}

int
piece_plan_add(struct piece_plan *plan, enum file_piece_kind kind, size_t tensor, uint64_t nbytes,
               struct pawl_error *err)
{
	TRY(place_bytes(plan, plan->bytes.len, err));
	return add_piece(plan, (struct file_piece){kind, .nbytes = nbytes, .tensor = tensor}, err);
}

int
piece_plan_add_crc(struct piece_plan *plan, size_t tensor, size_t bytes_at, struct pawl_error *err)
{
	TRY(place_bytes(plan, bytes_at, err));
	plan->n_placed += 4;
	return add_piece(plan, (struct file_piece){FILE_CRC, .nbytes = 4, .tensor = tensor}, err);
}

int
piece_plan_finish(struct piece_plan *plan, struct pawl_error *err)
{
	return place_bytes(plan, plan->bytes.len, err);
}

size_t
piece_plan_find(const struct piece_plan *plan, uint64_t offset)
{
	size_t low = 0, high = plan->pieces.n;

	while (low < high) {
		const size_t mid = low + (high - low) / 2;

		if (plan->pieces.items[mid].at + plan->pieces.items[mid].nbytes > offset)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}
