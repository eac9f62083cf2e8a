/* SPDX-License-Identifier: Apache-2.0 */
/* pack_name: names of packs, and the codecs that a pack may have. Pure. */
#ifndef PAWL_PACK_NAME_H
#define PAWL_PACK_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/codec/codec.h"
#include "pawl.h"

#define PACK_SUFFIX ".safetensors"
/* Digits of a save's token in the names of its packs, in stores that cannot rename folders. */
#define PACK_TOKEN_LEN 8

/* The codec of a compressed pack, by its name ("rank00003-00012.safetensors.zst"); NULL = it is not
 * compressed. */
const struct codec *pack_codec(const char *name);
/* The values that the option compression accepts, one by one; NULL after the last. */
const char *pack_codec_name(size_t i);
/* Checks the options of compression. For NULL, "" and "none", which mean no compression, *ret is
 * NULL. PAWL_EUSAGE. */
int pack_check_compression(const char *name, int level, const struct codec **ret, struct pawl_error *err);
/* "rank00003-00012.safetensors" or "rank00003-00012-0123abcd.safetensors", and with a codec's
 * suffix -> 3, 12; false for any other name. */
bool pack_parse_name(const char *name, uint32_t *ret_rank, uint32_t *ret_index);
/* Are these packs of two saves the same pack of the same rank? */
bool pack_same_place(const char *a, const char *b);

#endif
