/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress: a pack that is compressed while it is written (option compression).
 *
 * Units arrive on any thread and in any order. The thread that brings a unit compresses it. The
 * file needs them in order: a thread that finds the next unit ready appends it, so that no thread
 * waits for another.
 *
 * Memory: compressed units that are not in order yet, and one chunk of 8 MiB. Where the store must
 * know a file's size in advance (store_caps.can_cut is false), memory holds the complete compressed
 * pack.
 */
#ifndef PAWL_COMPRESS_H
#define PAWL_COMPRESS_H

#include "base/sum.h"
#include "format/codec/codec.h"
#include "save/save.h"

struct compress;
/* For a pack of so many units. */
int compress_new(struct save_pack *pack, const struct codec *codec, size_t n_units, struct compress **ret,
                 struct pawl_error *err);
/* Compresses one unit. Its memory is free after that, unless it is a part of pack->bytes. */
int compress_unit(struct compress *p, const struct save_unit *u, struct pawl_error *err);
/* After the last unit: writes the rest. The caller finishes pack->file. */
int compress_finish(struct compress *p, struct pawl_error *err);
/* Size and checksums of the compressed file; known after compress_finish. */
uint64_t compress_bytes(const struct compress *p);
const struct sum128 *compress_sums(const struct compress *p, size_t *ret_n);
void compress_free(struct compress *p); /* NULL is fine */

#endif
