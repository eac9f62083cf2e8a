/* SPDX-License-Identifier: Apache-2.0 */
/* pack: the header at the beginning of a pack. For reading packs without a manifest. */
#ifndef PAWL_PACK_H
#define PAWL_PACK_H

#include <stdbool.h>

#include "base/json.h"
#include "format/safetensors/safetensors.h"
#include "state/pack_name.h"
#include "store/store.h"

/* Reads and decodes the header of a pack, also of a compressed one (*ret_nbytes: unpacked); memory is the bump's. PAWL_ECORRUPT, PAWL_ELIMIT. */
int pack_read_header(struct store *store, const char *key, struct bump *memory, struct st_table *ret,
                     uint64_t *ret_nbytes, struct pawl_error *err);
/* Was this pack written by a run of that id? */
bool pack_is_of_run(const struct st_table *table, const char *run_id);

/* What is known of a tensor in one pack: its global dtype and shape, and which box of it lies here. */
struct pack_box {
	int dtype;
	uint32_t ndim;
	const uint64_t *shape, *offsets, *lengths;
};
/* From its entry in the header and, for shards and complex128, its entry in "pawl.tensors" (else NULL). PAWL_ECORRUPT where the
 * two do not fit. Memory is the bump's and the header's. */
int pack_read_box(const struct st_tensor *st, const struct json *special, struct bump *memory, struct pack_box *ret,
                  struct pawl_error *err);

#endif
