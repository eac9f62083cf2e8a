/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share_reads: what all ranks of a job want of a checkpoint is read by one of them and handed to the others by the
 * caller's broadcast function.
 *
 *   everybody: what do I want? ──> rank 0: what do all of us want? ──> everybody: reads its share, and what only it wants
 *              (agree.h)             (broadcast)                                     │ every block verified
 *                                                            for each rank: its share to all, chunk by chunk (broadcast)
 *
 * The boxes that all want are laid one behind the other in rank 0's order and cut into equal lengths, one for each rank;
 * large boxes are cut between rows, as share.h cuts what is saved. So a job that restores what as many ranks have
 * saved reads from its own packs.
 *
 * The function is a collective: nobody calls it before all have said, through the store, that they will, and then all
 * call it equally often. Who could not read sends a mark instead of the bytes. Every message has a number and a sum, so
 * that a function that mixes up its calls is found out and not believed (P1).
 */
#ifndef PAWL_SHARE_READS_H
#define PAWL_SHARE_READS_H

#include "restore/restore.h"

/* Reads what is bound, together with the other ranks. code: how it went here up to now, with *err. Uses up the word that
 * is owed to the others where they could not agree to begin. *ret_nbytes: read from the store by this rank. */
int share_reads(struct pawl_restore *r, int code, uint64_t *ret_nbytes, struct pawl_error *err);
/* Memory that the messages take of ring_bytes (0 = the default). */
uint64_t share_reads_chunk(uint64_t ring_bytes);

#endif
