/* SPDX-License-Identifier: Apache-2.0 */
/* pack: what a pack says of itself: its name, and the header at its beginning. For those who look at packs without a
 * manifest. */
#ifndef PAWL_PACK_H
#define PAWL_PACK_H

#include <stdbool.h>

#include "base/json.h"
#include "format/codec/codec.h"
#include "format/safetensors/safetensors.h"
#include "store/store.h"

#define PACK_SUFFIX ".safetensors"
#define PACK_TOKEN_LEN 8 /* digits of a save's token in the names of its packs, in stores that cannot rename folders */

/* The codec of a compressed pack, by its name ("rank00003-00012.safetensors.zst"); NULL = it is not compressed. */
const struct codec *pack_codec(const char *name);
/* What compression may be, one by one; NULL beyond the last. */
const char *pack_codec_name(size_t i);
/* By one of these names; PAWL_EUSAGE names them all. */
int pack_find_codec(const char *name, const struct codec **ret, struct pawl_error *err);
/* The options of compression: NULL, "" and "none" are none of it, *ret NULL. PAWL_EUSAGE. */
int pack_check_compression(const char *name, int level, const struct codec **ret, struct pawl_error *err);
/* "rank00003-00012.safetensors" or "rank00003-00012-0123abcd.safetensors", and with a codec's suffix -> 3, 12; false for any
 * other name. */
bool pack_parse_name(const char *name, uint32_t *ret_rank, uint32_t *ret_index);
/* Are these packs the same one of the same rank, of two saves? */
bool pack_same_place(const char *a, const char *b);
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
