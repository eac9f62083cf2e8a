/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broadcast_reads: data that all ranks want is read by one rank and sent to the others with the
 * caller's broadcast function.
 *
 *   all ranks: what do I want? ──> rank 0: what do all want? ──> all ranks: read my share, and what
 *              (agree.h)                   (broadcast)           only I want; every block verified
 *                                                                            │
 *                            for each rank: its share to all, chunk by chunk (broadcast)
 *
 * The boxes that all ranks want are put one after the other in rank 0's order, and cut into equal
 * lengths, one for each rank. Large boxes are cut between rows, as rank_share.h cuts what is saved.
 * So a job that restores with the number of ranks that saved reads from its own packs.
 *
 * The function is a collective. No rank calls it before all have agreed to, through the store; then
 * all call it equally often. A rank that could not read sends an error mark instead of the bytes.
 * Every message has a number and a checksum, so a function that mixes up its calls is detected
 * (P1).
 */
#ifndef PAWL_BROADCAST_READS_H
#define PAWL_BROADCAST_READS_H

#include "restore/restore.h"

/* Reads what is bound, together with the other ranks. code: this rank's result so far, with *err.
 * If the ranks could not agree to begin, the result owed to them (owes_word) has been sent.
 * *ret_nbytes: read from the store by this rank. */
int broadcast_reads(struct pawl_restore *r, int code, uint64_t *ret_nbytes, struct pawl_error *err);
/* Memory that the messages take out of ring_bytes (0 = the default). */
uint64_t broadcast_reads_chunk(uint64_t ring_bytes);

#endif
