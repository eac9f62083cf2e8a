/* SPDX-License-Identifier: Apache-2.0 */
/* meet_text: the files of a meeting <-> bytes (docs/multi-rank.md). Pure. For the files of meet and gather only. */
#ifndef PAWL_MEET_TEXT_H
#define PAWL_MEET_TEXT_H

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "ranks/meet.h"

#define MEET_ATTEMPT MEET_FOLDER "/attempt.json"
#define MEET_MAX_ATTEMPT ((size_t)64 << 20)
#define MEET_MAX_JOIN ((size_t)4096)
#define MEET_MAX_WORLD 100000u
#define SUM_HEX 32

/* A rank that has been let in; nonce "" = not yet. */
struct meet_member {
	char nonce[33];
	struct clock_process process; /* known to rank 0 only */
	uint64_t last_id;
	const char *refused; /* known to rank 0 only: why the last one that came was not let in; NULL = none was */
};

struct meet_refusal {
	char nonce[33];
	const char *why;
};

struct meet_attempt {
	struct meet_pass pass;
	uint32_t world;
	char job[SUM_HEX + 1];
	struct meet_member *members; /* world of them, or NULL */
	struct meet_refusal *refusals;
	size_t n_refusals;
};

struct meet_request {
	uint32_t rank, world;
	char nonce[33], job[SUM_HEX + 1];
	struct clock_process process;
};

/* {"pawl_attempt":1,"token":..,"run":..,"lease":..,"attempt":N,"last_id":N,"created_unix_ns":N,"world_size":N,"job":..,
 *  "members":[[rank,nonce,last_id],..],"refused":[[nonce,why],..]} */
void meet_put_attempt(const struct meet_attempt *a, struct buf *out);
/* Arrays and texts are the bump's. PAWL_ECORRUPT, PAWL_ELIMIT. */
int meet_get_attempt(const char *what, const struct buf *text, struct bump *memory, struct meet_attempt *ret,
                     struct pawl_error *err);
/* {"pawl_join":1,"rank":N,"world_size":N,"nonce":..,"job":..,"host":..,"boot":..,"pid":N,"start":N} */
void meet_put_request(const struct meet_request *r, struct buf *out);
int meet_get_request(const char *what, const struct buf *text, struct meet_request *ret, struct pawl_error *err);
/* "join-00003-<nonce>.json" -> 3, nonce */
bool meet_parse_join(const char *name, uint32_t *ret_rank, char ret_nonce[33]);
/* The same for any prefix: "part", "fault". */
bool meet_parse_name(const char *name, const char *prefix, uint32_t *ret_rank, char ret_nonce[33]);

#endif
