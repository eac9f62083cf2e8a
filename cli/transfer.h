/* SPDX-License-Identifier: Apache-2.0 */
/* transfer: shared by 'pawl cp' and 'pawl sync': their options, one transfer with a progress line,
 * and its report. */
#ifndef PAWL_CLI_TRANSFER_H
#define PAWL_CLI_TRANSFER_H

#include "cli.h"
#include "jsonout.h"
#include "target.h"

struct transfer_args {
	uint64_t streams, memory_bytes, bandwidth;
	double timeout_seconds;
	bool dry_run;
};
#define TRANSFER_OPTIONS(type)                                                     \
	{"dry-run", 'n',                                                           \
	 OPT_FLAG,  offsetof(struct type, transfer.dry_run),                       \
	 NULL,      "print what would be copied; change nothing"},                 \
		{"bwlimit", 0,                                                     \
	         OPT_RATE,  offsetof(struct type, transfer.bandwidth),             \
	         "RATE",    "limit of bytes per second each way, such as 20MB/s"}, \
		{"streams", 0,                                                     \
	         OPT_COUNT, offsetof(struct type, transfer.streams),               \
	         "N",       "pieces in flight at a time (default: 4)"},            \
		{"memory",  0,                                                     \
	         OPT_BYTES, offsetof(struct type, transfer.memory_bytes),          \
	         "SIZE",    "memory for all pieces together (default: 256MiB)"},   \
		{"timeout",   0,                                                   \
	         OPT_SECONDS, offsetof(struct type, transfer.timeout_seconds),     \
	         "TIME",      "give up after this time; a second call continues"}

struct transfer {
	const char *to;
	bool dry_run;
	const struct pawl_info *info; /* for one checkpoint; NULL = a run */
	const uint64_t *ids;          /* for a run: only these */
	size_t n_ids;
	/* results */
	struct pawl_copies *copies; /* owned; NULL = nothing was copied */
	bool was_there;             /* the one checkpoint existed already */
	int code;
	const char *message; /* if code is not 0 */
	double seconds;
};

/* --streams and --timeout as the options of the library; 0 = not given. */
uint32_t transfer_streams(const struct transfer_args *args);
int64_t transfer_timeout_ms(const struct transfer_args *args);
/* Runs the transfer; the outcome is in *t. */
void transfer_run(struct cli *cli, struct pawl *from, const struct transfer_args *args, struct transfer *t);
void transfer_clear(struct transfer *t); /* usable as CLEANUP(transfer_clear) */
/* Prints its rows, and a last line for people. */
void transfer_print(struct cli *cli, const struct transfer *t);
/* Writes members of the current object: to, dry_run, checkpoints, bytes, sent_bytes, seconds,
 * error. */
void transfer_json(struct jsonout *j, const struct transfer *t);
/* Refuses a destination inside a run or a checkpoint. URLs are left to the library. */
int transfer_check_place(struct cli *cli, const char *to, struct pawl_error *err);

#endif
