/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_text: encodes and decodes the files by which ranks meet
 * (docs/explanation/multi-rank.md). Pure.
 */
#ifndef PAWL_RENDEZVOUS_TEXT_H
#define PAWL_RENDEZVOUS_TEXT_H

#include "base/buf.h"
#include "base/bump.h"
#include "base/clock.h"
#include "base/mem.h"
#include "ranks/rendezvous.h"

#define RENDEZVOUS_ATTEMPT RENDEZVOUS_FOLDER "/attempt.json"
#define RENDEZVOUS_MAX_ATTEMPT ((size_t)64 << 20)
#define RENDEZVOUS_MAX_JOIN ((size_t)4096)
#define RENDEZVOUS_MAX_WORLD 100000u
#define SUM_HEX 32

/* A rank that was admitted; nonce "" = not yet. */
struct rendezvous_member {
	char nonce[33];
	struct clock_process process; /* known to rank 0 only */
	uint64_t last_id;
	const char *refused; /* known to rank 0 only: why the last process was refused; NULL = none was */
};

struct rendezvous_refusal {
	char nonce[33];
	const char *why;
};

struct rendezvous_attempt {
	struct rendezvous_pass pass;
	uint32_t world;
	char job[SUM_HEX + 1];
	struct rendezvous_member *members; /* world of them, or NULL */
	struct rendezvous_refusal *refusals;
	size_t n_refusals;
};

struct rendezvous_request {
	uint32_t rank, world;
	char nonce[33], job[SUM_HEX + 1];
	struct clock_process process;
};

/* {"pawl_attempt":1,"token":..,"run":..,"lease":..,"attempt":N,"last_id":N,"created_unix_ns":N,
 *  "world_size":N,"job":..,"members":[[rank,nonce,last_id],..],"refused":[[nonce,why],..]} */
void rendezvous_put_attempt(const struct rendezvous_attempt *a, struct buf *out);
/* Arrays and texts are the bump's. PAWL_ECORRUPT, PAWL_ELIMIT. */
int rendezvous_get_attempt(const char *what, const struct buf *text, struct bump *memory,
                           struct rendezvous_attempt *ret, struct pawl_error *err);
/*
 * {"pawl_join":1,"rank":N,"world_size":N,"nonce":..,"job":..,
 *  "host":..,"boot":..,"pid":N,"start":N}
 */
void rendezvous_put_request(const struct rendezvous_request *r, struct buf *out);
int rendezvous_get_request(const char *what, const struct buf *text, struct rendezvous_request *ret,
                           struct pawl_error *err);
/* "join-00003-<nonce>.json" -> 3, nonce */
bool rendezvous_parse_join(const char *name, uint32_t *ret_rank, char ret_nonce[33]);
/* The same for any prefix: "part", "fault". */
bool rendezvous_parse_name(const char *name, const char *prefix, uint32_t *ret_rank, char ret_nonce[33]);

#endif
